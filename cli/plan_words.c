/* SPDX-License-Identifier: Apache-2.0 */
/* plan_words.c - a plan for a person: its steps, who talks to whom, the bound and the gap to it,
 * and what lost. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { GROUPS_MAX = 8, MEMBERS_MAX = 8, MATRIX_MAX = 12, MESSAGES_RANKS_MAX = 4096 };

static bool is_direct(const plan_case *c)
{
    return c->summary.family == TS_PLAN_DIRECT || c->summary.family == TS_PLAN_HIERARCHICAL;
}

/* A text of the library by its snprintf-like function; to be freed. */
static char *text_of(const ts_plan *plan, size_t (*write)(const ts_plan *, char *, size_t))
{
    size_t length = write(plan, NULL, 0);
    char *text = malloc(length + 1);
    if (text != NULL) (void)write(plan, text, length + 1);
    return text;
}

static void print_head(const plan_case *c, FILE *out)
{
    char shape_text[128];
    ts_shape shape = ts_layout_shape(c->src);
    char *mesh = layout_mesh_text(c->src_mesh), *to_mesh = layout_mesh_text(c->dst_mesh);
    char *from = layout_sharding_text(ts_layout_sharding(c->src));
    char *to = layout_sharding_text(ts_layout_sharding(c->dst));
    if (mesh != NULL && to_mesh != NULL && from != NULL && to != NULL) {
        fprintf(out, "%s %s on mesh %s:  %s  ->  %s",
                layout_shape_text(&shape, shape_text, sizeof shape_text), ts_dtype_name(c->dtype),
                mesh, from, to);
        if (c->dst_mesh != c->src_mesh) fprintf(out, "  on mesh %s", to_mesh);
        fputs("\n\n", out);
    }
    free(mesh);
    free(to_mesh);
    free(from);
    free(to);
}

/* ---- steps ----------------------------------------------------------------------------------- */
static void step_row(const plan_case *c, int32_t i, cli_table *table)
{
    ts_plan_step step = { .struct_size = sizeof step };
    char text[CLI_CELL_MAX];
    if (ts_plan_step_at(c->plan, i, &step) != TS_OK) return;
    cli_table_row(table);
    cli_table_cell(table, 0, "%d", i + 1);
    cli_table_cell(table, 1, "%s", ts_step_kind_name((ts_step_kind)step.kind));
    cli_table_cell(table, 2, "%s", plan_axes_text(c->src_mesh, step.axes, text, sizeof text));
    (void)ts_plan_step_from(c->plan, i, text, sizeof text);
    cli_table_cell(table, 3, "%s", text);
    (void)ts_plan_step_to(c->plan, i, text, sizeof text);
    cli_table_cell(table, 4, "%s", text);
    cli_table_cell(table, 5, "%s", cli_bytes(text, sizeof text, step.bytes_received));
    int64_t ranks = ts_mesh_size(c->dst_mesh, NULL);
    cli_table_cell(table, 6, "%s", cli_bytes(text, sizeof text, step.bytes_received / ranks));
    cli_table_cell(table, 7, "%s", cli_seconds(text, sizeof text, step.time_us * 1e-6));
}

static void print_steps(const plan_case *c, FILE *out)
{
    static const char *const names[] = { ">step",     "kind",       "axes",  "from", "to",
                                         ">received", ">each rank", ">time", NULL };
    cli_table table;
    if (c->summary.step_count == 0) return;
    cli_table_begin(&table, names);
    for (int32_t i = 0; i < c->summary.step_count; i++)
        step_row(c, i, &table);
    cli_table_print(&table, out);
    cli_table_release(&table);
    fputc('\n', out);
}

/* ---- who talks to whom ----------------------------------------------------------------------- */
/* The groups of a collective: ranks that differ in these axes only. */
static void print_groups(const plan_case *c, int32_t index, uint32_t axes, FILE *out)
{
    const ts_mesh *mesh = c->src_mesh;
    uint32_t others = ((1u << ts_mesh_ndim(mesh)) - 1) & ~axes;
    int64_t groups = layout_places(mesh, others), members = layout_places(mesh, axes);
    fprintf(out, "  step %d: %lld group%s of %lld: ", index + 1, (long long)groups,
            groups == 1 ? "" : "s", (long long)members);
    for (int64_t g = 0; g < groups && g < GROUPS_MAX; g++) {
        int64_t coord[TS_NDIM_MAX], first = layout_place(mesh, others, g, coord);
        for (int64_t m = 0; m < members && m < MEMBERS_MAX; m++)
            fprintf(out, "%c%lld", m > 0 ? ' ' : '{',
                    (long long)layout_rank(mesh, first + layout_place(mesh, axes, m, coord)));
        fputs(members > MEMBERS_MAX ? " ...} " : "} ", out);
    }
    fputs(groups > GROUPS_MAX ? "...\n" : "\n", out);
}

static void print_matrix(const plan_case *c, const int64_t *bytes, int64_t n, FILE *out)
{
    const char *names[CLI_COLUMNS_MAX + 2] = { ">to \\ from" };
    char heads[MATRIX_MAX][16], text[32];
    int64_t columns = n < CLI_COLUMNS_MAX - 1 ? n : CLI_COLUMNS_MAX - 1;
    for (int64_t i = 0; i < columns; i++) {
        (void)snprintf(heads[i], sizeof heads[i], ">%lld", (long long)i);
        names[1 + i] = heads[i];
    }
    names[1 + columns] = NULL;
    cli_table table;
    cli_table_begin(&table, names);
    for (int64_t to = 0; to < n; to++) {
        cli_table_row(&table);
        cli_table_cell(&table, 0, "%lld", (long long)to);
        for (int64_t from = 0; from < columns; from++) {
            int64_t moved = bytes[from * c->ranks + to];
            cli_table_cell(&table, (size_t)(1 + from), "%s",
                           moved > 0 ? cli_bytes(text, sizeof text, moved) : ".");
        }
    }
    cli_table_print(&table, out);
    cli_table_release(&table);
}

/* The busiest and the idlest receiver, and how many messages there are. */
static void print_messages(const plan_case *c, const int64_t *bytes, FILE *out)
{
    int64_t messages = 0, most = 0, least = INT64_MAX, most_peers = 0;
    char a[32], b[32];
    for (int64_t to = 0; to < c->ranks; to++) {
        int64_t received = 0, peers = 0;
        for (int64_t from = 0; from < c->ranks; from++) {
            received += bytes[from * c->ranks + to];
            peers += bytes[from * c->ranks + to] > 0;
        }
        messages += peers;
        if (received > most) most = received;
        if (received < least) least = received;
        if (peers > most_peers) most_peers = peers;
    }
    fprintf(out, "  %lld messages; a rank receives %s to %s, from at most %lld others\n",
            (long long)messages, cli_bytes(a, sizeof a, least), cli_bytes(b, sizeof b, most),
            (long long)most_peers);
}

static void print_traffic(const plan_case *c, FILE *out)
{
    if (c->ranks > MESSAGES_RANKS_MAX) {
        fprintf(out, "  each of %lld ranks receives from those that hold what it lacks\n",
                (long long)c->ranks);
        return;
    }
    int64_t *bytes = calloc((size_t)(c->ranks * c->ranks), sizeof *bytes);
    if (bytes == NULL || !plan_traffic(c, c->ranks, bytes)) {
        fputs("  (no memory to list it)\n", out);
    } else {
        print_messages(c, bytes, out);
        if (c->ranks < CLI_COLUMNS_MAX) {
            fputc('\n', out);
            print_matrix(c, bytes, c->ranks, out);
        }
    }
    free(bytes);
}

static void print_talk(const plan_case *c, FILE *out)
{
    if (c->summary.step_count == 0 || c->summary.family == TS_PLAN_LOCAL) return;
    fputs("who talks to whom\n", out);
    if (is_direct(c)) {
        print_traffic(c, out);
    } else {
        for (int32_t i = 0; i < c->summary.step_count; i++) {
            ts_plan_step step = { .struct_size = sizeof step };
            if (ts_plan_step_at(c->plan, i, &step) != TS_OK) continue;
            if (step.kind == TS_STEP_SLICE || step.kind == TS_STEP_PARTITION)
                fprintf(out, "  step %d: nobody; each rank keeps a part\n", i + 1);
            else
                print_groups(c, i, step.axes, out);
        }
    }
    fputc('\n', out);
}

/* ---- the sum --------------------------------------------------------------------------------- */
static void print_sum(const plan_case *c, FILE *out)
{
    const ts_plan_summary *s = &c->summary;
    char a[32], b[32], gap[64] = "none";
    if (s->bytes_received > s->bytes_bound && s->bytes_bound > 0)
        (void)snprintf(gap, sizeof gap, "%.2f times the bound",
                       (double)s->bytes_received / (double)s->bytes_bound);
    else if (s->bytes_received > s->bytes_bound)
        (void)snprintf(gap, sizeof gap, "nothing need be received");
    fprintf(out, "family    %s\n", ts_plan_family_name((ts_plan_family)s->family));
    fprintf(out, "received  %s by all ranks together; bound %s; gap: %s\n",
            cli_bytes(a, sizeof a, s->bytes_received), cli_bytes(b, sizeof b, s->bytes_bound), gap);
    fprintf(out, "time      %s predicted\n", cli_seconds(a, sizeof a, s->time_us * 1e-6));
    fprintf(out, "memory    %s at most beside source and target, on one rank\n",
            cli_bytes(a, sizeof a, s->peak_bytes));
    if (s->rounds > 1) fprintf(out, "rounds    %lld\n", (long long)s->rounds);
    char *why = text_of(c->plan, ts_plan_why);
    if (why != NULL) fprintf(out, "why       %s\n", why);
    free(why);
    if (s->other_family == TS_PLAN_NONE) return;
    fprintf(out, "lost      %s: %s%s", ts_plan_family_name((ts_plan_family)s->other_family),
            s->other_bounded ? "at least " : "", cli_seconds(a, sizeof a, s->other_us * 1e-6));
    if (s->other_bytes >= 0) fprintf(out, ", %s received", cli_bytes(b, sizeof b, s->other_bytes));
    fputc('\n', out);
}

void plan_print(const plan_case *c, const char *check, FILE *out)
{
    print_head(c, out);
    print_steps(c, out);
    print_talk(c, out);
    print_sum(c, out);
    if (check != NULL) fprintf(out, "check     %s\n", check);
}
