/* SPDX-License-Identifier: Apache-2.0 */
/* array_dlpack.c - arrays through DLPack and back, and tensors as other libraries make them. */
#include "array/dlpack_abi.h"
#include "unit/array_util.h"

TS_TEST(dlpack_abi_sizes)
{
    TEST_EQ(t, sizeof(DLTensor), 48);
    TEST_EQ(t, offsetof(DLTensor, dtype), 20);
    TEST_EQ(t, offsetof(DLTensor, byte_offset), 40);
    TEST_EQ(t, sizeof(DLManagedTensorVersioned), 80);
    TEST_EQ(t, offsetof(DLManagedTensorVersioned, flags), 24);
    TEST_EQ(t, offsetof(DLManagedTensorVersioned, dl_tensor), 32);
}

TS_TEST(dlpack_round_trip)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    static const uint8_t want[TS_DTYPE_COUNT][2] = {
        [TS_DTYPE_F64] = { 2, 64 }, [TS_DTYPE_F32] = { 2, 32 }, [TS_DTYPE_BF16] = { 4, 16 },
        [TS_DTYPE_F16] = { 2, 16 }, [TS_DTYPE_I64] = { 0, 64 }, [TS_DTYPE_I32] = { 0, 32 },
        [TS_DTYPE_U8] = { 1, 8 },   [TS_DTYPE_BOOL] = { 6, 8 }, [TS_DTYPE_I16] = { 0, 16 },
        [TS_DTYPE_I8] = { 0, 8 },   [TS_DTYPE_C64] = { 5, 64 }, [TS_DTYPE_C128] = { 5, 128 },
    };
    for (int32_t dtype = 1; dtype < TS_DTYPE_COUNT; dtype++) {
        tsi_array *a = tsi_array_create(rank, (ts_dtype)dtype, &TS_SHAPE(4, 5));
        tsi_array *v = tsi_array_view(a, (ts_dtype)dtype, &TS_SHAPE(5, 2), (int64_t[]){ 1, 10 }, 5);
        DLManagedTensorVersioned *m = NULL;
        TEST_OK(t, tsi_array_to_dlpack(v, &m));
        TEST_EQ(t, m->version.major, 1);
        TEST_EQ(t, m->dl_tensor.device.device_type, 1);
        TEST_EQ(t, m->dl_tensor.dtype.code, want[dtype][0]);
        TEST_EQ(t, m->dl_tensor.dtype.bits, want[dtype][1]);
        TEST_EQ(t, m->dl_tensor.dtype.lanes, 1);
        TEST_EQ(t, m->dl_tensor.byte_offset, 5 * ts_dtype_size((ts_dtype)dtype));
        TEST_EQ(t, m->flags, 0);
        const void *data = tsi_array_data(v);
        tsi_array_release(a), tsi_array_release(v); /* the managed tensor holds the storage */
        tsi_array *back = tsi_array_from_dlpack(rank, m);
        TEST_CHECK(t, back && tsi_array_data(back) == data);
        TEST_EQ(t, back->dtype, dtype);
        TEST_CHECK(t, back->ndim == 2 && back->extent[0] == 5 && back->extent[1] == 2 &&
                          back->stride[0] == 1 && back->stride[1] == 10);
        tsi_array_release(back); /* calls the deleter */
        TEST_EQ(t, tsi_pool_used(tsi_pool_of(rank), -1).live, 0);
    }
    rank_close(t, world);
}

/* ---- tensors from elsewhere */

static int deleted;
static void count_deleted(DLManagedTensorVersioned *self)
{
    deleted += self != NULL;
}

static DLManagedTensorVersioned foreign(float *data, int32_t ndim, int64_t *shape, int64_t *strides)
{
    return (DLManagedTensorVersioned){
        .version = { 1, 3 }, /* a newer minor version only adds meanings */
        .deleter = count_deleted,
        .dl_tensor = { .data = data,
                       .device = { 1, 0 },
                       .ndim = ndim,
                       .dtype = { 2, 32, 1 },
                       .shape = shape,
                       .strides = strides },
    };
}

TS_TEST(dlpack_foreign_tensors)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    float data[12] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };
    int64_t shape[2] = { 2, 3 }, zero[2] = { 0, 0 };
    deleted = 0;
    DLManagedTensorVersioned m = foreign(data, 2, shape, NULL); /* strides NULL: contiguous */
    m.dl_tensor.byte_offset = 8;
    tsi_array *a = tsi_array_from_dlpack(rank, &m);
    TEST_CHECK(t, a && tsi_array_is_dense(a) && tsi_array_data(a) == data + 2);
    TEST_OK(t, tsi_array_fill(a, &(float){ -1 }));
    TEST_CHECK(t, data[1] == 1 && data[2] == -1 && data[7] == -1 && data[8] == 8);
    tsi_array_release(a);
    TEST_EQ(t, deleted, 1);

    m = foreign(data, 2, shape, zero); /* one element, repeated */
    a = tsi_array_from_dlpack(rank, &m);
    TEST_CHECK(t, a && a->extent[1] == 3 && a->stride[1] == 0 && a->storage->bytes == 4);
    tsi_array *copy = tsi_array_create(rank, TS_DTYPE_F32, &TS_SHAPE(2, 3));
    data[0] = 4;
    TEST_OK(t, tsi_array_copy(copy, a));
    TEST_CHECK(t, ((float *)tsi_array_data(copy))[5] == 4);
    tsi_array_release(copy), tsi_array_release(a);

    m = foreign(data, 2, shape, NULL);
    m.flags = TSI_DL_FLAG_READ_ONLY;
    a = tsi_array_from_dlpack(rank, &m);
    TEST_STATUS(t, tsi_array_fill(a, &(float){ 0 }), TS_ERR_ARG);
    TEST_SAYS(t, take_error(rank), "read-only");
    DLManagedTensorVersioned *again = NULL;
    TEST_OK(t, tsi_array_to_dlpack(a, &again));
    TEST_EQ(t, again->flags, TSI_DL_FLAG_READ_ONLY);
    again->deleter(again);
    tsi_array_release(a);
    TEST_EQ(t, deleted, 3);
    rank_close(t, world);
}

TS_TEST(dlpack_refusals)
{
    ts_world *world;
    ts_rank *rank = rank_open(t, &world);
    float data[6] = { 0 };
    int64_t shape[9] = { 2, 3, 1, 1, 1, 1, 1, 1, 1 }, negative[1] = { -4 };
    deleted = 0;
    DLManagedTensorVersioned m = foreign(data, 2, shape, NULL);
    m.version.major = 2;
    TEST_CHECK(t, tsi_array_from_dlpack(rank, &m) == NULL);
    TEST_SAYS(t, take_error(rank), "version 2.3");
    m = foreign(data, 2, shape, NULL);
    m.dl_tensor.device.device_type = 2;
    TEST_CHECK(t, tsi_array_from_dlpack(rank, &m) == NULL);
    TEST_SAYS(t, take_error(rank), "device type 2");
    m = foreign(data, 2, shape, NULL);
    m.dl_tensor.dtype.lanes = 4;
    TEST_CHECK(t, tsi_array_from_dlpack(rank, &m) == NULL);
    TEST_SAYS(t, take_error(rank), "4 lanes");
    m = foreign(data, 9, shape, NULL);
    TEST_CHECK(t, tsi_array_from_dlpack(rank, &m) == NULL);
    TEST_SAYS(t, take_error(rank), "9 dims");
    m = foreign(data, 1, negative, NULL);
    TEST_CHECK(t, tsi_array_from_dlpack(rank, &m) == NULL);
    TEST_SAYS(t, take_error(rank), "-4");
    int64_t huge[2] = { INT64_C(1) << 61, 64 }, repeats[2] = { 0, 0 };
    m = foreign(data, 2, huge, repeats); /* one element, as often as nobody can count */
    TEST_CHECK(t, tsi_array_from_dlpack(rank, &m) == NULL);
    TEST_SAYS(t, take_error(rank), "overflows 64 bits");
    TEST_CHECK(t, tsi_array_from_dlpack(rank, NULL) == NULL);
    TEST_SAYS(t, take_error(rank), "NULL");
    m = foreign(data, 2, shape, NULL);
    tsi_array *a = tsi_array_from_dlpack(rank, &m);
    TEST_CHECK(t, a && tsi_array_from_dlpack(rank, &m) == NULL); /* it has one owner */
    TEST_SAYS(t, take_error(rank), "was given before");
    tsi_array_release(a);
    TEST_EQ(t, deleted, 1); /* what was refused stays the caller's */
    DLManagedTensorVersioned *out = &m;
    TEST_STATUS(t, tsi_array_to_dlpack(NULL, &out), TS_ERR_NULL);
    TEST_CHECK(t, out == NULL);
    rank_close(t, world);
}
