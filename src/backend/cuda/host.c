/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - words of the core as calls through its table. They are not exported: module.map. */
#include "backend/cuda/host.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"

static const tsi_module_host *core;

bool tsi_cuda_host_set(const tsi_module_host *host)
{
    if (!host || host->struct_size < sizeof *host || host->device_size < sizeof(tsi_device))
        return false;
    core = host;
    return true;
}

ts_status tsi_fail_va(ts_blast blast, ts_status status, const char *format, va_list arguments)
{
    return core->fail_va(blast, status, format, arguments);
}

ts_status tsi_fail(ts_blast blast, ts_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    ts_status result = core->fail_va(blast, status, format, arguments);
    va_end(arguments);
    return result;
}

ts_status tsi_fail_memory(const char *what, size_t bytes)
{
    return TSI_FAIL(TS_ERR_MEMORY, "no memory for %s (%zu bytes)", what, bytes);
}

void *tsi_alloc(size_t bytes)
{
    return core->alloc(bytes);
}

void *tsi_calloc(size_t count, size_t bytes)
{
    return core->calloc(count, bytes);
}

void tsi_free(void *memory)
{
    core->free(memory);
}

void tsi_assert_failed(const char *condition, const char *file, int line)
{
    core->assert_failed(condition, file, line);
    for (;;) /* it does not return, which a pointer to it cannot say */
        ;
}

size_t ts_dtype_size(ts_dtype dtype)
{
    return core->dtype_size(dtype);
}

const char *ts_dtype_name(ts_dtype dtype)
{
    return core->dtype_name(dtype);
}

const char *ts_reduce_name(ts_reduce reduce)
{
    return core->reduce_name(reduce);
}

bool tsi_reduce_allowed(ts_reduce reduce, ts_dtype dtype, const char **why)
{
    return core->reduce_allowed(reduce, dtype, why);
}

int64_t tsi_block_count(const tsi_block *block)
{
    return core->block_count(block);
}

bool tsi_block_is_dense(const tsi_block *block)
{
    return core->block_is_dense(block);
}
