/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h - units of sharded data parallelism.
 *
 *   fsdp.c      making units, and what they do when their modules are called
 *   by_hand.c   what a program does with them itself
 *   shards.c    where the parameters of a unit lie, cut and whole
 *   gather.c    from cut to whole and back
 *   shared.c    the same without a copy, where ranks are threads of one process
 *               (shared_storage.c: where they lie then)
 *   gradients.c theirs, from whole and partial to cut
 *   used.c      gradients where ranks use different parameters
 *   order.c     in which order units come, and what is gathered ahead
 *   order_step.c that order as a value: printed, proved, simulated
 *   border.c    switches at the border of a recorded step
 *   casts.c     dtypes of what goes into a unit's modules and comes out
 *   watch.c     what all this costs the host
 *
 *            gather            bind            unbind + drop
 *   CUT ------------> COMING --------> WHOLE ----------------> CUT
 *
 * INV: the handle of a parameter never changes; it shows the shard unless its unit is WHOLE.
 * `other` is the tensor of the state that the handle does not show: what is coming, or the shard
 * while the unit is whole; where nothing comes, since ranks share shards, `array` and `layout` are.
 * Whatever is decided here follows from the program and from what units did before, never from a
 * clock: all ranks issue the same exchanges in the same order. */
#ifndef TSI_PARALLEL_UNIT_H
#define TSI_PARALLEL_UNIT_H

#include "base/compiler.h"
#include "nn/module.h"
#include "plan/step.h"
#include "tessera/parallel.h"

typedef enum tsi_unit_state { TSI_UNIT_CUT, TSI_UNIT_COMING, TSI_UNIT_WHOLE } tsi_unit_state;

typedef struct tsi_unit_param {
    /* What every gather, release and reduction looks at lies in one cache line. */
    _Alignas(TSI_CACHE_LINE) ts_tensor *value; /* its handle, which never changes: param->value */
    /* Of the storage that ranks share (shared.c), retained; NULL: it does not lie there. */
    tsi_array *slice, *room;
    /* Of what lies there: what the handle shows next, retained. The room, and the shard while the
     * handle shows the room. NULL: no gather looked yet. */
    tsi_array *array;
    const ts_layout *layout;
    ts_tensor *other;      /* of what does not lie there: retained, or NULL: see above */
    tsi_leaf *leaf;        /* borrowed, or NULL: by tsi_unit_watch */
    int32_t mirrors;       /* dtype of the mirror that is gathered instead; 0: the shard is */
    int32_t ready;         /* its gradient is complete, and not yet reduced */
    const tsi_array *seen; /* beside `other`: of the whole, as it was bound, to notice changes */
    const tsi_storage *slice_storage;
    uint32_t version;
    uint32_t fenced; /* version of the slice that peers know; late where the unit says so */
    tsi_param *param;
    struct tsi_unit *unit;
    int32_t dtype;             /* of `array` as the handle shows it */
    uint32_t terms, cleared;   /* of the leaf, when the last backward ended (used.c) */
    const ts_sharding *cut;    /* retained: the shard's */
    const ts_sharding *whole;  /* retained: not cut by the unit's axes; == cut: nothing to gather */
    const ts_sharding *kept;   /* retained, or NULL: the shard over groups of neighbours */
    ts_tensor *part;           /* retained, or NULL: the shard of `kept`, between the directions */
    int64_t room_at, slice_at; /* bytes, from the storage's and the room's beginning */
    /* Of what is not shared: the shard when it was gathered last, to notice changes. Of the whole,
     * when it was changed and looked at last. Not retained: never read. */
    const tsi_array *shard, *edited;
    uint32_t shard_version, edited_version;
    uint64_t history; /* in which backwards it was used since ranks agreed on it (used.c) */
} tsi_unit_param;

typedef struct tsi_shared tsi_shared;

typedef struct tsi_unit_border tsi_unit_border;

typedef struct tsi_unit_ahead { /* of ts_fsdp_prefetch */
    struct tsi_unit **unit;
    int64_t count;
} tsi_unit_ahead;

typedef struct tsi_unit {
    ts_rank *rank;
    ts_mesh *mesh;     /* borrowed from the first module */
    char *name;        /* full, for sentences */
    const char *label; /* of what it takes and moves, whosever turn it is; or "" */
    ts_module **module;
    int32_t module_count, said;
    int32_t inner;    /* are there units inside of its module? 1 yes, -1 no, 0 to be looked for */
    int32_t agreed;   /* calls that the ranks agreed on */
    int32_t has_left; /* axes_left counts */
    int32_t has_ignored;
    int32_t forward_passed, backward_passed; /* of a list: modules that have ended */
    tsi_unit_param *param;
    int64_t count, trained, ready_count;
    uint64_t leaves_seen; /* of the autograd state, when they were watched; 0: never */
    tsi_unit_state state;
    uint64_t shapes;              /* of the inputs of its last call */
    int32_t users;                /* calls that are going on, and gathers by hand */
    int32_t backwards;            /* backwards of its calls among them */
    uint32_t axes_cut;            /* of the mesh */
    uint32_t axes_own, axes_left; /* of its options; of a parameter that was left to one beside */
    int32_t all_reduce, reshard_backward;
    ts_fsdp_options options;
    tsi_unit_ahead ahead[2]; /* forward, backward */
    struct tsi_units *all;   /* of the tree; NULL: not called yet */
    /* The next unit of the same modules, of parameters that other axes cut; or NULL. Modules know
     * the first one. */
    struct tsi_unit *beside;
    /* Where ranks share the storage of shards (shared.c). */
    ts_group *group;     /* borrowed: who shares it */
    tsi_shared *shared;  /* retained, or NULL */
    size_t shared_bytes; /* of all rooms */
    int64_t serial;      /* which storage it is */
    int32_t shares;      /* 1: some parameters lie there; -1: none does; 0: not yet known */
    int32_t joined;      /* members agreed on the storage since the last reset */
    uint32_t gathered;   /* gathers since then */
    int32_t partly;      /* whole, but for parameters that went before the others */
    /* Of a unit whose parameters were all seen in their slices, with nothing to renew there: what
     * is the same for all of them is known without looking at each. */
    int32_t in_place;
    int32_t written;     /* since the last fence somebody became alone with it, so as to write */
    int32_t fenced_late; /* nobody did, and `fenced` of its parameters does not say so yet */
    uint64_t fenced_in;  /* number of the step under record that has a fence for it */
    uint64_t begun_in;   /* and of that in which its latest gather began; 0: in none */
    uint64_t kept_in;    /* and of the one at whose border its switches are noted (border.c) */
    tsi_unit_border *border; /* borrowed, while that is recorded */
    ts_tensor **list;        /* room for two of its parameters, and where they go: of one call */
    const ts_sharding **list_to;
    const ts_layout **layouts;
    tsi_leaf **leaves;
    struct tsi_prepared *reduction; /* of its last usual step, or NULL */
    int32_t one_by_one;             /* there is none for it */
    int32_t spares_backward;        /* no gradient of its open calls reads a parameter of it */
    int32_t recorded;   /* the calls of its modules left something for backward to pass */
    int64_t open;       /* such calls whose backwards have not ended */
    uint64_t tape_mark; /* of the tape of the last of them */
    int64_t node_first; /* of the tape, when the call that is going on began; -1: none records */
    ts_mesh *groups;    /* retained: the mesh with the cutting axis split, or NULL */
} tsi_unit;

typedef enum tsi_unit_phase {
    TSI_UNIT_FORWARD,
    TSI_UNIT_BACKWARD,
    TSI_UNIT_AGAIN /* forward, run again in backward */
} tsi_unit_phase;
typedef struct tsi_unit_event {
    tsi_unit *unit;
    int32_t phase, reserved;
} tsi_unit_event;
enum { TSI_UNIT_ORDERS = 8 };
typedef struct tsi_unit_order { /* of a step */
    tsi_unit_event *event;
    int64_t count, capacity; /* count 0: there is none */
    uint64_t shapes;         /* of the inputs of its first unit, when it was last used */
    int64_t used;            /* by tsi_units.clock */
} tsi_unit_order;
/* The units of a tree, found at the first call; shared by them. */
typedef struct tsi_units {
    int64_t references; /* units that point here */
    tsi_unit **unit;
    int64_t unit_count;
    tsi_unit_order order[TSI_UNIT_ORDERS]; /* of steps that have ended */
    tsi_unit_order noted;                  /* of this step so far */
    tsi_unit_order *followed;              /* one of them; NULL: none begins as this step did */
    int64_t at;                            /* events of it that have come */
    int64_t clock;
    uint64_t epoch;      /* recoveries of the world when orders were forgotten last */
    int32_t said;        /* that no order was as the step */
    tsi_unit *reducing;  /* whose gradients are on their way, or NULL */
    uint64_t reduced_in; /* which backward began that */
    /* When half of `until` has its gradients, those on their way are waited for, and `later` is
     * gathered; or NULL. */
    tsi_unit *later, *until;
    int32_t timed;                   /* TS_FSDP_TIMES */
    int64_t work_ns, work_thread_ns; /* both clocks when the schedule's work began; 0: no work */
    ts_fsdp_stats stats;
} tsi_units;

/* ---- shards.c */
/* cut, whole and kept of each parameter; its `stored` and its value, if there is one, follow. */
ts_status tsi_unit_place(tsi_unit *u);
/* Is the parameter, which the axes would cut, to stay out of units? */
ts_status tsi_unit_ignores(const tsi_unit *u, const tsi_param *param, uint32_t axes, bool *out);
/* A parameter as its modules see it: of one that is in no unit, its own sharding. Borrowed. */
const ts_sharding *tsi_unit_whole(const tsi_param *param);
/* Handles show shards, and nobody but this rank knows them; refused while the unit runs. */
ts_status tsi_unit_take_back(tsi_unit *u);
/* [coll] Modules see a parameter of a unit, between steps, as `whole` from now on, and the unit
 * cuts that as it did: its value moves; its gradient and mirror are forgotten. */
ts_status tsi_unit_place_anew(tsi_param *param, const ts_sharding *whole);

/* ---- fsdp.c */
/* The full name of a module for sentences, in `out`. */
const char *tsi_unit_title(const ts_module *m, char *out, size_t size);
ts_status tsi_unit_check_moved(const tsi_unit *u, const char *what, ts_status status,
                               ts_tensor *const *from, const ts_sharding *const *to, int32_t count,
                               ts_tensor *const *out);

/* ---- gather.c */
ts_status tsi_unit_gather(tsi_unit *u);       /* CUT -> COMING; else nothing */
ts_status tsi_unit_gather_ahead(tsi_unit *u); /* before it is called, with those beside it */
ts_status tsi_unit_bind(tsi_unit *u);         /* -> WHOLE */
/* Parameters that were changed while they were whole are noted for tapes; `inside`: in a call of
 * the unit, whose tape saw them so. */
void tsi_unit_look(tsi_unit *u, bool inside);
ts_status tsi_unit_drop(tsi_unit *u,
                        bool keeps_part); /* -> CUT; what was changed is written back */
/* One that is whole in a block of its own shows its shard again, and the block goes, before the
 * rest of the unit does. */
ts_status tsi_param_drop(tsi_unit_param *p);
void tsi_unit_forget(tsi_unit *u); /* -> CUT; nothing is looked at: a step was abandoned */

/* ---- shared.c */
bool tsi_world_shares(ts_world *world); /* are ranks threads that may share shards? */
ts_status tsi_unit_join(tsi_unit *u);   /* [coll] once, and after a reset */
ts_status tsi_unit_block(tsi_param *param, tsi_array **out); /* [coll] tsi_param.unit_block */
/* Its slice is the value, and peers know: asked where the unit's fence is not late. */
static inline bool tsi_param_settled(const tsi_unit_param *p)
{
    if (!p->slice || p->slice_storage->version != p->fenced) return false;
    return p->mirrors ? tsi_param_mirror(p->param) == p->slice : p->value->array == p->slice;
}
ts_status tsi_unit_adopt(tsi_unit *u); /* values move into their slices */
ts_status tsi_unit_fence(tsi_unit *u); /* [coll] */
void tsi_unit_note_fence(tsi_unit *u); /* `fenced` of its parameters is late no more */
/* Are all slices as peers know them, so that to gather it is to count it? */
static inline bool tsi_unit_in_place(const tsi_unit *u)
{
    return u->in_place && !u->written;
}
ts_status tsi_unit_alone(tsi_unit *u);        /* no peer reads its slices any more */
void tsi_unit_let_go(tsi_unit *u);            /* this rank does not read its peers' */
ts_status tsi_unit_count_gather(tsi_unit *u); /* it does, from now on */
void tsi_unit_forget_shared(tsi_unit *u);    /* a step was abandoned: the next gather joins again */
ts_status tsi_param_look(tsi_unit_param *p); /* what its handle shows next is the room */
/* Does the handle show the room, or what was written instead? */
static inline bool tsi_param_in_room(const tsi_unit_param *p)
{
    return p->array && p->array != p->room;
}
void tsi_param_look_away(tsi_unit_param *p); /* what its handle would show next goes */
void tsi_unit_leave_shared(tsi_unit *u);

/* ---- gradients.c */
ts_status tsi_unit_watch(tsi_unit *u);      /* leaves of its parameters report here */
ts_status tsi_unit_reduce(tsi_unit *u);     /* what is complete and not reduced */
ts_status tsi_units_settle(tsi_units *all); /* waits for what is on its way */

/* ---- used.c */
ts_status tsi_unit_agree(tsi_unit *u); /* [coll] which gradients are reduced */
void tsi_unit_note_use(tsi_unit *u);   /* of the backward that ends, a lazy one, too */
void tsi_unit_forget_use(tsi_unit *u); /* as if none had been noted */
/* tsi_leaf.alone: not where ranks may have used different parameters since they agreed last. */
ts_status tsi_unit_settles_together(void *param);

/* ---- order.c */
ts_status tsi_units_find(tsi_unit *u); /* sets u->all */
/* [coll] where the order is not known: do all ranks call this unit now? */
ts_status tsi_units_agree(tsi_unit *u, tsi_unit_phase phase);
/* A unit begins: notes it, and gathers the next one ahead. */
ts_status tsi_units_event(tsi_unit *u, tsi_unit_phase phase);
/* What is to be gathered ahead later is gathered now, if this unit was to come to it first. */
ts_status tsi_units_gather_later(tsi_unit *u);
/* Does backward begin with this unit, as far as is known? */
bool tsi_units_turns(const tsi_unit *u);
void tsi_units_forget(tsi_units *all); /* the step was abandoned */
/* The order that is followed, or the one of the last step; NULL: none is known. */
const tsi_unit_order *tsi_units_order(const tsi_units *all);
void tsi_units_leave(tsi_unit *u); /* u->all is NULL after it */
static inline bool tsi_units_beside(const tsi_unit *a, const tsi_unit *b) /* or the same */
{
    return a->module[0] == b->module[0];
}

/* Does what begins look at parameters, so that the unit is gathered? */
static inline bool tsi_unit_reads(const tsi_unit *u, int32_t phase)
{
    return phase != TSI_UNIT_BACKWARD || !u->spares_backward;
}

/* ---- border.c */
/* Before the unit does anything in a step that may be recorded: what it goes by is noted. */
ts_status tsi_unit_at_border(tsi_unit *u);
/* One of its switches but TS_FSDP_TIMES gets a value that was checked. */
ts_status tsi_unit_set(tsi_unit *u, ts_fsdp_switch what, int32_t value);

/* ---- casts.c */
ts_status tsi_unit_check_casts(const tsi_unit *u);
ts_status tsi_unit_input(ts_module *m, ts_tensor *const *in, int32_t count, ts_tensor **out);
ts_status tsi_unit_output(ts_module *m, ts_tensor **output);

/* ---- watch.c */
/* Between begin and end this rank's thread works for the schedule, but inside of waits. Begin
 * before the tree is known (u->all is NULL) counts nothing. */
typedef struct tsi_watch {
    int64_t begin_ns, host_ns;
} tsi_watch;
void tsi_watch_set(tsi_units *all, bool timed);
tsi_watch tsi_watch_begin(const tsi_unit *u);
void tsi_watch_end(const tsi_unit *u, const tsi_watch *w);
/* Around a wait for peers or for what they send: the answer of the first is for the second. Both
 * accept NULL. */
bool tsi_watch_wait(tsi_units *all);
void tsi_watch_waited(tsi_units *all, bool was_at_work);

/* ---- order_step.c */
/* What all ranks of the mesh do in a step, by the order that is known; the caller destroys it. */
ts_status tsi_units_step(const tsi_units *all, tsi_step **out);

#endif
