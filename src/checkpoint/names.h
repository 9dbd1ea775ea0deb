/* SPDX-License-Identifier: Apache-2.0 */
/* names.h - which names are meant, and what they are called elsewhere: lines of patterns in which
 * "*" stands for any run of characters. */
#ifndef TSI_CHECKPOINT_NAMES_H
#define TSI_CHECKPOINT_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "tessera/status.h"

/* Does one of the lines match? NULL: every name does. */
bool tsi_names_match(const char *lines, const char *name);
/* The first line "here: there" whose left side matches says the name; what the first "*" of the
 * left stood for goes where the right has one. Without a match, or NULL: as it is. */
ts_status tsi_names_rename(const char *lines, const char *name, char *out, size_t size);

#endif
