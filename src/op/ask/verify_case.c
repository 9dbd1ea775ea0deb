/* SPDX-License-Identifier: Apache-2.0 */
/* verify_case.c - one choice of layouts tried: localise, run the reference on every block, put the
 * results together as the choice says, compare.
 *
 * Blocks lie in the middle of buffers three times the whole tensor, so that a kernel which takes a
 * block for more than it is reads and writes garbage, but inside our memory. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "op/ask/verify.h"
#include "op/core/kernel.h"

enum { GARBAGE = 0x43, STREAM = 42 };

/* ---- blocks ---------------------------------------------------------------------------------- */

static bool block_make(tsi_arena *arena, const ts_meta *global, const ts_shape *local,
                       tsi_block *out)
{
    size_t item = ts_dtype_size((ts_dtype)global->dtype);
    size_t count = (size_t)ts_shape_count(&global->shape) + 8;
    char *data = tsi_arena_alloc(arena, 3 * count * item);
    if (!data) return false;
    memset(data, global->dtype == TS_DTYPE_BOOL ? 1 : GARBAGE, 3 * count * item);
    *out = (tsi_block){ .data = data + count * item, .dtype = global->dtype, .ndim = local->ndim };
    int64_t stride = 1;
    for (int32_t d = local->ndim - 1; d >= 0; d--) {
        out->extent[d] = local->extent[d];
        out->stride[d] = stride;
        stride *= local->extent[d] ? local->extent[d] : 1;
    }
    return true;
}

static tsi_numbers numbers_of(const tsi_verify_call *call, int32_t input, int32_t pattern)
{
    tsi_numbers n = { .meta = call->in[input], .pattern = pattern, .operand = input };
    for (int32_t i = 0; i < call->input_count; i++)
        if (tsi_dtype_category((ts_dtype)call->in[i].dtype) >= TSI_CATEGORY_REAL)
            n.limit = call->limit;
    return n;
}

static ts_status run_reference(tsi_verify_call *call, const tsi_operand *in, const tsi_operand *out)
{
    tsi_kernel_io io = { .op = call->op,
                         .attributes = call->attributes,
                         .in = in,
                         .out = out,
                         .input_count = call->input_count,
                         .output_count = call->op->output_count,
                         .rank = call->world->rank[0],
                         .device = tsi_device_host(),
                         .stream = STREAM };
    return tsi_kernel_run(NULL, &io);
}

/* ---- the truth ------------------------------------------------------------------------------- */

static bool whole_blocks(tsi_verify_call *call, int32_t pattern, tsi_operand *in, tsi_operand *out)
{
    for (int32_t i = 0; i < call->input_count; i++) {
        in[i] = (tsi_operand){ .global = &call->in[i] };
        if (call->in[i].dtype == TS_DTYPE_NONE) continue;
        if (!block_make(&call->scratch, &call->in[i], &call->in[i].shape, &in[i].block))
            return false;
        tsi_numbers n = numbers_of(call, i, pattern);
        size_t item = ts_dtype_size((ts_dtype)call->in[i].dtype);
        for (int64_t e = 0; e < tsi_block_count(&in[i].block); e++)
            tsi_number_store((ts_dtype)call->in[i].dtype,
                             (char *)in[i].block.data + (size_t)e * item, tsi_numbers_at(&n, e));
    }
    for (int32_t o = 0; o < call->op->output_count; o++) {
        out[o] = (tsi_operand){ .global = &call->out[o] };
        if (!block_make(&call->scratch, &call->out[o], &call->out[o].shape, &out[o].block))
            return false;
    }
    return true;
}

static bool keep_truth(tsi_verify_call *call, int32_t pattern, const tsi_operand *out)
{
    for (int32_t o = 0; o < call->op->output_count; o++) {
        ts_dtype dtype = (ts_dtype)call->out[o].dtype;
        int64_t count = tsi_block_count(&out[o].block);
        double complex *truth = tsi_arena_calloc(&call->memory, (size_t)count + 1, sizeof *truth);
        if (!truth) return false;
        for (int64_t e = 0; e < count; e++) {
            truth[e] = tsi_number_load(dtype, (char *)out[o].block.data +
                                                  (size_t)e * ts_dtype_size(dtype));
            double size = cabs(truth[e]);
            if (isfinite(size) && size > call->scale[pattern][o]) call->scale[pattern][o] = size;
        }
        call->truth[pattern][o] = truth;
    }
    return true;
}

/* Runs one pattern whole; false: the operator refuses these numbers. */
static bool truth_of(tsi_verify_call *call, int32_t pattern)
{
    tsi_operand in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    tsi_arena_reset(&call->scratch);
    return whole_blocks(call, pattern, in, out) && run_reference(call, in, out) == TS_OK &&
           keep_truth(call, pattern, out);
}

/* The next smaller extent of an input: indices must lie below what they index. */
static int64_t limit_below(const tsi_verify_call *call, int64_t below)
{
    int64_t best = 1;
    for (int32_t i = 0; i < call->input_count; i++)
        for (int32_t d = 0; d < call->in[i].shape.ndim; d++)
            if (call->in[i].shape.extent[d] < below && call->in[i].shape.extent[d] > best)
                best = call->in[i].shape.extent[d];
    return best;
}

bool tsi_verify_begin(tsi_verify_call *call)
{
    const tsi_op_desc *op = call->op;
    memcpy(call->attributes, call->given, sizeof call->attributes);
    if (op->dtypes && !(op->dtypes >> call->in[0].dtype & 1)) return false;
    if (op->normalise && op->normalise(op, call->in, call->input_count, call->attributes) != TS_OK)
        return false;
    tsi_op_call c = {
        op, call->attributes, call->in, call->out, call->input_count, op->output_count
    };
    if (op->infer(&c) != TS_OK) return false;
    call->limit = limit_below(call, INT64_MAX);
    while (!truth_of(call, 0) && call->limit > 1)
        call->limit = limit_below(call, call->limit);
    for (int32_t p = 1; p < TSI_PATTERNS; p++)
        (void)truth_of(call, p);
    return call->truth[0][0] != NULL;
}

void tsi_verify_end(tsi_verify_call *call)
{
    tsi_arena_release(&call->memory);
    tsi_arena_release(&call->scratch);
    memset(call->truth, 0, sizeof call->truth);
    memset(call->scale, 0, sizeof call->scale);
}

/* ---- one coordinate -------------------------------------------------------------------------- */

static bool local_operand(tsi_verify_call *call, const ts_layout *layout, const int64_t *coord,
                          const ts_meta *global, tsi_operand *out)
{
    ts_shape local = ts_layout_local(layout, coord);
    *out = (tsi_operand){ .global = global };
    if (!block_make(&call->scratch, global, &local, &out->block)) return false;
    if (!layout->axes_cut) return true;
    tsi_region *region = tsi_arena_alloc(&call->scratch, sizeof *region);
    out->region = region;
    return region && tsi_layout_region(layout, coord, &call->scratch, region);
}

static bool run_at(tsi_verify_call *call, const tsi_verify_choice *choice, const int64_t *coord,
                   int32_t pattern, tsi_operand *out)
{
    tsi_operand in[TSI_INPUT_MAX];
    for (int32_t i = 0; i < call->input_count; i++) {
        in[i] = (tsi_operand){ .global = &call->in[i] };
        if (!choice->in[i]) continue;
        if (!local_operand(call, choice->in[i], coord, &call->in[i], &in[i])) return false;
        tsi_numbers n = numbers_of(call, i, pattern);
        if (!tsi_numbers_fill(&n, choice->in[i], coord, &call->scratch, &in[i].block)) return false;
    }
    for (int32_t o = 0; o < call->op->output_count; o++)
        if (!local_operand(call, choice->out[o], coord, &call->out[o], &out[o])) return false;
    return run_reference(call, in, out) == TS_OK;
}

/* ---- putting together ------------------------------------------------------------------------ */

typedef struct pile { /* of one output: values by replica and element */
    double complex *value;
    unsigned char *seen;
    int64_t count, replicas;
    double divisor; /* of averages of integers, which are divided at the end */
} pile;

static bool sum_make(tsi_verify_call *call, const ts_layout *layout, int32_t output, pile *out)
{
    out->count = ts_shape_count(&call->out[output].shape);
    out->replicas = 1;
    out->divisor = 1;
    bool whole = tsi_dtype_category((ts_dtype)call->out[output].dtype) == TSI_CATEGORY_INT;
    for (int32_t k = 0; k < layout->sharding->ndim; k++) {
        const ts_placement *place = &layout->sharding->place[k];
        if (tsi_role_of(place) == TSI_ROLE_R) out->replicas *= layout->sharding->mesh->size[k];
        if (whole && tsi_role_of(place) == TSI_P(TS_REDUCE_AVG))
            out->divisor *= (double)layout->sharding->mesh->size[k];
    }
    size_t all = (size_t)(out->count * out->replicas) + 1;
    out->value = tsi_arena_calloc(&call->scratch, all, sizeof *out->value);
    out->seen = tsi_arena_calloc(&call->scratch, all, 1);
    return out->value && out->seen;
}

static double complex combine(ts_reduce reduce, double complex a, double complex b)
{
    double x = creal(a), y = creal(b);
    switch (reduce) {
    case TS_REDUCE_SUM:
    case TS_REDUCE_AVG:
        return a + b;
    case TS_REDUCE_MIN:
        return isnan(x) || x < y ? a : b;
    case TS_REDUCE_MAX:
        return isnan(x) || x > y ? a : b;
    case TS_REDUCE_PROD:
        return a * b;
    case TS_REDUCE_AND:
        return x != 0 && y != 0;
    case TS_REDUCE_OR:
        return x != 0 || y != 0;
    case TS_REDUCE_NONE:
    case TS_REDUCE_BAND:
    case TS_REDUCE_BOR:
    case TS_REDUCE_COUNT:
        break;
    }
    return a;
}

static double complex combine_norms(double p, double complex a, double complex b)
{
    return pow(pow(cabs(a), p) + pow(cabs(b), p), 1.0 / p);
}

/* Adds one coordinate's block to the sums of an output. */
static bool add_block(tsi_verify_call *call, const ts_layout *layout, const int64_t *coord,
                      const tsi_block *block, pile *p)
{
    const ts_sharding *s = layout->sharding;
    ts_reduce reduce = TS_REDUCE_NONE;
    double share = 1, norm = 0;
    int64_t replica = 0;
    for (int32_t k = 0; k < s->ndim; k++) {
        if (s->place[k].kind == TS_PLACE_NORM) norm = s->place[k].norm;
        tsi_role role = tsi_role_of(&s->place[k]);
        if (role == TSI_ROLE_R) replica = replica * s->mesh->size[k] + coord[k];
        if (!tsi_role_is_p(role)) continue;
        reduce = tsi_role_reduce(role);
        if (reduce == TS_REDUCE_AVG) share /= (double)s->mesh->size[k];
    }
    if (p->divisor > 1) share = 1;
    tsi_region region;
    if (!tsi_layout_region(layout, coord, &call->scratch, &region)) return false;
    ts_shape view = tsi_layout_view(layout);
    tsi_region_iterator at;
    tsi_region_iterate(&at, &region, &view);
    size_t item = ts_dtype_size((ts_dtype)block->dtype);
    while (tsi_region_next(&at))
        for (int64_t i = 0; i < at.length; i++) {
            int64_t e = replica * p->count + at.global + i;
            double complex x =
                share * tsi_number_load((ts_dtype)block->dtype,
                                        (char *)block->data + (size_t)(at.local + i) * item);
            if (p->seen[e])
                x = norm != 0 ? combine_norms(norm, p->value[e], x)
                              : combine(reduce, p->value[e], x);
            p->value[e] = x;
            p->seen[e] = 1;
        }
    return true;
}

/* Integers are divided once, truncated, and wrap. */
static double complex finished(double complex value, double divisor, ts_dtype dtype)
{
    unsigned char element[16] = { 0 };
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_INT || cabs(value) > 0x1p52) return value;
    tsi_number_store(dtype, element, trunc(creal(value) / divisor));
    return tsi_number_load(dtype, element);
}

static bool compare(const tsi_verify_call *call, int32_t pattern, int32_t output, const pile *p,
                    bool pending, char *why, size_t size)
{
    ts_dtype dtype = (ts_dtype)call->out[output].dtype;
    TSI_ASSERT(call->truth[pattern][output]); /* of patterns that the operator takes */
    for (int64_t e = 0; e < p->count * p->replicas; e++) {
        double complex want = call->truth[pattern][output][e % p->count],
                       have = finished(p->value[e], p->divisor, dtype);
        bool wraps = tsi_dtype_category(dtype) == TSI_CATEGORY_INT && cabs(want) > 0x1p52;
        bool outside = isnan(creal(want)) || (pending && !isfinite(cabs(want))) || wraps ||
                       (tsi_dtype_category(dtype) == TSI_CATEGORY_INT && cabs(have) > 0x1p52);
        if (p->seen[e] &&
            (outside || tsi_number_close(have, want, dtype, call->scale[pattern][output])))
            continue;
        snprintf(why, size, "pattern %d, output %d, element %lld: %g%+gi instead of %g%+gi",
                 pattern, output, (long long)(e % p->count), creal(have), cimag(have), creal(want),
                 cimag(want));
        return false;
    }
    return true;
}

bool tsi_verify_try(tsi_verify_call *call, const tsi_verify_choice *choice, int32_t pattern,
                    uint32_t outputs, char *why, size_t size)
{
    pile sums[TSI_OUTPUT_MAX];
    int64_t coord[TS_NDIM_MAX];
    if (!call->truth[pattern][0]) return true;
    tsi_arena_reset(&call->scratch);
    snprintf(why, size, "the kernel refuses it");
    for (int32_t o = 0; o < call->op->output_count; o++)
        if (!sum_make(call, choice->out[o], o, &sums[o])) return false;
    for (int64_t r = 0; r < choice->mesh->count; r++) {
        tsi_operand out[TSI_OUTPUT_MAX];
        tsi_mesh_desc_unravel(choice->mesh, r, coord);
        if (!run_at(call, choice, coord, pattern, out)) return false;
        for (int32_t o = 0; o < call->op->output_count; o++)
            if (!add_block(call, choice->out[o], coord, &out[o].block, &sums[o])) return false;
    }
    for (int32_t o = 0; o < call->op->output_count; o++)
        if (outputs >> o & 1 &&
            !compare(call, pattern, o, &sums[o], choice->out[o]->axes_partial != 0, why, size))
            return false;
    return true;
}

/* ---- choices --------------------------------------------------------------------------------- */

bool tsi_verify_fits(tsi_verify_call *call, const tsi_verify_choice *choice)
{
    ts_meta in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    int64_t coord[TS_NDIM_MAX];
    for (int64_t r = 0; r < choice->mesh->count; r++) {
        uint64_t attributes[128];
        memcpy(attributes, call->given, sizeof attributes);
        tsi_mesh_desc_unravel(choice->mesh, r, coord);
        for (int32_t i = 0; i < call->input_count; i++) {
            in[i] = call->in[i];
            if (choice->in[i]) in[i].shape = ts_layout_local(choice->in[i], coord);
        }
        if (call->op->normalise &&
            call->op->normalise(call->op, in, call->input_count, attributes) != TS_OK)
            return false;
        tsi_op_call c = {
            call->op, attributes, in, out, call->input_count, call->op->output_count
        };
        if (call->op->infer(&c) != TS_OK) return false;
        for (int32_t o = 0; o < call->op->output_count; o++) {
            ts_shape local = ts_layout_local(choice->out[o], coord);
            if (!tsi_shape_same(&out[o].shape, &local)) return false;
        }
    }
    return true;
}

static const ts_layout *layout_of(tsi_mesh_desc *mesh, tsi_role role, const ts_meta *meta)
{
    ts_placement place[TS_NDIM_MAX] = { { .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 } };
    if (tsi_role_is_p(role)) {
        place[0].kind = TS_PLACE_PARTIAL;
        place[0].reduce = (int32_t)tsi_role_reduce(role);
    } else if (tsi_role_is_s(role)) {
        place[0].kind = TS_PLACE_SHARD;
        place[0].dim = place[0].dim_last = tsi_role_dim(role);
        if (place[0].dim >= meta->shape.ndim) return NULL;
    }
    const ts_sharding *sharding = tsi_sharding_intern(mesh, place);
    const ts_layout *layout = sharding ? tsi_layout_intern(sharding, &meta->shape) : NULL;
    ts_sharding_release(sharding);
    return layout;
}

bool tsi_verify_choose(const tsi_verify_call *call, tsi_mesh_desc *mesh, const tsi_role *role,
                       tsi_verify_choice *choice)
{
    *choice = (tsi_verify_choice){ .mesh = mesh };
    bool good = true;
    for (int32_t i = 0; i < call->input_count && good; i++) {
        if (call->in[i].dtype == TS_DTYPE_NONE) continue;
        choice->in[i] = layout_of(mesh, role[i], &call->in[i]);
        good = choice->in[i] != NULL;
    }
    for (int32_t o = 0; o < call->op->output_count && good; o++) {
        choice->out[o] = layout_of(mesh, role[call->input_count + o], &call->out[o]);
        good = choice->out[o] != NULL;
    }
    if (!good) tsi_verify_unchoose(choice);
    return good;
}

void tsi_verify_unchoose(tsi_verify_choice *choice)
{
    for (int32_t i = 0; i < TSI_INPUT_MAX; i++)
        ts_layout_release(choice->in[i]);
    for (int32_t o = 0; o < TSI_OUTPUT_MAX; o++)
        ts_layout_release(choice->out[o]);
    memset(choice, 0, sizeof *choice);
}
