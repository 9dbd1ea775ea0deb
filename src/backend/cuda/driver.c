/* SPDX-License-Identifier: Apache-2.0 */
/* driver.c - opening libcuda and the libraries of the toolkit. They are never closed: they keep
 * threads and handlers of their own. */
#include "backend/cuda/driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

tsi_cuda_driver tsi_cu;

int tsi_cuda_symbol(void *library, const char *name, void *function)
{
    void *symbol = library ? dlsym(library, name) : NULL;
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void *open_in(const char *directory, size_t length, const char *name)
{
    char path[PATH_MAX];
    int written = snprintf(path, sizeof path, "%.*s/%s", (int)length, directory, name);
    return written > 0 && (size_t)written < sizeof path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL)
                                                        : NULL;
}

void *tsi_cuda_library_open(const char *const *names)
{
    void *library = NULL;
    for (const char *const *name = names; *name && !library; name++)
        library = dlopen(*name, RTLD_NOW | RTLD_GLOBAL);
    const char *list = getenv("TESSERA_CUDA_PATH");
    while (list && *list && !library) {
        size_t length = strcspn(list, ":");
        for (const char *const *name = names; *name && !library; name++)
            library = open_in(list, length, *name);
        list += length + (list[length] == ':');
    }
    return library;
}

/* Of a driver that is there but not of today: the first function it lacks. */
static const char *find_functions(void *library)
{
#define TSI_CUDA_FIND(field, symbol, type)                                                         \
    if (!tsi_cuda_symbol(library, #symbol, &tsi_cu.field)) return #symbol;
    TSI_CUDA_DRIVER(TSI_CUDA_FIND)
#undef TSI_CUDA_FIND
    return NULL;
}

/* ---- a GPU that falls off, for tests --------------------------------------------------------- */

static struct {
    PFN_cuLaunchKernelEx_v11060 launch; /* the driver's */
    _Atomic int64_t left;               /* launches until it does */
} falling;

static CUresult CUDAAPI launch_or_fall(const CUlaunchConfig *how, CUfunction kernel,
                                       void **parameters, void **extra)
{
    if (atomic_fetch_sub(&falling.left, 1) <= 0) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    return falling.launch(how, kernel, parameters, extra);
}

/* TESSERA_CUDA_FAULT=N: the GPU is gone from the N-th launch on. */
static void fall_if_asked(void)
{
    const char *text = getenv("TESSERA_CUDA_FAULT");
    if (!text || !*text) return;
    falling.launch = tsi_cu.launch;
    atomic_store(&falling.left, strtoll(text, NULL, 10) - 1);
    tsi_cu.launch = launch_or_fall;
}

ts_status tsi_cuda_driver_open(void)
{
    static const char *const names[] = { "libcuda.so.1", "libcuda.so", NULL };
    void *library = tsi_cuda_library_open(names);
    if (!library)
        return TSI_FAIL(TS_ERR_MISSING, "cuda: no NVIDIA driver: libcuda.so.1 was not found by the "
                                        "loader nor in TESSERA_CUDA_PATH");
    const char *lacks = find_functions(library);
    if (lacks)
        return TSI_FAIL(TS_ERR_MISSING, "cuda: the NVIDIA driver is too old: it has no %s", lacks);
    fall_if_asked();
    CUresult result = tsi_cu.init(0);
    if (result == CUDA_SUCCESS) return TS_OK;
    const char *name = "an unknown error";
    (void)tsi_cu.error_name(result, &name);
    return TSI_FAIL(TS_ERR_MISSING, "cuda: the NVIDIA driver does not start: %s", name);
}
