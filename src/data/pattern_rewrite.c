/* SPDX-License-Identifier: Apache-2.0 */
/* pattern_rewrite.c - from the syntax of Oniguruma (Ruby) to that of PCRE2.
 *
 * Both engines agree on most of what tokenizers use. Rewritten: \s and \S (PCRE2 counts U+180E as
 * space), \w and \W (PCRE2 10.42 leaves out marks). Refused: whatever one engine reads
 * differently or not at all - \h, \b, \R, classes within classes, &&, POSIX classes, {,n}, {n}?,
 * possessive {n,m}+, option groups other than (?i: and named groups. Within (?i: also letters that
 * have a folding of several characters, and properties in a class. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "data/pattern.h"

#define SPACE_RANGES                                                                               \
    "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"          \
    "\\x{205F}\\x{3000}"
#define OTHER_RANGES                                                                               \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-"         \
    "\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}"        \
    "\\x{3001}-\\x{10FFFF}"
#define WORD_RANGES "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside of classes Oniguruma counts the superscripts and fractions of Latin-1 too. */
#define WORD_ALONE WORD_RANGES "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

typedef struct rewriter {
    const char *what, *start, *at;
    tsi_text out;
    bool in_class, class_empty; /* class_empty: nothing but '[' or "[^" was read */
    int depth, folded;          /* of groups; of the outermost (?i: that is open, or 0 */
    char letter;                /* within (?i: and outside of a class: the one just read, or 0 */
} rewriter;

static ts_status refuse(const rewriter *r, const char *feature)
{
    return TSI_FAIL(TS_ERR_ARG, "%s: the pattern uses %s at column %td, which is not supported: %s",
                    r->what, feature, r->at - r->start + 1, r->start);
}

static void set_class(rewriter *r, const char *ranges, const char *open)
{
    if (!r->in_class) tsi_text_add(&r->out, open);
    tsi_text_add(&r->out, ranges);
    if (!r->in_class) tsi_text_add(&r->out, "]");
}

/* \p{L}, \P{L}, \p{^L}: names are PCRE2's business. */
static ts_status copy_property(rewriter *r)
{
    const char *end = r->at[2] == '{' ? strchr(r->at, '}') : NULL;
    if (end == NULL) return refuse(r, "\\p without braces");
    if (r->folded > 0 && r->in_class) return refuse(r, "a property in a class within (?i:");
    tsi_text_add_n(&r->out, r->at, (size_t)(end + 1 - r->at));
    r->at = end + 1;
    return TS_OK;
}

static ts_status rewrite_escape(rewriter *r)
{
    char c = r->at[1];
    char name[3] = { '\\', c, '\0' };
    switch (c) {
    case 's':
        set_class(r, SPACE_RANGES, "[");
        break;
    case 'S':
        set_class(r, r->in_class ? OTHER_RANGES : SPACE_RANGES, "[^");
        break;
    case 'w':
        set_class(r, r->in_class ? WORD_RANGES : WORD_ALONE, "[");
        break;
    case 'W':
        if (r->in_class) return refuse(r, "\\W in a class");
        set_class(r, WORD_ALONE, "[^");
        break;
    case 'p':
    case 'P':
        return copy_property(r);
    case '\0':
        return refuse(r, "a backslash at its end");
    default:
        /* Letters and digits: only those that mean the same to both; all else is itself. */
        if ((unsigned char)c >= 0x80 || strchr("dDrntfaex", c) != NULL ||
            (!(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z'))) {
            tsi_text_add_n(&r->out, r->at, 2);
            break;
        }
        if (!r->in_class && (c == 'A' || c == 'z')) {
            tsi_text_add_n(&r->out, r->at, 2);
            break;
        }
        return refuse(r, name);
    }
    r->at += 2;
    return TS_OK;
}

static ts_status rewrite_in_class(rewriter *r)
{
    char c = r->at[0];
    if (c == '[') return refuse(r, "a class within a class");
    if (c == '&' && r->at[1] == '&') return refuse(r, "&& in a class");
    if (c == ']' && r->class_empty) return refuse(r, "] at the start of a class");
    if (c == ']') r->in_class = false;
    r->class_empty = false;
    tsi_text_add_n(&r->out, r->at++, 1);
    return TS_OK;
}

static ts_status rewrite_group(rewriter *r)
{
    static const char *const known[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:" };
    for (size_t i = 0; i < TSI_COUNT_OF(known); i++) {
        size_t length = strlen(known[i]);
        if (strncmp(r->at, known[i], length) != 0) continue;
        tsi_text_add_n(&r->out, r->at, length);
        r->at += length;
        r->depth++;
        if (strcmp(known[i], "(?i:") == 0 && r->folded == 0) r->folded = r->depth;
        return TS_OK;
    }
    return refuse(r, "an option group or a named group");
}

/* Within (?i: to Oniguruma "ss" is also one sharp s, "fi" one ligature; letters beyond ASCII have
 * many such foldings. */
static ts_status check_folded(rewriter *r)
{
    static const char *const joined[] = { "ss", "st", "ff", "fi", "fl" };
    unsigned char c = (unsigned char)r->at[0];
    if (c >= 0x80) return refuse(r, "a character beyond ASCII within (?i:");
    bool is_letter = !r->in_class && (c | 32) >= 'a' && (c | 32) <= 'z';
    char pair[3] = { r->letter, is_letter ? (char)(c | 32) : '\0', '\0' };
    for (size_t i = 0; i < TSI_COUNT_OF(joined); i++) {
        if (strcmp(pair, joined[i]) == 0)
            return refuse(r, "letters that have a folding of one character within (?i:");
    }
    r->letter = pair[1];
    return TS_OK;
}

/* {n}?, which is n or none to Oniguruma, is n to PCRE2. */
static bool is_count_or_none(const char *at)
{
    size_t digits = strspn(at + 1, "0123456789");
    return digits > 0 && at[digits + 1] == '}' && at[digits + 2] == '?';
}

static ts_status rewrite_one(rewriter *r)
{
    char c = r->at[0];
    if (r->folded > 0) TSI_TRY(check_folded(r));
    if (c == '\\') {
        r->class_empty = false;
        return rewrite_escape(r);
    }
    if (r->in_class) return rewrite_in_class(r);
    if (c == '[') {
        size_t length = r->at[1] == '^' ? 2 : 1;
        tsi_text_add_n(&r->out, r->at, length);
        r->at += length;
        r->in_class = r->class_empty = true;
        return TS_OK;
    }
    if (c == '(' && r->at[1] == '?') return rewrite_group(r);
    if (c == '(' && r->at[1] == '*') return refuse(r, "a verb");
    if (c == '(') r->depth++;
    if (c == ')' && r->depth-- == r->folded) r->folded = 0;
    if (c == '{' && r->at[1] == ',') return refuse(r, "{,n}");
    if (c == '{' && is_count_or_none(r->at)) return refuse(r, "{n}?");
    if (c == '}' && r->at[1] == '+') return refuse(r, "a possessive {n,m}+");
    tsi_text_add_n(&r->out, r->at++, 1);
    return TS_OK;
}

ts_status tsi_pattern_rewrite(const char *what, const char *expression, char **out)
{
    *out = NULL;
    rewriter r = { .what = what, .start = expression, .at = expression };
    ts_status status = TS_OK;
    while (status == TS_OK && *r.at != '\0')
        status = rewrite_one(&r);
    if (status == TS_OK && r.in_class) status = refuse(&r, "a class that does not end");
    if (status == TS_OK && *expression == '\0') status = refuse(&r, "nothing");
    if (status != TS_OK) {
        tsi_text_release(&r.out);
        return status;
    }
    *out = tsi_text_take(&r.out);
    return *out != NULL ? TS_OK : TS_ERR_MEMORY;
}
