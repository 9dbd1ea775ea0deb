/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_write.c - writing a weight file under a temporary name, renamed when it is complete.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_dtype.h"

struct tsi_weights_writer {
    char *path, *temporary;
    int fd;
};

static ts_status put(tsi_weights_writer *w, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t done = write(w->fd, at, bytes);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return TSI_FAIL(TS_ERR_IO, "%s: %s", w->temporary, strerror(errno));
        at += done;
        bytes -= (size_t)done;
    }
    return TS_OK;
}

/* Compact, padded with blanks to a multiple of 8. */
char *tsi_weights_header_text(const tsi_weights_entry *entry, int64_t count, size_t *length)
{
    tsi_text text = { 0 };
    int64_t offset = 0;
    tsi_text_add(&text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int64_t i = 0; i < count; i++) {
        tsi_text_add(&text, ",");
        tsi_text_json(&text, entry[i].name);
        tsi_text_printf(&text, ":{\"dtype\":\"%s\",\"shape\":[",
                        tsi_safetensors_dtype((ts_dtype)entry[i].meta.dtype));
        for (int32_t d = 0; d < entry[i].meta.shape.ndim; d++)
            tsi_text_printf(&text, "%s%lld", d ? "," : "",
                            (long long)entry[i].meta.shape.extent[d]);
        int64_t bytes = ts_shape_count(&entry[i].meta.shape) *
                        (int64_t)ts_dtype_size((ts_dtype)entry[i].meta.dtype);
        tsi_text_printf(&text, "],\"data_offsets\":[%lld,%lld]}", (long long)offset,
                        (long long)(offset + bytes));
        offset += bytes;
    }
    tsi_text_add(&text, "}");
    while (!text.failed && text.length % 8 != 0)
        tsi_text_add(&text, " ");
    *length = text.length;
    return tsi_text_take(&text);
}

ts_status tsi_weights_create(const char *path, const char *header, size_t header_length,
                             tsi_weights_writer **out)
{
    *out = NULL;
    size_t size = strlen(path) + 32;
    tsi_weights_writer *w = tsi_calloc(1, sizeof *w);
    if (w) w->temporary = tsi_alloc(size);
    if (w) w->path = tsi_strdup(path);
    if (!w || !w->temporary || !w->path) {
        if (w) tsi_free(w->temporary);
        if (w) tsi_free(w->path);
        tsi_free(w);
        return tsi_fail_memory("a weight file", size);
    }
    snprintf(w->temporary, size, "%s.%ld.tmp", path, (long)getpid());
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    unsigned char raw[8];
    for (int i = 0; i < 8; i++)
        raw[i] = (unsigned char)((uint64_t)header_length >> (8 * i));
    ts_status status =
        w->fd >= 0 ? put(w, raw, 8) : TSI_FAIL(TS_ERR_IO, "%s: %s", w->temporary, strerror(errno));
    if (status == TS_OK) status = put(w, header, header_length);
    if (status == TS_OK)
        *out = w;
    else
        (void)tsi_weights_finish(w, false);
    return status;
}

ts_status tsi_weights_write(tsi_weights_writer *writer, const void *data, size_t bytes)
{
    return put(writer, data, bytes);
}

ts_status tsi_weights_finish(tsi_weights_writer *w, bool keep)
{
    ts_status status = TS_OK;
    if (!w) return status;
    if (w->fd >= 0) {
        if (keep && fsync(w->fd) != 0)
            status = TSI_FAIL(TS_ERR_IO, "%s: %s", w->temporary, strerror(errno));
        close(w->fd);
    }
    if (keep && status == TS_OK && rename(w->temporary, w->path) != 0)
        status = TSI_FAIL(TS_ERR_IO, "%s: %s", w->path, strerror(errno));
    if (!keep || status != TS_OK) unlink(w->temporary);
    tsi_free(w->temporary);
    tsi_free(w->path);
    tsi_free(w);
    return status;
}
