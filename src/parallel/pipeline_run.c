/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_run.c - forwards and gradients of one stage and micro-batch.
 *
 * A forward has a tape of its own, which lives until its gradients are done: lifetimes of
 * micro-batches are not nested. What comes from another stage is a leaf; all users on this rank
 * share it, so their gradients add up in it before they go back. Gradients of parameters add up
 * unreduced over the micro-batches and are reduced once. */
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "parallel/pipeline.h"
#include "parallel/unit.h"
#include "tensor/scope.h"
#include "tessera/parallel.h"

/* ---- inputs ---------------------------------------------------------------------------------- */

/* A tensor between stages as this rank's users are given it. */
static ts_tensor *leaf_of(ts_pipeline *p, int32_t link, int32_t micro)
{
    int64_t slot = tsi_pipeline_slot(p, link, micro);
    tsi_passing *x = &p->passing[slot];
    if (x->leaf) return x->leaf;
    ts_tensor *source = x->made ? x->made : x->got ? tsi_pipeline_arrived(p, slot, x->got) : NULL;
    if (!source && ts_rank_status(p->rank) != TS_OK) return NULL;
    if (!source) {
        TSI_FAIL(TS_ERR_STATE, "pipeline: %s was not received", p->graph.link[link].name);
        return NULL;
    }
    bool watched = p->trains && p->graph.link[link].gradient;
    x->leaf = ts_tensor_retain(watched ? ts_watch(source) : ts_detach(source));
    ts_tensor_release(x->got); /* the leaf has its block */
    x->got = NULL;
    return x->leaf;
}

static ts_status collect_inputs(ts_pipeline *p, const ts_cell *c, ts_tensor **out)
{
    const tsi_stage *s = &p->stage[c->stage];
    for (int32_t i = 0; i < s->input_count; i++) {
        const ts_stage_input *in = &s->input[i];
        if (in->stage < 0)
            out[i] = p->options.input(p->options.context, p->rank, c->micro, in->output);
        else
            out[i] = leaf_of(p, p->stage[in->stage].link[in->output], c->micro);
        if (out[i]) continue;
        TSI_TRY(ts_rank_status(p->rank));
        return TSI_FAIL(TS_ERR_NULL, "pipeline: input %d is NULL", i);
    }
    return TS_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* Terms are combined before they go to another rank. */
static ts_tensor *without_partials(ts_tensor *x)
{
    const ts_layout *layout = x ? ts_tensor_layout(x) : NULL;
    if (!layout || !layout->axes_partial) return x;
    ts_placement place[TS_NDIM_MAX];
    for (int32_t k = 0; k < layout->sharding->ndim; k++) {
        place[k] = layout->sharding->place[k];
        if (tsi_placement_partial(&place[k]))
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(layout->sharding->mesh, place);
    ts_tensor *y = to ? (ts_redistribute_to)(x, to) : NULL;
    ts_sharding_release(to);
    return y;
}

static bool has_gradient_dtype(const ts_tensor *t)
{
    int32_t dtype = (int32_t)ts_tensor_dtype(t);
    return tsi_dtype_is_real(dtype) || tsi_dtype_is_complex(dtype);
}

static ts_status keep_outputs(ts_pipeline *p, const ts_cell *c, ts_tensor **output)
{
    const tsi_stage *s = &p->stage[c->stage];
    for (int32_t o = 0; o < s->output_count; o++) {
        if (!output[o]) {
            TSI_TRY(ts_rank_status(p->rank));
            return TSI_FAIL(TS_ERR_NULL, "pipeline: its modules gave no output %d of %d", o,
                            s->output_count);
        }
        int32_t link = s->link[o];
        if (link < 0) continue;
        if (p->graph.link[link].gradient && !has_gradient_dtype(output[o]))
            return TSI_FAIL(TS_ERR_DTYPE,
                            "pipeline: output %d is %s, which has no gradient; ts_stage.constant "
                            "says so",
                            o, ts_dtype_name(ts_tensor_dtype(output[o])));
        ts_tensor *made = without_partials(output[o]);
        if (!made) return ts_rank_status(p->rank);
        p->passing[tsi_pipeline_slot(p, link, c->micro)].made = ts_tensor_retain(made);
    }
    return TS_OK;
}

static ts_status take_loss(ts_pipeline *p, const ts_cell *c, ts_tensor *const *output)
{
    if (c->stage + 1 < p->stage_count) return TS_OK;
    ts_tensor *loss = p->options.loss(p->options.context, p->rank, c->micro, output,
                                      p->stage[c->stage].output_count);
    TSI_TRY(ts_rank_status(p->rank));
    if (!loss && p->trains) return TSI_FAIL(TS_ERR_NULL, "pipeline: the loss is NULL");
    p->flight[tsi_pipeline_slot(p, c->stage, c->micro)].loss = ts_tensor_retain(loss);
    return TS_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

static ts_status run_modules(ts_pipeline *p, const ts_cell *c)
{
    const tsi_stage *s = &p->stage[c->stage];
    ts_tensor *value[TSI_STAGE_OUTPUTS] = { NULL }, *next[TSI_STAGE_OUTPUTS];
    TSI_TRY(collect_inputs(p, c, value));
    tsi_pipeline_begins(p);
    int32_t count = s->input_count;
    for (int64_t i = 0; i < s->module_count; i++) {
        tsi_module_call(s->module[i], value, count, next);
        memcpy(value, next, sizeof value);
        count = s->module[i]->desc.output_count;
        TSI_TRY(ts_rank_status(p->rank));
    }
    TSI_TRY(keep_outputs(p, c, value));
    return take_loss(p, c, value);
}

ts_status tsi_pipeline_forward(ts_pipeline *p, const ts_cell *c)
{
    tsi_flight *f = &p->flight[tsi_pipeline_slot(p, c->stage, c->micro)];
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.no_grad = !p->trains;
    ts_scope scope = ts_scope_open_with(p->rank, &options);
    if (p->trains) f->tape = ts_tape_retain(ts_tape_begin(p->rank));
    ts_status status = run_modules(p, c);
    ts_scope_close(scope);
    return status;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ts_tensor *add(ts_tensor *sum, ts_tensor *more)
{
    return sum && more ? ts_add(sum, more) : sum ? sum : more;
}

/* What came back for a tensor this rank made: from its own users, then from other ranks. */
static ts_status gradient_of(ts_pipeline *p, int64_t slot, ts_tensor **out)
{
    const tsi_passing *x = &p->passing[slot];
    *out = NULL;
    if (x->leaf && x->made) {
        TSI_TRY(ts_grad_settle(x->leaf));
        *out = ts_tensor_grad(x->leaf);
    }
    for (int32_t i = 0; i < x->back_count; i++) {
        ts_tensor *back = tsi_pipeline_arrived(p, slot, x->back[i]);
        TSI_TRY(ts_rank_status(p->rank));
        *out = add(*out, back);
    }
    return ts_rank_status(p->rank);
}

typedef struct roots {
    ts_tensor *root[TSI_STAGE_OUTPUTS + 1], *seed[TSI_STAGE_OUTPUTS + 1];
    int32_t count;
} roots;

/* Outputs whose gradient came back, and the loss. */
static ts_status collect_roots(ts_pipeline *p, const ts_cell *c, bool seeds, roots *out)
{
    const tsi_stage *s = &p->stage[c->stage];
    const tsi_flight *f = &p->flight[tsi_pipeline_slot(p, c->stage, c->micro)];
    if (f->loss) out->root[out->count++] = f->loss;
    for (int32_t o = 0; o < s->output_count; o++) {
        int32_t link = s->link[o];
        if (link < 0 || !p->graph.link[link].gradient) continue;
        int64_t slot = tsi_pipeline_slot(p, link, c->micro);
        const tsi_passing *x = &p->passing[slot];
        ts_tensor *seed = NULL;
        if (!x->made) continue;
        if (!ts_tensor_needs_grad(x->made)) { /* what came all the same is given back */
            for (int32_t i = 0; seeds && i < x->back_count; i++) {
                (void)tsi_pipeline_arrived(p, slot, x->back[i]);
                TSI_TRY(ts_rank_status(p->rank));
            }
            continue;
        }
        if (seeds) TSI_TRY(gradient_of(p, slot, &seed));
        if (seeds && !seed) continue;
        out->root[out->count] = x->made;
        out->seed[out->count++] = seed;
    }
    return TS_OK;
}

static void forget_passing(tsi_passing *x)
{
    ts_tensor_release(x->made);
    ts_tensor_release(x->got);
    ts_tensor_release(x->leaf);
    for (int32_t i = 0; i < x->back_count; i++)
        ts_tensor_release(x->back[i]);
    x->made = x->got = x->leaf = NULL;
    x->back_count = 0;
}

/* The stage's outputs are needed no more: their backward, or its last half, is done. */
static void forget_flight(ts_pipeline *p, const ts_cell *c)
{
    const tsi_stage *s = &p->stage[c->stage];
    tsi_flight *f = &p->flight[tsi_pipeline_slot(p, c->stage, c->micro)];
    ts_tape_release(f->tape);
    f->tape = NULL;
    for (int32_t o = 0; o < s->output_count; o++) {
        if (s->link[o] < 0) continue;
        tsi_passing *x = &p->passing[tsi_pipeline_slot(p, s->link[o], c->micro)];
        forget_passing(x);
    }
}

/* Units that are let go after every forward are gathered and reduced for each micro-batch: more
 * messages in less memory. */
static bool by_micro(const ts_module *m)
{
    const tsi_unit *u = m->unit;
    return u && u->axes_cut && u->options.reshard == TS_RESHARD_YES;
}

static bool stage_by_micro(const tsi_stage *s)
{
    bool all = s->module_count > 0;
    for (int64_t i = 0; i < s->module_count && all; i++)
        all = by_micro(s->module[i]);
    return all;
}

static ts_status run_backward(ts_pipeline *p, const ts_cell *c, ts_backward_part part)
{
    roots r = { .count = 0 };
    TSI_TRY(collect_roots(p, c, part != TS_BACKWARD_WEIGHTS, &r));
    tsi_pipeline_begins(p);
    ts_backward_options options = TS_INIT(ts_backward_options);
    options.part = part;
    options.lazy = !stage_by_micro(&p->stage[c->stage]);
    if (r.count == 0) return TS_OK;
    return ts_backward_from(r.root, part == TS_BACKWARD_WEIGHTS ? NULL : r.seed, r.count, &options);
}

/* One user less of each of the stage's inputs. */
static void pass_inputs(ts_pipeline *p, const ts_cell *c)
{
    const tsi_stage_graph *g = &p->graph;
    for (int32_t i = g->in_first[c->stage]; i < g->in_first[c->stage + 1]; i++) {
        tsi_passing *x = &p->passing[tsi_pipeline_slot(p, g->in[i], c->micro)];
        bool remote = !tsi_pipeline_has(p, g->link[g->in[i]].from);
        if (--x->users > 0 || !remote || g->link[g->in[i]].gradient) continue;
        ts_tensor_release(x->leaf); /* nothing of it goes back */
        x->leaf = NULL;
    }
}

ts_status tsi_pipeline_gradient(ts_pipeline *p, const ts_cell *c)
{
    bool whole = c->kind == TS_CELL_BACKWARD;
    TSI_TRY(run_backward(p, c, whole ? TS_BACKWARD_ALL : TS_BACKWARD_INPUTS));
    pass_inputs(p, c);
    if (whole) forget_flight(p, c);
    return TS_OK;
}

ts_status tsi_pipeline_weight(ts_pipeline *p, const ts_cell *c)
{
    TSI_TRY(run_backward(p, c, TS_BACKWARD_WEIGHTS));
    forget_flight(p, c);
    return TS_OK;
}

/* ---- the end of a step ----------------------------------------------------------------------- */

static ts_status settle_param(const char *name, ts_tensor *parameter, void *context)
{
    (void)name;
    (void)context;
    if (!tsi_leaf_of(parameter) || !ts_tensor_grad(parameter)) return TS_OK;
    return ts_grad_settle(parameter);
}

ts_status tsi_pipeline_reduce(ts_pipeline *p, int32_t stage)
{
    for (int64_t i = 0; i < p->stage[stage].module_count; i++)
        TSI_TRY(ts_module_each(p->stage[stage].module[i], settle_param, NULL));
    return TS_OK;
}

ts_status tsi_pipeline_reside(ts_pipeline *p, int32_t stage, bool gathers)
{
    for (int64_t i = 0; i < p->stage[stage].module_count; i++) {
        ts_module *m = p->stage[stage].module[i];
        if (m->unit && !by_micro(m)) TSI_TRY(gathers ? ts_fsdp_gather(m) : ts_fsdp_release(m));
    }
    return TS_OK;
}

void tsi_pipeline_drop(ts_pipeline *p)
{
    for (int64_t i = 0; i < (int64_t)p->stage_count * p->micros; i++) {
        ts_tape_release(p->flight[i].tape);
        ts_tensor_release(p->flight[i].loss);
        p->flight[i] = (tsi_flight){ 0 };
    }
    for (int64_t i = 0; i < (int64_t)p->graph.count * p->micros; i++)
        forget_passing(&p->passing[i]);
    for (int32_t i = 0; i < p->shared_count; i++) {
        ts_tensor_release(p->before[i]);
        p->before[i] = NULL;
    }
}
