/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c - the model engine's table: every operation is complete when it is started.
 *
 * Only representatives exist as ranks of this process; each has counts of its own, touched by its
 * thread alone, so there is nothing to lock and nothing to wait for. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/rank.h"
#include "comm/comm.h"
#include "comm/model/model_engine.h"

typedef struct model_state {
    tsi_model_machine machine;
    const tsi_host *host;
    tsi_model_counts counts[]; /* per local rank */
} model_state;

static ts_status model_open(const tsi_engine_options *options, void **out)
{
    const ts_world_options *user = options->user;
    const char *text = user != NULL && user->model != NULL ? user->model : getenv("TESSERA_MODEL");
    tsi_model_machine machine;
    *out = NULL;
    TSI_TRY(tsi_model_machine_parse(text, &machine));
    size_t bytes =
        sizeof(model_state) + (size_t)options->world->local_count * sizeof(tsi_model_counts);
    model_state *state = tsi_calloc(1, bytes);
    if (state == NULL) return tsi_fail_memory("the model engine", bytes);
    state->machine = machine;
    if (text != NULL && text[0] != '\0') options->world->node_ranks = machine.ranks_per_node;
    state->host = options->host;
    *out = state;
    return TS_OK;
}

static void model_close(void *state)
{
    tsi_free(state);
}

static ts_status model_start(void *opaque, tsi_work *work)
{
    model_state *state = opaque;
    tsi_model_cost(&state->machine, work, &state->counts[work->rank->local_index]);
    state->host->work_finish(work, TS_OK, -1, "%s", "");
    return TS_OK;
}

static ts_status model_wait(void *state, tsi_work *work)
{
    (void)state;
    return work->status;
}

static bool model_test(void *state, tsi_work *work)
{
    (void)state;
    return atomic_load_explicit(&work->state, memory_order_acquire) == TSI_WORK_DONE;
}

/* Nobody waits for anybody, so nobody needs to be told. */
static void model_leave(void *state, ts_rank *rank, ts_status status, const char *sentence)
{
    (void)state;
    (void)rank;
    (void)status;
    (void)sentence;
}

static ts_status model_recover(void *state, ts_rank *rank)
{
    (void)state;
    (void)rank;
    return TS_OK;
}

static ts_status model_read(void *opaque, ts_rank *rank, tsi_model_counts *out)
{
    model_state *state = opaque;
    *out = state->counts[rank->local_index];
    return TS_OK;
}

void tsi_model_compute(void *opaque, ts_rank *rank, double seconds)
{
    model_state *state = opaque;
    state->counts[rank->local_index].seconds += seconds;
}

static const tsi_engine engine = {
    .struct_size = sizeof(tsi_engine),
    .name = "model",
    .direct = true,
    .no_data = true,
    .open = model_open,
    .close = model_close,
    .start = model_start,
    .wait = model_wait,
    .test = model_test,
    .leave = model_leave,
    .recover = model_recover,
    .model_read = model_read,
};

const tsi_engine *tsi_engine_model(void)
{
    return &engine;
}
