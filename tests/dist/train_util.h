/* SPDX-License-Identifier: Apache-2.0 */
/* train_util.h - whole runs of a tiny model on worlds of threads, with what they did step by step.
 */
#ifndef TESTS_DIST_TRAIN_UTIL_H
#define TESTS_DIST_TRAIN_UTIL_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "harness/test.h"
#include "tessera/train.h"

enum { STEPS = 6, STEPS_MAX = 64 };

typedef struct outcome {
    ts_train_config *config;
    double loss[STEPS_MAX + 1], norm[STEPS_MAX + 1]; /* by step; NaN: not taken */
    double scale[STEPS_MAX + 1], eval[STEPS_MAX + 1];
    int64_t skipped, memory; /* steps left out; the most any rank held */
    int64_t stop_at, step_first, estimate;
    ts_train_result result;
    char error[1024];
} outcome;

static __attribute__((unused)) int note(const ts_train_step *step, void *context)
{
    outcome *o = context;
    o->loss[step->step] = step->loss;
    o->norm[step->step] = step->norm;
    o->scale[step->step] = step->scale;
    o->eval[step->step] = step->eval_loss;
    o->skipped += step->skipped;
    o->memory = step->memory_bytes;
    return step->step == o->stop_at;
}

static __attribute__((unused)) void note_plan(const ts_train_plan *plan, void *context)
{
    outcome *o = context;
    o->step_first = plan->step_first;
    o->estimate =
        plan->weight_bytes + plan->gradient_bytes + plan->optimizer_bytes + plan->activation_bytes;
}

static __attribute__((unused)) ts_status work(ts_rank *me, void *argument)
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

enum { FOLDER_MAX = 512, FOLDER_PATH_MAX = FOLDER_MAX + 64 };

/* Under the build directory. */
typedef struct folder {
    char path[FOLDER_MAX];
} folder;

static __attribute__((unused)) folder make_folder(test *t)
{
    folder f = { TS_BINARY_DIR "/train-XXXXXX" };
    TEST_CHECK(t, mkdtemp(f.path) != NULL);
    char path[FOLDER_PATH_MAX];
    snprintf(path, sizeof path, "%s/text.txt", f.path);
    FILE *file = fopen(path, "w");
    TEST_CHECK(t, file != NULL);
    for (int i = 0; file && i < 40; i++)
        fprintf(file, "The %d. fox ran over the hill and saw %d birds.\n", i, 3 * i);
    if (file) fclose(file);
    return f;
}

static __attribute__((unused)) void remove_folder(const folder *f)
{
    char command[FOLDER_PATH_MAX];
    snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    if (system(command) != 0) fprintf(stderr, "%s stays\n", f->path);
}

static __attribute__((unused)) void set(test *t, ts_train_config *config, const char *name,
                                        const char *value)
{
    char text[FOLDER_PATH_MAX + 64];
    snprintf(text, sizeof text, "%s=%s", name, value);
    TEST_OK(t, ts_train_config_set(config, text));
}

static const char small[] = "[model]\nhidden = 16\nintermediate = 24\nlayers = 1\nheads = 2\n"
                            "[data]\ncontext = 12\n[train]\nbatch = 4\nsteps = 6\n"
                            "[optimizer]\nrate = 1e-2\nwarmup = 2\n[log]\nsample = 0\n";

/* Runs into FOLDER/NAME; returns the status, and the losses in *o. */
static __attribute__((unused)) ts_status train(test *t, const folder *f, const char *name,
                                               const char *more, int64_t ranks, outcome *o)
{
    char path[FOLDER_PATH_MAX];
    for (int i = 0; i <= STEPS_MAX; i++)
        o->loss[i] = o->norm[i] = o->eval[i] = NAN;
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
    ts_status status = ts_launch_with(&options, work, o, o->error, sizeof o->error);
    if (status != TS_OK) fprintf(stderr, "  %s\n", o->error);
    ts_train_config_destroy(o->config);
    ts_text_release(&o->result.sample);
    return status;
}

static __attribute__((unused)) void same_losses(test *t, const outcome *a, const outcome *b,
                                                int steps, double tolerance)
{
    for (int i = 1; i <= steps; i++) {
        bool same = tolerance > 0 ? fabs(a->loss[i] - b->loss[i]) <= tolerance
                                  : memcmp(&a->loss[i], &b->loss[i], sizeof a->loss[i]) == 0;
        TEST_SAY(t, same, "step %d: %.17g and %.17g", i, a->loss[i], b->loss[i]);
    }
}

static __attribute__((unused)) char *weights(test *t, const folder *f, const char *name,
                                             size_t *length)
{
    char path[FOLDER_PATH_MAX], *data = NULL;
    snprintf(path, sizeof path, "%s/%s/model/model.safetensors", f->path, name);
    TEST_OK(t, tsi_file_read(path, 1 << 24, &data, length));
    return data;
}

static __attribute__((unused)) void same_weights(test *t, const folder *f, const char *a,
                                                 const char *b)
{
    size_t length_a = 0, length_b = 0;
    char *x = weights(t, f, a, &length_a), *y = weights(t, f, b, &length_b);
    TEST_SAY(t, x && y && length_a == length_b && memcmp(x, y, length_a) == 0,
             "the weights of %s and %s differ", a, b);
    tsi_free(x);
    tsi_free(y);
}

#endif
