/* SPDX-License-Identifier: Apache-2.0 */
/* expand.c - best-first choice of one rule per axis. */
#include "plan/expand.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "layout/cut.h"

enum { COMBINATIONS_MAX = 20000 };

tsi_role tsi_role_of(const ts_placement *place)
{
    /* A cut over several dims is the cut of none of them. */
    if (tsi_placement_cuts(place) && place->dim != place->dim_last) return TSI_ROLE_NONE;
    switch ((ts_placement_kind)place->kind) {
    case TS_PLACE_REPLICATE:
        return TSI_ROLE_R;
    case TS_PLACE_SHARD:
    case TS_PLACE_STRIDED:
    case TS_PLACE_RAGGED:
    case TS_PLACE_HEAD_TAIL:
        return TSI_S(place->dim);
    case TS_PLACE_PARTIAL:
        return TSI_P(place->reduce);
    case TS_PLACE_NORM:
        return TSI_ROLE_NONE;
    }
    return TSI_ROLE_NONE;
}

/* ---- the cost of one rule on one axis -------------------------------------------------------- */

typedef struct option {
    int32_t rule, changes;
    double cost;
} option;

typedef struct axis_cost { /* what the costs of all rules on one axis share */
    int32_t axis, reserved;
    tsi_links_group group;
    tsi_role has[TSI_OPERAND_MAX]; /* the roles of the inputs that there are */
} axis_cost;

static bool same_cut(const ts_placement *a, const ts_placement *b, int64_t axis_size)
{
    ts_placement x = *a, y = *b;
    x.dim = x.dim_last = y.dim = y.dim_last = 0; /* linked dims may have different numbers */
    x.order = y.order = 0;
    return tsi_placement_equal(&x, &y, axis_size);
}

static bool is_plain(const ts_placement *place)
{
    return place->kind == TS_PLACE_SHARD && place->align <= 1 && place->dim == place->dim_last;
}

/* Operands that follow one cut: 0, or 1: those apart. */
static int family_of(const tsi_rules *rules, int32_t operand)
{
    return operand < 64 && rules->apart >> operand & 1;
}

/* The cuts that the families follow on this axis; NULL: plain chunks. */
typedef struct leads {
    const ts_placement *cut[2];
} leads;

/* The first input of a family that is cut as the rule says leads it. */
static inline leads leads_of(const tsi_expand_request *q, int32_t axis, int32_t rule)
{
    const tsi_rules *rules = q->rules;
    const tsi_role *role = tsi_rules_row(rules, rule);
    leads found = { { NULL, NULL } };
    for (int32_t i = 0; i < rules->input_count; i++) {
        if (!tsi_role_is_s(role[i]) || !q->in[i]) continue;
        const ts_placement *place = &q->in[i]->sharding->place[axis];
        if (tsi_role_of(place) != role[i]) continue;
        if (rules->flags[rule] & TSI_RULE_PLAIN && !is_plain(place)) continue;
        const ts_placement **cut = &found.cut[family_of(rules, i)];
        if (!*cut) *cut = place;
        if (!rules->apart) break; /* one family, which has its lead */
    }
    return found;
}

/* Largest local bytes of input i: what one rank holds at most. */
static double local_bytes(const tsi_expand_request *q, int32_t i)
{
    const ts_layout *layout = q->in[i];
    double bytes = (double)q->in_bytes[i];
    for (int32_t d = 0; d < layout->shape.ndim; d++)
        bytes *= (double)layout->shape.extent[d];
    for (int32_t k = 0; k < layout->sharding->ndim; k++)
        if (layout->axes_cut >> k & 1) bytes /= (double)layout->sharding->mesh->size[k];
    return bytes;
}

/* On an axis of one rank every placement says the same, but for a norm, whose one term may be
 * negative, and for a cut over several dims, whose block counts them as one. */
static bool idle(const tsi_expand_request *q, int32_t i, int32_t axis)
{
    if (q->mesh->size[axis] != 1) return false;
    const ts_placement *place = &q->in[i]->sharding->place[axis];
    bool joins = tsi_placement_cuts(place) && place->dim != place->dim_last;
    return place->kind != TS_PLACE_NORM && !joins;
}

/* In place, the result has the target's placement. */
static bool keeps_target(const tsi_expand_request *q, int32_t axis, const tsi_role *role)
{
    return !q->in_place || role[q->rules->input_count] == role[0] || (q->in[0] && idle(q, 0, axis));
}

/* An input that has its role on this axis stays where it is, in the cut that the others follow. */
static bool stays(const tsi_expand_request *q, int32_t i, int32_t axis, tsi_role role,
                  const ts_placement *lead)
{
    const ts_placement *place = &q->in[i]->sharding->place[axis];
    if (!tsi_role_is_s(role)) return true;
    return lead ? same_cut(place, lead, q->mesh->size[axis]) : is_plain(place);
}

static double move_cost(const tsi_expand_request *q, int32_t i, const axis_cost *a, tsi_role to,
                        const ts_placement *lead)
{
    int32_t axis = a->axis;
    tsi_role from = a->has[i];
    int64_t size = q->mesh->size[axis];
    if (size == 1 || from == TSI_ROLE_R) return 0.0;
    if (from == to && stays(q, i, axis, to, lead)) return 0.0;
    const tsi_links_group *group = &a->group;
    double bytes = local_bytes(q, i);
    bool norm = q->in[i]->sharding->place[axis].kind == TS_PLACE_NORM;
    if (tsi_role_is_p(to)) {
        if (!q->in_place) return (double)INFINITY;
        to = TSI_ROLE_R; /* what a target in place must be joined with goes by way of R */
    }
    if (tsi_role_is_s(from) && to == TSI_ROLE_R) { /* and every rank reads the whole of it */
        double whole = bytes * (double)size;
        return tsi_time_all_gather(q->links, group, whole, false) +
               (whole - bytes) * q->links->copy;
    }
    if (tsi_role_is_s(from)) return tsi_time_all_to_all(q->links, group, bytes);
    if (to == TSI_ROLE_R || norm) return tsi_time_all_reduce(q->links, group, bytes);
    return tsi_time_reduce_scatter(q->links, group, bytes, false);
}

static bool divides(const tsi_expand_request *q, int32_t axis, int32_t rule)
{
    const tsi_role *role = tsi_rules_row(q->rules, rule);
    for (int32_t i = 0; i < q->rules->input_count; i++)
        if (q->in[i] && tsi_role_is_s(role[i]) &&
            q->in[i]->shape.extent[tsi_role_dim(role[i])] % q->mesh->size[axis] != 0)
            return false;
    return true;
}

/* What pending results have still to pay: their reduction, in the cheapest form. */
static double result_cost(const tsi_expand_request *q, const axis_cost *a, const tsi_role *out)
{
    double bytes = 0;
    bool pending = false;
    for (int32_t o = 0; o < q->rules->output_count; o++) {
        if (!tsi_role_is_p(out[o])) continue;
        bytes += (double)ts_shape_count(&q->out[o].shape) *
                 (double)ts_dtype_size((ts_dtype)q->out[o].dtype);
        pending = true;
    }
    if (!pending) return 0.0;
    return fmin(tsi_time_reduce_scatter(q->links, &a->group, bytes, false),
                tsi_time_all_reduce(q->links, &a->group, bytes));
}

static option cost_of(const tsi_expand_request *q, const axis_cost *a, int32_t rule)
{
    int32_t axis = a->axis;
    const tsi_role *role = tsi_rules_row(q->rules, rule);
    option o = { .rule = rule };
    leads lead = leads_of(q, axis, rule);
    if (q->rules->flags[rule] & TSI_RULE_EVEN && !divides(q, axis, rule)) o.cost = (double)INFINITY;
    for (int32_t i = 0; i < q->rules->input_count; i++) {
        if (!q->in[i] || role[i] == TSI_ROLE_NONE) continue;
        double cost = move_cost(q, i, a, role[i], lead.cut[family_of(q->rules, i)]);
        o.cost += cost;
        if (!isfinite(o.cost)) return o; /* never taken: what else it costs does not matter */
        bool changed = (cost > 0 || a->has[i] != role[i]) && !idle(q, i, axis);
        if (changed && q->mesh->size[axis] > 1) o.changes++;
        if (changed && q->in_place && i == 0) o.cost = (double)INFINITY;
    }
    if (!keeps_target(q, axis, role)) o.cost = (double)INFINITY;
    uint8_t algorithm = q->rules->algorithm[rule];
    if (algorithm > 0 && q->mesh->size[axis] > 1)
        o.cost += q->algorithm_us[(algorithm - 1) * TS_NDIM_MAX + axis];
    if (o.cost > 0 && isfinite(o.cost)) o.cost += result_cost(q, a, role + q->rules->input_count);
    return o;
}

static bool before(const option *a, const option *b)
{
    if (a->cost != b->cost) return a->cost < b->cost;
    if (a->changes != b->changes) return a->changes < b->changes;
    return a->rule < b->rule;
}

/* All finite options of an axis, best first. */
static int32_t options_of(const tsi_expand_request *q, int32_t axis, option *out)
{
    int32_t count = 0;
    axis_cost a;
    a.axis = axis;
    a.group = tsi_links_of(q->links, 1u << axis);
    for (int32_t i = 0; i < q->rules->input_count; i++)
        if (q->in[i]) a.has[i] = tsi_role_of(&q->in[i]->sharding->place[axis]);
    for (int32_t rule = 0; rule < q->rules->count; rule++) {
        option o = cost_of(q, &a, rule);
        if (!isfinite(o.cost)) continue;
        int32_t at = count++;
        for (; at > 0 && before(&o, &out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = o;
    }
    return count;
}

/* ---- one combination ------------------------------------------------------------------------- */

/* Axes in the order in which they cut: that of the first input that says so, else left to right. */
static void cutting_order(const tsi_expand_request *q, int32_t *order)
{
    int32_t axes = q->mesh->ndim;
    for (int32_t k = 0; k < axes; k++)
        order[k] = k;
    for (int32_t i = 0; i < q->rules->input_count; i++) {
        if (!q->in[i]) continue;
        const ts_sharding *s = q->in[i]->sharding;
        for (int32_t a = 0; a + 1 < s->order_count; a++) {
            int32_t first = s->order[a], second = s->order[a + 1];
            if (s->place[first].dim != s->place[second].dim || first < second) continue;
            /* This input cuts a dim in another order than left to right: take all of its cuts'
             * order. */
            int32_t used = 0;
            uint32_t taken = 0;
            for (int32_t c = 0; c < s->order_count; c++)
                taken |= 1u << s->order[c];
            for (int32_t c = 0; c < s->order_count; c++)
                order[used++] = s->order[c];
            for (int32_t k = 0; k < axes; k++)
                if (!(taken >> k & 1)) order[used++] = k;
            return;
        }
    }
}

static ts_placement place_of(tsi_role role, const ts_placement *cut)
{
    ts_placement place = { .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    if (tsi_role_is_p(role)) {
        place.kind = TS_PLACE_PARTIAL;
        place.reduce = (int32_t)tsi_role_reduce(role);
    } else if (tsi_role_is_s(role)) {
        if (cut)
            place = *cut;
        else
            place.kind = TS_PLACE_SHARD;
        place.dim = place.dim_last = tsi_role_dim(role);
    }
    return place;
}

/* Position of each cutting axis among those that cut the same dim, in the common order. Whether any
 * of the cuts is ragged. */
static bool number_orders(ts_placement *place, const int32_t *order, int32_t axes)
{
    int32_t next[TS_NDIM_MAX] = { 0 };
    bool ragged = false;
    for (int32_t a = 0; a < axes; a++) {
        ts_placement *one = &place[order[a]];
        if (!tsi_placement_cuts(one)) continue;
        one->order = next[one->dim]++;
        ragged = ragged || one->kind == TS_PLACE_RAGGED;
    }
    return ragged;
}

static bool partials_mix(const ts_placement *place, int32_t axes)
{
    int32_t seen = 0;
    for (int32_t k = 0; k < axes; k++) {
        if (place[k].kind != TS_PLACE_PARTIAL) continue;
        bool linear = place[k].reduce == TS_REDUCE_SUM || place[k].reduce == TS_REDUCE_AVG;
        int32_t kind = linear ? TS_REDUCE_SUM : place[k].reduce;
        if (seen && seen != kind) return false;
        seen = kind;
    }
    return true;
}

static bool alone_holds(const tsi_expand_request *q, const tsi_expansion *e)
{
    for (int32_t k = 0; k < q->mesh->ndim; k++) {
        if (!(q->rules->flags[e->rule[k]] & TSI_RULE_ALONE) || q->mesh->size[k] == 1) continue;
        const tsi_role *role = tsi_rules_row(q->rules, e->rule[k]);
        for (int32_t j = 0; j < q->mesh->ndim; j++) {
            if (j == k || q->mesh->size[j] == 1) continue;
            const tsi_role *other = tsi_rules_row(q->rules, e->rule[j]);
            for (int32_t i = 0; i < q->rules->input_count + q->rules->output_count; i++)
                if (tsi_role_is_s(role[i]) && other[i] == role[i]) return false;
        }
    }
    return true;
}

/* Two axes cut one dim of operand i, but only axis b also cuts operand j: then what a rank holds of
 * j is decided by b alone, and what it holds of i lies inside that only if b cuts first. */
static bool nesting_holds(const tsi_expand_request *q, const int32_t *order, const tsi_expansion *e)
{
    int32_t operands = q->rules->input_count + q->rules->output_count;
    for (int32_t first = 0; first < q->mesh->ndim; first++)
        for (int32_t second = first + 1; second < q->mesh->ndim; second++) {
            int32_t a = order[first], b = order[second]; /* a cuts before b */
            if (q->mesh->size[a] == 1 || q->mesh->size[b] == 1 || e->rule[a] == e->rule[b])
                continue;
            const tsi_role *x = tsi_rules_row(q->rules, e->rule[a]);
            const tsi_role *y = tsi_rules_row(q->rules, e->rule[b]);
            bool shared[2] = { false }, only_second[2] = { false };
            for (int32_t i = 0; i < operands; i++) {
                int family = family_of(q->rules, i);
                shared[family] |= tsi_role_is_s(x[i]) && x[i] == y[i];
                only_second[family] |= tsi_role_is_s(y[i]) && x[i] != y[i];
            }
            if ((shared[0] && only_second[0]) || (shared[1] && only_second[1])) return false;
        }
    return true;
}

/* With an EVEN rule all axes that cut a dim together must divide it. */
static bool even_holds(const tsi_expand_request *q, const tsi_expansion *e)
{
    bool even = false;
    for (int32_t k = 0; k < q->mesh->ndim; k++)
        even |= (q->rules->flags[e->rule[k]] & TSI_RULE_EVEN) && q->mesh->size[k] > 1;
    for (int32_t i = 0; even && i < q->rules->input_count; i++) {
        int64_t parts[TS_NDIM_MAX] = { 0 };
        for (int32_t k = 0; q->in[i] && k < q->mesh->ndim; k++) {
            tsi_role role = tsi_rules_row(q->rules, e->rule[k])[i];
            if (!tsi_role_is_s(role) || q->mesh->size[k] == 1) continue;
            int64_t *mine = &parts[tsi_role_dim(role)];
            *mine = (*mine ? *mine : 1) * q->mesh->size[k];
        }
        for (int32_t k = 0; q->in[i] && k < q->mesh->ndim; k++) {
            tsi_role role = tsi_rules_row(q->rules, e->rule[k])[i];
            bool asks = q->rules->flags[e->rule[k]] & TSI_RULE_EVEN && tsi_role_is_s(role);
            int32_t dim = asks ? tsi_role_dim(role) : 0;
            if (asks && parts[dim] && q->in[i]->shape.extent[dim] % parts[dim] != 0) return false;
        }
    }
    return true;
}

/* Ragged sizes add up to what is left when it is their turn to cut (INV of layout.c): beside a cut
 * by another axis that the lead does not have, they do not. Orders are numbered. */
static bool dim_fits(const tsi_mesh_desc *mesh, const ts_placement *place, int32_t dim,
                     int64_t extent)
{
    bool same = true; /* on all coordinates */
    for (int32_t turn = 0; turn < mesh->ndim; turn++)
        for (int32_t k = 0; k < mesh->ndim; k++) {
            if (!tsi_placement_cuts(&place[k]) || place[k].dim != dim || place[k].order != turn)
                continue;
            tsi_cut cut = { &place[k], mesh->size[k], extent };
            if (place[k].kind == TS_PLACE_RAGGED && (!same || tsi_cut_ragged_total(&cut) != extent))
                return false;
            same = same && tsi_cut_even(&cut, &extent);
        }
    return true;
}

static bool ragged_fits(const tsi_mesh_desc *mesh, const ts_placement *place, const ts_shape *shape)
{
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (place[k].kind == TS_PLACE_RAGGED &&
            !dim_fits(mesh, place, place[k].dim, shape->extent[place[k].dim]))
            return false;
    return true;
}

/* Numbers the orders of an operand's placements; false: they do not go together. An operand that is
 * absent (NULL) has none that are ragged. */
static bool operand_fits(const tsi_mesh_desc *mesh, const int32_t *order, ts_placement *place,
                         const ts_shape *shape)
{
    bool ragged = number_orders(place, order, mesh->ndim);
    TSI_ASSERT(shape || !ragged);
    return partials_mix(place, mesh->ndim) && (!ragged || ragged_fits(mesh, place, shape));
}

/* Inputs keep what they are on axes of one rank, unless that does not go with the other axes. */
static void keep_idle(const tsi_expand_request *q, const int32_t *order, tsi_expansion *e)
{
    for (int32_t i = 0; i < q->rules->input_count; i++) {
        ts_placement own[TS_NDIM_MAX];
        bool kept = false;
        memcpy(own, e->in[i], sizeof own);
        for (int32_t k = 0; q->in[i] && k < q->mesh->ndim; k++) {
            if (!idle(q, i, k)) continue;
            own[k] = q->in[i]->sharding->place[k];
            kept = true;
        }
        if (kept && operand_fits(q->mesh, order, own, &q->in[i]->shape))
            memcpy(e->in[i], own, sizeof own);
    }
}

/* One algorithm runs on all axes that have it; false: there is another already. */
static bool take_algorithm(const tsi_expand_request *q, int32_t axis, tsi_expansion *e)
{
    int32_t algorithm = q->rules->algorithm[e->rule[axis]];
    if (algorithm == 0 || q->mesh->size[axis] == 1) return true;
    bool other = e->algorithm && e->algorithm != algorithm;
    if (other && !q->rules->nests) return false;
    if (other && algorithm < e->algorithm) return true;
    if (other) e->algorithm_axes = 0;
    e->algorithm = algorithm;
    e->algorithm_axes |= 1u << axis;
    return true;
}

/* Fills the placements of a combination; false: it is not legal. */
static bool combination_fill(const tsi_expand_request *q, const int32_t *order, tsi_expansion *e)
{
    int32_t axes = q->mesh->ndim, inputs = q->rules->input_count, outputs = q->rules->output_count;
    e->algorithm = 0;
    e->algorithm_axes = 0;
    for (int32_t k = 0; k < axes; k++) {
        const tsi_role *role = tsi_rules_row(q->rules, e->rule[k]);
        leads lead = leads_of(q, k, e->rule[k]);
        for (int32_t i = 0; i < inputs; i++)
            e->in[i][k] = place_of(role[i], lead.cut[family_of(q->rules, i)]);
        for (int32_t o = 0; o < outputs; o++)
            e->out[o][k] = place_of(role[inputs + o], lead.cut[family_of(q->rules, inputs + o)]);
        if (!take_algorithm(q, k, e)) return false;
    }
    const ts_placement *in[TSI_OPERAND_MAX], *out[8];
    /* Conditions look at all axes there could be. */
    for (int32_t i = 0; i < inputs && q->joint; i++)
        for (int32_t k = axes; k < TS_NDIM_MAX; k++)
            e->in[i][k] = place_of(TSI_ROLE_R, NULL);
    for (int32_t i = 0; i < inputs; i++) {
        const ts_shape *shape = q->in[i] ? &q->in[i]->shape : NULL;
        if (!operand_fits(q->mesh, order, e->in[i], shape)) return false;
        in[i] = e->in[i];
    }
    for (int32_t o = 0; o < outputs; o++) {
        if (!operand_fits(q->mesh, order, e->out[o], &q->out[o].shape)) return false;
        out[o] = e->out[o];
    }
    bool legal = alone_holds(q, e) && even_holds(q, e) && nesting_holds(q, order, e) &&
                 (!q->joint || q->joint(q->context, in, out));
    if (legal) keep_idle(q, order, e);
    return legal;
}

/* ---- nothing to choose ----------------------------------------------------------------------- */

/* The rule that is the inputs' own roles on an axis and costs nothing; -1: there is none. */
static int32_t match_of(const tsi_expand_request *q, int32_t axis)
{
    int32_t inputs = q->rules->input_count;
    bool one = q->mesh->size[axis] == 1;
    if (one && (!q->in_place || keeps_target(q, axis, tsi_rules_row(q->rules, 0)))) return 0;
    for (int32_t rule = 0; rule < q->rules->count && !one; rule++) {
        const tsi_role *role = tsi_rules_row(q->rules, rule);
        int32_t i = 0;
        for (; i < inputs; i++)
            if (q->in[i] && role[i] != TSI_ROLE_NONE &&
                tsi_role_of(&q->in[i]->sharding->place[axis]) != role[i])
                break;
        if (i < inputs) continue;
        leads lead = leads_of(q, axis, rule);
        bool fits = q->rules->algorithm[rule] == 0 && keeps_target(q, axis, role) &&
                    (!(q->rules->flags[rule] & TSI_RULE_EVEN) || divides(q, axis, rule));
        for (i = 0; i < inputs && fits; i++)
            fits = !q->in[i] || role[i] == TSI_ROLE_NONE ||
                   stays(q, i, axis, role[i], lead.cut[family_of(q->rules, i)]);
        return fits ? rule : -1;
    }
    return -1;
}

bool tsi_expand_match(const tsi_expand_request *q, tsi_expansion *out)
{
    int32_t order[TS_NDIM_MAX];
    for (int32_t k = 0; k < q->mesh->ndim; k++) {
        out->rule[k] = match_of(q, k);
        if (out->rule[k] < 0) return false;
    }
    cutting_order(q, order);
    out->cost_us = 0;
    out->combinations = 1;
    return combination_fill(q, order, out);
}

/* ---- best first over sums -------------------------------------------------------------------- */

typedef struct candidate {
    double cost;
    int32_t changes, first; /* axes before `first` are settled: children change it or later ones */
    uint8_t pick[TS_NDIM_MAX]; /* place in the axis's options */
} candidate;

typedef struct queue {
    candidate *heap;
    int64_t count, capacity;
    tsi_arena *arena;
} queue;

static bool sooner(const candidate *a, const candidate *b)
{
    if (a->cost != b->cost) return a->cost < b->cost;
    if (a->changes != b->changes) return a->changes < b->changes;
    return memcmp(a->pick, b->pick, sizeof a->pick) < 0;
}

static bool queue_push(queue *q, const candidate *c)
{
    if (q->count == q->capacity) {
        int64_t capacity = q->capacity ? 2 * q->capacity : 64;
        candidate *grown = tsi_arena_alloc(q->arena, (size_t)capacity * sizeof *grown);
        if (!grown) return false;
        if (q->count > 0) memcpy(grown, q->heap, (size_t)q->count * sizeof *grown);
        q->heap = grown;
        q->capacity = capacity;
    }
    int64_t at = q->count++;
    for (; at > 0 && sooner(c, &q->heap[(at - 1) / 2]); at = (at - 1) / 2)
        q->heap[at] = q->heap[(at - 1) / 2];
    q->heap[at] = *c;
    return true;
}

static candidate queue_pop(queue *q)
{
    candidate top = q->heap[0], last = q->heap[--q->count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= q->count) break;
        if (child + 1 < q->count && sooner(&q->heap[child + 1], &q->heap[child])) child++;
        if (!sooner(&q->heap[child], &last)) break;
        q->heap[at] = q->heap[child];
        at = child;
    }
    if (q->count > 0) q->heap[at] = last;
    return top;
}

struct tsi_expand_search {
    const tsi_expand_request *request;
    option *option[TS_NDIM_MAX];
    int32_t option_count[TS_NDIM_MAX];
    int32_t order[TS_NDIM_MAX];
    int32_t axes, looked;
    queue queue;
};

static candidate candidate_of(const tsi_expand_search *s, const uint8_t *pick, int32_t first)
{
    candidate c = { .first = first };
    memcpy(c.pick, pick, sizeof c.pick);
    for (int32_t k = 0; k < s->axes; k++) {
        c.cost += s->option[k][pick[k]].cost;
        c.changes += s->option[k][pick[k]].changes;
    }
    return c;
}

/* The next worse option on one axis at a time; each combination has one parent, so none comes
 * twice. */
static bool push_children(tsi_expand_search *s, const candidate *c)
{
    for (int32_t k = c->first; k < s->axes; k++) {
        if (c->pick[k] + 1 >= s->option_count[k]) continue;
        uint8_t pick[TS_NDIM_MAX];
        memcpy(pick, c->pick, sizeof pick);
        pick[k]++;
        candidate child = candidate_of(s, pick, k);
        if (!queue_push(&s->queue, &child)) return false;
    }
    return true;
}

static ts_status fail_queue(void)
{
    return tsi_fail_memory("the queue of combinations", sizeof(candidate));
}

tsi_expand_search *tsi_expand_begin(const tsi_expand_request *request, tsi_arena *arena,
                                    ts_status *status)
{
    tsi_expand_search *s = tsi_arena_calloc(arena, 1, sizeof *s);
    *status = s ? TS_OK : fail_queue();
    if (!s) return NULL;
    s->request = request;
    s->axes = request->mesh->ndim;
    s->queue.arena = arena;
    for (int32_t k = 0; k < s->axes; k++) {
        s->option[k] = tsi_arena_alloc(arena, (size_t)request->rules->count * sizeof(option));
        if (!s->option[k]) {
            *status = tsi_fail_memory("the options of an axis", sizeof(option));
            return NULL;
        }
        s->option_count[k] = options_of(request, k, s->option[k]);
        if (s->option_count[k] > UINT8_MAX) s->option_count[k] = UINT8_MAX;
        if (s->option_count[k] == 0) {
            *status = TS_ERR_POLICY;
            return NULL;
        }
    }
    cutting_order(request, s->order);
    candidate c = candidate_of(s, (uint8_t[TS_NDIM_MAX]){ 0 }, 0);
    if (queue_push(&s->queue, &c)) return s;
    *status = fail_queue();
    return NULL;
}

ts_status tsi_expand_next(tsi_expand_search *s, tsi_expansion *out)
{
    while (s->queue.count > 0 && s->looked < COMBINATIONS_MAX) {
        candidate c = queue_pop(&s->queue);
        s->looked++;
        for (int32_t k = 0; k < s->axes; k++)
            out->rule[k] = s->option[k][c.pick[k]].rule;
        out->cost_us = c.cost;
        out->combinations = s->looked;
        if (!push_children(s, &c)) return fail_queue();
        if (combination_fill(s->request, s->order, out)) return TS_OK;
    }
    return TS_ERR_POLICY;
}
