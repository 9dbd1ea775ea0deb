/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of published models before they run: exact numbers of parameters on the numbers of
 * ranks that people use, within seconds and a small memory; and that few layers tell the same as
 * all of them. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/thread.h"
#include "device/parallel.h"
#include "harness/test.h"
#include "train/run.h"

static ts_train_config *published(test *t, const char *name, const char *mesh, const char *set)
{
    char path[512];
    ts_train_config *config = NULL;
    TEST_OK(t, ts_train_config_create(&config));
    snprintf(path, sizeof path, TS_SOURCE_DIR "/examples/train/%s.ini", name);
    TEST_OK(t, ts_train_config_read(config, path));
    snprintf(path, sizeof path, "parallel.mesh=%s", mesh);
    TEST_OK(t, ts_train_config_set(config, path));
    if (set) TEST_OK(t, ts_train_config_set(config, set));
    return config;
}

static void same(test *t, const char *what, int64_t have, int64_t want)
{
    TEST_SAY(t, have == want, "%s: %lld, not %lld", what, (long long)have, (long long)want);
}

static void same_costs(test *t, const ts_train_cost *a, const ts_train_cost *b)
{
    same(t, "parameters", a->parameters, b->parameters);
    same(t, "weights", a->weight_bytes, b->weight_bytes);
    same(t, "gradients", a->gradient_bytes, b->gradient_bytes);
    same(t, "activations", a->activation_bytes, b->activation_bytes);
    same(t, "peak", a->memory.peak, b->memory.peak);
    for (int k = 0; k < TS_MEMORY_KINDS; k++) {
        same(t, ts_memory_kind_name((ts_memory_kind)k), a->memory.at_peak[k], b->memory.at_peak[k]);
        same(t, "the most", a->memory.most[k], b->memory.most[k]);
    }
    TEST_TEXT(t, a->peak.phase, b->peak.phase);
    TEST_TEXT(t, a->peak.module, b->peak.module);
    TEST_TEXT(t, a->peak.op, b->peak.op);
    same(t, "modules", a->peak.row_count, b->peak.row_count);
    for (int32_t i = 0; i < a->peak.row_count; i++)
        TEST_SAY(t, memcmp(&a->peak.row[i], &b->peak.row[i], sizeof a->peak.row[i]) == 0,
                 "memory of %s", b->peak.row[i].name);
    same(t, "kinds of traffic", a->traffic_count, b->traffic_count);
    for (int32_t i = 0; i < a->traffic_count; i++) {
        TEST_CHECK(t, strcmp(a->traffic[i].axes, b->traffic[i].axes) == 0);
        same(t, a->traffic[i].kind, a->traffic[i].bytes, b->traffic[i].bytes);
        same(t, a->traffic[i].axes, a->traffic[i].count, b->traffic[i].count);
    }
    same(t, "patterns", a->param_count, b->param_count);
    for (int32_t i = 0; i < a->param_count; i++)
        same(t, a->param[i].pattern, a->param[i].bytes, b->param[i].bytes);
    TEST_CHECK(t, a->flops_per_token > 0.999999999 * b->flops_per_token &&
                      a->flops_per_token < 1.000000001 * b->flops_per_token);
}

/* Each rank by itself, beside what is said of all of them. Returns the rank with most. */
static int64_t check_range(test *t, const char *name, const ts_train_config *config)
{
    static ts_train_cost said, one;
    int64_t least = INT64_MAX, most = 0;
    TEST_OK(t, ts_train_forecast(config, &said));
    tsi_described of = { .together = said.ranks <= tsi_core_count() };
    of.threads = tsi_parallel_default(said.ranks);
    for (of.rank = 0; of.rank < said.ranks; of.rank++) {
        TEST_OK(t, tsi_train_estimate_rank(config, &of, &one));
        if (one.memory.peak < least) least = one.memory.peak;
        if (one.memory.peak > most) most = one.memory.peak;
        if (of.rank == said.rank_most) same(t, name, said.memory.peak, one.memory.peak);
        if (of.rank == said.rank_least) same(t, name, said.least_bytes, one.memory.peak);
    }
    same(t, name, said.memory.peak, most);
    same(t, name, said.least_bytes, least);
    return said.rank_most;
}

/* The range of ranks that is said, from few of them, is that of all of them. */
TS_TEST(ranks_with_most_and_least)
{
    static const char *const row[][2] = {
        { "fsdp=3", "train.batch=6" },         { "fsdp=4, tp=2", "model.vocab=257" },
        { "dp=2, cp=2", "data.context=62" },   { "pp=2, tp=2", "train.batch=8" },
        { "pp=2, fsdp=2", "model.vocab=257" }, { "dp=4", "train.batch=6" },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        ts_train_config *config = published(t, "gpt2-124m", row[i][0], row[i][1]);
        TEST_OK(t, ts_train_config_set(config, "model.layers=3"));
        if (i != 2) TEST_OK(t, ts_train_config_set(config, "data.context=64"));
        (void)check_range(t, row[i][0], config);
        ts_train_config_destroy(config);
    }
}

/* Experts of other ranks may have more rows than those of the first. */
TS_TEST(ranks_with_most_and_least_rows)
{
    static const char *const row[][3] = {
        { "mixtral-8x7b", "fsdp=4", "parallel.ep=2" },
        { "mixtral-8x7b", "fsdp=8", "parallel.ep=4" },
        { "mixtral-8x7b", "fsdp=4, tp=2", "parallel.ep=2" },
        { "qwen3-30b-a3b", "fsdp=6", "parallel.ep=3" },
        { "qwen3-30b-a3b", "fsdp=8", "parallel.ep=8" },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        ts_train_config *config = published(t, row[i][0], row[i][1], row[i][2]);
        TEST_OK(t, ts_train_config_set(config, "model.layers=2"));
        TEST_OK(t, ts_train_config_set(config, "data.context=8"));
        TEST_OK(t, ts_train_config_set(config, "train.batch=24"));
        (void)check_range(t, row[i][2], config);
        ts_train_config_destroy(config);
    }
}

/* Of Muon each rank has matrices of its own whole: the first need not have the most of them. */
TS_TEST(ranks_with_most_and_least_matrices)
{
    static const struct {
        const char *name, *mesh, *batch, *set[2];
    } row[] = {
        { "gpt2-124m", "fsdp=3", "train.batch=3", { "model.layers=13" } },
        { "gpt2-124m", "fsdp=5", "train.batch=5", { "optimizer.muon_dtype=bf16" } },
        { "gpt2-124m", "dp=7", "train.batch=7", { NULL } },
        { "gpt2-124m", "pp=2, fsdp=5", "train.batch=20", { "model.layers=32" } },
        { "gpt2-124m", "fsdp=3, tp=2", "train.batch=6", { "train.accumulate=2" } },
        { "llama3-8b", "fsdp=4", "train.batch=4", { "model.layers=11" } },
        { "mixtral-8x7b", "fsdp=4", "train.batch=4", { "model.layers=5" } },
        { "mixtral-8x7b", "fsdp=4", "train.batch=4", { "model.layers=5", "parallel.ep=2" } },
        { "qwen3-30b-a3b", "fsdp=6", "train.batch=6", { "model.layers=9", "model.experts=16" } },
    };
    int others = 0;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        ts_train_config *config = published(t, row[i].name, row[i].mesh, "optimizer.kind=muon");
        TEST_OK(t, ts_train_config_set(config, "data.context=8"));
        TEST_OK(t, ts_train_config_set(config, "model.vocab=256"));
        TEST_OK(t, ts_train_config_set(config, row[i].batch));
        for (int k = 0; k < 2; k++)
            if (row[i].set[k]) TEST_OK(t, ts_train_config_set(config, row[i].set[k]));
        others += check_range(t, row[i].mesh, config) > 0;
        ts_train_config_destroy(config);
    }
    TEST_CHECK(t, others > 0); /* that the first has the most everywhere would prove nothing */
}

/* Products and attention are all that has FLOPs; times are amounts over rates. */
TS_TEST(work_is_counted)
{
    static const char *const mesh[] = { "dp=1", "fsdp=2, tp=2", "pp=2, fsdp=2" };
    static ts_train_cost cost;
    for (int i = 0; i < 3; i++) {
        ts_train_config *config = published(t, "gpt2-124m", mesh[i], "train.batch=4");
        TEST_OK(t, ts_train_forecast(config, &cost));
        double all = cost.flops_per_token * (double)cost.tokens;
        double ours = (cost.product_flops + cost.attention_flops) * (double)cost.ranks;
        TEST_SAY(t, ours > (1 - 1e-9) * all && ours < (1 + 1e-9) * all, "%s: %g and %g", mesh[i],
                 ours, all);
        TEST_CHECK(t, cost.attention_flops > 0 && cost.touched_bytes > 0 && cost.curve.count > 1);
        ts_train_rates rates = { .struct_size = sizeof rates,
                                 .product_flops = cost.product_flops / 2,
                                 .attention_flops = cost.attention_flops,
                                 .bytes = (double)cost.touched_bytes / 4 };
        ts_train_times times;
        ts_train_predict(&cost, &rates, &times);
        double computing = times.products + times.attention + times.memory;
        TEST_SAY(t, computing > 6.999999 && computing < 7.000001, "%s: %g s", mesh[i], computing);
        double span = computing + times.idle, share = times.idle / span;
        TEST_SAY(t, fabs(share - cost.bubble) < 1e-9, "%s: idle %g of %g", mesh[i], share, span);
        TEST_CHECK(t, (times.idle > 0) == (i == 2));
        double shown = times.comm - times.hidden;
        TEST_CHECK(t, fabs(times.step - span - times.update - shown) < 1e-9 * times.step);
        TEST_CHECK(t, times.comm == cost.comm_seconds);
        ts_train_config_destroy(config);
    }
}

/* The second halves of layers' sums go on beside the backward of the next, so that a step is
 * shorter than one thing after the other: by as much as is moved or computed meanwhile, and by
 * nothing where moving takes all of a core. */
TS_TEST(what_goes_on_beside_compute_is_hidden)
{
    static ts_train_cost cost;
    ts_train_config *config = published(t, "gpt2-124m", "replicate=8", "model.layers=4");
    TEST_OK(t, ts_train_forecast(config, &cost));
    double beside = 0, all = 0, flops = 0;
    for (int32_t i = 0; i < cost.traffic_count; i++) {
        TEST_CHECK(t, cost.beside[i].bytes <= cost.traffic[i].bytes);
        TEST_CHECK(t, cost.beside[i].product_flops <= 1.000001 * cost.product_flops);
        beside += (double)cost.beside[i].bytes;
        all += (double)cost.traffic[i].bytes;
        flops = fmax(flops, cost.beside[i].product_flops);
    }
    TEST_SAY(t, beside > 0.2 * all && beside < all, "%g of %g bytes", beside, all);
    TEST_SAY(t, flops > 0.1 * cost.product_flops, "%g of %g", flops, cost.product_flops);
    ts_train_rates rates = { .struct_size = sizeof rates,
                             .product_flops = 1e9,
                             .attention_flops = 1e9,
                             .bytes = 1e10,
                             .comm_bytes = 1e10 };
    ts_train_times slow, fast, moving;
    ts_train_predict(&cost, &rates, &slow);
    TEST_SAY(t, fabs(slow.hidden - beside / 1e10) < 1e-9, "%g s hidden of %g", slow.hidden,
             beside / 1e10);
    double sum = slow.products + slow.attention + slow.memory + slow.update + slow.comm;
    TEST_SAY(t, fabs(slow.step - (sum - slow.hidden)) < 1e-9 * sum, "%g", slow.step);
    rates.product_flops = rates.attention_flops = rates.bytes = 1e15;
    ts_train_predict(&cost, &rates, &fast);
    TEST_SAY(t, fast.hidden < fast.products + fast.attention + fast.memory, "%g s hidden",
             fast.hidden);
    rates.moving = 1;
    ts_train_predict(&cost, &rates, &moving);
    TEST_CHECK(t, moving.hidden == 0 && moving.step > fast.step);
    ts_train_config_destroy(config);
}

/* Below 512 ranks all layers are run, so both ways can be compared. */
TS_TEST(few_layers_tell_of_all)
{
    static const char *const row[][4] = {
        { "llama3-8b", "fsdp=8", "parallel.recompute=none" },
        { "llama3-8b", "fsdp=4, tp=2", "parallel.recompute=full" },
        { "llama3-70b", "fsdp=8, tp=4", "parallel.recompute=select" },
        { "llama3-70b", "replicate=2, fsdp=4", "parallel.recompute=4" },
        { "llama3-405b", "fsdp=8, cp=2, tp=4", "parallel.reshard=no" },
        { "qwen3-30b-a3b", "fsdp=8", "parallel.ep=4", "data.context=64" },
        { "mixtral-8x7b", "fsdp=4, tp=2", NULL },
        { "deepseek-v3", "fsdp=16, tp=2", "parallel.ep=8", "data.context=64" },
        { "llama3-8b", "fsdp=64", "optimizer.kind=muon", "data.context=64" },
    };
    int taken = 0;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        ts_train_config *config = published(t, row[i][0], row[i][1], row[i][2]);
        if (row[i][3]) TEST_OK(t, ts_train_config_set(config, row[i][3]));
        static ts_train_cost few, all;
        bool said = tsi_forecast_by_layers(config, tsi_forecast_whole, &few);
        TEST_OK(t, tsi_forecast_whole(config, &all));
        fprintf(stderr, "  %s on %s: %s\n", row[i][0], row[i][1], said ? "in line" : "all");
        taken += said;
        if (said) same_costs(t, &few, &all);
        ts_train_config_destroy(config);
    }
    TEST_CHECK(t, taken >= 6); /* a way that is never taken would prove nothing */
}

TS_TEST(published_sizes_on_usual_ranks)
{
    static const struct {
        const char *name;
        int64_t parameters;
    } row[] = { { "gpt2-124m", 124439808 },       { "llama3-8b", 8030261248 },
                { "llama3-70b", 70553706496 },    { "llama3-405b", 405853388800 },
                { "qwen3-30b-a3b", 30532122624 }, { "mixtral-8x7b", 46702792704 },
                { "deepseek-v3", 671026419200 } };
    static const struct {
        const char *mesh;
        int64_t ranks;
    } mesh[] = { { "fsdp=8", 8 },
                 { "fsdp=32, tp=2", 64 },
                 { "fsdp=64, tp=8", 512 },
                 { "replicate=2, fsdp=256, tp=8", 4096 } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        for (size_t k = 0; k < sizeof mesh / sizeof mesh[0]; k++) {
            static ts_train_cost cost;
            ts_train_config *config = published(t, row[i].name, mesh[k].mesh, NULL);
            TEST_OK(t, ts_train_forecast(config, &cost));
            same(t, row[i].name, cost.parameters, row[i].parameters);
            same(t, mesh[k].mesh, cost.ranks, mesh[k].ranks);
            TEST_CHECK(t, cost.memory.peak > 0 && cost.traffic_count > 0 && cost.comm_seconds > 0);
            ts_train_config_destroy(config);
        }
}

/* VmHWM of this process, in KiB. */
static long peak_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) break;
    if (file) fclose(file);
    return kib;
}

TS_TEST(the_largest_on_16384_ranks)
{
    static ts_train_cost cost;
    clock_t begin = clock(); /* of this process; told, not asked for: machines differ */
    ts_train_config *config = published(t, "llama3-405b", "fsdp=2048, tp=8", NULL);
    TEST_OK(t, ts_train_forecast(config, &cost));
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    long kib = peak_kib();
    fprintf(stderr, "  %.2f s, %ld MiB\n", seconds, kib / 1024);
    same(t, "parameters", cost.parameters, 405853388800);
    same(t, "ranks", cost.ranks, 16384);
    if (!TSI_SANITIZED) TEST_SAY(t, kib > 0 && kib < 200 * 1024, "%ld KiB", kib);
    ts_train_config_destroy(config);
}

/* The update is planned like the rest: nobody touches what it would compute. */
TS_TEST(updates_are_planned_in_no_memory)
{
    static ts_train_cost cost;
    ts_train_config *config = published(t, "llama3-8b", "fsdp=4", "optimizer.kind=muon");
    TEST_OK(t, ts_train_config_set(config, "model.layers=2"));
    TEST_OK(t, ts_train_forecast(config, &cost));
    long kib = peak_kib();
    if (!TSI_SANITIZED) TEST_SAY(t, kib > 0 && kib < 200 * 1024, "%ld KiB", kib);
    ts_train_config_destroy(config);
}
