/* SPDX-License-Identifier: Apache-2.0 */
/* rows_f32.h - elementwise functions of f32 and their rows; a part of rows_body.h.
 *
 * x, y, z are the inputs, c the operator's number. Where a NaN or the sign of zero matters, the
 * expressions say so; the compiler may not change them. */

static TSI_INLINE float one_abs_f32(float x, float c)
{
    (void)c;
    return fabsf(x);
}

static void abs_f32(const tsi_row *row)
{
    map1_f32(row, one_abs_f32);
}

static TSI_INLINE float one_ceil_f32(float x, float c)
{
    (void)c;
    return ceilf(x);
}

static void ceil_f32(const tsi_row *row)
{
    map1_f32(row, one_ceil_f32);
}

static void erf_f32(const tsi_row *row)
{
    pack1_f32(row, vp_erf);
}

static void exp_f32(const tsi_row *row)
{
    pack1_f32(row, vp_exp);
}

static TSI_INLINE float one_floor_f32(float x, float c)
{
    (void)c;
    return floorf(x);
}

static void floor_f32(const tsi_row *row)
{
    map1_f32(row, one_floor_f32);
}

static void gelu_f32(const tsi_row *row)
{
    pack1_f32(row, vp_gelu);
}

static void gelu_tanh_f32(const tsi_row *row)
{
    pack1_f32(row, vp_gelu_tanh);
}

static void log_f32(const tsi_row *row)
{
    pack1_f32(row, vp_log);
}

static void expm1_f32(const tsi_row *row)
{
    pack1_f32(row, vp_expm1);
}

static void elu_f32(const tsi_row *row)
{
    pack1_f32(row, vp_elu);
}

static void log1p_f32(const tsi_row *row)
{
    pack1_f32(row, vp_log1p);
}

static void softplus_f32(const tsi_row *row)
{
    pack1_f32(row, vp_softplus);
}

static void log_sigmoid_f32(const tsi_row *row)
{
    pack1_f32(row, vp_log_sigmoid);
}

static TSI_INLINE float one_neg_f32(float x, float c)
{
    (void)c;
    return -x;
}

static void neg_f32(const tsi_row *row)
{
    map1_f32(row, one_neg_f32);
}

static TSI_INLINE float one_reciprocal_f32(float x, float c)
{
    (void)c;
    return 1.0f / x;
}

static void reciprocal_f32(const tsi_row *row)
{
    map1_f32(row, one_reciprocal_f32);
}

static TSI_INLINE float one_relu_f32(float x, float c)
{
    (void)c;
    return tsi_f32_of_bits(tsi_bits_of_f32(x) & ~tsi_v_mask(x <= 0.0f));
}

static void relu_f32(const tsi_row *row)
{
    map1_f32(row, one_relu_f32);
}

static TSI_INLINE float one_round_f32(float x, float c)
{
    (void)c;
    return nearbyintf(x);
}

static void round_f32(const tsi_row *row)
{
    map1_f32(row, one_round_f32);
}

static TSI_INLINE float one_rsqrt_f32(float x, float c)
{
    (void)c;
    return 1.0f / sqrtf(x);
}

static void rsqrt_f32(const tsi_row *row)
{
    map1_f32(row, one_rsqrt_f32);
}

static void sigmoid_f32(const tsi_row *row)
{
    pack1_f32(row, vp_sigmoid);
}

static TSI_INLINE float one_sign_f32(float x, float c)
{
    (void)c;
    return x != x ? x : (x > 0.0f ? 1.0f : 0.0f) - (x < 0.0f ? 1.0f : 0.0f);
}

static void sign_f32(const tsi_row *row)
{
    map1_f32(row, one_sign_f32);
}

static void silu_f32(const tsi_row *row)
{
    pack1_f32(row, vp_silu);
}

static TSI_INLINE float one_sqrt_f32(float x, float c)
{
    (void)c;
    return sqrtf(x);
}

static void sqrt_f32(const tsi_row *row)
{
    map1_f32(row, one_sqrt_f32);
}

static TSI_INLINE float one_square_f32(float x, float c)
{
    (void)c;
    return x * x;
}

static void square_f32(const tsi_row *row)
{
    map1_f32(row, one_square_f32);
}

static void tanh_f32(const tsi_row *row)
{
    pack1_f32(row, vp_tanh);
}

static TSI_INLINE float one_trunc_f32(float x, float c)
{
    (void)c;
    return truncf(x);
}

static void trunc_f32(const tsi_row *row)
{
    map1_f32(row, one_trunc_f32);
}

static TSI_INLINE float one_add_scalar_f32(float x, float c)
{
    return x + c;
}

static void add_scalar_f32(const tsi_row *row)
{
    map1_f32(row, one_add_scalar_f32);
}

static TSI_INLINE float one_rsub_scalar_f32(float x, float c)
{
    return c - x;
}

static void rsub_scalar_f32(const tsi_row *row)
{
    map1_f32(row, one_rsub_scalar_f32);
}

static TSI_INLINE float one_mul_scalar_f32(float x, float c)
{
    return x * c;
}

static void mul_scalar_f32(const tsi_row *row)
{
    map1_f32(row, one_mul_scalar_f32);
}

static TSI_INLINE float one_div_scalar_f32(float x, float c)
{
    return x / c;
}

static void div_scalar_f32(const tsi_row *row)
{
    map1_f32(row, one_div_scalar_f32);
}

static TSI_INLINE float one_leaky_relu_f32(float x, float c)
{
    return tsi_v_pick(tsi_v_mask(x > 0.0f), x, x * c);
}

static void leaky_relu_f32(const tsi_row *row)
{
    map1_f32(row, one_leaky_relu_f32);
}

static TSI_INLINE float one_add_f32(float x, float y, float c)
{
    return x + c * y;
}

static void add_f32(const tsi_row *row)
{
    map2_f32(row, one_add_f32);
}

static TSI_INLINE float one_sub_f32(float x, float y, float c)
{
    return x - c * y;
}

static void sub_f32(const tsi_row *row)
{
    map2_f32(row, one_sub_f32);
}

static TSI_INLINE float one_mul_f32(float x, float y, float c)
{
    (void)c;
    return x * y;
}

static void mul_f32(const tsi_row *row)
{
    map2_f32(row, one_mul_f32);
}

static TSI_INLINE float one_div_f32(float x, float y, float c)
{
    (void)c;
    return x / y;
}

static void div_f32(const tsi_row *row)
{
    map2_f32(row, one_div_f32);
}

static TSI_INLINE float one_maximum_f32(float x, float y, float c)
{
    (void)c;
    return tsi_v_pick(tsi_v_mask(x > y) | ~tsi_v_mask(x == x), x, y);
}

static void maximum_f32(const tsi_row *row)
{
    map2_f32(row, one_maximum_f32);
}

static TSI_INLINE float one_minimum_f32(float x, float y, float c)
{
    (void)c;
    return tsi_v_pick(tsi_v_mask(x < y) | ~tsi_v_mask(x == x), x, y);
}

static void minimum_f32(const tsi_row *row)
{
    map2_f32(row, one_minimum_f32);
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

static TSI_INLINE float one_masked_fill_f32(float x, float y, float c)
{
    return y != 0.0f ? c : x;
}

static void masked_fill_f32(const tsi_row *row)
{
    map2_f32(row, one_masked_fill_f32);
}

static TSI_INLINE float one_threshold_backward_f32(float x, float y, float c)
{
    (void)c;
    return tsi_f32_of_bits(tsi_bits_of_f32(x) & tsi_v_mask(y > 0.0f));
}

static void threshold_backward_f32(const tsi_row *row)
{
    map2_f32(row, one_threshold_backward_f32);
}

static TSI_INLINE float one_sigmoid_backward_f32(float x, float y, float c)
{
    (void)c;
    return x * y * (1.0f - y);
}

static void sigmoid_backward_f32(const tsi_row *row)
{
    map2_f32(row, one_sigmoid_backward_f32);
}

static TSI_INLINE float one_tanh_backward_f32(float x, float y, float c)
{
    (void)c;
    return x * (1.0f - y * y);
}

static void tanh_backward_f32(const tsi_row *row)
{
    map2_f32(row, one_tanh_backward_f32);
}

static void silu_backward_f32(const tsi_row *row)
{
    pack2_f32(row, vp_silu_backward);
}

static void gelu_backward_f32(const tsi_row *row)
{
    pack2_f32(row, vp_gelu_backward);
}

static TSI_INLINE float one_eq_f32(float x, float y, float c)
{
    (void)c;
    return x == y ? 1.0f : 0.0f;
}

static void eq_f32(const tsi_row *row)
{
    test2_f32(row, one_eq_f32);
}

static TSI_INLINE float one_ne_f32(float x, float y, float c)
{
    (void)c;
    return x != y ? 1.0f : 0.0f;
}

static void ne_f32(const tsi_row *row)
{
    test2_f32(row, one_ne_f32);
}

static TSI_INLINE float one_lt_f32(float x, float y, float c)
{
    (void)c;
    return x < y ? 1.0f : 0.0f;
}

static void lt_f32(const tsi_row *row)
{
    test2_f32(row, one_lt_f32);
}

static TSI_INLINE float one_le_f32(float x, float y, float c)
{
    (void)c;
    return x <= y ? 1.0f : 0.0f;
}

static void le_f32(const tsi_row *row)
{
    test2_f32(row, one_le_f32);
}

static TSI_INLINE float one_gt_f32(float x, float y, float c)
{
    (void)c;
    return x > y ? 1.0f : 0.0f;
}

static void gt_f32(const tsi_row *row)
{
    test2_f32(row, one_gt_f32);
}

static TSI_INLINE float one_ge_f32(float x, float y, float c)
{
    (void)c;
    return x >= y ? 1.0f : 0.0f;
}

static void ge_f32(const tsi_row *row)
{
    test2_f32(row, one_ge_f32);
}

static TSI_INLINE float one_logical_and_f32(float x, float y, float c)
{
    (void)c;
    return x != 0.0f && y != 0.0f ? 1.0f : 0.0f;
}

static void logical_and_f32(const tsi_row *row)
{
    test2_f32(row, one_logical_and_f32);
}

static TSI_INLINE float one_logical_or_f32(float x, float y, float c)
{
    (void)c;
    return x != 0.0f || y != 0.0f ? 1.0f : 0.0f;
}

static void logical_or_f32(const tsi_row *row)
{
    test2_f32(row, one_logical_or_f32);
}

static TSI_INLINE float one_where_f32(float x, float y, float z, float c)
{
    (void)c;
    return x != 0.0f ? y : z;
}

static void where_f32(const tsi_row *row)
{
    map3_f32(row, one_where_f32);
}

static TSI_INLINE float one_addcmul_f32(float x, float y, float z, float c)
{
    return x + c * y * z;
}

static void addcmul_f32(const tsi_row *row)
{
    map3_f32(row, one_addcmul_f32);
}

static TSI_INLINE float one_addcdiv_f32(float x, float y, float z, float c)
{
    return x + c * y / z;
}

static void addcdiv_f32(const tsi_row *row)
{
    map3_f32(row, one_addcdiv_f32);
}

/* min and max are two numbers; NaN: no bound. */
static void clamp_f32(const tsi_row *row)
{
    float *to = row->out, low = (float)row->number[0], high = (float)row->number[1];
    const float *x = row->in[0];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++) {
        float y = x[i] < low ? low : x[i];
        to[i] = y > high ? high : y;
    }
}

static void logical_not_f32(const tsi_row *row)
{
    uint8_t *to = row->out;
    const float *x = row->in[0];
    for (int64_t i = 0; i < row->count; i++)
        to[i] = x[i] == 0.0f;
}

static void gelu_tanh_backward_f32(const tsi_row *row)
{
    pack2_f32(row, vp_gelu_tanh_backward);
}

static void swiglu_f32(const tsi_row *row)
{
    pack2_f32(row, vp_swiglu);
}

static void swiglu_backward_f32(const tsi_row *row)
{
    pack3_f32(row, vp_swiglu_backward);
}

#define TSI_ROWS_F32                                                                               \
    .f32 = {                                                                                       \
        [TSI_ROW_ABS] = abs_f32,                                                                   \
        [TSI_ROW_ADD] = add_f32,                                                                   \
        [TSI_ROW_ADD_SCALAR] = add_scalar_f32,                                                     \
        [TSI_ROW_ADDCDIV] = addcdiv_f32,                                                           \
        [TSI_ROW_ADDCMUL] = addcmul_f32,                                                           \
        [TSI_ROW_CEIL] = ceil_f32,                                                                 \
        [TSI_ROW_CLAMP] = clamp_f32,                                                               \
        [TSI_ROW_DIV] = div_f32,                                                                   \
        [TSI_ROW_DIV_SCALAR] = div_scalar_f32,                                                     \
        [TSI_ROW_EQ] = eq_f32,                                                                     \
        [TSI_ROW_ERF] = erf_f32,                                                                   \
        [TSI_ROW_EXP] = exp_f32,                                                                   \
        [TSI_ROW_FLOOR] = floor_f32,                                                               \
        [TSI_ROW_GE] = ge_f32,                                                                     \
        [TSI_ROW_GELU] = gelu_f32,                                                                 \
        [TSI_ROW_GELU_BACKWARD] = gelu_backward_f32,                                               \
        [TSI_ROW_GELU_TANH] = gelu_tanh_f32,                                                       \
        [TSI_ROW_GELU_TANH_BACKWARD] = gelu_tanh_backward_f32,                                     \
        [TSI_ROW_GT] = gt_f32,                                                                     \
        [TSI_ROW_LE] = le_f32,                                                                     \
        [TSI_ROW_LEAKY_RELU] = leaky_relu_f32,                                                     \
        [TSI_ROW_LERP] = lerp_f32,                                                                 \
        [TSI_ROW_LOG] = log_f32,                                                                   \
        [TSI_ROW_EXPM1] = expm1_f32,                                                               \
        [TSI_ROW_ELU] = elu_f32,                                                                   \
        [TSI_ROW_LOG1P] = log1p_f32,                                                               \
        [TSI_ROW_SOFTPLUS] = softplus_f32,                                                         \
        [TSI_ROW_LOG_SIGMOID] = log_sigmoid_f32,                                                   \
        [TSI_ROW_LOGICAL_AND] = logical_and_f32,                                                   \
        [TSI_ROW_LOGICAL_NOT] = logical_not_f32,                                                   \
        [TSI_ROW_LOGICAL_OR] = logical_or_f32,                                                     \
        [TSI_ROW_LT] = lt_f32,                                                                     \
        [TSI_ROW_MASKED_FILL] = masked_fill_f32,                                                   \
        [TSI_ROW_MAXIMUM] = maximum_f32,                                                           \
        [TSI_ROW_MINIMUM] = minimum_f32,                                                           \
        [TSI_ROW_MUL] = mul_f32,                                                                   \
        [TSI_ROW_MUL_SCALAR] = mul_scalar_f32,                                                     \
        [TSI_ROW_NE] = ne_f32,                                                                     \
        [TSI_ROW_NEG] = neg_f32,                                                                   \
        [TSI_ROW_RECIPROCAL] = reciprocal_f32,                                                     \
        [TSI_ROW_RELU] = relu_f32,                                                                 \
        [TSI_ROW_ROUND] = round_f32,                                                               \
        [TSI_ROW_RSQRT] = rsqrt_f32,                                                               \
        [TSI_ROW_RSUB_SCALAR] = rsub_scalar_f32,                                                   \
        [TSI_ROW_SIGMOID] = sigmoid_f32,                                                           \
        [TSI_ROW_SIGMOID_BACKWARD] = sigmoid_backward_f32,                                         \
        [TSI_ROW_SIGN] = sign_f32,                                                                 \
        [TSI_ROW_SILU] = silu_f32,                                                                 \
        [TSI_ROW_SILU_BACKWARD] = silu_backward_f32,                                               \
        [TSI_ROW_SQRT] = sqrt_f32,                                                                 \
        [TSI_ROW_SQUARE] = square_f32,                                                             \
        [TSI_ROW_SUB] = sub_f32,                                                                   \
        [TSI_ROW_SWIGLU] = swiglu_f32,                                                             \
        [TSI_ROW_SWIGLU_BACKWARD] = swiglu_backward_f32,                                           \
        [TSI_ROW_TANH] = tanh_f32,                                                                 \
        [TSI_ROW_TANH_BACKWARD] = tanh_backward_f32,                                               \
        [TSI_ROW_THRESHOLD_BACKWARD] = threshold_backward_f32,                                     \
        [TSI_ROW_TRUNC] = trunc_f32,                                                               \
        [TSI_ROW_WHERE] = where_f32,                                                               \
    }
