/* SPDX-License-Identifier: Apache-2.0 */
/* bench_lines.c - the output of benches that are lists of numbers. */
#include "bench_lines.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

bench_line *bench_lines_add(bench_lines *lines, const char *unit, double value, const char *format,
                            ...)
{
    if (lines->count < BENCH_LINES_MAX) lines->count++;
    bench_line *line = &lines->line[lines->count - 1];
    *line = (bench_line){ .value = value };
    (void)snprintf(line->unit, sizeof line->unit, "%s", unit);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line->name, sizeof line->name, format, arguments);
    va_end(arguments);
    return line;
}

void bench_line_floor(bench_line *line, double value, const char *name)
{
    line->floor = value;
    (void)snprintf(line->floor_name, sizeof line->floor_name, "%s", name);
}

void bench_line_note(bench_line *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line->note, sizeof line->note, format, arguments);
    va_end(arguments);
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double bench_median(double *values, size_t count)
{
    if (count == 0) return 0;
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static void line_json(const bench_line *line, ts_json_writer *json)
{
    bool has_floor = line->floor_name[0] != '\0';
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", line->name);
    ts_json_put_member_text(json, "unit", line->unit);
    ts_json_put_member_real(json, "value", line->value);
    ts_json_put_key(json, "floor");
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "name", has_floor ? line->floor_name : NULL);
    ts_json_put_member_real(json, "value", has_floor ? line->floor : (double)NAN);
    ts_json_put_close(json, '}');
    ts_json_put_member_real(json, "ratio",
                            has_floor && line->floor > 0 ? line->value / line->floor : (double)NAN);
    if (line->wanted > 0) ts_json_put_member_real(json, "wanted", line->wanted);
    if (line->note[0] != '\0') ts_json_put_member_text(json, "note", line->note);
    ts_json_put_close(json, '}');
}

static int print_json(const bench_lines *lines)
{
    ts_json_writer json = { 0 };
    cli_json_bench(&json);
    ts_json_put_key(&json, "results");
    ts_json_put_open(&json, '[');
    for (size_t i = 0; i < lines->count; i++)
        line_json(&lines->line[i], &json);
    ts_json_put_close(&json, ']');
    ts_json_put_close(&json, '}');
    int code = cli_json_print(&json, stdout);
    ts_json_writer_release(&json);
    return code;
}

int bench_lines_print(const bench_lines *lines, bool json)
{
    static const char *const names[] = { "what",   ">value", "unit", ">wanted",
                                         ">floor", ">ratio", "",     NULL };
    cli_table table;
    if (json) return print_json(lines);
    cli_table_begin(&table, names);
    for (size_t i = 0; i < lines->count; i++) {
        const bench_line *line = &lines->line[i];
        cli_table_row(&table);
        cli_table_cell(&table, 0, "%s", line->name);
        cli_table_cell(&table, 1, "%.4g", line->value);
        cli_table_cell(&table, 2, "%s", line->unit);
        if (line->wanted > 0) cli_table_cell(&table, 3, "%.4g", line->wanted);
        if (line->floor_name[0] != '\0') cli_table_cell(&table, 4, "%.4g", line->floor);
        if (line->floor_name[0] != '\0' && line->floor > 0)
            cli_table_cell(&table, 5, "%.2f", line->value / line->floor);
        cli_table_cell(&table, 6, "%s%s%s", line->floor_name,
                       line->floor_name[0] != '\0' && line->note[0] != '\0' ? "; " : "",
                       line->note);
    }
    cli_table_print(&table, stdout);
    cli_table_release(&table);
    return fflush(stdout) != 0;
}
