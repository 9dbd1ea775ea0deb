/* SPDX-License-Identifier: Apache-2.0 */
/* train_replay.c - whole runs with train.replay against the same runs without it: bit for bit, on
 * the meshes of the other tests; where steps cannot be run again, they run as usual. */
#include "dist/train_util.h"

enum { TAKEN = 13 }; /* two as usual, one recorded, ten replays */

#define SIZES                                                                                      \
    "[model]\nlayers = 2\nheads = 4\nkv_heads = 2\n[data]\ncontext = 11\n"                         \
    "[train]\nsteps = 13\nbatch = 5\nreplay = "

typedef struct setting {
    const char *mesh, *more;
    int64_t ranks;
    bool usual; /* its steps cannot be run again */
} setting;

static void check_against(test *t, const folder *f, const setting *s, int replay,
                          const outcome *usual, const char *name)
{
    char text[1024];
    outcome again = { 0 };
    snprintf(text, sizeof text, SIZES "%d\n%s[parallel]\nmesh = %s\n", replay, s->more, s->mesh);
    TEST_OK(t, train(t, f, name, text, s->ranks, &again));
    for (int i = 1; i <= TAKEN; i++)
        TEST_SAY(t, usual->loss[i] == again.loss[i] && usual->norm[i] == again.norm[i],
                 "%s, step %d: loss %.17g and norm %.17g; replayed %.17g and %.17g", s->mesh, i,
                 usual->loss[i], usual->norm[i], again.loss[i], again.norm[i]);
    const ts_train_result *r = &again.result;
    TEST_SAY(t, r->replays == (s->usual ? 0 : TAKEN - 3), "%s, replay %d: %lld replays", s->mesh,
             replay, (long long)r->replays);
    const char *device = getenv("TESSERA_DEVICE"); /* others have steps as graphs */
    bool reorders = replay == 2 && !s->usual && (!device || strcmp(device, "cpu") == 0);
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
    snprintf(text, sizeof text, SIZES "0\n%s[parallel]\nmesh = %s\n", s->more, s->mesh);
    snprintf(name, sizeof name, "usual%d", number);
    TEST_OK(t, train(t, f, name, text, s->ranks, &usual));
    TEST_CHECK(t, usual.loss[TAKEN] < usual.loss[1]);
    for (int replay = 1; replay <= (s->usual ? 1 : 2); replay++) {
        snprintf(name, sizeof name, "again%d-%d", number, replay);
        check_against(t, f, s, replay, &usual, name);
    }
}

TS_TEST(runs_with_replays_are_the_same_runs)
{
    static const setting settings[] = {
        { "dp=1", "", 1, false },
        { "dp=3", "", 3, false },
        { "fsdp=2", "[model]\ncompute = bf16\n", 2, false },
        { "fsdp=2", "[optimizer]\nkind = sgd\nmomentum = 0.9\n", 2, false },
        { "tp=2", "[checkpoint]\nevery = 4\n", 2, false },
        { "fsdp=2, tp=2", "[model]\nfamily = gpt2\nkv_heads = 4\n", 4, false },
        { "cp=2", "", 2, false },
        { "cp=4", "[data]\ncontext = 5\n", 4, false }, /* a rank has nothing of a row */
        { "fsdp=2, cp=2", "", 4, false },
        { "replicate=2, cp=2", "batch = 1\n", 4, false }, /* and two no row */
        { "dp=1", "accumulate = 5\n", 1, false },
        { "fsdp=2", "accumulate = 5\nloss_scale = 8\n", 2, false },
        { "fsdp=2", "z_loss = 0.1\n", 2, false },
        { "fsdp=2", "loss_rows = 4\n", 2, false },
        { "dp=2", "[model]\nfamily = mixtral\nexperts = 3\nexperts_per_token = 2\n", 2, true },
        { "pp=2", "", 2, true },
    };
    folder f = make_folder(t);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        check_setting(t, &f, &settings[i], (int)i);
    remove_folder(&f);
}
