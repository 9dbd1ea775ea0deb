/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_text.c - a distributed tensor as readable text, on every rank of its mesh.
 *
 *   f32(4, 6) on (S(0), R)
 *   [[ 0  1  2 ...  4  5]
 *    [ 6  7  8 ... 10 11] ...
 *
 * Only the elements that are shown travel: each is contributed by its owner with coordinate 0 on
 * replicated axes, and summed with zeros from everybody else. So a tensor of any size can be
 * printed. */
#include <stdio.h>
#include <string.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/text.h"
#include "comm/comm.h"
#include "tensor/move.h"
#include "tensor/tensor.h"

enum { EDGE = 3, SHOWN_MAX = 4096 };

/* Which indices of each dim are shown: all, or some at both ends. */
typedef struct shown {
    int32_t ndim, edge;          /* at each end: EDGE, fewer where dims are many */
    int64_t extent[TS_NDIM_MAX]; /* how many are shown */
    int64_t total[TS_NDIM_MAX];  /* of how many */
    int64_t count;
} shown;

static shown shown_with(const ts_shape *shape, int32_t edge)
{
    shown s = { .ndim = shape->ndim, .edge = edge, .count = 1 };
    bool small = ts_shape_count(shape) >= 0 && ts_shape_count(shape) <= 1000;
    for (int32_t d = 0; d < shape->ndim; d++) {
        int64_t n = shape->extent[d];
        s.total[d] = n;
        s.extent[d] = small || n <= 2 * edge ? n : 2 * edge;
        s.count *= s.extent[d];
    }
    return s;
}

static shown shown_of(const ts_shape *shape)
{
    shown s = shown_with(shape, EDGE);
    while (s.count > SHOWN_MAX) /* with one at each end there are 2^8 at most */
        s = shown_with(shape, s.edge - 1);
    return s;
}

static int64_t shown_index(const shown *s, int32_t dim, int64_t place)
{
    if (s->extent[dim] == s->total[dim] || place < s->edge) return place;
    return s->total[dim] - s->extent[dim] + place;
}

/* One number per shown element: exact for integers and reals alike, complex as a pair. */
typedef struct numbers {
    ts_dtype dtype; /* I64, F64 or C128 */
    size_t bytes;
    void *data;
} numbers;

static ts_dtype carrier_of(ts_dtype dtype)
{
    switch (dtype) {
    case TS_DTYPE_F64:
    case TS_DTYPE_F32:
    case TS_DTYPE_BF16:
    case TS_DTYPE_F16:
        return TS_DTYPE_F64;
    case TS_DTYPE_C64:
    case TS_DTYPE_C128:
        return TS_DTYPE_C128;
    case TS_DTYPE_I64:
    case TS_DTYPE_I32:
    case TS_DTYPE_I16:
    case TS_DTYPE_I8:
    case TS_DTYPE_U8:
    case TS_DTYPE_BOOL:
        return TS_DTYPE_I64;
    case TS_DTYPE_NONE:
    case TS_DTYPE_COUNT:
        break;
    }
    return TS_DTYPE_NONE;
}

static bool is_first_replica(const ts_tensor *t)
{
    for (int32_t k = 0; k < t->mesh->desc->ndim; k++)
        if (t->layout->axes_replicated >> k & 1 && t->mesh->coord[k] != 0) return false;
    return true;
}

/* Copies my shown elements into their places; the rest stays zero. */
static ts_status contribute(const ts_tensor *t, tsi_block block, const shown *s, numbers *values)
{
    const tsi_device *host = tsi_device_host();
    size_t element = ts_dtype_size((ts_dtype)t->dtype);
    int64_t place[TS_NDIM_MAX] = { 0 }, global[TS_NDIM_MAX], local[TS_NDIM_MAX];
    for (int64_t i = 0; i < s->count; i++) {
        for (int32_t d = 0; d < s->ndim; d++)
            global[d] = shown_index(s, d, place[d]);
        if (ts_layout_to_local(t->layout, t->mesh->coord, global, local)) {
            int64_t offset = 0;
            for (int32_t d = 0; d < block.ndim; d++)
                offset += local[d] * block.stride[d];
            tsi_block from = { .data = (char *)block.data + (size_t)offset * element,
                               .dtype = t->dtype };
            tsi_block to = { .data = (char *)values->data + (size_t)i * values->bytes,
                             .dtype = values->dtype };
            TSI_TRY(host->copy(host, &to, &from, NULL));
        }
        for (int32_t d = s->ndim - 1; d >= 0; d--) {
            if (++place[d] < s->extent[d]) break;
            place[d] = 0;
        }
    }
    return TS_OK;
}

static ts_status contribute_image(ts_tensor *t, const shown *s, numbers *values)
{
    tsi_image image;
    tsi_block block = tsi_array_block(t->array);
    TSI_TRY(tsi_image_open(t->rank, &block, TSI_IMAGE_READ, &image));
    ts_status status = tsi_rank_device_sync(t->rank);
    if (status == TS_OK) status = contribute(t, image.block, s, values);
    tsi_image_drop(&image);
    return status;
}

/* Every member gets all shown values: words of bits and zeros add up to the bits, of -0 too. */
static ts_status collect(ts_tensor *t, const shown *s, numbers *values)
{
    if (is_first_replica(t)) TSI_TRY(contribute_image(t, s, values));
    ts_group *group = tsi_mesh_axes_group(t->mesh, (1u << t->mesh->desc->ndim) - 1);
    if (!group) return ts_rank_status(t->rank);
    ts_array array = TS_INIT(ts_array);
    array.data = values->data;
    array.meta.dtype = TS_DTYPE_I64;
    array.meta.shape = TS_SHAPE(s->count * (int64_t)(values->bytes / sizeof(int64_t)));
    return ts_group_all_reduce(group, &array, &array, TS_REDUCE_SUM, NULL);
}

/* ---- formatting ------------------------------------------------------------------------------ */

static void number_text(const numbers *values, int64_t i, char *out, size_t size)
{
    const double *real = values->data;
    if (values->dtype == TS_DTYPE_I64)
        snprintf(out, size, "%lld", (long long)((const int64_t *)values->data)[i]);
    else if (values->dtype == TS_DTYPE_F64)
        snprintf(out, size, "%.6g", real[i]);
    else
        snprintf(out, size, "%.6g%+.6gi", real[2 * i], real[2 * i + 1]);
}

static int number_width(const numbers *values, int64_t count)
{
    char one[64];
    int width = 1;
    for (int64_t i = 0; i < count; i++) {
        number_text(values, i, one, sizeof one);
        int length = (int)strlen(one);
        if (length > width) width = length;
    }
    return width;
}

typedef struct printer {
    tsi_text *text;
    const shown *s;
    const numbers *values;
    int width;
    int64_t next;
} printer;

static void print_dim(printer *p, int32_t dim)
{
    if (dim == p->s->ndim) {
        char one[64];
        number_text(p->values, p->next++, one, sizeof one);
        tsi_text_printf(p->text, "%*s", p->width, one);
        return;
    }
    tsi_text_add(p->text, "[");
    for (int64_t i = 0; i < p->s->extent[dim]; i++) {
        bool last = dim == p->s->ndim - 1;
        if (i > 0) tsi_text_add(p->text, last ? " " : "\n");
        if (i > 0 && !last) tsi_text_printf(p->text, "%*s", dim + 1, "");
        if (i == p->s->edge && p->s->extent[dim] < p->s->total[dim]) {
            tsi_text_add(p->text, last ? "... " : "...\n");
            if (!last) tsi_text_printf(p->text, "%*s", dim + 1, "");
        }
        print_dim(p, dim + 1);
    }
    tsi_text_add(p->text, "]");
}

static ts_status tensor_text(ts_tensor *t, tsi_text *text)
{
    shown s = shown_of(&t->layout->shape);
    numbers values = { .dtype = carrier_of((ts_dtype)t->dtype) };
    values.bytes = ts_dtype_size(values.dtype);
    values.data = tsi_calloc((size_t)s.count, values.bytes);
    if (!values.data)
        return tsi_fail_memory("the numbers to print", (size_t)s.count * values.bytes);
    ts_status status = s.count > 0 ? collect(t, &s, &values) : TS_OK;
    if (status == TS_OK) {
        tsi_text_printf(text, "%s%s\n", ts_dtype_name((ts_dtype)t->dtype), t->layout->text);
        printer p = { text, &s, &values, number_width(&values, s.count), 0 };
        print_dim(&p, 0);
    }
    tsi_free(values.data);
    return status;
}

/* The same tensor without partial axes; itself if there are none. */
static ts_tensor *reduced(ts_tensor *t)
{
    if (!t->layout->axes_partial) return t;
    ts_placement place[TS_NDIM_MAX];
    const ts_sharding *sharding = t->layout->sharding;
    for (int32_t k = 0; k < sharding->ndim; k++) {
        place[k] = sharding->place[k];
        if (tsi_placement_partial(&place[k]))
            place[k] = (ts_placement){ .kind = TS_PLACE_REPLICATE, .factor = 1, .align = 1 };
    }
    const ts_sharding *to = tsi_sharding_intern(sharding->mesh, place);
    if (!to) return NULL;
    ts_tensor *y = (ts_redistribute_to)(t, to);
    ts_sharding_release(to);
    return y;
}

ts_status ts_tensor_text(ts_tensor *t, char *out, size_t size)
{
    if (out && size) *out = '\0';
    ts_rank *rank = tsi_tensor_enter(t, "text");
    if (!rank) return tsi_rank_current() ? ts_rank_status(tsi_rank_current()) : TS_ERR_NULL;
    if (!out) return TSI_FAIL(TS_ERR_NULL, "text: the output is NULL");
    if (!t->mesh->member) return TS_OK;
    TSI_TRY(tsi_comm_once(rank, "text"));
    ts_scope scope = ts_scope_open(rank, "text");
    ts_tensor *y = reduced(t);
    tsi_text text = { 0 };
    ts_status status = y ? tsi_tensor_ready(y) : ts_rank_status(rank);
    if (status == TS_OK) status = tensor_text(y, &text);
    if (status == TS_OK) snprintf(out, size, "%s", text.data ? text.data : "");
    tsi_text_release(&text);
    ts_scope_close(scope);
    return status;
}
