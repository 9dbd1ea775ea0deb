/* SPDX-License-Identifier: Apache-2.0 */
/* mesh.h - how descriptions of meshes are made: drafts, modes, text.
 *
 * A draft is a tsi_mesh_desc on the stack with ndim, size and name set. It is settled into the one
 * interned description of its ranks, which come either from its modes and offset or from an
 * explicit list. */
#ifndef TSI_LAYOUT_MESH_H
#define TSI_LAYOUT_MESH_H

#include "base/text.h"
#include "layout/layout.h"

enum { TSI_MESH_LIST_MAX = 1 << 20 }; /* ranks that may be listed one by one */
#define TSI_MESH_COUNT_MAX ((int64_t)1 << 60)

/* Interns the draft. `ranks` (row-major, draft->count of them) or NULL: its modes, offset and map.
 */
ts_status tsi_mesh_settle(ts_world *world, tsi_mesh_desc *draft, const int64_t *ranks,
                          tsi_mesh_desc **out);
/* Sets count from the sizes; false if it is beyond TSI_MESH_COUNT_MAX. */
bool tsi_mesh_draft_count(tsi_mesh_desc *draft);
/* Sets row-major modes of the given step over the sizes. */
void tsi_mesh_draft_row_major(tsi_mesh_desc *draft, int64_t step);
/* Sorts modes by stride; false if two overlap, so that a rank might occur twice. */
bool tsi_mesh_draft_order(tsi_mesh_desc *draft);

/* ---- modes, the last fastest (mesh_modes.c) -------------------------------------------------- */
/* Drops modes of size 1 and joins those that continue each other; returns the new count. */
int32_t tsi_modes_coalesce(tsi_mode *mode, int32_t count);
/* Appends an axis made of the modes to a draft (its name and size are set by the caller); false:
 * too many modes. */
bool tsi_mesh_draft_axis(tsi_mesh_desc *draft, const tsi_mode *mode, int32_t count);
/* Splits the modes of one axis by row-major sizes into the draft's next axes; false if a size does
 * not fall on the border of a mode, or there are too many. */
bool tsi_mesh_draft_split(tsi_mesh_desc *draft, const tsi_mode *mode, int32_t mode_count,
                          const int64_t *size, int32_t size_count);

/* ---- text (mesh_text.c) ---------------------------------------------------------------------- */
/* "a=2, b=*": names and sizes into the draft, up to the end or a colon; *star is the axis with "*",
 * or -1. */
ts_status tsi_mesh_parse_axes(tsi_cursor *cursor, tsi_mesh_desc *draft, int32_t *star);
/* Gives the axis with "*" what is left of `whole`. */
ts_status tsi_mesh_resolve_star(tsi_mesh_desc *draft, int32_t star, int64_t whole,
                                const char *what);
ts_status tsi_mesh_check_names(const tsi_mesh_desc *draft);

#endif
