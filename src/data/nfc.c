/* SPDX-License-Identifier: Apache-2.0 */
/* nfc.c - normal form C of Unicode.
 *
 * A character is safe if it is a starter and never changes with what stands before it. A text is
 * copied up to its first unsafe character; from the last safe one before it to the next safe one
 * the characters are decomposed, put into canonical order and composed again. Runs between safe
 * characters do not influence each other, so each is done alone.
 *
 *   safe safe [safe unsafe unsafe] safe ...     the bracket is one run */
#include "base/compiler.h"
#include "data/utf8.h"

typedef struct nfc_pair {
    uint32_t code, first, second; /* bit 31 of code: composes */
} nfc_pair;
typedef struct nfc_class {
    uint32_t first, last;
    uint8_t value;
} nfc_class;
typedef struct nfc_range {
    uint32_t first, last;
} nfc_range;
#include "data/nfc_tables.inc"

enum {
    COMPOSES = INT32_MIN, /* bit 31, as in the table */
    HANGUL_BASE = 0xAC00,
    HANGUL_L = 0x1100,
    HANGUL_V = 0x1161,
    HANGUL_T = 0x11A7,
    HANGUL_L_COUNT = 19,
    HANGUL_V_COUNT = 21,
    HANGUL_T_COUNT = 28,
    HANGUL_COUNT = HANGUL_L_COUNT * HANGUL_V_COUNT * HANGUL_T_COUNT,
    RUN_MAX = 1024 /* characters of a run after decomposition; a longer one is done in pieces */
};

static uint32_t pair_code(const nfc_pair *pair)
{
    return pair->code & ~(uint32_t)COMPOSES;
}

static const nfc_pair *find_pair(uint32_t code)
{
    size_t low = 0, high = TSI_COUNT_OF(nfc_pairs);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pair_code(&nfc_pairs[middle]) < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < TSI_COUNT_OF(nfc_pairs) && pair_code(&nfc_pairs[low]) == code ? &nfc_pairs[low]
                                                                               : NULL;
}

static uint8_t class_of(uint32_t code)
{
    size_t low = 0, high = TSI_COUNT_OF(nfc_classes);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (nfc_classes[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    bool inside = low < TSI_COUNT_OF(nfc_classes) && nfc_classes[low].first <= code;
    return inside ? nfc_classes[low].value : 0;
}

static bool is_safe(uint32_t code)
{
    if (code < 0x300 || (code >= 0x3400 && code <= 0x9FFF)) return true; /* Latin; Han */
    size_t low = 0, high = TSI_COUNT_OF(nfc_unsafe);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (nfc_unsafe[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low == TSI_COUNT_OF(nfc_unsafe) || nfc_unsafe[low].first > code;
}

typedef struct nfc_run {
    uint32_t code[RUN_MAX];
    uint8_t rank[RUN_MAX]; /* combining classes */
    size_t count;
} nfc_run;

static void run_push(nfc_run *run, uint32_t code)
{
    uint8_t rank = class_of(code);
    size_t i = run->count++;
    /* Canonical order: marks sink below starters never, and below marks of a higher class. */
    for (; rank != 0 && i > 0 && run->rank[i - 1] > rank; i--) {
        run->code[i] = run->code[i - 1];
        run->rank[i] = run->rank[i - 1];
    }
    run->code[i] = code;
    run->rank[i] = rank;
}

/* Full decomposition; a mapping's second part never decomposes, the first may. */
static void run_decompose(nfc_run *run, uint32_t code)
{
    if (code >= HANGUL_BASE && code < HANGUL_BASE + HANGUL_COUNT) {
        uint32_t s = code - HANGUL_BASE, t = s % HANGUL_T_COUNT;
        run_push(run, HANGUL_L + s / (HANGUL_V_COUNT * HANGUL_T_COUNT));
        run_push(run, HANGUL_V + s / HANGUL_T_COUNT % HANGUL_V_COUNT);
        if (t != 0) run_push(run, HANGUL_T + t);
        return;
    }
    const nfc_pair *pair = find_pair(code);
    if (pair == NULL) {
        run_push(run, code);
        return;
    }
    run_decompose(run, pair->first);
    if (pair->second != 0) run_decompose(run, pair->second);
}

static uint64_t pair_key(size_t index)
{
    return (uint64_t)nfc_pairs[index].first << 32 | nfc_pairs[index].second;
}

/* The character that two compose to, or 0. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    uint32_t l = first - HANGUL_L, v = second - HANGUL_V;
    if (l < HANGUL_L_COUNT && v < HANGUL_V_COUNT)
        return HANGUL_BASE + (l * HANGUL_V_COUNT + v) * HANGUL_T_COUNT;
    uint32_t s = first - HANGUL_BASE, t = second - HANGUL_T;
    if (s < HANGUL_COUNT && s % HANGUL_T_COUNT == 0 && t > 0 && t < HANGUL_T_COUNT)
        return first + t;
    uint64_t wanted = (uint64_t)first << 32 | second;
    size_t low = 0, high = TSI_COUNT_OF(nfc_composed);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pair_key(nfc_composed[middle]) < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == TSI_COUNT_OF(nfc_composed) || pair_key(nfc_composed[low]) != wanted) return 0;
    return pair_code(&nfc_pairs[nfc_composed[low]]);
}

/* Canonical composition in place: a character joins the last starter unless something between them
 * has its class or is a starter. */
static void run_compose(nfc_run *run)
{
    size_t starter = SIZE_MAX, kept = 0;
    for (size_t i = 0; i < run->count; i++) {
        uint32_t code = run->code[i];
        uint8_t rank = run->rank[i];
        bool adjacent = starter != SIZE_MAX && kept == starter + 1;
        bool reachable = starter != SIZE_MAX && (adjacent || run->rank[kept - 1] < rank);
        uint32_t both = reachable ? compose(run->code[starter], code) : 0;
        if (both != 0) {
            run->code[starter] = both;
            continue;
        }
        if (rank == 0) starter = kept;
        run->code[kept] = code;
        run->rank[kept++] = rank;
    }
    run->count = kept;
}

static void run_flush(nfc_run *run, tsi_text *out)
{
    run_compose(run);
    for (size_t i = 0; i < run->count; i++) {
        char bytes[4];
        tsi_text_add_n(out, bytes, tsi_utf8_write(bytes, run->code[i]));
    }
    run->count = 0;
}

/* Normalises the run that begins at `at` (a safe character, or the start of the text) and returns
 * where it ends. */
static size_t normalise_run(const char *text, size_t length, size_t at, tsi_text *out)
{
    nfc_run run = { .count = 0 };
    for (bool first = true; at < length; first = false) {
        size_t used;
        uint32_t code = tsi_utf8_read(text + at, length - at, &used);
        if (code == TSI_UTF8_BAD || (!first && is_safe(code))) break;
        if (run.count + 4 > RUN_MAX) run_flush(&run, out);
        run_decompose(&run, code);
        at += used;
    }
    run_flush(&run, out);
    return at;
}

bool tsi_nfc(const char *text, size_t length, tsi_text *out)
{
    size_t at = 0, copied = 0, safe = 0; /* safe: start of the last safe character */
    bool changed = false;
    while (at < length) {
        size_t used;
        uint32_t code = tsi_utf8_read(text + at, length - at, &used);
        if (code == TSI_UTF8_BAD || is_safe(code)) {
            safe = code == TSI_UTF8_BAD ? at + used : at;
            at += used;
            continue;
        }
        changed = true;
        tsi_text_add_n(out, text + copied, safe - copied);
        copied = at = safe = normalise_run(text, length, safe, out);
    }
    if (changed) tsi_text_add_n(out, text + copied, length - copied);
    return changed;
}
