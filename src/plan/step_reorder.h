/* SPDX-License-Identifier: Apache-2.0 */
/* step_reorder.h - better orders of a step: passes over a list, and what may not change places.
 *
 * Two actions of a rank keep their order if
 *   one changes what the other touches          data, and memory that is made or freed
 *   one waits for what the other began          a wait stays behind what it waits for, and before
 *                                               whoever relies on it
 *   both communicate                            all of a rank's operations keep one order, so that
 *                                               every rank keeps the same; but for those that read
 *                                               only what is there before the step, as gathers of
 *                                               parameters, in the pass that begins them ahead, and
 *                                               for reductions in the one that lets others pass
 * A new order that keeps these gives the same results: nothing else ties two actions. It is proved
 * and simulated all the same, and taken only if it is no slower and needs no more memory than is
 * allowed.
 *
 * INV: a pass moves, joins or cuts actions and changes nothing else of them. Actions that are cut
 * or joined do together what they did before. */
#ifndef TSI_PLAN_STEP_REORDER_H
#define TSI_PLAN_STEP_REORDER_H

#include "plan/step.h"

typedef struct tsi_ties { /* of one list */
    int32_t count;
    int32_t *first; /* [count + 1]: those before action i are before[first[i]] .. */
    int32_t *before;
} tsi_ties;

/* Of the list as it stands. */
ts_status tsi_ties_make(const tsi_step_list *list, tsi_ties *out);
/* The same, but operations that are `early` (by action) keep their order among themselves alone. */
ts_status tsi_ties_make_early(const tsi_step_list *list, const bool *early, tsi_ties *out);
void tsi_ties_release(tsi_ties *ties);

/* One pass over the list of one rank; *moves counts what was changed. `us` has the time of each
 * action, from the latest simulation. bytes_max: the most that a rank may hold; 0: no cap. */
typedef struct tsi_pass_job {
    tsi_step *step;
    int64_t rank;
    const double *us;
    int64_t bytes_max;
} tsi_pass_job;
ts_status tsi_pass_hoist(const tsi_pass_job *job, int64_t *moves);
ts_status tsi_pass_sink(const tsi_pass_job *job, int64_t *moves);
ts_status tsi_pass_prefetch(const tsi_pass_job *job, int64_t *moves);
ts_status tsi_pass_fill(const tsi_pass_job *job, int64_t *moves);
ts_status tsi_pass_schedule(const tsi_pass_job *job, int64_t *moves);
/* Of all ranks at once: reductions that nobody needs soon begin between others (step_defer.c). `us`
 * and `first` as below. */
ts_status tsi_pass_defer(tsi_step *step, const double *us, const int64_t *first, int64_t *moves);
/* The least key first, as far as the ties allow; who stands before something urgent is as urgent.
 * `early` as above. */
ts_status tsi_pass_by_keys(const tsi_pass_job *job, const bool *early, const double *key,
                           int64_t *moves);
/* Of all ranks at once: members of a group join or cut the same operations. */
ts_status tsi_pass_bucket(tsi_step *step, int64_t bucket_bytes, int64_t *moves);
/* Names of what orders make of operations begin so: then comes that of a bucket's first member;
 * part.2/4.w is the second of four of w. */
#define TSI_BUCKET_PREFIX "bucket."
#define TSI_PART_PREFIX "part."
bool tsi_is_bucket(const tsi_action *action); /* which that pass made, or a text says so */
/* What an operation like this one takes beside the time of its bytes, by the times that others are
 * said to take; 0 where these do not tell. */
double tsi_latency_of(const tsi_step_list *list, const tsi_action *like);
/* Does b touch what a makes or changes, or change what it reads? */
bool tsi_touches_of(const tsi_step_list *list, const tsi_action *a, const tsi_action *b);
/* Is it of a kind that goes into buckets: of which all members of the group do the same? */
bool tsi_goes_in_buckets(const tsi_action *action);

/* ---- large operations in parts (step_split.c) ------------------------------------------------ */
typedef struct tsi_part_name { /* part.2/4.w: index 1 of 4 of w */
    int32_t index, count;
    const char *of;
} tsi_part_name;
bool tsi_is_part(const tsi_action *action, tsi_part_name *out);

typedef enum tsi_whole_state {
    TSI_WHOLE_CUTTABLE,
    TSI_WHOLE_ALONE,   /* nothing of its queue or channel begins while it is under way */
    TSI_WHOLE_UNWAITED /* somebody needs it who does not wait for it by name */
} tsi_whole_state;
typedef struct tsi_whole { /* an operation, by what all ranks call it: the nth of kind and name */
    const char *what;
    int32_t kind, nth;
    double us;     /* on the first rank that has it */
    int64_t found; /* how many were found before it */
    tsi_whole_state state;
} tsi_whole;
typedef struct tsi_wholes { /* the longest first */
    tsi_whole *op;
    int64_t count, capacity;
    tsi_arena names;
} tsi_wholes;
/* `us` and `end` are by number, those of list r from first[r] on. Released by the caller, whatever
 * was returned. */
ts_status tsi_wholes_find(const tsi_step *step, const double *us, const int64_t *first,
                          tsi_wholes *out);
void tsi_wholes_release(tsi_wholes *wholes);

typedef struct tsi_split_job {
    tsi_step *step;
    const tsi_step_cost *cost;
    const int64_t *first;
    const double *us, *end; /* of each action, from the latest simulation */
    int32_t parts;          /* 2 to 64 */
} tsi_split_job;
/* Cuts it on all ranks that have it, if it can be cut; *moves counts lists. */
ts_status tsi_pass_split(const tsi_split_job *job, const tsi_whole *op, int64_t *moves);

/* The actions in the order of `order`. */
ts_status tsi_list_permute(tsi_step_list *list, const int32_t *order);

#endif
