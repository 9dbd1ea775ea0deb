/* SPDX-License-Identifier: Apache-2.0 */
/* module.c - the one function the module exports: the GPUs of this machine and their kernels. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/host.h"

TS_API const tsi_device_module *tsi_module(const tsi_module_host *host);

static const tsi_module_kernel kernels[] = { { NULL, NULL } };

const tsi_device_module *tsi_module(const tsi_module_host *host)
{
    static tsi_device_module module;
    if (!tsi_cuda_host_set(host)) return NULL;
    if (module.struct_size) return &module;
    const tsi_device *const *device = NULL;
    int32_t count = 0;
    if (tsi_cuda_devices(&device, &count) != TS_OK) return NULL;
    module = (tsi_device_module){ .kind = "cuda",
                                  .device_count = count,
                                  .device = device,
                                  .kernels = kernels,
                                  .struct_size = sizeof module };
    return &module;
}
