/* SPDX-License-Identifier: Apache-2.0 */
/* verify_parallel.h - what the files of `tessera verify parallel` share. */
#ifndef CLI_VERIFY_PARALLEL_H
#define CLI_VERIFY_PARALLEL_H

#include "cli.h"

enum { VERIFY_RANKS_MAX = 16, VERIFY_REASON_MAX = 512 };

typedef struct verify_family {
    char name[32];
    const char *directory;  /* of a model; NULL: built in, random weights */
    ts_model_config config; /* in both cases */
} verify_family;

typedef struct verify_case { /* a row of the table */
    char roles[64], mesh[64];
    const char *plan; /* "dp", "tp", "sp" */
    int64_t ep;
} verify_case;

typedef struct verify_cell {
    bool ran, agrees,
        refused;       /* refused: there was no answer, the reason is in the library's words */
    double difference; /* the largest, relative */
    int64_t bytes;     /* received in a step, all ranks together */
    char reason[VERIFY_REASON_MAX];
} verify_cell;

typedef struct verify_run {
    const char *device, *topology;
    uint64_t seed;
} verify_run;

/* Each wanted row of one family: one rank first, then the meshes. False: one rank could not, which
 * was said. */
bool verify_family_run(const verify_run *run, const verify_family *family, const verify_case *cases,
                       const bool *wanted, int64_t count, verify_cell *out);

#endif
