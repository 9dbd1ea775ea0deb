/* SPDX-License-Identifier: Apache-2.0 */
/* index.c - what operators with an index tensor share. */
#include "op/index/index.h"

#include <string.h>

#include "base/alloc.h"

/* ---- checks ---------------------------------------------------------------------------------- */

ts_status tsi_index_dtype(const char *op, const ts_meta *index)
{
    if (tsi_dtype_category((ts_dtype)index->dtype) == TSI_CATEGORY_INT) return TS_OK;
    return TSI_FAIL(TS_ERR_DTYPE, "%s: indices are integers, not %s", op,
                    ts_dtype_name((ts_dtype)index->dtype));
}

ts_status tsi_index_ndim(const char *op, const ts_meta *x, const ts_meta *index)
{
    char one[96], other[96];
    if (x->shape.ndim == index->shape.ndim) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE, "%s: the index %s has not as many dims as %s", op,
                    tsi_shape_text(&index->shape, one, sizeof one),
                    tsi_shape_text(&x->shape, other, sizeof other));
}

ts_status tsi_index_refuse(const tsi_kernel_io *io, int32_t input, int64_t index, int64_t extent)
{
    ts_blast blast = io->in[input].region ? TS_BLAST_LOCAL : TS_BLAST_AGREED;
    return TSI_FAIL_BLAST(blast, TS_ERR_ARG, "%s: index %lld is out of range for extent %lld",
                          io->op->name, (long long)index, (long long)extent);
}

ts_status tsi_index_check(const tsi_kernel_io *io, int32_t input, int64_t extent, bool wraps)
{
    const tsi_block *index = &io->in[input].block;
    tsi_loop loop = tsi_loop_over(index);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t i = tsi_block_int(index, loop.at[0]);
        if (i < (wraps ? -extent : 0) || i >= extent) return tsi_index_refuse(io, input, i, extent);
    }
    return TS_OK;
}

/* ---- positions ------------------------------------------------------------------------------- */

ts_status tsi_offsets_make(const tsi_operand *from, const tsi_operand *target, uint32_t skipped,
                           tsi_offsets *out)
{
    const tsi_block *block = &from->block;
    size_t total = 0;
    for (int32_t d = 0; d < block->ndim; d++)
        total += (size_t)block->extent[d];
    out->memory = tsi_alloc_array(total + 1, sizeof *out->memory);
    if (!out->memory) return tsi_fail_memory("offsets of indices", total * sizeof *out->memory);
    int64_t *next = out->memory;
    for (int32_t d = 0; d < block->ndim; d++) {
        out->at[d] = next;
        for (int64_t p = 0; p < block->extent[d]; p++) {
            if (skipped >> d & 1) {
                *next++ = 0;
                continue;
            }
            int64_t global = tsi_operand_global(from, d, p);
            int64_t local = tsi_operand_local(target, d, global);
            *next++ = local < 0 ? TSI_ELSEWHERE : local * target->block.stride[d];
        }
    }
    return TS_OK;
}

void tsi_offsets_free(tsi_offsets *offsets)
{
    tsi_free(offsets->memory);
    offsets->memory = NULL;
}

/* ---- elements and slabs ---------------------------------------------------------------------- */

void tsi_element_add(ts_dtype dtype, void *to, const void *from)
{
    switch (tsi_dtype_category(dtype)) {
    case TSI_CATEGORY_COMPLEX:
        tsi_store_complex(dtype, to, tsi_load_complex(dtype, to) + tsi_load_complex(dtype, from));
        return;
    case TSI_CATEGORY_REAL:
        tsi_store_real(dtype, to, tsi_load_real(dtype, to) + tsi_load_real(dtype, from));
        return;
    case TSI_CATEGORY_INT:
    case TSI_CATEGORY_BOOL:
        tsi_store_int(
            dtype, to,
            (int64_t)((uint64_t)tsi_load_int(dtype, to) + (uint64_t)tsi_load_int(dtype, from)));
        return;
    }
}

tsi_block tsi_block_slab(const tsi_block *block, int32_t dim, int64_t position)
{
    tsi_block slab = *block;
    slab.extent[dim] = 1;
    slab.data = tsi_block_at(block, position * block->stride[dim]);
    return slab;
}

ts_status tsi_block_zero(const tsi_kernel_io *io, const tsi_block *block)
{
    unsigned char zero[16] = { 0 };
    if (tsi_block_count(block) == 0) return TS_OK;
    return io->device->fill(io->device, block, zero, NULL);
}

/* ---- rules ----------------------------------------------------------------------------------- */

void tsi_index_rule(tsi_rules *rules, const tsi_role *role)
{
    tsi_role *row = tsi_rules_add(rules);
    for (int32_t i = 0; i < rules->input_count + rules->output_count; i++)
        if (row[i] != TSI_ROLE_NONE) row[i] = role[i];
}

void tsi_index_pass(tsi_rules *rules, int32_t input)
{
    for (int reduce = TS_REDUCE_SUM; reduce <= TS_REDUCE_OR; reduce++) {
        tsi_role *row = tsi_rules_add(rules);
        row[input] = TSI_P(reduce);
        for (int32_t o = 0; o < rules->output_count; o++)
            row[rules->input_count + o] = TSI_P(reduce);
    }
}
