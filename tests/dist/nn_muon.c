/* SPDX-License-Identifier: Apache-2.0 */
/* nn_muon.c - Muon against a plain loop, and the same bits on every mesh and layout. */
#include "checkpoint_util.h"
#include "muon_util.h"
#include "parallel_util.h"

/* ---- the plain loop -------------------------------------------------------------------------- */

enum { STEPS = 3 };
static const double rate = 0.05, decay = 0.1, mu = 0.95, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;

static void multiply(const double *a, const double *b, double *out, int64_t m, int64_t k, int64_t n)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += a[i * k + l] * b[l * n + j];
            out[i * n + j] = sum;
        }
}

/* x [m, n], m <= n. */
static void quintic(double *x, int64_t m, int64_t n)
{
    double a[144], aa[144], ax[144], flipped[144];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            flipped[j * m + i] = x[i * n + j];
    multiply(x, flipped, a, m, n, m);
    multiply(a, a, aa, m, m, m);
    for (int64_t i = 0; i < m * m; i++)
        a[i] = -4.7750 * a[i] + 2.0315 * aa[i];
    multiply(a, x, ax, m, m, n);
    for (int64_t i = 0; i < m * n; i++)
        x[i] = 3.4445 * x[i] + ax[i];
}

static void orthogonal(const double *d, double *out, int64_t m, int64_t n)
{
    double x[144], norm = 0;
    int tall = m > n;
    for (int64_t i = 0; i < m * n; i++)
        norm += d[i] * d[i];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            x[tall ? j * m + i : i * n + j] = d[i * n + j] / fmax(sqrt(norm), 1e-7);
    for (int round = 0; round < 5; round++)
        quintic(x, tall ? n : m, tall ? m : n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            out[i * n + j] = x[tall ? j * m + i : i * n + j];
}

typedef struct plain { /* state of one parameter */
    double w[144], first[144], second[144];
} plain;

static void plain_muon(plain *p, const double *g, int64_t m, int64_t n, int adjust)
{
    double d[144], o[144];
    double by = adjust == TS_MUON_ADJUST_RMS ? 0.2 * sqrt(fmax((double)m, (double)n))
                                             : sqrt(fmax(1.0, (double)m / (double)n));
    for (int64_t i = 0; i < m * n; i++) {
        p->first[i] = mu * p->first[i] + g[i];
        d[i] = g[i] + mu * p->first[i];
    }
    orthogonal(d, o, m, n);
    for (int64_t i = 0; i < m * n; i++)
        p->w[i] -= rate * (decay * p->w[i] + by * o[i]);
}

static void plain_adamw(plain *p, const double *g, int64_t count, int step)
{
    for (int64_t i = 0; i < count; i++) {
        p->first[i] = beta1 * p->first[i] + (1 - beta1) * g[i];
        p->second[i] = beta2 * p->second[i] + (1 - beta2) * g[i] * g[i];
        double m = p->first[i] / (1 - pow(beta1, step)), v = p->second[i] / (1 - pow(beta2, step));
        p->w[i] -= rate * (decay * p->w[i] + m / (sqrt(v) + epsilon));
    }
}

/* Values after STEPS steps, of parameters that begin as those of the net; `adamw`: bits of who goes
 * by it. */
static void plain_run(test *t, double *value, uint32_t adamw, int adjust)
{
    for (int i = 0; i < MUON_SHAPES; i++) {
        const int64_t *x = muon_shapes[i].extent;
        int64_t m = x[2] ? x[1] : x[0], n = x[2] ? x[2] : x[1] ? x[1] : 1, e = x[2] ? x[0] : 1;
        plain p[5] = { { { 0 }, { 0 }, { 0 } } };
        for (int64_t k = 0; k < e; k++)
            memcpy(p[k].w, value + k * m * n, (size_t)(m * n) * sizeof *value);
        for (int step = 1; step <= STEPS; step++) {
            ts_scope scope = ts_scope_open(t->me, NULL);
            double g[144];
            muon_read(t, muon_slope(ts_mesh_self(t->me), TS_DTYPE_F64, i, step), g);
            for (int64_t k = 0; k < e; k++) {
                const double *of = g + k * m * n;
                if (adamw >> i & 1)
                    plain_adamw(&p[k], of, m * n, step);
                else
                    plain_muon(&p[k], of, m, n, adjust);
            }
            ts_scope_close(scope);
        }
        for (int64_t k = 0; k < e; k++)
            memcpy(value + k * m * n, p[k].w, (size_t)(m * n) * sizeof *value);
        value += e * m * n;
    }
}

static void check_close(test *t, const double *got, const double *want, int64_t count,
                        double within, const char *what)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++)
        worst = fmax(worst, fabs(got[i] - want[i]));
    TEST_SAY(t, worst <= within, "%s: off by %g", what, worst);
}

TS_TEST_RANKS(muon_is_the_plain_loop, 1, 2, 3)
{
    static const struct {
        const char *what, *adamw, *groups;
        int adjust;
        uint32_t by_adamw;
    } row[] = {
        { "as it is", NULL, NULL, TS_MUON_ADJUST_RMS, 1 << 0 | 1 << 6 },
        { "original", NULL, NULL, TS_MUON_ADJUST_ORIGINAL, 1 << 0 | 1 << 6 },
        { "patterns", "row*, head.weight", NULL, TS_MUON_ADJUST_RMS, 1 << 5 | 1 << 6 | 1 << 7 },
        { "none", "", NULL, TS_MUON_ADJUST_RMS, 1 << 6 },
        { "groups", "", "experts: adamw", TS_MUON_ADJUST_RMS, 1 << 4 | 1 << 6 },
    };
    for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
        double got[MUON_VALUES], want[MUON_VALUES];
        muon_net n = muon_net_make(t, ts_mesh_create(t->me, "fsdp=*"), TS_DTYPE_F64, "*: fsdp:S(0)",
                                   row[r].groups);
        n.optimizer =
            ts_muon_create(n.root, &(ts_muon_options){ .struct_size = sizeof(ts_muon_options),
                                                       .lr = rate,
                                                       .weight_decay = decay,
                                                       .adjust = row[r].adjust,
                                                       .adamw = row[r].adamw });
        muon_values(t, &n, want);
        for (int step = 1; step <= STEPS; step++) {
            TEST_OK(t, muon_backward(&n, step, 1.0));
            TEST_OK(t, ts_optimizer_step(n.optimizer));
        }
        plain_run(t, want, row[r].by_adamw, row[r].adjust);
        check_close(t, got, want, muon_values(t, &n, got), 1e-12, row[r].what);
        muon_net_end(&n);
    }
}

/* ---- PyTorch's ------------------------------------------------------------------------------- */

typedef struct numbers { /* of a matrix, row by row */
    const ts_json *list;
    int64_t columns;
} numbers;

static ts_status number_at(const int64_t *global, void *element, void *context)
{
    const numbers *s = context;
    const ts_json *item = ts_json_item(s->list, global[0] * s->columns + global[1]);
    *(double *)element = ts_json_real(item, 0);
    return TS_OK;
}

static ts_status begin_as(ts_tensor *parameter, const char *name, void *state)
{
    (void)name;
    ts_meta meta = { .shape = ts_tensor_shape(parameter), .dtype = TS_DTYPE_F64 };
    ts_scope scope = ts_scope_open(ts_tensor_rank(parameter), NULL);
    ts_tensor *value =
        ts_from_function(number_at, state, ts_layout_sharding(ts_tensor_layout(parameter)), meta);
    ts_status status = ts_tensor_write(parameter, ts_cast(value, ts_tensor_dtype(parameter)));
    ts_scope_close(scope);
    return status;
}

/* A matrix of the file after its steps, on rows that are cut; `want` is the key of what it is then.
 */
static void check_row(test *t, const ts_json *all, const ts_json *row, const char *want,
                      double within)
{
    bool exact = strcmp(want, "exact") == 0;
    ts_dtype dtype = exact ? TS_DTYPE_F64 : TS_DTYPE_F32;
    const ts_json *shape = ts_json_member(row, "shape"), *list = ts_json_member(row, "slopes");
    int64_t m = ts_json_int(ts_json_item(shape, 0), 0), n = ts_json_int(ts_json_item(shape, 1), 0);
    double value[64] = { 0 }, end[64] = { 0 };
    numbers begin = { ts_json_member(row, "begin"), n };
    ts_param_options param = { .struct_size = sizeof param,
                               .stored = "S(0)",
                               .init = begin_as,
                               .init_state = &begin,
                               .init_bytes = sizeof begin,
                               .dtype = (int32_t)dtype };
    static const ts_module_desc desc = { .struct_size = sizeof desc, .type = "one" };
    ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
    ts_module *root = ts_module_create(mesh, &desc, NULL);
    ts_tensor *w = ts_module_param(root, "w", TS_SHAPE(m, n), &param);
    TEST_OK(t, ts_module_materialize(root));
    ts_muon_options options = TS_INIT(ts_muon_options);
    options.lr = ts_json_real(ts_json_member(all, "lr"), 0);
    options.weight_decay = ts_json_real(ts_json_member(all, "weight_decay"), 0);
    options.momentum = ts_json_real(ts_json_member(all, "momentum"), 0);
    options.dtype = exact ? 0 : TS_DTYPE_BF16;
    if (strcmp(ts_json_text(ts_json_member(row, "adjust"), ""), "original") == 0)
        options.adjust = TS_MUON_ADJUST_ORIGINAL;
    ts_optimizer *o = ts_muon_create(root, &options);
    for (int64_t step = 0; step < ts_json_count(list); step++) {
        numbers s = { ts_json_item(list, step), n };
        ts_meta meta = { .shape = TS_SHAPE(m, n), .dtype = TS_DTYPE_F64 };
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tensor *c = ts_from_function(number_at, &s, ts_sharding_get(mesh, "S(0)"), meta);
        ts_tape_begin(t->me);
        TEST_OK(t, ts_backward(ts_sum(ts_mul(w, ts_cast(c, dtype)), NULL, 0, 0), NULL));
        ts_scope_close(scope);
        TEST_OK(t, ts_optimizer_step(o));
    }
    ts_scope scope = ts_scope_open(t->me, NULL);
    muon_read(t, ts_tensor_full(ts_cast(w, TS_DTYPE_F64)), value);
    ts_scope_close(scope);
    for (int64_t i = 0; i < m * n; i++)
        end[i] = ts_json_real(ts_json_item(ts_json_member(row, want), i), 0);
    check_close(t, value, end, m * n, within, want);
    ts_optimizer_destroy(o);
    ts_module_destroy(root);
}

/* Without rounding to 1e-12. In bf16, which is rounded at other places (sums of products here,
 * which PyTorch adds up in f32), to 4 % of what three steps may move an element: rate sqrt(9 / 4)
 * each. */
TS_TEST_RANKS(muon_is_that_of_pytorch, 1, 2)
{
    static _Thread_local char text[1 << 15];
    ts_json_document *document = NULL;
    FILE *file = fopen(TS_SOURCE_DIR "/tests/golden/muon.json", "r");
    TEST_CHECK(t, file != NULL);
    if (!file) return;
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    TEST_OK(t, ts_json_parse("muon.json", text, length, &document));
    const ts_json *all = ts_json_root(document), *rows = ts_json_member(all, "rows");
    TEST_EQ(t, ts_json_count(rows), 4);
    for (int64_t i = 0; i < ts_json_count(rows); i++) {
        check_row(t, all, ts_json_item(rows, i), "exact", 1e-12);
        check_row(t, all, ts_json_item(rows, i), "end", 8e-3);
    }
    ts_json_release(document);
}

/* ---- one rank, and any mesh ------------------------------------------------------------------ */

typedef struct way {
    int32_t ranks, decides;
    const char *mesh, *plan;
} way;

static void train(test *t, ts_mesh *mesh, const way *w, ts_dtype dtype, int32_t product,
                  double *out)
{
    muon_net n = muon_net_make(t, mesh, dtype, w->plan, "tall*: rate=0.5\nsquare*: decay=0");
    n.left_out = 2;
    n.optimizer = ts_muon_create(
        n.root, TS_OPTIONS(ts_muon_options, .lr = rate, .weight_decay = decay, .dtype = product));
    ts_step_options options = { .struct_size = sizeof options, .grad_scale = 8 };
    for (int step = 1; step <= STEPS; step++) {
        TEST_OK(t, muon_backward(&n, step, w->decides ? 8.0 : 1.0));
        TEST_OK(t, w->decides ? ts_optimizer_step_with(n.optimizer, &options)
                              : ts_optimizer_step(n.optimizer));
    }
    memset(out, 0, MUON_VALUES * sizeof *out);
    muon_values(t, &n, out);
    muon_net_end(&n);
}

TS_TEST_RANKS(muon_has_the_bits_of_one_rank, 1, 2, 3, 4, 8)
{
    static const way ways[] = {
        { 1, 0, "x=1", NULL },
        { 1, 1, "x=1", NULL },
        { 2, 0, "fsdp=2", "*: fsdp:S(0)" },
        { 2, 1, "fsdp=2", "*: fsdp:S(0)" },
        { 2, 0, "replicate=2", NULL },
        { 2, 0, "tp=2", "wide*: tp:S(1)\ntall*: tp:S(0)\nexperts: tp:S(2)" },
        { 3, 0, "fsdp=3", "*: fsdp:S(0)" },
        { 3, 1, "ep=3", "experts: ep:S(0)\nsquare*: ep:RS(1:2,0,5)\nwide*: ep:HT(1)" },
        { 4, 0, "fsdp=4", "*: fsdp:S(0)" },
        { 4, 1, "replicate=2, fsdp=2", "*: fsdp:S(0)" },
        { 4, 0, "fsdp=2, tp=2",
          "wide*: fsdp:S(0)[1] tp:S(0)[0]\ntall*: fsdp:S(0) tp:S(1)\nexperts: fsdp:S(0) tp:S(1)\n"
          "*: fsdp:S(0)" },
        { 4, 0, "a=2, b=2", "square*: a:SS(1,2) b:S(1)\n*: a:S(0) b:S(0)" },
        { 8, 0, "fsdp=8", "*: fsdp:S(0)" },
        { 8, 1, "replicate=2, fsdp=2, tp=2", "experts: fsdp:S(0) tp:S(2)\n*: fsdp:S(0)" },
    };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F64, TS_DTYPE_BF16, TS_DTYPE_F32 };
    for (int k = 0; k < 4; k++) {
        double want[MUON_VALUES], got[MUON_VALUES];
        int32_t product = k == 3 ? TS_DTYPE_BF16 : 0;
        train(t, ts_mesh_self(t->me), &ways[0], dtypes[k], product, want);
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            if (ways[i].ranks != t->count) continue;
            train(t, ts_mesh_create(t->me, ways[i].mesh), &ways[i], dtypes[k], product, got);
            TEST_SAY(t, memcmp(got, want, sizeof got) == 0, "%s, %s, products %d: other bits",
                     ways[i].mesh, ts_dtype_name(dtypes[k]), product);
        }
    }
}

/* ---- units ----------------------------------------------------------------------------------- */

/* Units whose shards peers read where they lie, and copies: the same bits after each step. */
TS_TEST_RANKS(muon_of_units, 2, 3, 4)
{
    static const char *const meshes[] = { "fsdp=*", "replicate=*" };
    double loss[2][4] = { { 0 } };
    for (int i = 0; i < 2; i++) {
        net n = { .count = 3, .width = 6, .rows = 5, .leaves = -1, .dtype = TS_DTYPE_F32 };
        ts_fsdp_options usual = { .struct_size = sizeof usual };
        net_declare(&n, ts_mesh_create(t->me, meshes[i]), false);
        TEST_OK(t, net_begin(&n, &usual));
        ts_optimizer_destroy(n.optimizer);
        n.optimizer = ts_muon_create(n.root, TS_OPTIONS(ts_muon_options, .lr = 0.02));
        for (int step = 0; step < 4; step++) {
            loss[i][step] = net_run(&n, step, 0, 1);
            TEST_OK(t, step % 2 ? ts_optimizer_step(n.optimizer)
                                : ts_optimizer_step_with(n.optimizer, NULL));
        }
        net_end(&n);
    }
    for (int step = 0; step < 4; step++)
        TEST_SAY(t, loss[0][step] == loss[1][step], "step %d: %.17g and %.17g", step, loss[0][step],
                 loss[1][step]);
    TEST_CHECK(t, loss[0][3] != loss[0][0]);
}

/* ---- steps that are left out ----------------------------------------------------------------- */

/* Steps whose gradients are not finite change neither parameters nor momentum, on all ranks. */
TS_TEST_RANKS(muon_leaves_out_what_is_not_finite, 1, 2, 3)
{
    double value[2][MUON_VALUES] = { { 0 } };
    for (int k = 0; k < 2; k++) {
        muon_net n =
            muon_net_make(t, ts_mesh_create(t->me, "fsdp=*"), TS_DTYPE_F32, "*: fsdp:S(0)", NULL);
        n.optimizer = ts_muon_create(n.root, TS_OPTIONS(ts_muon_options, .lr = rate));
        const ts_step_options options = { .struct_size = sizeof options, .skips = 1 };
        for (int step = 1; step <= 3; step++) {
            ts_step_outcome is = { .struct_size = sizeof is };
            if (k == 1 && step > 1) {
                TEST_OK(t, muon_backward(&n, 9, (double)INFINITY));
                TEST_OK(t, ts_optimizer_step_with(n.optimizer, &options));
                TEST_OK(t, ts_optimizer_outcome(n.optimizer, ts_optimizer_begun(n.optimizer), &is));
                TEST_EQ(t, is.updated, 0);
            }
            TEST_OK(t, muon_backward(&n, step, 1));
            TEST_OK(t, ts_optimizer_step_with(n.optimizer, &options));
            TEST_OK(t, ts_optimizer_outcome(n.optimizer, ts_optimizer_begun(n.optimizer), &is));
            TEST_EQ(t, is.updated, 1);
        }
        TEST_EQ(t, ts_optimizer_steps(n.optimizer), 3);
        muon_values(t, &n, value[k]);
        muon_net_end(&n);
    }
    TEST_CHECK(t, memcmp(value[0], value[1], sizeof value[0]) == 0);
}

/* Directions do not follow the size of gradients; AdamW's parts do, if they are clipped, no more.
 */
TS_TEST_RANKS(muon_is_clipped_in_its_momentum_alone, 1, 2)
{
    double value[3][MUON_VALUES] = { { 0 } };
    for (int k = 0; k < 3; k++) {
        muon_net n =
            muon_net_make(t, ts_mesh_create(t->me, "fsdp=*"), TS_DTYPE_F64, "*: fsdp:S(0)", NULL);
        n.optimizer = ts_muon_create(n.root, TS_OPTIONS(ts_muon_options, .lr = rate));
        ts_step_options options = { .struct_size = sizeof options, .norm_max = k ? 1e-3 : 0 };
        for (int step = 1; step <= 2; step++) {
            TEST_OK(t, muon_backward(&n, step, k == 2 ? 64 : 1));
            TEST_OK(t, ts_optimizer_step_with(n.optimizer, &options));
        }
        muon_values(t, &n, value[k]);
        muon_net_end(&n);
    }
    /* Gradients of both steps are scaled to one norm, by other factors: other directions. */
    check_close(t, value[1], value[2], MUON_VALUES, 1e-6, "clipped, whatever the factor");
    double most = 0;
    for (int i = 0; i < MUON_VALUES; i++)
        most = fmax(most, fabs(value[0][i] - value[1][i]));
    TEST_SAY(t, most > 1e-4 && most < 1, "clipped and not: %g", most);
}

/* ---- its state ------------------------------------------------------------------------------- */

typedef struct listed {
    char names[512];
    int32_t others;
} listed;

static ts_status list_name(const char *name, ts_tensor *state, void *context)
{
    listed *l = context;
    size_t used = strlen(l->names);
    snprintf(l->names + used, sizeof l->names - used, "%s ", name);
    l->others += ts_tensor_dtype(state) != TS_DTYPE_F32;
    return TS_OK;
}

/* Two steps, a save; loaded on another mesh the next steps have the bits of those that went on. */
TS_TEST_RANKS(muon_goes_on_elsewhere, 2, 3, 4)
{
    char path[PATH];
    double value[2][MUON_VALUES] = { { 0 } };
    static const char *const plans[] = { "*: fsdp:S(0)", "wide*: fsdp:S(1)\nembed*: fsdp:S(1)" };
    make_path(t, "muon", path);
    for (int k = 0; k < 2; k++) {
        ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
        muon_net n = muon_net_make(t, mesh, TS_DTYPE_F32, plans[k], NULL);
        n.optimizer = ts_muon_create(n.root, TS_OPTIONS(ts_muon_options, .lr = rate));
        ts_state *state = ts_state_create(mesh);
        TEST_OK(t, ts_state_add_module(state, "", n.root));
        TEST_OK(t, ts_state_add_optimizer(state, "", n.optimizer));
        if (k == 1) TEST_OK(t, ts_checkpoint_load(state, path, NULL));
        TEST_EQ(t, ts_optimizer_steps(n.optimizer), 2 * k);
        for (int step = 1 + 2 * k; step <= 4; step++) {
            if (step == 3 && k == 0) TEST_OK(t, ts_checkpoint_save(state, path, NULL));
            TEST_OK(t, muon_backward(&n, step, 1));
            TEST_OK(t, ts_optimizer_step(n.optimizer));
        }
        muon_values(t, &n, value[k]);
        listed names = { "", 0 };
        TEST_OK(t, ts_optimizer_each(n.optimizer, list_name, &names));
        TEST_TEXT(t, names.names,
                  "embed.weight.exp_avg embed.weight.exp_avg_sq wide.weight.exp_avg "
                  "tall.weight.exp_avg square.weight.exp_avg experts.exp_avg row.weight.exp_avg "
                  "norm.weight.exp_avg norm.weight.exp_avg_sq head.weight.exp_avg ");
        TEST_EQ(t, names.others, 0);
        ts_state_destroy(state);
        muon_net_end(&n);
    }
    TEST_CHECK(t, memcmp(value[0], value[1], sizeof value[0]) == 0);
    remove_path(t, path);
}

/* Parameters that are laid out anew between steps, on another mesh too. */
TS_TEST_RANKS(muon_follows_its_parameters, 2, 4)
{
    double value[2][MUON_VALUES] = { { 0 } };
    for (int k = 0; k < 2; k++) {
        ts_mesh *mesh = ts_mesh_create(t->me, "fsdp=*");
        muon_net n = muon_net_make(t, mesh, TS_DTYPE_F32, "*: fsdp:S(0)", NULL);
        n.optimizer = ts_muon_create(n.root, TS_OPTIONS(ts_muon_options, .lr = rate));
        for (int step = 1; step <= STEPS; step++) {
            for (int i = 1; k == 1 && step > 1 && i < 5; i++)
                TEST_OK(
                    t, ts_tensor_relayout(n.w[i], ts_sharding_get(mesh, step == 2 ? "S(1)" : "R")));
            TEST_OK(t, muon_backward(&n, step, 1));
            TEST_OK(t, ts_optimizer_step(n.optimizer));
        }
        muon_values(t, &n, value[k]);
        muon_net_end(&n);
    }
    TEST_CHECK(t, memcmp(value[0], value[1], sizeof value[0]) == 0);
}

/* Defaults are those of no options, and every number of real ones is meant: a rate of 0 too. */
TS_TEST_RANKS(muon_does_what_its_options_say, 1, 2)
{
    ts_muon_options real, zeros = TS_INIT(ts_muon_options);
    ts_muon_options_init(&real);
    TEST_EQ(t, (int64_t)real.struct_size, (int64_t)sizeof real);
    ts_muon_options still = real, forgets = real;
    still.lr = 0;
    forgets.momentum = 0;
    const ts_muon_options *given[] = { NULL, &zeros, &real, &still, &forgets };
    double value[5][MUON_VALUES] = { { 0 } }, before[MUON_VALUES] = { 0 };
    for (int k = 0; k < 5; k++) {
        muon_net n =
            muon_net_make(t, ts_mesh_create(t->me, "fsdp=*"), TS_DTYPE_F32, "*: fsdp:S(0)", NULL);
        n.optimizer = ts_muon_create(n.root, given[k]);
        muon_values(t, &n, before);
        for (int step = 1; step <= 2; step++) {
            TEST_OK(t, muon_backward(&n, step, 1));
            TEST_OK(t, ts_optimizer_step(n.optimizer));
        }
        muon_values(t, &n, value[k]);
        muon_net_end(&n);
    }
    TEST_CHECK(t, memcmp(value[0], value[1], sizeof before) == 0);
    TEST_CHECK(t, memcmp(value[0], value[2], sizeof before) == 0);
    TEST_CHECK(t, memcmp(value[3], before, sizeof before) == 0);
    TEST_CHECK(t, memcmp(value[4], value[0], sizeof before) != 0);
}

/* ---- bad inputs ------------------------------------------------------------------------------ */

static void check_refused(test *t, const muon_net *n, ts_muon_options o, ts_status want,
                          const char *words)
{
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    o.struct_size = sizeof o;
    TEST_CHECK(t, ts_muon_create(n->root, &o) == NULL);
    TEST_STATUS(t, ts_scope_close(scope), want);
    if (ts_rank_error(t->me)) TEST_SAYS(t, ts_rank_error(t->me)->text, words);
}

TS_TEST_RANKS(muon_refuses, 1, 2)
{
    muon_net n = muon_net_make(t, ts_mesh_create(t->me, "fsdp=*"), TS_DTYPE_F32, NULL, NULL);
    TEST_CHECK(t, ts_muon_create(NULL, NULL) == NULL);
    check_refused(t, &n, (ts_muon_options){ .lr = -1 }, TS_ERR_ARG, "muon: the rate is -1");
    check_refused(t, &n, (ts_muon_options){ .lr = (double)NAN }, TS_ERR_ARG, "the rate is nan");
    check_refused(t, &n, (ts_muon_options){ .momentum = 1 }, TS_ERR_ARG,
                  "muon: the momentum is 1; it is a number from 0 on, and below 1");
    check_refused(t, &n, (ts_muon_options){ .momentum = (double)NAN }, TS_ERR_ARG,
                  "the momentum is nan");
    check_refused(t, &n, (ts_muon_options){ .beta2 = 1 }, TS_ERR_ARG, "muon: beta2 is 1");
    check_refused(t, &n, (ts_muon_options){ .weight_decay = -1 }, TS_ERR_ARG, "decay is -1");
    check_refused(t, &n, (ts_muon_options){ .steps = -2 }, TS_ERR_ARG,
                  "muon: -2 steps of Newton-Schulz; there are 1 to 100");
    check_refused(t, &n, (ts_muon_options){ .adjust = 7 }, TS_ERR_ARG,
                  "muon: there is no way 7 to adjust rates");
    check_refused(t, &n, (ts_muon_options){ .dtype = TS_DTYPE_I32 }, TS_ERR_DTYPE,
                  "muon: products are of f32 or bf16, not of i32");
    check_refused(t, &n, (ts_muon_options){ .moments = TS_DTYPE_F16 }, TS_ERR_DTYPE,
                  "muon: moments are f32 or bf16, not f16");
    check_refused(t, &n, (ts_muon_options){ .adamw = "wide*, haed.weight" }, TS_ERR_ARG,
                  "muon, line 2: no parameter matches \"haed.weight\"; did you mean head.weight");
    ts_optimizer *o = ts_muon_create(n.root, NULL);
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_STATUS(t, ts_optimizer_rate(o, -2), TS_ERR_ARG);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
    TEST_SAYS(t, ts_rank_error(t->me)->text, "muon: the rate is -2");
    ts_optimizer_destroy(o);
    muon_net_end(&n);
}
