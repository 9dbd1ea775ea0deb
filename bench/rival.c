/* SPDX-License-Identifier: Apache-2.0 */
/* rival.c - loads the module of raw MPI calls that belongs to the mpi engine in use. */
#include "rival.h"

#include <dlfcn.h>
#include <string.h>

const bench_rival *bench_rival_load(void)
{
    char engine[1024], path[1200];
    if (ts_engine_find("mpi", engine, sizeof engine) != TS_OK) return NULL;
    char *name = strstr(engine, "tessera_mpi_");
    if (name == NULL) return NULL;
    *name = '\0';
    (void)snprintf(path, sizeof path, "%stessera_rival_%s", engine, name + strlen("tessera_mpi_"));
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    void *symbol = handle != NULL ? dlsym(handle, "bench_rival_module") : NULL;
    bench_rival_fn module = NULL;
    memcpy(&module, &symbol, sizeof module);
    const bench_rival *rival = module != NULL ? module() : NULL;
    return rival != NULL && rival->struct_size == sizeof *rival ? rival : NULL;
}
