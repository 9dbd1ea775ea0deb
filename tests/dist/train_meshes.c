/* SPDX-License-Identifier: Apache-2.0 */
/* Thirty steps in f64 on many meshes from one seed: one curve, also where a run is stopped and goes
 * on elsewhere. */
#include "dist/train_util.h"

enum { LONG = 30 };
#define SAME 1e-9

typedef struct setting {
    const char *mesh, *more;
    int64_t ranks;
} setting;

static const setting dense[] = {
    { "dp=1", "", 1 },
    { "dp=3", "", 3 },
    { "fsdp=2", "reshard = no\n", 2 },
    { "fsdp=4", "recompute = full\n", 4 },
    { "replicate=2, fsdp=2", "", 4 },
    { "tp=2", "plan = tp\n", 2 },
    { "tp=2", "plan = sp\n", 2 },
    { "fsdp=2, tp=2", "recompute = select\n", 4 },
    { "cp=2", "", 2 },
    { "cp=3", "attention = gather\n", 3 },
    { "fsdp=2, cp=2", "attention = ring\n", 4 },
    { "replicate=2, cp=2, tp=2", "", 8 },
};
enum { MESHES = sizeof dense / sizeof dense[0] };

static const char sizes[] = "[model]\ndtype = f64\nlayers = 2\nheads = 4\nkv_heads = 2\n"
                            "[data]\ncontext = 11\n[train]\nsteps = 30\nbatch = 5\n";

static void run_on(test *t, const folder *f, const char *name, const setting *s, const char *more,
                   outcome *o)
{
    char text[1024];
    snprintf(text, sizeof text, "%s%s[parallel]\nmesh = %s\n%s", sizes, more, s->mesh, s->more);
    TEST_OK(t, train(t, f, name, text, s->ranks, o));
}

TS_TEST(twelve_meshes_one_curve)
{
    folder f = make_folder(t);
    outcome one = { 0 };
    for (int i = 0; i < MESHES; i++) {
        char name[16];
        outcome o = { 0 };
        if (!test_tries(t) && i > 0) continue; /* the others are compared with the first */
        snprintf(name, sizeof name, "run%d", i);
        run_on(t, &f, name, &dense[i], "", &o);
        if (i == 0) one = o;
        fprintf(stderr, "  %s\n", dense[i].mesh);
        same_losses(t, &one, &o, LONG, SAME);
    }
    TEST_CHECK(t, one.loss[LONG] < 0.8 * one.loss[1]);
    remove_folder(&f);
}

TS_TEST(experts_on_meshes)
{
    static const setting experts[] = { { "dp=1", "", 1 },
                                       { "fsdp=2", "ep = 2\n", 2 },
                                       { "fsdp=4", "ep = 2\n", 4 },
                                       { "fsdp=4", "ep = 4\n", 4 },
                                       { "replicate=4, fsdp=2", "ep = 4\n", 8 },
                                       { "fsdp=4, tp=2", "ep = 4\n", 8 },
                                       { "fsdp=2, tp=2", "ep = 2\n", 4 } };
    static const char family[] = "[model]\nfamily = qwen3_moe\nexperts = 5\nexperts_per_token = 2\n"
                                 "expert_width = 12\n";
    folder f = make_folder(t);
    outcome one = { 0 };
    for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++) {
        char name[16];
        outcome o = { 0 };
        if (!test_tries(t) && i > 0) continue; /* the others are compared with the first */
        snprintf(name, sizeof name, "run%zu", i);
        run_on(t, &f, name, &experts[i], family, &o);
        if (i == 0) one = o;
        same_losses(t, &one, &o, LONG, SAME);
    }
    remove_folder(&f);
}

/* Ten steps here, ten there, ten elsewhere: the curve of the run that stayed. */
TS_TEST(stopped_and_gone_on_on_three_meshes)
{
    static const int path[][3] = { { 3, 7, 10 }, { 11, 1, 6 } };
    folder f = make_folder(t);
    outcome whole = { 0 };
    run_on(t, &f, "whole", &dense[0], "", &whole);
    for (int p = 0; p < 2; p++) {
        char name[16], stop[64];
        outcome part = { 0 }, sum = { 0 };
        snprintf(name, sizeof name, "parts%d", p);
        for (int i = 0; i < 3; i++) {
            snprintf(stop, sizeof stop, "[train]\nstop_after = %d\n", 10 * (i + 1));
            run_on(t, &f, name, &dense[path[p][i]], stop, &part);
            TEST_EQ(t, part.step_first, 10 * i);
            TEST_EQ(t, part.result.step, 10 * (i + 1));
            for (int k = 10 * i + 1; k <= 10 * (i + 1); k++)
                sum.loss[k] = part.loss[k];
        }
        same_losses(t, &whole, &sum, LONG, SAME);
    }
    remove_folder(&f);
}
