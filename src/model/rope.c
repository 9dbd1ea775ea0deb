/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c - the table of rotary positions: cosines and sines of position times frequency, with the
 * published scalings.
 *
 * Frequency i of D/2 is theta^(-2i/D). linear divides it; llama3 divides long waves, keeps short
 * ones and blends between; yarn blends by how often a wave turns within the original length and
 * sharpens attention; dynamic raises theta with the length. Computed in double, stored in the dtype
 * of parameters. */
#include <math.h>

#include "model/model.h"

static const double two_pi = 6.283185307179586;

static double llama3_frequency(const ts_model_config *c, double f)
{
    double wave = two_pi / f, low = c->rope_original / c->rope_low,
           high = c->rope_original / c->rope_high;
    if (wave < high) return f;
    if (wave > low) return f / c->rope_factor;
    double smooth = (c->rope_original / wave - c->rope_low) / (c->rope_high - c->rope_low);
    return (1.0 - smooth) * f / c->rope_factor + smooth * f;
}

/* The index at which a wave turns `turns` times within the original length. */
static double yarn_index(const ts_model_config *c, double turns)
{
    double d = (double)c->head_dim;
    return d * log(c->rope_original / (turns * two_pi)) / (2.0 * log(c->rope_theta));
}

static double yarn_frequency(const ts_model_config *c, double f, double i)
{
    double low = floor(yarn_index(c, c->rope_beta_fast)),
           high = ceil(yarn_index(c, c->rope_beta_slow));
    low = fmax(low, 0.0);
    high = fmin(high, (double)c->head_dim - 1.0);
    double ramp = (i - low) / fmax(high - low, 0.001);
    ramp = fmin(fmax(ramp, 0.0), 1.0);
    return f / c->rope_factor * ramp + f * (1.0 - ramp);
}

static double frequency(const ts_model_config *c, int64_t i)
{
    double d = (double)c->head_dim, theta = c->rope_theta;
    if (c->rope_type == 4 &&
        (double)c->positions > c->rope_original) /* dynamic: for the longest sequence */
        theta *=
            pow(c->rope_factor * (double)c->positions / c->rope_original - (c->rope_factor - 1.0),
                d / (d - 2.0));
    double f = pow(theta, -2.0 * (double)i / d);
    if (c->rope_type == 1) return f / c->rope_factor;
    if (c->rope_type == 2) return llama3_frequency(c, f);
    return c->rope_type == 3 ? yarn_frequency(c, f, (double)i) : f;
}

static double sharpening(const ts_model_config *c)
{
    if (c->rope_type != 3) return 1.0;
    if (c->rope_attention != 0.0) return c->rope_attention;
    return c->rope_factor > 1.0 ? 0.1 * log(c->rope_factor) + 1.0 : 1.0;
}

static void element(const int64_t *global, void *out, void *context)
{
    const ts_model *m = context;
    int64_t half = m->config.head_dim / 2, i = global[1] % half;
    /* Frequencies are rounded to f32 as the published implementations do; angles are products in
     * f32. */
    float angle = (float)global[0] * (float)frequency(&m->config, i);
    double value =
        (global[1] < half ? cos((double)angle) : sin((double)angle)) * sharpening(&m->config);
    *(float *)out = (float)value;
}

ts_status tsi_rope_table(ts_model *model)
{
    if (model->config.family == TS_MODEL_GPT2) return TS_OK;
    ts_scope scope = ts_scope_open(model->rank, NULL);
    const ts_sharding *whole = tsi_sharding_replicated(model->mesh->desc);
    ts_meta meta = { .shape = TS_SHAPE(model->config.positions, model->config.head_dim),
                     .dtype = TS_DTYPE_F32 };
    ts_tensor *table = whole ? ts_from_function(element, model, whole, meta) : NULL;
    ts_sharding_release(whole);
    if (table) model->rope = ts_tensor_retain(table);
    ts_scope_close(scope);
    return ts_rank_status(model->rank);
}
