/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.h - which launcher (mpirun, srun) started this process, and what it said. The one place
 * that knows the variables of launchers. */
#ifndef TSI_BASE_LAUNCHER_H
#define TSI_BASE_LAUNCHER_H

#include <stdint.h>

typedef struct tsi_launcher {
    const char *variable; /* the environment variable by which it told; NULL: there is none */
    const char *mpi;    /* "openmpi" or "mpich": whose it is; NULL: it starts any MPI's programs */
    int64_t rank, size; /* of this process and of all; -1 and 0: it did not say */
    int64_t local_size; /* processes on this machine; 0: it did not say */
    int64_t local_rank; /* of this process among them; -1: it did not say */
} tsi_launcher;

tsi_launcher tsi_launcher_find(void);

#endif
