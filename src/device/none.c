/* SPDX-License-Identifier: Apache-2.0 */
/* none.c - the device of a world without data: buffers have a size and an address, and nothing is
 * read from them or written to them.
 *
 * A program that runs on it takes, keeps and frees exactly what it would on a device that has
 * memory, so its account is that program's account. Addresses are mapped without room behind them:
 * who touches one by mistake reads zeros and takes a page, and hurts nobody. */
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/at_once.h"

enum { ALIGNMENT = 64, MAPPED_MIN = 1 << 16, PAGE = 4096 };

static size_t mapped_size(size_t bytes)
{
    return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
}

static ts_status buffer_alloc(const tsi_device *device, size_t bytes, void **out)
{
    (void)device;
    *out = NULL;
    if (bytes >= MAPPED_MIN) {
        void *mapped = mmap(NULL, mapped_size(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped != MAP_FAILED) *out = mapped;
    } else {
        *out = tsi_alloc_aligned(bytes > 0 ? bytes : 1, ALIGNMENT);
        if (*out) memset(*out, 0, bytes);
    }
    return *out ? TS_OK : TS_ERR_MEMORY;
}

static void buffer_free(const tsi_device *device, void *buffer, size_t bytes)
{
    (void)device;
    if (buffer && bytes >= MAPPED_MIN)
        munmap(buffer, mapped_size(bytes));
    else
        tsi_free(buffer);
}

static ts_status copy_bytes(const tsi_device *device, void *to, const void *from, size_t bytes,
                            tsi_stream *stream)
{
    (void)device, (void)to, (void)from, (void)bytes, (void)stream;
    return TS_OK;
}

static ts_status copy(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                      tsi_stream *stream)
{
    (void)device, (void)to, (void)from, (void)stream;
    return TS_OK;
}

static ts_status fill(const tsi_device *device, const tsi_block *to, const void *element,
                      tsi_stream *stream)
{
    (void)device, (void)to, (void)element, (void)stream;
    return TS_OK;
}

static ts_status fold(const tsi_device *device, const tsi_block *to, const tsi_block *const *from,
                      int64_t count, ts_reduce reduce, int64_t avg_count, tsi_stream *stream)
{
    (void)device, (void)to, (void)from, (void)count, (void)reduce, (void)avg_count, (void)stream;
    return TS_OK;
}

/* Whatever is copied from or to, nothing is. */
static bool reach(const tsi_device *device, const tsi_device *other)
{
    (void)device, (void)other;
    return true;
}

static const tsi_device none = {
    .struct_size = sizeof(tsi_device),
    .name = "none",
    .kind = "none",
    .dlpack_type = 12,
    .host_readable = false,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .copy_in = copy_bytes,
    .copy_out = copy_bytes,
    TSI_AT_ONCE,
    .copy = copy,
    .fill = fill,
    .fold = fold,
    .reach = reach,
};

const tsi_device *tsi_device_none(void)
{
    return &none;
}
