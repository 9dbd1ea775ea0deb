/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.c - `tessera schedule`: orders of work of a pipeline, drawn, timed, compared, searched.
 */
#include "schedule.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { CASES_MAX = 16 };

typedef struct command {
    schedule_request request;
    const char *cost, *memory, *seconds, *svg, *html, *batch;
    bool json, csv, lower, all, search;
} command;

static const char more[] =
    "Names: GPipe, 1F1B, LoopedBFS, Interleaved1F1B, InterleavedZeroBubble (zb1p), ZBVZeroBubble\n"
    "(zbv), DualPipeV, search; or a file, one line a rank: 0F0,0F1,0B0,0B1. Several are compared.\n"
    "Costs are of one micro-batch of one stage: --cost F=1,I=1.3,W=0.7,comm=0.1; per stage with\n"
    "colons, F=1:1:2:1; or a JSON file {\"F\": [1, 1, 2, 1], ...}. A batch has one JSON object a\n"
    "line: schedule, ranks, microbatches; optional stages_per_rank, cost, memory, seconds.\n\n"
    "  tessera schedule 1F1B zbv --ranks 4 --micro-batches 8 --html pipeline.html\n";

static bool read_real(const char *text, double *out)
{
    char *end;
    if (text == NULL) return true;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= 0 && *out < 1e18;
}

static schedule_look look_of_terminal(void)
{
    schedule_look look = { .width = 100 };
    struct winsize size;
    const char *plain = getenv("NO_COLOR");
    bool terminal = isatty(STDOUT_FILENO) == 1;
    look.colour = terminal && (plain == NULL || plain[0] == '\0');
    if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
        look.width = size.ws_col;
    return look;
}

static int print_text(const schedule_case *c, bool lower)
{
    ts_schedule *lowered = NULL;
    if (lower && ts_schedule_lower(c->schedule, 0, &lowered) != TS_OK)
        return cli_fail("schedule", "%s", ts_last_error());
    const ts_schedule *shown = lowered != NULL ? lowered : c->schedule;
    size_t size = ts_schedule_text(shown, NULL, 0) + 1;
    char *text = malloc(size);
    int code = text != NULL ? 0 : cli_fail("schedule", "out of memory");
    if (text != NULL) {
        ts_schedule_text(shown, text, size);
        fputs(text, stdout);
    }
    free(text);
    ts_schedule_destroy(lowered);
    return code;
}

static int print_json(const schedule_case *cases, int64_t count)
{
    ts_json_writer json = { 0 };
    if (count > 1) ts_json_put_open(&json, '[');
    for (int64_t i = 0; i < count; i++) {
        ts_json_put_open(&json, '{');
        ts_json_put_member_text(&json, "schedule", cases[i].name);
        schedule_answer(&cases[i], true, &json);
        ts_json_put_close(&json, '}');
    }
    if (count > 1) ts_json_put_close(&json, ']');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

static int show(const command *self, const schedule_case *cases, int64_t count)
{
    int code = 0;
    if (self->svg != NULL) code |= schedule_write_svg(cases, count, self->svg);
    if (self->html != NULL) code |= schedule_write_html(cases, count, self->html);
    if (self->json) return code | print_json(cases, count);
    if (self->csv || self->lower) {
        for (int64_t i = 0; i < count; i++)
            code |= print_text(&cases[i], self->lower);
        return code;
    }
    if (self->svg != NULL || self->html != NULL) return code;
    schedule_look look = look_of_terminal();
    for (int64_t i = 0; i < count; i++)
        schedule_print(&cases[i], &look, stdout);
    if (count > 1) schedule_compare(cases, count, stdout);
    return code;
}

/* Of all that have a meaning for the numbers, those above --memory are left out, and told; what was
 * asked for by its name is not. */
static int run(command *self, const char *const *names, int64_t asked, int64_t count)
{
    schedule_case cases[CASES_MAX] = { { 0 } };
    char error[SCHEDULE_ERROR_MAX];
    int code = 0;
    int64_t made = 0;
    for (int64_t i = 0; i < count && code == 0; i++) {
        bool wanted = i < asked || strcmp(names[i], "search") == 0;
        self->request.name = names[i];
        if (schedule_open(&self->request, &cases[made], error, sizeof error))
            made++;
        else if (!wanted && self->request.memory_max > 0)
            fprintf(stderr, "tessera schedule: %s is left out: %s\n", names[i], error);
        else
            code = cli_fail_usage("schedule", "%s%s%s", count > 1 ? names[i] : "",
                                  count > 1 ? ": " : "", error);
    }
    if (code == 0 && made == 0) code = cli_fail_usage("schedule", "none is left");
    if (code == 0) code = show(self, cases, made);
    for (int64_t i = 0; i < made; i++)
        schedule_close(&cases[i]);
    return code;
}

/* What was asked for by name, or all rules that have a meaning for the numbers. */
static int64_t collect(const command *self, int argc, char **argv, const char **names)
{
    int64_t count = 0;
    for (int i = 1; i < argc && count < CASES_MAX; i++)
        names[count++] = argv[i];
    for (int64_t i = 0; self->all && ts_schedule_name(i) != NULL && count < CASES_MAX; i++) {
        ts_schedule *probe;
        if (ts_schedule_generate(ts_schedule_name(i), &self->request.size, &probe) != TS_OK)
            continue;
        ts_schedule_destroy(probe);
        names[count++] = ts_schedule_name(i);
    }
    if (self->search && count < CASES_MAX) names[count++] = "search";
    return count;
}

static int read_numbers(command *self)
{
    char error[SCHEDULE_ERROR_MAX];
    schedule_request *r = &self->request;
    if (!read_real(self->memory, &r->memory_max))
        return cli_fail_usage("schedule", "--memory is \"%s\": expected a number of activations",
                              self->memory);
    if (!read_real(self->seconds, &r->seconds))
        return cli_fail_usage("schedule", "--seconds is \"%s\": expected a number", self->seconds);
    if (self->cost != NULL &&
        !schedule_cost_text(self->cost, &r->cost, &r->cost_count, error, sizeof error))
        return cli_fail_usage("schedule", "--cost: %s", error);
    if (self->cost != NULL) schedule_measured(self->cost, &r->size);
    if (r->size.ranks <= 0) r->size.ranks = 4;
    if (r->size.micro_batches <= 0) r->size.micro_batches = 8;
    return -1;
}

int cli_schedule(int argc, char **argv)
{
    command self = { .request.size = { .struct_size = sizeof(ts_schedule_options) } };
    ts_schedule_options *size = &self.request.size;
    const cli_option options[] = {
        CLI_INT("ranks", &size->ranks, 1, 65536, "ranks of the pipeline (4)"),
        CLI_INT("stages", &size->stages_per_rank, 1, 65536, "per rank; what the schedule needs"),
        CLI_INT("micro-batches", &size->micro_batches, 1, 1 << 20, "of a batch (8)"),
        CLI_TEXT("cost", &self.cost, "TEXT|FILE",
                 "F=1,I=1,W=1,comm=0,memory=1, or a measured run's stages.json"),
        CLI_TEXT("memory", &self.memory, "N", "a rank keeps at most so many activations"),
        CLI_FLAG("all", &self.all,
                 "every schedule that has a meaning for these numbers, and fits --memory"),
        CLI_FLAG("search", &self.search, "the best order that can be found"),
        CLI_TEXT("seconds", &self.seconds, "N", "a search ends by then (1)"),
        CLI_FLAG("csv", &self.csv, "its text, a line a rank"),
        CLI_FLAG("lower", &self.lower, "the same with sends, receives, gathers and reductions"),
        CLI_TEXT("svg", &self.svg, "FILE", "a drawing"),
        CLI_TEXT("html", &self.html, "FILE", "a page: who computes when, bubbles, memory"),
        CLI_FLAG("json", &self.json, "JSON"),
        CLI_TEXT("batch", &self.batch, "FILE", "one request a line; - is standard input"),
        CLI_END
    };
    const cli_usage usage = { "schedule", "[options] NAME|FILE... | --batch FILE",
                              "Shows in which order the ranks of a pipeline work, and how long.",
                              options, more };
    const char *names[CASES_MAX];
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (self.batch != NULL && argc > 1)
        return cli_fail_usage("schedule", "--batch reads its requests: \"%s\" is one too many",
                              argv[1]);
    if (self.batch != NULL) return cli_batch("schedule", self.batch, schedule_serve, NULL);
    if (argc - 1 > CASES_MAX)
        return cli_fail_usage("schedule", "%d names; at most %d", argc - 1, CASES_MAX);
    code = read_numbers(&self);
    int64_t count = code < 0 ? collect(&self, argc, argv, names) : 0;
    if (code < 0 && count == 0)
        code = cli_fail_usage("schedule", "which schedule? A name, a file, --all or --search; see "
                                          "tessera schedule --help");
    if (code < 0) code = run(&self, names, argc - 1, count);
    free(self.request.cost);
    return code;
}
