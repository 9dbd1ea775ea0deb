/* SPDX-License-Identifier: Apache-2.0 */
/* What a step may be told beside sizes: groups of parameters, the z-loss, norms by module, and what
 * it says when a number is not finite. */
#include "dist/train_util.h"
#include "model/model.h"
#include "train/run.h"

static const char groups[] = "[optimizer]\nweight_decay = 0.3\n"
                             "groups = *norm*: decay=0; lm_head.*: rate=0.25 decay=0.5; "
                             "*.q_proj.*: frozen\n";

/* ---- groups ---------------------------------------------------------------------------------- */

typedef struct small_tree {
    ts_module *root;
    ts_tensor *param[4];
} small_tree;

static const char *const letters[] = { "a", "b", "c", "d" };

static small_tree tree(test *t, ts_mesh *mesh)
{
    small_tree s = { 0 };
    ts_module_desc desc = { .struct_size = sizeof desc, .type = "test" };
    ts_param_options options = TS_INIT(ts_param_options);
    options.init = ts_init_ones;
    options.dtype = TS_DTYPE_F64;
    options.stored = ts_rank_count(t->me) > 1 ? "x:S(0)" : NULL;
    s.root = ts_module_create(mesh, &desc, NULL);
    for (int i = 0; i < 4; i++)
        s.param[i] = ts_module_param(s.root, letters[i], TS_SHAPE(5), &options);
    TEST_OK(t, ts_module_groups(s.root, "b: rate=0.5 decay=0\nc: decay=1\nd: frozen\na: rate=1"));
    TEST_OK(t, ts_module_materialize(s.root));
    return s;
}

/* The gradient of every element is 1. */
static void backward(test *t, const small_tree *s)
{
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *sum = NULL;
    for (int i = 0; i < 4; i++) {
        ts_tensor *one = ts_sum(s->param[i], NULL, 0, 0);
        sum = sum ? ts_add(sum, one) : one;
    }
    TEST_OK(t, ts_backward(sum, NULL));
    ts_scope_close(scope);
}

static void check_values(test *t, const small_tree *s, const double *wanted)
{
    for (int i = 0; i < 4; i++) {
        double sum = NAN;
        ts_scope scope = ts_scope_open(t->me, NULL);
        TEST_OK(t, ts_tensor_item(ts_sum(ts_detach(s->param[i]), NULL, 0, 0), &sum));
        ts_scope_close(scope);
        TEST_SAY(t, fabs(sum / 5 - wanted[i]) < 1e-12, "%s: %.15g instead of %.15g", letters[i],
                 sum / 5, wanted[i]);
    }
}

/* SGD at a rate of 0.1 with a decay of 0.2: w - lr (g + decay w), both ways to step. */
TS_TEST_RANKS(groups_of_an_optimizer, 1, 2, 3)
{
    for (int with = 0; with < 2; with++) {
        ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
        small_tree s = tree(t, mesh);
        ts_sgd_options options = TS_INIT(ts_sgd_options);
        options.lr = 0.1;
        options.weight_decay = 0.2;
        ts_optimizer *o = ts_sgd_create(s.root, &options);
        double wanted[4] = { 1, 1, 1, 1 };
        const double rate[] = { 0.1, 0.05, 0.1, 0 }, decay[] = { 0.2, 0, 1, 0 };
        for (int step = 0; step < 3; step++) {
            backward(t, &s);
            TEST_OK(t, with ? ts_optimizer_step_with(o, NULL) : ts_optimizer_step(o));
            for (int i = 0; i < 4; i++)
                wanted[i] -= rate[i] * (1 + decay[i] * wanted[i]);
        }
        check_values(t, &s, wanted);
        ts_optimizer_destroy(o);
        ts_module_destroy(s.root);
        ts_mesh_release(mesh);
    }
}

typedef struct setting {
    const char *mesh;
    int64_t ranks;
} setting;
static const setting meshes[] = { { "dp=1", 1 },
                                  { "fsdp=3", 3 },
                                  { "replicate=2, tp=2", 4 },
                                  { "fsdp=2, cp=2", 4 },
                                  { "pp=2, fsdp=2", 4 } };
enum { MESHES = sizeof meshes / sizeof meshes[0] };

static void run_on(test *t, const folder *f, int i, const char *more, outcome *o)
{
    char text[1024], name[16];
    snprintf(name, sizeof name, "run%d", i);
    snprintf(text, sizeof text,
             "[model]\ndtype = f64\nlayers = 2\n[train]\nresume = 0\n%s[parallel]\nmesh = %s\n",
             more, meshes[i].mesh);
    TEST_OK(t, train(t, f, name, text, meshes[i].ranks, o));
}

/* One curve on all meshes, and another one than without. */
static void one_curve(test *t, const char *more)
{
    folder f = make_folder(t);
    outcome one = { 0 }, plain = { 0 };
    for (int i = 0; i < MESHES; i++) {
        outcome o = { 0 };
        run_on(t, &f, i, more, &o);
        if (i == 0) one = o;
        fprintf(stderr, "  %s\n", meshes[i].mesh);
        same_losses(t, &one, &o, STEPS, 1e-9);
    }
    run_on(t, &f, 0, "", &plain);
    TEST_CHECK(t, fabs(plain.loss[1] - one.loss[1]) < 1e-12);
    TEST_CHECK(t, fabs(plain.loss[STEPS] - one.loss[STEPS]) > 1e-4);
    remove_folder(&f);
}

TS_TEST(groups_on_meshes)
{
    one_curve(t, groups);
}

TS_TEST(groups_refused)
{
    static const struct {
        const char *said, *words;
    } rows[] = {
        { "*norn*: decay=0", "no parameter matches \"*norn*\"" },
        { "*norm*: decai=0",
          "expected rate=NUMBER, decay=NUMBER, adamw or frozen, found \"decai=0\"" },
        { "*norm*: rate=-1", "found \"rate=-1\"" },
        { "*norm*", "expected \"pattern: value\"" },
        { "*norm*:", "found \"\"" },
        { "*: frozen", "optimizer.groups: \"*: frozen\" leaves nothing to train" },
    };
    folder f = make_folder(t);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        outcome o = { 0 };
        char text[256];
        snprintf(text, sizeof text, "[optimizer]\ngroups = %s\n", rows[i].said);
        TEST_STATUS(t, train(t, &f, "run", text, 1, &o), TS_ERR_ARG);
        TEST_SAYS(t, o.error, rows[i].words);
    }
    remove_folder(&f);
}

/* A state of a run that trained more is not taken silently. */
TS_TEST(groups_and_states)
{
    folder f = make_folder(t);
    outcome o = { 0 };
    TEST_OK(t, train(t, &f, "run", "[train]\nstop_after = 2\n", 1, &o));
    TEST_STATUS(t, train(t, &f, "run", "[optimizer]\ngroups = lm_head.*: frozen\n", 1, &o),
                TS_ERR_STATE);
    TEST_SAYS(t, o.error, "lm_head.weight.exp_avg is there and not here (and 1 more)");
    TEST_OK(t, train(t, &f, "run", "[optimizer]\ngroups = lm_head.*: rate=0.5\n", 1, &o));
    TEST_EQ(t, o.step_first, 2);
    remove_folder(&f);
}

/* ---- the z-loss ------------------------------------------------------------------------------ */

TS_TEST(z_loss_on_meshes)
{
    one_curve(t, "[train]\naccumulate = 2\nz_loss = 0.5\n");
}

/* ---- logits some rows at a time -------------------------------------------------------------- */

/* The curve of logits of all rows; with tp, stages and z_loss there are no chunks. */
TS_TEST(loss_rows_on_meshes)
{
    static const char *const more[] = { "loss_rows = 3\naccumulate = 2\n",
                                        "loss_rows = -1\n[model]\ntied = 1\n",
                                        "loss_rows = 5\nz_loss = 0.1\n" };
    folder f = make_folder(t);
    for (size_t k = 0; k < sizeof more / sizeof *more; k++) {
        outcome whole = { 0 };
        run_on(t, &f, 0, strchr(more[k], '\n') + 1, &whole);
        for (int i = 0; i < MESHES; i++) {
            outcome o = { 0 };
            run_on(t, &f, i, more[k], &o);
            same_losses(t, &whole, &o, STEPS, 1e-9);
        }
    }
    remove_folder(&f);
}

static ts_status count_up(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = (global[0] * 5 + global[1] * 3) % 11;
    return TS_OK;
}

static double norm_of(test *t, ts_model *model, bool by_hand)
{
    enum { ROWS = 3, CONTEXT = 7 };
    double norm = NAN;
    const int64_t last = -1;
    ts_meta meta = { .shape = TS_SHAPE(ROWS, CONTEXT), .dtype = TS_DTYPE_I64 };
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tape_begin(t->me);
    ts_tensor *ids = ts_from_function(count_up, NULL, ts_model_tokens(model), meta);
    ts_tensor *loss;
    if (by_hand) {
        ts_tensor *logits = ts_model_logits(model, ids);
        ts_tensor *z = ts_square(ts_logsumexp(logits, &last, 1, 0));
        loss = ts_add(ts_cross_entropy(logits, ids),
                      ts_mul_scalar(ts_sum(z, NULL, 0, 0), 0.3 / (ROWS * CONTEXT)));
        loss = ts_mul_scalar(loss, 4.0);
    } else {
        loss = tsi_train_loss(&(tsi_rows_loss){ .model = model,
                                                .ids = ids,
                                                .labels = ids,
                                                .rows = ROWS,
                                                .context = CONTEXT,
                                                .z_loss = 0.3,
                                                .factor = 4.0 });
        loss = ts_mul_scalar(loss, 4.0);
    }
    TEST_OK(t, ts_backward(loss, NULL));
    ts_scope_close(scope);
    TEST_OK(t, ts_clip_grad_norm(ts_model_module(model), 0, &norm));
    TEST_OK(t, ts_module_reset(ts_model_module(model)));
    return norm;
}

/* Its gradient is that of a sum written out. */
TS_TEST_RANKS(z_loss_by_hand, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "tp=*");
    ts_model_config config = TS_INIT(ts_model_config);
    config.vocab = 11;
    config.hidden = 8;
    config.intermediate = 12;
    config.layers = 1;
    config.heads = config.kv_heads = 2;
    config.head_dim = 4;
    config.positions = 16;
    ts_model_options options = TS_INIT(ts_model_options);
    options.dtype = TS_DTYPE_F64;
    ts_model *model = ts_model_declare(mesh, &config, &options);
    TEST_OK(t, ts_model_materialize(model));
    double hand = norm_of(t, model, true), ours = norm_of(t, model, false);
    TEST_SAY(t, fabs(hand - ours) < 1e-10 * hand, "%.15g and %.15g", hand, ours);
    ts_model_destroy(model);
    ts_mesh_release(mesh);
}

/* ---- norms by module ------------------------------------------------------------------------- */

/* The number behind a name in the last line of norms.jsonl; NaN: there is none. */
static double module_norm(const char *text, const char *name)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", name);
    const char *last = strstr(text, "{\"step\": 6");
    const char *at = last ? strstr(last, quoted) : NULL;
    return at ? strtod(at + strlen(quoted), NULL) : (double)NAN;
}

TS_TEST(norms_by_module)
{
    static const char *const names[] = { "norm", "model.embed_tokens", "model.layers.0",
                                         "model.layers.1", "model.norm+lm_head" };
    enum { NAMES = sizeof names / sizeof names[0] };
    folder f = make_folder(t);
    double one[NAMES];
    for (int i = 0; i < MESHES; i++) {
        outcome o = { 0 };
        char path[FOLDER_PATH_MAX], *text = NULL;
        size_t length;
        run_on(t, &f, i, "[log]\nnorms = 3\n[train]\naccumulate = 2\nloss_scale = 8\n", &o);
        snprintf(path, sizeof path, "%s/run%d/norms.jsonl", f.path, i);
        TEST_OK(t, tsi_file_read(path, 1 << 20, &text, &length));
        TEST_CHECK(t, strncmp(text, "{\"step\": 3,", 11) == 0);
        double squares = 0;
        for (int k = 0; k < NAMES; k++) {
            double norm = module_norm(text, names[k]);
            if (i == 0) one[k] = norm;
            TEST_SAY(t, fabs(norm - one[k]) < 1e-9, "%s: %s is %g, not %g", meshes[i].mesh,
                     names[k], norm, one[k]);
            if (k > 0) squares += norm * norm;
        }
        TEST_SAY(t, fabs(sqrt(squares) - o.norm[STEPS]) < 1e-9, "%s: %g and %g", meshes[i].mesh,
                 sqrt(squares), o.norm[STEPS]);
        tsi_free(text);
    }
    remove_folder(&f);
}

/* ---- what is not finite ---------------------------------------------------------------------- */

TS_TEST(not_finite_is_found)
{
    /* Scores of weights of 1e6 are beyond f32 after the second step. */
    static const char wild[] = "[optimizer]\nrate = 1e6\nwarmup = 0\n";
    static const char narrow[] = "[model]\ncompute = f16\n[train]\nloss_scale = 1e30\n";
    static const struct {
        int mesh;
        const char *more, *words;
    } rows[] = {
        { 0, wild, "train: step 3: the loss is nan" },
        { 0, wild, "in model.layers.0.self_attn, forward" },
        { 2, wild, "in model.layers.0.self_attn, forward" },
        { 4, wild, "model.layers.0.self_attn, forward" },
        { 1, narrow, "train: step 1: " },
        { 1, narrow,
          "the weights were not changed; the first that is not finite, on rank 0: the "
          "output of" },
        { 1, narrow, ", backward" },
        { 0, "[optimizer]\nrate = 1e6\nwarmup = 0\n[train]\nfind_not_finite = 0\n",
          "the weights were not changed" },
    };
    folder f = make_folder(t);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        outcome o = { 0 };
        char text[512];
        snprintf(text, sizeof text,
                 "[model]\nlayers = 2\n[train]\nresume = 0\n%s[parallel]\n"
                 "mesh = %s\n",
                 rows[i].more, meshes[rows[i].mesh].mesh);
        TEST_STATUS(t, train(t, &f, "run", text, meshes[rows[i].mesh].ranks, &o), TS_ERR_STATE);
        TEST_SAYS(t, o.error, rows[i].words);
        bool said = strstr(o.error, "the first that is") != NULL;
        TEST_CHECK(t, said == !strstr(rows[i].more, "find_not_finite = 0"));
    }
    remove_folder(&f);
}

typedef struct spoilt { /* a model one of whose experts makes numbers beyond f32 */
    int64_t expert;
    char from[FOLDER_PATH_MAX], to[FOLDER_PATH_MAX];
} spoilt;

static ts_status factor_of(const int64_t *global, void *element, void *context)
{
    *(float *)element = global[0] == *(const int64_t *)context ? 1e25F : 1.0F;
    return TS_OK;
}

static ts_status spoil(ts_rank *me, void *argument)
{
    spoilt *s = argument;
    ts_mesh *mesh = ts_mesh_create(me, "dp=1");
    ts_model *m = ts_model_load(mesh, s->from, NULL);
    ts_scope scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tensor *w =
        ts_module_find_param(ts_model_module(m), "model.layers.1.mlp.experts.gate_up_proj");
    ts_meta meta = { .shape = TS_SHAPE(8, 1, 1), .dtype = TS_DTYPE_F32 };
    ts_tensor *factor =
        ts_from_function(factor_of, &s->expert, ts_layout_sharding(ts_tensor_layout(w)), meta);
    ts_status status = ts_tensor_write(w, ts_mul(w, factor));
    if (status == TS_OK) status = ts_model_save(m, s->to);
    ts_scope_close(scope);
    ts_model_destroy(m);
    ts_mesh_release(mesh);
    return status;
}

/* A step that ends the run moves no biases of routers: run again, the same experts are chosen. Of
 * the experts here some have more than their share of the tokens, and would be left by all. */
TS_TEST(not_finite_is_found_by_the_same_choice)
{
    folder f = make_folder(t);
    char text[4 * FOLDER_PATH_MAX];
    snprintf(text, sizeof text,
             "cp -r '" TS_SOURCE_DIR "/tests/golden/models/deepseek_v3' '%s/from' && sed -i "
             "'s/\"num_experts_per_tok\": 3/\"num_experts_per_tok\": 1/; s/\"n_group\": 2/"
             "\"n_group\": 1/' '%s/from/config.json'",
             f.path, f.path);
    TEST_EQ(t, system(text), 0);
    for (int64_t e = 0; e < 8; e++) {
        spoilt s = { .expert = e };
        outcome o = { 0 };
        ts_world_options options = { .struct_size = sizeof options,
                                     .engine = "threads",
                                     .rank_count = 1 };
        snprintf(s.from, sizeof s.from, "%s/from", f.path);
        snprintf(s.to, sizeof s.to, "%s/to%d", f.path, (int)e);
        TEST_OK(t, ts_launch_with(&options, spoil, &s, o.error, sizeof o.error));
        snprintf(text, sizeof text,
                 "[model]\ndirectory = %s\n[train]\nresume = 0\nreplay = %d\n[experts]\n"
                 "bias_rate = 1e3\n[parallel]\nmesh = dp=2\n",
                 s.to, (int)e % 2);
        TEST_STATUS(t, train(t, &f, "run", text, 2, &o), TS_ERR_STATE);
        TEST_SAYS(t, o.error, "model.layers.1.mlp.experts, forward");
    }
    remove_folder(&f);
}
