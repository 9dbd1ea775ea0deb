/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - JSON from files and to them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

/* Reads a regular file whole: a pipe may have no end. NULL: errno says why. */
static char *read_file(const char *path, size_t *length)
{
    enum { BYTES_MAX = 1 << 30 };
    struct stat about;
    FILE *file = stat(path, &about) == 0 && S_ISREG(about.st_mode) ? fopen(path, "rb") : NULL;
    if (file == NULL) return NULL;
    errno = EFBIG;
    char *text = about.st_size <= BYTES_MAX ? malloc((size_t)about.st_size + 1) : NULL;
    *length = text != NULL ? fread(text, 1, (size_t)about.st_size, file) : 0;
    fclose(file);
    return text;
}

bool cli_json_read(const char *command, const char *path, ts_json_document **out)
{
    size_t length = 0;
    *out = NULL;
    errno = EINVAL; /* of what is no file */
    char *text = read_file(path, &length);
    if (text == NULL) {
        (void)cli_fail(command, "cannot read \"%s\": %s", path, strerror(errno));
        return false;
    }
    bool good = ts_json_parse(path, text, length, out) == TS_OK;
    if (!good) (void)cli_fail(command, "%s", ts_last_error());
    free(text);
    return good;
}

int cli_json_print(ts_json_writer *json, FILE *out)
{
    if (json->failed || json->data == NULL) return 1;
    if (fwrite(json->data, 1, json->length, out) != json->length) return 1;
    return fputc('\n', out) == EOF || fflush(out) != 0;
}
