/* SPDX-License-Identifier: Apache-2.0 */
/* html.c - the frame of a page, its colours and its common script. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "html.h"

FILE *html_open(const char *command, const char *option, const char *path)
{
    FILE *out = strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    if (out == NULL)
        (void)cli_fail(command, "--%s: cannot write \"%s\": %s", option, path, strerror(errno));
    return out;
}

int html_close(const char *command, const char *path, FILE *out)
{
    bool bad = ferror(out) != 0;
    bad |= (out == stdout ? fflush(out) : fclose(out)) != 0;
    return bad ? cli_fail(command, "cannot write \"%s\": %s", path, strerror(errno)) : 0;
}

void html_text(FILE *out, const char *text)
{
    static const char special[] = "&<>\"";
    static const char *const names[] = { "&amp;", "&lt;", "&gt;", "&quot;" };
    for (const char *c = text; *c != '\0'; c++) {
        const char *place = strchr(special, *c);
        if (place != NULL)
            fputs(names[place - special], out);
        else
            fputc(*c, out);
    }
}

double html_hue(int64_t number, int64_t count)
{
    /* Few owners get hues far apart; many are spread by the golden angle, so neighbours differ. */
    double turn = count <= 12 ? (double)number / (double)(count > 0 ? count : 1)
                              : 0.381966011250105 * (double)number;
    return fmod(360 * fmod(turn, 1) + 210, 360);
}

void html_colour(int64_t number, int64_t count, double lightness, char *out)
{
    const double saturation = 0.6, sector = html_hue(number, count) / 60;
    double chroma = (1 - fabs(2 * lightness - 1)) * saturation;
    double second = chroma * (1 - fabs(fmod(sector, 2) - 1)), least = lightness - chroma / 2;
    double parts[6][3] = { { chroma, second, 0 }, { second, chroma, 0 }, { 0, chroma, second },
                           { 0, second, chroma }, { second, 0, chroma }, { chroma, 0, second } };
    const double *rgb = parts[(int)sector % 6];
    (void)snprintf(out, 8, "#%02x%02x%02x", (unsigned)(255 * (rgb[0] + least)) & 255u,
                   (unsigned)(255 * (rgb[1] + least)) & 255u,
                   (unsigned)(255 * (rgb[2] + least)) & 255u);
}

/* clang-format off */
static const char *const common_style[] = {
":root { color-scheme: light dark; --paper: #fbfbf9; --ink: #20242a; --soft: #6a717c;",
"  --line: #d9dbdf; --panel: #fff; --cell-s: 62%; --cell-l: 76%; --edge-l: 50%;",
"  --mark: #c2410c; --empty: #efefec; }",
"@media (prefers-color-scheme: dark) {",
"  :root { --paper: #15181d; --ink: #e8eaee; --soft: #98a1ae; --line: #343a44;",
"    --panel: #1c2027; --cell-s: 42%; --cell-l: 34%; --edge-l: 54%; --mark: #fb923c;",
"    --empty: #262b33; } }",
"* { box-sizing: border-box; }",
"body { margin: 0; background: var(--paper); color: var(--ink);",
"  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif; }",
"main { max-width: 1120px; margin: 0 auto; padding: 28px 24px 64px; }",
"h1 { font-size: 22px; font-weight: 650; margin: 0 0 4px; letter-spacing: -.01em; }",
"h2 { font-size: 15px; font-weight: 650; margin: 28px 0 8px; }",
"code, .mono, td, th { font-size: 13px;",
"  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }",
".soft { color: var(--soft); }",
".card { background: var(--panel); border: 1px solid var(--line); border-radius: 10px;",
"  padding: 16px; }",
"table { border-collapse: collapse; }",
"td, th { text-align: left; padding: 3px 18px 3px 0; border-bottom: 1px solid var(--line);",
"  vertical-align: top; white-space: nowrap; }",
"th { color: var(--soft); font-weight: 500; }",
"td.n, th.n { text-align: right; }",
"button, input, select { font: inherit; color: inherit; }",
"button { background: var(--panel); border: 1px solid var(--line); border-radius: 7px;",
"  padding: 4px 14px; cursor: pointer; }",
"button:hover { border-color: var(--soft); }",
".scroll { overflow-x: auto; }",
".swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px;",
"  margin-right: 7px; vertical-align: -1px; }",
    NULL
};

/* The data, colours, making elements, words for numbers. */
static const char *const common_script[] = {
"'use strict';",
"const data = JSON.parse(document.getElementById('data').textContent);",
"function hue(i, n) {",
"  const turn = n <= 12 ? i / Math.max(n, 1) : .381966011250105 * i;",
"  return (360 * (turn % 1) + 210) % 360;",
"}",
"function fill(i, n) { return `hsl(${hue(i, n).toFixed(1)} var(--cell-s) var(--cell-l))`; }",
"function edge(i, n) { return `hsl(${hue(i, n).toFixed(1)} 55% var(--edge-l))`; }",
"function svg(tag, attributes, parent) {",
"  const e = document.createElementNS('http://www.w3.org/2000/svg', tag);",
"  for (const k in attributes) e.setAttribute(k, attributes[k]);",
"  if (parent) parent.append(e);",
"  return e;",
"}",
"function el(tag, text, parent, name) {",
"  const e = document.createElement(tag);",
"  if (text !== undefined && text !== null) e.textContent = text;",
"  if (name) e.className = name;",
"  if (parent) parent.append(e);",
"  return e;",
"}",
"function bytes(n) {",
"  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];",
"  let i = 0;",
"  while (n >= 1024 && i < 5) { n /= 1024; i++; }",
"  return (Number.isInteger(n) ? n : n.toFixed(1)) + ' ' + units[i];",
"}",
"function micros(t) {",
"  const digits = x => +x.toPrecision(3);",
"  if (t < 1000) return digits(t) + ' \\u00b5s';",
"  return t < 1e6 ? digits(t / 1e3) + ' ms' : digits(t / 1e6) + ' s';",
"}",
"function unravel(number, sizes) {",
"  const out = [];",
"  for (let k = sizes.length - 1; k >= 0; k--) {",
"    out[k] = number % sizes[k];",
"    number = Math.floor(number / sizes[k]);",
"  }",
"  return out;",
"}",
    NULL
};
/* clang-format on */

static void put_lines(FILE *out, const char *const *lines)
{
    for (; *lines != NULL; lines++)
        fprintf(out, "%s\n", *lines);
}

void html_begin(FILE *out, const char *title, const char *const *style)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          out);
    html_text(out, title);
    fputs("</title>\n<style>\n", out);
    put_lines(out, common_style);
    put_lines(out, style);
    fputs("</style>\n</head>\n<body>\n<main>\n", out);
}

void html_end(FILE *out, const ts_json_writer *data, const char *const *script)
{
    fputs("</main>\n<script type=\"application/json\" id=\"data\">", out);
    for (size_t i = 0; i < data->length; i++) {
        if (data->data[i] == '<')
            fputs("\\u003c", out);
        else
            fputc(data->data[i], out);
    }
    fputs("</script>\n<script>\n(() => {\n", out); /* names of the script are its own */
    put_lines(out, common_script);
    put_lines(out, script);
    fputs("})();\n</script>\n</body>\n</html>\n", out);
}
