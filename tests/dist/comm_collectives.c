/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective x every dtype and reduction x even, uneven, sparse and empty rows x dense and
 * strided arrays, blocking and asynchronous, against the oracle, bit for bit. Public API only, so
 * that the same program runs on any engine. */
#include "dist/comm_oracle.h"

enum { MEMBERS_MAX = 16 };

/* How many rows each member has. */
typedef enum pattern { EVEN, UNEVEN, SPARSE, NONE, PATTERN_COUNT } pattern;

typedef struct setting {
    test *t;
    ts_group *group;
    int64_t n, me;
    int64_t ranks[MEMBERS_MAX];
    ts_dtype dtype;
    ts_reduce reduce;
    pattern rows_like;
    int64_t cols;
    bool gaps_in, gaps_out, later; /* later: asynchronous */
    uint64_t key;
    int64_t rows[MEMBERS_MAX], first[MEMBERS_MAX + 1];
    ts_comm_options options;
    ts_work *work;
} setting;

static int64_t rows_of(pattern like, int64_t member, int64_t n)
{
    switch (like) {
    case EVEN:
        return 2;
    case UNEVEN:
        return (member * 5 + 1) % 4;
    case SPARSE:
        return member == n / 2 ? 3 : 0;
    case NONE:
    case PATTERN_COUNT:
        break;
    }
    return 0;
}

/* Fills everything that follows from the fields a test sets. */
static void settle(setting *s)
{
    s->n = ts_group_size(s->group);
    s->me = ts_group_index(s->group);
    s->first[0] = 0;
    for (int64_t i = 0; i < s->n; i++) {
        s->ranks[i] = ts_group_rank(s->group, i);
        s->rows[i] = rows_of(s->rows_like, i, s->n);
        s->first[i + 1] = s->first[i] + s->rows[i];
    }
    s->options = (ts_comm_options){ .struct_size = sizeof s->options, .name = "matrix" };
    if (s->later) s->options.work = &s->work;
    s->work = NULL;
    s->key++;
}

static void finish(setting *s, ts_status status, const char *what)
{
    if (status == TS_OK && s->later) status = ts_work_wait(s->work);
    TEST_SAY(s->t, status == TS_OK, "%s of %s: %s (%s)", what, ts_dtype_name(s->dtype),
             ts_status_name(status), ts_rank_error(s->t->me) ? ts_rank_error(s->t->me)->text : "");
}

static void verdict(setting *s, bool good, grid *out, const char *what)
{
    bool guarded = out == NULL || grid_guarded(out);
    TEST_SAY(s->t, good && guarded,
             "%s%s%s: %s %s rows like %d, gaps %d %d, async %d, member %d of %d", what,
             good ? "" : ": wrong elements", guarded ? "" : ": wrote outside",
             ts_dtype_name(s->dtype), ts_reduce_name(s->reduce), (int)s->rows_like, s->gaps_in,
             s->gaps_out, s->later, (int)s->me, (int)s->n);
}

/* ---- without reductions ---------------------------------------------------------------------- */

static void try_broadcast(setting *s, int64_t root)
{
    settle(s);
    bool is_root = s->me == root;
    grid a = grid_make(s->dtype, s->first[s->n], s->cols, is_root ? s->gaps_in : s->gaps_out);
    if (is_root) grid_fill(&a, s->key, s->ranks[root], 0);
    finish(s, ts_group_broadcast(s->group, &a.array, root, &s->options), "broadcast");
    bool good = grid_rows_are(&a, 0, a.rows, s->key, s->ranks[root], 0);
    verdict(s, good, &a, "broadcast");
    grid_free(&a);
}

static void try_scatter(setting *s, int64_t root)
{
    settle(s);
    grid in = grid_make(s->dtype, s->first[s->n], s->cols, s->gaps_in);
    grid out = grid_make(s->dtype, s->rows[s->me], s->cols, s->gaps_out);
    grid_fill(&in, s->key, s->ranks[root], 0);
    if (s->rows_like != EVEN) s->options.send_rows = s->rows;
    const ts_array *given = s->me == root ? &in.array : NULL;
    finish(s, ts_group_scatter(s->group, given, &out.array, root, &s->options), "scatter");
    bool good = grid_rows_are(&out, 0, out.rows, s->key, s->ranks[root], s->first[s->me] * s->cols);
    verdict(s, good, &out, "scatter");
    grid_free(&in);
    grid_free(&out);
}

static void try_gather(setting *s, int64_t root)
{
    settle(s);
    grid in = grid_make(s->dtype, s->rows[s->me], s->cols, s->gaps_in);
    grid out = grid_make(s->dtype, s->first[s->n], s->cols, s->gaps_out);
    grid_fill(&in, s->key, s->ranks[s->me], 0);
    if (s->rows_like != EVEN) s->options.recv_rows = s->rows;
    const ts_array *given = s->me == root ? &out.array : NULL;
    finish(s, ts_group_gather(s->group, &in.array, given, root, &s->options), "gather");
    bool good = true;
    for (int64_t i = 0; i < s->n && s->me == root; i++)
        good = good && grid_rows_are(&out, s->first[i], s->rows[i], s->key, s->ranks[i], 0);
    verdict(s, good, &out, "gather");
    grid_free(&in);
    grid_free(&out);
}

static void try_all_gather(setting *s)
{
    settle(s);
    grid in = grid_make(s->dtype, s->rows[s->me], s->cols, s->gaps_in);
    grid out = grid_make(s->dtype, s->first[s->n], s->cols, s->gaps_out);
    grid_fill(&in, s->key, s->ranks[s->me], 0);
    if (s->rows_like != EVEN) s->options.recv_rows = s->rows;
    finish(s, ts_group_all_gather(s->group, &in.array, &out.array, &s->options), "all_gather");
    bool good = true;
    for (int64_t i = 0; i < s->n; i++)
        good = good && grid_rows_are(&out, s->first[i], s->rows[i], s->key, s->ranks[i], 0);
    verdict(s, good, &out, "all_gather");
    grid_free(&in);
    grid_free(&out);
}

/* Member i sends rows(i, j) rows to member j; the pattern decides, and differs by direction. */
static int64_t pair_rows(const setting *s, int64_t from, int64_t to)
{
    if (s->rows_like == EVEN) return 2;
    return rows_of(s->rows_like, (from * 3 + to) % s->n, s->n);
}

static void try_all_to_all(setting *s)
{
    settle(s);
    int64_t send[MEMBERS_MAX], recv[MEMBERS_MAX], sent = 0, received = 0;
    for (int64_t i = 0; i < s->n; i++) {
        sent += send[i] = pair_rows(s, s->me, i);
        received += recv[i] = pair_rows(s, i, s->me);
    }
    grid in = grid_make(s->dtype, sent, s->cols, s->gaps_in);
    grid out = grid_make(s->dtype, received, s->cols, s->gaps_out);
    grid_fill(&in, s->key, s->ranks[s->me], 0);
    if (s->rows_like != EVEN) {
        s->options.send_rows = send;
        s->options.recv_rows = recv;
    }
    finish(s, ts_group_all_to_all(s->group, &in.array, &out.array, &s->options), "all_to_all");
    bool good = true;
    for (int64_t i = 0, at = 0; i < s->n; at += recv[i], i++) {
        int64_t before = 0;
        for (int64_t j = 0; j < s->me; j++)
            before += pair_rows(s, i, j);
        good = good && grid_rows_are(&out, at, recv[i], s->key, s->ranks[i], before * s->cols);
    }
    verdict(s, good, &out, "all_to_all");
    grid_free(&in);
    grid_free(&out);
}

/* ---- reductions ------------------------------------------------------------------------------ */

static void try_reduce(setting *s, int64_t root)
{
    settle(s);
    grid in = grid_make(s->dtype, s->first[s->n], s->cols, s->gaps_in);
    grid out = grid_make(s->dtype, s->first[s->n], s->cols, s->gaps_out);
    grid_fill(&in, s->key, s->ranks[s->me], 0);
    const ts_array *given = s->me == root ? &out.array : NULL;
    finish(s, ts_group_reduce(s->group, &in.array, given, s->reduce, root, &s->options), "reduce");
    bool good = s->me != root || grid_is_folded(&out, s->key, s->reduce, s->ranks, s->n, 0);
    verdict(s, good, &out, "reduce");
    grid_free(&in);
    grid_free(&out);
}

static void try_all_reduce(setting *s, bool in_place)
{
    settle(s);
    grid in = grid_make(s->dtype, s->first[s->n], s->cols, s->gaps_in);
    grid out = grid_make(s->dtype, s->first[s->n], s->cols, s->gaps_out);
    grid *target = in_place ? &in : &out;
    grid_fill(&in, s->key, s->ranks[s->me], 0);
    finish(s, ts_group_all_reduce(s->group, &in.array, &target->array, s->reduce, &s->options),
           "all_reduce");
    bool good = grid_is_folded(target, s->key, s->reduce, s->ranks, s->n, 0);
    verdict(s, good, target, in_place ? "all_reduce in place" : "all_reduce");
    grid_free(&in);
    grid_free(&out);
}

static void try_reduce_scatter(setting *s)
{
    settle(s);
    grid in = grid_make(s->dtype, s->first[s->n], s->cols, s->gaps_in);
    grid out = grid_make(s->dtype, s->rows[s->me], s->cols, s->gaps_out);
    grid_fill(&in, s->key, s->ranks[s->me], 0);
    if (s->rows_like != EVEN) s->options.send_rows = s->rows;
    finish(s, ts_group_reduce_scatter(s->group, &in.array, &out.array, s->reduce, &s->options),
           "reduce_scatter");
    int64_t from = s->first[s->me] * s->cols;
    bool good = grid_is_folded(&out, s->key, s->reduce, s->ranks, s->n, from);
    verdict(s, good, &out, "reduce_scatter");
    grid_free(&in);
    grid_free(&out);
}

/* ---- the matrix ------------------------------------------------------------------------------ */

static void try_moves(setting *s)
{
    int64_t n = ts_group_size(s->group);
    try_broadcast(s, n - 1);
    try_scatter(s, n / 2);
    try_gather(s, 0);
    try_all_gather(s);
    try_all_to_all(s);
}

static void try_reductions(setting *s)
{
    for (int r = TS_REDUCE_NONE + 1; r < TS_REDUCE_COUNT; r++) {
        if (!oracle_allowed((ts_reduce)r, s->dtype)) continue;
        s->reduce = (ts_reduce)r;
        try_reduce(s, (ts_group_size(s->group) - 1) / 2);
        try_all_reduce(s, false);
        try_all_reduce(s, true);
        try_reduce_scatter(s);
    }
    s->reduce = TS_REDUCE_NONE;
}

static void try_dtype(test *t, ts_dtype dtype, int64_t cols, bool later)
{
    setting s = { .t = t, .group = ts_group_world(t->me), .dtype = dtype, .cols = cols };
    s.later = later;
    s.key = (uint64_t)dtype * 1000003 + t->seed;
    for (int p = 0; p < PATTERN_COUNT && !test_failed(t); p++)
        for (int gaps = 0; gaps < 4; gaps++) {
            s.rows_like = (pattern)p;
            s.gaps_in = gaps & 1;
            s.gaps_out = gaps >> 1;
            try_moves(&s);
            try_reductions(&s);
        }
}

TS_TEST_RANKS(comm_matrix, 1, 2, 3, 4, 8)
{
    for (int d = TS_DTYPE_NONE + 1; d < TS_DTYPE_COUNT; d++)
        try_dtype(t, (ts_dtype)d, 3, false);
}

TS_TEST_RANKS(comm_matrix_async, 1, 2, 3, 4, 8)
{
    for (int d = TS_DTYPE_NONE + 1; d < TS_DTYPE_COUNT; d++)
        try_dtype(t, (ts_dtype)d, 2, true);
}

/* Large enough that several threads share the work of one operation. */
static void try_large(test *t, ts_dtype dtype, ts_reduce reduce, bool later)
{
    setting s = { .t = t, .group = ts_group_world(t->me), .dtype = dtype, .later = later };
    s.cols = 16000 / t->count / (int64_t)ts_dtype_size(dtype) * 4 + 1;
    s.key = (uint64_t)dtype * 7000003 + t->seed;
    for (int p = EVEN; p <= UNEVEN && !test_failed(t); p++) {
        s.rows_like = (pattern)p;
        s.gaps_in = s.gaps_out = p == UNEVEN;
        s.reduce = TS_REDUCE_NONE;
        try_moves(&s);
        s.reduce = reduce;
        try_reduce(&s, t->count - 1);
        try_all_reduce(&s, later);
        try_reduce_scatter(&s);
    }
}

TS_TEST_RANKS(comm_matrix_large, 1, 2, 3, 4, 8)
{
    try_large(t, TS_DTYPE_F32, TS_REDUCE_SUM, false);
    try_large(t, TS_DTYPE_BF16, TS_REDUCE_AVG, true);
}

TS_TEST_RANKS(comm_barrier_and_scalars, 1, 2, 3, 4, 8)
{
    ts_group *world = ts_group_world(t->me);
    double mine = (double)(t->index + 1), sum = 0, all[8] = { 0 };
    ts_array in = { .struct_size = sizeof in, .data = &mine, .meta = { .dtype = TS_DTYPE_F64 } };
    ts_array out = in, gathered = in;
    out.data = &sum;
    gathered.data = all;
    gathered.meta.shape = TS_SHAPE(t->count);
    for (int i = 0; i < 50; i++) {
        TEST_OK(t, ts_group_barrier(world, NULL));
        TEST_OK(t, ts_group_all_reduce(world, &in, &out, TS_REDUCE_SUM, NULL));
        TEST_CHECK(t, sum == (double)(t->count * (t->count + 1) / 2));
        TEST_OK(t, ts_group_all_gather(world, &in, &gathered, NULL));
        for (int64_t k = 0; k < t->count; k++)
            TEST_CHECK(t, all[k] == (double)(k + 1));
    }
}
