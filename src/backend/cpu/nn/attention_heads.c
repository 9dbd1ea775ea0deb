/* SPDX-License-Identifier: Apache-2.0 */
/* attention_heads.c - the operands of attention as rows of f32, and who sees what. */

#include "backend/cpu/nn/attention.h"
#include "base/compiler.h"

ts_status tsi_attend_make(const tsi_kernel_io *io, tsi_attend *out)
{
    const tsi_attention_attributes *attributes = io->attributes;
    const ts_shape *q = &io->in[0].global->shape, *k = &io->in[1].global->shape;
    for (int32_t i = 0; i < io->input_count; i++)
        if (!tsi_is_small_real(io->in[i].block.dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    if (!(attributes->scale > 0.0)) return (ts_status)TSI_KERNEL_DECLINED; /* it keeps no order */
    const tsi_block *queries = &io->in[0].block, *keys = &io->in[1].block;
    *out = (tsi_attend){ .io = io, .set = tsi_rows(), .scale = (float)attributes->scale };
    out->group_size = q->extent[1] / k->extent[1];
    out->batches = queries->extent[0];
    out->heads = queries->extent[1];
    out->queries = queries->extent[2];
    out->depth = queries->extent[3];
    out->groups = keys->extent[1];
    out->keys = keys->extent[2];
    out->width = io->in[2].block.extent[3];
    out->drops = attributes->dropout > 0;
    out->drop = tsi_attention_drop_of(attributes, q, k);
    out->mask = tsi_mask_find(io->rank->world, tsi_attention_mask(attributes));
    if (!out->mask) return ts_rank_status(io->rank);
    out->cap = (float)out->mask->cap;
    out->alibi = out->mask->alibi != 0;
    return TS_OK;
}

ts_status tsi_attend_tiles(tsi_attend *a, int64_t queries, int64_t keys)
{
    tsi_attention_tile tile = { (int32_t)queries, (int32_t)keys };
    a->blocks = tsi_attention_blocks(a->io, a->mask, tile);
    return a->blocks ? TS_OK : ts_rank_status(a->io->rank);
}

void tsi_attend_done(tsi_attend *a)
{
    tsi_mask_blocks_release(a->blocks);
    ts_mask_release(a->mask);
}

int64_t tsi_attend_group(const tsi_attend *a, int64_t head)
{
    const tsi_operand *k = &a->io->in[1];
    int64_t group = tsi_operand_global(&a->io->in[0], 1, head) / a->group_size;
    return tsi_operand_local(k, 1, group);
}

void *tsi_attend_lse(const tsi_block *lse, int64_t b, int64_t h, int64_t t)
{
    int64_t at = b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2];
    return (char *)lse->data + at * (int64_t)ts_dtype_size((ts_dtype)lse->dtype);
}

bool tsi_attend_is_bf16(const tsi_kernel_io *io, const tsi_attend *a)
{
    if (tsi_attend_changes(a) || a->drops || io->adds) return false;
    for (int32_t i = 0; i < io->input_count; i++)
        if (i != 4 && io->in[i].block.dtype != TS_DTYPE_BF16) return false; /* 4: log-sum-exp */
    for (int32_t o = 0; o < io->output_count; o++)
        if (io->output_count != 2 || o != 1)
            if (io->out[o].block.dtype != TS_DTYPE_BF16) return false;
    return tsi_bf16_tile_of_machine() != NULL;
}

void tsi_attend_panels(tsi_panels *p, const tsi_block *x, const int64_t *at, bool turned)
{
    p->from = (const uint16_t *)x->data + at[0] * x->stride[0] + at[1] * x->stride[1] +
              at[2] * x->stride[2];
    p->stride = x->stride[turned ? 3 : 2];
    p->k_stride = x->stride[turned ? 2 : 3];
}

/* ---- rows ----------------------------------------------------------------------------------- */

typedef struct rows_copy {
    const tsi_block *block;
    tsi_heads heads;
    bool out; /* from the heads into the block */
} rows_copy;

static void copy_rows(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const rows_copy *c = context;
    const tsi_block *x = c->block;
    ts_dtype dtype = (ts_dtype)x->dtype;
    int64_t size = (int64_t)ts_dtype_size(dtype);
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i % x->extent[2], h = i / x->extent[2] % x->extent[1];
        int64_t b = i / x->extent[2] / x->extent[1];
        char *at =
            (char *)x->data + (b * x->stride[0] + h * x->stride[1] + t * x->stride[2]) * size;
        float *row = tsi_heads_row(&c->heads, b, h, t);
        if (c->out)
            tsi_scatter(dtype, at, x->stride[3] * size, TS_DTYPE_F32, row, x->extent[3]);
        else
            tsi_gather(TS_DTYPE_F32, row, dtype, at, x->stride[3] * size, x->extent[3]);
    }
}

static void copy_all(ts_rank *rank, rows_copy *c)
{
    const tsi_block *x = c->block;
    tsi_parallel_for(rank, x->extent[0] * x->extent[1] * x->extent[2],
                     16384 / (x->extent[3] + 1) + 1, copy_rows, c);
}

ts_status tsi_heads_get(ts_rank *rank, const tsi_block *block, bool fill, tsi_heads *out,
                        tsi_scratch *scratch)
{
    *scratch = (tsi_scratch){ 0 };
    bool plain = block->dtype == TS_DTYPE_F32 && (block->stride[3] == 1 || block->extent[3] == 1) &&
                 (block->stride[2] >= block->extent[3] || block->extent[2] == 1);
    if (plain) {
        *out = (tsi_heads){ block->data, block->stride[0], block->stride[1], block->stride[2] };
        if (block->extent[2] == 1) out->row = block->extent[3];
        return TS_OK;
    }
    TSI_TRY(tsi_scratch_get(scratch, rank, (size_t)tsi_block_count(block) + 1, sizeof(float)));
    int64_t row = block->extent[3], head = row * block->extent[2];
    *out = (tsi_heads){ scratch->data, head * block->extent[1], head, row };
    rows_copy c = { block, *out, false };
    if (fill) copy_all(rank, &c);
    return TS_OK;
}

void tsi_heads_put(ts_rank *rank, const tsi_block *block, const tsi_heads *from)
{
    if (from->data == block->data) return;
    rows_copy c = { block, *from, true };
    copy_all(rank, &c);
}
