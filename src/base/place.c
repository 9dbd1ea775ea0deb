/* SPDX-License-Identifier: Apache-2.0 */
/* place.c - places of calls, kept once each.
 *
 * Events, tapes and errors keep the place of a call by its pointer, for as long as the rank lives;
 * the caller's text may be gone by then (a binding makes it for the call). So a rank keeps a copy
 * of every place it was told of, equal texts once. Most calls come with the literal of a macro: a
 * small table by the caller's pointer finds its copy with one comparison of the texts, because the
 * same address may hold another text next time.
 *
 * INV: copies are never moved or freed while the rank lives. There are at most PLACES_MAX; then
 * further places are unknown (""). */
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/hash.h"
#include "base/rank.h"

enum { RECENT = 64, PLACES_MAX = 1 << 16 };

struct tsi_places {
    struct {
        const char *told, *copy;
    } recent[RECENT];
    tsi_map map; /* of copies, by the hash of their text */
    tsi_arena memory;
};

static bool same_text(const void *value, const void *wanted)
{
    return strcmp(value, wanted) == 0;
}

/* Without memory the place is unknown: it is not worth a failure. */
static const char *keep(tsi_places *places, const char *text)
{
    uint64_t hash = tsi_hash_text(0, text);
    char *copy = tsi_map_find(&places->map, hash, same_text, text);
    if (copy != NULL) return copy;
    if (places->map.count >= PLACES_MAX || !tsi_map_reserve(&places->map, 1)) return "";
    copy = tsi_arena_strdup(&places->memory, text);
    if (copy == NULL) return "";
    (void)tsi_map_insert(&places->map, hash, copy);
    return copy;
}

const char *tsi_place_of(ts_rank *rank, const char *text)
{
    tsi_places *places = rank->places;
    if (TSI_UNLIKELY(places == NULL)) {
        places = rank->places = tsi_calloc(1, sizeof *places);
        if (places == NULL) return "";
    }
    size_t slot = ((uintptr_t)text >> 2) % RECENT;
    const char *copy = places->recent[slot].copy;
    if (TSI_LIKELY(places->recent[slot].told == text) && strcmp(copy, text) == 0) return copy;
    copy = keep(places, text);
    places->recent[slot].told = text;
    places->recent[slot].copy = copy;
    return copy;
}

void tsi_places_destroy(tsi_places *places)
{
    if (places == NULL) return;
    tsi_map_release(&places->map);
    tsi_arena_release(&places->memory);
    tsi_free(places);
}
