/* SPDX-License-Identifier: Apache-2.0 */
/* plan_collective_cost.c - the reference's cost of collectives: its vectors, H100 of 8 a node, as
 * programs are simulated by them. */
#include "plan/collective_cost.h"

#include <math.h>
#include <stdio.h>

#include "tessera/program.h"

#include "harness/test.h"

typedef struct vector {
    tsi_collective kind;
    int64_t ranks;
    double bytes, us;
    const char *algorithm, *protocol;
} vector;

static const vector vectors[] = {
    { TSI_COLLECTIVE_GATHER, 8, 65536, 11.2, "ring", "LL" },
    { TSI_COLLECTIVE_GATHER, 8, 1048576, 17.3, "ring", "LL" },
    { TSI_COLLECTIVE_GATHER, 8, 67108864, 190.9, "ring", "Simple" },
    { TSI_COLLECTIVE_ALL_REDUCE, 8, 8192, 15.1, "ring", "LL" },
    { TSI_COLLECTIVE_ALL_REDUCE, 8, 67108864, 373.4, "ring", "Simple" },
    { TSI_COLLECTIVE_GATHER, 16, 67108864, 1328.3, "ring", "Simple" },
    { TSI_COLLECTIVE_ALL_REDUCE, 16, 8192, 32.6, "tree", "LL" },
    { TSI_COLLECTIVE_ALL_REDUCE, 16, 67108864, 2648.2, "ring", "Simple" },
};

TS_TEST(collective_costs_are_the_references)
{
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const vector *v = &vectors[i];
        tsi_collective_cost is = tsi_collective_cost_of(TSI_H100, v->kind, v->ranks, 8, v->bytes);
        TEST_SAY(t, fabs(is.us - v->us) <= 0.05 + 1e-9, "%zu: %.3f us (%s %s), not %.1f (%s %s)", i,
                 is.us, is.algorithm, is.protocol, v->us, v->algorithm, v->protocol);
        TEST_TEXT(t, is.algorithm, v->algorithm);
        TEST_TEXT(t, is.protocol, v->protocol);
    }
}

/* Of a program in which every rank does this alone. */
static double makespan_of(test *t, int64_t ranks, const char *action, int32_t collectives)
{
    char text[512];
    ts_program *program = NULL;
    ts_program_times times = { .struct_size = sizeof times };
    ts_program_costs costs = { .struct_size = sizeof costs, .collectives = collectives };
    (void)snprintf(text, sizeof text,
                   "step 1\nranks %lld\nwide\ngroups all %lld:1\nrank 0..%lld\n%s\n",
                   (long long)ranks, (long long)ranks, (long long)(ranks - 1), action);
    TEST_OK(t, ts_program_parse(text, &program));
    TEST_OK(t, ts_program_simulate(program, &costs, &times, NULL, NULL));
    ts_program_destroy(program);
    return times.makespan_us;
}

TS_TEST(programs_take_what_the_reference_says)
{
    static const char *const kinds[] = {
        [TSI_COLLECTIVE_GATHER] = "gather", [TSI_COLLECTIVE_ALL_REDUCE] = "all_reduce"
    };
    char action[128];
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const vector *v = &vectors[i];
        (void)snprintf(action, sizeof action, "%s x over=all bytes=%.0f", kinds[v->kind], v->bytes);
        double us = makespan_of(t, v->ranks, action, TS_COSTS_H100);
        TEST_SAY(t, fabs(us - v->us) <= 0.05 + 1e-9, "%zu: %.3f us, not %.1f", i, us, v->us);
    }
    double bytes = 7 << 20; /* received of 8: another 1 MiB stays */
    (void)snprintf(action, sizeof action, "exchange x over=all bytes=%.0f", bytes);
    double us = makespan_of(t, 8, action, TS_COSTS_H100);
    double is = tsi_collective_cost_of(TSI_H100, TSI_COLLECTIVE_ALL_TO_ALL, 8, 8, bytes * 8 / 7).us;
    TEST_SAY(t, fabs(us - is) < 1e-6, "%g us, not %g", us, is);
    TEST_CHECK(t, makespan_of(t, 8, action, TS_COSTS_LINKS) > 0);
}

TS_TEST(costs_of_no_machine_are_refused)
{
    ts_program *program = NULL;
    ts_program_times times = { .struct_size = sizeof times };
    ts_program_costs costs = { .struct_size = sizeof costs, .collectives = TS_COSTS_B200 + 1 };
    TEST_OK(t, ts_program_parse("step 1\nranks 1\nrank 0\noperator a\n", &program));
    TEST_STATUS(t, ts_program_simulate(program, &costs, &times, NULL, NULL), TS_ERR_ARG);
    ts_program_destroy(program);
}

/* A message costs its bus once, whatever the reference says of a pair; an exchange sends (n-1)/n.
 */
TS_TEST(collective_costs_mend_the_reference)
{
    double bytes = 64 << 20;
    tsi_collective_cost pair =
        tsi_collective_cost_of(TSI_H100, TSI_COLLECTIVE_MESSAGE, 2, 8, bytes);
    TEST_SAY(t, fabs(pair.us - (8.4 + 3.4 + bytes / 370e3)) < 1e-6, "%g", pair.us);
    tsi_collective_cost all =
        tsi_collective_cost_of(TSI_H100, TSI_COLLECTIVE_ALL_TO_ALL, 8, 8, bytes);
    TEST_SAY(t, fabs(all.us - (8.4 + 7 * 3.4 + bytes * 7 / 8 / 370e3)) < 1e-6, "%g", all.us);
    double floor = tsi_collective_floor(TSI_H100, TSI_COLLECTIVE_GATHER, 8, 8, 0.5);
    TEST_SAY(t, floor > 1e6 && floor < 1e7, "%g bytes", floor);
    TEST_CHECK(t, tsi_collective_cost_of(TSI_H100, TSI_COLLECTIVE_GATHER, 1, 8, bytes).us == 0);
}
