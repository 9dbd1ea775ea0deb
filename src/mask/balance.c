/* SPDX-License-Identifier: Apache-2.0 */
/* balance.c - named balances of the sequence as tables: head and tail, per document, to and fro.
 *
 * Tables are rank-major: first all places of rank 0, then those of rank 1. So a table cut evenly is
 * the balance, whatever the documents. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/text.h"
#include "mask/mask.h"

static const char *const names[] = { "auto", "none", "head_tail", "per_document", "ptrr", NULL };

const char *ts_balance_name(ts_balance balance)
{
    return balance >= TS_BALANCE_AUTO && balance <= TS_BALANCE_PTRR ? names[balance] : "?";
}

ts_status ts_balance_parse(const char *text, ts_balance *out)
{
    for (int i = 0; names[i]; i++) {
        *out = (ts_balance)i;
        if (strcmp(names[i], text) == 0) return TS_OK;
    }
    *out = TS_BALANCE_AUTO;
    const char *near = tsi_text_nearest(text, names);
    return TSI_FAIL(TS_ERR_ARG,
                    "\"%s\" is no balance: auto, none, head_tail, per_document, ptrr%s%s%s", text,
                    near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* ---- head and tail of documents -------------------------------------------------------------- */

static ts_status check_documents(ts_balance balance, int64_t ranks, int64_t documents,
                                 const int64_t *length)
{
    if (ranks < 1 || ranks > INT64_MAX / 2) /* twice as many chunks are counted below */
        return TSI_FAIL(TS_ERR_ARG, "balance: %lld ranks", (long long)ranks);
    for (int64_t d = 0; d < documents; d++) {
        if (length[d] < 0)
            return TSI_FAIL(TS_ERR_ARG, "balance: document %lld has a length of %lld", (long long)d,
                            (long long)length[d]);
        int64_t parts = balance == TS_BALANCE_NONE ? ranks : 2 * ranks;
        if (length[d] % parts)
            return TSI_FAIL(TS_ERR_SHAPE,
                            "balance: the length %lld of %s %lld does not divide by %lld (%s%lld "
                            "ranks)",
                            (long long)length[d], documents > 1 ? "document" : "sequence",
                            (long long)d, (long long)parts,
                            balance == TS_BALANCE_NONE ? "" : "twice ", (long long)ranks);
    }
    return TS_OK;
}

static void put_range(int64_t **at, int64_t begin, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        *(*at)++ = begin + i;
}

static void invert(const int64_t *indices, int64_t count, int64_t *restore)
{
    for (int64_t p = 0; p < count; p++)
        restore[indices[p]] = p;
}

ts_status ts_balance_table(ts_balance balance, int64_t ranks, int64_t documents,
                           const int64_t *length, int64_t *indices, int64_t *restore)
{
    int64_t whole = 0, *at = indices;
    if (balance == TS_BALANCE_AUTO || balance == TS_BALANCE_PTRR)
        return TSI_FAIL(TS_ERR_ARG, "balance: %s needs costs of blocks", ts_balance_name(balance));
    for (int64_t d = 0; d < documents; d++)
        whole += length[d];
    if (balance != TS_BALANCE_PER_DOCUMENT) { /* one sequence, whatever lies in it */
        documents = 1;
        length = &whole;
    }
    TSI_TRY(check_documents(balance, ranks, documents, length));
    for (int64_t k = 0; k < ranks && whole > 0; k++)
        for (int64_t d = 0, begin = 0; d < documents; begin += length[d++]) {
            int64_t chunk = length[d] / ranks;
            if (balance == TS_BALANCE_NONE) {
                put_range(&at, begin + k * chunk, chunk);
                continue;
            }
            chunk /= 2;
            put_range(&at, begin + k * chunk, chunk);
            put_range(&at, begin + (2 * ranks - 1 - k) * chunk, chunk);
        }
    invert(indices, whole, restore);
    return TS_OK;
}

/* ---- to and fro ------------------------------------------------------------------------------ */
/* Every rank gets as many blocks, so the place of its next one is known without looking at others:
 * time goes with the blocks, however many ranks. */

typedef struct block_cost {
    int64_t cost, block;
} block_cost;

static int dearer_first(const void *a, const void *b)
{
    const block_cost *x = a, *y = b;
    if (x->cost != y->cost) return x->cost > y->cost ? -1 : 1;
    return x->block < y->block ? -1 : x->block > y->block;
}

ts_status ts_balance_blocks(int64_t ranks, int64_t blocks, const int64_t *cost, int64_t *indices,
                            int64_t *restore)
{
    if (ranks < 1 || blocks < 0 || blocks % ranks)
        return TSI_FAIL(TS_ERR_SHAPE, "balance: %lld blocks do not divide by %lld ranks",
                        (long long)blocks, (long long)ranks);
    size_t bytes = (size_t)blocks * sizeof(block_cost);
    block_cost *sorted = tsi_alloc(bytes);
    int64_t *owner = tsi_alloc((size_t)blocks * sizeof *owner), each = blocks / ranks;
    int64_t *taken = tsi_calloc((size_t)tsi_min_i64(ranks, blocks), sizeof *taken);
    if (!sorted || !owner || !taken) {
        tsi_free(sorted);
        tsi_free(owner);
        tsi_free(taken);
        return tsi_fail_memory("a balance of blocks", bytes);
    }
    for (int64_t b = 0; b < blocks; b++)
        sorted[b] = (block_cost){ cost[b], b };
    qsort(sorted, (size_t)blocks, sizeof *sorted, dearer_first);
    for (int64_t i = 0; i < blocks; i++) {
        int64_t round = i / ranks, place = i % ranks;
        owner[sorted[i].block] = round % 2 ? ranks - 1 - place : place;
    }
    for (int64_t b = 0; b < blocks; b++) /* a rank's are in ascending order */
        indices[owner[b] * each + taken[owner[b]]++] = b;
    invert(indices, blocks, restore);
    tsi_free(sorted);
    tsi_free(owner);
    tsi_free(taken);
    return TS_OK;
}
