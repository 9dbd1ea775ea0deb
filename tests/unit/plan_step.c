/* SPDX-License-Identifier: Apache-2.0 */
/* plan_step.c - steps as values: their text, memory, proof and simulation, on steps whose answers
 * are known: units that are gathered and released, and a pipeline of one forward, one backward. */
#include <math.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "plan/step.h"

static tsi_step *parsed(test *t, const char *text)
{
    tsi_step *step = NULL;
    ts_status status = tsi_step_parse(text, &step);
    TEST_SAY(t, status == TS_OK, "%s", ts_last_error());
    return step;
}

static void check_round_trip(test *t, const tsi_step *step)
{
    tsi_text text = { 0 }, again = { 0 }, why = { 0 };
    tsi_step_print(step, &text);
    tsi_step *back = parsed(t, text.data);
    TEST_SAY(t, back && !tsi_step_differ(step, back, &why), "%s", why.data);
    if (back) tsi_step_print(back, &again);
    TEST_TEXT(t, again.data, text.data);
    tsi_text_release(&text);
    tsi_text_release(&again);
    tsi_text_release(&why);
    tsi_step_destroy(back);
}

/* ---- a unit that is gathered, used, released and reduced ------------------------------------- */

static const char fsdp[] = "step 1\n"
                           "ranks 2\n"
                           "queue comm\n"
                           "group fsdp 0,1\n"
                           "rank 0\n"
                           "holds w.shard 512 parameter\n"
                           "takes x 64 activation\n"
                           "value w 1024 gathered\n"
                           "value a 2048 activation\n"
                           "value g 1024 gradient\n"
                           "value g.shard 512 gradient\n"
                           "gather w over=fsdp queue=comm bytes=1024 reads=w.shard makes=w us=4\n"
                           "operator embed us=3\n"
                           "wait reads=w\n"
                           "forward block reads=x,w makes=a frees=x us=10\n"
                           "backward block reads=w makes=g frees=a us=20\n"
                           "release w frees=w\n"
                           "reduce w over=fsdp queue=comm bytes=1024 reads=g makes=g.shard us=5\n"
                           "wait reads=g.shard frees=g\n"
                           "update w reads=g.shard writes=w.shard frees=g.shard us=2\n"
                           "rank 1\n"
                           "holds w.shard 512 parameter\n"
                           "takes x 64 activation\n"
                           "value w 1024 gathered\n"
                           "value a 2048 activation\n"
                           "value g 1024 gradient\n"
                           "value g.shard 512 gradient\n"
                           "operator embed us=6\n"
                           "gather w over=fsdp queue=comm bytes=1024 reads=w.shard makes=w us=4\n"
                           "wait reads=w\n"
                           "forward block reads=x,w makes=a frees=x us=10\n"
                           "backward block reads=w makes=g frees=a us=20\n"
                           "release w frees=w\n"
                           "reduce w over=fsdp queue=comm bytes=1024 reads=g makes=g.shard us=5\n"
                           "wait reads=g.shard frees=g\n"
                           "update w reads=g.shard writes=w.shard frees=g.shard us=2\n";

TS_TEST(step_prints_what_it_parsed)
{
    tsi_step *step = parsed(t, fsdp);
    tsi_text text = { 0 };
    tsi_step_print(step, &text);
    TEST_TEXT(t, text.data, fsdp);
    check_round_trip(t, step);
    tsi_text_release(&text);
    tsi_step_destroy(step);
}

TS_TEST(step_memory_follows_lifetimes)
{
    tsi_step *step = parsed(t, fsdp);
    tsi_step_peak peak;
    int64_t line[9];
    tsi_step_memory_of(step, 0, &peak, line);
    const int64_t want[9] = { 1600, 1600, 1600, 3648, 4608, 2560, 2048, 2048, 1024 };
    for (int i = 0; i < 9; i++)
        TEST_EQ(t, line[i], want[i]);
    TEST_EQ(t, peak.bytes, 4608);
    TEST_EQ(t, peak.action, 4);
    TEST_EQ(t, peak.by[TSI_STEP_MEMORY_GATHERED], 1024);
    TEST_EQ(t, peak.by[TSI_STEP_MEMORY_ACTIVATION], 2048);
    TEST_OK(t, tsi_step_prove(step, &(tsi_step_rules){ .memory_bytes_max = 4608 }));
    TEST_STATUS(t, tsi_step_prove(step, &(tsi_step_rules){ .memory_bytes_max = 4607 }), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(),
              "rank 0 needs 4608 bytes, 1 more than the cap, at backward block "
              "(action 5 of rank 0): parameter 512, gathered 1024");
    tsi_step_destroy(step);
}

TS_TEST(step_simulates_by_its_own_times)
{
    tsi_step *step = parsed(t, fsdp);
    tsi_step_cost cost = { .us = { 0 } };
    tsi_step_times times;
    TEST_OK(t, tsi_step_simulate(step, &cost, &times));
    /* The gather waits for rank 1, which issues it after 6: 6 + 4, then 10, 20, 5, 2. */
    TEST_CHECK(t, times.makespan_us == 47);
    TEST_CHECK(t, times.start_us[0] == 6 && times.end_us[0] == 10);
    TEST_CHECK(t, times.start_us[3] == 10 && times.start_us[8] == 45);
    TEST_CHECK(t, times.busy_us[1] == 9 && times.busy_us[0] == 35);
    TEST_CHECK(t, fabs(times.bubble - (1 - (35 + 38) / 94.0)) < 1e-12);
    TEST_EQ(t, times.peak[1].bytes, 4608);
    /* From rank 1's embedding over the gather to the end. */
    TEST_EQ(t, times.critical[0], 9);
    TEST_EQ(t, times.first[1], 9);
    tsi_step_times_release(&times);
    tsi_step_destroy(step);
}

/* What two queues compute at once is time of the rank once. */
TS_TEST(step_computes_on_several_queues)
{
    tsi_step *step = parsed(t, "step 1\nranks 1\nqueue a\nqueue b\nrank 0\n"
                               "operator x queue=a us=4\noperator y queue=b us=3\n"
                               "operator z us=1\nwait\noperator w us=2\nsave v queue=b us=1\n");
    tsi_step_times times;
    TEST_OK(t, tsi_step_simulate(step, &(tsi_step_cost){ .us = { 0 } }, &times));
    TEST_CHECK(t, times.makespan_us == 7);
    TEST_SAY(t, times.bubble == 0, "%g", times.bubble);
    tsi_step_times_release(&times);
    tsi_step_destroy(step);
    step =
        parsed(t, "step 1\nranks 1\nqueue a\nqueue c\ngroup g 0\nrank 0\n"
                  "operator x queue=a us=2\ngather w over=g queue=c us=6\nwait\noperator z us=2\n");
    TEST_OK(t, tsi_step_simulate(step, &(tsi_step_cost){ .us = { 0 } }, &times));
    TEST_SAY(t, times.bubble == 0.5, "%g", times.bubble);
    tsi_step_times_release(&times);
    tsi_step_destroy(step);
}

TS_TEST(step_costs_come_from_links)
{
    ts_topology topology;
    TEST_OK(t,
            ts_topology_parse("{\"name\": \"t\", \"base_us\": 1, \"hops\": \"flat\", \"levels\": "
                              "[{\"name\": \"a\", \"ranks\": 2, \"latency_us\": 2, "
                              "\"bandwidth_gib_s\": 1}, {\"name\": \"b\", \"ranks\": 0, "
                              "\"latency_us\": 10, \"bandwidth_gib_s\": 0.5}]}",
                              &topology));
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(4, 4, 0, 16, &world));
    ts_mesh *mesh = ts_mesh_describe(world, "4");
    tsi_links links;
    tsi_links_make(&topology, mesh->desc, 4, &links);
    tsi_step *step =
        parsed(t, "step 1\nranks 4\nrank 0\nsend x to=1 bytes=1073741824\n"
                  "send x to=3 bytes=1073741824\nrank 1\nreceive x from=0 bytes=1073741824\n"
                  "rank 2\nrank 3\nreceive x from=0 bytes=1073741824\n");
    tsi_step_times times;
    TEST_OK(t, tsi_step_simulate(step, &(tsi_step_cost){ .links = &links }, &times));
    TEST_CHECK(t, fabs(times.end_us[0] - (1 + 2 + 1e6)) < 1e-3);
    TEST_CHECK(t, fabs(times.makespan_us - (1 + 2 + 1e6 + 1 + 10 + 2e6)) < 1e-3);
    tsi_step_times_release(&times);
    tsi_step_destroy(step);
    ts_mesh_release(mesh);
    tsi_world_unmake(world);
}

/* ---- a pipeline ------------------------------------------------------------------------------ */

static void append(test *t, tsi_step *step, int64_t rank, tsi_action action, const tsi_touch *touch,
                   int32_t count)
{
    TEST_OK(t, tsi_step_append(step, rank, &action, touch, count));
}

static int32_t value(test *t, tsi_step *step, int64_t rank, const char *what, int64_t micro)
{
    char name[32];
    int32_t index = -1;
    (void)snprintf(name, sizeof name, "%s.%lld", what, (long long)micro);
    tsi_value made = { name, what[0] == 'a' ? 100 : 0, TSI_STEP_MEMORY_ACTIVATION, 0, NULL };
    TEST_OK(t, tsi_step_value(step, rank, &made, &index));
    return index;
}

/* Messages of one direction have a queue of their own, so that compute waits for what it needs. */
static void pipeline_part(test *t, tsi_step *step, int64_t rank, int64_t micro, bool forward)
{
    int64_t ranks = step->rank_count, from = forward ? rank - 1 : rank + 1;
    int64_t to = forward ? rank + 1 : rank - 1;
    const char *what = forward ? "hidden" : "gradient";
    tsi_action compute = TSI_ACTION_INIT(forward ? TSI_ACTION_FORWARD : TSI_ACTION_BACKWARD);
    tsi_action wait = TSI_ACTION_INIT(TSI_ACTION_WAIT);
    tsi_touch touch[4];
    int32_t count = 0, in = value(t, step, rank, forward ? "in" : "gin", micro);
    int32_t out = value(t, step, rank, forward ? "out" : "gout", micro);
    if (from >= 0 && from < ranks) {
        tsi_action receive = TSI_ACTION_INIT(TSI_ACTION_RECEIVE);
        receive.what = what;
        receive.peer = (int32_t)from;
        receive.micro = (int32_t)micro;
        TEST_OK(t, tsi_step_queue(step, forward ? "from-left" : "from-right", &receive.queue));
        append(t, step, rank, receive, &(tsi_touch){ in, TSI_MAKES }, 1);
        append(t, step, rank, wait, &(tsi_touch){ in, TSI_READS }, 1);
        touch[count++] = (tsi_touch){ in, TSI_READS };
        touch[count++] = (tsi_touch){ in, TSI_FREES };
    }
    int32_t kept = value(t, step, rank, "a", micro);
    touch[count++] = (tsi_touch){ kept, forward ? TSI_MAKES : TSI_FREES };
    bool sends = to >= 0 && to < ranks;
    if (sends) touch[count++] = (tsi_touch){ out, TSI_MAKES };
    compute.stage = (int32_t)rank;
    compute.micro = (int32_t)micro;
    append(t, step, rank, compute, touch, count);
    if (!sends) return;
    tsi_action send = TSI_ACTION_INIT(TSI_ACTION_SEND);
    send.what = what;
    send.peer = (int32_t)to;
    send.micro = (int32_t)micro;
    TEST_OK(t, tsi_step_queue(step, forward ? "to-right" : "to-left", &send.queue));
    append(t, step, rank, send, &(tsi_touch){ out, TSI_READS }, 1);
}

/* Outputs live until the end: what was sent is waited for there. */
static void pipeline_end(test *t, tsi_step *step, int64_t rank)
{
    append(t, step, rank, TSI_ACTION_INIT(TSI_ACTION_WAIT), NULL, 0);
    for (int64_t m = 0; m < step->micro_count; m++) {
        tsi_touch touch[2] = { { value(t, step, rank, "out", m), TSI_FREES },
                               { value(t, step, rank, "gout", m), TSI_FREES } };
        bool right = rank + 1 < step->rank_count, left = rank > 0;
        if (!right && !left) return;
        append(t, step, rank, TSI_ACTION_INIT(TSI_ACTION_RELEASE), right ? touch : touch + 1,
               right + left);
    }
}

static tsi_step *one_forward_one_backward(test *t, int64_t ranks, int64_t micros)
{
    tsi_step *step = NULL;
    TEST_OK(t, tsi_step_create(ranks, &step));
    TEST_OK(t, tsi_step_stages(step, ranks, micros));
    for (int64_t r = 0; r < ranks; r++) {
        int64_t warm = ranks - 1 - r < micros ? ranks - 1 - r : micros;
        for (int64_t m = 0; m < warm; m++)
            pipeline_part(t, step, r, m, true);
        for (int64_t m = warm; m < micros; m++) {
            pipeline_part(t, step, r, m, true);
            pipeline_part(t, step, r, m - warm, false);
        }
        for (int64_t m = micros - warm; m < micros; m++)
            pipeline_part(t, step, r, m, false);
        pipeline_end(t, step, r);
    }
    return step;
}

TS_TEST(step_pipeline_has_its_formulae)
{
    const tsi_step_cost cost = { .us = { [TSI_ACTION_FORWARD] = 1, [TSI_ACTION_BACKWARD] = 2 } };
    for (int64_t ranks = 1; ranks <= 5; ranks++) {
        for (int64_t micros = 1; micros <= 9; micros += 2) {
            tsi_step *step = one_forward_one_backward(t, ranks, micros);
            tsi_step_times times;
            TEST_OK(t, tsi_step_prove(step, NULL));
            TEST_OK(t, tsi_step_prove(step, &(tsi_step_rules){ .buffered = true }));
            check_round_trip(t, step);
            TEST_OK(t, tsi_step_simulate(step, &cost, &times));
            double want = 3.0 * (double)(micros + ranks - 1);
            TEST_SAY(t, times.makespan_us == want, "%lld ranks, %lld micro-batches: %g, not %g",
                     (long long)ranks, (long long)micros, times.makespan_us, want);
            TEST_CHECK(t, fabs(times.bubble - (double)(ranks - 1) / (double)(micros + ranks - 1)) <
                              1e-12);
            for (int64_t r = 0; r < ranks; r++)
                TEST_EQ(t, times.peak[r].bytes, 100 * (ranks - r < micros ? ranks - r : micros));
            tsi_step_times_release(&times);
            tsi_step_destroy(step);
        }
    }
}

/* Groups are found at once: a text of many is read before the test's deadline, which it would miss
 * by far if each was looked for among all of them. */
TS_TEST(step_has_many_groups)
{
    enum { GROUPS = 150000 };
    tsi_text text = { 0 };
    tsi_text_add(&text, "step 1\nranks 2\n");
    for (int i = 0; i < GROUPS; i++)
        tsi_text_printf(&text, "group g%d 0,1\n", i);
    tsi_text_add(&text, "rank 0\n");
    for (int i = 0; i < GROUPS; i++)
        tsi_text_printf(&text, "gather over=g%d\n", i);
    tsi_step *step = parsed(t, text.data);
    TEST_EQ(t, step->group_count, GROUPS);
    for (int i = 0; i < GROUPS; i++)
        TEST_EQ(t, step->list[0].action[i].group, i);
    tsi_step_destroy(step);
    tsi_text_release(&text);
}

/* ---- refusals -------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *text, *sentence;
} refusal;

TS_TEST(step_text_is_refused_with_its_line)
{
#define HEAD "step 1\nranks 2\nqueue comm\ngroup g 0,1\nrank 0\nvalue x 4 comm\n"
    static const refusal cases[] = {
        { "", "the text ends before the line 'ranks'" },
        { "ranks 2\n", "line 1: 'ranks' stands where 'step 1' is expected" },
        { "step 2\n", "line 1: the version is '2'; 1 is possible" },
        { "step 1\nranks 0\n", "line 2: the number of ranks is '0'" },
        { "step 1\nranks 99999999\n", "line 2: the number of ranks is '99999999'" },
        { "step 1\nrank 0\n", "line 2: 'rank' stands where 'ranks' is expected" },
        { "step 1\nranks 2 2\n", "line 2: '2' is one word too many" },
        { "step 1\nranks 2\nstages 2 micros 4\n", "line 3: 'micros' stands where 'micro-batches'" },
        { "step 1\nranks 2\nqueue main\n", "line 3: queue main is there already" },
        { "step 1\nranks 2\ngroup g 0..2\n", "line 3: the members are '0..2'" },
        { "step 1\nranks 2\ngroup g 1,0\n", "step, line 3: group g has rank 0 after 1" },
        { "step 1\nranks 2\nforward\n", "line 3: 'forward' stands before the first rank" },
        { "step 1\nranks 2\nrank 1\n", "line 3: rank 1 stands where rank 0 is expected" },
        { "step 1\nranks 2\nrank 0\nqueue q\n", "line 4: 'queue' stands behind a rank" },
        { HEAD "value x 4 comm\n", "line 7: value x of rank 0 is there already" },
        { HEAD "value y four comm\n", "line 7: the value's bytes is 'four'" },
        { HEAD "value y 4 gatherd\n",
          "line 7: 'gatherd' is no kind of memory; did you mean 'gathered'" },
        { HEAD "forwrd\n", "line 7: 'forwrd' is no action; did you mean 'forward'?" },
        { HEAD "forward b stage=0 stage=1\n", "line 7: stage is given twice" },
        { HEAD "forward b c\n", "line 7: 'c' is no key=value" },
        { HEAD "forward b reads=y\n", "line 7: reads 'y', which is no value of rank 0" },
        { HEAD "forward b reads=\n", "line 7: reads '', which is no value of rank 0" },
        { HEAD "forward b chanel=1\n",
          "line 7: 'chanel' is no key of an action; did you mean 'channel'?" },
        { HEAD "forward b us=-1\n", "line 7: us is '-1'" },
        { HEAD "forward b queue=dma\n", "line 7: 'dma' is no queue of the step" },
        { HEAD "forward b to=1\n", "line 7: forward has no 'to'" },
        { HEAD "receive b to=1\n", "line 7: receive has no 'to'" },
        { HEAD "send b to=0\n", "step, line 7: send b: to is 0, which is the rank itself" },
        { HEAD "send b\n", "step, line 7: send b: 'to' is missing, the rank that it goes to" },
        { HEAD "receive bytes=4\n",
          "line 7: receive: 'from' is missing, the rank that it comes from" },
        { HEAD "gather b\n",
          "step, line 7: gather b: 'over' is missing, the group that takes part" },
        { HEAD "forward b over=g\n", "line 7: forward has no 'over'" },
        { HEAD "rank 1\ngather b over=h\n", "line 8: 'h' is no group of the step" },
        { HEAD "gather b over=h\n", "line 7: 'h' is no group of the step" },
        { HEAD "release b reads=x\n", "step, line 7: release reads x; it only frees" },
        { HEAD "wait writes=x\n", "line 7: wait writes x; it only reads and frees" },
        { HEAD "forward queue=comm frees=x\n", "line 7: forward frees x on another queue" },
        { HEAD "forward\nvalue z 4 comm\n", "line 8: value z stands behind actions of its rank" },
        { HEAD "forward a,b\n", "step, line 7: 'a,b' is no name: 1 to 255 bytes" },
        { "step 1\nranks 2\nwide\ngroups g 3:1\n", "step, line 4: groups g: 3 ranks 1 apart" },
        { "step 1\nranks 4\nwide\nrank 0..1\nrank 2..3\nforward reads=y\n",
          "line 6: reads 'y', which is no value of rank 2" },
        { "step 1\nranks 4\nwide\nrank 0..3\nsend h\n", "line 5: send h: 'to' is missing" },
        { "step 1\nranks 4\nwide\nrank 0..3\nsend h to=+0\n",
          "line 5: send h: to is +0, which is the rank itself" },
    };
#undef HEAD
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsi_step *step = NULL;
        TEST_STATUS(t, tsi_step_parse(cases[i].text, &step), TS_ERR_ARG);
        TEST_SAYS(t, ts_last_error(), cases[i].sentence);
        TEST_CHECK(t, step == NULL);
    }
}

/* As from an editor that ends lines with carriage returns. */
static char *with_returns(const char *text)
{
    tsi_text out = { 0 };
    for (const char *at = text, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        tsi_text_add_n(&out, at, (size_t)(end - at));
        tsi_text_add(&out, "\r\n");
    }
    return tsi_text_take(&out);
}

TS_TEST(step_lines_may_end_with_returns)
{
    char *text = with_returns(fsdp);
    tsi_step *step = parsed(t, text), *same = parsed(t, fsdp);
    TEST_CHECK(t, step && !tsi_step_differ(step, same, NULL));
    tsi_free(text);
    tsi_step_destroy(step);
    tsi_step_destroy(same);
    step = parsed(t, "\xEF\xBB\xBFstep 1\nranks 1"); /* and begins with an order mark */
    TEST_CHECK(t, step != NULL);
    tsi_step_destroy(step);
    text = with_returns("step 1\n\n# a remark\nranks 1\nrank 0\noperator a\nwait reads=x\n");
    TEST_STATUS(t, tsi_step_parse(text, &step), TS_ERR_ARG);
    TEST_TEXT(t, ts_last_error(), "step, line 7: reads 'x', which is no value of rank 0");
    tsi_free(text);
}

TS_TEST(step_proof_names_what_breaks)
{
#define HEAD "step 1\nranks 2\nqueue comm\ngroup g 0,1\nrank 0\nvalue x 4 comm\n"
#define PEER "rank 1\nvalue x 4 comm\n"
    static const refusal cases[] = {
        { HEAD "forward b reads=x\n",
          "forward b (action 1 of rank 0) reads x, which nothing above it makes" },
        { HEAD "forward b makes=x\n", "x of rank 0 is declared as 'value' and is still there" },
        { HEAD "forward b makes=x\nrelease frees=x\nforward c reads=x\n",
          "forward c (action 3 of rank 0) reads x, which is gone since release (action 2" },
        { HEAD "forward b makes=x\nforward c makes=x\n",
          "forward c (action 2 of rank 0) makes x, which is there since forward b (action 1" },
        { HEAD "operator b makes=x queue=comm\nforward c reads=x\nwait\nrelease frees=x\n",
          "forward c (action 2 of rank 0) reads x while operator b (action 1 of rank 0) on queue "
          "comm may still use it: no wait stands between them" },
        { HEAD "forward b makes=x\nsave x reads=x queue=comm\nrelease frees=x\n",
          "release (action 3 of rank 0) frees x while save x (action 2 of rank 0) on queue comm" },
        { HEAD "forward b makes=x\nsave x reads=x queue=comm\noperator writes=x\n",
          "operator (action 3 of rank 0) writes x while save x" },
        { HEAD "update b\nupdate b\n",
          "update b (action 2 of rank 0) is there already as action 1" },
        { HEAD "send y to=1 bytes=4\n",
          "send y to=1 (action 1 of rank 0) is met by nothing on rank 1: of the messages from rank "
          "0 to rank 1 on channel 0 it has fewer" },
        { HEAD "send y to=1 bytes=4\n" PEER "receive z from=0 bytes=4\n",
          "number 1 of the messages from rank 0 to rank 1 on channel 0 is send y to=1 (action 1 of "
          "rank 0) with 4 bytes and receive z from=0 (action 1 of rank 1)" },
        { HEAD "gather y over=g\nreduce y over=g\n" PEER "reduce y over=g\ngather y over=g\n",
          "number 1 of group g on channel 0 is gather y over=g (action 1 of rank 0)" },
        { HEAD "gather y over=g\n" PEER "forward b\n",
          "gather y over=g (action 1 of rank 0) is met by nothing on rank 1: of group g on channel "
          "0 it has fewer" },
        { HEAD "send y to=1\nreceive z from=1\n" PEER "send z to=0\nreceive y from=0\n",
          "deadlock: receive y from=0 (action 2 of rank 1) comes after send z to=0 (action 1 of "
          "rank 1), which meets receive z from=1 (action 2 of rank 0), which comes after send y "
          "to=1 (action 1 of rank 0), which meets receive y from=0 (action 2 of rank 1)" },
        { HEAD "gather y over=g channel=1 queue=comm\ngather z over=g queue=comm\n" PEER
               "gather z over=g queue=comm\ngather y over=g channel=1 queue=comm\n",
          "deadlock: " },
    };
#undef HEAD
#undef PEER
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsi_step *step = parsed(t, cases[i].text);
        TEST_STATUS(t, tsi_step_prove(step, NULL), TS_ERR_ARG);
        TEST_SAYS(t, ts_last_error(), cases[i].sentence);
        tsi_step_destroy(step);
    }
    /* Two sends that meet each other's receives too late are fine where sends are buffered. */
    tsi_step *step = parsed(t, "step 1\nranks 2\nrank 0\nsend y to=1\nreceive z from=1\n"
                               "rank 1\nsend z to=0\nreceive y from=0\n");
    TEST_OK(t, tsi_step_prove(step, &(tsi_step_rules){ .buffered = true }));
    tsi_step_destroy(step);
}

TS_TEST(step_stages_are_complete)
{
#define HEAD "step 1\nranks 1\nstages 1 micro-batches 2\nrank 0\nforward stage=0 micro=0\n"
    static const refusal cases[] = {
        { HEAD "backward stage=0 micro=0\n",
          "stage 0, micro-batch 1 on rank 0: the forward is missing" },
        { HEAD "backward stage=0 micro=0\nforward stage=0 micro=1\n",
          "stage 0, micro-batch 1 on rank 0: the backward is missing" },
        { HEAD "input_gradient stage=0 micro=0\n",
          "stage 0, micro-batch 0 on rank 0: the weight_gradient is missing" },
        { HEAD "backward stage=0 micro=0\ninput_gradient stage=0 micro=0\n",
          "a backward, and a gradient of it once more" },
        { HEAD "weight_gradient stage=0 micro=0\ninput_gradient stage=0 micro=0\n",
          "the weight_gradient stands before the input_gradient" },
        { HEAD "forward stage=0 micro=0\n",
          "forward stage=0 micro=0 (action 2 of rank 0) is there" },
        { HEAD "forward b stage=0 micro=0\n", "forward twice, as actions 1 and 2" },
        { HEAD "backward stage=0 micro=2\n", "is outside of 1 stages and 2 micro-batches" },
        { "step 1\nranks 1\nstages 3 micro-batches 1\nrank 0\nforward stage=0 micro=0\n"
          "backward stage=0 micro=0\nforward stage=2 micro=0\nbackward stage=2 micro=0\n",
          "stage 1 is on no rank" },
        { "step 1\nranks 1\nstages 2000000000 micro-batches 1\n", "some stage is on no rank" },
    };
#undef HEAD
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsi_step *step = parsed(t, cases[i].text);
        TEST_STATUS(t, tsi_step_prove(step, NULL), TS_ERR_ARG);
        TEST_SAYS(t, ts_last_error(), cases[i].sentence);
        tsi_step_destroy(step);
    }
}

TS_TEST(step_differences_are_sentences)
{
    static const refusal cases[] = {
        { "step 1\nranks 2\n", "ranks: 1 and 2" },
        { "step 1\nranks 1\nqueue c\ngroup g 0\n", "queue 1: q and c" },
        { "step 1\nranks 1\nqueue q\ngroup h 0\n", "group 0: 'group g 0' and 'group h 0'" },
        { "step 1\nranks 1\nqueue q\ngroup g 0\nrank 0\nvalue x 5 comm\nforward b makes=x\n",
          "value 1 of rank 0: value x 4 comm and value x 5 comm" },
        { "step 1\nranks 1\nqueue q\ngroup g 0\nrank 0\nvalue x 4 comm\nforward c makes=x\n",
          "action 1 of rank 0: 'forward b makes=x' and 'forward c makes=x'" },
        { "step 1\nranks 1\nqueue q\ngroup g 0\nrank 0\nvalue x 4 comm\n",
          "rank 0 has 1 and 0 actions; the first more is 'forward b makes=x'" },
    };
    tsi_step *a = parsed(t, "step 1\nranks 1\nqueue q\ngroup g 0\nrank 0\nvalue x 4 comm\n"
                            "forward b makes=x\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsi_step *b = parsed(t, cases[i].text);
        tsi_text why = { 0 };
        TEST_CHECK(t, tsi_step_differ(a, b, &why));
        TEST_TEXT(t, why.data, cases[i].sentence);
        tsi_text_release(&why);
        tsi_step_destroy(b);
    }
    TEST_CHECK(t, !tsi_step_differ(a, a, NULL));
    tsi_step_destroy(a);
}

TS_TEST(step_parts_of_ranks_join)
{
    tsi_step *whole = parsed(t, fsdp), *part[2], *joined = NULL;
    for (int r = 0; r < 2; r++)
        part[r] = parsed(t, fsdp);
    TEST_OK(t, tsi_step_join(part, 2, &joined));
    tsi_text why = { 0 };
    TEST_SAY(t, !tsi_step_differ(whole, joined, &why), "%s", why.data);
    tsi_text_release(&why);
    tsi_step_destroy(part[0]);
    tsi_step_destroy(part[1]);
    tsi_step_destroy(joined);
    tsi_step_destroy(whole);
}

/* Who came last to a meeting says how long it takes; where one says nothing, all do. */
TS_TEST(step_meetings_take_the_least)
{
    static const double us[2][3] = { { 7, 9, 4 }, { 5, -1, 6 } };
    tsi_step *step = NULL;
    const int32_t both[2] = { 0, 1 };
    int32_t group;
    TEST_OK(t, tsi_step_create(2, &step));
    TEST_OK(t, tsi_step_group_of(step, "all", both, 2, &group));
    for (int64_t r = 0; r < 2; r++)
        for (int i = 0; i < 3; i++) {
            tsi_action a = TSI_ACTION_INIT(i < 2 ? TSI_ACTION_ALL_REDUCE : TSI_ACTION_OPERATOR);
            a.group = i < 2 ? group : -1;
            a.us = us[r][i];
            TEST_OK(t, tsi_step_append(step, r, &a, NULL, 0));
        }
    TEST_OK(t, tsi_step_meet_least(step));
    for (int64_t r = 0; r < 2; r++) {
        const tsi_action *a = step->list[r].action;
        TEST_CHECK(t, a[0].us == 5 && a[1].us == -1 && a[2].us == us[r][2]);
    }
    step->list[1].action_count = 1; /* nothing meets the second one */
    step->list[0].action[0].us = 8;
    TEST_OK(t, tsi_step_meet_least(step));
    TEST_CHECK(t, step->list[0].action[0].us == 8);
    tsi_step_destroy(step);
}

/* Every allocation may fail: a status and nothing left behind, which the harness checks. */
TS_TEST(step_survives_failing_allocations)
{
    for (int64_t n = 1;; n++) {
        tsi_step *step = NULL;
        tsi_step_times times = { 0 };
        tsi_alloc_fail_at(n);
        ts_status status = tsi_step_parse(fsdp, &step);
        if (status == TS_OK) status = tsi_step_prove(step, NULL);
        if (status == TS_OK)
            status = tsi_step_simulate(step, &(tsi_step_cost){ .us = { 0 } }, &times);
        int64_t tried = tsi_alloc_fail_at(0);
        TEST_CHECK(t, status == TS_OK || status == TS_ERR_MEMORY);
        tsi_step_times_release(&times);
        tsi_step_destroy(step);
        if (tried < n || n > 2000) break;
    }
}
