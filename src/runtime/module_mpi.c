/* SPDX-License-Identifier: Apache-2.0 */
/* module_mpi.c - the mpi engine, which is not linked: one binary serves every MPI.
 *
 * There is one module per MPI implementation, because their binary interfaces differ. Which one:
 * TESSERA_MPI=openmpi|mpich, else the MPI that is in the process already, else the launcher's, else
 * the first that loads. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/launcher.h"
#include "comm/comm.h"
#include "runtime/module_load.h"
#include "runtime/runtime.h"

typedef struct flavour {
    const char *name;    /* as in TESSERA_MPI */
    const char *file;    /* the module */
    const char *package; /* what to install */
    const char *symbol;  /* tells that it is in the process; Open MPI's must be looked for first */
} flavour;

static const flavour flavours[] = {
    { "openmpi", "tessera_mpi_openmpi.so", "libopenmpi3 and openmpi-bin", "ompi_mpi_comm_world" },
    { "mpich", "tessera_mpi_mpich.so", "libmpich12 and mpich", "MPI_Init" },
};
enum { FLAVOURS = sizeof flavours / sizeof flavours[0] };

static ts_status flavour_by_name(const char *source, const char *name, int *out)
{
    for (int i = 0; i < FLAVOURS; i++) {
        if (strcmp(name, flavours[i].name) == 0) {
            *out = i;
            return TS_OK;
        }
    }
    return TSI_FAIL(TS_ERR_ARG, "%s: expected openmpi or mpich, found \"%s\"", source, name);
}

/* The MPI this process must use, or -1 if any will do. srun looks the same to every MPI. */
static ts_status wanted_flavour(int *out)
{
    *out = -1;
    const char *name = getenv("TESSERA_MPI");
    if (name != NULL && name[0] != '\0') return flavour_by_name("TESSERA_MPI", name, out);
    for (int i = 0; i < FLAVOURS && *out < 0; i++) {
        if (dlsym(RTLD_DEFAULT, flavours[i].symbol) != NULL) *out = i;
    }
    const char *launchers = tsi_launcher_find().mpi;
    return *out < 0 && launchers ? flavour_by_name("the launcher", launchers, out) : TS_OK;
}

/* Not there, or there and not loadable, are two troubles with two remedies. */
static ts_status fail_missing(int wanted, const tsi_module_search *found)
{
    const flavour *mpi = &flavours[wanted >= 0 ? wanted : 0];
    const char *name = wanted >= 0 ? mpi->name : "openmpi or mpich";
    if (found->why[0] != '\0') {
        bool absent = strstr(found->why, "cannot open shared object") != NULL;
        return TSI_FAIL(TS_ERR_MISSING, "the mpi engine for %s, %s, does not load: %s%s%s%s", name,
                        found->path, found->why, absent ? " (install the packages " : "",
                        absent ? mpi->package : "", absent ? ")" : "");
    }
    return TSI_FAIL(TS_ERR_MISSING,
                    "the mpi engine for %s, %s, is not in %s: TESSERA_MODULE_PATH may name the "
                    "directory lib/tessera of an installation that has it; it is built where "
                    "mpicc.%s or mpicc is found",
                    name, mpi->file, found->places, mpi->name);
}

/* The first module that loads; `wanted` -1: any. */
static ts_status load_any(int wanted, tsi_module_search *out)
{
    tsi_module_search found, first = { 0 };
    for (int i = 0; i < FLAVOURS; i++) {
        if (wanted >= 0 && i != wanted) continue;
        tsi_module_look(flavours[i].file, &found);
        *out = found;
        if (found.handle != NULL) return TS_OK;
        if (first.places[0] == '\0' || (first.why[0] == '\0' && found.why[0] != '\0'))
            first = found;
    }
    return fail_missing(wanted, &first);
}

ts_status tsi_module_mpi(const tsi_engine **out)
{
    static const tsi_seam seam[] = TSI_SEAM(TSI_ENGINE_SEAM);
    const tsi_module_offer *offer = NULL;
    const void *table = NULL;
    int64_t count = 0;
    int wanted = -1;
    tsi_module_search found;
    *out = NULL;
    TSI_TRY(wanted_flavour(&wanted));
    TSI_TRY(load_any(wanted, &found));
    TSI_TRY(tsi_module_accept(&found, &offer));
    TSI_TRY(tsi_module_table_of(offer, TSI_MODULE_ENGINE, seam, &table, &count));
    if (table == NULL) return TSI_FAIL(TS_ERR_MISSING, "%s offers no engine", found.path);
    *out = table;
    return TS_OK;
}

static ts_status find_engine(const char *name, char *text, size_t size)
{
    tsi_module_search found;
    int wanted = -1;
    if (name == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_engine_find: name is NULL");
    if (strcmp(name, "threads") == 0 || strcmp(name, "model") == 0) {
        (void)snprintf(text, size, "built in");
        return TS_OK;
    }
    if (strcmp(name, "nccl") == 0) return tsi_module_nccl_text(text, size);
    if (strncmp(name, "mpi:", 4) == 0)
        TSI_TRY(flavour_by_name("ts_engine_find", name + 4, &wanted));
    else if (strcmp(name, "mpi") == 0)
        TSI_TRY(wanted_flavour(&wanted));
    else {
        return TSI_FAIL(TS_ERR_ARG,
                        "ts_engine_find: there is no engine \"%s\" (threads, mpi, model, nccl)",
                        name);
    }
    TSI_TRY(load_any(wanted, &found));
    (void)snprintf(text, size, "%s", found.path);
    return TS_OK;
}

/* Whether an engine is there is an answer, not a failure of the rank that asks. */
ts_status ts_engine_find(const char *name, char *text, size_t size)
{
    char unused[1];
    if (text == NULL || size == 0) {
        text = unused;
        size = sizeof unused;
    }
    text[0] = '\0';
    ts_rank *outer = tsi_rank_current();
    tsi_rank_set_current(NULL);
    ts_status status = find_engine(name, text, size);
    if (status != TS_OK) (void)snprintf(text, size, "%s", ts_last_error());
    tsi_rank_set_current(outer);
    return status;
}
