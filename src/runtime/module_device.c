/* SPDX-License-Identifier: Apache-2.0 */
/* module_device.c - devices by name, those of modules included: "cuda:1" opens tessera_cuda.so on
 * first use and makes its devices and kernels known. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device/device.h"
#include "op/core/kernel.h"
#include "runtime/module_load.h"
#include "runtime/runtime.h"

static const char *const kinds[] = { "cuda" }; /* that modules have: tessera_<kind>.so */

static ts_status add_tables(const tsi_module_offer *offer)
{
    static const tsi_seam devices[] = TSI_SEAM(TSI_DEVICE_SEAM);
    static const tsi_seam kernels[] = TSI_SEAM(TSI_KERNEL_SEAM);
    const void *table = NULL;
    int64_t count = 0;
    TSI_TRY(tsi_module_table_of(offer, TSI_MODULE_KERNELS, kernels, &table, &count));
    if (table) TSI_TRY(tsi_kernels_add(table));
    TSI_TRY(tsi_module_table_of(offer, TSI_MODULE_DEVICES, devices, &table, &count));
    const tsi_device *const *device = table;
    for (int64_t i = 0; i < count; i++)
        TSI_TRY(tsi_device_add(device[i]));
    return TS_OK;
}

/* The kind of modules that a name begins with, and what stands behind it: "" or ":1"; NULL: none.
 */
static const char *kind_of(const char *name, const char **rest)
{
    for (size_t i = 0; name && i < TSI_COUNT_OF(kinds); i++) {
        size_t length = strlen(kinds[i]);
        *rest = name + length;
        if (strncmp(name, kinds[i], length) == 0 && (**rest == '\0' || **rest == ':'))
            return kinds[i];
    }
    return NULL;
}

/* Opens the module whose kind the name begins with. Two worlds may do so at once. */
static ts_status open_kind(const char *name)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const char *rest, *kind = kind_of(name, &rest);
    if (!kind) return TS_OK;
    char file[64];
    const tsi_module_offer *offer = NULL;
    (void)snprintf(file, sizeof file, "tessera_%s.so", kind);
    pthread_mutex_lock(&lock);
    ts_status status = tsi_module_open(file, &offer);
    if (status == TS_OK) status = add_tables(offer);
    pthread_mutex_unlock(&lock);
    return status;
}

ts_status tsi_module_device(const char *name, const tsi_device **out)
{
    *out = NULL;
    TSI_TRY(open_kind(name));
    *out = tsi_device_find(name);
    return *out ? TS_OK : TS_ERR_MISSING; /* tsi_device_find has said why */
}

ts_status tsi_module_device_known(const char *name)
{
    const char *rest, *kind = kind_of(name, &rest);
    size_t digits = kind && *rest == ':' ? strspn(rest + 1, "0123456789") : 0;
    if (kind && (*rest == '\0' || (digits > 0 && rest[1 + digits] == '\0'))) return TS_OK;
    return tsi_device_find(name) ? TS_OK : TS_ERR_MISSING;
}

static ts_status describe(const char *name, char *text, size_t size)
{
    const tsi_device *device = NULL;
    tsi_device_properties is = { .name = "" };
    TSI_TRY(tsi_module_device(name, &device));
    if (device->properties) device->properties(device, &is);
    char with[320] = "";
    if (device->libraries) device->libraries(device, with, sizeof with);
    (void)snprintf(text, size, "%s%s%s", is.name[0] ? is.name : "built in", with[0] ? "; " : "",
                   with);
    return TS_OK;
}

/* Whether a device is there is an answer, not a failure of the rank that asks. */
ts_status ts_device_find(const char *name, char *text, size_t size)
{
    char unused[1];
    if (!text || size == 0) {
        text = unused;
        size = sizeof unused;
    }
    text[0] = '\0';
    ts_rank *outer = tsi_rank_current();
    tsi_rank_set_current(NULL);
    ts_status status = describe(name, text, size);
    if (status != TS_OK) (void)snprintf(text, size, "%s", ts_last_error());
    tsi_rank_set_current(outer);
    return status;
}

const tsi_device *tsi_module_device_auto(char *why, size_t size)
{
    for (size_t i = 0; i < TSI_COUNT_OF(kinds); i++)
        if (ts_device_find(kinds[i], why, size) == TS_OK) return tsi_device_find(kinds[i]);
    return tsi_device_host();
}
