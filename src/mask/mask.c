/* SPDX-License-Identifier: Apache-2.0 */
/* mask.c - masks as interned values: made from texts, document lengths, predicates and tables.
 *
 * INV: the text of a mask is its one spelling, so equal masks are one pointer; its hash is the same
 * in every process, so "@hash" names the same mask on every rank that made it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "mask/slots.h"

/* ---- interning ------------------------------------------------------------------------------- */

typedef struct mask_key {
    const char *text; /* NULL: by hash alone */
    uint64_t hash;
} mask_key;

static bool equal_mask(const tsi_interned *value, const void *key)
{
    const ts_mask *mask = (const ts_mask *)value;
    const mask_key *k = key;
    return k->text ? strcmp(mask->text, k->text) == 0 : mask->interned.hash == k->hash;
}

/* The draft becomes the value. Without one the table is only looked into, and what is not there is
 * told by the caller. */
static tsi_interned *make_mask(const void *key, void *context)
{
    (void)key;
    ts_mask **draft = context, *mask = draft ? *draft : NULL;
    if (draft) *draft = NULL;
    return mask ? &mask->interned : NULL;
}

static void mask_free(ts_mask *mask)
{
    if (!mask) return;
    union {
        const char *kept;
        char *given;
    } text = { .kept = mask->text };
    tsi_free(text.given);
    tsi_arena_release(&mask->memory);
    tsi_free(mask);
}

static void destroy_mask(tsi_interned *value)
{
    mask_free((ts_mask *)value);
}

const tsi_intern_type tsi_mask_intern_type = { "mask", equal_mask, make_mask, destroy_mask };

static uint64_t text_hash(const char *text)
{
    return tsi_hash_text(0x6d61736b, text);
}

/* ---- making ---------------------------------------------------------------------------------- */

/* A mask of its own, not yet interned. */
static ts_mask *draft_of(ts_world *world, const char *text)
{
    ts_mask *mask = tsi_calloc(1, sizeof *mask);
    if (!mask) {
        tsi_fail_memory("a mask", sizeof *mask);
        return NULL;
    }
    const tsi_mask_user *users = NULL;
    tsi_mask_state *state = world ? tsi_mask_state_of(world) : NULL;
    if (state) {
        pthread_mutex_lock(&state->lock);
        users = state->users;
        pthread_mutex_unlock(&state->lock);
    }
    mask->world = world;
    if ((!world || state) && tsi_mask_parse(text, users, mask) == TS_OK)
        mask->text = tsi_mask_print(mask);
    if (!mask->text) {
        mask_free(mask);
        return NULL;
    }
    uint64_t hash = text_hash(mask->text);
    if (strlen(mask->text) < sizeof mask->name)
        memcpy(mask->name, mask->text, strlen(mask->text) + 1);
    else
        (void)snprintf(mask->name, sizeof mask->name, "@%016" PRIx64, hash);
    return mask;
}

static const ts_mask *get_draft(tsi_mask_state *state, ts_mask *draft /* takes */)
{
    mask_key key = { draft->text, text_hash(draft->text) };
    tsi_interned *value = tsi_intern_get(state->masks, key.hash, &key, &draft);
    mask_free(draft); /* NULL if it became the value */
    return (const ts_mask *)value;
}

static const ts_mask *find_by_hash(tsi_mask_state *state, const char *name)
{
    mask_key key = { .hash = strtoull(name + 1, NULL, 16) };
    tsi_interned *value = tsi_intern_get(state->masks, key.hash, &key, NULL);
    if (!value)
        TSI_FAIL(TS_ERR_ARG,
                 "mask: %s names a mask that nobody holds any more; keep it with "
                 "ts_mask_retain while operators use it",
                 name);
    return (const ts_mask *)value;
}

const ts_mask *tsi_mask_find(ts_world *world, const char *text)
{
    tsi_mask_state *state = tsi_mask_state_of(world);
    if (!state) return NULL;
    if (text[0] == '@') return find_by_hash(state, text);
    mask_key key = { .text = text, .hash = text_hash(text) };
    tsi_interned *value = tsi_intern_get(state->masks, key.hash, &key, NULL);
    if (value) return (const ts_mask *)value;
    ts_mask *draft = draft_of(world, text);
    return draft ? get_draft(state, draft) : NULL;
}

/* The count of references is not part of the value. */
static tsi_interned *interned_of(const ts_mask *mask)
{
    union {
        const ts_mask *given;
        tsi_interned *value;
    } same = { .given = mask };
    return same.value;
}

/* Kept for a while without its being retained: what makers give. */
static const ts_mask *give(ts_world *world, const ts_mask *mask)
{
    tsi_mask_state *state = mask ? tsi_mask_state_of(world) : NULL;
    if (!state) return NULL;
    tsi_mask_hold(state, interned_of(mask));
    tsi_interned_release(interned_of(mask));
    return mask;
}

const ts_mask *ts_mask_get(ts_world *world, const char *text)
{
    if (!world || !text) {
        TSI_FAIL(TS_ERR_NULL, "mask: a world and a text are needed");
        return NULL;
    }
    return give(world, tsi_mask_find(world, text));
}

const ts_mask *ts_mask_documents(ts_world *world, const int64_t *length, const int64_t *count,
                                 int64_t rows)
{
    tsi_text text = { 0 };
    tsi_text_add(&text, "documents(");
    for (int64_t r = 0, i = 0; r < rows; r++) {
        if (r > 0) tsi_text_add(&text, "; ");
        for (int64_t d = 0; d < count[r]; d++, i++) {
            if (d > 0) tsi_text_add(&text, ", ");
            tsi_text_int(&text, length[i]);
        }
    }
    tsi_text_add(&text, ")");
    char *said = tsi_text_take(&text);
    const ts_mask *mask = said ? ts_mask_get(world, said) : NULL;
    tsi_free(said);
    return mask;
}

static const ts_mask *join(const ts_mask *a, const ts_mask *b, const char *by)
{
    if (!a || !b) return NULL;
    if (a->cap > 0 || a->alibi) { /* changes of scores stand once, at the end */
        TSI_FAIL(TS_ERR_ARG, "mask: \"%s\" changes scores and can only be the last part", a->text);
        return NULL;
    }
    tsi_text text = { 0 };
    size_t seen = strcspn(b->text, "+");
    tsi_text_printf(&text, "(%s) %s (", a->text, by);
    tsi_text_add_n(&text, b->text, seen);
    tsi_text_printf(&text, ") %s", b->text + seen);
    char *said = tsi_text_take(&text);
    const ts_mask *mask = said ? ts_mask_get(a->world, said) : NULL;
    tsi_free(said);
    return mask;
}

const ts_mask *ts_mask_and(const ts_mask *a, const ts_mask *b)
{
    return join(a, b, "&");
}

const ts_mask *ts_mask_or(const ts_mask *a, const ts_mask *b)
{
    return join(a, b, "|");
}

/* ---- predicates and tables ------------------------------------------------------------------- */

static bool same_user(const tsi_mask_user *a, const tsi_mask_user *b)
{
    if (a->fn) return a->fn == b->fn && a->context == b->context;
    return !b->fn && a->queries == b->queries && a->keys == b->keys &&
           memcmp(a->seen, b->seen, (size_t)(a->queries * a->keys)) == 0;
}

/* Adds a copy, unless the same is there already; another of that name is an error. */
static ts_status add_user(ts_world *world, const tsi_mask_user *given)
{
    tsi_mask_state *state = tsi_mask_state_of(world);
    if (!state) return TS_ERR_MEMORY;
    size_t bytes = given->fn ? 0 : (size_t)(given->queries * given->keys);
    tsi_mask_user *made = tsi_calloc(1, sizeof *made + bytes);
    if (!made) return tsi_fail_memory("a predicate of a mask", sizeof *made + bytes);
    *made = *given;
    if (bytes) {
        memcpy(made + 1, given->seen, bytes);
        made->seen = (const unsigned char *)(made + 1);
    }
    pthread_mutex_lock(&state->lock);
    const tsi_mask_user *there = state->users;
    while (there && strcmp(there->name, given->name) != 0)
        there = there->next;
    bool clash = there && !same_user(there, given);
    if (!there) {
        made->next = state->users;
        state->users = made;
        made = NULL;
    }
    pthread_mutex_unlock(&state->lock);
    tsi_free(made);
    if (!clash) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "mask: the name \"%s\" is taken by another predicate or table",
                    given->name);
}

static const ts_mask *get_user(ts_world *world, tsi_mask_user *user, const char *name)
{
    char text[TSI_MASK_WORD + 16], word[TSI_MASK_WORD] = "";
    tsi_cursor cursor = tsi_cursor_of("mask", name ? name : "");
    if (!world || !tsi_cursor_word(&cursor, word, sizeof word) || !tsi_cursor_done(&cursor)) {
        TSI_FAIL(TS_ERR_ARG, "mask: \"%s\" is no name of at most %d letters, digits and _",
                 name ? name : "", TSI_MASK_WORD - 1);
        return NULL;
    }
    memcpy(user->name, word, sizeof word);
    if (add_user(world, user) != TS_OK) return NULL;
    (void)snprintf(text, sizeof text, "%s(%s)", user->fn ? "user" : "dense", word);
    return ts_mask_get(world, text);
}

const ts_mask *ts_mask_user(ts_world *world, const char *name, ts_mask_fn fn, void *context)
{
    tsi_mask_user user = { .fn = fn, .context = context };
    if (!fn) {
        TSI_FAIL(TS_ERR_NULL, "mask: user(%s) has no function", name ? name : "");
        return NULL;
    }
    return get_user(world, &user, name);
}

const ts_mask *ts_mask_dense(ts_world *world, const char *name, int64_t queries, int64_t keys,
                             const unsigned char *seen)
{
    tsi_mask_user user = { .queries = queries, .keys = keys, .seen = seen };
    if (!seen || queries < 0 || keys < 0 || (keys > 0 && queries > INT64_MAX / 2 / keys)) {
        TSI_FAIL(TS_ERR_SHAPE, "mask: a table of %lld x %lld is not possible", (long long)queries,
                 (long long)keys);
        return NULL;
    }
    return get_user(world, &user, name);
}

/* ---- what is asked of a mask ----------------------------------------------------------------- */

const ts_mask *ts_mask_retain(const ts_mask *mask)
{
    if (mask) tsi_interned_retain(interned_of(mask));
    return mask;
}

void ts_mask_release(const ts_mask *mask)
{
    if (mask) tsi_interned_release(interned_of(mask));
}

size_t ts_mask_text(const ts_mask *mask, char *out, size_t size)
{
    return (size_t)snprintf(out, size, "%s", mask ? mask->text : "");
}

const char *ts_mask_name(const ts_mask *mask)
{
    return mask ? mask->name : "";
}

int ts_mask_sees(const ts_mask *mask, int64_t row, int64_t head, int64_t query, int64_t key)
{
    return tsi_mask_sees(mask, (tsi_mask_at){ row, head }, query, key);
}

/* Every rank asks about the same pairs before anything moves, so that all of them refuse. */
static ts_status check_pure(const ts_mask *mask, int64_t rows, int64_t queries, int64_t keys)
{
    enum { PAIRS = 64 };
    for (int64_t i = 0; i < PAIRS && mask->by_head && rows * queries * keys > 0; i++) {
        int64_t query = i * 7919 % queries + keys - queries;
        TSI_TRY(tsi_mask_pure(mask, (tsi_mask_at){ i % rows, 0 }, query, i * 104729 % keys));
    }
    return TS_OK;
}

ts_status tsi_mask_check(const ts_mask *mask, const char *what, int64_t rows, int64_t queries,
                         int64_t keys)
{
    if (mask->length > 0 && mask->length != keys)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "%s: the mask is for another length: its documents have %lld tokens "
                        "together, there are %lld keys",
                        what, (long long)mask->length, (long long)keys);
    if (mask->rows > 1 && mask->rows != rows)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: the mask has documents of %lld rows, there are %lld",
                        what, (long long)mask->rows, (long long)rows);
    for (int32_t i = 0; i < mask->node_count; i++) {
        const tsi_mask_user *u = mask->node[i].user;
        if (!u || u->fn || (u->queries == queries && u->keys == keys)) continue;
        return TSI_FAIL(TS_ERR_SHAPE,
                        "%s: the mask is for another length: dense(%s) is %lld x %lld, there are "
                        "%lld queries and %lld keys",
                        what, u->name, (long long)u->queries, (long long)u->keys,
                        (long long)queries, (long long)keys);
    }
    return check_pure(mask, rows, queries, keys);
}

ts_status tsi_mask_check_text(const char *text, const char *what, int64_t rows, int64_t queries,
                              int64_t keys)
{
    ts_rank *me = tsi_rank_current();
    if (me) {
        const ts_mask *mask = tsi_mask_find(me->world, text);
        ts_status status = mask ? tsi_mask_check(mask, what, rows, queries, keys) : TS_ERR_ARG;
        ts_mask_release(mask);
        return status;
    }
    if (text[0] == '@') return TS_OK; /* nobody here knows it: the ranks that run it will */
    ts_mask *draft = draft_of(NULL, text);
    ts_status status = draft ? tsi_mask_check(draft, what, rows, queries, keys) : TS_ERR_ARG;
    mask_free(draft);
    return status;
}
