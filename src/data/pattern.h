/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.h - the regular expressions of tokenizers, with PCRE2 behind them.
 *
 * Published patterns are written for another engine (Oniguruma). What both read alike is passed on,
 * what they read differently is rewritten (\s, \w: the classes of Unicode), and the rest is refused
 * by name. Without PCRE2 compiling is TS_ERR_MISSING. */
#ifndef TSI_DATA_PATTERN_H
#define TSI_DATA_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "tessera/status.h"

typedef struct tsi_pattern tsi_pattern;

/* `what` begins error sentences ("tokenizer.json: pre_tokenizer Split"). */
ts_status tsi_pattern_compile(const char *what, const char *expression, tsi_pattern **out);
void tsi_pattern_release(tsi_pattern *pattern); /* accepts NULL */

typedef struct tsi_match {
    size_t start, end;
    bool found;
} tsi_match;
/* The first match at or after `from` in a well-formed UTF-8 text. */
ts_status tsi_pattern_next(tsi_pattern *pattern, const char *text, size_t length, size_t from,
                           tsi_match *out);
/* The expression as PCRE2 gets it, owned by the caller. */
ts_status tsi_pattern_rewrite(const char *what, const char *expression, char **out);

#endif
