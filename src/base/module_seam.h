/* SPDX-License-Identifier: Apache-2.0 */
/* module_seam.h - what a shared object that is loaded on first use offers the core, and how both
 * make sure that they were built from the same headers.
 *
 * A module (an MPI's engine, a GPU's devices and kernels) exports one function, tsi_module, and
 * needs no symbol of the core. It returns tables by kind, which are opaque here: the layer that
 * owns a kind knows its type and says in its own header which structs cross the seam.
 *
 *   kind      the table is                                    its seam
 *   ENGINE    const tsi_engine *                              TSI_ENGINE_SEAM (comm/engine.h)
 *   DEVICES   const tsi_device *const *, `count` of them      TSI_DEVICE_SEAM (device/device.h)
 *   KERNELS   the kernels of these devices, by operator       its own, and the list of operators
 *
 * INV: no table of a module is used, and no function of it but tsi_module called, before the sizes
 * of all structs of its seam were found equal, and for kernels the list of operators too. */
#ifndef TSI_BASE_MODULE_SEAM_H
#define TSI_BASE_MODULE_SEAM_H

#include <stddef.h>
#include <stdint.h>

#include "tessera/export.h"
#include "tessera/status.h"

typedef enum tsi_module_kind {
    TSI_MODULE_ENGINE,
    TSI_MODULE_DEVICES,
    TSI_MODULE_KERNELS,
    TSI_MODULE_KIND_COUNT
} tsi_module_kind;

/* A struct that both sides read. A list ends with a row without a name. */
typedef struct tsi_seam {
    const char *name;
    size_t size;
} tsi_seam;
#define TSI_SEAM_ROW(type) { #type, sizeof(type) },
#define TSI_SEAM(LIST)                                                                             \
    {                                                                                              \
        LIST(TSI_SEAM_ROW)                                                                         \
        {                                                                                          \
            NULL, 0                                                                                \
        }                                                                                          \
    }

typedef struct tsi_module_table {
    const void *table; /* NULL: the module has none of this kind */
    int64_t count;
    const tsi_seam *seam;
} tsi_module_table;

/* What the core offers every module. */
typedef struct tsi_module_host {
    void *(*alloc)(size_t bytes);
    void *(*alloc_kept)(size_t bytes, size_t alignment); /* for the life of the process */
    void (*free)(void *memory);
    ts_status (*fail)(ts_blast blast, ts_status status, const char *format, ...) TS_PRINTF(3, 4);
    void (*log)(int level, const char *format, ...) TS_PRINTF(2, 3);
} tsi_module_host;

typedef struct tsi_module_offer {
    size_t struct_size;
    const char *name;    /* "mpi" */
    const char *version; /* of tessera, as the module was built */
    /* Of ops.def, where kernels are offered: op/ops_hash.h. */
    uint64_t op_hash;
    int64_t op_count;
    /* (optional) Makes the tables ready; harmless when repeated. TS_ERR_MISSING where the machine
     * has not what the module needs, after `host->fail` said what. */
    ts_status (*open)(const tsi_module_host *host);
    /* (optional) After open: which libraries it found, for `doctor`. */
    void (*libraries)(char *text, size_t size);
    tsi_module_table table[TSI_MODULE_KIND_COUNT];
} tsi_module_offer;

/* The one exported function of a module: a constant. */
typedef const tsi_module_offer *(*tsi_module_fn)(void);

#endif
