/* SPDX-License-Identifier: Apache-2.0 */
/* kept_row.c - elementwise calls of a recorded step that are one row each: the function and the
 * addresses, found once, in two lines of the cache.
 *
 * INV: it is the row that tsi_cpu_pointwise runs for the call; so bits are those of the call. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/alloc.h"
#include "base/error.h"

enum { OPERANDS = 4 };

typedef struct kept_row {
    tsi_row_fn fn;
    tsi_row row;
    int32_t bytes[OPERANDS]; /* that it touches: of the result, then of the inputs; 0: none */
    double attributes[];     /* what row.number points to */
} kept_row;

static ts_status kept_row_run(void *context)
{
    const kept_row *k = context;
    k->fn(&k->row);
    return TS_OK;
}

static void touch(void **at, int32_t bytes, bool writes, tsi_kept_tell tell, void *to)
{
    const char *low = *at;
    if (bytes > 0) tell(to, &(tsi_kept_touch){ at, low, low + bytes, writes });
}

static void kept_row_touches(void *context, tsi_kept_tell tell, void *to)
{
    kept_row *k = context;
    for (int32_t i = 1; i < OPERANDS; i++)
        touch((void **)(uintptr_t)&k->row.in[i - 1], k->bytes[i], false, tell, to);
    touch(&k->row.out, k->bytes[0], true, tell, to);
}

static int32_t bytes_of(const tsi_block *block, int64_t count)
{
    return (int32_t)(count * (int64_t)ts_dtype_size((ts_dtype)block->dtype));
}

ts_status tsi_cpu_keep_row(const tsi_kernel_io *io, tsi_kept_work *out)
{
    static const tsi_kept_kind kind = { TSI_KEPT_FREE, kept_row_touches };
    tsi_row row;
    tsi_row_fn fn = tsi_pointwise_row(io, &row);
    if (!fn) return (ts_status)TSI_KERNEL_DECLINED;
    size_t numbers = row.number ? io->op->attribute_bytes : 0;
    kept_row *k = tsi_alloc(sizeof *k + numbers);
    if (!k) return tsi_fail_memory("a call of a step", sizeof *k + numbers);
    *k = (kept_row){ .fn = fn, .row = row };
    k->bytes[0] = bytes_of(&io->out[0].block, row.count);
    for (int32_t i = 0; i < io->input_count; i++) {
        int64_t count = row.count > 0 && row.step[i] == 0 ? 1 : row.count;
        k->bytes[i + 1] = bytes_of(&io->in[i].block, count);
    }
    if (numbers) k->row.number = memcpy(k->attributes, row.number, numbers);
    *out = (tsi_kept_work){ kept_row_run, k, tsi_free, &kind };
    return TS_OK;
}
