/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - `tessera plan`: how a tensor gets from one layout to another, before anything moves. */
#include "plan.h"

#include <string.h>

typedef struct command {
    plan_request request;
    const char *shape, *html, *batch;
    bool json, check;
} command;

static const char more[] =
    "Meshes and placements are written as for `tessera layout`. Topologies: reference-cpu,\n"
    "8xh100, 8xh200, torus, ethernet, threads, or a file. A batch has one JSON object a line:\n"
    "mesh, tensor, src, dst; optional dtype, dst_mesh, planner, topology, budget, check.\n\n"
    "  tessera plan --mesh \"a=2, b=4\" --shape 1024x128 --from \"S(1), P(sum)\" "
    "--to \"R, S(1)\"\n";

static int run_one(command *self, ts_world *world)
{
    char error[LAYOUT_ERROR_MAX], verdict[LAYOUT_ERROR_MAX];
    plan_case c;
    if (!layout_read_shape(self->shape, &self->request.shape, error, sizeof error))
        return cli_fail_usage("plan", "--shape: %s", error);
    if (!plan_open(world, &self->request, &c, error, sizeof error))
        return cli_fail_usage("plan", "%s", error);
    bool good = !self->check || plan_check(&c, &self->request, verdict, sizeof verdict);
    const char *check = self->check ? verdict : NULL;
    int code = 0;
    if (self->html != NULL) code = plan_write_html(&c, self->html);
    if (self->json) {
        ts_json_writer json = { 0 };
        if (!plan_answer(&c, check, &json))
            code = cli_fail("plan", "out of memory");
        else
            code |= cli_json_print(&json, stdout);
        ts_json_writer_release(&json);
    } else if (self->html == NULL) {
        plan_print(&c, check, stdout);
    }
    plan_close(&c);
    return good ? code : 1;
}

static int check_usage(const command *self, int argc, char **argv)
{
    const plan_request *r = &self->request;
    if (argc > 1) return cli_fail_usage("plan", "unexpected argument \"%s\"", argv[1]);
    bool asked = r->mesh != NULL || self->shape != NULL || r->from != NULL || r->to != NULL;
    if (self->batch != NULL && (asked || self->html != NULL)) {
        return cli_fail_usage("plan", "--batch reads its requests: it goes with --planner, "
                                      "--topology and --check only");
    }
    if (self->batch == NULL &&
        (r->mesh == NULL || self->shape == NULL || r->from == NULL || r->to == NULL)) {
        return cli_fail_usage("plan", "--mesh, --shape, --from and --to are needed, or --batch; "
                                      "see tessera plan --help");
    }
    return -1;
}

int cli_plan(int argc, char **argv)
{
    command self = { 0 };
    plan_request *r = &self.request;
    const cli_option options[] = {
        CLI_TEXT("mesh", &r->mesh, "TEXT", "axes and sizes, as \"dp=2, tp=4\""),
        CLI_TEXT("to-mesh", &r->to_mesh, "TEXT", "the target's mesh, if it is another"),
        CLI_TEXT("shape", &self.shape, "7x5", "of the whole tensor"),
        CLI_TEXT("from", &r->from, "TEXT", "placements of the source, as \"S(0), P(sum)\""),
        CLI_TEXT("to", &r->to, "TEXT", "placements of the target"),
        CLI_TEXT("dtype", &r->dtype, "NAME", "f32 (default), bf16, i64, c64, ..."),
        CLI_TEXT("planner", &r->planner, "NAME",
                 "auto (default), collectives, direct, greedy, graph"),
        CLI_TEXT("topology", &r->topology, "NAME|FILE", "a preset, or a file of bench comm"),
        CLI_SIZE("budget", &r->budget, 0, INT64_MAX, "extra memory of a rank; 0: no limit"),
        CLI_FLAG("check", &self.check, "run it on thread ranks and compare every number"),
        CLI_TEXT("html", &self.html, "FILE", "a page that plays the movement"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_TEXT("batch", &self.batch, "FILE", "one request a line; - is standard input"),
        CLI_END
    };
    const cli_usage usage = {
        "plan", "--mesh TEXT --shape 7x5 --from TEXT --to TEXT | --batch FILE",
        "Shows how a redistribution goes: steps, who talks to whom, bytes, time, memory, and why.",
        options, more
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    code = check_usage(&self, argc, argv);
    if (code >= 0) return code;
    ts_world *world = layout_world("plan");
    if (world == NULL) return 1;
    plan_defaults batch = { world, r->planner, r->topology, self.check };
    if (self.batch != NULL)
        code = cli_batch("plan", self.batch, plan_serve, &batch);
    else
        code = run_one(&self, world);
    ts_world_close(world);
    return code;
}
