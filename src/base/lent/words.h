/* SPDX-License-Identifier: Apache-2.0 */
/* words.h - the words of the core that modules use (TSI_FAIL, tsi_alloc), as calls through the
 * table that the core lent: code of a module reads as code of the core does. words.c is compiled
 * into each module, not into the library; plain functions of the core (names of dtypes, strided
 * blocks) are compiled into modules as they are. */
#ifndef TSI_BASE_LENT_WORDS_H
#define TSI_BASE_LENT_WORDS_H

#include "base/module_seam.h"

void tsi_lent_set(const tsi_module_host *host);

#endif
