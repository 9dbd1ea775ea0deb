/* SPDX-License-Identifier: Apache-2.0 */
/* portable.h - the word before functions that kernels of a GPU share with the host.
 *
 * INV: such a function is in the common part of C11 and C++17 and uses IEEE operations only, so
 * that both sides get the same bits (neither fuses: -ffp-contract=off, -fmad=false). */
#ifndef TSI_BASE_PORTABLE_H
#define TSI_BASE_PORTABLE_H

#if defined(__CUDACC__)
#define TSI_SHARED static inline __host__ __device__
#else
#define TSI_SHARED static inline
#endif

#endif
