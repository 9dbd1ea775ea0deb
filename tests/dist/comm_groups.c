/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the caller's order, outsiders, sub-groups, a thousand at once, channels that do not wait
 * for each other; and what groups are used for beside the matrix: exchange, send and recv, batches.
 * Public API only. */
#include <pthread.h>

#include "dist/comm_oracle.h"
#include "tessera/tessera.h"

enum { MEMBERS_MAX = 16, ROWS = 60, COLUMNS = 2000 };

static ts_array vector_of(void *data, ts_dtype dtype, int64_t count)
{
    return (ts_array){ .struct_size = sizeof(ts_array),
                       .data = data,
                       .meta = { .shape = TS_SHAPE(count), .dtype = (int32_t)dtype } };
}

static ts_array one_i64(int64_t *value)
{
    return vector_of(value, TS_DTYPE_I64, 1);
}

/* ---- lists and their order ------------------------------------------------------------------- */

TS_TEST_RANKS(comm_group_keeps_the_callers_order, 1, 2, 3, 4, 8)
{
    int64_t ranks[MEMBERS_MAX], all[MEMBERS_MAX], mine = t->index;
    for (int64_t i = 0; i < t->count; i++)
        ranks[i] = (2 * t->count - 1 - i) % t->count; /* from the last to the first */
    ts_group *group = ts_group_create(t->me, ranks, t->count, NULL);
    TEST_EQ(t, ts_group_size(group), t->count);
    TEST_EQ(t, ts_group_index(group), t->count - 1 - t->index);
    TEST_EQ(t, ts_group_rank(group, 0), t->count - 1);
    TEST_EQ(t, ts_group_rank(group, t->count), -1);
    ts_array in = one_i64(&mine), out = vector_of(all, TS_DTYPE_I64, t->count);
    TEST_OK(t, ts_group_all_gather(group, &in, &out, NULL));
    for (int64_t i = 0; i < t->count; i++)
        TEST_EQ(t, all[i], ranks[i]);
    ts_group_release(group);
}

/* A fold in another order has other bits: 2^24 + 1 + 1 is not 1 + 1 + 2^24 in f32. */
TS_TEST_RANKS(comm_group_folds_in_its_order, 3)
{
    static const float value[3] = { 16777216.0f, 1.0f, 1.0f };
    const int64_t forward[3] = { 0, 1, 2 }, backward[3] = { 2, 1, 0 };
    float mine = value[t->index], sum = 0;
    ts_array in = vector_of(&mine, TS_DTYPE_F32, 1), out = vector_of(&sum, TS_DTYPE_F32, 1);
    ts_group *a = ts_group_create(t->me, forward, 3, NULL);
    ts_group *b = ts_group_create(t->me, backward, 3, NULL);
    TEST_OK(t, ts_group_all_reduce(a, &in, &out, TS_REDUCE_SUM, NULL));
    TEST_CHECK(t, sum == 16777216.0f);
    TEST_OK(t, ts_group_all_reduce(b, &in, &out, TS_REDUCE_SUM, NULL));
    TEST_CHECK(t, sum == 16777218.0f);
}

TS_TEST_RANKS(comm_outsiders_do_nothing, 2, 3, 8)
{
    int64_t only = t->count - 1, value = 5, sum = -1;
    ts_group *group =
        ts_group_create(t->me, &only, 1, TS_OPTIONS(ts_group_options, .name = "last"));
    ts_array in = one_i64(&value), out = one_i64(&sum);
    ts_work *work = NULL;
    bool inside = t->index == only;
    TEST_EQ(t, ts_group_index(group), inside ? 0 : -1);
    TEST_OK(t, ts_group_all_reduce(group, &in, &out, TS_REDUCE_SUM, NULL));
    TEST_EQ(t, sum, inside ? 5 : -1);
    TEST_OK(t, ts_group_barrier(group, TS_OPTIONS(ts_comm_options, .work = &work)));
    TEST_EQ(t, work != NULL, inside);
    TEST_OK(t, ts_work_wait(work));
    TEST_OK(t, ts_group_broadcast(group, &in, 99 * !inside, NULL)); /* not even looked at outside */
}

/* Halves of halves until every group has one member; the sum of all ranks is known at each level.
 */
TS_TEST_RANKS(comm_sub_groups_of_sub_groups, 1, 2, 3, 4, 8)
{
    ts_group *group = ts_group_world(t->me);
    int64_t low = 0, high = t->count;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2, members[MEMBERS_MAX], count = 0;
        bool left = t->index < middle;
        for (int64_t i = left ? low : middle; i < (left ? middle : high); i++)
            members[count++] = i - low;
        group = ts_group_sub(group, members, count, NULL);
        if (left)
            high = middle;
        else
            low = middle;
        int64_t mine = t->index, sum = 0, want = 0;
        ts_array in = one_i64(&mine), out = one_i64(&sum);
        TEST_OK(t, ts_group_all_reduce(group, &in, &out, TS_REDUCE_SUM, NULL));
        for (int64_t i = low; i < high; i++)
            want += i;
        TEST_EQ(t, sum, want);
    }
}

/* Two handles of one list, and a list made again after its release, go on with the same numbers. */
TS_TEST_RANKS(comm_handles_of_one_list_are_one_group, 2, 3)
{
    int64_t ranks[MEMBERS_MAX], mine = 1, sum = 0;
    for (int64_t i = 0; i < t->count; i++)
        ranks[i] = i;
    ts_array in = one_i64(&mine), out = one_i64(&sum);
    ts_group *kept = ts_group_create(t->me, ranks, t->count, NULL);
    for (int k = 0; k < 20; k++) {
        ts_group *again = ts_group_create(t->me, ranks, t->count, NULL);
        /* Ranks use different handles of the same list. */
        ts_group *one = (k + t->index) % 3 == 0   ? kept
                        : (k + t->index) % 3 == 1 ? again
                                                  : ts_group_world(t->me);
        TEST_OK(t, ts_group_all_reduce(one, &in, &out, TS_REDUCE_SUM, NULL));
        TEST_EQ(t, sum, t->count);
        ts_group_release(again);
    }
}

TS_TEST_RANKS(comm_a_thousand_groups, 4, 8)
{
    enum { GROUPS = 1000 };
    static ts_group *group[8][GROUPS];
    ts_group **mine = group[t->index];
    for (int64_t g = 0; g < GROUPS; g++) {
        int64_t ranks[MEMBERS_MAX], count = 0;
        uint64_t mask = oracle_hash(t->seed, (uint64_t)g, 1) % ((1u << t->count) - 1) + 1;
        for (int64_t i = 0; i < t->count; i++)
            if (mask >> i & 1) ranks[count++] = i;
        if (g % 2 == 1) /* a different order is a different group */
            for (int64_t i = 0, j = count - 1; i < j; i++, j--) {
                int64_t rank = ranks[i];
                ranks[i] = ranks[j];
                ranks[j] = rank;
            }
        mine[g] = ts_group_create(t->me, ranks, count, NULL);
    }
    for (int64_t g = 0; g < GROUPS; g++) {
        int64_t value = t->index * GROUPS + g, sum = 0, want = 0;
        ts_array in = one_i64(&value), out = one_i64(&sum);
        TEST_OK(t, ts_group_all_reduce(mine[g], &in, &out, TS_REDUCE_SUM, NULL));
        for (int64_t i = 0; i < ts_group_size(mine[g]); i++)
            want += ts_group_rank(mine[g], i) * GROUPS + g;
        if (ts_group_index(mine[g]) >= 0) TEST_EQ(t, sum, want);
    }
    for (int64_t g = 0; g < GROUPS; g++)
        ts_group_release(mine[g]);
}

/* ---- channels -------------------------------------------------------------------------------- */

/* Ranks post on two channels in different orders: channels do not wait for each other. */
TS_TEST_RANKS(comm_channels_are_independent, 2, 3, 4, 8)
{
    enum { COUNT = 3000 };
    ts_group *world = ts_group_world(t->me);
    static int64_t in[8][2][COUNT], out[8][2][COUNT];
    for (int round = 0; round < 10; round++) {
        ts_work *work[2] = { NULL, NULL };
        for (int c = 0; c < 2; c++)
            for (int64_t i = 0; i < COUNT; i++)
                in[t->index][c][i] = t->index + i + c;
        for (int k = 0; k < 2; k++) {
            int c = (k + (int)t->index) % 2;
            ts_array from = vector_of(in[t->index][c], TS_DTYPE_I64, COUNT);
            ts_array to = vector_of(out[t->index][c], TS_DTYPE_I64, COUNT);
            TEST_OK(t, ts_group_all_reduce(
                           world, &from, &to, TS_REDUCE_SUM,
                           TS_OPTIONS(ts_comm_options, .channel = c, .work = &work[c])));
        }
        /* Waiting in another order than posting, too. */
        TEST_OK(t, ts_work_wait(work[(int)t->index % 2]));
        TEST_OK(t, ts_work_wait(work[1 - (int)t->index % 2]));
        int64_t ranks = t->count * (t->count - 1) / 2;
        for (int c = 0; c < 2; c++)
            for (int64_t i = 0; i < COUNT; i++)
                if (out[t->index][c][i] != ranks + t->count * (i + c))
                    TEST_SAY(t, false, "channel %d element %d", c, (int)i);
    }
}

/* Many operations in flight on one channel, more than the engine may meet at once. */
TS_TEST_RANKS(comm_many_in_flight, 2, 3, 8)
{
    enum { MANY = 60 };
    int64_t in[MANY], out[MANY];
    ts_work *work[MANY] = { NULL };
    for (int i = 0; i < MANY; i++) {
        in[i] = i + t->index;
        out[i] = -1;
        ts_array from = one_i64(&in[i]), to = one_i64(&out[i]);
        TEST_OK(t, ts_group_all_reduce(ts_group_world(t->me), &from, &to, TS_REDUCE_SUM,
                                       TS_OPTIONS(ts_comm_options, .work = &work[i])));
    }
    for (int i = MANY - 1; i >= 0; i--) {
        TEST_OK(t, ts_work_wait(work[i]));
        TEST_EQ(t, out[i], t->count * i + t->count * (t->count - 1) / 2);
    }
}

TS_TEST_RANKS(comm_test_without_waiting, 2, 3)
{
    int64_t in = 1, out = 0;
    ts_array from = one_i64(&in), to = one_i64(&out);
    ts_work *work = NULL;
    TEST_OK(t, ts_group_all_reduce(ts_group_world(t->me), &from, &to, TS_REDUCE_SUM,
                                   TS_OPTIONS(ts_comm_options, .work = &work)));
    while (!ts_work_test(work))
        ;
    TEST_EQ(t, out, t->count);
    TEST_OK(t, ts_work_wait(work));
    TEST_EQ(t, ts_work_test(NULL), 1);
}

static void *test_elsewhere(void *work)
{
    bool complete = ts_work_test(work) == 1, refused = ts_work_wait(work) == TS_ERR_THREAD;
    return complete && refused ? work : NULL;
}

/* On another thread neither blocks, and the engine is not asked. */
TS_TEST_RANKS(comm_test_of_another_thread, 2)
{
    int64_t in = 1, out = 0;
    ts_array from = one_i64(&in), to = one_i64(&out);
    ts_work *work = NULL;
    pthread_t thread;
    void *good = NULL;
    if (t->index == 1) TEST_OK(t, ts_group_recv(ts_group_world(t->me), &to, 0, NULL));
    TEST_OK(t, ts_group_all_reduce(ts_group_world(t->me), &from, &to, TS_REDUCE_SUM,
                                   TS_OPTIONS(ts_comm_options, .work = &work)));
    if (t->index == 0) {
        TEST_EQ(t, pthread_create(&thread, NULL, test_elsewhere, work), 0);
        TEST_EQ(t, pthread_join(thread, &good), 0);
        TEST_CHECK(t, good == work);
        TEST_OK(t, ts_group_send(ts_group_world(t->me), &from, 1, NULL)); /* now it may begin */
    }
    TEST_OK(t, ts_work_wait(work));
    TEST_EQ(t, out, t->count);
}

/* ---- send and recv --------------------------------------------------------------------------- */

/* A ring in both sizes: small messages do not wait for their receiver, large ones are posted first.
 */
TS_TEST_RANKS(comm_send_ring, 1, 2, 3, 4, 8)
{
    enum { LARGE = 100000 };
    ts_group *world = ts_group_world(t->me);
    int64_t next = (t->index + 1) % t->count, before = (t->index + t->count - 1) % t->count;
    for (int64_t count = 1; count <= LARGE; count *= LARGE) {
        grid out = grid_make(TS_DTYPE_F32, count, 1, false),
             in = grid_make(TS_DTYPE_F32, count, 1, true);
        for (uint64_t round = 0; round < 5; round++) {
            ts_work *work = NULL;
            grid_fill(&out, round, t->index, 0);
            const ts_comm_options *later = TS_OPTIONS(ts_comm_options, .work = &work);
            TEST_OK(t, ts_group_send(world, &out.array, next, count == 1 ? NULL : later));
            TEST_OK(t, ts_group_recv(world, &in.array, before, NULL));
            TEST_OK(t, ts_work_wait(work));
            TEST_CHECK(t, grid_rows_are(&in, 0, count, round, before, 0));
        }
        TEST_CHECK(t, grid_guarded(&in));
        grid_free(&out);
        grid_free(&in);
    }
}

/* FIFO per pair; receives are posted before or after; shapes may differ as long as counts agree. */
TS_TEST_RANKS(comm_send_is_in_order, 2, 3)
{
    enum { MESSAGES = 40 };
    ts_group *world = ts_group_world(t->me);
    grid g[MESSAGES];
    ts_work *work[MESSAGES] = { NULL };
    for (int i = 0; i < MESSAGES; i++) {
        int64_t rows = i % 4 == 3 ? 600 : 2, cols = i % 4 == 3 ? 4 : 6;
        bool swap = t->index == 1 && i % 2 == 1; /* [2 x 6] arrives as [6 x 2] */
        g[i] = grid_make(TS_DTYPE_I32, swap ? cols : rows, swap ? rows : cols, i % 3 == 0);
        const ts_comm_options *later = TS_OPTIONS(ts_comm_options, .work = &work[i]);
        if (t->index == 0) {
            grid_fill(&g[i], (uint64_t)i, 0, 0);
            TEST_OK(t, ts_group_send(world, &g[i].array, 1, later));
        } else if (t->index == 1) {
            TEST_OK(t, ts_group_recv(world, &g[i].array, 0, i % 5 == 0 ? NULL : later));
        }
    }
    for (int i = 0; i < MESSAGES; i++) {
        TEST_OK(t, ts_work_wait(work[i]));
        if (t->index == 1) {
            TEST_CHECK(t, grid_rows_are(&g[i], 0, g[i].rows, (uint64_t)i, 0, 0));
            TEST_CHECK(t, grid_guarded(&g[i]));
        }
        grid_free(&g[i]);
    }
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Everybody sends to everybody at once, and two collectives ride along. */
TS_TEST_RANKS(comm_batch, 1, 2, 3, 4, 8)
{
    enum { LARGE = 20000 };
    ts_group *world = ts_group_world(t->me);
    for (int later = 0; later < 2; later++) {
        grid in[MEMBERS_MAX], out[MEMBERS_MAX];
        int64_t mine = t->index, sum = 0;
        ts_array one = one_i64(&mine), total = one_i64(&sum);
        ts_work *work = NULL;
        TEST_OK(t, ts_group_batch_begin(t->me));
        for (int64_t p = 0; p < t->count; p++) {
            out[p] = grid_make(TS_DTYPE_F64, LARGE, 1, false);
            in[p] = grid_make(TS_DTYPE_F64, LARGE, 1, p % 2 == 0);
            grid_fill(&out[p], (uint64_t)p, t->index, 0);
            TEST_OK(t, ts_group_send(world, &out[p].array, p, NULL));
            TEST_OK(t, ts_group_recv(world, &in[p].array, p, NULL));
        }
        TEST_OK(t, ts_group_all_reduce(world, &one, &total, TS_REDUCE_SUM, NULL));
        TEST_OK(t, ts_group_barrier(world, NULL));
        const ts_comm_options *options = TS_OPTIONS(ts_comm_options, .work = &work);
        TEST_OK(t, ts_group_batch_end(t->me, later ? options : NULL));
        TEST_EQ(t, work != NULL, later);
        TEST_OK(t, ts_work_wait(work));
        TEST_EQ(t, sum, t->count * (t->count - 1) / 2);
        for (int64_t p = 0; p < t->count; p++) {
            TEST_CHECK(t, grid_rows_are(&in[p], 0, LARGE, (uint64_t)t->index, p, 0));
            TEST_CHECK(t, grid_guarded(&in[p]));
            grid_free(&in[p]);
            grid_free(&out[p]);
        }
    }
}

/* What a function needs of other ranks at once cannot wait for the end of a batch. */
static const char *asks_others(int what, ts_tensor *x, ts_tensor *out)
{
    ts_rank *me = ts_rank_current();
    char text[200] = "";
    switch (what) {
    case 0:
        return ts_argmax(x, 0, 0) ? "" : "argmax: ";
    case 1:
        return ts_redistribute(x, "R") ? "" : "redistribute: ";
    case 2:
        return ts_from_local(out, ts_layout_sharding(ts_tensor_layout(x)), TS_SHAPE(ROWS, COLUMNS))
                   ? ""
                   : "from_";
    case 3:
        return ts_tensor_text(x, text, sizeof text) == TS_OK ? "" : "text: ";
    case 4:
        return ts_symmetric_alloc(ts_group_world(me), 100, NULL) ? "" : "symmetric memory: ";
    case 5:
        return ts_state_create(ts_tensor_mesh(x)) ? "" : "state: ";
    default:
        return NULL;
    }
}

TS_TEST_RANKS(comm_batch_holds_operations_alone, 2, 3)
{
    if (strcmp(t->engine, "threads") != 0)
        return; /* who is refused first ends what others are in */
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*"), *alone = ts_mesh_self(t->me);
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(ROWS, COLUMNS), "S(0)");
    ts_tensor *block = ts_ones(alone, TS_DTYPE_F32, TS_SHAPE(ROWS / t->count, COLUMNS), "R");
    const char *begins = "";
    for (int what = 0; begins != NULL; what++) {
        TEST_OK(t, ts_group_batch_begin(t->me));
        begins = asks_others(what, x, block);
        if (begins != NULL) {
            const char *said = ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "";
            TEST_SAY(t, *begins && strstr(said, begins) == said, "%d: %s", what, said);
            TEST_SAYS(t, said, "a batch is open");
            TEST_STATUS(t, ts_group_batch_end(t->me, NULL), TS_ERR_STATE);
        }
        TEST_OK(t, ts_rank_recover(t->me));
    }
    int64_t one = 1;
    ts_array sum = one_i64(&one);
    TEST_OK(t, ts_group_all_reduce(ts_group_world(t->me), &sum, &sum, TS_REDUCE_SUM, NULL));
    TEST_EQ(t, one, t->count);
}

TS_TEST_RANKS(comm_batch_of_nothing, 1, 2)
{
    TEST_OK(t, ts_group_batch_begin(t->me));
    TEST_OK(t, ts_group_batch_end(t->me, NULL));
}

/* ---- exchange -------------------------------------------------------------------------------- */

/* An n x n matrix, one row block per member, becomes one column block per member: the transpose of
 * who holds what, as strided parts straight between the arrays. */
TS_TEST_RANKS(comm_exchange_rows_to_columns, 1, 2, 3, 4, 8)
{
    enum { EACH = 5 };
    int64_t n = t->count, total = n * EACH;
    grid rows = grid_make(TS_DTYPE_F32, EACH, total, false);
    grid columns = grid_make(TS_DTYPE_F32, total, EACH, false);
    for (int64_t i = 0; i < EACH * total; i++)
        oracle_value(TS_DTYPE_F32, 3, 0, t->index * EACH * total + i, grid_at(&rows, i));
    grid_push(&rows);
    ts_part send[MEMBERS_MAX], recv[MEMBERS_MAX];
    for (int64_t k = 0; k < n; k++) {
        int64_t p = (t->index * 3 + k) % n; /* any order of peers */
        send[k] = (ts_part){ .peer = p,
                             .data = grid_place(&rows, p * EACH),
                             .ndim = 2,
                             .extent = { EACH, EACH },
                             .stride = { total, 1 } };
        recv[k] = (ts_part){ .peer = p,
                             .data = grid_place(&columns, p * EACH * EACH),
                             .ndim = 2,
                             .extent = { EACH, EACH },
                             .stride = { EACH, 1 } };
    }
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .device = rows.array.device,
                             .dtype = TS_DTYPE_F32,
                             .send = send,
                             .send_count = n,
                             .recv = recv,
                             .recv_count = n };
    TEST_OK(t, ts_group_exchange(ts_group_world(t->me), &exchange, NULL));
    grid_pull(&columns);
    for (int64_t r = 0; r < total; r++)
        for (int64_t c = 0; c < EACH; c++) {
            unsigned char want[ORACLE_ELEMENT_MAX];
            oracle_value(TS_DTYPE_F32, 3, 0, r * total + t->index * EACH + c, want);
            TEST_CHECK(t, grid_element_is(&columns, r * EACH + c, want));
        }
    TEST_CHECK(t, grid_guarded(&columns));
    grid_free(&rows);
    grid_free(&columns);
}

/* Streams: what one side sends as many small parts the other receives as few large ones of other
 * shapes. */
TS_TEST_RANKS(comm_exchange_matches_streams, 1, 2, 3, 4)
{
    enum { PARTS = 12, EACH = 10 };
    int64_t next = (t->index + 1) % t->count, before = (t->index + t->count - 1) % t->count;
    grid out = grid_make(TS_DTYPE_I16, PARTS * EACH, 1, true);
    grid in = grid_make(TS_DTYPE_I16, 8, 15, true);
    grid_fill(&out, 9, t->index, 0);
    ts_part send[PARTS + 1];
    int64_t at = 0;
    for (int i = 0; i < PARTS; i++, at += EACH) {
        int64_t stride = out.array.stride[0];
        send[i] = (ts_part){ .peer = next,
                             .data = grid_place(&out, at),
                             .ndim = 2,
                             .extent = { 2, EACH / 2 },
                             .stride = { stride * EACH / 2, stride } };
    }
    send[PARTS] = (ts_part){ .peer = next, .ndim = 1, .extent = { 0 } }; /* empty: no data needed */
    ts_part recv[2];
    for (int i = 0; i < 2; i++)
        recv[i] = (ts_part){ .peer = before,
                             .data = grid_place(&in, i * 60),
                             .ndim = 2,
                             .extent = { 4, 15 },
                             .stride = { in.array.stride[0], in.array.stride[1] } };
    ts_exchange exchange = { .struct_size = sizeof exchange,
                             .device = in.array.device,
                             .dtype = TS_DTYPE_I16,
                             .send = send,
                             .send_count = PARTS + 1,
                             .recv = recv,
                             .recv_count = 2 };
    ts_work *work = NULL;
    TEST_OK(t, ts_group_exchange(ts_group_world(t->me), &exchange,
                                 TS_OPTIONS(ts_comm_options, .work = &work)));
    memset(send, 0, sizeof send); /* lists are kept; only arrays must stay */
    memset(recv, 0, sizeof recv);
    TEST_OK(t, ts_work_wait(work));
    TEST_CHECK(t, grid_rows_are(&in, 0, 8, 9, before, 0));
    TEST_CHECK(t, grid_guarded(&in));
    grid_free(&out);
    grid_free(&in);
}

/* A reduce_scatter written as an exchange: one block, contributions of all members folded in list
 * order. */
TS_TEST_RANKS(comm_exchange_combines, 1, 2, 3, 4, 8)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_I8, TS_DTYPE_C64 };
    enum { EACH = 7 };
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        int64_t n = t->count, order[MEMBERS_MAX];
        grid in = grid_make(dtypes[d], n * EACH, 1, false),
             out = grid_make(dtypes[d], EACH, 1, true);
        grid_fill(&in, 5, t->index, 0);
        ts_part send[MEMBERS_MAX], recv[MEMBERS_MAX];
        for (int64_t k = 0; k < n; k++) {
            order[k] = (t->index + k) % n; /* every receiver folds in an order of its own */
            send[k] = (ts_part){ .peer = k,
                                 .data = grid_place(&in, k * EACH),
                                 .ndim = 1,
                                 .extent = { EACH },
                                 .stride = { 1 } };
            recv[k] = (ts_part){ .peer = order[k],
                                 .data = out.array.data,
                                 .ndim = 1,
                                 .combine = k > 0,
                                 .extent = { EACH },
                                 .stride = { out.array.stride[0] } };
        }
        ts_exchange exchange = { .struct_size = sizeof exchange,
                                 .device = in.array.device,
                                 .dtype = (int32_t)dtypes[d],
                                 .reduce = TS_REDUCE_SUM,
                                 .send = send,
                                 .send_count = n,
                                 .recv = recv,
                                 .recv_count = n };
        TEST_OK(t, ts_group_exchange(ts_group_world(t->me), &exchange, NULL));
        TEST_CHECK(t, grid_is_folded(&out, 5, TS_REDUCE_SUM, order, n, t->index * EACH));
        TEST_CHECK(t, grid_guarded(&out));
        grid_free(&in);
        grid_free(&out);
    }
}
