/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - sets of named tensors, modules, optimisers and short texts that are saved as one. */
#include "checkpoint/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/comm.h"
#include "nn/module.h"
#include "tensor/tensor.h"

enum { NAME_BYTES = 1024 };

/* ---- texts ----------------------------------------------------------------------------------- */

static tsi_state_text *find_text(const tsi_state_texts *texts, const char *name)
{
    for (int64_t i = 0; i < texts->count; i++)
        if (strcmp(texts->text[i].name, name) == 0) return &texts->text[i];
    return NULL;
}

static void remove_text(tsi_state_texts *texts, tsi_state_text *text)
{
    tsi_free(text->name);
    tsi_free(text->data);
    *text = texts->text[--texts->count];
}

static ts_status grow(tsi_state_texts *texts)
{
    if (texts->count < texts->capacity) return TS_OK;
    int64_t capacity = texts->capacity ? 2 * texts->capacity : 16;
    tsi_state_text *grown = tsi_realloc(texts->text, (size_t)capacity * sizeof *grown);
    if (!grown) return tsi_fail_memory("the texts of a state", (size_t)capacity * sizeof *grown);
    texts->text = grown;
    texts->capacity = capacity;
    return TS_OK;
}

ts_status tsi_state_put(tsi_state_texts *texts, const char *name, const void *data, size_t length)
{
    TSI_TRY(grow(texts));
    tsi_state_text made = { .name = tsi_strdup(name), .length = length };
    made.data = tsi_alloc(length + 1);
    if (!made.name || !made.data) {
        tsi_free(made.name);
        tsi_free(made.data);
        return tsi_fail_memory("a text of a state", length);
    }
    if (length > 0) memcpy(made.data, data, length);
    made.data[length] = '\0';
    tsi_state_text *old = find_text(texts, name);
    if (old) remove_text(texts, old);
    texts->text[texts->count++] = made;
    return TS_OK;
}

void tsi_state_texts_release(tsi_state_texts *texts)
{
    while (texts->count > 0)
        remove_text(texts, &texts->text[texts->count - 1]);
    tsi_free(texts->text);
    *texts = (tsi_state_texts){ 0 };
}

ts_status tsi_state_texts_copy(tsi_state_texts *to, const tsi_state_texts *from)
{
    tsi_state_texts_release(to);
    for (int64_t i = 0; i < from->count; i++)
        TSI_TRY(tsi_state_put(to, from->text[i].name, from->text[i].data, from->text[i].length));
    return TS_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

ts_state *ts_state_create(ts_mesh *mesh)
{
    if (!mesh || tsi_rank_enter(mesh->rank) != TS_OK) return NULL;
    if (tsi_comm_once(mesh->rank, "state") != TS_OK) return NULL;
    ts_state *s = tsi_calloc(1, sizeof *s);
    if (!s) {
        tsi_fail_memory("a state", sizeof *s);
        return NULL;
    }
    s->rank = mesh->rank;
    s->mesh = ts_mesh_retain(mesh);
    s->group = ts_mesh_group(mesh, NULL);
    s->id = tsi_hash_mix((uint64_t)tsi_clock_ns(), (uint64_t)getpid());
    s->id = tsi_hash_mix(s->id, (uint64_t)time(NULL));
    ts_array word = TS_INIT(ts_array);
    word.data = &s->id;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    if (s->group && ts_group_broadcast(s->group, &word, 0, NULL) == TS_OK) return s;
    ts_state_destroy(s);
    return NULL;
}

void ts_state_destroy(ts_state *s)
{
    if (!s) return;
    if (s->save && ts_rank_status(s->rank) == TS_OK) (void)ts_state_wait(s);
    tsi_save_destroy(s->save);
    for (int64_t i = 0; i < s->part_count; i++) {
        tsi_free(s->part[i].prefix);
        tsi_tensor_release(s->part[i].tensor);
    }
    tsi_free(s->part);
    tsi_state_texts_release(&s->values);
    tsi_state_texts_release(&s->files);
    tsi_free(s->copy);
    ts_mesh_release(s->mesh);
    tsi_free(s);
}

static ts_status add(ts_state *s, const char *prefix, tsi_state_part part)
{
    if (!s || !prefix) return TSI_FAIL(TS_ERR_NULL, "state: an argument is NULL");
    TSI_TRY(tsi_rank_enter(s->rank));
    if (!part.tensor && !part.module && !part.optimizer)
        return TSI_FAIL(TS_ERR_NULL, "state: there is nothing to add under \"%s\"", prefix);
    if (s->part_count == s->part_capacity) {
        int64_t capacity = s->part_capacity ? 2 * s->part_capacity : 16;
        tsi_state_part *grown = tsi_realloc(s->part, (size_t)capacity * sizeof *grown);
        if (!grown)
            return tsi_fail_memory("the parts of a state", (size_t)capacity * sizeof *grown);
        s->part = grown;
        s->part_capacity = capacity;
    }
    part.prefix = tsi_strdup(prefix);
    if (!part.prefix) return tsi_fail_memory("a name", strlen(prefix));
    tsi_tensor_retain(part.tensor);
    s->part[s->part_count++] = part;
    return TS_OK;
}

ts_status ts_state_add_tensor(ts_state *state, const char *name, ts_tensor *tensor)
{
    return add(state, name, (tsi_state_part){ .kind = TSI_PART_TENSOR, .tensor = tensor });
}

ts_status ts_state_add_module(ts_state *state, const char *prefix, ts_module *root)
{
    return add(state, prefix, (tsi_state_part){ .kind = TSI_PART_MODULE, .module = root });
}

ts_status ts_state_add_optimizer(ts_state *state, const char *prefix, ts_optimizer *o)
{
    return add(state, prefix, (tsi_state_part){ .kind = TSI_PART_OPTIMIZER, .optimizer = o });
}

ts_status tsi_state_copied(ts_state *state, const char *name)
{
    tsi_free(state->copy);
    state->copy = tsi_strdup(name);
    return state->copy ? TS_OK : tsi_fail_memory("a name", strlen(name));
}

ts_status ts_state_set(ts_state *state, const char *name, const char *text)
{
    if (!state || !name) return TSI_FAIL(TS_ERR_NULL, "state_set: an argument is NULL");
    TSI_TRY(tsi_rank_enter(state->rank));
    if (text) return tsi_state_put(&state->values, name, text, strlen(text));
    tsi_state_text *old = find_text(&state->values, name);
    if (old) remove_text(&state->values, old);
    return TS_OK;
}

const char *ts_state_get(const ts_state *state, const char *name)
{
    const tsi_state_text *text = state && name ? find_text(&state->values, name) : NULL;
    return text ? text->data : NULL;
}

ts_status ts_state_add_file(ts_state *state, const char *name, const void *data, size_t bytes)
{
    if (!state || !name || !data) return TSI_FAIL(TS_ERR_NULL, "state: an argument is NULL");
    TSI_TRY(tsi_rank_enter(state->rank));
    size_t length = strlen(name);
    bool taken = strcmp(name, "index.json") == 0 ||
                 (length > 12 && strcmp(name + length - 12, ".safetensors") == 0);
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') || taken)
        return TSI_FAIL(TS_ERR_ARG, "state: \"%s\" is no name of a file beside the data", name);
    return tsi_state_put(&state->files, name, data, bytes);
}

/* ---- its tensors ----------------------------------------------------------------------------- */

typedef struct visit {
    const tsi_state_part *part;
    tsi_state_fn fn;
    void *context;
} visit;

static ts_status visit_tensor(const char *name, ts_tensor *tensor, void *context)
{
    const visit *v = context;
    char full[NAME_BYTES];
    int length = snprintf(full, sizeof full, "%s%s", v->part->prefix, name);
    if (length >= NAME_BYTES)
        return TSI_FAIL(TS_ERR_ARG, "state: the name %.64s... is longer than %d bytes", full,
                        NAME_BYTES - 1);
    if (strncmp(full, "tessera.", 8) == 0)
        return TSI_FAIL(TS_ERR_ARG, "state: \"%s\": names that begin with \"tessera.\" are taken",
                        full);
    tsi_param *body = tsi_param_of(tensor); /* the shard is the value, not what is gathered */
    if (body && body->unit_cut) TSI_TRY(body->unit_cut(body));
    if (!tensor->layout) return tsi_tensor_refuse(tensor, "state: %s", full);
    return v->fn(full, v->part->kind == TSI_PART_OPTIMIZER ? "optimizer" : "", tensor, v->context);
}

ts_status tsi_state_each(ts_state *s, tsi_state_fn fn, void *context)
{
    for (int64_t i = 0; i < s->part_count; i++) {
        visit v = { &s->part[i], fn, context };
        switch (s->part[i].kind) {
        case TSI_PART_TENSOR:
            TSI_TRY(visit_tensor("", s->part[i].tensor, &v));
            break;
        case TSI_PART_MODULE:
            TSI_TRY(ts_module_each(s->part[i].module, visit_tensor, &v));
            break;
        case TSI_PART_OPTIMIZER:
            TSI_TRY(ts_optimizer_each(s->part[i].optimizer, visit_tensor, &v));
            break;
        }
    }
    return TS_OK;
}

/* ---- the steps of optimisers ----------------------------------------------------------------- */

static void steps_name(const tsi_state_part *part, char *out)
{
    snprintf(out, NAME_BYTES, "%soptimizer.steps", part->prefix);
}

ts_status tsi_state_gather_texts(ts_state *s)
{
    for (int64_t i = 0; i < s->part_count; i++) {
        if (s->part[i].kind != TSI_PART_OPTIMIZER) continue;
        char name[NAME_BYTES], text[32];
        steps_name(&s->part[i], name);
        snprintf(text, sizeof text, "%lld", (long long)ts_optimizer_steps(s->part[i].optimizer));
        TSI_TRY(tsi_state_put(&s->values, name, text, strlen(text)));
    }
    return TS_OK;
}

ts_status tsi_state_spread_texts(ts_state *s)
{
    for (int64_t i = 0; i < s->part_count; i++) {
        if (s->part[i].kind != TSI_PART_OPTIMIZER) continue;
        char name[NAME_BYTES];
        steps_name(&s->part[i], name);
        const char *text = ts_state_get(s, name);
        if (text) TSI_TRY(ts_optimizer_resume(s->part[i].optimizer, strtoll(text, NULL, 10)));
    }
    return TS_OK;
}
