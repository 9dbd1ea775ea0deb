/* SPDX-License-Identifier: Apache-2.0 */
/* rows_update.h - optimiser updates of f32 rows, and sums of squares in double; a part of
 * rows_body.h.
 *
 * The arithmetic is that of the plain loops (op/nn/update.c), operation by operation: the same
 * bits.
 */

static void adamw_row(float *const *x, const float *numbers, int64_t count)
{
    float *p = x[0], *m = x[2], *v = x[3];
    const float *g = x[1];
    float b1 = numbers[0], b2 = numbers[1], c1 = numbers[2], c2 = numbers[3], decay = numbers[4];
    float rate = numbers[5], root = numbers[6], eps = numbers[7], factor = numbers[8];
    TSI_INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        float gi = factor * g[i], mi = b1 * m[i] + c1 * gi, vi = b2 * v[i] + c2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        p[i] = decay * p[i] - rate * mi / (sqrtf(vi) * root + eps);
    }
}

static void sgd_row(float *const *x, const float *numbers, int32_t nesterov, int64_t count)
{
    float *p = x[0], *m = x[2];
    const float *g = x[1];
    float lr = numbers[0], mu = numbers[1], wd = numbers[2], factor = numbers[3];
    if (!m) {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < count; i++)
            p[i] -= lr * (factor * g[i] + wd * p[i]);
    } else if (nesterov) {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            float d = factor * g[i] + wd * p[i], mi = mu * m[i] + d;
            m[i] = mi;
            p[i] -= lr * (d + mu * mi);
        }
    } else {
        TSI_INDEPENDENT
        for (int64_t i = 0; i < count; i++) {
            float mi = mu * m[i] + (factor * g[i] + wd * p[i]);
            m[i] = mi;
            p[i] -= lr * mi;
        }
    }
}

/* Sixteen lanes, in double from the square on. */
static double squares_wide(const float *x, int64_t count)
{
    double lane[16] = { 0 }, total = 0;
    int64_t i = 0;
    for (; i + 16 <= count; i += 16)
        for (int j = 0; j < 16; j++)
            lane[j] += (double)x[i + j] * (double)x[i + j];
    for (; i < count; i++)
        lane[i % 16] += (double)x[i] * (double)x[i];
    for (int j = 0; j < 16; j++)
        total += lane[j];
    return total;
}

#define TSI_ROWS_UPDATE .adamw = adamw_row, .sgd = sgd_row, .squares_wide = squares_wide
