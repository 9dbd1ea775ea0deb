/* SPDX-License-Identifier: Apache-2.0 */
/* attend_cudnn.c - attention and its gradient as graphs of cuDNN's operations, which it recognises
 * as a whole and runs as one kernel (forward) or three (backward).
 *
 *   forward    S = scale Q K'   masked   P = softmax(S)   O = P V   lse = max + log(sum)
 *   backward   delta = sum(dO O)   P = exp(scale Q K' - lse)   dV = P' dO
 *              dS = scale P (dO V' - delta)   dK = dS' Q   dQ = dS K
 *
 * dQ is written by its product, not added to: the order of sums is fixed, so repeats have equal
 * bits. Where they need not (TESSERA_DETERMINISTIC=0), blocks of keys add to it in f32 as they
 * come, which is faster. Plans are kept by everything they depend on; a graph that cuDNN refuses is
 * remembered too. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/attend.h"
#include "backend/cuda/cudnn.h"
#include "base/error.h"
#include "op/core/kernel.h"

enum { Q = 1, K, V, OUT, LSE, D_OUT, DQ, DK, DV, DELTA, SCALE, LOW, SHIFT, ONE, DQ_SUM, NAMES };
enum { PLANS = 256 };

/* What a plan depends on. Memory is compared: no gaps. */
typedef struct plan_key {
    const tsi_cuda *cuda;
    tsi_cudnn_shape of[NAMES]; /* of the blocks; zeros: not there */
    int32_t type, causal, shifted, backward;
    int32_t loose, reserved; /* dQ is added to in any order */
} plan_key;

static struct {
    pthread_mutex_t lock;
    plan_key key[PLANS];
    tsi_cudnn_plan plan[PLANS];
    int32_t count;
} kept = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- which calls ----------------------------------------------------------------------------- */

/* Columns of a head. On GPUs of 9.0 more of them are taken, and are right since cuDNN 9.13. */
static int64_t columns_most(const tsi_stream *stream)
{
    enum { MENDED = 91300 };
    return stream->cuda->wide && tsi_cudnn_version() >= MENDED ? 256 : 128;
}

/* Heads lie contiguous, everything on 16 bytes. A dim of extent 1 has any stride. */
static bool is_laid_out(const tsi_block *x, int32_t dtype, int64_t columns)
{
    bool fits = x->dtype == dtype && (uintptr_t)x->data % 16 == 0 && x->extent[3] % 8 == 0 &&
                x->extent[3] <= columns && x->stride[3] == 1;
    for (int32_t d = 0; d < 3; d++)
        fits = fits && (x->extent[d] == 1 || (x->stride[d] > 0 && x->stride[d] % 8 == 0));
    return fits && tsi_block_count(x) > 0;
}

/* Every query sees a key: rows without one have no softmax, and cuDNN would give them one. */
static bool is_taken(const tsi_stream *stream, const tsi_cuda_attend *c)
{
    int32_t dtype = c->q->dtype;
    const tsi_block *const list[] = { c->q, c->k, c->v, c->out, c->d_out, c->dq, c->dk, c->dv };
    if (dtype != TS_DTYPE_BF16 && dtype != TS_DTYPE_F16) return false;
    for (size_t i = 0; i < TSI_COUNT_OF(list); i++)
        if (list[i] && !is_laid_out(list[i], dtype, columns_most(stream))) return false;
    return c->lse->dtype == TS_DTYPE_F32 && tsi_block_is_dense(c->lse) &&
           (uintptr_t)c->lse->data % 16 == 0 && (!c->causal || c->reach >= 0) &&
           c->q->extent[2] > 1 && c->k->extent[2] > 1 && c->reach <= INT32_MAX;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static tsi_cudnn_shape shape_of(const tsi_block *x)
{
    tsi_cudnn_shape shape;
    int64_t step = 1; /* of a dim whose stride does not matter, what a dense block has */
    for (int32_t d = 3; d >= 0; d--) {
        shape.extent[d] = x->extent[d];
        shape.stride[d] = x->extent[d] == 1 ? step : x->stride[d];
        step = shape.stride[d] * shape.extent[d];
    }
    return shape;
}

static tsi_cudnn_shape turned(tsi_cudnn_shape shape)
{
    return (
        tsi_cudnn_shape){ { shape.extent[0], shape.extent[1], shape.extent[3], shape.extent[2] },
                          { shape.stride[0], shape.stride[1], shape.stride[3], shape.stride[2] } };
}

/* Is the order of sums left open? cuDNN has cleared them itself since 9.6. */
static bool is_loose(void)
{
    enum { CLEARS = 90600 };
    const char *word = getenv("TESSERA_DETERMINISTIC");
    return word && strcmp(word, "0") == 0 && tsi_cudnn_version() >= CLEARS;
}

static plan_key key_of(const tsi_stream *stream, const tsi_cuda_attend *c)
{
    plan_key key;
    memset(&key, 0, sizeof key);
    const tsi_block *const list[NAMES] = {
        [Q] = c->q,   [K] = c->k,   [V] = c->v,         [OUT] = c->out,
        [DQ] = c->dq, [DK] = c->dk, [D_OUT] = c->d_out, [DV] = c->dv
    };
    key.cuda = stream->cuda;
    for (int32_t i = 0; i < NAMES; i++)
        if (list[i]) key.of[i] = shape_of(list[i]);
    key.type = c->q->dtype == TS_DTYPE_BF16 ? TSI_CUDNN_BF16 : TSI_CUDNN_F16;
    key.causal = c->causal;
    key.shifted = c->causal && c->reach != 0;
    key.backward = c->d_out != NULL;
    key.loose = key.backward && is_loose();
    return key;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

typedef struct scene {
    tsi_cudnn_graph graph;
    const plan_key *key;
    tsi_cudnn_type type;
    tsi_cudnn_shape pairs, turned, rows; /* B H T S; B H S T, transposed; B H T 1 */
    tsi_cudnn_any scale;
} scene;

static tsi_cudnn_any real(scene *s, int64_t name)
{
    return tsi_cudnn_real(&s->graph, name, s->type, &s->key->of[name]);
}

static tsi_cudnn_any real_turned(scene *s, int64_t name)
{
    tsi_cudnn_shape shape = turned(s->key->of[name]);
    return tsi_cudnn_real(&s->graph, name, s->type, &shape);
}

/* A new tensor of pairs, f32. */
static tsi_cudnn_any point(scene *s, tsi_cudnn_point how, tsi_cudnn_any x, tsi_cudnn_any y)
{
    tsi_cudnn_any made = tsi_cudnn_between(&s->graph, TSI_CUDNN_F32, &s->pairs);
    tsi_cudnn_add_point(&s->graph, how, x, y, made);
    return made;
}

static tsi_cudnn_any pairs_of(scene *s, tsi_cudnn_any a, tsi_cudnn_any b)
{
    tsi_cudnn_any made = tsi_cudnn_between(&s->graph, TSI_CUDNN_F32, &s->pairs);
    tsi_cudnn_add_product(&s->graph, a, b, made);
    return made;
}

/* x where the query sees the key, else far below everything. */
static tsi_cudnn_any masked(scene *s, tsi_cudnn_any x)
{
    if (!s->key->causal) return x;
    tsi_cudnn_graph *g = &s->graph;
    tsi_cudnn_any row = tsi_cudnn_between(g, TSI_CUDNN_I32, &s->pairs);
    tsi_cudnn_any column = tsi_cudnn_between(g, TSI_CUDNN_I32, &s->pairs);
    tsi_cudnn_add_index(g, 2, x, row);
    tsi_cudnn_add_index(g, 3, x, column);
    if (s->key->shifted) {
        tsi_cudnn_any moved = tsi_cudnn_between(g, TSI_CUDNN_I32, &s->pairs);
        tsi_cudnn_add_shift(g, row, tsi_cudnn_value(g, SHIFT, TSI_CUDNN_I32), moved);
        row = moved;
    }
    tsi_cudnn_any seen = tsi_cudnn_between(g, TSI_CUDNN_TRUTH, &s->pairs);
    tsi_cudnn_add_point(g, TSI_CUDNN_GE, row, column, seen);
    tsi_cudnn_any made = tsi_cudnn_between(g, TSI_CUDNN_F32, &s->pairs);
    tsi_cudnn_add_select(g, x, tsi_cudnn_value(g, LOW, TSI_CUDNN_F32), seen, made);
    return made;
}

static tsi_cudnn_any row_tensor(scene *s)
{
    return tsi_cudnn_between(&s->graph, TSI_CUDNN_F32, &s->rows);
}

static void build_forward(scene *s)
{
    tsi_cudnn_graph *g = &s->graph;
    tsi_cudnn_any scores = pairs_of(s, real(s, Q), real_turned(s, K));
    scores = masked(s, point(s, TSI_CUDNN_MUL, scores, s->scale));
    tsi_cudnn_any top = row_tensor(s), sum = row_tensor(s), log = row_tensor(s);
    tsi_cudnn_add_reduce(g, TSI_CUDNN_MAX, scores, top);
    tsi_cudnn_any power = point(s, TSI_CUDNN_EXP, point(s, TSI_CUDNN_SUB, scores, top), NULL);
    tsi_cudnn_add_reduce(g, TSI_CUDNN_SUM, power, sum);
    tsi_cudnn_add_point(g, TSI_CUDNN_LOG, sum, NULL, log);
    tsi_cudnn_add_point(g, TSI_CUDNN_ADD, top, log,
                        tsi_cudnn_real(g, LSE, TSI_CUDNN_F32, &s->rows));
    tsi_cudnn_any weights = tsi_cudnn_between(g, s->type, &s->pairs);
    tsi_cudnn_add_point(g, TSI_CUDNN_DIV, power, sum, weights);
    tsi_cudnn_add_product(g, weights, real(s, V), real(s, OUT));
}

/* x' y into the block of a name; heads that share a group are added. */
static void group_product(scene *s, tsi_cudnn_any x, tsi_cudnn_any y, int64_t name)
{
    tsi_cudnn_graph *g = &s->graph;
    tsi_cudnn_any across = tsi_cudnn_between(g, s->type, &s->turned), to = real(s, name);
    const tsi_cudnn_shape *shape = &s->key->of[name];
    tsi_cudnn_add_reshape(g, x, across);
    if (shape->extent[1] == s->pairs.extent[1]) {
        tsi_cudnn_add_product(g, across, y, to);
        return;
    }
    tsi_cudnn_shape heads =
        tsi_cudnn_dense(s->pairs.extent[0], s->pairs.extent[1], shape->extent[2], shape->extent[3]);
    tsi_cudnn_any all = tsi_cudnn_between(g, s->type, &heads);
    tsi_cudnn_add_product(g, across, y, all);
    tsi_cudnn_add_reduce(g, TSI_CUDNN_SUM, all, to);
}

static tsi_cudnn_any delta_of(scene *s, tsi_cudnn_any d_out)
{
    tsi_cudnn_graph *g = &s->graph;
    const int64_t *extent = s->key->of[OUT].extent;
    tsi_cudnn_shape shape = tsi_cudnn_dense(extent[0], extent[1], extent[2], extent[3]);
    tsi_cudnn_any product = tsi_cudnn_between(g, TSI_CUDNN_F32, &shape), sum = row_tensor(s);
    tsi_cudnn_any delta = tsi_cudnn_real(g, DELTA, TSI_CUDNN_F32, &s->rows);
    tsi_cudnn_add_point(g, TSI_CUDNN_MUL, d_out, real(s, OUT), product);
    tsi_cudnn_add_reduce(g, TSI_CUDNN_SUM, product, sum);
    tsi_cudnn_add_point(g, TSI_CUDNN_MUL, sum, tsi_cudnn_value(g, ONE, TSI_CUDNN_F32), delta);
    return delta;
}

static void build_backward(scene *s)
{
    tsi_cudnn_graph *g = &s->graph;
    tsi_cudnn_any q = real(s, Q), k = real_turned(s, K), v = real_turned(s, V);
    tsi_cudnn_any d_out = real(s, D_OUT), delta = delta_of(s, d_out);
    tsi_cudnn_any lse = tsi_cudnn_real(g, LSE, TSI_CUDNN_F32, &s->rows);
    tsi_cudnn_any scores = point(s, TSI_CUDNN_MUL, pairs_of(s, q, k), s->scale);
    scores = masked(s, point(s, TSI_CUDNN_SUB, scores, lse));
    tsi_cudnn_any weights = point(s, TSI_CUDNN_EXP, scores, NULL);
    group_product(s, weights, d_out, DV);
    tsi_cudnn_any slope = point(s, TSI_CUDNN_SUB, pairs_of(s, d_out, v), delta);
    slope = point(s, TSI_CUDNN_MUL, slope, weights);
    slope = point(s, TSI_CUDNN_MUL, slope, s->scale);
    group_product(s, slope, q, DK);
    tsi_cudnn_any back = tsi_cudnn_between(g, s->type, &s->key->of[K]);
    tsi_cudnn_add_reshape(g, k, back);
    tsi_cudnn_any dq = real(s, DQ), sum = dq;
    if (s->key->loose) {
        const int64_t *extent = s->key->of[DQ].extent;
        tsi_cudnn_shape dense = tsi_cudnn_dense(extent[0], extent[1], extent[2], extent[3]);
        sum = tsi_cudnn_real(g, DQ_SUM, TSI_CUDNN_F32, &dense);
    }
    tsi_cudnn_add_product(g, slope, back, sum);
    if (s->key->loose) tsi_cudnn_add_point(g, TSI_CUDNN_IDENTITY, sum, NULL, dq);
}

static tsi_cudnn_plan build(tsi_cuda *cuda, const plan_key *key)
{
    scene s = { .graph = { .cuda = cuda }, .key = key, .type = (tsi_cudnn_type)key->type };
    const int64_t *q = key->of[Q].extent, keys = key->of[K].extent[2];
    s.pairs = tsi_cudnn_dense(q[0], q[1], q[2], keys);
    s.turned = turned(s.pairs);
    s.rows = tsi_cudnn_dense(q[0], q[1], q[2], 1);
    s.scale = tsi_cudnn_value(&s.graph, SCALE, TSI_CUDNN_F32);
    if (key->backward)
        build_backward(&s);
    else
        build_forward(&s);
    return tsi_cudnn_finish(&s.graph);
}

/* The last place is taken again when all are. */
static tsi_cudnn_plan plan_for(tsi_cuda *cuda, const plan_key *key)
{
    pthread_mutex_lock(&kept.lock);
    int32_t at = 0;
    while (at < kept.count && memcmp(&kept.key[at], key, sizeof *key) != 0)
        at++;
    if (at == kept.count) {
        if (at == PLANS) at--;
        kept.key[at] = *key;
        kept.plan[at] = build(cuda, key);
        kept.count = at + 1;
    }
    tsi_cudnn_plan plan = kept.plan[at];
    pthread_mutex_unlock(&kept.lock);
    return plan;
}

/* ---- the call -------------------------------------------------------------------------------- */

typedef struct packed {
    int64_t name[NAMES];
    void *memory[NAMES];
    int32_t count;
} packed;

static void pack(packed *p, int64_t name, void *memory)
{
    p->name[p->count] = name;
    p->memory[p->count++] = memory;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static size_t sums_of(const tsi_block *x) /* in f32, of each of its elements */
{
    return rounded((size_t)tsi_block_count(x) * sizeof(float));
}

/* Numbers lie on this stack: they are read when the plan is run. */
static ts_status run_plan(tsi_stream *stream, const tsi_cuda_attend *c, const plan_key *key,
                          const tsi_cudnn_plan *plan)
{
    float scale = (float)c->scale, low = -1e9f, one = 1;
    int32_t shift = (int32_t)c->reach;
    packed p = { .count = 0 };
    const tsi_block *const list[NAMES] = {
        [Q] = c->q,   [K] = c->k,         [V] = c->v,   [OUT] = c->out, [LSE] = c->lse,
        [DQ] = c->dq, [D_OUT] = c->d_out, [DK] = c->dk, [DV] = c->dv
    };
    for (int32_t i = 0; i < NAMES; i++)
        if (list[i]) pack(&p, i, list[i]->data);
    pack(&p, SCALE, &scale);
    if (key->causal) pack(&p, LOW, &low);
    if (key->shifted) pack(&p, SHIFT, &shift);
    if (key->backward) {
        size_t workspace = rounded((size_t)plan->workspace), rows = sums_of(c->lse);
        void *memory = NULL; /* the sums, behind the plan's workspace */
        TSI_TRY(tsi_cuda_scratch(stream, workspace + rows + (key->loose ? sums_of(c->dq) : 0),
                                 &memory));
        pack(&p, DELTA, (char *)memory + workspace);
        if (key->loose) pack(&p, DQ_SUM, (char *)memory + workspace + rows);
        pack(&p, ONE, &one);
    }
    return tsi_cudnn_run(stream, plan, p.name, p.memory, p.count);
}

ts_status tsi_cuda_attend_cudnn(tsi_stream *stream, const tsi_cuda_attend *call)
{
    if (!is_taken(stream, call) || tsi_cudnn_version() == 0) return (ts_status)TSI_KERNEL_DECLINED;
    plan_key key = key_of(stream, call);
    tsi_cudnn_plan plan = plan_for(stream->cuda, &key);
    if (!plan.plan && key.loose) {
        key.loose = 0;
        plan = plan_for(stream->cuda, &key);
    }
    if (!plan.plan) return (ts_status)TSI_KERNEL_DECLINED;
    return run_plan(stream, call, &key, &plan);
}
