/* SPDX-License-Identifier: Apache-2.0 */
/* backend_products.c - matrix products of the cpu against plain loops: any dtype and stride,
 * batches, vectors, small ones, sizes that are cut into tasks, and the same bits with any number of
 * threads and of rows. */
#include "backend/cpu/matrix/contract.h"
#include "backend/cpu/matrix/gemm.h"
#include "backend_util.h"
#include "device/number.h"
#include "op/core/attribute.h"

static void product_case(test *t, const char *equation, const ts_meta *meta, spread how, bool add)
{
    operand x[4] = { 0 };
    tsi_contraction fast, slow;
    for (int k = 0; k < 3; k++) {
        place(t, &x[k], &meta[k], how);
        fill(t, &x[k], 0, false);
    }
    place(t, &x[3], &meta[2], DENSE);
    TEST_OK(t, tsi_device_host()->copy(tsi_device_host(), &x[3].is.block, &x[2].is.block, NULL));
    tsi_contraction_make(equation, &x[0].is.block, &x[1].is.block, &x[2].is.block, &fast);
    tsi_contraction_make(equation, &x[0].is.block, &x[1].is.block, &x[3].is.block, &slow);
    TEST_OK(t, tsi_cpu_contract(&fast, add));
    TEST_OK(t, tsi_contract_reference(&slow, add));
    char what[128];
    snprintf(what, sizeof what, "%s %s spread %d%s", equation,
             ts_dtype_name((ts_dtype)meta[0].dtype), (int)how, add ? " added" : "");
    same_numbers_of(t, &x[2], &x[3], what, largest(&x[3])); /* sums that may cancel */
    release(x, 4);
}

TS_TEST_RANKS(products_agree_with_loops, 1, 2)
{
    static const struct {
        const char *equation;
        ts_shape shape[3];
    } cases[] = {
        { "mk,kn->mn", { { 2, 0, { 37, 65 } }, { 2, 0, { 65, 21 } }, { 2, 0, { 37, 21 } } } },
        { "mk,nk->mn", { { 2, 0, { 1, 130 } }, { 2, 0, { 90, 130 } }, { 2, 0, { 1, 90 } } } },
        { "km,kn->nm", { { 2, 0, { 19, 33 } }, { 2, 0, { 19, 70 } }, { 2, 0, { 70, 33 } } } },
        { "Amk,Akn->Amn",
          { { 3, 0, { 5, 17, 9 } }, { 3, 0, { 5, 9, 12 } }, { 3, 0, { 5, 17, 12 } } } },
        { "Amk,Akn->Anm",
          { { 3, 0, { 5, 17, 9 } }, { 3, 0, { 5, 9, 12 } }, { 3, 0, { 5, 12, 17 } } } },
        { "ABk,nk->ABn",
          { { 3, 0, { 3, 20, 40 } }, { 2, 0, { 24, 40 } }, { 3, 0, { 3, 20, 24 } } } },
        { "ABk,ABn->nk",
          { { 3, 0, { 4, 30, 16 } }, { 3, 0, { 4, 30, 24 } }, { 2, 0, { 24, 16 } } } },
        { "bqhd,bkhd->bhqk",
          { { 4, 0, { 2, 13, 3, 8 } }, { 4, 0, { 2, 11, 3, 8 } }, { 4, 0, { 2, 3, 13, 11 } } } },
        { "Amk,kn->Amn", { { 3, 0, { 1, 6, 300 } }, { 2, 0, { 300, 5 } }, { 3, 0, { 1, 6, 5 } } } },
        { "k,k->", { { 1, 0, { 1000 } }, { 1, 0, { 1000 } }, { 0, 0, { 0 } } } },
        { "mk,k->m", { { 2, 0, { 70, 50 } }, { 1, 0, { 50 } }, { 1, 0, { 70 } } } },
        { "mk,kn->mn", { { 2, 0, { 5, 0 } }, { 2, 0, { 0, 3 } }, { 2, 0, { 5, 3 } } } },
        { "km,kn->nm", { { 2, 0, { 0, 90 } }, { 2, 0, { 0, 70 } }, { 2, 0, { 70, 90 } } } },
    };
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F64,  TS_DTYPE_BF16, TS_DTYPE_F16,
                                       TS_DTYPE_C64, TS_DTYPE_C128, TS_DTYPE_I64,  TS_DTYPE_I32 };
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++)
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int how = 0; how < SPREADS; how++) {
                ts_meta meta[3];
                for (int k = 0; k < 3; k++)
                    meta[k] = (ts_meta){ .shape = cases[i].shape[k], .dtype = (int32_t)dtypes[d] };
                if (d == 0 && how == 2) meta[1].dtype = TS_DTYPE_BF16; /* mixed */
                product_case(t, cases[i].equation, meta, (spread)how, i % 2 == 1);
            }
}

/* Every small size once in a while, from the blocks of the operators themselves. */
TS_TEST_RANKS(small_products, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F64, TS_DTYPE_BF16 };
    counts n = { 0, 0 };
    for (int i = 0; i < 120; i++) {
        int64_t size[3];
        for (int k = 0; k < 3; k++)
            size[k] = test_random_below(t, 20) + 1;
        bool linear = i % 3 == 1, many = i % 3 == 2;
        const ts_shape a = TS_SHAPE(size[0], size[2]), b = TS_SHAPE(size[2], size[1]);
        const ts_shape w = TS_SHAPE(size[1], size[2]), as = TS_SHAPE(5, size[0], size[2]);
        const ts_shape bs = TS_SHAPE(5, size[2], size[1]);
        const ts_shape shape[] = { many ? as : a, many ? (i & 1 ? bs : b) : linear ? w : b };
        call c = call_of(linear ? "linear" : "matmul", 2, shape, dtypes[i / 3 % 3]);
        TEST_OK(t, tsi_attributes_parse(c.op, "{}", c.attributes));
        TEST_CHECK(t, infer(&c));
        run_both(t, &c, (spread)(i % SPREADS), &n);
    }
    TEST_SAY(t, n.fast > 70, "only %lld calls were fast", (long long)n.fast);
}

/* Vectors by matrices, short and long, k and results together or apart. */
TS_TEST_RANKS(products_with_vectors, 1)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_F64, TS_DTYPE_BF16 };
    static const int64_t sizes[][2] = { { 7, 3 }, { 130, 1027 }, { 2300, 61 }, { 3, 40001 } };
    static const char *const equations[] = { "k,kn->n", "k,nk->n", "mk,k->m" };
    for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
        for (size_t i = 0; i < TSI_COUNT_OF(sizes); i++)
            for (int e = 0; e < 3; e++)
                for (int how = 0; how < SPREADS; how++) {
                    int64_t n = sizes[i][0], k = sizes[i][1];
                    const ts_shape x = TS_SHAPE(k), out = TS_SHAPE(n);
                    const ts_shape w = e == 0 ? TS_SHAPE(k, n) : TS_SHAPE(n, k);
                    const ts_meta meta[] = {
                        { .shape = e == 2 ? w : x, .dtype = (int32_t)dtypes[d] },
                        { .shape = e == 2 ? x : w, .dtype = (int32_t)dtypes[d] },
                        { .shape = out, .dtype = (int32_t)dtypes[d] }
                    };
                    product_case(t, equations[e], meta, (spread)how, e == 1);
                }
}

/* Products of a size that is cut into tasks, in double by plain loops over dense copies. */
static void large_case(test *t, const ts_meta *meta, spread how)
{
    operand x[3] = { 0 };
    int64_t m = meta[2].shape.extent[0], n = meta[2].shape.extent[1], k = meta[0].shape.extent[1];
    for (int i = 0; i < 3; i++)
        place(t, &x[i], &meta[i], how);
    fill(t, &x[0], 0, false);
    fill(t, &x[1], 0, false);
    tsi_contraction fast;
    tsi_contraction_make("mk,kn->mn", &x[0].is.block, &x[1].is.block, &x[2].is.block, &fast);
    TEST_OK(t, tsi_cpu_contract(&fast, false));
    double *row = tsi_calloc((size_t)n, sizeof *row), worst = 0;
    ts_dtype dtype = (ts_dtype)meta[0].dtype;
    for (int64_t i = 0; i < m; i += 29) {
        memset(row, 0, (size_t)n * sizeof *row);
        for (int64_t l = 0; l < k; l++) {
            const tsi_block *a = &x[0].is.block, *b = &x[1].is.block;
            double f = tsi_load_real(dtype, tsi_block_at(a, i * a->stride[0] + l * a->stride[1]));
            for (int64_t j = 0; j < n; j++)
                row[j] +=
                    f * tsi_load_real(dtype, tsi_block_at(b, l * b->stride[0] + j * b->stride[1]));
        }
        for (int64_t j = 0; j < n; j++) {
            const tsi_block *c = &x[2].is.block;
            double y = tsi_load_real(dtype, tsi_block_at(c, i * c->stride[0] + j * c->stride[1]));
            double error =
                fabs(y - row[j]) / (60.0 + fabs(row[j])); /* sums of 1500 terms of size 2 */
            if (!(error <= worst)) worst = error;
        }
    }
    TEST_SAY(t, worst < tolerance(dtype), "%s spread %d: error %g", ts_dtype_name(dtype), (int)how,
             worst);
    tsi_free(row);
    release(x, 3);
}

TS_TEST_RANKS(large_products, 1)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    for (size_t d = 0; d < 2; d++)
        for (int how = 0; how < 2; how++) {
            const ts_meta meta[3] = {
                { .shape = TS_SHAPE(135, 1500), .dtype = (int32_t)dtypes[d] },
                { .shape = TS_SHAPE(1500, 1030), .dtype = (int32_t)dtypes[d] },
                { .shape = TS_SHAPE(135, 1030), .dtype = (int32_t)dtypes[d] }
            };
            large_case(t, meta, (spread)how);
        }
}

TS_TEST_RANKS(vectors_on_threads, 1, 2)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F32, TS_DTYPE_BF16 };
    for (int k = 0; k < 8; k++) {
        const ts_shape vector = TS_SHAPE(40001), down = TS_SHAPE(40001, 9);
        const ts_shape wide = TS_SHAPE(2100, 610), shape[] = { k & 2 ? down : wide, vector };
        call c = call_of("matmul", 2, shape, dtypes[k & 1]);
        TEST_OK(t, tsi_attributes_parse(c.op, "{}", c.attributes));
        c.in[1].shape = k & 2 ? down : TS_SHAPE(610);
        c.in[0].shape = k & 2 ? vector : wide;
        if (k & 4) c.in[0].shape = TS_SHAPE(610), c.in[1].shape = TS_SHAPE(610, 2100);
        TEST_CHECK(t, infer(&c));
        repeat_with_threads(t, &c);
    }
}

enum { MANY = 130 };

/* The first `few` rows of a product alone: their panels are packed another way. */
static void rows_alone(test *t, tsi_gemm g, int64_t few, float *out)
{
    const float *all = g.c;
    g.c = out;
    g.m = few;
    TEST_OK(t, tsi_gemm_bf16(tsi_rank_current(), tsi_bf16_tile_of_machine(), &g));
    TEST_SAY(t, memcmp(out, all, (size_t)(few * g.n) * sizeof *out) == 0,
             "%lld of %lld rows, k %lld, n %lld, strides of b %lld and %lld: other bits",
             (long long)few, (long long)MANY, (long long)g.k, (long long)g.n, (long long)g.bk,
             (long long)g.bn);
}

TS_TEST_RANKS(few_rows_of_bf16_have_the_bits_of_many, 1)
{
    static const int64_t columns[] = { 1, 65, 2051 }, depths[] = { 1, 4, 31, 96, 1027, 2080 };
    static const int64_t rows[] = { 2, 7, 8, 33, 63, 64, 65 };
    for (int c = 0; c < 2 * 3 * 6 && tsi_bf16_tile_of_machine(); c++) {
        int64_t n = columns[c / 2 % 3], k = depths[c / 6], turned = c % 2;
        uint16_t *a = tsi_calloc((size_t)(MANY * k), sizeof *a);
        uint16_t *b = tsi_calloc((size_t)(k * n), sizeof *b);
        float *all = tsi_calloc((size_t)(2 * MANY * n), sizeof *all);
        for (int64_t i = 0; i < MANY * k; i++)
            a[i] = tsi_bf16_of_f32((float)(test_random(t) % 4001) / 1000.0f - 2.0f);
        for (int64_t i = 0; i < k * n; i++)
            b[i] = tsi_bf16_of_f32((float)(test_random(t) % 4001) / 1000.0f - 2.0f);
        tsi_gemm g = { .m = MANY, .n = n, .k = k, .a = a, .b = b, .c = all, .wide = true };
        g.am = k;
        g.ak = g.cn = 1;
        g.bk = turned ? 1 : n;
        g.bn = turned ? k : 1;
        g.cm = n;
        TEST_OK(t, tsi_gemm_bf16(tsi_rank_current(), tsi_bf16_tile_of_machine(), &g));
        for (size_t i = 0; i < TSI_COUNT_OF(rows); i++)
            rows_alone(t, g, rows[i], all + MANY * n);
        tsi_free(a);
        tsi_free(b);
        tsi_free(all);
    }
}
