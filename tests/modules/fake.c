/* SPDX-License-Identifier: Apache-2.0 */
/* fake.c - a module for the tests of the loader, built once for each FAKE_<WAY> of being wrong:
 *
 *   GOOD      a device, kernels, and the list of operators of this build
 *   SEAM      its tsi_block is eight bytes longer
 *   OPS       it knows one operator more
 *   OFFER     its offer is shorter
 *   ABSENT    the machine lacks what it needs
 *   NOTHING   it returns no offer
 *   CUDA      right, with a device of the kind cuda and no kernels: what `auto` finds */
#include "base/module_seam.h"
#include "device/device.h"
#include "op/ops_hash.h"
#include "tessera/version.h"

TS_API const tsi_module_offer *tsi_module(void);

#if defined(FAKE_CUDA)
static void properties(const tsi_device *self, tsi_device_properties *out)
{
    (void)self;
    *out = (tsi_device_properties){ .name = "a GPU of tests" };
}
static const tsi_device device = {
    .struct_size = sizeof(tsi_device), .name = "cuda:0", .kind = "cuda", .properties = properties
};
#else
static const tsi_device device = { .struct_size = sizeof(tsi_device), .name = "fake:0" };
static const int kernels[1];
#endif
static const tsi_device *const devices[] = { &device };

#if defined(FAKE_SEAM)
static const tsi_seam seam[] = { { "tsi_device", sizeof(tsi_device) },
                                 { "tsi_device_properties", sizeof(tsi_device_properties) },
                                 { "tsi_block", sizeof(tsi_block) + 8 },
                                 { NULL, 0 } };
#else
static const tsi_seam seam[] = TSI_SEAM(TSI_DEVICE_SEAM);
#endif

static ts_status open_fake(const tsi_module_host *host)
{
#if defined(FAKE_ABSENT)
    return host->fail(TS_BLAST_NONE, TS_ERR_MISSING, "fake: there is no driver");
#else
    return host != NULL ? TS_OK : TS_ERR_NULL;
#endif
}

static tsi_module_offer offer = {
    .struct_size = sizeof(tsi_module_offer),
    .name = "fake",
    .version = TS_VERSION,
    .open = open_fake,
    .table = { [TSI_MODULE_DEVICES] = { devices, 1, seam },
#if !defined(FAKE_CUDA)
               [TSI_MODULE_KERNELS] = { kernels, 1, seam },
#endif
    },
};

const tsi_module_offer *tsi_module(void)
{
    offer.op_hash = tsi_ops_hash(&offer.op_count);
#if defined(FAKE_OPS)
    offer.op_hash++;
    offer.op_count++;
#elif defined(FAKE_OFFER)
    offer.struct_size -= 8;
#elif defined(FAKE_NOTHING)
    return NULL;
#endif
    return &offer;
}
