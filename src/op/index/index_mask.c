/* SPDX-License-Identifier: Apache-2.0 */
/* index_mask.c - take (elements by flat index) and masked_select (elements where a mask is set).
 *
 * The length of masked_select depends on the data. It is counted first, on all ranks alike, and is
 * then an attribute like any other; the result is one dim in row-major order. With x cut along its
 * first dim the ranks tell each other how many elements each of them has, and send on what belongs
 * into another rank's chunk: the result is cut into plain chunks. */
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/index/index.h"
#include "tensor/scope.h"
#include "tessera/comm.h"

/* ---- take ------------------------------------------------------------------------------------ */

static ts_status take_infer(const tsi_op_call *call)
{
    TSI_TRY(tsi_index_dtype("take", &call->in[1]));
    call->out[0] = (ts_meta){ .shape = call->in[1].shape, .dtype = call->in[0].dtype };
    return TS_OK;
}

static void take_rules(const tsi_op_call *call, tsi_rules *rules)
{
    for (int32_t d = 0; d < call->in[1].shape.ndim; d++)
        tsi_index_rule(rules, (tsi_role[]){ TSI_ROLE_R, TSI_S(d), TSI_S(d) });
    for (int32_t d = 0; d < call->in[0].shape.ndim; d++)
        tsi_index_rule(rules, (tsi_role[]){ TSI_S(d), TSI_ROLE_R, tsi_index_joined(&call->in[0]) });
    tsi_index_pass(rules, 0);
}

/* The offset of a flat index here, or TSI_ELSEWHERE. */
static int64_t flat_offset(const tsi_operand *x, int64_t flat)
{
    const ts_shape *shape = &x->global->shape;
    int64_t offset = 0;
    for (int32_t d = shape->ndim - 1; d >= 0; d--) {
        int64_t at = tsi_operand_local(x, d, flat % shape->extent[d]);
        if (at < 0) return TSI_ELSEWHERE;
        offset += at * x->block.stride[d];
        flat /= shape->extent[d];
    }
    return offset;
}

static ts_status take_reference(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *index = &io->in[1].block, *out = &io->out[0].block;
    int64_t count = ts_shape_count(&io->in[0].global->shape);
    size_t size = ts_dtype_size((ts_dtype)x->dtype);
    TSI_TRY(tsi_index_check(io, 1, count, true));
    tsi_loop loop = TSI_LOOP(index, index->stride, out->stride);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        int64_t flat = tsi_block_int(index, loop.at[0]);
        int64_t at = flat_offset(&io->in[0], flat < 0 ? flat + count : flat);
        void *to = tsi_block_at(out, loop.at[1]);
        if (at == TSI_ELSEWHERE)
            memset(to, 0, size);
        else
            memcpy(to, tsi_block_at(x, at), size);
    }
    return TS_OK;
}

static ts_status take_grad(const tsi_grad_io *io)
{
    if (!(io->needs & 1)) return TS_OK;
    const ts_shape *shape = &io->in_meta[0].shape;
    ts_tensor *line = ts_zeros(ts_tensor_mesh(io->out_grad[0]), (ts_dtype)io->in_meta[0].dtype,
                               TS_SHAPE(ts_shape_count(shape)), NULL);
    line = ts_index_put(
        line, io->out_grad[0],
        TS_OPTIONS(ts_index_options, .index = &io->in[1], .count = 1, .accumulate = 1));
    return tsi_grad_give(io, ts_reshape(line, *shape));
}

static bool sample_take(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(TS_SHAPE(3, 2));
    s->in[1] = (ts_meta){ .shape = { .ndim = 2, .extent = { 5, 3 } }, .dtype = TS_DTYPE_I64 };
    if (s->variant == 1) s->in[1].shape = TS_SHAPE(7);
    return s->variant < 2;
}

const tsi_op_desc tsi_op_take = {
    .name = "take",
    .what = "elements by their row-major number",
    TSI_OPERANDS(2, 2, 1),
    .saves = 2,
    .infer = take_infer,
    .rules = take_rules,
    .reference = take_reference,
    .grad = take_grad,
    .sample = sample_take,
};

/* ---- masked_select: one rank ----------------------------------------------------------------- */

static const tsi_attribute mask_table[] = {
    TSI_ATTR(tsi_masked_attributes, count, INT, "count", "-1"), { 0 }
};

/* A plan without data: as many as there can be. */
static ts_status mask_normalise(const tsi_op_desc *op, const ts_meta *in, int32_t input_count,
                                void *attributes)
{
    (void)op;
    (void)input_count;
    tsi_masked_attributes *a = attributes;
    if (a->count == -1) a->count = ts_shape_count(&in[0].shape);
    return TS_OK;
}

static ts_status mask_check(const tsi_op_call *call, const ts_shape *x)
{
    const ts_meta *mask = &call->in[1];
    char one[96], other[96];
    if (!tsi_shape_same(&mask->shape, x))
        return TSI_FAIL(TS_ERR_SHAPE, "%s: a mask of %s for %s", call->op->name,
                        tsi_shape_text(&mask->shape, one, sizeof one),
                        tsi_shape_text(x, other, sizeof other));
    if (mask->dtype == TS_DTYPE_BOOL) return TS_OK;
    return TSI_FAIL(TS_ERR_DTYPE, "%s: the mask is bool, not %s", call->op->name,
                    ts_dtype_name((ts_dtype)mask->dtype));
}

static ts_status mask_infer(const tsi_op_call *call)
{
    int64_t count = ((const tsi_masked_attributes *)call->attributes)->count;
    TSI_TRY(mask_check(call, &call->in[0].shape));
    if (count < 0 || count > ts_shape_count(&call->in[0].shape))
        return TSI_FAIL(TS_ERR_ARG, "masked_select: %lld elements of %lld", (long long)count,
                        (long long)ts_shape_count(&call->in[0].shape));
    call->out[0] = (ts_meta){ .shape = TS_SHAPE(count), .dtype = call->in[0].dtype };
    return TS_OK;
}

static void mask_rules(const tsi_op_call *call, tsi_rules *rules)
{
    tsi_index_pass(rules, 0);
    if (call->in[0].shape.ndim == 0) return;
    tsi_role *row = tsi_rules_add_with(rules, 1, TSI_RULE_PLAIN);
    row[0] = row[1] = row[2] = TSI_S(0);
}

/* Elements of x where the mask is set, one after another into `to` (NULL: only counted). */
static int64_t pack(const tsi_block *x, const tsi_block *mask, unsigned char *to, int64_t room)
{
    tsi_loop loop = TSI_LOOP(x, x->stride, mask->stride);
    size_t size = ts_dtype_size((ts_dtype)x->dtype);
    int64_t count = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        if (!*(const unsigned char *)tsi_block_at(mask, loop.at[1])) continue;
        if (to && count < room)
            memcpy(to + (size_t)count * size, tsi_block_at(x, loop.at[0]), size);
        count++;
    }
    return count;
}

static ts_status refuse_count(const tsi_op_desc *op, int64_t set, int64_t count)
{
    return TSI_FAIL(TS_ERR_ARG, "%s: the mask has %lld elements set, not %lld", op->name,
                    (long long)set, (long long)count);
}

static ts_status mask_reference(const tsi_kernel_io *io)
{
    int64_t count = ((const tsi_masked_attributes *)io->attributes)->count;
    int64_t set = pack(&io->in[0].block, &io->in[1].block, io->out[0].block.data, count);
    return set == count ? TS_OK : refuse_count(io->op, set, count);
}

/* ---- masked_select: ranks that hold rows ----------------------------------------------------- */

typedef struct packing {
    const tsi_algorithm_io *io;
    tsi_arena *arena;
    int64_t me, size, item;
    int64_t *begin, *count, *start; /* of every member: first row; elements; where they go */
    unsigned char *packed;
    tsi_block out;
    ts_part *send, *recv;
    int64_t send_count, recv_count;
} packing;

static bool dim0_of(packing *p, const ts_layout *layout, int64_t member, int64_t *begin,
                    int64_t *length)
{
    int64_t coord[TS_NDIM_MAX];
    tsi_span_list list;
    if (!tsi_mesh_desc_coord(p->io->mesh->desc, ts_group_rank(p->io->group, member), coord) ||
        !tsi_layout_region_dim(layout, coord, 0, p->arena, &list))
        return false;
    *begin = list.span_count ? tsi_spans(&list)[0].begin : 0;
    *length = list.total;
    return true;
}

/* How many elements each member has, and where in the result they begin. */
static ts_status agree_counts(packing *p, int64_t mine)
{
    int64_t length, total = 0, expected = p->io->call->out[0].shape.extent[0];
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    in.data = &mine;
    in.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    out.data = p->count;
    out.meta = (ts_meta){ .shape = TS_SHAPE(p->size), .dtype = TS_DTYPE_I64 };
    TSI_TRY((ts_group_all_gather)(p->io->group, &in, &out, NULL));
    for (int64_t j = 0; j < p->size; j++) {
        if (!dim0_of(p, p->io->in[0]->layout, j, &p->begin[j], &length))
            return tsi_fail_memory("the parts of masked_select", 0);
        total += p->count[j];
    }
    if (total != expected) return refuse_count(p->io->op, total, expected);
    for (int64_t j = 0; j < p->size; j++)
        for (int64_t i = 0; i < p->size; i++)
            if (p->count[i] > 0 && p->begin[i] < p->begin[j]) p->start[j] += p->count[i];
    return TS_OK;
}

/* Elements [begin, end) of the result that member `from` has and `to` wants. */
static ts_status common_of(packing *p, int64_t from, int64_t to, ts_interval *out)
{
    int64_t begin, length;
    if (!dim0_of(p, p->io->out_layout[0], to, &begin, &length))
        return tsi_fail_memory("the parts of masked_select", 0);
    out->begin = tsi_max_i64(begin, p->start[from]);
    out->end = tsi_min_i64(begin + length, p->start[from] + p->count[from]);
    return TS_OK;
}

static ts_status list_parts(packing *p)
{
    int64_t own, length;
    ts_interval common;
    if (!dim0_of(p, p->io->out_layout[0], p->me, &own, &length))
        return tsi_fail_memory("the parts of masked_select", 0);
    for (int64_t q = 0; q < p->size; q++) {
        TSI_TRY(common_of(p, p->me, q, &common));
        if (common.end > common.begin)
            p->send[p->send_count++] =
                (ts_part){ .peer = q,
                           .data = p->packed + (common.begin - p->start[p->me]) * p->item,
                           .ndim = 1,
                           .extent = { common.end - common.begin },
                           .stride = { 1 } };
        TSI_TRY(common_of(p, q, p->me, &common));
        if (common.end > common.begin)
            p->recv[p->recv_count++] =
                (ts_part){ .peer = q,
                           .data = (char *)p->out.data + (common.begin - own) * p->item,
                           .ndim = 1,
                           .extent = { common.end - common.begin },
                           .stride = { 1 } };
    }
    return TS_OK;
}

static ts_status packing_run(packing *p, const tsi_block *x, const tsi_block *mask)
{
    int64_t room = tsi_block_count(x);
    size_t n = (size_t)p->size;
    p->begin = tsi_arena_calloc(p->arena, n, sizeof *p->begin);
    p->count = tsi_arena_calloc(p->arena, n, sizeof *p->count);
    p->start = tsi_arena_calloc(p->arena, n, sizeof *p->start);
    p->send = tsi_arena_calloc(p->arena, n, sizeof *p->send);
    p->recv = tsi_arena_calloc(p->arena, n, sizeof *p->recv);
    p->packed = tsi_arena_alloc(p->arena, (size_t)(room * p->item) + 1);
    if (!p->begin || !p->count || !p->start || !p->send || !p->recv || !p->packed)
        return tsi_fail_memory("masked_select", (size_t)(room * p->item));
    TSI_TRY(agree_counts(p, pack(x, mask, p->packed, room)));
    TSI_TRY(list_parts(p));
    ts_exchange round = TS_INIT(ts_exchange);
    round.dtype = p->out.dtype;
    round.send = p->send;
    round.send_count = p->send_count;
    round.recv = p->recv;
    round.recv_count = p->recv_count;
    return (ts_group_exchange)(p->io->group, &round, NULL);
}

static ts_status mask_on_host(const tsi_algorithm_io *io, const tsi_block *block, tsi_arena *arena)
{
    packing p = { .io = io, .arena = arena, .out = block[io->input_count] };
    p.item = (int64_t)ts_dtype_size((ts_dtype)p.out.dtype);
    p.me = ts_group_index(io->group);
    p.size = ts_group_size(io->group);
    return packing_run(&p, &block[0], &block[1]);
}

static ts_status mask_exchange(const tsi_algorithm_io *io)
{
    return tsi_algorithm_on_host(io, mask_on_host);
}

/* At most the whole result changes hands; and the counts. */
static int64_t mask_bytes(const tsi_op_call *call, int64_t n)
{
    int64_t each = tsi_ceil_div(call->out[0].shape.extent[0], n);
    int64_t bytes = tsi_mul_most(each, (int64_t)ts_dtype_size((ts_dtype)call->out[0].dtype));
    return tsi_add_most(bytes, tsi_mul_most(n - 1, 8));
}

static const tsi_algorithm mask_algorithms[] = { { "exchange", mask_exchange, mask_bytes }, { 0 } };

/* ---- its gradient ---------------------------------------------------------------------------- */

static ts_status backward_infer(const tsi_op_call *call)
{
    TSI_TRY(mask_check(call, &call->in[1].shape));
    if (call->in[0].shape.ndim != 1)
        return TSI_FAIL(TS_ERR_SHAPE, "masked_select_backward: the gradient has %d dims, not 1",
                        call->in[0].shape.ndim);
    call->out[0] = (ts_meta){ .shape = call->in[1].shape, .dtype = call->in[0].dtype };
    return TS_OK;
}

static void backward_rules(const tsi_op_call *call, tsi_rules *rules)
{
    (void)call;
    tsi_index_pass(rules, 0);
}

static ts_status backward_reference(const tsi_kernel_io *io)
{
    const tsi_block *dy = &io->in[0].block, *mask = &io->in[1].block, *dx = &io->out[0].block;
    tsi_loop loop = TSI_LOOP(dx, dx->stride, mask->stride);
    size_t size = ts_dtype_size((ts_dtype)dx->dtype);
    int64_t next = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        bool set = *(const unsigned char *)tsi_block_at(mask, loop.at[1]);
        void *to = tsi_block_at(dx, loop.at[0]);
        if (set && next < dy->extent[0])
            memcpy(to, tsi_block_at(dy, next * dy->stride[0]), size);
        else
            memset(to, 0, size);
        next += set;
    }
    return next == dy->extent[0] ? TS_OK : refuse_count(io->op, next, dy->extent[0]);
}

static ts_status mask_grad(const tsi_grad_io *io)
{
    ts_tensor *in[] = { io->out_grad[0], io->in[1] };
    if (io->needs & 1) io->in_grad[0] = tsi_op_make(&tsi_op_masked_select_backward, in, 2, NULL);
    return ts_rank_status(io->rank);
}

/* Of x [5, 3] or of dy [5], and the mask: the sweeps set every third element. */
static bool sample_mask_backward(tsi_sample *s)
{
    s->count = 2;
    s->in[0] = tsi_meta_f64(TS_SHAPE(5));
    s->in[1] = (ts_meta){ .shape = TS_SHAPE(5, 3), .dtype = TS_DTYPE_BOOL };
    return s->variant < 1;
}

static bool sample_mask(tsi_sample *s)
{
    ((tsi_masked_attributes *)s->attributes)->count = 5;
    bool more = sample_mask_backward(s);
    s->in[0].shape = s->in[1].shape;
    return more;
}

const tsi_op_desc tsi_op_masked_select = {
    .name = "masked_select",
    .what = "elements where a mask is set, as one dim in row-major order",
    TSI_OPERANDS(2, 2, 1),
    .flags = TSI_OP_DATA_SHAPE | TSI_OP_ONE_ROUND,
    .saves = 2,
    TSI_ATTRIBUTES(mask_table, tsi_masked_attributes),
    .normalise = mask_normalise,
    .infer = mask_infer,
    .rules = mask_rules,
    .reference = mask_reference,
    .algorithm = mask_algorithms,
    .grad = mask_grad,
    .sample = sample_mask,
};
const tsi_op_desc tsi_op_masked_select_backward = {
    .name = "masked_select_backward",
    .what = "the gradient of masked_select: zeros where the mask is not set",
    TSI_OPERANDS(2, 2, 1),
    .flags = TSI_OP_DATA_SHAPE | TSI_OP_NO_GRAD,
    .infer = backward_infer,
    .rules = backward_rules,
    .reference = backward_reference,
    .sample = sample_mask_backward,
};

/* ---- makers ---------------------------------------------------------------------------------- */

TSI_MAKER2(take)

ts_tensor *(ts_masked_select)(ts_tensor *x, ts_tensor *mask)
{
    if (!x || !mask)
        return tsi_op_make(&tsi_op_masked_select, (ts_tensor *[]){ x, mask }, 2,
                           &(tsi_masked_attributes){ 0 });
    ts_meta meta[] = { { .shape = ts_tensor_shape(x), .dtype = x->dtype },
                       { .shape = ts_tensor_shape(mask), .dtype = mask->dtype } };
    tsi_op_call call = { &tsi_op_masked_select, NULL, meta, NULL, 2, 0 };
    ts_shape shape;
    double count;
    if (tsi_infer_broadcast(&call, &shape) != TS_OK) return NULL;
    ts_scope inner = tsi_scope_inner(x);
    ts_tensor *in[] = { (ts_expand)(x, shape), (ts_expand)(mask, shape) };
    if (ts_tensor_item((ts_count_nonzero)(in[1], NULL, 0, 0), &count) != TS_OK)
        return ts_scope_leave(inner, NULL);
    return ts_scope_leave(inner, tsi_op_make(&tsi_op_masked_select, in, 2,
                                             &(tsi_masked_attributes){ (int64_t)count }));
}
