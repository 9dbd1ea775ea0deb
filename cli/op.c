/* SPDX-License-Identifier: Apache-2.0 */
/* op.c - `tessera op`: what an operator call does on a mesh, before anything runs. */
#include "op.h"

#include <stdlib.h>
#include <string.h>

typedef struct command {
    op_request request;
    cli_list in, attributes;
    const char *batch;
    bool json, list, markdown;
} command;

static const char more[] =
    "An input is a shape and its placements, \"8x12 S(0), R\"; \"-\" is an absent optional one. "
    "Names\n"
    "of operators and attributes: tessera op --list. A form in place ends in _. A batch has one "
    "JSON\n"
    "object a line: mesh, op, attrs, shapes, in; optional dtype, policy, check.\n\n"
    "  tessera op matmul --mesh \"x=4\" --in \"8x12 S(0)\" --in \"12x16 R\"\n"
    "  tessera op softmax --mesh \"x=4\" --in \"8x12 S(1)\" --attr dim=1 --check\n";

/* ---- the command line ------------------------------------------------------------------------ */
/* "8x12 S(0), R": a shape up to the first blank, then placements. */
static bool read_input(op_request *r, const char *text, char *error, size_t size)
{
    int32_t i = r->input_count++;
    char shape[256];
    if (strcmp(text, "-") == 0) {
        r->absent[i] = true;
        return true;
    }
    size_t length = strcspn(text, " ");
    (void)snprintf(shape, sizeof shape, "%.*s", (int)length, text);
    if (!layout_read_shape(shape, &r->shape[i], error, size)) return false;
    const char *rest = text + length + strspn(text + length, " ");
    r->placements[i] = strdup(*rest != '\0' ? rest : "R");
    return r->placements[i] != NULL;
}

/* Does a value read as JSON, or is it a bare word? */
static bool is_json(const char *text)
{
    return strchr("0123456789-[{\"", text[0]) != NULL || strcmp(text, "true") == 0 ||
           strcmp(text, "false") == 0 || strcmp(text, "null") == 0;
}

/* name=value, name=value ... as a JSON object, to be released. */
static int read_attributes(const cli_list *list, ts_json_writer *out)
{
    ts_json_put_open(out, '{');
    for (size_t i = 0; i < list->count; i++) {
        const char *equals = strchr(list->item[i], '=');
        char name[64];
        if (equals == NULL || equals == list->item[i])
            return cli_fail_usage("op", "--attr: expected name=value, found \"%s\"", list->item[i]);
        (void)snprintf(name, sizeof name, "%.*s", (int)(equals - list->item[i]), list->item[i]);
        ts_json_put_key(out, name);
        if (equals[1] != '\0' && is_json(equals + 1))
            ts_json_put_raw(out, equals + 1, strlen(equals + 1));
        else
            ts_json_put_text(out, equals + 1);
    }
    ts_json_put_close(out, '}');
    return out->failed ? cli_fail("op", "out of memory") : -1;
}

/* ---- one call -------------------------------------------------------------------------------- */
static void print_words(const op_case *c, const char *check)
{
    size_t length = ts_op_query_text(c->query, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL) return;
    (void)ts_op_query_text(c->query, text, length + 1);
    fputs(text, stdout);
    if (check != NULL) printf("  check: %s\n", check);
    free(text);
}

static int run_one(command *self, ts_world *world)
{
    char error[LAYOUT_ERROR_MAX], verdict[LAYOUT_ERROR_MAX];
    op_case c;
    if (!op_open(world, &self->request, &c, error, sizeof error))
        return cli_fail_usage("op", "%s", error);
    bool good = !self->request.check || op_check(&c, verdict, sizeof verdict);
    const char *check = self->request.check ? verdict : NULL;
    int code = 0;
    if (self->json) {
        ts_json_writer json = { 0 };
        if (!op_answer(&c, check, &json))
            code = cli_fail("op", "out of memory");
        else
            code = cli_json_print(&json, stdout);
        ts_json_writer_release(&json);
    } else {
        print_words(&c, check);
    }
    op_close(&c);
    return good ? code : 1;
}

static int run_named(command *self, const char *name, ts_world *world)
{
    ts_json_writer attributes = { 0 };
    char error[LAYOUT_ERROR_MAX] = "";
    int code = -1;
    self->request.op = name;
    for (size_t i = 0; i < self->in.count && code < 0; i++)
        if (!read_input(&self->request, self->in.item[i], error, sizeof error))
            code = cli_fail_usage("op", "--in %s: %s", self->in.item[i], error);
    if (code < 0) code = read_attributes(&self->attributes, &attributes);
    if (code < 0) {
        self->request.attributes = attributes.data;
        code = run_one(self, world);
    }
    ts_json_writer_release(&attributes);
    op_request_release(&self->request);
    return code;
}

static int check_usage(const command *self, int argc, char **argv)
{
    bool asked = self->request.mesh != NULL || self->in.count > 0 || argc > 1;
    if (argc > 2) return cli_fail_usage("op", "unexpected argument \"%s\"", argv[2]);
    if ((self->list || self->batch != NULL) && asked)
        return cli_fail_usage("op", "--list and --batch go without an operator and its inputs");
    if (self->markdown && !self->list) return cli_fail_usage("op", "--markdown goes with --list");
    if (!self->list && self->batch == NULL &&
        (argc < 2 || self->request.mesh == NULL || self->in.count == 0))
        return cli_fail_usage("op",
                              "a name, --mesh and --in are needed, or --list, or --batch; see "
                              "tessera op --help");
    return -1;
}

int cli_op(int argc, char **argv)
{
    command self = { 0 };
    op_request *r = &self.request;
    const cli_option options[] = {
        CLI_TEXT("mesh", &r->mesh, "TEXT", "axes and sizes, as \"dp=2, tp=4\""),
        CLI_LIST("in", &self.in, "\"8x12 S(0)\"", "an input: shape and placements; once for each"),
        CLI_LIST("attr", &self.attributes, "NAME=VALUE", "an attribute, as dim=1, dims=[0,1]"),
        CLI_TEXT("dtype", &r->dtype, "NAME",
                 "of inputs that hold numbers; f32 (default), bf16, ..."),
        CLI_TEXT("policy", &r->policy, "NAME", "implicit moves: allow (default) or forbid"),
        CLI_FLAG("check", &r->check, "run it on thread ranks and compare with one rank"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_TEXT("batch", &self.batch, "FILE", "one request a line; - is standard input"),
        CLI_FLAG("list", &self.list, "the table of operators"),
        CLI_FLAG("markdown", &self.markdown, "with --list: as docs/ops.md"),
        CLI_END
    };
    const cli_usage usage = {
        "op", "NAME --mesh TEXT --in \"8x12 S(0)\" ... | --list | --batch FILE",
        "Shows what an operator call does: rule, moves, bytes, result, the alternatives.", options,
        more
    };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    code = check_usage(&self, argc, argv);
    if (code >= 0) return code;
    if (self.list) return op_list(self.json, self.markdown);
    ts_world *world = layout_world("op");
    if (world == NULL) return 1;
    op_defaults defaults = { world, r->dtype, r->policy, r->check };
    if (self.batch != NULL)
        code = cli_batch("op", self.batch, op_serve, &defaults);
    else
        code = run_named(&self, argv[1], world);
    ts_world_close(world);
    return code;
}
