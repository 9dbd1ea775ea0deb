/* SPDX-License-Identifier: Apache-2.0 */
/* step.c - `tessera step WHAT`: steps as programs, looked at without running them. */
#include "step.h"

#include <stdlib.h>
#include <string.h>

/* ---- shared ---------------------------------------------------------------------------------- */

int step_read(const char *command, const char *path, ts_program **out)
{
    return ts_program_read(path, out) == TS_OK ? -1
                                               : cli_fail_usage(command, "%s", ts_last_error());
}

static bool read_costs(const char *name, int32_t *out)
{
    static const char *const names[] = { "links", "v100", "a100", "h100", "b200" }; /* ts_costs */
    enum { COUNT = sizeof names / sizeof names[0] };
    for (*out = 0; name != NULL && *out < COUNT && strcmp(name, names[*out]) != 0;)
        ++*out;
    return *out < COUNT;
}

int step_costs_of(const char *command, const step_costs *given, ts_program_costs *out)
{
    char *end = NULL;
    *out = (ts_program_costs){ .struct_size = sizeof *out,
                               .topology = given->topology,
                               .meeting = given->meeting };
    ts_topology known;
    if (given->topology != NULL && ts_topology_load(given->topology, &known) != TS_OK)
        return cli_fail_usage(command, "--topology: %s", ts_last_error());
    if (!read_costs(given->collectives, &out->collectives))
        return cli_fail_usage(command, "--costs: expected links, v100, a100, h100 or b200, not %s",
                              given->collectives);
    if (given->compute == NULL) return -1;
    out->compute_us = strtod(given->compute, &end);
    if (end != given->compute && *end == '\0' && out->compute_us > 0 && out->compute_us < 1e12)
        return -1;
    return cli_fail_usage(command, "--compute: expected microseconds above 0, found \"%s\"",
                          given->compute);
}

static void keep_bar(const ts_program_bar *bar, void *context)
{
    step_bars *bars = context;
    if (bars->count == bars->capacity) {
        int64_t more = 2 * bars->capacity + 256;
        ts_program_bar *grown = realloc(bars->bar, (size_t)more * sizeof *grown);
        bars->failed = bars->failed || grown == NULL;
        if (grown == NULL) return;
        bars->bar = grown;
        bars->capacity = more;
    }
    bars->bar[bars->count++] = *bar;
}

int step_simulate(const char *command, const ts_program *program, const ts_program_costs *costs,
                  step_bars *out)
{
    *out = (step_bars){ .times = { .struct_size = sizeof out->times } };
    if (ts_program_simulate(program, costs, &out->times, keep_bar, out) != TS_OK)
        return cli_fail(command, "%s", ts_last_error());
    return out->failed ? cli_fail(command, "out of memory") : -1;
}

void step_bars_release(step_bars *bars)
{
    free(bars->bar);
    bars->bar = NULL;
}

/* ---- show ------------------------------------------------------------------------------------ */

static void put_times(const ts_program_times *t, ts_json_writer *json)
{
    ts_json_put_member_real(json, "makespan_us", t->makespan_us);
    ts_json_put_member_real(json, "compute_us", t->compute_us);
    ts_json_put_member_real(json, "exposed_us", t->exposed_us);
    ts_json_put_member_real(json, "bubble", t->bubble);
    ts_json_put_member_int(json, "peak_bytes", t->peak_bytes);
    ts_json_put_member_int(json, "peak_rank", t->peak_rank);
}

static void put_waits(const step_waits *waits, ts_json_writer *json)
{
    ts_json_put_key(json, "exposed_by");
    ts_json_put_open(json, '[');
    for (int i = 0; i < waits->count; i++) {
        const step_wait *w = &waits->row[i];
        ts_json_put_open(json, '{');
        ts_json_put_member_text(json, "kind", w->kind);
        ts_json_put_member_text(json, "axes", w->axes);
        ts_json_put_member_real(json, "us", w->us / (double)waits->ranks);
        ts_json_put_member_real(json, "count", (double)w->count / (double)waits->ranks);
        ts_json_put_close(json, '}');
    }
    ts_json_put_close(json, ']');
}

static int show_json(const ts_program_summary *s, const step_bars *bars, const step_waits *waits)
{
    ts_json_writer json = { 0 };
    ts_json_put_open(&json, '{');
    ts_json_put_member_int(&json, "ranks", s->ranks);
    ts_json_put_member_int(&json, "lists", s->lists);
    ts_json_put_member_int(&json, "actions", s->actions);
    ts_json_put_member_int(&json, "values", s->values);
    ts_json_put_member_int(&json, "groups", s->groups);
    ts_json_put_member_int(&json, "queues", s->queues);
    ts_json_put_member_int(&json, "collectives", s->collectives);
    ts_json_put_member_int(&json, "messages", s->messages);
    ts_json_put_member_int(&json, "waits", s->waits);
    put_times(&bars->times, &json);
    put_waits(waits, &json);
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

static void show_text(const ts_program_summary *s, const step_bars *bars, const step_waits *waits)
{
    char a[32], b[32], c[32];
    const ts_program_times *t = &bars->times;
    printf("ranks    %lld, which do %lld different things\n", (long long)s->ranks,
           (long long)s->lists);
    printf("actions  %lld: %lld collectives, %lld messages, %lld waits; %lld values\n",
           (long long)s->actions, (long long)s->collectives, (long long)s->messages,
           (long long)s->waits, (long long)s->values);
    printf("time     %s, of which a rank computes %s and waits at most %s\n",
           cli_seconds(a, sizeof a, 1e-6 * t->makespan_us),
           cli_seconds(b, sizeof b, 1e-6 * t->compute_us),
           cli_seconds(c, sizeof c, 1e-6 * t->exposed_us));
    printf("memory   %s on rank %lld\n", cli_bytes(a, sizeof a, t->peak_bytes),
           (long long)t->peak_rank);
    for (int i = 0; i < waits->count; i++) {
        const step_wait *w = &waits->row[i];
        printf("%s%-10s %5.1f times for %s%s%s\n", i == 0 ? "waits    " : "         ",
               cli_seconds(a, sizeof a, 1e-6 * w->us / (double)waits->ranks),
               (double)w->count / (double)waits->ranks, w->kind, w->axes[0] ? " over " : "",
               w->axes);
    }
}

static int show_times(const ts_program *program, const ts_program_costs *costs, bool json)
{
    ts_program_summary s = { .struct_size = sizeof s };
    step_bars bars;
    step_waits waits;
    if (ts_program_summarise(program, &s) != TS_OK)
        return cli_fail("step show", "%s", ts_last_error());
    int code = step_simulate("step show", program, costs, &bars);
    if (code < 0) {
        step_count_waits(&bars, &waits);
        code = json ? show_json(&s, &bars, &waits) : 0;
        if (!json) show_text(&s, &bars, &waits);
    }
    step_bars_release(&bars);
    return code;
}

static int step_show(int argc, char **argv)
{
    bool json = false, text = false;
    step_costs costs = { 0 };
    const cli_option options[] = { CLI_FLAG("text", &text, "the whole program, as it is read"),
                                   STEP_COST_OPTIONS(costs), CLI_FLAG("json", &json, "JSON"),
                                   CLI_END };
    const cli_usage usage = { "step show", "FILE", "What is in a program, and how long it takes.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("step show", "needs one file");
    ts_program *program = NULL;
    ts_program_costs asked;
    code = step_costs_of("step show", &costs, &asked);
    if (code < 0) code = step_read("step show", argv[1], &program);
    if (code < 0 && text) {
        size_t size = ts_program_text(program, NULL, 0) + 1;
        char *all = malloc(size);
        code = all != NULL ? 0 : cli_fail("step show", "out of memory");
        if (all != NULL) {
            ts_program_text(program, all, size);
            fputs(all, stdout);
        }
        free(all);
    } else if (code < 0)
        code = show_times(program, &asked, json);
    ts_program_destroy(program);
    return code;
}

/* ---- check ----------------------------------------------------------------------------------- */

typedef struct telling {
    ts_json_writer json;
    bool as_json;
} telling;

static void tell(const char *kind, const char *text, void *context)
{
    telling *to = context;
    if (!to->as_json) {
        printf("%s: %s\n", kind, text);
        return;
    }
    ts_json_put_open(&to->json, '{');
    ts_json_put_member_text(&to->json, "kind", kind);
    ts_json_put_member_text(&to->json, "text", text);
    ts_json_put_close(&to->json, '}');
}

static int check_program(const ts_program *program, const ts_program_rules *rules, bool as_json)
{
    telling to = { .as_json = as_json };
    ts_program_summary s = { .struct_size = sizeof s };
    int64_t count = 0;
    double began = cli_now();
    ts_json_put_open(&to.json, '{');
    ts_json_put_key(&to.json, "findings");
    ts_json_put_open(&to.json, '[');
    ts_status status = ts_program_check(program, rules, tell, &to, &count);
    double seconds = cli_now() - began;
    ts_json_put_close(&to.json, ']');
    ts_json_put_member_int(&to.json, "count", count);
    ts_json_put_member_real(&to.json, "seconds", seconds);
    ts_json_put_close(&to.json, '}');
    if (status == TS_OK) status = ts_program_summarise(program, &s);
    int code = status == TS_OK ? count > 0 : cli_fail("step check", "%s", ts_last_error());
    if (status == TS_OK && as_json) code |= cli_json_print(&to.json, stdout);
    char time[32];
    if (status == TS_OK && !as_json)
        printf("%lld found in %lld actions of %lld ranks, in %s\n", (long long)count,
               (long long)s.actions, (long long)s.ranks, cli_seconds(time, sizeof time, seconds));
    ts_json_writer_release(&to.json);
    return code;
}

static int step_check(int argc, char **argv)
{
    bool json = false, meeting = false, no_hidden = false;
    ts_program_rules rules = { .struct_size = sizeof rules };
    const cli_option options[] = {
        CLI_SIZE("memory", &rules.memory_bytes_max, 1, INT64_MAX / 4, "a rank holds at most this"),
        CLI_FLAG("no-hidden", &no_hidden, "operators may not move inputs for themselves"),
        CLI_FLAG("meeting", &meeting, "a send ends with its receive; else it is buffered"),
        CLI_FLAG("json", &json, "JSON"), CLI_END
    };
    const cli_usage usage = {
        "step check", "FILE",
        "Everything that is wrong with a program, on all its ranks, without running it. Exit code\n"
        "0: nothing, 1: something is, and named, 2: this is no program.",
        options, NULL
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("step check", "needs one file");
    ts_program *program = NULL;
    code = step_read("step check", argv[1], &program);
    rules.meeting = meeting;
    rules.no_hidden = no_hidden;
    if (code < 0) code = check_program(program, &rules, json);
    ts_program_destroy(program);
    return code;
}

/* ---- diff ------------------------------------------------------------------------------------ */

static int step_diff(int argc, char **argv)
{
    const cli_option options[] = { CLI_END };
    const cli_usage usage = { "step diff", "A B",
                              "The first difference of two programs. Exit code 0: they are equal, "
                              "1: they differ.",
                              options, NULL };
    char why[4096];
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 3) return cli_fail_usage("step diff", "needs two files");
    ts_program *a = NULL, *b = NULL;
    code = step_read("step diff", argv[1], &a);
    if (code < 0) code = step_read("step diff", argv[2], &b);
    if (code < 0) {
        code = ts_program_differ(a, b, why, sizeof why) > 0;
        puts(code ? why : "equal");
    }
    ts_program_destroy(a);
    ts_program_destroy(b);
    return code;
}

/* ---- draw ------------------------------------------------------------------------------------ */

static int draw_json(const step_bars *bars)
{
    ts_json_writer json = { 0 };
    ts_json_put_open(&json, '{');
    put_times(&bars->times, &json);
    ts_json_put_key(&json, "actions");
    ts_json_put_open(&json, '[');
    for (int64_t i = 0; i < bars->count; i++) {
        const ts_program_bar *bar = &bars->bar[i];
        ts_json_put_open(&json, '{');
        ts_json_put_member_int(&json, "rank", bar->rank);
        ts_json_put_member_text(&json, "kind", bar->kind);
        ts_json_put_member_text(&json, "what", bar->what);
        ts_json_put_member_text(&json, "queue", bar->queue);
        ts_json_put_member_real(&json, "begin_us", bar->begin_us);
        ts_json_put_member_real(&json, "end_us", bar->end_us);
        ts_json_put_member_bool(&json, "critical", bar->critical);
        ts_json_put_member_int(&json, "memory_bytes", bar->memory_bytes);
        ts_json_put_close(&json, '}');
    }
    ts_json_put_close(&json, ']');
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

static int step_drawn(int argc, char **argv)
{
    bool json = false;
    const char *svg = NULL;
    int64_t ranks = 16;
    step_costs costs = { 0 };
    const cli_option options[] = {
        CLI_TEXT("svg", &svg, "FILE", "a drawing; - is standard output"),
        CLI_INT("ranks", &ranks, 1, 1 << 20, "the first so many that differ (16)"),
        STEP_COST_OPTIONS(costs), CLI_FLAG("json", &json, "JSON"), CLI_END
    };
    const cli_usage usage = { "step draw", "FILE",
                              "Who does what when, the critical path and the memory of each rank.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("step draw", "needs one file");
    ts_program *program = NULL;
    ts_program_costs asked;
    step_bars bars = { 0 };
    code = step_costs_of("step draw", &costs, &asked);
    if (code < 0) code = step_read("step draw", argv[1], &program);
    if (code < 0) code = step_simulate("step draw", program, &asked, &bars);
    if (code < 0 && svg != NULL) code = step_write_svg(&bars, ranks, svg);
    if (code < 0 && json) code = draw_json(&bars);
    if (code < 0) {
        step_draw(&bars, ranks, stdout);
        code = 0;
    }
    step_bars_release(&bars);
    ts_program_destroy(program);
    return code;
}

/* ---- which ----------------------------------------------------------------------------------- */

static const cli_subject subjects[] = {
    { "record", "the step of a configuration, without data or ranks, into a file", step_record },
    { "show", "what is in a program, and how long it takes", step_show },
    { "check", "what is wrong with it, on all ranks", step_check },
    { "diff", "where two of them differ first", step_diff },
    { "reorder", "the same results in less time and no more memory", step_reorder },
    { "draw", "who does what when, the critical path, memory", step_drawn },
};

int cli_step(int argc, char **argv)
{
    static const cli_subjects all = { "step",
                                      "WHAT FILE [options]",
                                      "Of steps as programs (docs/steps.md).",
                                      "unknown",
                                      subjects,
                                      sizeof subjects / sizeof subjects[0],
                                      8 };
    return cli_run_subject(&all, argc, argv);
}
