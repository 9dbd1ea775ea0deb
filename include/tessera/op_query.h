/* SPDX-License-Identifier: Apache-2.0 */
/* op_query.h - the operator table, and what a call would do before anything runs.
 *
 * A query is a value made from an operator's name, a mesh, the layouts of the inputs and the
 * attributes as JSON: which rule holds on each axis, what moves, what comes out. Nothing is
 * communicated and the mesh may be a description, so any number of ranks can be asked about.
 *
 * ts_op_query_run then makes the call with numbers on the ranks of a world and compares it with the
 * same call on one rank. All other functions are local and may be called by any thread. */
#ifndef TESSERA_OP_QUERY_H
#define TESSERA_OP_QUERY_H

#include "layout.h"
#include "scope.h"

/* ---- the table ------------------------------------------------------------------------------- */
typedef enum ts_attribute_type { /* and where a field of that type is, in a user's own struct */
                                 TS_ATTRIBUTE_INT,    /* int64_t */
                                 TS_ATTRIBUTE_REAL,   /* double */
                                 TS_ATTRIBUTE_BOOL,   /* int32_t, 0 or 1 */
                                 TS_ATTRIBUTE_DIMS,   /* ts_shape; ndim -1: not given */
                                 TS_ATTRIBUTE_DTYPE,  /* int32_t, a ts_dtype */
                                 TS_ATTRIBUTE_CHOICE, /* int32_t, index into choices */
                                 TS_ATTRIBUTE_TEXT,   /* char[96] */
                                 TS_ATTRIBUTE_NONE,   /* of values only: not given */
                                 TS_ATTRIBUTE_NUMBER  /* ts_number; a real that is whole: INT */
} ts_attribute_type;
typedef struct ts_op_attribute { /* frozen */
    const char *name;            /* "keepdim"; NULL ends the table */
    ts_attribute_type type;
    uint32_t offset;            /* in the struct that a user's own operator takes */
    const char *otherwise;      /* default as JSON text; NULL: required */
    const char *const *choices; /* CHOICE: NULL after the last */
} ts_op_attribute;

typedef struct ts_op_about { /* may grow at the end; texts live as long as the program */
    size_t struct_size;
    const char *name;
    const char *what; /* one line */
    const char *dims; /* index expression, or NULL: written as a function */
    int32_t input_min, input_max, output_count;
    int32_t has_gradient; /* 1: yes; 0: no; -1: has none by nature */
    int32_t has_in_place; /* the form name_ */
    int32_t is_view, is_random, is_host;
    uint32_t dtypes; /* bit d: dtype d of input 0 is accepted */
    int32_t algorithm_count;
    const ts_op_attribute *attribute; /* its table; NULL: none */
    const char *function;             /* "ts_abs"; NULL: it is called by its name alone */
    const char *function_in_place;    /* "ts_tril_"; NULL, as above */
} ts_op_about;

/* ---- one call -------------------------------------------------------------------------------- */
typedef struct ts_op_query ts_op_query;

typedef struct ts_op_query_options {
    size_t struct_size;
    const char *op;             /* "matmul"; "add_" is the form in place */
    const char *attributes;     /* a JSON object; NULL: defaults */
    ts_mesh *mesh;              /* borrowed while the query lives */
    const ts_layout *const *in; /* NULL: absent */
    int64_t implicit_bytes_max; /* with TS_MOVES_WARN */
    int32_t input_count;
    int32_t dtype; /* of inputs that hold numbers; 0: f32. Indices and masks have their own */
    int32_t implicit_moves; /* ts_moves; 0: allow */
    int32_t reserved;
} ts_op_query_options;

typedef struct ts_op_query_summary { /* may grow at the end */
    size_t struct_size;
    int64_t bytes_received; /* by all ranks: moves of inputs and the algorithm's own */
    int64_t bytes_moved;    /* moves of inputs only */
    double cost_us;         /* by the model of the world's topology */
    int32_t input_count, output_count;
    int32_t algorithm;  /* 0: the kernel alone */
    int32_t rule_count; /* that were considered; 0: a view, decided from the whole layout */
} ts_op_query_summary;

typedef struct ts_op_cache_stats { /* may grow at the end */
    size_t struct_size;
    int64_t hits, misses, evicted;
    int64_t live, capacity; /* plans kept */
    int64_t bytes;          /* that they take */
    int64_t implicit_bytes; /* moved by all ranks for calls of this rank that did not ask for it */
    int64_t matched; /* of the misses: no search, every input stays as it is (new sizes, mostly) */
} ts_op_cache_stats;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_op_query_options_init(ts_op_query_options *options);

TS_API int32_t ts_op_count(void);
/* TS_ERR_ARG: no such number. */
TS_API TS_NODISCARD ts_status ts_op_about_at(int32_t index, ts_op_about *out);
TS_API int32_t ts_op_number(const char *name); /* -1: none */
/* Texts, like snprintf: attributes as "dim=-1, keepdim=false" ("dim" alone: required); names of
 * algorithms; the rules of a sampled call, one a line. */
TS_API size_t ts_op_attributes_text(int32_t index, char *out, size_t size);
TS_API size_t ts_op_algorithms_text(int32_t index, char *out, size_t size);
TS_API size_t ts_op_rules_text(int32_t index, char *out, size_t size);

/* Refused with a sentence: an unknown operator or attribute (with the nearest name), a required one
 * that is missing, shapes and dtypes that clash, a form in place that would have to move its
 * target, moves that the policy forbids. On failure *out is NULL. */
TS_API TS_NODISCARD ts_status ts_op_query_create(const ts_op_query_options *options,
                                                 ts_op_query **out);
TS_API void ts_op_query_destroy(ts_op_query *query); /* accepts NULL */
TS_API void ts_op_query_summarise(const ts_op_query *query, ts_op_query_summary *out);
TS_API const ts_layout *ts_op_query_out(const ts_op_query *query, int32_t output); /* getter */
/* Like snprintf: the fields of `tessera op` as one JSON object; words for a person. */
TS_API size_t ts_op_query_json(const ts_op_query *query, char *out, size_t size);
TS_API size_t ts_op_query_text(const ts_op_query *query, char *out, size_t size);

/* recorded [coll]: makes the call on this world, whose ranks must hold the query's mesh, with
 * adversarial numbers (terms of both signs and two scales, ties, zeros; pattern 0 .. 5), and on one
 * rank, and compares. `verdict` gets "ok" or what differs on this rank. Several ranks may share the
 * query. */
TS_API ts_status ts_op_query_run(const ts_op_query *query, ts_rank *me, int32_t pattern,
                                 char *verdict, size_t size);

/* recorded: the plans of this rank. */
TS_API ts_status ts_op_cache_statistics(ts_rank *me, ts_op_cache_stats *out);
/* recorded: the same as lines "op.cache.hits 12"; like snprintf, but for the status. */
TS_API ts_status ts_op_cache_text(ts_rank *me, char *out, size_t size);
/* recorded: while on, every call of this rank on a mesh of several ranks first compares its plan
 * with those of the others (a small all_reduce), and a rank that differs is named. All ranks of the
 * mesh must have it on. For debugging: off at first. */
TS_API ts_status ts_op_check_plans(ts_rank *me, int on);

/* recorded: nanoseconds of the local kernel alone, the best of `repeats` rounds of 64, where a call
 * with these inputs and attributes (JSON; NULL: defaults) communicates nothing; 0 for a view. What
 * a call takes beyond that is dispatch. */
TS_API ts_status ts_op_kernel_time(const char *op, ts_tensor *const *in, int32_t count,
                                   const char *attributes, int64_t repeats, double *ns);

TS_END_C
#endif
