/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c - `tessera layout`: who holds what, for a person, a browser or a machine. */
#include "layout.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

typedef struct command {
    const char *mesh, *shape, *place, *svg, *html, *batch, *slice;
    bool json, elements, to_strided, all;
} command;

static const char more[] =
    "A mesh is \"dp=2, tp=4\"; placements are one per axis: R, S(d), SS(d,f), RS(d:3,5,0),\n"
    "HT(d), P(sum), P(norm:2); \"S(0)[1], S(0)[0]\" gives the order of cuts. A batch has one\n"
    "JSON object a line: {\"mesh\": [2, 3], \"tensor\": [7, 5], \"placements\": [\"S(0)\", "
    "\"R\"]}.\n"
    "\n"
    "  tessera layout --mesh \"a=2, b=3\" --shape 7x5 --place \"S(0), SS(1,2)\"\n";

static void choose_look(layout_look *look)
{
    struct winsize size = { 0 };
    const char *plain = getenv("NO_COLOR");
    bool terminal = isatty(STDOUT_FILENO) == 1;
    look->colour = terminal && (plain == NULL || plain[0] == '\0');
    look->width = 100;
    if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
        look->width = size.ws_col;
}

/* --slice "0,3": indices of the leading dims. */
static int read_slice(const command *self, const layout_picture *picture, layout_look *look)
{
    ts_shape index;
    char error[LAYOUT_ERROR_MAX];
    if (self->slice == NULL) return 0;
    if (!layout_read_shape(self->slice, &index, error, sizeof error))
        return cli_fail_usage("layout", "--slice: %s", error);
    if (index.ndim != picture->ndim - 2) {
        return cli_fail_usage("layout",
                              "--slice: expected %d indices, of the leading dims; found %d",
                              picture->ndim > 2 ? picture->ndim - 2 : 0, index.ndim);
    }
    for (int32_t d = 0; d < index.ndim; d++) {
        if (index.extent[d] >= picture->dim[d].extent) {
            return cli_fail_usage("layout", "--slice: index %lld is outside dim %d of size %lld",
                                  (long long)index.extent[d], d, (long long)picture->dim[d].extent);
        }
    }
    memcpy(look->slice, index.extent, sizeof look->slice);
    look->sliced = true;
    return 0;
}

static int print_json(const command *self, ts_mesh *mesh, const ts_layout *layout)
{
    ts_json_writer json = { 0 };
    char error[LAYOUT_ERROR_MAX];
    ts_shape shape = ts_layout_shape(layout);
    char *mesh_text = layout_mesh_text(mesh);
    char *placements = layout_sharding_text(ts_layout_sharding(layout));
    ts_json_put_open(&json, '{');
    ts_json_put_member_text(&json, "mesh", mesh_text);
    ts_json_put_key(&json, "tensor");
    ts_json_put_ints(&json, shape.extent, shape.ndim);
    ts_json_put_member_text(&json, "placements", placements);
    ts_json_put_member_int(&json, "replicas", ts_layout_replicas(layout));
    ts_json_put_member_int(&json, "terms", ts_layout_terms(layout));
    ts_json_put_member_int(&json, "layout_bytes", (int64_t)ts_layout_bytes(layout));
    bool good = layout_answer(mesh, layout, self->elements, &json, error, sizeof error);
    ts_json_put_close(&json, '}');
    int code = good ? cli_json_print(&json, stdout) : cli_fail("layout", "%s", error);
    ts_json_writer_release(&json);
    free(mesh_text);
    free(placements);
    return code;
}

static int print_strided(ts_mesh *mesh, const char *placements, const ts_shape *shape)
{
    ts_json_writer json = { 0 };
    char error[LAYOUT_ERROR_MAX];
    ts_json_put_open(&json, '{');
    bool good = layout_answer_strided(mesh, placements, shape, &json, error, sizeof error);
    ts_json_put_close(&json, '}');
    int code = good ? cli_json_print(&json, stdout) : cli_fail("layout", "%s", error);
    ts_json_writer_release(&json);
    return code;
}

/* Pictures that were asked for; the terminal's where nothing else was. */
static int draw(const command *self, ts_mesh *mesh, const ts_layout *layout)
{
    layout_look look = { .all = self->all };
    layout_picture picture;
    choose_look(&look);
    if (!layout_picture_make(mesh, layout, &picture))
        return cli_fail("layout", "the picture cannot be made: %s", ts_last_error());
    int code = read_slice(self, &picture, &look);
    if (code == 0 && self->svg != NULL) code = layout_write_svg(&picture, &look, self->svg);
    if (code == 0 && self->html != NULL) code = layout_write_html(&picture, self->html);
    if (code == 0 && self->svg == NULL && self->html == NULL) layout_print(&picture, &look, stdout);
    layout_picture_release(&picture);
    return code;
}

static int run_one(const command *self, ts_world *world)
{
    char error[LAYOUT_ERROR_MAX];
    ts_shape shape = { 0 };
    if (self->shape != NULL && !layout_read_shape(self->shape, &shape, error, sizeof error))
        return cli_fail_usage("layout", "--shape: %s", error);
    ts_mesh *mesh = layout_mesh(world, self->mesh, error, sizeof error);
    if (mesh == NULL) return cli_fail_usage("layout", "--mesh: %s", error);
    int code = 0;
    if (self->to_strided) {
        code = print_strided(mesh, self->place, self->shape != NULL ? &shape : NULL);
    } else {
        const ts_layout *layout =
            layout_make(mesh, self->place, shape, "--place", error, sizeof error);
        if (layout == NULL)
            code = cli_fail_usage("layout", "%s", error);
        else if (self->json)
            code = print_json(self, mesh, layout);
        if (layout != NULL && (!self->json || self->svg != NULL || self->html != NULL))
            code |= draw(self, mesh, layout);
        ts_layout_release(layout);
    }
    ts_mesh_release(mesh);
    return code;
}

static int check(const command *self, int argc, char **argv)
{
    if (argc > 1) return cli_fail_usage("layout", "unexpected argument \"%s\"", argv[1]);
    if (self->batch != NULL) {
        if (self->mesh != NULL || self->shape != NULL || self->place != NULL || self->svg != NULL ||
            self->html != NULL) {
            return cli_fail_usage("layout", "--batch reads its requests: it goes with --elements "
                                            "and --to-strided only");
        }
        return -1;
    }
    if (self->mesh == NULL || self->place == NULL || (self->shape == NULL && !self->to_strided)) {
        return cli_fail_usage("layout", "--mesh, --shape and --place are needed, or --batch; see "
                                        "tessera layout --help");
    }
    return -1;
}

int cli_layout(int argc, char **argv)
{
    command self = { 0 };
    const cli_option options[] = {
        CLI_TEXT("mesh", &self.mesh, "TEXT", "axes and sizes, as \"dp=2, tp=4\""),
        CLI_TEXT("shape", &self.shape, "7x5", "of the whole tensor"),
        CLI_TEXT("place", &self.place, "TEXT", "one placement per axis, as \"S(0), R\""),
        CLI_TEXT("slice", &self.slice, "I,J", "indices of the leading dims to show"),
        CLI_FLAG("all", &self.all, "every slice and every rank"),
        CLI_TEXT("svg", &self.svg, "FILE", "a drawing"),
        CLI_TEXT("html", &self.html, "FILE", "a page that stands alone"),
        CLI_FLAG("json", &self.json, "one JSON object"),
        CLI_FLAG("elements", &self.elements,
                 "with --json, --batch: global indices too (16,777,216 at most)"),
        CLI_FLAG("to-strided", &self.to_strided, "write orders of cuts as strided shards"),
        CLI_TEXT("batch", &self.batch, "FILE", "one request a line; - is standard input"),
        CLI_END
    };
    const cli_usage usage = { "layout", "--mesh TEXT --shape 7x5 --place TEXT | --batch FILE",
                              "Shows which rank holds which part of a tensor.", options, more };
    int code = cli_parse(&usage, &argc, argv);
    if (code >= 0) return code;
    code = check(&self, argc, argv);
    if (code >= 0) return code;
    ts_world *world = layout_world("layout");
    if (world == NULL) return 1;
    layout_options batch = { self.elements, self.to_strided, world };
    if (self.batch != NULL)
        code = cli_batch("layout", self.batch, layout_serve, &batch);
    else
        code = run_one(&self, world);
    ts_world_close(world);
    return code;
}
