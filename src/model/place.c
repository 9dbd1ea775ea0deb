/* SPDX-License-Identifier: Apache-2.0 */
/* place.c - which rank of a group holds which experts: evenly by load, between steps.
 *
 *   loads --largest first to the least busy rank--> sets of experts --to the rank that has most of
 *   a set already--> a ragged cut of dim 0 --redistribution--> parameters and optimiser state
 *
 * Where that does not make ranks even, because one expert has more than its rank's share, the
 * largest are copied, as long as that helps: each rank then computes its own rows of them
 * (model/experts.c). What is stored of a copied expert, and its optimiser's state, stays one and
 * lies with the first rank of the group, from where it is spread in every step, and where its
 * gradients are reduced to.
 *
 * Rows find their experts by the layout of the matrices (op/matrix/grouped_mlp_exchange.c), so
 * nothing else changes. Experts that belong to a unit of sharded data parallelism are cut by it as
 * before, inside of what each rank of the group has (parallel/shards.c).
 *
 * INV: a pure function of loads and layouts: all ranks place alike. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "model/router.h"
#include "op/op.h"
#include "parallel/unit.h"
#include "tessera/plan.h"

enum { FIRST = 0 };             /* where copied experts are stored */
static const double even = 1.1; /* the busiest rank over the mean: below it nothing is copied */

/* An arrangement of a layer's experts. */
typedef struct arrangement {
    int64_t *rank;   /* [experts]: of the group */
    int64_t *copied; /* [experts]: 1 where every rank computes it for its own rows */
} arrangement;

typedef struct placing {
    ts_model *model;
    ts_optimizer *optimizer;
    int32_t axis;
    int64_t ranks, experts;
    bool splits; /* ranks of the group have rows of their own: copies share a load */
    arrangement now, then;
    int64_t *set;   /* [experts]: of those that belong together */
    double *sum;    /* [ranks] */
    int64_t *order; /* [experts]: by load */
    const double *load;
} placing;

/* ---- who gets what --------------------------------------------------------------------------- */

/* The busiest rank's load over the mean, where ranks have sums of their own and share the rest. */
static double ratio_of_sums(const placing *p, double shared)
{
    double all = 0, most = 0;
    for (int64_t e = 0; e < p->experts; e++)
        all += p->load[e];
    for (int64_t r = 0; r < p->ranks; r++)
        most = fmax(most, p->sum[r]);
    return all > 0 ? (most * (double)p->ranks + shared) / all : 1.0;
}

static double ratio_of(const placing *p, const arrangement *a)
{
    double shared = 0;
    memset(p->sum, 0, (size_t)p->ranks * sizeof *p->sum);
    for (int64_t e = 0; e < p->experts; e++) {
        if (a->copied[e])
            shared += p->load[e];
        else
            p->sum[a->rank[e]] += p->load[e];
    }
    return ratio_of_sums(p, shared);
}

/* Experts by load, the largest first; of equal ones the smaller index. */
static void sort_loads(placing *p)
{
    for (int64_t e = 0; e < p->experts; e++) {
        int64_t at = e;
        for (; at > 0 && p->load[p->order[at - 1]] < p->load[e]; at--)
            p->order[at] = p->order[at - 1];
        p->order[at] = e;
    }
}

/* Largest load first, to the set that has least; ties go to the smaller index. */
static void make_sets(placing *p)
{
    memset(p->sum, 0, (size_t)p->ranks * sizeof *p->sum);
    for (int64_t i = 0; i < p->experts; i++) {
        int64_t least = 0, e = p->order[i];
        for (int64_t r = 1; r < p->ranks; r++)
            if (p->sum[r] < p->sum[least]) least = r;
        p->set[e] = p->then.copied[e] ? -1 : least;
        if (!p->then.copied[e]) p->sum[least] += p->load[e];
    }
}

/* Experts of a set that a rank has already. */
static int64_t common(const placing *p, int64_t set, int64_t rank)
{
    int64_t count = 0;
    for (int64_t e = 0; e < p->experts; e++)
        count += p->set[e] == set && p->now.rank[e] == rank;
    return count;
}

/* Each set to a rank: those with most in common first. */
static ts_status match_sets(placing *p, tsi_arena *arena)
{
    int64_t *rank_of = tsi_arena_alloc(arena, (size_t)(2 * p->ranks + 1) * sizeof *rank_of);
    if (!rank_of) return tsi_fail_memory("the ranks of experts", (size_t)p->ranks * 16);
    int64_t *taken = rank_of + p->ranks;
    for (int64_t r = 0; r < p->ranks; r++)
        rank_of[r] = taken[r] = -1;
    for (int64_t n = 0; n < p->ranks; n++) {
        int64_t best = -1, set = 0, rank = 0;
        for (int64_t i = 0; i < p->ranks * p->ranks; i++) {
            int64_t s = i / p->ranks, r = i % p->ranks;
            int64_t have = rank_of[s] < 0 && taken[r] < 0 ? common(p, s, r) : -1;
            if (have <= best) continue;
            best = have;
            set = s;
            rank = r;
        }
        rank_of[set] = rank;
        taken[rank] = set;
    }
    for (int64_t e = 0; e < p->experts; e++)
        p->then.rank[e] = p->set[e] < 0 ? FIRST : rank_of[p->set[e]];
    return TS_OK;
}

/* Most experts that may be copied: beyond half of them little is left to place, and those of a
 * layer are joined by one call (copies_of in model/experts.c). */
static int64_t copies_most(const placing *p)
{
    return p->splits ? tsi_min_i64(p->experts / 2, TSI_INPUT_MAX - 1) : 0;
}

/* The next arrangement: with as few copies as make ranks even, or else as even as copies can. One
 * more may make it worse, where a rank is left without work, and the next better again: fewer
 * experts than ranks have more than a rank's share, so it ends after as many in vain. */
static ts_status arrange(placing *p, tsi_arena *arena)
{
    int64_t most = copies_most(p), best = 0;
    double least = (double)INFINITY, shared = 0;
    memset(p->then.copied, 0, (size_t)p->experts * sizeof *p->then.copied);
    sort_loads(p);
    for (int64_t copies = 0;; copies++) {
        make_sets(p);
        double ratio = ratio_of_sums(p, shared);
        if (ratio < least) {
            least = ratio;
            best = copies;
        }
        if (least <= even || copies == most || copies - best == p->ranks) break;
        p->then.copied[p->order[copies]] = 1;
        shared += p->load[p->order[copies]];
    }
    for (int64_t i = best; i < p->experts; i++)
        p->then.copied[p->order[i]] = 0;
    make_sets(p);
    return match_sets(p, arena);
}

/* "fsdp:RS(0:1,2|0,1)": experts in their order; a round ends where the rank goes back. */
static char *cut_text(const placing *p, tsi_arena *arena)
{
    int64_t *size = tsi_arena_calloc(arena, (size_t)p->ranks + 1, sizeof *size), last = 0;
    tsi_text text = { 0 };
    if (!size) return NULL;
    tsi_text_printf(&text, "%s:RS(0:", ts_mesh_axis_name(p->model->mesh, p->axis));
    for (int64_t e = 0; e <= p->experts; e++) {
        bool ends = e == p->experts || p->then.rank[e] < last;
        for (int64_t r = 0; ends && r < p->ranks; r++) {
            tsi_text_printf(&text, "%s%lld", r ? "," : "", (long long)size[r]);
            size[r] = 0;
        }
        if (e == p->experts) break;
        if (ends) tsi_text_add(&text, "|");
        last = p->then.rank[e];
        size[last]++;
    }
    tsi_text_add(&text, ")");
    return tsi_text_take(&text);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static ts_status add_bytes(const ts_layout *from, const ts_layout *to, ts_dtype dtype,
                           int64_t times, ts_experts_moves *out)
{
    ts_plan *plan = NULL;
    ts_plan_summary summary = TS_INIT(ts_plan_summary);
    TSI_TRY(ts_plan_cached(from, to, dtype, NULL, &plan));
    ts_plan_summarise(plan, &summary);
    ts_plan_release(plan);
    out->bytes += times * summary.bytes_received;
    out->bytes_bound += times * summary.bytes_bound;
    return TS_OK;
}

/* Of a parameter that is in no unit. */
static ts_status move_value(const placing *p, ts_tensor *param, const ts_sharding *to)
{
    ts_scope scope = ts_scope_open(p->model->rank, NULL);
    ts_tensor *moved = (ts_redistribute_to)(param, to);
    ts_status status = moved ? ts_tensor_wait(moved) : ts_rank_status(p->model->rank);
    if (status == TS_OK) status = ts_tensor_write(param, moved);
    tsi_leaf *leaf = tsi_leaf_of(param);
    if (status == TS_OK && leaf) status = tsi_leaf_place(leaf, param);
    ts_scope_close(scope);
    return status;
}

/* As it is seen now, but for the cut of the group's axis. Retained; NULL: recorded. */
static const ts_sharding *target_of(const placing *p, const tsi_param *param,
                                    const ts_sharding *ragged)
{
    ts_placement place[TS_NDIM_MAX];
    const ts_sharding *whole = tsi_unit_whole(param);
    memcpy(place, whole->place, sizeof place);
    place[p->axis] = ragged->place[p->axis];
    return tsi_sharding_intern(whole->mesh, place);
}

static ts_status move_param(const placing *p, tsi_param *body, const ts_sharding *ragged,
                            ts_experts_moves *out)
{
    ts_tensor *param = body->value;
    if (body->unit) TSI_TRY(tsi_unit_take_back(body->unit)); /* moments lie as its shard does */
    const ts_sharding *to = target_of(p, body, ragged);
    if (!to) return ts_rank_status(p->model->rank);
    const ts_layout *from = ts_layout_retain(param->layout);
    ts_status status = body->unit ? tsi_unit_place_anew(body, to) : move_value(p, param, to);
    ts_sharding_release(to);
    int32_t moments = 0;
    ts_dtype dtype = TS_DTYPE_F32;
    if (status == TS_OK) status = tsi_optimizer_follow(p->optimizer, param, &moments, &dtype);
    if (status == TS_OK) status = add_bytes(from, param->layout, (ts_dtype)param->dtype, 1, out);
    if (status == TS_OK) status = add_bytes(from, param->layout, dtype, moments, out);
    ts_layout_release(from);
    return status;
}

/* The rank that holds each expert now. */
static ts_status read_owners(const placing *p, const tsi_param *param, tsi_arena *arena)
{
    int64_t coord[TS_NDIM_MAX];
    const ts_layout *layout = tsi_layout_intern(tsi_unit_whole(param), &param->shape);
    if (!layout) return ts_rank_status(p->model->rank);
    memcpy(coord, p->model->mesh->coord, sizeof coord);
    ts_status status = TS_OK;
    for (int64_t r = 0; r < p->ranks && status == TS_OK; r++) {
        tsi_span_list list = { .total = 0 };
        coord[p->axis] = r;
        if (!tsi_layout_region_dim(layout, coord, 0, arena, &list))
            status = tsi_fail_memory("the experts of a rank", 0);
        for (int64_t i = 0; i < list.total; i++)
            p->now.rank[tsi_span_list_at(&list, i)] = r;
    }
    ts_layout_release(layout);
    return status;
}

/* Parameters and their state go where the next arrangement wants them. */
static ts_status move_experts(const placing *p, const tsi_router *router, tsi_arena *arena,
                              ts_experts_moves *out)
{
    int64_t moved = 0;
    for (int64_t e = 0; e < p->experts; e++)
        moved += p->now.rank[e] != p->then.rank[e];
    if (moved == 0) return TS_OK;
    char *text = cut_text(p, arena);
    if (!text) return tsi_fail_memory("a cut of experts", 64);
    const ts_sharding *ragged = ts_sharding_get(p->model->mesh, text);
    ts_status status = ragged ? TS_OK : ts_rank_status(p->model->rank);
    for (tsi_param *q = router->experts->param_first; q && status == TS_OK; q = q->next)
        status = move_param(p, q, ragged, out);
    tsi_free(text);
    out->moved += moved;
    return status;
}

/* Of one expert as it travels: cast before it is spread. */
static int64_t expert_bytes(const placing *p, const tsi_router *router)
{
    int64_t bytes = 0;
    for (const tsi_param *q = router->experts->param_first; q; q = q->next) {
        int32_t dtype = p->model->compute ? p->model->compute : q->value->dtype;
        bytes += ts_shape_count(&q->value->layout->shape) / p->experts *
                 (int64_t)ts_dtype_size((ts_dtype)dtype);
    }
    return bytes;
}

/* Ranks that hold the same group of experts, and the same parts of each. */
static int64_t groups_of(const placing *p, const tsi_param *param)
{
    const ts_sharding *whole = tsi_unit_whole(param);
    int64_t groups = 1;
    for (int32_t k = 0; k < whole->ndim; k++)
        if (k != p->axis && !tsi_placement_cuts(&whole->place[k])) groups *= whole->mesh->size[k];
    return groups;
}

/* The router's list of copies; what they receive each time they are spread. */
static ts_status copy_experts(const placing *p, tsi_router *router, ts_experts_moves *out)
{
    int64_t *copies = tsi_calloc((size_t)p->experts + 1, sizeof *copies), count = 0;
    if (!copies) return tsi_fail_memory("a list of experts", (size_t)p->experts * sizeof *copies);
    for (int64_t e = 0; e < p->experts; e++)
        if (p->then.copied[e]) copies[count++] = e;
    tsi_free(router->copy);
    router->copy = copies;
    router->copy_count = count;
    out->copied += count;
    out->copy_bytes += count * expert_bytes(p, router) * (p->ranks - 1) *
                       groups_of(p, router->experts->param_first);
    return TS_OK;
}

static ts_status place_layer(placing *p, tsi_router *router, tsi_arena *arena,
                             ts_experts_moves *out)
{
    const tsi_param *first = router->experts->param_first;
    for (const tsi_param *q = first; q; q = q->next)
        if (!q->value->layout)
            return TSI_FAIL(TS_ERR_MISSING,
                            "experts_place: layer %lld: its experts have no storage",
                            (long long)router->layer);
    TSI_TRY(read_owners(p, first, arena));
    memset(p->now.copied, 0, (size_t)p->experts * sizeof *p->now.copied);
    for (int64_t i = 0; i < router->copy_count; i++)
        p->now.copied[router->copy[i]] = 1;
    double now = ratio_of(p, &p->now);
    TSI_TRY(arrange(p, arena));
    double then = ratio_of(p, &p->then);
    if (then >= now)
        for (int64_t e = 0; e < p->experts; e++) {
            p->then.rank[e] = p->now.rank[e];
            p->then.copied[e] = p->now.copied[e];
        }
    out->ratio_before = fmax(out->ratio_before, now);
    out->ratio_after = fmax(out->ratio_after, fmin(now, then));
    TSI_TRY(move_experts(p, router, arena, out));
    return copy_experts(p, router, out);
}

static ts_status refuse(const ts_model *m, const char *why)
{
    char text[256];
    (void)ts_mesh_text(m->mesh, text, sizeof text);
    return TSI_FAIL(TS_ERR_ARG, "experts_place: on the mesh \"%s\": %s", text, why);
}

static ts_status check(const ts_model *m, const double *loads)
{
    if (!m->ep_axes) return refuse(m, "experts are not cut over ranks (ts_model_options.ep)");
    if (m->ep_axes & (m->ep_axes - 1)) return refuse(m, "experts are cut over more than one axis");
    for (int64_t i = 0; i < m->router_count * m->config.experts; i++)
        if (!(loads[i] >= 0) || !isfinite(loads[i]))
            return TSI_FAIL(
                TS_ERR_ARG, "experts_place: the load of expert %lld of router %lld is %g",
                (long long)(i % m->config.experts), (long long)(i / m->config.experts), loads[i]);
    return TS_OK;
}

ts_status ts_experts_place(ts_model *m, ts_optimizer *optimizer, const double *loads,
                           ts_experts_moves *out)
{
    if (!m || !loads || !out) return TSI_FAIL(TS_ERR_NULL, "experts_place: an argument is NULL");
    TSI_TRY(tsi_rank_enter(m->rank));
    *out = (ts_experts_moves){ .struct_size = sizeof *out };
    TSI_TRY(check(m, loads));
    tsi_arena arena = { 0 };
    placing p = { .model = m, .optimizer = optimizer, .experts = m->config.experts };
    while (!(m->ep_axes >> p.axis & 1))
        p.axis++;
    p.ranks = ts_mesh_axis_size(m->mesh, p.axis);
    size_t experts = (size_t)p.experts;
    int64_t *room = tsi_arena_calloc(&arena, 6 * experts + 1, sizeof *room);
    p.sum = tsi_arena_calloc(&arena, (size_t)p.ranks, sizeof *p.sum);
    ts_status status = room && p.sum ? TS_OK : tsi_fail_memory("a placing", experts * 48);
    p.splits = p.axis != ts_mesh_axis(m->mesh, "tp"); /* there all have the same rows */
    p.now = (arrangement){ room, room + experts };
    p.then = (arrangement){ room + 2 * experts, room + 3 * experts };
    p.set = room + 4 * experts;
    p.order = room + 5 * experts;
    for (int64_t i = 0; i < m->router_count && status == TS_OK; i++) {
        p.load = loads + i * p.experts;
        status = place_layer(&p, m->router[i], &arena, out);
    }
    tsi_arena_release(&arena);
    return status;
}

size_t ts_experts_text(const ts_model *m, char *out, size_t size)
{
    tsi_text text = { 0 };
    for (int64_t i = 0; m && i < m->router_count; i++) {
        const tsi_param *first = m->router[i]->experts->param_first;
        const ts_layout *layout = first && first->value ? first->value->layout : NULL;
        tsi_text_printf(&text, "layer %lld: %s", (long long)m->router[i]->layer,
                        layout ? layout->text : "no storage");
        for (int64_t c = 0; c < m->router[i]->copy_count; c++)
            tsi_text_printf(&text, "%s %lld",
                            c ? "," : "; on all ranks:", (long long)m->router[i]->copy[c]);
        tsi_text_add(&text, "\n");
    }
    size_t length = text.length;
    char *all = tsi_text_take(&text);
    if (size > 0) snprintf(out, size, "%s", all ? all : "");
    tsi_free(all);
    return length;
}
