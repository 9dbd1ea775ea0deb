/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_find.c - a schedule by what users write: the name of a rule, "search", or a file. */
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "plan/schedule.h"

enum { FILE_BYTES_MAX = 1 << 28 };

static ts_status read_file(const char *path, ts_schedule **out)
{
    char *text = NULL;
    size_t length = 0;
    TSI_TRY(tsi_file_read(path, FILE_BYTES_MAX, &text, &length));
    ts_status status = ts_schedule_parse(text, out);
    tsi_free(text);
    if (status != TS_OK) tsi_error_prefix("%s", path);
    return status;
}

bool ts_schedule_is_file(const char *name)
{
    return name && (strchr(name, '/') != NULL || strchr(name, '.') != NULL);
}

ts_status ts_schedule_find(const char *name, const ts_schedule_options *size, ts_schedule **out)
{
    if (!name || !size || !out) return TSI_FAIL(TS_ERR_NULL, "schedule: an argument is NULL");
    *out = NULL;
    if (ts_schedule_is_file(name)) return read_file(name, out);
    if (strcasecmp(name, "search") != 0) return ts_schedule_generate(name, size, out);
    ts_schedule_search_options options = { .struct_size = sizeof options,
                                           .size = *size,
                                           .costs.struct_size = sizeof options.costs };
    return ts_schedule_search(&options, out, NULL);
}
