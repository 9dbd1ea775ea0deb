/* SPDX-License-Identifier: Apache-2.0 */
/* save_files.c - what lies beside the weights of a saved model: a configuration that tells their
 * dtype, and the other files of the directory the model was read from (generation_config.json,
 * tokenizer_config.json, licences), as they are. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "model/weights.h"

enum { PATH_BYTES = 4096, PIECE = 1 << 20 };

/* ---- the dtype in a configuration ------------------------------------------------------------ */

/* As published configurations spell it; NULL: no weights have it. */
static const char *published_name(ts_dtype dtype)
{
    static const struct {
        ts_dtype dtype;
        const char *name;
    } names[] = { { TS_DTYPE_F32, "float32" },
                  { TS_DTYPE_F64, "float64" },
                  { TS_DTYPE_BF16, "bfloat16" },
                  { TS_DTYPE_F16, "float16" } };
    for (size_t i = 0; i < TSI_COUNT_OF(names); i++)
        if (names[i].dtype == dtype) return names[i].name;
    return NULL;
}

/* Behind the text in quotes that begins at `at`. */
static const char *behind_quotes(const char *at)
{
    for (at++; *at != '\0' && *at != '"'; at++)
        if (*at == '\\' && at[1] != '\0') at++;
    return *at == '"' ? at + 1 : at;
}

static bool is_dtype_key(const char *at, size_t length)
{
    return (length == 7 && strncmp(at, "\"dtype\"", 7) == 0) ||
           (length == 13 && strncmp(at, "\"torch_dtype\"", 13) == 0);
}

/* Replaces the values of "dtype" and "torch_dtype" of the outermost object, which parses; the rest
 * stays byte for byte. How many there were. */
static int64_t put_dtype(const char *text, const char *name, tsi_text *out)
{
    int64_t depth = 0, found = 0;
    for (const char *at = text, *end; *at != '\0'; at = end) {
        end = *at == '"' ? behind_quotes(at) : at + 1;
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        const char *colon = end + strspn(end, " \t\r\n");
        bool key =
            depth == 1 && *at == '"' && *colon == ':' && is_dtype_key(at, (size_t)(end - at));
        const char *value = colon + (*colon == ':');
        value += strspn(value, " \t\r\n");
        if (key) end = value;
        tsi_text_add_n(out, at, (size_t)(end - at));
        if (!key || (*value != '"' && strncmp(value, "null", 4) != 0)) continue;
        tsi_text_printf(out, "\"%s\"", name);
        end = *value == '"' ? behind_quotes(value) : value + 4;
        found++;
    }
    return found;
}

char *tsi_config_with_dtype(const char *text, ts_dtype dtype, bool add)
{
    const char *name = published_name(dtype), *last = strrchr(text, '}');
    if (!name || !last) return tsi_strdup(text);
    tsi_text out = { 0 };
    if (put_dtype(text, name, &out) == 0 && add) {
        tsi_text_release(&out);
        while (last > text && strchr(" \t\r\n", last[-1]))
            last--;
        tsi_text_add_n(&out, text, (size_t)(last - text));
        tsi_text_printf(&out, ",\n  \"torch_dtype\": \"%s\"%s", name, last);
    }
    return tsi_text_take(&out);
}

/* Behind the value that begins at `at`. */
static const char *behind_value(const char *at)
{
    int64_t depth = 0;
    do {
        const char *next = *at == '"' ? behind_quotes(at) : at + 1;
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at = next;
    } while (*at != '\0' && (depth > 0 || !strchr(",}] \t\r\n", *at)));
    return at;
}

char *tsi_config_without(const char *text, const char *key)
{
    tsi_text out = { 0 };
    int64_t depth = 0;
    size_t length = strlen(key);
    for (const char *at = text, *end; *at != '\0'; at = end) {
        end = *at == '"' ? behind_quotes(at) : at + 1;
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        const char *colon = end + strspn(end, " \t\r\n");
        bool found = depth == 1 && *at == '"' && *colon == ':' &&
                     (size_t)(end - at) == length + 2 && strncmp(at + 1, key, length) == 0;
        if (!found) {
            tsi_text_add_n(&out, at, (size_t)(end - at));
            continue;
        }
        end = behind_value(colon + 1 + strspn(colon + 1, " \t\r\n"));
        const char *comma = end + strspn(end, " \t\r\n");
        if (*comma == ',') {
            end = comma + 1 + strspn(comma + 1, " \t\r\n");
        } else { /* it was the last: the comma before it goes */
            while (out.length > 0 && strchr(" \t\r\n,", out.data[out.length - 1]))
                out.length--;
        }
    }
    return tsi_text_take(&out);
}

/* ---- other files ----------------------------------------------------------------------------- */

/* Weights in any published format, their indices, and what we write ourselves. */
static bool is_left_out(const char *name)
{
    static const char *const ends[] = { ".safetensors", ".index.json", ".bin",     ".pt",   ".pth",
                                        ".ckpt",        ".h5",         ".msgpack", ".gguf", ".onnx",
                                        ".npz",         ".tmp",        ".distcp" };
    size_t length = strlen(name);
    if (name[0] == '.' || strcmp(name, "config.json") == 0 || strcmp(name, "index.json") == 0)
        return true;
    for (size_t i = 0; i < TSI_COUNT_OF(ends); i++) {
        size_t end = strlen(ends[i]);
        if (length >= end && strcmp(name + length - end, ends[i]) == 0) return true;
    }
    return false;
}

/* All bytes of one open file to the end of another. */
static ts_status copy_bytes(const char *from, int in, const char *to, int out)
{
    char *piece = tsi_alloc(PIECE);
    size_t done = piece ? PIECE : 0;
    ts_status status = piece ? TS_OK : tsi_fail_memory("a piece of a file", PIECE);
    for (int64_t at = 0; done == PIECE && status == TS_OK; at += (int64_t)done) {
        status = tsi_file_read_at(from, in, at, piece, PIECE, &done);
        if (status == TS_OK) status = tsi_file_write(to, out, piece, done);
    }
    tsi_free(piece);
    return status;
}

static ts_status copy_file(const char *from, const char *name, void *context)
{
    const char *to = context;
    char source[PATH_BYTES], path[PATH_BYTES], temporary[PATH_BYTES + 8];
    int in = -1, out = -1;
    int64_t bytes = 0;
    if (snprintf(source, sizeof source, "%s/%s", from, name) >= PATH_BYTES ||
        snprintf(path, sizeof path, "%s/%s", to, name) >= PATH_BYTES)
        return TSI_FAIL(TS_ERR_ARG, "%.64s...: the path is too long", to);
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    TSI_TRY(tsi_file_open(source, &in, &bytes));
    out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ts_status status = out >= 0 ? copy_bytes(source, in, temporary, out)
                                : TSI_FAIL(TS_ERR_IO, "%s: %s", temporary, strerror(errno));
    close(in);
    if (status == TS_OK) return tsi_file_publish(temporary, out, path);
    if (out >= 0) close(out);
    unlink(temporary);
    return status;
}

/* The directory `path`, or the one that the file lies in. */
static void folder_of(const char *path, char *out)
{
    struct stat about;
    snprintf(out, PATH_BYTES, "%s", path);
    if (stat(path, &about) != 0 || S_ISDIR(about.st_mode)) return;
    char *slash = strrchr(out, '/');
    if (slash)
        *slash = '\0';
    else
        snprintf(out, PATH_BYTES, ".");
}

static bool is_file(const char *folder, const char *name)
{
    char path[PATH_BYTES + 300];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &about) == 0 && S_ISREG(about.st_mode);
}

ts_status tsi_others_each(const char *path, tsi_other_fn fn, void *context)
{
    char from[PATH_BYTES];
    folder_of(path, from);
    DIR *directory = opendir(from);
    if (!directory) return TS_OK; /* it is gone since */
    ts_status status = TS_OK;
    for (struct dirent *entry = readdir(directory); entry && status == TS_OK;
         entry = readdir(directory))
        if (!is_left_out(entry->d_name) && is_file(from, entry->d_name))
            status = fn(from, entry->d_name, context);
    closedir(directory);
    return status;
}

ts_status tsi_copy_others(const char *path, const char *to)
{
    struct stat a, b;
    char from[PATH_BYTES], target[PATH_BYTES];
    folder_of(path, from);
    bool same =
        stat(from, &a) == 0 && stat(to, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    snprintf(target, sizeof target, "%s", to);
    return same ? TS_OK : tsi_others_each(from, copy_file, target);
}
