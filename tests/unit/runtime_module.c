/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_module.c - modules: one that fits gives its tables; each way of not fitting is refused
 * with a sentence that names both sides. The modules are those of tests/modules. */
#include <stdlib.h>

#include "device/device.h"
#include "harness/test.h"
#include "op/ops_hash.h"
#include "runtime/module_load.h"
#include "tessera/version.h"
#include "tessera/world.h"

static const tsi_seam seam[] = TSI_SEAM(TSI_DEVICE_SEAM);

static ts_status open_fake(const char *way, const tsi_module_offer **out)
{
    char file[64];
    (void)snprintf(file, sizeof file, "tessera_fake_%s.so", way);
    (void)setenv("TESSERA_MODULE_PATH", "/nowhere:" TS_BINARY_DIR "/tests/modules", 1);
    return tsi_module_open(file, out);
}

TS_TEST(module_gives_its_tables)
{
    const tsi_module_offer *offer = NULL;
    const void *table = NULL;
    int64_t count = 0;
    TEST_OK(t, open_fake("good", &offer));
    if (!offer) return;
    TEST_TEXT(t, offer->name, "fake");
    TEST_OK(t, tsi_module_table_of(offer, TSI_MODULE_DEVICES, seam, &table, &count));
    const tsi_device *const *devices = table;
    TEST_EQ(t, count, 1);
    TEST_TEXT(t, devices ? devices[0]->name : "none", "fake:0");
    TEST_OK(t, tsi_module_table_of(offer, TSI_MODULE_ENGINE, seam, &table, &count));
    TEST_CHECK(t, table == NULL && count == 0);
}

TS_TEST(module_of_another_build_is_refused)
{
    const tsi_module_offer *offer = NULL;
    const void *table = NULL;
    int64_t count = 0;
    char text[128];
    TEST_OK(t, open_fake("seam", &offer));
    if (!offer) return;
    TEST_STATUS(t, tsi_module_table_of(offer, TSI_MODULE_DEVICES, seam, &table, &count),
                TS_ERR_MISSING);
    TEST_CHECK(t, table == NULL);
    (void)snprintf(text, sizeof text, "its tsi_block has %zu bytes, not %zu", sizeof(tsi_block) + 8,
                   sizeof(tsi_block));
    TEST_SAYS(t, ts_last_error(), text);
    TEST_SAYS(t, ts_last_error(), "fake (tessera " TS_VERSION ")");

    TEST_STATUS(t, open_fake("ops", &offer), TS_ERR_MISSING);
    TEST_CHECK(t, offer == NULL);
    (void)tsi_ops_hash(&count);
    (void)snprintf(text, sizeof text, "a list of %lld operators (", (long long)count + 1);
    TEST_SAYS(t, ts_last_error(), text);
    (void)snprintf(text, sizeof text, "not of %lld (", (long long)count);
    TEST_SAYS(t, ts_last_error(), text);

    TEST_STATUS(t, open_fake("offer", &offer), TS_ERR_MISSING);
    (void)snprintf(text, sizeof text, "its offer has %zu bytes, not %zu",
                   sizeof(tsi_module_offer) - 8, sizeof(tsi_module_offer));
    TEST_SAYS(t, ts_last_error(), text);
}

TS_TEST(module_that_cannot_serve_says_why)
{
    const tsi_module_offer *offer = NULL;
    TEST_STATUS(t, open_fake("absent", &offer), TS_ERR_MISSING);
    TEST_SAYS(t, ts_last_error(), "fake: there is no driver");
    TEST_STATUS(t, open_fake("nothing", &offer), TS_ERR_MISSING);
    TEST_SAYS(t, ts_last_error(), "is no module of tessera");
    TEST_STATUS(t, open_fake("none", &offer), TS_ERR_MISSING);
    TEST_SAYS(t, ts_last_error(), "there is no module tessera_fake_none.so in /nowhere/");
    TEST_SAYS(t, ts_last_error(), "TESSERA_MODULE_PATH may name");
}

/* Repair 21: what is not there is not blamed on packages, and where was looked is said. */
TS_TEST(missing_engine_says_where_it_was_looked_for)
{
    char text[1024];
    (void)setenv("TESSERA_MODULE_PATH", "/nowhere", 1);
    ts_status status = ts_engine_find("mpi:mpich", text, sizeof text);
    if (status == TS_OK) return; /* beside the program */
    TEST_SAYS(t, text, "tessera_mpi_mpich.so, is not in /nowhere/");
    TEST_SAYS(t, text, "TESSERA_MODULE_PATH may name");
    TEST_CHECK(t, strstr(text, "install the packages") == NULL);
}

static ts_status open_on(const char *engine, const char *device, ts_world **out)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = engine;
    options.rank_count = 1;
    options.device = device;
    return ts_world_open(&options, out);
}

static ts_status open_auto(const char *engine, ts_world **out)
{
    return open_on(engine, "auto", out);
}

/* Plans for GPUs are made on machines that have none. */
TS_TEST(without_data_no_device_is_opened)
{
    static const char *const known[] = { "cpu", "queue", "cuda", "cuda:7" };
    static const char *const unknown[] = { "gpu", "cuda:", "cuda:x", "cuda:1x", "cudas", "" };
    ts_world *world = NULL;
    (void)setenv("TESSERA_MODULE_PATH", "/nowhere", 1);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        TEST_OK(t, open_on("model", known[i], &world));
        TEST_TEXT(t, ts_world_device(world), "cpu");
        ts_world_close(world);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        TEST_STATUS(t, open_on("model", unknown[i], &world), TS_ERR_MISSING);
    TEST_SAYS(t, ts_last_error(), "there is no device \"\"; there are: cpu, queue");
}

TS_TEST(auto_takes_a_gpu_that_loads)
{
    ts_world *world = NULL;
    (void)setenv("TESSERA_MODULE_PATH", TS_BINARY_DIR "/tests/modules/cuda", 1);
    TEST_OK(t, open_auto("threads", &world));
    TEST_TEXT(t, ts_world_device(world), "cuda:0 (auto: a GPU of tests)");
    TEST_TEXT(t, tsi_world_device(world)->name, "cuda:0");
    ts_world_close(world);
    TEST_OK(t, open_auto("model", &world)); /* nothing is computed there */
    TEST_TEXT(t, ts_world_device(world), "cpu");
    ts_world_close(world);
    (void)setenv("TESSERA_DEVICE", "auto", 1);
    TEST_OK(t, ts_world_open(TS_OPTIONS(ts_world_options, .engine = "threads"), &world));
    TEST_TEXT(t, tsi_world_device(world)->name, "cuda:0");
    ts_world_close(world);
    (void)unsetenv("TESSERA_DEVICE");
    TEST_OK(t, ts_world_open(TS_OPTIONS(ts_world_options, .engine = "threads"), &world));
    TEST_TEXT(t, ts_world_device(world), "cpu"); /* who does not ask is given none */
    ts_world_close(world);
}

TS_TEST(auto_is_the_cpu_without_a_gpu)
{
    ts_world *world = NULL;
    ts_rank *me = NULL;
    (void)setenv("TESSERA_MODULE_PATH", "/nowhere", 1);
    if (ts_device_find("cuda", NULL, 0) == TS_OK) return; /* beside the program */
    TEST_OK(t, open_auto("threads", &world));
    TEST_TEXT(t, ts_world_device(world), "cpu (auto: cuda is not here, tessera doctor says why)");
    TEST_OK(t, ts_rank_attach(world, 0, &me));
    TEST_OK(t, ts_rank_status(me));
    ts_rank_detach(me);
    ts_world_close(world);
}

TS_TEST(version_and_abi)
{
    TEST_TEXT(t, ts_version(), TS_VERSION);
    TEST_EQ(t, ts_abi(), TS_ABI);
    TEST_OK(t, ts_abi_check(TS_ABI, TS_VERSION));
    TEST_STATUS(t, ts_abi_check(TS_ABI + 1, "9.9.9"), TS_ERR_MISSING);
    TEST_SAYS(t, ts_last_error(), "9.9.9");
    TEST_SAYS(t, ts_last_error(), TS_VERSION);
}
