/* SPDX-License-Identifier: Apache-2.0 */
/* rows_body.h - the loops of rows.h: included once by the file of each instruction set, which
 * defines TSI_ROW_SET (the name of the table) and TSI_ROW_SET_NAME before.
 *
 * An elementwise function is written once for one number; map1, map2 and map3 make the loops over
 * it, with a loop of its own for each common broadcast. They are inlined into every row kernel, so
 * the compiler sees the function and makes vector code of it. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/rows/rows.h"
#include "backend/cpu/rows/vmath.h"
#include "base/compiler.h"

/* ---- loops over a function ------------------------------------------------------------------- */

typedef float number_f32;
typedef double number_f64;
typedef int64_t number_i64;
typedef float (*f32_one)(float x, float c);
typedef float (*f32_two)(float x, float y, float c);
typedef float (*f32_three)(float x, float y, float z, float c);
typedef double (*f64_one)(double x, double c);
typedef double (*f64_two)(double x, double y, double c);
typedef double (*f64_three)(double x, double y, double z, double c);
typedef int64_t (*i64_one)(int64_t x, int64_t c);
typedef int64_t (*i64_two)(int64_t x, int64_t y, int64_t c);

static TSI_INLINE double number_of(const tsi_row *row)
{
    return row->number ? *(const double *)row->number : 0.0;
}

/* All operators with i64 rows have a ts_number, if any. */
static TSI_INLINE int64_t whole_of(const tsi_row *row)
{
    return row->number ? ((const ts_number *)row->number)->whole : 0;
}

/* Elements of a step, and how far ahead of it the next ones are fetched: a machine that follows a
 * single row by itself stays too close behind. */
enum { STEP = 32, FETCH_BYTES = 1024 };

static TSI_INLINE void fetch(const void *x)
{
    TSI_PREFETCH((const char *)x + FETCH_BYTES);
}

static TSI_INLINE void fetch_step(const float *x)
{
    for (int j = 0; j < STEP; j += 16)
        fetch(x + j);
}

static TSI_INLINE void map1_f32(const tsi_row *row, f32_one f)
{
    float *to = row->out, c = (float)number_of(row);
    const float *x = row->in[0];
    int64_t i = 0;
    for (; i + STEP <= row->count; i += STEP) {
        fetch_step(x + i);
        TSI_INDEPENDENT
        for (int j = 0; j < STEP; j++)
            to[i + j] = f(x[i + j], c);
    }
    for (; i < row->count; i++)
        to[i] = f(x[i], c);
}

static TSI_INLINE void map1_f64(const tsi_row *row, f64_one f)
{
    double *to = row->out, c = number_of(row);
    const double *x = row->in[0];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = f(x[i], c);
}

static TSI_INLINE void map1_i64(const tsi_row *row, i64_one f)
{
    int64_t *to = row->out, c = whole_of(row);
    const int64_t *x = row->in[0];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = f(x[i], c);
}

static TSI_INLINE void map2_f32(const tsi_row *row, f32_two f)
{
    if (row->count == 0) return; /* a single number is not there to read */
    float *to = row->out, c = (float)number_of(row);
    const float *x = row->in[0], *y = row->in[1];
    int64_t i = 0;
    if (row->step[0] && row->step[1]) {
        for (; i + STEP <= row->count; i += STEP) {
            fetch_step(x + i);
            fetch_step(y + i);
            TSI_INDEPENDENT
            for (int j = 0; j < STEP; j++)
                to[i + j] = f(x[i + j], y[i + j], c);
        }
        for (; i < row->count; i++)
            to[i] = f(x[i], y[i], c);
    } else if (row->step[0]) {
        float b = *y;
        for (; i + STEP <= row->count; i += STEP) {
            fetch_step(x + i);
            TSI_INDEPENDENT
            for (int j = 0; j < STEP; j++)
                to[i + j] = f(x[i + j], b, c);
        }
        for (; i < row->count; i++)
            to[i] = f(x[i], b, c);
    } else {
        float a = *x;
        TSI_INDEPENDENT
        for (; i < row->count; i++)
            to[i] = f(a, y[i], c);
    }
}

static TSI_INLINE void map2_f64(const tsi_row *row, f64_two f)
{
    if (row->count == 0) return; /* a single number is not there to read */
    double *to = row->out, c = number_of(row);
    const double *x = row->in[0], *y = row->in[1];
    if (row->step[0] && row->step[1]) {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < row->count; i++)
            to[i] = f(x[i], y[i], c);
    } else if (row->step[0]) {
        double b = *y;
        TSI_INDEPENDENT
        for (int64_t i = 0; i < row->count; i++)
            to[i] = f(x[i], b, c);
    } else {
        double a = *x;
        TSI_INDEPENDENT
        for (int64_t i = 0; i < row->count; i++)
            to[i] = f(a, y[i], c);
    }
}

static TSI_INLINE void map2_i64(const tsi_row *row, i64_two f)
{
    int64_t *to = row->out, c = whole_of(row);
    const int64_t *x = row->in[0], *y = row->in[1];
    int64_t sx = row->step[0], sy = row->step[1];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = f(x[i * sx], y[i * sy], c);
}

/* Three inputs: any of them may be a single number. */
static TSI_INLINE void map3_f32(const tsi_row *row, f32_three f)
{
    float *to = row->out, c = (float)number_of(row);
    const float *x = row->in[0], *y = row->in[1], *z = row->in[2];
    int64_t sx = row->step[0], sy = row->step[1], sz = row->step[2];
    if (sx && sy && sz) {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < row->count; i++)
            to[i] = f(x[i], y[i], z[i], c);
    } else {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < row->count; i++)
            to[i] = f(x[i * sx], y[i * sy], z[i * sz], c);
    }
}

static TSI_INLINE void map3_f64(const tsi_row *row, f64_three f)
{
    double *to = row->out, c = number_of(row);
    const double *x = row->in[0], *y = row->in[1], *z = row->in[2];
    int64_t sx = row->step[0], sy = row->step[1], sz = row->step[2];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = f(x[i * sx], y[i * sy], z[i * sz], c);
}

/* Truths as bytes. */
static TSI_INLINE void test2_f32(const tsi_row *row, f32_two f)
{
    uint8_t *to = row->out;
    const float *x = row->in[0], *y = row->in[1];
    int64_t count = row->count, sx = row->step[0], sy = row->step[1], i = 0;
    for (; i + STEP <= count && sx && sy; i += STEP) {
        uint32_t truth[STEP]; /* bytes could lie anywhere, also in x and y */
        fetch_step(x + i);
        fetch_step(y + i);
        for (int j = 0; j < STEP; j++)
            truth[j] = f(x[i + j], y[i + j], 0) != 0.0f;
        for (int j = 0; j < STEP; j++)
            to[i + j] = (uint8_t)truth[j];
    }
    for (; i + STEP <= count && sx; i += STEP) {
        uint32_t truth[STEP];
        float b = *y;
        fetch_step(x + i);
        for (int j = 0; j < STEP; j++)
            truth[j] = f(x[i + j], b, 0) != 0.0f;
        for (int j = 0; j < STEP; j++)
            to[i + j] = (uint8_t)truth[j];
    }
    for (; i < count; i++)
        to[i] = f(x[i * sx], y[i * sy], 0) != 0.0f;
}

static TSI_INLINE void test2_f64(const tsi_row *row, f64_two f)
{
    uint8_t *to = row->out;
    const double *x = row->in[0], *y = row->in[1];
    int64_t sx = row->step[0], sy = row->step[1];
    for (int64_t i = 0; i < row->count; i++)
        to[i] = f(x[i * sx], y[i * sy], 0) != 0.0;
}

static TSI_INLINE void test2_i64(const tsi_row *row, i64_two f)
{
    uint8_t *to = row->out;
    const int64_t *x = row->in[0], *y = row->in[1];
    int64_t sx = row->step[0], sy = row->step[1];
    for (int64_t i = 0; i < row->count; i++)
        to[i] = f(x[i * sx], y[i * sy], 0) != 0;
}

/* In this order: later parts use functions of earlier ones. */
#include "backend/cpu/rows/rows_pack.h"
/* exponentials and their kin */
#include "backend/cpu/rows/rows_math.h"
/* loops over bf16 */
#include "backend/cpu/rows/rows_bf16.h"
/* elementwise functions */
#include "backend/cpu/rows/rows_point.h"
/* reductions */
#include "backend/cpu/rows/rows_fold.h"
/* rows into rows */
#include "backend/cpu/rows/rows_join.h"
/* softmax, attention */
#include "backend/cpu/rows/rows_softmax.h"
/* norms, which add up as these do */
#include "backend/cpu/rows/rows_norm.h"
/* rotary positions, products of rows */
#include "backend/cpu/rows/rows_fused.h"
/* optimisers */
#include "backend/cpu/rows/rows_update.h"

const tsi_row_set TSI_ROW_SET = {
    .name = TSI_ROW_SET_NAME,
    TSI_ROWS_BF16,
    TSI_ROWS_FOLD,
    TSI_ROWS_JOIN,
    TSI_ROWS_SOFTMAX,
    TSI_ROWS_NORM,
    TSI_ROWS_FUSED,
    TSI_ROWS_UPDATE,
#define ROW(type, loop, name, e) .type[TSI_ROW_##name] = name##_##type,
#define RUN(type, loop, name, f) .type[TSI_ROW_##name] = name##_##type,
#define OWN(type, name) .type[TSI_ROW_##name] = name##_##type,
#include "backend/cpu/rows/rows.def"
#undef ROW
#undef RUN
#undef OWN
};
