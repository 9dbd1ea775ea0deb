/* SPDX-License-Identifier: Apache-2.0 */
/* host.h - the table the core lent this module. host.c defines the few words of the core that the
 * module uses (TSI_FAIL, tsi_alloc, ts_dtype_size) as calls through it, so that code here reads as
 * code of the core does. */
#ifndef TSI_BACKEND_CUDA_HOST_H
#define TSI_BACKEND_CUDA_HOST_H

#include "device/module.h"

/* false: the host is older than this module. */
bool tsi_cuda_host_set(const tsi_module_host *host);

#endif
