/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_settings.c - the variables TESSERA_... of this environment, and those that nothing reads.
 *
 * A variable that is misspelt is as one that is not set, and nothing can say so but who knows all
 * names. tests/cli compares the names here with docs/environment.md. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"

static const char *const names[] = {
    "TESSERA_CUDA_BESIDE",
    "TESSERA_CUDA_EARLY",
    "TESSERA_CUDA_FAULT",
    "TESSERA_CUDA_MEMORY",
    "TESSERA_CUDA_PATH",
    "TESSERA_CUDA_PRODUCTS",
    "TESSERA_CUDA_TUNE",
    "TESSERA_CUDNN",
    "TESSERA_CUDNN_RUNS",
    "TESSERA_DETERMINISTIC",
    "TESSERA_DEVICE",
    "TESSERA_DEVICE_SYNC",
    "TESSERA_ENGINE",
    "TESSERA_EVENTS",
    "TESSERA_FALLBACK",
    "TESSERA_GUESTS",
    "TESSERA_HANDLES_KEPT",
    "TESSERA_ISA",
    "TESSERA_LOG",
    "TESSERA_MODEL",
    "TESSERA_MODULE_PATH",
    "TESSERA_MPI",
    "TESSERA_MPI_CMA",
    "TESSERA_MPI_SHM",
    "TESSERA_NCCL",
    "TESSERA_NODES",
    "TESSERA_QUEUE_SEED",
    "TESSERA_RANKS",
    "TESSERA_REDUCE",
    "TESSERA_THREADS",
    "TESSERA_THREADS_PER_PROCESS",
    "TESSERA_TIMEOUT_MS",
    "TESSERA_TOPOLOGY",
    "TESSERA_TRACE",
};
enum { NAMES = sizeof names / sizeof names[0], NAME_ROOM = 64 };

/* The name in front of the sign, if the variable is one of ours; what tests read is theirs. */
static bool take_name(const char *entry, char *name)
{
    static const char ours[] = "TESSERA_";
    size_t length = strcspn(entry, "="), n = sizeof ours - 1;
    if (strncmp(entry, ours, n) != 0 || entry[length] != '=' ||
        strncmp(entry + n, "TEST_", 5) == 0 || strncmp(entry + n, "FUZZ_", 5) == 0)
        return false;
    (void)snprintf(name, NAME_ROOM, "%.*s", (int)length, entry);
    return true;
}

static bool is_read(const char *name)
{
    for (size_t i = 0; i < NAMES; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

void doctor_settings_print(void)
{
    char name[NAME_ROOM];
    bool any = false;
    for (char **entry = environ; entry && *entry; entry++) {
        if (!take_name(*entry, name)) continue;
        if (!any) printf("\nenvironment\n");
        any = true;
        const char *near = is_read(name) ? NULL : cli_nearest(name, names, NAMES);
        printf("  %s = %s%s%s%s%s\n", name, strchr(*entry, '=') + 1,
               is_read(name) ? "" : "    nothing reads it", near ? "; did you mean " : "",
               near ? near : "", near ? "?" : "");
    }
}

void doctor_settings_put(ts_json_writer *json)
{
    char name[NAME_ROOM];
    ts_json_put_key(json, "environment");
    ts_json_put_open(json, '[');
    for (char **entry = environ; entry && *entry; entry++) {
        if (!take_name(*entry, name)) continue;
        ts_json_put_open(json, '{');
        ts_json_put_member_text(json, "name", name);
        ts_json_put_member_text(json, "value", strchr(*entry, '=') + 1);
        ts_json_put_member_bool(json, "read", is_read(name));
        ts_json_put_close(json, '}');
    }
    ts_json_put_close(json, ']');
}
