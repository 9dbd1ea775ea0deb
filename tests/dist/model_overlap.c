/* SPDX-License-Identifier: Apache-2.0 */
/* model_overlap.c - a layer of experts computes while its rows travel, and its events tell so.
 *
 * Rank 1 stands still inside the layer until rank 0 has computed something that must not need what
 * comes from rank 1: the first product of rank 0's own rows while others' come, the shared experts
 * while results come back. Were the exchange waited for first, rank 1 would stand in vain. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/rank.h"
#include "base/ring.h"
#include "comm/comm.h"
#include "harness/test.h"
#include "op/core/dispatch.h"
#include "tessera/tessera.h"

/* What the layer issues, in its order: everybody's choices, then weights, rows, results. */
enum { CHOICES = 1, WEIGHTS, ROWS, RESULTS };

typedef struct scene {
    int32_t stands_after;  /* rank 1, at the first operator after it issued this */
    int32_t on_its_way;    /* rank 0 has this in flight */
    const char *computes;  /* and calls this operator */
    _Atomic int32_t there; /* it did */
    bool in_vain;
    bool shown; /* by the events of rank 0 */
} scene;

typedef struct watcher {
    scene *s;
    bool first; /* rank 0 */
    bool stood;
    int32_t issued;
} watcher;

static void hear_issue(void *context, void *what)
{
    watcher *w = context;
    const tsi_issued *issued = what;
    w->issued += issued->name && strcmp(issued->name, "grouped_mlp") == 0;
}

/* At most 20 s. */
static void stand(watcher *w)
{
    struct timespec pause = { .tv_nsec = 1000000 };
    for (int i = 0; i < 20000 && !atomic_load(&w->s->there); i++)
        nanosleep(&pause, NULL);
    w->s->in_vain = !atomic_load(&w->s->there);
    w->stood = true;
}

static void hear_call(void *context, void *what)
{
    watcher *w = context;
    const tsi_op_record *call = what;
    if (!w->first) {
        if (w->issued == w->s->stands_after && !w->stood) stand(w);
    } else if (w->issued == w->s->on_its_way && strcmp(call->plan->op->name, w->s->computes) == 0) {
        atomic_store(&w->s->there, 1);
    }
}

/* The exchange of that number began before an operator of that name and ended after it. */
static bool overlaps(const ts_rank *me, uint64_t since, const scene *s)
{
    tsi_event event, moves = { .number = 0 };
    int32_t issued = 0;
    for (uint64_t n = since + 1; n <= tsi_ring_last(me->ring); n++) {
        if (!tsi_ring_read(me->ring, n, &event)) continue;
        bool ours = event.kind == TSI_EVENT_COMM && strcmp(event.name, "grouped_mlp") == 0;
        issued += ours;
        if (ours && issued == s->on_its_way) moves = event;
        if (moves.number && event.kind == TSI_EVENT_OP &&
            strcmp(event.kind_name, s->computes) == 0 && event.begin_ns >= moves.begin_ns)
            return event.end_ns > 0 && event.end_ns <= moves.end_ns;
    }
    return false;
}

static ts_status token_at(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(int64_t *)element = (5 * global[0] + global[1] * global[1]) % 32;
    return TS_OK;
}

static ts_status work(ts_rank *me, void *argument)
{
    watcher w = { .s = argument, .first = ts_rank_index(me) == 0 };
    const tsi_observer observer = {
        .context = &w, .hear = { [TSI_NEWS_ISSUE] = hear_issue, [TSI_NEWS_CALL] = hear_call }
    };
    ts_model_config config = { .struct_size = sizeof config,
                               .family = TS_MODEL_DEEPSEEK_V3,
                               .vocab = 32,
                               .hidden = 16,
                               .intermediate = 24,
                               .layers = 1,
                               .heads = 2,
                               .kv_heads = 2,
                               .head_dim = 4,
                               .plain_dim = 4,
                               .value_dim = 4,
                               .kv_rank = 8,
                               .experts = 4,
                               .experts_per_token = 2,
                               .expert_width = 8,
                               .shared_experts = 1,
                               .positions = 64 };
    ts_model_options options = TS_INIT(ts_model_options);
    options.ep = 2;
    ts_model *m = ts_model_declare(ts_mesh_create(me, "fsdp=2"), &config, &options);
    (void)ts_model_fsdp(m, NULL);
    (void)ts_model_materialize(m);
    ts_meta meta = { .shape = TS_SHAPE(4, 8), .dtype = TS_DTYPE_I64 };
    ts_tensor *ids = ts_from_function(token_at, NULL, ts_model_tokens(m), meta);
    (void)ts_tensor_wait(ts_model_logits(m, ids)); /* plans are made */
    uint64_t since = ts_rank_event(me);
    if (tsi_observers_add(&me->observers, &observer) != TS_OK) return TS_ERR_STATE;
    (void)ts_tensor_wait(ts_model_logits(m, ids));
    tsi_observers_remove(&me->observers, &observer);
    if (w.first) w.s->shown = overlaps(me, since, w.s);
    ts_model_destroy(m);
    return ts_rank_status(me);
}

static void play(test *t, scene *s, const char *what)
{
    char error[512] = "";
    ts_status status =
        ts_launch_with(TS_OPTIONS(ts_world_options, .engine = "threads", .rank_count = 2), work, s,
                       error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s: %s", what, error);
    TEST_SAY(t, !s->in_vain, "%s: rank 0 waits before it computes", what);
    TEST_SAY(t, s->shown, "%s: the events of rank 0 do not tell of it", what);
}

TS_TEST(own_rows_are_multiplied_while_others_travel)
{
    scene s = { .stands_after = WEIGHTS, .on_its_way = ROWS, .computes = "grouped_linear" };
    play(t, &s, "the first product");
}

TS_TEST(shared_experts_are_computed_while_results_travel)
{
    scene s = { .stands_after = ROWS, .on_its_way = RESULTS, .computes = "linear" };
    play(t, &s, "shared experts");
}
