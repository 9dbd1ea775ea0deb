/* SPDX-License-Identifier: Apache-2.0 */
/* words.c - words of the core as calls through its table (INV-17). They are not exported: the map
 * of each module. */
#include "base/lent/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

static const tsi_module_host *core;

void tsi_lent_set(const tsi_module_host *host)
{
    core = host;
}

ts_status tsi_fail_va(ts_blast blast, ts_status status, const char *format, va_list arguments)
{
    char text[TSI_ERROR_TEXT_MAX];
    (void)vsnprintf(text, sizeof text, format, arguments);
    return core->fail(blast, status, "%s", text);
}

ts_status tsi_fail(ts_blast blast, ts_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    ts_status result = tsi_fail_va(blast, status, format, arguments);
    va_end(arguments);
    return result;
}

ts_status tsi_fail_memory(const char *what, size_t bytes)
{
    return TSI_FAIL(TS_ERR_MEMORY, "no memory for %s (%zu bytes)", what, bytes);
}

void *tsi_alloc(size_t bytes)
{
    return core->alloc(bytes);
}

void *tsi_alloc_kept(size_t bytes, size_t alignment)
{
    return core->alloc_kept(bytes, alignment);
}

void *tsi_calloc(size_t count, size_t bytes)
{
    void *memory = core->alloc(count * bytes); /* of a few known structs: no product overflows */
    if (memory) memset(memory, 0, count * bytes);
    return memory;
}

void tsi_free(void *memory)
{
    core->free(memory);
}

void tsi_assert_failed(const char *condition, const char *file, int line)
{
    (void)fprintf(stderr, "tessera: %s:%d: broken invariant: %s; please report it\n", file, line,
                  condition);
    abort();
}
