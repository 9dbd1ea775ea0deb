/* SPDX-License-Identifier: Apache-2.0 */
/* direct_part.c - one rank's part of a direct exchange: what it sends, receives, folds and copies,
 * round by round.
 *
 *   direct         phase 0: source -> target
 *   hierarchical   phase 0: as direct, but what no rank of the node holds is shared out among the
 *                  ranks of the node that need it; phase 1: they give each other their shares
 *   with terms     phase 0: terms to owners, folded in term order; phase 1: results to the rest
 *
 * A budget cuts every message into a grid of cells; round = cell * phases + phase. Both ends walk
 * the same blocks in the same order (blocks.c), so their pieces match without a word. Cost: the
 * number of this rank's messages. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/error.h"
#include "base/intmath.h"
#include "plan/plan.h"

typedef struct piece_list {
    tsi_piece *item;
    int64_t count, capacity, elements;
} piece_list;

typedef struct builder {
    const ts_plan *plan;
    const tsi_pair *pair;
    tsi_arena *arena;
    int64_t rank;
    bool in_src, in_dst; /* holds something there (owner axes: coordinate 0) */
    bool count_only;
    int64_t src_coord[TS_NDIM_MAX], dst_coord[TS_NDIM_MAX];
    tsi_region src, dst; /* what it holds and what it needs */
    int32_t phases;
    int64_t rounds;
    piece_list *send, *recv; /* by round */
    tsi_box *local;
    int64_t local_count, local_capacity, local_elements;
    bool failed;
} builder;

/* ---- emitting ------------------------------------------------------------------------------- */

static void *grow(builder *b, void *item, int64_t count, int64_t *capacity, size_t bytes)
{
    if (count < *capacity) return item;
    int64_t wanted = *capacity ? 2 * *capacity : 8;
    void *larger = tsi_arena_alloc(b->arena, (size_t)wanted * bytes);
    if (!larger) {
        b->failed = true;
        return NULL;
    }
    if (count) memcpy(larger, item, (size_t)count * bytes);
    *capacity = wanted;
    return larger;
}

typedef struct emission {
    builder *b;
    piece_list *list;
    const int64_t *peer; /* one, or all terms in order */
    int64_t peer_count;
    int32_t array;
    bool sends;
} emission;

static bool emit_box(const tsi_box *box, void *context)
{
    emission *e = context;
    for (int64_t t = 0; t < e->peer_count; t++) {
        tsi_piece *item =
            grow(e->b, e->list->item, e->list->count, &e->list->capacity, sizeof *item);
        if (!item) return false;
        e->list->item = item;
        tsi_piece *piece = &item[e->list->count++];
        bool a = e->sends && e->array == TSI_PIECE_SOURCE;
        *piece = (tsi_piece){ .peer = e->peer[t],
                              .array = e->array,
                              .combine = t > 0,
                              .ndim = box->ndim,
                              .offset = a ? box->offset_a : box->offset_b };
        memcpy(piece->extent, box->extent, sizeof piece->extent);
        memcpy(piece->stride, a ? box->stride_a : box->stride_b, sizeof piece->stride);
    }
    return true;
}

/* Cell `index` of the plan's grid of a region; false: empty or failed. */
static bool cell_of(builder *b, const tsi_region *whole, int64_t index, tsi_region *out)
{
    *out = *whole;
    for (int32_t d = b->pair->dims - 1; d >= 0; d--) {
        int64_t parts = b->plan->grid[d], at = index % parts, total = whole->dim[d].total;
        index /= parts;
        if (parts == 1) continue;
        int64_t begin = total / parts * at + tsi_min_i64(total % parts, at);
        int64_t end = begin + total / parts + (at < total % parts);
        if (begin == end) return false;
        if (!tsi_span_list_cut(&whole->dim[d], begin, end, b->arena, &out->dim[d])) {
            b->failed = true;
            return false;
        }
    }
    return tsi_region_count(out) > 0;
}

static void emit(builder *b, int32_t phase, bool sends, int32_t array, const int64_t *peer,
                 int64_t peer_count, const tsi_region *common)
{
    TSI_ASSERT(phase < b->phases);
    int64_t cells = b->rounds / b->phases;
    for (int64_t c = 0; c < cells && !b->failed; c++) {
        tsi_region cell;
        const tsi_region *part = common;
        if (cells > 1) {
            if (!cell_of(b, common, c, &cell)) continue;
            part = &cell;
        }
        piece_list *list = &(sends ? b->send : b->recv)[c * b->phases + phase];
        for (int64_t t = 0; t < peer_count; t++) {
            if (peer[t] != b->rank) list->elements += tsi_region_count(part);
        }
        if (b->count_only) continue;
        emission e = { b, list, peer, peer_count, array, sends };
        bool source = sends && array == TSI_PIECE_SOURCE;
        if (!tsi_region_boxes(part, source ? &b->src : NULL, source ? NULL : &b->dst, b->arena,
                              emit_box, &e)) {
            b->failed = true;
        }
    }
}

static bool local_box(const tsi_box *box, void *context)
{
    builder *b = context;
    tsi_box *item = grow(b, b->local, b->local_count, &b->local_capacity, sizeof *item);
    if (!item) return false;
    b->local = item;
    b->local[b->local_count++] = *box;
    return true;
}

static void copy_local(builder *b, const tsi_region *common)
{
    b->local_elements += tsi_region_count(common);
    if (b->count_only) return;
    if (!tsi_region_boxes(common, &b->src, &b->dst, b->arena, local_box, b)) b->failed = true;
}

/* ---- ranks of one node with the same target block ------------------------------------------- */

typedef struct mates {
    builder *b;
    int64_t of; /* a rank of the node */
    int64_t *rank;
    int64_t count, capacity, own; /* own: place of `of` */
} mates;

static bool add_mate(int64_t rank, int64_t number, int64_t count, void *context)
{
    mates *m = context;
    (void)number;
    (void)count;
    if (!tsi_links_same_node(m->b->pair->links, rank, m->of)) return true;
    int64_t *larger = grow(m->b, m->rank, m->count, &m->capacity, sizeof *larger);
    if (!larger) return false;
    m->rank = larger;
    if (rank == m->of) m->own = m->count;
    m->rank[m->count++] = rank;
    return true;
}

static void find_mates(builder *b, int64_t of, const int64_t *delta, const int64_t *at, mates *out)
{
    *out = (mates){ .b = b, .of = of };
    tsi_pair_receivers(b->pair, delta, b->pair->dst.kept, at, add_mate, out);
}

/* ---- without terms -------------------------------------------------------------------------- */

static void receive_plain(builder *b)
{
    tsi_walk walk;
    mates m = { .count = 0 };
    bool tree = b->plan->family == TS_PLAN_HIERARCHICAL;
    if (!tsi_walk_open(&walk, b->pair, &b->pair->src, &b->dst, 0, NULL, b->arena)) b->failed = true;
    if (tree) find_mates(b, b->rank, b->dst_coord, b->dst_coord, &m);
    while (!b->failed && tsi_walk_next(&walk)) {
        int64_t from = tsi_pair_holder(b->pair, b->rank, walk.coord, 0);
        if (from == b->rank) {
            copy_local(b, &walk.common);
        } else if (!tree || m.count == 1 || tsi_links_same_node(b->pair->links, from, b->rank)) {
            emit(b, 0, false, TSI_PIECE_TARGET, &from, 1, &walk.common);
        } else {
            tsi_region share;
            for (int64_t i = 0; i < m.count && !b->failed; i++) {
                if (!tsi_region_share(&walk.common, i, m.count, b->arena, &share)) continue;
                const int64_t *peer = i == m.own ? &from : &m.rank[i];
                emit(b, i == m.own ? 0 : 1, false, TSI_PIECE_TARGET, peer, 1, &share);
            }
        }
    }
}

/* Phase 1 of the hierarchical variant: my share to the other ranks of the node. */
static void spread_in_node(builder *b)
{
    tsi_walk walk;
    mates m;
    find_mates(b, b->rank, b->dst_coord, b->dst_coord, &m);
    if (m.count <= 1) return;
    if (!tsi_walk_open(&walk, b->pair, &b->pair->src, &b->dst, 0, NULL, b->arena)) b->failed = true;
    while (!b->failed && tsi_walk_next(&walk)) {
        tsi_region share;
        int64_t from = tsi_pair_holder(b->pair, b->rank, walk.coord, 0);
        if (tsi_links_same_node(b->pair->links, from, b->rank)) continue;
        if (!tsi_region_share(&walk.common, m.own, m.count, b->arena, &share)) continue;
        for (int64_t i = 0; i < m.count; i++) {
            if (i != m.own) emit(b, 1, true, TSI_PIECE_TARGET, &m.rank[i], 1, &share);
        }
    }
}

typedef struct sending {
    builder *b;
    const tsi_walk *walk;
} sending;

static bool send_to(int64_t q, int64_t number, int64_t count, void *context)
{
    sending *s = context;
    builder *b = s->b;
    (void)number;
    (void)count;
    if (q == b->rank || tsi_pair_holder(b->pair, q, b->src_coord, 0) != b->rank) return !b->failed;
    bool tree = b->plan->family == TS_PLAN_HIERARCHICAL;
    if (!tree || tsi_links_same_node(b->pair->links, q, b->rank)) {
        emit(b, 0, true, TSI_PIECE_SOURCE, &q, 1, &s->walk->common);
        return !b->failed;
    }
    mates m;
    tsi_region share;
    find_mates(b, q, s->walk->coord, b->src_coord, &m);
    TSI_ASSERT(b->failed || m.rank[m.own] == q); /* it needs the block: it is one of them */
    if (tsi_region_share(&s->walk->common, m.own, m.count, b->arena, &share)) {
        emit(b, 0, true, TSI_PIECE_SOURCE, &q, 1, &share);
    }
    return !b->failed;
}

/* Axes on which a receiver that asks this rank must have this rank's coordinates. */
static uint32_t bound_axes(const tsi_pair *pair)
{
    return pair->same_mesh && !pair->scan ? pair->src.keep : pair->dst.kept;
}

static void send_plain(builder *b)
{
    tsi_walk walk;
    uint32_t fixed = bound_axes(b->pair);
    if (!tsi_walk_open(&walk, b->pair, &b->pair->dst, &b->src, fixed, b->src_coord, b->arena)) {
        b->failed = true;
    }
    while (!b->failed && tsi_walk_next(&walk)) {
        sending s = { b, &walk };
        tsi_pair_receivers(b->pair, walk.coord, fixed, b->src_coord, send_to, &s);
    }
}

/* ---- with terms ----------------------------------------------------------------------------- */

typedef struct owning {
    builder *b;
    const tsi_walk *walk;
    const int64_t *sigma;
    int64_t own_term;      /* contributor: its term */
    int64_t number, count; /* owner: its place among the candidates; number -1: none */
} owning;

static bool note_owner(int64_t rank, int64_t number, int64_t count, void *context)
{
    owning *o = context;
    if (rank != o->b->rank) return true;
    o->number = number;
    o->count = count;
    return false;
}

/* This rank's share of sigma ∩ its target, if it is an owner of it. */
static bool own_share(builder *b, const tsi_walk *walk, tsi_region *share)
{
    owning o = { .b = b, .number = -1 };
    uint32_t all = b->pair->same_mesh ? ~0u : 0;
    tsi_pair_owners(b->pair, walk->coord, b->dst_coord, all, b->dst_coord, note_owner, &o);
    return o.number >= 0 && tsi_region_share(&walk->common, o.number, o.count, b->arena, share);
}

static bool spread_result(int64_t q, int64_t number, int64_t count, void *context)
{
    sending *s = context;
    (void)number;
    (void)count;
    if (q != s->b->rank) emit(s->b, 1, true, TSI_PIECE_TARGET, &q, 1, &s->walk->common);
    return !s->b->failed;
}

/* As an owner: receives and folds all terms of its shares, then sends the results. */
static void own_terms(builder *b)
{
    const tsi_pair *pair = b->pair;
    tsi_walk walk, shared;
    uint32_t fixed = pair->same_mesh ? pair->src.cut & ~pair->dst.cut : 0;
    int64_t *holder = tsi_arena_alloc(b->arena, (size_t)pair->src.terms * sizeof *holder);
    if (!holder ||
        !tsi_walk_open(&walk, pair, &pair->src, &b->dst, fixed, b->dst_coord, b->arena)) {
        b->failed = true;
    }
    while (!b->failed && tsi_walk_next(&walk)) {
        if (!own_share(b, &walk, &shared.common)) continue;
        for (int64_t t = 0; t < pair->src.terms; t++)
            holder[t] = tsi_pair_holder(pair, b->rank, walk.coord, t);
        emit(b, 0, false, TSI_PIECE_TARGET, holder, pair->src.terms, &shared.common);
        sending s = { b, &shared };
        tsi_pair_receivers(pair, b->dst_coord, pair->dst.kept, b->dst_coord, spread_result, &s);
    }
}

static bool receive_result(int64_t rank, int64_t number, int64_t count, void *context)
{
    sending *s = context;
    tsi_region share;
    if (rank == s->b->rank) return true;
    if (tsi_region_share(&s->walk->common, number, count, s->b->arena, &share)) {
        emit(s->b, 1, false, TSI_PIECE_TARGET, &rank, 1, &share);
    }
    return !s->b->failed;
}

static void receive_results(builder *b)
{
    tsi_walk walk;
    if (!tsi_walk_open(&walk, b->pair, &b->pair->src, &b->dst, 0, NULL, b->arena)) b->failed = true;
    while (!b->failed && tsi_walk_next(&walk)) {
        sending s = { b, &walk };
        tsi_pair_owners(b->pair, walk.coord, b->dst_coord, b->pair->dst.kept, b->dst_coord,
                        receive_result, &s);
    }
}

static bool give_term(int64_t owner, int64_t number, int64_t count, void *context)
{
    owning *o = context;
    builder *b = o->b;
    tsi_region share;
    if (tsi_pair_holder(b->pair, owner, b->src_coord, o->own_term) != b->rank) return true;
    if (tsi_region_share(&o->walk->common, number, count, b->arena, &share)) {
        emit(b, 0, true, TSI_PIECE_SOURCE, &owner, 1, &share);
    }
    return !b->failed;
}

/* As a holder: gives its term to every owner that asks it. */
static void give_terms(builder *b)
{
    const tsi_pair *pair = b->pair;
    tsi_walk walk;
    uint32_t fixed = bound_axes(pair);
    int64_t term = 0;
    for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
        if (pair->src.term >> k & 1u) term = term * pair->src.mesh->size[k] + b->src_coord[k];
    }
    if (!tsi_walk_open(&walk, pair, &pair->dst, &b->src, fixed, b->src_coord, b->arena))
        b->failed = true;
    while (!b->failed && tsi_walk_next(&walk)) {
        owning o = { .b = b, .walk = &walk, .own_term = term };
        tsi_pair_owners(pair, b->src_coord, walk.coord, fixed, b->src_coord, give_term, &o);
    }
}

/* ---- the part ------------------------------------------------------------------------------- */

static bool builder_open(builder *b, const ts_plan *plan, int64_t rank, tsi_arena *arena)
{
    const tsi_pair *pair = &plan->pair;
    memset(b, 0, offsetof(builder, src));
    b->plan = plan;
    b->pair = pair;
    b->arena = arena;
    b->rank = rank;
    b->in_src = tsi_mesh_desc_coord(pair->src.mesh, rank, b->src_coord);
    b->in_dst = tsi_mesh_desc_coord(pair->dst.mesh, rank, b->dst_coord);
    for (int32_t k = 0; b->in_dst && k < pair->dst.mesh->ndim; k++) {
        if ((pair->dst.owner >> k & 1u) && b->dst_coord[k] != 0) b->in_dst = false;
    }
    bool tree = plan->family == TS_PLAN_HIERARCHICAL;
    b->phases = tree || (pair->src.terms > 1 && pair->dst.replicas > 1) ? 2 : 1;
    b->rounds = b->phases;
    for (int32_t d = 0; d < pair->dims; d++)
        b->rounds *= plan->grid[d];
    b->local = NULL;
    b->local_count = b->local_capacity = b->local_elements = 0;
    b->failed = false;
    b->send = tsi_arena_calloc(arena, (size_t)b->rounds, sizeof *b->send);
    b->recv = tsi_arena_calloc(arena, (size_t)b->rounds, sizeof *b->recv);
    if (!b->send || !b->recv) return false;
    if (b->in_src && !tsi_side_region(pair, &pair->src, b->src_coord, arena, &b->src)) return false;
    return !b->in_dst || tsi_side_region(pair, &pair->dst, b->dst_coord, arena, &b->dst);
}

static void build(builder *b)
{
    bool terms = b->pair->src.terms > 1, tree = b->plan->family == TS_PLAN_HIERARCHICAL;
    if (b->pair->count == 0) return;
    if (b->in_src && !terms) send_plain(b);
    if (b->in_src && terms) give_terms(b);
    if (b->in_dst && !terms) receive_plain(b);
    if (b->in_dst && !terms && tree) spread_in_node(b);
    if (b->in_dst && terms) own_terms(b);
    if (b->in_dst && terms && b->phases == 2) receive_results(b);
}

/* How terms are combined: see tsi_part. */
static void set_folding(const tsi_pair *pair, tsi_part *out)
{
    int64_t averaged = 1;
    for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
        if (!(pair->src.term >> k & 1u)) continue;
        const ts_placement *place = &pair->src.layout->sharding->place[k];
        out->reduce = place->kind == TS_PLACE_NORM ? TS_REDUCE_SUM : place->reduce;
        if (place->kind == TS_PLACE_NORM) out->power = place->norm;
        if (place->kind == TS_PLACE_PARTIAL && place->reduce == TS_REDUCE_AVG)
            averaged *= pair->src.mesh->size[k];
    }
    if (averaged == 1) return;
    out->reduce = TS_REDUCE_AVG; /* sums among them are terms that nothing is divided by */
    out->avg_count = averaged;
}

ts_status tsi_plan_part(const ts_plan *plan, int64_t rank, tsi_arena *arena, tsi_part *out)
{
    memset(out, 0, sizeof *out);
    builder b;
    if (!builder_open(&b, plan, rank, arena)) return tsi_fail_memory("a rank's part of a plan", 0);
    build(&b);
    if (b.failed) return tsi_fail_memory("a rank's part of a plan", 0);
    out->round = tsi_arena_calloc(arena, (size_t)b.rounds, sizeof *out->round);
    if (!out->round) return tsi_fail_memory("a rank's part of a plan", 0);
    out->round_count = b.rounds;
    for (int64_t i = 0; i < b.rounds; i++) {
        out->round[i] = (tsi_round){ .send = b.send[i].item,
                                     .recv = b.recv[i].item,
                                     .send_count = b.send[i].count,
                                     .recv_count = b.recv[i].count,
                                     .elements_sent = b.send[i].elements,
                                     .elements_received = b.recv[i].elements,
                                     .reduces = plan->pair.src.terms > 1 && i % b.phases == 0 };
    }
    out->local = b.local;
    out->local_count = b.local_count;
    out->local_elements = b.local_elements;
    int64_t coord[TS_NDIM_MAX];
    out->fill = !b.in_dst && tsi_mesh_desc_coord(plan->pair.dst.mesh, rank, coord);
    set_folding(&plan->pair, out);
    return TS_OK;
}

ts_status tsi_part_volume(const ts_plan *plan, int64_t rank, tsi_arena *arena, int64_t *most)
{
    builder b;
    *most = 0;
    if (!builder_open(&b, plan, rank, arena)) return tsi_fail_memory("a rank's part of a plan", 0);
    b.count_only = true;
    build(&b);
    if (b.failed) return tsi_fail_memory("a rank's part of a plan", 0);
    for (int64_t i = 0; i < b.rounds; i++) {
        *most = tsi_max_i64(*most, (b.send[i].elements + b.recv[i].elements) * plan->pair.item);
    }
    return TS_OK;
}
