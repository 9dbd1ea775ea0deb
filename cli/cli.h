/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h - what the subcommands of `tessera` share.
 *
 * A subcommand is one line in commands.def and one file with `int cli_<name>(int argc, char
 * **argv)`, which gets its own name as argv[0] and returns the exit code: 0 done, 1 the answer is
 * no or something failed, 2 bad usage. It describes its options in a table; cli_parse does the
 * rest, --help included:
 *
 *   static int cli_doctor(int argc, char **argv)
 *   {
 *       bool json = false;
 *       const cli_option options[] = { CLI_FLAG("json", &json, "one JSON object"), CLI_END };
 *       const cli_usage usage = { "doctor", "[options]", "what this machine has", options };
 *       int code = cli_parse(&usage, &argc, argv);   // leaves argv[1 .. argc-1]: positional ones
 *       if (code >= 0) return code;                  // --help was shown (0), or bad usage (2)
 *
 * The program uses the public API only, so its helpers are its own: this is not the library's
 * text.h. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <tessera/tessera.h>

#define CLI_COMMAND(name, summary) int cli_##name(int argc, char **argv);
#include "commands.def"
#undef CLI_COMMAND

/* ---- options --------------------------------------------------------------------------------- */
typedef enum cli_kind {
    CLI_KIND_END,
    CLI_KIND_FLAG,
    CLI_KIND_INT,
    CLI_KIND_SIZE,
    CLI_KIND_TEXT,
    CLI_KIND_LIST
} cli_kind;

enum { CLI_LIST_MAX = 64 };
typedef struct cli_list { /* of an option that may be given several times */
    const char *item[CLI_LIST_MAX];
    size_t count;
} cli_list;

typedef struct cli_option {
    const char *name; /* without the dashes */
    cli_kind kind;
    void *value;       /* bool *, int64_t *, const char ** or cli_list * */
    int64_t low, high; /* INT and SIZE: what is allowed */
    const char *what;  /* name of the value in --help: "N" */
    const char *help;
} cli_option;

#define CLI_FLAG(name, value, help)                                                                \
    {                                                                                              \
        name, CLI_KIND_FLAG, value, 0, 0, "", help                                                 \
    }
#define CLI_INT(name, value, low, high, help)                                                      \
    {                                                                                              \
        name, CLI_KIND_INT, value, low, high, "N", help                                            \
    }
/* A byte count: 4096, 64K, 16MiB, 1GB (K, M, G are powers of 1024). */
#define CLI_SIZE(name, value, low, high, help)                                                     \
    {                                                                                              \
        name, CLI_KIND_SIZE, value, low, high, "BYTES", help                                       \
    }
#define CLI_TEXT(name, value, what, help)                                                          \
    {                                                                                              \
        name, CLI_KIND_TEXT, value, 0, 0, what, help                                               \
    }
/* May be given several times. */
#define CLI_LIST(name, value, what, help)                                                          \
    {                                                                                              \
        name, CLI_KIND_LIST, value, 0, 0, what, help                                               \
    }
#define CLI_END                                                                                    \
    {                                                                                              \
        NULL, CLI_KIND_END, NULL, 0, 0, NULL, NULL                                                 \
    }

typedef struct cli_usage {
    const char *command;   /* "bench comm" */
    const char *arguments; /* "[options]" */
    const char *summary;
    const cli_option *options;
    const char *more; /* further help text, or NULL */
} cli_usage;

/* Takes the options out of argv, which keeps argv[0] and the positional arguments; "-" is
 * positional and
 * "--" ends the options. Returns -1 to go on, else the exit code. */
int cli_parse(const cli_usage *usage, int *argc, char **argv);
/* Prints "tessera COMMAND: sentence" to standard error and returns 2. */
int cli_fail_usage(const char *command, const char *format, ...) TS_PRINTF(2, 3);
/* As above, but returns 1: the usage was good. */
int cli_fail(const char *command, const char *format, ...) TS_PRINTF(2, 3);
/* What a world that ended with `status` said; 2 if that is a value that it cannot take, else 1. */
int cli_fail_run(const char *command, ts_status status, const char *error);
/* Where `path` is the output directory of a run, says which of its parts was meant and returns 2;
 * else -1. */
int cli_refuse_run(const char *command, const char *path);
/* The nearest of `count` names for "did you mean", or NULL if none is near. */
const char *cli_nearest(const char *name, const char *const *names, size_t count);
bool cli_read_int(const char *text, int64_t *out);  /* the whole text, or false */
bool cli_read_size(const char *text, int64_t *out); /* a byte count, or false */

/* ---- commands of several subjects (subject.c) ------------------------------------------------ */
typedef struct cli_subject {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} cli_subject;
typedef struct cli_subjects {
    const char *command, *usage, *about; /* "bench", "WHAT [options]", a sentence */
    const char *refusal;                 /* of a name that is not there: "there is no bench" */
    const cli_subject *subject;
    size_t count; /* at most 32 */
    int width;    /* of the names in the help */
} cli_subjects;
int cli_run_subject(const cli_subjects *subjects, int argc, char **argv);

/* ---- JSON ------------------------------------------------------------------------------------ */
/* A whole file, of at most 1 GiB. False: said on standard error. */
bool cli_json_read(const char *command, const char *path, ts_json_document **out);
/* Writes the text and a newline; 0, or 1 if it had failed or cannot be written. */
int cli_json_print(ts_json_writer *json, FILE *out);

/* ---- batches: one JSON request a line in, one JSON answer a line out (INTERFACES, "Common") -- */
/* `request` is an object. Writes one object to `answer` and returns true, or fills `error` with a
 * sentence and returns false. */
typedef bool (*cli_batch_fn)(const ts_json *request, ts_json_writer *answer, char *error,
                             size_t error_size, void *context);
/* path "-": standard input. Exit code: 0 all served, 1 some line got an error, 2 the file cannot be
 * read. */
int cli_batch(const char *command, const char *path, cli_batch_fn serve, void *context);
/* Members of a request. Absent or null: true, and *out stays. Of another type: `error` names the
 * key, the value and what was expected. Members that nobody asks for are ignored. */
bool cli_field_text(const ts_json *request, const char *key, const char **out, char *error,
                    size_t size);
bool cli_field_bool(const ts_json *request, const char *key, bool *out, char *error, size_t size);
bool cli_field_count(const ts_json *request, const char *key, int64_t *out, char *error,
                     size_t size); /* a whole number of at least 0 */
/* A list or object, by its kind. */
bool cli_field_kind(const ts_json *request, const char *key, ts_json_kind kind, const ts_json **out,
                    char *error, size_t size);
/* Says `"key" is VALUE: expected ...` and returns false. */
bool cli_field_refuse(const char *key, const ts_json *value, const char *expected, char *error,
                      size_t size);

/* ---- text out -------------------------------------------------------------------------------- */
enum { CLI_COLUMNS_MAX = 12, CLI_CELL_MAX = 64 };
/* A table whose columns are as wide as their widest cell; numbers are aligned right. */
typedef struct cli_table {
    size_t columns, rows, capacity;
    bool right[CLI_COLUMNS_MAX];
    char (*cell)[CLI_CELL_MAX]; /* rows * columns */
    bool failed;
} cli_table;
/* Column names; a name that begins with '>' is aligned right. NULL ends the list. */
void cli_table_begin(cli_table *table, const char *const *names);
void cli_table_row(cli_table *table); /* starts a row */
void cli_table_cell(cli_table *table, size_t column, const char *format, ...) TS_PRINTF(3, 4);
void cli_table_print(const cli_table *table, FILE *out);
void cli_table_release(cli_table *table);
/* "64 MiB", "1.5 KiB", "8 B" into a buffer; returns it. */
const char *cli_bytes(char *buffer, size_t size, int64_t bytes);
/* "1.23 us", "4.5 ms", "2.0 s" into a buffer; returns it. */
const char *cli_seconds(char *buffer, size_t size, double seconds);

/* ---- the machine ----------------------------------------------------------------------------- */
typedef struct cli_machine {
    char system[96], processor[96], host[96];
    int64_t cores, memory_bytes;
} cli_machine;
void cli_machine_read(cli_machine *out);
void cli_machine_json(const cli_machine *machine, ts_json_writer *json); /* an object */
void cli_json_bench(
    ts_json_writer *json); /* the opening of what a bench prints: { "machine": ... */
/* Ranks of a mesh whose axes are roles; 0: "*", as many as there are. ts_last_error says why not.
 */
ts_status cli_mesh_ranks(const char *text, int64_t *ranks);
/* [coll] That mesh, of all ranks: a launcher may have started more, or fewer. NULL: recorded. */
ts_mesh *cli_mesh_of_all(ts_rank *me, const char *text);
/* --topology: -1, or the exit code after saying that there is no such. NULL and "auto" are right.
 */
int cli_check_topology(const char *command, const char *name);
#define CLI_TOPOLOGY(target)                                                                       \
    CLI_TEXT("topology", target, "NAME|FILE",                                                      \
             "plan for these links: a preset, or a file of bench comm (default auto: as found)")
/* A word of recomputation: none, full, select, or N, every n-th block as a whole. False: none. */
bool cli_recompute_parse(const char *word, ts_recompute *what, int64_t *every);
/* Do commands that train make units of a model's blocks there? */
bool cli_mesh_has_units(const ts_mesh *mesh);
double cli_now(void); /* monotonic seconds */

#endif
