/* SPDX-License-Identifier: Apache-2.0 */
/* train_plan.c - `tessera train CONFIG --plan-only`: memory, traffic and time of a step, without
 * data, tokenizer, weights or ranks.
 *
 * The step is run in a world without data; nothing is allocated but what describes it. The time is
 * that of products at a rate, and of communication on a modelled machine, one after the other. */
#include "cli.h"
#include "train.h"

enum { PRODUCT = 512, TURNS = 3 };

/* FLOP/s of a product of one rank with all cores. */
static ts_status measure(ts_rank *me, void *argument)
{
    double *best = argument;
    ts_mesh *self = ts_mesh_self(me);
    ts_scope scope = ts_scope_open_with(me, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tensor *a = ts_randn(self, TS_DTYPE_F32, TS_SHAPE(PRODUCT, PRODUCT), NULL);
    for (int i = 0; i < TURNS; i++) {
        double start = cli_now();
        ts_tensor_wait(ts_matmul(a, a));
        double rate = 2.0 * PRODUCT * PRODUCT * PRODUCT / (cli_now() - start);
        if (rate > *best) *best = rate;
    }
    ts_scope_close(scope);
    ts_mesh_release(self);
    return ts_rank_status(me);
}

/* Of one rank: what was said, or this machine's, shared by the ranks it could hold. */
static double rate_of(double said, int64_t ranks)
{
    enum { RANKS_HERE = 16 };
    double rate = 0;
    char error[256];
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "threads";
    options.rank_count = 1;
    if (said > 0) return said;
    if (ts_launch_with(&options, measure, &rate, error, sizeof error) != TS_OK || rate <= 0)
        return 1e9;
    return ranks <= RANKS_HERE ? rate / (double)ranks : rate;
}

static double compute_seconds(const ts_train_cost *c, double rate)
{
    double busy = 1 - c->bubble; /* ranks of a pipeline wait for each other */
    return c->flops_per_token * (double)c->tokens / (double)c->ranks / rate / busy;
}

static void put_stages(const ts_train_cost *c, ts_json_writer *json)
{
    ts_json_put_key(json, "pipeline");
    ts_json_put_open(json, '{');
    ts_json_put_member_int(json, "stages", c->stages);
    ts_json_put_member_int(json, "micro_batches", c->micro_batches);
    ts_json_put_member_real(json, "bubble", c->bubble);
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

static int print_json(const ts_train_cost *c, double rate)
{
    ts_json_writer json = { 0 };
    ts_json_put_open(&json, '{');
    ts_json_put_member_int(&json, "parameters", c->parameters);
    ts_json_put_member_int(&json, "ranks", c->ranks);
    ts_json_put_member_int(&json, "tokens", c->tokens);
    ts_json_put_member_real(&json, "flops_per_token", c->flops_per_token);
    ts_json_put_key(&json, "memory");
    ts_json_put_open(&json, '{');
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        ts_json_put_member_int(&json, ts_memory_kind_name((ts_memory_kind)k), c->memory.at_peak[k]);
    ts_json_put_member_int(&json, "peak", c->memory.peak);
    ts_json_put_close(&json, '}');
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
    ts_json_put_member_real(&json, "flops_per_second", rate);
    ts_json_put_member_real(&json, "compute_seconds", compute_seconds(c, rate));
    ts_json_put_member_real(&json, "comm_seconds", c->comm_seconds);
    ts_json_put_member_real(&json, "step_seconds", compute_seconds(c, rate) + c->comm_seconds);
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
    printf("memory  %s of the rank with most:\n", cli_bytes(a, sizeof a, c->memory.peak));
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        if (c->memory.at_peak[k] > 0 || c->memory.most[k] > 0)
            printf("        %-12s %12s   at most %s\n", ts_memory_kind_name((ts_memory_kind)k),
                   cli_bytes(a, sizeof a, c->memory.at_peak[k]),
                   cli_bytes(b, sizeof b, c->memory.most[k]));
}

static void print_stages(const ts_train_cost *c)
{
    char a[32];
    if (c->stages == 0) return;
    printf("stages  %lld, %lld micro-batches, idle %.1f %%; memory along pp:", (long long)c->stages,
           (long long)c->micro_batches, 100 * c->bubble);
    for (int64_t i = 0; i < c->place_count; i++)
        printf("%s %s", i > 0 ? "," : "", cli_bytes(a, sizeof a, c->place_bytes[i]));
    printf("\n");
}

/* A step is products, then each kind of traffic: nothing is assumed to overlap. */
static void print_time(const ts_train_cost *c, double rate)
{
    char bytes[32];
    double products = compute_seconds(c, rate), all = products + c->comm_seconds;
    double share = all > 0 ? 100 / all : 0;
    for (int32_t i = 0; i < c->traffic_count; i++)
        printf("%s%-16s %-16s %6lld times %12s\n", i == 0 ? "traffic " : "        ",
               c->traffic[i].axes, c->traffic[i].kind, (long long)c->traffic[i].count,
               cli_bytes(bytes, sizeof bytes, c->traffic[i].bytes));
    printf("step    %.4g s: %.4g s of products at %.3g FLOP/s a rank, %.4g s of communication\n",
           all, products, rate, c->comm_seconds);
    printf("        %-33s %10.4g s %6.1f %%\n", "products", products, share * products);
    for (int32_t i = 0; i < c->traffic_count; i++)
        if (share * c->traffic[i].seconds >= 0.05)
            printf("        %-16s %-16s %10.4g s %6.1f %%\n", c->traffic[i].axes,
                   c->traffic[i].kind, c->traffic[i].seconds, share * c->traffic[i].seconds);
}

static int print_text(const ts_train_cost *c, double rate)
{
    printf("model   %lld parameters, %.4g FLOP per token\n", (long long)c->parameters,
           c->flops_per_token);
    print_mesh(c);
    print_parameters(c);
    print_memory(c);
    print_stages(c);
    print_time(c, rate);
    return 0;
}

int cli_train_plan(const ts_train_config *config, bool json, double flops)
{
    ts_train_cost cost;
    if (ts_train_forecast(config, &cost) != TS_OK) return cli_fail("train", "%s", ts_last_error());
    double rate = rate_of(flops, cost.ranks);
    return json ? print_json(&cost, rate) : print_text(&cost, rate);
}
