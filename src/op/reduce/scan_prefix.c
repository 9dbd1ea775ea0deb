/* SPDX-License-Identifier: Apache-2.0 */
/* scan_prefix.c - a scan along a cut dim: every rank scans its own part; what the ranks before it
 * come to is carried in.
 *
 *   totals of each line --all_gather--> carry = fold of the totals of the ranks before --> scan
 *
 * Totals travel in the widest type, so the result is rounded once, as on one rank. The elements
 * stay where they are. */
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "op/core/algorithm.h"
#include "op/reduce/scan.h"
#include "tessera/comm.h"

typedef struct prefix {
    const tsi_algorithm_io *io;
    const tsi_scan_kind *kind;
    tsi_category category;
    int64_t me, size, lines;
    int64_t *begin, *length; /* of every member's part of the dim */
    tsi_scan_value *total;   /* of this rank, then carried in */
    unsigned char *mine, *all;
    int64_t *mine_at, *all_at;
    tsi_arena *arena;
} prefix;

static ts_dtype wide_dtype(tsi_category category)
{
    if (category == TSI_CATEGORY_COMPLEX) return TS_DTYPE_C128;
    return category == TSI_CATEGORY_REAL ? TS_DTYPE_F64 : TS_DTYPE_I64;
}

static const void *wide_of(tsi_category category, const tsi_scan_value *value)
{
    if (category == TSI_CATEGORY_COMPLEX) return &value->both;
    return category == TSI_CATEGORY_REAL ? (const void *)&value->real : (const void *)&value->whole;
}

static void set_wide(tsi_category category, tsi_scan_value *value, const void *from)
{
    if (category == TSI_CATEGORY_COMPLEX)
        memcpy(&value->both, from, sizeof value->both);
    else if (category == TSI_CATEGORY_REAL)
        memcpy(&value->real, from, sizeof value->real);
    else
        memcpy(&value->whole, from, sizeof value->whole);
}

/* ---- who is where ---------------------------------------------------------------------------- */

static ts_status find_parts(prefix *p)
{
    const tsi_scan_attributes *a = p->io->attributes;
    for (int64_t j = 0; j < p->size; j++) {
        int64_t coord[TS_NDIM_MAX];
        tsi_span_list list;
        if (!tsi_mesh_desc_coord(p->io->mesh->desc, ts_group_rank(p->io->group, j), coord) ||
            !tsi_layout_region_dim(p->io->in[0]->layout, coord, (int32_t)a->dim, p->arena, &list))
            return tsi_fail_memory("the parts of a scan", 0);
        p->begin[j] = list.span_count ? tsi_spans(&list)[0].begin : 0;
        p->length[j] = list.total;
    }
    return TS_OK;
}

/* The next member with elements in scanning order after `begin` (any: `started` false), or -1. */
static int64_t next_part(const prefix *p, bool started, int64_t begin, bool reverse)
{
    int64_t found = -1;
    for (int64_t j = 0; j < p->size; j++) {
        if (p->length[j] == 0) continue;
        if (started && (reverse ? p->begin[j] >= begin : p->begin[j] <= begin)) continue;
        if (found < 0 || (reverse ? p->begin[j] > p->begin[found] : p->begin[j] < p->begin[found]))
            found = j;
    }
    return found;
}

/* ---- totals ---------------------------------------------------------------------------------- */

static ts_status gather_totals(prefix *p)
{
    size_t size = ts_dtype_size(wide_dtype(p->category));
    for (int64_t l = 0; l < p->lines; l++) {
        memcpy(p->mine + (size_t)l * size, wide_of(p->category, &p->total[l]), size);
        p->mine_at[l] = p->total[l].at;
    }
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = p->io->op->name;
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    in.data = p->mine;
    in.meta = (ts_meta){ .shape = TS_SHAPE(p->lines), .dtype = (int32_t)wide_dtype(p->category) };
    out.data = p->all;
    out.meta = in.meta;
    out.meta.shape.extent[0] *= p->size;
    TSI_TRY((ts_group_all_gather)(p->io->group, &in, &out, &options));
    if (!p->kind->extreme) return TS_OK;
    in.data = p->mine_at;
    out.data = p->all_at;
    in.meta.dtype = out.meta.dtype = TS_DTYPE_I64;
    return (ts_group_all_gather)(p->io->group, &in, &out, &options);
}

/* The totals of all members before this one, folded in scanning order. */
static void fold_totals(prefix *p, bool reverse)
{
    size_t size = ts_dtype_size(wide_dtype(p->category));
    for (int64_t l = 0; l < p->lines; l++)
        p->total[l] = p->kind->identity;
    int64_t j = next_part(p, false, 0, reverse);
    for (; j >= 0 && j != p->me; j = next_part(p, true, p->begin[j], reverse))
        for (int64_t l = 0; l < p->lines; l++) {
            tsi_scan_value next = p->kind->identity;
            set_wide(p->category, &next, p->all + (size_t)(j * p->lines + l) * size);
            if (p->kind->extreme) next.at = p->all_at[j * p->lines + l];
            p->kind->step(p->category, &p->total[l], &next);
        }
}

/* ---- the algorithm --------------------------------------------------------------------------- */

static ts_status prefix_memory(prefix *p)
{
    size_t lines = (size_t)p->lines, n = (size_t)p->size;
    size_t size = ts_dtype_size(wide_dtype(p->category));
    p->begin = tsi_arena_calloc(p->arena, n, sizeof *p->begin);
    p->length = tsi_arena_calloc(p->arena, n, sizeof *p->length);
    p->total = tsi_arena_calloc(p->arena, lines + 1, sizeof *p->total);
    p->mine = tsi_arena_calloc(p->arena, lines + 1, size);
    p->mine_at = tsi_arena_calloc(p->arena, lines + 1, sizeof *p->mine_at);
    p->all = tsi_arena_calloc(p->arena, lines * n + 1, size);
    p->all_at = tsi_arena_calloc(p->arena, lines * n + 1, sizeof *p->all_at);
    if (p->begin && p->length && p->total && p->mine && p->mine_at && p->all && p->all_at)
        return TS_OK;
    return tsi_fail_memory("the totals of a scan", lines * n * size);
}

static ts_status prefix_run(prefix *p, const tsi_block *block)
{
    const tsi_scan_attributes *a = p->io->attributes;
    p->lines = tsi_scan_lines(&block[0], (int32_t)a->dim);
    TSI_TRY(prefix_memory(p));
    TSI_TRY(find_parts(p));
    tsi_scan_job job = { .kind = p->kind,
                         .dim = (int32_t)a->dim,
                         .reverse = a->reverse,
                         .offset = p->begin[p->me],
                         .in = &block[0],
                         .total = p->total };
    tsi_scan_run(&job);
    TSI_TRY(gather_totals(p));
    fold_totals(p, a->reverse);
    job.carry = p->total;
    job.total = NULL;
    job.out = &block[1];
    if (p->kind->extreme) job.index = &block[2];
    tsi_scan_run(&job);
    return TS_OK;
}

static ts_status prefix_on_host(const tsi_algorithm_io *io, const tsi_block *block,
                                tsi_arena *arena)
{
    prefix p = { .io = io, .kind = io->op->family, .arena = arena };
    p.category = tsi_dtype_category((ts_dtype)io->call->out[0].dtype);
    p.me = ts_group_index(io->group);
    p.size = ts_group_size(io->group);
    return prefix_run(&p, block);
}

static ts_status scan_prefix(const tsi_algorithm_io *io)
{
    return tsi_algorithm_on_host(io, prefix_on_host);
}

static int64_t prefix_bytes(const tsi_op_call *call, int64_t n)
{
    const tsi_scan_attributes *a = call->attributes;
    ts_shape rest = tsi_shape_reduce(&call->in[0].shape, 1u << a->dim, true);
    int64_t lines = ts_shape_count(&rest);
    tsi_category category = tsi_dtype_category((ts_dtype)call->out[0].dtype);
    size_t each = ts_dtype_size(wide_dtype(category)) + (call->output_count > 1 ? 8u : 0u);
    return tsi_mul_most(tsi_mul_most(lines, n - 1), (int64_t)each);
}

const tsi_algorithm tsi_scan_prefix[] = { { "prefix", scan_prefix, prefix_bytes }, { 0 } };
