/* SPDX-License-Identifier: Apache-2.0 */
/* runtime.h - what the files of the runtime share: settled options, the world's own state, modules.
 *
 * A world is opened in one direction:
 *
 *   options of the caller -> tsi_settings (environment and defaults filled in, checked)
 *     -> engine (built in, or a module that is loaded) -> ranks -> tsi_comm_open -> work
 *
 * INV: after tsi_settings_resolve every number is in range and has its default. */
#ifndef TSI_RUNTIME_RUNTIME_H
#define TSI_RUNTIME_RUNTIME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rank.h"
#include "base/text.h"
#include "comm/engine.h"
#include "device/device.h"

enum { TSI_RANKS_THREADS_MAX = 65536, TSI_RANKS_MODEL_MAX = 100000000, TSI_NODE_SIZES_MAX = 64 };

/* NCCL stands on one of the others, which is settled with it. */
typedef enum tsi_engine_id {
    TSI_ENGINE_THREADS,
    TSI_ENGINE_MPI,
    TSI_ENGINE_MODEL,
    TSI_ENGINE_NCCL
} tsi_engine_id;

/* Options with the environment and the defaults filled in. */
typedef struct tsi_settings {
    ts_world_options user; /* the caller's, extended by zeros to the size of this version */
    tsi_engine_id engine;
    bool nccl;         /* asked for by name: over `engine` */
    const char *why;   /* why this engine: "started by a launcher (OMPI_COMM_WORLD_RANK)" */
    const char *trace; /* TESSERA_TRACE: where ts_launch writes a trace; NULL: nowhere */
    int64_t node_size[TSI_NODE_SIZES_MAX]; /* TESSERA_NODES: tsi_engine_options.node_sizes */
    int64_t node_size_count;
} tsi_settings;

/* Fills in what the caller left open. TS_ERR_ARG names the option or variable and its value. */
ts_status tsi_settings_resolve(const ts_world_options *options, tsi_settings *out);
/* Takes --ts-ranks=N, --ts-engine=NAME, --ts-timeout-ms=N, --ts-seed=N from a command line. */
ts_status tsi_settings_arguments(int argc, char **argv, ts_world_options *options);

/* The world's own state: TSI_SLOT_RUNTIME. */
enum { TSI_DEVICE_TEXT = 512 };
typedef struct tsi_runtime {
    const tsi_engine *engine;
    char device[TSI_DEVICE_TEXT]; /* ts_world_device */
} tsi_runtime;
tsi_runtime *tsi_runtime_of(const ts_world *world);
/* A world from settled options: ts_world_open and ts_launch end here. */
ts_status tsi_world_start(const tsi_settings *settings, ts_world **out);

/* What must be alike on all ranks before work begins (agree.c): the kind of the device, and what
 * its kernels choose by, which is the first rank's. recorded [coll] */
ts_status tsi_device_agree(ts_rank *me, const tsi_device *device);

/* The table of the mpi engine, from the module that fits the MPI of this process. The module stays
 * loaded: an MPI does not survive being unloaded. */
ts_status tsi_module_mpi(const tsi_engine **out);
/* The table of the nccl engine. */
ts_status tsi_module_nccl(const tsi_engine **out);

/* ---- readers of the rings (event.h has the public ones) -------------------------------------- */
/* The post-mortem as text: what every local rank is or was doing, equal lines merged. */
void tsi_postmortem(ts_world *world, tsi_text *out);
/* Its line for one rank: "idle; last barrier "early" #1 (train.c:88), since 2.1 s". Any thread. */
void tsi_rank_activity(const ts_rank *rank, char *out, size_t size);

/* ---- while ts_launch runs: post-mortems by signal, and a look at what does not come back ----- */
typedef struct tsi_watch tsi_watch;
typedef void (*tsi_look_fn)(void *context);
tsi_watch *tsi_watch_start(ts_world *world, tsi_look_fn look, void *context); /* NULL: no thread */
/* From now on `look` is called, on the watch's thread, again and again. Accepts NULL. */
void tsi_watch_look(tsi_watch *watch);
void tsi_watch_stop(tsi_watch *watch); /* accepts NULL; restores the signal */

/* ---- ranks that do not come back (stuck.c) --------------------------------------------------- */
/* Is the rank, which was started then, stuck, given that another one failed then? Any thread. */
bool tsi_rank_stuck(const ts_rank *rank, int64_t start_ns, int64_t failed_ns, int64_t now_ns);
/* Writes to standard error and ends the process with 1, whatever other threads hold. */
void tsi_end_process(const char *text, size_t length);

#endif
