/* SPDX-License-Identifier: Apache-2.0 */
/* device_streams.c - memory of a device and streams that belong to another library of the program:
 * tensors by DLPack both ways, who waits for whom, and a rank that works in the program's stream.
 * On the device that tests run on, on `queue` where that is the cpu. */
#include <stdlib.h>
#include <string.h>

#include "array/dlpack_abi.h"
#include "device/device.h"
#include "harness/test.h"
#include "runtime/module_load.h"
#include "tessera/tessera.h"

enum { NUMBERS = 1 << 18, TIMES = 100 };

/* ---- the other library ----------------------------------------------------------------------- */

typedef struct library {
    test *t;
    const tsi_device *device;
    tsi_stream *stream;
    void *handle; /* of the stream */
    tsi_block block;
    int64_t extent;
    DLManagedTensorVersioned managed;
    int deleted;
} library;

/* Many times, so that it lasts; `number` is what stays. */
static void write_slowly(library *l, float number)
{
    for (int i = 1; i <= TIMES; i++) {
        float element = i < TIMES ? -1 : number;
        TEST_OK(l->t, l->device->fill(l->device, &l->block, &element, l->stream));
    }
}

/* What comes back to its owner is used for something else at once. */
static void take_back(DLManagedTensorVersioned *managed)
{
    library *l = managed->manager_ctx;
    float other = -7;
    l->deleted++;
    TEST_OK(l->t, l->device->fill(l->device, &l->block, &other, l->stream));
    TEST_OK(l->t, l->device->stream_sync(l->device, l->stream));
}

static library library_open(test *t, const tsi_device *device)
{
    library l = { .t = t, .device = device, .extent = NUMBERS };
    l.block = (tsi_block){ .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { NUMBERS } };
    l.block.stride[0] = 1;
    TEST_OK(t, device->stream_create(device, &l.stream));
    TEST_OK(t, device->buffer_alloc(device, NUMBERS * sizeof(float), &l.block.data));
    l.handle = device->stream_handle(device, l.stream);
    return l;
}

static void library_close(library *l)
{
    l->device->buffer_free(l->device, l->block.data, NUMBERS * sizeof(float));
    l->device->stream_destroy(l->device, l->stream);
}

static DLManagedTensorVersioned *lend(library *l)
{
    l->managed = (DLManagedTensorVersioned){
        .version = { 1, 0 },
        .manager_ctx = l,
        .deleter = take_back,
        .dl_tensor = { .data = l->block.data,
                       .device = { l->device->dlpack_type, l->device->ordinal },
                       .ndim = 1,
                       .dtype = { TSI_DL_FLOAT, 32, 1 },
                       .shape = &l->extent },
    };
    return &l->managed;
}

/* ---- a program that has both ----------------------------------------------------------------- */

static const char *device_name(void)
{
    const char *name = getenv("TESSERA_DEVICE");
    return name && strcmp(name, "cpu") != 0 ? name : "queue";
}

/* Work on one rank, whose device the library has, too. */
static void play(test *t, ts_work_fn work, bool in_its_stream)
{
    char error[512] = "";
    const tsi_device *device = NULL;
    TEST_OK(t, tsi_module_device(device_name(), &device));
    library l = library_open(t, device);
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 1;
    options.device = device->name;
    options.cuda_stream = in_its_stream ? l.handle : NULL;
    ts_status status = ts_launch_with(&options, work, &l, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
    write_slowly(&l, 1); /* a stream that was lent is still there */
    TEST_OK(t, device->stream_sync(device, l.stream));
    library_close(&l);
}

static void expect_sum(test *t, ts_tensor *x, double number)
{
    double sum = 0;
    TEST_OK(t, ts_tensor_item(ts_sum(x, NULL, 0, 0), &sum));
    TEST_SAY(t, sum == number * NUMBERS, "the sum is %g, not %g", sum, number * NUMBERS);
}

static ts_status take_from_stream(ts_rank *me, void *argument)
{
    library *l = argument;
    for (int i = 0; i < 3; i++) {
        ts_scope scope = ts_scope_open(me, NULL);
        write_slowly(l, (float)i);
        ts_tensor *x = ts_from_dlpack_on(me, lend(l), l->handle);
        ts_array view = TS_INIT(ts_array);
        TEST_OK(l->t, ts_tensor_view(x, &view));
        TEST_CHECK(l->t, view.data == l->block.data && view.device == l->device->dlpack_type);
        expect_sum(l->t, x, i);
        TEST_OK(l->t, ts_scope_close(scope));
        TEST_EQ(l->t, l->deleted, i + 1);
    }
    return ts_rank_status(me);
}

TS_TEST(a_rank_waits_for_who_wrote)
{
    play(t, take_from_stream, false);
}

static ts_status give_to_stream(ts_rank *me, void *argument)
{
    library *l = argument;
    float first = 0;
    ts_tensor *x = ts_zeros(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(NUMBERS), NULL);
    for (int i = 0; i < TIMES; i++)
        x = ts_add_scalar(x, 1);
    DLManagedTensorVersioned *managed = NULL;
    TEST_OK(l->t, ts_tensor_dlpack_on(x, l->handle, &managed));
    const DLTensor *given = &managed->dl_tensor;
    TEST_EQ(l->t, given->device.device_type, l->device->dlpack_type);
    TEST_EQ(l->t, given->device.device_id, l->device->ordinal);
    tsi_block from = l->block;
    from.data = (char *)given->data + given->byte_offset;
    TEST_OK(l->t, l->device->copy(l->device, &l->block, &from, l->stream));
    TEST_OK(l->t, l->device->copy_out(l->device, &first, l->block.data, sizeof first, l->stream));
    TEST_OK(l->t, l->device->stream_sync(l->device, l->stream));
    TEST_CHECK(l->t, first == TIMES);
    managed->deleter(managed);
    expect_sum(l->t, x, TIMES);
    return ts_rank_status(me);
}

TS_TEST(who_reads_waits_for_the_rank)
{
    play(t, give_to_stream, false);
}

/* Without a stream the host waits; what comes back is the same memory. */
static ts_status round_trip(ts_rank *me, void *argument)
{
    library *l = argument;
    ts_array before = TS_INIT(ts_array), after = TS_INIT(ts_array);
    ts_tensor *x = ts_full(3, ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(NUMBERS), NULL);
    DLManagedTensorVersioned *managed = NULL;
    TEST_OK(l->t, ts_tensor_view(x, &before));
    TEST_OK(l->t, ts_tensor_dlpack(x, &managed));
    ts_tensor_drop(x);
    ts_tensor *y = ts_from_dlpack(me, managed);
    TEST_OK(l->t, ts_tensor_view(y, &after));
    TEST_CHECK(l->t, before.data == after.data);
    expect_sum(l->t, y, 3);
    return ts_rank_status(me);
}

TS_TEST(memory_of_a_device_comes_back)
{
    play(t, round_trip, false);
}

/* The owner writes into memory that he gets back: what read it is done by then. */
static ts_status let_go(ts_rank *me, void *argument)
{
    library *l = argument;
    write_slowly(l, 1);
    ts_tensor *sum = ts_zeros(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(NUMBERS), NULL);
    ts_tensor *x = ts_from_dlpack_on(me, lend(l), l->handle);
    for (int i = 0; i < TIMES; i++)
        sum = ts_add(sum, x);
    ts_tensor_drop(x);
    TEST_EQ(l->t, l->deleted, 1);
    expect_sum(l->t, sum, TIMES);
    return ts_rank_status(me);
}

TS_TEST(owners_get_back_what_nothing_reads)
{
    play(t, let_go, false);
}

/* One stream: nobody has to be told to wait. */
static ts_status work_in_stream(ts_rank *me, void *argument)
{
    library *l = argument;
    const tsi_rank_device *mine = tsi_rank_device_of(me);
    TEST_CHECK(l->t, mine->device->stream_handle(mine->device, mine->queue) == l->handle);
    write_slowly(l, 2);
    ts_tensor *x = ts_from_dlpack(me, lend(l));
    ts_tensor *y = ts_add(x, x);
    write_slowly(l, 5); /* behind what read it */
    expect_sum(l->t, y, 4);
    expect_sum(l->t, x, 5);
    return ts_rank_status(me);
}

TS_TEST(a_rank_works_in_the_programs_stream)
{
    play(t, work_in_stream, true);
}

/* ---- bad input ------------------------------------------------------------------------------- */

static ts_status do_nothing(ts_rank *me, void *argument)
{
    (void)argument;
    return ts_rank_status(me);
}

static void refuse_world(test *t, const char *device, int64_t ranks, const char *words)
{
    char error[512] = "";
    int place;
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = ranks;
    options.device = device;
    options.cuda_stream = &place; /* nobody looks at it */
    TEST_STATUS(t, ts_launch_with(&options, do_nothing, NULL, error, sizeof error), TS_ERR_ARG);
    TEST_SAYS(t, error, words);
}

TS_TEST(streams_that_no_rank_can_have)
{
    refuse_world(t, "cpu", 1, "cuda_stream: device cpu has no streams of others");
    refuse_world(t, device_name(), 2, "cuda_stream: one rank can have it, and this process has 2");
}

static ts_status refuse_on_host(ts_rank *me, void *argument)
{
    test *t = argument;
    int place;
    float number[2] = { 1, 2 };
    int64_t extent = 1;
    DLManagedTensorVersioned *out = NULL, managed = {
        .version = { 1, 0 },
        .dl_tensor = { .data = number, .ndim = 1, .dtype = { TSI_DL_FLOAT, 32, 1 } },
    };
    managed.dl_tensor.shape = &extent;
    managed.dl_tensor.device = (DLDevice){ TSI_DL_CUDA, 1 };
    ts_scope scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_from_dlpack(me, &managed) == NULL);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
    TEST_SAYS(t, ts_rank_error(me)->text, "memory of device type 2 number 1, the rank's is cpu");
    managed.dl_tensor.device = (DLDevice){ TSI_DL_CPU, 0 };
    managed.dl_tensor.byte_offset = 2;
    scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_from_dlpack(me, &managed) == NULL);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
    TEST_SAYS(t, ts_rank_error(me)->text, "data is not where a f32 may begin");
    scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_from_dlpack_on(me, &managed, &place) == NULL);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
    TEST_SAYS(t, ts_rank_error(me)->text, "stream: device cpu has none of others");
    ts_tensor *x = ts_zeros(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(3), NULL);
    TEST_OK(t, ts_tensor_dlpack_on(x, NULL, &out));
    out->deleter(out);
    return ts_rank_status(me);
}

TS_TEST(the_host_has_no_streams)
{
    char error[512] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 1;
    options.device = "cpu";
    ts_status status = ts_launch_with(&options, refuse_on_host, t, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
}
