/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - the bodies of modules and parameters. */
#ifndef TSI_NN_MODULE_H
#define TSI_NN_MODULE_H

#include "autograd/tape.h"
#include "tessera/nn.h"

typedef struct tsi_param {
    struct tsi_param *next;
    char *name;       /* within its module */
    char *stored;     /* placements, or NULL: replicated */
    ts_tensor *value; /* a variable: stable handle */
    ts_shape shape;
    int32_t dtype, frozen;
    ts_init_fn init;
    void *init_state;
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
    char *name; /* under its parent; "" for the root */
    ts_module *parent, *first, *last, *next;
    tsi_param *param_first, *param_last;
    tsi_hook_entry *hooks;
    int32_t runs_again, reserved; /* calls keep their inputs alone */
    /* Parameters below with a gradient: all, and those that have one in backward `ready_serial`. */
    int64_t trained_count, ready_count;
    uint64_t ready_serial;
};

/* Visits parameters depth first, with fully qualified names. */
typedef ts_status (*tsi_param_visit)(ts_module *m, tsi_param *param, const char *name,
                                     void *context);
ts_status tsi_module_visit(ts_module *root, tsi_param_visit visit, void *context);
/* Placements of a layout's parameter by the first matching line of a plan, or NULL. */
ts_status tsi_plan_match(const char *plan, const char *name, char *out, size_t size, bool *found);

#endif
