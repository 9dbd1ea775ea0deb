/* SPDX-License-Identifier: Apache-2.0 */
/* embedding.c - rows of a table by index, and the gradient of the table.
 *
 * A table whose rows are sharded needs no gather: a rank looks up the rows it holds and writes
 * zeros for the others, so the result is a partial sum. The gradient of a row-sharded table is
 * local in the same way. */
#include <math.h>
#include <string.h>

#include "op/index/index.h"

/* ---- embedding ------------------------------------------------------------------------------- */

static ts_status embedding_infer(const tsi_op_call *call)
{
    const ts_shape *table = &call->in[0].shape, *ids = &call->in[1].shape;
    TSI_TRY(tsi_index_dtype("embedding", &call->in[1]));
    if (table->ndim != 2 || ids->ndim >= TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_SHAPE, "embedding: the table has %d dims, not 2 (indices: %d)",
                        table->ndim, ids->ndim);
    call->out[0] = (ts_meta){ .shape = *ids, .dtype = call->in[0].dtype };
    call->out[0].shape.extent[call->out[0].shape.ndim++] = table->extent[1];
    return TS_OK;
}

static void embedding_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t last = call->in[1].shape.ndim;
    tsi_role *row = tsi_rules_add(rules);
    row[0] = TSI_S(1); /* columns */
    row[2] = TSI_S(last);
    row = tsi_rules_add(rules);
    row[0] = TSI_S(0); /* rows: zeros where another rank has the row */
    row[2] = TSI_P(TS_REDUCE_SUM);
    for (int32_t d = 0; d < last; d++) {
        row = tsi_rules_add(rules);
        row[1] = row[2] = TSI_S(d);
    }
    for (int reduce = TS_REDUCE_SUM; reduce <= TS_REDUCE_OR;
         reduce++) { /* selection of what is pending */
        row = tsi_rules_add(rules);
        row[0] = row[2] = TSI_P(reduce);
    }
}

/* The local row of a global index: -1 if another rank holds it, -2 if nobody does. */
static int64_t local_row(const tsi_operand *table, int64_t index)
{
    if (index < 0 || index >= table->global->shape.extent[0]) return -2;
    return tsi_operand_local(table, 0, index);
}

/* Where the indices are cut only some ranks may see it: then peers must be told. */
static ts_status refuse_index(const char *op, bool cut, int64_t index, int64_t rows)
{
    return TSI_FAIL_BLAST(cut ? TS_BLAST_LOCAL : TS_BLAST_AGREED, TS_ERR_ARG,
                          "%s: index %lld is out of range for %lld rows", op, (long long)index,
                          (long long)rows);
}

static ts_status embedding_reference(const tsi_kernel_io *io)
{
    const tsi_block *table = &io->in[0].block, *ids = &io->in[1].block, *out = &io->out[0].block;
    unsigned char zero[16] = { 0 };
    tsi_loop loop = TSI_LOOP(ids, ids->stride, out->stride);
    tsi_block to = { .dtype = out->dtype,
                     .ndim = 1,
                     .extent = { out->extent[ids->ndim] },
                     .stride = { out->stride[ids->ndim] } };
    tsi_block from = { .dtype = table->dtype,
                       .ndim = 1,
                       .extent = { table->extent[1] },
                       .stride = { table->stride[1] } };
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t index = tsi_block_int(ids, loop.at[0]);
        int64_t row = local_row(&io->in[0], index);
        if (row == -2)
            return refuse_index("embedding", io->in[1].region != NULL, index,
                                io->in[0].global->shape.extent[0]);
        to.data = tsi_block_at(out, loop.at[1]);
        if (row < 0) {
            TSI_TRY(io->device->fill(io->device, &to, zero, NULL));
            continue;
        }
        from.data = tsi_block_at(table, row * table->stride[0]);
        TSI_TRY(io->device->copy(io->device, &to, &from, NULL));
    }
    return TS_OK;
}

typedef struct rows_attributes {
    int64_t rows;
} rows_attributes;

static ts_status embedding_grad(const tsi_grad_io *io)
{
    if (io->needs & 1)
        io->in_grad[0] =
            ts_embedding_backward(io->out_grad[0], io->in[1], io->in_meta[0].shape.extent[0]);
    return ts_rank_status(io->rank);
}

static bool sample_embedding(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(TS_SHAPE(7, 4));
    s->in[1] = (ts_meta){ .shape = { .ndim = 1 + s->variant, .extent = { 5, s->variant ? 3 : 0 } },
                          .dtype = TS_DTYPE_I64 };
    return s->variant < 2;
}

const tsi_op_desc tsi_op_embedding = {
    .name = "embedding",
    .what = "rows of a table by index",
    TSI_OPERANDS(2, 2, 1),
    .saves = 2,
    .infer = embedding_infer,
    .rules = embedding_rules,
    .reference = embedding_reference,
    .grad = embedding_grad,
    .sample = sample_embedding,
};

/* ---- the gradient of the table --------------------------------------------------------------- */

static const tsi_attribute rows_table[] = { TSI_ATTR(rows_attributes, rows, INT, "rows", NULL),
                                            { 0 } };

static ts_status backward_infer(const tsi_op_call *call)
{
    const ts_shape *dy = &call->in[0].shape, *ids = &call->in[1].shape;
    TSI_TRY(tsi_index_dtype("embedding_backward", &call->in[1]));
    char one[96], other[96];
    if (!tsi_shape_is_rows(ids, dy))
        return TSI_FAIL(
            TS_ERR_SHAPE, "embedding_backward: a gradient of %s does not fit indices of %s",
            tsi_shape_text(dy, one, sizeof one), tsi_shape_text(ids, other, sizeof other));
    int64_t rows = ((const rows_attributes *)call->attributes)->rows;
    call->out[0] = (ts_meta){ .shape = { .ndim = 2, .extent = { rows, dy->extent[ids->ndim] } },
                              .dtype = call->in[0].dtype };
    return TS_OK;
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    int32_t last = call->in[1].shape.ndim;
    tsi_role *row;
    for (int32_t d = 0; d < last; d++) { /* each rank adds up its own positions */
        row = tsi_rules_add(rules);
        row[0] = row[1] = TSI_S(d);
        row[2] = TSI_P(TS_REDUCE_SUM);
    }
    row = tsi_rules_add(rules);
    row[0] = TSI_S(last);
    row[2] = TSI_S(1);
    const ts_reduce linear[] = { TS_REDUCE_SUM, TS_REDUCE_AVG };
    for (int k = 0; k < 2; k++) {
        row = tsi_rules_add(rules);
        row[0] = row[2] = TSI_P(linear[k]);
    }
}

/* *sum += *add, both of one dtype. */
static void add_into(ts_dtype dtype, void *sum, const void *add)
{
    tsi_category category = tsi_dtype_category(dtype);
    if (category == TSI_CATEGORY_COMPLEX)
        tsi_store_complex(dtype, sum, tsi_load_complex(dtype, sum) + tsi_load_complex(dtype, add));
    else if (category == TSI_CATEGORY_REAL)
        tsi_store_real(dtype, sum, tsi_load_real(dtype, sum) + tsi_load_real(dtype, add));
    else
        tsi_store_int(dtype, sum, tsi_load_int(dtype, sum) + tsi_load_int(dtype, add));
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *ids = &io->in[1].block, *out = &io->out[0].block;
    unsigned char zero[16] = { 0 };
    TSI_TRY(io->device->fill(io->device, out, zero, NULL));
    tsi_loop loop = TSI_LOOP(ids, ids->stride, dy->stride);
    ts_dtype dtype = (ts_dtype)out->dtype;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t index = tsi_block_int(ids, loop.at[0]);
        int64_t row = local_row(&io->out[0], index);
        if (row == -2)
            return refuse_index("embedding_backward", io->in[1].region != NULL, index,
                                io->out[0].global->shape.extent[0]);
        for (int64_t c = 0; row >= 0 && c < out->extent[1]; c++) {
            void *sum = tsi_block_at(out, row * out->stride[0] + c * out->stride[1]);
            add_into(dtype, sum, tsi_block_at(dy, loop.at[1] + c * dy->stride[ids->ndim]));
        }
    }
    return TS_OK;
}

static bool sample_backward(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5, 4));
    s->in[1] = (ts_meta){ .shape = { .ndim = 1, .extent = { 5 } }, .dtype = TS_DTYPE_I64 };
    ((rows_attributes *)s->attributes)->rows = 7;
    return s->variant < 1;
}

const tsi_op_desc tsi_op_embedding_backward = {
    .name = "embedding_backward",
    .what = "gradient of a table: sums of the gradients of equal indices",
    TSI_OPERANDS(2, 2, 1),
    .flags = TSI_OP_NO_GRAD,
    TSI_ATTRIBUTES(rows_table, rows_attributes),
    .infer = backward_infer,
    .rules = backward_rules,
    .reference = backward_reference,
    .sample = sample_backward,
};

/* ---- makers ---------------------------------------------------------------------------------- */

TSI_MAKER2(embedding)

ts_tensor *ts_embedding_backward(ts_tensor *dy, ts_tensor *ids, int64_t rows)
{
    ts_tensor *in[] = { dy, ids };
    return tsi_op_make(&tsi_op_embedding_backward, in, 2, &rows);
}
