/* SPDX-License-Identifier: Apache-2.0 */
/* Random configurations on random meshes against one rank in f64: losses and norms, whole, and
 * stopped and gone on on other meshes; and the same bits with replays. TEST_CASES says how many;
 * the seed makes them again. */
#include <stdarg.h>

#include "dist/train_util.h"

enum { TAKEN = 6, RANKS_MAX = 12, TEXT = 2048 };

typedef struct draw { /* one configuration, without a mesh */
    char text[TEXT];
    bool experts, batch_loss; /* a loss of routers over a batch is no sum over micro-batches */
    int64_t layers;
} draw;

static void add(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(char *text, const char *format, ...)
{
    va_list values;
    size_t used = strlen(text);
    va_start(values, format);
    vsnprintf(text + used, TEXT - used, format, values);
    va_end(values);
}

static void draw_experts(test *t, const char *family, draw *d)
{
    int64_t experts = 2 + test_random_below(t, 4);
    add(d->text, "experts = %d\nexperts_per_token = %d\nexpert_width = %d\nroute_sum = %d\n",
        (int)experts, (int)(1 + test_random_below(t, 2)), (int)(4 + test_random_below(t, 9)),
        (int)test_random_below(t, 2));
    if (strcmp(family, "deepseek_v3") == 0)
        add(d->text, "kv_rank = 6\nq_rank = %d\nplain_dim = 4\nshared_experts = %d\n",
            (int)(5 * test_random_below(t, 2)), (int)test_random_below(t, 3));
    d->experts = true;
    d->batch_loss = test_random_below(t, 3) == 0;
    add(d->text, "[experts]\naux_loss = %g\nz_loss = %g\nsequence_loss = %g\n",
        d->batch_loss ? 0.01 : 0.0, 0.01 * (double)test_random_below(t, 2),
        0.01 * (double)test_random_below(t, 2));
}

static void draw_model(test *t, draw *d)
{
    static const char *const families[] = { "llama",   "qwen3",     "gpt2",
                                            "mixtral", "qwen3_moe", "deepseek_v3" };
    static const int heads[] = { 1, 2, 3, 4, 6 };
    int64_t f = test_random_below(t, 6), h = heads[test_random_below(t, 5)],
            size = 2 + 2 * test_random_below(t, 3), kv = h;
    bool gpt2 = f == 2, latent = f == 5;
    if (!gpt2 && !latent && test_random_below(t, 2)) kv = h % 2 == 0 ? h / 2 : 1;
    d->layers = 1 + test_random_below(t, 4);
    add(d->text,
        "[model]\ndtype = f64\ninit_deviation = 0.2\nfamily = %s\nlayers = %d\nheads = %d\n"
        "kv_heads = %d\nhead_dim = %d\nhidden = %d\nintermediate = %d\ntied = %d\n",
        families[f], (int)d->layers, (int)h, (int)kv, (int)size,
        (int)(gpt2 ? h * size : 8 + 2 * test_random_below(t, 6)),
        (int)(7 + 9 * test_random_below(t, 3)), (int)(gpt2 ? 1 : test_random_below(t, 3) == 0));
    if (f > 2) draw_experts(t, families[f], d);
    static const char *const groups[] = { "", "*norm*: decay=0", "*layers.0.*: frozen",
                                          "*embed_tokens*: frozen; *norm*: rate=0.5" };
    add(d->text, "[optimizer]\nkind = %s\nepsilon = 1e-4\ngroups = %s\n",
        test_random_below(t, 3) ? "adamw" : "sgd\nmomentum = 0.9",
        gpt2 ? "" : groups[test_random_below(t, 4)]);
}

static void draw_step(test *t, const folder *f, draw *d)
{
    static const int contexts[] = { 1, 2, 5, 8, 11, 13 };
    int64_t parts = 1 + test_random_below(t, 4);
    add(d->text,
        "[train]\nseed = %d\nbatch = %d\naccumulate = %d\nz_loss = %g\nclip = %g\n"
        "[data]\ncontext = %d\nshuffle = %d\n",
        (int)test_random_below(t, 100), (int)(parts * (1 + test_random_below(t, 3))), (int)parts,
        0.01 * (double)test_random_below(t, 2), test_random_below(t, 2) ? 0.5 : 0.0,
        contexts[test_random_below(t, 6)], (int)test_random_below(t, 2));
    if (test_random_below(t, 3) == 0) add(d->text, "documents = separate\nend = 10\n");
    if (test_random_below(t, 3) == 0)
        add(d->text, "held_out = %s/text.txt\nheld_out_rows = %d\n[train]\neval_every = 2\n",
            f->path, (int)(1 + test_random_below(t, 9)));
}

/* Returns the number of ranks; the lines go to `out`, of TEXT bytes. */
static int64_t draw_mesh(test *t, const draw *d, char *out)
{
    static const char *const axes[] = { "pp", "replicate", "fsdp", "cp", "tp" };
    static const char *const schedules[] = { "1F1B", "GPipe", "ZBVZeroBubble" };
    static const char *const recompute[] = { "none", "full", "select", "2" };
    int64_t ranks = 1, stages = 0;
    snprintf(out, TEXT, "[parallel]\nmesh = ");
    for (int k = 0; k < 5; k++) {
        int64_t size = test_random_below(t, 2) ? 0 : 1 + test_random_below(t, 4);
        bool deep = k == 0 && 2 * size > d->layers + 2; /* two stages of a rank */
        if (size == 0 || deep || ranks * size > RANKS_MAX) continue;
        add(out, "%s%s=%d", ranks > 1 || strchr(out, '=') != strrchr(out, '=') ? ", " : "", axes[k],
            (int)size);
        ranks *= size;
        if (k == 0) stages = size;
    }
    if (strchr(out, '=') == strrchr(out, '=')) add(out, "dp=1");
    add(out, "\nrecompute = %s\nplan = %s\n", recompute[test_random_below(t, 4)],
        strstr(out, "tp=") && test_random_below(t, 2) ? "tp" : "");
    if (stages > 0)
        add(out, "schedule = %s\nmicro_batches = %d\n", schedules[test_random_below(t, 3)],
            (int)(d->batch_loss ? 1 : 1 + test_random_below(t, 5)));
    add(out, "[train]\nreplay = %d\n[checkpoint]\nasync = %d\n", (int)test_random_below(t, 2),
        (int)test_random_below(t, 2));
    return ranks;
}

static void same_run(test *t, const outcome *a, const outcome *b, int first, int last)
{
    for (int s = first; s <= last; s++)
        TEST_SAY(t,
                 fabs(a->loss[s] - b->loss[s]) <= 1e-9 &&
                     fabs(a->norm[s] - b->norm[s]) <= 1e-7 * (1 + a->norm[s]) &&
                     (isnan(a->eval[s]) || fabs(a->eval[s] - b->eval[s]) <= 1e-9),
                 "step %d: loss %.17g, norm %.17g, held out %.17g; on the mesh %.17g, %.17g, %.17g",
                 s, a->loss[s], a->norm[s], a->eval[s], b->loss[s], b->norm[s], b->eval[s]);
}

/* One rank; a mesh; and three meshes, two steps each. */
static void try_one(test *t, int number)
{
    folder f = make_folder(t);
    draw d = { .text = "" };
    outcome one = { 0 }, other = { 0 };
    char mesh[TEXT], all[3 * TEXT];
    draw_model(t, &d);
    draw_step(t, &f, &d);
    TEST_OK(t, train(t, &f, "one", d.text, 1, &one));
    for (int k = 0; k < 4; k++) {
        int64_t ranks = draw_mesh(t, &d, mesh);
        int stop = k == 0 ? TAKEN : 2 * k;
        snprintf(all, sizeof all, "%s%s[train]\nstop_after = %d\n", d.text, mesh, stop);
        ts_status status = train(t, &f, k == 0 ? "mesh" : "parts", all, ranks, &other);
        TEST_OK(t, status);
        if (status == TS_OK) same_run(t, &one, &other, k == 0 ? 1 : stop - 1, stop);
        if (status != TS_OK) break;
    }
    fprintf(stderr, "  case %d\n", number);
    remove_folder(&f);
}

enum {
    AGAIN = 10
}; /* two as usual, one recorded, three replays as recorded, four in another order */

/* The same run with replays, as recorded and in another order: the same bits. */
static void try_replays(test *t, int number)
{
    folder f = make_folder(t);
    draw d = { .text = "" };
    outcome usual = { 0 }, again = { 0 };
    char mesh[TEXT], all[3 * TEXT];
    draw_model(t, &d);
    draw_step(t, &f, &d);
    int64_t ranks = draw_mesh(t, &d, mesh);
    for (int replay = 0; replay <= 2; replay += 2) {
        snprintf(all, sizeof all, "%s%s[train]\nsteps = %d\nreplay = %d\n", d.text, mesh, AGAIN,
                 replay);
        ts_status status =
            train(t, &f, replay ? "again" : "usual", all, ranks, replay ? &again : &usual);
        TEST_SAY(t, status == TS_OK, "%s", all);
        if (status != TS_OK) break;
    }
    for (int i = 1; i <= AGAIN && !test_failed(t); i++)
        TEST_SAY(t,
                 memcmp(&usual.loss[i], &again.loss[i], sizeof(double)) == 0 &&
                     memcmp(&usual.norm[i], &again.norm[i], sizeof(double)) == 0,
                 "step %d: loss %.17g, norm %.17g; replayed %.17g, %.17g; %s", i, usual.loss[i],
                 usual.norm[i], again.loss[i], again.norm[i], all);
    fprintf(stderr, "  case %d: %lld replays\n", number, (long long)again.result.replays);
    remove_folder(&f);
}

TS_TEST(random_configurations_run_again)
{
    const char *said = getenv("TEST_CASES");
    int cases = said ? atoi(said) : 1;
    for (int i = 0; i < cases; i++)
        try_replays(t, i);
}

TS_TEST(random_configurations_are_one_rank)
{
    const char *said = getenv("TEST_CASES");
    int cases = said ? atoi(said) : 5;
    for (int i = 0; i < cases; i++)
        try_one(t, i);
}
