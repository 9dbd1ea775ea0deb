/* SPDX-License-Identifier: Apache-2.0 */
/* view.c - the block of a tensor where the host can read it, whatever device it lies on.
 *
 * INV: copies live as long as the thread that asked for them, so tests give nothing back. */
#include <pthread.h>
#include <stdlib.h>

#include "array/image.h"
#include "harness/test.h"
#include "tensor/tensor.h"

typedef struct copy {
    struct copy *next;
    _Alignas(16) unsigned char data[];
} copy;

static pthread_key_t copies;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void drop_copies(void *first)
{
    for (copy *c = first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
}

static void copies_begin(void)
{
    (void)pthread_key_create(&copies, drop_copies);
}

static void *copy_make(size_t bytes)
{
    (void)pthread_once(&once, copies_begin);
    copy *made = malloc(sizeof *made + bytes);
    if (!made) return NULL;
    made->next = pthread_getspecific(copies);
    (void)pthread_setspecific(copies, made);
    return made->data;
}

static void make_dense(ts_array *block)
{
    int64_t stride = 1;
    for (int32_t d = block->meta.shape.ndim - 1; d >= 0; d--) {
        block->stride[d] = stride;
        stride *= block->meta.shape.extent[d];
    }
}

ts_status test_view(ts_tensor *x, ts_array *out)
{
    ts_status status = ts_tensor_view(x, out);
    if (status != TS_OK || out->device == 0 || !out->data) return status;
    size_t size = ts_dtype_size((ts_dtype)out->meta.dtype);
    out->data = copy_make((size_t)ts_shape_count(&out->meta.shape) * size);
    if (!out->data) return TS_ERR_MEMORY;
    out->device = out->ordinal = 0;
    make_dense(out);
    return ts_tensor_read(x, out);
}

ts_status test_written(ts_tensor *x, const ts_array *view)
{
    tsi_block from;
    if (!view->data || x->array->storage->device->host_readable) return TS_OK;
    TSI_TRY(tsi_block_of_array(view, "test_written", &from));
    return tsi_array_write(x->rank, x->array, &from);
}
