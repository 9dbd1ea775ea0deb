/* SPDX-License-Identifier: Apache-2.0 */
/* added.c - finding added tokens in a text: the leftmost, and of those that begin there the
 * longest.
 *
 * Most texts hold few places where one could begin, so the search is a scan for first bytes and a
 * walk down the trie from there. A token that must be a word of its own and is not is passed over
 * with all its bytes. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

static int32_t new_node(tsi_added_set *set, unsigned char byte)
{
    if (set->count == set->capacity) {
        int32_t capacity = set->capacity != 0 ? 2 * set->capacity : 256;
        tsi_trie_node *node = tsi_realloc(set->node, (size_t)capacity * sizeof *node);
        if (node == NULL) return -1;
        set->node = node;
        set->capacity = capacity;
    }
    set->node[set->count] = (tsi_trie_node){ -1, -1, -1, byte };
    return set->count++;
}

static int32_t find_child(const tsi_added_set *set, int32_t node, unsigned char byte)
{
    int32_t child = set->node[node].child;
    while (child >= 0 && set->node[child].byte != byte)
        child = set->node[child].sibling;
    return child;
}

static int32_t take_child(tsi_added_set *set, int32_t node, unsigned char byte)
{
    int32_t child = find_child(set, node, byte);
    if (child >= 0) return child;
    child = new_node(set, byte);
    if (child < 0) return -1;
    set->node[child].sibling = set->node[node].child;
    set->node[node].child = child;
    return child;
}

ts_status tsi_added_insert(tsi_added_set *set, const char *text, size_t length, int32_t added)
{
    if (length == 0) return TS_OK; /* never found */
    unsigned char first = (unsigned char)text[0];
    if (set->root[first] == 0) set->root[first] = new_node(set, first) + 1;
    int32_t node = set->root[first] - 1;
    for (size_t i = 1; node >= 0 && i < length; i++)
        node = take_child(set, node, (unsigned char)text[i]);
    if (node < 0) return tsi_fail_memory("added tokens", sizeof(tsi_trie_node));
    set->node[node].added = added;
    return TS_OK;
}

void tsi_added_release(tsi_added_set *set)
{
    tsi_free(set->node);
    *set = (tsi_added_set){ 0 };
}

/* The longest token that begins at `at`, or -1. */
static int32_t longest(const tsi_added_set *set, tsi_string text, size_t at, size_t *end)
{
    int32_t node = set->root[(unsigned char)text.data[at]] - 1, found = -1;
    for (size_t i = at + 1; node >= 0; i++) {
        if (set->node[node].added >= 0) {
            found = set->node[node].added;
            *end = i;
        }
        if (i == text.length) break;
        node = find_child(set, node, (unsigned char)text.data[i]);
    }
    return found;
}

/* The start of the character that ends at `at` > 0. */
static size_t step_back(tsi_string text, size_t at)
{
    size_t used;
    for (size_t back = 2; back <= 4 && back <= at; back++) {
        const char *from = text.data + at - back;
        if (tsi_utf8_read(from, back, &used) != TSI_UTF8_BAD && used == back) return at - back;
    }
    return at - 1;
}

static size_t skip_blanks(tsi_string text, size_t at)
{
    size_t used;
    while (at < text.length && tsi_is_space(tsi_utf8_read(text.data + at, text.length - at, &used)))
        at += used;
    return at;
}

static size_t skip_blanks_back(tsi_string text, size_t at)
{
    while (at > 0) {
        size_t used, start = step_back(text, at);
        if (!tsi_is_space(tsi_utf8_read(text.data + start, at - start, &used))) break;
        at = start;
    }
    return at;
}

/* Is the character [start, end) one of a word? */
static ts_status is_word_letter(ts_tokenizer *tokenizer, tsi_string text, size_t start, size_t end,
                                bool *out)
{
    *out = false;
    if (tsi_utf8_valid(text.data + start, end - start) != end - start) return TS_OK;
    tsi_match match;
    TSI_TRY(tsi_pattern_next(tokenizer->word_letter, text.data + start, end - start, 0, &match));
    *out = match.found;
    return TS_OK;
}

static ts_status stands_alone(ts_tokenizer *tokenizer, tsi_string text, size_t start, size_t end,
                              bool *out)
{
    bool before = false, behind = false;
    size_t used;
    if (start > 0) {
        TSI_TRY(is_word_letter(tokenizer, text, step_back(text, start), start, &before));
    }
    if (end < text.length) {
        tsi_utf8_read(text.data + end, text.length - end, &used);
        TSI_TRY(is_word_letter(tokenizer, text, end, end + used, &behind));
    }
    *out = !before && !behind;
    return TS_OK;
}

ts_status tsi_added_next(ts_tokenizer *tokenizer, const tsi_added_set *set, tsi_string text,
                         bool plain, size_t floor, size_t *from, tsi_found *out)
{
    out->added = NULL;
    size_t at = *from, end = 0;
    while (set->count > 0 && at < text.length) {
        int32_t index = -1;
        if (set->root[(unsigned char)text.data[at]] != 0) index = longest(set, text, at, &end);
        if (index < 0) {
            at++;
            continue;
        }
        const tsi_added *added = &tokenizer->added[index];
        bool good = !(plain && added->special);
        if (good && added->single_word) {
            TSI_TRY(stands_alone(tokenizer, text, at, end, &good));
        }
        *from = end;
        if (!good) {
            at = end;
            continue;
        }
        size_t start = at;
        if (added->strip_left) start = skip_blanks_back(text, at);
        if (added->strip_left && start < floor) start = floor;
        if (added->strip_right) end = skip_blanks(text, end);
        if (start >= end) { /* all of it went to the token before, which strips blanks too */
            at = *from;
            continue;
        }
        *out = (tsi_found){ start, end, added };
        return TS_OK;
    }
    *from = text.length;
    return TS_OK;
}
