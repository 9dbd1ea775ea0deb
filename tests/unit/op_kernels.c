/* SPDX-License-Identifier: Apache-2.0 */
/* The one door to kernels: references do not borrow the fast product, and lists give the same bits
 * now, later in a queue, and as fallbacks of a device that has no kernels. */
#include <string.h>

#include "base/rank.h"
#include "device/queue.h"
#include "harness/test.h"
#include "op/core/kernel.h"
#include "tessera/tessera.h"

/* ---- references ------------------------------------------------------------------------------ */

/* 1e8 + 1 - 1e8 is 1 where sums are in double, as the loops have them, and 0 in f32. */
static float lost_one(const tsi_op_desc *op, const char *equation)
{
    float a[] = { 1e8f, 1, -1e8f }, b[] = { 1, 1, 1 }, c = -1;
    bool turned = op == &tsi_op_linear;
    ts_meta meta[] = { { .shape = TS_SHAPE(1, 3), .dtype = TS_DTYPE_F32 },
                       { .shape = turned ? TS_SHAPE(1, 3) : TS_SHAPE(3, 1), .dtype = TS_DTYPE_F32 },
                       { .shape = TS_SHAPE(1, 1), .dtype = TS_DTYPE_F32 } };
    void *data[] = { a, b, &c };
    tsi_operand operand[3];
    for (int i = 0; i < 3; i++) {
        const ts_shape *shape = &meta[i].shape;
        operand[i] = (tsi_operand){ .global = &meta[i] };
        operand[i].block = (tsi_block){ .data = data[i],
                                        .dtype = TS_DTYPE_F32,
                                        .ndim = 2,
                                        .extent = { shape->extent[0], shape->extent[1] },
                                        .stride = { shape->extent[1], 1 } };
    }
    char attributes[TSI_ATTRIBUTE_TEXT] = "";
    memcpy(attributes, equation, strlen(equation) + 1);
    tsi_kernel_io io = { .op = op,
                         .attributes = attributes,
                         .in = operand,
                         .out = operand + 2,
                         .input_count = 2,
                         .output_count = 1,
                         .device = tsi_device_host() };
    return op->reference(&io) == TS_OK ? c : -1;
}

TS_TEST(references_are_plain_loops)
{
    TEST_CHECK(t, lost_one(&tsi_op_matmul, "") == 1.0f);
    TEST_CHECK(t, lost_one(&tsi_op_mm, "") == 1.0f);
    TEST_CHECK(t, lost_one(&tsi_op_linear, "") == 1.0f);
    TEST_CHECK(t, lost_one(&tsi_op_einsum, "mk,kn->mn") == 1.0f);
}

/* ---- lists, three ways ----------------------------------------------------------------------- */

enum { N = 1000 };
typedef struct numbers {
    float param[N], first[N], second[N], plain[N];
    double norm;
} numbers;

static ts_status read_all(ts_tensor *x, float *to)
{
    ts_array host = TS_INIT(ts_array);
    host.meta = (ts_meta){ .shape = TS_SHAPE(N), .dtype = TS_DTYPE_F32 };
    host.data = to;
    return ts_tensor_read(x, &host);
}

static ts_status step(ts_rank *me, void *arg)
{
    numbers *to = arg;
    ts_mesh *mesh = ts_mesh_self(me);
    ts_tensor *x[4];
    for (int i = 0; i < 4; i++)
        x[i] = ts_rand(mesh, TS_DTYPE_F32, TS_SHAPE(N), NULL);
    ts_list list[4];
    for (int i = 0; i < 4; i++)
        list[i] = (ts_list){ &x[i], 1 };
    ts_adamw_update adamw = { .struct_size = sizeof adamw,
                              .param = list[0],
                              .grad = list[1],
                              .first = list[2],
                              .second = list[3],
                              .lr = 0.1,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .epsilon = 1e-8,
                              .weight_decay = 0.1,
                              .step = 3 };
    ts_sgd_update sgd = {
        .struct_size = sizeof sgd, .param = list[1], .grad = list[0], .lr = 0.01, .step = 1
    };
    if (ts_fused_adamw(&adamw) != TS_OK || ts_fused_sgd(&sgd) != TS_OK ||
        ts_foreach_norm_total((ts_list){ x, 4 }, &to->norm) != TS_OK ||
        read_all(x[0], to->param) != TS_OK || read_all(x[2], to->first) != TS_OK ||
        read_all(x[3], to->second) != TS_OK || read_all(x[1], to->plain) != TS_OK)
        return ts_rank_status(me);
    return TS_OK;
}

static ts_status step_on(const char *device, numbers *to)
{
    memset(to, 0, sizeof *to);
    ts_world_options options = {
        .struct_size = sizeof options, .engine = "threads", .rank_count = 1, .device = device
    };
    return ts_launch_with(&options, step, to, NULL, 0);
}

TS_TEST(lists_give_the_same_bits_on_every_device)
{
    static tsi_device bare; /* a queue that cannot run the host's kernels, and has none */
    static numbers cpu, queue, fallback;
    bare = *tsi_device_queue();
    bare.name = bare.kind = "bare";
    bare.defer = NULL;
    TEST_OK(t, tsi_device_add(&bare));
    TEST_OK(t, step_on("cpu", &cpu));
    TEST_OK(t, step_on("queue", &queue));
    TEST_OK(t, step_on("bare", &fallback));
    TEST_CHECK(t, cpu.norm > 0 && cpu.param[0] != cpu.plain[0]);
    TEST_CHECK(t, memcmp(&cpu, &queue, sizeof cpu) == 0);
    TEST_CHECK(t, memcmp(&cpu, &fallback, sizeof cpu) == 0);
}
