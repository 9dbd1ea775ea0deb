/* SPDX-License-Identifier: Apache-2.0 */
/* generate.c - `tessera generate DIR`: text from a saved model, token by token as it comes, on
 * threads or on the processes of a launcher. Rank 0 prints.
 *
 * The tokenizer is DIR/tokenizer.json, or the built-in one of bytes where there is none. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

typedef struct job {
    const char *directory, *tokenizer, *mesh, *said; /* the prompt as it was given */
    ts_tokenizer *reader;
    ts_decoder *decoder;
    bool failed; /* a token could not be decoded */
    ts_tokens prompt;
    ts_generate_options options;
} job;

/* Prints what is certain of the text now; the first failure is kept for the end. */
static void show(job *j, ts_status status, ts_text *text)
{
    if (status != TS_OK) j->failed = true;
    if (text->length > 0) fwrite(text->data, 1, text->length, stdout);
    fflush(stdout);
    ts_text_release(text);
}

static void put(int32_t token, void *context)
{
    job *j = context;
    ts_text text = { 0 };
    show(j, ts_decoder_push(j->decoder, &token, 1, &text), &text);
}

/* Cut into stages where the mesh has an axis pp: a token goes through them one after the other. */
static ts_model *load(const job *j, ts_rank *me, ts_pipeline **pipeline)
{
    ts_mesh *mesh = cli_mesh_of_all(me, j->mesh);
    if (mesh == NULL) return NULL;
    if (ts_mesh_axis(mesh, "pp") < 0) return ts_model_load(mesh, j->directory, NULL);
    ts_model *model = ts_model_open(ts_pipeline_mesh(mesh, NULL), j->directory, NULL);
    ts_schedule_options size = { .struct_size = sizeof size,
                                 .ranks = ts_mesh_size(mesh, "pp"),
                                 .micro_batches = 1 };
    ts_schedule *schedule = NULL;
    if (model != NULL && ts_schedule_generate("GPipe", &size, &schedule) == TS_OK) {
        ts_model_pipeline_options options = TS_INIT(ts_model_pipeline_options);
        options.mesh = mesh;
        options.schedule = schedule;
        *pipeline = ts_model_pipeline(model, &options);
    }
    ts_schedule_destroy(schedule);
    if (*pipeline != NULL && ts_model_materialize(model) == TS_OK) return model;
    ts_model_destroy(model);
    return NULL;
}

static ts_status work(ts_rank *me, void *argument)
{
    job *j = argument;
    ts_tokens out = { 0 };
    ts_pipeline *pipeline = NULL;
    ts_model *model = load(j, me, &pipeline);
    bool prints = model && ts_rank_index(me) == 0;
    if (prints) fputs(j->said, stdout);
    if (model && ts_generate(model, &j->prompt, &j->options, &out) == TS_OK && prints) {
        ts_text text = { 0 };
        show(j, ts_decoder_end(j->decoder, &text), &text);
    }
    if (prints) putchar('\n');
    ts_tokens_release(&out);
    ts_pipeline_destroy(pipeline);
    ts_model_destroy(model);
    return ts_rank_status(me);
}

static int open_tokenizer(job *j)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizer.json", j->directory);
    if (j->tokenizer == NULL) j->tokenizer = access(path, R_OK) == 0 ? path : "byte";
    if (ts_tokenizer_open(j->tokenizer, &j->reader) != TS_OK ||
        ts_tokenizer_encode(j->reader, j->said, strlen(j->said), 0, &j->prompt) != TS_OK)
        return cli_fail_usage("generate", "%s", ts_last_error());
    j->options.stop = ts_tokenizer_eos(j->reader);
    /* The prompt is context for the tokens behind it; it is printed as it was given. */
    ts_text said = { 0 };
    ts_status status = ts_decoder_open(j->reader, TS_DECODE_SKIP_SPECIALS, &j->decoder);
    if (status == TS_OK) status = ts_decoder_push(j->decoder, j->prompt.id, j->prompt.count, &said);
    ts_text_release(&said);
    if (status != TS_OK) return cli_fail("generate", "%s", ts_last_error());
    if (j->prompt.count == 0) return cli_fail_usage("generate", "the prompt is empty");
    return -1;
}

static int run(job *j)
{
    ts_world_options options = TS_INIT(ts_world_options);
    int64_t ranks;
    if (cli_mesh_ranks(j->mesh, &ranks) != TS_OK)
        return cli_fail_usage("generate", "--mesh: %s", ts_last_error());
    if (!ts_launcher()) {
        options.engine = "threads";
        options.rank_count = ranks;
    }
    options.watch = 1;
    char error[1024] = "";
    ts_model_config config;
    if (ts_model_config_read(j->directory, &config) != TS_OK) {
        int code = cli_refuse_run("generate", j->directory);
        return code >= 0 ? code : cli_fail_usage("generate", "%s", ts_last_error());
    }
    ts_status status = ts_launch_with(&options, work, j, error, sizeof error);
    if (status == TS_OK && j->failed) return cli_fail("generate", "a token could not be decoded");
    return status == TS_OK ? 0 : cli_fail_run("generate", status, error);
}

static int read_temperature(const char *text, double *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtod(text, &end);
    if (errno == 0 && end != text && *end == '\0' && *out >= 0 && isfinite(*out)) return -1;
    return cli_fail_usage("generate", "--temperature: expected a number from 0 on, found \"%s\"",
                          text);
}

int cli_generate(int argc, char **argv)
{
    job j = { .mesh = "dp=1", .said = "Once upon a time", .options = TS_INIT(ts_generate_options) };
    const char *temperature = "0.8";
    int64_t tokens = 200, seed = 1, top_k = 0;
    bool uncached = false;
    const cli_option options[] = {
        CLI_TEXT("prompt", &j.said, "TEXT", "what the text begins with"),
        CLI_INT("tokens", &tokens, 1, 1000000, "how many at most; default 200"),
        CLI_TEXT("temperature", &temperature, "T", "0: the likeliest each time; default 0.8"),
        CLI_INT("top-k", &top_k, 0, 1000000, "only the likeliest so many; 0 (default): all"),
        CLI_INT("seed", &seed, 0, INT64_MAX, "of the random numbers; default 1"),
        CLI_TEXT("mesh", &j.mesh, "TEXT",
                 "ranks by role, \"pp=2, tp=2\": threads, or a launcher's processes; default 1"),
        CLI_FLAG("no-cache", &uncached, "run the whole text again for each token, to compare"),
        CLI_TEXT("tokenizer", &j.tokenizer, "byte|FILE", "default: DIR/tokenizer.json, else byte"),
        CLI_END
    };
    const cli_usage usage = { "generate", "DIR [options]",
                              "Text from a model that `tessera train` saved, or a published one.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("generate", "needs one directory");
    code = read_temperature(temperature, &j.options.temperature);
    if (code >= 0) return code;
    j.directory = argv[1];
    j.options.tokens = tokens;
    j.options.seed = (uint64_t)seed;
    j.options.top_k = (int32_t)top_k;
    j.options.uncached = uncached;
    j.options.on_token = put;
    j.options.context = &j;
    code = open_tokenizer(&j);
    if (code < 0) code = run(&j);
    ts_decoder_close(j.decoder);
    ts_tokens_release(&j.prompt);
    ts_tokenizer_close(j.reader);
    return code;
}
