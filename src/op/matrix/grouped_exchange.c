/* SPDX-License-Identifier: Apache-2.0 */
/* grouped_exchange.c - grouped products where rows and groups are cut over the same ranks: each row
 * goes to the rank that holds its group's matrix, and its result comes back.
 *
 *   rows by owner (stable) --counts, rows, groups--> products there --results--> rows as they were
 *
 * Nothing else moves: a row whose group is here stays. The gradient of the matrices takes the rows
 * of dy and of x to the owner and leaves its sums there, so that no rank ever holds more than its
 * own matrices. Another axis may cut the groups, too: rows of groups that no rank of this exchange
 * holds stay, and give zeros here, since the result is a partial sum over that axis.
 *
 * INV: rows arrive in the order of ranks, and of one rank in its own order, so sums over the rows
 * of a group are those of one rank wherever rows are cut in rank order. */
#include <string.h>

#include "base/alloc.h"
#include "device/parallel.h"
#include "op/core/algorithm.h"
#include "op/core/element.h"
#include "op/core/kernel.h"
#include "op/matrix/grouped_linear.h"
#include "tessera/comm.h"

typedef struct exchange {
    const tsi_algorithm_io *io;
    tsi_arena *arena;
    int64_t me, size; /* of the group of ranks */
    int64_t rows;     /* here */
    int64_t going;    /* of them, whose group a member holds */
    int64_t held;     /* come from everywhere */
    int64_t *order;   /* [going]: those for member 0 first, then for member 1, ... */
    int64_t *sent;    /* [size + 1]: where those for a member begin */
    int64_t *came;    /* [size + 1]: where those from a member begin */
    int64_t *group;   /* [held]: of the rows that came */
} exchange;

/* ---- who gets what --------------------------------------------------------------------------- */

ts_status tsi_grouped_owners(const tsi_algorithm_io *io, ts_group *among, const ts_layout *matrices,
                             tsi_arena *arena, int64_t **out)
{
    int64_t groups = matrices->shape.extent[0], coord[TS_NDIM_MAX];
    int64_t *owner = tsi_arena_alloc(arena, (size_t)(groups + 1) * sizeof *owner);
    if (!owner) return tsi_fail_memory("the owners of groups", (size_t)groups * sizeof *owner);
    for (int64_t g = 0; g < groups; g++)
        owner[g] = -1;
    for (int64_t j = among ? ts_group_size(among) - 1 : 0; j >= 0; j--) {
        int64_t rank = among ? ts_group_rank(among, j) : ts_rank_index(io->rank);
        tsi_span_list list;
        if (!tsi_mesh_desc_coord(io->mesh->desc, rank, coord) ||
            !tsi_layout_region_dim(matrices, coord, 0, arena, &list))
            return tsi_fail_memory("the owners of groups", 0);
        for (int64_t i = 0; i < list.total; i++)
            owner[tsi_span_list_at(&list, i)] = j;
    }
    *out = owner;
    return TS_OK;
}

/* The group of each row here, by any integer dtype; refused where there is no such group. */
static ts_status read_groups(const exchange *x, const tsi_block *block, int64_t groups,
                             int64_t *group)
{
    tsi_loop loop = tsi_loop_over(block);
    int64_t row = 0;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop), row++) {
        group[row] = tsi_block_int(block, loop.at[0]);
        if (group[row] < 0 || group[row] >= groups)
            return tsi_grouped_refuse(x->io->op->name, group[row], groups, true);
    }
    TSI_ASSERT(row == x->rows);
    return TS_OK;
}

/* Counts per member become beginnings. */
static void add_up(int64_t *first, int64_t count)
{
    int64_t sum = 0;
    for (int64_t j = 0; j <= count; j++) {
        int64_t here = j < count ? first[j] : 0;
        first[j] = sum;
        sum += here;
    }
}

static ts_status exchange_counts(exchange *x)
{
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = x->io->op->name;
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    in.data = x->sent;
    in.meta = (ts_meta){ .shape = TS_SHAPE(x->size), .dtype = TS_DTYPE_I64 };
    out.data = x->came;
    out.meta = in.meta;
    return (ts_group_all_to_all)(x->io->group, &in, &out, &options);
}

/* Rows by owner: counts first, then a stable sort by them. */
static ts_status sort_rows(exchange *x, const int64_t *group, const int64_t *owner)
{
    int64_t *next = tsi_arena_calloc(x->arena, (size_t)x->size + 1, sizeof *next);
    if (!next) return tsi_fail_memory("the rows of members", (size_t)x->size * sizeof *next);
    for (int64_t row = 0; row < x->rows; row++)
        if (owner[group[row]] >= 0) x->sent[owner[group[row]]]++;
    TSI_TRY(exchange_counts(x));
    add_up(x->sent, x->size);
    add_up(x->came, x->size);
    x->going = x->sent[x->size];
    x->held = x->came[x->size];
    memcpy(next, x->sent, (size_t)x->size * sizeof *next);
    for (int64_t row = 0; row < x->rows; row++)
        if (owner[group[row]] >= 0) x->order[next[owner[group[row]]]++] = row;
    return TS_OK;
}

/* ---- moving rows ----------------------------------------------------------------------------- */

/* From dense rows in the order of sending to dense rows as they came; `back`: the other way. */
static ts_status pass(const exchange *x, void *from, void *to, int64_t row_bytes, bool back)
{
    ts_part *part = tsi_arena_alloc(x->arena, (size_t)(2 * x->size) * sizeof *part);
    if (!part) return tsi_fail_memory("the parts of an exchange", (size_t)x->size * sizeof *part);
    ts_exchange round = TS_INIT(ts_exchange);
    round.dtype = TS_DTYPE_U8;
    round.send = part;
    round.recv = part + x->size;
    for (int64_t j = 0; j < x->size; j++) {
        const int64_t *out = back ? x->came : x->sent, *in = back ? x->sent : x->came;
        int64_t sends = (out[j + 1] - out[j]) * row_bytes, takes = (in[j + 1] - in[j]) * row_bytes;
        ts_part one = { .peer = j, .ndim = 1, .stride = { 1 } };
        one.data = (char *)from + out[j] * row_bytes;
        one.extent[0] = sends;
        if (sends > 0) part[round.send_count++] = one;
        one.data = (char *)to + in[j] * row_bytes;
        one.extent[0] = takes;
        if (takes > 0) part[x->size + round.recv_count++] = one;
    }
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = x->io->op->name;
    return (ts_group_exchange)(x->io->group, &round, &options);
}

typedef struct packing {
    const tsi_block *block; /* [M.., N] */
    const int64_t *order;
    char *packed; /* [rows, N] */
    bool out;     /* from packed to the block */
} packing;

static void pack_some(void *context, int64_t begin, int64_t end, int32_t worker)
{
    const packing *p = context;
    const tsi_block *b = p->block;
    (void)worker;
    int64_t length = b->extent[b->ndim - 1], stride = b->stride[b->ndim - 1];
    size_t size = ts_dtype_size((ts_dtype)b->dtype);
    for (int64_t i = begin; i < end; i++) {
        int64_t row = p->order[i], at = 0;
        for (int32_t d = b->ndim - 2; d >= 0; row /= b->extent[d--])
            at += row % b->extent[d] * b->stride[d];
        char *dense = p->packed + (size_t)(i * length) * size;
        for (int64_t n = 0; n < length; n += stride == 1 ? length : 1) {
            char *element = tsi_block_at(b, at + n * stride), *other = dense + (size_t)n * size;
            size_t bytes = stride == 1 ? (size_t)length * size : size;
            memcpy(p->out ? element : other, p->out ? other : element, bytes);
        }
    }
}

static void pack(const exchange *x, const tsi_block *block, char *packed, bool out)
{
    enum { ROWS_AT_ONCE = 64 };
    packing p = { block, x->order, packed, out };
    if (block->extent[block->ndim - 1] > 0)
        tsi_parallel_for(x->io->rank, x->going, ROWS_AT_ONCE, pack_some, &p);
}

static int64_t row_bytes_of(const tsi_block *block)
{
    return block->extent[block->ndim - 1] * (int64_t)ts_dtype_size((ts_dtype)block->dtype);
}

static ts_status buffer(const exchange *x, int64_t rows, int64_t row_bytes, char **out)
{
    *out = tsi_arena_alloc(x->arena, (size_t)(rows * row_bytes) + 1);
    return *out ? TS_OK : tsi_fail_memory("the rows of an exchange", (size_t)(rows * row_bytes));
}

/* A block's rows where their groups are, dense: [held, N]. */
static ts_status bring(const exchange *x, const tsi_block *block, ts_meta *meta, tsi_operand *out)
{
    int64_t row_bytes = row_bytes_of(block), length = block->extent[block->ndim - 1];
    char *mine = NULL, *theirs = NULL;
    TSI_TRY(buffer(x, x->going, row_bytes, &mine));
    TSI_TRY(buffer(x, x->held, row_bytes, &theirs));
    pack(x, block, mine, false);
    TSI_TRY(pass(x, mine, theirs, row_bytes, false));
    *meta = (ts_meta){ .shape = TS_SHAPE(x->held, length), .dtype = block->dtype };
    *out = (tsi_operand){ .block = { .data = theirs,
                                     .dtype = block->dtype,
                                     .ndim = 2,
                                     .extent = { x->held, length },
                                     .stride = { length, 1 } },
                          .global = meta };
    return TS_OK;
}

/* ---- beginning, and the products ------------------------------------------------------------- */

static ts_status begin(exchange *x, const tsi_block *group, const ts_layout *matrices,
                       int64_t groups)
{
    const tsi_algorithm_io *io = x->io;
    x->me = ts_group_index(io->group);
    x->size = ts_group_size(io->group);
    x->rows = tsi_block_count(group);
    size_t rows = (size_t)x->rows + 1, members = (size_t)x->size + 1;
    int64_t *owner = NULL, *own = tsi_arena_alloc(x->arena, rows * sizeof *own);
    int64_t *sending = tsi_arena_alloc(x->arena, rows * sizeof *sending);
    x->order = tsi_arena_alloc(x->arena, rows * sizeof *x->order);
    x->sent = tsi_arena_calloc(x->arena, members, sizeof *x->sent);
    x->came = tsi_arena_calloc(x->arena, members, sizeof *x->came);
    if (!own || !sending || !x->order || !x->sent || !x->came)
        return tsi_fail_memory("the rows of groups", rows * sizeof *own);
    TSI_TRY(read_groups(x, group, groups, own));
    TSI_TRY(tsi_grouped_owners(io, io->group, matrices, x->arena, &owner));
    TSI_TRY(sort_rows(x, own, owner));
    for (int64_t i = 0; i < x->going; i++)
        sending[i] = own[x->order[i]];
    x->group = tsi_arena_alloc(x->arena, (size_t)(x->held + 1) * sizeof *x->group);
    if (!x->group) return tsi_fail_memory("the groups of rows", (size_t)x->held * sizeof(int64_t));
    return pass(x, sending, x->group, sizeof *x->group, false);
}

static tsi_operand groups_here(const exchange *x, ts_meta *meta)
{
    *meta = (ts_meta){ .shape = TS_SHAPE(x->held), .dtype = TS_DTYPE_I64 };
    return (tsi_operand){ .block = { .data = x->group,
                                     .dtype = TS_DTYPE_I64,
                                     .ndim = 1,
                                     .extent = { x->held },
                                     .stride = { 1 } },
                          .global = meta };
}

/* The matrices here, with the groups they are of. */
static ts_status matrices_here(const exchange *x, const tsi_block *block, const ts_meta *meta,
                               const ts_layout *layout, tsi_operand *out)
{
    tsi_region *region = tsi_arena_alloc(x->arena, sizeof *region);
    if (!region || !tsi_layout_region(layout, x->io->mesh->coord, x->arena, region))
        return tsi_fail_memory("a region", sizeof *region);
    *out = (tsi_operand){ *block, meta, region, NULL };
    return TS_OK;
}

/* The operator's own kernel, on the rows that are here now. */
static ts_status multiply(const exchange *x, const tsi_operand *in, const tsi_operand *out)
{
    const tsi_device *host = tsi_device_host();
    tsi_kernel_io kernel = { .op = x->io->op,
                             .attributes = x->io->attributes,
                             .in = in,
                             .out = out,
                             .input_count = 3,
                             .output_count = 1,
                             .rank = x->io->rank,
                             .device = host };
    return tsi_kernel_run(tsi_kernel_of(host, x->io->op), &kernel);
}

/* ---- the products ---------------------------------------------------------------------------- */

static ts_status linear_on_host(const tsi_algorithm_io *io, const tsi_block *block,
                                tsi_arena *arena)
{
    exchange x = { .io = io, .arena = arena };
    const ts_meta *weight = &io->call->in[1];
    TSI_TRY(begin(&x, &block[2], io->in[1]->layout, weight->shape.extent[0]));
    tsi_operand in[3], out;
    ts_meta x_meta, group_meta, y_meta;
    TSI_TRY(bring(&x, &block[0], &x_meta, &in[0]));
    TSI_TRY(matrices_here(&x, &block[1], weight, io->in[1]->layout, &in[1]));
    in[2] = groups_here(&x, &group_meta);
    int64_t width = block[1].extent[1], row_bytes = row_bytes_of(&block[3]);
    char *made = NULL, *back = NULL;
    TSI_TRY(buffer(&x, x.held, row_bytes, &made));
    TSI_TRY(buffer(&x, x.going, row_bytes, &back));
    y_meta = (ts_meta){ .shape = TS_SHAPE(x.held, width), .dtype = block[3].dtype };
    out = (tsi_operand){ .block = { .data = made,
                                    .dtype = block[3].dtype,
                                    .ndim = 2,
                                    .extent = { x.held, width },
                                    .stride = { width, 1 } },
                         .global = &y_meta };
    if (x.held > 0) TSI_TRY(multiply(&x, in, &out));
    const unsigned char zero[16] = { 0 };
    const tsi_device *host = tsi_device_host();
    if (x.going < x.rows) TSI_TRY(host->fill(host, &block[3], zero, NULL));
    TSI_TRY(pass(&x, made, back, row_bytes, true));
    pack(&x, &block[3], back, true);
    return TS_OK;
}

static ts_status linear_exchange(const tsi_algorithm_io *io)
{
    return tsi_algorithm_on_host(io, linear_on_host);
}

/* Rows that go evenly to all n, and as many results. */
static int64_t linear_bytes(const tsi_op_call *call, int64_t n)
{
    int64_t there = tsi_algorithm_share(tsi_algorithm_bytes(&call->in[0], 1) / n, n);
    int64_t groups = tsi_algorithm_share(tsi_algorithm_bytes(&call->in[2], 1) / n, n);
    return there + groups + tsi_algorithm_share(tsi_algorithm_bytes(&call->out[0], 1) / n, n);
}

const tsi_algorithm tsi_grouped_linear_exchange[] = { { "rows", linear_exchange, linear_bytes },
                                                      { 0 } };

/* ---- the gradient of the matrices ------------------------------------------------------------ */

static ts_status backward_on_host(const tsi_algorithm_io *io, const tsi_block *block,
                                  tsi_arena *arena)
{
    exchange x = { .io = io, .arena = arena };
    const ts_meta *weight = &io->call->out[0];
    const tsi_block *sums = &block[io->input_count];
    TSI_TRY(begin(&x, &block[2], io->out_layout[0], weight->shape.extent[0]));
    tsi_operand in[3], out;
    ts_meta dy_meta, x_meta, group_meta;
    TSI_TRY(bring(&x, &block[0], &dy_meta, &in[0]));
    TSI_TRY(bring(&x, &block[1], &x_meta, &in[1]));
    in[2] = groups_here(&x, &group_meta);
    TSI_TRY(matrices_here(&x, sums, weight, io->out_layout[0], &out));
    return tsi_block_count(sums) > 0 ? multiply(&x, in, &out) : TS_OK;
}

static ts_status backward_exchange(const tsi_algorithm_io *io)
{
    return tsi_algorithm_on_host(io, backward_on_host);
}

static int64_t backward_bytes(const tsi_op_call *call, int64_t n)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < 3; i++)
        bytes += tsi_algorithm_share(tsi_algorithm_bytes(&call->in[i], 1) / n, n);
    return bytes;
}

const tsi_algorithm tsi_grouped_backward_exchange[] = {
    { "rows", backward_exchange, backward_bytes }, { 0 }
};
