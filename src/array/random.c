/* SPDX-License-Identifier: Apache-2.0 */
/* random.c - fills by global index, a chunk at a time:
 *
 *   counters -> Philox blocks (vector lanes) -> words -> f64 or i64 values -> rounded to the dtype
 *
 * INV: the value of an element depends on its own words alone; where a chunk or run begins does not
 * matter. */
#include "array/random.h"

#include <math.h>

#include "array/random_math.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/philox.h"
#include "device/cpu.h"
#include "device/number.h"
#include "device/parallel.h"

enum { CHUNK = 256, LANES = 64, LANES_MIN = 12, WORDS_MAX = TSI_RANDOM_BUFFER };
/* Blocks whose rounds are done together. Where the 64-bit product is fast, few stay in registers;
 * else as many as there are, for vector code. */
#if defined(__aarch64__)
enum { GROUP = 4 };
#else
enum { GROUP = LANES };
#endif

typedef struct chunk {
    uint32_t word[WORDS_MAX];
    double real[2 * CHUNK]; /* complex: pairs */
    int64_t integer[CHUNK];
} chunk;

typedef tsi_random_recipe recipe;

static bool is_wide(ts_dtype dtype)
{
    return dtype == TS_DTYPE_F64 || dtype == TS_DTYPE_C128;
}

int32_t tsi_random_words(tsi_random_kind kind, ts_dtype dtype)
{
    size_t size = ts_dtype_size(dtype);
    bool real = tsi_dtype_is_real(dtype), complex = tsi_dtype_is_complex(dtype);
    if (size == 0) return 0;
    switch (kind) {
    case TSI_RANDOM_UNIFORM:
        return real ? 1 + is_wide(dtype) : complex ? 2 * (1 + is_wide(dtype)) : 0;
    case TSI_RANDOM_NORMAL:
        return real || complex ? 2 * (1 + is_wide(dtype)) : 0;
    case TSI_RANDOM_INTEGER:
        return real || complex ? 0 : size >= 4 ? 2 : 1;
    case TSI_RANDOM_BERNOULLI:
        return 1;
    }
    return 0;
}

uint64_t tsi_random_blocks(tsi_random_kind kind, ts_dtype dtype, int64_t count)
{
    uint64_t words = (uint64_t)count * (uint64_t)tsi_random_words(kind, dtype);
    return words / 4 + (words % 4 != 0);
}

/* ---- words */

/* LANES blocks, in groups: the rounds are outside, so that each inner loop is vector code. */
static void philox_group(uint32_t *restrict out, uint64_t seed, uint64_t stream, uint64_t first)
{
    uint32_t c0[GROUP], c1[GROUP], c2[GROUP], c3[GROUP];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (uint32_t i = 0; i < GROUP; i++) {
        uint64_t counter = first + i;
        c0[i] = (uint32_t)counter;
        c1[i] = (uint32_t)(counter >> 32);
        c2[i] = (uint32_t)stream;
        c3[i] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < GROUP; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
            c0[i] = n0;
            c2[i] = n2;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < GROUP; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

static void philox_lanes(uint32_t *out, uint64_t seed, uint64_t stream, uint64_t first)
{
    for (uint64_t i = 0; i < LANES; i += GROUP)
        philox_group(out + 4 * i, seed, stream, first + i);
}

static const uint32_t *draw(uint64_t seed, uint64_t stream, uint64_t offset, uint64_t first,
                            int64_t count, uint32_t *buffer)
{
    uint64_t block = first / 4, skip = first % 4, blocks = (skip + (uint64_t)count + 3) / 4, b = 0;
    uint64_t counter = offset + block;
    for (; b < blocks && blocks - b >= LANES_MIN; b += LANES)
        philox_lanes(buffer + 4 * b, seed, stream, counter + b);
    for (; b < blocks; b++) {
        tsi_philox_block one = tsi_philox(seed, counter + b, stream);
        memcpy(buffer + 4 * b, one.word, sizeof one.word);
    }
    return buffer + skip;
}

const uint32_t *tsi_random_draw(const tsi_random *random, uint64_t first, int64_t count,
                                uint32_t *buffer)
{
    return draw(random->seed, random->stream, random->offset, first, count, buffer);
}

/* ---- values */

static void uniform_narrow(const recipe *r, double *restrict out, const uint32_t *restrict word,
                           int64_t n)
{
    double a = r->a, span = r->b - a, top = r->top;
    uint32_t drop = r->drop;
    double unit = tsi_f64_of_bits((uint64_t)(1023 - 32 + drop) << 52); /* 2^-(bits used) */
    for (int64_t i = 0; i < n; i++) {
        double u = tsi_f64_of_u52(word[i] >> drop) * unit;
        double x = a + span * u;
        out[i] = x < top ? x : top;
    }
}

/* From 0 up to 1 the values have as many bits as the dtype: they are made in it, without rounding.
 */
static void uniform_f32(float *restrict out, const uint32_t *restrict word, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(int32_t)(word[i] >> 8) * 0x1p-24f;
}

static void uniform_bf16(uint16_t *restrict out, const uint32_t *restrict word, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float u = (float)(int32_t)(word[i] >> 24) * 0x1p-8f;
        uint32_t bits;
        memcpy(&bits, &u, sizeof bits);
        out[i] = (uint16_t)(bits >> 16);
    }
}

static uint64_t top_53(const uint32_t *word)
{
    return ((uint64_t)word[0] << 21) | (word[1] >> 11);
}

static void uniform_wide(const recipe *r, double *restrict out, const uint32_t *restrict word,
                         int64_t n)
{
    double a = r->a, span = r->b - a, top = r->top;
    for (int64_t i = 0; i < n; i++) {
        double u = (double)(int64_t)top_53(word + 2 * i) * 0x1p-53;
        double x = a + span * u;
        out[i] = x < top ? x : top;
    }
}

/* u and v of Box-Muller, split first so that the long loop over them has one form. */
static void pairs_narrow(double *restrict u, double *restrict v, const uint32_t *restrict word,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        u[i] = (tsi_f64_of_u52(word[2 * i]) + 1) * 0x1p-32;
        v[i] = tsi_f64_of_u52(word[2 * i + 1]) * 0x1p-32;
    }
}

static void pairs_wide(double *restrict u, double *restrict v, const uint32_t *restrict word,
                       int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        u[i] = (double)(int64_t)(top_53(word + 4 * i) + 1) * 0x1p-53;
        v[i] = (double)(int64_t)top_53(word + 4 * i + 2) * 0x1p-53;
    }
}

static void normal_short(double mean, double deviation, double *restrict u,
                         const double *restrict v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double square = -2 * tsi_log_short(u[i]);
        u[i] = mean + deviation * (sqrt(square > 0 ? square : 0) * tsi_cos_turn_short(v[i]));
    }
}

static void normal_long(double mean, double deviation, double *restrict u, const double *restrict v,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double cosine, sine, square = -2 * tsi_log(u[i]);
        tsi_cos_sin_turn(v[i], &cosine, &sine);
        u[i] = mean + deviation * (sqrt(square > 0 ? square : 0) * cosine);
    }
}

static void normal_complex(double mean, double deviation, double *restrict out,
                           const double *restrict u, const double *restrict v, int64_t n)
{
    double part = deviation * 0x1.6a09e667f3bcdp-1; /* sqrt(1/2) */
    for (int64_t i = 0; i < n; i++) {
        double cosine, sine, square = -2 * tsi_log(u[i]);
        tsi_cos_sin_turn(v[i], &cosine, &sine);
        double radius = sqrt(square > 0 ? square : 0);
        out[2 * i] = mean + part * (radius * cosine);
        out[2 * i + 1] = part * (radius * sine);
    }
}

static void make_normal(const recipe *r, const uint32_t *word, int64_t n, chunk *c)
{
    double mean = r->a, deviation = r->b, u[CHUNK], v[CHUNK];
    double *first = r->is_complex ? u : c->real;
    if (r->wide)
        pairs_wide(first, v, word, n);
    else
        pairs_narrow(first, v, word, n);
    if (r->is_complex)
        normal_complex(mean, deviation, c->real, u, v, n);
    else if (r->wide)
        normal_long(mean, deviation, c->real, v, n);
    else
        normal_short(mean, deviation, c->real, v, n);
}

/* The high half of a 64 x 64 bit product, by 32-bit halves. */
static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + ((a0 * b0) >> 32);
    uint64_t rest = a0 * b1 + (uint32_t)middle;
    return a1 * b1 + (middle >> 32) + (rest >> 32);
}

static void make_integer(const recipe *r, const uint32_t *word, int64_t n, int64_t *restrict out)
{
    uint64_t low = (uint64_t)r->low, range = (uint64_t)r->high - low;
    if (r->words == 1) {
        for (int64_t i = 0; i < n; i++)
            out[i] = (int64_t)(low + ((word[i] * range) >> 32));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint64_t both = (uint64_t)word[2 * i] << 32 | word[2 * i + 1];
        out[i] = (int64_t)(low + multiply_high(both, range));
    }
}

static void make_bernoulli(const recipe *r, const uint32_t *word, int64_t n, int64_t *restrict out)
{
    uint64_t threshold = (uint64_t)(r->a * 0x1p32);
    for (int64_t i = 0; i < n; i++)
        out[i] = word[i] < threshold;
}

/* ---- chunks and runs */

/* A cast of equal dtypes is a copy; the casts of the device know only different ones. */
static void round_into(ts_dtype dtype, void *to, ts_dtype from_dtype, const void *from, int64_t n)
{
    if (dtype == from_dtype)
        memcpy(to, from, (size_t)n * ts_dtype_size(dtype));
    else
        tsi_cpu_cast_rows(dtype, to, from_dtype, from, n);
}

static void fill_chunk(const recipe *r, char *to, uint64_t global, int64_t n, chunk *c)
{
    const uint32_t *word =
        draw(r->seed, r->stream, r->offset, global * (uint64_t)r->words, n * r->words, c->word);
    ts_dtype real = r->is_complex ? TS_DTYPE_C128 : TS_DTYPE_F64, dtype = (ts_dtype)r->dtype;
    switch ((tsi_random_kind)r->kind) {
    case TSI_RANDOM_UNIFORM:
        if (r->unit && dtype == TS_DTYPE_F32) {
            uniform_f32((float *)(void *)to, word, n);
            break;
        }
        if (r->unit && dtype == TS_DTYPE_BF16) {
            uniform_bf16((uint16_t *)(void *)to, word, n);
            break;
        }
        if (r->wide)
            uniform_wide(r, c->real, word, r->is_complex ? 2 * n : n);
        else
            uniform_narrow(r, c->real, word, r->is_complex ? 2 * n : n);
        round_into(dtype, to, real, c->real, n);
        break;
    case TSI_RANDOM_NORMAL:
        make_normal(r, word, n, c);
        round_into(dtype, to, real, c->real, n);
        break;
    case TSI_RANDOM_INTEGER:
        make_integer(r, word, n, c->integer);
        round_into(dtype, to, TS_DTYPE_I64, c->integer, n);
        break;
    case TSI_RANDOM_BERNOULLI:
        make_bernoulli(r, word, n, c->integer);
        round_into(dtype, to, TS_DTYPE_I64, c->integer, n);
        break;
    }
}

/* The largest number of a real dtype that is less than b: b rounded, and one step down if that is
 * not less. */
static double below(double b, ts_dtype dtype)
{
    ts_dtype part = dtype == TS_DTYPE_C64    ? TS_DTYPE_F32
                    : dtype == TS_DTYPE_C128 ? TS_DTYPE_F64
                                             : dtype;
    int bits = (int)ts_dtype_size(part) * 8;
    uint64_t sign = (uint64_t)1 << (bits - 1), raw = 0;
    double value = b;
    round_into(part, &raw, TS_DTYPE_F64, &b, 1);
    round_into(TS_DTYPE_F64, &value, part, &raw, 1);
    if (value < b) return value;
    raw = raw == 0 || raw == sign ? sign | 1 : raw & sign ? raw + 1 : raw - 1;
    round_into(TS_DTYPE_F64, &value, part, &raw, 1);
    return value;
}

static ts_status check_reals(const tsi_random *random)
{
    double a = random->a, b = random->b;
    if (random->kind == TSI_RANDOM_UNIFORM && !(a <= b && isfinite(b - a)))
        return TSI_FAIL(TS_ERR_ARG, "uniform: the range from %g to %g is not one", a, b);
    if (random->kind == TSI_RANDOM_NORMAL && !(isfinite(a) && isfinite(b) && b >= 0))
        return TSI_FAIL(TS_ERR_ARG, "normal: mean %g and deviation %g", a, b);
    if (random->kind == TSI_RANDOM_BERNOULLI && !(a >= 0 && a <= 1))
        return TSI_FAIL(TS_ERR_ARG, "bernoulli: the probability %g is not between 0 and 1", a);
    return TS_OK;
}

static ts_status check_integers(const tsi_random *random, ts_dtype dtype)
{
    if (random->kind != TSI_RANDOM_INTEGER) return TS_OK;
    int64_t top = dtype == TS_DTYPE_BOOL ? 1
                  : dtype == TS_DTYPE_U8 ? UINT8_MAX
                                         : INT64_MAX >> (64 - 8 * ts_dtype_size(dtype));
    int64_t bottom = dtype == TS_DTYPE_BOOL || dtype == TS_DTYPE_U8 ? 0 : -top - 1;
    if (random->low >= random->high || random->low < bottom || random->high - 1 > top)
        return TSI_FAIL(TS_ERR_ARG,
                        "integer: the range from %lld to %lld is empty or outside of %s",
                        (long long)random->low, (long long)random->high, ts_dtype_name(dtype));
    return TS_OK;
}

ts_status tsi_random_recipe_make(const tsi_random *random, ts_dtype dtype, tsi_random_recipe *r)
{
    *r = (recipe){ .kind = random->kind,
                   .dtype = dtype,
                   .words = tsi_random_words(random->kind, dtype),
                   .wide = is_wide(dtype),
                   .unit = random->a == 0.0 && random->b == 1.0,
                   .drop = dtype == TS_DTYPE_BF16  ? 24
                           : dtype == TS_DTYPE_F16 ? 21
                                                   : 8,
                   .a = random->a,
                   .b = random->b,
                   .low = random->low,
                   .high = random->high,
                   .seed = random->seed,
                   .stream = random->stream,
                   .offset = random->offset };
    if (r->words == 0)
        return TSI_FAIL(TS_ERR_DTYPE, "random: this kind of number cannot be %s",
                        ts_dtype_name(dtype));
    TSI_TRY(check_reals(random));
    TSI_TRY(check_integers(random, dtype));
    bool real = random->kind == TSI_RANDOM_UNIFORM || random->kind == TSI_RANDOM_NORMAL;
    r->is_complex = real && tsi_dtype_is_complex(dtype);
    if (random->kind == TSI_RANDOM_UNIFORM) {
        r->top = below(random->b, dtype);
        if (r->top < random->a) r->top = random->a; /* no number of the dtype lies between */
    }
    return TS_OK;
}

/* Part of a run; chunks end at multiples of CHUNK, so that all but the first begin with a whole
 * block. */
static void fill_run(const recipe *r, const tsi_block *to, tsi_random_run run)
{
    chunk c;
    int64_t size = (int64_t)ts_dtype_size((ts_dtype)r->dtype);
    for (int64_t at = 0, n = 0; at < run.length; at += n) {
        n = tsi_min_i64(CHUNK - (run.global + at) % CHUNK, run.length - at);
        fill_chunk(r, (char *)to->data + (run.local + at) * size, (uint64_t)(run.global + at), n,
                   &c);
    }
}

typedef struct filling {
    const recipe *recipe;
    const tsi_block *to;
    const tsi_random_run *run;
} filling;

static void fill_runs(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const filling *f = context;
    for (int64_t i = begin; i < end; i++)
        fill_run(f->recipe, f->to, f->run[i]);
}

/* Elements begin .. end-1 of a run. */
static void fill_part(void *context, int64_t begin, int64_t end, int32_t worker)
{
    (void)worker;
    const filling *f = context;
    fill_run(f->recipe, f->to,
             (tsi_random_run){ f->run->global + begin, f->run->local + begin, end - begin });
}

ts_status tsi_random_fill_runs(const tsi_random *random, const tsi_block *to,
                               const tsi_random_run *run, int64_t run_count)
{
    enum { GRAIN = 8192 };
    recipe r;
    if (!tsi_block_is_dense(to)) return TSI_FAIL(TS_ERR_ARG, "random: the block is not contiguous");
    TSI_TRY(tsi_random_recipe_make(random, (ts_dtype)to->dtype, &r));
    int64_t room = tsi_block_count(to), total = 0;
    for (int64_t i = 0; i < run_count; i++) {
        int64_t local = run[i].local, length = run[i].length;
        if (local < 0 || length < 0 || local > room || length > room - local || run[i].global < 0 ||
            run[i].global > INT64_MAX - length)
            return TSI_FAIL(
                TS_ERR_ARG,
                "random: a run of %lld from %lld on (global %lld), the block has %lld elements",
                (long long)length, (long long)local, (long long)run[i].global, (long long)room);
        total += length;
    }
    filling f = { &r, to, run };
    if (run_count > 0 && total / run_count < GRAIN) { /* short ones */
        tsi_parallel_for(random->rank, run_count, GRAIN * run_count / (total + 1) + 1, fill_runs,
                         &f);
        return TS_OK;
    }
    for (; f.run < run + run_count; f.run++)
        tsi_parallel_for(random->rank, f.run->length, GRAIN, fill_part, &f);
    return TS_OK;
}

ts_status tsi_random_fill(const tsi_random *random, const tsi_block *to, int64_t global)
{
    tsi_random_run whole = { .global = global, .length = tsi_block_count(to) };
    return tsi_random_fill_runs(random, to, &whole, 1);
}
