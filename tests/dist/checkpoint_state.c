/* SPDX-License-Identifier: Apache-2.0 */
/* States by the public API: a user's modules and optimisers, parts by pattern and under other
 * names, other dtypes, strided blocks, and what does not fit refused with a sentence. */
#include <stdlib.h>
#include <unistd.h>

#include "base/rank.h"
#include "checkpoint_util.h"
#include "harness/test.h"
#include "layout/mesh.h"
#include "tensor/tensor.h"
#include "tessera/checkpoint.h"
#include "tessera/tensor.h"

static ts_tensor *numbers(ts_mesh *mesh, ts_dtype dtype, const char *placements)
{
    ts_arange_options options;
    ts_arange_options_init(&options);
    return ts_arange(mesh, dtype, TS_SHAPE(6, 10), placements, &options);
}

static double sum_of(test *t, ts_tensor *x)
{
    double sum = -1;
    TEST_OK(t, ts_tensor_item(ts_sum(ts_cast(x, TS_DTYPE_F64), NULL, 0, 0), &sum));
    return sum;
}

static ts_mesh *line(test *t)
{
    char axes[32];
    snprintf(axes, sizeof axes, "x=%lld", (long long)t->count);
    return ts_mesh_create(t->me, axes);
}

/* ---- modules and optimisers ------------------------------------------------------------------ */

static void forward(void *state, const ts_module_io *io)
{
    ts_module *m = *(ts_module **)state;
    io->output[0] = ts_mul(io->input[0], ts_module_find_param(m, "weight"));
}

typedef struct life {
    ts_module *self;
    ts_optimizer *optimizer;
} life;

static life make_life(test *t, ts_mesh *mesh, const char *stored, double deviation)
{
    static const ts_module_desc desc = { .struct_size = sizeof desc,
                                         .type = "scale",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = forward };
    life l = { 0 };
    static ts_module *states[64][4];
    static int used[64];
    ts_module **slot = &states[t->index][used[t->index]++ % 4];
    l.self = *slot = ts_module_create(mesh, &desc, slot);
    ts_param_options options;
    ts_param_options_init(&options);
    options.stored = stored;
    options.init = ts_init_normal;
    options.init_state = &deviation;
    (void)ts_module_param(l.self, "weight", TS_SHAPE(5, 7), &options);
    TEST_OK(t, ts_module_materialize(l.self));
    l.optimizer = ts_adamw_create(l.self, NULL);
    return l;
}

static void take_steps(test *t, const life *l, ts_mesh *mesh, int count)
{
    for (int i = 0; i < count; i++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        ts_tensor *x = ts_full(0.5, mesh, TS_DTYPE_F32, TS_SHAPE(5, 7), NULL);
        ts_tensor *y = TS_CALL(l->self, x);
        TEST_OK(t, ts_backward(ts_sum(ts_mul(y, y), NULL, 0, 0), NULL));
        ts_scope_close(scope);
        TEST_OK(t, ts_optimizer_step(l->optimizer));
    }
}

static ts_state *state_of(test *t, ts_mesh *mesh, const life *l)
{
    ts_state *state = ts_state_create(mesh);
    TEST_OK(t, ts_state_add_module(state, "net.", l->self));
    TEST_OK(t, ts_state_add_optimizer(state, "net.", l->optimizer));
    return state;
}

/* Two steps, a save, two more; another module of other placements loads and makes the same two. */
TS_TEST_RANKS(modules_and_optimisers_go_on, 1, 2, 3)
{
    char path[PATH];
    make_path(t, "state", path);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_mesh *mesh = line(t);
    life a = make_life(t, mesh, "x:S(0)", 0.3), b = make_life(t, mesh, "x:S(1)", 0.1);
    ts_state *from = state_of(t, mesh, &a), *to = state_of(t, mesh, &b);
    take_steps(t, &a, mesh, 2);
    TEST_OK(t, ts_state_set(from, "note", "after two"));
    TEST_OK(t, ts_checkpoint_save(from, path, NULL));
    take_steps(t, &a, mesh, 2);
    TEST_OK(t, ts_checkpoint_load(to, path, NULL));
    TEST_EQ(t, ts_optimizer_steps(b.optimizer), 2);
    TEST_TEXT(t, ts_state_get(to, "note"), "after two");
    take_steps(t, &b, mesh, 2);
    ts_tensor *x = ts_module_find_param(a.self, "weight"),
              *y = ts_module_find_param(b.self, "weight");
    y = ts_redistribute(y, "x:S(0)");
    int equal = 0;
    TEST_OK(t, ts_equal(x, y, &equal));
    TEST_EQ(t, equal, 1);
    ts_state_destroy(from);
    ts_state_destroy(to);
    ts_optimizer_destroy(a.optimizer);
    ts_optimizer_destroy(b.optimizer);
    ts_module_destroy(a.self);
    ts_module_destroy(b.self);
    ts_mesh_release(mesh);
    ts_scope_close(scope);
    remove_path(t, path);
}

/* ---- parts, names, dtypes -------------------------------------------------------------------- */

TS_TEST_RANKS(parts_names_and_dtypes, 1, 2, 3)
{
    char path[PATH];
    make_path(t, "state", path);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_mesh *mesh = line(t);
    ts_state *from = ts_state_create(mesh);
    TEST_OK(t, ts_state_add_tensor(from, "a.weight", numbers(mesh, TS_DTYPE_F32, "S(0)")));
    TEST_OK(t, ts_state_add_tensor(from, "a.count", numbers(mesh, TS_DTYPE_I32, "R")));
    TEST_OK(t, ts_state_add_tensor(from, "b.weight", numbers(mesh, TS_DTYPE_F64, "S(1)")));
    ts_save_options half = TS_INIT(ts_save_options);
    half.dtype = TS_DTYPE_BF16;
    TEST_OK(t, ts_checkpoint_save(from, path, &half));
    ts_archive *archive = NULL;
    TEST_OK(t, ts_archive_open(path, &archive));
    ts_archive_tensor stored;
    ts_archive_tensor_at(archive, ts_archive_find(archive, "b.weight"), &stored);
    TEST_EQ(t, stored.meta.dtype, TS_DTYPE_BF16);
    ts_archive_tensor_at(archive, ts_archive_find(archive, "a.count"), &stored);
    TEST_EQ(t, stored.meta.dtype, TS_DTYPE_I32);
    ts_archive_close(archive);

    /* One of them, under another name, cut otherwise, as f64: 0 .. 59 are exact in bf16. */
    ts_tensor *x = ts_zeros(mesh, TS_DTYPE_F64, TS_SHAPE(6, 10), "S(1)");
    ts_state *to = ts_state_create(mesh);
    TEST_OK(t, ts_state_add_tensor(to, "mine.weight", x));
    ts_load_options options = TS_INIT(ts_load_options);
    options.renamed = "mine.*: b.*";
    options.partial = 1;
    TEST_OK(t, ts_checkpoint_load(to, path, &options));
    TEST_CHECK(t, sum_of(t, x) == 59 * 30);
    /* A block that does not lie row-major is filled where it is. */
    ts_tensor *base = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(10, 6), "R");
    ts_tensor *turned = ts_transpose(base, 0, 1);
    ts_state *strided = ts_state_create(mesh);
    TEST_OK(t, ts_state_add_tensor(strided, "a.weight", turned));
    options = (ts_load_options)TS_INIT(ts_load_options);
    options.names = "a.w*";
    TEST_OK(t, ts_checkpoint_load(strided, path, &options));
    TEST_CHECK(t, sum_of(t, turned) == 59 * 30);
    double corner = -1;
    ts_slice_options last = TS_INIT(ts_slice_options);
    last.start = 5;
    last.end = 6;
    last.end_is_given = 1;
    TEST_OK(t, ts_tensor_item(ts_sum(ts_slice(turned, 0, &last), NULL, 0, 0), &corner));
    TEST_CHECK(t, corner == 545);
    ts_state_destroy(from);
    ts_state_destroy(to);
    ts_state_destroy(strided);
    ts_mesh_release(mesh);
    ts_scope_close(scope);
    remove_path(t, path);
}

/* ---- what does not fit ----------------------------------------------------------------------- */

typedef struct misfit {
    const char *name, *words;
    ts_shape shape;
    const char *more; /* another name, or NULL */
    ts_status status;
} misfit;

static void expect(test *t, const misfit *m, ts_mesh *mesh, const char *path)
{
    ts_state *state = ts_state_create(mesh);
    ts_tensor *x = ts_full(7, mesh, TS_DTYPE_F32, m->shape, "R");
    TEST_OK(t, ts_state_add_tensor(state, m->name, x));
    if (m->more) TEST_OK(t, ts_state_add_tensor(state, m->more, x));
    ts_scope catching = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_STATUS(t, ts_checkpoint_load(state, path, NULL), m->status);
    TEST_SAYS(t, ts_rank_error(t->me)->text, m->words);
    (void)ts_rank_recover(t->me);
    ts_scope_close(catching);
    TEST_CHECK(t, sum_of(t, x) == 7 * (double)ts_shape_count(&m->shape)); /* left as it was */
    ts_state_destroy(state);
}

TS_TEST_RANKS(what_does_not_fit_is_named, 1)
{
    static const misfit rows[] = {
        { "a",
          "a is (6, 10) there and (6, 11) here",
          { .ndim = 2, .extent = { 6, 11 } },
          NULL,
          TS_ERR_SHAPE },
        { "b",
          "not there: b; not asked for: a",
          { .ndim = 1, .extent = { 3 } },
          NULL,
          TS_ERR_STATE },
        { "a", "not there: c", { .ndim = 2, .extent = { 6, 10 } }, "c", TS_ERR_STATE },
    };
    char path[PATH];
    make_path(t, "state", path);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_mesh *mesh = line(t);
    ts_state *from = ts_state_create(mesh);
    TEST_OK(t, ts_state_add_tensor(from, "a", numbers(mesh, TS_DTYPE_F32, "R")));
    TEST_OK(t, ts_checkpoint_save(from, path, NULL));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        expect(t, &rows[i], mesh, path);
    ts_state_destroy(from);
    ts_mesh_release(mesh);
    ts_scope_close(scope);
    remove_path(t, path);
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* A mesh of `count` ranks from `first` on, which this rank may be outside of; the rank's own. */
static ts_mesh *stage_mesh(test *t, int64_t first, int64_t count)
{
    int64_t rank[16];
    tsi_mesh_desc draft = { .ndim = 1, .count = count, .size = { count } }, *settled = NULL;
    snprintf(draft.name[0], sizeof draft.name[0], "x");
    for (int64_t i = 0; i < count; i++)
        rank[i] = first + i;
    TEST_OK(t, tsi_mesh_settle(ts_rank_world(t->me), &draft, rank, &settled));
    ts_mesh *mesh = settled ? tsi_mesh_of(t->me, settled) : NULL;
    tsi_mesh_desc_release(settled);
    return mesh;
}

enum { LAYERS = 5 };

/* A state whose tensors lie in turn on a mesh of the first `border` ranks and on one of the rest,
 * as those of a pipeline do; all on the mesh of all where that is 0. */
static ts_state *staged_state(test *t, int64_t border, bool zeros, ts_tensor **tensor)
{
    ts_mesh *all = line(t), *stage[2] = { NULL };
    for (int i = 0; i < 2 && border > 0; i++)
        stage[i] = stage_mesh(t, i * border, i == 0 ? border : t->count - border);
    ts_state *state = ts_state_create(all);
    for (int i = 0; i < LAYERS; i++) {
        char name[32];
        ts_mesh *mesh = border > 0 ? stage[i % 2] : all;
        snprintf(name, sizeof name, "layers.%d.weight", i);
        tensor[i] = zeros ? ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(6, 10), "S(1)")
                          : numbers(mesh, TS_DTYPE_F32, "S(0)");
        TEST_OK(t, ts_state_add_tensor(state, name, tensor[i]));
    }
    ts_mesh_release(all);
    return state;
}

/* Ranks that hold nothing of a tensor: stages of any cut to any other, and to none. */
TS_TEST_RANKS(stages_save_and_load_their_own, 2, 3, 4)
{
    char path[PATH];
    make_path(t, "state", path);
    ts_scope scope = ts_scope_open(t->me, NULL);
    for (int64_t there = 0; there < t->count; there++)
        for (int64_t here = 0; here < t->count; here++) {
            ts_tensor *from[LAYERS], *to[LAYERS];
            ts_state *a = staged_state(t, there, false, from);
            ts_state *b = staged_state(t, here, true, to);
            ts_save_options options = TS_INIT(ts_save_options);
            options.background = (int32_t)((there + here) % 2);
            TEST_OK(t, ts_checkpoint_save(a, path, &options));
            TEST_OK(t, ts_state_wait(a));
            TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
            TEST_OK(t, ts_checkpoint_load(b, path, NULL));
            for (int i = 0; i < LAYERS; i++)
                if (to[i]->mesh->member) TEST_CHECK(t, sum_of(t, to[i]) == 59 * 60 / 2);
            ts_state_destroy(a);
            ts_state_destroy(b);
        }
    ts_scope_close(scope);
    remove_path(t, path);
}

/* A tensor that is still to be summed has no value to save. */
TS_TEST_RANKS(partial_tensors_are_refused, 2)
{
    char path[PATH];
    make_path(t, "state", path);
    ts_mesh *mesh = line(t);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_state *state = ts_state_create(mesh);
    ts_tensor *x = ts_sum(numbers(mesh, TS_DTYPE_F32, "S(0)"), NULL, 0, 0);
    TEST_OK(t, ts_state_add_tensor(state, "x", x));
    if (strcmp(t->engine, "threads") == 0) { /* a process that fails takes along those behind it */
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        TEST_STATUS(t, ts_checkpoint_save(state, path, NULL), TS_ERR_ARG);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "redistribute it first");
        (void)ts_rank_recover(t->me);
    }
    ts_state_destroy(state);
    ts_scope_close(scope);
    ts_mesh_release(mesh);
    remove_path(t, path);
}

/* Nobody publishes a save in the background whose ranks have failed since: nothing of it stays. */
TS_TEST_RANKS(a_save_of_failed_ranks_leaves_nothing, 1, 2)
{
    char path[PATH], command[2 * PATH];
    make_path(t, "left", path);
    ts_mesh *mesh = line(t);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_state *state = ts_state_create(mesh);
    TEST_OK(t, ts_state_add_tensor(state, "x", numbers(mesh, TS_DTYPE_F32, "S(0)")));
    bool fails = strcmp(t->engine, "threads") == 0; /* a process takes along those behind it */
    if (fails) {
        ts_save_options options = TS_INIT(ts_save_options);
        options.background = 1;
        TEST_OK(t, ts_checkpoint_save(state, path, &options));
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
        (void)ts_redistribute(numbers(mesh, TS_DTYPE_F32, "R"), "S(7)");
        TEST_CHECK(t, ts_rank_status(t->me) != TS_OK);
    }
    ts_state_destroy(state);
    if (fails) (void)ts_rank_recover(t->me);
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    snprintf(command, sizeof command, "test -z \"$(ls -d '%s'*.part 2> /dev/null)\"", path);
    if (t->index == 0) TEST_EQ(t, system(command), 0);
    ts_scope_close(scope);
    ts_mesh_release(mesh);
    remove_path(t, path);
}

/* The copy that a save in the background writes is staging in the rank's account, while the state
 * lives; a save that is waited for copies nothing. */
TS_TEST_RANKS(the_copy_of_a_save_is_staging, 1, 3)
{
    char path[PATH];
    make_path(t, "staging", path);
    ts_mesh *mesh = line(t);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_state *state = ts_state_create(mesh);
    TEST_OK(t, ts_state_add_tensor(state, "x", numbers(mesh, TS_DTYPE_F32, "S(0)")));
    bool host = tsi_rank_device_of(t->me)->device->host_readable;
    for (int32_t behind = 0; behind < 2; behind++) {
        ts_memory memory = { .struct_size = sizeof memory };
        TEST_OK(t, ts_rank_memory_reset(t->me));
        TEST_OK(t,
                ts_checkpoint_save(state, path, TS_OPTIONS(ts_save_options, .background = behind)));
        TEST_OK(t, ts_state_wait(state));
        TEST_OK(t, ts_rank_memory(t->me, &memory));
        int64_t staging = memory.most[TS_MEMORY_STAGING];
        TEST_CHECK(t, behind && host ? staging >= 240 / t->count : staging == 0);
        if (host) TEST_EQ(t, memory.most[TS_MEMORY_COMM], 0);
    }
    ts_state_destroy(state);
    ts_scope_close(scope);
    ts_mesh_release(mesh);
    remove_path(t, path);
}

/* Who writes in the background takes no turns: that is said, and not left out without a word. */
TS_TEST_RANKS(turns_in_the_background_are_refused, 1, 2)
{
    char path[PATH];
    make_path(t, "turns", path);
    ts_mesh *mesh = line(t);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_state *state = ts_state_create(mesh);
    TEST_OK(t, ts_state_add_tensor(state, "x", numbers(mesh, TS_DTYPE_F32, "S(0)")));
    ts_save_options options = TS_INIT(ts_save_options);
    options.writers = 1;
    TEST_OK(t, ts_checkpoint_save(state, path, &options));
    options.background = 1;
    TEST_STATUS(t, ts_checkpoint_save(state, path, &options), TS_ERR_ARG);
    TEST_SAYS(t, ts_rank_error(t->me)->text,
              "save: writers is 1, and who writes in the background");
    (void)ts_rank_recover(t->me);
    ts_state_destroy(state);
    ts_scope_close(scope);
    ts_mesh_release(mesh);
    remove_path(t, path);
}
