/* SPDX-License-Identifier: Apache-2.0 */
/* random.c - random elements made on the device, by global index: the host's bits; and dropout and
 * bernoulli, which go by such draws at once.
 *
 * Runs of a block that is cut along one dim are equal in length and step, so they are one launch;
 * others are one each. */
#include "backend/cuda/dtype.h"
#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "op/pointwise/dropout.h"

/* How many runs from the first on have its length and the step of the first two. */
static int64_t regular(const tsi_random_run *run, int64_t count)
{
    if (count < 2) return count;
    int64_t local = run[1].local - run[0].local, global = run[1].global - run[0].global, n = 1;
    while (n < count && run[n].length == run[0].length &&
           run[n].local - run[n - 1].local == local && run[n].global - run[n - 1].global == global)
        n++;
    return n;
}

static void set_keys(tsi_cuda_random_args *a)
{
    for (int round = 0; round < TSI_PHILOX_ROUNDS; round++)
        for (int word = 0; word < 2; word++)
            a->key[round][word] = tsi_philox_key(a->recipe.seed, round, word);
}

static ts_status launch(tsi_stream *stream, tsi_cuda_random_args *a)
{
    const tsi_random_recipe *r = &a->recipe;
    bool truth = r->kind == TSI_RANDOM_BERNOULLI && r->dtype == TS_DTYPE_BOOL;
    bool unit = r->kind == TSI_RANDOM_UNIFORM && r->unit;
    int64_t items = a->runs * a->length, quads = a->runs * tsi_cuda_quads(a->length);
    if (truth && r->words == 1)
        return tsi_cuda_launch_items(stream, TSI_CUDA_random_truth, quads, a);
    if (unit && r->dtype == TS_DTYPE_F32)
        return tsi_cuda_launch_items(stream, TSI_CUDA_random_unit_f32, quads, a);
    if (unit && r->dtype == TS_DTYPE_BF16)
        return tsi_cuda_launch_items(stream, TSI_CUDA_random_unit_bf16, quads, a);
    return tsi_cuda_launch_items(stream, TSI_CUDA_random_fill, items, a);
}

static ts_status fill_runs(tsi_stream *stream, const tsi_random_recipe *recipe, void *to,
                           const tsi_random_run *run, int64_t count)
{
    for (int64_t at = 0, n = 0; at < count; at += n) {
        n = regular(run + at, count - at);
        const tsi_random_run *first = run + at;
        tsi_cuda_random_args args = { .recipe = *recipe,
                                      .to = to,
                                      .runs = n,
                                      .length = first->length,
                                      .local = first->local,
                                      .global = first->global };
        if (n > 1) {
            args.local_step = first[1].local - first->local;
            args.global_step = first[1].global - first->global;
        }
        set_keys(&args);
        TSI_TRY(launch(stream, &args));
    }
    return TS_OK;
}

ts_status tsi_cuda_random(const tsi_device *device, const tsi_random_recipe *recipe,
                          const tsi_block *to, const tsi_random_run *run, int64_t run_count,
                          tsi_stream *stream)
{
    tsi_cuda *cuda = tsi_cuda_of(device);
    bool side;
    TSI_TRY(tsi_cuda_begin(cuda, &stream, &side));
    ts_status status = fill_runs(stream, recipe, to->data, run, run_count);
    return tsi_cuda_end(cuda, stream, side, status);
}

/* ---- dropout --------------------------------------------------------------------------------- */

/* The runs of a block of which one dim at most is cut, to one interval; false: it is another one.
 */
static bool runs_of(const tsi_operand *place, tsi_cuda_random_args *a)
{
    const tsi_block *x = &place->block;
    const ts_shape *whole = &place->global->shape;
    int32_t cut = 0;
    for (int32_t d = 0; d < x->ndim; d++) {
        if (x->extent[d] == whole->extent[d]) continue;
        if (cut > 0 || !place->region || place->region->dim[d].span_count != 1) return false;
        if (tsi_spans(&place->region->dim[d])[0].count != 1) return false;
        cut = d + 1;
    }
    int32_t dim = cut > 0 ? cut - 1 : 0;
    int64_t inner = 1;
    a->runs = 1;
    for (int32_t d = 0; d < dim; d++)
        a->runs *= x->extent[d];
    for (int32_t d = dim + 1; d < x->ndim; d++)
        inner *= x->extent[d];
    a->length = a->local_step = x->ndim > 0 ? x->extent[dim] * inner : 1;
    a->global_step = x->ndim > 0 ? whole->extent[dim] * inner : 1;
    a->global = cut > 0 ? tsi_operand_offset(place, dim) * inner : 0;
    return true;
}

ts_status tsi_cuda_dropout(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block, *mask = &io->out[1].block;
    double p = ((const tsi_dropout_attributes *)io->attributes)->p;
    bool narrow = x->dtype == TS_DTYPE_BF16;
    tsi_cuda_dropout_args a = { .x = x->data, .y = y->data, .scale = tsi_dropout_scale(p) };
    a.near_scale = (float)a.scale;
    a.draws.to = mask->data;
    a.draws.recipe = (tsi_random_recipe){ .kind = TSI_RANDOM_BERNOULLI,
                                          .dtype = TS_DTYPE_BOOL,
                                          .words = 1,
                                          .a = 1.0 - p,
                                          .seed = io->seed,
                                          .stream = io->stream };
    set_keys(&a.draws);
    if (!io->queue || (!narrow && x->dtype != TS_DTYPE_F32) || y->dtype != x->dtype ||
        !tsi_block_is_dense(x) || !tsi_block_is_dense(y) || !tsi_block_is_dense(mask) ||
        !runs_of(&io->out[1], &a.draws))
        return (ts_status)TSI_KERNEL_DECLINED; /* its reference goes by other operators there */
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch_items(io->queue, narrow ? TSI_CUDA_dropout_bf16 : TSI_CUDA_dropout_f32,
                                 a.draws.runs * tsi_cuda_quads(a.draws.length), &a);
}

/* ---- bernoulli ------------------------------------------------------------------------------- */

ts_status tsi_cuda_bernoulli(const tsi_kernel_io *io)
{
    const tsi_block *x = &io->in[0].block, *y = &io->out[0].block;
    const tsi_operand *place = &io->out[0];
    tsi_cuda_bernoulli_args a = { .from_dtype = x->dtype, .to_dtype = y->dtype };
    int64_t step = 1;
    if (!io->queue || !tsi_cuda_is_real(x->dtype)) return (ts_status)TSI_KERNEL_DECLINED;
    a.recipe = (tsi_random_recipe){ .kind = TSI_RANDOM_UNIFORM,
                                    .dtype = TS_DTYPE_F64,
                                    .words = 2,
                                    .wide = 1,
                                    .unit = 1,
                                    .top = 1 - 0x1p-53,
                                    .b = 1,
                                    .seed = io->seed,
                                    .stream = io->stream };
    for (int32_t d = y->ndim - 1; d >= 0; step *= place->global->shape.extent[d--]) {
        if (!tsi_cuda_places_make(&a.place[d], place->region, d))
            return (ts_status)TSI_KERNEL_DECLINED;
        a.global[d] = step;
    }
    a.from = tsi_cuda_operand_of(x);
    a.to = tsi_cuda_operand_of(y);
    tsi_cuda_space_make(&a.space, y->ndim, y->extent);
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    return tsi_cuda_launch_items(io->queue, TSI_CUDA_random_bernoulli, a.space.count, &a);
}
