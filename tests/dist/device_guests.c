/* SPDX-License-Identifier: Apache-2.0 */
/* device_guests.c - ranks that wait take pieces of loops of those that compute: they come, bits do
 * not depend on them, and what they wait for ends their visit. On more ranks than cores, too. */
#include "device/guests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/hash.h"
#include "device/device.h"
#include "harness/test.h"
#include "tessera/tessera.h"

/* Before worlds open, which is before the cases. */
__attribute__((constructor)) static void guests_come(void)
{
    (void)setenv("TESSERA_GUESTS", "on", 1);
}

static bool has_guests(const test *t)
{
    return t->count > 1 && strcmp(t->engine, "threads") == 0 &&
           tsi_world_device(t->me->world)->host_readable;
}

static void all_meet(test *t)
{
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
}

/* ---- loops ----------------------------------------------------------------------------------- */

enum { PIECES = 64 };

typedef struct errand {
    _Atomic int32_t ran[PIECES];
    _Atomic int32_t by_guests;
    bool waits; /* the owner, in its first piece, for a guest to have run one */
} errand;

static void run_errand(void *context, int64_t begin, int64_t end, int32_t worker)
{
    errand *e = context;
    int64_t deadline = tsi_clock_after_ms(20000);
    for (int64_t i = begin; i < end; i++) {
        if (worker == TSI_GUEST) atomic_fetch_add(&e->by_guests, 1);
        while (e->waits && worker != TSI_GUEST && atomic_load(&e->by_guests) == 0 &&
               tsi_clock_ns() < deadline)
            TSI_CPU_RELAX();
        atomic_fetch_add(&e->ran[i], 1);
    }
}

static void check_errand(test *t, errand *e, bool came)
{
    for (int64_t i = 0; i < PIECES; i++)
        TEST_EQ(t, atomic_load(&e->ran[i]), 1);
    TEST_SAY(t, (atomic_load(&e->by_guests) > 0) == came, "guests ran %d pieces",
             (int)atomic_load(&e->by_guests));
}

/* All guests were ranks' own threads: what they computed is counted as that, and as no more. */
static void check_helped(test *t, int64_t took_ns)
{
    TEST_SAY(t, t->me->helped_ns <= took_ns, "%lld ns of %lld", (long long)t->me->helped_ns,
             (long long)took_ns);
    double sum = (double)t->me->helped_ns;
    ts_array all = { .struct_size = sizeof all, .data = &sum };
    all.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F64 };
    TEST_OK(t, ts_group_all_reduce(ts_group_world(t->me), &all, &all, TS_REDUCE_SUM, NULL));
    TEST_SAY(t, (sum > 0) == has_guests(t), "ranks computed %g ns for others", sum);
}

TS_TEST_RANKS(who_waits_takes_pieces, 1, 2, 3, 8)
{
    int64_t began_ns = tsi_clock_ns();
    for (int32_t threads = 1; threads < 3; threads++)
        for (int64_t owner = 0; owner < t->count; owner++) {
            tsi_parallel_limit(t->me, threads);
            if (t->index == owner) {
                errand one = { .waits = has_guests(t) }, all = one;
                tsi_guests_loop(t->me, 0, PIECES, run_errand, &one);
                tsi_parallel_for_all(t->me, PIECES, 1, run_errand, &all);
                check_errand(t, &one, has_guests(t));
                check_errand(t, &all, has_guests(t));
            }
            all_meet(t);
            if (threads == 1) check_helped(t, tsi_clock_ns() - began_ns);
        }
    tsi_parallel_limit(t->me, 0);
}

/* A thread that no loop of the world is for, and a worker whose loop is taken. */
static void run_inner(void *context, int64_t begin, int64_t end, int32_t worker)
{
    ts_rank *me = context;
    errand inner = { .waits = false };
    (void)begin, (void)end;
    tsi_guests_loop(me, worker, PIECES, run_errand, &inner);
}

TS_TEST_RANKS(loops_that_nobody_can_join_run_alone, 1, 2)
{
    errand none = { .waits = false }, far = none, alone = none;
    tsi_guests_loop(NULL, 0, PIECES, run_errand, &none);
    check_errand(t, &none, false);
    tsi_guests_loop(t->me, 4096, PIECES, run_errand, &far);
    check_errand(t, &far, false);
    tsi_guests_loop(t->me, 0, 2, run_inner, t->me); /* inside of it, the loop is taken */
    tsi_parallel_for_all(NULL, PIECES, 1, run_errand, &alone);
    check_errand(t, &alone, false);
    all_meet(t);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Of a dense block. */
static uint64_t bits_of(test *t, ts_tensor *x)
{
    ts_array block = TS_INIT(ts_array);
    TEST_OK(t, test_view(x, &block));
    size_t bytes =
        (size_t)ts_shape_count(&block.meta.shape) * ts_dtype_size((ts_dtype)block.meta.dtype);
    return block.data ? tsi_hash_bytes(1, block.data, bytes) : 0;
}

/* Of one rank after the other, so that the others wait, and of all at once. */
TS_TEST_RANKS(products_have_the_bits_of_who_computes_alone, 2, 3, 8)
{
    static const struct {
        int64_t m, n, k;
        bool turned;
    } shapes[] = { { 200, 300, 400, false }, { 97, 1100, 300, true }, { 513, 64, 700, false } };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F64 };
    ts_mesh *self = ts_mesh_self(t->me);
    for (size_t s = 0; s < TSI_COUNT_OF(shapes); s++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++) {
            int64_t m = shapes[s].m, n = shapes[s].n, k = shapes[s].k;
            ts_scope scope = ts_scope_open(t->me, "products");
            ts_tensor *a = ts_randn(self, dtypes[d], TS_SHAPE(m, k), "R");
            ts_tensor *b =
                ts_randn(self, dtypes[d], shapes[s].turned ? TS_SHAPE(n, k) : TS_SHAPE(k, n), "R");
            uint64_t first = 0;
            for (int64_t turn = 0; turn < t->count + 2; turn++) {
                bool mine = turn >= t->count || turn == t->index;
                for (int32_t i = 0; mine && i < 3; i++) {
                    ts_tensor *c = shapes[s].turned ? ts_linear(a, b, NULL) : ts_matmul(a, b);
                    uint64_t bits = bits_of(t, c);
                    if (first == 0) first = bits;
                    TEST_SAY(t, bits == first, "shape %zu, %s: other bits in turn %lld", s,
                             ts_dtype_name(dtypes[d]), (long long)turn);
                }
                all_meet(t);
            }
            ts_scope_close(scope);
        }
    ts_mesh_release(self);
    TEST_OK(t, ts_rank_status(t->me));
}

/* Ranks with work of many kinds that ends at different times, messages, sums and fences between. */
TS_TEST_RANKS(random_work_between_random_waits, 2, 3, 4)
{
    ts_mesh *self = ts_mesh_self(t->me);
    char axis[32];
    snprintf(axis, sizeof axis, "x=%d", (int)t->count);
    ts_mesh *all = ts_mesh_create(t->me, axis);
    ts_tensor *w = ts_randn(self, TS_DTYPE_F32, TS_SHAPE(300, 300), "R");
    uint64_t own = test_random(t) + (uint64_t)t->index * 0x9E3779B97F4A7C15u, hash = 0;
    for (int32_t round = 0; round < 30; round++) {
        ts_scope scope = ts_scope_open(t->me, "round");
        own = own * 6364136223846793005u + 1442695040888963407u;
        ts_tensor *x = w;
        for (uint64_t i = 0; i < own >> 62; i++)
            x = ts_scale(ts_matmul(x, w), 0.05);
        uint64_t now = bits_of(t, ts_matmul(w, w));
        if (round == 0) hash = now;
        TEST_SAY(t, now == hash, "round %d: other bits", round);
        int64_t kind = test_random_below(t, 3);
        ts_tensor *ones = ts_full(1, all, TS_DTYPE_F32, TS_SHAPE(64 * t->count, 40), "S(0)");
        if (kind == 0) all_meet(t);
        if (kind == 1) TEST_OK(t, ts_tensor_wait(ts_redistribute(ones, "R")));
        if (kind == 2) {
            double sum = 0;
            TEST_OK(t, ts_tensor_item(ts_sum(ones, NULL, 0, 0), &sum));
            TEST_SAY(t, sum == (double)(64 * t->count * 40), "the sum is %g", sum);
        }
        ts_scope_close(scope);
    }
    ts_mesh_release(all);
    ts_mesh_release(self);
    TEST_OK(t, ts_rank_status(t->me));
}
