/* SPDX-License-Identifier: Apache-2.0 */
/* module.c - the tree of modules: building, names, materialising. */
#include "nn/module.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/scope.h"

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
    m->name.text = name;
    return m;
}

ts_module *ts_module_add(ts_module *parent, const char *name, ts_module *child)
{
    if (!parent || !child || tsi_rank_enter(parent->rank) != TS_OK) return NULL;
    if (child->parent) {
        TSI_FAIL(TS_ERR_STATE, "module: \"%s\" has a parent already", child->name.text);
        return NULL;
    }
    char *copy = tsi_strdup(name ? name : "");
    if (!copy) {
        tsi_fail_memory("the name of a module", 1);
        return NULL;
    }
    tsi_free(child->name.text);
    child->name = (tsi_name){ &parent->name, copy };
    child->parent = parent;
    if (parent->last)
        parent->last->next = child;
    else
        parent->first = child;
    parent->last = child;
    return child;
}

/* The state of the first value is copied where its size is known, so that the caller's may go. */
static ts_status copy_init(tsi_param *p, const ts_param_options *o)
{
    size_t bytes = o->init_bytes;
    if (bytes == 0 && o->init == ts_init_normal) bytes = sizeof(double);
    p->init_state = o->init_state;
    if (!o->init_state || bytes == 0) return TS_OK;
    p->init_copy = tsi_alloc(bytes);
    if (!p->init_copy) return tsi_fail_memory("the state of a first value", bytes);
    memcpy(p->init_copy, o->init_state, bytes);
    p->init_state = p->init_copy;
    return TS_OK;
}

static ts_status param_fill(tsi_param *p, const char *name, const ts_param_options *given)
{
    ts_param_options o = TS_INIT(ts_param_options);
    if (given) memcpy(&o, given, given->struct_size < sizeof o ? given->struct_size : sizeof o);
    p->name.text = tsi_strdup(name);
    p->dtype = o.dtype ? o.dtype : TS_DTYPE_F32;
    p->init = o.init ? o.init : ts_init_zeros;
    p->frozen = o.frozen;
    p->rate = 1.0;
    p->decay = (double)NAN;
    if (o.stored) p->stored = tsi_strdup(o.stored);
    if (!p->name.text || (o.stored && !p->stored)) return tsi_fail_memory("a parameter", 64);
    return copy_init(p, &o);
}

static void param_destroy(tsi_param *p)
{
    if (p->value) p->value->name = NULL; /* an optimiser may hold it longer than the tree lives */
    tsi_tensor_release(p->value);
    tsi_param_unmirror(p);
    tsi_free(p->name.text);
    tsi_free(p->stored);
    tsi_free(p->init_copy);
    tsi_free(p);
}

static ts_status refuse_twin(const ts_module *m, const char *name)
{
    char above[TSI_PARAM_NAME_MAX];
    (void)tsi_name_text(&m->name, above, sizeof above);
    return TSI_FAIL(TS_ERR_ARG, "module: there is a parameter %s%s%s already", above,
                    *above ? "." : "", name);
}

static ts_status check_param_name(const ts_module *m, const char *name)
{
    if (!name || !*name) return TSI_FAIL(TS_ERR_ARG, "module: a parameter needs a name");
    for (const tsi_param *p = m->param_first; p; p = p->next)
        if (strcmp(p->name.text, name) == 0) return refuse_twin(m, name);
    return TS_OK;
}

ts_tensor *ts_module_param(ts_module *m, const char *name, ts_shape shape,
                           const ts_param_options *options)
{
    if (!m || tsi_rank_enter(m->rank) != TS_OK) return NULL;
    if (check_param_name(m, name) != TS_OK) return NULL;
    tsi_param *p = tsi_calloc(1, sizeof *p);
    if (!p) {
        tsi_fail_memory("a parameter", sizeof *p);
        return NULL;
    }
    p->shape = shape;
    p->name.above = &m->name;
    p->value = tsi_variable(m->rank);
    if (!p->value || param_fill(p, name, options) != TS_OK) {
        param_destroy(p);
        return NULL;
    }
    p->value->name = &p->name;
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
    if (m->unit) m->unit_destroy(m);
    for (ts_module *child = m->first, *next; child; child = next) {
        next = child->next;
        ts_module_destroy(child);
    }
    for (tsi_param *p = m->param_first, *next; p; p = next) {
        next = p->next;
        param_destroy(p);
    }
    for (tsi_hook_entry *h = m->hooks, *next; h; h = next) {
        next = h->next;
        tsi_free(h);
    }
    if (m->desc.destroy) m->desc.destroy(m->state);
    ts_mesh_release(m->mesh);
    tsi_free(m->name.text);
    tsi_free(m);
}

/* ---- names ----------------------------------------------------------------------------------- */

ts_status tsi_module_visit(ts_module *root, tsi_param_visit visit, void *context)
{
    char name[TSI_PARAM_NAME_MAX];
    for (tsi_param *p = root->param_first; p; p = p->next) {
        if (tsi_name_text(&p->name, name, sizeof name) >= sizeof name)
            return TSI_FAIL(TS_ERR_ARG, "module: the name %.60s… has more than %d bytes", name,
                            TSI_PARAM_NAME_MAX - 1);
        TSI_TRY(visit(root, p, name, context));
    }
    for (ts_module *child = root->first; child; child = child->next)
        TSI_TRY(tsi_module_visit(child, visit, context));
    return TS_OK;
}

size_t ts_module_name(const ts_module *m, char *out, size_t size)
{
    if (size > 0) out[0] = '\0';
    if (!m) return 0;
    if (!m->parent || *m->name.text) return tsi_name_text(&m->name, out, size);
    size_t length = 0;
    for (const ts_module *child = m->first; child; child = child->next) {
        if (child != m->first) {
            if (length + 1 < size) memcpy(out + length, "+", 2);
            length++;
        }
        bool room = length < size;
        length += ts_module_name(child, room ? out + length : NULL, room ? size - length : 0);
    }
    return length;
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
    size_t above; /* of a full name, the bytes that stand above the root */
    ts_tensor *found;
} find_context;

static ts_status find_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    find_context *find = context;
    if (strcmp(name + find->above, find->name) == 0) find->found = param->value;
    return TS_OK;
}

ts_tensor *ts_module_find_param(ts_module *root, const char *name)
{
    if (!root || !name) return NULL;
    size_t above = tsi_name_text(&root->name, NULL, 0);
    find_context find = { .name = name, .above = above + (above > 0) };
    (void)tsi_module_visit(root, find_param, &find);
    return find.found;
}

ts_module *ts_module_find(ts_module *root, const char *path)
{
    if (!root || !path || !*path) return root;
    for (ts_module *child = root->first; child; child = child->next) {
        size_t length = strlen(child->name.text);
        if (strncmp(path, child->name.text, length) != 0) continue;
        if (length > 0 && path[length] == '\0') return child;
        if (length > 0 && path[length] != '.') continue;
        ts_module *found = ts_module_find(child, path + length + (length > 0));
        if (found) return found;
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

/* ---- materialising --------------------------------------------------------------------------- */

/* Where its unit wants it, or anywhere. Retained; NULL: recorded. */
static tsi_array *block_of(ts_module *m, tsi_param *param, const ts_layout *layout)
{
    tsi_array *array = NULL;
    if (param->unit_block && param->unit_block(param, &array) != TS_OK) return NULL;
    if (array) return array;
    return tsi_tensor_block_tagged(m->mesh, layout, (ts_dtype)param->dtype, TSI_TAG_PARAMETER);
}

static ts_status materialize_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)context;
    if (ts_tensor_layout(param->value)) return TS_OK;
    ts_scope scope = ts_scope_open(m->rank, NULL);
    const ts_layout *layout = tsi_tensor_layout_of(m->mesh, param->stored, param->shape);
    ts_status status = TS_OK;
    if (layout) {
        tsi_array *array = block_of(m, param, layout);
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

static bool has_name(const void *value, const void *wanted)
{
    char name[TSI_PARAM_NAME_MAX];
    (void)tsi_name_text(&((const tsi_param *)value)->name, name, sizeof name);
    return strcmp(name, wanted) == 0;
}

static ts_status add_name(ts_module *m, tsi_param *param, const char *name, void *context)
{
    uint64_t key = tsi_hash_text(0, name);
    if (tsi_map_find(context, key, has_name, name)) return refuse_twin(m, param->name.text);
    return tsi_map_insert(context, key, param);
}

/* Names are what optimisers, files and plans know parameters by: no two may share one, whichever
 * modules they are of. */
static ts_status check_names(ts_module *m)
{
    tsi_map names = { 0 };
    ts_status status = tsi_module_visit(tsi_module_top(m), add_name, &names);
    tsi_map_release(&names);
    return status;
}

ts_status ts_module_materialize(ts_module *root)
{
    if (!root) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(root->rank));
    TSI_TRY(check_names(root));
    return tsi_module_visit(root, materialize_param, NULL);
}
