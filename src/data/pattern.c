/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.c - compiled patterns. No other file knows PCRE2.
 *
 * Patterns are compiled by its just-in-time compiler where the machine has one; a match that needs
 * more stack than that gives is done again by the interpreter. Memory comes from base/alloc.h. */
#include "data/pattern.h"

#include "base/alloc.h"
#include "base/error.h"

#if TS_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct tsi_pattern {
    pcre2_general_context *general;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_code *code;
    pcre2_match_data *data;
    bool jit;
};

enum { JIT_STACK_MIN = 32 << 10, JIT_STACK_MAX = 1 << 20 };

static void *take(size_t bytes, void *context)
{
    (void)context;
    return tsi_alloc(bytes);
}

static void give(void *memory, void *context)
{
    (void)context;
    tsi_free(memory);
}

void tsi_pattern_release(tsi_pattern *pattern)
{
    if (pattern == NULL) return;
    pcre2_match_data_free(pattern->data);
    pcre2_code_free(pattern->code);
    pcre2_jit_stack_free(pattern->stack);
    pcre2_match_context_free(pattern->context);
    pcre2_general_context_free(pattern->general);
    tsi_free(pattern);
}

static ts_status compile_code(tsi_pattern *p, const char *what, const char *expression)
{
    char *text = NULL;
    TSI_TRY(tsi_pattern_rewrite(what, expression, &text));
    pcre2_compile_context *context = pcre2_compile_context_create(p->general);
    int error = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE at = 0;
    if (context != NULL && pcre2_set_newline(context, PCRE2_NEWLINE_LF) == 0) {
        p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                                &error, &at, context);
    }
    pcre2_compile_context_free(context);
    tsi_free(text);
    if (p->code != NULL) return TS_OK;
    unsigned char words[160] = "";
    pcre2_get_error_message(error, words, sizeof words);
    bool memory = error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAP_FAILED;
    return TSI_FAIL(memory ? TS_ERR_MEMORY : TS_ERR_ARG,
                    "%s: the pattern cannot be compiled (%s): %s", what, (const char *)words,
                    expression);
}

static ts_status make(tsi_pattern *p, const char *what, const char *expression)
{
    p->general = pcre2_general_context_create(take, give, NULL);
    p->context = p->general != NULL ? pcre2_match_context_create(p->general) : NULL;
    if (p->context == NULL) return tsi_fail_memory("a pattern", sizeof *p);
    TSI_TRY(compile_code(p, what, expression));
    p->data = pcre2_match_data_create(1, p->general);
    if (p->data == NULL) return tsi_fail_memory("a pattern's match", sizeof *p);
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    if (!p->jit) return TS_OK;
    p->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, p->general);
    if (p->stack == NULL) return tsi_fail_memory("a pattern's stack", JIT_STACK_MIN);
    pcre2_jit_stack_assign(p->context, NULL, p->stack);
    return TS_OK;
}

ts_status tsi_pattern_compile(const char *what, const char *expression, tsi_pattern **out)
{
    *out = NULL;
    tsi_pattern *pattern = tsi_calloc(1, sizeof *pattern);
    if (pattern == NULL) return tsi_fail_memory("a pattern", sizeof *pattern);
    ts_status status = make(pattern, what, expression);
    if (status != TS_OK) {
        tsi_pattern_release(pattern);
        return status;
    }
    *out = pattern;
    return TS_OK;
}

ts_status tsi_pattern_next(tsi_pattern *pattern, const char *text, size_t length, size_t from,
                           tsi_match *out)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int count = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern->jit)
        count = pcre2_jit_match(pattern->code, subject, length, from, 0, pattern->data,
                                pattern->context);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT)
        count = pcre2_match(pattern->code, subject, length, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            pattern->data, pattern->context);
    out->found = count >= 0;
    if (count >= 0) {
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(pattern->data);
        out->start = ends[0];
        out->end = ends[1];
        return TS_OK;
    }
    if (count == PCRE2_ERROR_NOMATCH) return TS_OK;
    unsigned char words[160] = "";
    pcre2_get_error_message(count, words, sizeof words);
    return TSI_FAIL(count == PCRE2_ERROR_NOMEMORY ? TS_ERR_MEMORY : TS_ERR_ARG,
                    "the tokenizer's pattern failed at byte %zu of the text: %s", from,
                    (const char *)words);
}

#else

ts_status tsi_pattern_compile(const char *what, const char *expression, tsi_pattern **out)
{
    (void)expression;
    *out = NULL;
    return TSI_FAIL(TS_ERR_MISSING,
                    "%s: this build has no PCRE2, which patterns need; install libpcre2-dev and "
                    "build again",
                    what);
}

void tsi_pattern_release(tsi_pattern *pattern)
{
    (void)pattern;
}

ts_status tsi_pattern_next(tsi_pattern *pattern, const char *text, size_t length, size_t from,
                           tsi_match *out)
{
    (void)pattern;
    (void)text;
    (void)length;
    (void)from;
    out->found = false;
    return TSI_FAIL(TS_ERR_MISSING, "this build has no PCRE2");
}

#endif
