/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - every operator of the table on a GPU against the host: the samples of the operator in
 * every dtype it takes, from the same numbers, which lie dense, turned, or behind one that is left
 * out, so that rows begin anywhere.
 *
 * Numbers are eighths between -2 and 2, so that every dtype holds them; indices are 0 to 4. Results
 * of whole numbers and truths are equal; reals differ by no more than a few roundings, as a part of
 * the largest element, and by more where `loose` says why. The end of the output says which
 * operators have no kernel and ran on the host; those of `native` do in no case of reals, whole
 * numbers and truths. */
#include "gpu/gpu.h"

#include <math.h>
#include <stdlib.h>

#include "op/ask/sample.h"
#include "op/op.h"
#include "tessera/tensor.h"

enum { COUNT_MAX = 1 << 14, OUTS = TSI_OUTPUT_MAX, ATTRIBUTES = 1024 };

typedef struct result {
    int64_t count[OUTS];
    ts_dtype dtype[OUTS];
    double *value[OUTS];
    ts_status status;
} result;

typedef enum way { DENSE, TURNED, BEHIND, WAYS } way; /* in which inputs lie */

typedef struct job {
    const tsi_op_desc *op;
    int32_t variant, inputs;
    ts_dtype dtype;
    way lies;
    ts_meta in[TSI_INPUT_MAX];
    _Alignas(16) unsigned char attributes[ATTRIBUTES];
    result *out;
} job;

/* ---- inputs ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

static bool is_index(ts_dtype dtype)
{
    return dtype == TS_DTYPE_I64 || dtype == TS_DTYPE_I32;
}

static bool is_complex(ts_dtype dtype)
{
    return dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128;
}

/* The shape that is made, of which `lay` gives the input's. */
static ts_shape shape_made(const ts_shape *shape, way lies)
{
    ts_shape made = *shape;
    for (int32_t d = 0; lies == TURNED && d < shape->ndim; d++)
        made.extent[d] = shape->extent[shape->ndim - 1 - d];
    if (lies == BEHIND && shape->ndim > 0) made.extent[shape->ndim - 1]++;
    return made;
}

static ts_tensor *lay(ts_tensor *x, way lies)
{
    int64_t turned[TS_NDIM_MAX];
    ts_shape shape = ts_tensor_shape(x);
    if (lies == DENSE || shape.ndim == 0) return x;
    for (int32_t d = 0; d < shape.ndim; d++)
        turned[d] = shape.ndim - 1 - d;
    if (lies == TURNED) return ts_permute(x, turned, shape.ndim);
    return ts_narrow(x, shape.ndim - 1, (ts_interval){ 1, shape.extent[shape.ndim - 1] });
}

/* Input i of a job. Those that a sample makes whole are indices and stay so. */
static ts_tensor *input_make(ts_rank *me, const job *j, int32_t i)
{
    static double real[2 * COUNT_MAX];
    static int64_t whole[COUNT_MAX];
    const ts_meta *meta = &j->in[i];
    bool index = is_index((ts_dtype)meta->dtype);
    ts_dtype dtype = meta->dtype == TS_DTYPE_F64 ? j->dtype : (ts_dtype)meta->dtype;
    if (meta->dtype == TS_DTYPE_NONE) return NULL;
    for (int64_t k = 0; k < 2 * COUNT_MAX; k++) {
        uint64_t bits = mix((uint64_t)(k * 64 + i * 7 + j->variant + 1));
        whole[k % COUNT_MAX] = (int64_t)(bits % 5);
        real[k] = ((double)(bits % 33) - 16) / 8;
    }
    ts_array array = TS_INIT(ts_array);
    array.meta.shape = shape_made(&meta->shape, j->lies);
    array.meta.dtype = index ? TS_DTYPE_I64 : is_complex(dtype) ? TS_DTYPE_C128 : TS_DTYPE_F64;
    array.data = index ? (void *)whole : (void *)real;
    ts_tensor *x = ts_clone(ts_from_memory(me, &array)); /* the memory is used again */
    return lay(ts_cast(x, dtype), j->lies);
}

/* ---- one call -------------------------------------------------------------------------------- */

static void keep(ts_tensor *t, int32_t o, result *to)
{
    ts_shape shape = ts_tensor_shape(t);
    ts_array array = TS_INIT(ts_array);
    bool both = is_complex(ts_tensor_dtype(t));
    to->count[o] = ts_shape_count(&shape) * (both ? 2 : 1); /* parts are numbers of their own */
    to->dtype[o] = ts_tensor_dtype(t);
    to->value[o] = calloc((size_t)to->count[o] + 1, sizeof(double));
    array.meta = (ts_meta){ .shape = shape, .dtype = both ? TS_DTYPE_C128 : TS_DTYPE_F64 };
    array.data = to->value[o];
    (void)ts_tensor_read(t, &array);
}

static ts_status run_job(ts_rank *me, void *context)
{
    job *j = context;
    ts_tensor *in[TSI_INPUT_MAX] = { NULL }, *out[OUTS] = { NULL };
    for (int32_t i = 0; i < j->inputs; i++)
        in[i] = input_make(me, j, i);
    tsi_op_args args = { j->op, in, j->inputs, 0, j->attributes };
    if (tsi_op_run(&args, out) == TS_OK)
        for (int32_t o = 0; o < j->op->output_count; o++)
            if (out[o]) keep(out[o], o, j->out);
    return ts_rank_status(me);
}

static void run_on(const char *device, job *j, result *out, char *error, size_t size)
{
    *out = (result){ .count = { 0 } };
    j->out = out;
    out->status =
        ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .seed = 11, .device = device),
                       run_job, j, error, size);
}

static void result_drop(result *r)
{
    for (int32_t o = 0; o < OUTS; o++)
        free(r->value[o]);
    *r = (result){ .count = { 0 } };
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* How far off an element may be, as a part of the largest. */
static double allowed(const tsi_op_desc *op, ts_dtype dtype, ts_dtype input)
{
    static const struct {
        const char *name;
        double times;
    } loose[] = {
        { "digamma", 64 },      { "trigamma", 64 }, { "lgamma", 16 }, { "erfinv", 64 },
        { "cumprod", 16 },      { "pow", 8 },       { "power", 8 },   { "atanh", 8 },
        { "acosh", 8 },         { "logit", 8 },     { "tan", 16 },    { "prod", 16 },
        { "tan_backward", 16 },
    };
    bool wide = dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_C128;
    ts_dtype least = wide ? input : dtype; /* results of narrow inputs */
    double bound = least == TS_DTYPE_BF16                            ? 0x1p-7
                   : least == TS_DTYPE_F16                           ? 0x1p-10
                   : least == TS_DTYPE_F32 || least == TS_DTYPE_C64  ? 4e-6
                   : least == TS_DTYPE_F64 || least == TS_DTYPE_C128 ? 1e-13
                                                                     : 0;
    for (size_t i = 0; i < sizeof loose / sizeof loose[0]; i++)
        if (strcmp(loose[i].name, op->name) == 0) bound *= loose[i].times;
    return bound;
}

static bool same_kind(double a, double b)
{
    return isnan(a) == isnan(b) && (!isinf(a) || a == b) && (!isinf(b) || a == b);
}

static void compare(test *t, const job *j, const result *got, const result *want)
{
    for (int32_t o = 0; o < j->op->output_count; o++) {
        double most = 0, worst = 0;
        bool kinds = got->count[o] == want->count[o];
        for (int64_t i = 0; kinds && i < want->count[o]; i++) {
            double a = got->value[o][i], b = want->value[o][i];
            kinds = same_kind(a, b);
            if (!isfinite(b) || !kinds) continue;
            most = fmax(most, fabs(b));
            worst = fmax(worst, fabs(a - b));
        }
        double bound = allowed(j->op, want->dtype[o], j->dtype) * most;
        TEST_SAY(t, kinds && worst <= bound,
                 "%s, sample %d of %s, lying %d, result %d: off by %g of %g%s", j->op->name,
                 (int)j->variant, ts_dtype_name(j->dtype), (int)j->lies, (int)o, worst, most,
                 kinds ? "" : ", and other kinds of numbers");
    }
}

/* ---- the sweep ------------------------------------------------------------------------------- */

/* Operators whose kernels take every sample, however its inputs lie. */
static bool is_native(const job *j)
{
    static const char *const native[] = {
        "as_strided",       "as_strided_backward",
        "bernoulli",        "bincount",
        "count_unique",     "cummax",
        "cummin",           "cumprod",
        "cumprod_backward", "cumsum",
        "gather",           "gather_backward",
        "group_norm",       "histc",
        "index_add",        "index_get",
        "index_put",        "index_select",
        "nll_loss",         "pick",
        "pick_backward",    "scatter",
        "scatter_add",      "take",
        "vector_norm",
    };
    for (size_t i = 0; !is_complex(j->dtype) && i < sizeof native / sizeof native[0]; i++)
        if (strcmp(native[i], j->op->name) == 0) return true;
    return false;
}

typedef struct tally {
    int32_t cases, kernels, hosts;
    char names[16384]; /* of operators that ran on the host, with the dtype */
} tally;

static void sweep_case(test *t, job *j, tally *sum)
{
    result want, got;
    char error[512] = "";
    run_on("cpu", j, &want, error, sizeof error);
    if (want.status != TS_OK) { /* the operator refuses this dtype */
        result_drop(&want);
        return;
    }
    (void)setenv("TESSERA_FALLBACK", "forbid", 1);
    run_on("cuda", j, &got, error, sizeof error);
    bool host = got.status == TS_ERR_POLICY;
    TEST_SAY(t, !host || !is_native(j), "%s, sample %d of %s, lying %d ran on the host",
             j->op->name, (int)j->variant, ts_dtype_name(j->dtype), (int)j->lies);
    (void)unsetenv("TESSERA_FALLBACK");
    if (host) {
        result_drop(&got);
        run_on("cuda", j, &got, error, sizeof error);
        size_t used = strlen(sum->names);
        char name[80];
        (void)snprintf(name, sizeof name, " %s/%s", j->op->name, ts_dtype_name(j->dtype));
        if (!strstr(sum->names, name))
            (void)snprintf(sum->names + used, sizeof sum->names - used, "%s", name);
    }
    sum->cases++;
    sum->kernels += !host;
    sum->hosts += host;
    TEST_SAY(t, got.status == TS_OK, "%s, sample %d of %s, lying %d: %s", j->op->name,
             (int)j->variant, ts_dtype_name(j->dtype), (int)j->lies, error);
    if (got.status == TS_OK) compare(t, j, &got, &want);
    result_drop(&want);
    result_drop(&got);
}

static void sweep_op(test *t, const tsi_op_desc *op, const ts_dtype *dtypes, int32_t count,
                     tally *sum)
{
    uint64_t random = 5;
    job j = { .op = op };
    for (j.variant = 0;; j.variant++) {
        memset(j.attributes, 0, sizeof j.attributes);
        j.inputs = 0;
        if (!tsi_op_sample(op, &random, j.variant, j.in, &j.inputs, j.attributes)) break;
        for (int32_t d = 0; d < count * WAYS; d++) {
            j.dtype = dtypes[d / WAYS];
            j.lies = (way)(d % WAYS);
            if (test_tries(t)) sweep_case(t, &j, sum);
        }
    }
}

static void sweep(test *t, const ts_dtype *dtypes, int32_t count)
{
    static tally sum;
    sum = (tally){ .cases = 0 };
    for (int32_t i = 0; i < TSI_OP_ID_COUNT; i++) {
        const tsi_op_desc *op = tsi_op_at(i);
        if (op->flags & (TSI_OP_HOST | TSI_OP_DATA_SHAPE)) continue;
        sweep_op(t, op, dtypes, count, &sum);
    }
    printf("%d cases: %d by kernels, %d on the host:%s\n", (int)sum.cases, (int)sum.kernels,
           (int)sum.hosts, sum.names);
}

TS_TEST_LONG(operators_of_reals, 600)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16, TS_DTYPE_F64 };
    sweep(t, dtypes, 4);
}

TS_TEST_LONG(operators_of_whole_numbers, 600)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_I64, TS_DTYPE_I32, TS_DTYPE_I16,
                                       TS_DTYPE_I8,  TS_DTYPE_U8,  TS_DTYPE_BOOL };
    sweep(t, dtypes, 6);
}

/* The host has their kernels: what is tried is the way there and back. */
TS_TEST_LONG(operators_of_complex_numbers, 600)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_C64, TS_DTYPE_C128 };
    sweep(t, dtypes, 2);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static ts_status huge_work(ts_rank *me, void *context)
{
    double *got = context;
    ts_mesh *m = ts_mesh_self(me);
    const int64_t rows = 65537, columns = 32768; /* beyond 2^31 together */
    ts_tensor *x = ts_ones(m, TS_DTYPE_BF16, TS_SHAPE(rows, columns), NULL);
    ts_tensor *y = ts_add(x, x), *turned = ts_transpose(x, 0, 1);
    (void)ts_tensor_item(ts_sum(y, NULL, 0, 0), &got[0]);
    (void)ts_tensor_item(
        ts_amin(ts_sum(ts_cast(x, TS_DTYPE_F32), (int64_t[]){ 0 }, 1, 0), NULL, 0, 0), &got[1]);
    (void)ts_tensor_item(ts_amax(ts_exp(ts_add_scalar(turned, 1)), NULL, 0, 0), &got[2]);
    return ts_rank_status(me);
}

TS_TEST_LONG(operators_of_more_than_31_bits, 120)
{
    if (gpu_leaves_out("tensors of more than 31 bits")) return;
    double got[3] = { 0 };
    char error[512] = "";
    ts_status status =
        ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .device = "cuda"), huge_work,
                       got, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
    double count = 65537.0 * 32768.0;
    TEST_SAY(t, fabs(got[0] / (2 * count) - 1) < 0x1p-7, "the sum is %g of %g", got[0], 2 * count);
    TEST_SAY(t, got[1] == 65537, "the sum of a column is %g", got[1]);
    TEST_SAY(t, fabs(got[2] / exp(2) - 1) < 0x1p-7, "e^2 is %g", got[2]);
}

static ts_status empty_work(ts_rank *me, void *context)
{
    double *got = context;
    ts_mesh *m = ts_mesh_self(me);
    ts_tensor *x = ts_ones(m, TS_DTYPE_F32, TS_SHAPE(0, 6), NULL), *both[2] = { x, x };
    ts_tensor *w = ts_ones(m, TS_DTYPE_F32, TS_SHAPE(6), NULL);
    (void)ts_tensor_item(ts_sum(ts_exp(ts_add(x, x)), NULL, 0, 0), &got[0]);
    (void)ts_tensor_item(ts_sum(ts_sum(x, (int64_t[]){ 0 }, 1, 0), NULL, 0, 0), &got[1]);
    (void)ts_softmax(x, -1);
    (void)ts_rms_norm(x, w, 1e-5);
    (void)ts_cat(both, 2, 0);
    (void)ts_clone(ts_transpose(x, 0, 1));
    (void)ts_linear(x, ts_ones(m, TS_DTYPE_F32, TS_SHAPE(4, 6), NULL), NULL);
    (void)ts_embedding(ts_ones(m, TS_DTYPE_F32, TS_SHAPE(5, 6), NULL),
                       ts_zeros(m, TS_DTYPE_I64, TS_SHAPE(0), NULL));
    return ts_rank_sync(me);
}

TS_TEST(operators_of_nothing)
{
    double got[2] = { 1, 1 };
    char error[512] = "";
    ts_status status =
        ts_launch_with(TS_OPTIONS(ts_world_options, .rank_count = 1, .device = "cuda"), empty_work,
                       got, error, sizeof error);
    TEST_SAY(t, status == TS_OK, "%s", error);
    TEST_SAY(t, got[0] == 0 && got[1] == 0, "sums of nothing are %g and %g", got[0], got[1]);
}
