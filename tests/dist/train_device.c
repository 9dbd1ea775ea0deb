/* SPDX-License-Identifier: Apache-2.0 */
/* train_device.c - steps on a device that runs behind the host (`queue`): nobody waits, nothing is
 * allocated once it is warm, mirrors are as new as what they mirror, late news are true news. */
#include "dist/step_util.h"
#include "dist/train_util.h"

/* The host waits for nothing in a step, and from the third one on the device gives no memory. */
TS_TEST(a_step_waits_for_nothing)
{
    for (int narrow = 0; narrow < 2; narrow++) {
        walk_of s = { .t = t, .mesh = "dp=1", .count = 8, .poison_at = -1 };
        s.compute = narrow ? TS_DTYPE_BF16 : 0;
        run_on(&s, "queue", 1);
        TEST_EQ(t, s.waits, 0);
        for (int i = 2; i < s.count; i++)
            TEST_EQ(t, s.reserved[i], s.reserved[1]);
    }
}

/* What is decided on a device is what the host decides: the same bits, with and without mirrors. */
TS_TEST(a_device_decides_as_the_host)
{
    for (int kind = 0; kind < 3; kind++) {
        walk_of cpu = { .t = t, .mesh = "dp=1", .count = 10, .poison_at = -1, .sgd = kind == 2 };
        cpu.compute = kind > 0 ? TS_DTYPE_BF16 : 0;
        walk_of queue = cpu;
        run_on(&cpu, "cpu", 1);
        run_on(&queue, "queue", 1);
        for (int i = 0; i + 1 < cpu.count; i++)
            TEST_SAY(t, memcmp(&cpu.loss[i], &queue.loss[i], sizeof cpu.loss[i]) == 0,
                     "kind %d, step %d: %.17g and %.17g", kind, i, cpu.loss[i], queue.loss[i]);
        TEST_CHECK(t, cpu.loss[8] < cpu.loss[0]);
    }
}

/* A step that is not finite ends all later updates: the loss stays where it was. */
TS_TEST(what_is_not_finite_ends_the_updates)
{
    walk_of s = { .t = t, .mesh = "dp=1", .count = 8, .poison_at = 3 };
    run_on(&s, "queue", 1);
    walk_of good = { .t = t, .mesh = "dp=1", .count = 8, .poison_at = -1 };
    run_on(&good, "queue", 1);
    TEST_CHECK(t, s.loss[2] == good.loss[2] && isnan(s.loss[3]));
    TEST_CHECK(t, s.loss[4] != good.loss[4] && isfinite(s.loss[4]));
}

/* Ranks that share a mesh decide alike. */
TS_TEST(meshes_decide_on_devices)
{
    walk_of one = { .t = t, .mesh = "dp=1", .count = 6, .poison_at = -1 };
    walk_of two = { .t = t, .mesh = "dp=2", .count = 6, .poison_at = -1 };
    run_on(&one, "cpu", 1);
    run_on(&two, "queue", 2);
    for (int i = 0; i + 1 < one.count; i++)
        TEST_SAY(t, fabs(one.loss[i] - two.loss[i]) < 1e-5, "step %d: %.9g and %.9g", i,
                 one.loss[i], two.loss[i]);
}

/* A run on one device goes on on another; news that come late are those that come at once. */
static ts_status work_late(ts_rank *me, void *argument)
{
    outcome *o = argument;
    ts_train_options options = { .struct_size = sizeof options,
                                 .on_plan = note_plan,
                                 .on_step = note,
                                 .context = o,
                                 .late = 1 };
    ts_train_result result;
    ts_status status = ts_train_run(me, o->config, &options, &result);
    if (ts_rank_index(me) == 0) o->result = result;
    return status;
}

static void train_on(test *t, const folder *f, const char *name, const char *device, outcome *o)
{
    char path[FOLDER_PATH_MAX];
    for (int i = 0; i <= STEPS_MAX; i++)
        o->loss[i] = o->norm[i] = NAN;
    TEST_OK(t, ts_train_config_create(&o->config));
    TEST_OK(t, ts_train_config_parse(o->config, "small", small));
    snprintf(path, sizeof path, "%s/text.txt", f->path);
    set(t, o->config, "data.path", path);
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    set(t, o->config, "train.output", path);
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "threads",
                                 .rank_count = 1,
                                 .seed = 5,
                                 .device = device };
    TEST_OK(t, ts_launch_with(&options, work_late, o, o->error, sizeof o->error));
    ts_train_config_destroy(o->config);
    ts_text_release(&o->result.sample);
}

TS_TEST(late_news_are_the_same_news)
{
    folder f = make_folder(t);
    outcome cpu = { 0 }, queue = { 0 }, begun = { .stop_at = 2 }, rest = { 0 };
    train_on(t, &f, "cpu", "cpu", &cpu);
    train_on(t, &f, "queue", "queue", &queue);
    same_losses(t, &cpu, &queue, STEPS, 0);
    same_weights(t, &f, "cpu", "queue");
    train_on(t, &f, "moved", "queue", &begun);
    TEST_EQ(t, begun.result.step, 3); /* step 3 ran while step 2 was told */
    train_on(t, &f, "moved", "cpu", &rest);
    TEST_EQ(t, rest.step_first, 3);
    memcpy(rest.loss, begun.loss, 4 * sizeof rest.loss[0]);
    same_losses(t, &cpu, &rest, STEPS, 0);
    same_weights(t, &f, "cpu", "moved");
    remove_folder(&f);
}
