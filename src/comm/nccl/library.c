/* SPDX-License-Identifier: Apache-2.0 */
/* library.c - finds NCCL when it is wanted. It stays loaded: its threads outlive any world. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/nccl/api.h"

static struct {
    pthread_mutex_t lock;
    bool open;
    int version;
    char path[512];
    tsi_nccl_api api;
} library = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Both or none. */
static void find_registration(void *handle, tsi_nccl_api *api)
{
    void *in = dlsym(handle, "ncclCommRegister"), *out = dlsym(handle, "ncclCommDeregister");
    if (!in || !out) return;
    memcpy(&api->enlist, &in, sizeof in);
    memcpy(&api->delist, &out, sizeof out);
}

/* The first function that is not there, or NULL. A pointer to a function is read through memory,
 * because C has no cast for it. */
static const char *find_functions(void *handle, tsi_nccl_api *api)
{
    void *symbol = NULL;
#define FIND(name, text, arguments)                                                                \
    symbol = dlsym(handle, #text);                                                                 \
    if (!symbol) return #text;                                                                     \
    memcpy(&api->name, &symbol, sizeof symbol);
    TSI_NCCL_FUNCTIONS(FIND)
#undef FIND
    symbol = dlsym(handle, "ncclGetErrorString");
    if (!symbol) return "ncclGetErrorString";
    memcpy(&api->text, &symbol, sizeof symbol);
    symbol = dlsym(handle, "ncclGetLastError");
    if (!symbol) return "ncclGetLastError";
    memcpy(&api->last, &symbol, sizeof symbol);
    find_registration(handle, api);
    return NULL;
}

static void *open_path(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle) (void)snprintf(library.path, sizeof library.path, "%s", path);
    return handle;
}

static void *open_any(void)
{
    static const char name[] = "libnccl.so.2";
    const char *asked = getenv("TESSERA_NCCL");
    if (asked && *asked) return open_path(asked);
    void *handle = open_path(name);
    const char *list = getenv("TESSERA_CUDA_PATH");
    while (list && *list && !handle) {
        char path[512];
        size_t length = strcspn(list, ":");
        (void)snprintf(path, sizeof path, "%.*s/%s", (int)length, list, name);
        handle = open_path(path);
        list += length + (list[length] == ':');
    }
    return handle;
}

static void version_text(int code, char *out, size_t size)
{
    (void)snprintf(out, size, "%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
}

static bool open_library(char *why, size_t size)
{
    const char *asked = getenv("TESSERA_NCCL");
    void *handle = open_any();
    if (!handle) {
        const char *reason = dlerror();
        (void)snprintf(why, size, "%s does not load (%s)%s",
                       asked && *asked ? asked : "libnccl.so.2",
                       reason ? reason : "no reason was given",
                       asked && *asked ? "" : "; TESSERA_CUDA_PATH may name its folder");
        return false;
    }
    const char *lacks = find_functions(handle, &library.api);
    if (lacks) {
        (void)snprintf(why, size, "%s has no function %s", library.path, lacks);
        return false;
    }
    if (library.api.version(&library.version) != TSI_NCCL_SUCCESS ||
        library.version < TSI_NCCL_VERSION_LEAST) {
        char is[32];
        version_text(library.version, is, sizeof is);
        (void)snprintf(why, size, "%s is version %s, 2.18 is the oldest that can be used",
                       library.path, is);
        return false;
    }
    return true;
}

/* Whether the one that is open is the one that is asked for now. */
static bool is_asked(char *why, size_t size)
{
    const char *asked = getenv("TESSERA_NCCL");
    if (!asked || !*asked || strcmp(asked, library.path) == 0) return true;
    (void)snprintf(why, size, "%s does not load (this process has loaded %s)", asked, library.path);
    return false;
}

const tsi_nccl_api *tsi_nccl_library(char *why, size_t size)
{
    pthread_mutex_lock(&library.lock);
    bool open = library.open ? is_asked(why, size) : open_library(why, size);
    library.open = library.open || open;
    pthread_mutex_unlock(&library.lock);
    return open ? &library.api : NULL;
}

void tsi_nccl_found(char *text, size_t size)
{
    char is[32];
    version_text(library.version, is, sizeof is);
    (void)snprintf(text, size, "%s, %s", library.path, is);
}
