/* SPDX-License-Identifier: Apache-2.0 */
/* attention_context.c - who needs what of whom, and which algorithm runs; see
 * attention_context.h. */
#include "op/nn/attention_context.h"

#include <string.h>

#include "base/alloc.h"
#include "base/intmath.h"
#include "mask/mask.h"
#include "plan/topology.h"
#include "tensor/tensor.h"

const tsi_algorithm tsi_attention_contexts[] = {
    { "gather", tsi_context_gather, tsi_context_bytes },
    { "ring", tsi_context_ring, tsi_context_bytes },
    { "heads", tsi_context_heads, tsi_context_bytes },
    { "two-level", tsi_context_two_level, tsi_context_bytes },
    { 0 }
};

/* ---- lists ----------------------------------------------------------------------------------- */

bool tsi_context_next(tsi_context_walk *w)
{
    if (w->span == w->list->span_count) return false;
    const tsi_span *span = &tsi_spans(w->list)[w->span];
    w->begin = span->begin + w->step * span->period;
    w->count = span->length;
    if (++w->step == span->count) {
        w->span++;
        w->step = 0;
    }
    return true;
}

ts_status tsi_context_need(const tsi_context *c, int64_t to, int64_t from, tsi_arena *arena,
                           tsi_span_list *out)
{
    if (tsi_span_list_intersect(&c->sees[to], &c->keys[from], arena, out)) return TS_OK;
    return tsi_fail_memory("what ranks need of each other", sizeof *out);
}

/* ---- who holds and sees what ----------------------------------------------------------------- */

static ts_status find_mask(const tsi_op_call *call, ts_world *world, const ts_mask **out)
{
    *out = tsi_mask_find(world, tsi_attention_mask(call->attributes));
    return *out ? TS_OK : TS_ERR_ARG;
}

static ts_status member_of(const tsi_op_call *call, const ts_layout *const *in,
                           const int64_t *coord, const ts_mask *mask, tsi_arena *arena,
                           tsi_context *c, int64_t i)
{
    tsi_span_list rows, heads;
    bool made = tsi_layout_region_dim(in[0], coord, 2, arena, &c->queries[i]) &&
                tsi_layout_region_dim(in[1], coord, 2, arena, &c->keys[i]) &&
                tsi_layout_region_dim(in[0], coord, 0, arena, &rows) &&
                tsi_layout_region_dim(in[0], coord, 1, arena, &heads);
    if (!made) return tsi_fail_memory("the regions of a sequence", sizeof rows);
    int64_t keys = call->in[1].shape.extent[2];
    tsi_mask_shape shape = { .queries = &c->queries[i],
                             .keys = &c->keys[i],
                             .offset = keys - call->in[0].shape.extent[2],
                             .rows = &rows,
                             .heads = &heads,
                             .row_count = rows.total,
                             .head_count = heads.total };
    return tsi_mask_union(mask, &shape, keys, arena, &c->sees[i]);
}

ts_status tsi_context_make(const tsi_op_call *call, const ts_layout *const *in,
                           const tsi_context_place *place, tsi_arena *arena, tsi_context *out)
{
    const ts_mask *mask;
    tsi_mesh_desc *mesh = place->mesh;
    int64_t size = tsi_mesh_group_count(mesh, place->axes);
    tsi_span_list *lists = tsi_arena_calloc(arena, (size_t)size * 3, sizeof *lists);
    int64_t *ranks = tsi_arena_alloc(arena, (size_t)size * sizeof *ranks);
    if (!lists || !ranks) return tsi_fail_memory("the cut of a sequence", (size_t)size * 96);
    *out = (tsi_context){ .size = size, .queries = lists, .keys = lists + size };
    out->sees = lists + 2 * size;
    out->me = tsi_mesh_group_place(mesh, place->axes, place->coord);
    tsi_mesh_group_ranks(mesh, place->axes, place->coord, ranks);
    TSI_TRY(find_mask(call, mesh->world, &mask));
    ts_status status = TS_OK;
    for (int64_t i = 0; i < size && status == TS_OK; i++) {
        int64_t coord[TS_NDIM_MAX];
        if (!tsi_mesh_desc_coord(mesh, ranks[i], coord))
            status = TSI_FAIL(TS_ERR_INTERNAL, "attention: rank %lld is not in its mesh",
                              (long long)ranks[i]);
        else
            status = member_of(call, in, coord, mask, arena, out, i);
    }
    ts_mask_release(mask);
    return status;
}

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
    TSI_TRY(find_mask(call, mesh->world, &mask));
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
    double compute_us;    /* of the mean member; `late_us`: of the busiest beyond that */
    double late_us;
    double latency_us, bytes_per_us;
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
    if (ts_topology_of(mesh->world, &topology) != TS_OK) return;
    tsi_links_make(&topology, mesh, mesh->count, &links);
    tsi_links_group group = tsi_links_of(&links, w->request->axes);
    /* What two sizes cost tells the latency and the rate of an exchange. */
    double small = tsi_time_all_to_all(&links, &group, 1.0);
    double large = tsi_time_all_to_all(&links, &group, 1e6 + 1.0);
    w->latency_us = small;
    if (large > small) w->bytes_per_us = 1e6 / (large - small);
}

/* A rank's arithmetic, of which the model of machines has nothing: 20 GFLOP/s. Times of candidates
 * are those beyond the arithmetic of a rank with its even share. */
static void weigh_work(weighing *w, const int64_t *coord, double most, double mean)
{
    const tsi_op_call *call = w->request->call;
    double each = (w->backward ? 5.0 : 2.0) *
                  (double)(call->in[0].shape.extent[3] + call->in[2].shape.extent[3]) *
                  (double)local_rows(w->request->in[0], coord);
    ts_shape own = ts_layout_local(w->request->in[0], coord);
    w->out_bytes = ts_shape_count(&own) * (call->in[0].dtype == TS_DTYPE_F64 ? 8 : 4);
    w->compute_us = mean * each / 20e3;
    w->late_us = (most - mean) * each / 20e3;
    w->traffic.balance = mean > 0 ? most / mean : 1.0;
}

static tsi_algorithm_candidate travelling(const weighing *w, int32_t algorithm)
{
    const traffic *t = &w->traffic;
    int64_t row = w->row_bytes, back = 0, sums = w->backward ? 2 : 1; /* rounds */
    tsi_algorithm_candidate c = { .algorithm = algorithm, .balance = t->balance };
    c.bytes = w->moved;
    if (w->backward) { /* home they go as sums */
        const ts_meta *k = &w->request->call->in[1];
        int64_t wide = k->dtype == TS_DTYPE_F64 ? 8 : 4;
        back = row / (int64_t)ts_dtype_size((ts_dtype)k->dtype) * wide;
        c.bytes += w->moved / (int64_t)ts_dtype_size((ts_dtype)k->dtype) * wide;
    }
    double move = (double)(t->rows_most * row) / w->bytes_per_us;
    double home = (double)(t->rows_most * back) / w->bytes_per_us;
    if (t->rows == 0) sums = 0;
    if (algorithm == TSI_CONTEXT_GATHER) {
        c.steps = (int32_t)sums;
        c.memory = t->rows_most * (row + back);
        c.us = w->latency_us * (double)sums + move + home + w->late_us;
    } else { /* messages hide behind the work of the step before; each step reads and writes o */
        c.steps = (int32_t)t->steps + (w->backward && t->rows > 0);
        c.memory =
            2 * tsi_ceil_div(t->rows_most * row, tsi_max_i64(t->steps, 1)) + t->rows_most * back;
        double each = w->compute_us / (double)(t->steps + 1);
        double step = move / (double)tsi_max_i64(t->steps, 1) + w->latency_us;
        c.us = (double)(3 * w->out_bytes * t->steps) / 1e4 + w->late_us + home +
               (step > each ? (step - each) * (double)t->steps : 0);
    }
    return c;
}

int64_t tsi_context_repeats(const tsi_op_call *call, const ts_layout *q, uint32_t axes)
{
    int64_t heads = call->in[0].shape.extent[1], groups = call->in[1].shape.extent[1], ranks = 1;
    const ts_sharding *s = q->sharding;
    for (int32_t k = 0; k < s->ndim; k++) {
        bool cuts = tsi_placement_cuts(&s->place[k]) && s->place[k].dim == 1;
        if (axes >> k & 1 || cuts) ranks *= s->mesh->size[k];
    }
    if (heads % ranks) return 0;
    if (groups % ranks == 0) return 1;
    return ranks % groups ? heads / groups : ranks / groups;
}

/* All operands go to heads and back: (n - 1) / n of them. Where groups are fewer than ranks, each
 * rank gets the one it uses. */
static tsi_algorithm_candidate by_heads(const weighing *w)
{
    const tsi_op_call *call = w->request->call;
    int64_t repeats = tsi_context_repeats(call, w->request->in[0], w->request->axes), total = 0;
    tsi_algorithm_candidate c = { .balance = 1, .steps = w->backward ? 9 : 5 };
    if (repeats == 0) return c;
    for (int32_t i = 0; i < call->input_count + call->output_count; i++) {
        const ts_meta *m = i < call->input_count ? &call->in[i] : &call->out[i - call->input_count];
        int64_t bytes = ts_shape_count(&m->shape) * (int64_t)ts_dtype_size((ts_dtype)m->dtype);
        bool keys = i == 1 || i == 2 || (w->backward && i >= call->input_count + 1);
        if (keys) bytes *= repeats;
        total += bytes / w->size * (w->size - 1);
    }
    c.algorithm = TSI_CONTEXT_HEADS;
    c.bytes = total;
    c.memory = total / (w->size * w->groups);
    c.us = w->latency_us * c.steps + (double)c.memory / w->bytes_per_us;
    return c;
}

/* Is the sequence cut by two axes? Then the last may turn to heads while the others travel. */
static tsi_algorithm_candidate in_two_levels(const weighing *w)
{
    uint32_t axes = w->request->axes;
    tsi_algorithm_candidate c = by_heads(w);
    if ((axes & (axes - 1)) == 0) return (tsi_algorithm_candidate){ .balance = 1 };
    if (c.algorithm == 0) return c;
    c.algorithm = TSI_CONTEXT_TWO_LEVEL;
    tsi_algorithm_candidate ring = travelling(w, TSI_CONTEXT_RING);
    c.bytes = (c.bytes + ring.bytes) / 2; /* each level has part of both */
    c.us = (c.us + ring.us) / 2 + w->latency_us;
    c.steps = c.steps + ring.steps;
    return c;
}

static void take_best(const tsi_algorithm_request *request, tsi_algorithm_choice *out)
{
    int32_t forced = ((const tsi_attention_attributes *)request->call->attributes)->algorithm;
    for (int32_t i = 0; i < out->count; i++) {
        const tsi_algorithm_candidate *c = &out->candidate[i], *best = &out->candidate[out->chosen];
        if (forced > 0 && c->algorithm == forced) {
            out->chosen = i;
            return;
        }
        if (c->algorithm > 0 && c->us < best->us) out->chosen = i;
    }
}

static int64_t row_bytes(const tsi_algorithm_request *request, const int64_t *coord)
{
    const tsi_op_call *call = request->call;
    return local_rows(request->in[1], coord) *
           (call->in[1].shape.extent[3] + call->in[2].shape.extent[3]) *
           (int64_t)ts_dtype_size((ts_dtype)call->in[1].dtype);
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
    TSI_TRY(weigh_groups(&w));
    weigh_links(&w);
    out->candidate[0] = travelling(&w, TSI_CONTEXT_GATHER);
    out->candidate[1] = travelling(&w, TSI_CONTEXT_RING);
    out->candidate[2] = by_heads(&w);
    out->candidate[3] = in_two_levels(&w);
    take_best(request, out);
    return TS_OK;
}
