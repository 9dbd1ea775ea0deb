/* SPDX-License-Identifier: Apache-2.0 */
/* module_plan.c - where parameters lie, said by patterns over their names.
 *
 * Lines are "pattern: placements", the first match wins, "#" begins a comment, "*" stands for any
 * run of characters. A pattern of the user's that matches no parameter is an error with the nearest
 * name: it is nearly always a mistyped one, and would leave a weight replicated without a word. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "nn/module.h"

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct plan_line {
    const char *pattern, *value;
    size_t pattern_length, value_length;
    int number; /* from 1 */
} plan_line;

static size_t trimmed(const char *text, size_t length)
{
    while (length > 0 && strchr(" \t\r", text[length - 1]))
        length--;
    return length;
}

/* The next line that says something; *at moves on. pattern NULL: there is none. */
static ts_status line_next(const char *what, const char **at, plan_line *line)
{
    line->pattern = NULL;
    while (**at && !line->pattern) {
        const char *text = *at;
        size_t length = strcspn(text, "\n"), start = strspn(text, " \t\r");
        *at = text + length + (text[length] == '\n');
        line->number++;
        if (start >= length || text[start] == '#') continue;
        const char *colon = memchr(text + start, ':', length - start);
        if (!colon)
            return TSI_FAIL(TS_ERR_ARG, "%s, line %d: expected \"pattern: value\", found \"%.*s\"",
                            what, line->number, (int)(length - start), text + start);
        line->pattern = text + start;
        line->pattern_length = trimmed(line->pattern, (size_t)(colon - line->pattern));
        line->value = colon + 1 + strspn(colon + 1, " \t");
        line->value_length = trimmed(line->value, (size_t)(text + length - line->value));
    }
    return TS_OK;
}

/* ---- placements ------------------------------------------------------------------------------ */

typedef struct plan_texts {
    const char *plan, *base;
} plan_texts;

static ts_status find_line(const char *what, const char *plan, const char *name, plan_line *line)
{
    *line = (plan_line){ 0 };
    do
        TSI_TRY(line_next(what, &plan, line));
    while (line->pattern && !tsi_text_fits(line->pattern, line->pattern_length, name));
    return TS_OK;
}

static ts_status place_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    const plan_texts *texts = context;
    plan_line line;
    TSI_TRY(find_line("plan", texts->plan, name, &line));
    if (!line.pattern) TSI_TRY(find_line("plan", texts->base, name, &line));
    if (!line.pattern) return TS_OK;
    if (ts_tensor_layout(param->value))
        return TSI_FAIL(TS_ERR_STATE, "plan: the parameter %s is materialised already", name);
    if (param->unit)
        return TSI_FAIL(TS_ERR_STATE,
                        "plan: the parameter %s is in a unit already, which goes by the plan that "
                        "it found: plans come before ts_fsdp",
                        name);
    char *copy = tsi_alloc(line.value_length + 1);
    if (!copy) return tsi_fail_memory("placements of a parameter", line.value_length + 1);
    memcpy(copy, line.value, line.value_length);
    copy[line.value_length] = '\0';
    tsi_free(param->stored);
    param->stored = copy;
    return TS_OK;
}

/* ---- patterns that match nothing ------------------------------------------------------------- */

enum { KNOWN_MAX = 64 };
typedef struct line_check {
    const char *what; /* begins sentences */
    const plan_line *line;
    char (*known)[TSI_PARAM_NAME_MAX]; /* names without numbers, each once */
    int32_t count;
    bool found;
} line_check;

/* model.layers.12.mlp as model.layers.*.mlp */
static void without_numbers(const char *name, char *out, size_t size)
{
    size_t at = 0;
    for (; *name && at + 1 < size; name++) {
        bool digit = *name >= '0' && *name <= '9';
        if (digit && at > 0 && out[at - 1] == '.') {
            while (name[1] >= '0' && name[1] <= '9')
                name++;
            out[at++] = '*';
        } else {
            out[at++] = *name;
        }
    }
    out[at] = '\0';
}

static ts_status try_line(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    (void)param;
    line_check *check = context;
    if (tsi_text_fits(check->line->pattern, check->line->pattern_length, name)) check->found = true;
    if (check->found || check->count == KNOWN_MAX) return TS_OK;
    char plain[TSI_PARAM_NAME_MAX];
    without_numbers(name, plain, sizeof plain);
    for (int32_t i = 0; i < check->count; i++)
        if (strcmp(check->known[i], plain) == 0) return TS_OK;
    snprintf(check->known[check->count++], TSI_PARAM_NAME_MAX, "%s", plain);
    return TS_OK;
}

static ts_status refuse_line(const line_check *check)
{
    const char *names[KNOWN_MAX + 1] = { NULL };
    char pattern[TSI_PARAM_NAME_MAX];
    snprintf(pattern, sizeof pattern, "%.*s", (int)check->line->pattern_length,
             check->line->pattern);
    for (int32_t i = 0; i < check->count; i++)
        names[i] = check->known[i];
    const char *near = tsi_text_nearest(pattern, names);
    if (check->count == 0)
        return TSI_FAIL(TS_ERR_ARG, "%s, line %d: no parameter matches \"%s\"; there is none",
                        check->what, check->line->number, pattern);
    return TSI_FAIL(TS_ERR_ARG, "%s, line %d: no parameter matches \"%s\"; %s %s", check->what,
                    check->line->number, pattern, near ? "did you mean" : "names are like",
                    near ? near : names[check->count > 1]);
}

static ts_status check_lines(ts_module *root, const char *what, const char *plan)
{
    char(*known)[TSI_PARAM_NAME_MAX] = tsi_alloc_array(KNOWN_MAX, sizeof *known);
    if (!known) return tsi_fail_memory("the names of a plan", KNOWN_MAX * sizeof *known);
    plan_line line = { 0 };
    ts_status status = line_next(what, &plan, &line);
    while (status == TS_OK && line.pattern) {
        line_check check = { .what = what, .line = &line, .known = known };
        status = tsi_module_visit(root, try_line, &check);
        if (status == TS_OK && !check.found) status = refuse_line(&check);
        if (status == TS_OK) status = line_next(what, &plan, &line);
    }
    tsi_free(known);
    return status;
}

ts_status tsi_module_plan_over(ts_module *root, const char *plan, const char *base)
{
    TSI_TRY(check_lines(root, "plan", plan));
    plan_texts texts = { plan, base };
    return tsi_module_visit(root, place_param, &texts);
}

static ts_status match_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    const tsi_match_list *list = context;
    plan_line line;
    TSI_TRY(find_line(list->what, list->lines, name, &line));
    if (!line.pattern) return TS_OK;
    tsi_match match = { param, name, line.value, line.value_length, line.number, 0 };
    return list->fn(&match, list->context);
}

ts_status tsi_module_match(ts_module *root, const tsi_match_list *list)
{
    TSI_TRY(check_lines(root, list->what, list->lines));
    tsi_match_list given = *list;
    return tsi_module_visit(root, match_param, &given);
}

ts_status ts_module_plan(ts_module *root, const char *plan)
{
    if (!root) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(root->rank));
    if (!plan) return TSI_FAIL(TS_ERR_NULL, "plan: the text is NULL");
    return tsi_module_plan_over(root, plan, "");
}
