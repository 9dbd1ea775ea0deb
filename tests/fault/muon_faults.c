/* SPDX-License-Identifier: Apache-2.0 */
/* muon_faults.c - a step of Muon on two ranks in which the n-th allocation of one fails, for every
 * n: the step is made on both or on none, and where it is none neither parameters nor momentum have
 * changed on either. */
#include "../dist/muon_util.h"
#include "base/alloc.h"

typedef struct moments {
    test *t;
    double value[2 * MUON_VALUES];
    int64_t count;
} moments;

static ts_status add_moment(const char *name, ts_tensor *state, void *context)
{
    (void)name;
    moments *m = context;
    m->count += muon_read(m->t, ts_tensor_full(ts_cast(state, TS_DTYPE_F64)), m->value + m->count);
    return TS_OK;
}

/* Parameters, then moments. */
static void look(test *t, const muon_net *n, double *out)
{
    moments m = { .t = t };
    memset(out, 0, 3 * MUON_VALUES * sizeof *out);
    muon_values(t, n, out);
    ts_scope scope = ts_scope_open(ts_tensor_rank(n->w[0]), NULL);
    TEST_OK(t, ts_optimizer_each(n->optimizer, add_moment, &m));
    ts_scope_close(scope);
    memcpy(out + MUON_VALUES, m.value, sizeof m.value);
}

typedef struct fault {
    test *t;
    const char *device;
    int32_t decides, victim;
    int64_t first, every, failed; /* allocations */
} fault;

static ts_status take(const muon_net *n, int32_t decides)
{
    return decides ? ts_optimizer_step_with(n->optimizer, NULL) : ts_optimizer_step(n->optimizer);
}

static muon_net begin(test *t, ts_mesh *mesh, const char *plan)
{
    muon_net n = muon_net_make(t, mesh, TS_DTYPE_F32, plan, NULL);
    n.optimizer = ts_muon_create(n.root, TS_OPTIONS(ts_muon_options, .lr = 0.05));
    return n;
}

/* The largest number that a rank has. */
static int64_t most_of(test *t, ts_rank *me, int64_t number)
{
    ts_array word = TS_INIT(ts_array);
    word.data = &number;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    TEST_OK(t, ts_group_all_reduce(ts_group_world(me), &word, &word, TS_REDUCE_MAX, NULL));
    return number;
}

/* A step in which the allocation fails: all values are those of before it, or those after it; and
 * where it was none, the next one is as if nothing had been. */
static void try_one(fault *f, ts_rank *me, int64_t at, const double *want, bool *reached)
{
    test *t = f->t;
    static _Thread_local double before[3 * MUON_VALUES], after[3 * MUON_VALUES];
    bool victim = ts_rank_index(me) == f->victim;
    muon_net n = begin(t, ts_mesh_create(me, "fsdp=*"), "*: fsdp:S(0)");
    look(t, &n, before);
    TEST_OK(t, muon_backward(&n, 1, 1));
    TEST_OK(t, ts_group_barrier(ts_group_world(me), NULL));
    if (victim) (void)tsi_alloc_fail_at(at);
    (void)take(&n, f->decides);
    int64_t tried = victim ? tsi_alloc_fail_at(0) : 0;
    (void)ts_group_barrier(ts_group_world(me), NULL); /* who did not fail hears of who did */
    bool failed = ts_rank_status(me) != TS_OK;
    if (failed) TEST_OK(t, ts_rank_recover(me));
    *reached = most_of(t, me, tried) >= at;
    if (failed && victim) f->failed++; /* it alone counts */
    TEST_OK(t, ts_module_reset(n.root));
    look(t, &n, after);
    bool made = memcmp(after, want, sizeof after) == 0;
    TEST_SAY(t, made || (failed && memcmp(before, after, sizeof before) == 0),
             "allocation %d: a step that failed left something on rank %d", (int)at,
             (int)ts_rank_index(me));
    if (!made) {
        TEST_EQ(t, ts_optimizer_steps(n.optimizer), 0);
        TEST_OK(t, muon_backward(&n, 1, 1));
        TEST_OK(t, take(&n, f->decides));
        look(t, &n, after);
        TEST_SAY(t, memcmp(after, want, sizeof after) == 0, "allocation %d: another step", (int)at);
    }
    muon_net_end(&n);
}

static ts_status work(ts_rank *me, void *argument)
{
    enum { MOST = 4000 };
    fault *f = argument;
    static _Thread_local double want[3 * MUON_VALUES];
    muon_net n = begin(f->t, ts_mesh_self(me), NULL);
    TEST_OK(f->t, muon_backward(&n, 1, 1));
    TEST_OK(f->t, take(&n, f->decides));
    look(f->t, &n, want);
    muon_net_end(&n);
    bool reached = true;
    for (int64_t at = f->first; reached && at < MOST; at += f->every)
        try_one(f, me, at, want, &reached);
    return ts_rank_status(me);
}

/* What is kept by ranks and worlds is there in the second trial; so the first of each world is
 * another one. `every`: of the allocations, one in so many. */
static void fail_some(test *t, const char *device, int32_t decides, int32_t worlds, int64_t every)
{
    int64_t failed = 0;
    for (int32_t at = 1; at <= worlds; at++) {
        fault f = { .t = t,
                    .device = device,
                    .decides = decides,
                    .victim = at % 2,
                    .first = at,
                    .every = at < 3 ? every : 61 };
        char error[512] = "";
        ts_world_options options = { .struct_size = sizeof options,
                                     .engine = "threads",
                                     .rank_count = 2,
                                     .seed = 9,
                                     .device = device };
        TEST_SAY(t, ts_launch_with(&options, work, &f, error, sizeof error) == TS_OK, "%s", error);
        failed += f.failed;
    }
    TEST_SAY(t, failed >= 8, "%lld allocations failed", (long long)failed); /* most is kept */
}

TS_TEST(every_allocation_of_a_step_of_muon_may_fail)
{
    fail_some(t, "cpu", 0, 40, 1);
    fail_some(t, "cpu", 1, 40, 1);
}

/* In a queue nearly all that is asked of it is an allocation. */
TS_TEST(an_allocation_of_a_step_of_muon_in_a_queue_may_fail)
{
    fail_some(t, "queue", 1, 2, 29);
}

/* Muon is made, or not, with nothing left; on rank 0 an allocation fails. */
TS_TEST_RANKS(every_allocation_of_muon_may_fail, 1, 2)
{
    muon_net n =
        muon_net_make(t, ts_mesh_create(t->me, "fsdp=*"), TS_DTYPE_F32, "*: fsdp:S(0)", NULL);
    int64_t at = 1, failed = 0;
    for (bool reached = true; reached && at < 1000 && !test_failed(t); at++) {
        int64_t tried = 0;
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        if (t->index == 0) { /* whoever allocates meanwhile may be the one that fails */
            (void)tsi_alloc_fail_at(at);
            n.optimizer = ts_muon_create(n.root, TS_OPTIONS(ts_muon_options, .adamw = "head*"));
            tried = tsi_alloc_fail_at(0);
            ts_status status = ts_rank_status(t->me);
            TEST_SAY(t, n.optimizer ? status == TS_OK : status == TS_ERR_MEMORY,
                     "allocation %d: %s", (int)at, ts_status_name(status));
            failed += !n.optimizer;
        }
        (void)ts_group_barrier(ts_group_world(t->me), NULL);
        if (ts_rank_status(t->me) != TS_OK) TEST_OK(t, ts_rank_recover(t->me));
        ts_optimizer_destroy(n.optimizer);
        n.optimizer = NULL;
        reached = most_of(t, t->me, tried) >= at;
    }
    TEST_SAY(t, t->index > 0 || failed > 10, "%d allocations failed", (int)failed);
    muon_net_end(&n);
}
