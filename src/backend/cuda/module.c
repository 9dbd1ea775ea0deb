/* SPDX-License-Identifier: Apache-2.0 */
/* module.c - the one function the module exports: the GPUs of this machine and their kernels.
 *
 * The tables of devices and kernels are complete before `open` returns; kernels.def says which
 * operators have one. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernel.h"
#include "base/lent/words.h"
#include "op/core/kernel.h"
#include "op/ops_hash.h"
#include "tessera/version.h"

TS_API const tsi_module_offer *tsi_module(void);

#define TSI_KERNELS_DEF "backend/cuda/kernels.def"
static const tsi_kernels kernels = {
    .kind = "cuda",
#include "op/core/kernel_table.inc"
};

static const tsi_seam device_seam[] = TSI_SEAM(TSI_DEVICE_SEAM);
static const tsi_seam kernel_seam[] = TSI_SEAM(TSI_KERNEL_SEAM);

static ts_status open_module(const tsi_module_host *host);

static tsi_module_offer offer = {
    .struct_size = sizeof(tsi_module_offer),
    .name = "cuda",
    .version = TS_VERSION,
    .open = open_module,
    .table = { [TSI_MODULE_DEVICES] = { NULL, 0, device_seam },
               [TSI_MODULE_KERNELS] = { &kernels, 1, kernel_seam } },
};

static ts_status open_module(const tsi_module_host *host)
{
    tsi_lent_set(host);
    if (offer.table[TSI_MODULE_DEVICES].count > 0) return TS_OK;
    const tsi_device *const *device = NULL;
    int32_t count = 0;
    TSI_TRY(tsi_cuda_devices(&device, &count));
    if (count == 0) return TSI_FAIL(TS_ERR_MISSING, "cuda: the driver knows no GPU");
    offer.table[TSI_MODULE_DEVICES].table = device;
    offer.table[TSI_MODULE_DEVICES].count = count;
    return TS_OK;
}

const tsi_module_offer *tsi_module(void)
{
    offer.op_hash = tsi_ops_hash(&offer.op_count);
    return &offer;
}
