/* SPDX-License-Identifier: Apache-2.0 */
/* Held-out rows: the same loss on every mesh, nothing of training touched, patience, the best
 * state. */
#include "dist/train_util.h"

/* Text that is not trained on, and the lines of a configuration that evaluates on it. */
static const char *evaluating(test *t, const folder *f, const char *more, char *out, size_t size)
{
    char path[FOLDER_PATH_MAX];
    snprintf(path, sizeof path, "%s/held.txt", f->path);
    FILE *file = fopen(path, "w");
    TEST_CHECK(t, file != NULL);
    for (int i = 0; file && i < 7; i++)
        fprintf(file, "A hen of %d years sat by the river, counting %d stones.\n", i, 5 * i);
    if (file) fclose(file);
    snprintf(out, size,
             "[model]\ndtype = f64\n[data]\nheld_out = %s\n[train]\neval_every = 2\nbatch = 5\n%s",
             path, more);
    return out;
}

static void same_evaluations(test *t, const char *name, const outcome *a, const outcome *b,
                             double tolerance)
{
    for (int i = 1; i <= STEPS; i++) {
        TEST_EQ(t, isnan(a->eval[i]), i % 2 != 0);
        TEST_EQ(t, isnan(b->eval[i]), i % 2 != 0);
        if (i % 2 != 0) continue;
        double difference = fabs(a->eval[i] - b->eval[i]);
        TEST_SAY(t, difference <= tolerance, "%s, step %d: %.17g and %.17g", name, i, a->eval[i],
                 b->eval[i]);
    }
}

TS_TEST(the_same_on_eight_meshes)
{
    static const struct {
        const char *mesh;
        int64_t ranks, like; /* the same bits as that one; -1: within rounding of the first */
    } row[] = { { "replicate=1", 1, -1 }, { "replicate=2", 2, -1 },
                { "fsdp=2", 2, 1 },       { "tp=2", 2, -1 },
                { "cp=2", 2, -1 },        { "fsdp=2, tp=2", 4, -1 },
                { "replicate=3", 3, -1 }, { "replicate=3, fsdp=1", 3, 6 },
                { "pp=2, fsdp=2", 4, -1 } };
    enum { MESHES = sizeof row / sizeof row[0] };
    folder f = make_folder(t);
    outcome all[MESHES];
    memset(all, 0, sizeof all);
    for (int i = 0; i < MESHES; i++) {
        char more[1024], mesh[96];
        snprintf(mesh, sizeof mesh, "clip = 0\n[parallel]\nmesh = %s\n", row[i].mesh);
        TEST_OK(t, train(t, &f, row[i].mesh, evaluating(t, &f, mesh, more, sizeof more),
                         row[i].ranks, &all[i]));
        same_evaluations(t, row[i].mesh, &all[0], &all[i], 1e-9);
        if (row[i].like >= 0) same_evaluations(t, row[i].mesh, &all[row[i].like], &all[i], 0);
    }
    TEST_CHECK(t, all[0].eval[6] < all[0].eval[2]);
    remove_folder(&f);
}

/* Where the same terms are added in the same order the bits are the same, whatever is cut. Weights
 * that do not move are the same on all meshes. */
TS_TEST(the_same_bits_in_one_order)
{
    static const char *const mesh[] = { "replicate=2",         "fsdp=2",
                                        "replicate=2, fsdp=1", "replicate=1, fsdp=2",
                                        "fsdp=2, tp=1",        "fsdp=2, cp=1" };
    folder f = make_folder(t);
    outcome first = { 0 };
    for (int i = 0; i < 6; i++) {
        outcome o = { 0 };
        char more[1024], last[160];
        snprintf(last, sizeof last,
                 "[optimizer]\nrate = 1e-300\nweight_decay = 0\n[parallel]\nmesh = %s\n", mesh[i]);
        TEST_OK(t, train(t, &f, mesh[i], evaluating(t, &f, last, more, sizeof more), 2, &o));
        if (i == 0) first = o;
        same_evaluations(t, mesh[i], &first, &o, 0);
    }
    remove_folder(&f);
}

/* Weights and losses of a run that evaluates are those of one that does not. */
TS_TEST(training_does_not_notice)
{
    folder f = make_folder(t);
    outcome with = { 0 }, without = { 0 };
    char more[1024];
    const char *mesh = "[parallel]\nmesh = fsdp=2\n";
    TEST_OK(t, train(t, &f, "with", evaluating(t, &f, mesh, more, sizeof more), 2, &with));
    strncat(more, "[train]\neval_every = 0\n", sizeof more - strlen(more) - 1);
    TEST_OK(t, train(t, &f, "without", more, 2, &without));
    same_losses(t, &with, &without, STEPS, 0);
    same_weights(t, &f, "with", "without");
    TEST_CHECK(t, !isnan(with.eval[6]) && isnan(without.eval[6]));
    TEST_EQ(t, with.result.eval_step, 6);
    remove_folder(&f);
}

/* Weights that do not move: the second and third evaluation are no better, and the run ends; run
 * again, on another mesh, it does nothing. */
TS_TEST(patience_ends)
{
    folder f = make_folder(t);
    outcome run = { 0 }, again = { 0 };
    char more[1024];
    evaluating(t, &f, "steps = 20\npatience = 2\n[optimizer]\nrate = 1e-300\nweight_decay = 0\n",
               more, sizeof more);
    TEST_OK(t, train(t, &f, "run", more, 1, &run));
    TEST_EQ(t, run.result.step, 6);
    TEST_EQ(t, run.result.patience_ended, 1);
    TEST_EQ(t, run.result.eval_best_step, 2);
    strncat(more, "[parallel]\nmesh = fsdp=2\n", sizeof more - strlen(more) - 1);
    TEST_OK(t, train(t, &f, "run", more, 2, &again));
    TEST_EQ(t, again.step_first, 6);
    TEST_EQ(t, again.result.step, 6);
    TEST_EQ(t, again.result.eval_best_step, 2);
    remove_folder(&f);
}

/* The state of the best evaluation stays, though it is old; those that were not evaluated do not
 * count. */
TS_TEST(the_best_state_stays)
{
    folder f = make_folder(t);
    outcome run = { 0 };
    char more[1024], path[FOLDER_PATH_MAX];
    /* A rate that rises to where nothing is learnt any more. */
    evaluating(
        t, &f,
        "steps = 12\n[checkpoint]\nevery = 1\nkeep = last 1, best 1\n[optimizer]\nrate = 30\n"
        "warmup = 12\n",
        more, sizeof more);
    TEST_OK(t, train(t, &f, "run", more, 1, &run));
    int64_t best = 2;
    for (int64_t i = 2; i <= 12; i += 2)
        if (run.eval[i] < run.eval[best]) best = i;
    TEST_CHECK(t, best < 12);
    TEST_EQ(t, run.result.eval_best_step, best);
    for (int64_t i = 1; i <= 12; i++) {
        snprintf(path, sizeof path, "%s/run/state/step-%d", f.path, (int)i);
        TEST_SAY(t, (access(path, F_OK) == 0) == (i == best || i == 12), "step %d", (int)i);
    }
    remove_folder(&f);
}

/* However many best ones are wanted, a state that was not evaluated is none; of evaluations that
 * are alike the first counts. */
TS_TEST(states_without_evaluation_are_not_best)
{
    static const struct {
        const char *more;
        uint64_t stay; /* bit i: step i */
    } rows[] = { { "[train]\neval_every = 5\n[checkpoint]\nkeep = last 1, best 3\n", 0x420 },
                 { "[train]\neval_every = 100\n[checkpoint]\nkeep = best 2\n", 0x400 },
                 { "[checkpoint]\nkeep = last 1, best 2\n[optimizer]\nrate = 1e-300\n"
                   "weight_decay = 0\n",
                   0x414 } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        folder f = make_folder(t);
        outcome run = { 0 };
        char more[1024], path[FOLDER_PATH_MAX];
        evaluating(t, &f, "steps = 11\nstop_after = 10\n[checkpoint]\nevery = 1\n", more,
                   sizeof more);
        strncat(more, rows[i].more, sizeof more - strlen(more) - 1);
        TEST_OK(t, train(t, &f, "run", more, 1, &run));
        for (int64_t s = 1; s <= 10; s++) {
            snprintf(path, sizeof path, "%s/run/state/step-%d", f.path, (int)s);
            bool stays = rows[i].stay >> s & 1;
            TEST_SAY(t, (access(path, F_OK) == 0) == stays, "row %d, step %d", (int)i, (int)s);
        }
        remove_folder(&f);
    }
}

TS_TEST(refusals)
{
    folder f = make_folder(t);
    outcome run = { 0 };
    char more[1024];
    TEST_CHECK(t, train(t, &f, "a", "[train]\neval_every = 2\n", 1, &run) != TS_OK);
    TEST_CHECK(t, strstr(run.error, "data.held_out names nothing") != NULL);
    TEST_CHECK(t, train(t, &f, "b", "[train]\npatience = 2\n", 1, &run) != TS_OK);
    TEST_CHECK(t, strstr(run.error, "train.patience: needs evaluations") != NULL);
    evaluating(t, &f, "[data]\nheld_out_rows = 100000\n", more, sizeof more);
    TEST_CHECK(t, train(t, &f, "c", more, 1, &run) != TS_OK);
    TEST_CHECK(t, strstr(run.error, "data.held_out_rows: is 100000") != NULL);
    remove_folder(&f);
}
