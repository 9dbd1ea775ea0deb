/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_record.c - running steps written down as step values: a training step, messages, moves
 * that run ahead. Recorded on every rank, joined, proved, printed and read back. */
#include "array/pool.h"
#include "base/rank.h"
#include "device/device.h"
#include "harness/test.h"
#include "op/core/kernel.h"
#include "runtime/record.h"
#include "tessera/autograd.h"
#include "tessera/comm.h"
#include "tessera/nn.h"
#include "tessera/op.h"

enum { RANKS = 4 };
static tsi_step *parts[RANKS]; /* of thread ranks */

static void check_text(test *t, const tsi_step *step)
{
    tsi_text text = { 0 }, why = { 0 };
    tsi_step *back = NULL;
    tsi_step_print(step, &text);
    TEST_OK(t, tsi_step_parse(text.data, &back));
    TEST_SAY(t, back && !tsi_step_differ(step, back, &why), "%s", why.data);
    tsi_step_destroy(back);
    tsi_text_release(&why);
    tsi_text_release(&text);
}

static void check_proof(test *t, const tsi_step *step, bool buffered)
{
    tsi_step_times times;
    tsi_step_cost cost = { .us = { [TSI_ACTION_OPERATOR] = 1, [TSI_ACTION_UPDATE] = 2 },
                           .buffered = buffered };
    ts_status status = tsi_step_prove(step, &(tsi_step_rules){ .buffered = buffered });
    if (status == TS_OK) status = tsi_step_simulate(step, &cost, &times);
    TEST_SAY(t, status == TS_OK, "%s", ts_rank_error(t->me)->text);
    if (status == TS_OK) {
        TEST_CHECK(t, times.makespan_us > 0 && times.peak[0].bytes > 0);
        tsi_step_times_release(&times);
        return;
    }
    tsi_text text = { 0 };
    tsi_step_print(step, &text);
    TEST_SAY(t, false, "the step was\n%s", text.data);
    tsi_text_release(&text);
}

/* Takes the step of every rank; where they are threads, rank 0 looks at all of them together. */
static void check_all(test *t, tsi_step *own)
{
    TEST_CHECK(t, own != NULL);
    if (own) check_text(t, own);
    bool threads = strcmp(t->engine, "threads") == 0;
    if (threads) parts[t->index] = own;
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    tsi_step *all = NULL;
    bool whole = threads && t->index == 0;
    for (int64_t r = 0; whole && r < t->count; r++)
        whole = parts[r] != NULL;
    if (whole && tsi_step_join(parts, t->count, &all) == TS_OK) {
        check_text(t, all);
        check_proof(t, all, true);
    }
    tsi_step_destroy(all);
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    tsi_step_destroy(own);
}

static int count_kind(const tsi_step *step, int64_t rank, tsi_action_kind kind)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    int count = 0;
    for (int32_t i = 0; i < list->action_count; i++)
        count += list->action[i].kind == (int32_t)kind;
    return count;
}

/* ---- a training step ------------------------------------------------------------------------- */

typedef struct mlp {
    ts_tensor *w1, *w2;
} mlp;

static void forward(void *state, const ts_module_io *io)
{
    const mlp *net = state;
    io->output[0] = ts_matmul(ts_relu(ts_matmul(io->input[0], net->w1)), net->w2);
}

static const ts_module_desc mlp_desc = { .struct_size = sizeof(ts_module_desc),
                                         .type = "mlp",
                                         .input_count = 1,
                                         .output_count = 1,
                                         .forward = forward };

/* The recording's memory line against the allocator's own count: they rise by the same bytes. */
static void check_memory(test *t, const tsi_step *step, int64_t live_before)
{
    const tsi_step_list *list = tsi_step_list_of(step, t->index);
    int64_t given = 0, measured = tsi_pool_used(tsi_pool_of(t->me), -1).peak - live_before;
    for (int32_t v = 0; v < list->value_count; v++)
        given += list->value[v].life & TSI_LIFE_TAKEN ? list->value[v].bytes : 0;
    tsi_step_peak peak;
    tsi_step_memory_of(step, t->index, &peak, NULL);
    TEST_EQ(t, peak.bytes - given, measured);
}

static void train_once(test *t, ts_mesh *mesh, ts_module *root, ts_optimizer *optimizer)
{
    ts_scope scope = ts_scope_open(t->me, "step");
    ts_tape_begin(t->me);
    ts_tensor *x = ts_rand(mesh, TS_DTYPE_F32, TS_SHAPE(12, 8), "S(0)");
    ts_tensor *loss = ts_mean(ts_square(TS_CALL(root, x)), NULL, 0, 0);
    TEST_OK(t, ts_backward(loss, NULL));
    TEST_OK(t, ts_optimizer_step(optimizer));
    TEST_OK(t, ts_scope_close(scope));
}

TS_TEST_RANKS(a_training_step_is_recorded, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "dp=*");
    mlp net = { NULL, NULL };
    ts_module *root = ts_module_create(mesh, &mlp_desc, &net);
    net.w1 = ts_module_param(root, "w1", TS_SHAPE(8, 16), NULL);
    net.w2 = ts_module_param(root, "w2", TS_SHAPE(16, 4), NULL);
    TEST_OK(t, ts_module_materialize(root));
    ts_adamw_options adamw = TS_INIT(ts_adamw_options);
    ts_optimizer *optimizer = ts_adamw_create(root, &adamw);
    train_once(t, mesh, root, optimizer); /* the first step makes what later ones find */
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    tsi_pool_peak_reset(tsi_pool_of(t->me));
    int64_t live = tsi_pool_used(tsi_pool_of(t->me), -1).live;
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    train_once(t, mesh, root, optimizer);
    TEST_OK(t, tsi_record_end(recording, &step));
    if (step) {
        check_memory(t, step, live);
        TEST_CHECK(t, count_kind(step, t->index, TSI_ACTION_OPERATOR) >= 9);
        TEST_EQ(t, count_kind(step, t->index, TSI_ACTION_UPDATE), 2);
        int reductions = count_kind(step, t->index, TSI_ACTION_ALL_REDUCE) +
                         count_kind(step, t->index, TSI_ACTION_REDUCE) +
                         count_kind(step, t->index, TSI_ACTION_EXCHANGE);
        TEST_CHECK(t, t->count == 1 ? reductions == 0 : reductions >= 1);
        TEST_CHECK(t, count_kind(step, t->index, TSI_ACTION_RELEASE) >= 1);
    }
    check_all(t, step);
    TEST_CHECK(t, !tsi_observers_want(&t->me->observers, TSI_NEWS_CALL));
    ts_optimizer_destroy(optimizer);
    ts_module_destroy(root);
}

/* ---- moves that run ahead, operators that move their inputs ---------------------------------- */

TS_TEST_RANKS(moves_are_recorded_with_their_waits, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    ts_scope scope = ts_scope_open(t->me, "moves");
    ts_tensor *x = ts_rand(mesh, TS_DTYPE_F32, TS_SHAPE(6, 4), "S(0)");
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    ts_tensor *whole = ts_redistribute(x, "R");
    ts_tensor *busy = ts_square(x);
    ts_tensor *sum = ts_add(whole, ts_rand(mesh, TS_DTYPE_F32, TS_SHAPE(6, 4), "R"));
    ts_tensor *mixed = ts_add(busy, ts_redistribute(x, "S(1)")); /* moves one of them */
    TEST_CHECK(t, sum && mixed);
    TEST_OK(t, ts_tensor_wait(mixed));
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, tsi_record_end(recording, &step));
    if (step && t->count > 1) {
        const tsi_step_list *list = tsi_step_list_of(step, t->index);
        int meetings = 0;
        for (int32_t i = 0; i < list->action_count; i++)
            meetings += list->action[i].group >= 0;
        TEST_CHECK(t, meetings >= 3);
    }
    check_all(t, step);
}

/* What goes while operations are under way, because a copy of it goes to others or because it stays
 * where it is: nothing is wrong with that. */
TS_TEST_RANKS(sources_of_moves_may_go, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    ts_scope scope = ts_scope_open(t->me, "moves");
    ts_tensor *x = ts_rand(mesh, TS_DTYPE_F32, TS_SHAPE(6, 6), "S(0)"), *y[3];
    const ts_sharding *to[] = { ts_sharding_get(mesh, "S(0-1)"), ts_sharding_get(mesh, "S(1)"),
                                ts_sharding_get(mesh, "S(0)") };
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    ts_tensor *copied = ts_redistribute(ts_transpose(ts_square(x), 0, 1), "R");
    ts_tensor *one = ts_mean(x, (const int64_t[]){ 1 }, 1, 1);
    ts_tensor *wide = ts_redistribute(ts_expand(one, TS_SHAPE(6, 6)), "SS(0,2)");
    ts_tensor_drop(one);
    ts_tensor *stays = ts_square(x), *goes = ts_exp(x);
    TEST_OK(t, ts_redistribute_many((ts_tensor *[]){ stays, goes, x }, to, 3, y));
    ts_tensor_drop(stays);
    ts_tensor_drop(y[0]);
    TEST_CHECK(t, ts_neg(x) && ts_add(x, y[2]));
    TEST_OK(t, ts_tensor_wait(y[1]));
    TEST_OK(t, ts_tensor_wait(wide));
    TEST_OK(t, ts_tensor_wait(copied));
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, tsi_record_end(recording, &step));
    check_all(t, step);
}

/* Operators `linear` of the list: the first makes what the second changes, behind the wait for its
 * input. */
static void check_rows(test *t, const tsi_step *step)
{
    const tsi_step_list *list = tsi_step_list_of(step, t->index);
    int32_t products = 0, waits = 0;
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        waits += a->kind == TSI_ACTION_WAIT && products == 1;
        if (a->kind != TSI_ACTION_OPERATOR || !strstr(a->what, "linear")) continue;
        const tsi_touch *last = tsi_step_touches(list, a) + a->touch_count - 1;
        TEST_EQ(t, last->how, products == 0 ? TSI_MAKES : TSI_WRITES);
        products++;
    }
    TEST_EQ(t, products, 2);
    TEST_EQ(t, waits, 1);
}

/* The rows of a product that are here are computed while the others come: two operators, and memory
 * to the byte though what is gathered goes between them. Blocks with gaps are gathered from a copy.
 */
TS_TEST_RANKS(rows_that_are_here_are_recorded_apart, 2, 3)
{
    if (!tsi_kernel_rows_alone(tsi_rank_device_of(t->me)->device, TS_DTYPE_F32)) return;
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int turned = 0; turned < 2; turned++) {
        tsi_recording *recording = NULL;
        tsi_step *step = NULL;
        ts_scope scope = ts_scope_open(t->me, "rows");
        ts_shape shape = turned ? TS_SHAPE(160, 64 * t->count) : TS_SHAPE(64 * t->count, 160);
        ts_tensor *x = ts_rand(mesh, TS_DTYPE_F32, shape, turned ? "S(1)" : "S(0)");
        ts_tensor *w = ts_rand(mesh, TS_DTYPE_F32, TS_SHAPE(128 * t->count, 160), "S(0)");
        tsi_pool_peak_reset(tsi_pool_of(t->me));
        int64_t live = tsi_pool_used(tsi_pool_of(t->me), -1).live;
        TEST_OK(t, tsi_record_begin(t->me, &recording));
        ts_tensor *half = ts_scale(x, 0.5), *rows = turned ? ts_transpose(half, 0, 1) : half;
        ts_tensor *all = ts_redistribute(rows, "R");
        if (turned) ts_tensor_drop(rows);
        ts_tensor_drop(half);
        TEST_CHECK(t, ts_linear(all, w, NULL) != NULL);
        TEST_OK(t, ts_scope_close(scope));
        TEST_OK(t, tsi_record_end(recording, &step));
        if (step) check_memory(t, step, live);
        if (step) check_rows(t, step);
        check_all(t, step);
    }
}

/* Axes that have no name, long ones that begin alike, and ranks that are one axis of a mesh and
 * another of the next. */
TS_TEST_RANKS(axes_are_told_apart, 4)
{
    const char *const text[] = { "a=2, b=2", "y=2, z=2 : 0 2 1 3",
                                 "2, 2",     "dp=2, 2",
                                 "all=4",    "tensor_parallel_inner=2, tensor_parallel_outer=2" };
    enum { MESHES = sizeof text / sizeof *text };
    ts_mesh *mesh[MESHES];
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    for (int i = 0; i < MESHES; i++)
        mesh[i] = ts_mesh_create(t->me, text[i]);
    ts_scope scope = ts_scope_open(t->me, "axes");
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    for (int i = 0; i < 2 * MESHES; i++) {
        ts_mesh *on = mesh[i % MESHES], *then = mesh[(i + 1) % MESHES];
        bool line = ts_mesh_ndim(on) == 1, then_line = ts_mesh_ndim(then) == 1;
        ts_tensor *x = ts_ones(on, TS_DTYPE_F32, TS_SHAPE(8, 8), line ? "S(0)" : "S(0), S(1)");
        ts_tensor *inner = ts_redistribute(x, line ? "S(1)" : "S(0), R");
        ts_tensor *outer = ts_redistribute(x, line ? "R" : "R, S(1)");
        TEST_CHECK(t, ts_add(ts_redistribute(inner, line ? "R" : "R, R"),
                             ts_redistribute(outer, line ? "R" : "R, R")) != NULL);
        const ts_sharding *to = ts_sharding_get(then, then_line ? "S(1)" : "S(1), S(0)");
        TEST_OK(t, ts_tensor_wait(ts_redistribute_to(x, to)));
    }
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, tsi_record_end(recording, &step));
    check_all(t, step);
}

/* ---- messages -------------------------------------------------------------------------------- */

TS_TEST_RANKS(messages_are_recorded, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    const ts_sharding *cut = ts_sharding_get(mesh, "S(0)");
    ts_meta meta = { .shape = TS_SHAPE(6, 4), .dtype = TS_DTYPE_F32 };
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    ts_scope scope = ts_scope_open(t->me, "messages");
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(6, 4), "S(0)");
    ts_peer after = { mesh, "x", 1, 0 }, before = { mesh, "x", -1, 0 };
    if (t->index > 0) x = ts_add(ts_recv(&meta, cut, &before), x);
    if (t->index + 1 < t->count) TEST_OK(t, ts_send(x, &after));
    TEST_CHECK(t, ts_shift(x, "x", 1) != NULL);
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, ts_rank_sync(t->me));
    TEST_OK(t, tsi_record_end(recording, &step));
    if (step) {
        TEST_EQ(t, count_kind(step, t->index, TSI_ACTION_SEND), t->index + 1 < t->count);
        TEST_EQ(t, count_kind(step, t->index, TSI_ACTION_RECEIVE), t->index > 0);
    }
    check_all(t, step);
}

/* ---- operations of the caller's own ---------------------------------------------------------- */

static ts_status add_up(test *t, float *number, int32_t channel, ts_work **work)
{
    ts_array all = TS_INIT(ts_array);
    all.data = number;
    all.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F32 };
    return ts_group_all_reduce(ts_group_world(t->me), &all, &all, TS_REDUCE_SUM,
                               TS_OPTIONS(ts_comm_options, .channel = channel, .work = work));
}

/* What moves next is none of their business, on any rank: they touch nothing that is known. */
TS_TEST_RANKS(operations_of_the_caller_move_no_tensors, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    float number[7] = { 1, 1, 1, 1, 1, 1, 1 };
    ts_work *work[2] = { NULL };
    ts_scope scope = ts_scope_open(t->me, "own");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(6, 6), "S(0)"), *y[8], *z = ts_square(x);
    const ts_sharding *to[] = { ts_sharding_get(mesh, "S(1)"), ts_sharding_get(mesh, "R") };
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    TEST_OK(t, add_up(t, &number[0], 0, &work[0]));
    y[0] = ts_redistribute(x, "R");
    TEST_OK(t, add_up(t, &number[1], 0, NULL));
    y[1] = ts_shift(x, "x", 1);
    TEST_OK(t, add_up(t, &number[2], 1, &work[1]));
    TEST_OK(t, ts_redistribute_many((ts_tensor *[]){ x, z }, to, 2, y + 2));
    TEST_OK(t, add_up(t, &number[3], 0, NULL));
    y[4] = ts_add(x, y[0]); /* moves one of them */
    TEST_OK(t, add_up(t, &number[4], 0, NULL));
    y[5] = ts_redistribute(z, "S(0)"); /* stays */
    TEST_OK(t, add_up(t, &number[5], 0, NULL));
    y[6] = ts_shift(z, "x", 0);
    for (int i = 0; i < 2; i++)
        TEST_OK(t, ts_work_wait(work[i]));
    TEST_OK(t, add_up(t, &number[6], 0, NULL));
    y[7] = ts_roll(z, (int64_t[]){ 1 }, (int64_t[]){ 0 }, 1); /* sends rows itself */
    for (int i = 0; i < 8; i++)
        TEST_OK(t, ts_tensor_wait(y[i]));
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, tsi_record_end(recording, &step));
    const tsi_step_list *list = step ? tsi_step_list_of(step, t->index) : NULL;
    for (int32_t i = 0; list && i < list->action_count; i++)
        for (int32_t k = 0; k < list->action[i].touch_count; k++)
            if (list->action[i].kind == TSI_ACTION_ALL_REDUCE)
                TEST_EQ(t, list->value[tsi_step_touches(list, &list->action[i])[k].value].bytes, 0);
    check_all(t, step);
}

/* Three groups, every channel and messages of both ways: each has a queue, and no rank needs one
 * that there is no room for, alone or with the others. */
TS_TEST_RANKS(every_channel_is_recorded, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=2");
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    float number[TS_CHANNEL_COUNT] = { 1, 1, 1, 1 };
    ts_work *work[TS_CHANNEL_COUNT] = { NULL };
    ts_scope scope = ts_scope_open(t->me, "channels");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(8, 8), "S(0), S(1)");
    ts_meta meta = { .shape = TS_SHAPE(8, 8), .dtype = TS_DTYPE_F32 };
    ts_peer next = { mesh, "b", 1, 0 }, last = { mesh, "b", -1, 0 };
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    ts_tensor *y[] = { ts_redistribute(x, "S(0), R"), ts_redistribute(x, "R, S(1)"),
                       ts_redistribute(x, "S(1), S(0)"), ts_square(x) };
    for (int32_t c = 1; c < TS_CHANNEL_COUNT; c++)
        TEST_OK(t, add_up(t, &number[c], c, &work[c]));
    if (t->index % 2 == 0) TEST_OK(t, ts_send(x, &next));
    if (t->index % 2 == 1)
        TEST_OK(t, ts_tensor_wait(ts_recv(&meta, ts_sharding_get(mesh, "S(0), S(1)"), &last)));
    for (int32_t c = 1; c < TS_CHANNEL_COUNT; c++)
        TEST_OK(t, ts_work_wait(work[c]));
    for (int i = 0; i < 4; i++)
        TEST_OK(t, ts_tensor_wait(y[i]));
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, ts_rank_sync(t->me));
    TEST_OK(t, tsi_record_end(recording, &step));
    check_all(t, step);
}

/* Each channel counts its operations: the first of one is not the first of another. */
TS_TEST_RANKS(reductions_of_channels_are_told_apart, 2, 3)
{
    tsi_recording *recording = NULL;
    tsi_step *step = NULL;
    float in[4] = { 1, 2, 3, 4 }, out[TS_CHANNEL_COUNT][2];
    ts_scope scope = ts_scope_open(t->me, "own");
    ts_tensor *x = ts_ones(ts_mesh_create(t->me, "x=*"), TS_DTYPE_F32, TS_SHAPE(6), "S(0)");
    TEST_OK(t, tsi_record_begin(t->me, &recording));
    for (int32_t c = 0; c < TS_CHANNEL_COUNT; c++) {
        ts_array from = TS_INIT(ts_array), to = TS_INIT(ts_array);
        from.data = in;
        from.meta = (ts_meta){ .shape = TS_SHAPE(t->count), .dtype = TS_DTYPE_F32 };
        to.data = out[c];
        to.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F32 };
        TEST_OK(t, ts_group_reduce_scatter(ts_group_world(t->me), &from, &to, TS_REDUCE_SUM,
                                           TS_OPTIONS(ts_comm_options, .channel = c)));
    }
    TEST_CHECK(t, ts_square(x) != NULL);
    TEST_OK(t, ts_scope_close(scope));
    TEST_OK(t, tsi_record_end(recording, &step));
    check_all(t, step);
}
