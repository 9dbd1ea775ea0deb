/* SPDX-License-Identifier: Apache-2.0 */
/* float8.c - weights published in 8 bits, with a factor for each block of 128 rows and columns:
 * made whole numbers of 32 bits while they are read.
 *
 *   e4m3   1 sign, 4 exponent (bias 7), 3 mantissa; no infinities, all bits one: NaN
 *   e5m2   1 sign, 5 exponent (bias 15), 2 mantissa; infinities and NaN as in IEEE formats */
#include <math.h>

#include "base/alloc.h"
#include "base/error.h"
#include "checkpoint/archive.h"

static float number_of(unsigned bits, int mantissa_bits, int bias)
{
    unsigned mantissa = bits & ((1u << mantissa_bits) - 1),
             exponent = (bits & 0x7F) >> mantissa_bits;
    bool last = exponent == 0x7Fu >> mantissa_bits;
    float value;
    if (mantissa_bits == 3 && last && mantissa == 7)
        value = NAN;
    else if (mantissa_bits == 2 && last)
        value = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    else
        value =
            ldexpf((float)(mantissa | 1u << mantissa_bits), (int)exponent - bias - mantissa_bits);
    return bits & 0x80 ? -value : value;
}

/* The factors of the entry, read once for all that is read of it in a row. */
static ts_status read_scale(ts_archive *archive, const tsi_entry *entry)
{
    if (!entry->scale || archive->scale_of == entry) return TS_OK;
    int64_t count = ts_shape_count(&entry->scale->meta.shape);
    float *grown = tsi_realloc(archive->scale, ((size_t)count + 1) * sizeof *grown);
    if (!grown) return tsi_fail_memory("the factors of a tensor", (size_t)count * sizeof *grown);
    archive->scale = grown;
    archive->scale_of = NULL;
    TSI_TRY(tsi_weights_read(archive->weights, entry->scale, 0, count, grown));
    archive->scale_of = entry;
    return TS_OK;
}

static void make_table(ts_archive *archive, int32_t kind)
{
    if (archive->float8_of == kind) return;
    for (unsigned bits = 0; bits < 256; bits++)
        archive->float8[bits] =
            kind == TSI_FLOAT8_E4M3 ? number_of(bits, 3, 7) : number_of(bits, 2, 15);
    archive->float8_of = kind;
}

ts_status tsi_archive_decode(ts_archive *archive, const tsi_entry *entry, int64_t first,
                             const void *from, int64_t count, float *to)
{
    const unsigned char *bits = from;
    TSI_TRY(read_scale(archive, entry));
    make_table(archive, entry->float8);
    if (!entry->scale) {
        for (int64_t i = 0; i < count; i++)
            to[i] = archive->float8[bits[i]];
        return TS_OK;
    }
    int64_t columns = entry->meta.shape.extent[1], blocks = entry->scale->meta.shape.extent[1];
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / columns, column = (first + i) % columns;
        float factor = archive->scale[row / TSI_SCALE_BLOCK * blocks + column / TSI_SCALE_BLOCK];
        to[i] = archive->float8[bits[i]] * factor;
    }
    return TS_OK;
}
