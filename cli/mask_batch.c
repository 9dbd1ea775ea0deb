/* SPDX-License-Identifier: Apache-2.0 */
/* mask_batch.c - balances of the sequence as tables, one request a line.
 *
 *   {"kind": "head_tail", "seq": 8, "world": 2}             -> indices, restore
 *   {"kind": "per_document", "docs": [[8, 8]], "world": 2}  -> the same for each row
 *   {"kind": "ptrr", "costs": [7, 3, 12, 5], "world": 2}    -> the same; "block": positions of each
 *   {"kind": "ptrr", "docs": [[384, 640]], "block": 128, "world": 2}
 *   {"mask": "causal & window(64, 0)", "seq": 512}          -> tiles and pairs
 *
 * Costs of blocks that are not given are those of a causal mask within the documents. */
#include <stdlib.h>
#include <string.h>

#include "mask.h"

typedef struct table_request {
    ts_balance balance;
    int64_t seq, world, block;
    ts_world *where;
    char *error;
    size_t error_size;
} table_request;

enum { POSITIONS_MAX = 1 << 26 };
static const int64_t costs_max = (int64_t)1 << 53; /* pairs of all positions and more */

static bool refuse(table_request *r, const char *sentence)
{
    (void)snprintf(r->error, r->error_size, "%s", sentence);
    return false;
}

/* Whole numbers, at most so much together: positions, or costs. */
static int64_t *read_ints(table_request *r, const char *key, const ts_json *list, int64_t *count,
                          int64_t *total)
{
    bool costs = strcmp(key, "costs") == 0;
    int64_t most = costs ? costs_max : POSITIONS_MAX;
    *count = ts_json_count(list);
    *total = 0;
    int64_t *value = calloc((size_t)*count + 1, sizeof *value);
    for (int64_t i = 0; value != NULL && i < *count; i++) {
        const ts_json *item = ts_json_item(list, i);
        value[i] = ts_json_int(item, -1);
        bool whole = ts_json_kind_of(item) == TS_JSON_INT && value[i] >= 0;
        if (whole && value[i] <= most - *total) {
            *total += value[i];
            continue;
        }
        (void)cli_field_refuse(key, item,
                               costs ? "a whole number of at least 0 (2^53 together)"
                                     : "a whole number of at least 0 (2^26 together)",
                               r->error, r->error_size);
        free(value);
        return NULL;
    }
    return value;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* How many blocks of keys each block of queries sees. */
static bool causal_costs(table_request *r, const int64_t *length, int64_t documents, int64_t total,
                         int64_t *cost)
{
    int64_t begin = 0, d = 0;
    for (int64_t b = 0; b * r->block < total; b++) {
        int64_t first = b * r->block, last = first + r->block - 1;
        for (; d < documents && begin + length[d] <= first; d++)
            begin += length[d];
        cost[b] = last / r->block - begin / r->block + 1;
    }
    return true;
}

static bool put_blocks(table_request *r, int64_t blocks, const int64_t *cost, int64_t *out)
{
    int64_t *order = calloc((size_t)blocks * 2 + 1, sizeof *order), *back = order + blocks;
    bool good = order != NULL;
    if (good && ts_balance_blocks(r->world, blocks, cost, order, back) != TS_OK)
        good = refuse(r, ts_last_error());
    for (int64_t p = 0; good && p < blocks * r->block; p++) {
        out[p] = order[p / r->block] * r->block + p % r->block;
        out[blocks * r->block + p] = back[p / r->block] * r->block + p % r->block;
    }
    free(order);
    return good;
}

/* Both tables of one row, one after the other, into a new array. */
static int64_t *table_of(table_request *r, const int64_t *length, int64_t documents, int64_t total)
{
    int64_t *out = calloc((size_t)total * 2 + 1, sizeof *out);
    bool good = out != NULL;
    if (good && r->balance == TS_BALANCE_PTRR) {
        int64_t *cost = calloc((size_t)total + 1, sizeof *cost);
        good = total % r->block == 0 ? cost != NULL
                                     : refuse(r, "the positions do not divide by the block");
        good = good && causal_costs(r, length, documents, total, cost) &&
               put_blocks(r, total / r->block, cost, out);
        free(cost);
    } else if (good) {
        good = ts_balance_table(r->balance, r->world, documents, length, out, out + total) == TS_OK
                   ? true
                   : refuse(r, ts_last_error());
    }
    if (!good) free(out);
    return good ? out : NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool answer_costs(table_request *r, const ts_json *costs, ts_json_writer *answer)
{
    int64_t count, total;
    int64_t *cost = read_ints(r, "costs", costs, &count, &total);
    int64_t *out = cost != NULL ? calloc((size_t)(count * r->block) * 2 + 1, sizeof *out) : NULL;
    bool good = out != NULL && put_blocks(r, count, cost, out);
    if (good) {
        ts_json_put_key(answer, "indices");
        ts_json_put_ints(answer, out, count * r->block);
        ts_json_put_key(answer, "restore");
        ts_json_put_ints(answer, out + count * r->block, count * r->block);
    }
    free(out);
    free(cost);
    return good;
}

/* A row is a list of documents; a sequence is one document. Rows of a list of lists give lists. */
static bool answer_rows(table_request *r, const ts_json *docs, ts_json_writer *answer)
{
    bool nested = docs != NULL && ts_json_kind_of(ts_json_item(docs, 0)) == TS_JSON_LIST;
    int64_t rows = nested ? ts_json_count(docs) : 1;
    ts_json_writer restore = { 0 };
    bool good = true;
    ts_json_put_key(answer, "indices");
    if (nested) ts_json_put_open(answer, '[');
    if (nested) ts_json_put_open(&restore, '[');
    for (int64_t row = 0; row < rows && good; row++) {
        int64_t count = 1, total = r->seq, *length = NULL, *table = NULL;
        if (docs != NULL)
            length = read_ints(r, "docs", nested ? ts_json_item(docs, row) : docs, &count, &total);
        good = docs == NULL || length != NULL;
        if (good) table = table_of(r, length != NULL ? length : &r->seq, count, total);
        good = good && table != NULL;
        if (good) {
            ts_json_put_ints(answer, table, total);
            ts_json_put_ints(&restore, table + total, total);
        }
        free(table);
        free(length);
    }
    if (nested) ts_json_put_close(answer, ']');
    if (nested) ts_json_put_close(&restore, ']');
    ts_json_put_key(answer, "restore");
    if (good) ts_json_put_raw(answer, restore.data, restore.length);
    ts_json_writer_release(&restore);
    return good;
}

static bool answer_mask(table_request *r, const char *text, ts_json_writer *answer)
{
    const ts_mask *mask = ts_mask_get(r->where, text);
    ts_mask_size size = TS_INIT(ts_mask_size);
    ts_mask_summary summary = TS_INIT(ts_mask_summary);
    size.queries = size.keys = r->seq;
    if (mask == NULL || ts_mask_tiles(mask, &size, NULL, 0, &summary) != TS_OK)
        return refuse(r, ts_last_error());
    ts_json_put_member_int(answer, "empty", summary.empty);
    ts_json_put_member_int(answer, "partial", summary.partial);
    ts_json_put_member_int(answer, "full", summary.full);
    ts_json_put_member_int(answer, "pairs", summary.pairs);
    return true;
}

bool mask_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
                void *context)
{
    table_request r = {
        .seq = -1, .world = 0, .block = 1, .where = context, .error = error, .error_size = size
    };
    const char *kind = NULL, *mask = NULL;
    const ts_json *docs = NULL, *costs = NULL;
    if (!cli_field_text(request, "kind", &kind, error, size) ||
        !cli_field_text(request, "mask", &mask, error, size) ||
        !cli_field_count(request, "seq", &r.seq, error, size) ||
        !cli_field_count(request, "world", &r.world, error, size) ||
        !cli_field_count(request, "block", &r.block, error, size) ||
        !cli_field_count(request, "block_size", &r.block, error, size) ||
        !cli_field_kind(request, "docs", TS_JSON_LIST, &docs, error, size) ||
        !cli_field_kind(request, "cost", TS_JSON_LIST, &costs, error, size) ||
        !cli_field_kind(request, "costs", TS_JSON_LIST, &costs, error, size))
        return false;
    if (r.seq > POSITIONS_MAX) return refuse(&r, "\"seq\" is above 2^26");
    if (mask == NULL && kind == NULL) return refuse(&r, "\"kind\" or \"mask\" is needed");
    if (kind != NULL && r.world < 1) return refuse(&r, "\"world\" is needed, at least 1");
    if (r.block < 1) return refuse(&r, "\"block\" is at least 1");
    if (r.block > POSITIONS_MAX || (costs && ts_json_count(costs) > POSITIONS_MAX / r.block))
        return refuse(&r, "\"block\", or the blocks together, is above 2^26");
    if (kind != NULL && ts_balance_parse(kind, &r.balance) != TS_OK)
        return refuse(&r, ts_last_error());
    if (docs == NULL && costs == NULL && r.seq < 0)
        return refuse(&r, "\"seq\", \"docs\" or \"costs\" is needed");
    ts_json_put_open(answer, '{');
    bool good = mask != NULL    ? answer_mask(&r, mask, answer)
                : costs != NULL ? answer_costs(&r, costs, answer)
                                : answer_rows(&r, docs, answer);
    ts_json_put_close(answer, '}');
    return good;
}
