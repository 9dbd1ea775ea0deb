/* SPDX-License-Identifier: Apache-2.0 */
/* attention_weigh.c - which algorithm runs where the sequence is cut: what each of them moves,
 * holds and waits for, from layouts and mask alone.
 *
 * INV: a pure function of the request; bytes are those that the algorithm will receive. */
#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "mask/mask.h"
#include "op/nn/attention_context.h"
#include "plan/topology.h"
#include "tensor/tensor.h"

const tsi_algorithm tsi_attention_contexts[] = {
    { "gather", tsi_context_gather, tsi_context_bytes },
    { "ring", tsi_context_ring, tsi_context_bytes },
    { "heads", tsi_context_heads, tsi_context_bytes },
    { "two-level", tsi_context_two_level, tsi_context_bytes },
    { 0 }
};

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Where q, k and v are cut along the sequence they stay so: moving them to another cut may have
 * fewer bytes and leave the work to fewer ranks, which the search does not see. Algorithms are
 * weighed against each other, with layouts and mask, by tsi_attention_pick. */
int64_t tsi_context_bytes(const tsi_op_call *call, int64_t n)
{
    (void)call, (void)n;
    return 0;
}

/* What the members of one group receive and hold. */
typedef struct traffic {
    int64_t rows;      /* keys that travel, all members together */
    int64_t rows_most; /* that one member receives */
    int64_t steps;     /* of a ring: offsets at which anybody needs anything */
    double balance;    /* work of the busiest member over the mean */
} traffic;

static ts_status traffic_of(const tsi_context *c, tsi_arena *arena, traffic *out)
{
    *out = (traffic){ .balance = 1 };
    for (int64_t i = 1; i < c->size; i++) {
        int64_t here = 0;
        for (int64_t to = 0; to < c->size; to++) {
            tsi_span_list need;
            TSI_TRY(tsi_context_need(c, to, (to + c->size - i) % c->size, arena, &need));
            here += need.total;
        }
        out->rows += here;
        out->steps += here > 0;
    }
    for (int64_t to = 0; to < c->size; to++)
        out->rows_most = tsi_max_i64(out->rows_most, c->sees[to].total - c->keys[to].total);
    return TS_OK;
}

/* Pairs of one head and row that the busiest member computes, and the mean. */
static ts_status pairs_of(const tsi_op_call *call, const tsi_mesh_desc *mesh, const tsi_context *c,
                          double *most_out, double *mean)
{
    const ts_mask *mask;
    TSI_TRY(tsi_context_mask(call, mesh->world, &mask));
    int64_t keys = call->in[1].shape.extent[2], offset = keys - call->in[0].shape.extent[2];
    double most = 0, all = 0;
    for (int64_t i = 0; i < c->size; i++) {
        double work = 0;
        tsi_context_walk walk = { .list = &c->queries[i] };
        while (tsi_context_next(&walk))
            work += (double)tsi_mask_pairs(mask, (tsi_mask_at){ 0 }, walk.begin + offset,
                                           walk.begin + walk.count + offset, keys);
        all += work;
        if (work > most) most = work;
    }
    *most_out = most;
    *mean = all / (double)c->size;
    ts_mask_release(mask);
    return TS_OK;
}

/* ---- choosing -------------------------------------------------------------------------------- */

typedef struct weighing {
    const tsi_algorithm_request *request;
    traffic traffic;
    int64_t size, groups; /* members of a group, groups of the mesh */
    int64_t row_bytes;    /* of one key and its value, of a member's rows and heads */
    int64_t moved;        /* bytes of keys and values that travel, in all groups */
    int64_t out_bytes;    /* of a member's result, as sums */
    int64_t sum_bytes;    /* of sums that are not the result itself */
    double compute_us;    /* of the mean member; `late_us`: of the busiest beyond that */
    double late_us;
    double latency_us, bytes_per_us, flops_per_us;
    bool backward;
} weighing;

static int64_t local_rows(const ts_layout *layout, const int64_t *coord)
{
    ts_shape local = ts_layout_local(layout, coord);
    return local.extent[0] * local.extent[1];
}

static void weigh_links(weighing *w)
{
    tsi_links links;
    ts_topology topology = TS_INIT(ts_topology);
    tsi_mesh_desc *mesh = w->request->mesh;
    w->latency_us = 5;
    w->bytes_per_us = 10000;
    ts_status known = ts_topology_of(mesh->world, &topology);
    w->flops_per_us = tsi_topology_flops(&topology, (ts_dtype)w->request->call->in[0].dtype);
    if (known != TS_OK) return;
    tsi_links_make(&topology, mesh, mesh->count, &links);
    tsi_links_group group = tsi_links_of(&links, w->request->axes);
    /* What two sizes cost tells the latency and the rate of an exchange. */
    double small = tsi_time_all_to_all(&links, &group, 1.0);
    double large = tsi_time_all_to_all(&links, &group, 1e6 + 1.0);
    w->latency_us = small;
    if (large > small) w->bytes_per_us = 1e6 / (large - small);
}

/* Times of candidates are those beyond the arithmetic of a rank with its even share. */
static void weigh_work(weighing *w, const int64_t *coord, double most, double mean)
{
    const tsi_op_call *call = w->request->call;
    double each = (w->backward ? 5.0 : 2.0) *
                  (double)(call->in[0].shape.extent[3] + call->in[2].shape.extent[3]) *
                  (double)local_rows(w->request->in[0], coord);
    ts_shape own = ts_layout_local(w->request->in[0], coord);
    w->out_bytes = ts_shape_count(&own) * (call->in[0].dtype == TS_DTYPE_F64 ? 8 : 4);
    w->sum_bytes = ts_dtype_size((ts_dtype)call->in[0].dtype) < 4 ? w->out_bytes : 0;
    w->compute_us = mean * each / w->flops_per_us;
    w->late_us = (most - mean) * each / w->flops_per_us;
    w->traffic.balance = mean > 0 ? most / mean : 1.0;
}

static tsi_algorithm_candidate travelling(const weighing *w, int32_t algorithm)
{
    const traffic *t = &w->traffic;
    const ts_meta *k = &w->request->call->in[1];
    int64_t row = w->row_bytes, back = 0, rounds = w->backward ? 2 : 1;
    tsi_algorithm_candidate c = { .algorithm = algorithm, .balance = t->balance };
    c.bytes = w->moved;
    if (w->backward) { /* home they go as sums */
        int64_t size = (int64_t)ts_dtype_size((ts_dtype)k->dtype);
        int64_t wide = k->dtype == TS_DTYPE_F64 ? 8 : 4;
        back = row / size * wide;
        c.bytes += w->moved / size * wide;
    }
    double move = (double)(t->rows_most * row) / w->bytes_per_us;
    double home = (double)(t->rows_most * back) / w->bytes_per_us;
    if (t->rows == 0) rounds = 0;
    if (algorithm == TSI_CONTEXT_GATHER) {
        c.steps = (int32_t)rounds;
        c.memory = t->rows_most * (row + back);
        c.us = w->latency_us * (double)rounds + move + home + w->late_us;
    } else { /* messages hide behind the work of a step; each step reads and writes o */
        int64_t steps = tsi_max_i64(t->steps, 1);
        c.steps = (int32_t)(rounds * t->steps);
        int64_t places = t->steps < 2 ? t->steps : 2;
        c.memory = places * tsi_ceil_div(t->rows_most * (row + back), steps) + w->sum_bytes;
        double each = w->compute_us / (double)(t->steps + 1);
        double step = (move + home) / (double)steps + w->latency_us * (double)rounds;
        c.us = (double)(2 * w->out_bytes * t->steps) / 1e4 + w->late_us +
               (step > each ? (step - each) * (double)t->steps : 0);
    }
    return c;
}

/* ---- by heads -------------------------------------------------------------------------------- */

/* Where heads do not divide among the ranks, the last get fewer or none, and every head needs keys
 * of its own; so it does where sizes were given. */
int64_t tsi_context_repeats(const tsi_op_call *call, const ts_layout *q, uint32_t axes)
{
    int64_t heads = call->in[0].shape.extent[1], groups = call->in[1].shape.extent[1], ranks = 1;
    const ts_sharding *s = q->sharding;
    bool ragged = false;
    for (int32_t k = 0; k < s->ndim; k++) {
        bool cuts = tsi_placement_cuts(&s->place[k]) && s->place[k].dim == 1;
        ragged = ragged || (cuts && s->place[k].kind == TS_PLACE_RAGGED);
        if (axes >> k & 1 || cuts) ranks *= s->mesh->size[k];
    }
    if (heads % ranks || ragged) return heads / groups;
    if (groups % ranks == 0) return 1;
    return ranks % groups ? heads / groups : ranks / groups;
}

typedef struct turning { /* of one operand, all ranks together */
    int64_t bytes;       /* received */
    int64_t most;        /* held by the rank with most */
    double balance;      /* that over the mean */
} turning;

/* What a rank has of both layouts. */
static ts_status turn_rank(const ts_layout *before, const ts_layout *after, const int64_t *coord,
                           tsi_arena *arena, int64_t *have, int64_t *missing)
{
    int64_t common = 1, count = 1;
    for (int32_t d = 0; d < before->shape.ndim; d++) {
        tsi_span_list a, b;
        if (!tsi_layout_region_dim(before, coord, d, arena, &a) ||
            !tsi_layout_region_dim(after, coord, d, arena, &b))
            return tsi_fail_memory("regions of heads", sizeof a);
        common *= tsi_span_list_intersect_count(&a, &b);
        count *= b.total;
    }
    *have = count;
    *missing = count - common;
    return TS_OK;
}

static ts_status turn_operand(const weighing *w, const ts_layout *before, ts_dtype dtype,
                              uint32_t axes, int64_t repeats, turning *out)
{
    tsi_mesh_desc *mesh = w->request->mesh;
    const ts_layout *many = tsi_context_repeated(before, w->request->in[0], repeats), *after = NULL;
    tsi_arena arena = { 0 };
    ts_status status = many ? TS_OK : TS_ERR_MEMORY;
    int64_t all = 0, size = (int64_t)ts_dtype_size(dtype);
    *out = (turning){ .balance = 1 };
    if (status == TS_OK) {
        after = tsi_context_turned(many, axes);
        status = after ? TS_OK : TS_ERR_MEMORY;
    }
    for (int64_t i = 0; i < mesh->count && status == TS_OK; i++) {
        int64_t coord[TS_NDIM_MAX] = { 0 }, have = 0, missing = 0;
        tsi_mesh_desc_unravel(mesh, i, coord);
        status = turn_rank(many, after, coord, &arena, &have, &missing);
        out->bytes += missing * size;
        out->most = tsi_max_i64(out->most, have * size);
        all += have * size;
        tsi_arena_reset(&arena);
    }
    if (all > 0) out->balance = (double)out->most * (double)mesh->count / (double)all;
    tsi_arena_release(&arena);
    ts_layout_release(after);
    ts_layout_release(many);
    return status;
}

/* Operands go to heads, results back: rows as the rule gives them, gradients as the operands they
 * are of came. */
static ts_status by_heads(const weighing *w, uint32_t axes, tsi_algorithm_candidate *out)
{
    const tsi_algorithm_request *request = w->request;
    const tsi_op_call *call = request->call;
    int64_t repeats = tsi_context_repeats(call, request->in[0], axes);
    *out = (tsi_algorithm_candidate){ .algorithm = TSI_CONTEXT_HEADS, .balance = 1 };
    out->steps = w->backward ? 9 : 5;
    for (int32_t i = 0; i < call->input_count + call->output_count; i++) {
        int32_t o = i - call->input_count;
        bool lse = w->backward ? i == 4 : o == 1;
        int32_t of = o < 0 ? i : w->backward ? o : 0;
        const ts_meta *m = o < 0 ? &call->in[i] : &call->out[o];
        const ts_layout *layout = !w->backward && o >= 0 ? request->out[o] : request->in[of];
        turning t = { .balance = 1 };
        TSI_TRY(turn_operand(w, layout, (ts_dtype)m->dtype, axes, of == 1 || of == 2 ? repeats : 1,
                             &t));
        out->bytes += t.bytes;
        out->memory += t.most;
        if (!lse && t.balance > out->balance) out->balance = t.balance;
    }
    double ranks = (double)(w->size * w->groups);
    out->us = w->latency_us * out->steps + (double)out->bytes / ranks / w->bytes_per_us +
              (out->balance - 1) * w->compute_us;
    return TS_OK;
}

/* ---- two levels ------------------------------------------------------------------------------ */

static ts_status weigh_groups(weighing *w);

uint32_t tsi_context_inner(uint32_t axes)
{
    while (axes & (axes - 1)) /* the highest bit: the innermost axis */
        axes &= axes - 1;
    return axes;
}

/* Where the sequence is cut by several axes, the inner one turns to heads and what the others cut
 * travels: both are weighed as they will run. */
static ts_status in_two_levels(const weighing *w, tsi_algorithm_candidate *out)
{
    const tsi_algorithm_request *request = w->request;
    uint32_t inner = tsi_context_inner(request->axes), outer = request->axes & ~inner;
    const ts_layout *in[TSI_INPUT_MAX] = { NULL };
    tsi_algorithm_request rest = { request->call, in, request->mesh, outer, 0, NULL };
    weighing v = { .request = &rest, .backward = w->backward, .flops_per_us = w->flops_per_us };
    *out = (tsi_algorithm_candidate){ .balance = 1 };
    if (outer == 0) return TS_OK;
    tsi_algorithm_candidate turned;
    TSI_TRY(by_heads(w, inner, &turned));
    int64_t repeats = tsi_context_repeats(request->call, request->in[0], inner);
    ts_status status = TS_OK;
    for (int32_t i = 0; i < 3 && status == TS_OK; i++) {
        const ts_layout *many =
            tsi_context_repeated(request->in[i], request->in[0], i ? repeats : 1);
        in[i] = many ? tsi_context_turned(many, inner) : NULL;
        ts_layout_release(many);
        if (!in[i]) status = TS_ERR_MEMORY;
    }
    if (status == TS_OK) status = weigh_groups(&v);
    for (int32_t i = 0; i < 3; i++)
        ts_layout_release(in[i]);
    TSI_TRY(status);
    v.latency_us = w->latency_us;
    v.bytes_per_us = w->bytes_per_us;
    tsi_algorithm_candidate ring = travelling(&v, TSI_CONTEXT_RING);
    *out = turned;
    out->algorithm = TSI_CONTEXT_TWO_LEVEL;
    out->bytes += ring.bytes;
    out->memory += ring.memory;
    out->us += ring.us;
    out->steps += ring.steps;
    if (ring.balance > out->balance) out->balance = ring.balance;
    return TS_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/* What was asked for, or nothing: another one would not be what its user measures. */
static ts_status take_best(const tsi_algorithm_request *request, tsi_algorithm_choice *out)
{
    const tsi_attention_attributes *a = request->call->attributes;
    const char *op = request->call->op->name;
    bool found = false;
    for (int32_t i = 0; i < out->count; i++) {
        tsi_algorithm_candidate *c = &out->candidate[i];
        if (c->algorithm == 0) continue;
        if (a->forbid >> c->algorithm & 1 || (a->algorithm && c->algorithm != a->algorithm))
            continue;
        if (!found || c->us < out->candidate[out->chosen].us) out->chosen = i;
        found = true;
    }
    if (found) return TS_OK;
    if (a->algorithm == 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: the scope forbids every algorithm that is possible here",
                        op);
    const char *name = tsi_attention_contexts[a->algorithm - 1].name;
    if (a->forbid >> a->algorithm & 1)
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: the algorithm \"%s\" is asked for, and the scope forbids it", op,
                        name);
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: the algorithm \"%s\" needs a sequence that is cut by two axes or more, "
                    "and only one cuts it here",
                    op, name);
}

/* Of keys and values at one position, as wide as they are here: another axis may cut values. */
static int64_t row_bytes(const tsi_algorithm_request *request, const int64_t *coord)
{
    ts_shape keys = ts_layout_local(request->in[1], coord);
    ts_shape values = ts_layout_local(request->in[2], coord);
    return local_rows(request->in[1], coord) * (keys.extent[3] + values.extent[3]) *
           (int64_t)ts_dtype_size((ts_dtype)request->call->in[1].dtype);
}

/* Is it the first member of its group? */
static bool is_first(const int64_t *coord, uint32_t axes)
{
    for (int32_t k = 0; k < TS_NDIM_MAX; k++)
        if (axes >> k & 1 && coord[k] != 0) return false;
    return true;
}

/* One group: what travels in it. The first tells times and balance of all. */
static ts_status weigh_group(weighing *w, const int64_t *coord, tsi_arena *arena, bool first)
{
    const tsi_algorithm_request *request = w->request;
    tsi_context_place place = { request->mesh, coord, request->axes };
    tsi_context context;
    traffic here;
    double most, mean;
    TSI_TRY(tsi_context_make(request->call, request->in, &place, arena, &context));
    TSI_TRY(traffic_of(&context, arena, &here));
    w->moved += here.rows * row_bytes(request, coord);
    if (!first) return TS_OK;
    w->size = context.size;
    w->groups = request->mesh->count / context.size;
    w->row_bytes = row_bytes(request, coord);
    w->traffic = here;
    TSI_TRY(pairs_of(request->call, request->mesh, &context, &most, &mean));
    weigh_work(w, coord, most, mean);
    return TS_OK;
}

/* Groups differ where rows do: by their documents, or where the batch is cut unevenly. Beyond many
 * members they are taken for alike. */
static ts_status weigh_groups(weighing *w)
{
    enum { MEMBERS_MAX = 4096 };
    tsi_mesh_desc *mesh = w->request->mesh;
    tsi_arena arena = { 0 };
    ts_status status = TS_OK;
    bool first = true;
    for (int64_t i = 0; i < mesh->count && status == TS_OK; i++) {
        int64_t coord[TS_NDIM_MAX] = { 0 };
        tsi_mesh_desc_unravel(mesh, i, coord);
        if (!is_first(coord, w->request->axes)) continue;
        status = weigh_group(w, coord, &arena, first);
        tsi_arena_reset(&arena);
        first = false;
        if (mesh->count > MEMBERS_MAX) break;
    }
    if (mesh->count > MEMBERS_MAX) w->moved *= w->groups;
    tsi_arena_release(&arena);
    return status;
}

ts_status tsi_attention_pick(const tsi_algorithm_request *request, tsi_algorithm_choice *out)
{
    weighing w = { .request = request, .backward = request->call->input_count > 3 };
    *out = (tsi_algorithm_choice){ .count = 4 };
    weigh_links(&w);
    TSI_TRY(weigh_groups(&w));
    out->candidate[0] = travelling(&w, TSI_CONTEXT_GATHER);
    out->candidate[1] = travelling(&w, TSI_CONTEXT_RING);
    TSI_TRY(by_heads(&w, request->axes, &out->candidate[2]));
    TSI_TRY(in_two_levels(&w, &out->candidate[3]));
    return take_best(request, out);
}
