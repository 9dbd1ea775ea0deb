/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_generate.c - the published orders of a pipeline, for any numbers.
 *
 * P ranks, V stages a rank, M micro-batches. On a loop rank r has the stages r, r + P, ...; on a V
 * it has r on the way down and 2P - 1 - r on the way up. Idle cells are those the rules are
 * published with: they only place actions of several ranks beside each other when printed.
 *
 * Where a published rule needs numbers that divide, rounds differ by one here; where it needs many
 * micro-batches, it is made for that many and those beyond M are left out. Leaving out whole
 * micro-batches cannot make a schedule wait for itself: actions of different ones need nothing of
 * each other. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

typedef struct making {
    ts_schedule *out;
    int32_t P, V, M, r;
    int32_t *forward, *backward, *weight; /* [stage]: the next micro-batch of each kind */
    bool keep_idle;                       /* what is left out stays as an idle cell */
} making;

static void put(making *m, int32_t kind, int32_t stage, int32_t micro)
{
    ts_cell cell = tsi_cell_of(kind, stage, micro);
    if (micro >= m->M) {
        if (!m->keep_idle) return;
        cell = tsi_cell_of(TS_CELL_IDLE, -1, -1);
    }
    tsi_schedule_add(m->out, m->r, &cell);
}

static void idle(making *m, int32_t count)
{
    ts_cell cell = tsi_cell_of(TS_CELL_IDLE, -1, -1);
    for (int32_t i = 0; i < count; i++)
        tsi_schedule_add(m->out, m->r, &cell);
}

static void forward(making *m, int32_t stage)
{
    put(m, TS_CELL_FORWARD, stage, m->forward[stage]++);
}

static void backward(making *m, int32_t kind, int32_t stage)
{
    put(m, kind, stage, m->backward[stage]++);
}

static void weight(making *m, int32_t stage)
{
    put(m, TS_CELL_WEIGHT, stage, m->weight[stage]++);
}

/* ---- one stage a rank ------------------------------------------------------------------------ */

static ts_status make_gpipe(making *m)
{
    for (int32_t i = 0; i < m->M; i++)
        forward(m, m->r);
    for (int32_t i = 0; i < m->M; i++)
        backward(m, TS_CELL_BACKWARD, m->r);
    put(m, TS_CELL_REDUCE, m->r, -1);
    return TS_OK;
}

static ts_status make_1f1b(making *m)
{
    int32_t warm = m->P - 1 - m->r < m->M ? m->P - 1 - m->r : m->M;
    for (int32_t i = 0; i < warm; i++)
        forward(m, m->r);
    for (int32_t i = 0; i < m->M; i++) {
        if (i < m->M - warm) forward(m, m->r);
        backward(m, TS_CELL_BACKWARD, m->r);
    }
    put(m, TS_CELL_REDUCE, m->r, -1);
    return TS_OK;
}

/* ---- several stages a rank, on a loop -------------------------------------------------------- */

/* All micro-batches of a stage before the next one; gradients come back the same way. */
static ts_status make_looped(making *m)
{
    idle(m, m->r);
    for (int32_t v = 0; v < m->V; v++)
        for (int32_t i = 0; i < m->M; i++)
            forward(m, m->r + v * m->P);
    idle(m, 2 * (m->P - 1 - m->r));
    for (int32_t v = m->V - 1; v >= 0; v--)
        for (int32_t i = m->M - 1; i >= 0; i--)
            put(m, TS_CELL_BACKWARD, m->r + v * m->P, i);
    return TS_OK;
}

/* Micro-batches go in rounds of about P through all stages of a rank. */
typedef struct rounds {
    int32_t count, largest; /* rounds; micro-batches of the first ones */
    int32_t P, V, M, r;
} rounds;

/* Which of the rank's stages the k-th action is for: 0 .. V - 1. */
static int32_t chunk_at(const rounds *s, int64_t k)
{
    int64_t longer = s->M % s->count, each = s->M / s->count; /* the first rounds have one more */
    int64_t edge = longer * (each + 1) * s->V;
    if (k < edge) return (int32_t)(k / (each + 1) % s->V);
    return (int32_t)((k - edge) / each % s->V);
}

static int32_t forward_stage(const rounds *s, int64_t k)
{
    return chunk_at(s, k) * s->P + s->r;
}

static int32_t backward_stage(const rounds *s, int64_t k)
{
    return (s->V - 1 - chunk_at(s, k)) * s->P + s->r;
}

static ts_status make_interleaved(making *m, bool split)
{
    rounds s = {
        .count = m->M / m->P > 1 ? m->M / m->P : 1, .P = m->P, .V = m->V, .M = m->M, .r = m->r
    };
    s.largest = (m->M + s.count - 1) / s.count;
    int64_t all = (int64_t)m->V * m->M, oldest = 0;
    int64_t warm = (int64_t)(m->V - 1) * s.largest + (int64_t)(split ? 1 : 2) * (m->P - 1 - m->r);
    if (warm > all) warm = all;
    int64_t after =
        split ? m->P - 1 - m->r : (int64_t)m->V * m->P + 2 * (m->P - 1 - m->r) - (warm + m->r);
    idle(m, m->r);
    for (int64_t k = 0; k < warm; k++)
        forward(m, forward_stage(&s, k));
    if (warm > 0) idle(m, (int32_t)after); /* none if negative */
    for (int64_t k = 0; k < all; k++) {
        if (warm + k < all)
            forward(m, forward_stage(&s, warm + k));
        else if (!split)
            idle(m, 1);
        backward(m, split ? TS_CELL_INPUT : TS_CELL_BACKWARD, backward_stage(&s, k));
        if (split && k >= m->r) weight(m, backward_stage(&s, oldest++));
    }
    while (split && oldest < all)
        weight(m, backward_stage(&s, oldest++));
    return TS_OK;
}

static ts_status make_interleaved_1f1b(making *m)
{
    return make_interleaved(m, false);
}

static ts_status make_zero_bubble(making *m)
{
    return make_interleaved(m, true);
}

/* ---- two stages a rank, on a V --------------------------------------------------------------- */

static void both_gradients(making *m, int32_t stage)
{
    backward(m, TS_CELL_INPUT, stage);
    weight(m, stage);
}

static ts_status make_zbv(making *m)
{
    int32_t P = m->P, r = m->r, down = r, up = 2 * P - 1 - r;
    int32_t n = 2 * P - 1 > m->M ? 2 * P - 1 : m->M;
    m->keep_idle = true;
    idle(m, r);
    for (int32_t i = 0; i < 2 * (P - r) - 1; i++)
        forward(m, down);
    for (int32_t i = 0; i < r; i++) {
        forward(m, up);
        forward(m, down);
    }
    for (int32_t i = 0; i < P - r; i++) {
        forward(m, up);
        both_gradients(m, up);
    }
    while (m->forward[up] < m->forward[down] || m->forward[down] < n) {
        if (m->forward[down] < n) forward(m, down);
        both_gradients(m, down);
        forward(m, up);
        both_gradients(m, up);
    }
    for (int32_t i = 0; i < r; i++) {
        backward(m, TS_CELL_INPUT, down);
        backward(m, TS_CELL_INPUT, up);
    }
    for (int32_t i = 0; i < P - r; i++) {
        backward(m, TS_CELL_INPUT, down);
        weight(m, down);
    }
    while (m->weight[up] < m->backward[up])
        weight(m, up);
    while (m->weight[down] < m->backward[down])
        weight(m, down);
    return TS_OK;
}

/* Weight gradients that wait, oldest first. */
typedef struct pending {
    ts_cell *cell;
    int32_t first, count;
} pending;

static void whole_or_split(making *m, pending *queue, int32_t stage, bool split)
{
    if (split) queue->cell[queue->count++] = tsi_cell_of(TS_CELL_WEIGHT, stage, m->backward[stage]);
    backward(m, split ? TS_CELL_INPUT : TS_CELL_BACKWARD, stage);
}

static void pop_weight(making *m, pending *queue)
{
    if (queue->first == queue->count) return;
    const ts_cell *oldest = &queue->cell[queue->first++];
    put(m, oldest->kind, oldest->stage, oldest->micro);
}

/* A forward and a backward at once; one alone where the other is left out. */
static void together(making *m, int32_t ahead, int32_t back)
{
    bool both = m->forward[ahead] < m->M && m->backward[back] < m->M;
    forward(m, ahead);
    tsi_schedule_list *list = &m->out->list[m->r];
    if (both && list->count > 0) list->cell[list->count - 1].joined = 1;
    backward(m, TS_CELL_BACKWARD, back);
}

static void dual_begin(making *m, pending *queue, int32_t down, int32_t up)
{
    int32_t left = m->P - 1 - m->r;
    for (int32_t i = 0; i < 2 * left; i++)
        forward(m, down);
    for (int32_t i = 0; i <= m->r; i++) {
        forward(m, down);
        forward(m, up);
    }
    for (int32_t i = 0; i < left; i++) {
        whole_or_split(m, queue, up, true);
        pop_weight(m, queue);
        forward(m, up);
    }
}

static void dual_end(making *m, pending *queue, int32_t down, int32_t up)
{
    int32_t left = m->P - 1 - m->r, k = m->r + 1;
    bool split = false;
    for (int32_t i = 0; i < k; i++) {
        split = split || (i == k / 2 && m->r % 2 == 1);
        whole_or_split(m, queue, up, split);
        split = split || (i == k / 2 && m->r % 2 == 0);
        whole_or_split(m, queue, down, split);
    }
    for (int32_t i = 0; i < left; i++) {
        pop_weight(m, queue);
        whole_or_split(m, queue, down, split);
    }
    for (int32_t i = 0; i < k; i++)
        pop_weight(m, queue);
    TSI_ASSERT(queue->first == queue->count);
}

static ts_status make_dualpipev(making *m)
{
    int32_t P = m->P, r = m->r, down = r, up = 2 * P - 1 - r;
    int32_t n = 2 * P > m->M ? 2 * P : m->M;
    pending queue = { .cell = tsi_alloc_array((size_t)4 * (size_t)P + 4, sizeof *queue.cell) };
    if (!queue.cell) return tsi_fail_memory("a schedule", (size_t)P * sizeof *queue.cell);
    dual_begin(m, &queue, down, up);
    for (int32_t i = 0; i < n - 2 * P + r + 1; i++) {
        if (i == 0 && r == P - 1) { /* its first gradient comes from the forward just before */
            forward(m, down);
            backward(m, TS_CELL_BACKWARD, up);
        } else {
            together(m, down, up);
        }
        together(m, up, down);
    }
    for (int32_t i = 0; i < P - 1 - r; i++) {
        backward(m, TS_CELL_BACKWARD, up);
        together(m, up, down);
    }
    dual_end(m, &queue, down, up);
    tsi_free(queue.cell);
    return TS_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct published {
    const char *name, *other; /* as in files; a shorter one or NULL */
    ts_status (*make)(making *m);
    int32_t low, high, usual; /* stages a rank */
    bool on_v, aligned;       /* aligned: idle cells are added until nobody is early */
} published;

static const published rules[] = {
    { "GPipe", NULL, make_gpipe, 1, 1, 1, false, false },
    { "1F1B", NULL, make_1f1b, 1, 1, 1, false, false },
    { "LoopedBFS", NULL, make_looped, 1, INT32_MAX, 2, false, false },
    { "Interleaved1F1B", NULL, make_interleaved_1f1b, 1, INT32_MAX, 2, false, false },
    { "InterleavedZeroBubble", "zb1p", make_zero_bubble, 1, INT32_MAX, 1, false, true },
    { "ZBVZeroBubble", "zbv", make_zbv, 2, 2, 2, true, false },
    { "DualPipeV", NULL, make_dualpipev, 2, 2, 2, true, false },
};
enum { RULE_COUNT = sizeof rules / sizeof rules[0] };

const char *ts_schedule_name(int64_t index)
{
    return index >= 0 && index < RULE_COUNT ? rules[index].name : NULL;
}

bool tsi_schedule_rule_has(int64_t index, int64_t per)
{
    return per >= rules[index].low && per <= rules[index].high;
}

static ts_status find_rule(const char *name, const published **out)
{
    const char *names[RULE_COUNT + 1] = { NULL };
    for (int i = 0; i < RULE_COUNT; i++) {
        *out = &rules[i];
        names[i] = rules[i].name;
        if (strcasecmp(name, rules[i].name) == 0) return TS_OK;
        if (rules[i].other && strcasecmp(name, rules[i].other) == 0) return TS_OK;
    }
    const char *near = tsi_text_nearest(name, names);
    return TSI_FAIL(TS_ERR_ARG,
                    "schedule: \"%.60s\" is no schedule (GPipe, 1F1B, LoopedBFS, Interleaved1F1B, "
                    "InterleavedZeroBubble, ZBVZeroBubble, DualPipeV)%s%s%s",
                    name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

ts_status tsi_schedule_check(const char *name)
{
    const published *rule;
    if (ts_schedule_is_file(name) || strcasecmp(name, "search") == 0) return TS_OK;
    return find_rule(name, &rule);
}

static ts_status check_numbers(const published *rule, const ts_schedule_options *options,
                               int64_t per)
{
    if (options->ranks < 1 || options->micro_batches < 1 || per < 1 ||
        options->ranks > TSI_SCHEDULE_CELLS_MAX || per > TSI_SCHEDULE_CELLS_MAX / options->ranks)
        return TSI_FAIL(TS_ERR_ARG,
                        "schedule %s: %lld ranks with %lld stages each, %lld micro-batches; each "
                        "is at least 1",
                        rule->name, (long long)options->ranks, (long long)per,
                        (long long)options->micro_batches);
    if (per > rule->high)
        return TSI_FAIL(TS_ERR_ARG, "schedule %s: %lld stages a rank, but it has %d: %s",
                        rule->name, (long long)per, rule->high,
                        rule->on_v ? "one on the way down and one on the way up"
                                   : "LoopedBFS and Interleaved1F1B have several");
    if (per < rule->low)
        return TSI_FAIL(TS_ERR_ARG,
                        "schedule %s: 1 stage a rank, but it has 2: one on the way down and one "
                        "on the way up; InterleavedZeroBubble and 1F1B have one",
                        rule->name);
    return TS_OK;
}

/* ---- alignment ------------------------------------------------------------------------------- */

typedef struct ticking {
    ts_schedule *from, *to;
    int64_t *next;         /* [rank] */
    int32_t *forward_tick; /* [stage * micros + micro]: when it ran; -1: not yet */
    int32_t tick;
} ticking;

static bool is_early(const ticking *t, const ts_cell *cell)
{
    if (cell->kind != TS_CELL_FORWARD || cell->stage == 0) return false;
    int32_t before = t->forward_tick[(int64_t)(cell->stage - 1) * t->from->micros + cell->micro];
    return before < 0 || before == t->tick;
}

static bool tick_rank(ticking *t, int32_t rank)
{
    const tsi_schedule_list *list = &t->from->list[rank];
    if (t->next[rank] == list->count) return false;
    ts_cell cell = list->cell[t->next[rank]], wait = tsi_cell_of(TS_CELL_IDLE, -1, -1);
    if (is_early(t, &cell)) {
        tsi_schedule_add(t->to, rank, &wait);
        return true;
    }
    if (cell.kind == TS_CELL_FORWARD)
        t->forward_tick[(int64_t)cell.stage * t->from->micros + cell.micro] = t->tick;
    tsi_schedule_add(t->to, rank, &cell);
    t->next[rank]++;
    return true;
}

/* One column after another: a forward whose input is not there yet waits a column. */
static ts_status align(ts_schedule **schedule)
{
    ticking t = { .from = *schedule };
    size_t slots = (size_t)t.from->stages * (size_t)t.from->micros;
    TSI_TRY(tsi_schedule_create(t.from->ranks, t.from->stages, t.from->micros, &t.to));
    t.next = tsi_calloc((size_t)t.from->ranks, sizeof *t.next);
    t.forward_tick = tsi_alloc_array(slots, sizeof *t.forward_tick);
    ts_status status = TS_OK;
    if (!t.next || !t.forward_tick) {
        status = tsi_fail_memory("a schedule", slots * sizeof *t.forward_tick);
    } else {
        memset(t.forward_tick, 0xff, slots * sizeof *t.forward_tick);
        for (bool more = true; more && !t.to->failed; t.tick++) {
            more = false;
            for (int32_t r = 0; r < t.from->ranks; r++)
                more = tick_rank(&t, r) || more;
        }
    }
    tsi_free(t.next);
    tsi_free(t.forward_tick);
    status = tsi_schedule_done(t.to, status, &t.to);
    if (status != TS_OK) return status;
    ts_schedule_destroy(*schedule);
    *schedule = t.to;
    return TS_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

static ts_status make_all(const published *rule, making *m)
{
    size_t stages = (size_t)m->out->stages;
    m->forward = tsi_calloc(3 * stages, sizeof *m->forward);
    if (!m->forward) return tsi_fail_memory("a schedule", 3 * stages * sizeof *m->forward);
    m->backward = m->forward + stages;
    m->weight = m->backward + stages;
    ts_status status = TS_OK;
    for (m->r = 0; m->r < m->P && status == TS_OK; m->r++)
        status = rule->make(m);
    tsi_free(m->forward);
    return status;
}

ts_status ts_schedule_generate(const char *name, const ts_schedule_options *options,
                               ts_schedule **out)
{
    if (!out) return TSI_FAIL(TS_ERR_NULL, "schedule: out is NULL");
    *out = NULL;
    if (!name || !options) return TSI_FAIL(TS_ERR_NULL, "schedule: an argument is NULL");
    const published *rule;
    TSI_TRY(find_rule(name, &rule));
    int64_t per = options->stages_per_rank == 0 ? rule->usual : options->stages_per_rank;
    TSI_TRY(check_numbers(rule, options, per));
    making m = { .P = (int32_t)options->ranks, .V = (int32_t)per };
    TSI_TRY(
        tsi_schedule_create(options->ranks, options->ranks * per, options->micro_batches, &m.out));
    m.M = m.out->micros;
    ts_status status = tsi_schedule_done(m.out, make_all(rule, &m), &m.out);
    if (status == TS_OK && rule->aligned) status = align(&m.out);
    *out = status == TS_OK ? m.out : NULL;
    if (status != TS_OK) ts_schedule_destroy(m.out);
    return status;
}
