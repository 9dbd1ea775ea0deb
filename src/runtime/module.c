/* SPDX-License-Identifier: Apache-2.0 */
/* module.c - finding and loading the mpi engine, which is not linked: one binary serves every MPI.
 *
 * There is one module per MPI implementation, because their binary interfaces differ.
 *
 *   which one   TESSERA_MPI=openmpi|mpich, else the MPI that is loaded already, else the
 *               launcher's, else the first found
 *   where       TESSERA_MODULE_PATH (a colon list), then beside the library: tessera/,
 *               ../lib/tessera/ */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/mpi/module.h"
#include "runtime/runtime.h"

enum { VARIABLES_MAX = 5 };

typedef struct flavour {
    const char *name;    /* as in TESSERA_MPI */
    const char *file;    /* the module */
    const char *package; /* what to install */
    const char *symbol;  /* tells that it is in the process; Open MPI's must be looked for first */
    const char *variables[VARIABLES_MAX]; /* of its launcher; NULL ends */
} flavour;

static const flavour flavours[] = {
    { "openmpi",
      TSI_MODULE_OPENMPI,
      "libopenmpi3 and openmpi-bin",
      "ompi_mpi_comm_world",
      { "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE", NULL } },
    { "mpich",
      TSI_MODULE_MPICH,
      "libmpich12 and mpich",
      "MPI_Init",
      { "MPI_LOCALNRANKS", "HYDI_CONTROL_FD", "PMI_FD", "PMI_SIZE", NULL } },
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

static bool is_launcher_of(const flavour *mpi)
{
    if (getenv("SLURM_PROCID") != NULL && getenv("MPI_LOCALNRANKS") == NULL) return false;
    for (int i = 0; i < VARIABLES_MAX && mpi->variables[i] != NULL; i++) {
        if (getenv(mpi->variables[i]) != NULL) return true;
    }
    return false;
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
    for (int i = 0; i < FLAVOURS && *out < 0; i++) {
        if (is_launcher_of(&flavours[i])) *out = i;
    }
    return TS_OK;
}

/* The directory of the shared library, or of the program if the library is linked into it. */
static bool own_directory(char *out, size_t size)
{
    Dl_info info;
    char path[PATH_MAX];
    const void *here = &flavours;
    if (dladdr(here, &info) == 0 || info.dli_fname == NULL) return false;
    if (strchr(info.dli_fname, '/') == NULL) {
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
        if (length <= 0) return false;
        path[length] = '\0';
    } else {
        (void)snprintf(path, sizeof path, "%s", info.dli_fname);
    }
    char *slash = strrchr(path, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    return (size_t)snprintf(out, size, "%s", path) < size;
}

/* A search: which MPI, where it was found, or why the first file that was there did not load. */
typedef struct search {
    const flavour *mpi;
    void *handle;
    char path[PATH_MAX];
    char why[512];
} search;

/* Loads the file if it exists. One that exists but does not load is worth reporting. */
static void load_file(search *self, const char *directory, const char *below)
{
    char *path = self->path;
    int length = snprintf(path, sizeof self->path, "%s%s%s", directory, below, self->mpi->file);
    if (length < 0 || (size_t)length >= sizeof self->path || access(path, R_OK) != 0) return;
    self->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (self->handle == NULL && self->why[0] == '\0') {
        const char *reason = dlerror();
        (void)snprintf(self->why, sizeof self->why, "%s", reason ? reason : "no reason was given");
    }
}

static void load_from_list(search *self, const char *list)
{
    char directory[PATH_MAX];
    while (list != NULL && *list != '\0' && self->handle == NULL) {
        size_t length = strcspn(list, ":");
        (void)snprintf(directory, sizeof directory, "%.*s", (int)length, list);
        load_file(self, directory, "/");
        list += length + (list[length] == ':');
    }
}

static bool load_flavour(search *self, const flavour *mpi)
{
    self->mpi = mpi;
    load_from_list(self, getenv("TESSERA_MODULE_PATH"));
    char own[PATH_MAX];
    if (self->handle != NULL || !own_directory(own, sizeof own)) return self->handle != NULL;
    static const char *const below[] = { "/tessera/", "/../lib/tessera/", "/" };
    for (size_t i = 0; i < TSI_COUNT_OF(below) && self->handle == NULL; i++) {
        load_file(self, own, below[i]);
    }
    return self->handle != NULL;
}

static ts_status fail_missing(int wanted, const char *why)
{
    const char *name = wanted >= 0 ? flavours[wanted].name : "openmpi or mpich";
    const char *package = wanted >= 0 ? flavours[wanted].package : flavours[0].package;
    if (why[0] != '\0') {
        return TSI_FAIL(TS_ERR_MISSING,
                        "the mpi engine for %s does not load: %s (install the packages %s)", name,
                        why, package);
    }
    return TSI_FAIL(TS_ERR_MISSING,
                    "the mpi engine for %s was not found beside the library nor in "
                    "TESSERA_MODULE_PATH; install the packages %s and build with TS_MPI=ON",
                    name, package);
}

/* The first module that loads; `wanted` -1: any. */
static ts_status load_any(int wanted, search *self)
{
    *self = (search){ 0 };
    for (int i = 0; i < FLAVOURS; i++) {
        if (wanted >= 0 && i != wanted) continue;
        if (load_flavour(self, &flavours[i])) return TS_OK;
    }
    return fail_missing(wanted, self->why);
}

ts_status tsi_module_mpi(const tsi_engine **out)
{
    int wanted = -1;
    search self;
    *out = NULL;
    TSI_TRY(wanted_flavour(&wanted));
    TSI_TRY(load_any(wanted, &self));
    tsi_module_fn module = NULL;
    void *symbol = dlsym(self.handle, "tsi_module");
    memcpy(&module, &symbol, sizeof module);
    *out = module != NULL ? module(tsi_comm_host()) : NULL;
    if (*out == NULL) {
        return TSI_FAIL(TS_ERR_MISSING, "the mpi module %s is of another version of tessera",
                        self.path);
    }
    return TS_OK;
}

static ts_status find_engine(const char *name, char *text, size_t size)
{
    search self;
    int wanted = -1;
    if (name == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_engine_find: name is NULL");
    if (strcmp(name, "threads") == 0 || strcmp(name, "model") == 0) {
        (void)snprintf(text, size, "built in");
        return TS_OK;
    }
    if (strncmp(name, "mpi:", 4) == 0)
        TSI_TRY(flavour_by_name("ts_engine_find", name + 4, &wanted));
    else if (strcmp(name, "mpi") == 0)
        TSI_TRY(wanted_flavour(&wanted));
    else {
        return TSI_FAIL(TS_ERR_ARG,
                        "ts_engine_find: there is no engine \"%s\" (threads, mpi, model)", name);
    }
    TSI_TRY(load_any(wanted, &self));
    (void)snprintf(text, size, "%s", self.path);
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
