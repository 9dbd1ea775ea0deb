/* SPDX-License-Identifier: Apache-2.0 */
/* program.c - compiling one rank's part of a plan, and the cache of what was compiled.
 *
 * INV: every rank of the plan's meshes gets the same group for a plan, from the layouts alone: the
 * axes that cannot take part are left out, so that unconcerned ranks need not meet. */
#include "tensor/program.h"

#include <string.h>

#include "base/alloc.h"
#include "tensor/union.h"

/* ---- who takes part -------------------------------------------------------------------------- */

/* Is every cut of the dims that axis k cuts the same on both sides? */
static bool same_cuts(const ts_layout *src, const ts_layout *dst, int32_t axis)
{
    const ts_placement *mine = &src->sharding->place[axis];
    for (int32_t k = 0; k < src->sharding->ndim; k++) {
        const ts_placement *a = &src->sharding->place[k], *b = &dst->sharding->place[k];
        bool touches =
            (tsi_placement_cuts(a) && a->dim <= mine->dim_last && a->dim_last >= mine->dim) ||
            (tsi_placement_cuts(b) && b->dim <= mine->dim_last && b->dim_last >= mine->dim);
        if (touches &&
            !(tsi_placement_equal(a, b, src->sharding->mesh->size[k]) && a->order == b->order))
            return false;
    }
    return true;
}

/* Axes whose ranks may have to talk. With terms to reduce, replicas share the work, so those that
 * do not cut are among them; whoever has another part before and after has nothing to say. */
static uint32_t axes_concerned(const ts_layout *src, const ts_layout *dst)
{
    uint32_t axes = 0, replicas = 0;
    bool reduces = false;
    for (int32_t k = 0; k < src->sharding->ndim; k++) {
        const ts_placement *a = &src->sharding->place[k], *b = &dst->sharding->place[k];
        bool equal =
            tsi_placement_equal(a, b, src->sharding->mesh->size[k]) && a->order == b->order;
        bool cuts = tsi_placement_cuts(a);
        if (equal && cuts && same_cuts(src, dst, k)) continue;
        if (equal && !cuts)
            replicas |= 1u << k;
        else
            axes |= 1u << k;
        reduces = reduces || (tsi_placement_partial(a) && !equal);
    }
    return reduces ? axes | replicas : axes;
}

/* The group of a plan and how world ranks become members of it. */
typedef struct membership {
    ts_group *group;
    const tsi_union *both; /* two meshes; else NULL */
    ts_mesh *mesh;         /* one mesh */
    uint32_t axes;
} membership;

static ts_status membership_of(ts_rank *rank, const ts_plan *plan, membership *out)
{
    tsi_mesh_desc *src = plan->src->sharding->mesh, *dst = plan->dst->sharding->mesh;
    *out = (membership){ 0 };
    if (src != dst) {
        out->both = tsi_union_of(rank, src, dst);
        if (!out->both) return ts_rank_status(rank);
        out->group = out->both->group;
        return TS_OK;
    }
    out->mesh = tsi_mesh_of(rank, src);
    if (!out->mesh) return ts_rank_status(rank);
    /* Replicas of a node, which help each other, may differ in any coordinate. */
    bool nodes = plan->pair.scan || plan->family == TS_PLAN_HIERARCHICAL;
    out->axes = nodes ? (1u << src->ndim) - 1 : axes_concerned(plan->src, plan->dst);
    out->group = tsi_mesh_axes_group(out->mesh, out->axes);
    return out->group ? TS_OK : ts_rank_status(rank);
}

/* -1: the rank is not of the group, which would be our own mistake. */
static int64_t member_of(const membership *m, int64_t world_rank)
{
    if (m->both) return tsi_union_member(m->both, world_rank);
    int64_t coord[TS_NDIM_MAX];
    if (!tsi_mesh_desc_coord(m->mesh->desc, world_rank, coord)) return -1;
    for (int32_t k = 0; k < m->mesh->desc->ndim; k++)
        if (!(m->axes >> k & 1) && coord[k] != m->mesh->coord[k]) return -1;
    return tsi_mesh_group_place(m->mesh->desc, m->axes, coord);
}

/* ---- compiling ------------------------------------------------------------------------------- */

static ts_status piece_compile(const membership *m, const tsi_piece *piece, ts_part *part,
                               int64_t *offset)
{
    *part = (ts_part){ .peer = member_of(m, piece->peer),
                       .ndim = piece->ndim,
                       .combine = piece->combine };
    memcpy(part->extent, piece->extent, sizeof part->extent);
    memcpy(part->stride, piece->stride, sizeof part->stride);
    *offset = piece->offset;
    if (part->peer >= 0) return TS_OK;
    return TSI_FAIL(TS_ERR_INTERNAL,
                    "redistribute: rank %lld is a peer, but not of the plan's group",
                    (long long)piece->peer);
}

/* A local copy as a block the rank sends to itself. */
static void local_compile(const tsi_box *box, int64_t member, tsi_exchange_round *to)
{
    int64_t s = to->send_all++, r = to->recv_all++;
    to->send[s] = (ts_part){ .peer = member, .ndim = box->ndim };
    to->recv[r] = (ts_part){ .peer = member, .ndim = box->ndim };
    memcpy(to->send[s].extent, box->extent, sizeof box->extent);
    memcpy(to->recv[r].extent, box->extent, sizeof box->extent);
    memcpy(to->send[s].stride, box->stride_a, sizeof box->stride_a);
    memcpy(to->recv[r].stride, box->stride_b, sizeof box->stride_b);
    to->send_offset[s] = box->offset_a;
    to->recv_offset[r] = box->offset_b;
}

static ts_status round_reserve(tsi_program *program, int64_t send, int64_t recv,
                               tsi_exchange_round *to)
{
    tsi_arena *arena = &program->memory;
    size_t sends = (size_t)send + 1, recvs = (size_t)recv + 1;
    to->send = tsi_arena_calloc(arena, sends, sizeof *to->send);
    to->recv = tsi_arena_calloc(arena, recvs, sizeof *to->recv);
    to->send_offset = tsi_arena_calloc(arena, sends, sizeof *to->send_offset);
    to->recv_offset = tsi_arena_calloc(arena, recvs, sizeof *to->recv_offset);
    to->send_from_target = tsi_arena_calloc(arena, sends, 1);
    if (to->send && to->recv && to->send_offset && to->recv_offset && to->send_from_target)
        return TS_OK;
    return tsi_fail_memory("the blocks of an exchange", (sends + recvs) * sizeof *to->send);
}

static ts_status round_compile(tsi_program *program, const membership *m, const tsi_round *from,
                               tsi_exchange_round *to)
{
    const tsi_part *part = &program->part;
    bool defers = program->round_count == 1 && !from->reduces;
    int64_t local = defers ? part->local_count : 0;
    TSI_TRY(round_reserve(program, from->send_count + local, from->recv_count + local, to));
    to->send_count = to->send_all = from->send_count;
    to->recv_count = to->recv_all = from->recv_count;
    to->reduces = from->reduces;
    for (int64_t i = 0; i < from->send_count; i++) {
        TSI_TRY(piece_compile(m, &from->send[i], &to->send[i], &to->send_offset[i]));
        to->send_from_target[i] = from->send[i].array == TSI_PIECE_TARGET;
        to->send[i].combine = 0;
    }
    for (int64_t i = 0; i < from->recv_count; i++)
        TSI_TRY(piece_compile(m, &from->recv[i], &to->recv[i], &to->recv_offset[i]));
    for (int64_t i = 0; i < local; i++)
        local_compile(&part->local[i], ts_group_index(program->group), to);
    return TS_OK;
}

static ts_status program_fill(ts_rank *rank, tsi_program *program, ts_plan *plan)
{
    program->src_mesh = tsi_mesh_of(rank, plan->src->sharding->mesh);
    program->dst_mesh = tsi_mesh_of(rank, plan->dst->sharding->mesh);
    if (!program->src_mesh || !program->dst_mesh) return ts_rank_status(rank);
    program->member = program->src_mesh->member || program->dst_mesh->member;
    if (!program->member) return TS_OK;
    membership m;
    TSI_TRY(membership_of(rank, plan, &m));
    program->group = m.group;
    TSI_TRY(tsi_plan_part(plan, rank->index, &program->memory, &program->part));
    program->round_count = plan->family == TS_PLAN_LOCAL ? 0 : program->part.round_count;
    program->round = tsi_arena_calloc(&program->memory, (size_t)program->round_count + 1,
                                      sizeof *program->round);
    if (!program->round)
        return tsi_fail_memory("the rounds of an exchange", sizeof *program->round);
    for (int64_t r = 0; r < program->round_count; r++)
        TSI_TRY(round_compile(program, &m, &program->part.round[r], &program->round[r]));
    return TS_OK;
}

/* ---- the cache ------------------------------------------------------------------------------- */

void tsi_program_release(tsi_program *program)
{
    if (!program || --program->references > 0) return;
    ts_plan_release(program->plan);
    tsi_arena_release(&program->memory);
    tsi_free(program);
}

void tsi_programs_release(tsi_tensor_state *state)
{
    for (int32_t i = 0; i < TSI_PROGRAM_CACHE; i++)
        if (state->program[i]) tsi_program_release(state->program[i]);
    memset(state->program, 0, sizeof state->program);
}

tsi_program *tsi_program_of(ts_rank *rank, ts_plan *plan)
{
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    if (!state) return NULL;
    uint64_t hash = tsi_hash_mix(0x70726f67, (uint64_t)(uintptr_t)plan);
    tsi_program **oldest = NULL;
    for (uint64_t p = 0; p < 4; p++) {
        tsi_program **place = &state->program[(hash + p) % TSI_PROGRAM_CACHE];
        if (*place && (*place)->plan == plan) {
            (*place)->used = ++state->program_clock;
            return *place;
        }
        if (!oldest || !*place || (*oldest && (*place)->used < (*oldest)->used))
            if (!oldest || *oldest) oldest = place;
    }
    tsi_program *program = tsi_calloc(1, sizeof *program);
    if (!program) {
        tsi_fail_memory("a compiled plan", sizeof *program);
        return NULL;
    }
    program->references = 1;
    program->plan = ts_plan_retain(plan);
    program->used = ++state->program_clock;
    if (program_fill(rank, program, plan) != TS_OK) {
        tsi_program_release(program);
        return NULL;
    }
    if (*oldest) tsi_program_release(*oldest);
    *oldest = program;
    return program;
}

tsi_program *tsi_program_get(ts_rank *rank, ts_plan *plan)
{
    tsi_program *program = tsi_program_of(rank, plan);
    if (program) program->references++;
    return program;
}
