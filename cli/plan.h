/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - what the files of `tessera plan` share: a question, its plan, and looking at it. */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "layout.h"

typedef struct plan_request { /* texts are borrowed; NULL: not given */
    const char *mesh, *to_mesh, *from, *to, *dtype, *planner, *topology;
    ts_shape shape;
    int64_t budget; /* 0: no limit */
} plan_request;

typedef struct plan_case {
    ts_world *world;              /* borrowed */
    ts_mesh *src_mesh, *dst_mesh; /* the same handle twice if there is one mesh */
    const ts_layout *src, *dst;   /* retained */
    ts_topology topology;
    bool has_topology;
    ts_dtype dtype;
    ts_plan *plan;
    ts_plan_summary summary;
    int64_t ranks; /* one past the largest world rank of both meshes */
} plan_case;

/* Reads the request and plans. False: `error` says why; nothing is to be closed then. */
bool plan_open(ts_world *world, const plan_request *request, plan_case *out, char *error,
               size_t size);
void plan_close(plan_case *self);

/* Bytes that `to` receives from `from` in a direct exchange, added to bytes[from * count + to]. */
bool plan_traffic(const plan_case *self, int64_t count, int64_t *bytes);
/* The layout before or after a step, retained; NULL: the plan is a direct exchange of two meshes.
 */
const ts_layout *plan_step_layout(const plan_case *self, int32_t step, bool after);
/* "a", "a+b": the axes of a step. */
const char *plan_axes_text(const ts_mesh *mesh, uint32_t axes, char *out, size_t size);

/* ---- answers (plan_answer.c) ---------------------------------------------------------------- */
/* Writes one object; `check` may be NULL. */
bool plan_answer(const plan_case *self, const char *check, ts_json_writer *json);
/* A cli_batch_fn; the context is a plan_defaults. */
typedef struct plan_defaults {
    ts_world *world;
    const char *planner, *topology; /* for requests that name none */
    bool check;
} plan_defaults;
bool plan_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
                void *context);

/* ---- for a person (plan_words.c, plan_html.c) ----------------------------------------------- */
void plan_print(const plan_case *self, const char *check, FILE *out);
int plan_write_html(const plan_case *self, const char *path);
extern const char *const plan_page_style[], *const plan_page_script[]; /* plan_page.c */

/* ---- executing it (plan_check.c) ------------------------------------------------------------ */
/* Moves real numbers on thread ranks and compares with what gathering and slicing gives. Writes
 * "ok" or what differed; returns whether it was ok. */
bool plan_check(const plan_case *self, const plan_request *request, char *out, size_t size);

/* ---- numbers for the check (plan_numbers.c) ------------------------------------------------- */
typedef struct plan_number { /* a real or complex number, or an integer */
    double re, im;
    int64_t whole;
} plan_number;

/* How the terms of a layout make a value. */
typedef struct plan_terms {
    ts_dtype dtype;
    size_t item;      /* bytes of one */
    int32_t kind;     /* ts_placement_kind: PARTIAL, NORM; REPLICATE: there are no terms */
    ts_reduce reduce; /* PARTIAL: sum for avg and for mixtures of both */
    double norm;
    int64_t count;   /* of terms */
    int64_t divisor; /* product of the sizes of the avg axes */
} plan_terms;

void plan_terms_of(const ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype, plan_terms *out);
/* Writes the value of an element as term `term` holds it: any bits where nothing is combined, else
 * numbers of both signs and two scales that are exact in every dtype. */
void plan_value(const plan_terms *terms, bool any_bits, int64_t element, int64_t term, void *out);
plan_number plan_read(ts_dtype dtype, const void *element);
/* Combines terms one after the other: begin, add each, end. `size` sums up |term|. */
plan_number plan_combine_begin(const plan_terms *terms);
void plan_combine(const plan_terms *terms, plan_number term, plan_number *into, double *size);
void plan_combine_end(const plan_terms *terms, plan_number *value);
/* Equal as far as rounding in that dtype allows; `size` is the sum of |term|. */
bool plan_same(const plan_terms *terms, plan_number a, plan_number b, double size, bool rounded);

#endif
