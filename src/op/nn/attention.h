/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h - the attributes of attention, for its reference and its fast kernels. */
#ifndef TSI_OP_ATTENTION_H
#define TSI_OP_ATTENTION_H

#include <stdint.h>

#include "base/philox.h"
#include "op/op.h"
#include "tessera/mask.h"

typedef struct tsi_attention_attributes {
    double scale; /* of scores; before normalisation NaN: 1 / sqrt(D) */
    int32_t causal, reserved;
    double dropout;                /* of weights, by global index */
    int64_t seed;                  /* of the draws */
    char mask[TSI_ATTRIBUTE_TEXT]; /* text or name; "": none but causal */
    int32_t algorithm;             /* of a sequence that is cut (attention_context.h); 0: by cost */
    uint32_t forbid;               /* bit a: not algorithm a; from the scope */
} tsi_attention_attributes;

/* The mask of a call, by text or name: "causal", "full", or the one that was given. */
const char *tsi_attention_mask(const tsi_attention_attributes *a);

/* Whether the weight of a pair is kept, by global index: the same on any layout. */
typedef struct tsi_attention_drop {
    uint64_t seed;
    uint32_t below, reserved; /* draws below are dropped */
    int64_t heads, queries, keys;
    double factor; /* of weights that are kept */
} tsi_attention_drop;
static inline tsi_attention_drop tsi_attention_drop_of(const tsi_attention_attributes *a,
                                                       const ts_shape *q, const ts_shape *k)
{
    tsi_attention_drop drop = { .seed = (uint64_t)a->seed };
    drop.below = (uint32_t)(a->dropout * 4294967296.0);
    drop.factor = 1.0 / (1.0 - a->dropout);
    drop.heads = q->extent[1];
    drop.queries = q->extent[2];
    drop.keys = k->extent[2];
    return drop;
}
static inline bool tsi_attention_keeps(const tsi_attention_drop *d, int64_t row, int64_t head,
                                       int64_t query, int64_t key)
{
    uint64_t line = (uint64_t)((row * d->heads + head) * d->queries + query);
    return tsi_philox(d->seed, (uint64_t)key >> 2, line).word[key & 3] >= d->below;
}

/* Rows of the table of kernels (attention_kernels.c). */
typedef enum tsi_attention_kernel {
    TSI_ATTENTION_PAIRS,   /* the reference */
    TSI_ATTENTION_BLOCKED, /* blocks of queries against blocks of keys, by products */
    TSI_ATTENTION_FEW,     /* few queries: keys are read once a group, and cut among threads */
    TSI_ATTENTION_KERNELS
} tsi_attention_kernel;
enum { TSI_ATTENTION_FEW_MAX = 16 }; /* queries */
void tsi_attention_kernels(const tsi_op_call *call, tsi_kernel_choice *out);
/* The one that runs on these blocks. */
tsi_attention_kernel tsi_attention_kernel_of(const tsi_kernel_io *io);

/* The block lists of a mask for the positions that the blocks of a call hold, retained. NULL:
 * recorded. */
struct tsi_mask_blocks;
typedef struct tsi_attention_tile {
    int32_t queries, keys;
} tsi_attention_tile;
const struct tsi_mask_blocks *tsi_attention_blocks(const tsi_kernel_io *io, const ts_mask *mask,
                                                   tsi_attention_tile tile);
/* The family of both operators: what kernels of modules, which link nothing of the core, ask of it.
 * Block lists are those of the call's mask. */
typedef struct tsi_attention_family {
    ts_status (*blocks)(const tsi_kernel_io *io, tsi_attention_tile tile,
                        const struct tsi_mask_blocks **out);
    void (*release)(const struct tsi_mask_blocks *blocks);
} tsi_attention_family;
extern const tsi_attention_family tsi_attention_tools;

ts_status tsi_attention_reference(const tsi_kernel_io *io);
ts_status tsi_attention_backward_reference(const tsi_kernel_io *io);

#endif
