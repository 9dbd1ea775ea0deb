/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - steps that are recorded once and run again (tessera/step.h).
 *
 *   record    the rank works with a device, an allocator and plans of the step's own; what reaches
 *             the device or other ranks is kept (base/keep.h). A device that captures stays the
 *             rank's own, and what it does is kept as graphs (device/capture.h)
 *   replay    the list of kept work, from top to bottom, on the same memory
 *
 * The rank's usual device, allocator and plans wait in their places: they are put aside by slot and
 * come back when the recording ends. So dispatch knows nothing of it, and a call that is not
 * recorded pays nothing.
 *
 * INV: memory that kept work names lives as long as the step: blocks made inside are of its own
 * allocator, which nobody else draws from; storage that was there before is retained. Modules,
 * optimizers and meshes are borrowed. */
#include <stdio.h>
#include <string.h>

#include "array/array.h"
#include "base/alloc.h"
#include "base/keep.h"
#include "comm/again.h"
#include "device/capture.h"
#include "op/core/dispatch.h"
#include "plan/program.h"
#include "runtime/replay.h"
#include "runtime/replay_events.h"
#include "tensor/move.h"
#include "tensor/tensor.h"
#include "tessera/comm.h"
#include "tessera/step.h"

/* ---- slots ----------------------------------------------------------------------------------- */

enum { ASIDE = 3 };
static const tsi_slot aside_slot[ASIDE] = { TSI_SLOT_DEVICE, TSI_SLOT_ARRAY, TSI_SLOT_OP };

typedef struct aside { /* what a rank has in these slots while a step is recorded */
    void *state[ASIDE];
} aside;

static void *slot_swap(ts_rank *rank, tsi_slot slot, void *state)
{
    return atomic_exchange_explicit(&rank->slot[slot].state, state, memory_order_acq_rel);
}

static void put_aside(ts_step *s, aside *mine)
{
    void *usual = atomic_load_explicit(&s->rank->slot[TSI_SLOT_DEVICE].state, memory_order_acquire);
    void *own[ASIDE] = { s->captures ? usual : &s->device, s->pool, NULL };
    for (int32_t i = 0; i < ASIDE; i++)
        mine->state[i] = slot_swap(s->rank, aside_slot[i], own[i]);
    s->rank->kept = &s->kept;
}

static void take_back(ts_step *s, const aside *mine)
{
    s->rank->kept = NULL;
    for (int32_t i = 0; i < ASIDE; i++) {
        void *own = slot_swap(s->rank, aside_slot[i], mine->state[i]);
        if (aside_slot[i] == TSI_SLOT_OP) s->plans = own;
    }
    s->plans_destroy = s->rank->slot[TSI_SLOT_OP].destroy;
}

/* ---- recording ------------------------------------------------------------------------------- */

static ts_status step_prepare(ts_step *s, ts_rank *rank)
{
    const tsi_rank_device *usual = tsi_rank_device_of(rank);
    if (!usual || !tsi_pool_of(rank) || !tsi_op_state_of(rank)) return ts_rank_status(rank);
    s->captures = tsi_device_captures(usual->device);
    if (!s->captures && usual->device != tsi_device_host())
        return TSI_FAIL(TS_ERR_STATE, "step: device %s cannot record steps", usual->device->name);
    static _Atomic uint64_t recordings;
    s->rank = rank;
    s->kept.number = atomic_fetch_add(&recordings, 1) + 1;
    s->device = *usual;
    s->device.device = tsi_device_keeping();
    s->device.queue = (tsi_stream *)(void *)s; /* there is one: whoever waits for it is refused */
    s->pool = tsi_pool_create(usual->device, usual->queue, rank);
    return s->pool ? TS_OK : ts_rank_status(rank);
}

static ts_status step_run(ts_step *s, ts_step_fn fn, void *context)
{
    tsi_recording *recording = NULL;
    aside mine;
    tsi_tensor_state *tensors = tsi_tensor_state_of(s->rank);
    if (!tensors) return ts_rank_status(s->rank);
    tsi_moves_release(tensors); /* what was sent before is no part of it */
    TSI_TRY(tsi_record_begin(s->rank, &recording));
    tsi_record_hold(recording, &s->held);
    tsi_record_works(recording, &s->worked);
    tsi_works_begin(&s->works, &s->kept, s->pool);
    put_aside(s, &mine);
    ts_status status =
        s->captures ? tsi_capture_begin(&s->kept, tsi_rank_device_of(s->rank)) : TS_OK;
    bool began = status == TS_OK;
    if (began) status = fn(context);
    if (status == TS_OK) status = ts_rank_status(s->rank);
    if (status == TS_OK) tsi_moves_release(tensors); /* and what it sent ends in it */
    if (s->captures && began) status = tsi_capture_end(&s->kept, status);
    take_back(s, &mine);
    tsi_works_end(&s->works, s->pool);
    s->recorded_bytes = tsi_pool_reserved(s->pool);
    ts_status written = tsi_record_end(recording, &s->value);
    if (status == TS_OK) status = ts_rank_status(s->rank);
    if (status == TS_OK) status = written;
    int64_t open = tsi_again_open(&s->kept);
    if (status == TS_OK && open > 0)
        return TSI_FAIL(TS_ERR_STATE,
                        "step: %lld operations are still under way at its end; wait for them in it",
                        (long long)open);
    return status == TS_OK ? tsi_kept_settle(&s->kept) : status;
}

ts_step *ts_step_record(ts_rank *me, ts_step_fn fn, void *context)
{
    if (tsi_rank_enter(me) != TS_OK || tsi_comm_now(me, "step") != TS_OK) return NULL;
    ts_step *s = fn && !me->kept ? tsi_calloc(1, sizeof *s) : NULL;
    if (!fn)
        (void)TSI_FAIL(TS_ERR_NULL, "step: there is no function to record");
    else if (me->kept)
        (void)TSI_FAIL(TS_ERR_STATE, "step: another one is recorded or run");
    else if (!s)
        (void)tsi_fail_memory("a step", sizeof *s);
    if (!s) return NULL;
    if (step_prepare(s, me) == TS_OK && step_run(s, fn, context) == TS_OK) return s;
    ts_step_destroy(s);
    return NULL;
}

void ts_step_destroy(ts_step *s)
{
    if (!s) return;
    tsi_kept_release(&s->kept); /* before the plans that it uses */
    if (s->plans) s->plans_destroy(s->plans);
    tsi_held_release(&s->held);
    tsi_works_release(&s->works, s->pool);
    tsi_free(s->worked.action);
    tsi_free(s->waited);
    tsi_replay_forget(s);
    tsi_pool_destroy(s->pool);
    tsi_step_destroy(s->value);
    tsi_free(s);
}

/* ---- running it again ------------------------------------------------------------------------ */

/* For who saved one of these, or made something of it. */
static void note_written(const tsi_held *held)
{
    for (int64_t i = 0; i < held->written_count; i++)
        held->written[i]->version++;
}

ts_status tsi_step_run(ts_step *s, int64_t *ns)
{
    if (!s) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(s->rank));
    if (s->rank->kept) return TSI_FAIL(TS_ERR_STATE, "step: another one is recorded or run");
    TSI_TRY(tsi_comm_now(s->rank, "step"));
    tsi_tensor_state *tensors = tsi_tensor_state_of(s->rank);
    if (!tensors) return ts_rank_status(s->rank);
    tsi_moves_release(tensors); /* a replay writes without asking who still reads */
    TSI_TRY(ts_rank_status(s->rank));
    /* Others may have failed before they took the order. */
    if (s->agreed && s->epoch != tsi_again_epoch(s->rank)) TSI_TRY(tsi_step_undo(s));
    if (s->lost) /* here alone: the others are told */
        return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE,
                              "step: its order was lost; record it again");
    tsi_event event = {
        .kind = TSI_EVENT_OP, .kind_name = "step", .name = s->rank->label, .where = s->rank->where
    };
    uint64_t number = tsi_ring_begin(s->rank->ring, &event);
    ts_status status = tsi_kept_enter(&s->kept);
    if (status == TS_OK) {
        status = ns ? tsi_replay_time(s, ns) : tsi_replay_run(s);
        note_written(&s->held);
    }
    if (status == TS_OK) status = tsi_kept_leave(&s->kept);
    if (status != TS_OK) tsi_again_end(s->rank, &s->kept);
    tsi_ring_end(s->rank->ring, number, 0);
    s->replays += status == TS_OK;
    return status;
}

ts_status ts_step_replay(ts_step *s)
{
    return tsi_step_run(s, NULL);
}

/* The name that the program has for it; NULL: it is no memory of before that the step touches. */
static const char *held_name(const ts_step *s, const tsi_storage *storage)
{
    for (int64_t i = 0; i < s->held.count; i++)
        if (s->held.storage[i] == storage)
            return s->value->list[s->rank->index].value[s->held.value[i]].name;
    return NULL;
}

enum { INPUT_TEXT = 512 };
/* "input "table"": a parameter by its full name, else by that of the program, if there is one. */
static const char *input_text(const ts_step *s, const ts_tensor *input, char out[INPUT_TEXT])
{
    char full[INPUT_TEXT / 2];
    const char *held = input->array ? held_name(s, input->array->storage) : NULL;
    if (input->name)
        (void)tsi_name_text(input->name, full, sizeof full);
    else
        (void)snprintf(full, sizeof full, "%s", held ? held : "");
    (void)snprintf(out, INPUT_TEXT, full[0] ? "input \"%s\"" : "input", full);
    return out;
}

static ts_status refuse_value(const ts_step *s, const ts_tensor *input, const ts_tensor *value)
{
    char name[INPUT_TEXT], on[2][128];
    const tsi_mesh_desc *mesh[] = { input->layout->sharding->mesh, value->layout->sharding->mesh };
    const char *dtype[] = { ts_dtype_name((ts_dtype)input->dtype),
                            ts_dtype_name((ts_dtype)value->dtype) };
    (void)input_text(s, input, name);
    if (mesh[0] == mesh[1])
        return TSI_FAIL(TS_ERR_SHAPE,
                        "step: the %s was recorded as %s of %s, the value is %s of %s", name,
                        input->layout->text, dtype[0], value->layout->text, dtype[1]);
    for (int32_t i = 0; i < 2; i++)
        (void)tsi_mesh_desc_text(mesh[i], on[i], sizeof on[i]);
    return TSI_FAIL(TS_ERR_MESH,
                    "step: the %s was recorded as %s of %s on mesh \"%s\", the value is %s of %s "
                    "on mesh \"%s\"; move it there first: ts_redistribute_to(value, "
                    "ts_layout_sharding(ts_tensor_layout(input)))",
                    name, input->layout->text, dtype[0], on[0], value->layout->text, dtype[1],
                    on[1]);
}

/* Who still reads the old value is waited for; a value that lies over it is copied first. */
static ts_status write_input(ts_tensor *input, ts_tensor *value)
{
    TSI_TRY(tsi_tensor_writable(input, "step: the input"));
    if (!tsi_array_meets(input->array, value->array))
        return tsi_array_copy(input->array, value->array);
    ts_tensor *apart = tsi_op_copy_of(value);
    if (!apart) return ts_rank_status(input->rank);
    ts_status status = tsi_array_copy(input->array, apart->array);
    ts_tensor_drop(apart);
    return status;
}

ts_status ts_step_input(ts_step *s, ts_tensor *input, ts_tensor *value)
{
    if (!s || !input || !value) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(s->rank));
    if (!input->layout) return tsi_tensor_refuse(input, "step: the input");
    if (!value->layout) return tsi_tensor_refuse(value, "step: its value");
    if (input->layout != value->layout || input->dtype != value->dtype)
        return refuse_value(s, input, value);
    TSI_TRY(tsi_tensor_ready(input));
    TSI_TRY(tsi_tensor_ready(value));
    if (!input->mesh->member || input->array->storage->bytes == 0) return TS_OK; /* not here */
    char name[INPUT_TEXT];
    if (!held_name(s, input->array->storage))
        return TSI_FAIL(TS_ERR_ARG, "step: the recorded step reads no tensor that is the %s (%s)",
                        input_text(s, input, name), input->layout->text);
    return write_input(input, value);
}

/* ---- the program of all ranks ---------------------------------------------------------------- */

static ts_array bytes_at(void *data, int64_t rows, int64_t bytes)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta = (ts_meta){ .shape = TS_SHAPE(rows, bytes), .dtype = TS_DTYPE_U8 };
    return array;
}

/* The texts of all ranks, each of `bytes` bytes with its end; the caller frees. */
static ts_status gather_texts(ts_rank *me, const tsi_text *own, char **out, int64_t *bytes)
{
    ts_group *world = ts_group_world(me);
    int64_t most = (int64_t)own->length + 1, ranks = ts_rank_count(me);
    ts_array size = TS_INIT(ts_array);
    size.data = &most;
    size.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    TSI_TRY(ts_group_all_reduce(world, &size, &size, TS_REDUCE_MAX, NULL));
    char *mine = tsi_calloc(1, (size_t)most), *all = tsi_calloc((size_t)ranks, (size_t)most);
    ts_status status = mine && all ? TS_OK : tsi_fail_memory("a program", (size_t)(ranks * most));
    if (status == TS_OK) {
        memcpy(mine, own->data, own->length);
        ts_array in = bytes_at(mine, 1, most), whole = bytes_at(all, ranks, most);
        status = ts_group_all_gather(world, &in, &whole, NULL);
    }
    tsi_free(mine);
    *bytes = most;
    *out = status == TS_OK ? all : NULL;
    if (status != TS_OK) tsi_free(all);
    return status;
}

static ts_status join_texts(const char *texts, int64_t bytes, int64_t ranks, ts_program **out)
{
    tsi_step **part = tsi_calloc((size_t)ranks, sizeof *part), *all = NULL;
    ts_status status = part ? TS_OK : tsi_fail_memory("a program", (size_t)ranks * sizeof *part);
    for (int64_t r = 0; r < ranks && status == TS_OK; r++)
        status = tsi_step_parse(texts + r * bytes, &part[r]);
    if (status == TS_OK) status = tsi_step_join(part, ranks, &all);
    if (status == TS_OK) status = tsi_step_meet_least(all);
    if (status == TS_OK)
        status = tsi_program_make(all, out);
    else
        tsi_step_destroy(all);
    for (int64_t r = 0; part && r < ranks; r++)
        tsi_step_destroy(part[r]);
    tsi_free(part);
    return status;
}

ts_status ts_step_program(const ts_step *s, ts_program **out)
{
    if (!s || !out) return TS_ERR_NULL;
    tsi_text own = { 0 };
    char *texts = NULL;
    int64_t bytes = 0;
    *out = NULL;
    TSI_TRY(tsi_rank_enter(s->rank));
    TSI_TRY(tsi_comm_once(s->rank, "step: its program"));
    tsi_step_print(s->value, &own);
    ts_status status = own.failed ? tsi_fail_memory("a program", own.length) : TS_OK;
    if (status == TS_OK) status = gather_texts(s->rank, &own, &texts, &bytes);
    if (status == TS_OK) status = join_texts(texts, bytes, ts_rank_count(s->rank), out);
    tsi_text_release(&own);
    tsi_free(texts);
    return status;
}

size_t ts_step_text(const ts_step *s, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (s) tsi_step_print(s->value, &text);
    return tsi_text_give(&text, out, size);
}

ts_status ts_step_summarise(const ts_step *s, ts_step_summary *out)
{
    if (!s || !out) return TS_ERR_NULL;
    ts_step_summary is = { .struct_size = out->struct_size,
                           .works = s->kept.count - s->room,
                           .actions = tsi_step_action_count(s->value),
                           .bytes = tsi_step_bytes(s),
                           .replays = s->replays,
                           .waited_ns = s->waited_ns,
                           .helped_ns = s->helped_ns };
    memcpy(out, &is, out->struct_size < sizeof is ? out->struct_size : sizeof is);
    return TS_OK;
}
