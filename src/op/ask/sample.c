/* SPDX-License-Identifier: Apache-2.0 */
/* sample.c - small random shapes for the sweeps over the operator table: odd sizes, so that shards
 * are uneven or empty. */
#include "op/pointwise/unary.h"

static int64_t draw(uint64_t *random, int64_t bound)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((*random >> 33) % (uint64_t)bound);
}

ts_shape tsi_sample_shape(uint64_t *random, int32_t variant)
{
    ts_shape shape = { .ndim = variant == 0 ? 2 : (int32_t)(1 + draw(random, 3)) };
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = 1 + draw(random, 6);
    if (variant == 0) {
        shape.extent[0] = 5;
        shape.extent[1] = 4;
    }
    return shape;
}

bool tsi_sample_unary(uint64_t *random, int32_t variant, ts_meta *in, int32_t *input_count,
                      void *attributes)
{
    (void)attributes;
    *input_count = 1;
    in[0] = (ts_meta){ .shape = tsi_sample_shape(random, variant), .dtype = TS_DTYPE_F64 };
    return variant < 3;
}

bool tsi_sample_binary(uint64_t *random, int32_t variant, ts_meta *in, int32_t *input_count,
                       void *attributes)
{
    (void)attributes;
    *input_count = 2;
    ts_shape shape = tsi_sample_shape(random, variant), other = shape;
    if (variant == 1 && other.ndim > 1) { /* fewer dims */
        other.ndim = shape.ndim - 1;
        for (int32_t d = 0; d < other.ndim; d++)
            other.extent[d] = shape.extent[d + 1];
    }
    if (variant == 2) other.extent[0] = 1; /* broadcast in place */
    in[0] = (ts_meta){ .shape = shape, .dtype = TS_DTYPE_F64 };
    in[1] = (ts_meta){ .shape = other, .dtype = TS_DTYPE_F64 };
    return variant < 3;
}

bool tsi_sample_bits(uint64_t *random, int32_t variant, ts_meta *in, int32_t *input_count,
                     void *attributes)
{
    int32_t wanted = *input_count; /* the sweeps set it to the most the operator takes */
    bool more = tsi_sample_binary(random, variant, in, input_count, attributes);
    in[0].dtype = in[1].dtype = TS_DTYPE_I64;
    *input_count = wanted == 1 ? 1 : 2;
    return more;
}
