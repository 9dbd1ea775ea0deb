/* SPDX-License-Identifier: Apache-2.0 */
/* model_router.c - routers of experts: losses, loads and biases are the same numbers on every mesh
 * and under recomputation; experts placed anew by load give what they gave before. */
#include <math.h>
#include <string.h>

#include "harness/test.h"
#include "tessera/tessera.h"

enum { ROWS = 8, LENGTH = 12, VOCAB = 40, STEPS = 3, EXPERTS = 6 };

static ts_model_config config_of(int64_t experts, int64_t chosen)
{
    ts_model_config c = { .struct_size = sizeof c,
                          .family = TS_MODEL_DEEPSEEK_V3,
                          .vocab = VOCAB,
                          .hidden = 16,
                          .intermediate = 24,
                          .layers = 2,
                          .heads = 2,
                          .kv_heads = 2,
                          .head_dim = 4,
                          .plain_dim = 4,
                          .value_dim = 4,
                          .kv_rank = 8,
                          .experts = experts,
                          .experts_per_token = chosen,
                          .expert_width = 8,
                          .shared_experts = 1,
                          .route_sum = 1,
                          .positions = 64 };
    c.init_deviation = 0.3;
    return c;
}

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    *(int64_t *)element =
        (7 * global[0] + 3 * global[1] * global[1] + *(const int64_t *)context) % VOCAB;
    return TS_OK;
}

static ts_tensor *tokens(ts_model *m, int64_t salt)
{
    ts_meta meta = { .shape = TS_SHAPE(ROWS, LENGTH), .dtype = TS_DTYPE_I64 };
    return ts_from_function(token_at, &salt, ts_model_tokens(m), meta);
}

typedef struct outcome {
    double loss[STEPS], load[EXPERTS], aux, sequence, z, entropy, bias[EXPERTS];
    int64_t dropped, tokens;
} outcome;

/* A few steps of a model whose routers do all they can. */
static outcome train(test *t, const char *mesh_text, int64_t ep, int recompute)
{
    outcome out = { .tokens = 0 };
    ts_mesh *mesh = ts_mesh_create(t->me, mesh_text);
    ts_model_config config = config_of(EXPERTS, 2);
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_DTYPE_F64;
    options.ep = ep;
    options.aux_loss = 0.05;
    options.sequence_loss = 0.03;
    options.z_loss = 0.01;
    options.bias_rate = 0.02;
    options.capacity = 1.25;
    ts_model *m = ts_model_declare(mesh, &config, &options);
    for (int64_t i = 1; recompute && i <= config.layers; i++)
        ts_module_checkpoint(ts_model_block(m, i), recompute);
    if (ts_mesh_axis(mesh, "fsdp") >= 0) ts_model_fsdp(m, NULL);
    TEST_OK(t, ts_model_materialize(m));
    ts_optimizer *o = ts_adamw_create(ts_model_module(m), NULL);
    for (int step = 0; step < STEPS; step++) {
        ts_scope scope = ts_scope_open(t->me, "step");
        ts_tape_begin(t->me);
        ts_tensor *loss = ts_model_loss(m, tokens(m, step), tokens(m, step + 1));
        ts_backward(loss, NULL);
        ts_tensor_item(loss, &out.loss[step]);
        ts_router_report report = TS_INIT(ts_router_report);
        TEST_OK(t, ts_model_router_read(m, 1, &report, out.load));
        out.aux = report.aux_loss;
        out.sequence = report.sequence_loss;
        out.z = report.z_loss;
        out.entropy = report.entropy;
        out.dropped = report.dropped;
        out.tokens = report.tokens;
        TEST_OK(t, ts_model_router_step(m));
        TEST_OK(t, ts_optimizer_step(o));
        ts_scope_close(scope);
    }
    ts_tensor *bias =
        ts_module_find_param(ts_model_module(m), "model.layers.1.mlp.gate.e_score_correction_bias");
    ts_array array = TS_INIT(ts_array);
    array.data = out.bias;
    array.meta = (ts_meta){ .shape = TS_SHAPE(EXPERTS), .dtype = TS_DTYPE_F64 };
    if (bias) TEST_OK(t, ts_tensor_read(ts_tensor_full(bias), &array));
    ts_optimizer_destroy(o);
    ts_model_destroy(m);
    return out;
}

static void compare(test *t, const outcome *a, const outcome *b, const char *what)
{
    for (int s = 0; s < STEPS; s++)
        TEST_SAY(t, fabs(a->loss[s] - b->loss[s]) < 1e-10, "%s: loss %d is %.15g, alone %.15g",
                 what, s, b->loss[s], a->loss[s]);
    for (int e = 0; e < EXPERTS; e++) {
        TEST_SAY(t, a->load[e] == b->load[e], "%s: load %d is %g, alone %g", what, e, b->load[e],
                 a->load[e]);
        TEST_SAY(t, fabs(a->bias[e] - b->bias[e]) < 1e-12, "%s: bias %d is %g, alone %g", what, e,
                 b->bias[e], a->bias[e]);
    }
    double apart = fabs(a->aux - b->aux) + fabs(a->sequence - b->sequence) + fabs(a->z - b->z) +
                   fabs(a->entropy - b->entropy);
    TEST_SAY(t, apart < 1e-11, "%s: losses are %g apart", what, apart);
    TEST_EQ(t, b->dropped, a->dropped);
    TEST_EQ(t, b->tokens, a->tokens);
}

/* One rank first: the others are compared with it. */
TS_TEST_RANKS(routers_on_meshes, 4)
{
    static const struct {
        const char *mesh;
        int64_t ep;
        int recompute;
    } rows[] = { { "fsdp=4", 4, 0 },
                 { "fsdp=4", 2, TS_RECOMPUTE_FULL },
                 { "fsdp=2, tp=2", 4, TS_RECOMPUTE_SELECT },
                 { "replicate=2, fsdp=2", 2, TS_RECOMPUTE_FULL },
                 { "fsdp=2, cp=2", 2, 0 } };
    outcome first = train(t, "tp=4", 1, 0);
    double sum = 0, moved = 0;
    for (int e = 0; e < EXPERTS; e++) {
        sum += first.load[e];
        moved += fabs(first.bias[e]);
    }
    TEST_EQ(t, (int64_t)sum, ROWS * LENGTH * 2); /* each choice once, however it was computed */
    TEST_CHECK(t, moved > 0 && first.dropped > 0 && first.aux > 0 && first.z > 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!test_tries(t)) continue;
        outcome here = train(t, rows[i].mesh, rows[i].ep, rows[i].recompute);
        compare(t, &first, &here, rows[i].mesh);
    }

    TEST_OK(t, ts_rank_status(t->me));
}

/* ---- steps that are recorded, or abandoned --------------------------------------------------- */

typedef struct repeated {
    ts_model *model;
    ts_optimizer *optimizer;
    ts_tensor *ids, *labels; /* where the step reads */
} repeated;

static ts_status repeated_step(void *context)
{
    const repeated *r = context;
    ts_scope scope = ts_scope_open(ts_tensor_rank(r->ids), "step");
    ts_tape_begin(ts_tensor_rank(r->ids));
    ts_status status = ts_backward(ts_model_loss(r->model, r->ids, r->labels), NULL);
    if (status == TS_OK) status = ts_optimizer_step_with(r->optimizer, NULL);
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

static repeated repeated_begin(test *t)
{
    repeated r = { .model = NULL };
    ts_model_config config = config_of(EXPERTS, 2);
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_DTYPE_F64;
    options.aux_loss = 0.05;
    options.bias_rate = 0.02;
    r.model = ts_model_declare(ts_mesh_create(t->me, "fsdp=*"), &config, &options);
    ts_model_fsdp(r.model, NULL);
    TEST_OK(t, ts_model_materialize(r.model));
    r.optimizer = ts_adamw_create(ts_model_module(r.model), NULL);
    r.ids = tokens(r.model, 1);
    r.labels = tokens(r.model, 2);
    return r;
}

static void repeated_end(repeated *r)
{
    ts_optimizer_destroy(r->optimizer);
    ts_model_destroy(r->model);
}

/* Counts go on behind each run, whether they were cleared meanwhile or not, and biases move. */
TS_TEST_RANKS(routers_of_recorded_steps, 1, 2)
{
    repeated each[] = { repeated_begin(t), repeated_begin(t) };
    ts_step *step = NULL;
    for (int i = 0; i < 8; i++) {
        ts_router_report report[2] = { TS_INIT(ts_router_report), TS_INIT(ts_router_report) };
        double load[2][EXPERTS] = { { 0 } };
        TEST_OK(t, repeated_step(&each[0]));
        if (i < 2)
            TEST_OK(t, repeated_step(&each[1]));
        else if (i == 2)
            step = ts_step_record(t->me, repeated_step, &each[1]);
        else
            TEST_OK(t, ts_step_replay(step));
        TEST_CHECK(t, i < 2 || step);
        for (int k = 0; k < 2; k++) {
            TEST_OK(t, ts_model_router_read(each[k].model, 1, &report[k], load[k]));
            if (i % 3 != 1) TEST_OK(t, ts_model_router_step(each[k].model));
        }
        TEST_SAY(t,
                 report[0].tokens == report[1].tokens && report[0].aux_loss == report[1].aux_loss,
                 "step %d: %lld tokens, not %lld; loss %g, not %g", i, (long long)report[1].tokens,
                 (long long)report[0].tokens, report[1].aux_loss, report[0].aux_loss);
        TEST_CHECK(t, memcmp(load[0], load[1], sizeof load[0]) == 0 && load[0][0] + load[0][1] > 0);
    }
    ts_scope caught = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_OK(t, ts_model_router_factor(each[1].model, 0.5));
    TEST_STATUS(t, ts_step_replay(step), TS_ERR_STATE);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "ts_model_router_factor was called since");
    (void)ts_scope_close(caught);
    TEST_OK(t, ts_rank_recover(t->me));
    ts_step_destroy(step);
    for (int k = 0; k < 2; k++)
        repeated_end(&each[k]);
}

/* What an abandoned step counted would move biases by a load that never was. */
TS_TEST_RANKS(routers_forget_abandoned_steps, 1, 2)
{
    repeated r = repeated_begin(t);
    double load[EXPERTS], sum = 0;
    ts_router_report report = TS_INIT(ts_router_report);
    for (int n = 0; n < 2; n++) {
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
        TEST_CHECK(t, ts_model_logits(r.model, r.ids) != NULL);
        TEST_OK(t, ts_scope_close(scope));
        if (n == 0) TEST_OK(t, ts_module_reset(ts_model_module(r.model)));
    }
    TEST_OK(t, ts_model_router_read(r.model, 1, &report, load));
    for (int e = 0; e < EXPERTS; e++)
        sum += load[e];
    TEST_EQ(t, report.tokens, ROWS * LENGTH);
    TEST_EQ(t, (int64_t)sum, ROWS * LENGTH * 2);
    repeated_end(&r);
}

/* The same bits twice, and with blocks that run again. */
TS_TEST_RANKS(routers_repeat_their_bits, 3)
{
    outcome first = train(t, "fsdp=3", 3, 0);
    outcome again[] = { train(t, "fsdp=3", 3, 0), train(t, "fsdp=3", 3, TS_RECOMPUTE_FULL),
                        train(t, "fsdp=3", 3, TS_RECOMPUTE_SELECT) };
    for (int i = 0; i < 3; i++) {
        TEST_CHECK(t, memcmp(first.loss, again[i].loss, sizeof first.loss) == 0);
        TEST_CHECK(t, memcmp(first.bias, again[i].bias, sizeof first.bias) == 0);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

static ts_router_report report_of(test *t, ts_model *m, const int64_t *cut, int parts)
{
    ts_router_report report = TS_INIT(ts_router_report);
    ts_scope scope = ts_scope_open(t->me, "parts");
    ts_tensor *all = tokens(m, 1);
    for (int i = 0; i < parts; i++) {
        ts_slice_options rows = TS_INIT(ts_slice_options);
        rows.start = cut[i];
        rows.end = cut[i + 1];
        rows.end_is_given = 1;
        TEST_CHECK(t, ts_model_logits(m, ts_slice(all, 0, &rows)) != NULL);
    }
    TEST_OK(t, ts_model_router_read(m, 1, &report, NULL));
    TEST_OK(t, ts_model_router_step(m));
    ts_scope_close(scope);
    return report;
}

/* Means over tokens are those of the whole in parts of any sizes. */
TS_TEST_RANKS(routers_of_uneven_parts, 1, 3)
{
    ts_model_config config = config_of(EXPERTS, 2);
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_DTYPE_F64;
    options.sequence_loss = 0.03;
    options.z_loss = 0.01;
    ts_model *m =
        ts_model_create(ts_mesh_create(t->me, t->count > 1 ? "tp=3" : "tp=1"), &config, &options);
    ts_router_report whole = report_of(t, m, (int64_t[]){ 0, ROWS }, 1);
    ts_router_report parts = report_of(t, m, (int64_t[]){ 0, 1, 3, ROWS }, 3);
    TEST_EQ(t, parts.tokens, whole.tokens);
    TEST_SAY(t, fabs(parts.z_loss - whole.z_loss) < 1e-12, "%.17g, in parts %.17g", whole.z_loss,
             parts.z_loss);
    TEST_SAY(t, fabs(parts.sequence_loss - whole.sequence_loss) < 1e-12, "%.17g, in parts %.17g",
             whole.sequence_loss, parts.sequence_loss);
    ts_model_destroy(m);
}

/* ---- groups of experts ----------------------------------------------------------------------- */

enum { GROUPED = 12, LONG = 20 };

static double one_step(test *t, ts_model *m, ts_optimizer *o, int64_t salt)
{
    double value = NAN;
    ts_scope scope = ts_scope_open(t->me, "step");
    ts_tape_begin(t->me);
    ts_tensor *loss = ts_model_loss(m, tokens(m, salt), tokens(m, salt + 1));
    ts_backward(loss, NULL);
    ts_tensor_item(loss, &value);
    TEST_OK(t, ts_optimizer_step(o));
    ts_scope_close(scope);
    return value;
}

/* `load` not NULL: of the experts of both layers, by which they are placed on the way. */
static void train_long(test *t, const char *mesh_text, int64_t ep, const ts_model_config *config,
                       const double *load, double loss[LONG])
{
    ts_mesh *mesh = ts_mesh_create(t->me, mesh_text);
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_DTYPE_F64;
    options.ep = ep;
    ts_model *m = ts_model_declare(mesh, config, &options);
    if (ts_mesh_axis(mesh, "fsdp") >= 0) ts_model_fsdp(m, NULL);
    TEST_OK(t, ts_model_materialize(m));
    ts_optimizer *o = ts_adamw_create(ts_model_module(m), NULL);
    for (int step = 0; step < LONG; step++) {
        ts_experts_moves moves = TS_INIT(ts_experts_moves);
        if (load && step == LONG / 2) TEST_OK(t, ts_experts_place(m, o, load, &moves));
        loss[step] = one_step(t, m, o, step);
    }
    ts_optimizer_destroy(o);
    ts_model_destroy(m);
}

/* 12 experts in 3 groups, of which a token sees 2; over 5 ranks they are 3, 3, 3, 3 and none. */
TS_TEST_RANKS(grouped_experts_train_alike, 4, 5)
{
    static const struct {
        const char *mesh;
        int64_t ep;
    } rows[] = { { "fsdp=*", 0 }, { "fsdp=2, tp=2", 2 }, { "fsdp=4", 2 } };
    double first[LONG], loss[LONG];
    ts_model_config config = config_of(GROUPED, 3);
    config.expert_groups = 3;
    config.groups_per_token = 2;
    train_long(t, "tp=*", 1, &config, NULL, first);
    for (size_t i = 0; i < (t->count == 4 ? 3 : 1); i++) {
        train_long(t, rows[i].mesh, rows[i].ep ? rows[i].ep : t->count, &config, NULL, loss);
        for (int step = 0; step < LONG; step++)
            TEST_SAY(t, fabs(loss[step] - first[step]) < 1e-9, "%s, step %d: %.15g and %.15g",
                     rows[i].mesh, step, loss[step], first[step]);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* Units cut what ranks of a group have, be it 2, 2 and 1 experts, or 3, 1 and 1, or some and none:
 * whether shards are shared or travel is the same for all. */
TS_TEST_RANKS(uneven_experts_of_units_train_alike, 6)
{
    static const double load[][12] = { { 9, 1, 1, 1, 1, 1, 1, 1, 1, 9 }, /* 5 and 5 */
                                       { 5, 1, 1, 5 },
                                       { 9, 9, 0, 0, 0, 0, 9, 0, 9 } }; /* two ranks have none */
    static const int64_t experts[] = { 5, 2, 6 };
    double first[LONG], loss[LONG];
    for (int i = 0; i < 3; i++) {
        if (!test_tries(t)) continue;
        ts_model_config config = config_of(experts[i], 2);
        train_long(t, "tp=2, replicate=3", 1, &config, NULL, first);
        train_long(t, "fsdp=6", 3, &config, load[i], loss);
        for (int step = 0; step < LONG; step++)
            TEST_SAY(t, fabs(loss[step] - first[step]) < 1e-9, "%d experts, step %d: %g and %g",
                     (int)experts[i], step, loss[step], first[step]);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* ---- placing --------------------------------------------------------------------------------- */

enum { MANY = 64, CHOSEN = 8, PLACED = 6 };

/* Shares of a router that prefers experts by Zipf's law and chooses CHOSEN of them: none has more
 * than one of a token's. */
static void zipf_loads(double *load)
{
    double left = CHOSEN;
    for (int e = 0; e < MANY; e++) {
        double rest = 0;
        for (int i = e; i < MANY; i++)
            rest += 1.0 / (i + 1);
        load[e] = fmin(1.0, left * (1.0 / (e + 1)) / rest);
        left -= load[e];
    }
}

/* Shares as they come: the first has a fifth of all choices, more than a rank of eight should. */
static void steep_loads(double *load)
{
    for (int e = 0; e < MANY; e++)
        load[e] = 1.0 / (e + 1);
}

static void steeper_loads(double *load)
{
    for (int e = 0; e < MANY; e++)
        load[e] = 1.0 / ((e + 1) * (e + 1));
}

/* Against the order of the experts. */
static void falling_loads(double *load)
{
    for (int e = 0; e < MANY; e++)
        load[e] = e + 1;
}

typedef struct placing {
    const char *mesh;
    int64_t ep;
    void (*loads)(double *);
    bool copies; /* are needed */
    bool cut;    /* experts are cut further, by units */
    double from; /* the busiest over the mean before it, at least */
    int32_t compute, reshard, recompute;
    double within; /* of losses */
} placing;

static void place(test *t, ts_model *m, ts_optimizer *o, const placing *c)
{
    double load[2 * MANY];
    c->loads(load);
    memcpy(load + MANY, load, MANY * sizeof *load);
    ts_experts_moves moves = TS_INIT(ts_experts_moves), again = TS_INIT(ts_experts_moves);
    char text[8192];
    int64_t expert = 3 * 16 * 8 * 8; /* bytes */
    TEST_OK(t, ts_experts_place(m, o, load, &moves));
    TEST_SAY(t, moves.ratio_before >= c->from && moves.ratio_after <= 1.1,
             "%s: loads from %g to %g of the mean", c->mesh, moves.ratio_before, moves.ratio_after);
    TEST_EQ(t, moves.bytes, moves.bytes_bound);
    if (!c->cut) TEST_EQ(t, moves.bytes, moves.moved * expert * 3 * (8 / c->ep));
    if (!c->compute && !strstr(c->mesh, "tp"))
        TEST_EQ(t, moves.copy_bytes, moves.copied * expert * (c->ep - 1) * (8 / c->ep));
    TEST_CHECK(t, moves.moved > 0 && (moves.copied > 0) == c->copies);
    TEST_CHECK(t, ts_experts_text(m, text, sizeof text) > 0 && strstr(text, "RS(0:"));
    TEST_CHECK(t, (strstr(text, "; on all ranks: 0") != NULL) == c->copies);
    TEST_OK(t, ts_experts_place(m, o, load, &again)); /* even already */
    TEST_CHECK(t, again.moved == 0 && again.ratio_before == moves.ratio_after);
    TEST_EQ(t, again.copied, moves.copied);
}

/* Loads of another kind: experts move again, from where they are. */
static void place_back(test *t, ts_model *m, ts_optimizer *o)
{
    double load[2 * MANY];
    falling_loads(load);
    falling_loads(load + MANY);
    ts_experts_moves moves = TS_INIT(ts_experts_moves);
    TEST_OK(t, ts_experts_place(m, o, load, &moves));
    TEST_CHECK(t, moves.moved > 0 && moves.copied == 0 && moves.ratio_after <= 1.1);
    TEST_EQ(t, moves.bytes, moves.bytes_bound);
}

/* A forward that nobody goes back from: units that stay gathered are so when experts are placed. */
static void look(test *t, ts_model *m)
{
    double value = NAN;
    ts_scope scope = ts_scope_open(t->me, "look");
    ts_tape_begin(t->me);
    TEST_OK(t, ts_tensor_item(ts_model_loss(m, tokens(m, 0), tokens(m, 1)), &value));
    ts_scope_close(scope);
}

static void train_placed(test *t, const placing *c, bool placed, double loss[PLACED])
{
    ts_mesh *mesh = ts_mesh_create(t->me, c->mesh);
    ts_model_config config = config_of(MANY, CHOSEN);
    ts_model_options options = TS_INIT(ts_model_options);
    ts_fsdp_options units = TS_INIT(ts_fsdp_options);
    options.dtype = c->compute ? TS_DTYPE_F32 : TS_DTYPE_F64;
    options.compute = c->compute;
    options.ep = c->ep;
    units.reshard = c->reshard;
    ts_model *m = ts_model_declare(mesh, &config, &options);
    for (int64_t i = 1; c->recompute && i <= config.layers; i++)
        ts_module_checkpoint(ts_model_block(m, i), c->recompute);
    ts_model_fsdp(m, &units);
    TEST_OK(t, ts_model_materialize(m));
    ts_optimizer *o = ts_adamw_create(ts_model_module(m), NULL);
    for (int step = 0; step < PLACED; step++) {
        if (step == 2 && c->reshard == TS_RESHARD_NO) look(t, m);
        if (placed && step == 2) place(t, m, o, c);
        if (placed && step == 4) place_back(t, m, o);
        loss[step] = one_step(t, m, o, step);
    }
    ts_optimizer_destroy(o);
    ts_model_destroy(m);
}

static void compare_placed(test *t, const placing *c)
{
    double loss[2][PLACED];
    for (int placed = 0; placed < 2; placed++)
        train_placed(t, c, placed, loss[placed]);
    for (int step = 0; step < PLACED; step++)
        TEST_SAY(t, fabs(loss[0][step] - loss[1][step]) < c->within,
                 "%s, step %d: %.15g, placed %.15g", c->mesh, step, loss[0][step], loss[1][step]);
}

/* By moves where they are enough, else with copies. */
TS_TEST_RANKS(experts_are_placed_by_load, 8)
{
    static const placing cases[] = {
        { .mesh = "fsdp=8", .ep = 8, .loads = zipf_loads, .from = 3, .within = 1e-11 },
        { .mesh = "fsdp=8",
          .ep = 8,
          .loads = steep_loads,
          .copies = true,
          .from = 3,
          .within = 1e-11 },
        { .mesh = "replicate=2, fsdp=4",
          .ep = 4,
          .loads = steeper_loads,
          .copies = true,
          .from = 3,
          .within = 1e-11 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (test_tries(t)) compare_placed(t, &cases[i]);
    TEST_OK(t, ts_rank_status(t->me));
}

/* Where units cut experts further: they gather, keep and reduce what lies elsewhere now. */
TS_TEST_RANKS(experts_of_units_are_placed_by_load, 8)
{
    static const placing cases[] = {
        { .mesh = "fsdp=8", .ep = 4, .loads = zipf_loads, .from = 2, .within = 1e-11 },
        { .mesh = "fsdp=8",
          .ep = 2,
          .loads = steeper_loads,
          .copies = true,
          .from = 1.9,
          .within = 1e-11 },
        { .mesh = "fsdp=4, tp=2",
          .ep = 2,
          .loads = zipf_loads,
          .from = 1.5,
          .reshard = 2,
          .within = 1e-11 },
        { .mesh = "fsdp=8",
          .ep = 4,
          .loads = zipf_loads,
          .from = 2,
          .compute = TS_DTYPE_BF16,
          .reshard = TS_RESHARD_NO,
          .within = 3e-2 }, /* holders round their sums of a row, and others are together now */
        { .mesh = "tp=2, fsdp=4",
          .ep = 2,
          .loads = zipf_loads,
          .from = 1.5,
          .recompute = TS_RECOMPUTE_FULL,
          .within = 1e-11 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        placing c = cases[i];
        c.cut = true;
        if (test_tries(t)) compare_placed(t, &c);
    }
    TEST_OK(t, ts_rank_status(t->me));
}

/* As many experts as ranks: one more copy leaves a rank without work, and is worse than none. */
TS_TEST_RANKS(experts_are_copied_while_it_helps, 8)
{
    enum { FEW = 8 };
    static const struct {
        double load[FEW], ratio;
        int64_t copies;
    } cases[] = { { { 1.3, 1.2, 1.1, 1, 1, 0.9, 0.8, 0.7 }, 1.3, 0 },
                  { { 1.3, 1.2, 1.1, 1, 1, 0.9, 0.8, 10 }, (8 * 1.3 + 10) / 17.3, 1 },
                  { { 1, 9, 1, 9, 1, 9, 1, 1 }, (8 * 1 + 27) / 32.0, 3 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=8");
        ts_model_config config = config_of(FEW, 2);
        ts_model_options options = TS_INIT(ts_model_options);
        options.ep = 8;
        options.compute = i == 1 ? TS_DTYPE_BF16 : 0;
        ts_model *m = ts_model_declare(mesh, &config, &options);
        ts_model_fsdp(m, NULL);
        TEST_OK(t, ts_model_materialize(m));
        int64_t expert = 3 * 16 * 8 * (i == 1 ? 2 : 4); /* bytes that travel, not that are stored */
        double load[2 * FEW];
        memcpy(load, cases[i].load, FEW * sizeof *load);
        memcpy(load + FEW, cases[i].load, FEW * sizeof *load);
        ts_experts_moves moves = TS_INIT(ts_experts_moves);
        TEST_OK(t, ts_experts_place(m, NULL, load, &moves));
        TEST_EQ(t, moves.copied, 2 * cases[i].copies); /* two layers */
        TEST_EQ(t, moves.copy_bytes, moves.copied * expert * 7);
        TEST_SAY(t, fabs(moves.ratio_after - cases[i].ratio) < 1e-12, "case %d: %g", (int)i,
                 moves.ratio_after);
        ts_model_destroy(m);
    }
    TEST_OK(t, ts_rank_status(t->me));
}
