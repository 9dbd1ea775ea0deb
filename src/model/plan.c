/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - which plan a model gets: a built-in one by name, lines of text, or a file of such lines.
 *
 * Lines are "pattern: placements", the first match wins, "#" begins a comment. "base: tp" stands
 * for the lines of a built-in plan, for what no other line matches; without it that is replicated.
 * A pattern that matches no parameter is an error: it is nearly always a mistyped name. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "model/config.h"
#include "model/plan.h"

enum { NAME_BYTES = 256 };

/* ---- names ----------------------------------------------------------------------------------- */

/* model.layers.12.mlp as model.layers.*.mlp */
static void without_numbers(const char *name, char *out, size_t size)
{
    size_t at = 0;
    for (; *name && at + 1 < size; name++) {
        if (*name >= '0' && *name <= '9' && at > 0 && out[at - 1] == '.') {
            while (name[1] >= '0' && name[1] <= '9')
                name++;
            out[at++] = '*';
        } else {
            out[at++] = *name;
        }
    }
    out[at] = '\0';
}

typedef struct line_check {
    const char *line;
    char (*known)[NAME_BYTES]; /* names without numbers, each once */
    int32_t count, capacity;
    bool found;
} line_check;

static ts_status try_line(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    (void)param;
    line_check *check = context;
    char placements[NAME_BYTES], plain[NAME_BYTES];
    bool found;
    TSI_TRY(tsi_plan_match(check->line, name, placements, sizeof placements, &found));
    check->found = check->found || found;
    without_numbers(name, plain, sizeof plain);
    for (int32_t i = 0; i < check->count; i++)
        if (strcmp(check->known[i], plain) == 0) return TS_OK;
    if (check->count < check->capacity)
        snprintf(check->known[check->count++], NAME_BYTES, "%s", plain);
    return TS_OK;
}

static ts_status refuse_line(const line_check *check, int number)
{
    const char *names[65] = { NULL };
    size_t length = strcspn(check->line, ":");
    char pattern[NAME_BYTES];
    snprintf(pattern, sizeof pattern, "%.*s", (int)length, check->line);
    for (int32_t i = 0; i < check->count && i < 64; i++)
        names[i] = check->known[i];
    const char *near = tsi_text_nearest(pattern, names);
    return TSI_FAIL(TS_ERR_ARG, "plan, line %d: no parameter matches \"%s\"; %s %s", number,
                    pattern, near ? "did you mean" : "names are like",
                    near               ? near
                    : check->count > 1 ? names[1]
                                       : "model.norm.weight");
}

static ts_status check_line(ts_module *root, const char *line, int number)
{
    line_check check = { .line = line, .known = tsi_alloc_array(64, NAME_BYTES), .capacity = 64 };
    if (!check.known) return tsi_fail_memory("the names of a plan", 64 * NAME_BYTES);
    ts_status status = tsi_module_visit(root, try_line, &check);
    if (status == TS_OK && !check.found) status = refuse_line(&check, number);
    tsi_free(check.known);
    return status;
}

ts_status tsi_model_plan_check(const tsi_model_plan *plan, ts_module *root)
{
    int number = 1;
    for (const char *at = plan->text; plan->own && *at; number++) {
        size_t length = strcspn(at, "\n"), start = strspn(at, " \t\r");
        if (start < length && at[start] != '#') {
            char line[2 * NAME_BYTES];
            snprintf(line, sizeof line, "%.*s", (int)(length - start), at + start);
            TSI_TRY(check_line(root, line, number));
        }
        at += length + (at[length] == '\n');
    }
    return TS_OK;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* Takes "base: NAME" out of the text, leaving its line empty; the name, or "". */
static ts_status take_base(char *text, char *name, size_t size)
{
    name[0] = '\0';
    for (char *at = text; *at;) {
        size_t length = strcspn(at, "\n"), start = strspn(at, " \t");
        if (start < length && strncmp(at + start, "base:", 5) == 0) {
            char *value = at + start + 5;
            value += strspn(value, " \t");
            if (name[0]) return TSI_FAIL(TS_ERR_ARG, "plan: two lines say \"base:\"");
            snprintf(name, size, "%.*s", (int)strcspn(value, " \t\r\n"), value);
            memset(at, ' ', length);
        }
        at += length + (at[length] == '\n');
    }
    return TS_OK;
}

static ts_status own_plan(const ts_model *m, char *text /* takes */, tsi_model_plan *out)
{
    char base[32];
    for (char *at = text; *at; at++)
        if (*at == '\r') *at = ' ';
    out->memory = text;
    out->text = text;
    out->own = true;
    TSI_TRY(take_base(text, base, sizeof base));
    out->base = base[0] ? ts_model_plan_text((ts_model_family)m->config.family, base) : "";
    out->sequence = strcmp(base, "sp") == 0;
    if (out->base) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "plan: there is no plan \"%s\" to be the base (dp, tp, sp)", base);
}

ts_status tsi_model_plan_find(const ts_model *m, const char *given, tsi_model_plan *out)
{
    *out = (tsi_model_plan){ .base = "" };
    const char *name = given ? given : ts_mesh_axis(m->mesh, "tp") >= 0 ? "tp" : "dp";
    out->text = ts_model_plan_text((ts_model_family)m->config.family, name);
    out->sequence = strcmp(name, "sp") == 0;
    if (out->text) return TS_OK;
    char *text = NULL;
    size_t length;
    if (strpbrk(name, ":\n")) {
        text = tsi_strdup(name);
        if (!text) return tsi_fail_memory("a plan", strlen(name));
    } else {
        if (access(name, F_OK) != 0)
            return TSI_FAIL(TS_ERR_ARG,
                            "model: there is no plan and no file \"%s\" (dp, tp, sp, lines of "
                            "\"pattern: placements\", or a file of them)",
                            name);
        TSI_TRY(tsi_file_text(name, &text, &length));
    }
    return own_plan(m, text, out);
}

ts_status tsi_model_plan_apply(const tsi_model_plan *plan, ts_module *root)
{
    TSI_TRY(tsi_model_plan_check(plan, root));
    if (!plan->base[0]) return ts_module_plan(root, plan->text);
    size_t size = strlen(plan->text) + strlen(plan->base) + 2;
    char *both = tsi_alloc(size);
    if (!both) return tsi_fail_memory("a plan", size);
    snprintf(both, size, "%s\n%s", plan->text, plan->base);
    ts_status status = ts_module_plan(root, both);
    tsi_free(both);
    return status;
}
