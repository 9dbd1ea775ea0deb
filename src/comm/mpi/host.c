/* SPDX-License-Identifier: Apache-2.0 */
/* host.c - the end of a broken invariant. A module has no symbol of the core (INV-17), so it ends
 * the process itself; its peers find it dead and say so. */
#include <stdio.h>
#include <stdlib.h>

#include "base/compiler.h"

void tsi_assert_failed(const char *condition, const char *file, int line)
{
    (void)fprintf(stderr, "tessera: %s:%d: broken invariant: %s; please report it\n", file, line,
                  condition);
    abort();
}
