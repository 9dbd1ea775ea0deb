/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - the measurements of `tessera bench`: how a thing is timed against its floor, in one
 * run.
 *
 * Ours and the floor are run in turns, batch by batch, so that whatever else the machine does hits
 * both alike. A batch takes as long as its slowest rank; the best batch of each is reported,
 * because what disturbs a batch only ever makes it longer. */
#ifndef BENCH_H
#define BENCH_H

#include <pthread.h>

#include "cli.h"

int cli_bench_comm(int argc, char **argv);
int cli_bench_cuda(int argc, char **argv);
int cli_bench_devices(int argc, char **argv);
int cli_bench_dispatch(int argc, char **argv);
int cli_bench_redistribute(int argc, char **argv);
int cli_bench_layout(int argc, char **argv);
int cli_bench_plan(int argc, char **argv);
int cli_bench_kernels(int argc, char **argv);
int cli_bench_replay(int argc, char **argv);
int cli_bench_space(int argc, char **argv);
int cli_bench_attention(int argc, char **argv);
int cli_bench_experts(int argc, char **argv);
int cli_bench_pipeline(int argc, char **argv);
int cli_bench_train(int argc, char **argv);
int cli_bench_checkpoint(int argc, char **argv);

/* Thread ranks that share so many threads; [coll] work. */
ts_status bench_launch(int64_t threads, int64_t ranks,
                       ts_status (*work)(ts_rank *me, void *context), void *context, char *error,
                       size_t size);

/* ---- whole steps on one device (bench_step.c) ------------------------------------------------ */
typedef struct bench_step_options {
    const char *model, *device, *dtype; /* device NULL: the world's; dtype of products */
    const char *moments;                /* of AdamW: f32 (NULL) or bf16 */
    const char *optimizer;              /* adamw (NULL) or muon, which is put beside it */
    int64_t rows, context;              /* 0: those of the size */
    int64_t warmup, seconds;
    const char *mesh; /* units of fsdp on it, ranks as threads; NULL: one rank */
    bool hot;         /* also the operators that take longest */
    bool replay;      /* the step is recorded behind the warm-up and run again */
    bool rate_only;   /* no second run that tells times by kind */
} bench_step_options;
int bench_step(const bench_step_options *options, bool json);

/* ---- communication: bench_comm.c runs the cases of bench_cases.c ----------------------------- */
typedef struct bench_rank { /* one rank's buffers, and where its peers' are (threads engine) */
    ts_rank *me;
    ts_group *world;
    int64_t index, count;
    bool shared;                /* peers' memory can be read directly */
    pthread_barrier_t *barrier; /* of all ranks, where they are threads of one process; else NULL */
    char *in, *out;             /* size_max bytes each */
    char **peer_in;             /* of every rank; without sharing all are `in` */
    int64_t size;               /* bytes of the full array in this case */
    int64_t *send_rows, *recv_rows; /* scratch, one per rank */
    ts_part *send, *recv;           /* scratch, one per rank */
} bench_rank;

typedef struct bench_case {
    const char *name;
    bool sized; /* false: no array (barrier) */
    /* One operation. */
    ts_status (*run)(bench_rank *b);
    /* Its floor: plain copies of the bytes this rank must move; of a barrier, the system's. */
    void (*copy)(bench_rank *b);
    const char *raw; /* the MPI call that does the same, or NULL */
} bench_case;

extern const bench_case bench_cases[];
extern const size_t bench_case_count;

/* Elements (f32) of member i when `count` are split by the chunk rule: ceil(count / parts) each,
 * the last ones short or empty. */
static inline int64_t bench_chunk(int64_t count, int64_t parts, int64_t i)
{
    int64_t chunk = (count + parts - 1) / parts, begin = i * chunk;
    if (begin >= count) return 0;
    return begin + chunk <= count ? chunk : count - begin;
}

#endif
