/* SPDX-License-Identifier: Apache-2.0 */
/* errors.c - what a GPU finds wrong is told in the host's words: labels and indices out of range,
 * memory that is not there. */
#include "gpu/gpu.h"

#include "tessera/op.h"
#include "tessera/tensor.h"

static ts_tensor *whole(ts_mesh *m, int64_t value, ts_shape shape)
{
    return ts_full_number(ts_number_int(value), m, TS_DTYPE_I64, shape, NULL);
}

static ts_status bad_label(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    (void)ts_cross_entropy(ts_ones(m, TS_DTYPE_F32, TS_SHAPE(3, 5), NULL),
                           whole(m, 7, TS_SHAPE(3)));
    return ts_rank_sync(me);
}

static ts_status bad_index(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    (void)ts_embedding(ts_ones(m, TS_DTYPE_BF16, TS_SHAPE(4, 8), NULL), whole(m, -2, TS_SHAPE(3)));
    return ts_rank_sync(me);
}

static ts_status bad_gradient(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    (void)ts_embedding_backward(ts_ones(m, TS_DTYPE_F32, TS_SHAPE(3, 8), NULL),
                                whole(m, 9, TS_SHAPE(3)), 9);
    return ts_rank_sync(me);
}

static ts_status bad_group(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    (void)ts_grouped_linear(ts_ones(m, TS_DTYPE_F32, TS_SHAPE(3, 4), NULL),
                            ts_ones(m, TS_DTYPE_F32, TS_SHAPE(2, 6, 4), NULL),
                            whole(m, 2, TS_SHAPE(3)));
    return ts_rank_sync(me);
}

static ts_status bad_end(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    (void)ts_grouped_mm(ts_ones(m, TS_DTYPE_F32, TS_SHAPE(3, 4), NULL),
                        ts_ones(m, TS_DTYPE_F32, TS_SHAPE(2, 4, 6), NULL),
                        whole(m, 5, TS_SHAPE(2)));
    return ts_rank_sync(me);
}

static ts_status bad_class(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    (void)ts_nll_loss(ts_ones(m, TS_DTYPE_F32, TS_SHAPE(3, 5), NULL), whole(m, 5, TS_SHAPE(3)),
                      NULL);
    return ts_rank_sync(me);
}

static ts_status bad_put(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    ts_tensor *at[] = { whole(m, -6, TS_SHAPE(3)) };
    (void)ts_index_put(ts_ones(m, TS_DTYPE_F32, TS_SHAPE(5), NULL),
                       ts_ones(m, TS_DTYPE_F32, TS_SHAPE(3), NULL),
                       TS_OPTIONS(ts_index_options, .index = at, .count = 1, .accumulate = 1));
    return ts_rank_sync(me);
}

static ts_status bad_scatter(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    ts_tensor *x = ts_ones(m, TS_DTYPE_F32, TS_SHAPE(5), NULL);
    (void)ts_scatter_(x, 0, whole(m, -1, TS_SHAPE(3)),
                      ts_zeros(m, TS_DTYPE_F32, TS_SHAPE(3), NULL));
    return ts_rank_sync(me);
}

static ts_status bad_count(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    (void)ts_bincount(whole(m, -3, TS_SHAPE(4)), NULL, 8);
    return ts_rank_sync(me);
}

static ts_status no_memory(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *m = ts_mesh_self(me);
    (void)ts_ones(m, TS_DTYPE_F32, TS_SHAPE(1 << 20), NULL);
    (void)ts_zeros(m, TS_DTYPE_F32, TS_SHAPE(1 << 20, 1 << 20), NULL);
    return ts_rank_status(me);
}

/* What did not fit is no fault of the GPU: the rank goes on. */
static ts_status recovers(ts_rank *me, void *context)
{
    test *t = context;
    ts_mesh *m = ts_mesh_self(me);
    double sum = 0;
    TEST_STATUS(t, no_memory(me, NULL), TS_ERR_MEMORY);
    TEST_OK(t, ts_rank_recover(me));
    TEST_OK(t, ts_tensor_item(ts_sum(ts_ones(m, TS_DTYPE_F32, TS_SHAPE(1000), NULL), NULL, 0, 0),
                              &sum));
    TEST_CHECK(t, sum == 1000);
    return ts_rank_status(me);
}

TS_TEST(a_rank_recovers_from_memory_that_is_not_there)
{
    char error[1024] = "";
    ts_world_options options = TS_INIT(ts_world_options);
    options.rank_count = 1;
    options.device = "cuda";
    TEST_SAY(t, ts_launch_with(&options, recovers, t, error, sizeof error) == TS_OK, "%s", error);
}

static ts_status adds(ts_rank *me, void *context)
{
    (void)context;
    ts_mesh *mesh = ts_mesh_create(me, "x=*");
    ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(64, 64), "S(0)");
    for (int i = 0; i < 40 && ts_rank_status(me) == TS_OK; i++)
        x = ts_tensor_full(ts_redistribute(ts_mul_scalar(ts_add(x, x), 0.5), "S(1)"));
    return ts_rank_sync(me);
}

/* A GPU that is gone ends all ranks with a sentence; nobody waits for it. */
TS_TEST(a_gpu_that_falls_off_is_told)
{
    char error[2048] = "";
    (void)setenv("TESSERA_CUDA_FAULT", "60", 1);
    for (int64_t ranks = 3; ranks > 0; ranks -= 2) { /* the second time it is gone at once */
        ts_world_options options = TS_INIT(ts_world_options);
        options.rank_count = ranks;
        options.device = "cuda";
        ts_status status = ts_launch_with(&options, adds, NULL, error, sizeof error);
        TEST_SAY(t, status == TS_ERR_LOST, "%s: %s", ts_status_name(status), error);
        TEST_SAYS(t, error, "cuda:0");
        TEST_SAYS(t, error, "CUDA_ERROR_DEVICE_UNAVAILABLE");
    }
}

TS_TEST(errors_are_the_hosts)
{
    static const struct {
        ts_work_fn work;
        ts_status status;
        const char *says[3];
    } cases[] = {
        { bad_label, TS_ERR_ARG, { "cross_entropy: label 7 is out of range for 5 classes" } },
        { bad_index, TS_ERR_ARG, { "embedding: index -2 is out of range for 4 rows" } },
        { bad_gradient, TS_ERR_ARG, { "embedding_backward: index 9 is out of range for 9 rows" } },
        { bad_group, TS_ERR_ARG, { "grouped_linear: group 2 is out of range for 2 groups" } },
        { bad_end, TS_ERR_ARG, { "grouped_mm: group 0 ends at row 5, which is not in 0 .. 3" } },
        { bad_class, TS_ERR_ARG, { "nll_loss: label 5 is out of range for 5 classes" } },
        { bad_put, TS_ERR_ARG, { "index_put: index -6 is out of range for extent 5" } },
        { bad_scatter, TS_ERR_ARG, { "scatter: index -1 is out of range for extent 5" } },
        { bad_count, TS_ERR_ARG, { "bincount: -3 is not in 0 .. 7" } },
        { no_memory, TS_ERR_MEMORY, { "4398046511104 bytes", "on cuda:0", "in use" } },
    };
    (void)setenv("TESSERA_FALLBACK", "forbid", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char error[1024] = "";
        ts_status status =
            ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .device = "cuda"),
                           cases[i].work, NULL, error, sizeof error);
        TEST_SAY(t, status == cases[i].status, "case %d: %s, not %s: %s", (int)i,
                 ts_status_name(status), ts_status_name(cases[i].status), error);
        for (int k = 0; k < 3 && cases[i].says[k]; k++)
            TEST_SAYS(t, error, cases[i].says[k]);
    }
}
