/* SPDX-License-Identifier: Apache-2.0 */
/* update.c - optimiser updates, element by element: plain loops for f32 and f64, a staged form for
 * the rest.
 *
 * AdamW as usually stated: p -= lr * wd * p; m, v are running means of g and g^2; p -= lr * m^ /
 * (sqrt(v^) + eps). SGD: d = g + wd * p; m = mu * m + d; p -= lr * (m, or d + mu * m). */
#include "op/nn/update.h"

#include <math.h>
#include <string.h>

#include "device/cpu.h"

enum { CHUNK = 1024 };

/* ---- loops ----------------------------------------------------------------------------------- */

static void adamw_f32(const tsi_adamw_step *s, float *const *x, int64_t n)
{
    float *restrict p = x[0], *restrict m = x[2], *restrict v = x[3];
    const float *restrict g = x[1];
    float b1 = (float)s->beta1, b2 = (float)s->beta2, c1 = (float)(1.0 - s->beta1),
          c2 = (float)(1.0 - s->beta2);
    float decay = (float)(1.0 - s->lr * s->weight_decay), rate = (float)(s->lr / s->correction1);
    float root = (float)(1.0 / sqrt(s->correction2)), eps = (float)s->epsilon;
    float factor = (float)s->factor;
    for (int64_t i = 0; i < n; i++) {
        float gi = factor * g[i];
        m[i] = b1 * m[i] + c1 * gi;
        v[i] = b2 * v[i] + c2 * gi * gi;
        p[i] = decay * p[i] - rate * m[i] / (sqrtf(v[i]) * root + eps);
    }
}

static void adamw_f64(const tsi_adamw_step *s, double *const *x, int64_t n)
{
    double *restrict p = x[0], *restrict m = x[2], *restrict v = x[3];
    const double *restrict g = x[1];
    double decay = 1.0 - s->lr * s->weight_decay, rate = s->lr / s->correction1,
           root = 1.0 / sqrt(s->correction2);
    for (int64_t i = 0; i < n; i++) {
        double gi = s->factor * g[i];
        m[i] = s->beta1 * m[i] + (1.0 - s->beta1) * gi;
        v[i] = s->beta2 * v[i] + (1.0 - s->beta2) * gi * gi;
        p[i] = decay * p[i] - rate * m[i] / (sqrt(v[i]) * root + s->epsilon);
    }
}

static void sgd_f32(const tsi_sgd_step *s, float *const *x, int64_t n)
{
    float *restrict p = x[0], *restrict m = x[2];
    const float *restrict g = x[1];
    float lr = (float)s->lr, mu = (float)s->momentum, wd = (float)s->weight_decay;
    float factor = (float)s->factor;
    for (int64_t i = 0; i < n; i++) {
        float d = factor * g[i] + wd * p[i];
        if (m) {
            m[i] = s->first ? d : mu * m[i] + d;
            d = s->nesterov ? d + mu * m[i] : m[i];
        }
        p[i] -= lr * d;
    }
}

static void sgd_f64(const tsi_sgd_step *s, double *const *x, int64_t n)
{
    double *restrict p = x[0], *restrict m = x[2];
    const double *restrict g = x[1];
    for (int64_t i = 0; i < n; i++) {
        double d = s->factor * g[i] + s->weight_decay * p[i];
        if (m) {
            m[i] = s->first ? d : s->momentum * m[i] + d;
            d = s->nesterov ? d + s->momentum * m[i] : m[i];
        }
        p[i] -= s->lr * d;
    }
}

/* ---- any dtype, in chunks -------------------------------------------------------------------- */

typedef struct update {
    const tsi_adamw_step *adamw; /* or, if NULL, */
    const tsi_sgd_step *sgd;
} update;

static char *part_at(const tsi_list_part *part, int64_t first)
{
    return (char *)part->data + (size_t)first * ts_dtype_size(part->dtype);
}

void tsi_moments_round(const tsi_adamw_step *step, const tsi_list_item *item, int64_t first,
                       int64_t count, const float *m, const float *v)
{
    uint64_t key = tsi_noise_key(step->noise, step->steps, item->salt);
    uint16_t *to_m = (uint16_t *)(void *)part_at(&item->part[TSI_UPDATE_FIRST], first);
    uint16_t *to_v = (uint16_t *)(void *)part_at(&item->part[TSI_UPDATE_SECOND], first);
    for (int64_t i = 0; i < count; i++) {
        uint32_t noise = tsi_noise_at(key, tsi_list_index(item, first + i)), bits[2];
        memcpy(&bits[0], &m[i], sizeof bits[0]);
        memcpy(&bits[1], &v[i], sizeof bits[1]);
        to_m[i] = tsi_bf16_by_chance(bits[0], noise);
        to_v[i] = tsi_bf16_by_chance(bits[1], noise >> 16);
    }
}

static void run_chunk(update u, const tsi_list_item *item, int64_t first, int64_t n)
{
    ts_dtype wide = item->part[0].dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
    double buffer[TSI_UPDATE_MIRROR][CHUNK];
    void *x[TSI_UPDATE_MIRROR] = { NULL };
    for (int k = 0; k < TSI_UPDATE_MIRROR; k++) {
        const tsi_list_part *part = &item->part[k];
        if (!part->data) continue;
        x[k] = part->dtype == wide ? (void *)part_at(part, first) : buffer[k];
        if (part->dtype != wide)
            tsi_cpu_cast_rows(wide, x[k], part->dtype, part_at(part, first), n);
    }
    float *const f32[] = { x[0], x[1], x[2], x[3] };
    double *const f64[] = { x[0], x[1], x[2], x[3] };
    if (u.adamw && wide == TS_DTYPE_F32)
        adamw_f32(u.adamw, f32, n);
    else if (u.adamw)
        adamw_f64(u.adamw, f64, n);
    else if (wide == TS_DTYPE_F32)
        sgd_f32(u.sgd, f32, n);
    else
        sgd_f64(u.sgd, f64, n);
    for (int k = 0; k < TSI_UPDATE_MIRROR; k++) {
        const tsi_list_part *part = &item->part[k];
        if (part->data && part->dtype != wide && k != TSI_UPDATE_GRAD &&
            !tsi_is_by_chance(u.adamw, item, k))
            tsi_cpu_cast_rows(part->dtype, part_at(part, first), wide, x[k], n);
    }
    if (tsi_is_by_chance(u.adamw, item, TSI_UPDATE_FIRST) && wide == TS_DTYPE_F32)
        tsi_moments_round(u.adamw, item, first, n, x[TSI_UPDATE_FIRST], x[TSI_UPDATE_SECOND]);
    const tsi_list_part *mirror = &item->part[TSI_UPDATE_MIRROR];
    if (mirror->data)
        tsi_cpu_cast_rows(mirror->dtype, part_at(mirror, first), item->part[0].dtype,
                          part_at(&item->part[0], first), n);
}

static void run_range(update u, const tsi_list_item *item, int64_t first, int64_t count)
{
    for (int64_t at = 0; at < count; at += CHUNK)
        run_chunk(u, item, first + at, count - at < CHUNK ? count - at : CHUNK);
}

void tsi_adamw_range(const tsi_adamw_step *step, const tsi_list_item *item, int64_t first,
                     int64_t count)
{
    run_range((update){ .adamw = step }, item, first, count);
}

void tsi_sgd_range(const tsi_sgd_step *step, const tsi_list_item *item, int64_t first,
                   int64_t count)
{
    run_range((update){ .sgd = step }, item, first, count);
}

/* ---- the references -------------------------------------------------------------------------- */

typedef struct bounded {
    const char *what;
    double value, below; /* from 0 up to it */
} bounded;

static ts_status check_numbers(const char *name, const bounded *number, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (number[i].value >= 0.0 && number[i].value < number[i].below) continue;
        bool share = isfinite(number[i].below);
        return TSI_FAIL(TS_ERR_ARG, "%s: %s is %g; it is a number from 0 on%s", name,
                        number[i].what, number[i].value, share ? ", and below 1" : "");
    }
    return TS_OK;
}

ts_status tsi_adamw_check(const char *name, const tsi_adamw_step *step)
{
    const double any = (double)INFINITY;
    const bounded number[] = { { "the rate", step->lr, any },
                               { "beta1", step->beta1, 1.0 },
                               { "beta2", step->beta2, 1.0 },
                               { "epsilon", step->epsilon, any },
                               { "the weight decay", step->weight_decay, any } };
    return check_numbers(name, number, (int32_t)TSI_COUNT_OF(number));
}

ts_status tsi_sgd_check(const char *name, const tsi_sgd_step *step)
{
    const double any = (double)INFINITY;
    const bounded number[] = { { "the rate", step->lr, any },
                               { "the momentum", step->momentum, any },
                               { "the weight decay", step->weight_decay, any } };
    return check_numbers(name, number, (int32_t)TSI_COUNT_OF(number));
}

bool tsi_adamw_settle(const tsi_adamw_step *given, const double *control, tsi_adamw_step *out)
{
    *out = *given;
    if (!control) return true;
    out->lr = control[TSI_CONTROL_RATE];
    out->correction1 = control[TSI_CONTROL_CORRECTION1];
    out->correction2 = control[TSI_CONTROL_CORRECTION2];
    out->factor = control[TSI_CONTROL_FACTOR];
    out->steps = control[TSI_CONTROL_STEPS];
    return control[TSI_CONTROL_GO] != 0.0;
}

bool tsi_sgd_settle(const tsi_sgd_step *given, const double *control, tsi_sgd_step *out)
{
    *out = *given;
    if (!control) return true;
    out->lr = control[TSI_CONTROL_RATE];
    out->factor = control[TSI_CONTROL_FACTOR];
    out->first = control[TSI_CONTROL_STEPS] == 1.0;
    return control[TSI_CONTROL_GO] != 0.0;
}

static ts_status adamw_reference(const tsi_list_io *io)
{
    tsi_adamw_step step;
    for (int64_t i = 0; i < io->count; i++)
        if (tsi_adamw_settle(io->attributes, io->item[i].part[TSI_UPDATE_CONTROL].data, &step))
            tsi_adamw_range(&step, &io->item[i], 0, io->item[i].count);
    return TS_OK;
}

static ts_status sgd_reference(const tsi_list_io *io)
{
    tsi_sgd_step step;
    for (int64_t i = 0; i < io->count; i++)
        if (tsi_sgd_settle(io->attributes, io->item[i].part[TSI_UPDATE_CONTROL].data, &step))
            tsi_sgd_range(&step, &io->item[i], 0, io->item[i].count);
    return TS_OK;
}

/* ---- deciding -------------------------------------------------------------------------------- */

static ts_status decide_reference(const tsi_list_io *io)
{
    for (int64_t i = 0; i < io->count; i++)
        tsi_control_decide_numbers(io->item[i].part[TSI_DECIDE_SUMS].data, io->item[i].count,
                                   io->item[i].part[TSI_DECIDE_CONTROL].data);
    return TS_OK;
}

static double squares_of(const tsi_list_part *x, int64_t count)
{
    double sum = 0.0, chunk[CHUNK];
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t n = count - at < CHUNK ? count - at : CHUNK;
        tsi_cpu_cast_rows(TS_DTYPE_F64, chunk, x->dtype, part_at(x, at), n);
        for (int64_t i = 0; i < n; i++)
            sum += chunk[i] * chunk[i];
    }
    return sum;
}

static ts_status squares_reference(const tsi_list_io *io)
{
    for (int64_t i = 0; i < io->count; i++) {
        double *sum = io->item[i].part[TSI_SQUARES_SUM].data;
        *sum += squares_of(&io->item[i].part[TSI_SQUARES_OF], io->item[i].count);
    }
    return TS_OK;
}

const tsi_list_op tsi_list_adamw = {
    .name = "fused_adamw",
    .id = TSI_LIST_ADAMW,
    .writes = 1 << TSI_UPDATE_PARAM | 1 << TSI_UPDATE_FIRST | 1 << TSI_UPDATE_SECOND |
              1 << TSI_UPDATE_MIRROR,
    .single = 1 << TSI_UPDATE_CONTROL,
    .single_count = TSI_CONTROL_COUNT,
    .attribute_bytes = sizeof(tsi_adamw_step),
    .reference = adamw_reference,
};
const tsi_list_op tsi_list_sgd = {
    .name = "fused_sgd",
    .id = TSI_LIST_SGD,
    .writes = 1 << TSI_UPDATE_PARAM | 1 << TSI_UPDATE_FIRST | 1 << TSI_UPDATE_MIRROR,
    .single = 1 << TSI_UPDATE_CONTROL,
    .single_count = TSI_CONTROL_COUNT,
    .attribute_bytes = sizeof(tsi_sgd_step),
    .reference = sgd_reference,
};
const tsi_list_op tsi_list_squares = {
    .name = "squares",
    .id = TSI_LIST_SQUARES,
    .writes = 1 << TSI_SQUARES_SUM,
    .single = 1 << TSI_SQUARES_SUM,
    .reference = squares_reference,
};
const tsi_list_op tsi_list_decide = {
    .name = "decide",
    .id = TSI_LIST_DECIDE,
    .writes = 1 << TSI_DECIDE_CONTROL,
    .single = 1 << TSI_DECIDE_CONTROL,
    .single_count = TSI_CONTROL_COUNT,
    .reference = decide_reference,
};
