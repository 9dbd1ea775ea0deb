/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.c - the variables that launchers set, in the order in which they are believed: those of
 * one MPI before those that several set.
 *
 * srun sets the variables of a PMI for whatever MPI it starts, so its own come first; without a PMI
 * plugin only a step of several tasks is a launch. */
#include "base/launcher.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/compiler.h"
#include "tessera/world.h"

typedef struct row {
    const char *mpi, *rank, *size, *local_size, *local_rank;
} row;

static const row rows[] = {
    { "openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK" },
    { "mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID" },
    { "mpich", "MPI_LOCALRANKID", NULL, "MPI_LOCALNRANKS", "MPI_LOCALRANKID" },
    { NULL, "PMIX_RANK", NULL, NULL, NULL },
};

static int64_t number_of(const char *variable, int64_t otherwise)
{
    const char *text = variable ? getenv(variable) : NULL;
    char *end = NULL;
    long long value = text ? strtoll(text, &end, 10) : 0;
    return text && end != text && *end == '\0' && value >= 0 ? value : otherwise;
}

tsi_launcher tsi_launcher_find(void)
{
    int64_t of_srun = number_of("SLURM_LOCALID", -1);
    bool by_srun = getenv("SLURM_PROCID") && !getenv("MPI_LOCALNRANKS");
    for (size_t i = 0; i < TSI_COUNT_OF(rows); i++) {
        if (!getenv(rows[i].rank)) continue;
        return (tsi_launcher){ .variable = rows[i].rank,
                               .mpi = by_srun ? NULL : rows[i].mpi,
                               .rank = number_of(rows[i].rank, -1),
                               .size = number_of(rows[i].size, 0),
                               .local_size = number_of(rows[i].local_size, 0),
                               .local_rank = number_of(rows[i].local_rank, of_srun) };
    }
    int64_t tasks = number_of("SLURM_STEP_NUM_TASKS", 0);
    if (!getenv("SLURM_SRUN_COMM_HOST") || tasks < 2)
        return (tsi_launcher){ .rank = -1, .local_rank = -1 };
    return (tsi_launcher){ .variable = "SLURM_STEP_NUM_TASKS",
                           .rank = number_of("SLURM_PROCID", -1),
                           .size = tasks,
                           .local_rank = of_srun };
}

const char *ts_launcher(void)
{
    return tsi_launcher_find().variable;
}
