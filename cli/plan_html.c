/* SPDX-License-Identifier: Apache-2.0 */
/* plan_html.c - the page of a plan: what it costs, its steps, and the movement to be played.
 *
 * The tensor is shown as cells of two dims, the two that are cut most. Cells are cut wherever any
 * state of the plan, or a message of a direct exchange, has a border, so each moves as a whole;
 * where there are more than CELLS_MAX of them along a dim, that many are shown as samples. Other
 * dims are at index 0. */
#include <stdlib.h>
#include <string.h>

#include "html.h"
#include "plan.h"

enum { CELLS_MAX = 24, ELEMENTS_MAX = 12, PANELS_MAX = 64, FRAMES_MAX = 12, STATES_MAX = 64 };

typedef struct cuts { /* where cells begin along one dim, ascending and different */
    int64_t *at;
    int64_t count, capacity;
    bool failed;
} cuts;

typedef struct page {
    const plan_case *c;
    const ts_layout *state[STATES_MAX]; /* retained */
    int32_t states;
    int32_t ndim;
    ts_shape shape;
    cuts cut[TS_NDIM_MAX];
    int32_t row, column; /* dims shown; -1: none */
    bool sampled, direct, spans;
    int64_t rounds;
    ts_json_writer json;
} page;

/* ---- cells ----------------------------------------------------------------------------------- */
static void add_cut(cuts *list, int64_t position)
{
    int64_t low = 0, high = list->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (list->at[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < list->count && list->at[low] == position) return;
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        int64_t *at = realloc(list->at, (size_t)capacity * sizeof *at);
        if (at == NULL) {
            list->failed = true;
            return;
        }
        list->at = at;
        list->capacity = capacity;
    }
    memmove(list->at + low + 1, list->at + low, (size_t)(list->count - low) * sizeof *list->at);
    list->at[low] = position;
    list->count++;
}

static void add_layout_cuts(page *p, ts_mesh *mesh, const ts_layout *layout)
{
    layout_picture picture;
    if (!layout_picture_make(mesh, layout, &picture)) return;
    for (int32_t d = 0; d < picture.ndim; d++) {
        p->spans |= picture.dim[d].last > picture.dim[d].first;
        if (picture.ndim != p->ndim) continue;
        for (int64_t i = 0; i < picture.dim[d].count; i++)
            add_cut(&p->cut[d], picture.dim[d].piece[i].begin);
    }
    layout_picture_release(&picture);
}

/* Global index of an element of a rank's target block, by its place there. */
static void global_of(const page *p, const int64_t *coord, const ts_shape *local, int64_t offset,
                      int64_t *global)
{
    int64_t index[TS_NDIM_MAX];
    for (int32_t d = local->ndim - 1; d >= 0; d--) {
        index[d] = offset % local->extent[d];
        offset /= local->extent[d];
    }
    ts_layout_to_global(p->c->dst, coord, index, global);
}

/* The first and last element of a block say where it begins and ends in every dim. */
static void add_block_cuts(const ts_plan_block *block, void *context)
{
    page *p = context;
    int64_t coord[TS_NDIM_MAX], first[TS_NDIM_MAX], last[TS_NDIM_MAX], end = block->offset;
    if (block->round + 1 > p->rounds) p->rounds = block->round + 1;
    if (!ts_mesh_coord_of(p->c->dst_mesh, block->to, coord)) return;
    for (int32_t d = 0; d < block->ndim; d++)
        end += (block->extent[d] - 1) * block->stride[d];
    ts_shape local = ts_layout_local(p->c->dst, coord);
    global_of(p, coord, &local, block->offset, first);
    global_of(p, coord, &local, end, last);
    for (int32_t d = 0; d < p->ndim; d++) {
        add_cut(&p->cut[d], first[d]);
        if (last[d] + 1 < p->shape.extent[d]) add_cut(&p->cut[d], last[d] + 1);
    }
}

/* Small dims by element; too many cells become samples. */
static void finish_cuts(page *p, int32_t d)
{
    cuts *list = &p->cut[d];
    add_cut(list, 0);
    for (int64_t i = 0; i < p->shape.extent[d] && p->shape.extent[d] <= ELEMENTS_MAX; i++)
        add_cut(list, i);
    if (list->count <= CELLS_MAX) return;
    p->sampled = true;
    for (int64_t i = 0; i < CELLS_MAX; i++)
        list->at[i] = list->at[i * list->count / CELLS_MAX];
    list->count = CELLS_MAX;
}

/* The two dims with most cells, in their order. */
static void choose_dims(page *p)
{
    p->row = p->column = -1;
    for (int32_t d = 0; d < p->ndim; d++) {
        if (p->column < 0 || p->cut[d].count > p->cut[p->column].count) p->column = d;
    }
    for (int32_t d = 0; d < p->ndim; d++) {
        if (d != p->column && (p->row < 0 || p->cut[d].count > p->cut[p->row].count)) p->row = d;
    }
    if (p->row > p->column && p->row >= 0) {
        int32_t other = p->row;
        p->row = p->column;
        p->column = other;
    }
}

/* ---- states ---------------------------------------------------------------------------------- */
static ts_mesh *mesh_of(const page *p, int32_t state)
{
    return state == p->states - 1 ? p->c->dst_mesh : p->c->src_mesh;
}

static bool open_states(page *p)
{
    const plan_case *c = p->c;
    p->direct = c->summary.family == TS_PLAN_DIRECT || c->summary.family == TS_PLAN_HIERARCHICAL;
    p->state[p->states++] = ts_layout_retain(c->src);
    for (int32_t i = 0; !p->direct && i + 1 < c->summary.step_count && p->states < STATES_MAX - 1;
         i++) {
        const ts_layout *layout = plan_step_layout(c, i, true);
        if (layout == NULL) return false;
        p->state[p->states++] = layout;
    }
    p->state[p->states++] = ts_layout_retain(c->dst);
    return true;
}

/* What each cell along one dim adds to the number of its coordinate. */
static void put_keys(page *p, int32_t state, int32_t d, const char *name)
{
    ts_json_writer *json = &p->json;
    ts_mesh *mesh = mesh_of(p, state);
    const ts_sharding *sharding = ts_layout_sharding(p->state[state]);
    int64_t count = d >= 0 ? p->cut[d].count : 1;
    ts_json_put_key(json, name);
    ts_json_put_open(json, '[');
    for (int64_t i = 0; i < count; i++) {
        int64_t global[TS_NDIM_MAX] = { 0 }, coord[TS_NDIM_MAX] = { 0 }, key = 0, stride = 1;
        if (d >= 0) global[d] = p->cut[d].at[i];
        if (d >= 0 && ts_layout_owner(p->state[state], global, coord) == TS_OK) {
            for (int32_t k = ts_mesh_ndim(mesh) - 1; k >= 0; k--) {
                ts_placement place = ts_sharding_placement(sharding, k);
                bool cuts_it = place.kind != TS_PLACE_REPLICATE && place.kind != TS_PLACE_PARTIAL &&
                               place.kind != TS_PLACE_NORM && place.dim == d;
                if (cuts_it) key += coord[k] * stride;
                stride *= ts_mesh_axis_size(mesh, k);
            }
        }
        ts_json_put_int(json, key);
    }
    ts_json_put_close(json, ']');
}

static void put_axes(page *p, int32_t state, const char *name, bool partial)
{
    const ts_sharding *sharding = ts_layout_sharding(p->state[state]);
    ts_json_put_key(&p->json, name);
    ts_json_put_open(&p->json, '[');
    for (int32_t k = 0; k < ts_sharding_ndim(sharding); k++) {
        int32_t kind = ts_sharding_placement(sharding, k).kind;
        bool terms = kind == TS_PLACE_PARTIAL || kind == TS_PLACE_NORM;
        if (partial ? terms : kind == TS_PLACE_REPLICATE) ts_json_put_int(&p->json, k);
    }
    ts_json_put_close(&p->json, ']');
}

static void put_states(page *p)
{
    ts_json_put_key(&p->json, "states");
    ts_json_put_open(&p->json, '[');
    for (int32_t s = 0; s < p->states; s++) {
        ts_json_put_open(&p->json, '{');
        ts_json_put_member_int(&p->json, "mesh", s == p->states - 1);
        ts_json_put_member_int(&p->json, "base", 0); /* other dims are at 0, which adds nothing */
        put_keys(p, s, p->row, "row");
        put_keys(p, s, p->column, "col");
        put_axes(p, s, "replicated", false);
        put_axes(p, s, "partial", true);
        ts_json_put_close(&p->json, '}');
    }
    ts_json_put_close(&p->json, ']');
}

/* ---- frames ---------------------------------------------------------------------------------- */
typedef struct flights { /* of the blocks that one rank receives */
    page *p;
    int64_t coord[TS_NDIM_MAX];
    ts_shape local;
    int64_t round_first, round_end;
} flights;

/* Is the element at this offset of a row-major array in the strided block? */
static bool block_holds(const ts_plan_block *block, int64_t offset)
{
    offset -= block->offset;
    for (int32_t d = 0; d < block->ndim; d++) {
        if (block->extent[d] == 1 || block->stride[d] == 0) continue;
        int64_t steps = offset / block->stride[d];
        if (offset < 0) return false;
        if (steps >= block->extent[d]) steps = block->extent[d] - 1;
        offset -= steps * block->stride[d];
    }
    return offset == 0;
}

static void add_flights(const ts_plan_block *block, void *context)
{
    flights *f = context;
    page *p = f->p;
    if (block->round < f->round_first || block->round >= f->round_end) return;
    if (block->from == block->to) return;
    int64_t rows = p->row >= 0 ? p->cut[p->row].count : 1;
    int64_t columns = p->column >= 0 ? p->cut[p->column].count : 1;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int64_t global[TS_NDIM_MAX] = { 0 }, local[TS_NDIM_MAX], offset = 0;
            if (p->row >= 0) global[p->row] = p->cut[p->row].at[i];
            if (p->column >= 0) global[p->column] = p->cut[p->column].at[j];
            if (!ts_layout_to_local(p->c->dst, f->coord, global, local)) continue;
            for (int32_t d = 0; d < f->local.ndim; d++)
                offset = offset * f->local.extent[d] + local[d];
            bool terms = ts_layout_terms(p->c->src) > 1 && block->round % 2 == 0;
            if (block_holds(block, offset))
                ts_json_put_ints(&p->json, (int64_t[]){ block->from, block->to, i, j, terms }, 5);
        }
    }
}

static void put_flights(page *p, const int64_t *ranks, int64_t panels, int64_t first, int64_t end)
{
    ts_json_put_key(&p->json, "flows");
    ts_json_put_open(&p->json, '[');
    for (int64_t i = 0; i < panels; i++) {
        flights f = { .p = p, .round_first = first, .round_end = end };
        int64_t rank = ranks[i];
        if (!ts_mesh_coord_of(p->c->dst_mesh, rank, f.coord)) continue;
        f.local = ts_layout_local(p->c->dst, f.coord);
        (void)ts_plan_receives(p->c->plan, rank, add_flights, &f);
    }
    ts_json_put_close(&p->json, ']');
}

static void put_direct_frames(page *p, const int64_t *ranks, int64_t panels)
{
    int64_t frames = p->rounds < FRAMES_MAX ? p->rounds : FRAMES_MAX;
    for (int64_t i = 0; i < frames; i++) {
        ts_json_put_open(&p->json, '{');
        ts_json_put_member_int(&p->json, "step", 0);
        ts_json_put_member_int(&p->json, "round", i);
        ts_json_put_member_int(&p->json, "rounds", frames);
        put_flights(p, ranks, panels, i * p->rounds / frames, (i + 1) * p->rounds / frames);
        ts_json_put_member_int(&p->json, "after", i + 1 == frames ? p->states - 1 : -1);
        ts_json_put_close(&p->json, '}');
    }
}

static void put_step_frames(page *p)
{
    for (int32_t i = 0; i < p->states - 1 && i < p->c->summary.step_count; i++) {
        ts_plan_step step = { .struct_size = sizeof step };
        if (ts_plan_step_at(p->c->plan, i, &step) != TS_OK) continue;
        ts_json_put_open(&p->json, '{');
        ts_json_put_member_int(&p->json, "step", i);
        ts_json_put_member_int(&p->json, "before", i);
        ts_json_put_member_int(&p->json, "after", i + 1);
        ts_json_put_key(&p->json, "axes");
        ts_json_put_open(&p->json, '[');
        for (int32_t k = 0; k < ts_mesh_ndim(p->c->src_mesh); k++)
            if (step.axes >> k & 1u) ts_json_put_int(&p->json, k);
        ts_json_put_close(&p->json, ']');
        ts_json_put_close(&p->json, '}');
    }
}

/* ---- data ------------------------------------------------------------------------------------ */
static void put_mesh(page *p, ts_mesh *mesh)
{
    int64_t count = ts_mesh_size(mesh, NULL);
    ts_json_put_open(&p->json, '{');
    ts_json_put_key(&p->json, "sizes");
    ts_json_put_open(&p->json, '[');
    for (int32_t k = 0; k < ts_mesh_ndim(mesh); k++)
        ts_json_put_int(&p->json, ts_mesh_axis_size(mesh, k));
    ts_json_put_close(&p->json, ']');
    ts_json_put_key(&p->json, "ranks");
    ts_json_put_open(&p->json, '[');
    for (int64_t i = 0; i < count; i++)
        ts_json_put_int(&p->json, layout_rank(mesh, i));
    ts_json_put_close(&p->json, ']');
    ts_json_put_close(&p->json, '}');
}

static void put_cells(page *p, int32_t d, const char *name)
{
    ts_json_put_key(&p->json, name);
    ts_json_put_open(&p->json, '[');
    for (int64_t i = 0; i < (d >= 0 ? p->cut[d].count : 1); i++)
        ts_json_put_int(&p->json, d >= 0 ? p->cut[d].at[i] : 0);
    ts_json_put_close(&p->json, ']');
}

/* Ranks of either mesh, ascending, PANELS_MAX at most; returns how many. */
static int64_t choose_panels(const page *p, int64_t *ranks)
{
    int64_t count = 0, coord[TS_NDIM_MAX];
    for (int64_t rank = 0; rank < p->c->ranks && count < PANELS_MAX; rank++) {
        if (ts_mesh_coord_of(p->c->src_mesh, rank, coord) ||
            ts_mesh_coord_of(p->c->dst_mesh, rank, coord))
            ranks[count++] = rank;
    }
    return count;
}

/* Panels in a line: the last axis if it is short enough. */
static int64_t panel_columns(const page *p, int64_t panels)
{
    int64_t last = ts_mesh_axis_size(p->c->src_mesh, ts_mesh_ndim(p->c->src_mesh) - 1);
    if (last > 1 && last <= 8 && panels % last == 0 && panels / last <= 8) return last;
    return panels < 8 ? panels : 8;
}

static void put_data(page *p)
{
    int64_t ranks[PANELS_MAX], panels = choose_panels(p, ranks);
    char *from = layout_sharding_text(ts_layout_sharding(p->c->src));
    char *to = layout_sharding_text(ts_layout_sharding(p->c->dst));
    ts_json_put_open(&p->json, '{');
    ts_json_put_key(&p->json, "plan");
    (void)plan_answer(p->c, NULL, &p->json);
    ts_json_put_member_text(&p->json, "from", from);
    ts_json_put_member_text(&p->json, "to", to);
    ts_json_put_key(&p->json, "meshes");
    ts_json_put_open(&p->json, '[');
    put_mesh(p, p->c->src_mesh);
    put_mesh(p, p->c->dst_mesh);
    ts_json_put_close(&p->json, ']');
    ts_json_put_key(&p->json, "ranks");
    ts_json_put_ints(&p->json, ranks, panels);
    ts_json_put_member_int(&p->json, "columns", panel_columns(p, panels));
    put_cells(p, p->row, "rows");
    put_cells(p, p->column, "cols");
    put_states(p);
    ts_json_put_key(&p->json, "frames");
    ts_json_put_open(&p->json, '[');
    if (p->direct)
        put_direct_frames(p, ranks, panels);
    else
        put_step_frames(p);
    ts_json_put_close(&p->json, ']');
    ts_json_put_close(&p->json, '}');
    free(from);
    free(to);
}

/* ---- words ----------------------------------------------------------------------------------- */
static void put_fact(FILE *out, const char *value, const char *name)
{
    fputs("<div><b>", out);
    html_text(out, value);
    fputs("</b><span>", out);
    html_text(out, name);
    fputs("</span></div>\n", out);
}

static void put_head(const plan_case *c, FILE *out)
{
    char text[128], why[512];
    ts_shape shape = ts_layout_shape(c->src);
    char *mesh = layout_mesh_text(c->src_mesh), *to_mesh = layout_mesh_text(c->dst_mesh);
    char *from = layout_sharding_text(ts_layout_sharding(c->src));
    char *to = layout_sharding_text(ts_layout_sharding(c->dst));
    const char *parts[] = { mesh, from, to, to_mesh };
    static const char *const words[] = { "</code> on mesh <code>", "</code>: <code>",
                                         "</code> &rarr; <code>", "</code> on mesh <code>" };
    fprintf(out, "<h1>How it moves</h1>\n<p class=\"soft\"><code>%s %s",
            layout_shape_text(&shape, text, sizeof text), ts_dtype_name(c->dtype));
    for (int i = 0; i < (c->dst_mesh != c->src_mesh ? 4 : 3); i++) {
        fputs(words[i], out);
        html_text(out, parts[i] != NULL ? parts[i] : "");
    }
    fputs("</code></p>\n", out);
    (void)ts_plan_why(c->plan, why, sizeof why);
    fputs("<p>", out);
    html_text(out, why);
    fputs(".</p>\n", out);
    free(mesh);
    free(to_mesh);
    free(from);
    free(to);
}

static void put_facts(const plan_case *c, FILE *out)
{
    const ts_plan_summary *s = &c->summary;
    char text[64], name[96], other[64];
    fputs("<div class=\"facts\">\n", out);
    put_fact(out, ts_plan_family_name((ts_plan_family)s->family), "family");
    put_fact(out, cli_bytes(text, sizeof text, s->bytes_received), "received, all ranks");
    if (s->bytes_bound > 0 && s->bytes_received > s->bytes_bound)
        (void)snprintf(name, sizeof name, "lower bound; %.2f times it",
                       (double)s->bytes_received / (double)s->bytes_bound);
    else
        (void)snprintf(name, sizeof name, "lower bound; no gap");
    put_fact(out, cli_bytes(text, sizeof text, s->bytes_bound), name);
    put_fact(out, cli_seconds(text, sizeof text, s->time_us * 1e-6), "predicted");
    put_fact(out, cli_bytes(text, sizeof text, s->peak_bytes), "extra memory, worst rank");
    if (s->other_family != TS_PLAN_NONE) {
        (void)snprintf(other, sizeof other, "%s%s", s->other_bounded ? "\xe2\x89\xa5 " : "",
                       cli_seconds(text, sizeof text, s->other_us * 1e-6));
        (void)snprintf(name, sizeof name, "%s, the alternative",
                       ts_plan_family_name((ts_plan_family)s->other_family));
        put_fact(out, other, name);
    }
    fputs("</div>\n", out);
}

static void put_steps(const plan_case *c, FILE *out)
{
    char text[256];
    if (c->summary.step_count == 0) return;
    fputs("<h2>Steps</h2>\n<div class=\"scroll\"><table><tr><th>step</th><th>kind</th><th>axes</th>"
          "<th>from</th><th>to</th><th class=\"n\">received</th><th class=\"n\">time</th></tr>\n",
          out);
    for (int32_t i = 0; i < c->summary.step_count; i++) {
        ts_plan_step step = { .struct_size = sizeof step };
        if (ts_plan_step_at(c->plan, i, &step) != TS_OK) continue;
        fprintf(out, "<tr class=\"step\" id=\"step%d\"><td>%d</td><td>%s</td><td>", i, i + 1,
                ts_step_kind_name((ts_step_kind)step.kind));
        html_text(out, plan_axes_text(c->src_mesh, step.axes, text, sizeof text));
        (void)ts_plan_step_from(c->plan, i, text, sizeof text);
        fprintf(out, "</td><td>%s</td>", text);
        (void)ts_plan_step_to(c->plan, i, text, sizeof text);
        fprintf(out, "<td>%s</td>", text);
        fprintf(out, "<td class=\"n\">%s</td>", cli_bytes(text, sizeof text, step.bytes_received));
        fprintf(out, "<td class=\"n\">%s</td></tr>\n",
                cli_seconds(text, sizeof text, step.time_us * 1e-6));
    }
    fputs("</table></div>\n", out);
}

/* What the cells are. */
static void put_note(const page *p, FILE *out)
{
    fputs("<p class=\"soft\">Every panel is the whole tensor as one rank sees it; what it holds is "
          "coloured by where it was at first. ",
          out);
    if (p->ndim > 2)
        fprintf(out, "Shown are dims %d and %d, the others at index 0. ", p->row, p->column);
    bool blocks = false;
    for (int32_t d = 0; d < p->ndim; d++)
        blocks |= (d == p->row || d == p->column) && p->cut[d].count < p->shape.extent[d];
    if (p->sampled)
        fputs("The tensor is scaled down: a cell stands for one of many blocks. ", out);
    else if (blocks)
        fputs("A cell is a block of elements that moves as a whole. ", out);
    if (p->c->ranks > PANELS_MAX)
        fprintf(out, "The first %d of %lld ranks are shown. ", PANELS_MAX, (long long)p->c->ranks);
    fputs("Stripes are terms that are still to be combined.</p>\n", out);
}

static void put_stage(const page *p, FILE *out)
{
    fputs("<div class=\"card\">\n<div class=\"pair\"><div><h2>Before</h2><canvas id=\"before\">"
          "</canvas><p class=\"soft\" id=\"before-note\"></p></div>\n<div><h2>After</h2><canvas "
          "id=\"after\"></canvas><p class=\"soft\" id=\"after-note\"></p></div></div>\n</div>\n"
          "<h2>The movement</h2>\n<div class=\"card\">\n<div class=\"scroll\"><canvas id=\"stage\">"
          "</canvas></div>\n<div class=\"player\"><button id=\"play\">Play</button><button "
          "id=\"start\">Before</button><input id=\"slider\" type=\"range\" min=\"0\" value=\"0\" "
          "aria-label=\"time\"><button id=\"end\">After</button></div>\n<div id=\"now\"></div>\n",
          out);
    put_note(p, out);
    fputs("</div>\n", out);
}

/* ---- the whole ------------------------------------------------------------------------------- */
static bool page_open(page *p)
{
    const plan_case *c = p->c;
    p->shape = ts_layout_shape(c->src);
    p->ndim = p->shape.ndim;
    if (!open_states(p)) return false;
    for (int32_t s = 0; s < p->states; s++)
        add_layout_cuts(p, mesh_of(p, s), p->state[s]);
    if (p->direct && !p->spans) {
        int64_t most = c->ranks < PANELS_MAX ? c->ranks : PANELS_MAX;
        for (int64_t rank = 0; rank < most; rank++) {
            if (ts_plan_receives(c->plan, rank, add_block_cuts, p) != TS_OK) return false;
        }
    }
    bool good = true;
    for (int32_t d = 0; d < p->ndim; d++) {
        finish_cuts(p, d);
        good &= !p->cut[d].failed;
    }
    choose_dims(p);
    return good;
}

static void page_close(page *p)
{
    for (int32_t s = 0; s < p->states; s++)
        ts_layout_release(p->state[s]);
    for (int32_t d = 0; d < TS_NDIM_MAX; d++)
        free(p->cut[d].at);
    ts_json_writer_release(&p->json);
}

int plan_write_html(const plan_case *c, const char *path)
{
    page p = { .c = c };
    int code = 0;
    bool made = page_open(&p);
    ts_shape shape = ts_layout_shape(c->src);
    bool empty = ts_shape_count(&shape) == 0 || p.spans || c->ranks > LAYOUT_RANKS_MAX;
    static const char *const no_script[] = { "document.body.dataset.drawn = 0;", NULL };
    FILE *out = made ? html_open("plan", "html", path) : NULL;
    if (!made) code = cli_fail("plan", "the page cannot be made: out of memory");
    if (out == NULL) {
        page_close(&p);
        return 1;
    }
    html_begin(out, "tessera plan", plan_page_style);
    put_head(c, out);
    put_facts(c, out);
    if (empty) {
        (void)plan_answer(c, NULL, &p.json);
        fputs("<p class=\"soft\">There is no picture of it: the tensor is empty, or dims are cut "
              "as one.</p>\n",
              out);
    } else {
        put_data(&p);
        put_stage(&p, out);
    }
    put_steps(c, out);
    html_end(out, &p.json, empty ? no_script : plan_page_script);
    code = html_close("plan", path, out);
    if (p.json.failed) code = cli_fail("plan", "out of memory");
    page_close(&p);
    return code;
}
