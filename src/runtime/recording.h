/* SPDX-License-Identifier: Apache-2.0 */
/* recording.h - a recording from inside: what record.c and the files beside it share. */
#ifndef TSI_RUNTIME_RECORDING_H
#define TSI_RUNTIME_RECORDING_H

#include "base/hash.h"
#include "base/observe.h"
#include "runtime/record.h"
#include "tensor/tensor.h"

enum {
    TSI_RECORDED_FORMS = 4,   /* of one block; a block that is seen in more says nothing */
    TSI_RECORDING_QUEUES = 3, /* groups that have one of their own */
    TSI_RECORDING_NAME = 200, /* bytes */
    TSI_RECORDING_AXIS = TSI_AXIS_NAME_MAX + 1
};

typedef struct tsi_recorded { /* a block of memory: one value of the step */
    const tsi_storage *storage;
    int32_t value;
    const char *form[TSI_RECORDED_FORMS]; /* in which it is known to be; names of the step */
    bool there;
    bool mixed;    /* seen in a form that nothing told of: handles into one storage */
    bool implicit; /* made by a move for the next call */
    bool staged;   /* taken by a move that is not written yet */
    bool early;    /* and freed before that held most */
    bool gone;     /* freed before that call, or that move, was told */
    bool written;  /* changed by some action */
    bool begun;    /* some rows of it are computed: the call that is to come writes the others */
} tsi_recorded;

typedef struct tsi_pending { /* an operation that was issued */
    tsi_action action;
    const ts_work *work; /* NULL: it has ended */
    int32_t value;       /* what it makes or reads; -1: not known */
    int64_t works;       /* pieces of work that are kept with it */
    bool written;        /* it is in the list; waits for being waited for */
    bool waited;         /* for it, before it was told what it is for: a round of several */
    int64_t wait_of;     /* it is that wait, for the one of this number; -1: an operation */
    /* [queue]: of the last of a move, what the others leave that run beside it; -1: nothing */
    int32_t beside[TSI_STEP_QUEUES];
} tsi_pending;

typedef struct tsi_shown tsi_shown; /* a variable that the step reads or writes */

struct tsi_recording {
    ts_rank *rank;
    tsi_step *step;
    tsi_observer hears;
    tsi_held *held;     /* of a step that is to run again; else NULL */
    tsi_worked *worked; /* likewise */
    ts_status status;   /* the first failure: nothing more is written then */
    tsi_map blocks;     /* storage -> block, while it is there */
    tsi_recorded **all; /* by value; owned */
    int64_t all_count, all_capacity, implicit_count, staged_count, staged_most;
    tsi_pending *issued;
    int64_t issued_count, issued_capacity;
    int32_t group[TSI_RECORDING_QUEUES], group_count; /* that have a queue of their own */
    bool told, hidden; /* what those not written are for is in `touch`; an operator's own moves */
    tsi_touch *touch;  /* of the action being written */
    const char **form; /* as which it sees them */
    int64_t touch_count, touch_capacity, form_capacity;
    tsi_map shown;                       /* by the variable */
    tsi_shown *first_shown, *last_shown; /* of all, as they were seen; the step owns them */
    double flops, bytes_us, flops_us;    /* so far; what a kernel does in a microsecond, or 0 */
    tsi_touch *freed;                    /* not written yet */
    int64_t freed_count, freed_capacity;
};

/* ---- record_values.c */
/* The first failure stays: nothing more is written. */
void tsi_recording_fail(tsi_recording *r, ts_status status);
tsi_step_list *tsi_recording_list(tsi_recording *r); /* this rank's; NULL: it has none yet */
/* Labels may have anything in them; names of a step may not. */
void tsi_recording_clean(char *name);
/* How many bytes of a label are in a name: 150 at most, and no half of a character (UTF-8). */
int tsi_recording_cut(const char *label);
/* What an axis is called in forms: its name, or its number. */
void tsi_recording_axis(const tsi_mesh_desc *mesh, int32_t axis, char out[TSI_RECORDING_AXIS]);
/* What the action being written touches: a value (-1: none), in a form or (NULL) in any; a tensor
 * as it lies; a tensor that it made, whose new value is returned, or -1. */
void tsi_recording_touch_as(tsi_recording *r, int32_t value, tsi_touch_how how, const char *form);
void tsi_recording_touch_value(tsi_recording *r, int32_t value, tsi_touch_how how);
void tsi_recording_touch(tsi_recording *r, const ts_tensor *t, tsi_touch_how how);
int32_t tsi_recording_made(tsi_recording *r, const ts_tensor *t, const char *maker);
/* What one round of a move leaves for the next: nothing that the rank counts as memory. -1: failed.
 */
int32_t tsi_recording_round(tsi_recording *r);
/* A move took memory for itself: its first operation makes it, and what is gone when its last one
 * is written was freed behind that. */
void tsi_recording_hear_stage(void *recording, void *storage);
void tsi_recording_make_staged(tsi_recording *r);
void tsi_recording_end_staged(tsi_recording *r);
tsi_recorded *tsi_recording_find(tsi_recording *r, const tsi_storage *storage); /* or NULL */
tsi_recorded *tsi_recording_block(tsi_recording *r,
                                  const ts_tensor *t); /* that was seen, or NULL */

/* ---- record_variables.c */
/* The step sees the tensor, which may be a variable; a variable is about to get a value; it goes.
 */
void tsi_recording_shows(tsi_recording *r, const ts_tensor *t);
void tsi_recording_hear_write(void *recording, void *variable);
void tsi_recording_hear_drop(void *recording, void *variable);
/* Refuses a step that reads where a variable lay before it, which is elsewhere after it. */
ts_status tsi_recording_check_writes(const tsi_recording *r);

/* ---- record.c */
/* Pieces of work that the rank has kept so far, with the one that is under way. None inside of what
 * is kept as a whole: that is its operator's, which is told last. */
int64_t tsi_recording_works(const tsi_recording *r);
/* With what was touched; the pieces of work below `works` that belong to no action are its. */
void tsi_recording_append_with(tsi_recording *r, const tsi_action *action, int64_t works);
void tsi_recording_append(tsi_recording *r, const tsi_action *action); /* all of them */
void tsi_recording_append_operator(tsi_recording *r, const char *what, int64_t works);
/* Where the program calls from, in `place`: file and line of its latest public call. */
void tsi_recording_place(const ts_rank *rank, char *place, tsi_action *action);
void tsi_recording_freed(tsi_recording *r, int32_t value); /* written with the next action */
void tsi_recording_write_freed(tsi_recording *r);

/* ---- record_operations.c */
bool tsi_recording_any_issued(const tsi_recording *r); /* that is not written */
bool tsi_recording_under_way(const tsi_recording *r);  /* one of those, that nobody waited for */
/* Pieces of work that were kept before the first of those. */
int64_t tsi_recording_works_before(const tsi_recording *r);
/* Groups of those lie along axes of the mesh that the tensor moves on. */
void tsi_recording_issued_along(tsi_recording *r, const tsi_moved *moved);
/* Those of an operator that is about to be written, and has waited for them: they read what is
 * touched. Returns a value that the last of them leaves, for the operator to read; -1: there are
 * none. */
int32_t tsi_recording_write_own(tsi_recording *r);
/* Before anything else is written: what was issued, then what was freed. */
void tsi_recording_catch_up(tsi_recording *r);
void tsi_recording_hear_issue(void *recording, void *issued);
void tsi_recording_hear_agree(void *recording, void *name);
void tsi_recording_hear_wait(void *recording, void *work);

#endif
