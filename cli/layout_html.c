/* SPDX-License-Identifier: Apache-2.0 */
/* layout_html.c - the page of a layout: a picture that answers the mouse, and the table.
 *
 * The page holds the pieces of every dim (layout.h), not the elements: owner, coordinate and both
 * indices of the element under the mouse follow from them, so a page stays small however large the
 * tensor is. */
#include <stdlib.h>

#include "html.h"
#include "layout.h"

enum { PAGE_PIECES_MAX = 512, PAGE_ROWS_MAX = 256 };

/* clang-format off */
static const char *const style[] = {
"#stage { position: relative; }",
"canvas { display: block; border-radius: 4px; cursor: crosshair; }",
"#tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper);",
"  padding: 7px 10px; border-radius: 7px; font-size: 13px; line-height: 1.45; display: none;",
"  z-index: 2; max-width: 380px; box-shadow: 0 4px 18px #0004; }",
"#tip b { font-weight: 650; }",
".legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 14px;",
"  font-size: 13px; }",
".legend span { cursor: default; white-space: nowrap; }",
".controls { display: flex; flex-wrap: wrap; gap: 6px 24px; margin-bottom: 12px; }",
".controls label { display: flex; align-items: center; gap: 8px; font-size: 13px; }",
    NULL
};

static const char *const script[] = {
"const n = data.sizes.length, owners = data.owners;",
"const dims = data.dims, rowDim = dims.length > 1 ? dims[dims.length - 2] : null;",
"const colDim = dims.length > 0 ? dims[dims.length - 1] : null;",
"const leading = dims.slice(0, Math.max(0, dims.length - 2));",
"const slice = leading.map(() => 0);",
"const one = { extent: 1, pieces: [[0, 1, 0, 0, 0]] };",
"const rows = rowDim || one, cols = colDim || one;",
"const canvas = document.getElementById('canvas'), tip = document.getElementById('tip');",
"let lit = -1;",
"function rankOf(number) { return data.ranks ? data.ranks[number] : number; }",
"function pieceAt(dim, position) {",
"  let low = 0, high = dim.pieces.length;",
"  while (low < high) {",
"    const middle = (low + high) >> 1;",
"    if (dim.pieces[middle][1] <= position) low = middle + 1; else high = middle;",
"  }",
"  return dim.pieces[low];",
"}",
"function ownerIndex(number) {",
"  const coord = unravel(number, data.sizes);",
"  return data.cut.reduce((sum, k) => sum * data.sizes[k] + coord[k], 0);",
"}",
"function holders(number) {",
"  let all = [number];",
"  for (const k of data.shared) {",
"    let stride = 1;",
"    for (let j = k + 1; j < n; j++) stride *= data.sizes[j];",
"    all = all.flatMap(x => Array.from({ length: data.sizes[k] }, (_, i) => x + i * stride));",
"    if (all.length > 64) break;",
"  }",
"  return all.map(rankOf);",
"}",
"function rankList(number) {",
"  const list = holders(number);",
"  const more = list.length > 8 ? ' \\u2026' : '';",
"  return (list.length > 1 ? 'ranks ' : 'rank ') + list.slice(0, 8).join(', ') + more;",
"}",
"function coordText(number) {",
"  return unravel(number, data.sizes).map((c, k) => {",
"    const name = data.names[k] || 'axis ' + k;",
"    return data.shared.includes(k) && data.sizes[k] > 1 ? name + '=any' : name + '=' + c;",
"  }).join(', ');",
"}",
"function localExtent(dim, key) {",
"  return dim.pieces.reduce((sum, p) => sum + (p[3] === key ? p[1] - p[0] : 0), 0);",
"}",
"/* Pixels: small tensors have square cells, large ones are scaled. */",
"const room = Math.min(1036, document.getElementById('stage').clientWidth || 1036);",
"const side = Math.max(1, Math.min(34, Math.floor((room - 48) / Math.max(cols.extent, 1))));",
"const square = side >= 9 && rows.extent * side <= 900;",
"const wide = cols.extent * side;",
"const width = square ? wide : Math.min(room - 48, Math.max(240, wide));",
"const height = square ? rows.extent * side",
"  : rowDim ? Math.max(160, Math.min(560, rows.extent * Math.max(1, side))) : 64;",
"const left = 44, top = 22, scaleX = width / Math.max(cols.extent, 1);",
"const scaleY = height / Math.max(rows.extent, 1);",
"function base() {",
"  return leading.reduce((sum, dim, i) => sum + pieceAt(dim, slice[i])[3], 0);",
"}",
"const rootStyle = getComputedStyle(document.documentElement);",
"function css(name) { return rootStyle.getPropertyValue(name); }",
"function draw() {",
"  const ratio = window.devicePixelRatio || 1, g = canvas.getContext('2d');",
"  canvas.width = (left + width + 4) * ratio;",
"  canvas.height = (top + height + 4) * ratio;",
"  canvas.style.width = left + width + 4 + 'px';",
"  canvas.style.height = top + height + 4 + 'px';",
"  g.setTransform(ratio, 0, 0, ratio, 0, 0);",
"  const ink = css('--ink'), soft = css('--soft'), line = css('--line');",
"  const s = css('--cell-s'), l = css('--cell-l'), e = css('--edge-l');",
"  if (rows.extent * cols.extent === 0) {",
"    g.fillStyle = soft;",
"    g.font = '14px system-ui';",
"    g.fillText('the tensor is empty', 8, 18);",
"    return;",
"  }",
"  const start = base();",
"  for (const r of rows.pieces) for (const c of cols.pieces) {",
"    const number = start + r[3] + c[3], owner = ownerIndex(number);",
"    const x = left + c[0] * scaleX, y = top + r[0] * scaleY;",
"    const w = (c[1] - c[0]) * scaleX, h = (r[1] - r[0]) * scaleY;",
"    g.globalAlpha = lit >= 0 && lit !== owner ? .18 : 1;",
"    g.fillStyle = `hsl(${hue(owner, owners)} ${s} ${l})`;",
"    g.fillRect(x, y, w, h);",
"    if (r[4] || c[4]) {",
"      g.fillStyle = `hsl(${hue(owner + 1, owners)} ${s} ${l})`;",
"      g.fillRect(x + w / 2, y, w / 2, h);",
"    }",
"    g.strokeStyle = `hsl(${hue(owner, owners)} 50% ${e})`;",
"    g.lineWidth = 1;",
"    if (w > 3 && h > 3) g.strokeRect(x + .5, y + .5, w - 1, h - 1);",
"    g.globalAlpha = 1;",
"    const label = String(rankOf(number));",
"    if (!square && w > 10 + 7 * label.length && h > 14) {",
"      g.fillStyle = ink;",
"      g.font = '12px ui-monospace, monospace';",
"      g.textAlign = 'center';",
"      g.textBaseline = 'middle';",
"      g.fillText(label, x + w / 2, y + h / 2);",
"    }",
"  }",
"  if (square) drawElements(g, ink, start);",
"  drawRulers(g, soft);",
"}",
"function drawElements(g, ink, start) {",
"  g.textAlign = 'center';",
"  g.textBaseline = 'middle';",
"  g.font = Math.min(13, side * .5) + 'px ui-monospace, monospace';",
"  const page = css('--paper');",
"  for (let i = 0; i < rows.extent; i++) for (let j = 0; j < cols.extent; j++) {",
"    const number = start + pieceAt(rows, i)[3] + pieceAt(cols, j)[3];",
"    const x = left + j * side, y = top + i * side;",
"    g.strokeStyle = page;",
"    g.lineWidth = 1;",
"    g.strokeRect(x + .5, y + .5, side - 1, side - 1);",
"    if (side < 14) continue;",
"    g.globalAlpha = lit >= 0 && lit !== ownerIndex(number) ? .25 : 1;",
"    g.fillStyle = ink;",
"    g.fillText(rankOf(number), x + side / 2, y + side / 2 + 1);",
"    g.globalAlpha = 1;",
"  }",
"}",
"function ticks(extent, scale) {",
"  let step = 1;",
"  for (const m of [1, 2, 5, 10, 16, 32, 64, 100, 128, 256, 512, 1024])",
"    if (step * scale < 34) step = m;",
"  while (step * scale < 34) step *= 2;",
"  const out = [];",
"  for (let i = 0; i < extent; i += step) out.push(i);",
"  return out;",
"}",
"function drawRulers(g, soft) {",
"  const half = square ? side / 2 : 0;",
"  g.fillStyle = soft;",
"  g.font = '11px ui-monospace, monospace';",
"  g.textBaseline = 'alphabetic';",
"  g.textAlign = square ? 'center' : 'left';",
"  if (colDim) for (const j of ticks(cols.extent, scaleX))",
"    g.fillText(j, left + j * scaleX + half, 14);",
"  g.textAlign = 'right';",
"  g.textBaseline = 'middle';",
"  if (rowDim) for (const i of ticks(rows.extent, scaleY))",
"    g.fillText(i, left - 8, top + i * scaleY + (square ? half : 6));",
"}",
"function tensorIndex(position) {",
"  return dims.flatMap((dim, d) =>",
"    unravel(position[d], data.shape.slice(dim.first, dim.last + 1)));",
"}",
"function showTip(event) {",
"  const box = canvas.getBoundingClientRect();",
"  const j = Math.floor((event.clientX - box.left - left) / scaleX);",
"  const i = Math.floor((event.clientY - box.top - top) / scaleY);",
"  if (i < 0 || j < 0 || i >= rows.extent || j >= cols.extent) {",
"    tip.style.display = 'none';",
"    return;",
"  }",
"  const position = [...slice];",
"  if (rowDim) position.push(i);",
"  if (colDim) position.push(j);",
"  let number = 0, mixed = false, flat = 0, localFlat = 0;",
"  const local = [];",
"  dims.forEach((dim, d) => {",
"    const piece = pieceAt(dim, position[d]);",
"    number += piece[3];",
"    mixed = mixed || piece[4];",
"    local.push(piece[2] + position[d] - piece[0]);",
"    flat = flat * dim.extent + position[d];",
"    localFlat = localFlat * localExtent(dim, piece[3]) + local[d];",
"  });",
"  tip.textContent = '';",
"  el('b', (mixed ? 'near ' : '') + rankList(number), tip);",
"  el('span', '  (' + coordText(number) + ')', tip);",
"  el('div', `global (${tensorIndex(position).join(', ')})  #${flat}`, tip);",
"  if (!mixed) el('div', `local  (${local.join(', ')})  #${localFlat}`, tip);",
"  tip.style.display = 'block';",
"  tip.style.left = Math.min(event.clientX + 16, innerWidth - tip.offsetWidth - 8) + 'px';",
"  tip.style.top = event.clientY + 16 + 'px';",
"}",
"canvas.addEventListener('mousemove', showTip);",
"canvas.addEventListener('mouseleave', () => { tip.style.display = 'none'; });",
"const controls = document.getElementById('controls');",
"leading.forEach((dim, i) => {",
"  const label = el('label', `dim ${dim.first}`, controls);",
"  const input = el('input', null, label);",
"  const max = Math.max(0, dim.extent - 1);",
"  Object.assign(input, { type: 'range', min: 0, max, value: 0 });",
"  const value = el('span', '0', label, 'mono');",
"  input.addEventListener('input', () => {",
"    value.textContent = slice[i] = +input.value;",
"    draw();",
"  });",
"});",
"const legend = document.getElementById('legend');",
"const seen = new Set();",
"for (let number = 0; number < Math.min(data.count, 65536) && seen.size < 64; number++) {",
"  const coord = unravel(number, data.sizes);",
"  if (data.shared.some(k => coord[k] > 0)) continue;",
"  const owner = ownerIndex(number);",
"  seen.add(owner);",
"  const item = el('span', null, legend);",
"  el('i', null, item, 'swatch').style.background = fill(owner, owners);",
"  item.append(rankList(number));",
"  item.addEventListener('mouseenter', () => { lit = owner; draw(); });",
"  item.addEventListener('mouseleave', () => { lit = -1; draw(); });",
"}",
"if (owners > 64) el('span', `\\u2026 ${owners - 64} more`, legend, 'soft');",
"matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);",
"draw();",
"document.body.dataset.drawn = rows.pieces.length * cols.pieces.length;",
    NULL
};
/* clang-format on */

/* ---- data ------------------------------------------------------------------------------------ */
static void put_dim(const layout_dim *dim, ts_json_writer *json)
{
    int64_t count = 0;
    layout_piece *bins = layout_bins(dim, PAGE_PIECES_MAX, &count);
    ts_json_put_open(json, '{');
    ts_json_put_member_int(json, "extent", dim->extent);
    ts_json_put_member_int(json, "first", dim->first);
    ts_json_put_member_int(json, "last", dim->last);
    ts_json_put_key(json, "pieces");
    ts_json_put_open(json, '[');
    for (int64_t i = 0; i < count; i++) {
        const layout_piece *b = &bins[i];
        ts_json_put_ints(json, (int64_t[]){ b->begin, b->end, b->local, b->key, b->mixed }, 5);
    }
    ts_json_put_close(json, ']');
    ts_json_put_close(json, '}');
    free(bins);
}

static void put_axes(const layout_picture *p, const char *key, bool shared, ts_json_writer *json)
{
    ts_json_put_key(json, key);
    ts_json_put_open(json, '[');
    for (int32_t k = 0; k < ts_mesh_ndim(p->mesh); k++) {
        if (((p->replicated | p->partial) >> k & 1u) == shared) ts_json_put_int(json, k);
    }
    ts_json_put_close(json, ']');
}

static void put_mesh(const layout_picture *p, ts_json_writer *json)
{
    int64_t count = ts_mesh_size(p->mesh, NULL);
    ts_json_put_key(json, "sizes");
    ts_json_put_open(json, '[');
    for (int32_t k = 0; k < ts_mesh_ndim(p->mesh); k++)
        ts_json_put_int(json, ts_mesh_axis_size(p->mesh, k));
    ts_json_put_close(json, ']');
    ts_json_put_key(json, "names");
    ts_json_put_open(json, '[');
    for (int32_t k = 0; k < ts_mesh_ndim(p->mesh); k++)
        ts_json_put_text(json, ts_mesh_axis_name(p->mesh, k));
    ts_json_put_close(json, ']');
    ts_json_put_member_int(json, "count", count);
    if (count <= LAYOUT_RANKS_MAX && !layout_is_row_major(p->mesh)) {
        ts_json_put_key(json, "ranks");
        ts_json_put_open(json, '[');
        for (int64_t i = 0; i < count; i++)
            ts_json_put_int(json, layout_rank(p->mesh, i));
        ts_json_put_close(json, ']');
    }
}

static void put_data(const layout_picture *p, ts_json_writer *json)
{
    ts_shape shape = ts_layout_shape(p->layout);
    ts_json_put_open(json, '{');
    put_mesh(p, json);
    ts_json_put_key(json, "shape");
    ts_json_put_ints(json, shape.extent, shape.ndim);
    ts_json_put_member_int(json, "owners", layout_owners(p));
    put_axes(p, "cut", false, json);
    put_axes(p, "shared", true, json);
    ts_json_put_key(json, "dims");
    ts_json_put_open(json, '[');
    for (int32_t d = 0; d < p->ndim; d++)
        put_dim(&p->dim[d], json);
    ts_json_put_close(json, ']');
    ts_json_put_close(json, '}');
}

/* ---- words and the table --------------------------------------------------------------------- */
static void put_head(const layout_picture *p, FILE *out)
{
    char shape_text[128], name[64], place[256];
    ts_shape shape = ts_layout_shape(p->layout);
    char *mesh = layout_mesh_text(p->mesh);
    char *placements = layout_sharding_text(ts_layout_sharding(p->layout));
    fputs("<h1>Who holds what</h1>\n<p class=\"soft\">tensor <code>", out);
    html_text(out, layout_shape_text(&shape, shape_text, sizeof shape_text));
    fputs("</code> on mesh <code>", out);
    html_text(out, mesh != NULL ? mesh : "");
    fputs("</code>, placements <code>", out);
    html_text(out, placements != NULL ? placements : "");
    fputs("</code></p>\n", out);
    for (int32_t k = 0; k < ts_mesh_ndim(p->mesh); k++) {
        bool term = p->partial >> k & 1u;
        if (!((p->replicated | p->partial) >> k & 1u) || ts_mesh_axis_size(p->mesh, k) == 1)
            continue;
        (void)ts_placement_text(ts_layout_sharding(p->layout), k, place, sizeof place);
        fprintf(out, "<p class=\"soft\">%s over ", term ? "Partial" : "Replicated");
        html_text(out, layout_axis_name(p->mesh, k, name, sizeof name));
        fprintf(out, " (<code>%s</code>): %lld ranks hold %s.</p>\n", place,
                (long long)ts_mesh_axis_size(p->mesh, k), term ? "a term each" : "the same");
    }
    free(mesh);
    free(placements);
}

static void put_row(const layout_picture *p, int64_t number, FILE *out)
{
    int64_t coord[TS_NDIM_MAX], offset[TS_NDIM_MAX] = { 0 };
    char text[256], colour[8];
    layout_coord(p->mesh, number, coord);
    ts_shape local = ts_layout_local(p->layout, coord);
    (void)ts_layout_offset(p->layout, coord, offset);
    html_colour(layout_owner_index(p, number), layout_owners(p), 0.6, colour);
    fprintf(out, "<tr><td><i class=\"swatch\" style=\"background:%s\"></i>%lld</td>", colour,
            (long long)layout_rank(p->mesh, number));
    fprintf(out, "<td>%s</td>", layout_list_text(coord, ts_mesh_ndim(p->mesh), text, sizeof text));
    fprintf(out, "<td>%s</td>", layout_shape_text(&local, text, sizeof text));
    fprintf(out, "<td>%s</td>", layout_list_text(offset, local.ndim, text, sizeof text));
    for (int32_t d = 0; d < p->ndim; d++) {
        enum { SHOWN = 4 };
        ts_interval list[SHOWN];
        int64_t count = ts_layout_intervals(p->layout, coord, d, list, SHOWN);
        fputs("<td>", out);
        for (int64_t i = 0; i < count && i < SHOWN; i++)
            fprintf(out, "%s[%lld,%lld)", i > 0 ? " " : "", (long long)list[i].begin,
                    (long long)list[i].end);
        if (count > SHOWN) fprintf(out, " and %lld more", (long long)(count - SHOWN));
        fputs(count == 0 ? "empty</td>" : "</td>", out);
    }
    fputs("</tr>\n", out);
}

static void put_table(const layout_picture *p, FILE *out)
{
    int64_t ranks = ts_mesh_size(p->mesh, NULL);
    int64_t shown = ranks < PAGE_ROWS_MAX ? ranks : PAGE_ROWS_MAX;
    fputs("<h2>Every coordinate</h2>\n<div class=\"scroll\"><table><tr><th>rank</th>"
          "<th>coordinate</th><th>shape</th><th>offset</th>",
          out);
    for (int32_t d = 0; d < p->ndim; d++) {
        if (p->dim[d].last > p->dim[d].first)
            fprintf(out, "<th>dims %d-%d</th>", p->dim[d].first, p->dim[d].last);
        else
            fprintf(out, "<th>dim %d</th>", p->dim[d].first);
    }
    fputs("</tr>\n", out);
    for (int64_t i = 0; i < shown; i++)
        put_row(p, i, out);
    fputs("</table></div>\n", out);
    if (shown < ranks)
        fprintf(out, "<p class=\"soft\">and %lld more</p>\n", (long long)(ranks - shown));
}

int layout_write_html(const layout_picture *p, const char *path)
{
    FILE *out = html_open("layout", "html", path);
    if (out == NULL) return 1;
    ts_json_writer data = { 0 };
    put_data(p, &data);
    html_begin(out, "tessera layout", style);
    put_head(p, out);
    fputs("<div class=\"card\"><div class=\"controls\" id=\"controls\"></div>\n"
          "<div id=\"stage\" class=\"scroll\"><canvas id=\"canvas\"></canvas></div>\n"
          "<div class=\"legend\" id=\"legend\"></div></div>\n<div id=\"tip\"></div>\n",
          out);
    put_table(p, out);
    html_end(out, &data, script);
    bool failed = data.failed;
    ts_json_writer_release(&data);
    int code = html_close("layout", path, out);
    return failed ? cli_fail("layout", "out of memory") : code;
}
