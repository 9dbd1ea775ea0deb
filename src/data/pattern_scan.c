/* SPDX-License-Identifier: Apache-2.0 */
/* pattern_scan.c - the published patterns of GPT-2, Llama 3 and Qwen by hand, for ASCII.
 *
 * A scanner reads the alternatives of its pattern in their order, as long as it sees ASCII. When a
 * byte above it could matter, it returns 0 and the pattern itself decides that place; a test
 * compares both on random text. Several times faster than the pattern. */
#include <string.h>

#include "base/compiler.h"
#include "data/tokenizer.h"

#define REST "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
const char tsi_pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char pattern_llama3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|" REST "\\p{N}{1,3}" TAIL;
static const char pattern_qwen[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|" REST "\\p{N}" TAIL;

enum kind { OTHER, LETTER, DIGIT, SPACE, NEWLINE /* a space too */, HIGH /* not ASCII */, END };

static const unsigned char kinds[128] = {
    ['\t'] = SPACE,
    ['\n'] = NEWLINE,
    ['\v'] = SPACE,
    ['\f'] = SPACE,
    ['\r'] = NEWLINE,
    [' '] = SPACE,
    ['0'] = DIGIT,
    DIGIT,
    DIGIT,
    DIGIT,
    DIGIT,
    DIGIT,
    DIGIT,
    DIGIT,
    DIGIT,
    DIGIT,
    ['A'] = LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    ['a'] = LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
    LETTER,
};

static enum kind kind_at(const char *text, size_t length, size_t at)
{
    if (at >= length) return END;
    unsigned char c = (unsigned char)text[at];
    return c < 0x80 ? (enum kind)kinds[c] : HIGH;
}

/* The end of the characters of one kind that begin at `at`; 0 if something above ASCII follows. */
static size_t run_of(const char *text, size_t length, size_t at, enum kind kind)
{
    while (kind_at(text, length, at) == kind)
        at++;
    return kind_at(text, length, at) == HIGH ? 0 : at;
}

static size_t run_of_space(const char *text, size_t length, size_t at)
{
    enum kind kind;
    while ((kind = kind_at(text, length, at)) == SPACE || kind == NEWLINE)
        at++;
    return kind == HIGH ? 0 : at;
}

/* \s+(?!\S)|\s+ at a space: all blanks but the last one before a word, or that one. */
static size_t blanks(const char *text, size_t length, size_t from)
{
    size_t end = run_of_space(text, length, from);
    if (end == 0) return 0;
    return end == length || end - from == 1 ? end - from : end - from - 1;
}

/* 's 't 'm 'd 're 've 'll at an apostrophe: the length, 0 if none. `fold`: capitals too. */
static size_t contraction(const char *text, size_t length, size_t from, bool fold)
{
    char a = from + 1 < length ? text[from + 1] : '\0',
         b = from + 2 < length ? text[from + 2] : '\0';
    if (fold && a >= 'A' && a <= 'Z') a = (char)(a + 32);
    if (fold && b >= 'A' && b <= 'Z') b = (char)(b + 32);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

static size_t scan_gpt2(const char *text, size_t length, size_t from)
{
    if (text[from] == '\'') {
        size_t short_form = contraction(text, length, from, false);
        if (short_form > 0) return short_form;
    }
    size_t at = from + (text[from] == ' ');
    enum kind kind = kind_at(text, length, at);
    if (kind == LETTER || kind == DIGIT || kind == OTHER) {
        size_t end = run_of(text, length, at, kind);
        return end > 0 ? end - from : 0;
    }
    return kind == HIGH ? 0 : blanks(text, length, from);
}

/* ` ?[^\s\p{L}\p{N}]+[\r\n]*` whose first other character is at `at`. */
static size_t others(const char *text, size_t length, size_t from, size_t at)
{
    size_t end = run_of(text, length, at, OTHER);
    if (end == 0) return 0;
    while (kind_at(text, length, end) == NEWLINE)
        end++;
    return end - from;
}

/* `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last newline among the blanks, if there is one. */
static size_t lines(const char *text, size_t length, size_t from)
{
    size_t end = run_of_space(text, length, from);
    if (end == 0) return 0;
    for (size_t at = end; at > from; at--) {
        if (kind_at(text, length, at - 1) == NEWLINE) return at - from;
    }
    return blanks(text, length, from);
}

static size_t scan_digits(const char *text, size_t length, size_t from, size_t digits_max)
{
    size_t at = from;
    while (at - from < digits_max && kind_at(text, length, at) == DIGIT)
        at++;
    bool open = at - from < digits_max && kind_at(text, length, at) == HIGH;
    return open ? 0 : at - from;
}

static size_t scan_later(const char *text, size_t length, size_t from, size_t digits_max)
{
    enum kind kind = kind_at(text, length, from);
    if (kind == HIGH) return 0;
    if (kind == LETTER) {
        size_t end = run_of(text, length, from, LETTER);
        return end > 0 ? end - from : 0;
    }
    if (kind == DIGIT) return scan_digits(text, length, from, digits_max);
    enum kind next = kind_at(text, length, from + 1);
    if (text[from] == '\'') {
        if (next == HIGH || (next == LETTER && kind_at(text, length, from + 2) == HIGH)) return 0;
        size_t short_form = contraction(text, length, from, true);
        if (short_form > 0) return short_form;
    }
    if (kind != NEWLINE && next == HIGH) return 0;
    if (kind != NEWLINE && next == LETTER) {
        size_t end = run_of(text, length, from + 1, LETTER);
        return end > 0 ? end - from : 0;
    }
    if (kind == OTHER) return others(text, length, from, from);
    if (text[from] == ' ' && next == OTHER) return others(text, length, from, from + 1);
    return lines(text, length, from);
}

static size_t scan_llama3(const char *text, size_t length, size_t from)
{
    return scan_later(text, length, from, 3);
}

static size_t scan_qwen(const char *text, size_t length, size_t from)
{
    return scan_later(text, length, from, 1);
}

tsi_scan_fn tsi_scan_of(const char *expression)
{
    if (strcmp(expression, tsi_pattern_gpt2) == 0) return scan_gpt2;
    if (strcmp(expression, pattern_llama3) == 0) return scan_llama3;
    if (strcmp(expression, pattern_qwen) == 0) return scan_qwen;
    return NULL;
}
