/* SPDX-License-Identifier: Apache-2.0 */
/* train_plan.c - `tessera train CONFIG --plan-only`: memory, traffic and time of a step, without
 * data, tokenizer, weights or ranks.
 *
 * The step is run in a world without data; nothing is allocated but what describes it. The time is
 * that of what it counted at rates: of one rank as said, or of this machine as measured, which it
 * shares among the ranks that it could run. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "train.h"

enum { RANKS_HERE = 16 }; /* more of them are those of other machines, each like this one */

typedef struct machine {
    const ts_train_cost *cost;
    ts_train_rates rates;
} machine;

static ts_status measure(ts_rank *me, void *argument)
{
    machine *m = argument;
    ts_train_rates rates;
    ts_status status = ts_train_measure(me, m->cost, &rates);
    if (ts_rank_index(me) == 0) m->rates = rates;
    return status;
}

/* Of one rank: products as said and nothing else, or all of this machine. */
static ts_train_rates rates_of(double said, const ts_train_cost *cost)
{
    machine m = {
        .cost = cost,
        .rates = { .struct_size = sizeof m.rates, .product_flops = said, .attention_flops = said }
    };
    char error[256];
    bool here = cost->ranks <= RANKS_HERE;
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = here ? cost->ranks : 1;
    if (said > 0) return m.rates;
    if (ts_launch_with(&options, measure, &m, error, sizeof error) != TS_OK)
        m.rates.product_flops = m.rates.attention_flops = 1e9;
    if (!here) m.rates.comm_bytes = 0;
    return m.rates;
}

static int64_t stages_told(const ts_train_cost *c)
{
    return c->stages < TS_TRAIN_STAGES_MAX ? c->stages : TS_TRAIN_STAGES_MAX;
}

/* Blocks are counted from the embedding; a layer's number is one less. */
static void put_stage_list(const ts_train_cost *c, ts_json_writer *json)
{
    int64_t first = 0;
    ts_json_put_key(json, "stage");
    ts_json_put_open(json, '[');
    for (int64_t g = 0; g < stages_told(c); first += c->stage_blocks[g++]) {
        ts_json_put_open(json, '{');
        ts_json_put_member_int(json, "place", c->stage_place[g]);
        ts_json_put_member_int(json, "first_block", first);
        ts_json_put_member_int(json, "blocks", c->stage_blocks[g]);
        ts_json_put_close(json, '}');
    }
    ts_json_put_close(json, ']');
}

static void put_stages(const ts_train_cost *c, ts_json_writer *json)
{
    ts_json_put_key(json, "pipeline");
    ts_json_put_open(json, '{');
    ts_json_put_member_int(json, "stages", c->stages);
    ts_json_put_member_int(json, "micro_batches", c->micro_batches);
    ts_json_put_member_real(json, "bubble", c->bubble);
    ts_json_put_member_text(json, "schedule", c->schedule);
    put_stage_list(c, json);
    ts_json_put_key(json, "peak");
    ts_json_put_open(json, '[');
    for (int64_t i = 0; i < c->place_count; i++)
        ts_json_put_int(json, c->place_bytes[i]);
    ts_json_put_close(json, ']');
    ts_json_put_close(json, '}');
}

static void put_places(const ts_train_cost *c, ts_json_writer *json)
{
    ts_json_put_key(json, "axes");
    ts_json_put_open(json, '[');
    for (int32_t k = 0; k < c->axis_count; k++) {
        ts_json_put_open(json, '{');
        ts_json_put_member_text(json, "name", c->axis[k].name);
        ts_json_put_member_int(json, "size", c->axis[k].size);
        ts_json_put_member_int(json, "stride", c->axis[k].stride);
        ts_json_put_close(json, '}');
    }
    ts_json_put_close(json, ']');
    ts_json_put_key(json, "layout");
    ts_json_put_open(json, '[');
    for (int32_t i = 0; i < c->param_count; i++) {
        const ts_train_param *p = &c->param[i];
        ts_json_put_open(json, '{');
        ts_json_put_member_text(json, "pattern", p->pattern);
        ts_json_put_member_text(json, "shape", p->shape);
        ts_json_put_member_text(json, "placements", p->layout);
        ts_json_put_member_int(json, "count", p->count);
        ts_json_put_member_int(json, "elements", p->elements);
        ts_json_put_member_int(json, "bytes", p->bytes);
        ts_json_put_close(json, '}');
    }
    ts_json_put_close(json, ']');
}

static int64_t row_bytes(const ts_train_module *row)
{
    int64_t sum = 0;
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        sum += row->bytes[k];
    return sum;
}

/* Where the rank with most has its peak, who has least, and whose the memory is at the peak. */
static void put_peak(const ts_train_cost *c, ts_json_writer *json)
{
    ts_json_put_key(json, "peak");
    ts_json_put_open(json, '{');
    ts_json_put_member_int(json, "rank", c->rank_most);
    ts_json_put_member_int(json, "bytes", c->peak.bytes);
    ts_json_put_member_text(json, "phase", c->peak.phase);
    ts_json_put_member_text(json, "module", c->peak.module);
    ts_json_put_member_text(json, "operator", c->peak.op);
    ts_json_put_member_text(json, "kind", ts_memory_kind_name((ts_memory_kind)c->peak.kind));
    ts_json_put_close(json, '}');
    ts_json_put_key(json, "least");
    ts_json_put_open(json, '{');
    ts_json_put_member_int(json, "rank", c->rank_least);
    ts_json_put_member_int(json, "bytes", c->least_bytes);
    ts_json_put_close(json, '}');
    ts_json_put_key(json, "modules");
    ts_json_put_open(json, '[');
    for (int32_t i = 0; i < c->peak.row_count; i++) {
        const ts_train_module *row = &c->peak.row[i];
        ts_json_put_open(json, '{');
        ts_json_put_member_text(json, "module", row->name);
        for (int k = 0; k < TS_MEMORY_KINDS; k++)
            ts_json_put_member_int(json, ts_memory_kind_name((ts_memory_kind)k), row->bytes[k]);
        ts_json_put_member_int(json, "bytes", row_bytes(row));
        ts_json_put_close(json, '}');
    }
    ts_json_put_close(json, ']');
}

static void put_memory(const ts_train_cost *c, ts_json_writer *json)
{
    ts_json_put_key(json, "memory");
    ts_json_put_open(json, '{');
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        ts_json_put_member_int(json, ts_memory_kind_name((ts_memory_kind)k), c->memory.at_peak[k]);
    ts_json_put_member_int(json, "peak", c->memory.peak);
    ts_json_put_close(json, '}');
}

static double computing(const ts_train_times *t)
{
    return t->products + t->attention + t->memory + t->update;
}

static int print_json(const ts_train_cost *c, const ts_train_rates *rates)
{
    ts_train_times times;
    ts_train_predict(c, rates, &times);
    ts_json_writer json = { 0 };
    ts_json_put_open(&json, '{');
    ts_json_put_member_int(&json, "parameters", c->parameters);
    ts_json_put_member_int(&json, "ranks", c->ranks);
    ts_json_put_member_int(&json, "tokens", c->tokens);
    ts_json_put_member_real(&json, "flops_per_token", c->flops_per_token);
    put_memory(c, &json);
    put_peak(c, &json);
    ts_json_put_key(&json, "bytes");
    ts_json_put_open(&json, '[');
    for (int32_t i = 0; i < c->traffic_count; i++) {
        const ts_train_traffic *t = &c->traffic[i];
        ts_json_put_open(&json, '{');
        ts_json_put_member_text(&json, "axis", t->axes);
        ts_json_put_member_text(&json, "kind", t->kind);
        ts_json_put_member_int(&json, "count", t->count);
        ts_json_put_member_int(&json, "bytes", t->bytes);
        ts_json_put_member_real(&json, "seconds", t->seconds);
        ts_json_put_close(&json, '}');
    }
    ts_json_put_close(&json, ']');
    if (c->stages > 0) put_stages(c, &json);
    put_places(c, &json);
    ts_json_put_member_real(&json, "flops_per_second", rates->product_flops);
    ts_json_put_member_real(&json, "compute_seconds", computing(&times));
    ts_json_put_member_real(&json, "product_seconds", times.products);
    ts_json_put_member_real(&json, "attention_seconds", times.attention);
    ts_json_put_member_real(&json, "memory_seconds", times.memory);
    ts_json_put_member_real(&json, "idle_seconds", times.idle);
    ts_json_put_member_real(&json, "update_seconds", times.update);
    ts_json_put_member_real(&json, "comm_seconds", times.comm);
    ts_json_put_member_real(&json, "hidden_seconds", times.hidden);
    ts_json_put_member_real(&json, "step_seconds", times.step);
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

/* "fsdp  128 ranks, 8 apart, in 8 groups: 0 8 .. 1016" */
static void print_axis(const ts_train_cost *c, const ts_train_axis *axis)
{
    int64_t last = (axis->size - 1) * axis->stride;
    printf("        %-9s %6lld rank%s", axis->name, (long long)axis->size,
           axis->size == 1 ? "" : "s");
    if (axis->size == 1) {
        printf("\n");
        return;
    }
    if (axis->stride > 1) printf(", %lld apart", (long long)axis->stride);
    printf(", in %lld group%s: 0 %lld", (long long)(c->ranks / axis->size),
           c->ranks == axis->size ? "" : "s", (long long)axis->stride);
    if (axis->size > 2) printf(axis->size > 3 ? " .. %lld" : " %lld", (long long)last);
    printf("\n");
}

static void print_mesh(const ts_train_cost *c)
{
    printf("mesh    %lld ranks, %lld tokens a step\n", (long long)c->ranks, (long long)c->tokens);
    for (int32_t k = 0; k < c->axis_count; k++)
        print_axis(c, &c->axis[k]);
}

static void print_parameters(const ts_train_cost *c)
{
    static const char *const names[] = { "parameters", ">number",       "shape",
                                         "placements", ">of this rank", NULL };
    cli_table table;
    char bytes[32];
    cli_table_begin(&table, names);
    for (int32_t i = 0; i < c->param_count; i++) {
        const ts_train_param *p = &c->param[i];
        cli_table_row(&table);
        cli_table_cell(&table, 0, "%s", p->pattern);
        cli_table_cell(&table, 1, "%lld", (long long)p->count);
        cli_table_cell(&table, 2, "%s", p->shape);
        cli_table_cell(&table, 3, "%s", p->layout);
        cli_table_cell(&table, 4, "%s", cli_bytes(bytes, sizeof bytes, p->bytes));
    }
    cli_table_print(&table, stdout);
    cli_table_release(&table);
}

static void print_memory(const ts_train_cost *c)
{
    char a[32], b[32];
    printf("memory  %s of ", cli_bytes(a, sizeof a, c->memory.peak));
    if (c->least_bytes == c->memory.peak)
        printf("every rank:\n");
    else
        printf("the rank with most (%lld); the least is %s (rank %lld):\n", (long long)c->rank_most,
               cli_bytes(b, sizeof b, c->least_bytes), (long long)c->rank_least);
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        if (c->memory.at_peak[k] > 0 || c->memory.most[k] > 0)
            printf("        %-12s %12s   at most %s\n", ts_memory_kind_name((ts_memory_kind)k),
                   cli_bytes(a, sizeof a, c->memory.at_peak[k]),
                   cli_bytes(b, sizeof b, c->memory.most[k]));
}

/* "embedding, layers 0 to 3": blocks [first, end) of so many; -1: the last is not among them. */
static void stage_text(int64_t first, int64_t end, int64_t blocks, char *out, size_t size)
{
    bool begins = first == 0, ends = end == blocks;
    long long low = first + begins - 1, high = end - ends - 2; /* layers, as they are numbered */
    char layers[64] = "";
    if (low == high)
        snprintf(layers, sizeof layers, "layer %lld", low);
    else if (low < high)
        snprintf(layers, sizeof layers, "layers %lld to %lld", low, high);
    snprintf(out, size, "%s%s%s%s%s", begins ? "embedding" : "", begins && layers[0] ? ", " : "",
             layers, ends && (begins || layers[0]) ? ", " : "", ends ? "norm and head" : "");
}

/* "at the peak: backward of model.layers.3.mlp, by linear (activation)" */
static void print_place(const ts_train_peak *p)
{
    printf("        at the peak: %s%s%s%s%s (%s)\n", p->phase, p->module[0] ? " of " : "",
           p->module, p->op[0] ? ", by " : "", p->op, ts_memory_kind_name((ts_memory_kind)p->kind));
}

static int by_bytes(const void *a, const void *b)
{
    int64_t x = row_bytes(a), y = row_bytes(b);
    return (x < y) - (x > y);
}

/* The largest rows, and the others as one. */
static void print_modules(const ts_train_peak *peak)
{
    enum { ROWS = 10 };
    static const ts_memory_kind kinds[] = { TS_MEMORY_PARAMETER, TS_MEMORY_GRADIENT,
                                            TS_MEMORY_OPTIMIZER, TS_MEMORY_ACTIVATION };
    static const char *const names[] = {
        "module at the peak", ">parameter", ">gradient", ">optimizer",
        ">activation",        ">all kinds", NULL
    };
    static ts_train_module row[TS_TRAIN_MODULES_MAX];
    char bytes[32];
    cli_table table;
    memcpy(row, peak->row, sizeof row);
    qsort(row, (size_t)peak->row_count, sizeof *row, by_bytes);
    for (int32_t i = ROWS + 1; i < peak->row_count; i++)
        for (int k = 0; k < TS_MEMORY_KINDS; k++)
            row[ROWS].bytes[k] += row[i].bytes[k];
    if (peak->row_count > ROWS + 1) snprintf(row[ROWS].name, sizeof row->name, "others");
    cli_table_begin(&table, names);
    for (int32_t i = 0; i < peak->row_count && i <= ROWS; i++) {
        cli_table_row(&table);
        cli_table_cell(&table, 0, "%s", row[i].name[0] ? row[i].name : "outside the modules");
        for (size_t k = 0; k < 4; k++)
            cli_table_cell(&table, 1 + k, "%s",
                           cli_bytes(bytes, sizeof bytes, row[i].bytes[kinds[k]]));
        cli_table_cell(&table, 5, "%s", cli_bytes(bytes, sizeof bytes, row_bytes(&row[i])));
    }
    cli_table_print(&table, stdout);
    cli_table_release(&table);
}

static void print_stages(const ts_train_cost *c)
{
    char a[32];
    if (c->stages == 0) return;
    printf("stages  %lld, %s, %lld micro-batches, idle %.1f %%; memory along pp:",
           (long long)c->stages, c->schedule, (long long)c->micro_batches, 100 * c->bubble);
    for (int64_t i = 0; i < c->place_count; i++)
        printf("%s %s", i > 0 ? "," : "", cli_bytes(a, sizeof a, c->place_bytes[i]));
    printf("\n");
    int64_t blocks = 0, first = 0;
    for (int64_t g = 0; g < stages_told(c); g++)
        blocks += c->stage_blocks[g];
    for (int64_t g = 0; g < stages_told(c); first += c->stage_blocks[g++]) {
        char text[96];
        stage_text(first, first + c->stage_blocks[g], c->stages == stages_told(c) ? blocks : -1,
                   text, sizeof text);
        printf("        %-5lld pp %-5d %s\n", (long long)g, c->stage_place[g], text);
    }
}

/* Four digits, in a unit that a reader need not convert: plans of large models on this machine take
 * days. */
static const char *span(char *buffer, size_t size, double seconds)
{
    if (seconds >= 2 * 86400.0)
        snprintf(buffer, size, "%.4g days", seconds / 86400);
    else if (seconds >= 2 * 3600.0)
        snprintf(buffer, size, "%#.4g h", seconds / 3600);
    else
        snprintf(buffer, size, seconds < 1000 ? "%#.4g s" : "%.0f s", seconds);
    return buffer;
}

static void print_share(const char *what, const char *how, double seconds, double all)
{
    char text[32];
    double share = all > 0 ? 100 * seconds / all : 0;
    if (share >= 0.05)
        printf("        %-16s %-16s %12s %6.1f %%\n", what, how, span(text, sizeof text, seconds),
               share);
}

/* One after the other, but for what goes on beside computing. */
static void print_time(const ts_train_cost *c, const ts_train_rates *rates)
{
    char bytes[32], rate[48], all[32], own[32], sent[32];
    ts_train_times t;
    ts_train_predict(c, rates, &t);
    for (int32_t i = 0; i < c->traffic_count; i++)
        printf("%s%-16s %-16s %6lld times %12s\n", i == 0 ? "traffic " : "        ",
               c->traffic[i].axes, c->traffic[i].kind, (long long)c->traffic[i].count,
               cli_bytes(bytes, sizeof bytes, c->traffic[i].bytes));
    printf("step    %s: %s of computing, %s of communication", span(all, sizeof all, t.step),
           span(own, sizeof own, computing(&t)), span(sent, sizeof sent, t.comm));
    if (t.hidden > 0) printf(" (%s of it beside)", span(all, sizeof all, t.hidden));
    if (t.idle > 0) printf(", %s idle in the pipeline", span(all, sizeof all, t.idle));
    printf("\n");
    snprintf(rate, sizeof rate, "%.3g FLOP/s", rates->product_flops);
    print_share("products", rate, t.products, t.step);
    snprintf(rate, sizeof rate, "%.3g FLOP/s", rates->attention_flops);
    print_share("attention", rate, t.attention, t.step);
    snprintf(rate, sizeof rate, "%.3g GiB/s", rates->bytes / 0x1p30);
    print_share("other operators", rate, t.memory, t.step);
    print_share("idle", "pipeline", t.idle, t.step);
    print_share("norm and update", rate, t.update, t.step);
    print_share("communication", t.hidden > 0 ? "not beside" : "", t.comm - t.hidden, t.step);
    for (int32_t i = 0; rates->comm_bytes == 0 && i < c->traffic_count; i++)
        print_share(c->traffic[i].axes, c->traffic[i].kind, c->traffic[i].seconds, t.step);
}

static int print_text(const ts_train_cost *c, const ts_train_rates *rates)
{
    printf("model   %lld parameters, %.4g FLOP per token\n", (long long)c->parameters,
           c->flops_per_token);
    print_mesh(c);
    print_parameters(c);
    print_memory(c);
    print_place(&c->peak);
    print_modules(&c->peak);
    print_stages(c);
    print_time(c, rates);
    return 0;
}

int cli_train_plan(const ts_train_config *config, bool json, double flops)
{
    ts_train_cost cost;
    ts_status status = ts_train_forecast(config, &cost);
    if (status == TS_ERR_MEMORY) return cli_fail("train", "%s", ts_last_error());
    if (status != TS_OK) /* nothing but the configuration is looked at */
        return cli_fail_usage("train", "%s", ts_last_error());
    ts_train_rates rates = rates_of(flops, &cost);
    int code = json ? print_json(&cost, &rates) : print_text(&cost, &rates);
    fflush(stdout);
    if (code == 0 && ts_train_limit(config, &cost) != TS_OK)
        code = cli_fail("train", "%s", ts_last_error());
    return code;
}
