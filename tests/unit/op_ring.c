/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of attention on memory that the host cannot read: the bits of the host's whoever moves the
 * keys and whoever computes, in every run; a message for each step, and while a step is computed
 * the next one's keys come. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/rank.h"
#include "comm/comm.h"
#include "device/device.h"
#include "device/queue.h"
#include "harness/test.h"
#include "tessera/tessera.h"

typedef struct setting {
    const char *mask, *place;
    ts_dtype dtype;
    int64_t size[7]; /* B, H, G, T, S, D, E */
} setting;

static const setting settings[] = {
    { "full", "cp:S(2)", TS_DTYPE_F32, { 1, 2, 2, 37, 37, 8, 5 } },
    { "causal", "cp:HT(2)", TS_DTYPE_BF16, { 2, 8, 2, 37, 37, 8, 8 } },
    { "causal", "cp:S(2)", TS_DTYPE_F64, { 1, 4, 1, 29, 41, 4, 4 } },
    { "causal & window(9, 0)", "cp:HT(2)", TS_DTYPE_F32, { 1, 4, 2, 37, 37, 4, 4 } },
    { "window(3, 5)", "cp:S(2)", TS_DTYPE_BF16, { 2, 2, 2, 31, 31, 8, 4 } },
    { "causal & documents(11, 2, 24; 30, 7)", "cp:HT(2)", TS_DTYPE_F32, { 2, 6, 3, 37, 37, 4, 4 } },
    { "documents(20, 17) + softcap(2) + alibi",
      "cp:S(2)",
      TS_DTYPE_F64,
      { 1, 4, 2, 37, 37, 4, 4 } },
    { "causal", "cp:S(2)", TS_DTYPE_F32, { 1, 4, 4, 3, 3, 4, 4 } },
};
enum { RESULTS = 5, SIZE = 1 << 15 }; /* out, lse, dq, dk, dv; numbers of one world */

typedef struct answers {
    double value[SIZE];
    int64_t count;
    int64_t messages[2]; /* of the first setting, forward and backward */
} answers;

static ts_tensor *numbers(ts_mesh *mesh, const setting *s, ts_shape shape)
{
    return ts_cast(ts_randn(mesh, TS_DTYPE_F64, shape, s->place), s->dtype);
}

static int64_t messages_since(const ts_rank *me, uint64_t since)
{
    ts_counts counts = TS_INIT(ts_counts);
    if (ts_rank_counts(me, since, &counts) != TS_OK) return -1;
    for (int64_t i = 0; i < counts.row_count; i++)
        if (strcmp(counts.row[i].kind, "exchange") == 0) return counts.row[i].count;
    return 0;
}

/* Forward and backward; `messages` of each. */
static void attend(ts_rank *me, ts_mesh *mesh, const setting *s, ts_tensor *out[RESULTS],
                   int64_t messages[2])
{
    const int64_t *n = s->size;
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.mask = ts_mask_get(ts_rank_world(me), s->mask);
    options.algorithm = TS_ATTENTION_RING;
    ts_attention_saved saved = TS_INIT(ts_attention_saved);
    saved.q = numbers(mesh, s, TS_SHAPE(n[0], n[1], n[3], n[5]));
    saved.k = numbers(mesh, s, TS_SHAPE(n[0], n[2], n[4], n[5]));
    saved.v = numbers(mesh, s, TS_SHAPE(n[0], n[2], n[4], n[6]));
    saved.d_o = numbers(mesh, s, TS_SHAPE(n[0], n[1], n[3], n[6]));
    uint64_t since = ts_rank_event(me);
    ts_attention_lse(saved.q, saved.k, saved.v, &options, out);
    saved.o = out[0];
    saved.lse = out[1];
    messages[0] = messages_since(me, since);
    since = ts_rank_event(me);
    ts_attention_backward(&saved, &options, out + 2);
    messages[1] = messages_since(me, since);
}

/* The whole of a result, kept by the first rank. */
static void keep(ts_rank *me, ts_tensor *part, answers *to)
{
    ts_tensor *whole = ts_cast(ts_tensor_full(part), TS_DTYPE_F64);
    if (!whole || ts_rank_index(me) != 0) return;
    ts_array host = TS_INIT(ts_array);
    host.meta = (ts_meta){ .shape = ts_tensor_shape(whole), .dtype = TS_DTYPE_F64 };
    host.data = to->value + to->count;
    to->count += ts_shape_count(&host.meta.shape);
    TSI_ASSERT(to->count <= SIZE);
    (void)ts_tensor_read(whole, &host);
}

static ts_status attend_all(ts_rank *me, void *argument)
{
    answers *to = argument;
    char text[16];
    (void)snprintf(text, sizeof text, "cp=%d", (int)ts_rank_count(me));
    ts_mesh *mesh = ts_mesh_create(me, text);
    tsi_comm_lend_nothing(me, true);
    for (size_t i = 0; i < TSI_COUNT_OF(settings); i++) {
        ts_scope scope = ts_scope_open(me, "ring");
        ts_tensor *out[RESULTS] = { NULL };
        int64_t messages[2];
        attend(me, mesh, &settings[i], out, messages);
        if (i == 0 && ts_rank_index(me) == 0) memcpy(to->messages, messages, sizeof messages);
        for (int r = 0; r < RESULTS; r++)
            keep(me, out[r], to);
        ts_scope_close(scope);
    }
    ts_mesh_release(mesh);
    return ts_rank_status(me);
}

static void run_on(test *t, const char *device, const char *engine, int ranks, ts_work_fn fn,
                   void *argument)
{
    char error[1024] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = engine;
    options.device = device;
    options.rank_count = ranks;
    options.timeout_ms = 60000;
    ts_status status = ts_launch_with(&options, fn, argument, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%d ranks on %s, %s: %s", ranks, device, engine, error);
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* A queue that has no kernels: the host computes on images. */
static void add_bare(void)
{
    static tsi_device bare;
    bare = *tsi_device_queue();
    bare.name = bare.kind = "bare";
    bare.defer = NULL;
    if (tsi_device_add(&bare) != TS_OK) abort();
}

TS_TEST(rings_have_the_bits_of_the_host)
{
    static const struct {
        const char *device, *engine;
    } ways[] = {
        { "cpu", "threads" }, { "queue", "threads" }, { "queue", "nccl" }, { "bare", "threads" }
    };
    static answers of[TSI_COUNT_OF(ways)];
    setenv("TESSERA_NCCL", TS_BINARY_DIR "/tests/modules/libnccl_stub.so", 1);
    add_bare();
    for (int ranks = 2; ranks <= 4; ranks++)
        for (size_t w = 0; w < TSI_COUNT_OF(ways); w++) {
            memset(&of[w], 0, sizeof of[w]);
            run_on(t, ways[w].device, ways[w].engine, ranks, attend_all, &of[w]);
            TEST_SAY(t,
                     of[w].count > 0 && memcmp(of[w].value, of[0].value, sizeof of[0].value) == 0,
                     "%d ranks on %s, %s: other bits than the host's", ranks, ways[w].device,
                     ways[w].engine);
            TEST_EQ(t, of[w].messages[0], ranks - 1);       /* keys */
            TEST_EQ(t, of[w].messages[1], 2 * (ranks - 1)); /* and gradients that go home */
        }
}

/* ---- again ----------------------------------------------------------------------------------- */

typedef struct again {
    ts_rank *me;
    ts_tensor *x, *kept[RESULTS];
} again;

static ts_status ring_step(void *context)
{
    const again *a = context;
    ts_scope scope = ts_scope_open(a->me, "step");
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.algorithm = TS_ATTENTION_RING;
    options.causal = 1;
    ts_tensor *out[RESULTS] = { NULL };
    (void)ts_attention_lse(a->x, a->x, a->x, &options, out);
    ts_attention_saved saved = { sizeof saved, a->x, a->x, a->x, out[0], out[1], a->x, NULL };
    (void)ts_attention_backward(&saved, &options, out + 2);
    ts_status status = ts_foreach_copy((ts_list){ a->kept, RESULTS }, (ts_list){ out, RESULTS });
    ts_status closed = ts_scope_close(scope);
    return status == TS_OK ? closed : status;
}

static double difference(ts_tensor *a, ts_tensor *b)
{
    double value = -1;
    (void)ts_tensor_item(ts_amax(ts_abs(ts_sub(a, b)), NULL, 0, 0), &value);
    return value;
}

/* With other values of its inputs a recorded ring gives what it gives when it is called. */
static ts_status attend_again(ts_rank *me, void *argument)
{
    int *unequal = argument;
    ts_mesh *mesh = ts_mesh_create(me, "cp=3");
    again a = { .me = me, .x = ts_randn(mesh, TS_DTYPE_F32, TS_SHAPE(1, 4, 37, 8), "cp:HT(2)") };
    ts_tensor *other = ts_randn(mesh, TS_DTYPE_F32, TS_SHAPE(1, 4, 37, 8), "cp:HT(2)");
    ts_tensor *called[RESULTS], *zero[RESULTS];
    for (int i = 0; i < RESULTS; i++)
        a.kept[i] = i == 1 ? ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(1, 4, 37), "cp:HT(2)")
                           : ts_zeros_like(a.x);
    ts_step *step = ts_step_record(me, ring_step, &a);
    if (!step) return ts_rank_status(me);
    TSI_TRY(ts_foreach_copy((ts_list){ &a.x, 1 }, (ts_list){ &other, 1 }));
    TSI_TRY(ring_step(&a));
    for (int i = 0; i < RESULTS; i++) {
        called[i] = ts_clone(a.kept[i]);
        zero[i] = ts_zeros_like(a.kept[i]);
    }
    TSI_TRY(ts_foreach_copy((ts_list){ a.kept, RESULTS }, (ts_list){ zero, RESULTS }));
    TSI_TRY(ts_step_replay(step));
    for (int i = 0; i < RESULTS; i++)
        unequal[ts_rank_index(me)] += difference(a.kept[i], called[i]) != 0;
    ts_step_destroy(step);
    ts_mesh_release(mesh);
    return ts_rank_status(me);
}

TS_TEST(rings_are_recorded)
{
    for (int device = 0; device < 2; device++) {
        int unequal[3] = { 0 };
        run_on(t, device ? "queue" : "cpu", "threads", 3, attend_again, unequal);
        TEST_EQ(t, unequal[0] + unequal[1] + unequal[2], 0);
    }
}

/* ---- at the same time ------------------------------------------------------------------------ */

enum { RANKS = 3, STEPS = RANKS - 1 };

/* `queue` under another name, on which each kernel of a ring ends when the keys of the next step
 * are there. */
static struct {
    tsi_device device, base;
    atomic_int armed, moved, late;
} gated;

typedef struct held {
    tsi_deferred_fn fn;
    void *context;
    void (*destroy)(void *context);
    int number; /* of the rank's kernels */
} held;

static _Thread_local int kernels;

static ts_status held_run(void *context)
{
    const held *h = context;
    const struct timespec moment = { .tv_nsec = 100000 };
    int wanted = h->number < STEPS ? h->number : STEPS, left = 100000;
    while (atomic_load(&gated.moved) < wanted && left-- > 0)
        (void)nanosleep(&moment, NULL);
    if (left < 0) atomic_store(&gated.late, 1);
    return h->fn(h->context);
}

static void held_destroy(void *context)
{
    held *h = context;
    if (h->destroy) h->destroy(h->context);
    tsi_free(h);
}

static ts_status gated_defer(const tsi_device *device, tsi_stream *stream, tsi_deferred_fn fn,
                             void *context, void (*destroy)(void *context))
{
    held *h = tsi_alloc(sizeof *h);
    if (!h) abort();
    *h = (held){ fn, context, destroy, atomic_load(&gated.armed) ? ++kernels : 0 };
    return gated.base.defer(device, stream, held_run, h, held_destroy);
}

static ts_status has_moved(void *context)
{
    (void)context;
    atomic_fetch_add(&gated.moved, 1);
    return TS_OK;
}

static ts_status gated_list(const tsi_device *device, const tsi_block *to, const tsi_block *from,
                            int64_t count, tsi_stream *stream)
{
    ts_status status = gated.base.copy_list(device, to, from, count, stream);
    if (status != TS_OK || !atomic_load(&gated.armed)) return status;
    return gated.base.defer(device, stream, has_moved, NULL, NULL);
}

static void add_gated(void)
{
    gated.base = *tsi_device_queue();
    gated.device = gated.base;
    gated.device.name = gated.device.kind = "gated";
    gated.device.defer = gated_defer;
    gated.device.copy_list = gated_list;
    if (tsi_device_add(&gated.device) != TS_OK) abort();
}

static ts_status arm(ts_rank *me)
{
    TSI_TRY(ts_rank_sync(me));
    TSI_TRY(ts_group_barrier(ts_group_world(me), NULL));
    kernels = 0;
    atomic_store(&gated.moved, 0);
    atomic_store(&gated.armed, 1);
    return ts_group_barrier(ts_group_world(me), NULL);
}

static ts_status disarm(ts_rank *me)
{
    TSI_TRY(ts_rank_sync(me));
    TSI_TRY(ts_group_barrier(ts_group_world(me), NULL));
    atomic_store(&gated.armed, 0);
    return ts_group_barrier(ts_group_world(me), NULL);
}

static ts_status attend_gated(ts_rank *me, void *argument)
{
    (void)argument;
    ts_mesh *mesh = ts_mesh_create(me, "cp=3");
    ts_tensor *x = ts_randn(mesh, TS_DTYPE_F32, TS_SHAPE(1, 2, 24, 8), "cp:S(2)"), *out[RESULTS];
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.algorithm = TS_ATTENTION_RING;
    TSI_TRY(arm(me));
    TSI_TRY(ts_attention_lse(x, x, x, &options, out));
    TSI_TRY(disarm(me));
    ts_attention_saved saved = { sizeof saved, x, x, x, out[0], out[1], x, NULL };
    TSI_TRY(arm(me));
    TSI_TRY(ts_attention_backward(&saved, &options, out + 2));
    TSI_TRY(disarm(me));
    ts_mesh_release(mesh);
    return ts_rank_status(me);
}

TS_TEST(rings_move_while_they_compute)
{
    add_gated();
    run_on(t, "gated", "threads", RANKS, attend_gated, NULL);
    TEST_CHECK(t, !atomic_load(&gated.late));
    TEST_CHECK(t, atomic_load(&gated.moved) >= STEPS);
}
