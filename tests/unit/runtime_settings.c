/* SPDX-License-Identifier: Apache-2.0 */
/* Options, command line and environment: what is chosen, and what is refused with which words. */
#include <stdio.h>
#include <stdlib.h>

#include "harness/test.h"
#include "runtime/runtime.h"

/* Tests run under a launcher too; here only what the test sets counts. */
static void clean_environment(void)
{
    static const char *const names[] = { "TESSERA_RANKS",       "TESSERA_ENGINE",
                                         "TESSERA_TIMEOUT_MS",  "TESSERA_EVENTS",
                                         "TESSERA_TRACE",       "OMPI_COMM_WORLD_RANK",
                                         "PMIX_RANK",           "PMI_RANK",
                                         "MPI_LOCALRANKID",     "TESSERA_THREADS_PER_PROCESS",
                                         "SLURM_STEP_NUM_TASKS" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

TS_TEST(settings_defaults)
{
    clean_environment();
    tsi_settings s;
    TEST_OK(t, tsi_settings_resolve(NULL, &s));
    TEST_EQ(t, s.engine, TSI_ENGINE_THREADS);
    TEST_CHECK(t, s.user.rank_count >= 1);
    TEST_EQ(t, s.user.timeout_ms, 60000);
    TEST_EQ(t, s.user.threads_per_process, 1);
    TEST_CHECK(t, s.trace == NULL);
}

TS_TEST(settings_ranks_order)
{
    clean_environment();
    tsi_settings s;
    setenv("TESSERA_RANKS", "7", 1);
    TEST_OK(t, tsi_settings_resolve(NULL, &s));
    TEST_EQ(t, s.user.rank_count, 7);
    TEST_OK(t, tsi_settings_resolve(TS_OPTIONS(ts_world_options, .rank_count = 3), &s));
    TEST_EQ(t, s.user.rank_count, 3);
}

TS_TEST(settings_ranks_refused)
{
    clean_environment();
    static const char *const bad[] = {
        "0", "-1", "four", "4x", "4 4", "65537", "99999999999999999999", "3.5", " "
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tsi_settings s;
        setenv("TESSERA_RANKS", bad[i], 1);
        TEST_STATUS(t, tsi_settings_resolve(NULL, &s), TS_ERR_ARG);
        TEST_SAYS(t, ts_last_error(), "TESSERA_RANKS");
        TEST_SAYS(t, ts_last_error(), bad[i]);
    }
    unsetenv("TESSERA_RANKS");
    tsi_settings s;
    TEST_STATUS(t, tsi_settings_resolve(TS_OPTIONS(ts_world_options, .rank_count = -4), &s),
                TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "-4");
    TEST_STATUS(t, tsi_settings_resolve(TS_OPTIONS(ts_world_options, .progress = 9), &s),
                TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "progress: expected a whole number from 0 to 1, found 9");
}

/* Those that are read later are refused as early. */
TS_TEST(settings_others_refused)
{
    static const char *const row[][3] = {
        { "TESSERA_THREADS", "1024", "1025" }, { "TESSERA_THREADS", "", "0" },
        { "TESSERA_THREADS", "2", "two" },     { "TESSERA_QUEUE_SEED", "0", "-1" },
        { "TESSERA_QUEUE_SEED", "7", "7x" },   { "TESSERA_FALLBACK", "forbid", "forbids" },
        { "TESSERA_FALLBACK", "", "none" },    { "TESSERA_ISA", "avx512", "avx" },
        { "TESSERA_DEVICE_SYNC", "1", "yes" }, { "TESSERA_MPI_SHM", "0", "off" },
        { "TESSERA_CUDNN", "off", "0" },       { "TESSERA_NODES", "3, 1", "3, 0" },
        { "TESSERA_NODES", "2", "2," },        { "TESSERA_NODES", "", "two" },
        { "TESSERA_GUESTS", "on", "yes" }
    };
    clean_environment();
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        tsi_settings s;
        const char *before = getenv(row[i][0]);
        char kept[64];
        snprintf(kept, sizeof kept, "%s", before != NULL ? before : "");
        setenv(row[i][0], row[i][1], 1);
        TEST_OK(t, tsi_settings_resolve(NULL, &s));
        setenv(row[i][0], row[i][2], 1);
        TEST_STATUS(t, tsi_settings_resolve(NULL, &s), TS_ERR_ARG);
        TEST_SAYS(t, ts_last_error(), row[i][0]);
        setenv(row[i][0], kept, 1);
    }
}

TS_TEST(settings_engine)
{
    clean_environment();
    tsi_settings s;
    TEST_STATUS(t, tsi_settings_resolve(TS_OPTIONS(ts_world_options, .engine = "thread"), &s),
                TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "\"thread\"");
    TEST_SAYS(t, ts_last_error(), "did you mean \"threads\"");
    setenv("TESSERA_ENGINE", "model", 1);
    TEST_OK(t, tsi_settings_resolve(NULL, &s));
    TEST_EQ(t, s.engine, TSI_ENGINE_MODEL);
    unsetenv("TESSERA_ENGINE");
    setenv("PMI_RANK", "0", 1);
    TEST_OK(t, tsi_settings_resolve(NULL, &s));
    TEST_EQ(t, s.engine, TSI_ENGINE_MPI);
    TEST_TEXT(t, s.why, "PMI_RANK");
}

TS_TEST(settings_struct_size)
{
    clean_environment();
    tsi_settings s;
    ts_world_options options = { 0 };
    TEST_STATUS(t, tsi_settings_resolve(&options, &s), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "struct_size is 0");
    /* A caller built against an older header knows fewer fields: the rest are defaults. */
    options.struct_size = offsetof(ts_world_options, rank_count);
    options.rank_count = 5;
    setenv("TESSERA_RANKS", "2", 1);
    TEST_OK(t, tsi_settings_resolve(&options, &s));
    TEST_EQ(t, s.user.rank_count, 2);
}

TS_TEST(settings_model_ranks)
{
    clean_environment();
    tsi_settings s;
    const int64_t good[] = { 0, 5, 9 }, outside[] = { 0, 10 }, twice[] = { 3, 3 };
    ts_world_options options = { .struct_size = sizeof options,
                                 .engine = "model",
                                 .rank_count = 10 };
    options.model_ranks = good;
    options.model_rank_count = 3;
    TEST_OK(t, tsi_settings_resolve(&options, &s));
    options.model_ranks = outside;
    options.model_rank_count = 2;
    TEST_STATUS(t, tsi_settings_resolve(&options, &s), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "10");
    options.model_ranks = twice;
    TEST_STATUS(t, tsi_settings_resolve(&options, &s), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "ascend");
}

TS_TEST(settings_arguments)
{
    char program[] = "p", ranks[] = "--ts-ranks=3", engine[] = "--ts-engine=model",
         own[] = "--mine";
    char seed[] = "--ts-seed=11", end[] = "--", after[] = "--ts-ranks=0", zero[] = "--ts-ranks=0";
    char near[] = "--ts-rank=3";
    ts_world_options options = TS_INIT(ts_world_options);
    char *good[] = { program, own, ranks, engine, seed, end, after, NULL };
    TEST_OK(t, tsi_settings_arguments(7, good, &options));
    TEST_EQ(t, options.rank_count, 3);
    TEST_EQ(t, options.seed, 11);
    TEST_TEXT(t, options.engine, "model");
    char *bad[] = { program, zero, NULL };
    TEST_STATUS(t, tsi_settings_arguments(2, bad, &options), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "--ts-ranks: expected a whole number");
    char *unknown[] = { program, near, NULL };
    TEST_STATUS(t, tsi_settings_arguments(2, unknown, &options), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "did you mean --ts-ranks?");
    TEST_OK(t, tsi_settings_arguments(0, NULL, &options));
}
