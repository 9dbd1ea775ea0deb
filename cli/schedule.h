/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h - what the files of `tessera schedule` share: a case is a schedule with its times. */
#ifndef CLI_SCHEDULE_H
#define CLI_SCHEDULE_H

#include "cli.h"

enum { SCHEDULE_ERROR_MAX = 1024 };

typedef struct schedule_request {
    const char *name; /* a rule, "search", or a file */
    ts_schedule_options size;
    ts_stage_cost *cost; /* NULL: none was given */
    int64_t cost_count;
    double memory_max, seconds;
} schedule_request;

typedef struct schedule_case {
    const char *name; /* borrowed */
    ts_schedule *schedule;
    ts_schedule_costs costs; /* points into the request */
    ts_schedule_times times;
    double *begin, *end; /* by cell, rank after rank */
    double *peak;        /* [rank] */
    int64_t *first;      /* [rank]: number of its first cell */
    double bound;        /* of a search; else 0 */
} schedule_case;

/* ---- cases (schedule_case.c) ----------------------------------------------------------------- */
/* "F=1,I=1.3,W=0.7,comm=0.1,memory=1", numbers per stage with colons ("F=1:1:2"), or a JSON file.
 * False: `error` says why. To be freed. */
bool schedule_cost_text(const char *text, ts_stage_cost **out, int64_t *count, char *error,
                        size_t size);
/* Ranks and micro-batches of the run that such a file was measured in, where they are 0. */
void schedule_measured(const char *path, ts_schedule_options *size);
bool schedule_cost_json(const ts_json *value, ts_stage_cost **out, int64_t *count, char *error,
                        size_t size);
bool schedule_open(const schedule_request *request, schedule_case *out, char *error, size_t size);
void schedule_close(schedule_case *c);
double schedule_memory(const schedule_case *c, int64_t stage); /* of one activation */

/* A cli_batch_fn without context. */
bool schedule_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
                    void *context);
/* The members of an answer; `costs`: times too. */
void schedule_answer(const schedule_case *c, bool costs, ts_json_writer *json);

/* ---- for a person (schedule_table.c, schedule_page.c) ---------------------------------------- */
typedef struct schedule_look {
    bool colour;
    int32_t width; /* columns of the terminal */
} schedule_look;
void schedule_print(const schedule_case *c, const schedule_look *look, FILE *out);
void schedule_compare(const schedule_case *c, int64_t count, FILE *out);
/* 0, or 1 with a sentence on standard error. */
int schedule_write_svg(const schedule_case *c, int64_t count, const char *path);
int schedule_write_html(const schedule_case *c, int64_t count, const char *path);

#endif
