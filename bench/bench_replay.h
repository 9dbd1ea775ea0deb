/* SPDX-License-Identifier: Apache-2.0 */
/* bench_replay.h - what the files of `tessera bench replay` share. */
#ifndef BENCH_BENCH_REPLAY_H
#define BENCH_BENCH_REPLAY_H

#include "bench_lines.h"
#include "tessera/tessera.h"

typedef struct bench_order { /* one model on a mesh, its step in two orders */
    const char *mesh, *engine;
    const char *save; /* programs go to SAVE.before and SAVE.after; NULL: nowhere */
    int64_t ranks, threads, layers, hidden, vocab, rows, context, seconds;
    bool parts;     /* large operations may go in parts */
    bool shared;    /* ranks of a process have their shards where all read them: no gathers */
    int64_t memory; /* per cent of what the recorded step holds that the new order may hold */
} bench_order;

/* One training step of a model, tokens as labels. */
ts_status bench_replay_step(ts_rank *me, ts_model *model, ts_optimizer *optimizer,
                            ts_tensor *tokens);
/* 0, or the code of the command. */
int bench_replay_order(const bench_order *order, bench_lines *lines);

#endif
