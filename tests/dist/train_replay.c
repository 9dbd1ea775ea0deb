/* SPDX-License-Identifier: Apache-2.0 */
/* train_replay.c - whole runs with train.replay against the same runs without it: bit for bit, on
 * the meshes of the other tests; where steps cannot be run again, they run as usual. */
#include "dist/train_util.h"

enum { TAKEN = 13 }; /* two as usual, one recorded, ten replays */

typedef struct setting {
    const char *mesh, *more;
    int64_t ranks;
} setting;

static void check_setting(test *t, const folder *f, const setting *s, int number)
{
    static const char sizes[] = "[model]\nlayers = 2\nheads = 4\nkv_heads = 2\n[data]\n"
                                "context = 11\n[train]\nsteps = 13\nbatch = 5\nreplay = ";
    char text[1024], name[32];
    outcome usual = { 0 }, again = { 0 };
    snprintf(text, sizeof text, "%s0\n%s[parallel]\nmesh = %s\n", sizes, s->more, s->mesh);
    snprintf(name, sizeof name, "usual%d", number);
    TEST_OK(t, train(t, f, name, text, s->ranks, &usual));
    snprintf(text, sizeof text, "%s1\n%s[parallel]\nmesh = %s\n", sizes, s->more, s->mesh);
    snprintf(name, sizeof name, "again%d", number);
    TEST_OK(t, train(t, f, name, text, s->ranks, &again));
    for (int i = 1; i <= TAKEN; i++)
        TEST_SAY(t, usual.loss[i] == again.loss[i] && usual.norm[i] == again.norm[i],
                 "%s, step %d: loss %.17g and norm %.17g; replayed %.17g and %.17g", s->mesh, i,
                 usual.loss[i], usual.norm[i], again.loss[i], again.norm[i]);
    TEST_CHECK(t, usual.loss[TAKEN] < usual.loss[1]);
}

TS_TEST(runs_with_replays_are_the_same_runs)
{
    static const setting settings[] = {
        { "dp=1", "", 1 },
        { "dp=3", "", 3 },
        { "fsdp=2", "[model]\ncompute = bf16\n", 2 },
        { "fsdp=2", "[optimizer]\nkind = sgd\nmomentum = 0.9\n", 2 },
        { "tp=2", "[checkpoint]\nevery = 4\n", 2 },
        { "fsdp=2, tp=2", "[model]\nfamily = gpt2\nkv_heads = 4\n", 4 },
        { "cp=2", "", 2 },
        { "cp=4", "[data]\ncontext = 5\n", 4 }, /* a rank has nothing of a row */
        { "fsdp=2, cp=2", "", 4 },
        { "replicate=2, cp=2", "batch = 1\n", 4 }, /* and two no row */
        { "dp=1", "accumulate = 5\n", 1 },
        { "fsdp=2", "z_loss = 0.1\n", 2 },
        { "fsdp=2", "loss_rows = 4\n", 2 },
        { "dp=2", "[model]\nfamily = mixtral\nexperts = 3\nexperts_per_token = 2\n", 2 },
        { "pp=2", "", 2 },
    };
    folder f = make_folder(t);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        check_setting(t, &f, &settings[i], (int)i);
    remove_folder(&f);
}
