/* SPDX-License-Identifier: Apache-2.0 */
/* model_plan.c - which plan a model gets: a built-in one by name, lines of text, or a file of such
 * lines.
 *
 * Lines are "pattern: placements", the first match wins, "#" begins a comment. "base: tp" stands
 * for the lines of a built-in plan, for what no other line matches; without it that is replicated.
 * Lines of a built-in plan need not match: they are for all models of a family. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "model/model_config.h"
#include "model/model_plan.h"

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

const char *ts_model_plan_default(const ts_mesh *mesh)
{
    return ts_mesh_axis(mesh, "tp") >= 0 ? "sp" : "dp";
}

ts_status tsi_model_plan_check(ts_model_family family, const char *name)
{
    if (ts_model_plan_text(family, name) || strpbrk(name, ":\n") || access(name, F_OK) == 0)
        return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "model: there is no plan and no file \"%s\" (dp, tp, sp, lines of "
                    "\"pattern: placements\", or a file of them)",
                    name);
}

ts_status tsi_model_plan_find(const ts_model *m, const char *given, tsi_model_plan *out)
{
    *out = (tsi_model_plan){ .base = "" };
    const char *name = given ? given : ts_model_plan_default(m->mesh);
    out->text = ts_model_plan_text((ts_model_family)m->config.family, name);
    out->sequence = strcmp(name, "sp") == 0;
    if (out->text) return TS_OK;
    char *text = NULL;
    size_t length;
    if (strpbrk(name, ":\n")) {
        text = tsi_strdup(name);
        if (!text) return tsi_fail_memory("a plan", strlen(name));
    } else {
        TSI_TRY(tsi_model_plan_check((ts_model_family)m->config.family, name));
        TSI_TRY(tsi_file_text(name, &text, &length));
    }
    return own_plan(m, text, out);
}

ts_status tsi_model_plan_apply(const tsi_model_plan *plan, const ts_model *m)
{
    const char *own = plan->own ? plan->text : "", *base = plan->own ? plan->base : plan->text;
    if (!m->ep_axes) return tsi_module_plan_over(m->root, own, base);
    char *spread = tsi_model_spread_plan(m, base);
    ts_status status = spread ? tsi_module_plan_over(m->root, own, spread) : TS_ERR_MEMORY;
    tsi_free(spread);
    return status;
}
