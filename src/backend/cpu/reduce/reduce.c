/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c - sum, mean, prod, amax, amin, any, all, powers, norms and sum_to as reductions
 * (reduction.h) over rows or columns. */
#include "op/reduce/reduce.h"

#include <math.h>

#include "backend/cpu/reduce/reduce.h"
#include "base/compiler.h"

/* ---- dims ------------------------------------------------------------------------------------ */

static void add_dim(tsi_reduce_dims *to, int64_t extent, int64_t in, int64_t out)
{
    if (extent == 1) return;
    int32_t at = to->ndim++;
    while (at > 0 && to->in[at - 1] < in) { /* sorted by the input's strides */
        to->extent[at] = to->extent[at - 1];
        to->in[at] = to->in[at - 1];
        to->out[at] = to->out[at - 1];
        at--;
    }
    to->extent[at] = extent;
    to->in[at] = in;
    to->out[at] = out;
}

static void merge(tsi_reduce_dims *x)
{
    int32_t last = 0;
    for (int32_t d = 1; d < x->ndim; d++) {
        bool follows =
            x->in[last] == x->in[d] * x->extent[d] && x->out[last] == x->out[d] * x->extent[d];
        int64_t extent = follows ? x->extent[last] * x->extent[d] : x->extent[d];
        if (!follows) last++;
        x->extent[last] = extent;
        x->in[last] = x->in[d];
        x->out[last] = x->out[d];
    }
    if (x->ndim > 0) x->ndim = last + 1;
    x->count = 1;
    for (int32_t d = 0; d < x->ndim; d++)
        x->count *= x->extent[d];
}

/* Takes the row or column out of the dims it ends. */
static void take_last(tsi_reduction *r)
{
    tsi_reduce_dims *from = r->columns ? &r->kept : &r->gone;
    r->length = 1;
    r->in_stride = r->out_stride = 0;
    if (from->ndim == 0) return;
    int32_t d = --from->ndim;
    r->length = from->extent[d];
    r->in_stride = from->in[d];
    r->out_stride = from->out[d];
    from->count /= r->length;
}

void tsi_reduce_offsets(const tsi_reduce_dims *x, int64_t index, int64_t *in, int64_t *out)
{
    if (x->ndim == 1) { /* no division */
        *in += index * x->in[0];
        *out += index * x->out[0];
        return;
    }
    for (int32_t d = x->ndim - 1; d >= 0; d--) {
        int64_t at = index % x->extent[d];
        index /= x->extent[d];
        *in += at * x->in[d];
        *out += at * x->out[d];
    }
}

/* ---- folds ----------------------------------------------------------------------------------- */

double tsi_fold_two(tsi_fold fold, double a, double b)
{
    switch (fold) {
    case TSI_BY_SUM:
    case TSI_BY_SQUARES:
    case TSI_BY_COUNT:
        break;
    case TSI_BY_PROD:
        return a * b;
    case TSI_BY_MAX:
        return a > b || isnan(a) ? a : b;
    case TSI_BY_MIN:
        return a < b || isnan(a) ? a : b;
    }
    return a + b;
}

int64_t tsi_fold_two_i64(tsi_fold fold, int64_t a, int64_t b)
{
    switch (fold) {
    case TSI_BY_SUM:
    case TSI_BY_SQUARES:
    case TSI_BY_COUNT:
        break;
    case TSI_BY_PROD:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case TSI_BY_MAX:
        return a > b ? a : b;
    case TSI_BY_MIN:
        return a < b ? a : b;
    }
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

double tsi_reduce_finish(const tsi_reduction *r, double total)
{
    if (r->divide != 1.0) total /= r->divide;
    if (r->root == 0.0 || r->root == 1.0) return total;
    return r->root == 2.0 ? sqrt(total) : pow(total, 1.0 / r->root);
}

static void map_all(const tsi_reduction *r, double *x, int64_t count)
{
    if (r->map == TSI_MAP_NONZERO)
        for (int64_t i = 0; i < count; i++)
            x[i] = x[i] != 0.0;
    else if (r->power == 1.0)
        for (int64_t i = 0; i < count; i++)
            x[i] = fabs(x[i]);
    else if (r->power == 2.0)
        for (int64_t i = 0; i < count; i++)
            x[i] *= x[i];
    else
        for (int64_t i = 0; i < count; i++)
            x[i] = pow(fabs(x[i]), r->power);
}

const void *tsi_reduce_take(const tsi_reduction *r, const char *from, int64_t count, void *tile)
{
    if (r->map == TSI_MAP_NONE && r->in_dtype == r->compute &&
        r->in_stride == (int64_t)ts_dtype_size(r->compute))
        return from;
    tsi_gather(r->compute, tile, r->in_dtype, from, r->in_stride, count);
    if (r->map != TSI_MAP_NONE) map_all(r, tile, count);
    return tile;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* What of a reduction is not its blocks. */
typedef struct way {
    tsi_fold fold;
    bool mean;
    tsi_reduce_map map;
    double power, root;
} way;

/* out_dim[d]: the result's dim of input dim d, or -1: it is reduced. */
static ts_status reduce(const tsi_kernel_io *io, const int32_t *out_dim, const way *w,
                        double divide)
{
    const tsi_block *in = &io->in[0].block, *out = &io->out[0].block;
    tsi_category category = tsi_dtype_category((ts_dtype)in->dtype);
    if (category == TSI_CATEGORY_COMPLEX || tsi_block_count(in) == 0)
        return (ts_status)TSI_KERNEL_DECLINED;
    tsi_reduction r = { .in = in->data, .out = out->data, .set = tsi_rows(), .fold = w->fold };
    r.in_dtype = (ts_dtype)in->dtype;
    r.out_dtype = (ts_dtype)out->dtype;
    r.compute = w->map != TSI_MAP_NONE || r.in_dtype == TS_DTYPE_F64 ? TS_DTYPE_F64
                : category <= TSI_CATEGORY_INT                       ? TS_DTYPE_I64
                                                                     : TS_DTYPE_F32;
    r.map = w->map;
    r.power = w->power;
    r.divide = divide;
    r.root = w->root;
    r.start = r.set->fold_f64[w->fold](NULL, 0);
    r.start_i64 = r.set->fold_i64[w->fold](NULL, 0);
    int64_t in_size = (int64_t)ts_dtype_size(r.in_dtype);
    int64_t out_size = (int64_t)ts_dtype_size(r.out_dtype);
    for (int32_t d = 0; d < in->ndim; d++) {
        if (out_dim[d] < 0)
            add_dim(&r.gone, in->extent[d], in->stride[d] * in_size, 0);
        else
            add_dim(&r.kept, in->extent[d], in->stride[d] * in_size,
                    out->stride[out_dim[d]] * out_size);
    }
    merge(&r.kept);
    merge(&r.gone);
    r.columns = r.kept.ndim > 0 &&
                (r.gone.ndim == 0 || r.kept.in[r.kept.ndim - 1] < r.gone.in[r.gone.ndim - 1]);
    take_last(&r);
    return r.columns ? tsi_reduce_columns(&r, io->rank) : tsi_reduce_rows(&r, io->rank);
}

/* Which dims go, by the mask of the attributes. */
static ts_status by_attributes(const tsi_kernel_io *io, way w)
{
    const tsi_reduce_attributes *a = io->attributes;
    uint32_t mask = tsi_reduce_mask(a);
    int32_t out_dim[TS_NDIM_MAX], place = 0;
    double count = 1;
    for (int32_t d = 0; d < io->in[0].block.ndim; d++) {
        bool gone = mask >> d & 1;
        out_dim[d] = gone ? -1 : place;
        if (gone) count *= (double)io->in[0].global->shape.extent[d];
        if (!gone || a->keepdim) place++;
    }
    return reduce(io, out_dim, &w, w.mean ? count : 1.0);
}

ts_status tsi_cpu_sum(const tsi_kernel_io *io)
{
    return by_attributes(io, (way){ .fold = TSI_BY_SUM });
}

ts_status tsi_cpu_mean(const tsi_kernel_io *io)
{
    if (tsi_dtype_category((ts_dtype)io->in[0].block.dtype) != TSI_CATEGORY_REAL)
        return (ts_status)TSI_KERNEL_DECLINED;
    return by_attributes(io, (way){ .fold = TSI_BY_SUM, .mean = true });
}

ts_status tsi_cpu_prod(const tsi_kernel_io *io)
{
    return by_attributes(io, (way){ .fold = TSI_BY_PROD });
}

ts_status tsi_cpu_amax(const tsi_kernel_io *io)
{
    return by_attributes(io, (way){ .fold = TSI_BY_MAX });
}

ts_status tsi_cpu_amin(const tsi_kernel_io *io)
{
    return by_attributes(io, (way){ .fold = TSI_BY_MIN });
}

/* Of bool only: 0 and 1, so that one of them is the largest, all of them the smallest. */
static ts_status truth_kernel(const tsi_kernel_io *io, tsi_fold fold)
{
    if (io->in[0].block.dtype != TS_DTYPE_BOOL) return (ts_status)TSI_KERNEL_DECLINED;
    return by_attributes(io, (way){ .fold = fold });
}

ts_status tsi_cpu_any(const tsi_kernel_io *io)
{
    return truth_kernel(io, TSI_BY_MAX);
}

ts_status tsi_cpu_all(const tsi_kernel_io *io)
{
    return truth_kernel(io, TSI_BY_MIN);
}

/* Terms of a norm without its root; of infinite norms the extreme of |x|. */
ts_status tsi_cpu_powsum(const tsi_kernel_io *io)
{
    const tsi_reduce_attributes *a = io->attributes;
    bool real = tsi_dtype_category((ts_dtype)io->in[0].block.dtype) == TSI_CATEGORY_REAL;
    if (!real) return (ts_status)TSI_KERNEL_DECLINED;
    if (isinf(a->p))
        return by_attributes(io, (way){ .fold = a->p > 0 ? TSI_BY_MAX : TSI_BY_MIN,
                                        .map = TSI_MAP_POWER,
                                        .power = 1.0 });
    if (a->p == 2.0) return by_attributes(io, (way){ .fold = TSI_BY_SQUARES });
    tsi_reduce_map map = a->p == 0.0 ? TSI_MAP_NONZERO : TSI_MAP_POWER;
    return by_attributes(io, (way){ .fold = TSI_BY_SUM, .map = map, .power = a->p });
}

/* Whether no total of powers was beyond the numbers of f64, or so small that it has lost digits. */
static bool powers_fit(const tsi_block *norm, double p)
{
    double most = pow(1e290, 1.0 / p);
    tsi_loop loop = tsi_loop_over(norm);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double value = tsi_block_real(norm, loop.at[0]);
        if (value < 1.0 / most || value > most) return false;
    }
    return true;
}

/* The root of plain powers. The reference divides by the largest element first, so that powers do
 * not overflow: those of narrow numbers do not in f64, and of f64 the result tells. */
ts_status tsi_cpu_vector_norm(const tsi_kernel_io *io)
{
    enum { NARROW_MOST = 6 }; /* the power that f64 holds of the smallest f32, and of the largest */
    const tsi_reduce_attributes *a = io->attributes;
    bool wide = io->in[0].block.dtype == TS_DTYPE_F64;
    if (a->p == 0.0 || isinf(a->p)) return tsi_cpu_powsum(io);
    if (tsi_dtype_category((ts_dtype)io->in[0].block.dtype) != TSI_CATEGORY_REAL || a->p < 0 ||
        (!wide && a->p > NARROW_MOST))
        return (ts_status)TSI_KERNEL_DECLINED;
    ts_status status = by_attributes(
        io, (way){ .fold = TSI_BY_SUM, .map = TSI_MAP_POWER, .power = a->p, .root = a->p });
    if (status == TS_OK && wide && !tsi_dry(io->rank) && !powers_fit(&io->out[0].block, a->p))
        return (ts_status)TSI_KERNEL_DECLINED;
    return status;
}

/* Truths are counted as whole numbers. */
ts_status tsi_cpu_count_nonzero(const tsi_kernel_io *io)
{
    bool truths = io->in[0].block.dtype == TS_DTYPE_BOOL;
    return by_attributes(
        io, (way){ .fold = TSI_BY_SUM, .map = truths ? TSI_MAP_NONE : TSI_MAP_NONZERO });
}

/* Integers would wrap where the reference goes through double. */
ts_status tsi_cpu_sum_to(const tsi_kernel_io *io)
{
    if (tsi_dtype_category((ts_dtype)io->in[0].block.dtype) != TSI_CATEGORY_REAL)
        return (ts_status)TSI_KERNEL_DECLINED;
    const ts_shape *in = &io->in[0].global->shape, *out = &io->out[0].global->shape;
    int32_t out_dim[TS_NDIM_MAX];
    for (int32_t d = 0; d < in->ndim; d++) {
        int32_t e = d - (in->ndim - out->ndim);
        out_dim[d] = e < 0 || (out->extent[e] == 1 && in->extent[d] != 1) ? -1 : e;
    }
    return reduce(io, out_dim, &(way){ .fold = TSI_BY_SUM }, 1.0);
}
