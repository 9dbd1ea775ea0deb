/* SPDX-License-Identifier: Apache-2.0 */
/* op_scratch.c - a kernel that is run dry takes the scratch it takes when it computes, and leaves
 * its results alone: plans of memory count by it. */
#include "array/pool.h"
#include "device/device.h"
#include "harness/test.h"
#include "op/ask/query.h"
#include "op/core/kernel.h"
#include "tessera/tessera.h"

typedef struct call {
    const tsi_op_desc *op;
    ts_meta in[TSI_INPUT_MAX];
    int32_t input_count, turned; /* turned: the last two dims of inputs lie the other way round */
    _Alignas(16) unsigned char attributes[TSI_ATTRIBUTES_MAX];
} call;

static ts_tensor *input_of(ts_mesh *mesh, const ts_meta *meta, bool turned)
{
    ts_shape shape = meta->shape;
    int32_t n = shape.ndim;
    if (!turned || n < 2) return ts_zeros(mesh, (ts_dtype)meta->dtype, shape, "R");
    shape.extent[n - 1] = meta->shape.extent[n - 2];
    shape.extent[n - 2] = meta->shape.extent[n - 1];
    return ts_transpose(ts_zeros(mesh, (ts_dtype)meta->dtype, shape, "R"), n - 2, n - 1);
}

/* What the call takes beside its results at most; -1: it is refused. */
static int64_t scratch_of(test *t, ts_mesh *mesh, const call *c, bool dry)
{
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    ts_tensor *in[TSI_INPUT_MAX] = { NULL }, *out[TSI_OUTPUT_MAX] = { NULL };
    for (int32_t i = 0; i < c->input_count; i++)
        if (c->in[i].dtype != TS_DTYPE_NONE) in[i] = input_of(mesh, &c->in[i], c->turned);
    tsi_op_args args = { c->op, in, c->input_count, 0, c->attributes };
    tsi_pool_peak_reset(tsi_pool_of(t->me));
    t->me->dry = dry;
    ts_status status = tsi_op_run(&args, out);
    t->me->dry = 0;
    int64_t most = tsi_pool_used(tsi_pool_of(t->me), TSI_TAG_OTHER).peak;
    (void)ts_scope_close(scope);
    return status == TS_OK ? most : -1;
}

/* Which rows go together is known of numbers alone: dry, those of several dims come in no order. */
static bool is_assumed(const tsi_op_desc *op)
{
    return op == &tsi_op_grouped_linear || op == &tsi_op_grouped_linear_backward;
}

static int64_t check(test *t, ts_mesh *mesh, const call *c)
{
    int64_t real = scratch_of(t, mesh, c, false), dry = scratch_of(t, mesh, c, true);
    TEST_SAY(t, is_assumed(c->op) ? dry >= real : dry == real,
             "%s of %s%s: takes %lld bytes, %lld dry", c->op->name,
             ts_dtype_name((ts_dtype)c->in[0].dtype), c->turned ? ", turned" : "", (long long)real,
             (long long)dry);
    return real > 0;
}

static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16,
                                   TS_DTYPE_C64 };

static int64_t check_dtypes(test *t, ts_mesh *mesh, const call *sample)
{
    int64_t used = 0;
    for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
        for (int32_t turned = 0; turned < 2; turned++) {
            call c = *sample;
            uint8_t real[TSI_INPUT_MAX];
            (void)tsi_op_input_dtypes(c.op, c.input_count, dtypes[d], real);
            for (int32_t i = 0; i < c.input_count; i++)
                if (c.in[i].dtype != TS_DTYPE_NONE) c.in[i].dtype = real[i];
            c.turned = turned;
            used += check(t, mesh, &c);
        }
    return used;
}

/* Plans of other devices count none, and a device that runs later takes none from the pool. */
static bool counts(test *t)
{
    return tsi_world_device(t->me->world)->host_readable;
}

TS_TEST_RANKS(kernels_run_dry_take_what_they_take, 1)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=1");
    int64_t used = 0;
    for (int32_t k = 0; k < TSI_OP_ID_COUNT && counts(t); k++) {
        call c = { .op = tsi_op_at(k) };
        for (int32_t variant = 0; variant < 8 && tsi_kernel_is_dry(c.op); variant++) {
            uint64_t random = t->seed + (uint64_t)variant;
            memset(c.attributes, 0, sizeof c.attributes);
            memset(c.in, 0, sizeof c.in);
            c.input_count = c.op->input_max;
            if (!tsi_op_sample(c.op, &random, variant, c.in, &c.input_count, c.attributes)) break;
            used += check_dtypes(t, mesh, &c);
        }
    }
    if (counts(t)) TEST_SAY(t, used > 200, "only %lld calls take scratch", (long long)used);
    ts_mesh_release(mesh);
}

/* Sizes of models: what is packed, split and cut by size. */
TS_TEST_RANKS(large_products_run_dry_take_what_they_take, 1)
{
    static const int64_t sides[][3] = { { 96, 80, 112 }, { 1, 300, 40000 },  { 1, 40000, 300 },
                                        { 300, 1, 70 },  { 200, 1100, 513 }, { 1300, 40, 33 } };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=1");
    for (size_t i = 0; i < TSI_COUNT_OF(sides) && counts(t); i++) {
        call c = { .op = &tsi_op_matmul, .input_count = 2 };
        c.in[0] = (ts_meta){ .shape = TS_SHAPE(sides[i][0], sides[i][2]), .dtype = TS_DTYPE_F32 };
        c.in[1] = (ts_meta){ .shape = TS_SHAPE(sides[i][2], sides[i][1]), .dtype = TS_DTYPE_F32 };
        (void)check_dtypes(t, mesh, &c);
    }
    ts_mesh_release(mesh);
}
