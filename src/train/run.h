/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - one rank's part of a training run, and what its pieces do with it.
 *
 *   data.c    tokens, rows, batches            state.c   weights and optimiser state on disk
 *   measure.c memory, time, communication      meaning.c what a state is the state of
 *   report.c  the page at the end              history.c the log, read again when resuming
 *   output.c  the directory and its lock       trainer.c the loop
 *   evaluate.c the loss of held-out rows       loss.c    what a step goes down by
 *   routers.c loads of experts                 norms.c   norms of gradients by module
 *   finite.c  where a NaN began                limit.c   what a rank may hold
 *   predict.c how long a step takes            seen.c    one step in pictures
 *   sample.c  what the model writes            lines.c   files with an object a line
 *   again.c   steps recorded once and run again
 *
 * INV: everything that decides what is computed (step, rows, rate) is a function of the step and
 * the configuration; clocks and callbacks only decide when to stop, and all ranks agree on that. */
#ifndef TSI_TRAIN_RUN_H
#define TSI_TRAIN_RUN_H

#include <stdbool.h>
#include <stdio.h>

#include "comm/model/model_engine.h"
#include "model/model.h"
#include "plan/step.h"
#include "tessera/checkpoint.h"
#include "tessera/step.h"
#include "train/config.h"
#include "train/seen.h"
#include "train/stages.h"
#include "train/tensorboard.h"

typedef enum tsi_phase {
    TSI_PHASE_DATA,
    TSI_PHASE_FORWARD,
    TSI_PHASE_BACKWARD,
    TSI_PHASE_NORM,
    TSI_PHASE_UPDATE,
    TSI_PHASE_OTHER, /* agreeing, counting, callbacks */
    TSI_PHASE_COUNT
} tsi_phase;

typedef struct tsi_measures { /* of this rank, since this process began */
    double phase[TSI_PHASE_COUNT];
    ts_times times;
    ts_counts counts; /* summed over steps */
    uint64_t event;   /* counted up to here */
    ts_memory memory; /* by kind */
    int64_t memory_peak;
} tsi_measures;

enum { TSI_HISTORY_MAX = 1024 };
typedef struct tsi_history { /* rank 0 alone */
    ts_train_step *step;     /* the last of every `stride` steps, and the newest */
    int64_t count, capacity, stride;
    int64_t filled; /* steps that the newest stands for */
    uint64_t run;   /* whose lines these are */
    FILE *log;
} tsi_history;

typedef struct tsi_held_out { /* rows that are not trained on, and how the run did on them */
    ts_loader *loader;        /* NULL: there are none */
    int64_t rows;
    double latest, best;     /* losses; NaN: not yet */
    int64_t step, best_step; /* of both */
    int64_t worse;           /* evaluations since the best */
} tsi_held_out;

typedef struct tsi_traffic { /* of one rank */
    ts_mesh *mesh;
    tsi_observer hears;
    tsi_model_machine machine; /* whose seconds are counted */
    int32_t count, reserved;
    ts_train_traffic row[TS_TRAFFIC_MAX];
} tsi_traffic;

typedef struct tsi_rows_part { /* of the rows of a step */
    ts_tensor *ids, *labels;
    int64_t number;
} tsi_rows_part;

typedef struct tsi_again { /* a step that is run again (again.c) */
    ts_step *step;         /* NULL: not recorded yet */
    tsi_rows_part *part;   /* [accumulate]: where it reads; owned */
    int64_t seen;          /* steps asked for */
    int64_t replays, moved;
    int64_t ns_before, ns_after; /* the shortest replay in the recorded order and in the new one */
    double predicted_us[2];      /* a step, before and after */
    bool refused;
} tsi_again;

typedef struct tsi_run {
    ts_rank *me;
    const ts_train_config *config;
    const ts_train_options *options; /* never NULL */
    ts_mesh *mesh;
    ts_group *all; /* of the mesh; borrowed */
    ts_model *model;
    tsi_stages *stages;           /* of the axis pp; NULL: there is none */
    tsi_stages_measured measured; /* their last step, at the end of the run */
    ts_optimizer *optimizer;
    ts_loader *loader; /* whose rows are read: those to train on, but while evaluating */
    tsi_held_out held_out;
    ts_state *state; /* of the model and the optimiser, as it is saved */
    int32_t *row;    /* [context + 1]: the row at hand */
    ts_loss_scale scale;
    ts_train_plan plan;
    ts_memory planned; /* by kind */
    tsi_measures measures;
    tsi_history history;
    tsi_tensorboard board; /* rank 0 */
    ts_train_cost *cost;   /* what was planned of this rank, or NULL */
    tsi_traffic traffic;   /* of one step, as it ran */
    tsi_seen seen;         /* of the same one */
    ts_train_rates rates;  /* of this machine, after a run of a second; or 0 */
    double busy, *busy_of; /* seconds without waiting: of this rank; of a step, by rank, or NULL */
    int64_t *peak_of;      /* by rank: bytes planned, then bytes held at most; or NULL */
    int64_t trace_first, trace_last, trace_ns; /* steps; when the first of them began, or 0 */
    int64_t waited_ns; /* for other ranks, up to the step that was told last */
    FILE *loads;       /* rank 0: experts.jsonl, from the first step with routers on; or NULL */
    FILE *norms;       /* rank 0: norms.jsonl, from the first step of log.norms on; or NULL */
    tsi_again again;   /* train.replay */
    FILE *samples;     /* rank 0: samples.jsonl, from the first step of log.sample_every on */
    double seconds;    /* of all steps of this process */
    int64_t skipped;   /* steps left out, up to the latest, in a row */
    bool late;         /* a step is told of while the next one runs on the device */
    uint64_t id;       /* of the run, from its first step on: in its states and its log */
    bool saving;       /* a save goes on in the background */
    int lock;          /* rank 0: the file that is locked, or -1 */
    bool keeps_best;   /* a state with the best loss of held-out rows is saved */
    bool tokenized;    /* a text was made into token files here */
    char mesh_text[256];
} tsi_run;

/* ---- data */
/* Tokenises on rank 0 if the path is text, opens the loader. [coll] */
ts_status tsi_run_data(tsi_run *run);
/* A loader of a text or of token files; `batch` rows a step. [coll] */
typedef struct tsi_source {
    const char *key, *path; /* "path" or "held_out" of [data] */
    int64_t batch;
    bool in_order;
} tsi_source;
ts_status tsi_run_open(tsi_run *run, const tsi_source *source, ts_loader **out);
/* Rows [first, first + count) of a step: ids, or with shift 1 the labels. maker */
/* Tells the model which documents these rows are packed from, where they are separate. */
ts_status tsi_run_documents(tsi_run *run, int64_t step, int64_t first, int64_t count);
/* The same of rows row[0 .. count), counted from `first`. */
ts_status tsi_run_documents_of(tsi_run *run, int64_t step, const int64_t *row, int64_t first,
                               int64_t count);
ts_tensor *tsi_run_rows(tsi_run *run, int64_t step, int64_t first, int64_t count, int64_t shift);

/* ---- the loss */
typedef struct tsi_rows_loss {
    ts_model *model;
    ts_tensor *ids, *labels;
    int64_t rows, context;
    double z_loss; /* train.z_loss, or 0 */
    double factor; /* what the mean is multiplied by before backward */
} tsi_rows_loss;
/* The mean loss of rows. maker */
ts_tensor *tsi_train_loss(const tsi_rows_loss *l);

/* ---- evaluation */
ts_status tsi_eval_open(tsi_run *run); /* [coll] after the data */
void tsi_eval_close(tsi_run *run);
bool tsi_eval_is_due(const tsi_run *run, int64_t step); /* after so many steps */
/* The mean loss of all held-out rows; gradients, the order of data and random numbers stay as they
 * are. [coll] */
ts_status tsi_eval_run(tsi_run *run, int64_t step, double *loss);
/* Has the loss been worse train.patience times in a row? */
bool tsi_eval_is_over(const tsi_run *run);

/* ---- steps that are run again */
/* Forward and backward of one part, on the tape that is open; its loss is added. [coll] */
ts_status tsi_run_part(tsi_run *run, const tsi_rows_part *of, ts_tensor *loss, int64_t *mark);
/* Adds the share of one part to the mean loss of a step. */
ts_status tsi_run_add_loss(tsi_run *run, ts_tensor *loss, ts_tensor *mean);
/* *done: the step was taken here, recorded or replayed; else it is the caller's to take. [coll] */
ts_status tsi_again_take(tsi_run *run, int64_t step, double rate, bool *done);
void tsi_again_tell(const tsi_again *again, ts_train_result *out);
void tsi_again_close(tsi_run *run);

/* ---- the directory */
ts_status tsi_output_open(tsi_run *run); /* rank 0: makes, locks and cleans it */
void tsi_output_close(tsi_run *run);     /* lets go of the lock */
/* The file of the tokenizer that the data has; false: it is built in. */
bool tsi_run_tokenizer(const ts_train_config *config, char *out, size_t size);

/* ---- state: OUTPUT/state/step-N/ */
ts_status tsi_state_save(tsi_run *run, int64_t step, double loss); /* [coll] */
ts_status tsi_state_poll(tsi_run *run); /* [coll] looks after one in the background */
ts_status tsi_state_wait(tsi_run *run); /* [coll] ends it */
ts_status tsi_state_load(tsi_run *run, int64_t *step); /* [coll] *step 0: there was none */
ts_status tsi_state_none(tsi_run *run);                /* [coll] removes those that are there */
static inline int64_t tsi_last_step(const ts_train_config *c)
{
    int64_t after = c->train.stop_after;
    return after > 0 && after < c->train.steps ? after : c->train.steps;
}
/* Warns where what the run saves until step `last` is more than its disk has free. */
void tsi_state_room(tsi_run *run, int64_t last);
/* In a world without data: *out holds what a save in the background copies, as far as memory is
 * counted. `optimizer` may be NULL; the caller destroys *out, on failure too. [coll] */
ts_status tsi_state_behind(ts_mesh *mesh, ts_model *model, ts_optimizer *optimizer, ts_state **out);
/* What the run's state is the state of; NULL: recorded. The caller frees. */
char *tsi_run_meaning(tsi_run *run);
/* "model.heads is 2 there and 4 here; ..."; NULL in *out: nothing differs. The caller frees. */
ts_status tsi_meaning_compare(tsi_run *run, const ts_archive *archive, char **out);

/* Are gradients of this part of a step reduced with a later one's? Those that are cut are not:
 * whole they would be larger than all else. */
static inline int32_t tsi_train_waits(const ts_model *model, int64_t part, int64_t parts)
{
    return part + 1 < parts && ts_mesh_axis(model->mesh, "fsdp") < 0;
}

/* What of a configuration decides what a step costs. */
ts_train_shape tsi_train_shape(const ts_train_config *config);

/* Whom else of its stage to look at: ranks that may hold more or less. */
typedef struct tsi_others {
    bool last;           /* that with the last piece of every axis */
    int64_t most, least; /* matrices of Muon; -1: all have as much */
} tsi_others;

/* Which rank is described, and of what world. */
typedef struct tsi_described {
    int64_t vocab; /* 0: the configuration's */
    int64_t rank;
    bool together;   /* ranks are threads of one process */
    int32_t threads; /* of a rank that computes on the host; 0: it does not */
    bool saves_only; /* no step runs: what a state that is saved in the background takes, alone */
    tsi_others *others; /* (optional) out */
    ts_world *world;    /* (optional) that it is of; NULL: none is there yet */
} tsi_described;
int32_t tsi_train_threads(ts_rank *rank); /* so, of a rank that is there */
/* As ts_train_forecast, of one rank. */
ts_status tsi_train_estimate_rank(const ts_train_config *config, const tsi_described *of,
                                  ts_train_cost *out);
/* Of a rank, what the copy of a state that is saved in the background takes. */
ts_status tsi_train_staging(const ts_train_config *config, int64_t rank, int64_t *bytes);
ts_status tsi_train_vocabulary(const ts_train_config *config, int64_t *vocab);
/* A step of one rank, in a world without data, as it is written down; times of kernels from what a
 * device does in a second. */
typedef struct tsi_program_how {
    int64_t vocab;
    double flops_per_second, bytes_per_second;
} tsi_program_how;
ts_status tsi_train_record_rank(const ts_train_config *config, int64_t rank,
                                const tsi_program_how *how, tsi_step **out);
/* What a step of many like layers costs, from short models of the same kind; false: it cannot be
 * said so, and nothing was recorded but what the forecast of a short one recorded. */
typedef ts_status (*tsi_forecast_fn)(const ts_train_config *config, ts_train_cost *out);
ts_status tsi_forecast_whole(const ts_train_config *config, ts_train_cost *out); /* runs it all */
bool tsi_forecast_by_layers(const ts_train_config *config, tsi_forecast_fn forecast,
                            ts_train_cost *out);

/* ---- traffic */
ts_status tsi_traffic_begin(tsi_traffic *traffic, ts_mesh *mesh);
void tsi_traffic_end(tsi_traffic *traffic);
/* The row that an operation counts in, which was issued while it was heard; -1: none. */
int32_t tsi_traffic_row(const tsi_traffic *traffic, const tsi_work *operation);

/* ---- what operators do (predict.c) */
typedef struct tsi_account { /* in a world without data */
    ts_rank *me;
    tsi_observer hears;
    double flops_before, product_flops, attention_flops;
    int64_t bytes;
} tsi_account;
ts_status tsi_account_begin(tsi_account *account, ts_rank *me);
void tsi_account_end(tsi_account *account, ts_train_cost *out);
/* What a call has done, given the FLOPs it added. */
typedef struct tsi_amounts {
    double product_flops, attention_flops;
    int64_t bytes;
} tsi_amounts;
tsi_amounts tsi_amounts_of(const tsi_op_record *call, double flops);

/* ---- operations that are under way meanwhile (beside.c) */
enum { TSI_BESIDE_MAX = 256 };
typedef struct tsi_beside { /* in a world without data */
    ts_rank *me;
    const tsi_traffic *traffic; /* that hears what is issued first */
    tsi_observer hears;
    double flops_before;
    struct {
        const ts_work *work;
        int64_t bytes;
        double seconds;
        int32_t row;
        bool met;                /* a call came since it was issued */
    } under_way[TSI_BESIDE_MAX]; /* what has no room counts as hidden by nothing */
    int32_t count, open[TS_TRAFFIC_MAX];
    ts_train_beside row[TS_TRAFFIC_MAX];
} tsi_beside;
ts_status tsi_beside_begin(tsi_beside *beside, ts_rank *me, const tsi_traffic *traffic);
void tsi_beside_end(tsi_beside *beside, ts_train_cost *out);

/* ---- what lies where */
/* Axes and parameters of a materialised model into *out. */
ts_status tsi_describe_model(ts_model *model, ts_train_cost *out);
/* Bytes of parameters become those of the rank with most, of this one and those before. */
void tsi_describe_merge(ts_train_cost *most, const ts_train_cost *one);

/* ---- the model, and all that a run begins with (set_up.c) */
typedef struct tsi_declare_how {
    int64_t vocab;           /* where the configuration leaves it to the data */
    int32_t without_weights; /* of a directory, config.json alone is read */
    int32_t reserved;
} tsi_declare_how;
/* The model that the configuration says, declared, cut into stages where the mesh has an axis pp
 * (else *stages stays NULL), and wrapped; the caller destroys both, also on failure. */
ts_status tsi_train_declare(const ts_train_config *config, ts_mesh *mesh,
                            const tsi_declare_how *how, ts_model **out, tsi_stages **stages);
/* All that comes before the first step, and run->plan. [coll] */
ts_status tsi_run_set_up(tsi_run *run);

/* ---- stages: a run's part through them (run_stages.c) */
ts_status tsi_run_staged_part(tsi_run *run, int64_t step, int64_t part, double *loss); /* [coll] */
/* The same in a step that is recorded: on the part's rows, with the mean loss added to `loss` where
 * the last stage is. [coll] */
ts_status tsi_run_staged_again(tsi_run *run, const tsi_rows_part *of, ts_tensor *loss);
ts_status tsi_run_staged_eval(tsi_run *run, int64_t first, int64_t count,
                              double *loss); /* [coll] */
/* What the stage that has a router says of it, on all of them. [coll] */
ts_status tsi_run_staged_router(tsi_run *run, ts_router_report *report, double *load);
void tsi_run_staged_plan(tsi_run *run); /* what the plan says of them */
ts_status tsi_run_staged_estimate(tsi_run *run, ts_train_cost *out); /* of this rank */
ts_status tsi_run_staged_end(tsi_run *run, ts_train_result *out);    /* [coll] what was measured */
struct tsi_text;
void tsi_report_stages(struct tsi_text *out, const tsi_run *run); /* their part of the page */
ts_status tsi_stages_write(const tsi_run *run);                   /* OUTPUT/stages.json */

/* ---- what a rank may hold */
/* Fails where the step does not fit, with the nearest setting that does. Before storage. [coll] */
ts_status tsi_limit_check(tsi_run *run, const ts_train_cost *cost);
/* What the rank is planned to hold, for errors of memory to say; NULL: nothing any more. */
ts_status tsi_limit_tell(ts_rank *me, const ts_memory *planned);
/* Divides *bytes by the ranks that say the same place; 0: they share nothing. [coll] */
ts_status tsi_limit_share(ts_group *all, uint64_t place, int64_t *bytes);

/* ---- numbers */
ts_status tsi_measure_plan(tsi_run *run);
void tsi_measure_step(tsi_run *run); /* counts operators and communication up to here */

/* ---- the log: OUTPUT/train.jsonl */
/* Opens it; lines of history->run for steps up to `step` are read and kept, others left out. */
ts_status tsi_history_open(tsi_history *history, const char *path, int64_t step);
ts_status tsi_history_add(tsi_history *history, const ts_train_step *step);
void tsi_history_close(tsi_history *history);

/* A line, which is taken, to OUTPUT/NAME; *file is opened at the first one. rank 0 */
ts_status tsi_run_line(const tsi_run *run, FILE **file, const char *name, struct tsi_text *text);
/* Appends a line at once; where that fails the file is as it was. The file has no other writer. */
ts_status tsi_line_put(FILE *file, const char *name, const char *line);

/* ---- norms of gradients by module: OUTPUT/norms.jsonl */
/* The sums of squares of local blocks into sum[count]: one kernel; the host waits for it. */
ts_status tsi_local_squares(ts_rank *me, struct tsi_array *const *array, int64_t count,
                            double *sum);
/* Between backward and update, if log.norms wants this step. [coll] */
ts_status tsi_run_norms(tsi_run *run, int64_t step);

/* ---- samples */
ts_status tsi_run_sample(tsi_run *run, ts_text *out); /* [coll] rank 0 has the text */
/* One on the way, if it is due; both clocks leave it out. [coll] */
ts_status tsi_run_sample_step(tsi_run *run, int64_t step, int64_t *told, int64_t *mark);
/* Bytes of the UTF-8 character at text, or 0 if there is none: a model may write any bytes. */
size_t tsi_utf8_character(const char *text, size_t left);

/* ---- what is not finite */
/* Runs the step again from the same state and says where the first number that is not finite came
 * from: ": the output of softmax in model.layers.3, ...", or "". [coll] */
ts_status tsi_find_not_finite(tsi_run *run, int64_t step, char *out, size_t size);
/* Forward and backward of one part of a step; what it made is added to `loss`. [coll] */
ts_status tsi_run_forward_backward(tsi_run *run, int64_t step, int64_t part, ts_tensor *loss,
                                   int64_t *mark);

/* ---- routers of experts: OUTPUT/experts.jsonl */
/* Behind the update: reads, logs and tells what routers did; moves biases if it runs. [coll] */
ts_status tsi_run_routers(tsi_run *run, ts_train_step *step);

/* ---- traces of chosen steps: OUTPUT/trace.json */
ts_status tsi_trace_parse(const char *text, int64_t *first, int64_t *last); /* "10-12"; "": none */
ts_status tsi_trace_begin(tsi_run *run, int64_t step, int64_t now_ns);
bool tsi_trace_is_due(const tsi_run *run, int64_t step); /* after so many steps */
ts_status tsi_trace_write(tsi_run *run);                 /* [coll] */

/* ---- the page */
ts_status tsi_report_write(const tsi_run *run, const ts_train_result *result);
void tsi_report_traffic(struct tsi_text *out, const tsi_run *run);
void tsi_report_layout(struct tsi_text *out, const tsi_run *run);
void tsi_report_peak(struct tsi_text *out, const tsi_run *run);
void tsi_report_ranks(struct tsi_text *out, const tsi_run *run);
void tsi_report_gantt(struct tsi_text *out, const tsi_run *run);
void tsi_report_curves(struct tsi_text *out, const tsi_run *run);
void tsi_report_prediction(struct tsi_text *out, const tsi_run *run);
void tsi_report_busy(struct tsi_text *out, const tsi_run *run);

#endif
