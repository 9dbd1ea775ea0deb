/* SPDX-License-Identifier: Apache-2.0 */
/* module.c - the tree of modules: building, planning, materialising.
 *
 * INV: a parameter's handle never changes; it has no value before materialisation. */
#include "nn/module.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/scope.h"

enum { NAME_MAX_BYTES = 256 };

/* ---- building -------------------------------------------------------------------------------- */

ts_module *ts_module_create(ts_mesh *mesh, const ts_module_desc *desc, void *state)
{
    ts_rank *rank = mesh ? mesh->rank : tsi_rank_current();
    if (!rank || tsi_rank_enter(rank) != TS_OK) return NULL;
    if (!mesh || !desc) {
        TSI_FAIL(TS_ERR_NULL, "module: the mesh or the description is NULL");
        return NULL;
    }
    ts_module *m = tsi_calloc(1, sizeof *m);
    char *name = tsi_strdup("");
    if (!m || !name) {
        tsi_free(m);
        tsi_free(name);
        tsi_fail_memory("a module", sizeof *m);
        return NULL;
    }
    m->rank = rank;
    m->mesh = ts_mesh_retain(mesh);
    memcpy(&m->desc, desc, desc->struct_size < sizeof m->desc ? desc->struct_size : sizeof m->desc);
    m->state = state;
    m->name = name;
    return m;
}

ts_module *ts_module_add(ts_module *parent, const char *name, ts_module *child)
{
    if (!parent || !child || tsi_rank_enter(parent->rank) != TS_OK) return NULL;
    char *copy = tsi_strdup(name ? name : "");
    if (!copy) {
        tsi_fail_memory("the name of a module", 1);
        return NULL;
    }
    tsi_free(child->name);
    child->name = copy;
    child->parent = parent;
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
    return child;
}

static ts_status param_fill(tsi_param *p, const char *name, const ts_param_options *options)
{
    p->name = tsi_strdup(name);
    p->dtype = options && options->dtype ? options->dtype : TS_DTYPE_F32;
    p->init = options && options->init ? options->init : ts_init_zeros;
    p->init_state = options ? options->init_state : NULL;
    p->frozen = options ? options->frozen : 0;
    if (options && options->stored) p->stored = tsi_strdup(options->stored);
    return p->name && (!options || !options->stored || p->stored)
               ? TS_OK
               : tsi_fail_memory("a parameter", 64);
}

ts_tensor *ts_module_param(ts_module *m, const char *name, ts_shape shape,
                           const ts_param_options *options)
{
    if (!m || tsi_rank_enter(m->rank) != TS_OK) return NULL;
    tsi_param *p = tsi_calloc(1, sizeof *p);
    if (!p) {
        tsi_fail_memory("a parameter", sizeof *p);
        return NULL;
    }
    p->shape = shape;
    p->value = ts_variable(m->rank);
    if (!p->value || param_fill(p, name, options) != TS_OK) {
        ts_tensor_release(p->value);
        tsi_free(p->name);
        tsi_free(p->stored);
        tsi_free(p);
        return NULL;
    }
    if (m->param_last)
        m->param_last->next = p;
    else
        m->param_first = p;
    m->param_last = p;
    return p->value;
}

void ts_module_destroy(ts_module *m)
{
    if (!m) return;
    for (ts_module *child = m->first, *next; child; child = next) {
        next = child->next;
        ts_module_destroy(child);
    }
    for (tsi_param *p = m->param_first, *next; p; p = next) {
        next = p->next;
        ts_tensor_release(p->value);
        tsi_free(p->name);
        tsi_free(p->stored);
        tsi_free(p);
    }
    for (tsi_hook_entry *h = m->hooks, *next; h; h = next) {
        next = h->next;
        tsi_free(h);
    }
    if (m->desc.destroy) m->desc.destroy(m->state);
    ts_mesh_release(m->mesh);
    tsi_free(m->name);
    tsi_free(m);
}

/* ---- names ----------------------------------------------------------------------------------- */

static ts_status visit_below(ts_module *m, const char *path, tsi_param_visit visit, void *context)
{
    char name[NAME_MAX_BYTES];
    for (tsi_param *p = m->param_first; p; p = p->next) {
        snprintf(name, sizeof name, "%s%s%s", path, *path ? "." : "", p->name);
        TSI_TRY(visit(m, p, name, context));
    }
    for (ts_module *child = m->first; child; child = child->next) {
        snprintf(name, sizeof name, "%s%s%s", path, *path && *child->name ? "." : "", child->name);
        TSI_TRY(visit_below(child, name, visit, context));
    }
    return TS_OK;
}

ts_status tsi_module_visit(ts_module *root, tsi_param_visit visit, void *context)
{
    return visit_below(root, "", visit, context);
}

typedef struct each_context {
    ts_param_fn fn;
    void *context;
} each_context;

static ts_status each_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    const each_context *each = context;
    return each->fn(name, param->value, each->context);
}

ts_status ts_module_each(ts_module *root, ts_param_fn fn, void *context)
{
    if (!root || !fn) return TS_ERR_NULL;
    each_context each = { fn, context };
    return tsi_module_visit(root, each_param, &each);
}

typedef struct find_context {
    const char *name;
    ts_tensor *found;
} find_context;

static ts_status find_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    find_context *find = context;
    if (strcmp(name, find->name) == 0) find->found = param->value;
    return TS_OK;
}

ts_tensor *ts_module_find_param(ts_module *root, const char *name)
{
    find_context find = { name, NULL };
    if (root && name) (void)tsi_module_visit(root, find_param, &find);
    return find.found;
}

ts_module *ts_module_find(ts_module *root, const char *path)
{
    if (!root || !path || !*path) return root;
    for (ts_module *child = root->first; child; child = child->next) {
        size_t length = strlen(child->name);
        if (strncmp(path, child->name, length) != 0) continue;
        if (path[length] == '\0') return child;
        if (path[length] == '.') {
            ts_module *found = ts_module_find(child, path + length + 1);
            if (found) return found;
        }
    }
    return NULL;
}

ts_mesh *ts_module_mesh(const ts_module *m)
{
    return m ? m->mesh : NULL;
}

static ts_status count_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    (void)name;
    *(int64_t *)context += ts_shape_count(&param->shape);
    return TS_OK;
}

int64_t ts_module_count(const ts_module *root)
{
    int64_t count = 0;
    if (root) (void)tsi_module_visit((ts_module *)(uintptr_t)root, count_param, &count);
    return count;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Does the text match the pattern, with '*' for any run? */
static bool matches(const char *pattern, size_t length, const char *text)
{
    if (length == 0) return *text == '\0';
    if (*pattern == '*') {
        for (;; text++) {
            if (matches(pattern + 1, length - 1, text)) return true;
            if (!*text) return false;
        }
    }
    return *text == *pattern && matches(pattern + 1, length - 1, text + 1);
}

ts_status tsi_plan_match(const char *plan, const char *name, char *out, size_t size, bool *found)
{
    *found = false;
    int line = 1;
    for (const char *at = plan; *at; line++) {
        size_t length = strcspn(at, "\n");
        size_t start = strspn(at, " \t");
        if (start < length && at[start] != '#') {
            const char *colon = memchr(at + start, ':', length - start);
            if (!colon)
                return TSI_FAIL(TS_ERR_ARG,
                                "plan, line %d: expected \"pattern: placements\", found \"%.*s\"",
                                line, (int)(length - start), at + start);
            size_t pattern = (size_t)(colon - (at + start));
            while (pattern > 0 &&
                   (at[start + pattern - 1] == ' ' || at[start + pattern - 1] == '\t'))
                pattern--;
            if (!*found && matches(at + start, pattern, name)) {
                const char *value = colon + 1 + strspn(colon + 1, " \t");
                snprintf(out, size, "%.*s", (int)(at + length - value), value);
                *found = true;
            }
        }
        at += length + (at[length] == '\n');
    }
    return TS_OK;
}

static ts_status plan_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    char placements[NAME_MAX_BYTES];
    bool found;
    TSI_TRY(tsi_plan_match(context, name, placements, sizeof placements, &found));
    if (!found) return TS_OK;
    char *copy = tsi_strdup(placements);
    if (!copy) return tsi_fail_memory("placements of a parameter", sizeof placements);
    tsi_free(param->stored);
    param->stored = copy;
    return TS_OK;
}

ts_status ts_module_plan(ts_module *root, const char *plan)
{
    if (!root) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(root->rank));
    if (!plan) return TSI_FAIL(TS_ERR_NULL, "plan: the text is NULL");
    return tsi_module_visit(root, plan_param, (void *)(uintptr_t)plan);
}

/* ---- materialising --------------------------------------------------------------------------- */

static ts_status materialize_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)context;
    if (ts_tensor_layout(param->value)) return TS_OK;
    ts_scope scope = ts_scope_open(m->rank, NULL);
    const ts_layout *layout = tsi_tensor_layout_of(m->mesh, param->stored, param->shape);
    ts_status status = TS_OK;
    if (layout) {
        tsi_array *array =
            tsi_tensor_block_tagged(m->mesh, layout, (ts_dtype)param->dtype, TSI_TAG_PARAMETER);
        ts_tensor *t =
            array ? tsi_tensor_make(m->mesh, layout, (ts_dtype)param->dtype, array, NULL) : NULL;
        status = t ? ts_tensor_write(param->value, t) : ts_rank_status(m->rank);
        ts_layout_release(layout);
    } else {
        status = ts_rank_status(m->rank);
        tsi_error_prefix("parameter %s", name);
    }
    ts_scope_close(scope);
    if (status == TS_OK) status = param->init(param->value, name, param->init_state);
    if (status == TS_OK && !param->frozen && !tsi_leaf_make(param->value, true))
        status = ts_rank_status(m->rank);
    return status;
}

ts_status ts_module_materialize(ts_module *root)
{
    if (!root) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(root->rank));
    return tsi_module_visit(root, materialize_param, NULL);
}
