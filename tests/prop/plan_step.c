/* SPDX-License-Identifier: Apache-2.0 */
/* plan_step.c - random small steps against a machine that runs them in every possible order.
 *
 * The machine knows the words of step.h and nothing of graphs or clocks: an action is not issued,
 * issued, running or done; whatever may happen next, happens in some run. A step is good if no run
 * stops early, none has an action begin while one above it that it conflicts with is not done,
 * every value is there when it is touched, and everything pairs up and is there once. The proof
 * must say the same, with one freedom: where only another rank's messages keep two actions apart,
 * it may refuse. Times are compared with a fixed point of the same rules. */
#include <stdlib.h>

#include "harness/test.h"
#include "plan/step.h"

enum { MAX = 12, RANKS = 3, VALUES = 2 }; /* actions of all ranks; 2 bits of state each */

typedef enum phase { WAITING, ISSUED, RUNNING, DONE } phase;

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct machine {
    const tsi_step *step;
    bool buffered;
    int count;
    int rank[MAX], place[MAX];
    const tsi_action *action[MAX];
    int partner[MAX][RANKS + 1]; /* all that meet, itself too; -1: the end */
    int message[MAX];            /* of a buffered receive: its send; else -1 */
    uint8_t *seen;               /* bit per state */
    uint32_t *states;            /* on the way, and to be cleared afterwards */
    size_t state_count, state_capacity;
    bool late[MAX]; /* writes, off main, what is there after the step */
    bool stops, races, unwaited;
} machine;

static phase phase_of(uint32_t state, int i)
{
    return (phase)(state >> 2 * i & 3);
}

static uint32_t with(uint32_t state, int i, phase p)
{
    return (state & ~(3u << 2 * i)) | (uint32_t)p << 2 * i;
}

static bool same_channel(const machine *m, int i, int j)
{
    const tsi_action *a = m->action[i], *b = m->action[j];
    if (a->channel != b->channel || (a->group < 0) != (b->group < 0)) return false;
    return a->group >= 0 ? a->group == b->group : a->kind == b->kind && a->peer == b->peer;
}

static bool communicates(const tsi_action *a)
{
    return a->peer >= 0 || a->group >= 0;
}

static bool touches(const machine *m, int i, int32_t value)
{
    const tsi_touch *touch = tsi_step_touches(tsi_step_list_of(m->step, m->rank[i]), m->action[i]);
    for (int k = 0; k < m->action[i]->touch_count; k++)
        if (touch[k].value == value && m->action[i]->kind != TSI_ACTION_WAIT) return true;
    return false;
}

/* Must j, which stands above i on its rank, be done before i begins? */
static bool goes_before(const machine *m, int j, int i)
{
    const tsi_action *a = m->action[j], *b = m->action[i];
    if (a->queue == b->queue || a->queue == 0) return true;
    if (communicates(a) && communicates(b) && same_channel(m, i, j)) return true;
    if (b->kind != TSI_ACTION_WAIT) return false;
    const tsi_touch *touch = tsi_step_touches(tsi_step_list_of(m->step, m->rank[i]), b);
    bool named = false;
    for (int k = 0; k < b->touch_count; k++) {
        named = named || touch[k].how == TSI_READS;
        if (touch[k].how == TSI_READS && touches(m, j, touch[k].value)) return true;
    }
    return !named;
}

/* May it begin, as far as it alone is concerned? */
static bool ready(const machine *m, uint32_t state, int i)
{
    bool main = m->action[i]->queue == 0;
    if (phase_of(state, i) != (main ? WAITING : ISSUED)) return false;
    if (m->message[i] >= 0 && phase_of(state, m->message[i]) != DONE) return false;
    for (int j = 0; j < i; j++) {
        if (m->rank[j] != m->rank[i]) continue;
        if (phase_of(state, j) == WAITING) return false;
        if (goes_before(m, j, i) && phase_of(state, j) != DONE) return false;
    }
    return true;
}

/* May the rank put it on its queue now? */
static bool issuable(const machine *m, uint32_t state, int i)
{
    if (m->action[i]->queue == 0 || phase_of(state, i) != WAITING) return false;
    for (int j = 0; j < i; j++) {
        if (m->rank[j] != m->rank[i]) continue;
        if (phase_of(state, j) == WAITING) return false;
        if (m->action[j]->queue == 0 && phase_of(state, j) != DONE) return false;
    }
    return true;
}

/* Does one of the two change what the other touches? Waits look at nothing. */
static bool conflict(const machine *m, int i, int j)
{
    const tsi_step_list *list = tsi_step_list_of(m->step, m->rank[i]);
    const tsi_touch *a = tsi_step_touches(list, m->action[i]);
    const tsi_touch *b = tsi_step_touches(list, m->action[j]);
    for (int x = 0; x < m->action[i]->touch_count; x++) {
        if (m->action[i]->kind == TSI_ACTION_WAIT && a[x].how == TSI_READS) continue;
        for (int y = 0; y < m->action[j]->touch_count; y++) {
            if (m->action[j]->kind == TSI_ACTION_WAIT && b[y].how == TSI_READS) continue;
            bool reads = a[x].how == TSI_READS && b[y].how == TSI_READS;
            if (a[x].value == b[y].value && !reads) return true;
        }
    }
    return false;
}

static void reach(machine *m, uint32_t state)
{
    if (m->seen[state >> 3] >> (state & 7) & 1) return;
    m->seen[state >> 3] |= (uint8_t)(1u << (state & 7));
    if (m->state_count == m->state_capacity) {
        m->state_capacity = 2 * m->state_capacity + 64;
        m->states = realloc(m->states, m->state_capacity * sizeof *m->states);
    }
    m->states[m->state_count++] = state;
}

static bool begin_all(machine *m, uint32_t state, int i, uint32_t *next)
{
    *next = state;
    for (int k = 0; m->partner[i][k] >= 0; k++) {
        int p = m->partner[i][k];
        if (!ready(m, state, p)) return false;
        *next = with(*next, p, RUNNING);
        for (int j = 0; j < p; j++)
            if (m->rank[j] == m->rank[p] && phase_of(state, j) != DONE && conflict(m, j, p))
                m->races = true;
    }
    return true;
}

/* Has everything on main of the rank been done? */
static bool main_done(const machine *m, uint32_t state, int rank)
{
    for (int i = 0; i < m->count; i++)
        if (m->rank[i] == rank && m->action[i]->queue == 0 && phase_of(state, i) != DONE)
            return false;
    return true;
}

static void find_late(machine *m)
{
    for (int i = 0; i < m->count; i++) {
        const tsi_step_list *list = tsi_step_list_of(m->step, m->rank[i]);
        const tsi_touch *touch = tsi_step_touches(list, m->action[i]);
        for (int k = 0; k < m->action[i]->touch_count; k++) {
            bool changes = touch[k].how == TSI_WRITES || touch[k].how == TSI_MAKES;
            if (!changes || !(list->value[touch[k].value].life & TSI_LIFE_LEFT)) continue;
            for (int j = 0; j < i; j++) /* the last one counts */
                if (m->rank[j] == m->rank[i] && touches(m, j, touch[k].value)) m->late[j] = false;
            m->late[i] = m->action[i]->queue != 0;
        }
    }
}

static void successors(machine *m, uint32_t state)
{
    bool moved = false, all = true;
    for (int i = 0; i < m->count; i++) {
        uint32_t next = state;
        all = all && phase_of(state, i) == DONE;
        if (m->late[i] && phase_of(state, i) != DONE && main_done(m, state, m->rank[i]))
            m->unwaited = true;
        if (issuable(m, state, i)) {
            reach(m, with(state, i, ISSUED));
            moved = true;
        }
        if (m->partner[i][0] != i) continue; /* the first of a meeting speaks for it */
        if (phase_of(state, i) == RUNNING) {
            for (int k = 0; m->partner[i][k] >= 0; k++)
                next = with(next, m->partner[i][k], DONE);
            reach(m, next);
            moved = true;
        } else if (begin_all(m, state, i, &next)) {
            reach(m, next);
            moved = true;
        }
    }
    if (!moved && !all) m->stops = true;
}

static void run_all(machine *m)
{
    reach(m, 0);
    for (size_t i = 0; i < m->state_count; i++)
        successors(m, m->states[i]);
    for (size_t i = 0; i < m->state_count; i++)
        m->seen[m->states[i] >> 3] = 0;
}

/* ---- what must hold besides ------------------------------------------------------------------ */

static int nth(const machine *m, int i) /* of its channel on its rank */
{
    int n = 0;
    for (int j = 0; j < i; j++)
        n += m->rank[j] == m->rank[i] && communicates(m->action[j]) && same_channel(m, i, j);
    return n;
}

/* Does action j on another rank meet action i? */
static bool meets(const machine *m, int i, int j)
{
    const tsi_action *a = m->action[i], *b = m->action[j];
    if (m->rank[i] == m->rank[j] || !communicates(a) || !communicates(b)) return false;
    if (a->channel != b->channel || nth(m, i) != nth(m, j)) return false;
    if (a->group >= 0) return a->group == b->group;
    return b->group < 0 && a->kind != b->kind && a->peer == m->rank[j] && b->peer == m->rank[i];
}

static bool same_words(const tsi_action *a, const tsi_action *b)
{
    return a->what == b->what && a->micro == b->micro && a->bytes == b->bytes &&
           (a->peer >= 0 || a->kind == b->kind);
}

/* Fills in who meets whom; false: somebody is not met, or by something else. */
static bool pair_up(machine *m)
{
    bool good = true;
    for (int i = 0; i < m->count; i++) {
        const tsi_action *a = m->action[i];
        int partners = 0, met = 1;
        m->message[i] = -1;
        for (int j = 0; j < m->count; j++) {
            bool other = j != i && meets(m, i, j), apart = m->buffered && a->peer >= 0;
            if (other) good = good && same_words(a, m->action[j]);
            if (other && apart && a->kind == TSI_ACTION_RECEIVE) m->message[i] = j;
            if (j == i || (other && !apart)) m->partner[i][partners++] = j;
            met += other;
        }
        m->partner[i][partners] = -1;
        int wanted = a->peer >= 0 ? 2 : a->group >= 0 ? m->step->group[a->group].count : 1;
        good = good && met == wanted;
    }
    return good;
}

static bool lives_right(const machine *m, int64_t rank, int64_t *peak)
{
    const tsi_step_list *list = tsi_step_list_of(m->step, rank);
    bool there[VALUES] = { 0 };
    *peak = 0;
    for (int v = 0; v < list->value_count; v++)
        there[v] = list->value[v].life & 1;
    for (int i = 0; i < list->action_count; i++) {
        const tsi_touch *touch = tsi_step_touches(list, &list->action[i]);
        int64_t bytes = 0;
        for (int k = 0; k < list->action[i].touch_count; k++) {
            int v = touch[k].value;
            if (there[v] == (touch[k].how == TSI_MAKES)) return false;
            there[v] = true;
        }
        for (int v = 0; v < list->value_count; v++)
            bytes += there[v] ? list->value[v].bytes : 0;
        *peak = bytes > *peak ? bytes : *peak;
        for (int k = 0; k < list->action[i].touch_count; k++)
            if (touch[k].how == TSI_FREES) there[touch[k].value] = false;
    }
    for (int v = 0; v < list->value_count; v++)
        if (there[v] != (list->value[v].life >> 1 & 1)) return false;
    return true;
}

static bool all_once(const machine *m)
{
    for (int i = 0; i < m->count; i++) {
        const tsi_action *a = m->action[i];
        if (a->kind != TSI_ACTION_UPDATE && a->kind != TSI_ACTION_REDUCE) continue;
        for (int j = 0; j < i; j++) {
            const tsi_action *b = m->action[j];
            if (m->rank[i] == m->rank[j] && a->kind == b->kind && a->what == b->what &&
                a->micro == b->micro && a->group == b->group)
                return false;
        }
    }
    return true;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Begin times raised until the rules hold; the step is known to come to its end. */
static double slowest_end(const machine *m)
{
    double begin[MAX] = { 0 }, last = 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < m->count; i++) {
            double at = begin[i];
            for (int k = 0; m->partner[i][k] >= 0; k++) {
                int p = m->partner[i][k];
                at = begin[p] > at ? begin[p] : at;
                if (m->message[p] >= 0 && begin[m->message[p]] + m->action[m->message[p]]->us > at)
                    at = begin[m->message[p]] + m->action[m->message[p]]->us;
                for (int j = 0; j < p; j++)
                    if (m->rank[j] == m->rank[p] && goes_before(m, j, p)) {
                        double end = begin[j];
                        for (int q = 0; m->partner[j][q] >= 0; q++) {
                            double us = m->action[m->partner[j][q]]->us;
                            end = begin[j] + us > end ? begin[j] + us : end;
                        }
                        at = end > at ? end : at;
                    }
            }
            changed = changed || at > begin[i];
            begin[i] = at;
        }
    }
    for (int i = 0; i < m->count; i++)
        last = begin[i] + m->action[i]->us > last ? begin[i] + m->action[i]->us : last;
    return last;
}

/* ---- one case -------------------------------------------------------------------------------- */

typedef struct tally {
    int good, unpaired, stopped, raced, dead, twice, strict;
    uint8_t *seen;
} tally;

static void load(machine *m, const tsi_step *step)
{
    m->step = step;
    for (int r = 0; r < step->list_count; r++) {
        for (int i = 0; i < step->list[r].action_count; i++) {
            m->rank[m->count] = r;
            m->place[m->count] = i;
            m->action[m->count++] = &step->list[r].action[i];
        }
    }
}

static void check_times(test *t, const machine *m)
{
    tsi_step_times times;
    tsi_step_cost cost = { .buffered = m->buffered };
    TEST_OK(t, tsi_step_simulate(m->step, &cost, &times));
    double want = slowest_end(m);
    TEST_SAY(t, times.makespan_us == want, "ends at %g, not %g", times.makespan_us, want);
    for (int64_t i = 0; i < m->step->rank_count; i++) {
        int64_t peak = 0;
        if (lives_right(m, i, &peak) && tsi_step_list_of(m->step, i)->action_count)
            TEST_EQ(t, times.peak[i].bytes, peak);
    }
    TEST_CHECK(t, m->count == 0 || times.end_us[times.critical[times.critical_count - 1]] == want);
    tsi_step_times_release(&times);
}

static void check_case(test *t, const tsi_step *step, bool buffered, tally *sum)
{
    machine m = { .buffered = buffered, .seen = sum->seen };
    load(&m, step);
    bool paired = pair_up(&m), once = all_once(&m), lives = true, alone = step->rank_count == 1;
    int64_t peak;
    for (int64_t r = 0; r < step->rank_count; r++)
        lives = lives_right(&m, r, &peak) && lives;
    find_late(&m);
    if (paired) run_all(&m);
    bool good = paired && once && lives && !m.stops && !m.races && !m.unwaited;
    bool proved = tsi_step_prove(step, &(tsi_step_rules){ .buffered = buffered }) == TS_OK;
    const char *why = proved ? "" : ts_last_error();
    bool strict = good && !proved && !alone &&
                  (strstr(why, "no wait stands between") || strstr(why, "nothing waits for it"));
    TEST_SAY(t, proved == good || strict,
             "%s: proof says '%s'; paired %d, once %d, lives %d, stops %d, races %d",
             buffered ? "buffered" : "meeting", why, paired, once, lives, m.stops, m.races);
    TEST_CHECK(t, proved || strlen(why) > 20);
    if (paired && !m.stops) check_times(t, &m);
    if (paired && m.stops) {
        tsi_step_times times;
        TEST_CHECK(t, tsi_step_simulate(step, &(tsi_step_cost){ .buffered = buffered }, &times));
        TEST_SAYS(t, ts_last_error(), "deadlock");
    }
    sum->good += good && proved;
    sum->strict += strict;
    sum->unpaired += !paired;
    sum->stopped += m.stops;
    sum->raced += m.races;
    sum->dead += !lives;
    sum->twice += !once;
    free(m.states);
}

static void check_round_trip(test *t, const tsi_step *step)
{
    tsi_text text = { 0 }, why = { 0 };
    tsi_step *back = NULL;
    tsi_step_print(step, &text);
    TEST_OK(t, tsi_step_parse(text.data, &back));
    TEST_SAY(t, back && !tsi_step_differ(step, back, &why), "%s", why.data);
    tsi_text_release(&text);
    tsi_text_release(&why);
    tsi_step_destroy(back);
}

static void check_both(test *t, const tsi_step *step, tally *sum)
{
    bool before = test_failed(t);
    check_case(t, step, false, sum);
    check_case(t, step, true, sum);
    check_round_trip(t, step);
    if (before || !test_failed(t)) return;
    tsi_text text = { 0 };
    tsi_step_print(step, &text);
    TEST_SAY(t, false, "the step was\n%s", text.data);
    tsi_text_release(&text);
}

/* ---- random steps ---------------------------------------------------------------------------- */

static const char *const whats[] = { "a", "b", NULL };

static bool is_there(const tsi_step_list *list, int32_t value)
{
    bool there = list->value[value].life & 1;
    for (int64_t i = 0; i < list->touch_count; i++)
        if (list->touch[i].value == value && list->touch[i].how >= TSI_MAKES)
            there = list->touch[i].how == TSI_MAKES;
    return there;
}

static void draw(test *t, tsi_step *step, int64_t rank, tsi_action a)
{
    tsi_touch touch[2];
    int32_t count = 0, v = (int32_t)test_random_below(t, VALUES), how = TSI_MAKES;
    bool there = is_there(&step->list[rank], v);
    if (there) how = test_random_below(t, 2) ? TSI_READS : TSI_WRITES;
    if (there && v == 1 && a.queue == 0 && test_random_below(t, 3) == 0) how = TSI_FREES;
    if (a.kind == TSI_ACTION_WAIT) how = there ? TSI_READS : -1;
    if (how >= 0 && test_random_below(t, 4)) touch[count++] = (tsi_touch){ v, how };
    TEST_OK(t, tsi_step_append(step, rank, &a, touch, count));
}

static tsi_action blank(test *t, const tsi_step *step, tsi_action_kind kind)
{
    tsi_action a = TSI_ACTION_INIT(kind);
    a.queue = (int32_t)test_random_below(t, step->queue_count);
    a.what = whats[test_random_below(t, 2)];
    a.us = (double)test_random_below(t, 5);
    return a;
}

/* What several ranks do together is appended to all of them, so that many steps are good. */
static void draw_meeting(test *t, tsi_step *step)
{
    int64_t ranks = step->rank_count, from = test_random_below(t, ranks);
    int64_t to = (from + 1 + test_random_below(t, ranks - 1)) % ranks;
    bool pair = test_random_below(t, 3) > 0;
    tsi_action a = blank(t, step, pair ? TSI_ACTION_SEND : TSI_ACTION_GATHER);
    a.channel = (int32_t)test_random_below(t, 2);
    for (int64_t r = 0; r < ranks; r++) {
        tsi_action own = a;
        own.queue = (int32_t)test_random_below(t, step->queue_count);
        own.us = (double)test_random_below(t, 5);
        if (pair && r != from && r != to) continue;
        own.kind = !pair ? TSI_ACTION_GATHER : r == from ? TSI_ACTION_SEND : TSI_ACTION_RECEIVE;
        own.peer = !pair ? -1 : (int32_t)(r == from ? to : from);
        own.group = pair ? -1 : 0;
        draw(t, step, r, own);
    }
}

static tsi_step *draw_step(test *t)
{
    static const tsi_action_kind kinds[] = { TSI_ACTION_OPERATOR, TSI_ACTION_OPERATOR,
                                             TSI_ACTION_UPDATE, TSI_ACTION_WAIT, TSI_ACTION_WAIT };
    tsi_step *step = NULL;
    int64_t ranks = 1 + test_random_below(t, RANKS), queues = 1 + test_random_below(t, 3);
    const int32_t all[RANKS] = { 0, 1, 2 };
    int32_t index;
    TEST_OK(t, tsi_step_create(ranks, &step));
    for (int64_t q = 1; q < queues; q++)
        TEST_OK(t, tsi_step_queue(step, q == 1 ? "comm" : "copy", &index));
    TEST_OK(t, tsi_step_group_of(step, "all", all, ranks, &index));
    for (int64_t r = 0; r < ranks; r++) {
        tsi_value held = { "held", 7, TSI_STEP_MEMORY_PARAMETER, TSI_LIFE_HELD, NULL };
        tsi_value inside = { "inside", 5, TSI_STEP_MEMORY_ACTIVATION, TSI_LIFE_INSIDE, NULL };
        TEST_OK(t, tsi_step_value(step, r, &held, &index));
        TEST_OK(t, tsi_step_value(step, r, &inside, &index));
    }
    int64_t wanted = 2 + test_random_below(t, MAX - 5);
    while (tsi_step_action_count(step) < wanted) {
        if (ranks > 1 && test_random_below(t, 2))
            draw_meeting(t, step);
        else
            draw(t, step, test_random_below(t, ranks),
                 blank(t, step, kinds[test_random_below(t, 5)]));
    }
    for (int64_t r = 0; r < ranks; r++)
        if (is_there(&step->list[r], 1) && test_random_below(t, 10))
            step->list[r].value[1].life = TSI_LIFE_LEFT;
    return step;
}

/* Two actions of a rank change places, so that ranks come to wait for each other. */
static void disorder(test *t, tsi_step *step)
{
    for (int32_t r = 0; r < step->list_count; r++) {
        tsi_step_list *list = &step->list[r];
        if (list->action_count < 2 || test_random_below(t, 2)) continue;
        int64_t i = test_random_below(t, list->action_count);
        int64_t j = test_random_below(t, list->action_count);
        tsi_action kept = list->action[i];
        list->action[i] = list->action[j];
        list->action[j] = kept;
    }
}

/* ---- mutations ------------------------------------------------------------------------------- */

typedef struct edit {
    int64_t rank;
    int32_t at, kind; /* 0: swap with the next, 1: drop, 2: double */
} edit;

/* Changes the list in place; false: there is no such change. */
static bool apply(tsi_step *step, const edit *e)
{
    tsi_step_list *list = &step->list[e->rank];
    tsi_action *a = &list->action[e->at], first = *a;
    size_t rest = (size_t)(list->action_count - e->at - 1) * sizeof *a;
    bool full = list->action_count == list->action_capacity || tsi_step_action_count(step) == MAX;
    if ((e->kind == 0 && rest == 0) || (e->kind == 2 && full)) return false;
    if (e->kind == 0) {
        *a = a[1];
        a[1] = first;
    } else if (e->kind == 1) {
        memmove(a, a + 1, rest);
        list->action_count--;
    } else {
        memmove(a + 1, a, rest + sizeof *a);
        list->action_count++;
    }
    return true;
}

static int check_mutations(test *t, tsi_step *step, tally *sum)
{
    int changed = 0;
    for (edit e = { 0 }; e.rank < step->list_count; e.rank++) {
        tsi_step_list *list = &step->list[e.rank];
        tsi_action kept[MAX];
        int32_t count = list->action_count;
        if (count) memcpy(kept, list->action, (size_t)count * sizeof *kept);
        for (e.at = 0; e.at < count; e.at++) {
            for (e.kind = 0; e.kind < 3 && !test_failed(t); e.kind++) {
                if (!apply(step, &e)) continue;
                check_both(t, step, sum);
                memcpy(list->action, kept, (size_t)count * sizeof *kept);
                list->action_count = count;
                changed++;
            }
        }
    }
    return changed;
}

/* ---- tests ----------------------------------------------------------------------------------- */

TS_TEST(step_proof_equals_all_runs)
{
    tally sum = { .seen = calloc((size_t)1 << (2 * MAX - 3), 1) };
    for (int i = 0; i < 10000 && !test_failed(t); i++) {
        tsi_step *step = draw_step(t);
        if (i % 2) disorder(t, step);
        check_both(t, step, &sum);
        tsi_step_destroy(step);
    }
    free(sum.seen);
    printf("  good %d, unpaired %d, stopped %d, raced %d, lives %d, twice %d, strict %d\n",
           sum.good, sum.unpaired, sum.stopped, sum.raced, sum.dead, sum.twice, sum.strict);
    TEST_CHECK(t, sum.good > 300 && sum.stopped > 100 && sum.raced > 300 && sum.dead > 300);
    TEST_CHECK(t, sum.twice > 100 && sum.strict > 0);
}

TS_TEST(step_mutations_are_proved_or_refused)
{
    tally sum = { .seen = calloc((size_t)1 << (2 * MAX - 3), 1) };
    int mutated = 0;
    for (int i = 0; i < 5000 && mutated < 10000 && !test_failed(t); i++) {
        tsi_step *step = draw_step(t);
        if (tsi_step_prove(step, NULL) == TS_OK) mutated += check_mutations(t, step, &sum);
        tsi_step_destroy(step);
    }
    free(sum.seen);
    printf("  %d mutations: good %d, unpaired %d, stopped %d, raced %d, lives %d, twice %d\n",
           mutated, sum.good, sum.unpaired, sum.stopped, sum.raced, sum.dead, sum.twice);
    TEST_CHECK(t, mutated >= 2000 && sum.good > 300 && sum.unpaired > 300 && sum.stopped > 30);
}
