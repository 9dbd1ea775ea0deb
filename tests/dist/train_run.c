/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs of a tiny model on worlds of threads: the same again, stopped and resumed, and on
 * other meshes. Losses are compared as bits unless the mesh differs. */
#include "dist/train_util.h"

TS_TEST(train_again_is_the_same)
{
    folder f = make_folder(t);
    outcome a = { 0 }, b = { 0 };
    TEST_OK(t, train(t, &f, "a", "[parallel]\nmesh = dp=2, tp=2\n", 4, &a));
    TEST_OK(t, train(t, &f, "b", "[parallel]\nmesh = dp=2, tp=2\n", 4, &b));
    same_losses(t, &a, &b, STEPS, 0);
    same_weights(t, &f, "a", "b");
    TEST_CHECK(t, a.loss[STEPS] < a.loss[1]);
    TEST_EQ(t, a.result.step, STEPS);
    remove_folder(&f);
}

static void resume_on(test *t, const char *mesh, int64_t ranks)
{
    folder f = make_folder(t);
    outcome whole = { 0 }, begun = { .stop_at = 3 }, rest = { 0 };
    TEST_OK(t, train(t, &f, "whole", mesh, ranks, &whole));
    TEST_OK(t, train(t, &f, "parts", mesh, ranks, &begun));
    TEST_EQ(t, begun.result.step, 3);
    TEST_EQ(t, begun.result.stopped, 1);
    TEST_CHECK(t, isnan(begun.loss[4]));
    TEST_OK(t, train(t, &f, "parts", mesh, ranks, &rest));
    TEST_EQ(t, rest.step_first, 3);
    TEST_CHECK(t, isnan(rest.loss[3]));
    memcpy(rest.loss, begun.loss, 4 * sizeof rest.loss[0]);
    same_losses(t, &whole, &rest, STEPS, 0);
    same_weights(t, &f, "whole", "parts");
    remove_folder(&f);
}

TS_TEST(train_resumes_bit_for_bit)
{
    resume_on(t, "[parallel]\nmesh = dp=1\n", 1);
    resume_on(t, "[parallel]\nmesh = dp=2, tp=2\n", 4);
    resume_on(t, "[parallel]\nmesh = dp=3\n[optimizer]\nkind = sgd\nmomentum = 0.9\n", 3);
}

TS_TEST(train_meshes_agree)
{
    static const struct {
        const char *name, *more;
        int64_t ranks;
    } cases[] = {
        { "dp2", "[parallel]\nmesh = dp=2\n", 2 },
        { "dp3", "[parallel]\nmesh = dp=3\n", 3 }, /* 4 rows: 2, 2, 0 */
        { "tp2", "[parallel]\nmesh = tp=2\n", 2 },
        { "parts", "[train]\naccumulate = 2\n", 1 },
        { "both", "[train]\naccumulate = 2\n[parallel]\nmesh = dp=2\n", 2 },
    };
    folder f = make_folder(t);
    outcome one = { 0 };
    TEST_OK(t, train(t, &f, "one", "", 1, &one));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome other = { 0 };
        TEST_OK(t, train(t, &f, cases[i].name, cases[i].more, cases[i].ranks, &other));
        same_losses(t, &one, &other, STEPS, 1e-4);
        for (int s = 1; s <= STEPS; s++)
            TEST_SAY(t, fabs(one.norm[s] - other.norm[s]) < 1e-3, "%s, step %d: norm %g and %g",
                     cases[i].name, s, one.norm[s], other.norm[s]);
    }
    remove_folder(&f);
}

/* Repair 30: a 0 in the configuration is 0, not the default: each changes the run, and in the way
 * that 0 does. */
TS_TEST(train_zeros_are_zeros)
{
    static const struct {
        const char *zero, *tiny, *given;
    } rows[] = {
        { "[optimizer]\nbeta1 = 0\n", "[optimizer]\nbeta1 = 1e-30\n", "" },
        { "[optimizer]\nbeta2 = 0\n", "[optimizer]\nbeta2 = 1e-30\n", "" },
        { "[model]\nnorm_epsilon = 0\n", "[model]\nnorm_epsilon = 1e-40\n",
          "[model]\nnorm_epsilon = 0.1\n" },
        { "[model]\ninit_deviation = 0\n", "[model]\ninit_deviation = 1e-300\n", "" },
    };
    folder f = make_folder(t);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        outcome zero = { 0 }, tiny = { 0 }, given = { 0 };
        const char *again = "[train]\nresume = 0\n";
        char text[256];
        snprintf(text, sizeof text, "%s%s", rows[i].zero, again);
        TEST_OK(t, train(t, &f, "zero", text, 1, &zero));
        snprintf(text, sizeof text, "%s%s", rows[i].tiny, again);
        TEST_OK(t, train(t, &f, "tiny", text, 1, &tiny));
        snprintf(text, sizeof text, "%s%s", rows[i].given, again);
        TEST_OK(t, train(t, &f, "given", text, 1, &given));
        same_losses(t, &zero, &tiny, STEPS, 0);
        TEST_SAY(t, zero.loss[STEPS] != given.loss[STEPS], "%s changes nothing", rows[i].zero);
    }
    remove_folder(&f);
}

/* Layers that run again: the same bits, less memory. */
TS_TEST(train_recomputes)
{
    static const char deep[] =
        "[model]\nlayers = 6\n[data]\ncontext = 64\n[parallel]\nmesh = dp=2\n";
    char again[256];
    snprintf(again, sizeof again, "%srecompute = full\n", deep);
    folder f = make_folder(t);
    outcome kept = { 0 }, less = { 0 };
    TEST_OK(t, train(t, &f, "kept", deep, 2, &kept));
    TEST_OK(t, train(t, &f, "less", again, 2, &less));
    same_losses(t, &kept, &less, STEPS, 0);
    same_weights(t, &f, "kept", "less");
    TEST_SAY(t, less.memory < kept.memory && less.estimate < kept.estimate,
             "%lld bytes at most (planned %lld), kept %lld (planned %lld)", (long long)less.memory,
             (long long)less.estimate, (long long)kept.memory, (long long)kept.estimate);
    remove_folder(&f);
}

TS_TEST(train_refuses)
{
    folder f = make_folder(t);
    outcome o = { .stop_at = 2 };
    TEST_STATUS(t, train(t, &f, "b", "[parallel]\nmesh = dp=4\n", 2, &o), TS_ERR_MESH);
    TEST_STATUS(t, train(t, &f, "b", "[parallel]\nmesh = dp=1\n", 2, &o), TS_ERR_ARG);
    TEST_STATUS(t, train(t, &f, "b", "[parallel]\nmesh = ddp=2\n", 2, &o), TS_ERR_MESH);
    TEST_STATUS(t, train(t, &f, "b", "[parallel]\nmesh = 2\n", 2, &o), TS_ERR_MESH);
    TEST_STATUS(t, train(t, &f, "b", "[model]\nvocab = 100\n", 1, &o), TS_ERR_ARG);
    TEST_STATUS(t, train(t, &f, "b", "[data]\npath = /nowhere/at/all\n", 1, &o), TS_ERR_IO);
    remove_folder(&f);
}

/* A state that lost its last bytes, or has one that changed, is not taken. */
TS_TEST(train_refuses_a_damaged_state)
{
    folder f = make_folder(t);
    outcome o = { .stop_at = 2 };
    TEST_OK(t, train(t, &f, "a", "", 1, &o));
    char path[FOLDER_PATH_MAX];
    snprintf(path, sizeof path, "%s/a/state/step-2/rank-00000.safetensors", f.path);
    FILE *file = fopen(path, "r+b");
    TEST_CHECK(t, file != NULL);
    if (file) {
        fseek(file, -100, SEEK_END);
        int byte = fgetc(file);
        fseek(file, -100, SEEK_END);
        fputc(byte ^ 1, file);
        fclose(file);
    }
    TEST_STATUS(t, train(t, &f, "a", "", 1, &o), TS_ERR_IO);
    TEST_EQ(t, truncate(path, 1000), 0);
    TEST_STATUS(t, train(t, &f, "a", "", 1, &o), TS_ERR_IO);
    TEST_OK(t, train(t, &f, "a", "[train]\nresume = 0\n", 1, &o));
    remove_folder(&f);
}
