/* SPDX-License-Identifier: Apache-2.0 */
/* cut_for.c - the cut of a sequence among ranks with the least maximum work.
 *
 * Work is the number of pairs that the queries of a rank see. Blocks go, dearest first, to the rank
 * with the least work, every rank taking equally many blocks: tokens cost outside attention, too.
 * Coarse blocks are tried first, so that a rank holds few long pieces; finer ones down to the
 * alignment until the busiest rank is within a hundredth of what no cut can beat. At last the
 * blocks of the busiest rank are dealt anew among it and a few others, by search.
 *
 * INV: a pure function of mask and options. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/text.h"
#include "mask/mask.h"

typedef struct dealt { /* one block, or one rank */
    int64_t work, at, count;
} dealt;

typedef struct dealing {
    int64_t ranks, blocks; /* of this attempt */
    const int64_t *cost;
    dealt *block, *rank;
    int32_t *owner;
    bool proven; /* all deals were looked at: none is better */
} dealing;

static int dearer_first(const void *a, const void *b)
{
    const dealt *x = a, *y = b;
    if (x->work != y->work) return x->work > y->work ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* ---- a heap of ranks, the least busy on top -------------------------------------------------- */

static bool is_less(const dealt *a, const dealt *b)
{
    if (a->work != b->work) return a->work < b->work;
    if (a->count != b->count) return a->count < b->count;
    return a->at < b->at;
}

static void sink(dealt *heap, int64_t count, int64_t i)
{
    for (int64_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && is_less(&heap[child + 1], &heap[child])) child++;
        if (!is_less(&heap[child], &heap[i])) return;
        dealt swap = heap[i];
        heap[i] = heap[child];
        heap[child] = swap;
    }
}

/* Deals sorted blocks, at most `most` to a rank; the work of the busiest. */
static int64_t deal(dealing *w, int64_t most)
{
    int64_t busiest = 0, open = w->ranks;
    for (int64_t r = 0; r < w->ranks; r++)
        w->rank[r] = (dealt){ .at = r };
    for (int64_t i = 0; i < w->blocks; i++) {
        dealt *top = &w->rank[0];
        w->owner[w->block[i].at] = (int32_t)top->at;
        top->work += w->block[i].work;
        busiest = tsi_max_i64(busiest, top->work);
        if (++top->count == most) *top = w->rank[--open]; /* full: it leaves the heap */
        sink(w->rank, open, 0);
    }
    return busiest;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Blocks of a few ranks dealt anew among them: a search that gives the next dearest to the one with
 * least first, and goes back as long as it may. */
enum { POOL = 96, SEATS = 6, LOOKS = 12000, LOOKS_ALL = 700000 };
typedef struct pool {
    int64_t seats, rank[SEATS];
    int64_t count, work[POOL], at[POOL]; /* dearest first */
    int64_t best, enough, looks;         /* work of the busiest, found and wanted; looks left */
    uint8_t seat[POOL], found[POOL];     /* of each block, now and in the best deal */
} pool;

static void search(pool *p, int64_t i, const int64_t *sum)
{
    if (p->best <= p->enough || p->looks-- <= 0) return;
    if (i == p->count) {
        p->best = 0;
        for (int64_t s = 0; s < p->seats; s++)
            p->best = tsi_max_i64(p->best, sum[s]);
        memcpy(p->found, p->seat, sizeof p->found);
        return;
    }
    uint32_t tried = 0;
    for (int64_t turn = 0; turn < p->seats; turn++) {
        int64_t to = -1, more[SEATS];
        bool again = false; /* equal sums: the same deal under other names */
        for (int64_t s = 0; s < p->seats; s++)
            if (!(tried >> s & 1) && (to < 0 || sum[s] < sum[to])) to = s;
        for (int64_t s = 0; s < p->seats; s++)
            again |= tried >> s & 1 && sum[s] == sum[to];
        tried |= 1u << to;
        if (again || sum[to] + p->work[i] >= p->best) continue;
        memcpy(more, sum, sizeof more);
        more[to] += p->work[i];
        p->seat[i] = (uint8_t)to;
        search(p, i + 1, more);
    }
}

/* Deals the blocks of the pool's ranks anew; true: the busiest of them has less than before. */
static bool deal_anew(dealing *w, int64_t *work, pool *p, int64_t *looks)
{
    int64_t sum = 0, most = 0;
    p->count = 0;
    for (int64_t s = 0; s < p->seats; s++) {
        sum += work[p->rank[s]];
        most = tsi_max_i64(most, work[p->rank[s]]);
    }
    for (int64_t i = 0; i < w->blocks; i++)
        for (int64_t s = 0; s < p->seats; s++) {
            if (w->owner[w->block[i].at] != p->rank[s]) continue;
            if (p->count == POOL) return false;
            p->work[p->count] = w->block[i].work;
            p->at[p->count++] = w->block[i].at;
        }
    p->best = most;
    p->looks = LOOKS;
    p->enough = tsi_max_i64(p->enough, tsi_ceil_div(sum, p->seats));
    search(p, 0, (const int64_t[SEATS]){ 0 });
    *looks -= LOOKS - p->looks;
    if (p->best >= most) return false;
    for (int64_t s = 0; s < p->seats; s++)
        work[p->rank[s]] = 0;
    for (int64_t i = 0; i < p->count; i++) {
        w->owner[p->at[i]] = (int32_t)p->rank[p->found[i]];
        work[p->rank[p->found[i]]] += p->work[i];
    }
    return true;
}

/* Ranks by their work: place[0] has least. */
static void by_work(const dealing *w, const int64_t *work, int64_t *place)
{
    for (int64_t r = 0; r < w->ranks; r++) {
        int64_t i = r;
        for (; i > 0 && work[place[i - 1]] > work[r]; i--)
            place[i] = place[i - 1];
        place[i] = r;
    }
}

/* The busiest rank's blocks with those of one other, then of two, then of three neighbours among
 * the ranks by their work, the least busy first. */
static bool improve(dealing *w, int64_t *work, int64_t *place, int64_t enough, int64_t *looks)
{
    by_work(w, work, place);
    for (int64_t seats = 2; seats <= SEATS; seats++)
        for (int64_t i = 0; i + seats <= w->ranks && *looks > 0; i++) {
            pool p = { .seats = seats, .enough = enough };
            p.rank[0] = place[w->ranks - 1];
            for (int64_t s = 1; s < seats; s++)
                p.rank[s] = place[i + s - 1];
            if (deal_anew(w, work, &p, looks)) return true;
            w->proven = seats == w->ranks && p.count == w->blocks && p.looks > 0;
        }
    return false;
}

/* Improves a dealing until nothing helps; the work of the busiest rank. */
static int64_t refine(dealing *w, int64_t enough)
{
    int64_t *work = (int64_t *)(void *)w->rank; /* the heap is done with */
    int64_t *place = work + w->ranks, looks = LOOKS_ALL, busiest;
    memset(work, 0, (size_t)w->ranks * sizeof *work);
    for (int64_t i = 0; i < w->blocks; i++)
        work[w->owner[w->block[i].at]] += w->block[i].work;
    do {
        busiest = 0;
        for (int64_t r = 0; r < w->ranks; r++)
            busiest = tsi_max_i64(busiest, work[r]);
    } while (busiest > enough && looks > 0 && improve(w, work, place, enough, &looks));
    return busiest;
}

/* What no cut along these blocks can beat: the mean, and that of the dearest k ranks + 1 blocks
 * some rank has k + 1. */
static int64_t least_of(const dealing *w, int64_t total)
{
    int64_t least = tsi_ceil_div(total, w->ranks);
    for (int64_t k = 0; k < 16 && k * w->ranks < w->blocks; k++) {
        int64_t sum = 0;
        for (int64_t i = 0; i <= k; i++)
            sum += w->block[k * w->ranks - i].work;
        least = tsi_max_i64(least, sum);
    }
    return least;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static ts_status begin_cut(ts_cut *out, int64_t pieces)
{
    out->piece = tsi_alloc((size_t)tsi_max_i64(pieces, 1) * sizeof *out->piece);
    if (!out->piece)
        return tsi_fail_memory("a cut of a sequence", (size_t)pieces * sizeof *out->piece);
    out->pieces = 0;
    return TS_OK;
}

static void add_piece(ts_cut *out, int64_t end, int64_t owner)
{
    ts_cut_piece *last = out->pieces > 0 ? &out->piece[out->pieces - 1] : NULL;
    int64_t begin = last ? last->end : 0;
    end = tsi_min_i64(end, out->length);
    if (end <= begin) return;
    if (last && last->owner == owner)
        last->end = end;
    else
        out->piece[out->pieces++] = (ts_cut_piece){ begin, end, owner };
}

/* ---- costs ----------------------------------------------------------------------------------- */

static int64_t work_of(const ts_mask *mask, int64_t begin, int64_t end, int64_t length)
{
    int64_t work = 0;
    for (int64_t row = 0; row < tsi_max_i64(mask->rows, 1); row++)
        work += tsi_mask_pairs(mask, (tsi_mask_at){ .row = row }, begin, end, length);
    return work;
}

/* The same cut as pieces and their work, for cuts by name. */
static ts_status sum_work(const ts_mask *mask, ts_cut *out)
{
    int64_t total = 0, *work = tsi_calloc((size_t)out->ranks, sizeof *work);
    if (!work) return tsi_fail_memory("work of ranks", (size_t)out->ranks * sizeof *work);
    for (int64_t i = 0; i < out->pieces; i++) {
        const ts_cut_piece *p = &out->piece[i];
        int64_t more = work_of(mask, p->begin, p->end, out->length);
        work[p->owner] += more;
        total += more;
    }
    for (int64_t r = 0; r < out->ranks; r++)
        out->work_max = tsi_max_i64(out->work_max, work[r]);
    out->work_mean = (double)total / (double)out->ranks;
    out->bound = tsi_ceil_div(total, out->ranks);
    tsi_free(work);
    return TS_OK;
}

/* ---- by cost --------------------------------------------------------------------------------- */

/* With more blocks than this, dealing alone is good. */
enum { EXCHANGED_MAX = 4096 };

/* One attempt with blocks of `merge` finest ones; true: good enough. */
static bool attempt(dealing *w, const int64_t *fine, int64_t fine_count, int64_t merge, ts_cut *out)
{
    int64_t total = 0;
    w->blocks = tsi_ceil_div(fine_count, merge);
    for (int64_t b = 0; b < w->blocks; b++) {
        w->block[b] = (dealt){ .at = b };
        for (int64_t i = b * merge; i < tsi_min_i64(fine_count, (b + 1) * merge); i++)
            w->block[b].work += fine[i];
        total += w->block[b].work;
    }
    qsort(w->block, (size_t)w->blocks, sizeof *w->block, dearer_first);
    out->bound = least_of(w, total);
    out->work_mean = (double)total / (double)w->ranks;
    out->work_max = deal(w, tsi_ceil_div(w->blocks, w->ranks));
    if ((double)out->work_max <= 1.01 * out->work_mean) return true;
    if (merge > 1) return false;
    if ((double)out->work_max <= 1.01 * (double)out->bound) return true;
    out->work_max = deal(w, w->blocks); /* without the equal numbers, then */
    if (w->blocks <= EXCHANGED_MAX) out->work_max = refine(w, out->bound + out->bound / 200);
    if (w->proven) out->bound = out->work_max;
    return true;
}

static ts_status cut_by_cost(const ts_mask *mask, int64_t align, ts_cut *out)
{
    enum { BLOCKS_EACH = 4 };
    int64_t count = tsi_ceil_div(out->length, align), merge = 1;
    size_t each = sizeof(int64_t) + sizeof(dealt) + sizeof(int32_t);
    size_t bytes;
    if (!tsi_mul_size((size_t)count, each, &bytes) || bytes > SIZE_MAX / 2)
        return tsi_fail_memory("a cut of a sequence", SIZE_MAX);
    bytes += (size_t)out->ranks * sizeof(dealt) + 64;
    char *memory = tsi_alloc(bytes);
    if (!memory) return tsi_fail_memory("a cut of a sequence", bytes);
    dealing w = { .ranks = out->ranks, .block = (dealt *)(void *)memory };
    w.rank = w.block + count;
    int64_t *fine = (int64_t *)(void *)(w.rank + out->ranks);
    w.owner = (int32_t *)(void *)(fine + count);
    for (int64_t b = 0; b < count; b++)
        fine[b] = work_of(mask, b * align, tsi_min_i64(out->length, (b + 1) * align), out->length);
    while (count / (merge * 2) >= BLOCKS_EACH * out->ranks)
        merge *= 2;
    while (!attempt(&w, fine, count, merge, out))
        merge /= 2;
    ts_status status = begin_cut(out, w.blocks);
    for (int64_t b = 0; status == TS_OK && b < w.blocks; b++)
        add_piece(out, (b + 1) * merge * align, w.owner[b]);
    tsi_free(memory);
    return status;
}

/* ---- by name --------------------------------------------------------------------------------- */

/* Head and tail of [begin, begin + length). */
static void head_tail(ts_cut *out, int64_t begin, int64_t length)
{
    int64_t parts = 2 * out->ranks, chunk = tsi_ceil_div(length, parts);
    for (int64_t c = 0; c < parts; c++)
        add_piece(out, begin + tsi_min_i64(length, (c + 1) * chunk),
                  c < out->ranks ? c : parts - 1 - c);
}

static const tsi_mask_node *documents_of(const ts_mask *mask)
{
    for (int32_t i = 0; i < mask->node_count; i++)
        if (mask->node[i].kind == TSI_MASK_DOCUMENTS) return &mask->node[i];
    return NULL;
}

static ts_status per_document(const ts_mask *mask, ts_cut *out)
{
    const tsi_mask_node *node = documents_of(mask);
    int64_t count = node ? node->first[1] - node->first[0] : 0, begin = 0;
    if (mask->rows > 1)
        return TSI_FAIL(TS_ERR_ARG, "balance: per_document needs the same documents in every row; "
                                    "auto takes any");
    TSI_TRY(begin_cut(out, (count + 1) * 2 * out->ranks));
    for (int64_t d = 0; d < count; d++) {
        head_tail(out, begin, node->end[d] - begin);
        begin = node->end[d];
    }
    head_tail(out, begin, out->length - begin);
    return TS_OK;
}

static ts_status to_and_fro(const ts_mask *mask, int64_t align, ts_cut *out)
{
    int64_t count = tsi_round_up(tsi_ceil_div(out->length, align), out->ranks);
    int64_t *table = tsi_calloc((size_t)(3 * count) + 1, sizeof *table);
    if (!table) return tsi_fail_memory("a balance of blocks", (size_t)count * 24);
    for (int64_t b = 0; b * align < out->length; b++) { /* beyond the end: nothing, for nobody */
        const int64_t q[2] = { b * align, tsi_min_i64(out->length, (b + 1) * align) - 1 };
        int64_t begin, end;
        tsi_mask_hull(mask, (tsi_mask_at){ 0 }, q, out->length, &begin, &end);
        table[b] = end > begin ? (end - 1) / align - begin / align + 1 : 0;
    }
    int64_t *indices = table + count, *restore = indices + count;
    ts_status status = ts_balance_blocks(out->ranks, count, table, indices, restore);
    if (status == TS_OK) status = begin_cut(out, count);
    for (int64_t b = 0; status == TS_OK && b < count; b++)
        add_piece(out, (b + 1) * align, restore[b] / (count / out->ranks));
    tsi_free(table);
    return status;
}

static ts_status cut_by_name(const ts_mask *mask, const ts_cut_options *o, int64_t align,
                             ts_cut *out)
{
    int64_t chunk = tsi_ceil_div(o->length, o->ranks);
    switch ((ts_balance)o->balance) {
    case TS_BALANCE_AUTO:
        return cut_by_cost(mask, align, out);
    case TS_BALANCE_NONE:
        TSI_TRY(begin_cut(out, o->ranks));
        for (int64_t r = 0; r < o->ranks; r++)
            add_piece(out, (r + 1) * chunk, r);
        return TS_OK;
    case TS_BALANCE_HEAD_TAIL:
        TSI_TRY(begin_cut(out, 2 * o->ranks));
        head_tail(out, 0, o->length);
        return TS_OK;
    case TS_BALANCE_PER_DOCUMENT:
        return per_document(mask, out);
    case TS_BALANCE_PTRR:
        return to_and_fro(mask, align, out);
    }
    return TSI_FAIL(TS_ERR_ARG, "%d is no balance", (int)o->balance);
}

ts_status ts_cut_for(const ts_mask *mask, const ts_cut_options *options, ts_cut *out)
{
    *out = (ts_cut){ .struct_size = sizeof *out };
    if (!mask || !options) return TSI_FAIL(TS_ERR_NULL, "cut: a mask and options are needed");
    int64_t align = options->align ? options->align : 128;
    if (options->length < 0 || options->length >= TSI_EXTENT_MAX / 4 || align < 1 ||
        options->ranks < 1 || options->ranks > 1 << 20)
        return TSI_FAIL(TS_ERR_ARG,
                        "cut: %lld positions in blocks of %lld for %lld ranks are not possible",
                        (long long)options->length, (long long)align, (long long)options->ranks);
    TSI_TRY(
        tsi_mask_check(mask, "cut", tsi_max_i64(mask->rows, 1), options->length, options->length));
    out->ranks = options->ranks;
    out->length = options->length;
    ts_status status = cut_by_name(mask, options, align, out);
    if (status == TS_OK && options->balance != TS_BALANCE_AUTO) status = sum_work(mask, out);
    if (status != TS_OK) ts_cut_release(out);
    return status;
}

void ts_cut_release(ts_cut *cut)
{
    if (!cut) return;
    tsi_free(cut->piece);
    *cut = (ts_cut){ .struct_size = sizeof *cut };
}

/* Rounds: a piece whose owner is not behind the one before begins the next. */
size_t ts_cut_text(const ts_cut *cut, int32_t dim, char *out, size_t size)
{
    tsi_text text = { 0 };
    int64_t next = 0;
    tsi_text_printf(&text, "RS(%d:", (int)dim);
    for (int64_t i = 0; i < cut->pieces; i++) {
        const ts_cut_piece *p = &cut->piece[i];
        if (p->owner < next) {
            for (; next < cut->ranks; next++)
                tsi_text_add(&text, next ? ",0" : "0");
            tsi_text_add(&text, "|");
            next = 0;
        }
        for (; next < p->owner; next++)
            tsi_text_add(&text, next ? ",0" : "0");
        if (next++) tsi_text_add(&text, ",");
        tsi_text_int(&text, p->end - p->begin);
    }
    for (; next < cut->ranks; next++)
        tsi_text_add(&text, next ? ",0" : "0");
    tsi_text_add(&text, ")");
    return tsi_text_give(&text, out, size);
}
