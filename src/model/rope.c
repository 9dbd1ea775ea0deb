/* SPDX-License-Identifier: Apache-2.0 */
/* rope.c - the table of rotary positions: cosines and sines of position times frequency, with the
 * published scalings.
 *
 * Frequency i of D/2 is theta^(-2i/D). linear divides it; llama3 divides long waves, keeps short
 * ones and blends between; yarn blends by how often a wave turns within the original length and
 * sharpens attention; dynamic raises theta with the length; longrope divides each by a factor of
 * its own, other ones for long sequences. Computed in double, stored in f32.
 *
 * The table has as many rows as the longest sequence so far, rounded up, and is made anew when a
 * sequence is longer or, for dynamic and longrope, wants other frequencies. Who goes on from a
 * cache gets the rows behind those of its tokens. */
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
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
    double low = yarn_index(c, c->rope_beta_fast), high = yarn_index(c, c->rope_beta_slow);
    if (!c->rope_smooth) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, (double)c->head_dim - 1.0);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
    return f / c->rope_factor * ramp + f * (1.0 - ramp);
}

/* Of pair i, for sequences of a length. */
static double frequency(const ts_model_config *c, int64_t i, int64_t length)
{
    double d = (double)c->head_dim, theta = c->rope_theta;
    bool beyond = (double)length > c->rope_original;
    if (c->rope_type == TS_ROPE_DYNAMIC && beyond)
        theta *= pow(c->rope_factor * (double)length / c->rope_original - (c->rope_factor - 1.0),
                     d / (d - 2.0));
    double f = pow(theta, -2.0 * (double)i / d);
    switch ((ts_rope_type)c->rope_type) {
    case TS_ROPE_DEFAULT:
    case TS_ROPE_DYNAMIC:
        return f;
    case TS_ROPE_LINEAR:
        return f / c->rope_factor;
    case TS_ROPE_LLAMA3:
        return llama3_frequency(c, f);
    case TS_ROPE_YARN:
        return yarn_frequency(c, f, (double)i);
    case TS_ROPE_LONGROPE:
        return f / (beyond ? c->rope_long[i] : c->rope_short[i]);
    }
    return f;
}

static double yarn_scale(double factor, double mscale)
{
    return factor > 1.0 ? 0.1 * mscale * log(factor) + 1.0 : 1.0;
}

static double sharpening(const ts_model_config *c)
{
    bool yarn = c->rope_type == TS_ROPE_YARN, longrope = c->rope_type == TS_ROPE_LONGROPE;
    if (!yarn && !longrope) return 1.0;
    if (c->rope_attention != 0.0) return c->rope_attention;
    if (longrope)
        return c->rope_factor > 1.0 ? sqrt(1.0 + log(c->rope_factor) / log(c->rope_original)) : 1.0;
    if (c->rope_mscale != 0.0 && c->rope_mscale_all != 0.0)
        return yarn_scale(c->rope_factor, c->rope_mscale) /
               yarn_scale(c->rope_factor, c->rope_mscale_all);
    return yarn_scale(c->rope_factor, 1.0);
}

double tsi_rope_sharpening_of_scores(const ts_model_config *c)
{
    if (c->rope_type == TS_ROPE_DEFAULT || c->rope_mscale_all == 0.0) return 1.0;
    double scale = yarn_scale(c->rope_factor, c->rope_mscale_all);
    return scale * scale;
}

typedef struct table_context {
    const float *frequency;
    int64_t half;
    double sharpening;
} table_context;

static ts_status element(const int64_t *global, void *out, void *context)
{
    const table_context *t = context;
    /* Frequencies are rounded to f32 as the published implementations do; angles are products in
     * f32. */
    float angle = (float)global[0] * t->frequency[global[1] % t->half];
    double value = global[1] < t->half ? cos((double)angle) : sin((double)angle);
    *(float *)out = (float)(value * t->sharpening);
    return TS_OK;
}

static ts_tensor *table_make(ts_model *model, int64_t rows, int64_t length)
{
    const ts_model_config *c = &model->config;
    table_context t = { .half = c->head_dim / 2, .sharpening = sharpening(c) };
    float *frequencies = tsi_alloc_array((size_t)t.half, sizeof *frequencies);
    if (!frequencies) {
        tsi_fail_memory("rotary frequencies", (size_t)t.half * sizeof *frequencies);
        return NULL;
    }
    for (int64_t i = 0; i < t.half; i++)
        frequencies[i] = (float)frequency(c, i, length);
    t.frequency = frequencies;
    ts_scope scope = ts_scope_open(model->rank, NULL);
    const ts_sharding *whole = tsi_sharding_replicated(model->mesh->desc);
    ts_meta meta = { .shape = TS_SHAPE(rows, c->head_dim), .dtype = TS_DTYPE_F32 };
    ts_tensor *table = whole ? ts_from_function(element, &t, whole, meta) : NULL;
    if (table) tsi_tensor_retain(table);
    ts_sharding_release(whole);
    ts_scope_close(scope);
    tsi_free(frequencies);
    return table;
}

/* What frequencies depend on besides the configuration. */
static int64_t length_that_counts(const ts_model_config *c, int64_t length)
{
    bool beyond = (double)length > c->rope_original;
    if (c->rope_type == TS_ROPE_DYNAMIC) return beyond ? length : 0;
    return c->rope_type == TS_ROPE_LONGROPE && beyond ? (int64_t)c->rope_original + 1 : 0;
}

bool tsi_rope_same(const ts_model_config *c, int64_t length, int64_t other)
{
    return length_that_counts(c, length) == length_that_counts(c, other);
}

/* For positions up to `length`. */
static ts_status table_renew(ts_model *model, int64_t length)
{
    int64_t counts = length_that_counts(&model->config, length), rows = 64;
    bool fits = model->rope && length <= model->rope_rows && counts == model->rope_length;
    if (fits) return TS_OK;
    while (rows < length)
        rows *= 2;
    ts_tensor *table = table_make(model, rows, counts);
    if (!table) return ts_rank_status(model->rank);
    tsi_tensor_release(model->rope);
    model->rope = table;
    model->rope_rows = rows;
    model->rope_length = counts;
    return TS_OK;
}

ts_tensor *tsi_rope_table(ts_model *model, int64_t length)
{
    int64_t begin = tsi_model_begin(model);
    if (table_renew(model, begin + length) != TS_OK) return NULL;
    if (begin == 0) return model->rope;
    ts_slice_options options = TS_INIT(ts_slice_options);
    options.start = begin;
    return ts_slice(model->rope, 0, &options);
}
