/* SPDX-License-Identifier: Apache-2.0 */
/* pretoken.c - cutting a piece of text into words, step by step, without lists: what one step cuts
 * off goes through the next steps at once, and in the end to the model.
 *
 * A splitter sees a piece as an alternation of matches and gaps and holds back the last part, since
 * the next one may have to be joined to it. Bytes that are not UTF-8 match nothing: they are gaps.
 *
 * Models of SentencePiece's kind have no pre-tokenizer, a text is one word. It is cut between
 * characters that no merge joins (a letter and the mark of the next word; anything and a newline):
 * no pair across such a place ever has a rank, so the tokens are the same, and words are cached. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

static ts_status run_step(const tsi_encode *call, size_t step, tsi_string piece, bool first);

typedef struct splitter {
    const tsi_encode *call;
    size_t step;
    tsi_string piece;
    bool first;
    bool held, match;  /* is a part held back, and was it (its end) a match? */
    size_t start, end; /* of the part */
} splitter;

static ts_status give(const splitter *s, size_t start, size_t end)
{
    if (start == end) return TS_OK;
    tsi_string part = { s->piece.data + start, end - start };
    return run_step(s->call, s->step + 1, part, s->first && start == 0);
}

static bool joins(tsi_split_kind kind, bool before, bool match)
{
    switch (kind) {
    case TSI_SPLIT_ISOLATED:
    case TSI_SPLIT_REMOVED:
        return false;
    case TSI_SPLIT_WITH_PREVIOUS:
        return match && !before;
    case TSI_SPLIT_WITH_NEXT:
        return before && !match;
    case TSI_SPLIT_CONTIGUOUS:
        return before == match;
    }
    return false;
}

/* The next part of the piece, match or gap. */
static ts_status take(splitter *s, size_t start, size_t end, bool match)
{
    const tsi_token_step *step = &s->call->tokenizer->step[s->step];
    match = match != step->invert;
    if (step->split == TSI_SPLIT_ISOLATED) return give(s, start, end);
    if (step->split == TSI_SPLIT_REMOVED) return match ? TS_OK : give(s, start, end);
    if (s->held && joins(step->split, s->match, match)) {
        s->end = end;
        s->match = match;
        return TS_OK;
    }
    if (s->held) TSI_TRY(give(s, s->start, s->end));
    s->held = true;
    s->match = match;
    s->start = start;
    s->end = end;
    return TS_OK;
}

/* Matches of the pattern in [from, to), which is well-formed; the gap before it begins at *gap. An
 * empty match cuts too, but not right behind another match. */
static ts_status split_run(splitter *s, size_t from, size_t to, size_t *gap)
{
    const tsi_token_step *step = &s->call->tokenizer->step[s->step];
    const char *text = s->piece.data + from;
    size_t length = to - from, at = 0, last_end = SIZE_MAX;
    while (at < length) {
        tsi_match m = { at, at, true };
        size_t scanned = step->scan != NULL ? step->scan(text, length, at) : 0;
        if (scanned > 0)
            m.end = at + scanned;
        else
            TSI_TRY(tsi_pattern_next(step->pattern, text, length, at, &m));
        if (!m.found) break;
        if (m.start == m.end && m.end == last_end) {
            if (m.end == length) break;
            size_t used;
            tsi_utf8_read(text + m.end, length - m.end, &used);
            at = m.end + used;
            continue;
        }
        if (*gap < from + m.start) TSI_TRY(take(s, *gap, from + m.start, false));
        TSI_TRY(take(s, from + m.start, from + m.end, true));
        *gap = from + m.end;
        at = last_end = m.end;
    }
    return TS_OK;
}

static ts_status split_pattern(splitter *s)
{
    size_t gap = 0, at = 0, length = s->piece.length;
    while (at < length) {
        size_t run = tsi_utf8_valid(s->piece.data + at, length - at);
        if (run > 0) TSI_TRY(split_run(s, at, at + run, &gap));
        at += run;
        if (at < length) at++; /* a byte that is not UTF-8 */
    }
    return gap < length ? take(s, gap, length, false) : TS_OK;
}

static ts_status split_literal(splitter *s)
{
    const tsi_token_step *step = &s->call->tokenizer->step[s->step];
    size_t at = 0, length = s->piece.length;
    while (at < length) {
        const char *found =
            memmem(s->piece.data + at, length - at, step->literal.data, step->literal.length);
        if (found == NULL) break;
        size_t start = (size_t)(found - s->piece.data);
        if (at < start) TSI_TRY(take(s, at, start, false));
        at = start + step->literal.length;
        TSI_TRY(take(s, start, at, true));
    }
    return at < length ? take(s, at, length, false) : TS_OK;
}

static ts_status split(const tsi_encode *call, size_t index, tsi_string piece, bool first)
{
    const tsi_token_step *step = &call->tokenizer->step[index];
    splitter s = { .call = call, .step = index, .piece = piece, .first = first };
    TSI_TRY(step->pattern != NULL ? split_pattern(&s) : split_literal(&s));
    return s.held ? give(&s, s.start, s.end) : TS_OK;
}

/* Writes the piece into the step's scratch, with a prefix or not, and goes on with that. */
static ts_status rewrite(const tsi_encode *call, size_t index, tsi_string piece, bool first)
{
    const tsi_token_step *step = &call->tokenizer->step[index];
    tsi_text *scratch = &call->tokenizer->scratch[index];
    const tsi_string blank = { " ", 1 };
    bool mark = step->kind == TSI_TOKEN_STEP_MARK;
    bool wanted =
        !mark || step->prefix == TSI_MARK_ALWAYS || (step->prefix == TSI_MARK_FIRST && first);
    bool has =
        piece.data[0] == ' ' || (mark && piece.length >= step->literal.length &&
                                 memcmp(piece.data, step->literal.data, step->literal.length) == 0);
    bool prefix = wanted && !has && !(first && call->continued);
    if (!mark && !prefix) return run_step(call, index + 1, piece, first);
    scratch->length = 0;
    if (prefix && mark) tsi_text_add_n(scratch, step->literal.data, step->literal.length);
    if (prefix && !mark) tsi_text_add_n(scratch, " ", 1);
    if (mark)
        tsi_replace(scratch, piece, blank, step->literal);
    else
        tsi_text_add_n(scratch, piece.data, piece.length);
    if (scratch->failed) {
        tsi_text_release(scratch);
        return tsi_fail_memory("a rewritten text", piece.length);
    }
    return run_step(call, index + 1, (tsi_string){ scratch->data, scratch->length }, first);
}

static ts_status encode_word(const tsi_encode *call, const char *word, size_t length)
{
    ts_tokenizer *t = call->tokenizer;
    return tsi_bpe_word(&t->bpe, &t->work, word, length, call->out);
}

int tsi_class_of(const char *text, size_t length, size_t *used)
{
    unsigned char first = (unsigned char)text[0];
    *used = 1;
    if (first < 0x80) return first;
    tsi_utf8_read(text, length, used);
    bool mark = *used == strlen(TSI_MARK) && memcmp(text, TSI_MARK, strlen(TSI_MARK)) == 0;
    return mark ? TSI_CLASS_MARK : TSI_CLASS_OTHER;
}

static ts_status encode_cut(const tsi_encode *call, tsi_string text)
{
    size_t start = 0, used;
    int before = tsi_class_of(text.data, text.length, &used);
    for (size_t at = used; at < text.length; at += used) {
        int class = tsi_class_of(text.data + at, text.length - at, &used);
        if (!call->tokenizer->joins[before][class]) {
            TSI_TRY(encode_word(call, text.data + start, at - start));
            start = at;
        }
        before = class;
    }
    return encode_word(call, text.data + start, text.length - start);
}

static ts_status run_step(const tsi_encode *call, size_t step, tsi_string piece, bool first)
{
    const ts_tokenizer *t = call->tokenizer;
    if (step == t->step_count) {
        if (t->cuts) return encode_cut(call, piece);
        return encode_word(call, piece.data, piece.length);
    }
    switch (t->step[step].kind) {
    case TSI_TOKEN_STEP_SPLIT:
        return split(call, step, piece, first);
    case TSI_TOKEN_STEP_PREFIX:
    case TSI_TOKEN_STEP_MARK:
        return rewrite(call, step, piece, first);
    }
    return TS_OK;
}

ts_status tsi_pretokenize(const tsi_encode *call, tsi_string piece, bool first)
{
    return piece.length > 0 ? run_step(call, 0, piece, first) : TS_OK;
}
