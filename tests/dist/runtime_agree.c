/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels choose by is the first rank's on all ranks, and a rank with another kind of device
 * is refused. */
#include "device/device.h"
#include "harness/test.h"
#include "runtime/runtime.h"

static _Thread_local char mine[64], taken[64];

static const char *choices(const tsi_device *device)
{
    (void)device;
    return mine;
}

static ts_status choices_take(const tsi_device *device, const char *text)
{
    (void)device;
    (void)snprintf(taken, sizeof taken, "%s", text);
    return TS_OK;
}

static tsi_device device_of(const char *kind)
{
    return (tsi_device){ .struct_size = sizeof(tsi_device),
                         .name = kind,
                         .kind = kind,
                         .choices = choices,
                         .choices_take = choices_take };
}

TS_TEST_RANKS(choices_are_the_first_ranks, 1, 2, 3, 8)
{
    tsi_device device = device_of("test");
    (void)snprintf(mine, sizeof mine, "the table of %d", (int)t->index);
    (void)snprintf(taken, sizeof taken, "nothing");
    TEST_OK(t, tsi_device_agree(t->me, &device));
    TEST_TEXT(t, taken, t->index == 0 ? "nothing" : "the table of 0");
    if (t->index == 0) mine[0] = '\0'; /* others forget what it does not have */
    TEST_OK(t, tsi_device_agree(t->me, &device));
    TEST_TEXT(t, taken, t->index == 0 ? "nothing" : "");
    device.choices = NULL;
    TEST_OK(t, tsi_device_agree(t->me, &device));
}

TS_TEST_RANKS(another_kind_of_device_is_refused, 2, 3)
{
    bool last = t->index == t->count - 1;
    if (strcmp(t->engine, "threads") != 0) return; /* a process that fails takes others along */
    tsi_device device = device_of(last ? "other" : "test");
    mine[0] = '\0';
    ts_status status = tsi_device_agree(t->me, &device);
    TEST_EQ(t, status, last ? TS_ERR_MISSING : TS_OK);
    if (last) TEST_SAYS(t, ts_rank_error(t->me)->text, "computes on other, and rank 0 on another");
    (void)ts_rank_recover(t->me);
}
