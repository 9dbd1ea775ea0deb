/* SPDX-License-Identifier: Apache-2.0 */
/* train_replay.c - whole runs with train.replay against the same runs without it: bit for bit, on
 * the meshes of the other tests; where steps cannot be run again, they run as usual. */
#include "dist/train_util.h"

enum { TAKEN = 13 }; /* two as usual, one recorded, ten replays */

#define SIZES                                                                                      \
    "[model]\nlayers = 2\nheads = 4\nkv_heads = 2\n[data]\ncontext = 11\n"                         \
    "[train]\nsteps = 13\nbatch = 5\nreplay = "

#define LATENT                                                                                     \
    "[model]\nfamily = deepseek_v3\nkv_heads = 4\nexperts = 4\nexperts_per_token = 2\n"            \
    "expert_width = 8\nkv_rank = 6\nplain_dim = 4\nshared_experts = 1\n"
#define EXPERTS "[model]\nfamily = mixtral\nexperts = 4\nexperts_per_token = 2\n"

/* USUAL: its steps cannot be run again. EVALUATES: held-out rows between them. */
typedef enum kind { AGAIN, USUAL, EVALUATES } kind;

typedef struct setting {
    const char *mesh, *more;
    int64_t ranks;
    kind how;
} setting;

static void write_config(char *text, size_t size, const folder *f, const setting *s, int replay)
{
    int length =
        snprintf(text, size, SIZES "%d\n%s[parallel]\nmesh = %s\n", replay, s->more, s->mesh);
    if (s->how == EVALUATES)
        snprintf(text + length, size - (size_t)length,
                 "[data]\nheld_out = %s/few.txt\n[train]\neval_every = 6\n", f->path);
}

/* Loads of experts, losses of routers: the same lines. */
static void same_loads(test *t, const folder *f, int number, const char *again)
{
    char path[FOLDER_PATH_MAX], have[512], want[512];
    snprintf(path, sizeof path, "%s/usual%d/experts.jsonl", f->path, number);
    FILE *a = fopen(path, "r");
    snprintf(path, sizeof path, "%s/%s/experts.jsonl", f->path, again);
    FILE *b = fopen(path, "r");
    int64_t lines = 0;
    TEST_CHECK(t, (a == NULL) == (b == NULL));
    while (a && b && fgets(want, sizeof want, a)) {
        bool same = fgets(have, sizeof have, b) && strcmp(have, want) == 0;
        TEST_SAY(t, same, "%s: %s, not %s", again, have, want);
        lines++;
        if (!same) break;
    }
    TEST_CHECK(t, !a || lines >= TAKEN);
    if (a) fclose(a);
    if (b) fclose(b);
}

static void check_against(test *t, const folder *f, const setting *s, int replay,
                          const outcome *usual, const char *name)
{
    char text[1024];
    outcome again = { 0 };
    write_config(text, sizeof text, f, s, replay);
    TEST_OK(t, train(t, f, name, text, s->ranks, &again));
    for (int i = 1; i <= TAKEN; i++)
        TEST_SAY(t, usual->loss[i] == again.loss[i] && usual->norm[i] == again.norm[i],
                 "%s, step %d: loss %.17g and norm %.17g; replayed %.17g and %.17g", s->mesh, i,
                 usual->loss[i], usual->norm[i], again.loss[i], again.norm[i]);
    for (int i = 1; s->how == EVALUATES && i <= TAKEN; i++)
        TEST_CHECK(t, usual->eval[i] == again.eval[i] || (i % 6 && i < TAKEN));
    const ts_train_result *r = &again.result;
    TEST_SAY(t, r->replays == (s->how == USUAL ? 0 : TAKEN - 3), "%s, replay %d: %lld replays",
             s->mesh, replay, (long long)r->replays);
    const char *device = getenv("TESSERA_DEVICE"); /* others have steps as graphs */
    bool cpu = !device || !*device || strcmp(device, "cpu") == 0;
    bool reorders = replay == 2 && s->how != USUAL && cpu;
    TEST_SAY(t,
             (r->replay_recorded > 0 && r->replay_reordered_predicted > 0 &&
              r->replay_reordered_predicted <= r->replay_recorded_predicted) == reorders,
             "%s, replay %d: predicted %g, then %g", s->mesh, replay, r->replay_recorded_predicted,
             r->replay_reordered_predicted);
}

static void check_setting(test *t, const folder *f, const setting *s, int number)
{
    char text[1024], name[32];
    outcome usual = { 0 };
    write_config(text, sizeof text, f, s, 0);
    snprintf(name, sizeof name, "usual%d", number);
    TEST_OK(t, train(t, f, name, text, s->ranks, &usual));
    TEST_CHECK(t, usual.loss[TAKEN] < usual.loss[1]);
    for (int replay = 1; replay <= (s->how == USUAL ? 1 : 2); replay++) {
        snprintf(name, sizeof name, "again%d-%d", number, replay);
        check_against(t, f, s, replay, &usual, name);
        same_loads(t, f, number, name);
    }
}

static void check_settings(test *t, const setting *settings, size_t count)
{
    char path[FOLDER_PATH_MAX];
    folder f = make_folder(t);
    snprintf(path, sizeof path, "%s/few.txt", f.path);
    FILE *few = fopen(path, "w");
    TEST_CHECK(t,
               few && fputs("A few rows that nobody learns from, for what they show.\n", few) >= 0);
    if (few) fclose(few);
    for (size_t i = 0; i < count; i++)
        if (test_tries(t)) check_setting(t, &f, &settings[i], (int)i);
    remove_folder(&f);
}

TS_TEST(runs_with_replays_are_the_same_runs)
{
    static const setting settings[] = {
        { "dp=1", "", 1, AGAIN },
        { "dp=3", "", 3, AGAIN },
        { "fsdp=2", "[model]\ncompute = bf16\n", 2, AGAIN },
        { "fsdp=2", "[optimizer]\nkind = sgd\nmomentum = 0.9\n", 2, AGAIN },
        { "fsdp=2", "[optimizer]\nkind = muon\n[train]\naccumulate = 5\n", 2, AGAIN },
        { "fsdp=2, tp=2", "[optimizer]\nkind = muon\nmuon_dtype = bf16\n", 4, AGAIN },
        { "tp=2", "[checkpoint]\nevery = 4\n", 2, AGAIN },
        { "tp=2", "[model]\nkv_heads = 1\n", 2, AGAIN }, /* gradients of a block lie otherwise */
        { "fsdp=2, tp=2", "[model]\nfamily = gpt2\nkv_heads = 4\n", 4, AGAIN },
        { "cp=2", "", 2, AGAIN },
        { "cp=4", "[data]\ncontext = 5\n", 4, AGAIN }, /* a rank has nothing of a row */
        { "fsdp=2, cp=2", "", 4, AGAIN },
        { "replicate=2, cp=2", "batch = 1\n", 4, AGAIN }, /* and two no row */
        /* Weights are cut by both axes along a dim that is no run: they are moved, over one. */
        { "fsdp=2, cp=1", "[model]\nvocab = 261\n", 2, AGAIN },
        { "dp=1", "accumulate = 5\n", 1, AGAIN },
        { "fsdp=2", "accumulate = 5\nloss_scale = 8\n", 2, AGAIN },
        { "fsdp=2", "z_loss = 0.1\n", 2, AGAIN },
        { "fsdp=2", "loss_rows = 4\n", 2, AGAIN },
        { "pp=2", "", 2, AGAIN },
        { "pp=2", "[optimizer]\nkind = muon\nmuon_adamw = *embed*\n", 2, AGAIN },
        { "dp=1", "loss_scale = 8\nloss_scale_every = 50\n", 1, USUAL },
    };
    check_settings(t, settings, sizeof settings / sizeof *settings);
}

#define TIED "[model]\nlayers = 4\nfamily = gpt2\nkv_heads = 4\ntied = 1\n"
#define SCHEDULE "[parallel]\nmicro_batches = 4\nschedule = "

/* Rows that fit no micro-batch evenly, tied embeddings, several parts of a step, shards inside of
 * stages, the last stage on the first rank. */
TS_TEST(runs_through_stages_with_replays_are_the_same_runs)
{
    static const setting settings[] = {
        { "pp=2", "[model]\nlayers = 4\n" SCHEDULE "1F1B\n", 2, EVALUATES },
        { "pp=2", "[model]\nlayers = 4\n" SCHEDULE "Interleaved1F1B\n", 2, AGAIN },
        { "pp=2", TIED SCHEDULE "InterleavedZeroBubble\n", 2, AGAIN },
        { "pp=2", "[model]\nlayers = 4\n" SCHEDULE "ZBVZeroBubble\n", 2, AGAIN },
        { "pp=2", SCHEDULE "GPipe\n", 2, AGAIN },
        { "pp=2", "[model]\nlayers = 4\n" SCHEDULE "LoopedBFS\n", 2, AGAIN },
        { "pp=2", "[model]\nlayers = 4\n" SCHEDULE "DualPipeV\n", 2, AGAIN },
        { "pp=2", "batch = 2\n" SCHEDULE "1F1B\n", 2, AGAIN }, /* two have no rows */
        { "pp=2", "batch = 6\naccumulate = 3\nloss_scale = 3\nz_loss = 0.1\n", 2, AGAIN },
        { "pp=2", EXPERTS "[experts]\naux_loss = 0.01\ncapacity = 1.25\n", 2, AGAIN },
    };
    check_settings(t, settings, sizeof settings / sizeof *settings);
}

TS_TEST(runs_through_stages_on_four_ranks_with_replays_are_the_same_runs)
{
    static const setting settings[] = {
        { "pp=2, fsdp=2", "[model]\nlayers = 4\n" SCHEDULE "Interleaved1F1B\n", 4, AGAIN },
        { "pp=2, fsdp=2", "z_loss = 0.1\nloss_scale = 4\n" SCHEDULE "1F1B\n", 4, AGAIN },
        { "pp=4", "[model]\nlayers = 4\n" SCHEDULE "1F1B\n", 4, AGAIN },
        { "pp=4", "[model]\nlayers = 8\n" SCHEDULE "InterleavedZeroBubble\n", 4, AGAIN },
    };
    check_settings(t, settings, sizeof settings / sizeof *settings);
}

/* What routers count in a replay is what they count in the step itself; held-out rows between steps
 * change nothing of it. */
TS_TEST(runs_of_experts_with_replays_are_the_same_runs)
{
    static const setting settings[] = {
        { "dp=2", EXPERTS "[experts]\naux_loss = 0.01\nz_loss = 0.001\ncapacity = 1.25\n", 2,
          AGAIN },
        { "fsdp=2", LATENT "[experts]\nsequence_loss = 0.01\n", 2, AGAIN },
        { "fsdp=2", LATENT "[experts]\nbias_rate = 0.01\n", 2, EVALUATES },
        { "dp=2", "[model]\ncompute = bf16\n" LATENT "[experts]\nbias_rate = 0.3\n", 2, AGAIN },
        { "fsdp=2", "batch = 4\naccumulate = 2\n" EXPERTS "[parallel]\nep = 2\n", 2, EVALUATES },
    };
    check_settings(t, settings, sizeof settings / sizeof *settings);
}
