/* SPDX-License-Identifier: Apache-2.0 */
/* Two thousand steps (TEST_STEPS says how many) take no more memory, descriptors and threads than
 * the first twelve hundred. */
#include <dirent.h>

#include "base/compiler.h"
#include "dist/train_util.h"

enum { SETTLED = 1200 }; /* ended handles are used again once there are many */

typedef struct footprint {
    int64_t descriptors, threads, rss_kib;
} footprint;

typedef struct watched {
    ts_train_config *config;
    footprint early, late;
    int64_t steps;
} watched;

static int64_t count_entries(const char *path)
{
    DIR *directory = opendir(path);
    int64_t count = 0;
    while (directory && readdir(directory))
        count++;
    if (directory) closedir(directory);
    return count;
}

static footprint look(void)
{
    char line[256];
    footprint f = { count_entries("/proc/self/fd"), count_entries("/proc/self/task"), 0 };
    FILE *file = fopen("/proc/self/status", "r");
    long kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %ld", &kib) == 1) f.rss_kib = kib;
    if (file) fclose(file);
    return f;
}

static int watch(const ts_train_step *step, void *context)
{
    watched *w = context;
    if (step->step == SETTLED) w->early = look();
    if (step->step == w->steps) w->late = look();
    return 0;
}

static ts_status run(ts_rank *me, void *argument)
{
    watched *w = argument;
    ts_train_options options = { .struct_size = sizeof options, .on_step = watch, .context = w };
    ts_train_result result;
    ts_status status = ts_train_run(me, w->config, &options, &result);
    ts_text_release(&result.sample);
    return status;
}

static void stays(test *t, const char *mesh, int64_t ranks)
{
    const char *said = getenv("TEST_STEPS");
    watched w = { .steps = said ? strtoll(said, NULL, 10) : 2000 };
    folder f = make_folder(t);
    char path[FOLDER_PATH_MAX], error[1024] = "";
    TEST_OK(t, ts_train_config_create(&w.config));
    TEST_OK(t, ts_train_config_parse(w.config, "small", small));
    snprintf(path, sizeof path, "%s/text.txt", f.path);
    set(t, w.config, "data.path", path);
    set(t, w.config, "data.held_out", path);
    set(t, w.config, "data.held_out_rows", "4");
    set(t, w.config, "train.eval_every", "50");
    snprintf(path, sizeof path, "%s/run", f.path);
    set(t, w.config, "train.output", path);
    snprintf(path, sizeof path, "%lld", (long long)w.steps);
    set(t, w.config, "train.steps", path);
    set(t, w.config, "checkpoint.every", "100");
    set(t, w.config, "log.tensorboard", "1");
    set(t, w.config, "parallel.mesh", mesh);
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = ranks,
                                 .seed = 5,
                                 .events = 1 << 10 };
    TEST_SAY(t, ts_launch_with(&options, run, &w, error, sizeof error) == TS_OK, "%s", error);
    fprintf(stderr, "  %s: %lld steps, %lld to %lld KiB\n", mesh, (long long)w.steps,
            (long long)w.early.rss_kib, (long long)w.late.rss_kib);
    TEST_EQ(t, w.early.descriptors, w.late.descriptors);
    TEST_EQ(t, w.early.threads, w.late.threads);
    enum { ALLOWED_KIB = 1024 }; /* by pages of allocators; nothing grows with the steps */
    int64_t more = w.late.rss_kib - w.early.rss_kib;
    if (!TSI_SANITIZED) TEST_SAY(t, more < ALLOWED_KIB, "%lld KiB more", (long long)more);
    ts_train_config_destroy(w.config);
    remove_folder(&f);
}

TS_TEST(one_rank_stays)
{
    stays(t, "dp=1", 1);
}

TS_TEST(two_ranks_stay)
{
    stays(t, "fsdp=2", 2);
}
