/* SPDX-License-Identifier: Apache-2.0 */
/* rows_point.h - the rows of rows.def: functions of one number, loops over them, their tables; a
 * part of rows_body.h. */

/* ---- what is not one expression -------------------------------------------------------------- */

static void add_bf16(const tsi_row *row)
{
    if (number_of(row) == 1.0)
        pack2_bf16(row, vp_plus);
    else
        pack2_bf16(row, vp_add);
}

/* NaN: no bound. */
static void clamp_f32(const tsi_row *row)
{
    const ts_number *bound = row->number;
    float *to = row->out, low = (float)bound[0].real, high = (float)bound[1].real;
    const float *x = row->in[0];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++) {
        float y = x[i] < low ? low : x[i];
        to[i] = y > high ? high : y;
    }
}

static void clamp_f64(const tsi_row *row)
{
    const ts_number *bound = row->number;
    double *to = row->out, low = bound[0].real, high = bound[1].real;
    const double *x = row->in[0];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++) {
        double y = x[i] < low ? low : x[i];
        to[i] = y > high ? high : y;
    }
}

static TSI_INLINE float one_lerp_f32(float x, float y, float c)
{
    return x + c * (y - x);
}

static TSI_INLINE float one_lerp_back_f32(float x, float y, float c)
{
    return y - (y - x) * (1.0f - c);
}

/* From the nearer end, as the reference: weight 0 gives x and weight 1 gives y, exactly. */
static void lerp_f32(const tsi_row *row)
{
    if (number_of(row) < 0.5)
        map2_f32(row, one_lerp_f32);
    else
        map2_f32(row, one_lerp_back_f32);
}

static void lerp_bf16(const tsi_row *row)
{
    if (number_of(row) < 0.5)
        pack2_bf16(row, vp_lerp);
    else
        pack2_bf16(row, vp_lerp_back);
}

static TSI_INLINE double one_lerp_f64(double x, double y, double c)
{
    return x + c * (y - x);
}

static TSI_INLINE double one_lerp_back_f64(double x, double y, double c)
{
    return y - (y - x) * (1.0 - c);
}

static void lerp_f64(const tsi_row *row)
{
    if (number_of(row) < 0.5)
        map2_f64(row, one_lerp_f64);
    else
        map2_f64(row, one_lerp_back_f64);
}

static void logical_not_f32(const tsi_row *row)
{
    uint8_t *to = row->out;
    const float *x = row->in[0];
    for (int64_t i = 0; i < row->count; i++)
        to[i] = x[i] == 0.0f;
}

static void logical_not_i64(const tsi_row *row)
{
    uint8_t *to = row->out;
    const int64_t *x = row->in[0];
    for (int64_t i = 0; i < row->count; i++)
        to[i] = x[i] == 0;
}

/* ---- one function and one loop for each line of rows.def ------------------------------------- */

#define FUNCTION_map1(type, name, e)                                                               \
    static TSI_INLINE number_##type one_##name##_##type(number_##type x, number_##type c)          \
    {                                                                                              \
        (void)c;                                                                                   \
        return e;                                                                                  \
    }
#define FUNCTION_map2(type, name, e)                                                               \
    static TSI_INLINE number_##type one_##name##_##type(number_##type x, number_##type y,          \
                                                        number_##type c)                           \
    {                                                                                              \
        (void)c;                                                                                   \
        return e;                                                                                  \
    }
#define FUNCTION_map3(type, name, e)                                                               \
    static TSI_INLINE number_##type one_##name##_##type(number_##type x, number_##type y,          \
                                                        number_##type z, number_##type c)          \
    {                                                                                              \
        (void)c;                                                                                   \
        return e;                                                                                  \
    }
#define FUNCTION_test2(type, name, e) FUNCTION_map2(type, name, (e) ? 1 : 0)
#define RUN(type, loop, name, f)                                                                   \
    static void name##_##type(const tsi_row *row)                                                  \
    {                                                                                              \
        loop##_##type(row, f);                                                                     \
    }
#define ROW(type, loop, name, e)                                                                   \
    FUNCTION_##loop(type, name, e) RUN(type, loop, name, one_##name##_##type)
#define OWN(type, name)
#include "backend/cpu/rows/rows.def"
#undef ROW
#undef RUN
#undef OWN
