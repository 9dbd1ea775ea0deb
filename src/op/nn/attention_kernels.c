/* SPDX-License-Identifier: Apache-2.0 */
/* attention_kernels.c - the kernels of attention as rows of a table: what each costs for the sizes
 * of a rank's blocks, and which of them runs.
 *
 * Rates are those of one thread of a middling machine; only their ratios decide. A block of queries
 * is multiplied in tiles of EIGHT rows, and its keys are packed for it, however few queries there
 * are; few queries go through keys as they lie.
 *
 * INV: a pure function of dtype and sizes: ranks and threads choose alike. */
#include "op/nn/attention.h"

enum { EIGHT = 8, QUERIES = 128 };

typedef struct sizes {
    double pairs;  /* of queries and keys, of all heads */
    double rows;   /* keys of all heads */
    double groups; /* keys of all groups */
    double width;  /* D + E */
    int64_t queries;
    bool narrow; /* computed in f32 */
} sizes;

static sizes sizes_of(const tsi_op_call *call)
{
    const int64_t *q = call->in[0].shape.extent, *k = call->in[1].shape.extent;
    double heads = (double)q[0] * (double)q[1], keys = (double)k[2];
    int32_t dtype = call->in[0].dtype;
    return (sizes){ .pairs = heads * (double)q[2] * keys,
                    .rows = heads * keys,
                    .groups = (double)k[0] * (double)k[1] * keys,
                    .width = (double)(q[3] + call->in[2].shape.extent[3]),
                    .queries = q[2],
                    .narrow =
                        dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16 };
}

/* Operations a microsecond, and bytes. */
static double by_pairs(const sizes *s)
{
    return s->pairs * s->width * 2.0 / 200.0;
}

static double by_blocks(const sizes *s)
{
    if (!s->narrow) return -1.0;
    double least = s->queries > 0 && s->queries < EIGHT ? (double)EIGHT / (double)s->queries : 1.0;
    double blocks = (double)((s->queries + QUERIES - 1) / QUERIES);
    return s->pairs * least * s->width * 2.0 / 3e4 + blocks * s->rows * s->width * 4.0 / 5e3;
}

static double by_rows(const sizes *s)
{
    if (!s->narrow || s->queries > TSI_ATTENTION_FEW_MAX) return -1.0;
    return s->pairs * s->width * 2.0 / 1e4 + s->groups * s->width * 4.0 / 1e4;
}

static const struct {
    const char *name;
    double (*us)(const sizes *s);
} table[TSI_ATTENTION_KERNELS] = {
    [TSI_ATTENTION_PAIRS] = { "reference", by_pairs },
    [TSI_ATTENTION_BLOCKED] = { "blocked", by_blocks },
    [TSI_ATTENTION_FEW] = { "few queries", by_rows },
};

/* Pair by pair only where there is nothing else. */
void tsi_attention_kernels(const tsi_op_call *call, tsi_kernel_choice *out)
{
    sizes s = sizes_of(call);
    bool back = call->input_count > 3;
    *out = (tsi_kernel_choice){ .count = back ? TSI_ATTENTION_FEW : TSI_ATTENTION_KERNELS };
    for (int32_t i = 0; i < out->count; i++) {
        double us = table[i].us(&s) * (back ? 2.5 : 1.0);
        out->candidate[i].name = table[i].name;
        out->candidate[i].us = us;
        bool other = out->chosen != TSI_ATTENTION_PAIRS;
        if (i == TSI_ATTENTION_PAIRS || us < 0) continue;
        if (!other || us < out->candidate[out->chosen].us) out->chosen = i;
    }
}

tsi_attention_kernel tsi_attention_kernel_of(const tsi_kernel_io *io)
{
    ts_meta in[3];
    tsi_op_call call = { .op = io->op, .in = in, .input_count = io->input_count };
    for (int32_t i = 0; i < 3; i++) {
        const tsi_block *block = &io->in[i].block;
        in[i] = (ts_meta){ .dtype = block->dtype, .shape = { .ndim = block->ndim } };
        for (int32_t d = 0; d < block->ndim; d++)
            in[i].shape.extent[d] = block->extent[d];
    }
    tsi_kernel_choice choice;
    tsi_attention_kernels(&call, &choice);
    return (tsi_attention_kernel)choice.chosen;
}
