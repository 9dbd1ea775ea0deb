/* SPDX-License-Identifier: Apache-2.0 */
/* module_load.h - finding and loading modules (base/module_seam.h: what they offer).
 *
 * A file is looked for in TESSERA_MODULE_PATH (a colon list), then beside the library: tessera/,
 * ../lib/tessera/, then by its name alone, which follows the run path of the object that holds this
 * code: a program that linked the library statically gets one from tessera::static and tessera.pc.
 *
 * A module stays loaded: neither an MPI nor a driver survives being unloaded. */
#ifndef TSI_RUNTIME_MODULE_LOAD_H
#define TSI_RUNTIME_MODULE_LOAD_H

#include <limits.h>

#include "base/module_seam.h"
#include "device/device.h"

typedef struct tsi_module_search {
    void *handle;        /* NULL: it was not loaded */
    char path[PATH_MAX]; /* of the file that was, or of the first that was there */
    char why[512];       /* why that one did not load; empty: there is none */
    char places[1024];   /* where was looked */
} tsi_module_search;

/* Loads the file if it is somewhere. Records no error. */
void tsi_module_look(const char *file, tsi_module_search *out);
/* What a loaded module offers, after its sizes were compared; TS_ERR_MISSING names what differs and
 * both sides. */
ts_status tsi_module_accept(const tsi_module_search *found, const tsi_module_offer **out);
/* Looks, loads, accepts and opens, with a sentence for each way to fail. */
ts_status tsi_module_open(const char *file, const tsi_module_offer **out);
/* One table, NULL if the module has none of the kind. `mine`: the seam as the core sees it. */
ts_status tsi_module_table_of(const tsi_module_offer *offer, tsi_module_kind kind,
                              const tsi_seam *mine, const void **table, int64_t *count);
/* Where the nccl engine and its library were found, for `doctor`. */
ts_status tsi_module_nccl_text(char *text, size_t size);
/* A device by name (tsi_device_find), after the module that has its kind was opened. */
ts_status tsi_module_device(const char *name, const tsi_device **out);
/* Could there be such a device? Nothing is opened for it, nor looked for. */
ts_status tsi_module_device_known(const char *name);
/* The first device of a module that can be used here, else the host; `why` (may be NULL): what it
 * is, or why there is none. Records no error. */
const tsi_device *tsi_module_device_auto(char *why, size_t size);

#endif
