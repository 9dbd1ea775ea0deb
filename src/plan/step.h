/* SPDX-License-Identifier: Apache-2.0 */
/* step.h - a step is a value: what every rank does in one step, as a list of actions.
 *
 *   step --> rank 0: value, value, ...   what this rank's actions touch: name, bytes, life
 *        |           action, action, ... in the order in which the rank issues them
 *        +-> rank 1: ...
 *        +-> names, queues, groups       shared by the ranks; equal names are one pointer
 *
 * What an action means. A rank issues its actions from top to bottom. Those of the queue `main` run
 * there and then, one after another; those of another queue run in that queue's order, and not
 * before the actions of `main` that stand above them have ended. A `wait` holds its own queue until
 * all actions above it that touch the values it reads have ended (no values: all actions above).
 * Members of a collective meet: the n-th one of a group and channel on every member. So do the n-th
 * send and the n-th receive of a pair and channel; a buffered send need not be met. Nothing else
 * orders two actions.
 *
 * Memory is counted in the order of issue: what an action makes is there from its line on, what it
 * frees is gone after it. Only actions of `main` free, so the peak depends on no clock.
 *
 * Placements. A touch may say in which form it sees its value ("fsdp:S(0)|tp:R"); a value has the
 * forms that were made, written or viewed. So an edge between two actions can be checked without
 * running either.
 *
 * Many ranks. In a wide step (step_wide.c) a list stands for all ranks that do the same, groups are
 * families that every rank has one of, and peers are said by distance.
 *
 * A step knows no address, no time of day and no rank's state. It prints and parses to itself
 * (docs/steps.md has the grammar). FSDP, pipelines and recordings of a running step are written in
 * this form, and everything that is asked about them is asked here. */
#ifndef TSI_PLAN_STEP_H
#define TSI_PLAN_STEP_H

#include "base/arena.h"
#include "base/hash.h"
#include "base/text.h"
#include "plan/topology.h"

enum {
    TSI_STEP_QUEUES = 10,          /* `main` among them */
    TSI_STEP_NAME_MAX = 255,       /* bytes of a name */
    TSI_STEP_RANKS_MAX = 1 << 20,  /* of a step */
    TSI_STEP_MEMBERS_MAX = 1 << 24 /* of all groups together */
};

/* Name, class (what the simulation and the proof do with it), once: a rank may have only one with
 * the same what, stage, micro-batch and group. */
#define TSI_ACTION_LIST(X)                                                                         \
    X(FORWARD, forward, COMPUTE, 1)                                                                \
    X(BACKWARD, backward, COMPUTE, 1) /* both gradients at once */                                 \
    X(INPUT_GRADIENT, input_gradient, COMPUTE, 1)                                                  \
    X(WEIGHT_GRADIENT, weight_gradient, COMPUTE, 1)                                                \
    X(RECOMPUTE, recompute, COMPUTE, 0) /* a forward again */                                      \
    X(OPERATOR, operator, COMPUTE, 0)   /* one call, of a recorded step */                         \
    X(UPDATE, update, COMPUTE, 1)                                                                  \
    X(GATHER, gather, COLLECTIVE, 0)                                                               \
    X(REDUCE, reduce, COLLECTIVE, 1) /* to shards of the sum */                                    \
    X(ALL_REDUCE, all_reduce, COLLECTIVE, 0)                                                       \
    X(EXCHANGE, exchange, COLLECTIVE, 0) /* any other move among a group */                        \
    X(SEND, send, PAIR, 0)                                                                         \
    X(RECEIVE, receive, PAIR, 0)                                                                   \
    X(SAVE, save, COMPUTE, 1)    /* to a file or to the host */                                    \
    X(RELEASE, release, MARK, 0) /* frees; takes no time */                                        \
    X(WAIT, wait, MARK, 0)

typedef enum tsi_action_kind {
#define TSI_ACTION_ENUM(name, text, class_, once) TSI_ACTION_##name,
    TSI_ACTION_LIST(TSI_ACTION_ENUM)
#undef TSI_ACTION_ENUM
        TSI_ACTION_KINDS
} tsi_action_kind;

typedef enum tsi_action_class {
    TSI_CLASS_COMPUTE,
    TSI_CLASS_COLLECTIVE,
    TSI_CLASS_PAIR,
    TSI_CLASS_MARK
} tsi_action_class;

/* The account of memory. What is offloaded lies elsewhere and is not part of the peak. */
#define TSI_STEP_MEMORY_LIST(X)                                                                    \
    X(OTHER, other)                                                                                \
    X(PARAMETER, parameter)                                                                        \
    X(MIRROR, mirror)                                                                              \
    X(GATHERED, gathered)                                                                          \
    X(GRADIENT, gradient)                                                                          \
    X(OPTIMIZER, optimizer)                                                                        \
    X(ACTIVATION, activation)                                                                      \
    X(TRANSIENT, transient)                                                                        \
    X(COMM, comm)                                                                                  \
    X(STAGING, staging)                                                                            \
    X(OFFLOADED, offloaded)

typedef enum tsi_step_memory {
#define TSI_STEP_MEMORY_ENUM(name, text) TSI_STEP_MEMORY_##name,
    TSI_STEP_MEMORY_LIST(TSI_STEP_MEMORY_ENUM)
#undef TSI_STEP_MEMORY_ENUM
        TSI_STEP_MEMORY_KINDS
} tsi_step_memory;

/* When a value is there: bit 0 before the first action, bit 1 after the last. */
typedef enum tsi_life {
    TSI_LIFE_INSIDE, /* value: made and freed by the step */
    TSI_LIFE_TAKEN,  /* takes: there before, freed by the step */
    TSI_LIFE_LEFT,   /* leaves: made by the step, there after it */
    TSI_LIFE_HELD,   /* holds: there before and after */
    TSI_LIFE_COUNT
} tsi_life;

typedef struct tsi_value { /* of one rank */
    const char *name;      /* of the step */
    int64_t bytes;
    int32_t memory;   /* tsi_step_memory */
    int32_t life;     /* tsi_life */
    const char *form; /* before the step; NULL: not said */
} tsi_value;

/* That count as held while it is there: what is offloaded lies elsewhere. */
static inline int64_t tsi_held_bytes(const tsi_value *value)
{
    return value->memory == TSI_STEP_MEMORY_OFFLOADED ? 0 : value->bytes;
}

typedef enum tsi_touch_how {
    TSI_READS,
    TSI_WRITES, /* changes what is there */
    TSI_MAKES,  /* allocates and fills */
    TSI_FREES,
    TSI_VIEWS, /* gives what is there another form */
    TSI_TOUCH_COUNT
} tsi_touch_how;

typedef struct tsi_touch {
    int32_t value; /* index in the rank's values */
    int32_t how;   /* tsi_touch_how */
} tsi_touch;

typedef struct tsi_action {
    const char *what;     /* module or tensor; NULL: none. Of the step once it is appended. */
    const char *place;    /* in the source, "model.c:12"; NULL: not known. Of the step, too. */
    int32_t kind;         /* tsi_action_kind */
    int32_t queue;        /* 0: main */
    int32_t stage, micro; /* -1: none */
    int32_t peer;         /* of a send or receive: the other rank; -1: none */
    int32_t group;        /* of a collective; -1: none */
    int32_t channel;
    int32_t away;   /* in wide steps: the other rank is so many behind this one; 0: none */
    int32_t hidden; /* an operator moves an input for itself */
    int32_t touch_count;
    int64_t touch_first; /* in the rank's touches; set by append */
    int64_t bytes;       /* sent; of a collective: of the whole block, alike on all members; of an
                            exchange: received by this one */
    double us;           /* how long it takes; < 0: the cost model says */
} tsi_action;

/* What is not said: no names, no stage, no peer, `main`, time by the cost model. */
#define TSI_ACTION_INIT(kind_)                                                                     \
    ((tsi_action){ .kind = (kind_), .stage = -1, .micro = -1, .peer = -1, .group = -1, .us = -1 })

/* An action is moved, dropped or doubled by doing so with its record: its touches stay. */
typedef struct tsi_step_list { /* of one rank */
    tsi_value *value;
    tsi_action *action;
    tsi_touch *touch;
    const char **form; /* [touch]: as which it sees the value; NULL: not said */
    int32_t value_count, action_count;
    int64_t touch_count;
    int64_t value_capacity, action_capacity, touch_capacity, form_capacity;
    int64_t peak;  /* bytes that were planned or measured; 0: not said */
    int64_t alike; /* ranks that this list stands for beyond one; the first of them is `first` */
    int64_t first;
    tsi_map values; /* name -> index + 1 */
} tsi_step_list;

typedef struct tsi_step_group {
    const char *name;
    const int32_t *member; /* world ranks, ascending */
    int32_t count;
    int64_t size, low, high; /* ranks that it stands for, the first and the last of them */
    const char *along;       /* axes of a mesh, "fsdp+tp"; NULL: not said */
} tsi_step_group;

typedef struct tsi_step {
    int32_t rank_count, queue_count, group_count;
    int32_t stage_count, micro_count; /* of a pipeline; 0: none. Then the proof asks for all. */
    int32_t list_count;               /* lists there are; the rest are empty */
    int64_t list_capacity, group_capacity, member_count;
    tsi_step_list *list; /* [rank] */
    const char *queue[TSI_STEP_QUEUES];
    tsi_step_group *group;
    struct tsi_wide *wide; /* step_wide.h; NULL: list r is rank r's */
    bool narrowed;         /* list r stands for rank list->first and those alike */
    tsi_map names, groups; /* of groups: name -> index + 1 */
    tsi_arena memory;      /* of names and members */
} tsi_step;

/* ---- building (step.c) ----------------------------------------------------------------------- */
ts_status tsi_step_create(int64_t ranks, tsi_step **out);
void tsi_step_destroy(tsi_step *step); /* accepts NULL */
/* The pipeline's numbers; both or none are 0. */
ts_status tsi_step_stages(tsi_step *step, int64_t stages, int64_t micro_batches);
/* The step's own copy of a name: no blanks, ',', '=' or '#' in it. */
ts_status tsi_step_name(tsi_step *step, const char *text, const char **out);
const char *tsi_step_find_name(const tsi_step *step, const char *text); /* NULL: it has none such */
/* Index of the queue or group of that name; a new one where there is none. A group's members
 * ascend; an old name has its old members. */
ts_status tsi_step_queue(tsi_step *step, const char *name, int32_t *out);
ts_status tsi_step_group_of(tsi_step *step, const char *name, const int32_t *member, int64_t count,
                            int32_t *out);
int32_t tsi_step_find_group(const tsi_step *step, const char *name); /* -1: none */
ts_status tsi_step_group_along(tsi_step *step, int32_t group, const char *axes);
/* Index of the value of that name on the rank; a new one where there is none. Bytes, memory and
 * life must be those it has. */
ts_status tsi_step_value(tsi_step *step, int64_t rank, const tsi_value *value, int32_t *out);
int32_t tsi_step_find_value(const tsi_step *step, int64_t rank, const char *name); /* -1: none */
/* Copies the action to the end of the rank's list, its touches ordered by how. */
ts_status tsi_step_append(tsi_step *step, int64_t rank, const tsi_action *action,
                          const tsi_touch *touch, int32_t count);
/* The same, and as which they are seen: names of any step, or NULL. */
ts_status tsi_step_append_as(tsi_step *step, int64_t rank, const tsi_action *action,
                             const tsi_touch *touch, const char *const *form, int32_t count);
/* A step of which list r is list r of part r, for r below `count`: recordings of single ranks. */
ts_status tsi_step_join(tsi_step *const *part, int64_t count, tsi_step **out);
/* Members of a collective that all say how long it takes say the least of it from now on: who came
 * last did not wait for others. Where actions do not pair up nothing is changed. */
ts_status tsi_step_meet_least(tsi_step *step);
/* The list of a rank is there, be it empty. */
ts_status tsi_step_list_make(tsi_step *step, int64_t rank);
/* The list of a rank; an empty one where nothing was appended. */
const tsi_step_list *tsi_step_list_of(const tsi_step *step, int64_t rank);
int64_t tsi_step_action_count(const tsi_step *step); /* of all ranks */
/* The rank that is meant where a list stands for many. */
static inline int64_t tsi_step_shown(const tsi_step *step, int64_t rank)
{
    return step->narrowed && rank < step->list_count ? step->list[rank].first : rank;
}
static inline const tsi_touch *tsi_step_touches(const tsi_step_list *list, const tsi_action *action)
{
    return action->touch_count > 0 ? list->touch + action->touch_first : NULL;
}

/* The form of touch i of the action; NULL: not said. */
static inline const char *tsi_step_form(const tsi_step_list *list, const tsi_action *action,
                                        int32_t i)
{
    return list->form[action->touch_first + i];
}

extern const char *const tsi_action_names[]; /* NULL-terminated, like the rest */
extern const char *const tsi_step_memory_names[];
extern const char *const tsi_life_names[];
extern const char *const tsi_touch_names[];
tsi_action_class tsi_action_class_of(int32_t kind);

/* ---- text (step_text.c, step_parse.c) -------------------------------------------------------- */
void tsi_step_print(const tsi_step *step, tsi_text *text);
/* Lines without their ends. */
void tsi_step_print_group(const tsi_step *step, int32_t group, tsi_text *text);
void tsi_step_print_value(const tsi_value *value, tsi_text *text);
/* One line without its end: "send hidden micro=3 to=1 bytes=4096 reads=h.3". */
void tsi_step_print_action(const tsi_step *step, int64_t rank, const tsi_action *action,
                           tsi_text *text);
/* The same, short, for sentences: "send hidden micro=3 to=1 (action 7 of rank 0)"; counts from 1.
 */
void tsi_step_cite(const tsi_step *step, int64_t rank, int32_t index, tsi_text *text);
ts_status tsi_step_parse(const char *text, tsi_step **out);

/* ---- comparing (step_differ.c) --------------------------------------------------------------- */
/* Whether they differ; then the first difference as a sentence is added to `why`, which may be
 * NULL. */
bool tsi_step_differ(const tsi_step *a, const tsi_step *b, tsi_text *why);

/* ---- memory (step_memory.c) ------------------------------------------------------------------ */
typedef struct tsi_step_peak {
    int64_t bytes;                     /* the most there is at once, without what is offloaded */
    int64_t by[TSI_STEP_MEMORY_KINDS]; /* at that moment */
    int32_t action;                    /* at which action; -1: before the first */
} tsi_step_peak;
/* `line`, if not NULL, has room for one number per action: the bytes while it runs. */
void tsi_step_memory_of(const tsi_step *step, int64_t rank, tsi_step_peak *out, int64_t *line);

/* ---- checking (step_check.c and its parts) --------------------------------------------------- */
#define TSI_FINDING_LIST(X)                                                                        \
    X(ABSENT, absent)     /* a value is touched that nothing made */                               \
    X(RELEASED, released) /* or that is gone */                                                    \
    X(REMADE, remade)     /* a value is made that is there */                                      \
    X(RACE, race)         /* two queues use a value, and no wait stands between */                 \
    X(LIFE, life)         /* a value is not gone, or not there, at the end */                      \
    X(UNWAITED, unwaited) /* what is left of the step is still on its way */                       \
    X(TWICE, twice)       /* an update, a reduction ... */                                         \
    X(STAGES, stages)     /* of a pipeline: something is missing or out of order */                \
    X(UNMET, unmet)       /* a message or collective without its partner */                        \
    X(MISMATCH, mismatch) /* partners say different things */                                      \
    X(DEADLOCK, deadlock)                                                                          \
    X(MEMORY, memory)       /* more than the cap */                                                \
    X(PEAK, peak)           /* not what was planned */                                             \
    X(PLACEMENT, placement) /* a value is read in a form that it does not have */                  \
    X(UNREDUCED, unreduced) /* terms are read as if they were added up */                          \
    X(AXIS, axis)           /* a collective over ranks that do not have what it needs */           \
    X(HIDDEN, hidden)       /* a move that nobody asked for */

typedef enum tsi_finding_kind {
#define TSI_FINDING_ENUM(name, text) TSI_FINDING_##name,
    TSI_FINDING_LIST(TSI_FINDING_ENUM)
#undef TSI_FINDING_ENUM
        TSI_FINDING_KINDS
} tsi_finding_kind;
extern const char *const tsi_finding_names[];

typedef struct tsi_finding {
    int32_t kind; /* tsi_finding_kind */
    char *text;   /* owned: a sentence that names the actions and their places */
} tsi_finding;

typedef struct tsi_findings { /* zero is none */
    tsi_finding *item;
    int64_t count, capacity;
    int64_t total;                 /* those that were not kept too */
    int64_t by[TSI_FINDING_KINDS]; /* of them, by kind */
} tsi_findings;
enum { TSI_FINDINGS_MAX = 200 }; /* that are kept */
void tsi_findings_release(tsi_findings *found);

typedef struct tsi_step_rules {
    bool buffered;            /* a send ends without its receive; else they meet */
    bool no_hidden;           /* operators may not move inputs for themselves */
    int64_t memory_bytes_max; /* per rank; 0: no cap */
} tsi_step_rules;
/* All that is wrong with a step, wide or not: nothing found means that every value is there when it
 * is touched, in the form that is asked for, and is not changed under a reader; every action that
 * must be there is, once; sends, receives and collectives pair up; no order of events ends in a
 * deadlock; memory stays within the cap and is what was planned. NULL: no cap, sends that meet. */
ts_status tsi_step_check(const tsi_step *step, const tsi_step_rules *rules, tsi_findings *found);
/* TS_OK if nothing is found, else the first sentence. */
ts_status tsi_step_prove(const tsi_step *step, const tsi_step_rules *rules);

/* ---- simulation (step_simulate.c) ------------------------------------------------------------ */
/* An action's own time counts first, then `of`, then the links (messages and collectives that have
 * bytes), then `us`. */
typedef struct tsi_step_cost {
    double us[TSI_ACTION_KINDS];
    const tsi_links *links; /* (optional) */
    /* (optional) microseconds; < 0: it does not know. */
    double (*of)(void *context, const tsi_step *step, int64_t rank, const tsi_action *action);
    void *context;
    bool buffered;
} tsi_step_cost;

typedef struct tsi_step_times {
    double makespan_us;
    double bubble;             /* 1 - time in which ranks compute / (ranks * makespan) */
    int64_t *first;            /* [rank]: number of its first action; [ranks]: of all actions */
    double *start_us, *end_us; /* by number */
    double *busy_us;           /* [rank * TSI_STEP_QUEUES + queue]; without marks */
    tsi_step_peak *peak;       /* [rank] */
    int64_t *critical;         /* numbers of actions, from the first to the last to end */
    int64_t critical_count;
    tsi_arena memory; /* of all arrays */
} tsi_step_times;
/* Fails as the proof does where actions do not pair up or wait for each other in a circle. */
ts_status tsi_step_simulate(const tsi_step *step, const tsi_step_cost *cost, tsi_step_times *out);
void tsi_step_times_release(tsi_step_times *times);
/* What a collective takes beside the time of its bytes; 0: not known. */
double tsi_step_latency_us(const tsi_step_cost *cost, const tsi_step *step,
                           const tsi_action *collective);

#endif
