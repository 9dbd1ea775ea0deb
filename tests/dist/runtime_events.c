/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of the event rings: counts, trace and post-mortem of a world whose work is known. */
#include <stdlib.h>
#include <unistd.h>

#include "base/keep.h"
#include "device/device.h"
#include "harness/test.h"
#include "tessera/comm.h"
#include "tessera/event.h"
#include "tessera/json.h"
#include "tessera/op.h"
#include "tessera/step.h"
#include "tessera/tensor.h"

static ts_array vector_of(int64_t *data, int64_t count)
{
    ts_array array = { .struct_size = sizeof array, .data = data };
    array.meta.dtype = TS_DTYPE_I64;
    array.meta.shape.ndim = 1;
    array.meta.shape.extent[0] = count;
    return array;
}

static const ts_count *row(const ts_counts *counts, const char *kind)
{
    for (int64_t i = 0; i < counts->row_count; i++) {
        if (strcmp(counts->row[i].kind, kind) == 0) return &counts->row[i];
    }
    return NULL;
}

TS_TEST_RANKS(counts_of_a_rank, 1, 2, 3)
{
    int64_t mine[2] = { 1, 2 }, all[16] = { 0 };
    ts_array in = vector_of(mine, 2), out = vector_of(all, 2 * t->count);
    ts_group *world = ts_group_world(t->me);
    TEST_OK(t, ts_group_barrier(world, NULL));
    uint64_t since = ts_rank_event(t->me);
    for (int i = 0; i < 5; i++)
        TEST_OK(t, ts_group_all_gather(world, &in, &out, NULL));
    ts_counts counts = TS_INIT(ts_counts);
    TEST_OK(t, ts_rank_counts(t->me, since, &counts));
    const ts_count *gathers = row(&counts, "all_gather");
    TEST_CHECK(t, gathers != NULL && row(&counts, "barrier") == NULL);
    if (gathers != NULL) {
        TEST_EQ(t, gathers->count, 5);
        TEST_EQ(t, gathers->bytes, 5 * 16 * (t->count - 1));
        TEST_CHECK(t, gathers->time_ns >= 0);
    }
    TEST_EQ(t, counts.lost, 0);
    TEST_EQ(t, counts.open, 0);
    char text[1024];
    size_t length = ts_counts_text(&counts, text, sizeof text);
    TEST_EQ(t, length, strlen(text));
    TEST_SAYS(t, text, "all_gather");
    TEST_EQ(t, ts_counts_text(&counts, text, 10), length);
    TEST_EQ(t, strlen(text), 9);
    TEST_OK(t, ts_rank_counts(t->me, 0, &counts));
    TEST_CHECK(t, row(&counts, "barrier") != NULL);
}

static ts_status overflow(ts_rank *me, void *arg)
{
    for (int i = 0; i < 100; i++) {
        ts_status status = ts_group_barrier(ts_group_world(me), NULL);
        if (status != TS_OK) return status;
    }
    return ts_rank_counts(me, 0, arg);
}

TS_TEST(counts_say_what_was_lost)
{
    ts_counts counts = TS_INIT(ts_counts);
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = 1, .events = 16
    };
    TEST_OK(t, ts_launch_with(&options, overflow, &counts, NULL, 0));
    TEST_CHECK(t, counts.lost >= 100 - 16);
    const ts_count *barriers = row(&counts, "barrier");
    TEST_CHECK(t, barriers != NULL && barriers->count + counts.lost >= 100);
}

/* ---- the trace ------------------------------------------------------------------------------- */
static ts_status traced(ts_rank *me, void *arg)
{
    (void)arg;
    int64_t value = 1;
    ts_array array = vector_of(&value, 1);
    ts_work *work = NULL;
    ts_group *world = ts_group_world(me);
    ts_status status = ts_group_all_reduce(world, &array, &array, TS_REDUCE_SUM,
                                           TS_OPTIONS(ts_comm_options, .name = "loss \"quoted\""));
    if (status == TS_OK) {
        status = ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .work = &work, .channel = 2));
    }
    ts_status waited = ts_work_wait(work);
    return status != TS_OK ? status : waited;
}

/* The trace that TESSERA_TRACE asks for. */
static ts_json_document *trace_of(test *t, const ts_world_options *options, ts_work_fn work)
{
    char path[] = "/tmp/tessera-trace-XXXXXX";
    int descriptor = mkstemp(path);
    close(descriptor);
    setenv("TESSERA_TRACE", path, 1);
    TEST_OK(t, ts_launch_with(options, work, NULL, NULL, 0));
    unsetenv("TESSERA_TRACE");
    static char text[1 << 18];
    FILE *file = fopen(path, "r");
    size_t length = file != NULL ? fread(text, 1, sizeof text, file) : 0;
    if (file != NULL) fclose(file);
    unlink(path);
    ts_json_document *document = NULL;
    TEST_OK(t, ts_json_parse("trace", text, length, &document));
    return document;
}

TS_TEST(trace_is_json)
{
    ts_json_document *document =
        trace_of(t, TS_OPTIONS(ts_world_options, .engine = "threads", .rank_count = 3), traced);
    const ts_json *events = ts_json_member(ts_json_root(document), "traceEvents");
    int64_t reduces = 0, ranks = 0, channels = 0;
    for (int64_t i = 0; i < ts_json_count(events); i++) {
        const ts_json *event = ts_json_item(events, i);
        const char *name = ts_json_text(ts_json_member(event, "name"), "");
        reduces += strcmp(name, "all_reduce loss \"quoted\"") == 0;
        ranks += strcmp(name, "process_name") == 0;
        channels +=
            strcmp(name, "barrier") == 0 && ts_json_int(ts_json_member(event, "tid"), -1) == 3;
        TEST_CHECK(t, ts_json_int(ts_json_member(event, "pid"), -1) < 3);
    }
    TEST_EQ(t, reduces, 3);
    TEST_EQ(t, ranks, 3);
    TEST_EQ(t, channels, 3);
    ts_json_release(document);
}

enum { PRODUCTS = 8, COMPUTE = 6 }; /* the track of the rank's own queue */

static ts_status products(ts_rank *me, void *arg)
{
    (void)arg;
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(64, 64), "R");
    for (int i = 0; i < PRODUCTS; i++)
        x = ts_matmul(x, x);
    ts_tensor *whole = ts_redistribute(ts_redistribute(x, "S(0)"), "R");
    double sum = 0;
    (void)ts_tensor_item(ts_sum(whole, NULL, 0, 0), &sum);
    return ts_rank_status(me);
}

typedef struct bars { /* of one rank */
    int64_t issued, ran, moved;
    double issue_us[PRODUCTS], end_us, sum_us;
} bars;

static void look_at(test *t, bars *b, const ts_json *event)
{
    int64_t track = ts_json_int(ts_json_member(event, "tid"), -1);
    double at = ts_json_real(ts_json_member(event, "ts"), -1);
    double us = ts_json_real(ts_json_member(event, "dur"), -1);
    const char *name = ts_json_text(ts_json_member(event, "name"), "");
    bool product = strcmp(name, "matmul") == 0;
    if (product && track == 0 && b->issued < PRODUCTS) b->issue_us[b->issued++] = at;
    if (strcmp(ts_json_text(ts_json_member(event, "cat"), ""), "device") != 0) return;
    b->moved += track > COMPUTE;
    if (track != COMPUTE) return;
    TEST_SAY(t, us >= 0 && at >= b->end_us, "%s: %g us from %g on, behind %g", name, us, at,
             b->end_us);
    b->end_us = at + us;
    b->sum_us += us;
    if (product && b->ran < PRODUCTS)
        TEST_SAY(t, at >= b->issue_us[b->ran], "product %d ran before it was issued", (int)b->ran);
    b->ran += product;
}

/* Work of a device has tracks of its own, by its own times: one after another, behind its issue. */
static void look_at_queues(test *t, const char *engine, bars rank[2])
{
    ts_json_document *document = trace_of(
        t, TS_OPTIONS(ts_world_options, .engine = engine, .rank_count = 2, .device = "queue"),
        products);
    const ts_json *events = ts_json_member(ts_json_root(document), "traceEvents");
    int64_t named = 0;
    for (int64_t i = 0; i < ts_json_count(events); i++) {
        const ts_json *event = ts_json_item(events, i);
        int64_t of = ts_json_int(ts_json_member(event, "pid"), 2);
        const ts_json *about = ts_json_member(event, "args");
        named += strcmp(ts_json_text(ts_json_member(about, "name"), ""), "queue compute") == 0;
        if (of < 2) look_at(t, &rank[of], event);
    }
    for (int r = 0; r < 2; r++) {
        TEST_EQ(t, rank[r].issued, PRODUCTS);
        TEST_EQ(t, rank[r].ran, PRODUCTS);
        TEST_CHECK(t, rank[r].sum_us > 0 && rank[r].sum_us <= rank[r].end_us - rank[r].issue_us[0]);
    }
    TEST_EQ(t, named, 2);
    ts_json_release(document);
}

/* Moves, too: of ranks that one device has by who came last, by NCCL each rank's own. */
TS_TEST(trace_has_the_times_of_queues)
{
    bars together[2] = { { 0 } }, apart[2] = { { 0 } };
    look_at_queues(t, "threads", together);
    TEST_CHECK(t, together[0].moved + together[1].moved > 0);
    setenv("TESSERA_NCCL", TS_BINARY_DIR "/tests/modules/libnccl_stub.so", 1);
    look_at_queues(t, "nccl", apart);
    TEST_CHECK(t, apart[0].moved > 0 && apart[0].moved == apart[1].moved);
}

/* ---- steps that run again -------------------------------------------------------------------- */
typedef struct again {
    ts_rank *me;
    ts_tensor *x;
    bool looks;
    const char *wanted; /* what is told of rank 0 */
    char text[4096];
} again;

/* Rank 1 looks until rank 0 is where it waits for it. */
static ts_status look_around(void *context)
{
    again *a = context;
    if (!a->looks) return TS_OK;
    a->looks = false;
    for (int i = 0; i < 5000; i++) {
        (void)ts_world_postmortem(ts_rank_world(a->me), a->text, sizeof a->text);
        if (strstr(a->text, a->wanted) != NULL) break;
        usleep(1000);
    }
    return TS_OK;
}

static ts_status two_products(void *context)
{
    again *a = context;
    ts_scope scope = ts_scope_open(a->me, "layers.3");
    ts_status status =
        tsi_keep_work(a->me, (tsi_kept_work){ look_around, a, NULL, &tsi_kept_fence });
    ts_tensor *y = ts_matmul(ts_tanh(a->x), a->x);
    (void)ts_matmul(ts_redistribute(ts_redistribute(y, "S(0)"), "R"), a->x);
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

static int64_t products_since(test *t, uint64_t since)
{
    ts_times times = TS_INIT(ts_times);
    TEST_OK(t, ts_rank_times(t->me, since, &times));
    for (int64_t i = 0; i < times.op_count; i++)
        if (strcmp(times.op[i].name, "matmul") == 0) {
            TEST_TEXT(t, times.module[0].name, "layers.3");
            return times.op[i].count;
        }
    return 0;
}

/* A replay says what it is at; its operators leave events where somebody wants them. */
TS_TEST_RANKS(replays_say_what_they_do, 2)
{
    static again both[2];
    again *a = &both[ts_rank_index(t->me)];
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    *a = (again){ .me = t->me, .x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4, 4), "R") };
    bool apart = strcmp(t->engine, "mpi") == 0; /* of another process the engine knows operations */
    a->wanted = apart ? "rank 0 is in exchange" : "rank 0: in step at exchange";
    ts_step *step = ts_step_record(t->me, two_products, a);
    bool graphs = !tsi_rank_device_of(t->me)->device->host_readable; /* have them without names */
    TEST_CHECK(t, step != NULL);
    uint64_t since = ts_rank_event(t->me);
    a->looks = ts_rank_index(t->me) == 1 && !graphs;
    bool looked = a->looks;
    TEST_OK(t, ts_step_replay(step));
    TEST_EQ(t, products_since(t, since), 0);
    if (looked) TEST_SAYS(t, a->text, "rank 1: in step at tanh \"layers.3\" (");
    if (looked) TEST_SAYS(t, a->text, a->wanted);
    since = ts_rank_event(t->me);
    TEST_OK(t, ts_rank_trace_begin(t->me));
    TEST_OK(t, ts_step_replay(step));
    TEST_OK(t, ts_rank_trace_end(t->me));
    if (!graphs) TEST_EQ(t, products_since(t, since), 2);
    since = ts_rank_event(t->me);
    TEST_OK(t, ts_step_replay(step));
    TEST_EQ(t, products_since(t, since), 0);
    TEST_STATUS(t, ts_rank_trace_end(t->me), TS_ERR_STATE);
    TEST_OK(t, ts_rank_recover(t->me));
    ts_step_destroy(step);
}

TS_TEST(trace_refused)
{
    ts_world *world = NULL;
    TEST_OK(t, ts_world_open(TS_OPTIONS(ts_world_options, .engine = "threads", .rank_count = 1),
                             &world));
    TEST_STATUS(t, ts_world_trace(world, "/no/such/place/trace.json"), TS_ERR_IO);
    TEST_SAYS(t, ts_last_error(), "/no/such/place/trace.json");
    TEST_STATUS(t, ts_world_trace(NULL, "x"), TS_ERR_NULL);
    ts_world_close(world);
}

/* ---- the post-mortem ------------------------------------------------------------------------- */
TS_TEST_RANKS(postmortem_of_a_world, 2, 4)
{
    char text[4096];
    ts_group *world = ts_group_world(t->me);
    TEST_OK(t, ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .name = "the last thing")));
    size_t length = ts_world_postmortem(ts_rank_world(t->me), text, sizeof text);
    TEST_EQ(t, length, strlen(text));
    TEST_SAYS(t, text, "post-mortem of");
    TEST_SAYS(t, text, "barrier \"the last thing\" #1");
    TEST_OK(t, ts_group_barrier(world, NULL));
}

/* Every scope has its row; those beyond the table are others, not the last one's. */
TS_TEST_RANKS(times_of_many_scopes, 1)
{
    static ts_times times;
    ts_mesh *mesh = ts_mesh_self(t->me);
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(4), NULL);
    memset(&times, 0, sizeof times);
    times.struct_size = sizeof times;
    for (int k = 0; k < 1200; k++) {
        char label[32];
        (void)snprintf(label, sizeof label, "layers.%d", k);
        uint64_t since = ts_rank_event(t->me);
        ts_scope scope = ts_scope_open(t->me, label);
        (void)ts_neg(x);
        ts_scope_close(scope);
        TEST_OK(t, ts_rank_times(t->me, since, &times));
    }
    TEST_EQ(t, times.module_count, TS_TIMES_MAX);
    TEST_TEXT(t, times.module[200].name, "layers.200");
    TEST_EQ(t, times.module[200].count, 1);
    TEST_TEXT(t, times.module[TS_TIMES_MAX - 1].name, "others");
    TEST_EQ(t, times.module[TS_TIMES_MAX - 1].count, 1200 - (TS_TIMES_MAX - 1));
    TEST_EQ(t, times.lost, 0);
}
