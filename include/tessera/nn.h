/* SPDX-License-Identifier: Apache-2.0 */
/* nn.h - modules with named parameters, and optimisers.
 *
 * A module has a type, a state of the caller's, parameters and children; a parameter's full name is
 * the path to it from the top of the tree, "layers.3.attention.wq.weight". A tree is first declared
 * (names and shapes, no storage), then wrapped (where parameters lie: by the options of each or by
 * a plan over names; what runs again; hooks), then materialised: every rank gets its shard, with
 * first values by name and global index, so that any mesh starts from the same bits. A parameter
 * used before that is refused by its full name. */
#ifndef TESSERA_NN_H
#define TESSERA_NN_H

#include "autograd.h"
#include "op.h"

typedef struct ts_module ts_module;
typedef struct ts_optimizer ts_optimizer;

/* What a forward sees. */
typedef struct ts_module_io {
    size_t struct_size;
    ts_rank *rank;
    ts_tensor *const *input;
    ts_tensor **output;
    int32_t input_count, output_count;
    int32_t phase, reserved; /* 0 forward, 1 run again in backward */
} ts_module_io;

typedef struct ts_module_desc {
    size_t struct_size;
    const char *type; /* "llama.block" */
    int32_t input_count, output_count;
    void (*forward)(void *state, const ts_module_io *io); /* may run again in backward */
    void (*destroy)(void *state);
} ts_module_desc;

typedef ts_status (*ts_init_fn)(ts_tensor *parameter, const char *name, void *state);

typedef struct ts_param_options {
    size_t struct_size;
    const char *stored; /* placements by name, "tp?:S(0)"; NULL: replicated */
    ts_init_fn init;    /* NULL: ts_init_zeros */
    void *init_state;   /* given to init; copied, see init_bytes */
    int32_t dtype;      /* a ts_dtype; 0: f32 */
    int32_t frozen;     /* 1: no gradient */
    size_t init_bytes;  /* of *init_state, which is copied at the call. 0: known for ts_init_normal;
                           of  other functions the pointer is kept until they have run */
} ts_param_options;

typedef enum ts_hook {
    TS_HOOK_FORWARD_BEFORE,
    TS_HOOK_FORWARD_AFTER,
    TS_HOOK_BACKWARD_BEFORE, /* before the first gradient of what a call recorded */
    TS_HOOK_BACKWARD_AFTER,  /* after its last; gradients of parameters are complete but where they
                                are used elsewhere too */
    TS_HOOK_GRAD_READY,      /* all parameters below have their gradients in one backward, not yet
                                reduced; set after materialising */
    TS_HOOK_RESET,           /* ts_module_reset: a step was abandoned */
    TS_HOOK_COUNT
} ts_hook;
typedef ts_status (*ts_hook_fn)(ts_module *m, void *context);

typedef enum ts_recompute {
    TS_RECOMPUTE_NONE,
    TS_RECOMPUTE_FULL,  /* a call keeps its inputs alone, and backward runs its forward again (phase
                           1), with the same random numbers */
    TS_RECOMPUTE_SELECT /* operators that are cheap are run again (views, element by element,
                           norms); products, attention, moves, choices and draws are kept */
} ts_recompute;

/* Moments are corrected by the steps of the optimiser, also those of a parameter whose first
 * gradient came later: who unfreezes some in the middle of a run gives them a group with a rate
 * that rises, or an optimiser of their own. */
typedef struct ts_adamw_options {
    size_t struct_size;
    double lr, beta1, beta2, epsilon,
        weight_decay; /* 0: 1e-3, 0.9, 0.95, 1e-8, unless exact; weight_decay as given */
    int32_t exact;    /* 1: every number is meant, 0 too */
    int32_t moments;  /* TS_DTYPE_BF16: kept in bf16, rounded by chance; 0: f32, of f64 ones f64 */
} ts_adamw_options;

typedef struct ts_sgd_options {
    size_t struct_size;
    double lr, momentum, weight_decay; /* lr 0: 1e-3, unless exact */
    int32_t nesterov;
    int32_t exact; /* 1: every number is meant, 0 too */
} ts_sgd_options;

/* How Muon's rate follows the shape [m, n] of a matrix, last two dims. */
typedef enum ts_muon_adjust {
    TS_MUON_ADJUST_RMS,     /* times 0.2 sqrt(max(m, n)): updates as large as AdamW's, so that one
                               rate serves both */
    TS_MUON_ADJUST_ORIGINAL /* times sqrt(max(1, m / n)) */
} ts_muon_adjust;

/* Muon: d is the gradient and momentum (Nesterov's), O the orthogonal matrix nearest to d as Newton
 * and Schulz step towards it, W -= rate (decay W + adjust O). For parameters of two dims and more,
 * whose last two are the matrix: of [E, m, n] each of the E by itself. The others, and those that
 * patterns or groups say ("lm_head.*: adamw"), go by AdamW with the same rate and decay. A matrix
 * is put together on one rank of its mesh, the ranks by load, and its bits are those of one rank on
 * any mesh. */
typedef struct ts_muon_options {
    size_t struct_size;
    double lr, momentum, weight_decay; /* 0: 1e-3, 0.95, unless exact; weight_decay as given */
    double beta1, beta2, epsilon;      /* of AdamW: 0: 0.9, 0.95, 1e-8, unless exact */
    int32_t exact;                     /* 1: every number is meant, 0 too */
    int32_t steps;                     /* of Newton-Schulz; 0: 5 */
    int32_t adjust;                    /* ts_muon_adjust */
    int32_t dtype;   /* of products, and of what travels: TS_DTYPE_BF16; 0: f32, of f64 ones f64 */
    int32_t moments; /* of AdamW, as there */
    int32_t reserved;
    const char *adamw; /* patterns over full names, "*embed*, head.*", of what goes by AdamW; NULL:
                          "*embed*, *lm_head*, *wte*, *wpe*"; "": no matrix */
} ts_muon_options;

/* A whole step of an optimiser, decided on the rank's device. */
typedef struct ts_step_options {
    size_t struct_size;
    double norm_max;   /* gradients are scaled down to this total norm; 0: they are not */
    double grad_scale; /* what the loss was multiplied by, and gradients are divided by; 0: 1 */
    ts_tensor *loss;   /* (optional) of one element: not finite, and the update does not run */
    int32_t skips;     /* 1: later updates run again after one that did not; 0: none does */
    int32_t adds_loss; /* with stages, 1: the loss is the sum of those that these ranks have, and
                          one that has none gives NULL; 0: all give the same */
    ts_group *stages;  /* (optional) the norm is taken over these ranks' parameters together */
    const ts_tensor *shared; /* (optional) a parameter whose gradient another of them counts */
} ts_step_options;

typedef struct ts_step_outcome {
    size_t struct_size;
    double loss, norm; /* the norm before clipping */
    int32_t updated;   /* 0: loss or norm were not finite, or an earlier one ended the updates */
    int32_t reserved;
} ts_step_outcome;

/* What becomes of gradients whose total norm is not finite. */
typedef enum ts_nonfinite {
    TS_NONFINITE_IGNORE, /* they are clipped all the same */
    TS_NONFINITE_SKIP,   /* they are forgotten: the next update changes nothing */
    TS_NONFINITE_ERROR   /* an error, which names the first module of the list with such a norm */
} ts_nonfinite;

typedef struct ts_clip_options {
    size_t struct_size;
    double norm_max;          /* gradients are scaled down to this total norm; 0: only measured */
    int32_t nonfinite;        /* a ts_nonfinite */
    int32_t module_count;     /* of the lists */
    ts_module *const *module; /* (optional) whose norms are wanted: of all parameters below each */
    double *module_norm;      /* before clipping */
} ts_clip_options;

/* The factor on the loss of training in few bits. */
typedef struct ts_loss_scale {
    size_t struct_size;
    double value;  /* multiply the loss by it */
    int64_t every; /* doubled after so many finite steps in a row, halved by one that is not; 0: it
                      stays */
    int64_t good;  /* finite steps since it last changed, or from the start */
} ts_loss_scale;

typedef ts_status (*ts_param_fn)(const char *name, ts_tensor *parameter, void *context);

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_param_options_init(ts_param_options *options);
TS_API void ts_adamw_options_init(ts_adamw_options *options);
TS_API void ts_sgd_options_init(ts_sgd_options *options);
TS_API void ts_muon_options_init(ts_muon_options *options);
TS_API void ts_step_options_init(ts_step_options *options);
TS_API void ts_clip_options_init(ts_clip_options *options);

/* ---- modules --------------------------------------------------------------------------------- */
TS_API ts_module *ts_module_create(ts_mesh *mesh, const ts_module_desc *desc,
                                   void *state /* takes */);
/* A name may have dots, "layers.0"; a child without one ("" or NULL) only groups: it adds nothing
 * to the names below it. */
TS_API ts_module *ts_module_add(ts_module *parent, const char *name, ts_module *child /* takes */);
/* maker: declared, no storage. A name that the module has already is refused. */
TS_API ts_tensor *ts_module_param(ts_module *m, const char *name, ts_shape shape,
                                  const ts_param_options *options);
/* Lines "pattern: placements" over full names, first match wins; "*" stands for any run of
 * characters. A line that matches no parameter is refused with the nearest name. After the tree is
 * built, before it is materialised. recorded */
TS_API ts_status ts_module_plan(ts_module *root, const char *plan);
/* Parameters that are trained otherwise: lines "pattern: settings" as in a plan, settings out of
 * "rate=0.5" (times the optimiser's rate), "decay=0" (instead of its weight decay), "adamw" (not by
 * Muon) and "frozen" (no gradient, no state). Before the tree is materialised; optimisers that are
 * made afterwards follow it. recorded */
TS_API ts_status ts_module_groups(ts_module *root, const char *groups);
/* Storage and first values of all parameters below that have none yet, of any part of a tree: what
 * they get depends on full names alone. Two parameters of one full name are refused. recorded
 * [coll] */
TS_API ts_status ts_module_materialize(ts_module *root);
TS_API ts_tensor *ts_module_call(ts_module *m, ts_tensor *const *input,
                                 int32_t count); /* first output */
TS_API ts_status ts_module_on(ts_module *m, ts_hook when, ts_hook_fn fn, void *context);
/* What backward makes again of calls of the module, a ts_recompute. recorded */
TS_API ts_status ts_module_checkpoint(ts_module *m, int what);
/* A step is abandoned: gradients are forgotten, RESET hooks run, the root's first. recorded */
TS_API ts_status ts_module_reset(ts_module *root);
/* Getters by path from `root`; NULL: none. */
TS_API ts_module *ts_module_find(ts_module *root, const char *path);
TS_API ts_tensor *ts_module_find_param(ts_module *root, const char *name);
/* The full name, from the top of the tree, like snprintf; of a module that only groups, those of
 * its children: "model.norm+lm_head". "" for the top. */
TS_API size_t ts_module_name(const ts_module *m, char *out, size_t size);
/* With full names, in order of declaration: a module's own before those of its children. */
TS_API ts_status ts_module_each(ts_module *root, ts_param_fn fn, void *context);
TS_API ts_mesh *ts_module_mesh(const ts_module *m);
TS_API int64_t ts_module_count(const ts_module *root); /* elements of all parameters, globally */
TS_API void ts_module_destroy(ts_module *m);           /* [any] the root alone; takes the tree */

/* ---- initialisation: by (seed, name, global index) ------------------------------------------- */
TS_API ts_status ts_init_zeros(ts_tensor *parameter, const char *name, void *state);
TS_API ts_status ts_init_ones(ts_tensor *parameter, const char *name, void *state);
TS_API ts_status ts_init_normal(ts_tensor *parameter, const char *name,
                                void *state); /* state: double *deviation; NULL: 0.02 */

/* ---- optimisers ------------------------------------------------------------------------------ */
/* Rates, epsilon, decay and momentum from 0 on, betas (and Muon's momentum) below 1; another
 * number, NaN too, is refused. */
TS_API ts_optimizer *ts_adamw_create(ts_module *root, const ts_adamw_options *options); /* maker */
TS_API ts_optimizer *ts_sgd_create(ts_module *root, const ts_sgd_options *options);     /* maker */
TS_API ts_optimizer *ts_muon_create(ts_module *root, const ts_muon_options *options);   /* maker */
/* Updates all parameters that have a gradient, or none, and clears the gradients it used. recorded
 * [coll] */
TS_API ts_status ts_optimizer_step(ts_optimizer *o);
/* The total norm, clipping, whether all is finite, and the update, all in the order of the rank's
 * queue: the host waits for nothing (several ranks: for what is reduced). ts_optimizer_outcome
 * waits for the numbers of step ts_optimizer_begun, or of one of the three before it. recorded
 * [coll] */
TS_API ts_status ts_optimizer_step_with(ts_optimizer *o, const ts_step_options *options);
TS_API int64_t ts_optimizer_begun(const ts_optimizer *o);
TS_API ts_status ts_optimizer_outcome(ts_optimizer *o, int64_t step, ts_step_outcome *out);
TS_API ts_status ts_optimizer_zero(ts_optimizer *o); /* recorded: gradients are forgotten */
TS_API ts_status ts_optimizer_rate(ts_optimizer *o,
                                   double lr); /* recorded: from the next step on */
TS_API int64_t ts_optimizer_steps(const ts_optimizer *o);
TS_API ts_status ts_optimizer_each(ts_optimizer *o, ts_param_fn fn,
                                   void *context); /* its state, by name */
TS_API ts_status ts_optimizer_resume(ts_optimizer *o,
                                     int64_t steps); /* after its state was loaded */
TS_API void ts_optimizer_destroy(ts_optimizer *o);   /* [any] */
/* Total norm of all gradients, each element once; scales them down to norm_max if it is larger (0:
 * only measures). recorded [coll] */
TS_API ts_status ts_clip_grad_norm(ts_module *root, double norm_max, double *norm);
/* The same with norms of modules, all by one reduction. *norm is the total norm before clipping,
 * the same on all ranks. recorded [coll] */
TS_API ts_status ts_clip_grads(ts_module *root, const ts_clip_options *options, double *norm);
/* Every gradient times the factor: 1 / ts_loss_scale.value after backward. recorded */
TS_API ts_status ts_grad_scale(ts_module *root, double factor);
/* After each step: were its gradients finite? If not, the step is to be left out. Fails when a
 * fixed scale overflows or no scale helps. recorded, the same on all ranks */
TS_API ts_status ts_loss_scale_update(ts_loss_scale *scale, int finite);

TS_END_C

#ifdef __cplusplus
template <class... T> inline ts_tensor *ts_call_of(ts_module *m, T... x)
{
    ts_tensor *input[] = { x... };
    return ts_module_call(m, input, (int32_t)sizeof...(T));
}
#define TS_CALL(m, ...) ts_call_of((m), __VA_ARGS__)
#else
#define TS_CALL(m, ...)                                                                            \
    ts_module_call((m), (ts_tensor *[]){ __VA_ARGS__ }, TS_COUNT(ts_tensor *, __VA_ARGS__))
#endif

#endif
