/* SPDX-License-Identifier: Apache-2.0 */
/* mesh_modes.c - the arithmetic of modes: an axis as a mixed-radix number.
 *
 *   axis of 6 = modes (2, 8) (3, 1):   coordinate  0 1 2 3 4  5
 *                                      index       0 1 2 8 9 10
 *
 * The last mode is the fastest. Lists are kept coalesced: no mode of size 1, none that continues
 * the next. */
#include "layout/mesh.h"

int32_t tsi_modes_coalesce(tsi_mode *mode, int32_t count)
{
    int32_t kept = count; /* modes [kept, count) are done, from the fastest upwards */
    for (int32_t i = count - 1; i >= 0; i--) {
        if (mode[i].size == 1) continue;
        if (kept < count && mode[i].stride == mode[kept].size * mode[kept].stride)
            mode[kept].size *= mode[i].size;
        else
            mode[--kept] = mode[i];
    }
    for (int32_t i = kept; i < count; i++)
        mode[i - kept] = mode[i];
    return count - kept;
}

bool tsi_mesh_draft_axis(tsi_mesh_desc *draft, const tsi_mode *mode, int32_t count)
{
    tsi_mode joined[TSI_MODE_MAX];
    int32_t first = draft->mode_first[draft->ndim];
    if (count > TSI_MODE_MAX) return false;
    for (int32_t i = 0; i < count; i++)
        joined[i] = mode[i];
    count = tsi_modes_coalesce(joined, count);
    if (first + count > TSI_MODE_MAX) return false;
    for (int32_t i = 0; i < count; i++)
        draft->mode[first + i] = joined[i];
    draft->mode_first[++draft->ndim] = first + count;
    return true;
}

/* Takes `size` off the fast end of a list of modes, as a list of its own, the fastest first.
 * Returns how many, or -1 if the size does not fall on a border. */
static int32_t take_fast(tsi_mode *mode, int32_t *count, int64_t size, tsi_mode *out)
{
    int32_t taken = 0;
    while (size > 1) {
        if (*count == 0) return -1;
        tsi_mode *fast = &mode[*count - 1];
        if (size % fast->size == 0) {
            out[taken++] = *fast;
            size /= fast->size;
            (*count)--;
        } else if (fast->size % size == 0) {
            out[taken++] = (tsi_mode){ size, fast->stride };
            *fast = (tsi_mode){ fast->size / size, fast->stride * size };
            size = 1;
        } else {
            return -1;
        }
    }
    return taken;
}

bool tsi_mesh_draft_split(tsi_mesh_desc *draft, const tsi_mode *mode, int32_t mode_count,
                          const int64_t *size, int32_t size_count)
{
    tsi_mode rest[TSI_MODE_MAX], part[TS_NDIM_MAX][TSI_MODE_MAX];
    int32_t taken[TS_NDIM_MAX];
    for (int32_t i = 0; i < mode_count; i++)
        rest[i] = mode[i];
    for (int32_t k = size_count - 1; k >= 0; k--) {
        taken[k] = take_fast(rest, &mode_count, size[k], part[k]);
        if (taken[k] < 0) return false;
    }
    for (int32_t k = 0; k < size_count; k++) {
        tsi_mode slow_first[TSI_MODE_MAX];
        for (int32_t i = 0; i < taken[k]; i++)
            slow_first[i] = part[k][taken[k] - 1 - i];
        if (!tsi_mesh_draft_axis(draft, slow_first, taken[k])) return false;
    }
    return true;
}

void tsi_mesh_draft_row_major(tsi_mesh_desc *draft, int64_t step)
{
    tsi_mode mode[TS_NDIM_MAX];
    int32_t ndim = draft->ndim;
    for (int32_t k = ndim - 1; k >= 0; k--) {
        mode[k] = (tsi_mode){ draft->size[k], step };
        step *= draft->size[k];
    }
    draft->ndim = 0;
    draft->mode_first[0] = 0;
    for (int32_t k = 0; k < ndim; k++)
        (void)tsi_mesh_draft_axis(draft, &mode[k], 1); /* one mode each always fits */
}

bool tsi_mesh_draft_order(tsi_mesh_desc *draft)
{
    int32_t count = draft->mode_first[draft->ndim];
    for (int32_t i = 0; i < count; i++) {
        int32_t k = i;
        for (; k > 0 && draft->mode[draft->mode_order[k - 1]].stride < draft->mode[i].stride; k--)
            draft->mode_order[k] = draft->mode_order[k - 1];
        draft->mode_order[k] = (uint8_t)i;
    }
    for (int32_t i = 0; i + 1 < count; i++) {
        const tsi_mode *slow = &draft->mode[draft->mode_order[i]];
        const tsi_mode *fast = &draft->mode[draft->mode_order[i + 1]];
        if (slow->stride / fast->size < fast->stride) return false;
    }
    return true;
}
