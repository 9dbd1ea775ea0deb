/* SPDX-License-Identifier: Apache-2.0 */
/* module_load.c - shared objects that are loaded on first use: where they are looked for, and what
 * must be equal before anything of them is used.
 *
 * A module of another build would not fail, it would read fields at wrong places; so everything
 * that crosses is compared by size, and a table by operator by the list of operators. */
#include "runtime/module_load.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/comm.h"
#include "op/ops_hash.h"
#include "tessera/version.h"

/* ---- looking --------------------------------------------------------------------------------- */

/* The directory of the shared library, or of the program if the library is linked into it. */
static bool own_directory(char *out, size_t size)
{
    static const char here = 0; /* something that lies in this object */
    Dl_info info;
    char path[PATH_MAX];
    if (dladdr(&here, &info) == 0 || info.dli_fname == NULL) return false;
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

static void add_place(tsi_module_search *self, const char *place)
{
    size_t length = strlen(self->places);
    (void)snprintf(self->places + length, sizeof self->places - length, "%s%s",
                   length > 0 ? ", " : "", place);
}

/* Loads a file that exists. One that exists but does not load is worth reporting. */
static void load(tsi_module_search *self, const char *path)
{
    self->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (self->handle == NULL && self->why[0] != '\0') return;
    (void)snprintf(self->path, sizeof self->path, "%s", path);
    if (self->handle != NULL) return;
    const char *reason = dlerror();
    (void)snprintf(self->why, sizeof self->why, "%s", reason ? reason : "no reason was given");
}

static void look_in(tsi_module_search *self, const char *file, const char *directory,
                    const char *below)
{
    char path[PATH_MAX];
    if (self->handle != NULL) return;
    int length = snprintf(path, sizeof path, "%s%s", directory, below);
    if (length < 0 || (size_t)length + strlen(file) >= sizeof path) return;
    add_place(self, path);
    (void)snprintf(path + length, sizeof path - (size_t)length, "%s", file);
    if (access(path, R_OK) == 0) load(self, path);
}

static void look_in_list(tsi_module_search *self, const char *file, const char *list)
{
    char directory[PATH_MAX];
    while (list != NULL && *list != '\0') {
        size_t length = strcspn(list, ":");
        (void)snprintf(directory, sizeof directory, "%.*s", (int)length, list);
        look_in(self, file, directory, "/");
        list += length + (list[length] == ':');
    }
}

/* By the name alone: the loader follows run paths. That a file of this name is nowhere is the
 * common case and no reason; that it is there and lacks something is one. */
static void look_by_name(tsi_module_search *self, const char *file)
{
    if (self->handle != NULL) return;
    self->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    add_place(self, "the run path of the program");
    void *symbol = self->handle != NULL ? dlsym(self->handle, "tsi_module") : NULL;
    Dl_info info;
    bool known = symbol != NULL && dladdr(symbol, &info) != 0 && info.dli_fname != NULL;
    if (self->handle != NULL) {
        (void)snprintf(self->path, sizeof self->path, "%s", known ? info.dli_fname : file);
        return;
    }
    const char *reason = dlerror();
    if (reason == NULL || strncmp(reason, file, strlen(file)) == 0 || self->why[0] != '\0') return;
    (void)snprintf(self->path, sizeof self->path, "%s", file);
    (void)snprintf(self->why, sizeof self->why, "%s", reason);
}

void tsi_module_look(const char *file, tsi_module_search *self)
{
    static const char *const below[] = { "/tessera/", "/../lib/tessera/", "/" };
    char own[PATH_MAX];
    *self = (tsi_module_search){ 0 };
    look_in_list(self, file, getenv("TESSERA_MODULE_PATH"));
    bool known = own_directory(own, sizeof own);
    for (size_t i = 0; known && i < TSI_COUNT_OF(below); i++)
        look_in(self, file, own, below[i]);
    look_by_name(self, file);
}

/* ---- accepting ------------------------------------------------------------------------------- */

static ts_status fail_version(const char *module, const char *version, const char *format, ...)
    TS_PRINTF(3, 4);
static ts_status fail_version(const char *module, const char *version, const char *format, ...)
{
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return TSI_FAIL(TS_ERR_MISSING,
                    "the module %s (tessera %s) does not fit this library (tessera %s): %s; build "
                    "both from the same sources",
                    module, version ? version : "unknown", TS_VERSION, what);
}

/* Kernels are found by the number of their operator: the lists must be the same. */
static ts_status check_operators(const tsi_module_offer *offer, const char *path)
{
    int64_t count;
    uint64_t hash = tsi_ops_hash(&count);
    if (offer->table[TSI_MODULE_KERNELS].table == NULL) return TS_OK;
    if (offer->op_count == count && offer->op_hash == hash) return TS_OK;
    return fail_version(path, offer->version,
                        "it has kernels for a list of %lld operators (%016llx), not of %lld "
                        "(%016llx)",
                        (long long)offer->op_count, (unsigned long long)offer->op_hash,
                        (long long)count, (unsigned long long)hash);
}

ts_status tsi_module_accept(const tsi_module_search *found, const tsi_module_offer **out)
{
    *out = NULL;
    tsi_module_fn module = NULL;
    void *symbol = dlsym(found->handle, "tsi_module");
    memcpy(&module, &symbol, sizeof module);
    const tsi_module_offer *offer = module != NULL ? module() : NULL;
    if (offer == NULL)
        return TSI_FAIL(TS_ERR_MISSING, "%s is no module of tessera: it has no %s", found->path,
                        module != NULL ? "offer" : "function tsi_module");
    if (offer->struct_size != sizeof *offer) /* its other members may lie elsewhere */
        return fail_version(found->path, NULL, "its offer has %zu bytes, not %zu",
                            offer->struct_size, sizeof *offer);
    TSI_TRY(check_operators(offer, found->path));
    *out = offer;
    return TS_OK;
}

static const tsi_seam *row_of(const tsi_seam *seam, const char *name)
{
    for (; seam != NULL && seam->name != NULL; seam++)
        if (strcmp(seam->name, name) == 0) return seam;
    return NULL;
}

ts_status tsi_module_table_of(const tsi_module_offer *offer, tsi_module_kind kind,
                              const tsi_seam *mine, const void **table, int64_t *count)
{
    TSI_ASSERT((size_t)kind < TSI_COUNT_OF(offer->table));
    const tsi_module_table *theirs = &offer->table[kind];
    *table = NULL;
    *count = 0;
    if (theirs->table == NULL) return TS_OK;
    for (; mine->name != NULL; mine++) {
        const tsi_seam *row = row_of(theirs->seam, mine->name);
        if (row != NULL && row->size == mine->size) continue;
        return fail_version(offer->name, offer->version, "its %s has %zu bytes, not %zu",
                            mine->name, row ? row->size : 0, mine->size);
    }
    *table = theirs->table;
    *count = theirs->count;
    return TS_OK;
}

ts_status tsi_module_open(const char *file, const tsi_module_offer **out)
{
    tsi_module_search found;
    *out = NULL;
    tsi_module_look(file, &found);
    if (found.handle == NULL && found.why[0] != '\0')
        return TSI_FAIL(TS_ERR_MISSING, "the module %s does not load: %s", found.path, found.why);
    if (found.handle == NULL)
        return TSI_FAIL(TS_ERR_MISSING,
                        "there is no module %s in %s; TESSERA_MODULE_PATH may name the directory "
                        "where it is",
                        file, found.places);
    const tsi_module_offer *offer = NULL;
    TSI_TRY(tsi_module_accept(&found, &offer));
    if (offer->open != NULL) TSI_TRY(offer->open(&tsi_comm_host()->core));
    *out = offer;
    return TS_OK;
}
