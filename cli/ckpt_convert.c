/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt_convert.c - `tessera ckpt convert IN OUT`: a checkpoint in another format, dtype or size of
 * files, in bounded memory. */
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"

#define COMMAND "ckpt convert"

typedef struct request {
    const char *from, *to, *dtype;
    cli_list names, renamed;
    ts_convert_options options;
} request;

/* The texts as lines, which the caller frees; NULL where there are none. */
static char *lines_of(const cli_list *list)
{
    size_t length = 0;
    for (size_t i = 0; i < list->count; i++)
        length += strlen(list->item[i]) + 1;
    char *lines = list->count > 0 ? calloc(1, length + 1) : NULL, *at = lines;
    for (size_t i = 0; lines && i < list->count; i++) {
        size_t bytes = strlen(list->item[i]);
        memcpy(at, list->item[i], bytes);
        at[bytes] = '\n';
        at += bytes + 1;
    }
    return lines;
}

/* Fills the options from the texts; -1: good, else the exit code. */
static int read_request(request *r)
{
    static const char *const formats[] = { "hf", "tessera", "dcp" };
    bool known = !r->from;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0] && !known; i++)
        known = strcmp(r->from, formats[i]) == 0;
    if (!known)
        return cli_fail_usage(COMMAND, "--from: expected hf, tessera or dcp, found \"%s\"",
                              r->from);
    if (!r->to || (strcmp(r->to, "hf") != 0 && strcmp(r->to, "tessera") != 0))
        return cli_fail_usage(COMMAND, "--to: expected hf or tessera, found \"%s\"",
                              r->to ? r->to : "");
    r->options.from = r->from;
    r->options.to = strcmp(r->to, "hf") == 0 ? TS_CONVERT_PUBLISHED : TS_CONVERT_TESSERA;
    r->options.dtype = r->dtype ? (int32_t)ts_dtype_parse(r->dtype) : 0;
    if (r->dtype && r->options.dtype == TS_DTYPE_NONE)
        return cli_fail_usage(COMMAND, "--dtype: \"%s\" is unknown", r->dtype);
    for (size_t i = 0; i < r->renamed.count; i++)
        if (!strchr(r->renamed.item[i], ':'))
            return cli_fail_usage(COMMAND, "--rename: expected \"IN: OUT\", found \"%s\"",
                                  r->renamed.item[i]);
    return -1;
}

static int convert(request *r, const char *from, const char *to)
{
    ckpt_progress progress = ckpt_progress_begin("convert");
    char *names = lines_of(&r->names), *renamed = lines_of(&r->renamed);
    r->options.names = names;
    r->options.renamed = renamed;
    r->options.on_bytes = ckpt_progress_show;
    r->options.context = &progress;
    ts_status status = ts_checkpoint_convert(from, to, &r->options);
    ckpt_progress_end(&progress);
    free(names);
    free(renamed);
    if (status == TS_ERR_ARG || status == TS_ERR_DTYPE)
        return cli_fail_usage(COMMAND, "%s", ts_last_error());
    return status == TS_OK ? 0 : cli_fail(COMMAND, "%s", ts_last_error());
}

int ckpt_convert(int argc, char **argv)
{
    request r = { .options = TS_INIT(ts_convert_options) };
    const cli_option options[] = {
        CLI_TEXT("from", &r.from, "hf|tessera|dcp", "what IN must be; else it is looked at"),
        CLI_TEXT("to", &r.to, "hf|tessera", "published weights, or a checkpoint with hashes"),
        CLI_TEXT("dtype", &r.dtype, "NAME",
                 "of real tensors: f32, f64, bf16, f16; else as they are"),
        CLI_LIST("names", &r.names, "PATTERN",
                 "tensors whose names match one alone; \"*\" is any run"),
        CLI_LIST("rename", &r.renamed, "\"IN: OUT\"", "as \"model.*: *\"; the first match wins"),
        CLI_SIZE("shard-size", &r.options.shard_bytes, 1, INT64_MAX,
                 "most data of a published file; 4GiB"),
        CLI_END
    };
    const cli_usage usage = {
        COMMAND, "IN OUT --to hf|tessera [options]",
        "Writes the directory OUT, which is missing or empty, with what IN has. Published weights "
        "are\nthose of the model alone; config.json tells their dtype; other files come along. IN "
        "may be a\ndistributed checkpoint of PyTorch (dcp): of its pickles nothing is executed.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 3) return cli_fail_usage(COMMAND, "needs IN and OUT");
    code = read_request(&r);
    ts_archive *source = NULL; /* looked at as the other commands do, with their words */
    if (code < 0) code = ckpt_open(COMMAND, argv[1], &source);
    ts_archive_close(source);
    return code < 0 ? convert(&r, argv[1], argv[2]) : code;
}
