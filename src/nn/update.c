/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - optimiser updates, element by element: vectorisable loops for f32 and f64, a staged
 * form for the rest.
 *
 * AdamW as usually stated: p -= lr * wd * p; m, v are running means of g and g^2; p -= lr * m^ /
 * (sqrt(v^) + eps). */
#include "nn/update.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

enum { CHUNK = 1024 };

/* ---- loops ----------------------------------------------------------------------------------- */

static void adamw_f32(const tsi_adamw_step *s, float *restrict p, const float *restrict g,
                      float *restrict m, float *restrict v, int64_t n)
{
    float b1 = (float)s->beta1, b2 = (float)s->beta2, c1 = (float)(1.0 - s->beta1),
          c2 = (float)(1.0 - s->beta2);
    float decay = (float)(1.0 - s->lr * s->weight_decay), rate = (float)(s->lr / s->correction1);
    float root = (float)(1.0 / sqrt(s->correction2)), eps = (float)s->epsilon;
    for (int64_t i = 0; i < n; i++) {
        m[i] = b1 * m[i] + c1 * g[i];
        v[i] = b2 * v[i] + c2 * g[i] * g[i];
        p[i] = decay * p[i] - rate * m[i] / (sqrtf(v[i]) * root + eps);
    }
}

static void adamw_f64(const tsi_adamw_step *s, double *restrict p, const double *restrict g,
                      double *restrict m, double *restrict v, int64_t n)
{
    double decay = 1.0 - s->lr * s->weight_decay, rate = s->lr / s->correction1,
           root = 1.0 / sqrt(s->correction2);
    for (int64_t i = 0; i < n; i++) {
        m[i] = s->beta1 * m[i] + (1.0 - s->beta1) * g[i];
        v[i] = s->beta2 * v[i] + (1.0 - s->beta2) * g[i] * g[i];
        p[i] = decay * p[i] - rate * m[i] / (sqrt(v[i]) * root + s->epsilon);
    }
}

static void sgd_f32(const tsi_sgd_step *s, float *restrict p, const float *restrict g,
                    float *restrict m, int64_t n)
{
    float lr = (float)s->lr, mu = (float)s->momentum, wd = (float)s->weight_decay;
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] + wd * p[i];
        if (m) {
            m[i] = s->first ? d : mu * m[i] + d;
            d = s->nesterov ? d + mu * m[i] : m[i];
        }
        p[i] -= lr * d;
    }
}

static void sgd_f64(const tsi_sgd_step *s, double *restrict p, const double *restrict g,
                    double *restrict m, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double d = g[i] + s->weight_decay * p[i];
        if (m) {
            m[i] = s->first ? d : s->momentum * m[i] + d;
            d = s->nesterov ? d + s->momentum * m[i] : m[i];
        }
        p[i] -= s->lr * d;
    }
}

/* ---- any dtype, in chunks through f32 -------------------------------------------------------- */

static tsi_block piece(const tsi_block *block, int64_t first, int64_t n)
{
    tsi_block part = { .dtype = block->dtype, .ndim = 1, .extent = { n }, .stride = { 1 } };
    part.data = (char *)block->data + (size_t)first * ts_dtype_size((ts_dtype)block->dtype);
    return part;
}

static tsi_block wide(float *data, int64_t n)
{
    return (tsi_block){
        .data = data, .dtype = TS_DTYPE_F32, .ndim = 1, .extent = { n }, .stride = { 1 }
    };
}

static bool is_dense_pair(const tsi_block *p, const tsi_block *g)
{
    return tsi_block_is_dense(p) && tsi_block_is_dense(g);
}

static ts_status refuse_strided(void)
{
    return TSI_FAIL(TS_ERR_INTERNAL, "optimizer: a parameter or gradient block is not dense");
}

typedef void (*chunk_fn)(const void *step, float *p, const float *g, float *m, float *v, int64_t n);

static void adamw_chunk(const void *step, float *p, const float *g, float *m, float *v, int64_t n)
{
    adamw_f32(step, p, g, m, v, n);
}

static void sgd_chunk(const void *step, float *p, const float *g, float *m, float *v, int64_t n)
{
    (void)v;
    sgd_f32(step, p, g, m, n);
}

static ts_status staged(chunk_fn fn, const void *step, const tsi_block *p, const tsi_block *g,
                        const tsi_block *m, const tsi_block *v)
{
    const tsi_device *cpu = tsi_device_cpu();
    float a[CHUNK], b[CHUNK];
    int64_t count = tsi_block_count(p);
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t n = count - at < CHUNK ? count - at : CHUNK;
        tsi_block from_p = piece(p, at, n), from_g = piece(g, at, n), to_p = wide(a, n),
                  to_g = wide(b, n);
        TSI_TRY(cpu->copy(cpu, &to_p, &from_p, NULL));
        TSI_TRY(cpu->copy(cpu, &to_g, &from_g, NULL));
        fn(step, a, b, m ? (float *)m->data + at : NULL, v ? (float *)v->data + at : NULL, n);
        TSI_TRY(cpu->copy(cpu, &from_p, &to_p, NULL));
    }
    return TS_OK;
}

ts_status tsi_update_adamw(const tsi_adamw_step *step, const tsi_block *p, const tsi_block *g,
                           const tsi_block *m, const tsi_block *v)
{
    if (!is_dense_pair(p, g)) return refuse_strided();
    int64_t n = tsi_block_count(p);
    if (p->dtype == TS_DTYPE_F64 && g->dtype == TS_DTYPE_F64)
        adamw_f64(step, p->data, g->data, m->data, v->data, n);
    else if (p->dtype == TS_DTYPE_F32 && g->dtype == TS_DTYPE_F32)
        adamw_f32(step, p->data, g->data, m->data, v->data, n);
    else
        return staged(adamw_chunk, step, p, g, m, v);
    return TS_OK;
}

ts_status tsi_update_sgd(const tsi_sgd_step *step, const tsi_block *p, const tsi_block *g,
                         const tsi_block *m)
{
    if (!is_dense_pair(p, g)) return refuse_strided();
    int64_t n = tsi_block_count(p);
    void *momentum = m ? m->data : NULL;
    if (p->dtype == TS_DTYPE_F64 && g->dtype == TS_DTYPE_F64)
        sgd_f64(step, p->data, g->data, momentum, n);
    else if (p->dtype == TS_DTYPE_F32 && g->dtype == TS_DTYPE_F32)
        sgd_f32(step, p->data, g->data, momentum, n);
    else
        return staged(sgd_chunk, step, p, g, m, NULL);
    return TS_OK;
}

double tsi_update_squares(const tsi_block *g)
{
    double sum = 0.0;
    int64_t n = tsi_block_count(g);
    if (g->dtype == TS_DTYPE_F32) {
        const float *x = g->data;
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i] * (double)x[i];
    } else if (g->dtype == TS_DTYPE_F64) {
        const double *x = g->data;
        for (int64_t i = 0; i < n; i++)
            sum += x[i] * x[i];
    } else {
        const tsi_device *cpu = tsi_device_cpu();
        float chunk[CHUNK];
        for (int64_t at = 0; at < n; at += CHUNK) {
            int64_t count = n - at < CHUNK ? n - at : CHUNK;
            tsi_block from = piece(g, at, count), to = wide(chunk, count);
            if (cpu->copy(cpu, &to, &from, NULL) != TS_OK) return (double)NAN;
            for (int64_t i = 0; i < count; i++)
                sum += (double)chunk[i] * (double)chunk[i];
        }
    }
    return sum;
}

ts_status tsi_update_scale(const tsi_block *g, double factor)
{
    int64_t n = tsi_block_count(g);
    if (g->dtype == TS_DTYPE_F32) {
        float *x = g->data;
        for (int64_t i = 0; i < n; i++)
            x[i] *= (float)factor;
    } else if (g->dtype == TS_DTYPE_F64) {
        double *x = g->data;
        for (int64_t i = 0; i < n; i++)
            x[i] *= factor;
    } else {
        const tsi_device *cpu = tsi_device_cpu();
        float chunk[CHUNK];
        for (int64_t at = 0; at < n; at += CHUNK) {
            int64_t count = n - at < CHUNK ? n - at : CHUNK;
            tsi_block from = piece(g, at, count), to = wide(chunk, count);
            TSI_TRY(cpu->copy(cpu, &to, &from, NULL));
            for (int64_t i = 0; i < count; i++)
                chunk[i] *= (float)factor;
            TSI_TRY(cpu->copy(cpu, &from, &to, NULL));
        }
    }
    return TS_OK;
}
