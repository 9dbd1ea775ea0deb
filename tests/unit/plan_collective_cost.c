/* SPDX-License-Identifier: Apache-2.0 */
/* plan_collective_cost.c - the reference's cost of collectives: its vectors, H100 of 8 a node. */
#include "plan/collective_cost.h"

#include <math.h>

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
