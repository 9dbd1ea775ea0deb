/* SPDX-License-Identifier: Apache-2.0 */
/* op_choice.c - the choice that is made without costs is the one that costs would make.
 *
 * Calls of the whole table, their sizes changed to others (0, 1, uneven), on meshes with axes of
 * one rank among them, with inputs placed as the operator's own rules would have them and, in part,
 * otherwise. Each is planned twice: as a call is (tsi_expand_match first) and with the story of the
 * search, which always weighs costs. Layouts are interned, so the same plan has the same pointers.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "op/core/dispatch.h"

typedef struct sample {
    const tsi_op_desc *op;
    ts_meta in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    uint64_t attributes[128], normal[128]; /* as given; normalised */
    int32_t count;
} sample;

/* ---- calls ----------------------------------------------------------------------------------- */

/* Equal extents stay equal, so that most calls stay calls; those that do not are refused. */
static void change_sizes(test *t, sample *s)
{
    static const int64_t sizes[] = { 0, 1, 2, 3, 4, 5, 7, 8, 12, 30 };
    int64_t from[32], to[32];
    int32_t known = 0;
    for (int32_t i = 0; i < s->count; i++)
        for (int32_t d = 0; d < s->in[i].shape.ndim; d++) {
            int64_t *extent = &s->in[i].shape.extent[d];
            int32_t k = 0;
            while (k < known && from[k] != *extent)
                k++;
            if (k == known && known < 32) {
                from[known] = *extent;
                to[known++] = *extent == 1 ? 1 : sizes[test_random_below(t, 10)];
            }
            if (k < known) *extent = to[k];
        }
}

static bool sample_make(test *t, const tsi_op_desc *op, int32_t variant, bool resized, sample *s)
{
    *s = (sample){ .op = op, .count = op->input_max };
    if (!op->sample || op->attribute_bytes > sizeof s->attributes) return false;
    uint64_t random = test_random(t);
    if (!tsi_op_sample(op, &random, variant, s->in, &s->count, s->attributes)) return false;
    if (resized) change_sizes(t, s);
    return true;
}

/* ---- layouts --------------------------------------------------------------------------------- */

static ts_placement draw_cut(test *t)
{
    ts_placement cut = { .kind = TS_PLACE_SHARD, .factor = 1, .align = 1, .order = -1 };
    int64_t kind = test_random_below(t, 6);
    if (kind == 0) cut.kind = TS_PLACE_STRIDED, cut.factor = 2;
    if (kind == 1) cut.align = 2;
    if (kind == 2) cut.kind = TS_PLACE_HEAD_TAIL;
    return cut;
}

static ts_placement place_role(tsi_role role, ts_placement cut)
{
    ts_placement place = { .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    if (tsi_role_is_p(role)) {
        place.kind = TS_PLACE_PARTIAL;
        place.reduce = (int32_t)tsi_role_reduce(role);
    } else if (tsi_role_is_s(role)) {
        place = cut;
        place.dim = place.dim_last = tsi_role_dim(role);
    }
    return place;
}

/* Placements of all inputs: a rule's roles on each axis, now and then one that is not. */
static void draw_places(test *t, const tsi_rules *rules, const tsi_mesh_desc *mesh,
                        ts_placement place[][TS_NDIM_MAX])
{
    for (int32_t k = 0; k < mesh->ndim; k++) {
        const tsi_role *role = tsi_rules_row(rules, (int32_t)test_random_below(t, rules->count));
        ts_placement cut = draw_cut(t);
        for (int32_t i = 0; i < rules->input_count; i++) {
            bool other = test_random_below(t, 12) == 0;
            const tsi_role *from =
                other ? tsi_rules_row(rules, (int32_t)test_random_below(t, rules->count)) : role;
            place[i][k] = place_role(from[i], other ? draw_cut(t) : cut);
        }
    }
}

static bool layouts_make(const sample *s, ts_mesh *mesh, ts_placement place[][TS_NDIM_MAX],
                         const ts_layout **in)
{
    for (int32_t i = 0; i < s->count; i++) {
        if (s->in[i].dtype == TS_DTYPE_NONE) continue;
        const ts_sharding *sharding = tsi_sharding_intern(mesh->desc, place[i]);
        if (sharding) in[i] = tsi_layout_intern(sharding, &s->in[i].shape);
        ts_sharding_release(sharding);
        if (!in[i]) return false;
    }
    return true;
}

/* ---- both plans ------------------------------------------------------------------------------ */

static bool same_plan(const tsi_op_plan *a, const tsi_op_plan *b)
{
    size_t inputs = (size_t)a->input_count * sizeof *a->wanted;
    size_t outputs = (size_t)a->output_count * sizeof *a->out;
    return a->algorithm == b->algorithm && a->algorithm_axes == b->algorithm_axes &&
           a->moved_total == b->moved_total && memcmp(a->wanted, b->wanted, inputs) == 0 &&
           memcmp(a->via, b->via, inputs) == 0 && memcmp(a->out, b->out, outputs) == 0;
}

typedef struct counts {
    int64_t calls, still, refused;
} counts;

static void compare(test *t, const tsi_op_request *q, counts *count)
{
    tsi_arena scratch = { 0 };
    tsi_op_story story = { 0 };
    tsi_op_plan *fast = tsi_op_plan_for(q, &scratch, NULL);
    tsi_op_plan *slow = tsi_op_plan_for(q, &scratch, &story);
    count->calls++;
    if (!fast != !slow || (fast && !same_plan(fast, slow)))
        test_fail(t, __FILE__, __LINE__, "%s%s of %s: %s, but by costs %s", q->op->name,
                  q->in_place ? "_" : "", q->in[0] ? q->in[0]->text : "-",
                  fast && fast->output_count ? fast->out[0]->text : "refused",
                  slow && slow->output_count ? slow->out[0]->text : "refused");
    if (!fast) count->refused++;
    bool still = fast && fast->algorithm == 0;
    for (int32_t i = 0; still && i < q->input_count; i++)
        still = fast->wanted[i] == NULL;
    if (still) count->still++;
    tsi_op_story_release(&story);
    tsi_op_plan_destroy(fast);
    tsi_op_plan_destroy(slow);
    tsi_arena_release(&scratch);
}

static void compare_on(test *t, const sample *s, const tsi_rules *rules, ts_mesh *mesh,
                       counts *count)
{
    ts_placement place[TSI_INPUT_MAX][TS_NDIM_MAX];
    const ts_layout *in[TSI_INPUT_MAX] = { NULL };
    uint8_t dtype[TSI_INPUT_MAX];
    draw_places(t, rules, mesh->desc, place);
    for (int32_t i = 0; i < s->count; i++)
        dtype[i] = (uint8_t)s->in[i].dtype;
    if (layouts_make(s, mesh, place, in)) {
        tsi_op_request q = { .op = s->op,
                             .mesh = mesh,
                             .in = in,
                             .dtype = dtype,
                             .input_count = s->count,
                             .attributes = s->attributes };
        compare(t, &q, count);
        q.in_place = 1;
        if (s->op->flags & TSI_OP_IN_PLACE) compare(t, &q, count);
    }
    for (int32_t i = 0; i < s->count; i++)
        ts_layout_release(in[i]);
}

/* Rules of the call at these sizes; false: it is refused. */
static bool rules_make(sample *s, tsi_arena *arena, tsi_rules *rules)
{
    memcpy(s->normal, s->attributes, s->op->attribute_bytes);
    if (s->op->normalise && s->op->normalise(s->op, s->in, s->count, s->normal) != TS_OK)
        return false;
    tsi_op_call call = { s->op, s->normal, s->in, s->out, s->count, s->op->output_count };
    if (s->op->infer(&call) != TS_OK) return false;
    *rules = (tsi_rules){ .arena = arena };
    tsi_op_rules(&call, rules);
    return !rules->failed;
}

TS_TEST(matched_is_cheapest)
{
    static const char *const text[] = { "2", "3", "2, 2", "1, 2", "2, 1, 3", "4, 2" };
    ts_world *world = NULL;
    counts count = { 0 };
    TEST_OK(t, tsi_world_make(1, 1, 0, 64, &world));
    for (int32_t n = 0; n < TSI_OP_ID_COUNT && !test_failed(t); n++)
        for (int32_t variant = 0; variant < 300 && !test_failed(t); variant++) {
            static sample s;
            tsi_arena arena = { 0 };
            tsi_rules rules;
            if (!sample_make(t, tsi_op_at(n), variant % 15, variant >= 15, &s)) continue;
            ts_mesh *mesh = ts_mesh_describe(world, text[variant % 6]);
            if (!s.op->propagate && rules_make(&s, &arena, &rules))
                for (int i = 0; i < 10; i++)
                    compare_on(t, &s, &rules, mesh, &count);
            tsi_arena_release(&arena);
            ts_mesh_release(mesh);
        }
    tsi_world_unmake(world);
    printf("%lld plans, %lld of inputs that all stay, %lld refused\n", (long long)count.calls,
           (long long)count.still, (long long)count.refused);
    TEST_CHECK(t, count.still > count.calls / 4 && count.calls > 100000);
}
