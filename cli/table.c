/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - tables, byte counts and times as a person reads them; and the machine they were made
 * on. */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

/* Appends an empty row; false if there is no memory, and then the table stays as it is. */
static bool grow(cli_table *table)
{
    if (table->failed) return false;
    if (table->rows == table->capacity) {
        size_t capacity = table->capacity > 0 ? 2 * table->capacity : 32;
        void *cell = realloc(table->cell, capacity * table->columns * CLI_CELL_MAX);
        if (cell == NULL) {
            table->failed = true;
            return false;
        }
        table->cell = cell;
        table->capacity = capacity;
    }
    memset(table->cell[table->rows * table->columns], 0, table->columns * CLI_CELL_MAX);
    table->rows++;
    return true;
}

void cli_table_begin(cli_table *table, const char *const *names)
{
    *table = (cli_table){ 0 };
    while (names[table->columns] != NULL && table->columns < CLI_COLUMNS_MAX)
        table->columns++;
    if (!grow(table)) return;
    for (size_t i = 0; i < table->columns; i++) {
        table->right[i] = names[i][0] == '>';
        cli_table_cell(table, i, "%s", names[i] + table->right[i]);
    }
}

void cli_table_row(cli_table *table)
{
    (void)grow(table);
}

void cli_table_cell(cli_table *table, size_t column, const char *format, ...)
{
    if (table->failed || column >= table->columns) return;
    char *cell = table->cell[(table->rows - 1) * table->columns + column];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(cell, CLI_CELL_MAX, format, arguments);
    va_end(arguments);
    for (; *cell != '\0'; cell++) /* names of files are anybody's: a terminal obeys such bytes */
        if (iscntrl((unsigned char)*cell)) *cell = '?';
}

static void print_row(const cli_table *table, size_t row, const int *width, FILE *out)
{
    for (size_t i = 0; i < table->columns; i++) {
        const char *cell = table->cell[row * table->columns + i];
        bool last = i + 1 == table->columns;
        if (table->right[i])
            fprintf(out, "%*s", width[i], cell);
        else
            fprintf(out, "%-*s", last ? 0 : width[i], cell);
        fputs(last ? "\n" : "  ", out);
    }
}

void cli_table_print(const cli_table *table, FILE *out)
{
    int width[CLI_COLUMNS_MAX] = { 0 };
    for (size_t i = 0; i < table->rows * table->columns; i++) {
        int length = (int)strlen(table->cell[i]);
        if (length > width[i % table->columns]) width[i % table->columns] = length;
    }
    for (size_t row = 0; row < table->rows; row++)
        print_row(table, row, width, out);
    if (table->failed) fputs("(the table is cut: out of memory)\n", out);
}

void cli_table_release(cli_table *table)
{
    free(table->cell);
    *table = (cli_table){ 0 };
}

const char *cli_bytes(char *buffer, size_t size, int64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    bool whole = value == (double)(int64_t)value;
    (void)snprintf(buffer, size, whole ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return buffer;
}

const char *cli_seconds(char *buffer, size_t size, double seconds)
{
    if (seconds < 1e-3)
        (void)snprintf(buffer, size, "%.2f us", seconds * 1e6);
    else if (seconds < 1)
        (void)snprintf(buffer, size, "%.2f ms", seconds * 1e3);
    else
        (void)snprintf(buffer, size, "%.2f s", seconds);
    return buffer;
}

/* The value of the first line of a "key : value" file that begins with the key. */
static bool read_field(const char *path, const char *key, char *out, size_t size)
{
    char line[512];
    FILE *file = fopen(path, "r");
    bool found = false;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) != 0 || colon == NULL) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        (void)snprintf(out, size, "%.*s", (int)size - 1, colon);
        found = true;
    }
    if (file != NULL) fclose(file);
    return found;
}

void cli_machine_read(cli_machine *out)
{
    *out = (cli_machine){ 0 };
    struct utsname name;
    if (uname(&name) == 0) {
        (void)snprintf(out->system, sizeof out->system, "%.30s %.30s %.30s", name.sysname,
                       name.release, name.machine);
        (void)snprintf(out->host, sizeof out->host, "%.90s", name.nodename);
    }
    if (!read_field("/proc/cpuinfo", "model name", out->processor, sizeof out->processor)) {
        char part[64] = "unknown";
        (void)read_field("/proc/cpuinfo", "CPU part", part, sizeof part);
        (void)snprintf(out->processor, sizeof out->processor, "%.30s part %.50s", name.machine,
                       part);
    }
    out->cores = sysconf(_SC_NPROCESSORS_ONLN);
    out->memory_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

void cli_machine_json(const cli_machine *machine, ts_json_writer *json)
{
    ts_json_put_open(json, '{');
    ts_json_put_member_text(json, "system", machine->system);
    ts_json_put_member_text(json, "processor", machine->processor);
    ts_json_put_member_text(json, "host", machine->host);
    ts_json_put_member_int(json, "cores", machine->cores);
    ts_json_put_member_int(json, "memory_bytes", machine->memory_bytes);
    ts_json_put_close(json, '}');
}

double cli_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void cli_json_bench(ts_json_writer *json)
{
    cli_machine machine;
    cli_machine_read(&machine);
    ts_json_put_open(json, '{');
    ts_json_put_key(json, "machine");
    cli_machine_json(&machine, json);
}
