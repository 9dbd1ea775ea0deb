/* SPDX-License-Identifier: Apache-2.0 */
/* agree.c - processes of one world compute with the same kind of device, by the same choices.
 *
 * Each process finds its device and reads its tables for itself; a machine without a GPU among
 * others, or a file that is on one of them only, would give ranks other kernels and so other bits.
 * So before work begins the first rank tells what it has: another kind of device is refused, its
 * table replaces everybody's. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "runtime/runtime.h"
#include "tessera/comm.h"

enum { KIND, LENGTH, NUMBERS };

static ts_status tell(ts_rank *me, void *data, ts_dtype dtype, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta = (ts_meta){ .shape = TS_SHAPE(count), .dtype = dtype };
    return ts_group_broadcast(ts_group_world(me), &array, 0, NULL);
}

static ts_status take_choices(ts_rank *me, const tsi_device *device, const char *mine,
                              int64_t length)
{
    char *text = tsi_calloc((size_t)length + 1, 1);
    if (!text) return tsi_fail_memory("a table of choices", (size_t)length + 1);
    bool first = ts_rank_index(me) == 0;
    if (first) memcpy(text, mine, (size_t)length);
    ts_status status = length > 0 ? tell(me, text, TS_DTYPE_U8, length) : TS_OK;
    if (status == TS_OK && !first) status = device->choices_take(device, text);
    tsi_free(text);
    return status;
}

ts_status tsi_device_agree(ts_rank *me, const tsi_device *device)
{
    const char *mine = device->choices ? device->choices(device) : "";
    int64_t kind = (int64_t)tsi_hash_text(1, device->kind);
    int64_t number[NUMBERS] = { [KIND] = kind, [LENGTH] = (int64_t)strlen(mine) };
    TSI_TRY(tell(me, number, TS_DTYPE_I64, NUMBERS));
    if (number[KIND] != kind)
        return TSI_FAIL(TS_ERR_MISSING,
                        "device: rank %lld computes on %s, and rank 0 on another kind of device; "
                        "TESSERA_DEVICE=cpu is everywhere",
                        (long long)ts_rank_index(me), device->name);
    if (!device->choices) return TS_OK; /* nobody of this kind has any */
    return take_choices(me, device, mine, number[LENGTH]);
}
