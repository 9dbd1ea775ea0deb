/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.c - the table of the cpu's kernels, made from kernels.def, and its entry.
 *
 * INV: the table is constant; what kernels need of the machine (row functions of its instruction
 * set, BLAS on the calling thread) is settled before the table is entered. */
#include "backend/cpu/kernels.h"

#include <pthread.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix/contract.h"
#include "backend/cpu/matrix/gemm.h"

#define TSI_KERNELS_DEF "backend/cpu/kernels.def"
static ts_status keep(tsi_kernel_fn kernel, const tsi_kernel_io *io, tsi_kept_work *out)
{
    if (kernel != tsi_cpu_pointwise) return (ts_status)TSI_KERNEL_DECLINED;
    return tsi_cpu_keep_row(io, out);
}

static const uint8_t dry[TSI_OP_ID_COUNT] = {
#define TS_KERNEL(name, fn)
#define TS_KERNEL_DRY(name, fn) [TSI_OP_NUMBER_##name] = 1,
#define TS_LIST_KERNEL(name, fn)
#include TSI_KERNELS_DEF
#undef TS_KERNEL
#undef TS_KERNEL_DRY
#undef TS_LIST_KERNEL
};

static const tsi_kernels table = {
    .kind = "cpu",
    .dry = dry,
    .keep = keep,
    .rows_alone = tsi_cpu_rows_alone,
#include "op/core/kernel_table.inc"
};

static pthread_once_t added = PTHREAD_ONCE_INIT;

static void add(void)
{
    tsi_gemm_start();
    tsi_pointwise_start();
    (void)tsi_kernels_add(&table); /* of this build, and the first: it cannot be refused */
}

void tsi_backend_cpu_add(void)
{
    (void)pthread_once(&added, add);
}
