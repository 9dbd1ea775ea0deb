/* SPDX-License-Identifier: Apache-2.0 */
/* user_run.c - a user's functions called from where a built-in operator's would be.
 *
 * A kernel sees contiguous blocks of dtypes it takes: others are copied or cast around it, one
 * rounding each way. What user code returns is checked before anybody relies on it. */
#include <string.h>

#include "base/alloc.h"
#include "op/core/algorithm.h"
#include "op/core/common.h"
#include "op/core/user.h"

/* ---- dtypes ---------------------------------------------------------------------------------- */

/* The widest dtype that the kernel takes of a kind. */
static ts_dtype widest(uint32_t taken, int32_t category)
{
    static const ts_dtype wide_first[] = {
        TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16,  TS_DTYPE_I64,  TS_DTYPE_I32,
        TS_DTYPE_I16, TS_DTYPE_U8,  TS_DTYPE_I8,   TS_DTYPE_BOOL, TS_DTYPE_C128, TS_DTYPE_C64
    };
    for (size_t i = 0; i < TSI_COUNT_OF(wide_first); i++)
        if (taken >> wide_first[i] & 1 && (int32_t)tsi_dtype_category(wide_first[i]) == category)
            return wide_first[i];
    return TS_DTYPE_NONE;
}

/* The dtype in which the kernel sees a block: its own, or the widest it takes of that kind, else of
 * the next kind that holds such numbers, else (for results) of the next that they hold. */
static ts_dtype kernel_dtype(uint32_t taken, ts_dtype dtype)
{
    int32_t kind = (int32_t)tsi_dtype_category(dtype);
    ts_dtype found = TS_DTYPE_NONE;
    if (!taken || taken >> dtype & 1) return dtype;
    for (int32_t c = kind; c <= TSI_CATEGORY_COMPLEX && !found; c++)
        found = widest(taken, c);
    for (int32_t c = kind - 1; c >= TSI_CATEGORY_BOOL && !found; c--)
        found = widest(taken, c);
    return found;
}

static ts_status check_dtypes(const tsi_op_call *call)
{
    const ts_op_desc *user = &tsi_user_of(call->op)->user;
    for (int32_t i = 0; user->kernel && i < call->input_count; i++) {
        ts_dtype dtype = (ts_dtype)call->in[i].dtype;
        if (dtype == TS_DTYPE_NONE) continue;
        if (tsi_dtype_category(kernel_dtype(user->dtypes, dtype)) < tsi_dtype_category(dtype))
            return TSI_FAIL(TS_ERR_DTYPE,
                            "%s: input %d is %s, which no dtype that its kernel takes can hold",
                            call->op->name, i, ts_dtype_name(dtype));
    }
    return TS_OK;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static ts_status check_dims(const tsi_op_call *call)
{
    const ts_op_desc *user = &tsi_user_of(call->op)->user;
    int32_t letters[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    if (!user->dims || user->dims[0] == '*' || !tsi_user_letters(user, letters)) return TS_OK;
    for (int32_t k = 0; k < call->input_count + call->output_count; k++) {
        bool input = k < call->input_count;
        int32_t o = k - call->input_count;
        const ts_meta *meta = input ? &call->in[k] : &call->out[o];
        int32_t said = letters[input ? k : user->input_count + o];
        if (meta->dtype == TS_DTYPE_NONE || meta->shape.ndim == said) continue;
        return TSI_FAIL(TS_ERR_SHAPE, "%s: %s %d has %d dims, %d in its index expression \"%s\"",
                        call->op->name, input ? "input" : "output", input ? k : o, meta->shape.ndim,
                        said, user->dims);
    }
    return TS_OK;
}

bool tsi_user_is_meta(const ts_meta *meta)
{
    return meta->dtype > TS_DTYPE_NONE && meta->dtype < TS_DTYPE_COUNT && meta->shape.ndim >= 0 &&
           meta->shape.ndim <= TS_NDIM_MAX && ts_shape_count(&meta->shape) >= 0;
}

ts_status tsi_user_infer(const tsi_op_call *call)
{
    const tsi_user_op *op = tsi_user_of(call->op);
    TSI_TRY(check_dtypes(call));
    if (!op->user.infer) {
        TSI_TRY(tsi_infer_pointwise(call));
        for (int32_t o = 1; o < call->output_count; o++)
            call->out[o] = call->out[0];
        return TS_OK;
    }
    for (int32_t o = 0; o < call->output_count; o++)
        call->out[o] = (ts_meta){ .dtype = call->in[0].dtype };
    tsi_error_forget();
    ts_status status = op->user.infer(call->attributes, call->in, call->out);
    if (status != TS_OK) return tsi_user_failed(call->op->name, "infer", status);
    for (int32_t o = 0; o < call->output_count; o++) {
        if (!tsi_user_is_meta(&call->out[o]))
            return TSI_FAIL(TS_ERR_ARG,
                            "%s: its infer function gave output %d no valid shape and "
                            "dtype",
                            call->op->name, o);
    }
    return check_dims(call);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static bool is_dense(const tsi_block *block)
{
    int64_t stride = 1;
    for (int32_t d = block->ndim - 1; d >= 0; stride *= block->extent[d--])
        if (block->extent[d] > 1 && block->stride[d] != stride) return false;
    return true;
}

/* Element by element, casting; either side may be strided. */
static void copy_block(const tsi_block *to, const tsi_block *from)
{
    tsi_loop loop = TSI_LOOP(to, to->stride, from->stride);
    ts_dtype a = (ts_dtype)to->dtype, b = (ts_dtype)from->dtype;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        void *x = tsi_block_at(to, loop.at[0]);
        const void *y = tsi_block_at(from, loop.at[1]);
        if (a == b)
            memcpy(x, y, ts_dtype_size(a));
        else if (tsi_dtype_category(b) == TSI_CATEGORY_COMPLEX)
            tsi_store_complex(a, x, tsi_load_complex(b, y));
        else if (tsi_dtype_category(b) == TSI_CATEGORY_REAL)
            tsi_store_real(a, x, tsi_load_real(b, y));
        else
            tsi_store_int(a, x, tsi_load_int(b, y));
    }
}

/* The array the kernel sees of a block: itself, or contiguous memory of the dtype (to be freed). */
static ts_status array_of(const tsi_block *block, ts_dtype dtype, ts_array *array, void **memory)
{
    *array = (ts_array){ .struct_size = sizeof *array, .data = block->data };
    array->meta.dtype = (int32_t)dtype;
    array->meta.shape.ndim = block->ndim;
    memcpy(array->meta.shape.extent, block->extent, sizeof array->meta.shape.extent);
    if (block->dtype == (int32_t)dtype && is_dense(block)) return TS_OK;
    size_t bytes = (size_t)tsi_block_count(block) * ts_dtype_size(dtype) + 1;
    *memory = array->data = tsi_alloc(bytes);
    return *memory ? TS_OK : tsi_fail_memory("a block for a user's kernel", bytes);
}

static tsi_block block_of(const ts_array *array)
{
    tsi_block block = { .data = array->data, .dtype = array->meta.dtype };
    block.ndim = array->meta.shape.ndim;
    int64_t stride = 1;
    for (int32_t d = block.ndim - 1; d >= 0; d--) {
        block.extent[d] = array->meta.shape.extent[d];
        block.stride[d] = stride;
        stride *= block.extent[d];
    }
    return block;
}

typedef struct kernel_call {
    ts_array in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    const ts_array *in_list[TSI_INPUT_MAX];
    ts_array *out_list[TSI_OUTPUT_MAX];
    void *in_memory[TSI_INPUT_MAX], *out_memory[TSI_OUTPUT_MAX];
} kernel_call;

static ts_status kernel_inputs(const tsi_kernel_io *io, kernel_call *c)
{
    uint32_t taken = tsi_user_of(io->op)->user.dtypes;
    for (int32_t i = 0; i < io->input_count; i++) {
        const tsi_block *block = &io->in[i].block;
        if (io->in[i].global->dtype == TS_DTYPE_NONE) continue;
        ts_dtype dtype = kernel_dtype(taken, (ts_dtype)block->dtype);
        TSI_TRY(array_of(block, dtype, &c->in[i], &c->in_memory[i]));
        c->in_list[i] = &c->in[i];
        if (!c->in_memory[i]) continue;
        tsi_block copy = block_of(&c->in[i]);
        copy_block(&copy, block);
    }
    for (int32_t o = 0; o < io->output_count; o++) {
        const tsi_block *block = &io->out[o].block;
        ts_dtype dtype = kernel_dtype(taken, (ts_dtype)block->dtype);
        TSI_TRY(array_of(block, dtype, &c->out[o], &c->out_memory[o]));
        c->out_list[o] = &c->out[o];
    }
    return TS_OK;
}

ts_status tsi_user_kernel(const tsi_kernel_io *io)
{
    const tsi_user_op *op = tsi_user_of(io->op);
    kernel_call c;
    memset(c.in_list, 0, sizeof c.in_list);
    memset(c.in_memory, 0, sizeof c.in_memory);
    memset(c.out_memory, 0, sizeof c.out_memory);
    ts_status status = kernel_inputs(io, &c);
    if (status == TS_OK) {
        tsi_error_forget();
        status = op->user.kernel(io->attributes, c.in_list, c.out_list);
        if (status != TS_OK) status = tsi_user_failed(io->op->name, "kernel", status);
    }
    for (int32_t o = 0; status == TS_OK && o < io->output_count; o++) {
        if (!c.out_memory[o]) continue;
        tsi_block copy = block_of(&c.out[o]);
        copy_block(&io->out[o].block, &copy);
    }
    for (int32_t i = 0; i < io->input_count; i++)
        tsi_free(c.in_memory[i]);
    for (int32_t o = 0; o < io->output_count; o++)
        tsi_free(c.out_memory[o]);
    return status;
}

/* ---- bodies of operators --------------------------------------------------------------------- */

static ts_status refuse_output(const char *op, const char *what, int32_t output,
                               const ts_shape *want, const ts_tensor *have)
{
    char wanted[96], given[96];
    if (!have)
        return TSI_FAIL(TS_ERR_NULL, "%s: its %s function left output %d NULL", op, what, output);
    if (!have->layout)
        return tsi_tensor_refuse(have, "%s: output %d of its %s function", op, output, what);
    return TSI_FAIL(TS_ERR_SHAPE, "%s: its %s function gave output %d the shape %s, not %s", op,
                    what, output, tsi_shape_text(&have->layout->shape, given, sizeof given),
                    tsi_shape_text(want, wanted, sizeof wanted));
}

static bool has_shape(const ts_tensor *t, const ts_shape *shape)
{
    return t && t->layout && tsi_shape_same(&t->layout->shape, shape);
}

ts_status tsi_user_compose(const tsi_algorithm_io *a)
{
    const tsi_user_op *op = tsi_user_of(a->op);
    ts_tensor *in[TSI_INPUT_MAX] = { NULL }, *out[TSI_OUTPUT_MAX] = { NULL };
    const ts_sharding *sharding[TSI_OUTPUT_MAX];
    ts_shape shape[TSI_OUTPUT_MAX];
    memcpy(in, a->in, (size_t)a->input_count * sizeof *in);
    for (int32_t o = 0; o < a->output_count; o++) {
        sharding[o] = a->out_layout[o]->sharding;
        shape[o] = a->out_layout[o]->shape;
    }
    ts_op_io io = { .struct_size = sizeof io,
                    .rank = a->rank,
                    .attributes = a->attributes,
                    .input = in,
                    .output = out,
                    .output_sharding = sharding,
                    .output_shape = shape,
                    .input_count = op->user.input_count,
                    .output_count = a->output_count,
                    .phase = TS_PHASE_FORWARD };
    ts_scope scope = tsi_algorithm_begin(a);
    op->user.compose(&io);
    for (int32_t o = 0; o < a->output_count && ts_rank_status(a->rank) == TS_OK; o++) {
        if (!has_shape(out[o], &shape[o])) {
            refuse_output(a->op->name, "compose", o, &shape[o], out[o]);
        } else if (out[o]->dtype != a->call->out[o].dtype) {
            TSI_FAIL(TS_ERR_DTYPE, "%s: its compose function gave output %d %s, not %s",
                     a->op->name, o, ts_dtype_name((ts_dtype)out[o]->dtype),
                     ts_dtype_name((ts_dtype)a->call->out[o].dtype));
        }
    }
    if (ts_rank_status(a->rank) != TS_OK) memset(out, 0, sizeof out);
    return tsi_algorithm_end(a, scope, out);
}

ts_status tsi_user_grad(const tsi_grad_io *g)
{
    const tsi_user_op *op = tsi_user_of(g->op);
    ts_tensor *input[TSI_INPUT_MAX + 2 * TSI_OUTPUT_MAX], *output[TSI_INPUT_MAX] = { NULL };
    ts_shape shape[TSI_INPUT_MAX];
    int32_t count = 0, inputs = op->user.input_count;
    for (int32_t i = 0; i < inputs; i++) { /* the last ones may be absent from the call */
        bool there = i < g->input_count;
        shape[i] = there ? g->in_meta[i].shape : TS_SHAPE_SCALAR;
        if (op->user.saves >> i & 1) input[count++] = there ? g->in[i] : NULL;
    }
    for (int32_t o = 0; o < g->output_count; o++)
        if (op->user.saves >> (TSI_SAVE_OUT + o) & 1) input[count++] = g->out[o];
    for (int32_t o = 0; o < g->output_count; o++)
        input[count++] = g->out_grad[o];
    ts_op_io io = { .struct_size = sizeof io,
                    .rank = g->rank,
                    .attributes = g->attributes,
                    .input = input,
                    .output = output,
                    .output_shape = shape,
                    .input_count = count,
                    .output_count = inputs,
                    .phase = TS_PHASE_BACKWARD,
                    .needs = (uint32_t)g->needs };
    op->user.grad(&io);
    TSI_TRY(ts_rank_status(g->rank));
    for (int32_t i = 0; i < g->input_count; i++) {
        if (!(g->needs >> i & 1) || !output[i]) continue;
        if (!has_shape(output[i], &shape[i]))
            return refuse_output(g->op->name, "grad", i, &shape[i], output[i]);
        ts_dtype given = (ts_dtype)output[i]->dtype, wanted = (ts_dtype)g->in_meta[i].dtype;
        if (tsi_dtype_category(given) != tsi_dtype_category(wanted))
            return TSI_FAIL(TS_ERR_DTYPE, "%s: its grad function gave input %d, which is %s, %s",
                            g->op->name, i, ts_dtype_name(wanted), ts_dtype_name(given));
        g->in_grad[i] = output[i];
    }
    return TS_OK;
}
