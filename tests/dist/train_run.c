/* SPDX-License-Identifier: Apache-2.0 */
/* Whole runs of a tiny model on worlds of threads: the same again, stopped and resumed, and on
 * other meshes. Losses are compared as bits unless the mesh differs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "data/file.h"
#include "harness/test.h"
#include "tessera/train.h"

enum { STEPS = 6 };

typedef struct outcome {
    ts_train_config *config;
    double loss[STEPS + 1], norm[STEPS + 1]; /* by step; NaN: not taken */
    int64_t stop_at, step_first;
    ts_train_result result;
} outcome;

static int note(const ts_train_step *step, void *context)
{
    outcome *o = context;
    o->loss[step->step] = step->loss;
    o->norm[step->step] = step->norm;
    return step->step == o->stop_at;
}

static void note_plan(const ts_train_plan *plan, void *context)
{
    ((outcome *)context)->step_first = plan->step_first;
}

static ts_status work(ts_rank *me, void *argument)
{
    outcome *o = argument;
    ts_train_options options = {
        .struct_size = sizeof options, .on_plan = note_plan, .on_step = note, .context = o
    };
    ts_train_result result;
    ts_status status = ts_train_run(me, o->config, &options, &result);
    if (ts_rank_index(me) == 0) o->result = result;
    return status;
}

typedef struct folder {
    char path[64];
} folder;

static folder make_folder(test *t)
{
    folder f = { "/tmp/tessera-train-XXXXXX" };
    TEST_CHECK(t, mkdtemp(f.path) != NULL);
    char path[128];
    snprintf(path, sizeof path, "%s/text.txt", f.path);
    FILE *file = fopen(path, "w");
    TEST_CHECK(t, file != NULL);
    for (int i = 0; file && i < 40; i++)
        fprintf(file, "The %d. fox ran over the hill and saw %d birds.\n", i, 3 * i);
    if (file) fclose(file);
    return f;
}

static void remove_folder(const folder *f)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    if (system(command) != 0) fprintf(stderr, "%s stays\n", f->path);
}

static void set(test *t, ts_train_config *config, const char *name, const char *value)
{
    char text[256];
    snprintf(text, sizeof text, "%s=%s", name, value);
    TEST_OK(t, ts_train_config_set(config, text));
}

static const char small[] = "[model]\nhidden = 16\nintermediate = 24\nlayers = 1\nheads = 2\n"
                            "[data]\ncontext = 12\n[train]\nbatch = 4\nsteps = 6\n"
                            "[optimizer]\nrate = 1e-2\nwarmup = 2\n[log]\nsample = 0\n";

/* Runs into FOLDER/NAME; returns the status, and the losses in *o. */
static ts_status train(test *t, const folder *f, const char *name, const char *more, int64_t ranks,
                       outcome *o)
{
    char path[128], error[1024] = "";
    for (int i = 0; i <= STEPS; i++)
        o->loss[i] = o->norm[i] = NAN;
    TEST_OK(t, ts_train_config_create(&o->config));
    TEST_OK(t, ts_train_config_parse(o->config, "small", small));
    snprintf(path, sizeof path, "%s/text.txt", f->path);
    set(t, o->config, "data.path", path);
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    set(t, o->config, "train.output", path);
    TEST_OK(t, ts_train_config_parse(o->config, "more", more));
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = ranks, .seed = 5
    };
    ts_status status = ts_launch_with(&options, work, o, error, sizeof error);
    if (status != TS_OK) fprintf(stderr, "  %s\n", error);
    ts_train_config_destroy(o->config);
    ts_text_release(&o->result.sample);
    return status;
}

static void same_losses(test *t, const outcome *a, const outcome *b, double tolerance)
{
    for (int i = 1; i <= STEPS; i++) {
        bool same = tolerance > 0 ? fabs(a->loss[i] - b->loss[i]) <= tolerance
                                  : memcmp(&a->loss[i], &b->loss[i], sizeof a->loss[i]) == 0;
        TEST_SAY(t, same, "step %d: %.17g and %.17g", i, a->loss[i], b->loss[i]);
    }
}

static char *weights(test *t, const folder *f, const char *name, size_t *length)
{
    char path[160], *data = NULL;
    snprintf(path, sizeof path, "%s/%s/model/model.safetensors", f->path, name);
    TEST_OK(t, tsi_file_read(path, 1 << 24, &data, length));
    return data;
}

static void same_weights(test *t, const folder *f, const char *a, const char *b)
{
    size_t length_a = 0, length_b = 0;
    char *x = weights(t, f, a, &length_a), *y = weights(t, f, b, &length_b);
    TEST_SAY(t, x && y && length_a == length_b && memcmp(x, y, length_a) == 0,
             "the weights of %s and %s differ", a, b);
    tsi_free(x);
    tsi_free(y);
}

TS_TEST(train_again_is_the_same)
{
    folder f = make_folder(t);
    outcome a = { 0 }, b = { 0 };
    TEST_OK(t, train(t, &f, "a", "[parallel]\nmesh = dp=2, tp=2\n", 4, &a));
    TEST_OK(t, train(t, &f, "b", "[parallel]\nmesh = dp=2, tp=2\n", 4, &b));
    same_losses(t, &a, &b, 0);
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
    same_losses(t, &whole, &rest, 0);
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
        same_losses(t, &one, &other, 1e-4);
        for (int s = 1; s <= STEPS; s++)
            TEST_SAY(t, fabs(one.norm[s] - other.norm[s]) < 1e-3, "%s, step %d: norm %g and %g",
                     cases[i].name, s, one.norm[s], other.norm[s]);
    }
    remove_folder(&f);
}

TS_TEST(train_refuses)
{
    folder f = make_folder(t);
    outcome o = { .stop_at = 2 };
    TEST_OK(t, train(t, &f, "a", "[parallel]\nmesh = dp=2\n", 2, &o));
    TEST_STATUS(t, train(t, &f, "a", "[parallel]\nmesh = tp=2\n", 2, &o), TS_ERR_STATE);
    TEST_STATUS(t, train(t, &f, "b", "[parallel]\nmesh = dp=4\n", 2, &o), TS_ERR_MESH);
    TEST_STATUS(t, train(t, &f, "b", "[parallel]\nmesh = dp=1\n", 2, &o), TS_ERR_ARG);
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
    char path[160];
    snprintf(path, sizeof path, "%s/a/state/step-2/rank-0.bin", f.path);
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
