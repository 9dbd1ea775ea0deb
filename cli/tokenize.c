/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize.c - text files to token files, which `tessera train` reads.
 *
 * On a terminal a bar shows how far it is; elsewhere there is a line for each tenth. Ctrl-C stops
 * after the part at hand; complete shards stay, and the same command goes on after them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static volatile sig_atomic_t stopped;

static void stop(int number)
{
    (void)number;
    stopped = 1;
}

typedef struct screen {
    bool terminal, quiet;
    double start;        /* when the first progress came */
    int64_t start_bytes; /* what was done then */
    double shown;        /* when the bar was drawn */
    int tenth;           /* the last line's */
} screen;

static void draw_bar(const ts_tokenize_progress *p, double share, double rate)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1], left[32] = "", done[32], total[32];
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < (int)(share * WIDTH) ? '#' : '.';
    bar[WIDTH] = '\0';
    if (rate > 0) {
        cli_seconds(left, sizeof left, (double)(p->bytes_total - p->bytes_done) / rate);
    }
    fprintf(stderr, "\r[%s] %3d %%  %s of %s  %lld tokens  %lld shards  %.1f MB/s  %s left \033[K",
            bar, (int)(share * 100), cli_bytes(done, sizeof done, p->bytes_done),
            cli_bytes(total, sizeof total, p->bytes_total), (long long)p->tokens,
            (long long)p->shards, rate / 1e6, rate > 0 ? left : "?");
    fflush(stderr);
}

static int show(const ts_tokenize_progress *p, void *context)
{
    screen *s = context;
    double now = cli_now();
    if (s->start <= 0) {
        s->start = now;
        s->start_bytes = p->bytes_done;
        if (p->shards > 0 && !s->quiet) {
            fprintf(stderr, "%lld complete shards are there; going on after them\n",
                    (long long)p->shards);
        }
    }
    double share = p->bytes_total > 0 ? (double)p->bytes_done / (double)p->bytes_total : 1.0;
    double seconds = now - s->start;
    double rate = seconds > 0 ? (double)(p->bytes_done - s->start_bytes) / seconds : 0;
    if (s->terminal && (now - s->shown > 0.1 || share >= 1)) {
        draw_bar(p, share, rate);
        s->shown = now;
    } else if (!s->terminal && !s->quiet && (int)(share * 10) > s->tenth) {
        s->tenth = (int)(share * 10);
        fprintf(stderr, "%3d %%  %lld tokens  %lld shards  %.1f MB/s\n", (int)(share * 100),
                (long long)p->tokens, (long long)p->shards, rate / 1e6);
    }
    return stopped;
}

static int print_result(const ts_tokenize_options *o, const ts_tokenize_result *r, double seconds,
                        bool json)
{
    if (!json) {
        char bytes[32], time[32];
        printf("%s: %lld tokens of %d bytes in %lld shards (%lld were there), vocabulary %lld, "
               "from %s in %s\n",
               o->prefix, (long long)r->tokens, r->token_bytes, (long long)r->shards,
               (long long)r->shards_kept, (long long)r->vocabulary,
               cli_bytes(bytes, sizeof bytes, r->bytes), cli_seconds(time, sizeof time, seconds));
        return 0;
    }
    ts_json_writer out = { 0 };
    ts_json_put_open(&out, '{');
    ts_json_put_member_text(&out, "prefix", o->prefix);
    ts_json_put_member_text(&out, "tokenizer", o->tokenizer);
    ts_json_put_member_int(&out, "bytes", r->bytes);
    ts_json_put_member_int(&out, "tokens", r->tokens);
    ts_json_put_member_int(&out, "shards", r->shards);
    ts_json_put_member_int(&out, "shards_kept", r->shards_kept);
    ts_json_put_member_int(&out, "vocabulary", r->vocabulary);
    ts_json_put_member_int(&out, "token_bytes", r->token_bytes);
    ts_json_put_member_int(&out, "eos", r->eos);
    ts_json_put_member_real(&out, "seconds", seconds);
    ts_json_put_close(&out, '}');
    int code = cli_json_print(&out, stdout);
    ts_json_writer_release(&out);
    return code;
}

/* -1, or the exit code: a file that is named cannot be read. */
static int check_inputs(const ts_tokenize_options *o)
{
    if (strcmp(o->tokenizer, "byte") != 0 && access(o->tokenizer, R_OK) != 0)
        return cli_fail_usage("tokenize", "--tokenizer: cannot read \"%s\": %s", o->tokenizer,
                              strerror(errno));
    for (int64_t i = 0; i < o->file_count; i++) {
        if (access(o->files[i], R_OK) != 0)
            return cli_fail_usage("tokenize", "cannot read \"%s\": %s", o->files[i],
                                  strerror(errno));
    }
    return -1;
}

static int run(ts_tokenize_options *options, bool json)
{
    bool terminal = isatty(STDERR_FILENO) == 1;
    screen s = { .terminal = terminal, .quiet = json && !terminal };
    struct sigaction action = { .sa_handler = stop, .sa_flags = SA_RESTART };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    options->progress = show;
    options->context = &s;
    ts_tokenize_result result;
    double start = cli_now();
    ts_status status = ts_tokenize_files(options, &result);
    if (s.terminal && s.shown > 0) fprintf(stderr, "\n");
    if (status != TS_OK) return cli_fail("tokenize", "%s", ts_last_error());
    return print_result(options, &result, cli_now() - start, json);
}

int cli_tokenize(int argc, char **argv)
{
    bool json = false, specials = false, plain = false, no_eos = false, restart = false;
    const char *tokenizer = "byte", *out = NULL, *json_key = "text";
    int64_t shard_tokens = 100000000;
    const cli_option options[] = {
        CLI_TEXT("tokenizer", &tokenizer, "byte|FILE",
                 "byte, a tokenizer.json, or a directory with one"),
        CLI_TEXT("out", &out, "PREFIX", "shards are PREFIX-00000.bin, PREFIX-00001.bin, ..."),
        CLI_INT("shard-tokens", &shard_tokens, 1, INT64_MAX / 16,
                "tokens in one shard; default 100000000"),
        CLI_TEXT("json-key", &json_key, "NAME",
                 "of *.jsonl: the member of each line that is its document; default text"),
        CLI_FLAG("specials", &specials, "add what the tokenizer adds to a document (BOS, EOS)"),
        CLI_FLAG("plain", &plain, "special tokens spelled in the text are plain text"),
        CLI_FLAG("no-eos", &no_eos, "no end-of-text token after each file"),
        CLI_FLAG("restart", &restart, "from the beginning, over shards that are there"),
        CLI_FLAG("json", &json, "the result as one JSON object"),
        CLI_END
    };
    const cli_usage usage = {
        "tokenize", "[options] --out PREFIX FILE...",
        "Turns text files into token files. A file is a document; of *.jsonl a member of each "
        "line is one. Run again after an interruption, it goes on after the last complete shard.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (out == NULL || *out == '\0') return cli_fail_usage("tokenize", "--out PREFIX is missing");
    if (argc < 2) return cli_fail_usage("tokenize", "there are no text files");
    const char **files = malloc((size_t)argc * sizeof *files);
    if (files == NULL) return cli_fail("tokenize", "out of memory");
    for (int i = 1; i < argc; i++)
        files[i - 1] = argv[i];
    ts_tokenize_options job = TS_INIT(ts_tokenize_options);
    job.tokenizer = tokenizer;
    job.files = files;
    job.file_count = argc - 1;
    job.prefix = out;
    job.json_key = json_key;
    job.shard_tokens = shard_tokens;
    job.specials = specials;
    job.plain = plain;
    job.no_eos = no_eos;
    job.restart = restart;
    code = check_inputs(&job);
    if (code < 0) code = run(&job, json);
    free(files);
    return code;
}
