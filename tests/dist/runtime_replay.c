/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_replay.c - steps that are recorded once and run again: training steps of models on
 * several meshes against the same steps run as usual, bit for bit; what cannot be recorded is
 * refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dist/token_util.h"
#include "harness/test.h"
#include "plan/program.h"
#include "plan/step_reorder.h"
#include "tensor/tensor.h"
#include "tessera/tessera.h"

enum { STEPS = 11, ROWS = 4, CONTEXT = 12, VOCAB = 31 };

typedef struct way {
    const char *mesh;
    int32_t family;
    int32_t units, again, compute; /* FSDP; recomputation; dtype of products or 0 */
    bool bare; /* units are gathered where they are called, also between threads, and waited for */
} way;

typedef struct trained {
    ts_rank *me;
    ts_model *model;
    ts_optimizer *optimizer;
    ts_tensor *ids, *labels;                       /* where the step reads */
    int64_t bytes, moved;                          /* of the recorded step; by all new orders */
    int64_t ahead;                                 /* operations that began before others in them */
    bool bare;                                     /* then orders may need more memory */
    double loss[STEPS], norm[STEPS], after[STEPS]; /* after: of the updated weights */
} trained;

static ts_tensor *tokens(const trained *r, int64_t salt)
{
    return tokens_of(r->model, ROWS, CONTEXT, (token_recipe){ VOCAB, salt });
}

static ts_status gather(ts_tensor *const *x, const ts_sharding *const *to, int32_t count,
                        ts_tensor **out, void *context)
{
    (void)context;
    return ts_redistribute_many(x, to, count, out);
}

static void make(test *t, const way *w, trained *r)
{
    bool gpt2 = w->family == TS_MODEL_GPT2;
    ts_model_config config = { .struct_size = sizeof config,
                               .family = w->family,
                               .vocab = VOCAB,
                               .hidden = 16,
                               .intermediate = 24,
                               .layers = 2,
                               .heads = 4,
                               .kv_heads = gpt2 ? 4 : 2,
                               .head_dim = 4,
                               .positions = CONTEXT,
                               .tied = gpt2 };
    if (w->family == TS_MODEL_MIXTRAL) config.experts = 3;
    if (w->family == TS_MODEL_MIXTRAL) config.experts_per_token = 2;
    ts_model_options options = { .struct_size = sizeof options, .compute = w->compute };
    ts_fsdp_options sharded = { .struct_size = sizeof sharded };
    if (w->bare) sharded.gather_fn = gather;
    if (w->bare) sharded.prefetch_off = 2;
    r->bare = w->bare;
    r->me = t->me;
    r->model = ts_model_declare(ts_mesh_create(t->me, w->mesh), &config, &options);
    for (int64_t i = 0; i < ts_model_block_count(r->model); i++)
        ts_module_checkpoint(ts_model_block(r->model, i), w->again);
    if (w->units) ts_model_fsdp(r->model, &sharded);
    ts_model_materialize(r->model);
    ts_adamw_options adamw = { .struct_size = sizeof adamw, .lr = 1e-2, .weight_decay = 0.1 };
    r->optimizer = ts_adamw_create(ts_model_module(r->model), &adamw);
}

static void feed(trained *r, int64_t number)
{
    ts_tensor_release(r->ids);
    ts_tensor_release(r->labels);
    r->ids = ts_tensor_retain(tokens(r, number));
    r->labels = ts_tensor_retain(tokens(r, number + 1));
}

static void unmake(trained *r)
{
    ts_tensor_release(r->ids);
    ts_tensor_release(r->labels);
    ts_optimizer_destroy(r->optimizer);
    ts_model_destroy(r->model);
}

static ts_status step(void *context)
{
    const trained *r = context;
    ts_scope scope = ts_scope_open(r->me, "step");
    ts_tape_begin(r->me);
    ts_tensor *loss = ts_model_loss(r->model, r->ids, r->labels);
    ts_status status = ts_backward(loss, NULL);
    ts_step_options options = { .struct_size = sizeof options, .norm_max = 0.5, .loss = loss };
    if (status == TS_OK) status = ts_optimizer_step_with(r->optimizer, &options);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

static void note(test *t, trained *r, int64_t number)
{
    ts_step_outcome is = TS_INIT(ts_step_outcome);
    TEST_OK(t, ts_optimizer_outcome(r->optimizer, number + 1, &is));
    r->loss[number] = is.loss;
    r->norm[number] = is.norm;
    /* Between replays the model is used as usual, and gathers what a replay wrote. */
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    TEST_OK(t, ts_tensor_item(ts_model_loss(r->model, r->ids, r->labels), &r->after[number]));
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, ts_optimizer_rate(r->optimizer, 1e-2 / (double)(number + 2))); /* of the next */
}

/* Run as usual, each step as the first. */
static void run_eager(test *t, trained *r)
{
    for (int64_t n = 0; n < STEPS; n++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        feed(r, n);
        TEST_OK(t, step(r));
        TEST_OK(t, ts_scope_close(scope));
        note(t, r, n);
    }
}

static void tell(const char *kind, const char *text, void *context)
{
    test *t = context;
    TEST_SAY(t, false, "%s: %s", kind, text);
}

/* Who begins the next round of a move, or uses what moved, comes behind the waits for all that
 * brought it: what an operation of another queue leaves for that is read on main, or waited for
 * together with what moved. */
static bool is_relied_on(const tsi_step_list *list, int32_t value)
{
    bool relied = false;
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        const tsi_touch *touch = tsi_step_touches(list, a);
        int32_t reads = 0, reads_it = 0;
        for (int32_t k = 0; k < a->touch_count; k++) {
            reads += touch[k].how == TSI_READS;
            reads_it += touch[k].how == TSI_READS && touch[k].value == value;
        }
        if (reads_it > 0 && a->queue != 0) return false;
        relied = relied || (reads_it > 0 && (a->kind != TSI_ACTION_WAIT || reads > 1));
    }
    return relied;
}

static void check_rounds(test *t, const tsi_step_list *list)
{
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        const tsi_touch *touch = tsi_step_touches(list, a);
        for (int32_t k = 0; a->queue != 0 && k < a->touch_count; k++) {
            const tsi_value *v = &list->value[touch[k].value];
            if (touch[k].how != TSI_MAKES || v->bytes > 0) continue;
            TEST_SAY(t, is_relied_on(list, touch[k].value), "%s of %s", v->name, a->what);
        }
    }
}

/* The program of all ranks: nothing is wrong with it, and it knows where it was called from. */
static void check_program(test *t, const ts_step *recorded)
{
    ts_program *program = NULL;
    ts_program_summary is = TS_INIT(ts_program_summary);
    int64_t count = -1;
    TEST_OK(t, ts_step_program(recorded, &program));
    TEST_OK(t, ts_program_check(program, NULL, tell, t, &count));
    TEST_OK(t, ts_program_summarise(program, &is));
    TEST_CHECK(t, count == 0 && is.ranks == t->count && is.actions >= 50 * t->count);
    for (int32_t r = 0; r < program->step->list_count; r++)
        check_rounds(t, &program->step->list[r]);
    size_t size = ts_program_text(program, NULL, 0) + 1;
    char *text = malloc(size);
    (void)ts_program_text(program, text, size);
    TEST_CHECK(t, strstr(text, "runtime_replay.c:") != NULL);
    free(text);
    ts_program_destroy(program);
}

static void add_wait(const ts_step_wait *wait, void *context)
{
    *(int64_t *)context += wait->kind[0] && wait->along ? wait->ns : 0;
}

/* After a timed replay the program says how long operators take, and operations that somebody waits
 * for later: on every member alike. */
static void check_times(test *t, const ts_step *recorded, const ts_program *program)
{
    ts_step_summary is = TS_INIT(ts_step_summary);
    TEST_OK(t, ts_step_summarise(recorded, &is));
    TEST_CHECK(t, is.waited_ns > 0 || t->count == 1);
    int64_t waited = 0;
    TEST_OK(t, ts_step_waits(recorded, add_wait, &waited));
    TEST_SAY(t, waited == is.waited_ns, "waits of %lld ns, %lld in all", (long long)waited,
             (long long)is.waited_ns);
    const tsi_step *step = program->step;
    double sum[2] = { 0, 0 }; /* of operations, on the first rank and here */
    for (int k = 0; k < 2; k++) {
        const tsi_step_list *list = tsi_step_list_of(step, k ? ts_rank_index(t->me) : 0);
        for (int32_t i = 0; i < list->action_count; i++) {
            const tsi_action *a = &list->action[i];
            bool moves = a->group >= 0 && step->group[a->group].count == t->count;
            TEST_CHECK(t, a->us >= 0 || a->group >= 0 || a->peer >= 0);
            /* Whoever waits for a collective waits apart from its begin. */
            TEST_CHECK(t, a->group < 0 || a->queue > 0 || a->bytes < 64);
            if (moves) sum[k] += a->us;
        }
    }
    TEST_SAY(t, sum[0] == sum[1], "%g and %g us of operations", sum[0], sum[1]);
}

/* The order in which replay `n` runs: the fifth by all passes, the sixth by two and other costs,
 * the eighth as it was recorded, the rest as the one before; where nothing is gathered ahead also
 * the third, by all passes and the costs of a model, since no times are measured yet. Memory is at
 * most what the recorded step had. */
static void order_anew(test *t, trained *r, ts_step *recorded, int64_t n)
{
    ts_program *program = NULL, *better = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    ts_step_summary now = TS_INIT(ts_step_summary);
    ts_reorder_options options;
    TEST_OK(t, ts_step_summarise(recorded, &now));
    if (n == 3) r->bytes = now.bytes;
    bool turns = n == 5 || n == 6 || n == 8 || (n == 3 && r->bare);
    if (!turns || !tsi_rank_device_of(t->me)->device->host_readable) return;
    TEST_OK(t, ts_step_program(recorded, &program));
    if (n == 5) check_times(t, recorded, program);
    ts_reorder_options_init(&options);
    options.tries = 20;
    options.passes = n == 6 ? TS_PASS_HOIST | TS_PASS_SINK : TS_PASS_ALL;
    if (n == 6) options.costs.compute_us = 5;
    int64_t cap = r->bare ? 16 * r->bytes : r->bytes;
    if (r->bare) options.memory_bytes_max = (int64_t)1 << 40;
    TEST_OK(t, ts_program_reorder(program, &options, NULL, NULL, &better));
    ts_status status = ts_step_reorder(recorded, n == 8 ? NULL : better, r->bare ? cap : 0, &is);
    TEST_SAY(t, status == TS_OK, "%s", ts_rank_error(t->me)->text);
    TEST_SAY(t,
             is.works == now.works && is.moved <= is.works && is.bytes_needed <= is.bytes &&
                 is.taken == (is.bytes <= cap) && is.bytes_before == now.bytes,
             "%lld of %lld works moved, %lld bytes, %lld needed, %lld recorded",
             (long long)is.moved, (long long)is.works, (long long)is.bytes,
             (long long)is.bytes_needed, (long long)r->bytes);
    TEST_CHECK(t, n != 8 || (is.moved == 0 && is.joined == 0));
    TEST_CHECK(t, is.joined == 0 || (is.taken && t->count > 1));
    r->moved += is.moved;
    if (n == 3) r->ahead = is.ahead;
    ts_program_destroy(better);
    ts_program_destroy(program);
}

/* The first two as usual, the third is recorded, the rest are replays, some in other orders. */
static void run_recorded(test *t, trained *r)
{
    ts_step *recorded = NULL;
    for (int64_t n = 0; n < STEPS; n++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        if (recorded) {
            order_anew(t, r, recorded, n);
            TEST_OK(t, ts_step_input(recorded, r->ids, tokens(r, n)));
            TEST_OK(t, ts_step_input(recorded, r->labels, tokens(r, n + 1)));
            TEST_OK(t, n == 4 ? ts_step_time(recorded) : ts_step_replay(recorded));
        } else {
            feed(r, n);
            if (n < 2) TEST_OK(t, step(r));
            if (n == 2) recorded = ts_step_record(t->me, step, r);
            TEST_SAY(t, n < 2 || recorded, "%s", ts_rank_error(t->me)->text);
        }
        TEST_OK(t, ts_scope_close(scope));
        if (!recorded && n >= 2) break;
        note(t, r, n);
    }
    ts_step_summary is = TS_INIT(ts_step_summary);
    if (recorded) TEST_OK(t, ts_step_summarise(recorded, &is));
    if (recorded) check_program(t, recorded);
    /* A device that captures has a few graphs, between what the host says. */
    int64_t least = tsi_rank_device_of(t->me)->device->host_readable ? 50 : 1;
    TEST_CHECK(t, is.works > least && is.actions > 50 && is.bytes > 0 && is.replays == STEPS - 3);
    ts_step_destroy(recorded);
}

/* Returns how many pieces of work new orders moved. */
static int64_t check_way(test *t, const way *w)
{
    trained usual = { 0 }, again = { 0 };
    make(t, w, &usual);
    run_eager(t, &usual);
    make(t, w, &again);
    run_recorded(t, &again);
    for (int64_t n = 0; n < STEPS; n++)
        TEST_SAY(t,
                 usual.loss[n] == again.loss[n] && usual.norm[n] == again.norm[n] &&
                     usual.after[n] == again.after[n],
                 "%s, family %d, step %lld: loss %.17g, norm %.17g; replayed %.17g, %.17g", w->mesh,
                 w->family, (long long)n, usual.loss[n], usual.norm[n], again.loss[n],
                 again.norm[n]);
    TEST_CHECK(t, usual.loss[STEPS - 1] < usual.loss[0]); /* it learns: the steps are no copies */
    /* Gathers of the next unit, before those of this one are done with. */
    bool ahead = w->bare && t->count > 1 && tsi_rank_device_of(t->me)->device->host_readable;
    TEST_SAY(t, !ahead || again.ahead > 0, "%s: none began ahead", w->mesh);
    unmake(&again);
    unmake(&usual);
    return again.moved;
}

TS_TEST_RANKS(steps_on_one_axis_run_again, 1, 2, 3)
{
    const way ways[] = { { .mesh = "replicate=*", .family = TS_MODEL_LLAMA },
                         { .mesh = "replicate=*", .family = TS_MODEL_GPT2 },
                         { .mesh = "fsdp=*", .family = TS_MODEL_LLAMA, .units = 1 },
                         { .mesh = "fsdp=*",
                           .family = TS_MODEL_LLAMA,
                           .units = 1,
                           .again = 1,
                           .compute = TS_DTYPE_BF16 },
                         { .mesh = "fsdp=*", .family = TS_MODEL_LLAMA, .units = 1, .bare = true },
                         { .mesh = "tp=*", .family = TS_MODEL_LLAMA } };
    int64_t moved = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (t->count < 3 || strcmp(ways[i].mesh, "tp=*") != 0) moved += check_way(t, &ways[i]);
    bool captures = !tsi_rank_device_of(t->me)->device->host_readable;
    TEST_CHECK(t, t->count == 1 || captures || moved > 0);
}

TS_TEST_RANKS(steps_on_two_axes_run_again, 4)
{
    const way ways[] = {
        { .mesh = "fsdp=2, tp=2", .family = TS_MODEL_LLAMA, .units = 1 },
        { .mesh = "fsdp=2, tp=2", .family = TS_MODEL_LLAMA, .units = 1, .bare = true },
        { .mesh = "fsdp=2, tp=2",
          .family = TS_MODEL_GPT2,
          .units = 1,
          .again = 1,
          .compute = TS_DTYPE_BF16 },
        { .mesh = "replicate=2, fsdp=2", .family = TS_MODEL_GPT2, .units = 1 },
        { .mesh = "replicate=2, tp=2", .family = TS_MODEL_MIXTRAL },
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (test_tries(t)) (void)check_way(t, &ways[i]);
}

/* ---- what the program does not know ---------------------------------------------------------- */

typedef struct around { /* a training step between moves that have nothing to do with it */
    trained *r;
    ts_tensor *x[3], *to[3];
} around;

static ts_status move_one(const around *a, int i)
{
    ts_tensor *all = ts_redistribute(a->x[i], "R");
    return ts_foreach_copy((ts_list){ &a->to[i], 1 }, (ts_list){ &all, 1 });
}

static ts_status around_step(void *context)
{
    around *a = context;
    ts_scope scope = ts_scope_open(a->r->me, NULL);
    ts_status status = move_one(a, 0);
    if (status == TS_OK) status = move_one(a, 1);
    if (status == TS_OK) status = step(a->r);
    if (status == TS_OK) status = move_one(a, 2);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* The last operation, then the second, before the first. */
static void last_and_second_first(test *t, tsi_step_list *list)
{
    int32_t begin[3] = { -1, -1, -1 }, at = 0;
    int32_t *order = calloc((size_t)list->action_count + 1, sizeof *order);
    for (int32_t i = 0; i < list->action_count; i++) {
        if (list->action[i].group < 0 || list->action[i].queue == 0) continue;
        begin[begin[0] < 0 ? 0 : begin[1] < 0 ? 1 : 2] = i;
    }
    TEST_CHECK(t, begin[2] > 0);
    order[at++] = begin[2];
    order[at++] = begin[1];
    for (int32_t i = 0; i < list->action_count; i++)
        if (i != begin[2] && i != begin[1]) order[at++] = i;
    TEST_OK(t, tsi_list_permute(list, order));
    free(order);
}

/* The last move stands behind a fence, the optimizer's numbers, of which the program knows nothing:
 * that it cannot begin first does not keep the second from it. */
TS_TEST_RANKS(begins_keep_ties_that_the_program_does_not_know, 2, 3)
{
    if (!tsi_rank_device_of(t->me)->device->host_readable) return;
    const way w = { .mesh = "replicate=*", .family = TS_MODEL_LLAMA };
    trained r = { 0 };
    around a = { .r = &r };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    make(t, &w, &r);
    feed(&r, 0);
    for (int i = 0; i < 3; i++) {
        a.x[i] = ts_full(i + 1, mesh, TS_DTYPE_F32, TS_SHAPE(12, 8), "S(0)");
        a.to[i] = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(12, 8), "R");
    }
    TEST_OK(t, around_step(&a));
    ts_step *recorded = ts_step_record(t->me, around_step, &a);
    TEST_SAY(t, recorded != NULL, "%s", recorded ? "" : ts_rank_error(t->me)->text);
    TEST_OK(t, ts_step_program(recorded, &program));
    for (int32_t k = 0; k < program->step->list_count; k++)
        last_and_second_first(t, &program->step->list[k]);
    TEST_OK(t, ts_step_reorder(recorded, program, (int64_t)1 << 30, &is));
    TEST_SAY(t, is.taken && is.agreed && is.ahead == 1, "taken %d, agreed %d, %lld ahead", is.taken,
             is.agreed, (long long)is.ahead);
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        TEST_OK(t, ts_foreach_zero((ts_list){ &a.to[i], 1 }));
        TEST_OK(t, ts_step_replay(recorded));
        TEST_OK(t, ts_tensor_item(ts_sum(a.to[i], NULL, 0, 0), &sum));
        TEST_SAY(t, sum == 96.0 * (i + 1), "move %d brings %g", i, sum);
    }
    ts_program_destroy(program);
    ts_step_destroy(recorded);
    unmake(&r);
    TEST_OK(t, ts_scope_close(scope));
}

/* ---- random numbers -------------------------------------------------------------------------- */

enum { WIDTH = 40, DRAWN = 6 };

typedef struct noisy {
    ts_rank *me;
    ts_tensor *x, *sum; /* what is drawn is added up there */
    ts_module *again;   /* the second draw is made twice: forward and once more for backward */
} noisy;

static ts_status mixed_infer(const void *attributes, const ts_meta *in, ts_meta *out)
{
    (void)attributes;
    out[0] = in[0];
    return TS_OK;
}

static ts_status mixed_shard(const void *attributes, const ts_meta *in, int32_t rule,
                             const char **text)
{
    (void)attributes, (void)in;
    *text = rule == 0 ? "S(0)->S(0)" : NULL;
    return TS_OK;
}

/* An operator that communicates and draws inside: it is kept as a whole. */
static void mixed(const ts_op_io *io)
{
    ts_tensor *whole = ts_dropout(ts_redistribute(io->input[0], "R"), 0.3);
    ts_scope inner = ts_scope_open(io->rank, "inner");
    whole = ts_scope_leave(inner, ts_dropout(whole, 0.1));
    io->output[0] = ts_redistribute_to(whole, io->output_sharding[0]);
}

static void mixed_grad(const ts_op_io *io)
{
    io->output[0] = ts_mul_scalar(io->input[0], 1.5);
}

static const ts_op_desc mixed_desc = { .struct_size = sizeof(ts_op_desc),
                                       .name = "test.mixed",
                                       .input_count = 1,
                                       .output_count = 1,
                                       .infer = mixed_infer,
                                       .shard = mixed_shard,
                                       .compose = mixed,
                                       .grad = mixed_grad };

static void noise(void *state, const ts_module_io *io)
{
    (void)state;
    ts_tensor *x = ts_op_apply(ts_op_register(io->rank, &mixed_desc), io->input, NULL);
    io->output[0] = ts_dropout(ts_mul(x, x), 0.4);
}

static const ts_module_desc noise_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "noise",
                                           .input_count = 1,
                                           .output_count = 1,
                                           .forward = noise };

/* A scope that catches an error undoes what was drawn inside. */
static void draw_in_vain(const noisy *n)
{
    ts_scope scope = ts_scope_open_with(n->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    ts_tensor *y = ts_dropout(ts_dropout(n->x, 0.5), 0.5);
    (void)ts_add(y, ts_ones(ts_tensor_mesh(y), TS_DTYPE_F32, TS_SHAPE(WIDTH + 1), "R"));
    (void)ts_scope_close(scope);
}

static ts_status noisy_step(void *context)
{
    const noisy *n = context;
    ts_scope scope = ts_scope_open(n->me, "noisy");
    ts_tape_begin(n->me);
    ts_tensor *x = ts_watch(n->x), *slope = NULL;
    draw_in_vain(n);
    ts_tensor *y = TS_CALL(n->again, ts_dropout(x, 0.5));
    ts_status status = ts_grad(ts_sum(y, NULL, 0, 0), &x, 1, &slope);
    ts_list to = { (ts_tensor *[]){ n->sum }, 1 }, by = { &slope, 1 };
    if (status == TS_OK) status = ts_foreach_add(to, by, 1.0, NULL);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* The step in another order, if the passes find one, and in other places. */
static void order_by_passes(test *t, ts_step *step)
{
    ts_program *program = NULL, *better = NULL;
    if (!tsi_rank_device_of(t->me)->device->host_readable) return;
    TEST_OK(t, ts_step_program(step, &program));
    TEST_OK(t, ts_program_reorder(program, NULL, NULL, NULL, &better));
    TEST_OK(t, ts_step_reorder(step, better, 0, NULL));
    ts_program_destroy(better);
    ts_program_destroy(program);
}

static ts_tensor *drawn(test *t, ts_mesh *mesh, bool replays)
{
    ts_tensor *sum = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(WIDTH), "S(0)");
    noisy n = { t->me, ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(WIDTH), "S(0)"), sum, NULL };
    n.again = ts_module_create(mesh, &noise_desc, NULL);
    TEST_OK(t, ts_module_checkpoint(n.again, 1));
    ts_step *step = NULL;
    for (int32_t i = 0; i < DRAWN; i++) {
        if (step && i == 3) order_by_passes(t, step);
        if (step)
            TEST_OK(t, ts_step_replay(step));
        else if (replays && i == 1)
            step = ts_step_record(t->me, noisy_step, &n);
        else
            TEST_OK(t, noisy_step(&n));
    }
    TEST_SAY(t, !replays || step, "%s", ts_rank_error(t->me)->text);
    ts_step_destroy(step);
    ts_module_destroy(n.again);
    return sum;
}

TS_TEST_RANKS(random_numbers_go_on, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope one = ts_scope_open(t->me, NULL);
    ts_tensor *usual = drawn(t, mesh, false);
    double far = NAN, most = 0;
    tsi_map *ordinals = &tsi_tensor_state_of(t->me)->ordinals; /* from the beginning */
    for (size_t i = 0; i < ordinals->capacity; i++)
        if (ordinals->entry[i].value) ((tsi_ordinal *)ordinals->entry[i].value)->next = 0;
    ts_tensor *again = drawn(t, mesh, true);
    TEST_OK(t, ts_tensor_item(ts_amax(ts_abs(ts_sub(usual, again)), NULL, 0, 0), &far));
    TEST_OK(t, ts_tensor_item(ts_amax(usual, NULL, 0, 0), &most));
    TEST_SAY(t, far == 0.0 && most > 0, "off by %g, of %g", far, most);
    TEST_OK(t, ts_scope_close(one));
}

/* ---- times ----------------------------------------------------------------------------------- */

typedef struct scattered {
    ts_rank *me;
    ts_tensor *x, *weight;
} scattered;

/* Rows of others are computed first and fetched by them: operations inside of one piece of work. */
static ts_status scatter_step(void *context)
{
    const scattered *s = context;
    ts_scope scope =
        ts_scope_open_with(s->me, TS_OPTIONS(ts_scope_options, .product = TS_PRODUCT_CHUNKS));
    (void)ts_linear_scatter(s->x, s->weight, NULL, 0);
    return ts_scope_close(scope);
}

TS_TEST_RANKS(what_communicates_inside_of_it_is_an_operator_s_time, 2, 4)
{
    if (!tsi_rank_device_of(t->me)->device->host_readable) return;
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    scattered s = { .me = t->me };
    s.x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(64, 64), "S(1)");
    s.weight = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(32, 64), "S(1)");
    ts_step *recorded = ts_step_record(t->me, scatter_step, &s);
    TEST_SAY(t, recorded != NULL, "%s", ts_rank_error(t->me)->text);
    if (!recorded) return;
    for (int i = 0; i < 3; i++)
        TEST_OK(t, ts_step_time(recorded));
    ts_program *program = NULL;
    TEST_OK(t, ts_step_program(recorded, &program));
    const tsi_step_list *list = tsi_step_list_of(program->step, ts_rank_index(t->me));
    int64_t inside = 0;
    double products = 0;
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        bool product = a->kind == TSI_ACTION_OPERATOR && strstr(a->what, "linear");
        inside += a->group >= 0;
        products += product ? a->us : 0;
        TEST_SAY(t, a->group < 0 || a->us == 0, "%s takes %g us", a->what, a->us);
    }
    TEST_SAY(t, inside > 0 && products > 0, "%lld operations, %g us of products", (long long)inside,
             products);
    ts_program_destroy(program);
    ts_step_destroy(recorded);
}

/* ---- batches --------------------------------------------------------------------------------- */

enum { IN_BATCH = 2, TERMS = 32 };

typedef struct batched {
    ts_rank *me;
    float term[IN_BATCH][TERMS];
} batched;

static ts_status batch_step(void *context)
{
    batched *b = context;
    ts_status status = ts_group_batch_begin(b->me);
    for (int i = 0; i < IN_BATCH && status == TS_OK; i++) {
        ts_array all = TS_INIT(ts_array);
        all.data = b->term[i];
        all.meta = (ts_meta){ .shape = TS_SHAPE(TERMS), .dtype = TS_DTYPE_F32 };
        status = ts_group_all_reduce(ts_group_world(b->me), &all, &all, TS_REDUCE_SUM, NULL);
    }
    return status == TS_OK ? ts_group_batch_end(b->me, NULL) : status;
}

TS_TEST_RANKS(a_batch_runs_again, 2, 3)
{
    batched usual = { .me = t->me }, again = usual;
    ts_step *step = ts_step_record(t->me, batch_step, &again);
    TEST_SAY(t, step != NULL, "%s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    for (int round = 0; step && round < 4; round++) {
        for (int i = 0; i < IN_BATCH * TERMS; i++)
            usual.term[i / TERMS][i % TERMS] = (float)test_random_below(t, 1000) * 0.01f;
        memcpy(again.term, usual.term, sizeof again.term);
        if (round == 2) order_by_passes(t, step);
        TEST_OK(t, batch_step(&usual));
        TEST_OK(t, ts_step_replay(step));
        TEST_CHECK(t, memcmp(again.term, usual.term, sizeof again.term) == 0);
    }
    ts_step_destroy(step);
}

/* What a step waits for cannot wait for the end of a batch around it. */
TS_TEST_RANKS(no_step_runs_in_a_batch, 1, 2)
{
    if (strcmp(t->engine, "threads") != 0)
        return; /* who is refused first ends what others are in */
    batched b = { .me = t->me };
    ts_step *step = ts_step_record(t->me, batch_step, &b);
    for (int what = 0; step && what < 4; what++) {
        ts_program *program = NULL;
        TEST_OK(t, ts_group_batch_begin(t->me));
        ts_status status = what == 0   ? ts_step_replay(step)
                           : what == 1 ? ts_step_time(step)
                           : what == 2 ? ts_step_reorder(step, NULL, 0, NULL)
                                       : ts_step_program(step, &program);
        TEST_STATUS(t, status, TS_ERR_STATE);
        TEST_SAYS(t, ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "", "a batch is open");
        TEST_OK(t, ts_rank_recover(t->me));
        TEST_OK(t, ts_step_replay(step));
    }
    ts_step_destroy(step);
}

/* ---- moves that end late --------------------------------------------------------------------- */

typedef struct dropped {
    ts_rank *me;
    ts_tensor *x, *weight, *y;
} dropped;

/* A move whose result nobody uses is complete while a product that moves for itself runs: it ends
 * before that product or behind it, not inside. */
static ts_status dropping_step(void *context)
{
    const dropped *d = context;
    ts_scope scope = ts_scope_open_with(d->me,
                                        TS_OPTIONS(ts_scope_options, .product = TS_PRODUCT_WHOLE)),
             inner = ts_scope_open(d->me, NULL);
    if (ts_rank_index(d->me) > 0) (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    (void)ts_redistribute(d->x, "R");
    ts_scope_close(inner);
    ts_status status = ts_group_barrier(ts_group_world(d->me), NULL);
    ts_tensor *y = status == TS_OK ? ts_linear_scatter(d->x, d->weight, NULL, 1) : NULL;
    ts_list to = { (ts_tensor *[]){ d->y }, 1 }, by = { &y, 1 };
    status = y ? ts_foreach_add(to, by, 1.0, NULL) : ts_rank_status(d->me);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

TS_TEST_RANKS(moves_end_outside_of_other_work, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_scope scope = ts_scope_open(t->me, NULL);
    int64_t n = t->count;
    dropped d = { t->me, ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(2, 8 * n, 16 * n), "S(2)"),
                  ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(32, 16 * n), "S(1)"),
                  ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(2, 8 * n, 32), "S(1)") };
    ts_step *step = ts_step_record(t->me, dropping_step, &d);
    TEST_SAY(t, step != NULL, "%s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    for (int round = 0; step && round < 4; round++) {
        double least = 0;
        if (round == 2) order_by_passes(t, step);
        TEST_OK(t, ts_step_replay(step));
        TEST_OK(t, ts_tensor_item(ts_amin(d.y, NULL, 0, 0), &least));
        TEST_SAY(t, least == (double)(16 * n * (round + 2)), "%g", least);
    }
    ts_step_destroy(step);
    TEST_OK(t, ts_scope_close(scope));
}

/* ---- what cannot be run again ---------------------------------------------------------------- */

typedef struct bad {
    ts_rank *me;
    ts_mesh *mesh;
    ts_tensor *x, *variable;
    ts_step *other;
    int32_t what;
} bad;

enum { READS, WRITES, RECORDS, REPLAYS, FAILS, TELLS, SHARES, STATES, REBINDS, RECOVERS, BADS };

static ts_status bad_step(void *context)
{
    const bad *b = context;
    double number = 0;
    ts_shape shape = TS_SHAPE(3);
    ts_program *program = NULL;
    switch (b->what) {
    case TELLS:
        return ts_step_program(b->other, &program);
    case SHARES:
        return ts_symmetric_alloc(ts_group_world(b->me), 8, NULL) ? TS_OK : ts_rank_status(b->me);
    case STATES:
        return ts_state_create(b->mesh) ? TS_OK : ts_rank_status(b->me);
    case REBINDS:
        return ts_tensor_write(b->variable, ts_add(b->variable, b->x));
    case RECOVERS:
        return ts_rank_recover(b->me);
    case READS:
        return ts_tensor_item(ts_sum(b->x, NULL, 0, 0), &number);
    case WRITES:
        return ts_rand(b->mesh, TS_DTYPE_F32, shape, "R") ? TS_OK : ts_rank_status(b->me);
    case RECORDS:
        return ts_step_record(b->me, bad_step, context) ? TS_OK : ts_rank_status(b->me);
    default:
        return ts_add(b->x, ts_ones(b->mesh, TS_DTYPE_F32, TS_SHAPE(5), "R"))
                   ? TS_OK
                   : ts_rank_status(b->me);
    }
}

static ts_status empty_step(void *context)
{
    (void)context;
    return TS_OK;
}

TS_TEST_RANKS(what_is_not_the_same_again_is_refused, 1)
{
    bad b = { .me = t->me, .mesh = ts_mesh_create(t->me, "x=*") };
    const char *want[BADS] = {
        [READS] = "the host",
        [WRITES] = "host",
        [RECORDS] = "another one",
        [FAILS] = "add",
        [TELLS] = "its program: a step is recorded",
        [SHARES] = "symmetric memory: a step is recorded",
        [STATES] = "state: a step is recorded",
        [REBINDS] = "a variable that it reads gets another block",
        [RECOVERS] = "ts_rank_recover: a step is being recorded",
    };
    b.other = ts_step_record(t->me, empty_step, NULL);
    b.variable = ts_variable(t->me);
    TEST_OK(t, ts_tensor_write(b.variable, ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(3), "R")));
    for (b.what = 0; b.what < BADS; b.what++) {
        if (b.what == REPLAYS) continue;
        ts_scope scope = ts_scope_open(t->me, NULL);
        b.x = ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(3), "R");
        TEST_CHECK(t, ts_step_record(t->me, bad_step, &b) == NULL);
        const char *text = ts_rank_error(t->me)->text;
        TEST_SAY(t, strstr(text, want[b.what]) != NULL, "%d: %s", b.what, text);
        TEST_OK(t, ts_rank_recover(t->me));
        ts_scope_close(scope);
    }
    ts_step_destroy(b.other);
    TEST_CHECK(t, ts_step_record(t->me, NULL, NULL) == NULL);
    TEST_OK(t, ts_rank_recover(t->me));
    ts_tensor_release(b.variable);
}

/* A variable may show what the step made, if its old value is not read in it. */
static ts_status shows(void *context)
{
    const bad *b = context;
    ts_scope scope = ts_scope_open(b->me, NULL);
    ts_status status = ts_tensor_write(b->variable, ts_square(b->x));
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

TS_TEST_RANKS(variables_show_what_a_step_makes, 1, 2)
{
    bad b = { .me = t->me, .mesh = ts_mesh_create(t->me, "x=*"), .variable = ts_variable(t->me) };
    ts_scope scope = ts_scope_open(t->me, NULL);
    b.x = ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(4), "S(0)");
    TEST_OK(t, shows(&b));
    ts_step *step = ts_step_record(t->me, shows, &b);
    TEST_SAY(t, step != NULL, "%s", ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
    for (int i = 2; step && i < 5; i++) {
        double sum = 0;
        TEST_OK(t, ts_step_input(step, b.x, ts_full(i, b.mesh, TS_DTYPE_F32, TS_SHAPE(4), "S(0)")));
        TEST_OK(t, ts_step_replay(step));
        TEST_OK(t, ts_tensor_item(ts_sum(b.variable, NULL, 0, 0), &sum));
        TEST_SAY(t, sum == 4.0 * i * i, "%g", sum);
    }
    ts_step_destroy(step);
    TEST_OK(t, ts_scope_close(scope));
    ts_tensor_release(b.variable);
}

/* A slot takes what it was recorded with: another shape, dtype or layout is refused, as is a tensor
 * that the step does not read. */
static ts_status doubles(void *context)
{
    const bad *b = context;
    ts_scope scope = ts_scope_open(b->me, NULL);
    ts_tensor *x = b->x;
    ts_status status = ts_foreach_add((ts_list){ &x, 1 }, (ts_list){ &x, 1 }, 1.0, NULL);
    ts_status closed = ts_scope_close(scope);
    return status != TS_OK ? status : closed;
}

/* A refusal that is caught takes no slower rank along. */
static void refuses(test *t, ts_step *step, ts_tensor *slot, ts_tensor *value, ts_status status,
                    const char *words)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    TEST_CHECK(t, ts_step_input(step, slot, value) == status);
    TEST_CHECK(t, ts_scope_close(scope) == status);
    TEST_SAYS(t, ts_rank_error(t->me)->text, words);
}

TS_TEST_RANKS(slots_take_what_they_were_recorded_with, 1, 2)
{
    bad b = { .me = t->me, .mesh = ts_mesh_create(t->me, "x=*") };
    ts_scope scope = ts_scope_open(t->me, NULL);
    b.x = ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(4, 2), "R");
    ts_step *step = ts_step_record(t->me, doubles, &b);
    TEST_SAY(t, step != NULL, "%s", ts_rank_error(t->me)->text);
    ts_tensor *other[] = { ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(4, 3), "R"),
                           ts_ones(b.mesh, TS_DTYPE_F64, TS_SHAPE(4, 2), "R"),
                           ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(4, 2), "S(0)") };
    for (int i = 0; i < 3; i++)
        refuses(t, step, b.x, other[i], TS_ERR_SHAPE, "was recorded as");
    ts_tensor *there = ts_ones(ts_mesh_create(t->me, "y=*"), TS_DTYPE_F32, TS_SHAPE(4, 2), "R");
    char on[2][64];
    for (int i = 0; i < 2; i++)
        snprintf(on[i], sizeof on[i], "of f32 on mesh \"%c=%d\"", "xy"[i], (int)t -> count);
    refuses(t, step, b.x, there, TS_ERR_MESH, on[0]);
    refuses(t, step, b.x, there, TS_ERR_MESH, on[1]);
    refuses(t, step, b.x, there, TS_ERR_MESH,
            "step: the input \"given.1\" was recorded as [4, 2](R)");
    refuses(t, step, b.x, there, TS_ERR_MESH, "move it there first: ts_redistribute_to(");
    ts_tensor *unread = ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(4, 2), "R");
    refuses(t, step, unread, b.x, TS_ERR_ARG, "step");
    TEST_OK(t, ts_step_input(step, b.x, unread)); /* ones again */
    TEST_OK(t, ts_step_replay(step));
    double sum = 0;
    TEST_OK(t, ts_tensor_item(ts_sum(b.x, NULL, 0, 0), &sum));
    TEST_SAY(t, sum == 16, "%g", sum);
    ts_step_destroy(step);
    TEST_OK(t, ts_scope_close(scope));
}

/* A parameter that takes new numbers is called by its name. */
TS_TEST_RANKS(slots_that_have_names_are_called_by_them, 1, 2)
{
    static const ts_module_desc desc = { .struct_size = sizeof desc, .type = "tree" };
    bad b = { .me = t->me, .mesh = ts_mesh_create(t->me, "x=*") };
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_module *root = ts_module_create(b.mesh, &desc, NULL);
    ts_tensor *w = ts_module_param(root, "table", TS_SHAPE(4, 2), NULL);
    TEST_OK(t, ts_module_materialize(root));
    b.x = ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(4, 2), "R");
    ts_step *step = ts_step_record(t->me, doubles, &b);
    ts_tensor *other = ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(4, 3), "R");
    refuses(t, step, w, other, TS_ERR_SHAPE,
            "step: the input \"table\" was recorded as [4, 2](R) of");
    refuses(t, step, w, b.x, TS_ERR_ARG,
            "step: the recorded step reads no tensor that is the input \"table\" ([4, 2](R)");
    ts_step_destroy(step);
    TEST_OK(t, ts_scope_close(scope));
    ts_module_destroy(root);
}

/* What was made of a slot before it is written has the old value, and a value may lie over it. */
TS_TEST_RANKS(slots_are_written_as_any_tensor_is, 2, 3)
{
    bad b = { .me = t->me, .mesh = ts_mesh_create(t->me, "x=*") };
    ts_scope scope = ts_scope_open(t->me, NULL);
    b.x = ts_arange(b.mesh, TS_DTYPE_F32, TS_SHAPE(64, 64), "S(0)", NULL);
    ts_step *step = ts_step_record(t->me, doubles, &b);
    ts_tensor *old = ts_clone(b.x), *moved = ts_redistribute(b.x, "R");
    ts_tensor *zeros = ts_zeros(b.mesh, TS_DTYPE_F32, TS_SHAPE(64, 64), "S(0)");
    TEST_OK(t, ts_step_input(step, b.x, zeros));
    double sum = -1;
    TEST_OK(t, ts_tensor_item(ts_sum(ts_abs(ts_sub(moved, old)), NULL, 0, 0), &sum));
    TEST_SAY(t, sum == 0, "what was on its way is off by %g", sum);
    ts_step_destroy(step);
    b.x = ts_arange(b.mesh, TS_DTYPE_F32, TS_SHAPE(64, 64), "R", NULL);
    step = ts_step_record(t->me, doubles, &b);
    ts_tensor *turned = ts_clone(ts_transpose(b.x, 0, 1));
    TEST_OK(t, ts_step_input(step, b.x, ts_transpose(b.x, 0, 1)));
    TEST_OK(t, ts_tensor_item(ts_sum(ts_abs(ts_sub(b.x, turned)), NULL, 0, 0), &sum));
    TEST_SAY(t, sum == 0, "the value that lay over its slot is off by %g", sum);
    ts_step_destroy(step);
    TEST_OK(t, ts_scope_close(scope));
}

static ts_status reads_only(void *context)
{
    const bad *b = context;
    ts_scope scope = ts_scope_open(b->me, NULL);
    ts_tensor *y = ts_exp(b->x);
    ts_status closed = ts_scope_close(scope);
    return y ? closed : ts_rank_status(b->me);
}

/* A slot of which one element stands for several cannot hold a value. */
TS_TEST_RANKS(no_value_is_written_into_an_expanded_slot, 1, 2)
{
    bad b = { .me = t->me, .mesh = ts_mesh_create(t->me, "x=*") };
    ts_scope scope = ts_scope_open(t->me, NULL);
    b.x = ts_expand(ts_ones(b.mesh, TS_DTYPE_F32, TS_SHAPE(1, 2), "R"), TS_SHAPE(4, 2));
    ts_step *step = ts_step_record(t->me, reads_only, &b);
    ts_tensor *value = ts_arange(b.mesh, TS_DTYPE_F32, TS_SHAPE(4, 2), "R", NULL);
    refuses(t, step, b.x, value, TS_ERR_ARG, "stands for several");
    ts_step_destroy(step);
    TEST_OK(t, ts_scope_close(scope));
}

/* ---- what a recording that failed leaves ----------------------------------------------------- */

typedef struct left { /* an operation that one recording begins, and another one waits for */
    ts_rank *me;
    float number;
    ts_work *work;
    bool waits;
} left;

static ts_status begin_or_wait(void *context)
{
    left *l = context;
    if (l->waits) return ts_work_wait(l->work);
    ts_array all = TS_INIT(ts_array);
    all.data = &l->number;
    all.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F32 };
    return ts_group_all_reduce(ts_group_world(l->me), &all, &all, TS_REDUCE_SUM,
                               TS_OPTIONS(ts_comm_options, .work = &l->work));
}

TS_TEST_RANKS(what_a_refused_step_began_is_no_part_of_the_next, 1)
{
    left l = { .me = t->me, .number = 1 };
    for (int i = 0; i < 2; i++) {
        l.waits = i > 0;
        TEST_CHECK(t, ts_step_record(t->me, begin_or_wait, &l) == NULL);
        TEST_SAYS(t, ts_rank_error(t->me)->text, i ? "issued before the step" : "under way");
        TEST_OK(t, ts_rank_recover(t->me));
    }
    TEST_OK(t, ts_work_wait(l.work));
}
