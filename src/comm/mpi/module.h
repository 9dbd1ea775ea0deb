/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - the mpi engine as a module, and which one to load.
 *
 * There is one module per MPI, because their ABIs differ: tessera_mpi_openmpi.so and
 * tessera_mpi_mpich.so, in lib/tessera beside the library. Each exports tsi_module and nothing
 * else, and needs no symbol of the core. A loader chooses, in this order:
 *
 *   1. the MPI that is in the process already (dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world"): Open
 *      MPI; "MPI_Init" without it: MPICH or one with its ABI);
 *   2. the launcher: OMPI_COMM_WORLD_SIZE or OMPI_UNIVERSE_SIZE: Open MPI; PMI_RANK, PMI_SIZE,
 *      PMI_FD, MPI_LOCALNRANKS or HYDI_CONTROL_FD: MPICH (srun sets PMI_RANK for both: then 3.);
 *   3. the first module that loads.
 *
 * Load it with RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE and never unload it: an MPI cannot be
 * unloaded. What an MPI needs in the global scope the module puts there itself. */
#ifndef TSI_COMM_MPI_MODULE_H
#define TSI_COMM_MPI_MODULE_H

#include "comm/engine.h"

#define TSI_MODULE_OPENMPI "tessera_mpi_openmpi.so"
#define TSI_MODULE_MPICH "tessera_mpi_mpich.so"

/* NULL: `host` is of an older version. */
TS_API const tsi_engine *tsi_module(const tsi_host *host);

#endif
