/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c - attention and its gradient: cuDNN where it takes the call, else the own kernels, which
 * take any strides, real dtypes and positions. */
#include "backend/cuda/attend.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/kernel.h"
#include "base/error.h"
#include "op/nn/attention.h"

enum { ROW_MAX = 512, THREADS = 128 }; /* what a block of attend.cu sums */

/* ---- the call -------------------------------------------------------------------------------- */

/* Blocks of q, k and v in their places; `reach` counts from global positions. */
static tsi_cuda_attend call_of(const tsi_kernel_io *io)
{
    const tsi_attention_attributes *a = io->attributes;
    const ts_shape *q = &io->in[0].global->shape, *k = &io->in[1].global->shape;
    bool back = io->input_count > 3;
    return (tsi_cuda_attend){
        .q = &io->in[0].block,
        .k = &io->in[1].block,
        .v = &io->in[2].block,
        .out = back ? &io->in[3].block : &io->out[0].block,
        .lse = back ? &io->in[4].block : &io->out[1].block,
        .d_out = back ? &io->in[5].block : NULL,
        .dq = back ? &io->out[0].block : NULL,
        .dk = back ? &io->out[1].block : NULL,
        .dv = back ? &io->out[2].block : NULL,
        .scale = a->scale,
        .reach = k->extent[2] - q->extent[2],
        .causal = a->causal != 0,
    };
}

/* ---- cuDNN ----------------------------------------------------------------------------------- */

static bool is_interval(const tsi_cuda_places *p)
{
    return p->count == 0 || (p->count == 1 && p->span[0].count == 1);
}

/* Local heads share local groups as global ones do global groups: cuDNN divides by the quotient. */
static bool groups_are_even(const tsi_cuda_attend_args *a)
{
    if (a->groups == 0 || a->heads % a->groups) return false;
    for (int64_t h = 0; h < a->heads; h++)
        if (a->group_of[h] != h / (a->heads / a->groups)) return false;
    return true;
}

/* TESSERA_CUDNN=off: the own kernels alone, to compare. */
static bool is_off(void)
{
    const char *word = getenv("TESSERA_CUDNN");
    return word && strcmp(word, "off") == 0;
}

static ts_status try_cudnn(tsi_stream *stream, tsi_cuda_attend call, const tsi_cuda_attend_args *a)
{
    if (is_off() || !is_interval(&a->place) || !groups_are_even(a))
        return (ts_status)TSI_KERNEL_DECLINED;
    call.reach += a->place.count ? a->place.span[0].begin : 0;
    return tsi_cuda_attend_cudnn(stream, &call);
}

/* ---- own kernels ----------------------------------------------------------------------------- */

static tsi_cuda_heads heads_of(const tsi_block *block)
{
    tsi_cuda_heads heads = { .data = NULL };
    if (!block) return heads;
    heads.data = block->data;
    memcpy(heads.stride, block->stride, sizeof heads.stride);
    return heads;
}

/* Which local group a head uses; false: it is another rank's, or there are too many heads. */
static bool find_groups(const tsi_kernel_io *io, tsi_cuda_attend_args *a)
{
    tsi_cuda_places heads, groups;
    int64_t share = io->in[0].global->shape.extent[1] / io->in[1].global->shape.extent[1];
    if (a->heads > TSI_CUDA_HEADS || !tsi_cuda_places_make(&heads, io->in[0].region, 1) ||
        !tsi_cuda_places_make(&groups, io->in[1].region, 1))
        return false;
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t group = tsi_cuda_place_of(&groups, tsi_cuda_index_at(&heads, h) / share);
        if (group < 0) return false;
        a->group_of[h] = (int16_t)group;
    }
    return true;
}

static bool is_real(int32_t dtype)
{
    return dtype == TS_DTYPE_F32 || dtype == TS_DTYPE_BF16 || dtype == TS_DTYPE_F16 ||
           dtype == TS_DTYPE_F64;
}

/* False: not for these kernels. */
static bool settle(const tsi_kernel_io *io, const tsi_cuda_attend *c, tsi_cuda_attend_args *a)
{
    const tsi_block *const list[] = { c->k, c->v, c->out, c->d_out, c->dq, c->dk, c->dv };
    bool same = io->queue && is_real(c->q->dtype);
    for (size_t i = 0; i < TSI_COUNT_OF(list); i++)
        same = same && (!list[i] || list[i]->dtype == c->q->dtype);
    *a = (tsi_cuda_attend_args){ .batch = c->q->extent[0],
                                 .heads = c->q->extent[1],
                                 .queries = c->q->extent[2],
                                 .depth = c->q->extent[3],
                                 .groups = c->k->extent[1],
                                 .keys = c->k->extent[2],
                                 .width = c->v->extent[3],
                                 .reach = c->reach,
                                 .scale = c->scale,
                                 .causal = c->causal,
                                 .dtype = c->q->dtype,
                                 .lse_dtype = c->lse->dtype };
    a->q = heads_of(c->q), a->k = heads_of(c->k), a->v = heads_of(c->v);
    a->out = heads_of(c->out), a->lse = heads_of(c->lse), a->d_out = heads_of(c->d_out);
    a->dq = heads_of(c->dq), a->dk = heads_of(c->dk), a->dv = heads_of(c->dv);
    return same && tsi_cuda_places_make(&a->place, io->in[0].region, 2) && find_groups(io, a);
}

static bool is_for_kernels(const tsi_cuda_attend_args *a)
{
    int64_t rows = a->batch * a->heads * a->queries, keys = a->batch * a->groups * a->keys;
    return a->depth <= ROW_MAX && a->width <= ROW_MAX && rows <= INT32_MAX && keys <= INT32_MAX;
}

static ts_status launch(tsi_stream *stream, const tsi_cuda_attend_args *a, int64_t blocks,
                        tsi_cuda_kernel narrow, tsi_cuda_kernel wide, int64_t numbers)
{
    bool f64 = a->dtype == TS_DTYPE_F64;
    tsi_cuda_attend_args args = *a;
    if (blocks == 0) return TS_OK;
    return tsi_cuda_launch(stream, f64 ? wide : narrow, blocks, THREADS,
                           (int32_t)numbers * (f64 ? 8 : 4), &args);
}

static ts_status backward(tsi_stream *stream, tsi_cuda_attend_args *a)
{
    int64_t rows = a->batch * a->heads * a->queries, numbers = a->depth + a->width;
    size_t size = a->dtype == TS_DTYPE_F64 ? sizeof(double) : sizeof(float);
    int64_t blocks = (rows + THREADS / 32 - 1) / (THREADS / 32);
    TSI_TRY(tsi_cuda_scratch(stream, (size_t)rows * size, &a->delta));
    TSI_TRY(launch(stream, a, blocks, TSI_CUDA_attend_delta_f32, TSI_CUDA_attend_delta_f64, 0));
    TSI_TRY(
        launch(stream, a, rows, TSI_CUDA_attend_queries_f32, TSI_CUDA_attend_queries_f64, numbers));
    return launch(stream, a, a->batch * a->groups * a->keys, TSI_CUDA_attend_keys_f32,
                  TSI_CUDA_attend_keys_f64, numbers);
}

/* Rows of 64 or 128 narrow columns on 16 bytes, queries in one interval: for the tensor cores. */
static bool is_for_mma(const tsi_cuda_attend *c, const tsi_cuda_attend_args *a)
{
    const tsi_block *const list[] = { c->q, c->k, c->v, c->out };
    bool fits = (a->dtype == TS_DTYPE_BF16 || a->dtype == TS_DTYPE_F16) && a->depth == a->width &&
                (a->depth == 64 || a->depth == 128) && is_interval(&a->place) &&
                a->lse_dtype == TS_DTYPE_F32;
    for (size_t i = 0; i < TSI_COUNT_OF(list); i++) {
        const tsi_block *x = list[i];
        fits = fits && (uintptr_t)x->data % 16 == 0 && x->stride[3] == 1;
        for (int32_t d = 0; d < 3; d++)
            fits = fits && (x->extent[d] == 1 || x->stride[d] % 8 == 0);
    }
    return fits;
}

static ts_status run_mma(tsi_stream *stream, tsi_cuda_attend_args *a)
{
    enum { QUERIES = 128, STEP = 64 }; /* as in attend_mma.cu */
    bool wide = a->depth == 128, f16 = a->dtype == TS_DTYPE_F16;
    tsi_cuda_kernel narrow = f16 ? TSI_CUDA_attend_mma_64_f16 : TSI_CUDA_attend_mma_64_bf16;
    tsi_cuda_kernel broad = f16 ? TSI_CUDA_attend_mma_128_f16 : TSI_CUDA_attend_mma_128_bf16;
    int64_t blocks = (a->queries + QUERIES - 1) / QUERIES * a->batch * a->heads;
    a->reach += a->place.count ? a->place.span[0].begin : 0; /* positions count from here on */
    return tsi_cuda_launch(stream, wide ? broad : narrow, blocks, wide ? 256 : 128,
                           (int32_t)((QUERIES + 4 * STEP) * a->depth * 2), a);
}

static ts_status attend(const tsi_kernel_io *io)
{
    tsi_cuda_attend call = call_of(io);
    tsi_cuda_attend_args args;
    const tsi_attention_attributes *a = io->attributes;
    const tsi_operand *k = &io->in[1];
    bool all_keys = k->block.extent[2] == k->global->shape.extent[2];
    if (a->mask[0] || a->dropout > 0 || !all_keys) return (ts_status)TSI_KERNEL_DECLINED;
    if (!settle(io, &call, &args)) return (ts_status)TSI_KERNEL_DECLINED;
    TSI_TRY(tsi_cuda_enter(io->queue->cuda));
    ts_status status = try_cudnn(io->queue, call, &args);
    if ((int)status != TSI_KERNEL_DECLINED) return status;
    if (!is_for_kernels(&args)) return (ts_status)TSI_KERNEL_DECLINED;
    if (call.d_out) return backward(io->queue, &args);
    if (tsi_block_count(call.lse) == 0) return TS_OK;
    if (is_for_mma(&call, &args)) return run_mma(io->queue, &args);
    return launch(io->queue, &args, args.batch * args.heads * args.queries, TSI_CUDA_attend_f32,
                  TSI_CUDA_attend_f64, args.depth);
}

ts_status tsi_cuda_attention(const tsi_kernel_io *io)
{
    return attend(io);
}

ts_status tsi_cuda_attention_backward(const tsi_kernel_io *io)
{
    return attend(io);
}
