/* SPDX-License-Identifier: Apache-2.0 */
/* parallel_copies.c - reductions of several rounds: what is folded first, with copies
 * (`replicate`) or with parameters that cannot be cut, follows in the channel what it is made of,
 * and no host waits between. The same bits as where it does, whatever way a rank takes. */
#include "parallel_util.h"

#include "comm/comm.h"
#include "device/device.h"
#include "parallel/unit.h"

enum { PARTS = 3, STEPS = 4, PARAMS_MAX = 64 };

typedef struct way {
    const char *mesh;
    int32_t again;      /* recomputation */
    int32_t parts;      /* micro-batches */
    int32_t partly;     /* copies are summed with the last one alone */
    int32_t lazy;       /* nothing is reduced before the last one */
    int32_t alone_list; /* in turns, some ranks go by the list and some prepared */
    ts_fsdp_options options;
} way;

/* What a training left: losses, norms, and the bits of every block. */
typedef struct trace {
    test *t;
    double loss[STEPS], norm[STEPS];
    uint64_t bits[PARAMS_MAX];
    int64_t count;
} trace;

static ts_status note_bits(const char *name, ts_tensor *parameter, void *context)
{
    trace *out = context;
    ts_array view = TS_INIT(ts_array);
    uint64_t hash = 14695981039346656037u;
    (void)name;
    TEST_OK(out->t, test_view(ts_tensor_local(parameter), &view));
    const unsigned char *byte = view.data;
    size_t bytes = (size_t)ts_shape_count(&view.meta.shape) *
                   ts_dtype_size((ts_dtype)ts_tensor_dtype(parameter));
    for (size_t i = 0; byte && i < bytes; i++)
        hash = (hash ^ byte[i]) * 1099511628211u;
    TEST_CHECK(out->t, out->count < PARAMS_MAX);
    if (out->count < PARAMS_MAX) out->bits[out->count++] = hash;
    return TS_OK;
}

static void note_all(test *t, ts_module *root, trace *out)
{
    ts_scope scope = ts_scope_open(t->me, NULL);
    out->t = t;
    TEST_OK(t, ts_module_each(root, note_bits, out));
    TEST_OK(t, ts_scope_close(scope));
}

static void same_trace(test *t, const way *w, const trace *a, const trace *b)
{
    for (int i = 0; i < STEPS; i++)
        TEST_SAY(t,
                 memcmp(&a->loss[i], &b->loss[i], sizeof a->loss[i]) == 0 &&
                     memcmp(&a->norm[i], &b->norm[i], sizeof a->norm[i]) == 0,
                 "%s: step %d: loss %.17g and norm %.17g, not %.17g and %.17g", w->mesh, i,
                 a->loss[i], a->norm[i], b->loss[i], b->norm[i]);
    TEST_CHECK(t, a->count > 0 && a->count == b->count);
    for (int64_t i = 0; i < a->count; i++)
        TEST_SAY(t, a->bits[i] == b->bits[i], "%s: parameter %d has other bits", w->mesh, (int)i);
}

static void choose_way(const test *t, const way *w, const net *n, int64_t step)
{
    for (int64_t i = 0; w->alone_list && i < n->count; i++) {
        tsi_unit *u = n->block[i]->unit;
        u->one_by_one = (t->index + step + i) % 2 == 0;
    }
}

static void train(test *t, const way *w, bool follow, trace *out)
{
    net n = { .count = 3, .width = 7, .rows = 11, .leaves = -1, .dtype = TS_DTYPE_F32 };
    n.again = w->again;
    n.parts = w->parts;
    *out = (trace){ .t = t };
    tsi_comm_follow_nothing(t->me, !follow);
    net_declare(&n, ts_mesh_create(t->me, w->mesh), false);
    TEST_OK(t, net_begin(&n, &w->options));
    for (int64_t step = 0; step < STEPS; step++) {
        int32_t parts = w->parts > 0 ? w->parts : 1;
        choose_way(t, w, &n, step);
        for (int32_t part = 0; part < parts; part++) {
            bool last = part == parts - 1;
            if (w->partly) TEST_OK(t, ts_fsdp_set(n.root, TS_FSDP_ALL_REDUCE, last));
            out->loss[step] += net_run(&n, step * parts + part, w->lazy && !last, 1.0 / parts);
        }
        TEST_OK(t, ts_clip_grad_norm(n.root, 0.5, &out->norm[step]));
        TEST_OK(t, ts_optimizer_step(n.optimizer));
    }
    note_all(t, n.root, out);
    net_end(&n);
    tsi_comm_follow_nothing(t->me, false);
}

static void both_ways(test *t, way w)
{
    trace waits, follows;
    w.options.struct_size = sizeof w.options;
    train(t, &w, false, &waits);
    train(t, &w, true, &follows);
    same_trace(t, &w, &follows, &waits);
}

static void all_ways(test *t, const char *mesh)
{
    both_ways(t, (way){ .mesh = mesh });
    both_ways(t, (way){ .mesh = mesh, .again = 1 });
    both_ways(t, (way){ .mesh = mesh, .parts = PARTS });
    both_ways(t, (way){ .mesh = mesh, .parts = PARTS, .partly = 1 });
    both_ways(t, (way){ .mesh = mesh, .parts = PARTS, .lazy = 1 });
    both_ways(t, (way){ .mesh = mesh, .alone_list = 1 });
    both_ways(t, (way){ .mesh = mesh, .alone_list = 1, .again = 1, .parts = 2, .lazy = 1 });
    both_ways(t, (way){ .mesh = mesh, .alone_list = 1, .options.prefetch_off = 2 });
    both_ways(t, (way){ .mesh = mesh, .options.reduce = TS_DTYPE_BF16 });
    both_ways(t, (way){ .mesh = mesh, .options.unused = 1 });
    TEST_OK(t, ts_rank_status(t->me));
}

/* Nothing is cut evenly; fsdp alone has rounds of its own for numbers that are not cut. */
TS_TEST_RANKS(rounds_that_follow_give_the_same_bits, 3, 4, 6, 8)
{
    switch (t->count) {
    case 3:
        all_ways(t, "fsdp=3");
        break;
    case 4:
        all_ways(t, "replicate=2, fsdp=2");
        break;
    case 6:
        all_ways(t, "replicate=2, fsdp=3");
        all_ways(t, "replicate=3, fsdp=2");
        break;
    default:
        all_ways(t, "replicate=2, fsdp=2, tp=2");
        break;
    }
}

/* ---- where the host copies ------------------------------------------------------------------- */

static ts_status over_nccl(ts_rank *me, void *argument)
{
    test mine = *(const test *)argument;
    mine.me = me;
    mine.index = ts_rank_index(me);
    mine.count = ts_rank_count(me);
    bool library = tsi_comm_follows(me, tsi_rank_device_of(me)->device->dlpack_type);
    TEST_CHECK(&mine, library == (getenv("TESSERA_NCCL") != NULL));
    both_ways(&mine, (way){ .mesh = "replicate=2, fsdp=2", .alone_list = 1 });
    return ts_rank_status(me);
}

/* In the lanes of a library operations follow each other. Without it, memory of the device is
 * copied to the host when an operation is called, so that the rounds must not. */
TS_TEST(rounds_over_nccl_wait_without_its_library)
{
    static const char *const library[] = { TS_BINARY_DIR "/tests/modules/libnccl_stub.so", NULL };
    for (int i = 0; i < 2; i++) {
        char error[1024] = "";
        ts_world_options options = TS_INIT(ts_world_options);
        options.engine = "nccl";
        options.device = "queue";
        options.rank_count = 4;
        unsetenv("TESSERA_NCCL");
        if (library[i]) setenv("TESSERA_NCCL", library[i], 1);
        ts_status status = ts_launch_with(&options, over_nccl, t, error, sizeof error);
        TEST_SAY(t, status == TS_OK, "library %s: %s", library[i] ? "stub" : "none", error);
    }
    unsetenv("TESSERA_NCCL"); /* tests may share a process */
}

/* ---- a model, with tp ------------------------------------------------------------------------ */

static ts_status token(const int64_t *global, void *element, void *context)
{
    int64_t salt = *(const int64_t *)context;
    *(int64_t *)element = (7 * global[0] + 3 * global[1] * global[1] + 5 * salt) % 31;
    return TS_OK;
}

static void train_model(test *t, bool follow, trace *out)
{
    ts_model_config config = { .struct_size = sizeof config,
                               .family = TS_MODEL_QWEN3,
                               .vocab = 31,
                               .hidden = 12,
                               .intermediate = 20,
                               .layers = 2,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 6,
                               .positions = 16 };
    ts_model_options options = { .struct_size = sizeof options, .dtype = TS_DTYPE_F32 };
    ts_adamw_options adamw = { .struct_size = sizeof adamw, .lr = 3e-3 };
    ts_mesh *mesh = ts_mesh_create(t->me, "replicate=2, fsdp=2, tp=2");
    ts_model *model = ts_model_declare(mesh, &config, &options);
    *out = (trace){ .t = t };
    tsi_comm_follow_nothing(t->me, !follow);
    TEST_OK(t, ts_model_fsdp(model, TS_OPTIONS(ts_fsdp_options, .prefetch_off = 0)));
    TEST_OK(t, ts_model_materialize(model));
    ts_optimizer *optimizer = ts_adamw_create(ts_model_module(model), &adamw);
    for (int64_t step = 0; step < STEPS; step++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tape_begin(t->me);
        ts_meta meta = { .shape = TS_SHAPE(5, 12), .dtype = TS_DTYPE_I64 };
        int64_t next = step + 1;
        ts_tensor *ids = ts_from_function(token, &step, ts_model_tokens(model), meta);
        ts_tensor *labels = ts_from_function(token, &next, ts_model_tokens(model), meta);
        ts_tensor *mean = ts_model_loss(model, ids, labels);
        ts_tensor_item(mean, &out->loss[step]);
        TEST_OK(t, ts_backward(mean, NULL));
        TEST_OK(t, ts_clip_grad_norm(ts_model_module(model), 1.0, &out->norm[step]));
        TEST_OK(t, ts_optimizer_step(optimizer));
        TEST_OK(t, ts_scope_close(scope));
    }
    note_all(t, ts_model_module(model), out);
    ts_optimizer_destroy(optimizer);
    ts_model_destroy(model);
    tsi_comm_follow_nothing(t->me, false);
}

TS_TEST_RANKS(rounds_of_a_model_follow_with_the_same_bits, 8)
{
    const way w = { .mesh = "replicate=2, fsdp=2, tp=2" };
    trace waits, follows;
    train_model(t, false, &waits);
    train_model(t, true, &follows);
    same_trace(t, &w, &follows, &waits);
}
