/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - devices that come from a shared object: what the core lends it and what it returns.
 *
 * Such a module needs no symbol of the core: it gets a table of functions and returns devices, with
 * the kernels they run (op/ knows the rows). It exports tsi_module alone.
 *
 * INV: both tables begin with their size; fields are appended only. A module that finds a smaller
 * host than it was built for returns NULL. */
#ifndef TSI_DEVICE_MODULE_H
#define TSI_DEVICE_MODULE_H

#include <stdarg.h>

#include "device/device.h"

typedef struct tsi_module_host {
    size_t struct_size, device_size; /* sizeof(tsi_device) */
    ts_status (*fail_va)(ts_blast blast, ts_status status, const char *format, va_list arguments);
    void *(*alloc)(size_t bytes);
    void *(*calloc)(size_t count, size_t bytes);
    void (*free)(void *memory);
    void (*assert_failed)(const char *condition, const char *file, int line);
    size_t (*dtype_size)(ts_dtype dtype);
    const char *(*dtype_name)(ts_dtype dtype);
    const char *(*reduce_name)(ts_reduce reduce);
    bool (*reduce_allowed)(ts_reduce reduce, ts_dtype dtype, const char **why);
    int64_t (*block_count)(const tsi_block *block);
    bool (*block_is_dense)(const tsi_block *block);
} tsi_module_host;

/* A kernel of an operator; the function is a tsi_kernel_fn (op/op.h), which this layer does not
 * know. */
typedef void (*tsi_module_kernel_fn)(void);
typedef struct tsi_module_kernel {
    const char *op; /* as in ops.def; NULL ends */
    tsi_module_kernel_fn kernel;
} tsi_module_kernel;

typedef struct tsi_device_module {
    size_t struct_size;
    const char *kind; /* of the devices */
    int32_t device_count, reserved;
    const tsi_device *const *device;
    const tsi_module_kernel *kernels;
} tsi_device_module;

/* The name of the function is "tsi_module". NULL: recorded through host->fail_va. */
typedef const tsi_device_module *(*tsi_device_module_fn)(const tsi_module_host *host);

const tsi_module_host *tsi_module_host_table(void);

#endif
