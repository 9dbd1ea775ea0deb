/* SPDX-License-Identifier: Apache-2.0 */
/* attention_blocks.c - the block lists of a call: those of a mask for the rows, heads, queries and
 * keys that a rank's blocks hold, wherever they stand in the whole.
 *
 * INV: a value: calls with equal masks and positions get the same lists while they are kept. */
#include "base/rank.h"
#include "mask/mask.h"
#include "op/nn/attention.h"

const tsi_mask_blocks *tsi_attention_blocks(const tsi_kernel_io *io, const ts_mask *mask,
                                            tsi_attention_tile tile)
{
    const tsi_operand *q = &io->in[0], *k = &io->in[1];
    tsi_span_list queries = tsi_span_list_whole(q->block.extent[2]);
    tsi_span_list keys = tsi_span_list_whole(k->block.extent[2]);
    tsi_mask_shape shape = { .queries = q->region ? &q->region->dim[2] : &queries,
                             .keys = k->region ? &k->region->dim[2] : &keys,
                             .rows = q->region ? &q->region->dim[0] : NULL,
                             .heads = q->region ? &q->region->dim[1] : NULL,
                             .row_count = q->block.extent[0],
                             .head_count = q->block.extent[1],
                             .query_block = tile.queries,
                             .key_block = tile.keys };
    shape.offset = k->global->shape.extent[2] - q->global->shape.extent[2];
    return tsi_mask_blocks_get(mask, &shape);
}

static ts_status blocks_of_call(const tsi_kernel_io *io, tsi_attention_tile tile,
                                const tsi_mask_blocks **out)
{
    const ts_mask *mask = tsi_mask_find(io->rank->world, tsi_attention_mask(io->attributes));
    *out = mask ? tsi_attention_blocks(io, mask, tile) : NULL;
    ts_mask_release(mask);
    return *out ? TS_OK : ts_rank_status(io->rank);
}

const tsi_attention_family tsi_attention_tools = { .blocks = blocks_of_call,
                                                   .release = tsi_mask_blocks_release };
