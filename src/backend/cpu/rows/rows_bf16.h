/* SPDX-License-Identifier: Apache-2.0 */
/* rows_bf16.h - the functions of rows_f32.h on rows of bf16, widened and rounded in registers; a
 * part of rows_body.h. */

static TSI_INLINE void pack1_bf16(const tsi_row *row, pack_one f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0];
    float c = (float)number_of(row);
    int64_t i = 0;
    for (; i + PACK <= row->count; i += PACK)
        store_bf16(to + i, f(load_bf16(x + i), c));
    int64_t rest = row->count - i;
    if (rest > 0) store_part_bf16(to + i, f(part_bf16(x + i, rest), c), rest);
}

/* One number, widened, where an input does not move. */
static TSI_INLINE vp pack_single(const uint16_t *x)
{
    return vp_set(tsi_f32_of_bf16(*x));
}

/* Both inputs move, or one of them: a loop for each. */
static TSI_INLINE void pack2_bf16(const tsi_row *row, pack_two f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0], *y = row->in[1];
    float c = (float)number_of(row);
    int64_t i = 0, whole = row->count / PACK * PACK, rest = row->count - whole;
    int32_t moves_x = row->step[0], moves_y = row->step[1];
    vp a = pack_single(x), b = pack_single(y);
    if (moves_x && moves_y) {
        for (; i + 2 * PACK <= whole;
             i += 2 * PACK) { /* two at once: conversions are slow to end */
            vp left = f(load_bf16(x + i), load_bf16(y + i), c);
            vp right = f(load_bf16(x + i + PACK), load_bf16(y + i + PACK), c);
            store_bf16(to + i, left);
            store_bf16(to + i + PACK, right);
        }
        for (; i < whole; i += PACK)
            store_bf16(to + i, f(load_bf16(x + i), load_bf16(y + i), c));
    } else if (moves_x) {
        for (; i < whole; i += PACK)
            store_bf16(to + i, f(load_bf16(x + i), b, c));
    } else {
        for (; i < whole; i += PACK)
            store_bf16(to + i, f(a, moves_y ? load_bf16(y + i) : b, c));
    }
    if (rest == 0) return;
    if (moves_x) a = part_bf16(x + i, rest);
    if (moves_y) b = part_bf16(y + i, rest);
    store_part_bf16(to + i, f(a, b, c), rest);
}

static TSI_INLINE void map1_bf16(const tsi_row *row, f32_one f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0];
    float c = (float)number_of(row);
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = tsi_bf16_of_f32(f(tsi_f32_of_bf16(x[i]), c));
}

static TSI_INLINE void map2_bf16(const tsi_row *row, f32_two f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0], *y = row->in[1];
    int64_t sx = row->step[0], sy = row->step[1];
    float c = (float)number_of(row);
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = tsi_bf16_of_f32(f(tsi_f32_of_bf16(x[i * sx]), tsi_f32_of_bf16(y[i * sy]), c));
}

static TSI_INLINE void map3_bf16(const tsi_row *row, f32_three f)
{
    uint16_t *to = row->out;
    const uint16_t *x = row->in[0], *y = row->in[1], *z = row->in[2];
    int64_t sx = row->step[0], sy = row->step[1], sz = row->step[2];
    float c = (float)number_of(row);
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++)
        to[i] = tsi_bf16_of_f32(f(tsi_f32_of_bf16(x[i * sx]), tsi_f32_of_bf16(y[i * sy]),
                                  tsi_f32_of_bf16(z[i * sz]), c));
}

static void widen_row(float *to, const uint16_t *x, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        fetch(x + i);
        store_f32(to + i, load_bf16(x + i));
    }
    for (; i < count; i++)
        to[i] = tsi_f32_of_bf16(x[i]);
}

static void narrow_row(uint16_t *to, const float *x, int64_t count)
{
    int64_t i = 0;
    for (; i + PACK <= count; i += PACK) {
        fetch(x + i);
        store_bf16(to + i, load_f32(x + i));
    }
    for (; i < count; i++)
        to[i] = tsi_bf16_of_f32(x[i]);
}

static void abs_bf16(const tsi_row *row)
{
    map1_bf16(row, one_abs_f32);
}

static void ceil_bf16(const tsi_row *row)
{
    map1_bf16(row, one_ceil_f32);
}

static void erf_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_erf);
}

static void exp_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_exp);
}

static void floor_bf16(const tsi_row *row)
{
    map1_bf16(row, one_floor_f32);
}

static void gelu_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_gelu);
}

static void gelu_tanh_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_gelu_tanh);
}

static void log_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_log);
}

static void expm1_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_expm1);
}

static void elu_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_elu);
}

static void log1p_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_log1p);
}

static void softplus_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_softplus);
}

static void log_sigmoid_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_log_sigmoid);
}

static void neg_bf16(const tsi_row *row)
{
    map1_bf16(row, one_neg_f32);
}

static void reciprocal_bf16(const tsi_row *row)
{
    map1_bf16(row, one_reciprocal_f32);
}

static void relu_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_relu);
}

static void round_bf16(const tsi_row *row)
{
    map1_bf16(row, one_round_f32);
}

static void rsqrt_bf16(const tsi_row *row)
{
    map1_bf16(row, one_rsqrt_f32);
}

static void sigmoid_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_sigmoid);
}

static void sign_bf16(const tsi_row *row)
{
    map1_bf16(row, one_sign_f32);
}

static void silu_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_silu);
}

static void sqrt_bf16(const tsi_row *row)
{
    map1_bf16(row, one_sqrt_f32);
}

static void square_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_square);
}

static void tanh_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_tanh);
}

static void trunc_bf16(const tsi_row *row)
{
    map1_bf16(row, one_trunc_f32);
}

static void add_scalar_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_add_scalar);
}

static void rsub_scalar_bf16(const tsi_row *row)
{
    map1_bf16(row, one_rsub_scalar_f32);
}

static void mul_scalar_bf16(const tsi_row *row)
{
    pack1_bf16(row, vp_mul_scalar);
}

static void div_scalar_bf16(const tsi_row *row)
{
    map1_bf16(row, one_div_scalar_f32);
}

static void leaky_relu_bf16(const tsi_row *row)
{
    map1_bf16(row, one_leaky_relu_f32);
}

static void add_bf16(const tsi_row *row)
{
    if (number_of(row) == 1.0)
        pack2_bf16(row, vp_plus);
    else
        pack2_bf16(row, vp_add);
}

static void sub_bf16(const tsi_row *row)
{
    pack2_bf16(row, vp_sub);
}

static void mul_bf16(const tsi_row *row)
{
    pack2_bf16(row, vp_mul);
}

static void div_bf16(const tsi_row *row)
{
    pack2_bf16(row, vp_div);
}

static void maximum_bf16(const tsi_row *row)
{
    map2_bf16(row, one_maximum_f32);
}

static void minimum_bf16(const tsi_row *row)
{
    map2_bf16(row, one_minimum_f32);
}

static void lerp_bf16(const tsi_row *row)
{
    if (number_of(row) < 0.5)
        pack2_bf16(row, vp_lerp);
    else
        pack2_bf16(row, vp_lerp_back);
}

static void masked_fill_bf16(const tsi_row *row)
{
    map2_bf16(row, one_masked_fill_f32);
}

static void threshold_backward_bf16(const tsi_row *row)
{
    map2_bf16(row, one_threshold_backward_f32);
}

static void sigmoid_backward_bf16(const tsi_row *row)
{
    map2_bf16(row, one_sigmoid_backward_f32);
}

static void tanh_backward_bf16(const tsi_row *row)
{
    map2_bf16(row, one_tanh_backward_f32);
}

static void silu_backward_bf16(const tsi_row *row)
{
    pack2_bf16(row, vp_silu_backward);
}

static void gelu_backward_bf16(const tsi_row *row)
{
    pack2_bf16(row, vp_gelu_backward);
}

static void where_bf16(const tsi_row *row)
{
    map3_bf16(row, one_where_f32);
}

static void addcmul_bf16(const tsi_row *row)
{
    map3_bf16(row, one_addcmul_f32);
}

static void addcdiv_bf16(const tsi_row *row)
{
    map3_bf16(row, one_addcdiv_f32);
}

static void gelu_tanh_backward_bf16(const tsi_row *row)
{
    pack2_bf16(row, vp_gelu_tanh_backward);
}

static void swiglu_bf16(const tsi_row *row)
{
    pack2_bf16(row, vp_swiglu);
}

static void swiglu_backward_bf16(const tsi_row *row)
{
    pack3_bf16(row, vp_swiglu_backward);
}

#define TSI_ROWS_BF16                                                                              \
    .bf16 = {                                                                                      \
        [TSI_ROW_ABS] = abs_bf16,                                                                  \
        [TSI_ROW_ADD] = add_bf16,                                                                  \
        [TSI_ROW_ADD_SCALAR] = add_scalar_bf16,                                                    \
        [TSI_ROW_ADDCDIV] = addcdiv_bf16,                                                          \
        [TSI_ROW_ADDCMUL] = addcmul_bf16,                                                          \
        [TSI_ROW_CEIL] = ceil_bf16,                                                                \
        [TSI_ROW_DIV] = div_bf16,                                                                  \
        [TSI_ROW_DIV_SCALAR] = div_scalar_bf16,                                                    \
        [TSI_ROW_ERF] = erf_bf16,                                                                  \
        [TSI_ROW_EXP] = exp_bf16,                                                                  \
        [TSI_ROW_FLOOR] = floor_bf16,                                                              \
        [TSI_ROW_GELU] = gelu_bf16,                                                                \
        [TSI_ROW_GELU_BACKWARD] = gelu_backward_bf16,                                              \
        [TSI_ROW_GELU_TANH] = gelu_tanh_bf16,                                                      \
        [TSI_ROW_GELU_TANH_BACKWARD] = gelu_tanh_backward_bf16, \
        [TSI_ROW_LEAKY_RELU] = leaky_relu_bf16,                                                    \
        [TSI_ROW_LERP] = lerp_bf16,                                                                \
        [TSI_ROW_LOG] = log_bf16,                                                                  \
        [TSI_ROW_EXPM1] = expm1_bf16,                                                              \
        [TSI_ROW_ELU] = elu_bf16,                                                                  \
        [TSI_ROW_LOG1P] = log1p_bf16,                                                              \
        [TSI_ROW_SOFTPLUS] = softplus_bf16,                                                        \
        [TSI_ROW_LOG_SIGMOID] = log_sigmoid_bf16,                                                  \
        [TSI_ROW_MASKED_FILL] = masked_fill_bf16,                                                  \
        [TSI_ROW_MAXIMUM] = maximum_bf16,                                                          \
        [TSI_ROW_MINIMUM] = minimum_bf16,                                                          \
        [TSI_ROW_MUL] = mul_bf16,                                                                  \
        [TSI_ROW_MUL_SCALAR] = mul_scalar_bf16,                                                    \
        [TSI_ROW_NEG] = neg_bf16,                                                                  \
        [TSI_ROW_RECIPROCAL] = reciprocal_bf16,                                                    \
        [TSI_ROW_RELU] = relu_bf16,                                                                \
        [TSI_ROW_ROUND] = round_bf16,                                                              \
        [TSI_ROW_RSQRT] = rsqrt_bf16,                                                              \
        [TSI_ROW_RSUB_SCALAR] = rsub_scalar_bf16,                                                  \
        [TSI_ROW_SIGMOID] = sigmoid_bf16,                                                          \
        [TSI_ROW_SIGMOID_BACKWARD] = sigmoid_backward_bf16,                                        \
        [TSI_ROW_SIGN] = sign_bf16,                                                                \
        [TSI_ROW_SILU] = silu_bf16,                                                                \
        [TSI_ROW_SILU_BACKWARD] = silu_backward_bf16,                                              \
        [TSI_ROW_SQRT] = sqrt_bf16,                                                                \
        [TSI_ROW_SQUARE] = square_bf16,                                                            \
        [TSI_ROW_SUB] = sub_bf16,                                                                  \
        [TSI_ROW_SWIGLU] = swiglu_bf16, \
        [TSI_ROW_SWIGLU_BACKWARD] = swiglu_backward_bf16, \
        [TSI_ROW_TANH] = tanh_bf16,                                                                \
        [TSI_ROW_TANH_BACKWARD] = tanh_backward_bf16,                                              \
        [TSI_ROW_THRESHOLD_BACKWARD] = threshold_backward_bf16,                                    \
        [TSI_ROW_TRUNC] = trunc_bf16,                                                              \
        [TSI_ROW_WHERE] = where_bf16,                                                              \
    },                                                                                             \
    .widen = widen_row, .narrow = narrow_row
