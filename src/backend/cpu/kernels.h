/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - puts the fast kernels of the cpu before the references. */
#ifndef TSI_BACKEND_CPU_KERNELS_H
#define TSI_BACKEND_CPU_KERNELS_H

/* Before the first world opens; more calls do nothing. Any thread. */
void tsi_backend_cpu_add(void);

#endif
