/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - the bodies of modules and parameters.
 *
 *   declared      ts_module_param: name, shape, dtype, first value; no storage
 *   wrapped       ts_module_plan, ts_module_checkpoint, hooks: where and how, still no storage
 *   materialised  every rank has its shard, and its shard alone
 *
 * INV: a parameter's handle never changes, and its full name is that of the path from the top of
 * the tree, whichever part of the tree is asked. Without storage it reaches no kernel: dispatch
 * refuses it by that name. */
#ifndef TSI_NN_MODULE_H
#define TSI_NN_MODULE_H

#include "autograd/tape.h"
#include "tessera/nn.h"

/* Modules, and what is made of them, say where they call, and by (void)TS_HERE what they do without
 * a call: of ranks that no program's code runs on, as those of a configuration, nothing else is
 * known. */
#undef TS_HERE
#define TS_HERE tsi_here_within(__FILE__ ":" TS_TEXT_OF(__LINE__))

enum { TSI_PARAM_NAME_MAX = 256 }; /* bytes of a full name, with its end */

/* The one body of a parameter. `value` is the stored shard and authoritative; its gradient is that
 * of the leaf that the value is (tsi_leaf.grad), and ends up in the shard's layout. */
typedef struct tsi_param {
    struct tsi_param *next;
    tsi_name name;    /* below its module's */
    ts_tensor *value; /* a variable: stable handle */
    char *stored;     /* placements of the shard, or NULL: replicated */
    ts_shape shape;   /* global */
    int32_t dtype, frozen;
    double rate, decay;      /* times the optimiser's rate; instead of its decay, NaN: that one */
    int32_t adamw, reserved; /* 1: Muon leaves it to AdamW */
    ts_init_fn init;
    void *init_state;
    void *init_copy; /* what init_state points to if it was copied; or NULL */
    /* The shard in the dtype of products (mirror.c), retained, or NULL: the value as it was in this
     * storage at this version. Whoever updates the value writes both. */
    ts_tensor *mirror;
    tsi_storage *mirror_of; /* retained: another one at its address would look the same */
    uint32_t mirror_version;
    uint64_t mirror_kept_in; /* number of the recording that noted it; 0: none */
    void *unit;              /* of src/parallel: who gathers it; or NULL */
    /* [coll] Where its unit wants the shard; *out NULL: anywhere. Retained. NULL: anywhere. */
    ts_status (*unit_block)(struct tsi_param *p, tsi_array **out);
    /* Its handle shows the shard from here on, unless somebody reads the whole. */
    ts_status (*unit_cut)(struct tsi_param *p);
} tsi_param;

typedef struct tsi_hook_entry {
    struct tsi_hook_entry *next;
    int32_t when, reserved;
    ts_hook_fn fn;
    void *context;
} tsi_hook_entry;

struct ts_module {
    ts_rank *rank;
    ts_mesh *mesh; /* retained */
    ts_module_desc desc;
    void *state;
    tsi_name name; /* under its parent's; "" for the root, and for a module that only groups */
    ts_module *parent, *first, *last, *next;
    tsi_param *param_first, *param_last;
    tsi_hook_entry *hooks;
    int32_t runs_again, reserved; /* ts_recompute */
    /* Parameters below with a gradient: all, and those that have one in backward `ready_serial`. */
    int64_t trained_count, ready_count;
    uint64_t ready_serial;
    void *unit; /* of src/parallel, or NULL; unit_destroy(module) ends it, before parameters go */
    void (*unit_destroy)(struct ts_module *module);
    /* What a call gets instead of its inputs, before its hooks; `out` has room for them. */
    ts_status (*unit_input)(struct ts_module *module, ts_tensor *const *in, int32_t count,
                            ts_tensor **out);
    ts_status (*unit_output)(struct ts_module *module, ts_tensor **output); /* in place, after */
};

static inline ts_module *tsi_module_top(ts_module *m) /* of its tree */
{
    while (m->parent)
        m = m->parent;
    return m;
}

/* Visits parameters depth first, with full names. */
typedef ts_status (*tsi_param_visit)(ts_module *m, tsi_param *param, const char *name,
                                     void *context);
ts_status tsi_module_visit(ts_module *root, tsi_param_visit visit, void *context);
/* The gradient of a parameter in its layout, complete and dense; *out NULL: there is none. [coll]
 */
ts_status tsi_settled_grad(ts_tensor *param, ts_tensor **out);
/* As ts_module_call, with all outputs: room for TSI_OUTPUT_MAX; NULL where it failed. */
void tsi_module_call(ts_module *m, ts_tensor *const *input, int32_t count, ts_tensor **output);

/* ---- mirrors (mirror.c) ---------------------------------------------------------------------- */
tsi_param *tsi_param_of(const ts_tensor *value); /* NULL: no parameter of a tree that lives */
/* The parameter in another dtype, for its gradient too: its mirror, made where there is none that
 * is as new as the value; a plain cast of what is no f32 parameter. maker */
ts_tensor *tsi_param_cast(ts_tensor *parameter, ts_dtype dtype);
/* The mirror is as new as the value after it: in `block`, if one is given, else in one that nobody
 * has seen. Nothing is written where it is that already. */
ts_status tsi_param_renew(tsi_param *p, ts_dtype dtype, tsi_array *block);
/* Mirrors that are to be made of these parameters lie beside each other, rows of one block, if
 * their shards have equal rows: one product multiplies by all of them (ts_linear_list). */
void tsi_params_beside(ts_tensor *const *parameter, int32_t count, ts_dtype dtype);
/* The mirror's block if it is as new as the value, else NULL: an update writes it, then says so. */
tsi_array *tsi_param_mirror(tsi_param *p);
void tsi_param_mirrored(tsi_param *p);
void tsi_param_unmirror(tsi_param *p); /* there is none after it */
/* As ts_module_plan; what no line of `plan` matches gets the placements of `base`, whose lines need
 * not match anything. */
ts_status tsi_module_plan_over(ts_module *root, const char *plan, const char *base);

/* Calls fn for every parameter below that a line "pattern: value" matches, with the first that
 * does; before that, a line that matches nothing is refused. `what` begins sentences. */
typedef struct tsi_match {
    tsi_param *param;
    const char *name;  /* in full */
    const char *value; /* no text of its own: */
    size_t length;
    int32_t line, reserved; /* from 1 */
} tsi_match;
typedef ts_status (*tsi_match_fn)(const tsi_match *match, void *context);
typedef struct tsi_match_list {
    const char *what, *lines;
    tsi_match_fn fn;
    void *context;
} tsi_match_list;
ts_status tsi_module_match(ts_module *root, const tsi_match_list *list);

/* A parameter has moved: its state in an optimiser does now, not in the next step. Says how many
 * arrays that were, and their dtype. recorded [coll] */
ts_status tsi_optimizer_follow(ts_optimizer *o, ts_tensor *param, int32_t *moments,
                               ts_dtype *dtype);

#endif
