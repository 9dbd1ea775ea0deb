/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h - what a tokenizer is made of. A text passes through these stages, in this order:
 *
 *   added tokens    spelled in the raw text: cut out, they are whole tokens         (added.c)
 *   normalizers     what is left between them is rewritten                          (normalize.c)
 *   added tokens    those that are looked for in rewritten text
 *   pre-tokenizers  cut it into words                                               (pretoken.c)
 *   model           each word by itself                                             (bpe.c)
 *   post-processor  tokens before and behind the whole
 *
 * and ids are turned into text by the decoders (decode.c). The built-in byte tokenizer has no
 * stages. parse.c reads them from a tokenizer.json and refuses what is not listed here. */
#ifndef TSI_DATA_TOKENIZER_H
#define TSI_DATA_TOKENIZER_H

#include "base/arena.h"
#include "base/text.h"
#include "data/bpe.h"
#include "data/pattern.h"
#include "data/vocab.h"
#include "tessera/data.h"
#include "tessera/json.h"

enum { TSI_TOKEN_STEPS_MAX = 16 }; /* of one stage */
/* Classes of characters: ASCII, the mark, all others. */
enum { TSI_CLASS_MARK = 128, TSI_CLASS_OTHER, TSI_CLASSES };
#define TSI_MARK "\xE2\x96\x81" /* U+2581: the blank of SentencePiece's kind */

typedef struct tsi_string { /* bytes; not NUL-terminated */
    const char *data;
    size_t length;
} tsi_string;

/* ---- normalizers ----------------------------------------------------------------------------- */
typedef enum tsi_normal_kind {
    TSI_NORMAL_PREPEND, /* to */
    TSI_NORMAL_REPLACE, /* from by to */
    TSI_NORMAL_NFC
} tsi_normal_kind;

typedef struct tsi_normal {
    tsi_normal_kind kind;
    tsi_string from, to;
} tsi_normal;

/* ---- pre-tokenizers -------------------------------------------------------------------------- */
typedef enum tsi_split_kind { /* what becomes of a match */
                              TSI_SPLIT_ISOLATED,
                              TSI_SPLIT_REMOVED,
                              TSI_SPLIT_WITH_PREVIOUS,
                              TSI_SPLIT_WITH_NEXT,
                              TSI_SPLIT_CONTIGUOUS
} tsi_split_kind;

typedef enum tsi_token_step_kind {
    TSI_TOKEN_STEP_SPLIT,  /* at matches of a pattern or literal */
    TSI_TOKEN_STEP_PREFIX, /* a blank before a piece that has none */
    TSI_TOKEN_STEP_MARK    /* Metaspace: blanks become marks */
} tsi_token_step_kind;

typedef enum tsi_mark_prefix { TSI_MARK_ALWAYS, TSI_MARK_FIRST, TSI_MARK_NEVER } tsi_mark_prefix;

/* Length of the match that begins at from, or 0: undecided, ask the pattern (pattern_scan.c). */
typedef size_t (*tsi_scan_fn)(const char *text, size_t length, size_t from);

typedef struct tsi_token_step {
    tsi_token_step_kind kind;
    tsi_split_kind split;
    bool invert;            /* what does not match counts as match */
    tsi_pattern *pattern;   /* or NULL: literal */
    tsi_scan_fn scan;       /* of the pattern, or NULL */
    tsi_string literal;     /* SPLIT: what is searched; MARK: the mark */
    tsi_mark_prefix prefix; /* MARK */
} tsi_token_step;

/* ---- decoders -------------------------------------------------------------------------------- */
typedef enum tsi_decode_kind {
    TSI_DECODE_BYTE_LEVEL,
    TSI_DECODE_REPLACE,
    TSI_DECODE_BYTE_FALLBACK,
    TSI_DECODE_FUSE,
    TSI_DECODE_STRIP,
    TSI_DECODE_MARK
} tsi_decode_kind;

typedef struct tsi_decode {
    tsi_decode_kind kind;
    tsi_string from, to; /* REPLACE; from: STRIP, MARK */
    int64_t start, stop; /* STRIP: how many at most */
    bool keep_first;     /* MARK: marks of the first token are blanks too */
} tsi_decode;

/* ---- added tokens ---------------------------------------------------------------------------- */
typedef struct tsi_added {
    int32_t id;
    bool special, strip_left, strip_right, single_word;
} tsi_added;

typedef struct tsi_trie_node {
    int32_t child, sibling; /* -1: none */
    int32_t added;          /* index of the added token that ends here, or -1 */
    unsigned char byte;
} tsi_trie_node;

typedef struct tsi_added_set { /* a trie over the spellings; zero is empty */
    tsi_trie_node *node;
    int32_t count, capacity;
    int32_t root[256]; /* node + 1 of each first byte; 0: no token begins with it */
} tsi_added_set;

struct ts_tokenizer {
    bool bytes; /* the built-in one */
    uint64_t hash;
    int32_t eos;
    tsi_vocab names; /* every token as the file spells it */
    tsi_bpe bpe;
    tsi_bpe_work work;
    tsi_added *added;
    int64_t added_count;
    bool *special;                 /* by id */
    tsi_added_set raw, normalized; /* looked for before and after the normalizers */
    tsi_pattern *word_letter;      /* for single_word; NULL: no token needs it */
    tsi_normal normal[TSI_TOKEN_STEPS_MAX];
    tsi_token_step step[TSI_TOKEN_STEPS_MAX];
    tsi_decode decode[TSI_TOKEN_STEPS_MAX];
    size_t normal_count, step_count, decode_count;
    tsi_arena texts; /* of the steps */
    bool joined;     /* there is a decoder: texts of tokens are joined without blanks */
    bool cuts;       /* `joins` holds: a word may be cut between characters that never join */
    /* By the classes of two neighbours (pretoken.c): does a merge join them? */
    bool joins[TSI_CLASSES][TSI_CLASSES];
    ts_tokens before, behind;                  /* of the post-processor */
    tsi_text scratch[TSI_TOKEN_STEPS_MAX + 2]; /* one per step; two for the normalizers */
};

/* ---- parse.c, parse_steps.c ---- */
/* Reads a tokenizer.json into a zeroed tokenizer; on failure the caller releases it. */
ts_status tsi_tokenizer_read(ts_tokenizer *tokenizer, const ts_json *root);
ts_status tsi_read_normalizer(ts_tokenizer *tokenizer, const ts_json *value);
ts_status tsi_read_pre_tokenizer(ts_tokenizer *tokenizer, const ts_json *value);
ts_status tsi_read_decoder(ts_tokenizer *tokenizer, const ts_json *value);
ts_status tsi_read_post_processor(ts_tokenizer *tokenizer, const ts_json *value);

/* ---- added.c ---- */
ts_status tsi_added_insert(tsi_added_set *set, const char *text, size_t length, int32_t added);
typedef struct tsi_found {
    size_t start, end;      /* with the blanks that the token takes */
    const tsi_added *added; /* NULL: no more */
} tsi_found;
/* The next added token at or after *from; *from moves behind it. `floor` is the end of the one
 * before. `plain`: special ones are not looked for. */
ts_status tsi_added_next(ts_tokenizer *tokenizer, const tsi_added_set *set, tsi_string text,
                         bool plain, size_t floor, size_t *from, tsi_found *out);
void tsi_added_release(tsi_added_set *set);

/* ---- normalize.c ---- */
/* The normalized text: the given one, or one in the tokenizer's scratch that lives until the next
 * call. `continued`: nothing is put before it. */
ts_status tsi_normalize(ts_tokenizer *tokenizer, tsi_string text, bool continued, tsi_string *out);
/* Appends the text with each `from` replaced. */
void tsi_replace(tsi_text *out, tsi_string text, tsi_string from, tsi_string to);

/* ---- pretoken.c ---- */
typedef struct tsi_encode { /* one call of ts_tokenizer_encode */
    ts_tokenizer *tokenizer;
    ts_tokens *out;
    bool continued, plain;
} tsi_encode;
/* Cuts a piece into words and appends their tokens. first: it is the start of the whole text. */
ts_status tsi_pretokenize(const tsi_encode *call, tsi_string piece, bool first);

/* The class of the character at text and its length in bytes. */
int tsi_class_of(const char *text, size_t length, size_t *used);

/* ---- pattern_scan.c ---- */
extern const char tsi_pattern_gpt2[];            /* of the ByteLevel pre-tokenizer */
tsi_scan_fn tsi_scan_of(const char *expression); /* NULL: not one of the known patterns */

/* ---- decode.c ---- */
ts_status tsi_decode_ids(ts_tokenizer *tokenizer, const int32_t *ids, int64_t count, uint32_t flags,
                         tsi_text *out);

#endif
