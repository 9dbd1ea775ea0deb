/* SPDX-License-Identifier: Apache-2.0 */
/* redistribute_many.c - lists of tensors in one round, moves in flight, and variables that change
 * their layout in place. */
#include "redistribute_oracle.h"
#include "runtime/record.h"
#include "tessera/event.h"

enum { LIST = 9 };

typedef struct entry {
    const char *from, *to;
    const kind *k;
    ts_dtype dtype;
    ts_shape shape;
    int32_t mesh; /* which one */
} entry;

static entry entry_of(int i)
{
    const entry all[LIST] = {
        { "S(0), R", "S(1), R", &oracle_kinds[0], TS_DTYPE_F32, TS_SHAPE(7, 5), 0 },
        { "S(0), R", "S(1), R", &oracle_kinds[0], TS_DTYPE_F32, TS_SHAPE(7, 5),
          0 }, /* the same plan */
        { "P(sum), R", "R, R", &oracle_kinds[0], TS_DTYPE_F32, TS_SHAPE(9, 4), 0 },
        { "P(norm:2), R", "S(0), R", &oracle_kinds[5], TS_DTYPE_BF16, TS_SHAPE(9, 4), 0 },
        { "P(norm:2), R", "S(0), R", &oracle_kinds[5], TS_DTYPE_BF16, TS_SHAPE(9, 4), 0 },
        { "R, R", "S(0), S(1)", &oracle_kinds[0], TS_DTYPE_I64, TS_SHAPE(3, 8), 0 },
        { "S(1), S(0)", "S(1), S(0)", &oracle_kinds[0], TS_DTYPE_F32, TS_SHAPE(6, 6),
          0 }, /* stays */
        { "SS(0,2)", "S(0)", &oracle_kinds[0], TS_DTYPE_C64, TS_SHAPE(11, 2), 1 },
        { "P(max)", "R", &oracle_kinds[3], TS_DTYPE_I64, TS_SHAPE(5), 1 },
    };
    return all[i];
}

static bool run_list(test *t, ts_mesh *const *mesh)
{
    ts_tensor *x[LIST], *y[LIST];
    const ts_sharding *to[LIST];
    side from_side[LIST], to_side[LIST];
    int64_t at = 0;
    for (int i = 0; i < LIST; i++) {
        entry e = entry_of(i);
        ts_mesh *m = mesh[e.mesh];
        from_side[i] = side_of(m, ts_layout_get(ts_sharding_get(m, e.from), e.shape));
        to[i] = ts_sharding_get(m, e.to);
        to_side[i] = side_of(m, ts_layout_get(to[i], e.shape));
        x[i] = ts_empty(m, e.dtype, e.shape, e.from);
        (void)oracle_block_run(x[i], t->index, e.k, &from_side[i], NULL, true, &at);
    }
    TEST_OK(t, ts_redistribute_many(x, to, LIST, y));
    bool good = true;
    for (int i = 0; i < LIST; i++) {
        entry e = entry_of(i);
        int64_t wrong =
            y[i] ? oracle_block_run(y[i], t->index, e.k, &from_side[i], &to_side[i], false, &at)
                 : -1;
        TEST_SAY(t, wrong == 0, "%d: (%s) -> (%s): %lld wrong", i, e.from, e.to, (long long)wrong);
        good = good && wrong == 0;
    }
    return good;
}

TS_TEST_RANKS(a_list_moves_together, 2, 4, 6, 8)
{
    ts_mesh *mesh[] = { ts_mesh_create(t->me, "a=2, b=*"), ts_mesh_create(t->me, "x=*") };
    for (int i = 0; i < 20; i++) {
        ts_scope scope = ts_scope_open(t->me, "list");
        if (!run_list(t, mesh)) i = 20;
        ts_scope_close(scope);
    }
}

/* Equal groups and dtypes are one exchange: that is what the events show. */
static int64_t exchanges(ts_rank *me, uint64_t since)
{
    ts_counts counts = TS_INIT(ts_counts);
    int64_t total = 0;
    if (ts_rank_counts(me, since, &counts) != TS_OK) return -1;
    for (int64_t i = 0; i < counts.row_count; i++)
        total += counts.row[i].count;
    return total + counts.open;
}

TS_TEST_RANKS(equal_groups_share_one_exchange, 2, 4)
{
    enum { COUNT = 50 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *x[COUNT], *y[COUNT];
    const ts_sharding *to[COUNT], *columns = ts_sharding_get(mesh, "S(1)");
    for (int i = 0; i < COUNT; i++) {
        x[i] = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(8 + i % 3, 8), "S(0)", NULL);
        to[i] = columns;
    }
    uint64_t before = ts_rank_event(t->me);
    TEST_OK(t, ts_redistribute_many(x, to, COUNT, y));
    for (int i = 0; i < COUNT; i++)
        TEST_OK(t, ts_tensor_wait(y[i]));
    TEST_EQ(t, exchanges(t->me, before), 1);
    for (int i = 0; i < COUNT; i++) {
        ts_array view = TS_INIT(ts_array);
        TEST_OK(t, test_view(ts_tensor_full(y[i]), &view));
        for (int64_t e = 0; view.data && e < ts_shape_count(&view.meta.shape); e++)
            if (((const float *)view.data)[e] != (float)e) {
                test_fail(t, __FILE__, __LINE__, "tensor %d, element %lld", i, (long long)e);
                break;
            }
    }
}

TS_TEST_RANKS(a_list_is_refused_as_a_whole, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *good = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(6, 4), "S(0)", NULL);
    ts_tensor *x[2] = { good, good }, *y[2] = { good, good };
    const ts_sharding *to[2] = { ts_sharding_get(mesh, "S(1)"), ts_sharding_get(mesh, "P(sum)") };
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    uint64_t before = ts_rank_event(t->me);
    TEST_STATUS(t, ts_redistribute_many(x, to, 2, y), TS_ERR_SHAPE);
    TEST_CHECK(t, y[0] == NULL && y[1] == NULL);
    TEST_EQ(t, exchanges(t->me, before), 0);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_SHAPE);
    TEST_CHECK(t, ts_redistribute(good, "S(1)") != NULL);
}

/* ---- in flight ------------------------------------------------------------------------------ */

TS_TEST_RANKS(a_move_completes_on_first_use, 2, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int i = 0; i < 50; i++) {
        ts_scope scope = ts_scope_open(t->me, "flight");
        ts_tensor *x = ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(64, 1024), "S(0)", NULL);
        ts_tensor *y = ts_redistribute(x, "S(1)");
        ts_tensor_drop(x);                          /* the move holds what it reads */
        ts_tensor *z = ts_redistribute(y, "S(0)");  /* waits for y */
        ts_tensor *never = ts_redistribute(y, "R"); /* nobody looks at it */
        ts_array view = TS_INIT(ts_array);
        TEST_CHECK(t, never != NULL);
        TEST_OK(t, test_view(z, &view));
        int64_t chunk = (64 + t->count - 1) / t->count, first = t->index * chunk * 1024;
        for (int64_t e = 0; view.data && e < ts_shape_count(&view.meta.shape); e++)
            if (((const float *)view.data)[e] != (float)(first + e)) {
                test_fail(t, __FILE__, __LINE__, "element %lld", (long long)e);
                break;
            }
        ts_scope_close(scope);
    }
}

/* Many moves on their way at once, waited for in another order on every rank. */
TS_TEST_RANKS(moves_complete_in_any_order, 2, 3, 4)
{
    enum { COUNT = 12 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *y[COUNT];
    for (int i = 0; i < COUNT; i++) {
        ts_tensor *x =
            ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(100 + i, 90), i % 2 ? "S(0)" : "S(1)", NULL);
        y[i] = ts_redistribute(x, "R");
    }
    for (int i = 0; i < COUNT; i++) {
        int64_t which = (i * 5 + t->index * 7) % COUNT;
        ts_array view = TS_INIT(ts_array);
        TEST_OK(t, test_view(y[which], &view));
        int64_t count = ts_shape_count(&view.meta.shape);
        TEST_CHECK(t, count == (100 + which) * 90 &&
                          ((const float *)view.data)[count - 1] == (float)(count - 1));
    }
}

/* ---- who meets ------------------------------------------------------------------------------- */

/* Members of the group in which a move goes, in all its rounds; -1: of several. */
static int64_t members_of_move(test *t, ts_mesh *mesh, const char *from, const char *to)
{
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    ts_tensor *x = ts_empty(mesh, TS_DTYPE_F32, TS_SHAPE(12, 12), from), *y = NULL;
    const ts_sharding *sharding = ts_sharding_get(mesh, to);
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    TEST_OK(t, ts_redistribute_many(&x, &sharding, 1, &y));
    TEST_OK(t, ts_tensor_wait(y));
    TEST_OK(t, tsi_record_end(recording, &step));
    const tsi_step_list *list = tsi_step_list_of(step, t->index);
    int64_t members = 0;
    for (int32_t i = 0; i < list->action_count; i++) {
        if (list->action[i].group < 0) continue;
        int64_t count = step->group[list->action[i].group].count;
        members = members == 0 || members == count ? count : -1;
    }
    tsi_step_destroy(step);
    return members;
}

/* Whoever has another part before and after is not needed for a sum; copies help each other. */
TS_TEST_RANKS(sums_meet_on_the_axes_that_have_terms, 4, 6)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=*");
    TEST_EQ(t, members_of_move(t, mesh, "S(0), P(sum)", "S(0), S(1)"), t->count / 2);
    TEST_EQ(t, members_of_move(t, mesh, "P(sum), S(0)", "S(1), S(0)"), 2);
    TEST_EQ(t, members_of_move(t, mesh, "P(sum), S(0)", "S(0), S(0)"), t->count);
    TEST_EQ(t, members_of_move(t, mesh, "R, P(sum)", "R, S(1)"), t->count);
}

/* ---- variables ------------------------------------------------------------------------------- */

TS_TEST_RANKS(a_variable_changes_its_layout_in_place, 2, 3, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *v = ts_variable(t->me);
    TEST_OK(t, ts_tensor_write(v, ts_arange(mesh, TS_DTYPE_F32, TS_SHAPE(40, 30), "S(0)", NULL)));
    const char *to[] = { "S(1)", "SS(0,2)", "R", "S(0)" };
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            ts_scope scope = ts_scope_open(t->me, "relayout");
            TEST_OK(t, ts_tensor_relayout(v, ts_sharding_get(mesh, to[i])));
            char text[64];
            ts_sharding_text(ts_layout_sharding(ts_tensor_layout(v)), text, sizeof text);
            TEST_TEXT(t, text, to[i]);
            ts_array view = TS_INIT(ts_array);
            TEST_OK(t, test_view(ts_tensor_full(v), &view));
            for (int64_t e = 0; view.data && e < 1200; e++)
                if (((const float *)view.data)[e] != (float)e) {
                    test_fail(t, __FILE__, __LINE__, "%s: element %lld", to[i], (long long)e);
                    break;
                }
            ts_scope_close(scope);
        }
        TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    }
    ts_tensor_release(v);
}
