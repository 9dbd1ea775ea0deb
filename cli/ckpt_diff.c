/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt_diff.c - `tessera ckpt diff A B`: one line for each tensor that differs, with the global
 * index of the first element that does and both values. Elements are compared by their bits. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"

enum { PIECE = 1 << 20 }; /* bytes that are compared at once */

typedef struct comparison {
    ts_archive *a, *b;
    unsigned char *x, *y; /* PIECE each */
    int64_t differ;
} comparison;

static void print_index(const ts_shape *shape, int64_t element)
{
    int64_t index[TS_NDIM_MAX] = { 0 };
    for (int32_t d = shape->ndim - 1; d >= 0; d--) {
        index[d] = element % shape->extent[d];
        element /= shape->extent[d];
    }
    printf("[");
    for (int32_t d = 0; d < shape->ndim; d++)
        printf("%s%" PRId64, d ? ", " : "", index[d]);
    printf("]");
}

static bool print_element(ts_archive *archive, int64_t tensor, int64_t element, ts_dtype dtype)
{
    double number[2];
    char text[CKPT_NUMBER_MAX];
    if (ts_archive_read(archive, tensor, element, 1, ckpt_read_as(dtype), number) != TS_OK)
        return false;
    printf(" %s", ckpt_number(text, dtype, number));
    return true;
}

/* The first element that differs; -1: none; -2: cannot be read. */
static int64_t first_difference(const comparison *c, int64_t i, int64_t j, const ts_meta *meta)
{
    size_t size = ts_dtype_size((ts_dtype)meta->dtype);
    int64_t all = ts_shape_count(&meta->shape), most = PIECE / (int64_t)size;
    for (int64_t at = 0; at < all; at += most) {
        int64_t count = all - at < most ? all - at : most;
        if (ts_archive_read(c->a, i, at, count, (ts_dtype)meta->dtype, c->x) != TS_OK ||
            ts_archive_read(c->b, j, at, count, (ts_dtype)meta->dtype, c->y) != TS_OK)
            return -2;
        if (memcmp(c->x, c->y, (size_t)count * size) == 0) continue;
        int64_t e = 0;
        while (memcmp(c->x + (size_t)e * size, c->y + (size_t)e * size, size) == 0)
            e++;
        return at + e;
    }
    return -1;
}

static void print_meta(const ts_meta *meta)
{
    printf(" %s [", ts_dtype_name((ts_dtype)meta->dtype));
    for (int32_t d = 0; d < meta->shape.ndim; d++)
        printf("%s%" PRId64, d ? ", " : "", meta->shape.extent[d]);
    printf("]");
}

static bool same_meta(const ts_meta *a, const ts_meta *b)
{
    size_t bytes = (size_t)a->shape.ndim * sizeof a->shape.extent[0];
    return a->dtype == b->dtype && a->shape.ndim == b->shape.ndim &&
           memcmp(a->shape.extent, b->shape.extent, bytes) == 0;
}

/* Exit code, or -1: go on. */
static int compare_tensor(comparison *c, int64_t i)
{
    ts_archive_tensor a, b;
    ts_archive_tensor_at(c->a, i, &a);
    int64_t j = ts_archive_find(c->b, a.name);
    if (j < 0) {
        printf("%s: only in the first\n", a.name);
        c->differ++;
        return -1;
    }
    ts_archive_tensor_at(c->b, j, &b);
    if (!same_meta(&a.meta, &b.meta)) {
        printf("%s:", a.name);
        print_meta(&a.meta);
        print_meta(&b.meta);
        printf("\n");
        c->differ++;
        return -1;
    }
    int64_t element = first_difference(c, i, j, &a.meta);
    if (element == -2) return cli_fail("ckpt diff", "%s: %s", a.name, ts_last_error());
    if (element == -1) return -1;
    c->differ++;
    ts_dtype dtype = (ts_dtype)a.meta.dtype;
    printf("%s: ", a.name);
    print_index(&a.meta.shape, element);
    bool good = print_element(c->a, i, element, dtype) && print_element(c->b, j, element, dtype);
    printf("\n");
    return good ? -1 : cli_fail("ckpt diff", "%s", ts_last_error());
}

static int compare_all(comparison *c)
{
    ts_archive_about a, b;
    ts_archive_about_of(c->a, &a);
    ts_archive_about_of(c->b, &b);
    for (int64_t i = 0; i < a.tensor_count; i++) {
        int code = compare_tensor(c, i);
        if (code >= 0) return code;
    }
    for (int64_t j = 0; j < b.tensor_count; j++) {
        ts_archive_tensor tensor;
        ts_archive_tensor_at(c->b, j, &tensor);
        if (ts_archive_find(c->a, tensor.name) >= 0) continue;
        printf("%s: only in the second\n", tensor.name);
        c->differ++;
    }
    return c->differ > 0;
}

int ckpt_diff(int argc, char **argv)
{
    const cli_option options[] = { CLI_END };
    const cli_usage usage = {
        "ckpt diff", "A B",
        "Compares the tensors of two checkpoints by name and bits. A line for each that differs: "
        "name,\nfirst differing index, both values. Exit code 0: equal, 1: they differ.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 3) return cli_fail_usage("ckpt diff", "needs two directories");
    comparison c = { 0 };
    code = ckpt_open("ckpt diff", argv[1], &c.a);
    if (code < 0) code = ckpt_open("ckpt diff", argv[2], &c.b);
    c.x = malloc(PIECE);
    c.y = malloc(PIECE);
    if (code < 0 && (!c.x || !c.y)) code = cli_fail("ckpt diff", "out of memory");
    if (code < 0) code = compare_all(&c);
    ts_archive_close(c.a);
    ts_archive_close(c.b);
    free(c.x);
    free(c.y);
    return code;
}
