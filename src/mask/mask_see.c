/* SPDX-License-Identifier: Apache-2.0 */
/* mask_see.c - which keys a query sees: one pair, a row of bits, a rectangle, and how many.
 *
 * INV: ends of the interval of a leaf never fall from one query to the next, so that the corners of
 * a rectangle bound all of it; what tsi_mask_class calls EMPTY or FULL is so for every pair. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/intmath.h"
#include "mask/mask.h"

/* ---- intervals of leaves --------------------------------------------------------------------- */

typedef struct seen { /* keys [begin, end) */
    int64_t begin, end;
} seen;

/* The document that holds a position: the first whose end is beyond it; -1: none. */
static int64_t document_at(const tsi_mask_node *node, int64_t row, int64_t position)
{
    int64_t r = node->a > 1 ? row : 0, low = node->first[r], high = node->first[r + 1];
    int64_t last = high;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (node->end[middle] > position)
            high = middle;
        else
            low = middle + 1;
    }
    return low < last ? low : -1;
}

static seen document_of(const tsi_mask_node *node, int64_t row, int64_t position)
{
    int64_t i = document_at(node, row, position), r = node->a > 1 ? row : 0;
    int64_t all = node->first[r + 1] > node->first[r] ? node->end[node->first[r + 1] - 1] : 0;
    if (position < 0) return (seen){ 0, 0 };
    if (i < 0) return (seen){ all, all };
    return (seen){ i > node->first[r] ? node->end[i - 1] : 0, node->end[i] };
}

int64_t tsi_mask_document(const ts_mask *mask, int64_t row, int64_t position)
{
    for (int32_t i = 0; i < mask->node_count; i++)
        if (mask->node[i].kind == TSI_MASK_DOCUMENTS)
            return document_of(&mask->node[i], row, position).begin;
    return 0;
}

static bool is_table(const tsi_mask_node *node)
{
    return node->kind == TSI_MASK_USER || node->kind == TSI_MASK_DENSE;
}

/* Of a table: everything, which bounds it. */
static seen leaf_seen(const tsi_mask_node *node, int64_t row, int64_t query)
{
    const seen all = { 0, TSI_EXTENT_MAX };
    switch ((tsi_mask_kind)node->kind) {
    case TSI_MASK_CAUSAL:
        return (seen){ 0, query + 1 };
    case TSI_MASK_WINDOW:
        return (seen){ node->a < 0 ? 0 : query - node->a,
                       node->b < 0 ? TSI_EXTENT_MAX : query + node->b + 1 };
    case TSI_MASK_PREFIX:
        return (seen){ 0, node->a };
    case TSI_MASK_DOCUMENTS:
        return document_of(node, row, query);
    case TSI_MASK_FULL:
    case TSI_MASK_USER:
    case TSI_MASK_DENSE:
    case TSI_MASK_AND:
    case TSI_MASK_OR:
        break;
    }
    return all;
}

static bool table_sees(const tsi_mask_node *node, tsi_mask_at at, int64_t query, int64_t key)
{
    const tsi_mask_user *u = node->user;
    if (u->fn) return u->fn(at.row, at.head, query, key, u->context) != 0;
    int64_t index = query - (u->keys - u->queries);
    bool inside = index >= 0 && index < u->queries && key >= 0 && key < u->keys;
    return inside && u->seen[index * u->keys + key];
}

/* ---- one pair -------------------------------------------------------------------------------- */

static bool node_sees(const ts_mask *mask, int32_t number, tsi_mask_at at, int64_t query,
                      int64_t key)
{
    const tsi_mask_node *node = &mask->node[number];
    if (node->kind == TSI_MASK_AND)
        return node_sees(mask, node->left, at, query, key) &&
               node_sees(mask, node->right, at, query, key);
    if (node->kind == TSI_MASK_OR)
        return node_sees(mask, node->left, at, query, key) ||
               node_sees(mask, node->right, at, query, key);
    if (is_table(node)) return table_sees(node, at, query, key);
    seen s = leaf_seen(node, at.row, query);
    return key >= s.begin && key < s.end;
}

bool tsi_mask_sees(const ts_mask *mask, tsi_mask_at at, int64_t query, int64_t key)
{
    return node_sees(mask, mask->node_count - 1, at, query, key);
}

ts_status tsi_mask_pure(const ts_mask *mask, tsi_mask_at at, int64_t query, int64_t key)
{
    for (int32_t i = 0; i < mask->node_count; i++) {
        const tsi_mask_node *node = &mask->node[i];
        if (node->kind != TSI_MASK_USER) continue;
        if (table_sees(node, at, query, key) == table_sees(node, at, query, key)) continue;
        return TSI_FAIL(TS_ERR_ARG,
                        "mask: user(%s) is not pure: it was asked twice about row %lld, head %lld, "
                        "query %lld, key %lld and gave both answers",
                        node->user->name, (long long)at.row, (long long)at.head, (long long)query,
                        (long long)key);
    }
    return TS_OK;
}

/* ---- a row of bits --------------------------------------------------------------------------- */

enum { ROW_WORDS = 8 }; /* of one step: 512 keys */

/* Bits [begin, end) of a row. */
static void set_bits(uint64_t *bits, int64_t begin, int64_t end)
{
    for (int64_t w = begin / 64; begin < end; w++) {
        int64_t first = begin % 64, count = tsi_min_i64(64 - first, end - begin);
        bits[w] |= (count == 64 ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1) << first;
        begin += count;
    }
}

/* How many of the ascending keys are below x. */
static int64_t keys_below(const int64_t *keys, int64_t count, int64_t x)
{
    if (count == 0 || x <= keys[0]) return 0;
    if (x > keys[count - 1]) return count;
    if (keys[count - 1] - keys[0] == count - 1) return x - keys[0];
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (keys[middle] < x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct row_keys {
    const int64_t *at;
    int64_t count, query;
    tsi_mask_at which;
} row_keys;

static void node_row(const ts_mask *mask, int32_t number, const row_keys *row, uint64_t *bits)
{
    const tsi_mask_node *node = &mask->node[number];
    uint64_t other[ROW_WORDS] = { 0 };
    memset(bits, 0, sizeof other);
    if (node->kind == TSI_MASK_AND || node->kind == TSI_MASK_OR) {
        node_row(mask, node->left, row, bits);
        node_row(mask, node->right, row, other);
        for (int w = 0; w < ROW_WORDS; w++)
            bits[w] = node->kind == TSI_MASK_AND ? bits[w] & other[w] : bits[w] | other[w];
    } else if (is_table(node)) {
        for (int64_t i = 0; i < row->count; i++)
            if (table_sees(node, row->which, row->query, row->at[i]))
                bits[i / 64] |= UINT64_C(1) << (i % 64);
    } else {
        seen s = leaf_seen(node, row->which.row, row->query);
        set_bits(bits, keys_below(row->at, row->count, s.begin),
                 keys_below(row->at, row->count, s.end));
    }
}

void tsi_mask_row(const ts_mask *mask, tsi_mask_at at, int64_t query, const int64_t *keys,
                  int64_t count, uint64_t *bits)
{
    enum { STEP = ROW_WORDS * 64 };
    for (int64_t done = 0; done < count; done += STEP) {
        uint64_t words[ROW_WORDS];
        row_keys row = { keys + done, tsi_min_i64(count - done, STEP), query, at };
        node_row(mask, mask->node_count - 1, &row, words);
        memcpy(bits + done / 64, words, (size_t)((row.count + 63) / 64) * sizeof *bits);
    }
}

/* ---- rectangles ------------------------------------------------------------------------------ */

static ts_mask_tile node_class(const ts_mask *mask, int32_t number, tsi_mask_at at,
                               const int64_t q[2], const int64_t k[2])
{
    const tsi_mask_node *node = &mask->node[number];
    if (node->kind == TSI_MASK_AND || node->kind == TSI_MASK_OR) {
        ts_mask_tile a = node_class(mask, node->left, at, q, k);
        ts_mask_tile decides = node->kind == TSI_MASK_AND ? TS_TILE_EMPTY : TS_TILE_FULL;
        if (a == decides) return a;
        ts_mask_tile b = node_class(mask, node->right, at, q, k);
        return b == decides || a == b ? b : TS_TILE_PARTIAL;
    }
    if (is_table(node)) return TS_TILE_PARTIAL;
    seen low = leaf_seen(node, at.row, q[0]), high = leaf_seen(node, at.row, q[1]);
    if (high.end <= k[0] || low.begin > k[1]) return TS_TILE_EMPTY;
    if (high.begin <= k[0] && low.end > k[1]) return TS_TILE_FULL;
    return TS_TILE_PARTIAL;
}

ts_mask_tile tsi_mask_class(const ts_mask *mask, tsi_mask_at at, const int64_t q[2],
                            const int64_t k[2])
{
    return node_class(mask, mask->node_count - 1, at, q, k);
}

static seen node_hull(const ts_mask *mask, int32_t number, tsi_mask_at at, const int64_t q[2])
{
    const tsi_mask_node *node = &mask->node[number];
    if (node->kind != TSI_MASK_AND && node->kind != TSI_MASK_OR)
        return (seen){ leaf_seen(node, at.row, q[0]).begin, leaf_seen(node, at.row, q[1]).end };
    seen a = node_hull(mask, node->left, at, q), b = node_hull(mask, node->right, at, q);
    if (node->kind == TSI_MASK_AND)
        return (seen){ tsi_max_i64(a.begin, b.begin), tsi_min_i64(a.end, b.end) };
    return (seen){ tsi_min_i64(a.begin, b.begin), tsi_max_i64(a.end, b.end) };
}

void tsi_mask_hull(const ts_mask *mask, tsi_mask_at at, const int64_t q[2], int64_t keys,
                   int64_t *begin, int64_t *end)
{
    seen s = node_hull(mask, mask->node_count - 1, at, q);
    *begin = tsi_max_i64(s.begin, 0);
    *end = tsi_min_i64(s.end, keys);
    if (*end < *begin) *end = *begin;
}

/* ---- counting -------------------------------------------------------------------------------- */

/* Sets of keys as few disjoint intervals, ascending. */
enum { SETS = TSI_MASK_NODES };
typedef struct key_set {
    int32_t count, reserved;
    seen part[SETS];
} key_set;

static void set_add(key_set *to, int64_t begin, int64_t end)
{
    if (begin >= end) return;
    seen *last = to->count > 0 ? &to->part[to->count - 1] : NULL;
    if (last && begin <= last->end) {
        last->end = tsi_max_i64(last->end, end);
        return;
    }
    to->part[to->count++] = (seen){ begin, end };
}

static void set_and(const key_set *a, const key_set *b, key_set *to)
{
    to->count = 0;
    for (int32_t i = 0, k = 0; i < a->count && k < b->count;) {
        set_add(to, tsi_max_i64(a->part[i].begin, b->part[k].begin),
                tsi_min_i64(a->part[i].end, b->part[k].end));
        if (a->part[i].end < b->part[k].end)
            i++;
        else
            k++;
    }
}

static void set_or(const key_set *a, const key_set *b, key_set *to)
{
    to->count = 0;
    for (int32_t i = 0, k = 0; i < a->count || k < b->count;) {
        bool from_a = k == b->count || (i < a->count && a->part[i].begin <= b->part[k].begin);
        const seen *next = from_a ? &a->part[i++] : &b->part[k++];
        set_add(to, next->begin, next->end);
    }
}

/* Of queries [q0, q1] together. */
static void node_set(const ts_mask *mask, int32_t number, tsi_mask_at at, const int64_t q[2],
                     int64_t keys, key_set *out)
{
    const tsi_mask_node *node = &mask->node[number];
    if (node->kind != TSI_MASK_AND && node->kind != TSI_MASK_OR) {
        int64_t begin = leaf_seen(node, at.row, q[0]).begin;
        out->count = 0;
        set_add(out, tsi_max_i64(begin, 0), tsi_min_i64(leaf_seen(node, at.row, q[1]).end, keys));
        return;
    }
    key_set a, b;
    node_set(mask, node->left, at, q, keys, &a);
    node_set(mask, node->right, at, q, keys, &b);
    if (node->kind == TSI_MASK_AND)
        set_and(&a, &b, out);
    else
        set_or(&a, &b, out);
}

static int64_t row_pairs(const ts_mask *mask, tsi_mask_at at, int64_t query, int64_t keys)
{
    key_set set;
    int64_t total = 0;
    node_set(mask, mask->node_count - 1, at, (const int64_t[]){ query, query }, keys, &set);
    for (int32_t i = 0; i < set.count; i++)
        total += set.part[i].end - set.part[i].begin;
    return total;
}

int32_t tsi_mask_intervals(const ts_mask *mask, tsi_mask_at at, const int64_t q[2], int64_t keys,
                           tsi_mask_interval *out)
{
    key_set set;
    node_set(mask, mask->node_count - 1, at, q, keys, &set);
    for (int32_t i = 0; i < set.count; i++)
        out[i] = (tsi_mask_interval){ set.part[i].begin, set.part[i].end };
    return set.count;
}

static int64_t table_pairs(const ts_mask *mask, tsi_mask_at at, int64_t q0, int64_t q1,
                           int64_t keys)
{
    int64_t total = 0;
    for (int64_t q = q0; q < q1; q++)
        for (int64_t k = 0; k < keys; k++)
            total += tsi_mask_sees(mask, at, q, k);
    return total;
}

/* The end of the stretch after q in which no document ends. */
static int64_t stretch(const ts_mask *mask, tsi_mask_at at, int64_t q, int64_t q1)
{
    for (int32_t i = 0; i < mask->node_count; i++)
        if (mask->node[i].kind == TSI_MASK_DOCUMENTS) {
            seen s = document_of(&mask->node[i], at.row, q);
            if (s.end > q) q1 = tsi_min_i64(q1, s.end);
        }
    return q1;
}

/* Numbers of keys are linear between the places where an interval meets another's end: halves until
 * both ends and the middle lie on a line, then the trapezium. */
static int64_t smooth_pairs(const ts_mask *mask, tsi_mask_at at, int64_t q0, int64_t q1,
                            int64_t keys)
{
    enum { FEW = 4 };
    int64_t total = 0, n = q1 - q0;
    if (n <= FEW) {
        for (int64_t q = q0; q < q1; q++)
            total += row_pairs(mask, at, q, keys);
        return total;
    }
    int64_t third = (n - 1) / 3;
    int64_t a = row_pairs(mask, at, q0, keys), b = row_pairs(mask, at, q0 + third, keys);
    int64_t c = row_pairs(mask, at, q0 + 2 * third, keys), d = row_pairs(mask, at, q1 - 1, keys);
    int64_t next = row_pairs(mask, at, q0 + 1, keys), step = next - a;
    if (b == a + step * third && c == b + step * third && d == a + step * (n - 1))
        return (a + d) * n / 2;
    int64_t middle = q0 + n / 2;
    return smooth_pairs(mask, at, q0, middle, keys) + smooth_pairs(mask, at, middle, q1, keys);
}

int64_t tsi_mask_pairs(const ts_mask *mask, tsi_mask_at at, int64_t q0, int64_t q1, int64_t keys)
{
    for (int32_t i = 0; i < mask->node_count; i++)
        if (is_table(&mask->node[i])) return table_pairs(mask, at, q0, q1, keys);
    int64_t total = 0;
    while (q0 < q1) {
        int64_t end = stretch(mask, at, q0, q1);
        total += smooth_pairs(mask, at, q0, end, keys);
        q0 = end;
    }
    return total;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Powers of 2^(-8/n) for n heads where n is a power of two; else those of the next lower one, and
 * between them every other one of the next higher. */
double tsi_mask_slope(int64_t head, int64_t heads)
{
    int64_t n = 1;
    while (n * 2 <= heads)
        n *= 2;
    if (head < n) return exp2(-8.0 * (double)(head + 1) / (double)n);
    return exp2(-4.0 * (double)(2 * (head - n) + 1) / (double)n);
}
