/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_message.c - tensors between the ranks of a pipeline.
 *
 * Sends and receives return at once; what is received completes when it is first used. Ranks of one
 * process send the number of a loan instead of the tensor, which is then not copied (lend.h).
 * Forward and backward messages have channels of their own. In a step that announces, a text goes
 * before each tensor: "f32 [2, 8, 16] S(0), R", what it is and how it lies on the mesh of a stage.
 * Afterwards both ends know it, and the sender compares. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/keep.h"
#include "op/core/common.h"
#include "parallel/lend.h"
#include "parallel/pipeline.h"

enum { ANNOUNCED_MAX = 512 };

static ts_peer peer_of(const ts_pipeline *p, int32_t rank, int64_t channel)
{
    return (ts_peer){ p->mesh, p->axis, rank - p->at, channel };
}

/* ---- announcing ------------------------------------------------------------------------------ */

/* On every rank of the stage. */
static const ts_sharding *announced_sharding(ts_pipeline *p)
{
    char text[3 * TS_NDIM_MAX + 1] = "R";
    for (int32_t k = 1; k < ts_mesh_ndim(p->here); k++)
        memcpy(text + 3 * k - 2, ", R", sizeof ", R");
    return ts_sharding_get(p->here, text);
}

typedef struct letters {
    const char *text;
    size_t length;
} letters;

static ts_status letter_at(const int64_t *global, void *element, void *context)
{
    const letters *l = context;
    size_t i = (size_t)global[0];
    *(uint8_t *)element = i < l->length ? (uint8_t)l->text[i] : 0;
    return TS_OK;
}

static const ts_meta announced_meta = { .shape = { .ndim = 1, .extent = { ANNOUNCED_MAX } },
                                        .dtype = TS_DTYPE_U8 };

/* 0: there was no memory for it. */
static size_t describe(const ts_tensor *x, char *out, size_t size)
{
    const ts_layout *layout = ts_tensor_layout(x);
    ts_shape shape = ts_tensor_shape(x);
    int used = snprintf(out, size, "%s %d", ts_dtype_name(ts_tensor_dtype(x)), shape.ndim);
    for (int32_t d = 0; d < shape.ndim; d++)
        used += snprintf(out + used, size - (size_t)used, " %lld", (long long)shape.extent[d]);
    used += snprintf(out + used, size - (size_t)used, " ");
    size_t lies = ts_sharding_text(ts_layout_sharding(layout), out + used, size - (size_t)used);
    return lies > 0 ? (size_t)used + lies : 0;
}

static ts_status keep_contract(ts_pipeline *p, tsi_contract *contract, const ts_meta *meta,
                               const ts_sharding *sharding)
{
    if (!sharding) return ts_rank_status(p->rank);
    ts_sharding_retain(sharding);
    ts_sharding_release(contract->sharding);
    *contract = (tsi_contract){ *meta, sharding };
    return TS_OK;
}

static ts_status announce(ts_pipeline *p, ts_tensor *x, const ts_peer *to, tsi_contract *contract)
{
    char text[ANNOUNCED_MAX] = "";
    letters l = { text, describe(x, text, sizeof text) };
    if (l.length == 0) return tsi_fail_memory("what is announced", sizeof text);
    if (l.length >= sizeof text)
        return TSI_FAIL(TS_ERR_ARG, "pipeline: what is announced has %zu bytes", l.length);
    ts_tensor *sent = ts_from_function(letter_at, &l, announced_sharding(p), announced_meta);
    if (!sent) return ts_rank_status(p->rank);
    TSI_TRY((ts_send)(sent, to));
    ts_meta meta = { .shape = ts_tensor_shape(x), .dtype = ts_tensor_dtype(x) };
    return keep_contract(p, contract, &meta, ts_layout_sharding(ts_tensor_layout(x)));
}

/* "f32 2 8 16 S(0), R" to a contract. */
static ts_status read_announced(ts_pipeline *p, const char *text, ts_mesh *on,
                                tsi_contract *contract)
{
    char name[16] = "";
    int at = 0;
    ts_meta meta = { .dtype = TS_DTYPE_NONE };
    bool good = sscanf(text, "%15s %d%n", name, &meta.shape.ndim, &at) == 2;
    for (int32_t k = 1; k < TS_DTYPE_COUNT && good; k++)
        if (strcmp(ts_dtype_name((ts_dtype)k), name) == 0) meta.dtype = k;
    good = good && meta.dtype != TS_DTYPE_NONE && meta.shape.ndim >= 0 &&
           meta.shape.ndim <= TS_NDIM_MAX;
    for (int32_t d = 0; d < meta.shape.ndim && good; d++) {
        long long extent = 0;
        int used = 0;
        good = sscanf(text + at, "%lld%n", &extent, &used) == 1 && extent >= 0;
        meta.shape.extent[d] = extent;
        at += used;
    }
    if (!good) return TSI_FAIL(TS_ERR_INTERNAL, "pipeline: announced was \"%.80s\"", text);
    return keep_contract(p, contract, &meta, ts_sharding_get(on, text + at));
}

/* What is announced lies on the mesh of the modules that use it. */
static ts_status hear(ts_pipeline *p, const ts_peer *from, int32_t stage, tsi_contract *contract)
{
    char text[ANNOUNCED_MAX + 1] = "";
    ts_array to = TS_INIT(ts_array);
    to.data = text;
    to.meta = announced_meta;
    ts_tensor *got = (ts_recv)(&announced_meta, announced_sharding(p), from);
    if (!got) return ts_rank_status(p->rank);
    TSI_TRY(ts_tensor_read(got, &to));
    return read_announced(p, text, ts_module_mesh(p->stage[stage].module[0]), contract);
}

/* What the program says of a link, instead of a message. */
static ts_status expect(ts_pipeline *p, const ts_cell *c, tsi_contract *contract)
{
    int32_t from = p->graph.link[c->link].from;
    ts_stage_input of = { from, 0 };
    ts_meta meta = { 0 };
    const ts_sharding *lies = NULL;
    while (p->stage[from].link[of.output] != c->link)
        of.output++;
    TSI_TRY(p->options.shape(p->options.context, p->rank, c->micro, &of, &meta, &lies));
    return keep_contract(p, contract, &meta, lies);
}

/* ---- what was announced holds ---------------------------------------------------------------- */

static bool same_shape(const ts_shape *a, const ts_shape *b)
{
    bool same = a->ndim == b->ndim;
    for (int32_t d = 0; d < a->ndim && same; d++)
        same = a->extent[d] == b->extent[d];
    return same;
}

/* Of one shape; on an axis of one rank every placement says the same, and operators write R. */
static bool same_blocks(const ts_tensor *x, const ts_sharding *announced)
{
    const ts_layout *is = ts_tensor_layout(x);
    if (ts_layout_sharding(is) == announced) return true;
    const ts_layout *was = tsi_layout_intern(announced, &is->shape);
    bool same = was && tsi_layout_same_blocks(is, was);
    ts_layout_release(was);
    return same;
}

static ts_status compare(const ts_tensor *x, const tsi_contract *contract, const char *name)
{
    ts_shape shape = ts_tensor_shape(x);
    bool same = same_shape(&shape, &contract->meta.shape) &&
                (int32_t)ts_tensor_dtype(x) == contract->meta.dtype &&
                same_blocks(x, contract->sharding);
    if (same) return TS_OK;
    char is[96], now[128], was[96], then[128];
    (void)ts_sharding_text(ts_layout_sharding(ts_tensor_layout(x)), now, sizeof now);
    (void)ts_sharding_text(contract->sharding, then, sizeof then);
    return TSI_FAIL(TS_ERR_SHAPE, "pipeline: %s is %s %s %s, and was announced as %s %s %s", name,
                    ts_dtype_name(ts_tensor_dtype(x)), tsi_shape_text(&shape, is, sizeof is), now,
                    ts_dtype_name((ts_dtype)contract->meta.dtype),
                    tsi_shape_text(&contract->meta.shape, was, sizeof was), then);
}

/* Both ends agree on a link before its tensor goes: `x` at the end that sends, else NULL. */
static ts_status agree(ts_pipeline *p, const ts_cell *c, ts_tensor *x, const ts_peer *peer,
                       tsi_contract *contract)
{
    if (p->options.shape && (p->announces || p->options.begin)) {
        TSI_TRY(expect(p, c, contract));
    } else if (!p->options.shape && p->announces) {
        return x ? announce(p, x, peer, contract) : hear(p, peer, c->stage, contract);
    }
    return x ? compare(x, contract, p->graph.link[c->link].name) : TS_OK;
}

/* ---- tensors, or numbers of loans ------------------------------------------------------------ */

static const ts_meta number_meta = { .shape = { .ndim = 1, .extent = { 1 } },
                                     .dtype = TS_DTYPE_I64 };

/* Each rank of the stage has a number of its own. */
static ts_status number_at(const int64_t *global, void *element, void *context)
{
    (void)global;
    memcpy(element, context, sizeof(uint64_t));
    return TS_OK;
}

/* In a step that runs again messages are the tensors: a loan is given once. */
static bool lends(const ts_pipeline *p)
{
    return p->lends && !tsi_keeps(p->rank);
}

static ts_status send(ts_pipeline *p, ts_tensor *x, const ts_peer *to)
{
    if (!lends(p)) return (ts_send)(x, to);
    TSI_TRY(tsi_tensor_ready(x));
    uint64_t number = tsi_lend(x);
    ts_tensor *message =
        number ? ts_from_function(number_at, &number, announced_sharding(p), number_meta) : NULL;
    return message ? (ts_send)(message, to) : ts_rank_status(p->rank);
}

static ts_tensor *receive(ts_pipeline *p, const tsi_contract *contract, const ts_peer *from)
{
    if (lends(p)) return (ts_recv)(&number_meta, announced_sharding(p), from);
    return (ts_recv)(&contract->meta, contract->sharding, from);
}

ts_tensor *tsi_pipeline_arrived(ts_pipeline *p, int64_t slot, ts_tensor *got)
{
    if (tsi_tensor_ready(got) != TS_OK || !lends(p)) return got;
    uint64_t number;
    memcpy(&number, tsi_array_data(got->array), sizeof number);
    const tsi_contract *contract = &p->contract[slot];
    return tsi_borrow(p->rank, number, &contract->meta, contract->sharding);
}

/* ---- forward --------------------------------------------------------------------------------- */

ts_status tsi_pipeline_send_forward(ts_pipeline *p, const ts_cell *c)
{
    int64_t slot = tsi_pipeline_slot(p, c->link, c->micro);
    tsi_passing *x = &p->passing[slot];
    ts_peer to = peer_of(p, c->peer, TSI_CHANNEL_FORWARD);
    TSI_ASSERT(x->made != NULL);
    TSI_TRY(agree(p, c, x->made, &to, &p->contract[slot]));
    return send(p, x->made, &to);
}

ts_status tsi_pipeline_receive_forward(ts_pipeline *p, const ts_cell *c)
{
    int64_t slot = tsi_pipeline_slot(p, c->link, c->micro);
    const tsi_contract *contract = &p->contract[slot];
    ts_peer from = peer_of(p, c->peer, TSI_CHANNEL_FORWARD);
    TSI_TRY(agree(p, c, NULL, &from, &p->contract[slot]));
    ts_tensor *got = receive(p, contract, &from);
    p->passing[slot].got = ts_tensor_retain(got);
    return ts_rank_status(p->rank);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* A user that does not depend on its input has no gradient for it; its maker waits for one. */
static ts_tensor *gradient_or_zeros(const tsi_contract *contract, ts_tensor *leaf)
{
    ts_tensor *grad = ts_tensor_grad(leaf);
    if (!grad) grad = (ts_zeros_like)(leaf);
    return grad ? (ts_redistribute_to)(grad, contract->sharding) : NULL;
}

ts_status tsi_pipeline_send_backward(ts_pipeline *p, const ts_cell *c)
{
    int64_t slot = tsi_pipeline_slot(p, c->link, c->micro);
    tsi_passing *x = &p->passing[slot];
    ts_peer to = peer_of(p, c->peer, TSI_CHANNEL_BACKWARD);
    TSI_ASSERT(x->leaf != NULL && x->users == 0);
    TSI_TRY(ts_grad_settle(x->leaf));
    ts_tensor *grad = gradient_or_zeros(&p->contract[slot], x->leaf);
    if (!grad) return ts_rank_status(p->rank);
    TSI_TRY(send(p, grad, &to));
    ts_tensor_release(x->leaf); /* a weight gradient that follows holds what it needs */
    x->leaf = NULL;
    return TS_OK;
}

ts_status tsi_pipeline_receive_backward(ts_pipeline *p, const ts_cell *c)
{
    int64_t slot = tsi_pipeline_slot(p, c->link, c->micro);
    const tsi_contract *contract = &p->contract[slot];
    tsi_passing *x = &p->passing[slot];
    ts_peer from = peer_of(p, c->peer, TSI_CHANNEL_BACKWARD);
    ts_tensor *got = receive(p, contract, &from);
    if (!got) return ts_rank_status(p->rank);
    TSI_ASSERT(x->back_count < p->graph.link[c->link].to_count);
    x->back[x->back_count++] = ts_tensor_retain(got);
    return TS_OK;
}

/* ---- out of turn ----------------------------------------------------------------------------- */

/* This rank's first stage. */
static int32_t own_stage(const ts_pipeline *p)
{
    int32_t stage = 0;
    while (stage + 1 < p->stage_count && !tsi_pipeline_has(p, stage))
        stage++;
    return stage;
}

ts_tensor *tsi_pipeline_pass(ts_pipeline *p, ts_tensor *x, int32_t stage)
{
    int32_t holder = p->lowered->rank_of[stage];
    tsi_contract contract = { 0 };
    ts_status status = TS_OK;
    for (int32_t r = 0; r < p->lowered->ranks && status == TS_OK && p->at == holder; r++) {
        ts_peer to = peer_of(p, r, TSI_CHANNEL_FORWARD);
        if (r == holder) continue;
        status = announce(p, x, &to, &contract);
        if (status == TS_OK) status = (ts_send)(x, &to);
    }
    if (p->at != holder) {
        ts_peer from = peer_of(p, holder, TSI_CHANNEL_FORWARD);
        status = hear(p, &from, own_stage(p), &contract);
        x = status == TS_OK ? (ts_recv)(&contract.meta, contract.sharding, &from) : NULL;
    }
    ts_sharding_release(contract.sharding);
    return status == TS_OK ? x : NULL;
}

/* ---- shared parameters ----------------------------------------------------------------------- */

/* Ranks that hold it, ascending, each once. */
static int32_t holders_of(const ts_pipeline *p, const ts_shared_param *shared, int32_t *out)
{
    int32_t count = 0;
    for (int32_t r = 0; r < p->lowered->ranks; r++) {
        bool holds = false;
        for (int64_t i = 0; i < shared->stage_count; i++)
            holds = holds || p->lowered->rank_of[shared->stage[i]] == r;
        if (holds) out[count++] = r;
    }
    return count;
}

static ts_status share_one(ts_pipeline *p, const ts_shared_param *shared, const int32_t *holder,
                           int32_t count)
{
    ts_tensor *parameter = shared->parameter;
    if (parameter && !tsi_leaf_of(parameter)) return TS_OK; /* frozen, on all ranks alike */
    if (!parameter)
        return TSI_FAIL(TS_ERR_STATE,
                        "pipeline: this rank has a stage that shares a parameter, and "
                        "no copy of it");
    if (!ts_tensor_grad(parameter))
        TSI_TRY(tsi_leaf_accumulate(tsi_leaf_of(parameter), (ts_zeros_like)(parameter)));
    TSI_TRY(ts_grad_settle(parameter));
    ts_tensor *grad = ts_tensor_grad(parameter);
    ts_meta meta = { .shape = ts_tensor_shape(grad), .dtype = ts_tensor_dtype(grad) };
    const ts_sharding *lies = ts_layout_sharding(ts_tensor_layout(grad));
    if (p->at != holder[0]) {
        ts_peer first = peer_of(p, holder[0], TSI_CHANNEL_FORWARD);
        TSI_TRY((ts_send)(grad, &first));
        return ts_tensor_write(grad, (ts_recv)(&meta, lies, &first));
    }
    for (int32_t i = 1; i < count; i++) {
        ts_peer other = peer_of(p, holder[i], TSI_CHANNEL_FORWARD);
        ts_tensor *more = (ts_recv)(&meta, lies, &other);
        ts_tensor *sum = more ? ts_add(grad, more) : NULL; /* on axes of one rank it is R */
        TSI_TRY(ts_tensor_write(grad, sum ? (ts_redistribute_to)(sum, lies) : NULL));
    }
    for (int32_t i = 1; i < count; i++) {
        ts_peer other = peer_of(p, holder[i], TSI_CHANNEL_FORWARD);
        TSI_TRY((ts_send)(grad, &other));
    }
    return TS_OK;
}

ts_status tsi_pipeline_set_aside(ts_pipeline *p)
{
    for (int32_t i = 0; i < p->shared_count; i++) {
        ts_tensor *parameter = p->shared[i].parameter;
        ts_tensor *grad = parameter ? ts_tensor_grad(parameter) : NULL;
        if (!grad) continue;
        p->before[i] = ts_tensor_retain(grad);
        TSI_TRY(ts_tensor_grad_clear(parameter));
    }
    return TS_OK;
}

/* What was set aside is added again. Where a unit completed the gradient it waits beside the sum:
 * both become one, or the next part would set aside the half of it. */
static ts_status bring_back(ts_pipeline *p, int32_t i)
{
    if (!p->before[i]) return TS_OK;
    tsi_leaf *leaf = tsi_leaf_of(p->shared[i].parameter);
    TSI_TRY(tsi_leaf_accumulate(leaf, p->before[i]));
    return leaf->reduced ? tsi_leaf_settle(leaf) : TS_OK;
}

ts_status tsi_pipeline_share(ts_pipeline *p)
{
    for (int32_t i = 0; i < p->shared_count; i++) {
        tsi_arena_mark mark = tsi_arena_save(&p->memory);
        int32_t *holder = tsi_arena_calloc(&p->memory, (size_t)p->lowered->ranks, sizeof *holder);
        if (!holder) return tsi_fail_memory("a pipeline", sizeof *holder);
        int32_t count = holders_of(p, &p->shared[i], holder);
        bool mine = false;
        for (int32_t k = 0; k < count; k++)
            mine = mine || holder[k] == p->at;
        ts_scope scope = ts_scope_open(p->rank, "shared");
        ts_status status = mine && count > 1 ? share_one(p, &p->shared[i], holder, count) : TS_OK;
        if (status == TS_OK) status = bring_back(p, i);
        ts_scope_close(scope);
        tsi_arena_rewind(&p->memory, mark);
        if (status != TS_OK) tsi_error_prefix("gradients of shared parameter %d", i);
        TSI_TRY(status);
    }
    return TS_OK;
}
