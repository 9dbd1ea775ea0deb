/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - the GPUs of this machine: what they are, their contexts, memory, and what ends them.
 *
 * INV: a GPU is opened once, on the first attach or use, and stays open: its context is shared with
 * other libraries of the process. After a fault every call fails with its sentence. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/cudnn.h"
#include "backend/cuda/product.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { GPUS_MAX = 16 };

static struct {
    tsi_cuda gpu[GPUS_MAX];
    const tsi_device *device[GPUS_MAX];
    int32_t count;
} found;

/* ---- errors ---------------------------------------------------------------------------------- */

/* Errors after which the context can do nothing any more. */
static bool is_final(CUresult result)
{
    static const CUresult final[] = {
        CUDA_ERROR_ILLEGAL_ADDRESS,      CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_LAUNCH_TIMEOUT,       CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_MISALIGNED_ADDRESS,   CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC,           CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_DEVICE_NOT_LICENSED,
        CUDA_ERROR_DEVICE_UNAVAILABLE,   CUDA_ERROR_DEINITIALIZED,
        CUDA_ERROR_EXTERNAL_DEVICE,      CUDA_ERROR_UNKNOWN,
    };
    for (size_t i = 0; i < TSI_COUNT_OF(final); i++)
        if (final[i] == result) return true;
    return false;
}

ts_status tsi_cuda_fail(tsi_cuda *cuda, CUresult result, const char *what)
{
    const char *name = "an unknown error", *text = "no text";
    (void)tsi_cu.error_name(result, &name);
    (void)tsi_cu.error_string(result, &text);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return TSI_FAIL(TS_ERR_MEMORY, "no memory for %s on %s (%s)", what, cuda->name, name);
    if (!is_final(result))
        return TSI_FAIL(TS_ERR_IO, "%s: %s: %s (%s)", cuda->name, what, name, text);
    if (!cuda->fault[0])
        (void)snprintf(cuda->fault, sizeof cuda->fault, "%s: %s: %s (%s)", cuda->name, what, name,
                       text);
    return TSI_FAIL_BLAST(TS_BLAST_LOST, TS_ERR_LOST, "%s", cuda->fault);
}

static const char *fault(const tsi_device *device)
{
    const tsi_cuda *cuda = tsi_cuda_of(device);
    return cuda->fault[0] ? cuda->fault : NULL;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The fatbins of kernels/, one a file (made by the build). */
/* clang-format off */
#define TSI_CUDA_IMAGES(X) \
    X(copy) X(cast) X(fold) X(random) X(pointwise) X(pointwise_f32) X(pointwise_bf16) X(norm) \
    X(rows) X(update) X(attend) X(attend_mma) X(attend_mma_back) X(reduce) X(rope) X(entropy) \
    X(embedding) X(sort) X(index) X(grouped) X(add_norm) X(swiglu) X(loss) X(scan) \
    X(nll) X(group_norm) X(put) X(histogram) X(trial) X(attend_tile) X(grouped_mma)          \
    X(grouped_wide) X(attend_wide) X(attend_wide_back)
/* clang-format on */
#define TSI_CUDA_IMAGE(image) extern const unsigned char tsi_cuda_image_##image[];
TSI_CUDA_IMAGES(TSI_CUDA_IMAGE)
#undef TSI_CUDA_IMAGE

typedef enum image_id {
#define TSI_CUDA_IMAGE(image) IMAGE_##image,
    TSI_CUDA_IMAGES(TSI_CUDA_IMAGE)
#undef TSI_CUDA_IMAGE
        IMAGE_COUNT
} image_id;

static const struct {
    image_id image;
    const char *name;
} kernel_list[TSI_CUDA_KERNEL_COUNT] = {
#define TSI_CUDA_KERNEL(image, name) { IMAGE_##image, #name },
#include "backend/cuda/kernels/kernels.def"
#undef TSI_CUDA_KERNEL
};

static ts_status load_kernels(tsi_cuda *cuda)
{
    static const unsigned char *const images[IMAGE_COUNT] = {
#define TSI_CUDA_IMAGE(image) tsi_cuda_image_##image,
        TSI_CUDA_IMAGES(TSI_CUDA_IMAGE)
#undef TSI_CUDA_IMAGE
    };
    CUmodule module[IMAGE_COUNT] = { 0 };
    for (int32_t i = 0; i < IMAGE_COUNT; i++)
        TSI_CUDA_TRY(cuda, "kernels", tsi_cu.module_load(&module[i], images[i]));
    for (int32_t i = 0; i < TSI_CUDA_KERNEL_COUNT; i++)
        TSI_CUDA_TRY(cuda, kernel_list[i].name,
                     tsi_cu.module_function(&cuda->kernel[i], module[kernel_list[i].image],
                                            kernel_list[i].name));
    return TS_OK;
}

static ts_status open_gpu(tsi_cuda *cuda)
{
    if (!cuda->context)
        TSI_CUDA_TRY(cuda, "its context", tsi_cu.context_retain(&cuda->context, cuda->handle));
    TSI_CUDA_TRY(cuda, "its context", tsi_cu.context_set(cuda->context));
    TSI_TRY(load_kernels(cuda));
    cuda->open = true;
    return TS_OK;
}

ts_status tsi_cuda_enter(tsi_cuda *cuda)
{
    if (TSI_UNLIKELY(cuda->fault[0] != 0))
        return TSI_FAIL_BLAST(TS_BLAST_LOST, TS_ERR_LOST, "%s", cuda->fault);
    if (TSI_LIKELY(cuda->open)) {
        TSI_CUDA_TRY(cuda, "its context", tsi_cu.context_set(cuda->context));
        return TS_OK;
    }
    pthread_mutex_lock(&cuda->lock);
    ts_status status = cuda->open ? TS_OK : open_gpu(cuda);
    pthread_mutex_unlock(&cuda->lock);
    if (status == TS_OK) TSI_CUDA_TRY(cuda, "its context", tsi_cu.context_set(cuda->context));
    return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* TESSERA_CUDA_MEMORY=host: buffers lie in pinned memory of the host, which kernels reach over the
 * bus. Slow; for programs, tests above all, that read their tensors through pointers. */
static bool is_on_host(void)
{
    const char *where = getenv("TESSERA_CUDA_MEMORY");
    return where && strcmp(where, "host") == 0;
}

static CUresult host_buffer(CUdeviceptr *out, size_t bytes)
{
    void *memory = NULL;
    CUresult result = tsi_cu.host_alloc(&memory, bytes > 0 ? bytes : 1,
                                        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    *out = tsi_cuda_pointer(memory);
    return result;
}

static ts_status buffer_alloc(const tsi_device *device, size_t bytes, void **out)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    *out = NULL;
    TSI_TRY(tsi_cuda_enter(cuda));
    CUdeviceptr pointer = 0;
    CUresult result =
        is_on_host() ? host_buffer(&pointer, bytes) : tsi_cu.alloc(&pointer, bytes > 0 ? bytes : 1);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return TS_ERR_MEMORY; /* unrecorded */
    TSI_CUDA_TRY(cuda, "memory", result);
    *out = (void *)(uintptr_t)pointer;
    return TS_OK;
}

/* The driver waits for work that may use it. A wait for all of the GPU beforehand would end what
 * other ranks capture meanwhile. */
static void buffer_free(const tsi_device *device, void *buffer, size_t bytes)
{
    (void)bytes;
    tsi_cuda *cuda = tsi_cuda_of(device);
    if (!buffer || cuda->fault[0] || tsi_cuda_enter(cuda) != TS_OK) return;
    if (is_on_host())
        (void)tsi_cu.host_free(buffer);
    else
        (void)tsi_cu.free(tsi_cuda_pointer(buffer));
}

/* Pinning takes a hundred microseconds, so blocks of up to 2^PIN_LAST bytes are kept by powers of
 * two. Nobody gives one back before the stream that copies has passed. */
enum { PIN_FIRST = 12, PIN_LAST = 26, PIN_KEPT = 8 };
static struct {
    pthread_mutex_t lock;
    int32_t count[PIN_LAST + 1], reserved;
    void *kept[PIN_LAST + 1][PIN_KEPT];
} pins = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int32_t pin_class(size_t bytes)
{
    int32_t power = PIN_FIRST;
    while (power <= PIN_LAST && ((size_t)1 << power) < bytes)
        power++;
    return power;
}

static ts_status host_alloc(const tsi_device *device, size_t bytes, void **out)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    int32_t power = pin_class(bytes);
    *out = NULL;
    TSI_TRY(tsi_cuda_enter(cuda));
    if (power <= PIN_LAST) {
        pthread_mutex_lock(&pins.lock);
        if (pins.count[power] > 0) *out = pins.kept[power][--pins.count[power]];
        pthread_mutex_unlock(&pins.lock);
        if (*out) return TS_OK;
        bytes = (size_t)1 << power;
    }
    CUresult result = tsi_cu.host_alloc(out, bytes, CU_MEMHOSTALLOC_PORTABLE);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return TS_ERR_MEMORY;
    TSI_CUDA_TRY(cuda, "pinned memory", result);
    return TS_OK;
}

static void host_free(const tsi_device *device, void *memory, size_t bytes)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    int32_t power = pin_class(bytes);
    if (memory && power <= PIN_LAST) {
        pthread_mutex_lock(&pins.lock);
        if (pins.count[power] < PIN_KEPT) {
            pins.kept[power][pins.count[power]++] = memory;
            memory = NULL;
        }
        pthread_mutex_unlock(&pins.lock);
    }
    if (memory && !cuda->fault[0] && tsi_cuda_enter(cuda) == TS_OK) (void)tsi_cu.host_free(memory);
}

/* ---- what it is ------------------------------------------------------------------------------ */

static int64_t attribute(const tsi_cuda *cuda, CUdevice_attribute which)
{
    int value = 0;
    return tsi_cu.device_attribute(&value, which, cuda->handle) == CUDA_SUCCESS ? value : 0;
}

/* Dense bf16 operations of a multiprocessor and cycle, by compute capability; 0: not known. */
static double tensor_rate(int64_t major)
{
    return major == 8 ? 2048 : major == 9 ? 4096 : major == 10 ? 8192 : 0;
}

static void properties(const tsi_device *device, tsi_device_properties *out)
{
    const tsi_cuda *cuda = tsi_cuda_of(device);
    *out = (tsi_device_properties){ .units = cuda->units };
    size_t bytes = 0;
    (void)tsi_cu.device_name(out->name, (int)sizeof out->name, cuda->handle);
    if (tsi_cu.device_memory(&bytes, cuda->handle) == CUDA_SUCCESS) out->bytes = (int64_t)bytes;
    double memory_khz = (double)attribute(cuda, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
    double bus = (double)attribute(cuda, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
    double khz = (double)attribute(cuda, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    int64_t major = attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    out->bytes_per_second = 2 * memory_khz * 1e3 * bus / 8;
    out->flops_f32 = 256 * (double)cuda->units * khz * 1e3;
    out->flops_bf16 = tensor_rate(major) * (double)cuda->units * khz * 1e3;
}

/* "cuBLASLt 13.1.0": versions are whole numbers, two digits a part. */
static void put_library(char *text, size_t size, const char *name, int64_t version,
                        const char *lost)
{
    size_t used = strlen(text);
    const char *before = used ? ", " : "";
    if (version > 0)
        (void)snprintf(text + used, size - used, "%s%s %lld.%lld.%lld", before, name,
                       (long long)(version / 10000), (long long)(version / 100 % 100),
                       (long long)(version % 100));
    else
        (void)snprintf(text + used, size - used, "%sno %s (%s)", before, name, lost);
}

static void libraries(const tsi_device *device, char *text, size_t size)
{
    (void)device;
    int driver = 0;
    (void)tsi_cu.version(&driver);
    (void)snprintf(text, size, "driver for CUDA %d.%d", driver / 1000, driver / 10 % 100);
    put_library(text, size, "cuBLASLt", tsi_cuda_product_version(), "products run on the host");
    put_library(text, size, "cuDNN", tsi_cudnn_version(),
                "attention runs on own kernels; TESSERA_CUDA_PATH says where to look");
}

static ts_status attach(const tsi_device *device, ts_rank *rank, void **state)
{
    (void)rank;
    *state = NULL;
    return tsi_cuda_enter(tsi_cuda_of(device));
}

static bool reach(const tsi_device *device, const tsi_device *other)
{
    if (device == other) return true;
    if (strcmp(device->kind, other->kind) != 0) return false;
    tsi_cuda *cuda = tsi_cuda_of(device), *peer = tsi_cuda_of(other);
    int can = 0;
    CUresult result = tsi_cu.device_can_reach(&can, cuda->handle, peer->handle);
    if (result != CUDA_SUCCESS || !can) return false;
    if (tsi_cuda_enter(peer) != TS_OK || tsi_cuda_enter(cuda) != TS_OK) return false;
    result = tsi_cu.context_reach(peer->context, 0);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

static bool is_off(const char *variable)
{
    const char *text = getenv(variable);
    return text && strcmp(text, "off") == 0;
}

/* A GPU of 9.0 and up whose driver keeps it in graphs (12.3). */
static bool is_early(const tsi_cuda *cuda)
{
    enum { HOPPER = 9, DRIVER = 12030 };
    int driver = 0;
    if (is_off("TESSERA_CUDA_EARLY")) return false;
    return tsi_cu.version(&driver) == CUDA_SUCCESS && driver >= DRIVER &&
           attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= HOPPER;
}

/* Code for 9.0 with its own instructions is in the module, and this is such a GPU. */
static bool is_wide(const tsi_cuda *cuda)
{
#ifdef TS_CUDA_HOPPER
    return attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == 9 &&
           attribute(cuda, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) == 0;
#else
    (void)cuda;
    return false;
#endif
}

/* Beside the variables of a kernel that asks, which take OF_VARIABLES at most. */
static int32_t shared_of(const tsi_cuda *cuda)
{
    enum { OF_VARIABLES = 1 << 10 };
    return (int32_t)attribute(cuda, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) -
           OF_VARIABLES;
}

static void device_make(tsi_cuda *cuda, int32_t ordinal)
{
    *cuda = (tsi_cuda){ .device = { .struct_size = sizeof(tsi_device),
                                    .name = cuda->name,
                                    .kind = "cuda",
                                    .ordinal = ordinal,
                                    .dlpack_type = 2,
                                    .buffer_alloc = buffer_alloc,
                                    .buffer_free = buffer_free,
                                    .copy = tsi_cuda_copy,
                                    .copy_list = tsi_cuda_copy_list,
                                    .fill = tsi_cuda_fill,
                                    .fold = tsi_cuda_fold,
                                    .properties = properties,
                                    .attach = attach,
                                    .host_alloc = host_alloc,
                                    .host_free = host_free,
                                    .reach = reach,
                                    .fault = fault,
                                    .random = tsi_cuda_random,
                                    .power = tsi_cuda_power,
                                    .libraries = libraries,
                                    .choices = tsi_cuda_product_choices,
                                    .choices_take = tsi_cuda_product_choices_take } };
    (void)snprintf(cuda->name, sizeof cuda->name, "cuda:%d", ordinal);
    pthread_mutex_init(&cuda->lock, NULL);
    pthread_mutex_init(&cuda->side_lock, NULL);
    pthread_mutex_init(&cuda->event_lock, NULL);
    tsi_cuda_stream_functions(&cuda->device);
    tsi_cuda_graph_functions(&cuda->device);
}

ts_status tsi_cuda_devices(const tsi_device *const **out, int32_t *count)
{
    int gpus = 0;
    TSI_TRY(tsi_cuda_driver_open());
    if (tsi_cu.device_count(&gpus) != CUDA_SUCCESS) gpus = 0;
    for (int32_t i = 0; i < gpus && i < GPUS_MAX; i++) {
        tsi_cuda *cuda = &found.gpu[i];
        device_make(cuda, i);
        if (tsi_cu.device_get(&cuda->handle, i) != CUDA_SUCCESS) break;
        cuda->units = (int32_t)attribute(cuda, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        cuda->shared = shared_of(cuda);
        cuda->early = is_early(cuda);
        cuda->wide = is_wide(cuda);
        cuda->beside = !is_off("TESSERA_CUDA_BESIDE");
        found.device[found.count++] = &cuda->device;
    }
    *out = found.device;
    *count = found.count;
    return TS_OK;
}
