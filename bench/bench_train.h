/* SPDX-License-Identifier: Apache-2.0 */
/* bench_train.h - what the files of `tessera bench train` share. */
#ifndef BENCH_BENCH_TRAIN_H
#define BENCH_BENCH_TRAIN_H

#include "bench_lines.h"

enum { BENCH_PAIRS_MAX = 64 };

typedef struct bench_pair { /* one model on two meshes */
    const char *mesh, *against, *topology;
    ts_model_config config;
    int64_t rows, context, pairs; /* rows 0: two for each rank */
    int64_t warmup;               /* steps that are not counted */
    int64_t seconds;              /* pairs end by then; 0: all are made */
    int32_t compute, dtype, reshard;
    ts_recompute recompute;
    int64_t every; /* n-th layer */
} bench_pair;

/* 0, or the code of the command. */
int bench_train_pair(const bench_pair *pair, bench_lines *lines);

typedef struct bench_stages { /* one model as a pipeline of two ranks */
    ts_model_config config;
    int64_t rows, context, micros;
    double seconds; /* for each of its runs, about */
} bench_stages;
/* 0, or the code of the command. */
int bench_train_stages(const bench_stages *stages, bench_lines *lines);

/* `mesh` NULL: one rank, and eight. 0, or the code of the command. */
int bench_train_start(const char *mesh, bench_lines *lines, bool json);

#endif
