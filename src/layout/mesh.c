/* SPDX-License-Identifier: Apache-2.0 */
/* mesh.c - descriptions of meshes: interning, and the way from coordinates to ranks and back.
 *
 * INV: equal axes, names and ranks are one pointer. An explicit list that can be said with modes is
 * said so, whatever way it came about, so a regular mesh takes the same few hundred bytes for eight
 * ranks and for a million; all other lists are kept as a map in row-major order, with a sorted copy
 * for the way back. */
#include "layout/mesh.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/intmath.h"
#include "layout/slots.h"

/* ---- coordinates ---------------------------------------------------------------------------- */

static int64_t axis_index(const tsi_mesh_desc *mesh, int32_t axis, int64_t coord)
{
    int64_t index = 0;
    for (int32_t m = mesh->mode_first[axis + 1] - 1; m >= mesh->mode_first[axis]; m--) {
        if (m == mesh->mode_first[axis]) return index + coord * mesh->mode[m].stride;
        index += coord % mesh->mode[m].size * mesh->mode[m].stride;
        coord /= mesh->mode[m].size;
    }
    return index;
}

int64_t tsi_mesh_desc_product(const tsi_mesh_desc *mesh, uint32_t axes)
{
    int64_t product = 1;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (axes >> k & 1u) product *= mesh->size[k];
    return product;
}

int64_t tsi_mesh_desc_rank(const tsi_mesh_desc *mesh, const int64_t *coord)
{
    int64_t index = mesh->offset;
    for (int32_t k = 0; k < mesh->ndim; k++)
        index += axis_index(mesh, k, coord[k]);
    return mesh->map ? mesh->map[index] : index;
}

/* The index of a rank in the map, or -1. */
static int64_t map_index(const tsi_mesh_desc *mesh, int64_t rank)
{
    int64_t low = 0, high = mesh->map_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (mesh->member[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < mesh->map_count && mesh->member[low].rank == rank ? mesh->member[low].index : -1;
}

bool tsi_mesh_desc_coord(const tsi_mesh_desc *mesh, int64_t rank, int64_t *coord)
{
    int64_t digit[TSI_MODE_MAX];
    int64_t index = mesh->map ? map_index(mesh, rank) : rank;
    if (index < mesh->offset) return false;
    index -= mesh->offset;
    for (int32_t i = 0; i < mesh->mode_first[mesh->ndim]; i++) {
        int32_t m = mesh->mode_order[i];
        digit[m] = index / mesh->mode[m].stride;
        if (digit[m] >= mesh->mode[m].size) return false;
        index -= digit[m] * mesh->mode[m].stride;
    }
    if (index != 0) return false;
    for (int32_t k = 0; k < mesh->ndim; k++) {
        coord[k] = 0;
        for (int32_t m = mesh->mode_first[k]; m < mesh->mode_first[k + 1]; m++)
            coord[k] = coord[k] * mesh->mode[m].size + digit[m];
    }
    return true;
}

void tsi_mesh_desc_unravel(const tsi_mesh_desc *mesh, int64_t index, int64_t *coord)
{
    for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
        coord[k] = index % mesh->size[k];
        index /= mesh->size[k];
    }
}

int64_t tsi_mesh_desc_ravel(const tsi_mesh_desc *mesh, const int64_t *coord)
{
    int64_t index = 0;
    for (int32_t k = 0; k < mesh->ndim; k++)
        index = index * mesh->size[k] + coord[k];
    return index;
}

int32_t tsi_mesh_desc_axis(const tsi_mesh_desc *mesh, const char *name)
{
    if (!name || !*name) return -1;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (strcmp(mesh->name[k], name) == 0) return k;
    if (name[0] >= '0' && name[0] <= '7' && name[1] == '\0' && name[0] - '0' < mesh->ndim)
        return name[0] - '0';
    return -1;
}

/* ---- groups --------------------------------------------------------------------------------- */

int64_t tsi_mesh_group_count(const tsi_mesh_desc *mesh, uint32_t mask)
{
    int64_t count = 1;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (mask >> k & 1) count *= mesh->size[k];
    return count;
}

void tsi_mesh_group_ranks(const tsi_mesh_desc *mesh, uint32_t mask, const int64_t *coord,
                          int64_t *ranks)
{
    int64_t at[TS_NDIM_MAX];
    for (int32_t k = 0; k < mesh->ndim; k++)
        at[k] = mask >> k & 1 ? 0 : coord[k];
    for (int64_t i = 0;; i++) {
        ranks[i] = tsi_mesh_desc_rank(mesh, at);
        int32_t k = mesh->ndim - 1;
        for (; k >= 0; k--) {
            if (!(mask >> k & 1)) continue;
            if (++at[k] < mesh->size[k]) break;
            at[k] = 0;
        }
        if (k < 0) return;
    }
}

int64_t tsi_mesh_group_place(const tsi_mesh_desc *mesh, uint32_t mask, const int64_t *coord)
{
    int64_t place = 0;
    for (int32_t k = 0; k < mesh->ndim; k++)
        if (mask >> k & 1) place = place * mesh->size[k] + coord[k];
    return place;
}

/* ---- interning ------------------------------------------------------------------------------ */

static uint64_t hash_desc(const tsi_mesh_desc *mesh)
{
    uint64_t hash = tsi_hash_mix(1, (uint64_t)mesh->ndim);
    for (int32_t k = 0; k < mesh->ndim; k++) {
        hash = tsi_hash_mix(hash, (uint64_t)mesh->size[k]);
        hash = tsi_hash_mix(hash, (uint64_t)mesh->mode_first[k + 1]);
        hash = tsi_hash_text(hash, mesh->name[k]);
    }
    for (int32_t m = 0; m < mesh->mode_first[mesh->ndim]; m++) {
        hash = tsi_hash_mix(hash, (uint64_t)mesh->mode[m].size);
        hash = tsi_hash_mix(hash, (uint64_t)mesh->mode[m].stride);
    }
    hash = tsi_hash_mix(hash, (uint64_t)mesh->offset);
    for (int64_t i = 0; i < mesh->map_count; i++)
        hash = tsi_hash_mix(hash, (uint64_t)mesh->map[i]);
    return hash;
}

static bool equal_desc(const tsi_interned *value, const void *key)
{
    const tsi_mesh_desc *a = (const tsi_mesh_desc *)value, *b = key;
    if (a->ndim != b->ndim || a->offset != b->offset || a->map_count != b->map_count) return false;
    for (int32_t k = 0; k < a->ndim; k++) {
        if (a->size[k] != b->size[k] || a->mode_first[k + 1] != b->mode_first[k + 1]) return false;
        if (strcmp(a->name[k], b->name[k]) != 0) return false;
    }
    for (int32_t m = 0; m < a->mode_first[a->ndim]; m++)
        if (a->mode[m].size != b->mode[m].size || a->mode[m].stride != b->mode[m].stride)
            return false;
    return a->map_count == 0 || memcmp(a->map, b->map, (size_t)a->map_count * sizeof *a->map) == 0;
}

static void destroy_desc(tsi_interned *value)
{
    tsi_free(value); /* map and members are in the same block */
}

static int by_rank(const void *a, const void *b)
{
    int64_t x = ((const tsi_mesh_member *)a)->rank, y = ((const tsi_mesh_member *)b)->rank;
    return x < y ? -1 : x > y;
}

static ts_status sort_members(const int64_t *map, int64_t count, tsi_mesh_member *member)
{
    for (int64_t i = 0; i < count; i++)
        member[i] = (tsi_mesh_member){ map[i], i };
    qsort(member, (size_t)count, sizeof *member, by_rank);
    for (int64_t i = 1; i < count; i++)
        if (member[i].rank == member[i - 1].rank)
            return TSI_FAIL(TS_ERR_MESH, "mesh: rank %lld occurs twice in the list of ranks",
                            (long long)member[i].rank);
    return TS_OK;
}

static tsi_interned *make_desc(const void *key, void *context)
{
    const tsi_mesh_desc *draft = key;
    size_t listed = (size_t)draft->map_count;
    size_t bytes = sizeof *draft + listed * (sizeof(int64_t) + sizeof(tsi_mesh_member));
    tsi_mesh_desc *mesh = tsi_alloc(bytes);
    if (!mesh) {
        tsi_fail_memory("a mesh", bytes);
        return NULL;
    }
    *mesh = *draft;
    mesh->world = context;
    mesh->member = NULL;
    if (listed > 0) {
        tsi_mesh_member *member = (tsi_mesh_member *)(mesh + 1);
        int64_t *map = (int64_t *)(member + listed);
        memcpy(map, draft->map, listed * sizeof *map);
        mesh->map = map;
        mesh->member = member;
        if (sort_members(map, draft->map_count, member) != TS_OK) {
            tsi_free(mesh);
            return NULL;
        }
    }
    return &mesh->interned;
}

const tsi_intern_type tsi_mesh_intern_type = { "mesh", equal_desc, make_desc, destroy_desc };

/* ---- settling ------------------------------------------------------------------------------- */

bool tsi_mesh_draft_count(tsi_mesh_desc *draft)
{
    draft->count = 1;
    for (int32_t k = 0; k < draft->ndim; k++) {
        if (!tsi_mul_i64(draft->count, draft->size[k], &draft->count)) return false;
        if (draft->count > TSI_MESH_COUNT_MAX) return false;
    }
    return true;
}

/* The modes of one axis of an explicit list, if it has any: from the fastest on, as long as ranks
 * go on evenly. ranks[i * step] is coordinate i. */
static int32_t find_modes(const int64_t *ranks, int64_t step, int64_t size, tsi_mode *slow_first)
{
    tsi_mode fast_first[TSI_MODE_MAX];
    int32_t count = 0;
    for (int64_t block = 1; block < size;) {
        int64_t stride = ranks[block * step] - ranks[0], run = 2, next;
        if (stride <= 0 || count == TSI_MODE_MAX) return -1;
        while (block * run < size && tsi_mul_i64(run, stride, &next) &&
               ranks[block * run * step] - ranks[0] == next)
            run++;
        if (size % (block * run) != 0) return -1;
        fast_first[count++] = (tsi_mode){ run, stride };
        block *= run;
    }
    for (int32_t i = 0; i < count; i++)
        slow_first[i] = fast_first[count - 1 - i];
    return count;
}

/* Says an explicit list with modes, if it can be. */
static bool regular(tsi_mesh_desc *draft, const int64_t *ranks)
{
    tsi_mesh_desc trial = *draft;
    tsi_mode mode[TSI_MODE_MAX];
    int64_t step = draft->count, coord[TS_NDIM_MAX];
    trial.ndim = 0;
    trial.mode_first[0] = 0;
    trial.map = NULL;
    trial.map_count = 0;
    trial.offset = ranks[0];
    for (int32_t k = 0; k < draft->ndim; k++) {
        step /= draft->size[k];
        int32_t count = find_modes(ranks, step, draft->size[k], mode);
        if (count < 0 || !tsi_mesh_draft_axis(&trial, mode, count)) return false;
    }
    if (!tsi_mesh_draft_order(&trial)) return false;
    for (int64_t i = 0; i < draft->count; i++) {
        tsi_mesh_desc_unravel(&trial, i, coord);
        if (tsi_mesh_desc_rank(&trial, coord) != ranks[i]) return false;
    }
    *draft = trial;
    return true;
}

/* A draft whose modes point into a map: the ranks one by one. */
static ts_status list_ranks(const tsi_mesh_desc *draft, int64_t **out)
{
    size_t bytes = (size_t)draft->count * sizeof **out;
    int64_t coord[TS_NDIM_MAX];
    *out = tsi_alloc(bytes);
    if (!*out) return tsi_fail_memory("the ranks of a mesh", bytes);
    for (int64_t i = 0; i < draft->count; i++) {
        tsi_mesh_desc_unravel(draft, i, coord);
        (*out)[i] = tsi_mesh_desc_rank(draft, coord);
    }
    return TS_OK;
}

static ts_status intern_draft(ts_world *world, const tsi_mesh_desc *draft, tsi_mesh_desc **out)
{
    tsi_layout_state *state = tsi_layout_state_of(world);
    if (!state) return TS_ERR_MEMORY;
    *out = (tsi_mesh_desc *)tsi_intern_get(state->meshes, hash_desc(draft), draft, world);
    return *out ? TS_OK : TS_ERR_MESH;
}

ts_status tsi_mesh_settle(ts_world *world, tsi_mesh_desc *draft, const int64_t *ranks,
                          tsi_mesh_desc **out)
{
    *out = NULL;
    int64_t *listed = NULL;
    if (!ranks && draft->map) {
        TSI_TRY(list_ranks(draft, &listed));
        ranks = listed;
    }
    if (ranks && !regular(draft, ranks)) {
        tsi_mesh_draft_row_major(draft, 1);
        draft->offset = 0;
        draft->map = ranks;
        draft->map_count = draft->count;
    }
    (void)tsi_mesh_draft_order(draft);
    ts_status status = intern_draft(world, draft, out);
    tsi_free(listed);
    return status;
}

/* ---- nodes ---------------------------------------------------------------------------------- */

/* For a regular mesh: an axis reaches `reach` beyond each place where it begins, so the greatest
 * remainder of such a place by the node's size decides. Modes that are multiples of a node do not
 * change the remainder. */
static bool regular_in_node(const tsi_mesh_desc *mesh, int32_t axis, int64_t node)
{
    int64_t reach = axis_index(mesh, axis, mesh->size[axis] - 1), places = 1;
    tsi_mode other[TSI_MODE_MAX];
    int32_t count = 0;
    if (reach == 0) return true;
    if (reach >= node) return false;
    for (int32_t m = 0; m < mesh->mode_first[mesh->ndim]; m++) {
        if (m >= mesh->mode_first[axis] && m < mesh->mode_first[axis + 1]) continue;
        if (mesh->mode[m].stride % node == 0) continue;
        other[count++] = mesh->mode[m];
        if (!tsi_mul_i64(places, mesh->mode[m].size, &places) || places > TSI_MESH_LIST_MAX)
            return false;
    }
    for (int64_t i = 0; i < places; i++) {
        int64_t rest = i, place = mesh->offset;
        for (int32_t m = 0; m < count; m++) {
            place += rest % other[m].size * other[m].stride;
            rest /= other[m].size;
        }
        if (place % node + reach >= node) return false;
    }
    return true;
}

bool tsi_mesh_desc_in_node(const tsi_mesh_desc *mesh, int32_t axis)
{
    const ts_world *world = mesh->world;
    int64_t coord[TS_NDIM_MAX];
    if (world->node_ranks <= 0) return false;
    if (!mesh->map && !world->node) return regular_in_node(mesh, axis, world->node_ranks);
    for (int64_t i = 0; i < mesh->count; i++) {
        tsi_mesh_desc_unravel(mesh, i, coord);
        int64_t node = tsi_world_node(world, tsi_mesh_desc_rank(mesh, coord));
        coord[axis] = 0;
        if (node < 0 || tsi_world_node(world, tsi_mesh_desc_rank(mesh, coord)) != node)
            return false;
    }
    return true;
}
