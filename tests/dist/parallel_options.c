/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_options.c - a program's own gathers and reductions, and units that it names to be
 * gathered ahead: the same training as without. */
#include "parallel_util.h"

#include "parallel/unit.h"

typedef struct moves {
    int64_t calls, tensors;
    int32_t spoils, reserved; /* gives back what it got */
} moves;

static ts_status count_moves(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                             ts_tensor **out, void *context)
{
    moves *m = context;
    m->calls++;
    m->tensors += count;
    for (int32_t i = 0; m->spoils && i < count; i++)
        out[i] = x[i];
    return m->spoils ? TS_OK : ts_redistribute_many(x, to, count, out);
}

static net net_of(int64_t count)
{
    return (net){ .count = count, .width = 6, .rows = 5, .leaves = -1, .dtype = TS_DTYPE_F64 };
}

TS_TEST_RANKS(fsdp_own_gathers_and_reductions, 2, 3)
{
    moves m = { 0 };
    ts_fsdp_options options = { .struct_size = sizeof options,
                                .gather_fn = count_moves,
                                .reduce_fn = count_moves,
                                .move_context = &m };
    net units = net_of(3), plain = units;
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, net_begin(&units, &options));
    TEST_OK(t, net_begin(&plain, NULL));
    net_train_both(t, &units, &plain, 4, 1e-12);
    ts_fsdp_stats stats = { .struct_size = sizeof stats };
    TEST_OK(t, ts_fsdp_statistics(units.root, &stats));
    TEST_EQ(t, m.calls, stats.gathers + stats.reductions);
    TEST_CHECK(t, m.tensors > m.calls);
    if (strcmp(t->engine, "threads") == 0) { /* a process that fails takes along those behind it */
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        m.spoils = 1;
        TEST_CHECK(t, ts_fsdp_gather(units.block[0]) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "fsdp: unit blocks.0: its own gather gave");
        TEST_OK(t, ts_rank_recover(t->me));
        m.spoils = 0;
        TEST_OK(t, ts_module_reset(units.root));
    }
    net_train_both(t, &units, &plain, 2, 1e-12);
    net_end(&units);
    net_end(&plain);
}

/* The last dim is no run of the whole, so that what is gathered ahead travels. */
static int32_t last_dim(const char *name, ts_shape shape, int32_t otherwise, void *context)
{
    (void)name, (void)context;
    return shape.ndim > 0 ? shape.ndim - 1 : otherwise;
}

TS_TEST_RANKS(fsdp_named_prefetch, 2, 3)
{
    ts_fsdp_options options = { .struct_size = sizeof options, .dim = last_dim };
    net units = net_of(4), plain = units;
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    net_declare(&units, mesh, false);
    net_declare(&plain, mesh, false);
    TEST_OK(t, net_begin(&units, &options));
    TEST_OK(t, net_begin(&plain, NULL));
    TEST_OK(t, ts_fsdp_prefetch(units.block[0], &units.block[1], 2, 0));
    TEST_OK(t, ts_fsdp_prefetch(units.block[3], &units.block[1], 2, 1));
    net_train_both(t, &units, &plain, 4, 1e-12);
    const tsi_unit *second = units.block[2]->unit;
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tensor *x = net_input(&units, 1);
    TEST_CHECK(t, TS_CALL(units.block[0], x) != NULL);
    TEST_EQ(t, second->state, TSI_UNIT_COMING);
    ts_scope_close(scope);
    TEST_OK(t, ts_module_reset(units.root));
    TEST_OK(t, ts_fsdp_prefetch(units.block[0], NULL, 0, 0));
    net_train_both(t, &units, &plain, 2, 1e-12);
    if (strcmp(t->engine, "threads") == 0) { /* as above */
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        TEST_CHECK(t, ts_fsdp_prefetch(units.root, NULL, 0, 0) != TS_OK);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "the top of the tree is no unit");
        TEST_OK(t, ts_rank_recover(t->me));
    }
    net_end(&units);
    net_end(&plain);
}
