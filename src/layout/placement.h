/* SPDX-License-Identifier: Apache-2.0 */
/* placement.h - reading single placements; shardings are read with it in sharding_text.c. */
#ifndef TSI_LAYOUT_PLACEMENT_H
#define TSI_LAYOUT_PLACEMENT_H

#include "base/arena.h"
#include "base/text.h"
#include "layout/layout.h"

enum { TSI_ORDER_NONE = -1 };

/* Reads one placement. `axis_size` is the number of sizes RS must give, -1: any. Without a position
 * in the text, order is TSI_ORDER_NONE. Sizes are in the arena. */
ts_status tsi_placement_parse(tsi_cursor *cursor, int64_t axis_size, tsi_arena *arena,
                              ts_placement *out);
/* Checks one placement as a value and brings it to its one spelling. */
ts_status tsi_placement_normalise(ts_placement *place, int64_t axis_size);
void tsi_placement_print(tsi_text *text, const ts_placement *place, int64_t axis_size, int ordered);
void tsi_sharding_print(tsi_text *text, const ts_sharding *sharding); /* as ts_sharding_text */
/* What was built, as snprintf would give it; releases the text. */
size_t tsi_text_copy_out(tsi_text *text, char *out, size_t size);

#endif
