/* SPDX-License-Identifier: Apache-2.0 */
/* plan_reorder.c - random legal programs: nothing is found wrong with them, and reordered they give
 * the same integers, hold no more than the cap and take no longer.
 *
 * The interpreter runs a program in the order of its lists. A value has lanes, and a part of an
 * operation moves its share of them; what has all lanes is there. An operation of a queue is posted
 * with what it reads; its result is there once all members have posted theirs, and whoever touches
 * it before stops until then. */
#include <stdlib.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "plan/program.h"
#include "plan/step_reorder.h"
#include "plan/step_wide.h"

/* ---- random programs ------------------------------------------------------------------------- */

enum { ALIVE_MAX = 64, RANKS_MAX = 4, QUEUES = 2 };

typedef struct alive { /* a value that all ranks have */
    char name[32];
    bool held, pending, read_async;
} alive;

typedef struct maker {
    test *t;
    tsi_text list; /* the actions, alike on all ranks */
    tsi_text values;
    alive value[ALIVE_MAX];
    int count, made, names;
    bool timed; /* operations say how long they take */
} maker;

static int add_value(maker *m, const char *life, bool held)
{
    alive *v = &m->value[m->count];
    *v = (alive){ .held = held };
    (void)snprintf(v->name, sizeof v->name, "v%d", m->made++);
    tsi_text_printf(&m->values, "%s %s %d activation\n", life, v->name,
                    (int)(8 + 8 * test_random_below(m->t, 64)));
    return m->count++;
}

/* A value that is there and may be read; -1: none. */
static int any_ready(maker *m)
{
    for (int tries = 0; tries < 20 && m->count > 0; tries++) {
        int i = (int)test_random_below(m->t, m->count);
        if (!m->value[i].pending) return i;
    }
    return -1;
}

static void compute(maker *m)
{
    int a = any_ready(m), b = any_ready(m);
    if (a < 0 || m->count == ALIVE_MAX) return;
    char reads[80];
    (void)snprintf(reads, sizeof reads, a == b ? "%s" : "%s,%s", m->value[a].name,
                   m->value[b].name);
    bool writes =
        m->value[b].held && a != b && !m->value[b].read_async && test_random_below(m->t, 3) == 0;
    const char *kind = test_random_below(m->t, 4) == 0 ? "weight_gradient" : "operator";
    if (writes)
        tsi_text_printf(&m->list, "operator c%d reads=%s writes=%s us=%d\n", m->names++,
                        m->value[a].name, m->value[b].name, (int)test_random_below(m->t, 30));
    else {
        int made = add_value(m, "value", false);
        tsi_text_printf(&m->list, "%s c%d reads=%s makes=%s us=%d\n", kind, m->names++, reads,
                        m->value[made].name, (int)test_random_below(m->t, 30));
    }
}

static void collective(maker *m)
{
    static const char *const kind[] = { "gather", "reduce", "all_reduce" };
    static const char *const group[] = { "all", "all", "half" };
    int a = any_ready(m);
    if (a < 0 || m->count == ALIVE_MAX) return;
    int made = add_value(m, "value", false);
    bool later = test_random_below(m->t, 4) > 0;
    m->value[made].pending = later;
    m->value[a].read_async = m->value[a].read_async || later;
    int bytes = (int)(1 + test_random_below(m->t, test_random_below(m->t, 4) ? 20000 : 4000000));
    char us[32] = "";
    if (m->timed)
        (void)snprintf(us, sizeof us, " us=%d",
                       5 + bytes / (int)(200 + test_random_below(m->t, 200)));
    tsi_text_printf(&m->list, "%s g%d over=%s%s bytes=%d reads=%s makes=%s%s\n",
                    kind[test_random_below(m->t, 3)], m->names++, group[test_random_below(m->t, 3)],
                    later ? " queue=comm" : "", bytes, m->value[a].name, m->value[made].name, us);
}

/* Everything on the queue has ended once the value has that was begun last; here: one by one. */
static void wait_one(maker *m)
{
    for (int i = 0; i < m->count; i++) {
        if (!m->value[i].pending || test_random_below(m->t, 2)) continue;
        tsi_text_printf(&m->list, "wait reads=%s\n", m->value[i].name);
        m->value[i].pending = false;
        return;
    }
}

static void wait_all(maker *m)
{
    tsi_text_add(&m->list, "wait\n");
    for (int i = 0; i < m->count; i++)
        m->value[i].pending = m->value[i].read_async = false;
}

static void release(maker *m)
{
    int i = m->count > 0 ? (int)test_random_below(m->t, m->count) : -1;
    if (i < 0 || m->value[i].held || m->value[i].pending || m->value[i].read_async) return;
    tsi_text_printf(&m->list, "release frees=%s\n", m->value[i].name);
    m->value[i] = m->value[--m->count];
}

static char *random_program(test *t, int ranks)
{
    maker m = { .t = t, .timed = test_random_below(t, 3) == 0 };
    int count = 10 + (int)test_random_below(t, 50);
    for (int i = 0; i < 3; i++)
        (void)add_value(&m, "holds", true);
    for (int i = 0; i < count; i++) {
        int64_t what = test_random_below(t, 12);
        if (what < 5)
            compute(&m);
        else if (what < 8)
            collective(&m);
        else if (what < 10)
            wait_one(&m);
        else if (what < 11)
            release(&m);
        else if (test_random_below(t, 3) == 0)
            wait_all(&m);
    }
    wait_all(&m);
    while (m.count > 3) {
        tsi_text_printf(&m.list, "release frees=%s\n", m.value[m.count - 1].name);
        m.count--;
    }
    tsi_text text = { 0 };
    tsi_text_printf(&text, "step 1\nranks %d\nqueue comm\ngroup all 0..%d\n", ranks, ranks - 1);
    for (int r = 0; r < ranks; r++)
        if (r % 2 == 0) tsi_text_printf(&text, "group half%d %d,%d\n", r, r, r + 1);
    for (int r = 0; r < ranks; r++) {
        tsi_text_printf(&text, "rank %d\n%s", r, m.values.data);
        for (const char *at = m.list.data; *at;) { /* "half" is the rank's own */
            const char *end = strchr(at, '\n') + 1, *half = strstr(at, "over=half");
            if (half && half < end) {
                tsi_text_add_n(&text, at, (size_t)(half + 9 - at));
                tsi_text_printf(&text, "%d", r / 2 * 2);
                at = half + 9;
            }
            tsi_text_add_n(&text, at, (size_t)(end - at));
            at = end;
        }
    }
    tsi_text_release(&m.list);
    tsi_text_release(&m.values);
    return tsi_text_take(&text);
}

/* ---- the interpreter ------------------------------------------------------------------------- */

enum { VALUES_MAX = 256, POSTS_MAX = 512, JOINED_MAX = 16, LANES = 8 };

typedef struct post { /* the n-th operation of a group */
    int32_t group, nth, posted;
    uint64_t in[RANKS_MAX][JOINED_MAX][LANES];
    int32_t out[RANKS_MAX][JOINED_MAX]; /* values, or -1 */
    int32_t kind, count, from, to;      /* lanes */
} post;

typedef struct run {
    const tsi_step *step;
    uint64_t value[RANKS_MAX][VALUES_MAX][LANES];
    uint32_t there[RANKS_MAX][VALUES_MAX]; /* a bit for each lane */
    int32_t at[RANKS_MAX], nth[RANKS_MAX][8];
    post posts[POSTS_MAX];
    int32_t post_count;
} run;

static const uint32_t all_lanes = (1u << LANES) - 1;

/* One lane of the i-th value of all members. */
static void finish_lane(run *r, const post *p, int32_t i, int32_t lane)
{
    const tsi_step_group *group = &r->step->group[p->group];
    uint64_t sum = 0, order = 7;
    for (int32_t g = 0; g < group->count; g++) {
        sum += p->in[group->member[g]][i][lane];
        order = tsi_hash_mix(order, p->in[group->member[g]][i][lane]);
    }
    for (int32_t g = 0; g < group->count; g++) {
        int32_t rank = group->member[g], out = p->out[rank][i];
        if (out < 0) continue;
        r->value[rank][out][lane] = p->kind == TSI_ACTION_GATHER ? order
                                    : p->kind == TSI_ACTION_ALL_REDUCE
                                        ? sum
                                        : tsi_hash_mix(sum, (uint64_t)g);
        r->there[rank][out] |= 1u << lane;
    }
}

static void finish(run *r, const post *p)
{
    for (int32_t i = 0; i < p->count; i++)
        for (int32_t lane = p->from; lane < p->to; lane++)
            finish_lane(r, p, i, lane);
}

static post *post_of(run *r, const tsi_action *a, int32_t nth)
{
    for (int32_t i = 0; i < r->post_count; i++)
        if (r->posts[i].group == a->group && r->posts[i].nth == nth) return &r->posts[i];
    post *p = &r->posts[r->post_count++];
    tsi_part_name part = { 0, 1, NULL };
    (void)tsi_is_part(a, &part);
    *p = (post){ .group = a->group,
                 .nth = nth,
                 .kind = a->kind,
                 .from = LANES * part.index / part.count,
                 .to = LANES * (part.index + 1) / part.count };
    return p;
}

/* What it reads has all lanes; what parts write may still lack some. */
static bool inputs_there(const run *r, int32_t rank, const tsi_action *a)
{
    const tsi_step_list *list = &r->step->list[rank];
    const tsi_touch *touch = tsi_step_touches(list, a);
    tsi_part_name part;
    bool parted = tsi_is_part(a, &part);
    for (int32_t i = 0; i < a->touch_count; i++) {
        bool fills = touch[i].how == TSI_MAKES || (touch[i].how == TSI_WRITES && parted);
        if (!fills && r->there[rank][touch[i].value] != all_lanes) return false;
    }
    return true;
}

static void communicate(run *r, int32_t rank, const tsi_action *a)
{
    const tsi_step_list *list = &r->step->list[rank];
    const tsi_touch *touch = tsi_step_touches(list, a);
    post *p = post_of(r, a, r->nth[rank][a->group]++);
    int32_t ins = 0, outs = 0;
    memset(p->out[rank], 0xff, sizeof p->out[rank]); /* -1 */
    for (int32_t i = 0; i < a->touch_count; i++) {
        if (touch[i].how == TSI_READS)
            memcpy(p->in[rank][ins++], r->value[rank][touch[i].value], sizeof p->in[rank][0]);
        if (touch[i].how == TSI_MAKES || touch[i].how == TSI_WRITES)
            p->out[rank][outs++] = touch[i].value;
    }
    p->count = ins > outs ? ins : outs;
    if (++p->posted == r->step->group[a->group].count) finish(r, p);
}

static void calculate(run *r, int32_t rank, const tsi_action *a)
{
    const tsi_step_list *list = &r->step->list[rank];
    const tsi_touch *touch = tsi_step_touches(list, a);
    uint64_t result = tsi_hash_text(3, a->what ? a->what : "");
    for (int32_t i = 0; i < a->touch_count; i++)
        for (int32_t lane = 0; lane < LANES; lane++)
            if (touch[i].how == TSI_READS || touch[i].how == TSI_WRITES)
                result = tsi_hash_mix(result, r->value[rank][touch[i].value][lane]);
    for (int32_t i = 0; i < a->touch_count; i++) {
        int32_t v = touch[i].value;
        bool changes = touch[i].how == TSI_WRITES || touch[i].how == TSI_MAKES;
        for (int32_t lane = 0; changes && lane < LANES; lane++)
            r->value[rank][v][lane] = tsi_hash_mix(result, (uint64_t)lane);
        if (changes) r->there[rank][v] = all_lanes;
        if (touch[i].how == TSI_FREES) r->there[rank][v] = 0;
    }
}

/* One more action of the rank; false: it must stop, or is done. */
static bool go_on(run *r, int32_t rank)
{
    const tsi_step_list *list = &r->step->list[rank];
    if (r->at[rank] == list->action_count) return false;
    const tsi_action *a = &list->action[r->at[rank]];
    bool marks = a->kind == TSI_ACTION_WAIT || a->kind == TSI_ACTION_RELEASE;
    if (!inputs_there(r, rank, a)) return false;
    if (a->group >= 0)
        communicate(r, rank, a);
    else if (!marks || a->kind == TSI_ACTION_RELEASE)
        calculate(r, rank, a);
    r->at[rank]++;
    return true;
}

/* The values that are there at the end, by name and rank: one number. */
static bool interpret(test *t, const tsi_step *step, uint64_t *result)
{
    run *r = calloc(1, sizeof *r);
    bool moved = true, done = true;
    r->step = step;
    for (int32_t rank = 0; rank < step->rank_count; rank++)
        for (int32_t v = 0; v < step->list[rank].value_count; v++) {
            if (!(step->list[rank].value[v].life & TSI_LIFE_TAKEN)) continue;
            r->there[rank][v] = all_lanes;
            for (int32_t lane = 0; lane < LANES; lane++)
                r->value[rank][v][lane] =
                    tsi_hash_mix((uint64_t)rank, (uint64_t)(v * LANES + lane));
        }
    while (moved) {
        moved = false;
        for (int32_t rank = 0; rank < step->rank_count; rank++)
            while (go_on(r, rank))
                moved = true;
    }
    *result = 1;
    for (int32_t rank = 0; rank < step->rank_count; rank++) {
        done = done && r->at[rank] == step->list[rank].action_count;
        for (int32_t v = 0; v < step->list[rank].value_count; v++)
            for (int32_t lane = 0; r->there[rank][v] && lane < LANES; lane++)
                *result = tsi_hash_mix(*result, r->value[rank][v][lane]);
    }
    TEST_SAY(t, done, "the interpreter stopped at action %d of rank 0", r->at[0] + 1);
    free(r);
    return done;
}

/* ---- one case -------------------------------------------------------------------------------- */

typedef struct tally {
    int64_t found, kept, faster, split;
    tsi_text why;
} tally;

static void note_finding(const char *kind, const char *text, void *context)
{
    tally *sum = context;
    tsi_text_printf(&sum->why, "%s: %s\n", kind, text);
    sum->found++;
}

static void note_pass(const ts_reorder_report *r, void *context)
{
    tally *sum = context;
    sum->kept += r->kept;
    if (strcmp(r->pass, "split") == 0) sum->split += r->moves;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Of a list in which some operations went into parts: all else stands in the same order, first
 * parts stand where their wholes stood, and parts add up to them. Returns how many are in parts. */
static int64_t check_parts(test *t, const tsi_step_list *was, const tsi_step_list *is)
{
    int64_t bytes[256] = { 0 }, cut = 0; /* of wholes by place, that are still to come */
    int32_t at = 0, of = 0;
    for (int32_t i = 0; i < is->action_count && !test_failed(t); i++) {
        const tsi_action *a = &is->action[i];
        tsi_part_name part = { 0 };
        bool parted = tsi_is_part(a, &part);
        for (of = parted ? at : 0; parted && part.index > 0 && of > 0;) {
            const char *name = was->action[--of].what;
            if (name && strcmp(name, part.of) == 0) break;
        }
        if (!parted || part.index == 0) of = at++;
        const tsi_action *b = &was->action[of];
        const char *name = parted ? part.of : a->what;
        TEST_SAY(t, a->kind == b->kind && (!name || strcmp(name, b->what) == 0),
                 "action %d is not action %d of before", i, of);
        if (!parted) continue;
        if (part.index == 0) bytes[of] = b->bytes;
        bytes[of] -= a->bytes;
        cut += part.index == 0;
        TEST_SAY(t, part.index + 1 < part.count ? bytes[of] > 0 : bytes[of] == 0,
                 "%lld bytes are left", (long long)bytes[of]);
    }
    TEST_CHECK(t, at == was->action_count);
    return cut;
}

/* The pass by itself. */
static void check_split(test *t, const char *text, int64_t *cut)
{
    ts_program *before = NULL, *after = NULL;
    ts_reorder_options options = { .struct_size = sizeof options, .passes = TS_PASS_SPLIT };
    uint64_t one = 0, two = 1;
    TEST_OK(t, ts_program_parse(text, &before));
    if (before) TEST_OK(t, ts_program_reorder(before, &options, NULL, NULL, &after));
    bool ran = after && interpret(t, before->step, &one) && interpret(t, after->step, &two);
    TEST_SAY(t, !ran || one == two, "other results:\n%s", text);
    for (int32_t r = 0; ran && r < before->step->list_count; r++)
        *cut += check_parts(t, &before->step->list[r], &after->step->list[r]);
    ts_program_destroy(before);
    ts_program_destroy(after);
}

TS_TEST(parts_are_all_that_splitting_changes)
{
    int64_t cut = 0;
    for (int64_t i = 0; i < 100 && !test_failed(t); i++) {
        char *text = random_program(t, test_random_below(t, 2) ? 2 : 4);
        if (text) check_split(t, text, &cut);
        tsi_free(text);
    }
    printf("  %lld operations in parts\n", (long long)cut);
    TEST_CHECK(t, cut > 20);
}

/* ---- all passes ------------------------------------------------------------------------------ */

static void check_case(test *t, const char *text, int64_t number, tally *sum)
{
    ts_program *before = NULL, *after = NULL;
    ts_program_times was = { .struct_size = sizeof was }, is = was;
    ts_reorder_options options = { .struct_size = sizeof options, .tries = 20 };
    uint64_t one = 0, two = 1;
    int64_t count = 0;
    options.seed = (uint64_t)number;
    TEST_OK(t, ts_program_parse(text, &before));
    if (!before) return;
    TEST_OK(t, ts_program_check(before, NULL, note_finding, sum, &count));
    TEST_SAY(t, count == 0, "a good program:\n%s\n%s", sum->why.data, text);
    TEST_OK(t, ts_program_simulate(before, NULL, &was, NULL, NULL));
    if (number % 2) options.memory_bytes_max = was.peak_bytes + was.peak_bytes / 8;
    int64_t cap = options.memory_bytes_max ? options.memory_bytes_max : was.peak_bytes;
    TEST_OK(t, ts_program_reorder(before, &options, note_pass, sum, &after));
    if (after) {
        TEST_OK(t, ts_program_simulate(after, NULL, &is, NULL, NULL));
        TEST_OK(t, ts_program_check(after, NULL, note_finding, sum, &count));
        TEST_SAY(t, count == 0, "%s", sum->why.data);
        TEST_SAY(t, is.makespan_us <= was.makespan_us && is.peak_bytes <= cap,
                 "%g us and %lld bytes became %g and %lld", was.makespan_us,
                 (long long)was.peak_bytes, is.makespan_us, (long long)is.peak_bytes);
        bool ran = interpret(t, before->step, &one) && interpret(t, after->step, &two);
        TEST_SAY(t, !ran || one == two, "other results:\n%s", text);
        sum->faster += is.makespan_us < was.makespan_us;
    }
    ts_program_destroy(before);
    ts_program_destroy(after);
}

TS_TEST_LONG(random_programs_reorder_to_the_same, 600)
{
    const char *asked = getenv("TEST_PROGRAMS");
    int64_t cases = asked ? strtoll(asked, NULL, 10) : 500;
    tally sum = { 0 };
    for (int64_t i = 0; i < cases && !test_failed(t); i++) {
        char *text = random_program(t, test_random_below(t, 2) ? 2 : 4);
        if (text) check_case(t, text, i, &sum);
        tsi_free(text);
    }
    printf("  %lld programs: %lld passes kept, %lld faster, %lld operations in parts\n",
           (long long)cases, (long long)sum.kept, (long long)sum.faster, (long long)sum.split);
    TEST_CHECK(t, sum.faster > cases / 4 && sum.found == 0 && sum.split > cases / 50);
    tsi_text_release(&sum.why);
}
