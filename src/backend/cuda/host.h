/* SPDX-License-Identifier: Apache-2.0 */
/* host.h - the table the core lent this module. host.c defines the few words of the core that need
 * it (TSI_FAIL, tsi_alloc) as calls through it, so that code here reads as code of the core does;
 * plain functions of the core (names of dtypes, strided blocks) are compiled into the module. */
#ifndef TSI_BACKEND_CUDA_HOST_H
#define TSI_BACKEND_CUDA_HOST_H

#include "base/module_seam.h"

void tsi_cuda_host_set(const tsi_module_host *host);

#endif
