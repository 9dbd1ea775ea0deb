/* SPDX-License-Identifier: Apache-2.0 */
/* cpu.c - the cpu device: host memory, work done at once on the calling thread.
 *
 * Streams and events carry no state: whatever was asked for is finished when the call returns, so a
 * wait is over at once. Large buffers are mapped on their own and ask for huge pages, which the
 * fault path and the TLB both like; a sanitized build keeps them on the heap, where overruns are
 * seen. */
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/thread.h"
#include "device/at_once.h"
#include "device/cpu.h"

enum { BUFFER_ALIGNMENT = 64, MAPPED_MIN = 4 << 20 };
/* Sanitizers end the process when they are asked for more than they can map. */
#define BUFFER_BYTES_MAX ((size_t)1 << (TSI_SANITIZED ? 38 : 62))

static bool is_mapped(size_t bytes)
{
    return !TSI_SANITIZED && bytes >= MAPPED_MIN;
}

/* Maps with room to spare and gives back what stands over on both sides of the aligned range. */
static void *map_aligned(size_t bytes)
{
    size_t room = bytes + TSI_HUGE_PAGE;
    char *mapped = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return NULL;
    size_t before = (size_t)(-(uintptr_t)mapped) & (TSI_HUGE_PAGE - 1);
    if (before > 0) munmap(mapped, before);
    if (before < TSI_HUGE_PAGE) munmap(mapped + before + bytes, TSI_HUGE_PAGE - before);
    tsi_wish_huge_pages(mapped + before, bytes);
    return mapped + before;
}

static size_t mapped_size(size_t bytes)
{
    return (bytes + 4095) & ~(size_t)4095;
}

static ts_status buffer_alloc(const tsi_device *device, size_t bytes, void **out)
{
    (void)device;
    *out = NULL;
    if (bytes > BUFFER_BYTES_MAX) return TS_ERR_MEMORY; /* unrecorded, as the table wants it */
    if (is_mapped(bytes))
        *out = map_aligned(mapped_size(bytes));
    else
        *out = tsi_alloc_aligned(bytes > 0 ? bytes : 1, BUFFER_ALIGNMENT);
    return *out ? TS_OK : TS_ERR_MEMORY;
}

static void buffer_free(const tsi_device *device, void *buffer, size_t bytes)
{
    (void)device;
    if (!buffer) return;
    if (is_mapped(bytes))
        munmap(buffer, mapped_size(bytes));
    else
        tsi_free(buffer);
}

static ts_status copy_bytes(const tsi_device *device, void *to, const void *from, size_t bytes,
                            tsi_stream *stream)
{
    (void)device, (void)stream;
    if (bytes > 0) memcpy(to, from, bytes);
    return TS_OK;
}

static void properties(const tsi_device *device, tsi_device_properties *out)
{
    (void)device;
    *out = (tsi_device_properties){ .name = "host", .units = tsi_core_count() };
}

static const tsi_device cpu_device = {
    .struct_size = sizeof(tsi_device),
    .name = "cpu",
    .kind = "cpu",
    .dlpack_type = 1,
    .host_readable = true,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .copy_in = copy_bytes,
    .copy_out = copy_bytes,
    TSI_AT_ONCE,
    .copy = tsi_cpu_copy,
    .fill = tsi_cpu_fill,
    .fold = tsi_cpu_fold,
    .properties = properties,
};

const tsi_device *tsi_device_cpu(void)
{
    return &cpu_device;
}
