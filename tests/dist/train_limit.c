/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that need more than a rank may have are refused before there is storage, and the setting
 * that the sentence names does. */
#include <stdatomic.h>

#include "device/device.h"
#include "dist/train_util.h"
#include "train/run.h"

static const char deep[] = "[model]\nlayers = 6\n[data]\ncontext = 64\n[train]\nbatch = 8\n";

/* What a step needs on a mesh, with more settings. */
static int64_t planned(test *t, const char *more)
{
    ts_train_config *config;
    ts_train_cost cost;
    TEST_OK(t, ts_train_config_create(&config));
    TEST_OK(t, ts_train_config_parse(config, "small", small));
    TEST_OK(t, ts_train_config_parse(config, "deep", deep));
    TEST_OK(t, ts_train_config_parse(config, "more", more));
    TEST_OK(t, ts_train_forecast(config, &cost));
    ts_train_config_destroy(config);
    return cost.memory.peak;
}

/* "with parallel.mesh=fsdp=2 and train.accumulate=2 it needs" as lines of a configuration. */
static void take_settings(const char *sentence, char *out, size_t size)
{
    const char *at = strstr(sentence, "; with "), *end = at ? strstr(at, " it needs ") : NULL;
    out[0] = '\0';
    for (at = at ? at + 7 : NULL; at && end && at < end;) {
        const char *dot = strchr(at, '.'), *next = strstr(at, " and ");
        if (!next || next > end) next = end;
        snprintf(out + strlen(out), size - strlen(out), "[%.*s]\n%.*s\n", (int)(dot - at), at,
                 (int)(next - dot - 1), dot + 1);
        at = next + 5;
    }
}

static void refused_then_taken(test *t, const char *mesh, int64_t ranks, double share)
{
    folder f = make_folder(t);
    char text[512], settings[256];
    snprintf(text, sizeof text, "[parallel]\nmesh = %s\n", mesh);
    int64_t limit = (int64_t)(share * (double)planned(t, text));
    snprintf(text, sizeof text, "%s[parallel]\nmesh = %s\n[train]\nmemory = %lld\n", deep, mesh,
             (long long)limit);
    outcome o = { 0 }, again = { 0 };
    TEST_STATUS(t, train(t, &f, "run", text, ranks, &o), TS_ERR_MEMORY);
    TEST_SAYS(t, o.error, "train.memory: a step needs ");
    TEST_SAYS(t, o.error, " are allowed; with ");
    take_settings(o.error, settings, sizeof settings);
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s", settings);
    TEST_OK(t, train(t, &f, "run", text, ranks, &again));
    remove_folder(&f);
}

TS_TEST(what_is_named_fits)
{
    (void)setenv("TESSERA_THREADS", "1", 1); /* no setting saves what threads keep for themselves */
    refused_then_taken(t, "dp=1", 1, 0.8);
    refused_then_taken(t, "dp=2", 2, 0.45);
    refused_then_taken(t, "pp=2, fsdp=2", 4, 0.7);
    (void)unsetenv("TESSERA_THREADS");
}

/* A world that a program opened has its own device, whatever the configuration says or leaves to
 * what is found here: what is named is planned for it. */
TS_TEST(what_is_named_is_of_the_runs_device)
{
    folder f = make_folder(t);
    char text[512], device[64];
    outcome o = { 0 }, other = { 0 };
    const char *of_worlds = getenv("TESSERA_DEVICE");
    snprintf(device, sizeof device, "[train]\ndevice = %s\n", of_worlds ? of_worlds : "cpu");
    int64_t limit = planned(t, device) * 8 / 10;
    snprintf(text, sizeof text, "%s[train]\nmemory = %lld\n", deep, (long long)limit);
    TEST_STATUS(t, train(t, &f, "run", text, 1, &o), TS_ERR_MEMORY);
    TEST_SAYS(t, o.error, " are allowed; with ");
    snprintf(text + strlen(text), sizeof text - strlen(text), "device = queue\n");
    TEST_STATUS(t, train(t, &f, "run", text, 1, &other), TS_ERR_MEMORY);
    TEST_TEXT(t, other.error, o.error);
    remove_folder(&f);
}

TS_TEST(nothing_fits)
{
    folder f = make_folder(t);
    outcome o = { 0 };
    TEST_STATUS(t, train(t, &f, "run", "[train]\nmemory = 1KiB\n", 1, &o), TS_ERR_MEMORY);
    TEST_SAYS(t, o.error, "no other setting that was tried fits, the least needs ");
    TEST_OK(t, train(t, &f, "run", "[train]\nmemory = none\nsteps = 1\n", 1, &o));
    remove_folder(&f);
}

/* Memory of a device that several ranks have is divided among them. */
TS_TEST_RANKS(a_device_is_shared, 1, 2, 3, 8)
{
    int64_t mine = 0;
    uint64_t place = (uint64_t)(t->index % 3);
    for (int64_t i = 0; i < t->count; i++)
        mine += i % 3 == (int64_t)place;
    int64_t bytes = 5040;
    TEST_OK(t, tsi_limit_share(ts_group_world(t->me), place, &bytes));
    TEST_EQ(t, bytes, place == 0 ? 5040 : 5040 / mine);
}

/* With sequence parallelism what backward needs again may stay cut, which costs least. */
TS_TEST(saved_inputs_stay_cut)
{
    ts_train_config *config;
    ts_train_cost gathered, cut;
    char set[64];
    TEST_OK(t, ts_train_config_create(&config));
    TEST_OK(t, ts_train_config_parse(config, "plan",
                                     "[model]\nhidden = 64\nlayers = 4\nheads = 4\nvocab = 300\n"
                                     "[data]\ncontext = 64\n[train]\nbatch = 4\n[parallel]\n"
                                     "mesh = tp=2\n"));
    TEST_OK(t, ts_train_forecast(config, &gathered));
    TEST_OK(t, ts_train_config_set(config, "parallel.saved=sharded"));
    TEST_OK(t, ts_train_forecast(config, &cut));
    TEST_CHECK(t, cut.memory.peak < gathered.memory.peak);
    TEST_OK(t, ts_train_config_set(config, "parallel.saved=gathered"));
    snprintf(set, sizeof set, "train.memory=%lld", (long long)cut.memory.peak);
    TEST_OK(t, ts_train_config_set(config, set));
    TEST_STATUS(t, ts_train_limit(config, &gathered), TS_ERR_MEMORY);
    TEST_SAYS(t, ts_last_error(), "; with parallel.saved=sharded it needs ");
    TEST_OK(t, ts_train_config_set(config, "parallel.plan=tp")); /* whole rows on every rank */
    TEST_OK(t, ts_train_forecast(config, &gathered));
    TEST_STATUS(t, ts_train_limit(config, &gathered), TS_ERR_MEMORY);
    TEST_CHECK(t, !strstr(ts_last_error(), "parallel.saved"));
    ts_train_config_destroy(config);
}

/* Of a plan alone more ranks are thought of, too. */
TS_TEST(more_ranks_are_named)
{
    ts_train_config *config;
    ts_train_cost cost;
    TEST_OK(t, ts_train_config_create(&config));
    TEST_OK(t, ts_train_config_parse(config, "plan",
                                     "[model]\nhidden = 256\nlayers = 16\nvocab = 300\n[data]\n"
                                     "context = 16\n[train]\nbatch = 2\n[parallel]\n"
                                     "mesh = fsdp=2\n"));
    TEST_OK(t, ts_train_forecast(config, &cost));
    TEST_OK(t, ts_train_limit(config, &cost)); /* auto is for those who train */
    char set[64];
    snprintf(set, sizeof set, "train.memory=%lld", (long long)(cost.memory.peak / 2));
    TEST_OK(t, ts_train_config_set(config, set));
    TEST_STATUS(t, ts_train_limit(config, &cost), TS_ERR_MEMORY);
    TEST_SAYS(t, ts_last_error(), "with parallel.mesh=fsdp=");
    ts_train_config_destroy(config);
}

/* ---- a device that has less than was planned ------------------------------------------------- */

/* The host's memory as a device of its own, of which there is only so much. */
static struct tight {
    tsi_device device;
    _Atomic int64_t left;
} tight;

static ts_status tight_alloc(const tsi_device *device, size_t bytes, void **out)
{
    (void)device;
    *out = NULL;
    if (atomic_fetch_sub(&tight.left, (int64_t)bytes) < (int64_t)bytes) {
        atomic_fetch_add(&tight.left, (int64_t)bytes);
        return TS_ERR_MEMORY;
    }
    return tsi_device_host()->buffer_alloc(tsi_device_host(), bytes, out);
}

static void tight_free(const tsi_device *device, void *buffer, size_t bytes)
{
    (void)device;
    atomic_fetch_add(&tight.left, (int64_t)bytes);
    tsi_device_host()->buffer_free(tsi_device_host(), buffer, bytes);
}

typedef struct tight_run {
    test *t;
    ts_train_config *config;
    int64_t room; /* once the first run has failed */
} tight_run;

/* The rank that is refused says why; all recover, and the run that has room ends well. */
static ts_status fail_then_train(ts_rank *me, void *argument)
{
    tight_run *r = argument;
    ts_train_result result;
    ts_status status = ts_train_run(me, r->config, NULL, &result);
    TEST_CHECK(r->t, status == TS_ERR_MEMORY || status == TS_ERR_PEER);
    const ts_error *error = ts_rank_error(me);
    if (status == TS_ERR_MEMORY) {
        TEST_SAYS(r->t, error->text, " on tight: this rank holds ");
        TEST_SAYS(r->t, error->text, " in use (planned ");
        TEST_SAYS(r->t, error->text, "optimizer ");
    }
    TEST_OK(r->t, ts_rank_recover(me));
    TEST_OK(r->t, ts_group_barrier(ts_group_world(me), NULL));
    atomic_store(&tight.left, r->room);
    TEST_OK(r->t, ts_group_barrier(ts_group_world(me), NULL));
    return ts_train_run(me, r->config, NULL, &result);
}

static void tight_train(test *t, const char *mesh, int64_t ranks)
{
    folder f = make_folder(t);
    char text[512], path[FOLDER_PATH_MAX], error[1024] = "";
    tight_run r = { .t = t, .room = 1 << 30 };
    snprintf(text, sizeof text, "%s[parallel]\nmesh = %s\n[train]\nmemory = none\n", deep, mesh);
    atomic_store(&tight.left, ranks * planned(t, text) * 9 / 10);
    TEST_OK(t, ts_train_config_create(&r.config));
    TEST_OK(t, ts_train_config_parse(r.config, "small", small));
    TEST_OK(t, ts_train_config_parse(r.config, "deep", text));
    snprintf(path, sizeof path, "%s/text.txt", f.path);
    set(t, r.config, "data.path", path);
    snprintf(path, sizeof path, "%s/run", f.path);
    set(t, r.config, "train.output", path);
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = ranks;
    options.device = "tight";
    TEST_OK(t, ts_launch_with(&options, fail_then_train, &r, error, sizeof error));
    TEST_TEXT(t, error, "");
    ts_train_config_destroy(r.config);
    remove_folder(&f);
}

/* A step that meets less memory than was planned ends with the plan beside what is held. */
TS_TEST(out_of_memory_says_what_was_planned)
{
    tight.device = *tsi_device_host();
    tight.device.name = "tight";
    tight.device.buffer_alloc = tight_alloc;
    tight.device.buffer_free = tight_free;
    TEST_OK(t, tsi_device_add(&tight.device));
    tight_train(t, "dp=1", 1);
    tight_train(t, "dp=2", 2);
}
