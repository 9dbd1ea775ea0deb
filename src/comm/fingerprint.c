/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint.c - what members must agree on, as a hash and as words.
 *
 * The hash covers what every member of an operation knows alike. What only pairs know (the rows a
 * root gives to a member, the counts of all_to_all, the parts of an exchange) is compared pair by
 * pair in tsi_work_agree; send and recv hash alike, so that a matching pair has one hash.
 *
 * INV: works with equal hashes and agreeing pairs have blocks that fit each other (pieces.c). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "base/hash.h"
#include "comm/slots.h"

/* ---- the hash -------------------------------------------------------------------------------- */

/* Rows by value: a list of equal counts is the even split. */
static uint64_t mix_rows(uint64_t hash, const int64_t *rows, int64_t size)
{
    bool even = true;
    for (int64_t i = 1; rows != NULL && i < size && even; i++)
        even = rows[i] == rows[0];
    if (rows == NULL || even) return hash;
    for (int64_t i = 0; i < size; i++)
        hash = tsi_hash_mix(hash, (uint64_t)rows[i]);
    return hash;
}

static uint64_t mix_shape(uint64_t hash, const tsi_fingerprint *print, int32_t first)
{
    for (int32_t d = first; d < print->ndim; d++)
        hash = tsi_hash_mix(hash, (uint64_t)print->extent[d]);
    return tsi_hash_mix(hash, (uint64_t)print->ndim);
}

static TSI_STEP_PATH uint64_t hash_common(const tsi_fingerprint *print, int32_t kind, int64_t root)
{
    uint64_t hash = tsi_hash_mix(print->team, print->sequence);
    hash = tsi_hash_mix(hash, (uint64_t)kind << 32 | (uint64_t)(uint32_t)print->channel);
    hash = tsi_hash_mix(hash, (uint64_t)print->dtype << 32 | (uint64_t)(uint32_t)print->reduce);
    return tsi_hash_mix(hash, (uint64_t)root);
}

TSI_STEP_PATH void tsi_fingerprint_seal(tsi_work *work)
{
    tsi_fingerprint *print = &work->print;
    int64_t size = work->team->size;
    uint64_t hash = hash_common(print, print->kind, print->root);
    switch ((tsi_comm_kind)print->kind) {
    case TSI_COMM_BROADCAST:
    case TSI_COMM_REDUCE:
    case TSI_COMM_ALL_REDUCE:
        hash = mix_shape(hash, print, 0);
        break;
    case TSI_COMM_ALL_GATHER:
        hash = mix_rows(mix_shape(hash, print, 0), work->recv_rows, size);
        break;
    case TSI_COMM_REDUCE_SCATTER:
        hash = mix_rows(mix_shape(hash, print, 0), work->send_rows, size);
        break;
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_ALL_TO_ALL:
        hash = mix_shape(hash, print, 1);
        break;
    case TSI_COMM_SEND:
    case TSI_COMM_RECV:
        hash = tsi_hash_mix(hash_common(print, TSI_COMM_SEND, -1), (uint64_t)print->count);
        break;
    case TSI_COMM_EXCHANGE: /* a reduction concerns the receiver only */
        hash = tsi_hash_mix(tsi_hash_mix(print->team, print->sequence), (uint64_t)print->dtype);
        hash = tsi_hash_mix(hash, (uint64_t)print->kind << 32 | (uint64_t)(uint32_t)print->channel);
        break;
    case TSI_COMM_BARRIER:
    case TSI_COMM_KIND_COUNT:
        break;
    }
    print->hash = hash;
}

/* ---- words ----------------------------------------------------------------------------------- */

static size_t put(char *out, size_t size, size_t at, const char *format, ...) TS_PRINTF(4, 5);
static size_t put(char *out, size_t size, size_t at, const char *format, ...)
{
    if (at >= size) return at;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(out + at, size - at, format, arguments);
    va_end(arguments);
    return length > 0 ? at + (size_t)length : at;
}

static size_t put_shape(const tsi_fingerprint *print, char *out, size_t size, size_t at)
{
    at = put(out, size, at, "%s[", ts_dtype_name((ts_dtype)print->dtype));
    for (int32_t d = 0; d < print->ndim; d++)
        at = put(out, size, at, d > 0 ? " x %" PRId64 : "%" PRId64, print->extent[d]);
    return put(out, size, at, "]");
}

/* " (f32[4 x 8], root 2, train.c:88)", of what there is. */
static void put_details(const tsi_fingerprint *print, char *out, size_t size, size_t at)
{
    bool point = print->kind == TSI_COMM_SEND || print->kind == TSI_COMM_RECV;
    const char *before = " (";
    if (print->dtype != TS_DTYPE_NONE) {
        at = put(out, size, at, "%s", before);
        if (print->kind == TSI_COMM_EXCHANGE)
            at = put(out, size, at, "%s", ts_dtype_name((ts_dtype)print->dtype));
        else
            at = put_shape(print, out, size, at);
        before = ", ";
    }
    if (!point && print->root >= 0) {
        at = put(out, size, at, "%sroot %" PRId64, before, print->root);
        before = ", ";
    }
    if (print->where[0] != '\0') {
        at = put(out, size, at, "%s%s", before, print->where);
        before = ", ";
    }
    if (before[0] == ',') (void)put(out, size, at, ")");
}

/* "all_reduce(sum) 'loss' #17 on group dp (f32[4 x 8], train.c:88)" */
void tsi_fingerprint_text(const tsi_fingerprint *print, char *out, size_t size)
{
    if (size == 0) return;
    out[0] = '\0';
    bool point = print->kind == TSI_COMM_SEND || print->kind == TSI_COMM_RECV;
    size_t at = put(out, size, 0, "%s", tsi_comm_kind_name((tsi_comm_kind)print->kind));
    if (print->reduce != TS_REDUCE_NONE)
        at = put(out, size, at, "(%s)", ts_reduce_name((ts_reduce)print->reduce));
    if (print->name[0] != '\0') at = put(out, size, at, " '%s'", print->name);
    at = put(out, size, at, " #%" PRIu64, print->sequence);
    if (point)
        at = put(out, size, at,
                 print->kind == TSI_COMM_SEND ? " to member %" PRId64 : " from member %" PRId64,
                 print->root);
    at = put(out, size, at, " on group %s", print->group);
    if (print->channel != 0) at = put(out, size, at, " channel %d", print->channel);
    put_details(print, out, size, at);
}

/* ---- agreement ------------------------------------------------------------------------------- */

/* The first thing that differs, as a phrase. */
static const char *difference(const tsi_fingerprint *a, const tsi_fingerprint *b)
{
    bool point = a->kind == TSI_COMM_SEND || a->kind == TSI_COMM_RECV;
    if (a->kind != b->kind && !point) return "they called different operations";
    if (a->sequence != b->sequence) return "they are at different numbers";
    if (a->dtype != b->dtype) return "dtypes differ";
    if (a->reduce != b->reduce && !point) return "reductions differ";
    if (a->root != b->root && !point) return "roots differ";
    if (a->count != b->count) return "counts differ";
    return "shapes or rows per member differ";
}

static void say(const tsi_work *mine, const tsi_work *theirs, const char *what, char *out,
                size_t size)
{
    char left[256], right[256];
    tsi_fingerprint_text(&mine->print, left, sizeof left);
    tsi_fingerprint_text(&theirs->print, right, sizeof right);
    (void)snprintf(out, size,
                   "ranks disagree, %s: rank %" PRId64 " called %s, rank %" PRId64 " called %s",
                   what, mine->print.rank, left, theirs->print.rank, right);
}

static int64_t rows_for(const tsi_block *block, const int64_t *rows, int64_t size, int64_t peer)
{
    return rows != NULL ? rows[peer] : block->extent[0] / size;
}

/* Does what `from` sends to `to` fit what `to` expects? Only rows can differ: row shapes are
 * hashed. */
static TSI_STEP_PATH bool pair_agrees(const tsi_work *from, const tsi_work *to, char *sentence,
                                      size_t size)
{
    int64_t members = from->team->size, sent = 0, expected = 0;
    switch ((tsi_comm_kind)from->print.kind) {
    case TSI_COMM_SCATTER:
        if (from->member != from->print.root) return true;
        sent = rows_for(&from->in, from->send_rows, members, to->member);
        expected = to->out.extent[0];
        break;
    case TSI_COMM_GATHER:
        if (to->member != to->print.root) return true;
        sent = from->in.extent[0];
        expected = rows_for(&to->out, to->recv_rows, members, from->member);
        break;
    case TSI_COMM_ALL_TO_ALL:
        sent = rows_for(&from->in, from->send_rows, members, to->member);
        expected = rows_for(&to->out, to->recv_rows, members, from->member);
        break;
    case TSI_COMM_BARRIER:
    case TSI_COMM_BROADCAST:
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_REDUCE:
    case TSI_COMM_ALL_REDUCE:
    case TSI_COMM_REDUCE_SCATTER:
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_SEND:
    case TSI_COMM_RECV:
    case TSI_COMM_KIND_COUNT:
        return true;
    }
    if (sent == expected) return true;
    char what[128];
    (void)snprintf(what, sizeof what,
                   "rank %" PRId64 " sends %" PRId64 " rows, rank %" PRId64 " expects %" PRId64,
                   from->print.rank, sent, to->print.rank, expected);
    say(from, to, what, sentence, size);
    return false;
}

TSI_STEP_PATH bool tsi_work_agree(const tsi_work *mine, const tsi_work *theirs, char *sentence,
                                  size_t size)
{
    if (mine->print.hash != theirs->print.hash) {
        say(mine, theirs, difference(&mine->print, &theirs->print), sentence, size);
        return false;
    }
    return pair_agrees(mine, theirs, sentence, size) && pair_agrees(theirs, mine, sentence, size);
}
