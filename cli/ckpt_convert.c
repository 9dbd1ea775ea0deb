/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt_convert.c - `tessera ckpt convert IN OUT`: a checkpoint in another format, dtype or size of
 * files, in bounded memory. */
#include <string.h>

#include "ckpt.h"

int ckpt_convert(int argc, char **argv)
{
    const char *to = NULL, *dtype = NULL;
    ts_convert_options o = TS_INIT(ts_convert_options);
    const cli_option options[] = {
        CLI_TEXT("to", &to, "hf|tessera", "published weights, or a checkpoint with hashes"),
        CLI_TEXT("dtype", &dtype, "NAME", "of real tensors: f32, f64, bf16, f16; else as they are"),
        CLI_SIZE("shard-size", &o.shard_bytes, 1, INT64_MAX, "most data of a published file; 4GiB"),
        CLI_END
    };
    const cli_usage usage = {
        "ckpt convert", "IN OUT --to hf|tessera [options]",
        "Writes the directory OUT, which is missing or empty, with what IN has. Published weights "
        "are\nthose of the model alone; config.json tells their dtype; other files come along.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 3) return cli_fail_usage("ckpt convert", "needs IN and OUT");
    if (!to || (strcmp(to, "hf") != 0 && strcmp(to, "tessera") != 0))
        return cli_fail_usage("ckpt convert", "--to: expected hf or tessera, found \"%s\"",
                              to ? to : "");
    o.to = strcmp(to, "hf") == 0 ? TS_CONVERT_PUBLISHED : TS_CONVERT_TESSERA;
    o.dtype = dtype ? (int32_t)ts_dtype_parse(dtype) : 0;
    if (dtype && o.dtype == TS_DTYPE_NONE)
        return cli_fail_usage("ckpt convert", "--dtype: \"%s\" is unknown", dtype);
    ckpt_progress progress = ckpt_progress_begin("convert");
    o.on_bytes = ckpt_progress_show;
    o.context = &progress;
    ts_status status = ts_checkpoint_convert(argv[1], argv[2], &o);
    ckpt_progress_end(&progress);
    if (status == TS_ERR_ARG || status == TS_ERR_DTYPE)
        return cli_fail_usage("ckpt convert", "%s", ts_last_error());
    return status == TS_OK ? 0 : cli_fail("ckpt convert", "%s", ts_last_error());
}
