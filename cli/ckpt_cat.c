/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt_cat.c - `tessera ckpt cat DIR NAME`: the numbers of a tensor, a row of its last dim a line.
 *
 * A slice is written as in Python, one part for each dim, those left out whole: "0:4, :", "-1",
 * "::2, 3". */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"

enum { CHUNK = 1 << 16 }; /* elements that are read at once */

typedef struct range { /* of one dim: begin, begin + step, ..., `count` of them */
    int64_t begin, step, count;
} range;

typedef struct printing {
    ts_archive *archive;
    int64_t tensor;
    ts_meta meta;
    range dim[TS_NDIM_MAX];
    char *chunk; /* elements [first, first + count) of the tensor, as they are printed */
    int64_t first, count;
} printing;

/* ---- slices ---------------------------------------------------------------------------------- */

static const char *blanks(const char *at)
{
    return at + strspn(at, " \t");
}

/* A whole number if there is one; *at moves on. */
static bool number(const char **at, int64_t *out)
{
    char *end = NULL;
    *at = blanks(*at);
    if (!strchr("-0123456789", **at) || **at == '\0') return false;
    *out = strtoll(*at, &end, 10);
    bool found = end != *at;
    *at = blanks(end);
    return found;
}

static int64_t clamped(int64_t value, int64_t extent)
{
    if (value < 0) value += extent;
    return value < 0 ? 0 : value > extent ? extent : value;
}

/* One part, "a:b:s" or "i"; false: it is none. */
static bool read_part(const char **at, int64_t extent, range *out)
{
    int64_t begin = 0, end = extent, step = 1;
    bool begins = number(at, &begin);
    if (begins && **at != ':') {
        if (begin < 0) begin += extent;
        *out = (range){ begin, 1, 1 };
        return begin >= 0 && begin < extent;
    }
    if (**at != ':') return false;
    ++*at;
    (void)number(at, &end);
    if (**at == ':') {
        ++*at;
        if (number(at, &step) && step < 1) return false;
    }
    begin = clamped(begin, extent);
    end = clamped(end, extent);
    *out = (range){ begin, step, end > begin ? (end - begin - 1) / step + 1 : 0 };
    return true;
}

static int read_slice(const char *text, printing *p)
{
    for (int32_t d = 0; d < p->meta.shape.ndim; d++)
        p->dim[d] = (range){ 0, 1, p->meta.shape.extent[d] };
    if (!text) return -1;
    const char *at = blanks(text);
    for (int32_t d = 0; *at != '\0'; d++) {
        if (d >= p->meta.shape.ndim)
            return cli_fail_usage("ckpt cat", "--slice: \"%s\" has more parts than the tensor dims",
                                  text);
        if (!read_part(&at, p->meta.shape.extent[d], &p->dim[d]))
            return cli_fail_usage("ckpt cat",
                                  "--slice: \"%s\", dim %d of extent %" PRId64
                                  ": expected begin:end, begin:end:step or an index",
                                  text, d, p->meta.shape.extent[d]);
        if (*at == ',') at = blanks(at + 1);
    }
    return -1;
}

/* ---- printing -------------------------------------------------------------------------------- */

/* The element, from what was read, which goes on from there. */
static const void *element_at(printing *p, int64_t element)
{
    ts_dtype as = ckpt_read_as((ts_dtype)p->meta.dtype);
    if (element < p->first || element >= p->first + p->count) {
        int64_t left = ts_shape_count(&p->meta.shape) - element;
        p->first = element;
        p->count = left < CHUNK ? left : CHUNK;
        if (ts_archive_read(p->archive, p->tensor, element, p->count, as, p->chunk) != TS_OK) {
            p->count = 0;
            return NULL;
        }
    }
    return p->chunk + (size_t)(element - p->first) * ts_dtype_size(as);
}

static bool print_row(printing *p, const int64_t *step)
{
    int32_t ndim = p->meta.shape.ndim;
    const range last = ndim > 0 ? p->dim[ndim - 1] : (range){ 0, 1, 1 };
    int64_t row = 0;
    for (int32_t d = 0; d + 1 < ndim; d++)
        row = (row + p->dim[d].begin + step[d] * p->dim[d].step) * p->meta.shape.extent[d + 1];
    for (int64_t i = 0; i < last.count; i++) {
        char text[CKPT_NUMBER_MAX];
        const void *value = element_at(p, row + last.begin + i * last.step);
        if (!value) return false;
        printf("%s%s", i ? " " : "", ckpt_number(text, (ts_dtype)p->meta.dtype, value));
    }
    printf("\n");
    return true;
}

static int print_rows(printing *p)
{
    int64_t step[TS_NDIM_MAX] = { 0 };
    int32_t ndim = p->meta.shape.ndim;
    for (int32_t d = 0; d < ndim; d++)
        if (p->dim[d].count == 0) return 0;
    for (;;) {
        if (!print_row(p, step)) return cli_fail("ckpt cat", "%s", ts_last_error());
        int32_t d = ndim - 2;
        while (d >= 0 && ++step[d] == p->dim[d].count)
            step[d--] = 0;
        if (d < 0) return 0;
    }
}

/* Names of layers are many and long: the nearest of all, read once more. */
static int refuse_name(const printing *p, const char *path, const char *name)
{
    ts_archive_about about = TS_INIT(ts_archive_about);
    ts_archive_tensor tensor;
    ts_archive_about_of(p->archive, &about);
    const char **names = calloc((size_t)about.tensor_count + 1, sizeof *names);
    for (int64_t i = 0; names && i < about.tensor_count; i++) {
        ts_archive_tensor_at(p->archive, i, &tensor);
        names[i] = tensor.name;
    }
    const char *near = names ? cli_nearest(name, names, (size_t)about.tensor_count) : NULL;
    int code = cli_fail_usage("ckpt cat", "%s has no tensor \"%s\"%s%s%s", path, name,
                              near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    free(names);
    return code;
}

int ckpt_cat(int argc, char **argv)
{
    const char *slice = NULL;
    const cli_option options[] = { CLI_TEXT("slice", &slice, "TEXT", "as in Python: \"0:4, :\""),
                                   CLI_END };
    const cli_usage usage = { "ckpt cat", "DIR NAME [options]",
                              "Prints the numbers of a tensor, a row of its last dim a line.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 3) return cli_fail_usage("ckpt cat", "needs a directory and the name of a tensor");
    printing p = { .chunk = malloc((size_t)CHUNK * 16) };
    code = p.chunk ? ckpt_open("ckpt cat", argv[1], &p.archive)
                   : cli_fail("ckpt cat", "out of memory");
    if (code < 0) p.tensor = ts_archive_find(p.archive, argv[2]);
    if (code < 0 && p.tensor < 0) code = refuse_name(&p, argv[1], argv[2]);
    if (code < 0) {
        ts_archive_tensor tensor;
        ts_archive_tensor_at(p.archive, p.tensor, &tensor);
        p.meta = tensor.meta;
        code = read_slice(slice, &p);
    }
    if (code < 0) code = print_rows(&p);
    ts_archive_close(p.archive);
    free(p.chunk);
    return code;
}
