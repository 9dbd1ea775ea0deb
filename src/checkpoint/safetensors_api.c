/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_api.c - weight files as a part of the public API: writing one from its entries. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_dtype.h"
#include "tessera/checkpoint.h"

struct ts_safetensors {
    tsi_weights_writer *writer;
    int64_t bytes; /* that are still to be written */
};

static ts_status check(const ts_safetensors_entry *entry, int64_t count, int64_t *bytes)
{
    *bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        ts_dtype dtype = (ts_dtype)entry[i].meta.dtype;
        int64_t elements = ts_shape_count(&entry[i].meta.shape);
        if (!entry[i].name || !tsi_safetensors_dtype(dtype) || elements < 0)
            return TSI_FAIL(TS_ERR_ARG, "safetensors: entry %lld has no name, dtype or shape",
                            (long long)i);
        *bytes += elements * (int64_t)ts_dtype_size(dtype);
    }
    return TS_OK;
}

ts_status ts_safetensors_create(const char *path, const ts_safetensors_entry *entry, int64_t count,
                                ts_safetensors **out)
{
    if (!path || !out || (!entry && count > 0) || count < 0)
        return TSI_FAIL(TS_ERR_NULL, "safetensors: an argument is NULL");
    *out = NULL;
    int64_t bytes = 0;
    TSI_TRY(check(entry, count, &bytes));
    ts_safetensors *file = tsi_calloc(1, sizeof *file);
    tsi_weights_entry *inner = tsi_calloc((size_t)count + 1, sizeof *inner);
    for (int64_t i = 0; inner && i < count; i++)
        inner[i] = (tsi_weights_entry){ entry[i].name, entry[i].meta };
    size_t length = 0;
    char *header = file && inner ? tsi_weights_header_text(inner, count, &length) : NULL;
    ts_status status = header ? tsi_weights_create(path, header, length, &file->writer)
                              : tsi_fail_memory("a header", (size_t)count * sizeof *inner);
    tsi_free(header);
    tsi_free(inner);
    if (status == TS_OK) {
        file->bytes = bytes;
        *out = file;
    } else {
        tsi_free(file);
    }
    return status;
}

ts_status ts_safetensors_write(ts_safetensors *file, const void *data, size_t bytes)
{
    if (!file || (!data && bytes > 0))
        return TSI_FAIL(TS_ERR_NULL, "safetensors: an argument is NULL");
    if ((int64_t)bytes > file->bytes)
        return TSI_FAIL(TS_ERR_ARG, "safetensors: %zu bytes are more than the %lld that are left",
                        bytes, (long long)file->bytes);
    file->bytes -= (int64_t)bytes;
    return tsi_weights_write(file->writer, data, bytes);
}

ts_status ts_safetensors_finish(ts_safetensors *file, int keep)
{
    if (!file) return TS_OK;
    ts_status status = TS_OK;
    if (keep && file->bytes > 0)
        status = TSI_FAIL(TS_ERR_STATE, "safetensors: %lld bytes were never written",
                          (long long)file->bytes);
    ts_status finished = tsi_weights_finish(file->writer, keep && status == TS_OK);
    tsi_free(file);
    return status == TS_OK ? finished : status;
}
