/* SPDX-License-Identifier: Apache-2.0 */
/* bench_cuda.h - what the files of `tessera bench cuda` share: the state of a run, and its clock.
 */
#ifndef BENCH_CUDA_H
#define BENCH_CUDA_H

#include "bench_lines.h"

enum { BENCH_CUDA_TENSORS = 6, BENCH_CUDA_PRODUCTS = 64 };

typedef struct bench_cuda {
    const char *device, *only, *save;
    int64_t mib; /* of a tensor of the kernels; 0: 64, then 512 */
    bool json;
    ts_rank *me;
    ts_mesh *mesh;
    bench_lines lines;
    ts_tensor *x[BENCH_CUDA_TENSORS]; /* of the line */
    const ts_op *op;                  /* of a line of the table of kernels */
    const char *attributes;
    int32_t inputs;
    double copy; /* GB/s, of as many bytes */
    double best[BENCH_CUDA_PRODUCTS];
    bool tuned; /* this is the process that looks for the fastest proposals */
} bench_cuda;

typedef void (*bench_cuda_fn)(bench_cuda *b);

/* Seconds of a call: many in a row and one wait, the best of a few rounds of about 30 ms. */
double bench_cuda_seconds(bench_cuda *b, bench_cuda_fn run);
/* Is a line of this name wanted, and all well so far? */
bool bench_cuda_is_turn(const bench_cuda *b, const char *name);
ts_tensor *bench_cuda_numbers(bench_cuda *b, ts_dtype dtype, ts_shape shape);
ts_tensor *bench_cuda_below(bench_cuda *b, int64_t count, int64_t below); /* from 0, i64 */

/* Kernels that are bound by memory, each beside the copy rate (bench_cuda_kernels.c). */
void bench_cuda_kernels(bench_cuda *b);

#endif
