/* SPDX-License-Identifier: Apache-2.0 */
/* float8.c - weights published in 8 bits, with a factor for each block of rows and columns: made
 * whole numbers of 32 bits while they are read. How large a block is config.json says beside them
 * (quantization_config.weight_block_size), or it is 128 x 128.
 *
 *   e4m3   1 sign, 4 exponent (bias 7), 3 mantissa; no infinities, all bits one: NaN
 *   e5m2   1 sign, 5 exponent (bias 15), 2 mantissa; infinities and NaN as in IEEE formats
 *
 * INV: what has factors is never read without them: factors that do not fit are an error. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/intmath.h"
#include "checkpoint/archive.h"
#include "op/core/common.h"
#include "tessera/json.h"

enum { CONFIG_MAX = 16 << 20 };

/* ---- factors --------------------------------------------------------------------------------- */

/* config.json of the directory, or beside the file; false: there is none. */
static bool config_path(const char *weights, char *out, size_t size)
{
    struct stat about;
    const char *end = strrchr(weights, '/');
    bool directory = stat(weights, &about) == 0 && S_ISDIR(about.st_mode);
    int above = directory ? (int)strlen(weights) : end ? (int)(end - weights) : 1;
    int length = snprintf(out, size, "%.*s/config.json", above, directory || end ? weights : ".");
    return length > 0 && (size_t)length < size && stat(out, &about) == 0;
}

static ts_status read_block(ts_archive *c)
{
    char path[4096], *text = NULL;
    size_t length = 0;
    ts_json_document *document = NULL;
    c->scale_block[0] = c->scale_block[1] = TSI_SCALE_BLOCK;
    if (!config_path(c->path, path, sizeof path)) return TS_OK;
    TSI_TRY(tsi_file_read(path, CONFIG_MAX, &text, &length));
    ts_status status = ts_json_parse(path, text, length, &document);
    if (status == TS_OK) {
        const ts_json *of = ts_json_member(ts_json_root(document), "quantization_config");
        const ts_json *list = ts_json_member(of, "weight_block_size");
        for (int32_t d = 0; d < 2 && ts_json_count(list) == 2; d++)
            c->scale_block[d] = ts_json_int(ts_json_item(list, d), 0);
        if (c->scale_block[0] <= 0 || c->scale_block[1] <= 0)
            status = TSI_FAIL(TS_ERR_IO, "%s: weight_block_size is %lld x %lld", path,
                              (long long)c->scale_block[0], (long long)c->scale_block[1]);
    }
    ts_json_release(document);
    tsi_free(text);
    return status;
}

static ts_status refuse_scale(const ts_archive *c, const tsi_stored *stored,
                              const tsi_stored *scale)
{
    char is[96], of[96];
    return TSI_FAIL(TS_ERR_IO,
                    "%s: the factors %s, %s of %s, do not fit %s in blocks of %lld x %lld", c->path,
                    scale->name, tsi_shape_text(&scale->meta.shape, is, sizeof is),
                    ts_dtype_name((ts_dtype)scale->meta.dtype),
                    tsi_shape_text(&stored->meta.shape, of, sizeof of),
                    (long long)c->scale_block[0], (long long)c->scale_block[1]);
}

ts_status tsi_archive_scale(ts_archive *c, const tsi_stored *stored, const tsi_stored **scale)
{
    char name[1024];
    const ts_shape *shape = &stored->meta.shape;
    snprintf(name, sizeof name, "%s" TSI_SCALE_TAIL, stored->name);
    *scale = tsi_weights_find(c->weights, name);
    if (!*scale) return TS_OK;
    if (c->scale_block[0] == 0) TSI_TRY(read_block(c));
    bool fits =
        (*scale)->meta.dtype == TS_DTYPE_F32 && shape->ndim == 2 && (*scale)->meta.shape.ndim == 2;
    for (int32_t d = 0; fits && d < 2; d++)
        fits = (*scale)->meta.shape.extent[d] == tsi_ceil_div(shape->extent[d], c->scale_block[d]);
    return fits ? TS_OK : refuse_scale(c, stored, *scale);
}

/* ---- numbers --------------------------------------------------------------------------------- */

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
        float factor =
            archive
                ->scale[row / archive->scale_block[0] * blocks + column / archive->scale_block[1]];
        to[i] = archive->float8[bits[i]] * factor;
    }
    return TS_OK;
}
