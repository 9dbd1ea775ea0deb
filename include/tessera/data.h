/* SPDX-License-Identifier: Apache-2.0 */
/* data.h - from text to batches: tokenizers, token files, loaders.
 *
 *   text files --ts_tokenize_files--> PREFIX-00000.bin ...
 *              --ts_loader_batch--> int32 [rows][context + 1]
 *
 * Everything here is local and needs no rank. A handle is used by one thread at a time; different
 * handles are independent. Errors are recorded as everywhere (ts_last_error, or the thread's rank).
 *
 * Texts are bytes. Where a tokenizer of Hugging Face would see text that is not UTF-8 and put
 * U+FFFD, the bytes themselves are kept: a byte-level tokenizer decodes what it encoded, always. */
#ifndef TESSERA_DATA_H
#define TESSERA_DATA_H

#include "types.h"

/* ---- tokenizers ------------------------------------------------------------------------------ */
typedef struct ts_tokenizer ts_tokenizer;
typedef struct ts_decoder ts_decoder; /* text of tokens that come one by one */

/* Token ids, and text, that grow as they are appended to. Zero is empty; release makes it zero. */
typedef struct ts_tokens {
    int32_t *id;
    int64_t count, capacity;
} ts_tokens;
typedef struct ts_text {
    char *data; /* NUL-terminated when length > 0; may contain NUL bytes */
    size_t length, capacity;
} ts_text;

enum {                         /* flags of ts_tokenizer_encode */
       TS_ENCODE_SPECIALS = 1, /* add what the file's post_processor adds: BOS, EOS */
       TS_ENCODE_PLAIN = 2,    /* special tokens that are spelled in the text are plain text */
       TS_ENCODE_CONTINUED = 4 /* the text continues an earlier one: nothing is put before it */
};
enum { /* flags of ts_tokenizer_decode */
       TS_DECODE_SKIP_SPECIALS = 1
};
enum { /* ids of the built-in tokenizer: 0..255 are the bytes themselves */
       TS_BYTE_BOS = 256,
       TS_BYTE_EOS = 257,
       TS_BYTE_PAD = 258,
       TS_BYTE_SEP = 259,
       TS_BYTE_VOCABULARY = 260
};

TS_BEGIN_C

/* "byte": the built-in tokenizer of bytes. Otherwise a tokenizer.json of Hugging Face, or a
 * directory that holds one: BPE models, byte-level (GPT-2, Llama 3, Qwen) or of SentencePiece's
 * kind (Llama 2, Mistral). A component that is not supported is TS_ERR_ARG with its name;
 * a pattern without PCRE2 in this build is TS_ERR_MISSING. */
TS_API TS_NODISCARD ts_status ts_tokenizer_open(const char *path, ts_tokenizer **out);
/* The same from the text of a tokenizer.json; `what` begins error sentences. */
TS_API TS_NODISCARD ts_status ts_tokenizer_parse(const char *what, const char *json, size_t length,
                                                 ts_tokenizer **out);
TS_API void ts_tokenizer_close(ts_tokenizer *tokenizer); /* accepts NULL */
/* One more than the largest id. */
TS_API int64_t ts_tokenizer_vocabulary(const ts_tokenizer *tokenizer);
/* Changes when the file changes; kept in token files. */
TS_API uint64_t ts_tokenizer_hash(const ts_tokenizer *tokenizer);
/* The id of a token by its spelling in the file ("<|eot_id|>", "\u0120the"), or -1. */
TS_API int32_t ts_tokenizer_find(const ts_tokenizer *tokenizer, const char *token);
/* The spelling of an id in the file; NULL if there is no such id. */
TS_API const char *ts_tokenizer_token(const ts_tokenizer *tokenizer, int32_t id);
/* The token that ends a document, or -1: the built-in one, else the first of the customary names
 * that the file has ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>"). */
TS_API int32_t ts_tokenizer_eos(const ts_tokenizer *tokenizer);

/* Appends the tokens of the text. On failure nothing was appended. */
TS_API TS_NODISCARD ts_status ts_tokenizer_encode(ts_tokenizer *tokenizer, const char *text,
                                                  size_t length, uint32_t flags, ts_tokens *out);
/* Appends the text of the tokens. Ids at or above the vocabulary have no text; a negative id is
 * TS_ERR_ARG, and nothing was appended. */
TS_API TS_NODISCARD ts_status ts_tokenizer_decode(ts_tokenizer *tokenizer, const int32_t *ids,
                                                  int64_t count, uint32_t flags, ts_text *out);
/* Tokens that come one by one, as a model writes them. What a token says depends on those before
 * it: decoded alone, it loses blanks and characters of several tokens. Texts that push and end
 * append are, put together, the text of all tokens; none ends inside a character. The tokenizer
 * must outlive the decoder; after the end it can begin anew. */
TS_API TS_NODISCARD ts_status ts_decoder_open(ts_tokenizer *tokenizer, uint32_t flags,
                                              ts_decoder **out);
TS_API void ts_decoder_close(ts_decoder *decoder); /* accepts NULL */
/* Appends what is certain of the text now. */
TS_API TS_NODISCARD ts_status ts_decoder_push(ts_decoder *decoder, const int32_t *ids,
                                              int64_t count, ts_text *out);
/* Appends what was held back. */
TS_API TS_NODISCARD ts_status ts_decoder_end(ts_decoder *decoder, ts_text *out);
/* The last place where a long text can be cut, so that encoding both parts (the second with
 * TS_ENCODE_CONTINUED) gives the tokens of the whole; 0 if none was found near the end. Candidates
 * are starts of lines and words; each is tried by encoding 4 KiB on both sides of it. */
TS_API TS_NODISCARD ts_status ts_tokenizer_cut(ts_tokenizer *tokenizer, const char *text,
                                               size_t length, size_t *out);
TS_API void ts_tokens_release(ts_tokens *tokens);
TS_API void ts_text_release(ts_text *text);

/* ---- token files ----------------------------------------------------------------------------- */
/* A set of shards PREFIX-00000.bin, PREFIX-00001.bin, ...; the format is in docs/data.md. A shard
 * appears under its name only when it is complete (written beside it, synced, renamed). */

typedef struct ts_tokenize_progress {
    int64_t bytes_done, bytes_total; /* of the input */
    int64_t tokens, shards;          /* written, earlier runs included */
} ts_tokenize_progress;

typedef struct ts_tokenize_options {
    size_t struct_size;
    const char *tokenizer;    /* "byte" (NULL), or a file: ts_tokenizer_open */
    const char *const *files; /* text files, in this order; each is one document. Of "*.jsonl" every
                                 line is an object whose member json_key is one */
    int64_t file_count;
    const char *prefix;   /* of the shards */
    int64_t shard_tokens; /* in one shard; 0: 100,000,000 */
    int32_t specials;     /* 1: TS_ENCODE_SPECIALS for each document */
    int32_t plain;        /* 1: TS_ENCODE_PLAIN */
    int32_t no_eos;       /* 1: no token between documents */
    int32_t restart;      /* 1: from the beginning, over shards that are there */
    int64_t part_bytes;   /* read at once; 0: 4 MiB. Memory is a small multiple of it */
    /* (optional) Called now and then; other than 0 stops, and the call fails with TS_ERR_STATE:
     * complete shards stay and a later call continues after them. */
    int (*progress)(const ts_tokenize_progress *progress, void *context);
    void *context;
    const char *json_key; /* NULL: "text" */
} ts_tokenize_options;
TS_API void ts_tokenize_options_init(ts_tokenize_options *options);

typedef struct ts_tokenize_result {
    int64_t bytes, tokens, shards; /* of the whole set */
    int64_t shards_kept;           /* written by an earlier call and found complete */
    int64_t vocabulary;
    int32_t token_bytes; /* 2 or 4 */
    int32_t eos;         /* the token after each document, or -1 */
} ts_tokenize_result;

/* Text files to shards. If shards of the same inputs and options are there, continues after the
 * last complete one; if shards of other inputs are there, TS_ERR_STATE. The result is the same
 * bytes however often it was interrupted. */
TS_API TS_NODISCARD ts_status ts_tokenize_files(const ts_tokenize_options *options,
                                                ts_tokenize_result *out);

/* ---- loaders --------------------------------------------------------------------------------- */
typedef struct ts_loader ts_loader;

typedef struct ts_loader_options {
    size_t struct_size;
    const char *const *files; /* shards, in this order */
    int64_t file_count;
    const char *prefix; /* instead of files: all shards PREFIX-NNNNN.bin */
    int64_t context;    /* tokens of a row that are inputs; a row has one more */
    int64_t batch;      /* rows of one step, of all ranks together */
    uint64_t seed;
    int32_t in_order; /* 1: windows as they lie, not shuffled */
    int32_t reserved;
} ts_loader_options;
TS_API void ts_loader_options_init(ts_loader_options *options);

/* The tokens of all files are one stream; window w is its tokens [w * context, (w + 1) * context],
 * both ends included, so that every token but the first is a target once. Row r of step s is
 * sample n = s * batch + r; epoch n / windows visits every window once, in an order that is a
 * function of (seed, epoch). Nothing depends on ranks or on earlier calls: the state is the step.
 */
TS_API TS_NODISCARD ts_status ts_loader_open(const ts_loader_options *options, ts_loader **out);
/* Rows of several loaders of one context and tokenizer, in turn by their weights: of every 1000
 * rows each has its share, evenly spread, at least one. Row r of step s is a function of the
 * numbers alone, as above. On success it owns the loaders. */
TS_API TS_NODISCARD ts_status ts_loader_mix(ts_loader *const *loader, const double *weight,
                                            int64_t count, int64_t batch, ts_loader **out);
TS_API void ts_loader_close(ts_loader *loader); /* accepts NULL */
/* Rows [first_row, first_row + row_count) of a step into out[row_count][context + 1]. Data is
 * checked against its checksums when it is first touched: TS_ERR_IO names file and place. A file
 * that is truncated while it is open is TS_ERR_IO too. */
TS_API TS_NODISCARD ts_status ts_loader_batch(ts_loader *loader, int64_t step, int64_t first_row,
                                              int64_t row_count, int32_t *out);
/* The window and the epoch of a sample; for logs and tests. */
TS_API int64_t ts_loader_window(const ts_loader *loader, int64_t sample, int64_t *epoch);
TS_API int64_t ts_loader_windows(const ts_loader *loader); /* in one epoch */
TS_API int64_t ts_loader_tokens(const ts_loader *loader);
TS_API int64_t ts_loader_vocabulary(const ts_loader *loader);
TS_API uint64_t ts_loader_tokenizer_hash(const ts_loader *loader);

TS_END_C
#endif
