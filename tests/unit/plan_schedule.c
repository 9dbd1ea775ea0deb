/* SPDX-License-Identifier: Apache-2.0 */
/* plan_schedule.c - schedules of pipelines: the published bubbles and peaks, lowering, texts, and
 * what is refused. tests/cli/schedule.sh compares whole orders with the reference's. */
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "plan/schedule.h"

static ts_schedule *make(test *t, const char *name, int64_t ranks, int64_t per, int64_t micros)
{
    ts_schedule *out = NULL;
    ts_schedule_options options = { .struct_size = sizeof options,
                                    .ranks = ranks,
                                    .stages_per_rank = per,
                                    .micro_batches = micros };
    TEST_OK(t, ts_schedule_generate(name, &options, &out));
    return out;
}

/* ---- bubbles and peaks, P = 4 ---------------------------------------------------------------- */

typedef struct vector {
    const char *name;
    int per;
    double bubble[3][2]; /* [case][without and with latency 0.1], in times of a whole rank */
    double peak[3];      /* of rank 0, in activations of a whole rank */
} vector;

/* Cases: 8 micro-batches 1:1:1, 8 with 1:1.3:0.7, 16 with 1:1:1. */
static const vector vectors[] = {
    { "GPipe", 1, { { 9, 9.6 }, { 9, 9.6 }, { 9, 9.6 } }, { 8, 8, 16 } },
    { "1F1B", 1, { { 9, 10.6 }, { 9, 10.6 }, { 9, 11.8 } }, { 4, 4, 4 } },
    { "LoopedBFS", 2, { { 4.5, 5.1 }, { 4.5, 5.1 }, { 4.5, 5.1 } }, { 8, 8, 16 } },
    { "Interleaved1F1B", 2, { { 4.5, 5.9 }, { 4.5, 5.9 }, { 4.5, 5.9 } }, { 5.5, 5.5, 5.5 } },
    { "zb1p", 1, { { 3, 4.2 }, { 4.8, 6 }, { 3, 4.2 } }, { 4, 4, 4 } },
    { "zb1p", 2, { { 1.5, 3.1 }, { 2.4, 4 }, { 1.5, 3.1 } }, { 4, 4, 4 } },
    { "zbv", 2, { { 1.5, 2.8 }, { 1.95, 3.4 }, { 1.5, 2.8 } }, { 4, 4, 4 } },
    { "DualPipeV", 2, { { 3, 4.7 }, { 3.9, 6.05 }, { 3, 5.9 } }, { 4.5, 4.5, 4.5 } },
};

static void check_vector(test *t, const vector *v, int which, int latency)
{
    static const ts_stage_cost costs[] = { { 1, 1, 1, 0, 1 }, { 1, 1.3, 0.7, 0, 1 } };
    ts_schedule *s = make(t, v->name, 4, v->per, which == 2 ? 16 : 8);
    ts_stage_cost cost = costs[which == 1];
    ts_schedule_times times = { .struct_size = sizeof times };
    double peak[4], n = v->per;
    if (!s) return;
    cost.forward /= n;
    cost.input /= n;
    cost.weight /= n;
    cost.send = latency ? 0.1 : 0;
    ts_schedule_costs all = { .struct_size = sizeof all, .stage = &cost, .count = 1 };
    TEST_OK(t, ts_schedule_simulate(s, &all, &times, NULL, NULL, peak));
    TEST_SAY(t, fabs(times.bubble - v->bubble[which][latency]) < 1e-9,
             "%s with %d stages a rank, case %d, latency %d: bubble %.6g, wanted %.6g", v->name,
             v->per, which, latency, times.bubble, v->bubble[which][latency]);
    TEST_SAY(t, fabs(peak[0] / n - v->peak[which]) < 1e-9, "%s with %d, case %d: peak %.6g",
             v->name, v->per, which, peak[0] / n);
    TEST_OK(t, ts_schedule_check(s, &all, 0));
    ts_schedule_destroy(s);
}

TS_TEST(schedule_published_bubbles)
{
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        for (int which = 0; which < 3; which++)
            for (int latency = 0; latency < 2; latency++)
                check_vector(t, &vectors[i], which, latency);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void text_of(const ts_schedule *s, char *out, size_t size)
{
    TSI_ASSERT(ts_schedule_text(s, out, size) < size);
}

static const char lowered_text[] =
    "0UNSHARD,2UNSHARD,0F0,0SEND_F0,2RECV_F0,0F1,0SEND_F1,2RECV_F1,2F0,2SEND_F0,2F1,2SEND_F1,"
    "2RECV_B0,2B0,2SEND_B0,2RECV_B1,2B1,2SEND_B1,2REDUCE_GRAD,2RESHARD,0RECV_B0,0B0,0RECV_B1,0B1,"
    "0REDUCE_GRAD,0RESHARD\n"
    "1UNSHARD,3UNSHARD,1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3B0,"
    "3SEND_B0,1RECV_B0,3F1,3B1,3SEND_B1,1RECV_B1,3REDUCE_GRAD,3RESHARD,1B0,1SEND_B0,1B1,1SEND_B1,"
    "1REDUCE_GRAD,1RESHARD\n";

TS_TEST(schedule_lowered_as_published)
{
    char text[4096], again[4096];
    ts_schedule *s = make(t, "Interleaved1F1B", 2, 2, 2), *low = NULL, *read = NULL;
    TEST_OK(t, ts_schedule_lower(s, 0, &low));
    text_of(low, text, sizeof text);
    TEST_TEXT(t, text, lowered_text);
    TEST_OK(t, ts_schedule_parse(text, &read));
    text_of(read, again, sizeof again);
    TEST_TEXT(t, again, text);
    TEST_OK(t, ts_schedule_check(read, NULL, 0));
    ts_schedule_destroy(s);
    ts_schedule_destroy(low);
    ts_schedule_destroy(read);
}

TS_TEST(schedule_text_of_pairs_and_idle_cells)
{
    static const char text[] = "0F0,(0F1;0B0)OVERLAP_F_B,,0B1,0REDUCE_GRAD\n";
    char again[256];
    ts_schedule *s = NULL;
    TEST_OK(t, ts_schedule_parse(text, &s));
    text_of(s, again, sizeof again);
    TEST_TEXT(t, again, text);
    TEST_OK(t, ts_schedule_check(s, NULL, 0));
    ts_schedule_destroy(s);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(test *t, const char *text, const char *words)
{
    ts_schedule *s = NULL;
    ts_status status = ts_schedule_parse(text, &s);
    if (status == TS_OK) status = ts_schedule_check(s, NULL, 0);
    TEST_SAY(t, status != TS_OK, "accepted: %s", text);
    if (status != TS_OK) TEST_SAYS(t, ts_last_error(), words);
    ts_schedule_destroy(s);
}

TS_TEST(schedule_bad_texts)
{
    refused(t, "", "no forward");
    refused(t, "0F0,0X0\n", "line 1, column 6: expected F, B, I, W");
    refused(t, "0F0,0B0x\n", "column 8: expected ',' or the end of the line, found \"x\"");
    refused(t, "0F0,0B\n", "column 7: expected the micro-batch");
    refused(t, "0F0,F1\n", "column 5: expected a cell like 0F3");
    refused(t, "0F99999999999\n", "column 3: expected the micro-batch");
    refused(t, "(0F0;0B0\n", "expected ')OVERLAP_F_B'");
    refused(t, "0F0,0B0\n0F1,0B1\n", "stage 0 is on ranks 0 and 1");
    refused(t, "0F0,0B0,0B0\n", "stage 0, micro-batch 0 on rank 0: two backwards");
    refused(t, "0F0,0I0\n", "the weight gradient is missing");
    refused(t, "0F0,0W0,0I0\n", "0W0 on rank 0 needs 0I0, which stands on rank 0 behind 0W0");
    refused(t, "0F0,0F1,0B0\n", "the backward is missing");
    refused(t, "0F0,0B0\n2F0,2B0\n", "stage 1 of 3 is on no rank");
}

/* Each rank begins with what needs the other. */
TS_TEST(schedule_cycle_is_a_sentence)
{
    refused(t, "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n",
            "0B0 on rank 0 needs 1I0, which stands on rank 1 behind 1F1, behind which 1F1 on rank "
            "1 needs 0F1, which stands on rank 0 behind 0B0: a deadlock");
}

TS_TEST(schedule_messages_are_proved)
{
    static const char good[] = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    ts_schedule *s = NULL;
    TEST_OK(t, ts_schedule_parse(good, &s));
    TEST_OK(t, ts_schedule_check(s, NULL, 0));
    ts_schedule_destroy(s);
    refused(t, "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", "y.stage0.0");
    refused(t, "0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "d.stage0.0.1");
    refused(t, "0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "is met by nothing on rank 0");
    refused(t,
            "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
            "number 1 of the messages from rank 0 to rank 1 on channel 0");
    refused(t, "0F0,0SEND_F0,0RECV_B0,0B0,1SEND_F0\n1F0,1B0\n", "stage 1 is on ranks 0 and 1");
}

static void refuse_numbers(test *t, const char *name, int64_t ranks, int64_t per, int64_t micros,
                           const char *words)
{
    ts_schedule *out = NULL;
    ts_schedule_options options = { .struct_size = sizeof options,
                                    .ranks = ranks,
                                    .stages_per_rank = per,
                                    .micro_batches = micros };
    TEST_STATUS(t, ts_schedule_generate(name, &options, &out), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), words);
    TEST_CHECK(t, out == NULL);
}

/* Lowered with receives that stand so late, and proved. */
static ts_status prove_late(const ts_schedule *s, int32_t prefetch)
{
    tsi_lower_options options = { .gathered = TSI_SCHEDULE_GATHERED, .prefetch = prefetch };
    tsi_stage_graph line;
    ts_schedule *lowered = NULL;
    tsi_step *step = NULL;
    ts_status status = tsi_stage_graph_line(s->stages, &line);
    if (status != TS_OK) return status;
    status = tsi_schedule_lower(s, &line, &options, &lowered);
    if (status == TS_OK) status = tsi_schedule_prove(lowered, &line, &options, &step);
    tsi_step_destroy(step);
    ts_schedule_destroy(lowered);
    tsi_stage_graph_release(&line);
    return status;
}

/* Receives as late as can be: a send that waits for one does not wait for itself. */
TS_TEST(schedule_late_receives)
{
    for (int64_t i = 0; ts_schedule_name(i); i++)
        for (int64_t k = 0; k < 4 * 9 * 3; k++) {
            ts_schedule_options options = { sizeof options, 1 + k % 4, 1 + k / 4 % 9, 1 + k / 36 };
            ts_schedule *s = NULL;
            if (!tsi_schedule_rule_has(i, options.stages_per_rank)) continue;
            TEST_OK(t, ts_schedule_generate(ts_schedule_name(i), &options, &s));
            for (int32_t prefetch = 1; prefetch <= 3; prefetch++)
                TEST_SAY(t, prove_late(s, prefetch) == TS_OK,
                         "%s of %lld ranks, %lld micro-batches, %lld stages each: prefetch %d",
                         ts_schedule_name(i), (long long)options.ranks,
                         (long long)options.micro_batches, (long long)options.stages_per_rank,
                         prefetch);
            ts_schedule_destroy(s);
        }
}

TS_TEST(schedule_bad_numbers)
{
    refuse_numbers(t, "1F1C", 2, 1, 2, "did you mean 1F1B?");
    refuse_numbers(t, "1F1B", 4, 1, 0, "0 micro-batches");
    refuse_numbers(t, "1F1B", 0, 1, 4, "0 ranks");
    refuse_numbers(t, "GPipe", 4, 2, 4, "LoopedBFS and Interleaved1F1B have several");
    refuse_numbers(t, "zbv", 4, 3, 4, "one on the way down and one on the way up");
    refuse_numbers(t, "DualPipeV", 4, 1, 4, "one on the way down and one on the way up");
    refuse_numbers(t, "LoopedBFS", 1 << 20, 1 << 20, 4, "at least 1");
}

TS_TEST(schedule_memory_cap)
{
    ts_schedule *s = make(t, "GPipe", 2, 1, 6);
    TEST_OK(t, ts_schedule_check(s, NULL, 6));
    TEST_STATUS(t, ts_schedule_check(s, NULL, 5), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "rank 0 keeps 6 at once, above the cap of 5");
    ts_schedule_destroy(s);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

TS_TEST(stages_by_blocks)
{
    static const double cost[] = { 1, 1, 1, 6, 1, 1, 1, 1 };
    int64_t out[4];
    TEST_OK(t, ts_stage_cut(NULL, 10, 4, out));
    for (int g = 0; g < 4; g++)
        TEST_EQ(t, out[g], g < 2 ? 3 : 2);
    TEST_OK(t, ts_stage_cut(cost, 8, 3, out)); /* the dear block has a stage of its own */
    TEST_EQ(t, out[0], 3);
    TEST_EQ(t, out[1], 1);
    TEST_EQ(t, out[2], 4);
    TEST_STATUS(t, ts_stage_cut(NULL, 3, 4, out), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), "3 blocks cannot be cut into 4 stages");
}
