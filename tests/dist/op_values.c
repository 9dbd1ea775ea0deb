/* SPDX-License-Identifier: Apache-2.0 */
/* op_values.c - what operators give at the edges of their domains: no numbers, infinities, ties,
 * signs of remainders, empty reductions, dtypes of results. One row is one call with its answer,
 * made on replicas and again with every input cut along dim 0, so that the algorithms of cut dims
 * meet the same edges. */
#include <complex.h>
#include <stdlib.h>
#include <string.h>

#include "op/core/attribute.h"
#include "op_family.h"
#include "tessera/op.h"

typedef struct value_row {
    const char *op, *attributes;
    const char *in;  /* "f32[3] 1 nan -inf; i64[] 2" */
    const char *out; /* likewise; "-" stands for an output that does not matter */
} value_row;

static const value_row rows[] = {
    /* truths, whole numbers, and what they become */
    { "bitwise_not", "{}", "bool[3] 1 0 1", "bool[3] 0 1 0" },
    { "bitwise_not", "{}", "i64[3] 0 -1 5", "i64[3] -1 0 -6" },
    { "bitwise_not", "{}", "u8[2] 0 254", "u8[2] 255 1" },
    { "logical_not", "{}", "f32[3] nan 0 -0.0", "bool[3] 0 1 1" },
    { "add_scalar", "{\"value\": 2}", "i32[2] 1 -3", "i32[2] 3 -1" },
    { "add_scalar", "{\"value\": 0.5}", "i32[2] 1 -3", "f32[2] 1.5 -2.5" },
    { "add_scalar", "{\"value\": 3}", "bool[2] 1 0", "i64[2] 4 3" },
    { "mul_scalar", "{\"value\": 0.5}", "i64[3] 3 -3 1", "f32[3] 1.5 -1.5 0.5" },
    { "mul_scalar", "{\"value\": 0.5}", "bf16[2] 3 1", "bf16[2] 1.5 0.5" },
    { "rsub_scalar", "{\"value\": 1}", "i64[2] 3 -3", "i64[2] -2 4" },
    { "div_scalar", "{\"value\": 2}", "i64[2] 3 -3", "f32[2] 1.5 -1.5" },
    { "div", "{}", "i64[2] 3 -3; i64[2] 2 0", "f32[2] 1.5 -inf" },
    { "pow", "{\"exponent\": 2}", "i64[3] 3037000499 -3 0", "i64[3] 9223372030926249001 9 0" },
    { "pow", "{\"exponent\": -1}", "i64[2] 2 -4", "f32[2] 0.5 -0.25" },
    { "pow", "{\"exponent\": 0}", "f32[3] nan inf 0", "f32[3] 1 1 1" },
    { "power", "{}", "i64[5] 2 -1 1 0 3; i64[5] 10 -3 -3 0 -1", "i64[5] 1024 -1 1 1 0" },
    { "power", "{}", "f64[4] -8 0 inf -1; f64[4] 2 0 -1 0.5", "f64[4] 64 1 0 nan" },
    { "remainder", "{}", "i64[4] 7 -7 7 -7; i64[4] 3 3 -3 -3", "i64[4] 1 2 -2 -1" },
    { "fmod", "{}", "i64[4] 7 -7 7 -7; i64[4] 3 3 -3 -3", "i64[4] 1 -1 1 -1" },
    { "remainder", "{}", "f64[4] 7.5 -7.5 7.5 1; f64[4] 2 2 -2 0", "f64[4] 1.5 0.5 -0.5 nan" },
    { "add", "{}", "u8[2] 250 1; u8[2] 10 1", "u8[2] 4 2" },
    { "add", "{}", "i64[1] 1; f16[1] 0.5", "f16[1] 1.5" },
    { "add", "{}", "bf16[1] 1; f16[1] 0.5", "f32[1] 1.5" },
    { "add", "{}", "bool[2] 1 1; u8[2] 1 0", "u8[2] 2 1" },
    { "cast", "{\"dtype\": \"i64\"}", "f32[4] 2.9 -2.9 0.5 -0.5", "i64[4] 2 -2 0 0" },
    { "cast", "{\"dtype\": \"bool\"}", "f32[3] nan 0 -0.5", "bool[3] 1 0 1" },
    /* repair 11: integers stay what they are; a quotient makes them f32 */
    { "addcmul", "{\"value\": 2}", "i64[2] 1 9007199254740993; i64[2] 3 1; i64[2] 4 -1",
      "i64[2] 25 9007199254740991" },
    { "addcmul", "{\"value\": 0.5}", "i64[2] 1 2; i64[2] 3 1; i64[2] 4 -1", "f32[2] 7 1.5" },
    { "addcmul", "{}", "u8[1] 250; u8[1] 2; u8[1] 4", "u8[1] 2" },
    { "addcdiv", "{\"value\": 2}", "i64[2] 1 2; i64[2] 3 1; i64[2] 4 -1", "f32[2] 2.5 0" },
    { "addcdiv", "{}", "c64[1] 1; c64[1] 1+1i; c64[1] 0+1i", "c64[1] 2-1i" },
    /* repair 14: reals to small integers are kept at the ends, integers wrap */
    { "cast", "{\"dtype\": \"u8\"}", "f32[5] 300 -1 nan inf 2.9", "u8[5] 255 0 0 255 2" },
    { "cast", "{\"dtype\": \"i8\"}", "f64[4] -129 128 -inf -2.9", "i8[4] -128 127 -128 -2" },
    { "cast", "{\"dtype\": \"u8\"}", "i64[3] 300 -1 256", "u8[3] 44 255 0" },
    { "relu6", "{}", "i64[3] -1 3 9", "i64[3] 0 3 6" },
    { "relu6", "{}", "u8[2] 3 9", "u8[2] 3 6" },
    { "threshold", "{\"threshold\": 1, \"value\": -5}", "i64[3] 0 1 2", "i64[3] -5 -5 2" },
    { "threshold", "{\"threshold\": 1, \"value\": 0.5}", "i32[2] 0 2", "f32[2] 0.5 2" },
    { "equal", "{}", "f32[2] 1 2; f32[1] 1", "bool[] 0" },
    { "equal", "{}", "f32[2,1] 1 2; f32[2] 1 2", "bool[] 0" },
    { "equal", "{}", "f32[0]; f32[0,2]", "bool[] 0" },
    { "equal", "{}", "f32[2] 1 2; f32[2] 1 2", "bool[] 1" },
    /* functions */
    { "round", "{}", "f64[6] 0.5 1.5 2.5 -0.5 -1.5 inf", "f64[6] 0 2 2 0 -2 inf" },
    { "sign", "{}", "f64[4] -0.5 0 inf nan", "f64[4] -1 0 1 nan" },
    { "relu", "{}", "f32[3] nan -inf inf", "f32[3] nan 0 inf" },
    { "relu6", "{}", "f32[3] nan -inf inf", "f32[3] nan 0 6" },
    { "threshold", "{\"threshold\": 1, \"value\": 0}", "f32[2] nan inf", "f32[2] nan inf" },
    { "heaviside", "{}", "f32[2] nan 0; f32[2] 1 nan", "f32[2] nan nan" },
    { "clamp", "{\"min\": -1, \"max\": 1}", "f64[3] nan -inf inf", "f64[3] nan -1 1" },
    { "amin", "{}", "f32[3] 1 nan -inf", "f32[] nan" },
    { "max", "{\"dim\": 0}", "f32[4] 1 nan 3 nan", "f32[] nan; i64[] 1" },
    { "min", "{\"dim\": 0}", "f32[4] 1 nan -3 nan", "f32[] nan; i64[] 1" },
    { "maximum", "{}", "f32[3] nan 1 -inf; f32[3] 1 nan inf", "f32[3] nan nan inf" },
    { "minimum", "{}", "f32[3] nan 1 -inf; f32[3] 1 nan inf", "f32[3] nan nan -inf" },
    { "clamp", "{\"min\": 1, \"max\": -1}", "f32[3] -5 0 5", "f32[3] -1 -1 -1" },
    { "clamp", "{\"min\": 0}", "f32[3] nan -1 inf", "f32[3] nan 0 inf" },
    { "clamp", "{\"max\": 0.5}", "i64[2] 0 3", "f32[2] 0 0.5" },
    { "lerp", "{\"weight\": 1}", "f32[3] 1e8 -3e10 5; f32[3] 1 0.1 -0.7", "f32[3] 1 0.1 -0.7" },
    { "lerp", "{\"weight\": 1}", "f64[3] 1e17 -3e20 5; f64[3] 1 0.1 -0.7", "f64[3] 1 0.1 -0.7" },
    { "lerp", "{\"weight\": 1}", "bf16[2] 1073741824 -3; bf16[2] 1 0.5", "bf16[2] 1 0.5" },
    { "lerp", "{\"weight\": 0}", "f32[2] 1 0.1; f32[2] 1e8 -3e10", "f32[2] 1 0.1" },
    { "lerp", "{\"weight\": 0.75}", "f64[2] 1 -8; f64[2] 5 4", "f64[2] 4 1" },
    { "einsum", "{\"equation\": \"ii->i\"}", "f64[3,1] 1 2 3", "f64[3] 1 2 3" },
    { "einsum", "{\"equation\": \"ii->i\"}", "f64[1,3] 1 2 3", "f64[3] 1 2 3" },
    { "einsum", "{\"equation\": \"ii->i\"}", "f64[2,2] 1 2 3 4", "f64[2] 1 4" },
    { "digamma", "{}", "f64[4] 0 -0.0 -1 inf", "f64[4] -inf inf nan inf" },
    { "logaddexp", "{}", "f64[4] -inf -inf inf 0; f64[4] nan -inf -inf 0",
      "f64[4] nan -inf inf 0.6931471805599453" },
    { "xlogy", "{}", "f64[4] 0 0 2 0; f64[4] 0 inf 0 nan", "f64[4] 0 0 -inf nan" },
    { "floor_divide", "{}", "i64[4] 7 -7 7 1; i64[4] 2 2 -2 0", "i64[4] 3 -4 -4 0" },
    { "floor_divide", "{}", "f32[2] 7.5 -7.5; f32[2] 2 2", "f32[2] 3 -4" },
    /* repair 9: what goes with the remainder */
    { "floor_divide", "{}", "f64[4] 54 -54 54 -54; f64[4] 0.1 0.1 -0.1 -0.1",
      "f64[4] 539 -540 -540 539" },
    { "floor_divide", "{}", "f64[4] 1 -1 0 inf; f64[4] 0 0 0 2", "f64[4] inf -inf nan nan" },
    { "floor_divide", "{}", "f64[4] 5 -5 nan 1; f64[4] inf inf 1 -3", "f64[4] 0 -1 nan -1" },
    { "fmax", "{}", "f32[3] nan 1 nan; f32[3] 1 nan nan", "f32[3] 1 1 nan" },
    { "heaviside", "{}", "f32[3] -2 0 5; f32[3] 9 0.5 9", "f32[3] 0 0.5 1" },
    { "gcd", "{}", "i64[4] 12 -18 0 0; i64[4] 18 12 5 0", "i64[4] 6 6 5 0" },
    { "lcm", "{}", "i64[3] 4 -6 0; i64[3] 6 4 5", "i64[3] 12 12 0" },
    { "bitwise_left_shift", "{}", "i64[3] 1 -1 1; i64[3] 4 1 64", "i64[3] 16 -2 0" },
    { "bitwise_right_shift", "{}", "i64[3] 16 -3 -1; i64[3] 4 1 70", "i64[3] 1 -2 -1" },
    { "bce", "{\"reduction\": \"none\"}", "f32[4] nan 0.5 0 1; f32[4] 1 nan 1 0",
      "f32[4] nan nan 100 100" },
    { "kl_div", "{\"reduction\": \"none\"}", "f64[5] nan 1 -inf 2 nan; f64[5] 1 nan 0 -1 0",
      "f64[5] nan nan 0 0 nan" },
    /* what is left of the inner dim behind fours, where the dim is not cut */
    { "matmul", "{}", "f32[1,5] 1 1 1 1 2; f32[5,2] 1 1 1 1 1 1 1 1 inf 3", "f32[1,2] inf 10" },
    { "matmul", "{}", "f64[1,2] 1 2; f64[2,3] 1 inf 1 -inf 1 3", "f64[1,3] -inf inf 7" },
    { "matmul", "{}", "bf16[1,3] 0 1 2; bf16[3,2] 1 1 1 1 -inf 3", "bf16[1,2] -inf 7" },
    { "isclose", "{\"equal_nan\": true}", "f64[3] nan 1 inf; f64[3] nan 1.000001 inf",
      "bool[3] 1 1 1" },
    { "gt_scalar", "{\"value\": 0.5}", "i64[3] 0 1 2", "bool[3] 0 1 1" },
    { "eq_scalar", "{\"value\": 2}", "i64[2] 2 9007199254740993", "bool[2] 1 0" },
    { "remainder_scalar", "{\"value\": 3}", "i64[2] 7 -7", "i64[2] 1 2" },
    { "fmod_scalar", "{\"value\": 3}", "i64[2] 7 -7", "i64[2] 1 -1" },
    { "nan_to_num", "{}", "f32[3] nan inf -inf",
      "f32[3] 0 3.4028234663852886e38 -3.4028234663852886e38" },
    { "nan_to_num", "{\"nan\": 2, \"posinf\": 7}", "f16[3] nan inf -inf", "f16[3] 2 7 -65504" },
    { "erfinv", "{}", "f64[4] 1 -1 2 0.5", "f64[4] inf -inf nan 0.4769362762044699" },
    { "sinc", "{}", "f64[2] 0 0.5", "f64[2] 1 0.6366197723675814" },
    { "logit", "{\"eps\": 0.25}", "f64[2] 0 0.5", "f64[2] -1.0986122886681098 0" },
    /* negative powers beside numbers whose powers f64 does not hold */
    { "vector_norm", "{\"p\": -2.5}", "f64[2] 1e-200 1e200", "f64[] 1e-200" },
    { "vector_norm", "{\"p\": -1}", "f64[2] 2 2", "f64[] 1" },
    { "vector_norm", "{\"p\": -1}", "f64[3] 2 0 inf", "f64[] 0" },
    { "vector_norm", "{\"p\": -3}", "f64[2] inf 4", "f64[] 4" },
    { "softshrink", "{}", "f64[3] -2 0.25 2", "f64[3] -1.5 0 1.5" },
    { "threshold", "{\"threshold\": 1, \"value\": -5}", "f64[3] 0 1 2", "f64[3] -5 -5 2" },
    { "isfinite", "{}", "f32[3] nan inf 1", "bool[3] 0 0 1" },
    { "masked_fill", "{\"value\": \"-inf\"}", "f32[2] 1 2; bool[2] 0 1", "f32[2] 1 -inf" },
    /* reductions */
    { "sum", "{}", "bool[3] 1 1 0", "i64[] 2" },
    { "sum", "{}", "u8[2] 200 100", "i64[] 300" },
    { "sum", "{}", "f32[0]", "f32[] 0" },
    { "mean", "{}", "f32[0]", "f32[] nan" },
    { "mean", "{\"dims\": [0]}", "i64[2] 1 2", "f32[] 1.5" },
    { "prod", "{}", "f32[0]", "f32[] 1" },
    { "prod", "{}", "bool[2] 1 1", "i64[] 1" },
    { "amax", "{}", "f32[4] 1 nan 3 2", "f32[] nan" },
    { "all", "{}", "f32[0]", "bool[] 1" },
    { "any", "{}", "f32[2] nan 0", "bool[] 1" },
    { "var", "{}", "f64[1] 3", "f64[] nan" },
    { "var", "{\"correction\": 0}", "f64[1] 3", "f64[] 0" },
    { "var", "{\"correction\": 2}", "f64[4] 1 2 3 6", "f64[] 7" },
    { "std", "{}", "f64[2] 1 3", "f64[] 1.4142135623730951" },
    { "vector_norm", "{\"p\": 0}", "f64[4] nan 0 -2 inf", "f64[] 3" },
    { "vector_norm", "{\"p\": \"inf\"}", "f64[3] 1 -5 2", "f64[] 5" },
    { "vector_norm", "{\"p\": \"-inf\"}", "f64[3] 1 -5 2", "f64[] 1" },
    { "vector_norm", "{\"p\": 0.5}", "f64[2] 1 4", "f64[] 9" },
    { "vector_norm", "{\"p\": -1}", "f64[2] 2 inf", "f64[] 2" },
    { "vector_norm", "{\"p\": 2}", "f64[2] 3 -4", "f64[] 5" },
    { "vector_norm", "{}", "f32[3] 1 -inf 2", "f32[] inf" },
    { "vector_norm", "{}", "f32[3] 1 nan inf", "f32[] nan" },
    { "vector_norm", "{\"p\": 1}", "f64[3] 1 -inf 2", "f64[] inf" },
    { "logsumexp", "{}", "f32[3] -inf -inf -inf", "f32[] -inf" },
    { "logsumexp", "{}", "f32[3] 1 inf -inf", "f32[] inf" },
    { "logsumexp", "{}", "f32[3] 1 inf nan", "f32[] nan" },
    { "logsumexp", "{}", "f32[0]", "f32[] -inf" },
    { "logsumexp", "{}", "f32[2] 1000 1000", "f32[] 1000.6931" },
    { "softmax", "{\"dim\": 0}", "f32[3] -inf 0 -inf", "f32[3] 0 1 0" },
    { "softmax", "{\"dim\": 0}", "f32[2] -inf -inf", "f32[2] nan nan" },
    { "argmax", "{}", "f32[4] 1 3 3 2", "i64[] 1" },
    { "argmax", "{}", "f32[4] 1 nan 3 nan", "i64[] 1" },
    { "argmin", "{}", "f32[4] 1 nan -3 nan", "i64[] 1" },
    { "max", "{\"dim\": 0}", "f32[4] 1 3 3 2", "f32[] 3; i64[] 1" },
    { "sort", "{}", "f32[] 2", "f32[] 2; i64[] 0" },
    { "count_unique", "{}", "f32[0]", "i64[] 0" },
    { "powsum", "{\"p\": \"inf\"}", "f32[4] 1 nan -3 2", "f32[] nan" },
    { "powsum", "{\"p\": \"-inf\"}", "f32[4] 1 nan -3 2", "f32[] nan" },
    { "powsum", "{\"p\": \"-inf\"}", "f32[4] 1 -0.5 -3 inf", "f32[] 0.5" },
    { "powsum", "{\"p\": \"inf\"}", "f64[4] 1 -0.5 -3 nan", "f64[] nan" },
    { "powsum", "{\"p\": \"inf\"}", "bf16[4] 1 -0.5 -3 2", "bf16[] 3" },
    { "vector_norm", "{\"p\": \"inf\"}", "f32[4] 1 nan -3 2", "f32[] nan" },
    { "vector_norm", "{\"p\": \"-inf\"}", "f32[4] 1 nan -3 2", "f32[] nan" },
    { "sort", "{}", "f32[5] 2 nan 1 2 -inf", "f32[5] -inf 1 2 2 nan; i64[5] 4 2 0 3 1" },
    { "sort", "{\"descending\": true}", "f32[4] 2 nan 1 2", "f32[4] nan 2 2 1; i64[4] 1 0 3 2" },
    { "topk", "{\"k\": 2}", "f32[4] 2 nan 5 5", "f32[2] nan 5; i64[2] 1 2" },
    { "topk", "{\"k\": 0}", "f32[2] 2 1", "f32[0]; i64[0]" },
    { "cumsum", "{\"dim\": 0}", "bool[3] 1 1 1", "i64[3] 1 2 3" },
    { "cumsum", "{\"dim\": 0}", "u8[2] 200 100", "i64[2] 200 300" },
    { "cummax", "{\"dim\": 0}", "f32[5] 1 3 3 nan 5", "f32[5] 1 3 3 nan nan; i64[5] 0 1 2 3 3" },
    { "count_unique", "{}", "f32[5] 1 0 -0.0 1 2", "i64[] 3" },
    { "count_nonzero", "{}", "f32[4] nan 0 -0.0 2", "i64[] 2" },
    { "histc", "{\"bins\": 4, \"min\": 0, \"max\": 4}", "f32[6] -1 0 0.5 4 5 nan",
      "f32[4] 2 0 0 1" },
    { "histc", "{\"bins\": 2}", "f32[3] 3 3 3", "f32[2] 0 3" },
    { "bincount", "{\"length\": 4}", "i64[4] 3 0 3 1", "i64[4] 1 1 0 2" },
    /* losses */
    { "cross_entropy", "{}", "f32[2,2] 1 2 3 4; i64[2] -100 -100", "f32[] nan; -" },
    { "cross_entropy", "{\"reduction\": \"sum\"}", "f32[2,2] 1 2 3 4; i64[2] -100 -100",
      "f32[] 0; -" },
    { "nll_loss", "{}", "f32[2,2] -1 -2 -3 -4; i64[2] 1 -100", "f32[] 2" },
    { "nll_loss", "{}", "f32[2,2] -1 -2 -3 -4; i64[2] 1 0; f32[2] 1 3", "f32[] 2.25" },
    { "nll_loss", "{\"reduction\": \"none\", \"ignore_index\": 0}",
      "f32[2,2] -1 -2 -3 -4; i64[2] 1 0; f32[2] 1 3", "f32[2] 6 0" },
    /* a label that is ignored counts as a whole number: 257 is not 1 */
    { "cross_entropy", "{\"ignore_index\": 257}", "f64[2,2] 0 0 0 0; u8[2] 1 0",
      "f64[] 0.6931471805599453; -" },
    { "nll_loss", "{\"ignore_index\": 257}", "f64[2,2] -1 -2 -3 -4; u8[2] 1 0", "f64[] 2.5" },
    { "smooth_l1_loss", "{\"reduction\": \"none\", \"beta\": 2}", "f32[2] 1 5; f32[2] 0 0",
      "f32[2] 0.25 4" },
    /* complex numbers */
    { "embedding_backward", "{\"rows\": 2}", "c64[2,1] 1+2i 3-5i; i64[2] 1 1", "c64[2,1] 0 4-3i" },
    { "abs", "{}", "c64[1] 3+4i", "f32[1] 5" },
    { "isnan", "{}", "c64[2] 1+2i nan", "bool[2] 0 1" },
    { "acos", "{}", "c128[1] 2", "c128[1] 0-1.3169578969248166i" },
    { "pow", "{\"exponent\": 0}", "c128[2] 0 1+1i", "c128[2] 1 1" },
    { "isclose", "{\"equal_nan\": true}", "c64[3] nan 1 nan; c64[3] nan nan 1", "bool[3] 1 0 0" },
    { "isclose", "{}", "c64[2] nan 1+1i; c64[2] nan 1+1i", "bool[2] 0 1" },
};

/* Slopes of the sum of the first output, for the first input: "out" is that gradient. */
static const value_row slopes[] = {
    { "prod", "{\"dims\": [0]}", "f64[3] 0 2 3", "f64[3] 6 0 0" },
    { "prod", "{}", "f64[4] 0 2 0 3", "f64[4] 0 0 0 0" },
    { "prod", "{}", "f64[3] 4 2 3", "f64[3] 6 12 8" },
    { "prod", "{}", "f64[3] 0 nan 2", "f64[3] nan 0 nan" },
    { "prod", "{}", "f64[4] 0 inf 0 3", "f64[4] nan 0 nan nan" },
    { "prod", "{\"dims\": [1]}", "f64[2, 3] 0 2 inf 5 0 2", "f64[2, 3] inf nan 0 0 10 0" },
    { "pow", "{\"exponent\": 0}", "f64[2] 0 3", "f64[2] 0 0" },
    { "pow", "{\"exponent\": 1}", "f64[2] 0 3", "f64[2] 1 1" },
    { "power", "{}", "f64[3] 0 0 2; f64[3] 0 2 3", "f64[3] 0 0 12" },
    /* where the other input has fewer bits: in the dtype of the result */
    { "power", "{}", "f32[1] 2; bf16[1] 0.001953125", "f32[1] 0.00097788547" },
    { "power", "{}", "f64[1] 2; i8[1] -128", "f64[1] 0" },
    { "xlogy", "{}", "f32[1] 2; bf16[1] 3", "f32[1] 1.0986123" },
    { "kl_div", "{\"reduction\": \"sum\", \"log_target\": true}", "f32[1] 0; bf16[1] 1",
      "f32[1] -2.7182818" },
    { "conv", "{}", "f64[1,1,2] 1 2; i64[1,1,1] 3", "f64[1,1,2] 3 3" },
    { "cross_entropy", "{\"ignore_index\": 257, \"reduction\": \"sum\"}",
      "f64[2,2] 0 0 0 0; u8[2] 1 0", "f64[2,2] 0.5 -0.5 -0.5 0.5" },
    { "nll_loss", "{\"ignore_index\": 257, \"reduction\": \"sum\"}",
      "f64[2,2] -1 -2 -3 -4; u8[2] 1 0", "f64[2,2] 0 -1 -1 0" },
    /* repair 10: by the difference of the inputs, whatever the result was rounded to */
    { "logaddexp", "{}", "f32[2] 1e4 10001; f32[2] 10001 1e4", "f32[2] 0.26894142 0.73105858" },
    { "logaddexp", "{}", "f64[5] inf 1 inf -inf -inf; f64[5] 1 inf inf -inf 0",
      "f64[5] 1 0 0.5 0.5 0" },
    { "logaddexp2", "{}", "f32[2] 10001 inf; f32[2] 1e4 1", "f32[2] 0.66666667 1" },
    { "logsumexp", "{}", "f32[2] 1e4 10001", "f32[2] 0.26894142 0.73105858" },
    { "logsumexp", "{}", "f64[3] 1 inf -inf", "f64[3] 0 1 0" },
    { "vector_norm", "{}", "f64[2] 0 0", "f64[2] 0 0" },
    /* repair 14: at no number, and of negative bases */
    { "relu", "{}", "f32[3] nan -inf inf", "f32[3] 1 0 1" },
    { "relu", "{}", "f64[3] nan -inf inf", "f64[3] 1 0 1" },
    { "relu6", "{}", "f64[4] nan 0 3 6", "f64[4] 1 0 1 0" },
    { "threshold", "{\"threshold\": 1, \"value\": 0}", "f64[3] nan 1 2", "f64[3] 1 0 1" },
    { "clamp", "{\"min\": -1, \"max\": 1}", "f64[3] nan 0 2", "f64[3] 0 1 0" },
    { "sign", "{}", "f64[2] nan 2", "f64[2] 0 0" },
    { "heaviside", "{}", "f64[2] nan 2; f64[2] 1 1", "f64[2] 0 0" },
    { "maximum", "{}", "f64[4] nan 1 1 3; f64[4] 1 nan 2 2", "f64[4] 1 1 0 1" },
    { "minimum", "{}", "f64[4] nan 1 1 3; f64[4] 1 nan 2 2", "f64[4] 1 1 1 0" },
    { "amax", "{}", "f64[3] 1 nan 3", "f64[3] nan nan nan" },
    { "max", "{\"dim\": 0}", "f64[3] 1 nan 3", "f64[3] 0 1 0" },
    { "power", "{}", "f64[3] -2 -2 -2; f64[3] 3 -1 0.5", "f64[3] 12 -0.25 nan" },
    { "pow", "{\"exponent\": 3}", "f64[2] -2 0", "f64[2] 12 0" },
    /* repair 8: dL/dre + i dL/dim */
    { "abs", "{}", "c128[2] 0 3+4i", "c128[2] 0 0.6+0.8i" },
    { "vector_norm", "{}", "c128[2] 3 0+4i", "c128[2] 0.6 0+0.8i" },
    { "vector_norm", "{\"p\": \"inf\"}", "c128[2] 3 0+4i", "c128[2] 0 0+1i" },
    { "square", "{}", "c128[1] 1+2i", "c128[1] 2-4i" },
    { "pow", "{\"exponent\": 1}", "c128[2] 0 1+1i", "c128[2] 1 1" },
    { "acosh", "{}", "c128[2] 3+4i -3+4i",
      "c128[2] 0.116250744+0.161289291i -0.116250744+0.161289291i" },
    { "power", "{}", "c128[2] 0 0+1i; c128[2] 2 2", "c128[2] 0 0-2i" },
    { "vector_norm", "{\"p\": 0.5}", "f64[3] 0 1 4", "f64[3] 0 3 1.5" },
    { "vector_norm", "{\"p\": \"inf\"}", "f64[3] 2 -2 1", "f64[3] 0.5 -0.5 0" },
    { "std", "{}", "f64[3] 2 2 2", "f64[3] 0 0 0" },
    { "xlogy", "{}", "f64[2] 0 2; f64[2] 0 1", "f64[2] 0 0" },
    { "atan2", "{}", "f64[2] 0 0; f64[2] 0 2", "f64[2] 0 0.5" },
    { "atan2", "{}", "f32[2] 0 0; f32[2] 1e-30 1e30", "f32[2] 1e30 1e-30" },
    { "fmax", "{}", "f64[3] 1 2 nan; f64[3] 1 1 1", "f64[3] 1 1 0" },
    { "fmin", "{}", "f64[3] 1 2 1; f64[3] 1 1 nan", "f64[3] 1 0 1" },
    { "logit", "{}", "f64[2] -1 0.5", "f64[2] nan 4" },
    { "clamp", "{\"min\": 1, \"max\": -1}", "f64[3] -1 0 1", "f64[3] 0 0 0" },
    { "digamma", "{}", "f64[1] 1", "f64[1] 1.6449340668482264" },
    { "swiglu", "{}", "f64[2] 0 0; f64[2] 2 4", "f64[2] 1 2" },
    { "hardswish", "{}", "f64[5] -4 -3 0 3 4", "f64[5] 0 -0.5 0.5 1 1" },
    { "abs", "{}", "f64[3] -1 0 1", "f64[3] -1 0 1" },
    { "relu", "{}", "f64[3] -1 0 1", "f64[3] 0 0 1" },
    { "clamp", "{\"min\": -1, \"max\": 1}", "f64[4] -2 -1 1 2", "f64[4] 0 1 1 0" },
    { "amax", "{}", "f64[3] 2 1 2", "f64[3] 0.5 0 0.5" },
    { "max", "{\"dim\": 0}", "f64[3] 2 1 2", "f64[3] 1 0 0" },
    { "maximum", "{}", "f64[3] 1 2 3; f64[3] 3 2 1", "f64[3] 0 0.5 1" },
    { "l1_loss", "{\"reduction\": \"sum\"}", "f64[3] 1 2 3; f64[3] 3 2 1", "f64[3] -1 0 1" },
};

/* ---- texts ----------------------------------------------------------------------------------- */

typedef struct value_list {
    ts_meta meta;
    int64_t count;
    double complex value[16];
} value_list;

static double complex read_number(char **at, ts_dtype dtype)
{
    while (**at == ' ')
        (*at)++;
    double real = strtod(*at, at), imaginary = 0;
    if (tsi_dtype_category(dtype) != TSI_CATEGORY_COMPLEX) return real;
    if (**at == '+' || **at == '-') imaginary = strtod(*at, at);
    if (**at == 'i') (*at)++;
    const double part[] = { real, imaginary }; /* a sum would lose the sign of a zero */
    double complex value;
    memcpy(&value, part, sizeof value);
    return value;
}

/* One tensor of a text; advances it past the ';'. false: it does not matter. */
static bool read_list(char **at, value_list *out)
{
    char name[8];
    *out = (value_list){ .count = 1 };
    *at += strspn(*at, " ;");
    size_t length = strcspn(*at, "[ ;");
    snprintf(name, sizeof name, "%.*s", (int)length, *at);
    *at += length;
    if (strcmp(name, "-") == 0) return false;
    out->meta.dtype = (int32_t)ts_dtype_parse(name);
    for ((*at)++; **at != ']'; *at += **at == ',') {
        int64_t extent = strtoll(*at, at, 10);
        out->meta.shape.extent[out->meta.shape.ndim++] = extent;
        out->count *= extent;
    }
    (*at)++;
    for (int64_t i = 0; i < out->count; i++)
        out->value[i] = read_number(at, (ts_dtype)out->meta.dtype);
    return true;
}

static ts_status element_of(const int64_t *global, void *element, void *context)
{
    const value_list *list = context;
    int64_t i = 0;
    for (int32_t d = 0; d < list->meta.shape.ndim; d++)
        i = i * list->meta.shape.extent[d] + global[d];
    ts_dtype dtype = (ts_dtype)list->meta.dtype;
    if (tsi_dtype_category(dtype) == TSI_CATEGORY_COMPLEX)
        tsi_store_complex(dtype, element, list->value[i]);
    else if (tsi_dtype_category(dtype) == TSI_CATEGORY_REAL)
        tsi_store_real(dtype, element, creal(list->value[i]));
    else
        tsi_store_int(dtype, element, (int64_t)creal(list->value[i]));
    return TS_OK;
}

/* ---- one row --------------------------------------------------------------------------------- */

static bool part_same(double x, double y)
{
    return x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= 1e-6 * (1 + fabs(y));
}

static void compare(test *t, const value_row *row, const char *place, ts_tensor *have,
                    const value_list *want)
{
    ts_tensor *full = ts_tensor_full(have);
    TEST_CHECK(t, full && ts_tensor_wait(full) == TS_OK);
    if (!full) return;
    tsi_block lies = tsi_array_block(full->array);
    tsi_image image;
    TEST_OK(t, tsi_image_open(full->rank, &lies, TSI_IMAGE_READ, &image));
    TEST_OK(t, tsi_rank_device_sync(full->rank));
    tsi_block block = image.block;
    bool same = block.ndim == want->meta.shape.ndim && tsi_block_count(&block) == want->count;
    for (int32_t d = 0; same && d < block.ndim; d++)
        same = block.extent[d] == want->meta.shape.extent[d];
    TEST_SAY(t, same && block.dtype == want->meta.dtype, "%s %s of %s on %s: %s and %lld elements",
             row->op, row->attributes, row->in, place, ts_dtype_name((ts_dtype)block.dtype),
             (long long)tsi_block_count(&block));
    tsi_loop loop = tsi_loop_over(&block);
    int64_t i = 0;
    for (bool more = same && tsi_loop_begin(&loop); more; more = tsi_loop_next(&loop), i++) {
        double complex x =
            tsi_load_complex((ts_dtype)block.dtype, tsi_block_at(&block, loop.at[0]));
        TEST_SAY(t,
                 part_same(creal(x), creal(want->value[i])) &&
                     part_same(cimag(x), cimag(want->value[i])),
                 "%s %s of %s on %s: element %lld is %.9g%+.9gi", row->op, row->attributes, row->in,
                 place, (long long)i, creal(x), cimag(x));
    }
    tsi_image_drop(&image);
}

typedef struct value_call {
    const tsi_op_desc *op;
    ts_tensor *in[TSI_INPUT_MAX], *out[TSI_OUTPUT_MAX];
    int32_t input_count, reserved;
} value_call;

/* Makes the call; inputs that have dims are cut along the first if `cut` says so. */
static bool call_row(test *t, ts_mesh *mesh, const value_row *row, bool cut, value_call *c)
{
    char text[128];
    _Alignas(16) unsigned char attributes[TSI_ATTRIBUTES_MAX];
    value_list list;
    *c = (value_call){ .op = tsi_op_find(row->op) };
    TEST_SAY(t, c->op != NULL, "%s", row->op);
    if (!c->op) return false;
    snprintf(text, sizeof text, "%s", row->in);
    for (char *at = text; *at; c->input_count++) {
        TEST_CHECK(t, read_list(&at, &list));
        const char *place = cut && list.meta.shape.ndim > 0 ? "S(0)" : "R";
        ts_tensor *x = ts_from_function(element_of, &list, ts_sharding_get(mesh, place), list.meta);
        c->in[c->input_count] = c->input_count == 0 ? ts_watch(x) : x;
    }
    TEST_OK(t, tsi_attributes_parse(c->op, row->attributes, attributes));
    tsi_op_args args = { c->op, c->in, c->input_count, 0, attributes };
    TEST_OK(t, tsi_op_run(&args, c->out));
    return c->out[0] != NULL;
}

static void check_row(test *t, ts_mesh *mesh, const value_row *row, bool cut)
{
    char text[128], *at = text;
    value_call c;
    value_list list;
    if (!call_row(t, mesh, row, cut, &c)) return;
    snprintf(text, sizeof text, "%s", row->out);
    for (int32_t o = 0; o < c.op->output_count && *at && c.out[o]; o++)
        if (read_list(&at, &list)) compare(t, row, cut ? "S(0)" : "R", c.out[o], &list);
}

static void check_slope(test *t, ts_mesh *mesh, const value_row *row, bool cut)
{
    char text[128], *at = text;
    value_call c;
    value_list list;
    ts_tensor *slope = NULL;
    ts_tape_begin(t->me);
    if (!call_row(t, mesh, row, cut, &c)) return;
    TEST_OK(t, ts_grad(ts_sum(c.out[0], NULL, 0, 0), c.in, 1, &slope));
    snprintf(text, sizeof text, "%s", row->out);
    if (read_list(&at, &list) && slope) compare(t, row, cut ? "S(0)" : "R", slope, &list);
}

typedef void (*check_fn)(test *t, ts_mesh *mesh, const value_row *row, bool cut);
static void check_all(test *t, const value_row *row, size_t count, check_fn check)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (size_t i = 0; i < count; i++)
        for (int cut = 0; cut < (t->count > 1 ? 2 : 1); cut++) {
            ts_scope scope = ts_scope_open(t->me, row[i].op);
            check(t, mesh, &row[i], cut);
            ts_scope_close(scope);
        }
}

TS_TEST_RANKS(edges, 1, 2, 3)
{
    check_all(t, rows, TSI_COUNT_OF(rows), check_row);
}

TS_TEST_RANKS(slopes_at_zeros_and_ties, 1, 2, 3)
{
    check_all(t, slopes, TSI_COUNT_OF(slopes), check_slope);
}

static ts_tensor *given(ts_mesh *mesh, const char *text, const char *place)
{
    char copy[128], *at = copy;
    value_list list;
    snprintf(copy, sizeof copy, "%s", text);
    (void)read_list(&at, &list);
    return ts_from_function(element_of, &list, ts_sharding_get(mesh, place), list.meta);
}

static void is(test *t, const char *name, ts_tensor *have, const char *text)
{
    char copy[128], *at = copy;
    value_list list;
    snprintf(copy, sizeof copy, "%s", text);
    (void)read_list(&at, &list);
    TEST_SAY(t, have != NULL, "%s failed", name);
    if (have) compare(t, &(value_row){ name, "", "", text }, "a mesh", have, &list);
}

/* repair 14: the exponent of a negative base has no slope, at a base of 0 none is felt. */
TS_TEST_RANKS(slopes_of_exponents, 1)
{
    ts_mesh *mesh = ts_mesh_self(t->me);
    ts_tensor *base = given(mesh, "f64[3] -2 0 2", "R"), *slope = NULL;
    ts_tensor *exponent = ts_watch(given(mesh, "f64[3] 3 2 1", "R"));
    ts_tape_begin(t->me);
    TEST_OK(t, ts_grad(ts_sum(ts_power(base, exponent), NULL, 0, 0), &exponent, 1, &slope));
    is(t, "power", slope, "f64[3] nan 0 1.3862943611198906");
}

/* What a later value of an equal index replaced has no slope, be it infinite where it went. */
TS_TEST_RANKS(slopes_of_values_that_were_put, 1, 2, 3)
{
    static const struct {
        const char *values, *x, *weights, *slope[2]; /* replaced, added */
    } row[] = {
        { "f64[4] 1 2 3 4", "f64[2] 0 0", "f64[2] 5 7", { "f64[4] 0 5 0 7", "f64[4] 7 5 7 7" } },
        { "f64[1] 1", "f64[2] 0 0", "f64[2] 5 7", { "f64[1] 12", "f64[1] 26" } },
        { "f64[4] 1 2 3 4", "f64[2] 0 0", "f64[2] 5 inf", { "f64[4] 0 5 0 inf", NULL } },
        { "f64[4,2] 1 2 3 4 5 6 7 8",
          "f64[2,2] 0 0 0 0",
          "f64[2,2] 1 2 3 4",
          { "f64[4,2] 0 0 1 2 0 0 3 4", "f64[4,2] 3 4 1 2 3 4 3 4" } },
    };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tape_begin(t->me);
    ts_tensor *index = given(mesh, "i64[4] 1 0 1 1", "R"), *slope = NULL;
    for (size_t n = 0; n < 4 * TSI_COUNT_OF(row); n++) {
        size_t i = n / 4, adds = n / 2 % 2;
        if (!row[i].slope[adds]) continue;
        const char *place = n % 2 ? "S(0)" : "R";
        ts_tensor *values = ts_watch(given(mesh, row[i].values, place));
        ts_index_options options = TS_INIT(ts_index_options);
        options.index = &index;
        options.count = 1;
        options.accumulate = (int32_t)adds;
        ts_tensor *y = ts_index_put(given(mesh, row[i].x, place), values, &options);
        TEST_OK(t, ts_backward(y, TS_OPTIONS(ts_backward_options,
                                             .seed = given(mesh, row[i].weights, "R"))));
        slope = ts_tensor_grad(values);
        is(t, place, slope, row[i].slope[adds]);
    }
}

/* Slopes on a cut are those of the side that the value was taken from. */
TS_TEST_RANKS(slopes_on_cuts, 1)
{
    static const struct {
        ts_tensor *(*f)(ts_tensor *x);
        const char *on, *beside;
    } row[] = {
        { ts_acos, "c128[4] 2+0i 2-0.0i -2+0i -2-0.0i",
          "c128[4] 2+1e-9i 2-1e-9i -2+1e-9i -2-1e-9i" },
        { ts_asin, "c128[4] 2+0i 2-0.0i -2+0i -2-0.0i",
          "c128[4] 2+1e-9i 2-1e-9i -2+1e-9i -2-1e-9i" },
        { ts_asinh, "c128[4] 0+2i -0.0+2i 0-2i -0.0-2i",
          "c128[4] 1e-9+2i -1e-9+2i 1e-9-2i -1e-9-2i" },
    };
    ts_mesh *mesh = ts_mesh_self(t->me);
    for (size_t i = 0; i < TSI_COUNT_OF(row); i++) {
        ts_tensor *slope[2] = { NULL, NULL };
        ts_tape_begin(t->me);
        for (int beside = 0; beside < 2; beside++) {
            ts_tensor *x = ts_watch(given(mesh, beside ? row[i].beside : row[i].on, "R"));
            ts_tensor *ones = given(mesh, "c128[4] 1 1 1 1", "R");
            TEST_OK(t, ts_backward(row[i].f(x), TS_OPTIONS(ts_backward_options, .seed = ones)));
            slope[beside] = ts_tensor_grad(x);
        }
        double apart = 1;
        ts_tensor *away = ts_amax(ts_abs(ts_sub(slope[0], slope[1])), NULL, 0, 0);
        TEST_OK(t, ts_tensor_item(away, &apart));
        TEST_SAY(t, apart < 1e-6, "function %zu: %g apart", i, apart);
    }
}

/* Powers of the elements are beyond the numbers of a dtype, the norm is not. */
TS_TEST_RANKS(norms_whose_powers_do_not_fit, 1)
{
    static const struct {
        const char *in;
        double p, scale;
        const char *want; /* times scale */
    } row[] = { { "f64[2] 3e200 -4e200", 2, 1e-200, "f64[] 5" },
                { "f64[3] 3e-200 0 -4e-200", 2, 1e200, "f64[] 5" },
                { "f64[3] 3e150 -4e150 5e150", 3, 1e-150, "f64[] 6" },
                { "f64[2] 1e-300 1e-300", 0.5, 1e300, "f64[] 4" },
                { "f64[2] 0 0", 2, 1, "f64[] 0" },
                { "f32[2] 3e38 -1e37", 2, 1e-38, "f32[] 3.0016662" },
                { "f32[2] 3e-40 -4e-40", 2, 1e38, "f32[] 0.05" },
                { "f32[3] 3e20 -4e20 5e20", 3, 1e-20, "f32[] 6" },
                { "bf16[2] 1e38 1e38", 1, 1e-38, "bf16[] 1.9921875" } };
    ts_mesh *mesh = ts_mesh_self(t->me);
    for (size_t i = 0; i < TSI_COUNT_OF(row); i++) {
        ts_norm_options options = TS_INIT(ts_norm_options);
        options.p = row[i].p;
        ts_tensor *y = ts_vector_norm(given(mesh, row[i].in, "R"), &options);
        is(t, row[i].in, ts_mul_scalar(y, row[i].scale), row[i].want);
    }
}

/* The gradient of the second input in its own bits, where the first has fewer. */
TS_TEST_RANKS(slopes_beside_few_bits, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tape_begin(t->me);
    ts_tensor *one = ts_watch(given(mesh, "f64[1] 1", "R")), *slope[3] = { NULL, NULL, NULL };
    TEST_OK(t, ts_grad(ts_power(given(mesh, "bf16[1] 3", "R"), one), &one, 1, &slope[0]));
    is(t, "power", slope[0], "f64[1] 3.295836866004329");
    TEST_OK(t, ts_grad(ts_bce(given(mesh, "bf16[1] 0.25", "R"), one, NULL), &one, 1, &slope[1]));
    is(t, "bce", slope[1], "f64[1] 1.0986122886681098");
    ts_tensor *x = given(mesh, "bf16[1,1,2] 1 0.001953125", "S(2)");
    ts_tensor *weight = ts_watch(given(mesh, "f64[1,1,1] 1", "R"));
    ts_tensor *y = ts_sum(ts_conv(x, weight, NULL, NULL), NULL, 0, 0);
    TEST_OK(t, ts_grad(y, &weight, 1, &slope[2]));
    is(t, "conv", slope[2], "f64[1,1,1] 1.001953125");
}

/* More labels than f16 can count. */
TS_TEST_RANKS(labels_beyond_f16, 1, 2)
{
    enum { LABELS = 70000 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tape_begin(t->me);
    ts_tensor *x = ts_watch(ts_zeros(mesh, TS_DTYPE_F16, TS_SHAPE(LABELS, 1), "S(0)"));
    ts_tensor *labels = ts_zeros(mesh, TS_DTYPE_I64, TS_SHAPE(LABELS), "S(0)"), *slope = NULL;
    TEST_OK(t, ts_grad(ts_mul_scalar(ts_nll_loss(x, labels, NULL), 1024), &x, 1, &slope));
    is(t, "nll_loss", ts_amax(slope, NULL, 0, 0), "f16[] -0.0146255");
}

/* ---- functions made of operators ------------------------------------------------------------- */

TS_TEST_RANKS(functions_made_of_operators, 1, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_tensor *v = given(mesh, "f64[4] 1 nan 4 2", "S(0)"), *out[2] = { NULL, NULL };
    ts_tensor *m = given(mesh, "f64[2,3] 1 2 3 4 5 6", "S(1)");
    ts_tensor *index = given(mesh, "i64[2] 2 0", "R");
    is(t, "nansum", ts_nansum(v, NULL, 0, 0), "f64[] 7");
    is(t, "nanmean", ts_nanmean(v, NULL, 0, 0), "f64[] 2.3333333333333335");
    TEST_OK(t, ts_kthvalue(m, 2, -1, out));
    is(t, "kthvalue", out[0], "f64[2] 2 5");
    TEST_OK(t, ts_median(given(mesh, "f64[4] 4 1 3 2", "S(0)"), 0, out));
    is(t, "median", out[0], "f64[] 2");
    is(t, "median's index", out[1], "i64[] 3");
    TEST_OK(t, ts_median(given(mesh, "f64[5] 4 nan 1 nan 2", "S(0)"), -1, out));
    is(t, "median of what is no number", out[0], "f64[] nan");
    is(t, "its index", out[1], "i64[] 1");
    is(t, "outer", ts_outer(given(mesh, "f64[2] 1 2", "S(0)"), given(mesh, "f64[2] 3 4", "S(0)")),
       "f64[2,2] 3 4 6 8");
    is(t, "trace", ts_trace(m), "f64[] 6");
    is(t, "cross",
       ts_cross(given(mesh, "f64[3] 1 0 0", "S(0)"), given(mesh, "f64[3] 0 1 0", "R"), 0),
       "f64[3] 0 0 1");
    is(t, "normalize", ts_normalize(given(mesh, "f64[2,2] 3 4 0 0", "S(1)"), 1, 1e-12),
       "f64[2,2] 0.6 0.8 0 0");
    is(t, "cosine_similarity", ts_cosine_similarity(m, ts_neg(m), 1), "f64[2] -1 -1");
    is(t, "cosine_similarity, repair 6", /* what is repeated along the dim counts in its length */
       ts_cosine_similarity(given(mesh, "f64[1,1,2] 1 2", "R"),
                            given(mesh, "f64[1,2,2] 1 1 1 -1", "S(1)"), 1),
       "f64[1,2] 1 0");
    is(t, "cosine_similarity, repair 6",
       ts_cosine_similarity(given(mesh, "f64[2] 3 4", "S(0)"), given(mesh, "f64[2,1] 1 -2", "R"),
                            -1),
       "f64[2] 0.9899494936611665 -0.9899494936611665");
    is(t, "one_hot", ts_one_hot(index, 3), "i64[2,3] 0 0 1 1 0 0");
    is(t, "index_fill", ts_index_fill(m, 1, index, 9), "f64[2,3] 9 2 9 9 5 9");
    is(t, "index_copy", ts_index_copy(m, 1, index, given(mesh, "f64[2,2] 7 8 9 10", "S(0)")),
       "f64[2,3] 8 2 7 10 5 9");
    is(t, "tile", ts_tile(m, (int64_t[]){ 2 }, 1), "f64[2,6] 1 2 3 1 2 3 4 5 6 4 5 6");
    is(t, "glu", ts_glu(given(mesh, "f64[2,2] 1 0 2 0", "S(0)"), 1), "f64[2,1] 0.5 1");
    is(t, "batch_norm",
       ts_batch_norm(m,
                     TS_OPTIONS(ts_batch_norm_options, .mean = given(mesh, "f64[3] 1 2 3", "S(0)"),
                                .variance = given(mesh, "f64[3] 1 4 9", "R"),
                                .bias = given(mesh, "f64[3] 1 1 1", "R"), .epsilon = 1e-30)),
       "f64[2,3] 1 1 1 4 2.5 2");
    FAMILY_REFUSES(t, "outer: takes two vectors, not (2, 3)", ts_outer(m, v));
    FAMILY_REFUSES(t, "glu: takes a dim of even extent, not (2, 3)", ts_glu(m, 1));
    FAMILY_REFUSES(t, "batch_norm: the mean and variance are required", ts_batch_norm(m, NULL));
    FAMILY_REFUSES(t, "kthvalue: 0 of a dim", ts_kthvalue(m, 0, 0, out));
}
