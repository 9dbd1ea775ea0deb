/* SPDX-License-Identifier: Apache-2.0 */
/* backend_data.c - fast kernels that move, pick, sort, count and draw against the references: any
 * dtype, dense and strided operands, one to three threads, duplicates, ties, NaN and infinities.
 *
 * Results are the reference's bit for bit, but for convolutions and the gradient of avg_pool, which
 * add up in another order. A wrong index is left to the reference, and nothing has been written. */
#include <math.h>
#include <stdlib.h>

#include "backend/cpu/kernels.h"
#include "backend_operand.h"
#include "device/parallel.h"
#include "op/core/attribute.h"
#include "op/core/element.h"
#include "op/core/kernel.h"

enum { INPUTS = 4, THREADS = 3 };

typedef struct sample {
    const char *op, *attributes; /* JSON */
    const char *in;              /* "3x4 5": shapes; "-": a scalar's */
    int64_t low, bound;          /* indices are from low up to bound */
    int32_t indices, masks;      /* bit i: input i holds indices, is a mask */
    int32_t close, reserved;     /* 1: sums in another order */
} sample;

static const sample samples[] = {
    { "gather", "{\"dim\": 0}", .in = "23x41 37x40", .indices = 2, .bound = 23 },
    { "gather", "{\"dim\": 1}", .in = "5x31x7 4x60x7", .indices = 2, .bound = 31 },
    { "gather", "{\"dim\": -1}", .in = "5x700 5x1031", .indices = 2, .bound = 700 },
    { "gather", "{\"dim\": 0}", .in = "999 20011", .indices = 2, .bound = 999 },
    { "gather_backward", "{\"dim\": 0, \"shape\": [23, 41]}", .in = "37x40 37x40", .indices = 2,
      .bound = 23 },
    { "scatter", "{\"dim\": 0}", .in = "9x131 20x130 21x130", .indices = 2, .bound = 9 },
    { "scatter", "{\"dim\": 0, \"value\": 3}", .in = "500 9000", .indices = 2, .bound = 500 },
    { "scatter", "{\"dim\": 0}", .in = "500 9000 9000", .indices = 2, .bound = 500 },
    { "scatter_add", "{\"dim\": 1}", .in = "40x19x3 40x77x3 40x77x3", .indices = 2, .bound = 19 },
    { "scatter_add", "{\"dim\": -1}", .in = "70x51 70x200 70x200", .indices = 2, .bound = 51 },
    { "scatter_add", "{\"dim\": 0}", .in = "33 9001 9001", .indices = 2, .bound = 33 },
    { "index_select", "{\"dim\": 0}", .in = "17x300 61", .indices = 2, .bound = 17 },
    { "index_select", "{\"dim\": 1}", .in = "6x17x35 61", .indices = 2, .bound = 17 },
    { "index_select", "{\"dim\": -1}", .in = "90x35 201", .indices = 2, .bound = 35 },
    { "index_select", "{\"dim\": 0}", .in = "35 20001", .indices = 2, .bound = 35 },
    { "index_select_backward", "{\"dim\": 0, \"extent\": 17}", .in = "61x300 61", .indices = 2,
      .bound = 17 },
    { "index_add", "{\"dim\": 1}", .in = "50x17x5 61 50x61x5", .indices = 2, .bound = 17 },
    { "index_add", "{\"dim\": 0}", .in = "17 20001 20001", .indices = 2, .bound = 17 },
    { "index_get", "{\"dims\": [1]}", .in = "7x9x33 4x5", .indices = 2, .low = -9, .bound = 9 },
    { "index_get", "{\"dims\": [0, 2]}", .in = "9x40x9 3x1 70", .indices = 6, .low = -9,
      .bound = 9 },
    { "index_get", "{}", .in = "9x9 6000 6000", .indices = 6, .low = -9, .bound = 9 },
    { "index_put", "{\"dims\": [1]}", .in = "7x9x133 7x20x133 20", .indices = 4, .low = -9,
      .bound = 9 },
    { "index_put", "{\"accumulate\": true}", .in = "9x9x140 40x140 40 40", .indices = 12, .low = -9,
      .bound = 9 },
    { "index_put", "{\"accumulate\": true}", .in = "9x9 - 6001 6001", .indices = 12, .low = -9,
      .bound = 9 },
    { "cat", "{\"dim\": 1}", .in = "33x5 33x0 33x500" },
    { "cat", "{\"dim\": 0}", .in = "9x70x7 30x70x7" },
    { "stack", "{\"dim\": 1}", .in = "90x70 90x70" },
    { "pad", "{\"pad\": [1, 2, 3, -1], \"value\": 1}", .in = "5x40x61" },
    { "pad", "{\"pad\": [-30, -31, 1, 1]}", .in = "5x40x61" },
    { "flip", "{\"dims\": [0, 2]}", .in = "5x41x67" },
    { "roll", "{\"shifts\": [7, -3], \"dims\": [1, 0]}", .in = "43x131" },
    { "repeat", "{\"repeats\": [2, 3]}", .in = "43x71" },
    { "repeat_interleave", "{\"repeats\": 3, \"dim\": 1}", .in = "43x71" },
    { "slice", "{\"dim\": 1, \"start\": 3, \"end\": 60, \"step\": 2}", .in = "43x71" },
    { "slice_backward", "{\"dim\": 1, \"start\": 3, \"end\": 61, \"step\": 2, \"extent\": 71}",
      .in = "43x29" },
    { "tril", "{\"diagonal\": -3}", .in = "3x60x71" },
    { "triu", "{\"diagonal\": 100}", .in = "60x71" },
    { "triu", "{\"diagonal\": 2}", .in = "60x71" },
    { "sort", "{\"dim\": 0}", .in = "90x31" },
    { "sort", "{\"descending\": true}", .in = "40x5x17" },
    { "sort", "{}", .in = "70001" },
    { "sort", "{\"descending\": true}", .in = "7x5003" },
    { "topk", "{\"k\": 7}", .in = "9x6007" },
    { "topk", "{\"k\": 300, \"largest\": false}", .in = "3x6007" },
    { "topk", "{\"k\": 3, \"dim\": 0}", .in = "8x601" },
    { "histc", "{\"bins\": 13, \"min\": -3, \"max\": 2}", .in = "77x301" },
    { "bincount", "{\"length\": 33}", .in = "20003", .indices = 1, .bound = 33 },
    { "count_unique", "{}", .in = "30x401" },
    { "count_nonzero", "{}", .in = "30x401" },
    { "masked_select", "{\"count\": 0}", .in = "30x401 30x401", .masks = 2 },
    { "masked_select_backward", "{}", .in = "0 30x401", .masks = 2 },
    { "dropout", "{\"p\": 0.3}", .in = "70x301" },
    { "bernoulli", "{}", .in = "70x301" },
    { "rand_like", "{}", .in = "70x301" },
    { "conv", "{\"stride\": [2, 1], \"padding\": [1, 2], \"dilation\": [1, 2]}",
      .in = "3x5x19x17 7x5x3x2 7", .close = 1 },
    { "conv", "{\"groups\": 2, \"padding\": [1]}", .in = "2x6x50 4x3x3", .close = 1 },
    { "conv", "{}", .in = "2x3x5x6x7 4x3x2x3x2", .close = 1 },
    { "conv_backward_input",
      "{\"stride\": [2, 1], \"padding\": [1, 2], \"dilation\": [1, 2], \"shape\": [3, 20, 19, 17]}",
      .in = "3x7x10x19 7x20x3x2", .close = 1 },
    { "conv_backward_weight",
      "{\"stride\": [2, 1], \"padding\": [1, 2], \"dilation\": [1, 2], \"shape\": [7, 20, 3, 2]}",
      .in = "3x20x19x17 3x7x10x19", .close = 1 },
    { "max_pool", "{\"kernel_size\": [3, 2], \"stride\": [2, 2], \"padding\": [1, 0]}",
      .in = "2x9x17x31" },
    { "max_pool", "{\"kernel_size\": [3], \"stride\": [1]}", .in = "2x9x131" },
    { "avg_pool", "{\"kernel_size\": [2, 2], \"padding\": [1, 1]}", .in = "2x9x17x31" },
    { "avg_pool_backward",
      "{\"kernel_size\": [3, 2], \"stride\": [2, 2], \"padding\": [1, 0], \"shape\": [2, 9, 17, "
      "31]}",
      .in = "2x9x9x15", .close = 1 },
};

/* The shapes of a sample; returns how many. */
static int32_t shapes_of(const sample *s, ts_shape *shape)
{
    int32_t count = 0;
    for (const char *at = s->in; *at; count++) {
        ts_shape *own = &shape[count];
        *own = (ts_shape){ .ndim = 0 };
        for (; *at && *at != ' '; at += *at == 'x' || *at == '-') {
            if (*at == '-') continue;
            char *end;
            own->extent[own->ndim++] = strtoll(at, &end, 10);
            at = end;
        }
        while (*at == ' ')
            at++;
    }
    return count;
}

/* ---- operands -------------------------------------------------------------------------------- */

static double number(test *t, ts_dtype dtype)
{
    static const double special[] = {
        (double)INFINITY, (double)-INFINITY, (double)NAN, 0.0, -0.0, 1e30
    };
    if (dtype == TS_DTYPE_BOOL) return (double)test_random_below(t, 2);
    if (tsi_dtype_category(dtype) == TSI_CATEGORY_INT) return (double)test_random_below(t, 100);
    if (test_random_below(t, 40) == 0) return special[test_random_below(t, 6)];
    return (double)(test_random_below(t, 201) - 100) / 32.0; /* many are equal */
}

static void fill(test *t, operand *x, const sample *s, int32_t input)
{
    tsi_block *b = &x->is.block;
    ts_dtype dtype = (ts_dtype)b->dtype;
    tsi_loop loop = tsi_loop_over(b);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        double value = number(t, dtype);
        if (s->close) value = (double)(test_random_below(t, 201) - 100) / 64.0;
        if (s->indices >> input & 1)
            value = (double)(test_random_below(t, s->bound - s->low) + s->low);
        tsi_store_complex(dtype, tsi_block_at(b, loop.at[0]), value);
    }
}

/* ---- one call, both ways --------------------------------------------------------------------- */

typedef struct call {
    const sample *sample;
    const tsi_op_desc *op;
    int32_t input_count, reserved;
    _Alignas(16) unsigned char attributes[TSI_ATTRIBUTES_MAX];
    operand in[INPUTS], out[2], want[2];
    tsi_operand in_is[INPUTS], out_is[2], want_is[2];
    ts_meta meta[INPUTS], out_meta[TSI_OUTPUT_MAX];
    char what[96];
} call;

static bool infer(test *t, call *c)
{
    tsi_op_call op_call = { c->op,       c->attributes,  c->meta,
                            c->out_meta, c->input_count, c->op->output_count };
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    bool valid = !c->op->normalise ||
                 c->op->normalise(c->op, c->meta, c->input_count, c->attributes) == TS_OK;
    valid = valid && c->op->infer(&op_call) == TS_OK;
    if (c->op->dtypes && !(c->op->dtypes >> c->meta[0].dtype & 1)) valid = false;
    (void)ts_scope_close(scope); /* a dtype the operator refuses */
    return valid;
}

static int64_t count_set(const tsi_block *mask)
{
    int64_t set = 0;
    tsi_loop loop = tsi_loop_over(mask);
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop))
        set += *(const unsigned char *)tsi_block_at(mask, loop.at[0]) != 0;
    return set;
}

/* What the mask says of shapes and attributes. */
static void count_masks(call *c)
{
    for (int32_t i = 0; i < c->input_count; i++) {
        if (!(c->sample->masks >> i & 1)) continue;
        int64_t set = count_set(&c->in[i].is.block);
        if (c->op->attribute_bytes) memcpy(c->attributes, &set, sizeof set);
        if (!c->op->attribute_bytes) c->meta[0].shape.extent[0] = set;
    }
}

static bool prepare(test *t, call *c, const sample *s, ts_dtype dtype, spread how)
{
    ts_shape shape[INPUTS];
    *c = (call){ .sample = s, .op = tsi_op_find(s->op), .input_count = shapes_of(s, shape) };
    TEST_CHECK(t, c->op != NULL);
    TEST_OK(t, tsi_attributes_parse(c->op, s->attributes, c->attributes));
    snprintf(c->what, sizeof c->what, "%s %s of %s, spread %d", s->op, s->attributes,
             ts_dtype_name(dtype), (int)how);
    for (int32_t i = c->input_count - 1; i >= 0; i--) { /* masks before what they are for */
        bool index = s->indices >> i & 1, mask = s->masks >> i & 1;
        ts_dtype own = index ? (how == GAPS ? TS_DTYPE_I32 : TS_DTYPE_I64) : dtype;
        if (!c->meta[i].dtype)
            c->meta[i] =
                (ts_meta){ .shape = shape[i], .dtype = (int32_t)(mask ? TS_DTYPE_BOOL : own) };
        if (i == 0 && s->masks) count_masks(c);
        place(t, &c->in[i], &c->meta[i], how);
        fill(t, &c->in[i], s, i);
        c->in_is[i] = c->in[i].is;
    }
    return infer(t, c);
}

static void release(call *c)
{
    for (int32_t i = 0; i < INPUTS; i++)
        tsi_free(c->in[i].memory);
    for (int32_t o = 0; o < 2; o++) {
        tsi_free(c->out[o].memory);
        tsi_free(c->want[o].memory);
    }
}

static void compare(test *t, const call *c, int32_t o)
{
    const tsi_block *have = &c->out[o].is.block, *want = &c->want[o].is.block;
    ts_dtype dtype = (ts_dtype)have->dtype;
    double close = !c->sample->close       ? 0.0
                   : dtype == TS_DTYPE_F64 ? 1e-11
                   : dtype == TS_DTYPE_F32 ? 1e-5
                                           : 2e-2;
    tsi_loop loop = tsi_loop_over(have);
    loop.operand_count = 2;
    loop.stride[1] = want->stride;
    for (bool more = tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop)) {
        const void *x = tsi_block_at(have, loop.at[0]), *y = tsi_block_at(want, loop.at[1]);
        bool same = memcmp(x, y, ts_dtype_size(dtype)) == 0;
        double a = tsi_load_real(dtype, x), b = tsi_load_real(dtype, y);
        if (!same && isnan(a) && isnan(b)) same = true; /* of which sums, is open */
        if (!same && close > 0) same = fabs(a - b) <= close * (1 + fabs(b));
        TEST_SAY(t, same, "%s: result %d has %.9g, not %.9g", c->what, (int)o, a, b);
        if (!same) return;
    }
}

static tsi_kernel_io io_of(test *t, const call *c, const tsi_operand *out)
{
    return (tsi_kernel_io){ .op = c->op,
                            .attributes = c->attributes,
                            .in = c->in_is,
                            .out = out,
                            .input_count = c->input_count,
                            .output_count = c->op->output_count,
                            .rank = t->me,
                            .device = tsi_device_host(),
                            .seed = 5,
                            .stream = 7 };
}

static void run_both(test *t, call *c, spread how, int64_t *fast)
{
    for (int32_t o = 0; o < c->op->output_count; o++) {
        place(t, &c->out[o], &c->out_meta[o], how == PERMUTED ? how : DENSE);
        place(t, &c->want[o], &c->out_meta[o], DENSE);
        c->out_is[o] = c->out[o].is;
        c->want_is[o] = c->want[o].is;
    }
    tsi_kernel_io io = io_of(t, c, c->want_is);
    TEST_OK(t, c->op->reference(&io));
    tsi_kernel_fn kernel = tsi_kernel_of(tsi_device_host(), c->op);
    for (int32_t threads = 1; kernel && threads <= THREADS; threads++) {
        tsi_parallel_limit(t->me, threads);
        for (int32_t o = 0; o < c->op->output_count; o++)
            memset(c->out[o].memory, 2, c->out[o].bytes);
        io.out = c->out_is;
        int verdict = (int)kernel(&io);
        if (verdict == TSI_KERNEL_DECLINED) break;
        TEST_SAY(t, verdict == TS_OK, "%s: status %d", c->what, verdict);
        for (int32_t o = 0; o < c->op->output_count; o++)
            compare(t, c, o);
        ++*fast;
    }
    tsi_parallel_limit(t->me, 0);
}

static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32,  TS_DTYPE_BF16,
                                   TS_DTYPE_F16, TS_DTYPE_I64,  TS_DTYPE_I32,
                                   TS_DTYPE_U8,  TS_DTYPE_BOOL, TS_DTYPE_C64 };

TS_TEST_RANKS(data_kernels_give_the_bits_of_references, 1)
{
    tsi_backend_cpu_add();
    for (size_t s = 0; s < TSI_COUNT_OF(samples); s++) {
        int64_t fast = 0;
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int how = 0; how < SPREADS; how++) {
                call c;
                if (samples[s].indices & 1 && dtypes[d] != TS_DTYPE_I64) continue;
                if (strstr(samples[s].op, "_backward") && dtypes[d] == TS_DTYPE_BOOL) continue;
                if (prepare(t, &c, &samples[s], dtypes[d], (spread)how))
                    run_both(t, &c, (spread)how, &fast);
                release(&c);
            }
        bool has = tsi_kernel_of(tsi_device_host(), tsi_op_find(samples[s].op)) != NULL;
        TEST_SAY(t, fast > 0 || !has, "no fast call of %s %s", samples[s].op,
                 samples[s].attributes);
    }
}

/* ---- a wrong index --------------------------------------------------------------------------- */

TS_TEST_RANKS(a_wrong_index_writes_nothing, 1)
{
    tsi_backend_cpu_add();
    for (size_t s = 0; s < TSI_COUNT_OF(samples); s++) {
        if (samples[s].indices == 0) continue;
        for (int bad = 0; bad < 2; bad++) {
            call c;
            TEST_CHECK(t, prepare(t, &c, &samples[s],
                                  samples[s].indices & 1 ? TS_DTYPE_I64 : TS_DTYPE_F32, DENSE));
            int32_t input = samples[s].indices & 1 ? 0 : samples[s].indices & 2 ? 1 : 2;
            int64_t *index = c.in[input].memory, at = c.in[input].is.block.extent[0] / 2;
            index[at] = bad ? samples[s].bound : samples[s].low - 1;
            place(t, &c.out[0], &c.out_meta[0], DENSE);
            memset(c.out[0].memory, 1, c.out[0].bytes);
            c.out_is[0] = c.out[0].is;
            tsi_kernel_io io = io_of(t, &c, c.out_is);
            int verdict = (int)tsi_kernel_of(tsi_device_host(), c.op)(&io);
            TEST_SAY(t, verdict == TSI_KERNEL_DECLINED, "%s: verdict %d", c.what, verdict);
            const unsigned char *byte = c.out[0].memory;
            size_t changed = 0;
            for (size_t i = 0; i < c.out[0].bytes; i++)
                changed += byte[i] != 1;
            TEST_SAY(t, changed == 0, "%s: %zu bytes were written", c.what, changed);
            release(&c);
        }
    }
}
