/* SPDX-License-Identifier: Apache-2.0 */
/* module_nccl.c - the nccl engine: collectives of device memory, over another engine. */
#include <stdio.h>

#include "base/error.h"
#include "runtime/module_load.h"
#include "runtime/runtime.h"

static const char file[] = "tessera_nccl.so";

/* Its library is looked for when a world opens: without it the engine stages. */
ts_status tsi_module_nccl(const tsi_engine **out)
{
    static const tsi_seam seam[] = TSI_SEAM(TSI_ENGINE_SEAM);
    const tsi_module_offer *offer = NULL;
    const void *table = NULL;
    int64_t count = 0;
    tsi_module_search found;
    *out = NULL;
    tsi_module_look(file, &found);
    if (found.handle == NULL)
        return TSI_FAIL(TS_ERR_MISSING, "the nccl engine, %s, %s%s", file,
                        found.why[0] ? "does not load: " : "is not in ",
                        found.why[0] ? found.why : found.places);
    TSI_TRY(tsi_module_accept(&found, &offer));
    TSI_TRY(tsi_module_table_of(offer, TSI_MODULE_ENGINE, seam, &table, &count));
    if (table == NULL) return TSI_FAIL(TS_ERR_MISSING, "%s offers no engine", found.path);
    *out = table;
    return TS_OK;
}

ts_status tsi_module_nccl_text(char *text, size_t size)
{
    const tsi_module_offer *offer = NULL;
    TSI_TRY(tsi_module_open(file, &offer));
    if (offer->libraries != NULL) offer->libraries(text, size);
    return TS_OK;
}
