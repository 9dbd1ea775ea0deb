/* SPDX-License-Identifier: Apache-2.0 */
/* step_reorder.c - `tessera step reorder FILE`: the same step in a better order, pass by pass. */
#include <stdlib.h>
#include <string.h>

#include "step.h"

typedef struct passes {
    cli_table table;
    ts_json_writer json;
    bool as_json;
    char why[16][256];
    int count;
} passes;

static void tell(const ts_reorder_report *r, void *context)
{
    passes *all = context;
    if (all->as_json) {
        ts_json_put_open(&all->json, '{');
        ts_json_put_member_text(&all->json, "pass", r->pass);
        ts_json_put_member_int(&all->json, "moves", r->moves);
        ts_json_put_member_bool(&all->json, "kept", r->kept != 0);
        ts_json_put_member_real(&all->json, "makespan_before_us", r->makespan_before_us);
        ts_json_put_member_real(&all->json, "makespan_after_us", r->makespan_after_us);
        ts_json_put_member_real(&all->json, "exposed_before_us", r->exposed_before_us);
        ts_json_put_member_real(&all->json, "exposed_after_us", r->exposed_after_us);
        ts_json_put_member_int(&all->json, "peak_before", r->peak_before);
        ts_json_put_member_int(&all->json, "peak_after", r->peak_after);
        ts_json_put_member_text(&all->json, "why", r->why);
        ts_json_put_close(&all->json, '}');
        return;
    }
    char a[32];
    cli_table_row(&all->table);
    cli_table_cell(&all->table, 0, "%s", r->pass);
    cli_table_cell(&all->table, 1, "%lld", (long long)r->moves);
    cli_table_cell(&all->table, 2, "%s", cli_seconds(a, sizeof a, 1e-6 * r->makespan_before_us));
    cli_table_cell(&all->table, 3, "%s", cli_seconds(a, sizeof a, 1e-6 * r->makespan_after_us));
    cli_table_cell(&all->table, 4, "%s", cli_seconds(a, sizeof a, 1e-6 * r->exposed_after_us));
    cli_table_cell(&all->table, 5, "%s", cli_bytes(a, sizeof a, r->peak_after));
    cli_table_cell(&all->table, 6, "%s", r->kept ? "yes" : "no");
    if (all->count < 16)
        (void)snprintf(all->why[all->count++], sizeof all->why[0], "%s: %s", r->pass, r->why);
}

/* A program with lists for many ranks is written with one rank of each kind. */
static void tell_written(passes *all, const ts_program *program, const ts_program *better)
{
    ts_program_summary whole = { .struct_size = sizeof whole },
                       written = { .struct_size = sizeof written };
    if (ts_program_summarise(program, &whole) != TS_OK ||
        ts_program_summarise(better, &written) != TS_OK || whole.ranks == written.ranks)
        return;
    if (all->as_json) {
        ts_json_put_open(&all->json, '{');
        ts_json_put_member_int(&all->json, "written_ranks", written.ranks);
        ts_json_put_member_int(&all->json, "ranks", whole.ranks);
        ts_json_put_member_text(&all->json, "why", "a rank of each kind");
        ts_json_put_close(&all->json, '}');
    } else if (all->count < 16)
        (void)snprintf(all->why[all->count++], sizeof all->why[0],
                       "written: %lld of %lld ranks, a rank of each kind", (long long)written.ranks,
                       (long long)whole.ranks);
}

static int reorder(const ts_program *program, const ts_reorder_options *options, bool json,
                   const char *out)
{
    passes all = { .as_json = json };
    static const char *const names[] = { "pass",     ">moves", ">before", ">after",
                                         ">waiting", ">peak",  "kept",    NULL };
    ts_program *better = NULL;
    cli_table_begin(&all.table, names);
    ts_json_put_open(&all.json, '[');
    ts_status status = ts_program_reorder(program, options, tell, &all, &better);
    if (status == TS_OK && out != NULL) status = ts_program_write(better, out);
    if (status == TS_OK && out != NULL) tell_written(&all, program, better);
    ts_json_put_close(&all.json, ']');
    int code = status == TS_OK ? 0 : cli_fail("step reorder", "%s", ts_last_error());
    if (code == 0 && json) code = cli_json_print(&all.json, stdout);
    if (code == 0 && !json) {
        cli_table_print(&all.table, stdout);
        for (int i = 0; i < all.count; i++)
            puts(all.why[i]);
    }
    cli_table_release(&all.table);
    ts_json_writer_release(&all.json);
    ts_program_destroy(better);
    return code;
}

/* "hoist,sink" */
static bool read_passes(const char *text, uint32_t *out)
{
    static const char *const names[] = { "hoist",    "sink",   "bucket", "prefetch", "fill",
                                         "schedule", "search", "split",  "defer" };
    enum { COUNT = sizeof names / sizeof names[0] }; /* in the order of TS_PASS_* */
    while (text != NULL && *text != '\0') {
        size_t n = strcspn(text, ","), i = 0;
        while (i < COUNT && (strlen(names[i]) != n || strncmp(names[i], text, n) != 0))
            i++;
        if (i == COUNT) return false;
        *out |= 1u << i;
        text += n + (text[n] == ',');
    }
    return true;
}

int step_reorder(int argc, char **argv)
{
    const char *out = NULL, *only = NULL;
    bool json = false;
    step_costs costs = { 0 };
    int64_t seed = 1;
    ts_reorder_options o = { .struct_size = sizeof o };
    const cli_option options[] = {
        CLI_TEXT("out", &out, "FILE", "where the new program is written"),
        CLI_SIZE("memory", &o.memory_bytes_max, 1, INT64_MAX / 4,
                 "a rank holds at most this; else what it holds now"),
        CLI_SIZE("bucket", &o.bucket_bytes, 1, INT64_MAX / 4, "a bucket has at most this"),
        CLI_TEXT("passes", &only, "LIST",
                 "hoist,sink,bucket,prefetch,fill,schedule,search,split,defer (all)"),
        CLI_INT("tries", &o.tries, 1, 100000000, "of the search (2000)"),
        CLI_INT("seed", &seed, 0, INT64_MAX / 2, "of the search (1)"),
        STEP_COST_OPTIONS(costs),
        CLI_FLAG("json", &json, "JSON"),
        CLI_END
    };
    const cli_usage usage = { "step reorder", "FILE",
                              "The same results in less time: each pass with what it gained, under "
                              "the cost model, and why.",
                              options, NULL };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    if (argc != 2) return cli_fail_usage("step reorder", "needs one file");
    if (!read_passes(only, &o.passes))
        return cli_fail_usage("step reorder", "--passes: \"%s\" has an unknown one", only);
    ts_program *program = NULL;
    o.seed = (uint64_t)seed;
    code = step_costs_of("step reorder", &costs, &o.costs);
    if (code < 0) code = step_read("step reorder", argv[1], &program);
    if (code < 0) code = reorder(program, &o, json, out);
    ts_program_destroy(program);
    return code;
}
