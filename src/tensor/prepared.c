/* SPDX-License-Identifier: Apache-2.0 */
/* prepared.c - see prepared.h.
 *
 * Every round of all moves is one exchange of one group, as in execute_many.c, since some ranks may
 * go that way. Its send parts are in order of peers, as an exchange wants them, and each part knows
 * which tensor's block it lies in and where. All rounds are issued at once: one that sends what
 * another one folded is behind that in its channel.
 *
 * INV: the lists of parts are this struct's, and who sends them reads them where they lie: they
 * stay as they are, and the struct with them, until the run is complete. The next run waits for
 * that; only who begins one before he waited for the last notices. */
#include "tensor/prepared.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/comm.h"
#include "tensor/execute.h"

enum { CHANNEL_MOVE = 0 };

typedef struct place { /* of a part: bytes from the beginning of a tensor's block */
    int64_t offset;
    int32_t item, of_target;
} place;

typedef struct stage { /* one round of all moves */
    ts_exchange exchange;
    tsi_standing *standing; /* the same, as it is begun */
    ts_part *send, *recv;
    place *send_at, *recv_at;
} stage;

/* What a run looks at, in one cache line: where units are large, all of it comes from memory. */
typedef struct item {
    _Alignas(TSI_CACHE_LINE) const ts_layout *from;
    const ts_layout *to;        /* retained, both */
    ts_mesh *mesh;              /* retained */
    tsi_array *source, *target; /* of a run that begins */
    char *source_data, *target_data;
    size_t bytes; /* of a target; of use where there is a model */
} item;

typedef struct detail { /* the rest of an item */
    /* A target, but for its storage; no references: the first run will make it. */
    _Alignas(TSI_CACHE_LINE) tsi_array model;
    tsi_program *program; /* held */
    ts_shape local;       /* of the target's block */
} detail;

struct tsi_prepared {
    ts_rank *rank;
    ts_group *group; /* borrowed from the mesh */
    item *item;
    detail *detail; /* by item */
    stage *stage;
    int64_t stage_count, element; /* bytes of one */
    tsi_common_rounds rounds;
    int32_t count, dtype;
    uint32_t tag;
    int32_t abandoned;   /* nobody else has it: the run that is under way ends it */
    tsi_move *under_way; /* the last run, while it is not complete; not retained */
    tsi_arena memory;
};

/* ---- making ---------------------------------------------------------------------------------- */

/* Zeroed, from the beginning of a cache line; NULL on failure. An arena's blocks begin anywhere. */
static void *lines_take(tsi_arena *arena, size_t count, size_t bytes)
{
    char *memory = tsi_arena_calloc(arena, count + 1, bytes);
    uintptr_t over = (uintptr_t)memory % TSI_CACHE_LINE;
    TSI_ASSERT(bytes >= TSI_CACHE_LINE);
    return memory && over ? memory + (TSI_CACHE_LINE - over) : memory;
}

static bool is_plain(const tsi_program *program)
{
    const tsi_part *part = &program->part;
    return program->member && program->round_count > 0 && !part->fill && part->power == 0.0 &&
           part->local_count == 0;
}

static const tsi_exchange_round *round_at(const tsi_prepared *p, int32_t i, int64_t at)
{
    return tsi_rounds_at(&p->rounds, p->detail[i].program, at);
}

/* Do two moves travel together in every round that both have? */
static bool are_alike(const tsi_program *a, const tsi_program *b)
{
    bool alike = a->group == b->group && a->part.reduce == b->part.reduce &&
                 a->part.avg_count == b->part.avg_count;
    for (int64_t r = 0; alike && r < a->round_count && r < b->round_count; r++)
        alike = a->round[r].reduces == b->round[r].reduces;
    return alike;
}

/* Sets *plain: whether this move, after those before it, can be prepared. */
static ts_status item_make(tsi_prepared *p, ts_tensor *x, const ts_layout *to, bool *plain)
{
    item *one = &p->item[p->count];
    ts_plan *plan = NULL;
    *plain = false;
    if (x->dtype != p->dtype || x->layout == to || x->mesh->desc != to->sharding->mesh)
        return TS_OK;
    TSI_TRY(tsi_plan_together(p->rank, x->layout, to, (ts_dtype)x->dtype, &plan));
    bool direct = plan->family == TS_PLAN_DIRECT || plan->family == TS_PLAN_HIERARCHICAL;
    tsi_program *program = direct ? tsi_program_get(p->rank, plan) : NULL;
    ts_plan_release(plan);
    if (!program) return direct ? ts_rank_status(p->rank) : TS_OK;
    tsi_rounds_count(&p->rounds, program);
    *plain = is_plain(program) && (p->count == 0 || are_alike(p->detail[0].program, program));
    *one = (item){ .from = ts_layout_retain(x->layout),
                   .to = ts_layout_retain(to),
                   .mesh = ts_mesh_retain(x->mesh) };
    p->detail[p->count++] =
        (detail){ .program = program, .local = ts_layout_local(to, x->mesh->coord) };
    return TS_OK;
}

static ts_status stage_reserve(tsi_prepared *p, int64_t round, stage *s)
{
    size_t sends = 1, recvs = 1;
    for (int32_t i = 0; i < p->count; i++) {
        const tsi_exchange_round *from = round_at(p, i, round);
        sends += from ? (size_t)from->send_count : 0;
        recvs += from ? (size_t)from->recv_count : 0;
    }
    s->send = tsi_arena_calloc(&p->memory, sends, sizeof *s->send);
    s->recv = tsi_arena_calloc(&p->memory, recvs, sizeof *s->recv);
    s->send_at = tsi_arena_calloc(&p->memory, sends, sizeof *s->send_at);
    s->recv_at = tsi_arena_calloc(&p->memory, recvs, sizeof *s->recv_at);
    bool room = s->send && s->recv && s->send_at && s->recv_at;
    return room ? TS_OK : tsi_fail_memory("a prepared exchange", (sends + recvs) * sizeof *s->send);
}

/* In order of peers; parts for one are matched in the order of the tensors. first[peer + 1] counts
 * those of a peer, then is where the next of them goes. */
static void add_sends(const tsi_prepared *p, int64_t round, int64_t *first, stage *s)
{
    for (int32_t i = 0; i < p->count; i++) {
        const tsi_exchange_round *from = round_at(p, i, round);
        for (int64_t k = 0; from && k < from->send_count; k++)
            first[from->send[k].peer + 1]++;
    }
    for (int64_t peer = 0; peer < ts_group_size(p->group); peer++)
        first[peer + 1] += first[peer];
    s->exchange.send_count = first[ts_group_size(p->group)];
    for (int32_t i = 0; i < p->count; i++) {
        const tsi_exchange_round *from = round_at(p, i, round);
        for (int64_t k = 0; from && k < from->send_count; k++) {
            int64_t at = first[from->send[k].peer]++;
            s->send[at] = from->send[k];
            s->send_at[at] =
                (place){ from->send_offset[k] * p->element, i, from->send_from_target[k] };
        }
    }
}

static void add_recvs(const tsi_prepared *p, int64_t round, stage *s)
{
    for (int32_t i = 0; i < p->count; i++) {
        const tsi_exchange_round *from = round_at(p, i, round);
        for (int64_t k = 0; from && k < from->recv_count; k++) {
            int64_t at = s->exchange.recv_count++;
            s->recv[at] = from->recv[k];
            s->recv_at[at] = (place){ from->recv_offset[k] * p->element, i, 1 };
        }
    }
}

static ts_status stage_make(tsi_prepared *p, int64_t round, stage *s)
{
    int32_t i = 0;
    while (!round_at(p, i, round))
        i++;
    const tsi_part *first = &p->detail[i].program->part;
    bool reduces = round_at(p, i, round)->reduces;
    TSI_TRY(stage_reserve(p, round, s));
    s->exchange = (ts_exchange)TS_INIT(ts_exchange);
    s->exchange.dtype = p->dtype;
    s->exchange.reduce = reduces ? first->reduce : 0;
    s->exchange.avg_count = s->exchange.reduce ? first->avg_count : 0;
    s->exchange.send = s->send;
    s->exchange.recv = s->recv;
    size_t peers = (size_t)ts_group_size(p->group) + 1;
    int64_t *of_peer = tsi_calloc(peers, sizeof *of_peer);
    if (!of_peer) return tsi_fail_memory("a prepared exchange", peers * sizeof *of_peer);
    add_sends(p, round, of_peer, s);
    add_recvs(p, round, s);
    tsi_free(of_peer);
    return TS_OK;
}

static ts_status stages_make(tsi_prepared *p)
{
    p->group = p->detail[0].program->group;
    p->stage_count = tsi_rounds_all(&p->rounds);
    p->stage = tsi_arena_calloc(&p->memory, (size_t)p->stage_count, sizeof *p->stage);
    if (!p->stage) return tsi_fail_memory("a prepared exchange", sizeof *p->stage);
    for (int64_t r = 0; r < p->stage_count; r++)
        TSI_TRY(stage_make(p, r, &p->stage[r]));
    return TS_OK;
}

void tsi_prepared_destroy(tsi_prepared *p)
{
    if (!p) return;
    p->abandoned = 1;
    if (p->under_way) return;
    for (int64_t r = 0; r < p->stage_count && p->stage; r++)
        tsi_standing_destroy(p->stage[r].standing);
    for (int32_t i = 0; i < p->count; i++) {
        tsi_program_release(p->detail[i].program);
        ts_layout_release(p->item[i].from);
        ts_layout_release(p->item[i].to);
        ts_mesh_release(p->item[i].mesh);
    }
    tsi_arena_release(&p->memory);
    tsi_free(p);
}

ts_status tsi_prepared_make(ts_tensor *const *x, const ts_layout *const *to, int32_t count,
                            uint32_t tag, tsi_prepared **out)
{
    *out = NULL;
    if (count == 0 || tsi_world_describes(x[0]->rank->world)) return TS_OK; /* runs once or never */
    tsi_prepared *p = tsi_calloc(1, sizeof *p);
    if (!p) return tsi_fail_memory("a prepared exchange", sizeof *p);
    p->rank = x[0]->rank;
    p->dtype = x[0]->dtype;
    p->element = (int64_t)ts_dtype_size((ts_dtype)p->dtype);
    p->tag = tag;
    p->item = lines_take(&p->memory, (size_t)count, sizeof *p->item);
    p->detail = lines_take(&p->memory, (size_t)count, sizeof *p->detail);
    bool plain = true, room = p->item && p->detail;
    ts_status status =
        room ? TS_OK : tsi_fail_memory("a prepared exchange", (size_t)count * sizeof *p->detail);
    for (int32_t i = 0; status == TS_OK && plain && i < count; i++)
        status = item_make(p, x[i], to[i], &plain);
    if (status == TS_OK && plain) status = stages_make(p);
    if (status == TS_OK && plain)
        *out = p;
    else
        tsi_prepared_destroy(p);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

TSI_STEP_PATH bool tsi_prepared_fits(const tsi_prepared *p, ts_tensor *const *x,
                                     const ts_layout *const *to, int32_t count)
{
    if (!p || p->count != count) return false;
    for (int32_t i = 0; i < count; i++) {
        const item *one = &p->item[i];
        if (x[i]->layout != one->from || to[i] != one->to || x[i]->dtype != p->dtype) return false;
    }
    return true;
}

int64_t tsi_prepared_rounds(const tsi_prepared *p)
{
    return p->stage_count;
}

/* What follows from its shape is found by the first run. Activations are recycled otherwise. */
static tsi_array *make_model(tsi_prepared *p, int32_t i)
{
    detail *one = &p->detail[i];
    tsi_array *target = tsi_array_create_tagged(p->rank, (ts_dtype)p->dtype, &one->local, p->tag);
    if (!target || p->tag == TSI_TAG_ACTIVATION) return target;
    one->model = *target;
    one->model.storage = NULL;
    p->item[i].bytes = target->storage->bytes;
    return target;
}

static inline tsi_array *make_target(tsi_prepared *p, tsi_pool *pool, int32_t i)
{
    const tsi_array *model = &p->detail[i].model;
    if (TSI_UNLIKELY(model->references == 0)) return make_model(p, i);
    return tsi_array_like_tagged(pool, model, p->item[i].bytes, p->tag);
}

static char *data_of(const tsi_prepared *p, const tsi_array *block)
{
    char *data = block->storage->data;
    return data ? data + block->offset * p->element : NULL;
}

static ts_status take_blocks(tsi_prepared *p, ts_tensor *const *x)
{
    tsi_pool *pool = tsi_pool_of(p->rank);
    for (int32_t i = 0; i < p->count; i++) {
        item *one = &p->item[i];
        TSI_TRY(tsi_tensor_ready(x[i]));
        one->source = x[i]->array->dense ? tsi_array_retain(x[i]->array)
                                         : tsi_array_dense(p->rank, x[i]->array);
        one->target = one->source && pool ? make_target(p, pool, i) : NULL;
        if (!one->target) return ts_rank_status(p->rank);
        one->source_data = data_of(p, one->source);
        one->target_data = data_of(p, one->target);
    }
    return TS_OK;
}

static void drop_blocks(tsi_prepared *p)
{
    for (int32_t i = 0; i < p->count; i++) {
        tsi_array_release(p->item[i].source);
        tsi_array_release(p->item[i].target);
        p->item[i].source = p->item[i].target = NULL;
    }
}

static void patch(const tsi_prepared *p, ts_part *part, const place *at, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const item *one = &p->item[at[i].item];
        part[i].data = (at[i].of_target ? one->target_data : one->source_data) + at[i].offset;
    }
}

static ts_status send_stage(const tsi_prepared *p, const char *name, stage *s, ts_work **work)
{
    ts_comm_options options = TS_INIT(ts_comm_options);
    patch(p, s->send, s->send_at, s->exchange.send_count);
    patch(p, s->recv, s->recv_at, s->exchange.recv_count);
    s->exchange.device = tsi_array_device(p->item[0].target);
    options.name = name;
    options.channel = CHANNEL_MOVE;
    options.work = work;
    return tsi_group_exchange_own(p->group, &s->exchange, &options, &s->standing);
}

static void run_complete(void *prepared)
{
    tsi_prepared *p = prepared;
    p->under_way = NULL;
    if (p->abandoned) tsi_prepared_destroy(p);
}

/* The blocks are in use until the work is complete. Takes the work, and the sources. */
static tsi_move *hold_blocks(tsi_prepared *p, ts_work *work)
{
    tsi_move *move = tsi_move_create(p->rank, work, 2 * p->count);
    if (move && work) {
        move->done = run_complete;
        move->context = p;
        p->under_way = move;
    }
    for (int32_t i = 0; move && i < p->count; i++) {
        tsi_move_take(move, p->item[i].source);
        p->item[i].source = NULL;
    }
    if (move) tsi_move_guard_held(move);
    for (int32_t i = 0; move && i < p->count; i++)
        tsi_move_hold(move, p->item[i].target);
    return move;
}

/* *work: of all rounds that are in flight, whatever is returned; NULL: none is. */
static TSI_STEP_PATH ts_status send_stages(tsi_prepared *p, const char *name, ts_work **work)
{
    bool follow =
        p->stage_count > 1 && tsi_comm_follows(p->rank, tsi_array_device(p->item[0].target));
    ts_status status = TS_OK;
    *work = NULL;
    for (int64_t r = 0; status == TS_OK && r < p->stage_count; r++) {
        bool stays = follow || r == p->stage_count - 1;
        ts_work *one = NULL;
        status = send_stage(p, name, &p->stage[r], stays ? &one : NULL);
        if (one == NULL) continue;
        tsi_work_behind(one, *work);
        *work = one;
    }
    return status;
}

TSI_STEP_PATH ts_status tsi_prepared_run(tsi_prepared *p, const char *name, ts_tensor *const *x,
                                         ts_tensor *const *variable)
{
    ts_work *work = NULL;
    TSI_TRY(tsi_rank_enter(p->rank));
    /* What became of that run is for who waits for it: it may be of a step that was abandoned. */
    if (p->under_way) (void)tsi_move_wait(p->under_way);
    TSI_TRY(ts_rank_status(p->rank));
    ts_status status = take_blocks(p, x);
    if (status == TS_OK) status = send_stages(p, name, &work);
    if (status != TS_OK && work) (void)ts_work_wait(work); /* peers read the blocks until then */
    tsi_move *move = status == TS_OK ? hold_blocks(p, work) : NULL;
    if (status == TS_OK && !move) status = ts_rank_status(p->rank);
    for (int32_t i = 0; status == TS_OK && i < p->count; i++) {
        item *one = &p->item[i];
        tsi_tensor_bind(variable[i], one->mesh, one->to, (ts_dtype)p->dtype, one->target,
                        tsi_move_retain(move));
        one->target = NULL;
    }
    tsi_move_release(move);
    drop_blocks(p);
    return status;
}
