/* SPDX-License-Identifier: Apache-2.0 */
/* layout_text.c - placement texts both ways, the columns of their errors, and what normalisation
 * makes equal. */
#include "base/rank.h"
#include "harness/test.h"
#include "layout/layout.h"

typedef struct fixture {
    ts_world *world;
    ts_mesh *mesh; /* dp=2, cp=3, tp=4 */
    char text[512];
} fixture;

static fixture open_mesh(test *t)
{
    fixture f = { 0 };
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &f.world));
    f.mesh = ts_mesh_describe(f.world, "dp=2, cp=3, tp=4");
    TEST_SAY(t, f.mesh, "%s", ts_last_error());
    return f;
}

TS_TEST(placements_both_ways)
{
    static const struct {
        const char *given, *printed;
    } cases[] = {
        { "S(0), R, P(sum)", "S(0), R, P(sum)" },
        { " S( 0 ) ,R,P( avg )", "S(0), R, P(avg)" },
        { "SS(0,1), SS(1,2), R", "S(0), SS(1,2), R" },
        { "RS(0:3,5), HT(1), R", "RS(0:3,5), HT(1), R" },
        { "RS(0:3,0 | 0,7|1,1), R, R", "RS(0:3,0|0,7|1,1), R, R" },
        { "RS(0:3,0|7), R, R", NULL },
        { "S(0)[1], S(0)[0], R", "S(0)[1], S(0)[0], R" },
        { "S(0)[0], S(0)[1], R", "S(0), S(0), R" },
        { "S(0)[0], S(1)[0], R", "S(0), S(1), R" },
        { "S(0)[2], SS(0,3)[0], S(0)[1]", "S(0)[2], SS(0,3)[0], S(0)[1]" },
        { "S(0-1), R, S(2)", "S(0-1), R, S(2)" },
        { "S(0-1/64), SS(0-1/8,2), R", "S(0-1/64), SS(0-1/8,2), R" },
        { "S(1-1), S(2/1), R", "S(1), S(2), R" },
        { "S(-1), R, S(-2--1)[0]", NULL },
        { "S(-1), R, R", "S(-1), R, R" },
        { "S(-2--1), R, R", "S(-2--1), R, R" },
        { "P(norm:2), R, P(norm:2)", "P(norm:2), R, P(norm:2)" },
        { "P(norm:0.1), R, R", "P(norm:0.1), R, R" },
        { "P(sum), P(avg), P(sum)", "P(sum), P(avg), P(sum)" },
        { "P(band), P(band), R", "P(band), P(band), R" },
        { "dp:S(0)", "S(0), R, R" },
        { "tp:S(1) dp:P(max)", "P(max), R, S(1)" },
        { "tp:S(1), dp:S(0)", "S(0), R, S(1)" },
        { "dp:S(0) xp?:S(1)", "S(0), R, R" },
        { "xp?:RS(0:1,2,3,4,5,6,7)", "R, R, R" },
        { "dp?:S(0)[1] tp:S(0)[0]", "S(0)[1], R, S(0)[0]" },
        { "0:S(0) 2:S(1)", "S(0), R, S(1)" },
    };
    fixture f = open_mesh(t);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        const ts_sharding *s = ts_sharding_get(f.mesh, cases[i].given);
        if (!cases[i].printed) {
            TEST_SAY(t, !s, "\"%s\" was taken", cases[i].given);
            continue;
        }
        TEST_SAY(t, s, "\"%s\": %s", cases[i].given, ts_last_error());
        (void)ts_sharding_text(s, f.text, sizeof f.text);
        TEST_TEXT(t, f.text, cases[i].printed);
        TEST_CHECK(t, ts_sharding_get(f.mesh, f.text) == s);
        TEST_EQ(t, ts_sharding_text(s, NULL, 0), strlen(cases[i].printed));
    }
    tsi_world_unmake(f.world);
}

TS_TEST(placements_errors)
{
    static const struct {
        const char *given, *says;
    } cases[] = {
        { "", "column 1: expected a placement: R, S(..)" },
        { "X(0), R, R", "column 1: expected a placement" },
        { "S, R, R", "column 2: expected '('" },
        { "S(, R, R", "column 3: expected a tensor dim" },
        { "S(0, R, R", "column 4: expected ')' after the dim, found ','" },
        { "S(8), R, R", "column 3: expected a tensor dim from -8 to 7" },
        { "S(1-0), R, R", "column 5: expected the last dim of the span" },
        { "S(-1-0), R, R", "column 6: expected the last dim of the span" },
        { "S(0/0), R, R", "column 5: expected an alignment of at least 1" },
        { "SS(0), R, R", "column 5: expected ',' and a split factor" },
        { "SS(0,0), R, R", "column 6: expected a split factor of at least 1" },
        { "SS(0,2, R, R", "column 7: expected ')' after the factor" },
        { "RS(0), R, R", "column 5: expected ':' and the sizes" },
        { "RS(0:1), R, R", "column 7: expected 2 sizes, one for each coordinate of the axis" },
        { "RS(0:1,2,3), R, R", "column 10: expected 2 sizes" },
        { "RS(0:1,-2), R, R", "column 8: expected a size of at least 0" },
        { "RS(0/2:1,2), R, R", "column 5: expected ':' and the sizes" },
        { "P, R, R", "column 2: expected '(' and a reduction" },
        { "P(), R, R", "column 3: expected a reduction: sum avg min max prod" },
        { "P(times), R, R", "column 3: expected a reduction" },
        { "P(norm), R, R", "column 7: expected ':' and the p of the norm" },
        { "P(norm:0), R, R", "column 8: expected a finite p other than 0" },
        { "P(norm:1e999), R, R", "column 8: expected a finite p" },
        { "S(0)[, R, R", "column 6: expected the position of the cut" },
        { "S(0)[1, R, R", "column 7: expected ']'" },
        { "R[0], R, R", "column 2: expected ',' or the end" },
        { "S(0) R, R", "column 6: expected ',' or the end" },
        { "S(0), R", "2 are given, the mesh has 3 axes" },
        { "S(0), R, R, R", "4 are given, the mesh has 3 axes" },
        { "S(0)[0], S(0), R", "column 10: expected a position such as [0] behind it" },
        { "S(0)[0], S(0)[2], R",
          "column 10: expected positions 0 to 1, each once, behind the cuts of dim 0" },
        { "S(0)[0], S(0)[0], R", "column 1: expected positions 0 to 1" },
        { "S(0)[1], R, R", "column 1: expected positions 0 to 0" },
        { "dp:S(0) tq:S(1)", "column 9: expected an axis of the mesh" },
        { "dp:S(0) dp:S(1)", "column 9: expected each axis once" },
        { "dp:S(0) S(1)", "column 9: expected an axis name and ':'" },
        { "tp:", "column 4: expected a placement" },
        { "P(sum), P(max), R", "P(sum) on axis dp and P(max) on axis cp cannot be mixed" },
        { "P(norm:2), P(norm:3), R",
          "P(norm:2) on axis dp and P(norm:3) on axis cp cannot be mixed" },
        { "P(sum), R, P(norm:2)", "cannot be mixed; only sum and avg may be" },
        { "S(0-1), S(1), R", "axis dp cuts dims 0 to 1 as one, axis cp cuts dims 1 to 1" },
    };
    fixture f = open_mesh(t);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        TEST_SAY(t, !ts_sharding_get(f.mesh, cases[i].given), "\"%s\" was taken", cases[i].given);
        TEST_SAYS(t, ts_last_error(), cases[i].says);
    }
    TEST_CHECK(t, !ts_sharding_get(NULL, "R"));
    TEST_CHECK(t, !ts_sharding_get(f.mesh, NULL));
    tsi_world_unmake(f.world);
}

/* From parts, orders are ranks of orders: gaps close, ties go from left to right, none is last. */
TS_TEST(placements_from_parts)
{
    static const struct {
        int32_t order[3];
        const char *printed;
    } cases[] = {
        { { -1, -1, -1 }, "S(0), S(0), S(0)" },
        { { 0, 0, 0 }, "S(0), S(0), S(0)" },
        { { 5, 2, 9 }, "S(0)[1], S(0)[0], S(0)[2]" },
        { { -1, 0, 1 }, "S(0)[2], S(0)[0], S(0)[1]" },
        { { 1, -1, 0 }, "S(0)[1], S(0)[2], S(0)[0]" },
    };
    fixture f = open_mesh(t);
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++) {
        ts_placement place[3] = { 0 };
        for (int k = 0; k < 3; k++)
            place[k] = (ts_placement){ .kind = TS_PLACE_SHARD, .order = cases[i].order[k] };
        const ts_sharding *s = tsi_sharding_intern(f.mesh->desc, place);
        TEST_SAY(t, s, "%s", ts_last_error());
        (void)ts_sharding_text(s, f.text, sizeof f.text);
        TEST_TEXT(t, f.text, cases[i].printed);
        ts_sharding_release(s);
    }
    ts_placement bad[3] = { { .kind = 42 } };
    TEST_CHECK(t, !tsi_sharding_intern(f.mesh->desc, bad));
    TEST_SAYS(t, ts_last_error(), "42 is no kind of placement");
    tsi_world_unmake(f.world);
}

/* Dims counted from the end become dims when a shape says which. */
TS_TEST(placements_from_the_end)
{
    fixture f = open_mesh(t);
    const ts_layout *a = ts_layout_get(ts_sharding_get(f.mesh, "S(-1), R, S(-2)"), TS_SHAPE(8, 6));
    const ts_layout *b = ts_layout_get(ts_sharding_get(f.mesh, "S(1), R, S(0)"), TS_SHAPE(8, 6));
    TEST_SAY(t, a && a == b, "%s", ts_last_error());
    a = ts_layout_get(ts_sharding_get(f.mesh, "S(-1), S(0), R"), TS_SHAPE(8));
    b = ts_layout_get(ts_sharding_get(f.mesh, "S(0), S(0), R"), TS_SHAPE(8));
    TEST_SAY(t, a && a == b, "%s", ts_last_error());
    a = ts_layout_get(ts_sharding_get(f.mesh, "S(-2--1), R, R"), TS_SHAPE(3, 4, 5));
    b = ts_layout_get(ts_sharding_get(f.mesh, "S(1-2), R, R"), TS_SHAPE(3, 4, 5));
    TEST_SAY(t, a && a == b, "%s", ts_last_error());
    TEST_CHECK(t, !ts_layout_get(ts_sharding_get(f.mesh, "S(-3), R, R"), TS_SHAPE(8, 6)));
    TEST_SAYS(t, ts_last_error(), "placement 0 cuts dim -3 of a tensor of 2 dims");
    tsi_world_unmake(f.world);
}
