/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c - from ids to text: a chain of steps over a list of pieces, one piece per token at
 * first.
 *
 * The pieces stand one behind the other in a text, with their ends in a list; a step writes a new
 * text and list. Where the reference implementation would put U+FFFD for bytes that are not UTF-8,
 * the bytes stay. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

typedef struct pieces {
    tsi_text text;
    size_t *end;
    size_t count, capacity;
} pieces;

static void pieces_release(pieces *list)
{
    tsi_text_release(&list->text);
    tsi_free(list->end);
    *list = (pieces){ 0 };
}

static tsi_string piece_at(const pieces *list, size_t i)
{
    size_t start = i > 0 ? list->end[i - 1] : 0;
    const char *text = list->text.data != NULL ? list->text.data : "";
    return (tsi_string){ text + start, list->end[i] - start };
}

/* What was written since the last end becomes a piece. */
static ts_status end_piece(pieces *list)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity != 0 ? 2 * list->capacity : 64;
        size_t *end = tsi_realloc(list->end, capacity * sizeof *end);
        if (end == NULL) return tsi_fail_memory("pieces of a text", capacity * sizeof *end);
        list->end = end;
        list->capacity = capacity;
    }
    list->end[list->count++] = list->text.length;
    return TS_OK;
}

/* The bytes that a token spells in the byte alphabet; one with another letter stands for itself. */
static void add_letters(tsi_text *out, tsi_string token)
{
    size_t mark = out->length, used;
    for (size_t at = 0; at < token.length; at += used) {
        int byte = tsi_letter_byte(tsi_utf8_read(token.data + at, token.length - at, &used));
        if (byte < 0) {
            out->length = mark;
            tsi_text_add_n(out, token.data, token.length);
            return;
        }
        char c = (char)byte;
        tsi_text_add_n(out, &c, 1);
    }
}

static int hex_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* <0xHH>, or -1. */
static int spelled_byte(tsi_string token)
{
    if (token.length != 6 || memcmp(token.data, "<0x", 3) != 0 || token.data[5] != '>') return -1;
    int high = hex_of(token.data[3]), low = hex_of(token.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static tsi_string strip(const tsi_decode *step, tsi_string piece)
{
    tsi_string c = step->from;
    for (int64_t i = 0; i < step->start && piece.length >= c.length; i++) {
        if (memcmp(piece.data, c.data, c.length) != 0) break;
        piece.data += c.length;
        piece.length -= c.length;
    }
    for (int64_t i = 0; i < step->stop && piece.length >= c.length; i++) {
        if (memcmp(piece.data + piece.length - c.length, c.data, c.length) != 0) break;
        piece.length -= c.length;
    }
    return piece;
}

/* Writes piece i of `in` as the step has it. FUSE and BYTE_LEVEL end no pieces. */
static ts_status decode_piece(const tsi_decode *step, const pieces *in, size_t i, pieces *out)
{
    tsi_string piece = piece_at(in, i);
    int byte;
    switch (step->kind) {
    case TSI_DECODE_BYTE_LEVEL:
        add_letters(&out->text, piece);
        return TS_OK;
    case TSI_DECODE_FUSE:
        tsi_text_add_n(&out->text, piece.data, piece.length);
        return TS_OK;
    case TSI_DECODE_REPLACE:
        tsi_replace(&out->text, piece, step->from, step->to);
        return end_piece(out);
    case TSI_DECODE_MARK: {
        tsi_string blank = { " ", i > 0 || step->keep_first ? 1 : 0 };
        tsi_replace(&out->text, piece, step->from, blank);
        return end_piece(out);
    }
    case TSI_DECODE_STRIP:
        piece = strip(step, piece);
        tsi_text_add_n(&out->text, piece.data, piece.length);
        return end_piece(out);
    case TSI_DECODE_BYTE_FALLBACK:
        byte = spelled_byte(piece);
        if (byte < 0) {
            tsi_text_add_n(&out->text, piece.data, piece.length);
            return end_piece(out);
        }
        char c = (char)byte;
        tsi_text_add_n(&out->text, &c, 1);
        /* Neighbouring bytes are one piece. */
        if (i + 1 < in->count && spelled_byte(piece_at(in, i + 1)) >= 0) return TS_OK;
        return end_piece(out);
    }
    return TS_OK;
}

static ts_status run(const tsi_decode *step, pieces *list)
{
    pieces out = { 0 };
    ts_status status = TS_OK;
    for (size_t i = 0; status == TS_OK && i < list->count; i++)
        status = decode_piece(step, list, i, &out);
    bool one = step->kind == TSI_DECODE_FUSE || step->kind == TSI_DECODE_BYTE_LEVEL;
    if (status == TS_OK && one) status = end_piece(&out);
    if (status == TS_OK && out.text.failed)
        status = tsi_fail_memory("a decoded text", list->text.length);
    pieces_release(list);
    *list = out;
    return status;
}

static bool skipped(const ts_tokenizer *tokenizer, int32_t id, uint32_t flags)
{
    return (flags & TS_DECODE_SKIP_SPECIALS) != 0 && tokenizer->special != NULL &&
           tokenizer->special[id];
}

static ts_status spell(const ts_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                       uint32_t flags, pieces *list)
{
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0)
            return TSI_FAIL(TS_ERR_ARG, "decode: token %lld has the id %d", (long long)i, ids[i]);
        size_t length;
        const char *text = tsi_vocab_text(&tokenizer->names, ids[i], &length);
        if (text == NULL || skipped(tokenizer, ids[i], flags)) continue;
        if (!tokenizer->joined && list->count > 0) tsi_text_add_n(&list->text, " ", 1);
        tsi_text_add_n(&list->text, text, length);
        TSI_TRY(end_piece(list));
    }
    return list->text.failed ? tsi_fail_memory("a decoded text", list->text.length) : TS_OK;
}

static ts_status decode_bytes(const int32_t *ids, int64_t count, uint32_t flags,
                              const ts_tokenizer *tokenizer, tsi_text *out)
{
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0)
            return TSI_FAIL(TS_ERR_ARG, "decode: token %lld has the id %d", (long long)i, ids[i]);
        char c = (char)ids[i];
        const char *name = ids[i] < 256 ? NULL : tsi_vocab_text(&tokenizer->names, ids[i], NULL);
        if (ids[i] < 256)
            tsi_text_add_n(out, &c, 1);
        else if (name != NULL && (flags & TS_DECODE_SKIP_SPECIALS) == 0)
            tsi_text_add(out, name);
    }
    return out->failed ? tsi_fail_memory("a decoded text", (size_t)count) : TS_OK;
}

ts_status tsi_decode_ids(ts_tokenizer *tokenizer, const int32_t *ids, int64_t count, uint32_t flags,
                         tsi_text *out)
{
    if (tokenizer->bytes) return decode_bytes(ids, count, flags, tokenizer, out);
    pieces list = { 0 };
    ts_status status = spell(tokenizer, ids, count, flags, &list);
    for (size_t i = 0; status == TS_OK && i < tokenizer->decode_count; i++)
        status = run(&tokenizer->decode[i], &list);
    if (status == TS_OK) {
        tsi_text_add_n(out, list.text.data != NULL ? list.text.data : "", list.text.length);
        if (out->failed) status = tsi_fail_memory("a decoded text", list.text.length);
    }
    pieces_release(&list);
    return status;
}
