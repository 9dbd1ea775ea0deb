/* SPDX-License-Identifier: Apache-2.0 */
/* rows_wide.h - elementwise functions of f64 and i64 and their rows; a part of rows_body.h.
 *
 * What is not here (exponentials of f64, ...) goes element by element through the reference's own
 * scalar function. Integers wrap around. */

static TSI_INLINE double one_abs_f64(double x, double c)
{
    (void)c;
    return fabs(x);
}

static void abs_f64(const tsi_row *row)
{
    map1_f64(row, one_abs_f64);
}

static TSI_INLINE double one_ceil_f64(double x, double c)
{
    (void)c;
    return ceil(x);
}

static void ceil_f64(const tsi_row *row)
{
    map1_f64(row, one_ceil_f64);
}

static TSI_INLINE double one_floor_f64(double x, double c)
{
    (void)c;
    return floor(x);
}

static void floor_f64(const tsi_row *row)
{
    map1_f64(row, one_floor_f64);
}

static TSI_INLINE double one_neg_f64(double x, double c)
{
    (void)c;
    return -x;
}

static void neg_f64(const tsi_row *row)
{
    map1_f64(row, one_neg_f64);
}

static TSI_INLINE double one_reciprocal_f64(double x, double c)
{
    (void)c;
    return 1.0 / x;
}

static void reciprocal_f64(const tsi_row *row)
{
    map1_f64(row, one_reciprocal_f64);
}

static TSI_INLINE double one_relu_f64(double x, double c)
{
    (void)c;
    return x > 0.0 || x != x ? x : 0.0;
}

static void relu_f64(const tsi_row *row)
{
    map1_f64(row, one_relu_f64);
}

static TSI_INLINE double one_round_f64(double x, double c)
{
    (void)c;
    return nearbyint(x);
}

static void round_f64(const tsi_row *row)
{
    map1_f64(row, one_round_f64);
}

static TSI_INLINE double one_rsqrt_f64(double x, double c)
{
    (void)c;
    return 1.0 / sqrt(x);
}

static void rsqrt_f64(const tsi_row *row)
{
    map1_f64(row, one_rsqrt_f64);
}

static TSI_INLINE double one_sign_f64(double x, double c)
{
    (void)c;
    return x != x ? x : (x > 0.0 ? 1.0 : 0.0) - (x < 0.0 ? 1.0 : 0.0);
}

static void sign_f64(const tsi_row *row)
{
    map1_f64(row, one_sign_f64);
}

static TSI_INLINE double one_sqrt_f64(double x, double c)
{
    (void)c;
    return sqrt(x);
}

static void sqrt_f64(const tsi_row *row)
{
    map1_f64(row, one_sqrt_f64);
}

static TSI_INLINE double one_square_f64(double x, double c)
{
    (void)c;
    return x * x;
}

static void square_f64(const tsi_row *row)
{
    map1_f64(row, one_square_f64);
}

static TSI_INLINE double one_trunc_f64(double x, double c)
{
    (void)c;
    return trunc(x);
}

static void trunc_f64(const tsi_row *row)
{
    map1_f64(row, one_trunc_f64);
}

static TSI_INLINE double one_add_scalar_f64(double x, double c)
{
    return x + c;
}

static void add_scalar_f64(const tsi_row *row)
{
    map1_f64(row, one_add_scalar_f64);
}

static TSI_INLINE double one_rsub_scalar_f64(double x, double c)
{
    return c - x;
}

static void rsub_scalar_f64(const tsi_row *row)
{
    map1_f64(row, one_rsub_scalar_f64);
}

static TSI_INLINE double one_mul_scalar_f64(double x, double c)
{
    return x * c;
}

static void mul_scalar_f64(const tsi_row *row)
{
    map1_f64(row, one_mul_scalar_f64);
}

static TSI_INLINE double one_div_scalar_f64(double x, double c)
{
    return x / c;
}

static void div_scalar_f64(const tsi_row *row)
{
    map1_f64(row, one_div_scalar_f64);
}

static TSI_INLINE double one_leaky_relu_f64(double x, double c)
{
    return x > 0.0 ? x : x * c;
}

static void leaky_relu_f64(const tsi_row *row)
{
    map1_f64(row, one_leaky_relu_f64);
}

static TSI_INLINE double one_add_f64(double x, double y, double c)
{
    return x + c * y;
}

static void add_f64(const tsi_row *row)
{
    map2_f64(row, one_add_f64);
}

static TSI_INLINE double one_sub_f64(double x, double y, double c)
{
    return x - c * y;
}

static void sub_f64(const tsi_row *row)
{
    map2_f64(row, one_sub_f64);
}

static TSI_INLINE double one_mul_f64(double x, double y, double c)
{
    (void)c;
    return x * y;
}

static void mul_f64(const tsi_row *row)
{
    map2_f64(row, one_mul_f64);
}

static TSI_INLINE double one_div_f64(double x, double y, double c)
{
    (void)c;
    return x / y;
}

static void div_f64(const tsi_row *row)
{
    map2_f64(row, one_div_f64);
}

static TSI_INLINE double one_maximum_f64(double x, double y, double c)
{
    (void)c;
    return x != x || x > y ? x : y;
}

static void maximum_f64(const tsi_row *row)
{
    map2_f64(row, one_maximum_f64);
}

static TSI_INLINE double one_minimum_f64(double x, double y, double c)
{
    (void)c;
    return x != x || x < y ? x : y;
}

static void minimum_f64(const tsi_row *row)
{
    map2_f64(row, one_minimum_f64);
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

static TSI_INLINE double one_masked_fill_f64(double x, double y, double c)
{
    return y != 0.0 ? c : x;
}

static void masked_fill_f64(const tsi_row *row)
{
    map2_f64(row, one_masked_fill_f64);
}

static TSI_INLINE double one_threshold_backward_f64(double x, double y, double c)
{
    (void)c;
    return y > 0.0 ? x : 0.0;
}

static void threshold_backward_f64(const tsi_row *row)
{
    map2_f64(row, one_threshold_backward_f64);
}

static TSI_INLINE double one_sigmoid_backward_f64(double x, double y, double c)
{
    (void)c;
    return x * y * (1.0 - y);
}

static void sigmoid_backward_f64(const tsi_row *row)
{
    map2_f64(row, one_sigmoid_backward_f64);
}

static TSI_INLINE double one_tanh_backward_f64(double x, double y, double c)
{
    (void)c;
    return x * (1.0 - y * y);
}

static void tanh_backward_f64(const tsi_row *row)
{
    map2_f64(row, one_tanh_backward_f64);
}

static TSI_INLINE double one_eq_f64(double x, double y, double c)
{
    (void)c;
    return x == y ? 1.0 : 0.0;
}

static void eq_f64(const tsi_row *row)
{
    test2_f64(row, one_eq_f64);
}

static TSI_INLINE double one_ne_f64(double x, double y, double c)
{
    (void)c;
    return x != y ? 1.0 : 0.0;
}

static void ne_f64(const tsi_row *row)
{
    test2_f64(row, one_ne_f64);
}

static TSI_INLINE double one_lt_f64(double x, double y, double c)
{
    (void)c;
    return x < y ? 1.0 : 0.0;
}

static void lt_f64(const tsi_row *row)
{
    test2_f64(row, one_lt_f64);
}

static TSI_INLINE double one_le_f64(double x, double y, double c)
{
    (void)c;
    return x <= y ? 1.0 : 0.0;
}

static void le_f64(const tsi_row *row)
{
    test2_f64(row, one_le_f64);
}

static TSI_INLINE double one_gt_f64(double x, double y, double c)
{
    (void)c;
    return x > y ? 1.0 : 0.0;
}

static void gt_f64(const tsi_row *row)
{
    test2_f64(row, one_gt_f64);
}

static TSI_INLINE double one_ge_f64(double x, double y, double c)
{
    (void)c;
    return x >= y ? 1.0 : 0.0;
}

static void ge_f64(const tsi_row *row)
{
    test2_f64(row, one_ge_f64);
}

static TSI_INLINE double one_logical_and_f64(double x, double y, double c)
{
    (void)c;
    return x != 0.0 && y != 0.0 ? 1.0 : 0.0;
}

static void logical_and_f64(const tsi_row *row)
{
    test2_f64(row, one_logical_and_f64);
}

static TSI_INLINE double one_logical_or_f64(double x, double y, double c)
{
    (void)c;
    return x != 0.0 || y != 0.0 ? 1.0 : 0.0;
}

static void logical_or_f64(const tsi_row *row)
{
    test2_f64(row, one_logical_or_f64);
}

static TSI_INLINE double one_where_f64(double x, double y, double z, double c)
{
    (void)c;
    return x != 0.0 ? y : z;
}

static void where_f64(const tsi_row *row)
{
    map3_f64(row, one_where_f64);
}

static TSI_INLINE double one_addcmul_f64(double x, double y, double z, double c)
{
    return x + c * y * z;
}

static void addcmul_f64(const tsi_row *row)
{
    map3_f64(row, one_addcmul_f64);
}

static TSI_INLINE double one_addcdiv_f64(double x, double y, double z, double c)
{
    return x + c * y / z;
}

static void addcdiv_f64(const tsi_row *row)
{
    map3_f64(row, one_addcdiv_f64);
}

static TSI_INLINE int64_t one_neg_i64(int64_t x, int64_t c)
{
    (void)c;
    return (int64_t)(0 - (uint64_t)x);
}

static void neg_i64(const tsi_row *row)
{
    map1_i64(row, one_neg_i64);
}

static TSI_INLINE int64_t one_abs_i64(int64_t x, int64_t c)
{
    (void)c;
    return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
}

static void abs_i64(const tsi_row *row)
{
    map1_i64(row, one_abs_i64);
}

static TSI_INLINE int64_t one_add_scalar_i64(int64_t x, int64_t c)
{
    return (int64_t)((uint64_t)x + (uint64_t)c);
}

static void add_scalar_i64(const tsi_row *row)
{
    map1_i64(row, one_add_scalar_i64);
}

static TSI_INLINE int64_t one_mul_scalar_i64(int64_t x, int64_t c)
{
    return (int64_t)((uint64_t)x * (uint64_t)c);
}

static void mul_scalar_i64(const tsi_row *row)
{
    map1_i64(row, one_mul_scalar_i64);
}

static TSI_INLINE int64_t one_rsub_scalar_i64(int64_t x, int64_t c)
{
    return (int64_t)((uint64_t)c - (uint64_t)x);
}

static void rsub_scalar_i64(const tsi_row *row)
{
    map1_i64(row, one_rsub_scalar_i64);
}

static TSI_INLINE int64_t one_square_i64(int64_t x, int64_t c)
{
    (void)c;
    return (int64_t)((uint64_t)x * (uint64_t)x);
}

static void square_i64(const tsi_row *row)
{
    map1_i64(row, one_square_i64);
}

static TSI_INLINE int64_t one_relu_i64(int64_t x, int64_t c)
{
    (void)c;
    return x > 0 ? x : 0;
}

static void relu_i64(const tsi_row *row)
{
    map1_i64(row, one_relu_i64);
}

static TSI_INLINE int64_t one_add_i64(int64_t x, int64_t y, int64_t c)
{
    return (int64_t)((uint64_t)x + (uint64_t)c * (uint64_t)y);
}

static void add_i64(const tsi_row *row)
{
    map2_i64(row, one_add_i64);
}

static TSI_INLINE int64_t one_sub_i64(int64_t x, int64_t y, int64_t c)
{
    return (int64_t)((uint64_t)x - (uint64_t)c * (uint64_t)y);
}

static void sub_i64(const tsi_row *row)
{
    map2_i64(row, one_sub_i64);
}

static TSI_INLINE int64_t one_mul_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return (int64_t)((uint64_t)x * (uint64_t)y);
}

static void mul_i64(const tsi_row *row)
{
    map2_i64(row, one_mul_i64);
}

static TSI_INLINE int64_t one_maximum_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x > y ? x : y;
}

static void maximum_i64(const tsi_row *row)
{
    map2_i64(row, one_maximum_i64);
}

static TSI_INLINE int64_t one_minimum_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x < y ? x : y;
}

static void minimum_i64(const tsi_row *row)
{
    map2_i64(row, one_minimum_i64);
}

static TSI_INLINE int64_t one_eq_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x == y ? 1 : 0;
}

static void eq_i64(const tsi_row *row)
{
    test2_i64(row, one_eq_i64);
}

static TSI_INLINE int64_t one_ne_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x != y ? 1 : 0;
}

static void ne_i64(const tsi_row *row)
{
    test2_i64(row, one_ne_i64);
}

static TSI_INLINE int64_t one_lt_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x < y ? 1 : 0;
}

static void lt_i64(const tsi_row *row)
{
    test2_i64(row, one_lt_i64);
}

static TSI_INLINE int64_t one_le_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x <= y ? 1 : 0;
}

static void le_i64(const tsi_row *row)
{
    test2_i64(row, one_le_i64);
}

static TSI_INLINE int64_t one_gt_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x > y ? 1 : 0;
}

static void gt_i64(const tsi_row *row)
{
    test2_i64(row, one_gt_i64);
}

static TSI_INLINE int64_t one_ge_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x >= y ? 1 : 0;
}

static void ge_i64(const tsi_row *row)
{
    test2_i64(row, one_ge_i64);
}

static TSI_INLINE int64_t one_logical_and_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x != 0 && y != 0 ? 1 : 0;
}

static void logical_and_i64(const tsi_row *row)
{
    test2_i64(row, one_logical_and_i64);
}

static TSI_INLINE int64_t one_logical_or_i64(int64_t x, int64_t y, int64_t c)
{
    (void)c;
    return x != 0 || y != 0 ? 1 : 0;
}

static void logical_or_i64(const tsi_row *row)
{
    test2_i64(row, one_logical_or_i64);
}

static void clamp_f64(const tsi_row *row)
{
    double *to = row->out, low = row->number[0], high = row->number[1];
    const double *x = row->in[0];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < row->count; i++) {
        double y = x[i] < low ? low : x[i];
        to[i] = y > high ? high : y;
    }
}

static void logical_not_i64(const tsi_row *row)
{
    uint8_t *to = row->out;
    const int64_t *x = row->in[0];
    for (int64_t i = 0; i < row->count; i++)
        to[i] = x[i] == 0;
}

#define TSI_ROWS_WIDE                                                                              \
    .f64 =                                                                       \
      {                                                                        \
          [TSI_ROW_ABS] = abs_f64,                                             \
          [TSI_ROW_ADD] = add_f64,                                             \
          [TSI_ROW_ADD_SCALAR] = add_scalar_f64,                               \
          [TSI_ROW_ADDCDIV] = addcdiv_f64,                                     \
          [TSI_ROW_ADDCMUL] = addcmul_f64,                                     \
          [TSI_ROW_CEIL] = ceil_f64,                                           \
          [TSI_ROW_CLAMP] = clamp_f64,                                         \
          [TSI_ROW_DIV] = div_f64,                                             \
          [TSI_ROW_DIV_SCALAR] = div_scalar_f64,                               \
          [TSI_ROW_EQ] = eq_f64,                                               \
          [TSI_ROW_FLOOR] = floor_f64,                                         \
          [TSI_ROW_GE] = ge_f64,                                               \
          [TSI_ROW_GT] = gt_f64,                                               \
          [TSI_ROW_LE] = le_f64,                                               \
          [TSI_ROW_LEAKY_RELU] = leaky_relu_f64,                               \
          [TSI_ROW_LERP] = lerp_f64,                                           \
          [TSI_ROW_LOGICAL_AND] = logical_and_f64,                             \
          [TSI_ROW_LOGICAL_OR] = logical_or_f64,                               \
          [TSI_ROW_LT] = lt_f64,                                               \
          [TSI_ROW_MASKED_FILL] = masked_fill_f64,                             \
          [TSI_ROW_MAXIMUM] = maximum_f64,                                     \
          [TSI_ROW_MINIMUM] = minimum_f64,                                     \
          [TSI_ROW_MUL] = mul_f64,                                             \
          [TSI_ROW_MUL_SCALAR] = mul_scalar_f64,                               \
          [TSI_ROW_NE] = ne_f64,                                               \
          [TSI_ROW_NEG] = neg_f64,                                             \
          [TSI_ROW_RECIPROCAL] = reciprocal_f64,                               \
          [TSI_ROW_RELU] = relu_f64,                                           \
          [TSI_ROW_ROUND] = round_f64,                                         \
          [TSI_ROW_RSQRT] = rsqrt_f64,                                         \
          [TSI_ROW_RSUB_SCALAR] = rsub_scalar_f64,                             \
          [TSI_ROW_SIGMOID_BACKWARD] = sigmoid_backward_f64,                   \
          [TSI_ROW_SIGN] = sign_f64,                                           \
          [TSI_ROW_SQRT] = sqrt_f64,                                           \
          [TSI_ROW_SQUARE] = square_f64,                                       \
          [TSI_ROW_SUB] = sub_f64,                                             \
          [TSI_ROW_TANH_BACKWARD] = tanh_backward_f64,                         \
          [TSI_ROW_THRESHOLD_BACKWARD] = threshold_backward_f64,               \
          [TSI_ROW_TRUNC] = trunc_f64,                                         \
          [TSI_ROW_WHERE] = where_f64,                                         \
  },                                                                           \
  .i64 = {                                                                     \
      [TSI_ROW_ABS] = abs_i64,                                                 \
      [TSI_ROW_ADD] = add_i64,                                                 \
      [TSI_ROW_ADD_SCALAR] = add_scalar_i64,                                   \
      [TSI_ROW_EQ] = eq_i64,                                                   \
      [TSI_ROW_GE] = ge_i64,                                                   \
      [TSI_ROW_GT] = gt_i64,                                                   \
      [TSI_ROW_LE] = le_i64,                                                   \
      [TSI_ROW_LOGICAL_AND] = logical_and_i64,                                 \
      [TSI_ROW_LOGICAL_NOT] = logical_not_i64,                                 \
      [TSI_ROW_LOGICAL_OR] = logical_or_i64,                                   \
      [TSI_ROW_LT] = lt_i64,                                                   \
      [TSI_ROW_MAXIMUM] = maximum_i64,                                         \
      [TSI_ROW_MINIMUM] = minimum_i64,                                         \
      [TSI_ROW_MUL] = mul_i64,                                                 \
      [TSI_ROW_MUL_SCALAR] = mul_scalar_i64,                                   \
      [TSI_ROW_NE] = ne_i64,                                                   \
      [TSI_ROW_NEG] = neg_i64,                                                 \
      [TSI_ROW_RELU] = relu_i64,                                               \
      [TSI_ROW_RSUB_SCALAR] = rsub_scalar_i64,                                 \
      [TSI_ROW_SQUARE] = square_i64,                                           \
      [TSI_ROW_SUB] = sub_i64,                                                 \
  }
