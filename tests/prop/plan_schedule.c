/* SPDX-License-Identifier: Apache-2.0 */
/* plan_schedule.c - random schedules of every rule and of the search, run by a second program.
 *
 * It reads the text of the lowered schedule and knows nothing of the library's graphs, steps and
 * clocks: a machine with one list of actions a rank and one mailbox for each pair of ranks and
 * direction. Under blocking sends both ends must be at the head of their lists; under buffered ones
 * a send drops its message. Whatever is possible is done until nothing is: then everything must
 * have run, each computation once and with its inputs there, every message taken, and memory must
 * be what the published formulae say. Times are those of the same machine with clocks.
 *
 * TEST_SCHEDULES says how many; 500 otherwise. */
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "plan/schedule.h"

enum { RANKS = 12, STAGES = 48, MICROS = 40, CELLS = 4 * STAGES * MICROS };

typedef struct action {
    char kind[12];
    int stage, micro;
} action;

typedef struct machine {
    int ranks, stages, micros;
    int count[RANKS], at[RANKS];
    action *list[RANKS];
    int rank_of[STAGES];
    char done[STAGES][MICROS][4]; /* F, gradient of inputs, gradient of weights, arrived */
    char grad_arrived[STAGES][MICROS];
    int sent[STAGES][MICROS][2]; /* 1: in the mailbox */
    int kept[RANKS], peak[RANKS];
} machine;

/* ---- reading --------------------------------------------------------------------------------- */

static const char *read_action(const char *at, action *out)
{
    int n = 0;
    out->stage = (int)strtol(at, (char **)(uintptr_t)&at, 10);
    while ((*at >= 'A' && *at <= 'Z') || *at == '_')
        out->kind[n++] = *at++;
    out->kind[n] = '\0';
    out->micro = *at >= '0' && *at <= '9' ? (int)strtol(at, (char **)(uintptr_t)&at, 10) : -1;
    return at;
}

static void read_machine(machine *m, const char *text)
{
    for (int r = 0; *text; r++, text++) {
        m->ranks = r + 1;
        while (*text != '\n') {
            text += strspn(text, "(;,");
            if (*text == ')') text += strlen(")OVERLAP_F_B");
            if (*text < '0' || *text > '9') continue;
            action *a = &m->list[r][m->count[r]++];
            text = read_action(text, a);
            m->rank_of[a->stage] = r;
            if (a->stage >= m->stages) m->stages = a->stage + 1;
            if (a->micro >= m->micros) m->micros = a->micro + 1;
        }
    }
}

/* ---- running --------------------------------------------------------------------------------- */

static bool is(const action *a, const char *kind)
{
    return strcmp(a->kind, kind) == 0;
}

static const action *head(const machine *m, int rank)
{
    return m->at[rank] < m->count[rank] ? &m->list[rank][m->at[rank]] : NULL;
}

/* NULL: it ran. Else why it cannot run now. */
static const char *run_compute(machine *m, int rank, const action *a)
{
    char *done = m->done[a->stage][a->micro];
    int last = m->stages - 1;
    bool local_above = a->stage > 0 && m->rank_of[a->stage - 1] == rank;
    bool local_below = a->stage < last && m->rank_of[a->stage + 1] == rank;
    if (is(a, "F")) {
        if (done[0]) return "forward twice";
        if (a->stage > 0 && !(local_above ? m->done[a->stage - 1][a->micro][0] : done[3]))
            return "no input";
        done[0] = 1;
        if (++m->kept[rank] > m->peak[rank]) m->peak[rank] = m->kept[rank];
        return NULL;
    }
    if (is(a, "W")) {
        if (!done[1] || done[2]) return "no input gradient";
        done[2] = 1;
        m->kept[rank]--;
        return NULL;
    }
    if (!done[0] || done[1]) return "no forward";
    if (a->stage < last &&
        !(local_below ? m->done[a->stage + 1][a->micro][1] : m->grad_arrived[a->stage][a->micro]))
        return "no gradient";
    done[1] = 1;
    if (is(a, "B")) done[2] = 1;
    if (is(a, "B")) m->kept[rank]--;
    return NULL;
}

/* Of a message: what its other end is called there. */
static action other_end(const action *a)
{
    action out = { .micro = a->micro };
    bool sends = strncmp(a->kind, "SEND", 4) == 0, forward = a->kind[5] == 'F';
    (void)snprintf(out.kind, sizeof out.kind, "%s_%c", sends ? "RECV" : "SEND", a->kind[5]);
    out.stage = a->stage + (sends == forward ? 1 : -1);
    return out;
}

static bool has_run(const machine *m, const action *a) /* what a send sends */
{
    return m->done[a->stage][a->micro][a->kind[5] == 'F' ? 0 : 1];
}

static void arrive(machine *m, const action *receive)
{
    if (receive->kind[5] == 'F')
        m->done[receive->stage][receive->micro][3] = 1;
    else
        m->grad_arrived[receive->stage][receive->micro] = 1;
}

static bool run_message(machine *m, int rank, const action *a, bool buffered)
{
    bool sends = strncmp(a->kind, "SEND", 4) == 0;
    action other = other_end(a);
    int to = m->rank_of[other.stage];
    const action *there = head(m, to);
    if (sends && !has_run(m, a)) return false;
    if (buffered && sends) {
        m->sent[a->stage][a->micro][a->kind[5] == 'F']++;
    } else if (buffered) {
        int *box = &m->sent[other.stage][a->micro][a->kind[5] == 'F'];
        if (*box != 1) return false;
        *box = 2;
        arrive(m, a);
    } else {
        if (!there || !is(there, other.kind) || there->stage != other.stage ||
            there->micro != other.micro)
            return false;
        if (!sends) return false; /* the sender speaks for both */
        arrive(m, there);
        m->at[to]++;
    }
    m->at[rank]++;
    return true;
}

static bool run_one(machine *m, int rank, bool buffered)
{
    const action *a = head(m, rank);
    if (!a) return false;
    if (strncmp(a->kind, "SEND", 4) == 0 || strncmp(a->kind, "RECV", 4) == 0)
        return run_message(m, rank, a, buffered);
    bool computes = a->kind[1] == '\0';
    if (computes && run_compute(m, rank, a)) return false;
    m->at[rank]++;
    return true;
}

static bool run_all(machine *m, bool buffered)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = m->ranks - 1; r >= 0; r--)
            while (run_one(m, r, buffered))
                moved = true;
    }
    for (int r = 0; r < m->ranks; r++)
        if (head(m, r)) return false;
    for (int g = 0; g < m->stages; g++)
        for (int i = 0; i < m->micros; i++)
            if (!m->done[g][i][0] || !m->done[g][i][1] || !m->done[g][i][2]) return false;
    return true;
}

static void forget(machine *m)
{
    memset(m->at, 0, sizeof m->at);
    memset(m->done, 0, sizeof m->done);
    memset(m->grad_arrived, 0, sizeof m->grad_arrived);
    memset(m->sent, 0, sizeof m->sent);
    memset(m->kept, 0, sizeof m->kept);
    memset(m->peak, 0, sizeof m->peak);
}

/* ---- a case ---------------------------------------------------------------------------------- */

typedef struct sizes {
    const char *name;
    int P, V, M;
} sizes;

/* spec of the published peaks, in activations of one stage; -1: none is published for it. */
static int published_peak(const sizes *s, int r)
{
    int P = s->P, V = s->V, M = s->M, R = M / P > 1 ? M / P : 1, q = M / R;
    if (strcmp(s->name, "GPipe") == 0 || strcmp(s->name, "LoopedBFS") == 0) return V * M;
    if (strcmp(s->name, "1F1B") == 0) return P - r < M ? P - r : M;
    if (strcmp(s->name, "ZBVZeroBubble") == 0) return M >= 2 * P - 1 ? 2 * P : -1;
    if (strcmp(s->name, "DualPipeV") == 0) return M >= 2 * P ? 2 * P + 1 : -1;
    if (M % R != 0 || M < P) return -1;
    int most = strcmp(s->name, "Interleaved1F1B") == 0 ? (V - 1) * q + 2 * (P - 1 - r) + 1
                                                       : (V - 1) * q + P;
    return most < V * M ? most : V * M;
}

static char *text_of(const ts_schedule *s)
{
    size_t size = ts_schedule_text(s, NULL, 0) + 1;
    char *text = tsi_alloc(size);
    ts_schedule_text(s, text, size);
    return text;
}

/* The simulation of the lowered step under the same costs. */
static double step_cost(void *context, const tsi_step *step, int64_t rank, const tsi_action *a)
{
    const ts_stage_cost *c = context;
    (void)step;
    (void)rank;
    if (a->kind == TSI_ACTION_FORWARD) return c[a->stage].forward;
    if (a->kind == TSI_ACTION_BACKWARD) return c[a->stage].input + c[a->stage].weight;
    if (a->kind == TSI_ACTION_INPUT_GRADIENT) return c[a->stage].input;
    if (a->kind == TSI_ACTION_WEIGHT_GRADIENT) return c[a->stage].weight;
    return a->kind == TSI_ACTION_SEND ? c[a->stage].send : 0;
}

static void compare_times(test *t, const sizes *z, const ts_schedule *s)
{
    ts_stage_cost cost[STAGES];
    for (int g = 0; g < z->P * z->V; g++)
        cost[g] = (ts_stage_cost){ 1 + (double)test_random_below(t, 5),
                                   1 + (double)test_random_below(t, 5),
                                   1 + (double)test_random_below(t, 5),
                                   (double)test_random_below(t, 3) / 4, 1 };
    ts_schedule_costs costs = { .struct_size = sizeof costs, .stage = cost, .count = z->P * z->V };
    ts_schedule_times times = { .struct_size = sizeof times };
    tsi_step_cost by = { .of = step_cost, .context = cost, .buffered = true };
    tsi_step_times slow = { 0 };
    tsi_stage_graph line = { 0 };
    tsi_step *step = NULL;
    tsi_lower_options options = { 0 };
    TEST_OK(t, ts_schedule_simulate(s, &costs, &times, NULL, NULL, NULL));
    TEST_OK(t, tsi_stage_graph_line(z->P * z->V, &line));
    ts_status status = tsi_schedule_prove(s, &line, &options, &step);
    if (status == TS_OK) status = tsi_step_simulate(step, &by, &slow);
    TEST_SAY(t, status == TS_OK, "%s P=%d V=%d M=%d: %s", z->name, z->P, z->V, z->M,
             ts_last_error());
    /* The step sends on queues by direction, the timer by pairs of ranks too: the step may be
     * later where a rank sends to two others at once. */
    if (status == TS_OK)
        TEST_SAY(t,
                 slow.makespan_us >= times.makespan - 1e-9 &&
                     slow.makespan_us <= times.makespan * 1.05 + 1e-9,
                 "%s P=%d V=%d M=%d: %.6g, and %.6g by the step", z->name, z->P, z->V, z->M,
                 times.makespan, slow.makespan_us);
    tsi_step_times_release(&slow);
    tsi_step_destroy(step);
    tsi_stage_graph_release(&line);
}

static void check_case(test *t, const sizes *z, const ts_schedule *s, machine *m)
{
    ts_schedule *low = NULL;
    ts_status status = ts_schedule_lower(s, 0, &low);
    TEST_SAY(t, status == TS_OK, "%s P=%d V=%d M=%d: %s", z->name, z->P, z->V, z->M,
             ts_last_error());
    if (status != TS_OK) return;
    char *text = text_of(low);
    memset(m->count, 0, sizeof m->count);
    m->stages = m->micros = 0;
    read_machine(m, text);
    TEST_SAY(t, m->ranks == z->P && m->stages == z->P * z->V && m->micros == z->M,
             "%s P=%d V=%d M=%d: %d ranks, %d stages, %d micro-batches", z->name, z->P, z->V, z->M,
             m->ranks, m->stages, m->micros);
    for (int buffered = 0; buffered < 2; buffered++) {
        forget(m);
        TEST_SAY(t, run_all(m, buffered), "%s P=%d V=%d M=%d, %s: it stops", z->name, z->P, z->V,
                 z->M, buffered ? "buffered" : "blocking");
    }
    for (int r = 0; r < m->ranks && strcmp(z->name, "search") != 0; r++) {
        int want = published_peak(z, r);
        TEST_SAY(t, want < 0 || m->peak[r] == want, "%s P=%d V=%d M=%d rank %d: peak %d, not %d",
                 z->name, z->P, z->V, z->M, r, m->peak[r], want);
    }
    tsi_free(text);
    ts_schedule_destroy(low);
    compare_times(t, z, s);
}

static machine *open_machine(void)
{
    machine *m = tsi_calloc(1, sizeof *m);
    for (int r = 0; r < RANKS; r++)
        m->list[r] = tsi_alloc_array(CELLS, sizeof *m->list[r]);
    return m;
}

static void close_machine(machine *m)
{
    for (int r = 0; r < RANKS; r++)
        tsi_free(m->list[r]);
    tsi_free(m);
}

static sizes draw(test *t)
{
    int64_t rules = 0;
    while (ts_schedule_name(rules))
        rules++;
    int64_t which = test_random_below(t, rules + 1);
    sizes z = { .name = which < rules ? ts_schedule_name(which) : "search" };
    z.P = 1 + (int)test_random_below(t, 8);
    z.M = 1 + (int)test_random_below(t, test_random_below(t, 4) ? 16 : MICROS);
    z.V = strcmp(z.name, "GPipe") == 0 || strcmp(z.name, "1F1B") == 0 ? 1
          : z.name[0] == 'Z' || z.name[0] == 'D'                      ? 2
                                                 : 1 + (int)test_random_below(t, 4);
    return z;
}

/* Of a search, under costs of its own. */
static ts_status make(test *t, const sizes *z, ts_schedule **out)
{
    ts_schedule_options options = {
        .struct_size = sizeof options, .ranks = z->P, .stages_per_rank = z->V, .micro_batches = z->M
    };
    if (strcmp(z->name, "search") != 0) return ts_schedule_generate(z->name, &options, out);
    ts_stage_cost cost = { 1 + (double)test_random_below(t, 3), 1 + (double)test_random_below(t, 3),
                           1 + (double)test_random_below(t, 3), 0.25, 1 };
    ts_schedule_search_options search = { .struct_size = sizeof search,
                                          .size = options,
                                          .costs = { sizeof search.costs, &cost, 1 },
                                          .seconds = 0.02 };
    return ts_schedule_search(&search, out, NULL);
}

TS_TEST_LONG(schedules_run_on_a_second_machine, 600)
{
    const char *wanted = getenv("TEST_SCHEDULES");
    int64_t count = wanted ? strtoll(wanted, NULL, 10) : 500;
    machine *m = open_machine();
    for (int64_t i = 0; i < count && !test_failed(t); i++) {
        sizes z = draw(t);
        ts_schedule *s = NULL;
        ts_status status = make(t, &z, &s);
        TEST_SAY(t, status == TS_OK, "%s P=%d V=%d M=%d: %s", z.name, z.P, z.V, z.M,
                 ts_last_error());
        if (s) check_case(t, &z, s, m);
        ts_schedule_destroy(s);
    }
    close_machine(m);
}
