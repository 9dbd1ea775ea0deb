/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - lines for a person on standard error, prefixed with level and rank.
 *
 * Level from TESSERA_LOG (error, warn, info, debug; default warn). The same text from many ranks is
 * written once; the count follows at the next flush (a closing world flushes). */
#ifndef TSI_BASE_LOG_H
#define TSI_BASE_LOG_H

#include <stdbool.h>

#include "tessera/export.h"

typedef enum tsi_log_level {
    TSI_LOG_ERROR,
    TSI_LOG_WARN,
    TSI_LOG_INFO,
    TSI_LOG_DEBUG
} tsi_log_level;

bool tsi_log_enabled(tsi_log_level level);
void tsi_log(tsi_log_level level, const char *format, ...) TS_PRINTF(2, 3);
void tsi_log_flush(void); /* writes the counts of lines that other ranks repeated */

#endif
