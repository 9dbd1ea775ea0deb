/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_shared.c - shards of thread ranks as slices of one storage: a gather copies nothing, no
 * shard is written while a peer reads it, and what is done to a parameter that is whole reaches its
 * shards once; in memory of the host, and of a device in the order of queues. Under other engines
 * the same programs give the same numbers with copies. */
#include <unistd.h>

#include "parallel_util.h"

#include "parallel/lend.h"
#include "parallel/unit.h"

static const ts_fsdp_options plain_options = { .struct_size = sizeof plain_options };

static net net_of(int64_t count, int64_t width, int64_t rows)
{
    return (
        net){ .count = count, .width = width, .rows = rows, .leaves = -1, .dtype = TS_DTYPE_F64 };
}

static ts_mesh *mesh_of(test *t)
{
    return ts_mesh_create(t->me, t->count == 4 ? "replicate=2, fsdp=2" : "fsdp=*");
}

static bool shares(test *t)
{
    return tsi_world_shares(t->me->world);
}

static double sum_of(test *t, ts_tensor *x)
{
    double sum = NAN;
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    TEST_OK(t, ts_tensor_item(ts_sum(ts_cast(x, TS_DTYPE_F64), NULL, 0, 0), &sum));
    ts_scope_close(scope);
    return sum;
}

static int64_t bytes_since(test *t, uint64_t event)
{
    ts_counts counts = { .struct_size = sizeof counts };
    int64_t bytes = 0;
    TEST_OK(t, ts_rank_counts(t->me, event, &counts));
    for (int64_t i = 0; i < counts.row_count; i++)
        bytes += counts.row[i].bytes;
    return bytes;
}

/* What crosses in a step are gradients alone; ranks tell once in it that they have written. */
TS_TEST_RANKS(fsdp_a_gather_copies_nothing, 2, 4, 8)
{
    enum { BLOCKS = 3, WIDTH = 32, SCALARS = 512 };
    net n = net_of(BLOCKS, WIDTH, 8);
    ts_mesh *mesh = mesh_of(t);
    int64_t ranks = ts_mesh_axis_size(mesh, ts_mesh_axis(mesh, "fsdp"));
    net_declare(&n, mesh, false);
    TEST_OK(t, net_begin(&n, &plain_options));
    double norm;
    net_step(&n, 0, &norm);
    net_step(&n, 1, &norm);
    ts_fsdp_stats before = { .struct_size = sizeof before }, after = before;
    TEST_OK(t, ts_fsdp_statistics(n.root, &before));
    TEST_OK(t, ts_rank_memory_reset(t->me));
    uint64_t event = ts_rank_event(t->me);
    net_step(&n, 2, &norm);
    int64_t crossed = bytes_since(t, event);
    TEST_OK(t, ts_fsdp_statistics(n.root, &after));
    ts_memory memory = { .struct_size = sizeof memory };
    TEST_OK(t, ts_rank_memory(t->me, &memory));
    int64_t parameters = BLOCKS * (WIDTH * WIDTH + WIDTH) * (int64_t)sizeof(double);
    int64_t gradients = (t->count - 1) * parameters / ranks;
    int64_t gathers = parameters - parameters / ranks;
    if (shares(t)) {
        TEST_SAY(t, crossed <= gradients + BLOCKS * SCALARS,
                 "%lld bytes crossed, %lld of gradients", (long long)crossed, (long long)gradients);
        TEST_EQ(t, after.fences - before.fences, 1);
        TEST_EQ(t, memory.most[TS_MEMORY_GATHERED], 0);
    }
    TEST_SAY(t, crossed <= gradients + 2 * gathers + BLOCKS * SCALARS,
             "%lld bytes crossed, %lld must", (long long)crossed, (long long)(gradients + gathers));
    TEST_CHECK(t, after.gathers > before.gathers);
    net_end(&n);
}

/* A rank that is ahead writes its shard when the others have read it. */
TS_TEST_RANKS(fsdp_no_update_while_a_peer_reads, 2, 3)
{
    net n = net_of(2, 6, 4);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &plain_options));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    double first = sum_of(t, w);
    for (int turn = 0; turn < 3; turn++) {
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
        TEST_OK(t, ts_fsdp_gather(n.block[0]));
        TEST_OK(t, ts_tensor_wait(w));
        if (t->index == turn % t->count) usleep(30000);
        double seen = sum_of(t, w);
        TEST_SAY(t, fabs(seen - (turn == 0 ? first : 0)) < 1e-12, "turn %d: %.17g, not %.17g", turn,
                 seen, first);
        TEST_OK(t, ts_fsdp_release(n.block[0]));
        TEST_CHECK(t, ts_tril_(w, -10) == w); /* the shard, in place: zeros */
        ts_scope_close(scope);
    }
    net_end(&n);
}

/* Every rank adds one to the whole: the shards get one, not as many as there are ranks. */
TS_TEST_RANKS(fsdp_changes_of_the_whole_count_once, 1, 2, 3, 4)
{
    net n = net_of(2, 6, 4);
    net_declare(&n, mesh_of(t), false);
    TEST_OK(t, net_begin(&n, &plain_options));
    ts_tensor *b = ts_module_find_param(n.root, "blocks.0.bias");
    double before = sum_of(t, b);
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    TEST_OK(t, ts_fsdp_gather(n.block[0]));
    ts_tensor *index = ts_full(0, n.mesh, TS_DTYPE_I64, TS_SHAPE(6), NULL);
    ts_tensor *one = ts_full(1, n.mesh, TS_DTYPE_F64, TS_SHAPE(6), NULL);
    TEST_CHECK(t, ts_index_add_(b, 0, index, one) == b);
    TEST_OK(t, ts_fsdp_release(n.block[0]));
    double after = sum_of(t, b);
    TEST_SAY(t, fabs(after - before - 6) < 1e-12, "%.17g, not 6 more than %.17g", after, before);
    TEST_OK(t, ts_fsdp_gather(n.block[0]));
    after = sum_of(t, b);
    TEST_SAY(t, fabs(after - before - 6) < 1e-12, "gathered: %.17g", after);
    TEST_OK(t, ts_fsdp_release(n.block[0]));
    ts_scope_close(scope);
    net_end(&n);
}

/* A queue may be far behind the host that let go of a unit: what it reads then is what was there.
 */
TS_TEST_RANKS(fsdp_late_queues_read_what_was, 2, 3)
{
    enum { WIDTH = 6, HEAVY = 128, TIMES = 40 };
    net n = net_of(1, WIDTH, 4);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &plain_options));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    double first = sum_of(t, w), seen = NAN;
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tensor *heavy = ts_full(0, n.mesh, TS_DTYPE_F64, TS_SHAPE(HEAVY, HEAVY), NULL);
    TEST_OK(t, ts_fsdp_gather(n.block[0]));
    for (int i = 0; i < TIMES && ts_rank_index(t->me) == 0; i++)
        heavy = ts_matmul(heavy, heavy);
    ts_tensor *sum = ts_add(ts_sum(w, NULL, 0, 0), ts_sum(heavy, NULL, 0, 0));
    TEST_OK(t, ts_fsdp_release(n.block[0]));
    ts_tensor *twos = ts_full(2, n.mesh, TS_DTYPE_F64, TS_SHAPE(WIDTH, WIDTH), NULL);
    const ts_sharding *cut = ts_layout_sharding(ts_tensor_layout(w));
    TEST_OK(t, ts_tensor_write(w, ts_redistribute_to(twos, cut)));
    TEST_OK(t, ts_tensor_item(sum, &seen));
    TEST_SAY(t, fabs(seen - first) < 1e-12, "%.17g, not %.17g", seen, first);
    TEST_OK(t, ts_fsdp_gather(n.block[0]));
    seen = sum_of(t, w);
    TEST_SAY(t, seen == 2 * WIDTH * WIDTH, "written: %.17g", seen);
    TEST_OK(t, ts_fsdp_release(n.block[0]));
    ts_scope_close(scope);
    net_end(&n);
}

static ts_status note_shares(ts_rank *me, void *argument)
{
    if (ts_rank_index(me) == 0) *(bool *)argument = tsi_world_shares(me->world);
    return TS_OK;
}

/* In memory of the host, and in that of one device. */
TS_TEST(fsdp_threads_share)
{
    static const char *const devices[] = { "cpu", "queue" };
    for (int i = 0; i < 2; i++) {
        char error[1024] = "";
        bool shared = false;
        ts_world_options options = TS_INIT(ts_world_options);
        options.engine = "threads";
        options.device = devices[i];
        options.rank_count = 2;
        ts_status status = ts_launch_with(&options, note_shares, &shared, error, sizeof error);
        TEST_SAY(t, status == TS_OK && shared, "%s: %s", devices[i], error);
    }
}

/* A view shows memory of all ranks: it is not written behind the parameter's back. */
TS_TEST_RANKS(fsdp_views_of_the_whole_are_read_only, 2)
{
    if (!shares(t)) return;
    net n = net_of(1, 6, 4);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &plain_options));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    TEST_OK(t, ts_fsdp_gather(n.block[0]));
    TEST_CHECK(t, ts_tril_(ts_transpose(w, 0, 1), -10) == NULL);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "a view of blocks.0.weight cannot be written");
    TEST_OK(t, ts_rank_recover(t->me));
    TEST_OK(t, ts_module_reset(n.root));
    ts_scope_close(scope);
    net_end(&n);
}

/* A shard that is replaced, and one whose replacement is taken back. */
TS_TEST_RANKS(fsdp_replaced_shards, 2, 3)
{
    net n = net_of(2, 6, 4);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &plain_options));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    double norm, first = sum_of(t, w);
    net_run(&n, 0, 0, 1);
    TEST_OK(t, ts_optimizer_zero(n.optimizer));
    for (int undone = 1; undone >= 0; undone--) {
        ts_scope scope = ts_scope_open_with(
            t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1, .catches = undone));
        const ts_sharding *cut = ts_layout_sharding(ts_tensor_layout(w));
        ts_tensor *twos = ts_full(2, n.mesh, TS_DTYPE_F64, TS_SHAPE(6, 6), NULL);
        TEST_OK(t, ts_tensor_write(w, ts_redistribute_to(twos, cut)));
        TEST_OK(t, ts_fsdp_gather(n.block[0]));
        double seen = sum_of(t, w);
        TEST_SAY(t, seen == 72, "%.17g, not 72", seen);
        TEST_OK(t, ts_fsdp_release(n.block[0]));
        if (undone) (void)ts_matmul(twos, ts_full(1, n.mesh, TS_DTYPE_F64, TS_SHAPE(5), NULL));
        ts_scope_close(scope);
        TEST_OK(t, ts_rank_status(t->me));
        TEST_OK(t, ts_fsdp_gather(n.block[0]));
        seen = sum_of(t, w);
        TEST_SAY(t, fabs(seen - (undone ? first : 72)) < 1e-12, "afterwards %.17g, first %.17g",
                 seen, first);
        TEST_OK(t, ts_fsdp_release(n.block[0]));
    }
    net_step(&n, 1, &norm);
    TEST_SAY(t, isfinite(norm), "%g", norm);
    net_end(&n);
}

/* What cannot be cut is in no unit. */
static int32_t no_scalars(const char *name, ts_shape shape, int32_t dim, void *context)
{
    (void)name;
    (void)context;
    return shape.ndim > 0 ? dim : TS_FSDP_IGNORE;
}

/* A unit that is known to lie in place is not looked at when it is gathered ahead: a value that
 * takes a shard's place, and one that is written there, are seen all the same, before the gather
 * and after it. */
TS_TEST_RANKS(fsdp_known_slices_are_seen_as_they_are, 1, 2, 3)
{
    enum { KNOWN = 3, REPLACED = 4, WRITTEN = 6, BEFORE = 8, TURNS = 11 };
    net n = net_of(2, 6, 4);
    ts_fsdp_options options = plain_options;
    options.dim = no_scalars;
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &options));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    tsi_unit *u = n.block[0]->unit;
    double wanted = sum_of(t, w);
    for (int turn = 0; turn < TURNS; turn++) {
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
        ts_tensor *twice = ts_add(w, w);
        if (turn == BEFORE) TEST_OK(t, ts_tensor_write(w, twice));
        TEST_OK(t, tsi_unit_gather_ahead(u));
        if (turn >= KNOWN && turn <= REPLACED && shares(t) && t->count > 1)
            TEST_CHECK(t, tsi_unit_in_place(u));
        if (turn == REPLACED) TEST_OK(t, ts_tensor_write(w, twice));
        if (turn == WRITTEN) TEST_CHECK(t, ts_tril_(w, -10) == w);
        wanted *= turn == REPLACED || turn == BEFORE ? 2 : turn == WRITTEN ? 0 : 1;
        TEST_OK(t, tsi_unit_bind(u));
        double whole = sum_of(t, w);
        TEST_OK(t, tsi_unit_drop(u, false));
        double cut = sum_of(t, w);
        TEST_SAY(t, fabs(whole - wanted) < 1e-12 && fabs(cut - wanted) < 1e-12,
                 "turn %d: whole %.17g, cut %.17g, not %.17g", turn, whole, cut, wanted);
        /* All of it, so that it stays as it is, and ranks tell each other that it was written. */
        if (turn == 0) TEST_CHECK(t, ts_tril_(w, 10) == w);
        if (turn == WRITTEN) {
            ts_tensor *first = ts_full(0, n.mesh, TS_DTYPE_I64, TS_SHAPE(1), NULL);
            ts_tensor *row = ts_full(1, n.mesh, TS_DTYPE_F64, TS_SHAPE(1, 6), NULL);
            TEST_CHECK(t, ts_index_add_(w, 0, first, row) == w);
            wanted = 6;
        }
        ts_scope_close(scope);
    }
    net_end(&n);
}

/* With another dtype of products the update writes what is gathered: nothing is cast on the way. */
TS_TEST_RANKS(fsdp_updates_write_mirrors, 1, 2, 3)
{
    net n = net_of(2, 12, 4);
    n.dtype = TS_DTYPE_F32;
    ts_fsdp_options options = plain_options;
    options.compute = TS_DTYPE_BF16;
    options.compute_ndim = 2;
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &options));
    ts_tensor *w = ts_module_find_param(n.root, "blocks.0.weight");
    tsi_param *p = tsi_param_of(w);
    double norm;
    for (int64_t step = 0; step < 3; step++) {
        net_step(&n, step, &norm);
        const tsi_array *mirror = tsi_param_mirror(p);
        TEST_CHECK(t, mirror != NULL);
        if (t->count > 1 && shares(t))
            TEST_CHECK(t, mirror == ((tsi_unit *)p->unit)->param[0].slice);
        double difference = NAN;
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
        ts_tensor *narrow = ts_cast(ts_cast(w, TS_DTYPE_BF16), TS_DTYPE_F32);
        ts_tensor *is = ts_cast(p->mirror, TS_DTYPE_F32);
        TEST_OK(t, ts_tensor_item(ts_amax(ts_abs(ts_sub(narrow, is)), NULL, 0, 0), &difference));
        ts_scope_close(scope);
        TEST_SAY(t, difference == 0, "the mirror differs by %g", difference);
    }
    net_end(&n);
}

/* What stages lend each other and what units share are two things of one world. */
TS_TEST_RANKS(fsdp_beside_loans, 2)
{
    if (!tsi_lends(t->me)) return;
    net n = net_of(2, 6, 4);
    ts_mesh *self = ts_mesh_self(t->me);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tensor *x = ts_full(3, self, TS_DTYPE_F64, TS_SHAPE(5), NULL);
    uint64_t number = tsi_lend(x);
    TEST_CHECK(t, number != 0);
    net_declare(&n, ts_mesh_create(t->me, "fsdp=*"), false);
    TEST_OK(t, net_begin(&n, &plain_options));
    double norm = NAN;
    net_step(&n, 0, &norm);
    TEST_SAY(t, isfinite(norm), "%g", norm);
    ts_meta meta = { .shape = TS_SHAPE(5), .dtype = TS_DTYPE_F64 };
    ts_tensor *back = tsi_borrow(t->me, number, &meta, ts_layout_sharding(ts_tensor_layout(x)));
    TEST_EQ(t, (int64_t)sum_of(t, back), 15);
    ts_scope_close(scope);
    net_end(&n);
}
