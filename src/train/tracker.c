/* SPDX-License-Identifier: Apache-2.0 */
/* tracker.c - whose the memory of a rank is when it holds most, and what went on then.
 *
 *   pool --taken, given, retagged--> blocks: bytes, kind, and a row: the module whose label the
 *                                    rank had
 *        --more than ever----------> a peak: rows as they are, phase and label
 *
 * Rows are not copied at each peak: a row that changes for the first time after one notes before
 * what it was. States (parameters, their mirrors, moments) are older than a step and may lie in
 * memory of the world; their rows are read off the model at the end. What is in no row, since it
 * was there before the step or belongs to no module, is the rest of what the pool counts: so rows
 * are the pool's counts whatever happens.
 *
 * The same watches a step with numbers and one without. Nothing is told, and nothing of this costs
 * anything, while no step is watched. */
#include "train/tracker.h"

#include <stdio.h>
#include <string.h>

#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/rank.h"
#include "nn/module.h"
#include "op/core/dispatch.h"
#include "tensor/tensor.h"

enum { NOBODY = 0 }; /* the row of what belongs to no module */

static bool is_state(int32_t kind)
{
    return kind == TS_MEMORY_PARAMETER || kind == TS_MEMORY_MIRROR || kind == TS_MEMORY_OPTIMIZER;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* "model.layers.3.mlp.up_proj.weight": up to its first number, else up to the parameter. */
static size_t module_length(const char *name)
{
    size_t last = 0;
    for (const char *at = name; *at;) {
        size_t length = strcspn(at, "."), digits = strspn(at, "0123456789");
        bool number = length > 0 && digits == length;
        if (number) return (size_t)(at - name) + length;
        if (at[length]) last = (size_t)(at - name) + length;
        at += length + (at[length] == '.');
    }
    return last;
}

static ts_status add_row(tsi_tracker *t, const char *name, size_t length)
{
    TSI_TRY(
        tsi_room(&t->row, t->row_count, &t->row_capacity, sizeof *t->row, "the memory of modules"));
    tsi_tracker_row *row = &t->row[t->row_count++];
    *row = (tsi_tracker_row){ .noted = 0 };
    snprintf(row->name, sizeof row->name, "%.*s", (int)length, name);
    return TS_OK;
}

/* Does the row's name begin the text, up to a dot or its end? */
static bool begins(const tsi_tracker_row *row, const char *text)
{
    size_t length = strlen(row->name);
    return strncmp(row->name, text, length) == 0 && (text[length] == '.' || text[length] == '\0');
}

/* The row with the longest name that begins the text. */
static int32_t row_at(const tsi_tracker *t, const char *text)
{
    int32_t found = NOBODY;
    for (int64_t i = 1; i < t->row_count; i++)
        if (strlen(t->row[i].name) > strlen(t->row[found].name) && begins(&t->row[i], text))
            found = (int32_t)i;
    return found;
}

/* From where on the text names a row; a label may begin with what a pipeline was at. Else all. */
static const char *named_from(const tsi_tracker *t, const char *text)
{
    for (const char *at = text; at; at = strchr(at, '.')) {
        at += *at == '.';
        if (row_at(t, at) != NOBODY) return at;
    }
    return text;
}

static int32_t find_row(const tsi_tracker *t, const char *text)
{
    return row_at(t, named_from(t, text));
}

/* A parameter's row is the one before, mostly. */
static ts_status add_name(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m, (void)param;
    tsi_tracker *t = context;
    size_t length = module_length(name);
    for (int64_t i = t->row_count - 1; i > 0; i--)
        if (strlen(t->row[i].name) == length && strncmp(t->row[i].name, name, length) == 0)
            return TS_OK;
    return length > 0 && length < sizeof t->row->name ? add_row(t, name, length) : TS_OK;
}

/* Labels are kept once: their address says which. */
static int32_t row_of_label(tsi_tracker *t, const char *label)
{
    if (!label || !label[0]) return NOBODY;
    uint64_t key = tsi_hash_mix(1, (uint64_t)(uintptr_t)label);
    uintptr_t known = (uintptr_t)tsi_map_find(&t->labels, key, NULL, NULL);
    if (known > 0) return (int32_t)(known - 1);
    int32_t row = find_row(t, label);
    if (t->status == TS_OK)
        t->status = tsi_map_insert(&t->labels, key, (void *)(uintptr_t)(row + 1));
    return row;
}

/* ---- peaks ----------------------------------------------------------------------------------- */

/* What the row was at the latest peak, before it changes. */
static void note_then(const tsi_tracker *t, tsi_tracker_row *row)
{
    if (row->noted == t->peaks) return;
    memcpy(row->then, row->now, sizeof row->then);
    row->noted = t->peaks;
}

static void add_to_row(tsi_tracker *t, int32_t row, int32_t kind, int64_t bytes)
{
    if (row == NOBODY) return;
    note_then(t, &t->row[row]);
    t->row[row].now[kind] += bytes;
}

static void count_kinds(tsi_tracker *t)
{
    memset(t->kind, 0, sizeof t->kind);
    for (uint32_t tag = 0; tag < TSI_TAG_COUNT; tag++)
        t->kind[tsi_memory_of_tag(tag)] += tsi_pool_used(t->pool, (int32_t)tag).live;
    t->peaks++;
}

static const char *phase_of(const tsi_tracker *t)
{
    const tsi_autograd_state *state = tsi_slot_get(t->me, TSI_SLOT_AUTOGRAD);
    if (!state || !state->running) return t->phase;
    return state->again > 0 ? "recompute" : "backward";
}

/* Operators are told of when they end; what else takes memory has no name. */
static void note_place(tsi_tracker *t, int32_t kind)
{
    t->peak_phase = phase_of(t);
    t->peak_label = t->me->label ? t->me->label : "";
    t->peak_op = "";
    t->peak_kind = kind;
    t->op_pending =
        kind == TS_MEMORY_ACTIVATION || kind == TS_MEMORY_TRANSIENT || kind == TS_MEMORY_COMM;
    t->peak_step = t->step;
}

static void hear_call(void *context, void *what)
{
    tsi_tracker *t = context;
    const tsi_op_record *record = what;
    if (!t->op_pending) return;
    t->op_pending = false;
    t->peak_op = record->plan->op->name;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static uint64_t key_of(const void *memory)
{
    return tsi_hash_mix(0, (uint64_t)(uintptr_t)memory);
}

static int64_t take_number(tsi_tracker *t)
{
    int64_t number = t->free;
    if (number > 0) {
        t->free = t->block[number - 1].free;
        return number;
    }
    t->status = tsi_room(&t->block, t->block_count, &t->block_capacity, sizeof *t->block,
                         "blocks of a step");
    return t->status == TS_OK ? ++t->block_count : 0;
}

static void given(void *context, void *memory)
{
    tsi_tracker *t = context;
    int64_t number = (int64_t)(uintptr_t)tsi_map_remove(&t->there, key_of(memory), NULL, NULL);
    if (number == 0) return;
    tsi_tracker_block *block = &t->block[number - 1];
    add_to_row(t, block->row, block->kind, -block->bytes);
    block->free = t->free;
    t->free = number;
}

static void add_block(tsi_tracker *t, void *memory, size_t bytes, int32_t kind)
{
    int32_t row = is_state(kind) ? NOBODY : row_of_label(t, t->me->label);
    given(t, memory); /* by another thread, without a word */
    int64_t number = row != NOBODY && t->status == TS_OK ? take_number(t) : 0;
    if (number == 0) return;
    t->block[number - 1] = (tsi_tracker_block){ .bytes = (int64_t)bytes, .row = row, .kind = kind };
    t->status = tsi_map_insert(&t->there, key_of(memory), (void *)(uintptr_t)number);
    if (t->status == TS_OK) add_to_row(t, row, kind, (int64_t)bytes);
}

static void taken(void *context, void *memory, size_t bytes, uint32_t tag)
{
    tsi_tracker *t = context;
    int32_t kind = (int32_t)tsi_memory_of_tag(tag);
    int64_t live = tsi_pool_used(t->pool, -1).live;
    add_block(t, memory, bytes, kind);
    if (live < t->peak || (live == t->peak && t->peak_step == t->step)) return;
    t->peak = live;
    count_kinds(t);
    note_place(t, kind);
}

/* As the pool has it: what is of another kind at the peak was so at the peak. */
static void retagged(void *context, void *memory, uint32_t tag)
{
    tsi_tracker *t = context;
    int32_t kind = (int32_t)tsi_memory_of_tag(tag);
    int64_t number = (int64_t)(uintptr_t)tsi_map_find(&t->there, key_of(memory), NULL, NULL);
    if (number > 0) {
        tsi_tracker_block *block = &t->block[number - 1];
        add_to_row(t, block->row, block->kind, -block->bytes);
        add_to_row(t, block->row, kind, block->bytes);
        block->kind = kind;
    }
    if (tsi_pool_used(t->pool, -1).live == t->peak && t->peak_step == t->step) count_kinds(t);
}

/* ---- the life of it -------------------------------------------------------------------------- */

ts_status tsi_tracker_begin(tsi_tracker *t, ts_rank *me, ts_module *root)
{
    *t = (tsi_tracker){ .me = me, .phase = "set_up", .peak = -1 };
    TSI_TRY(add_row(t, "", 0));
    TSI_TRY(tsi_module_visit(root, add_name, t));
    tsi_pool *pool = tsi_pool_of(me);
    if (!pool) return ts_rank_status(me);
    t->watch = (tsi_pool_watch){ taken, given, t, retagged };
    t->hears = (tsi_observer){ .context = t, .hear = { [TSI_NEWS_CALL] = hear_call } };
    TSI_TRY(tsi_observers_add(&me->observers, &t->hears));
    t->pool = pool;
    tsi_pool_watch_by(pool, &t->watch);
    return TS_OK;
}

void tsi_tracker_step(tsi_tracker *t, const char *phase)
{
    for (int64_t i = 1; i < t->row_count; i++) {
        note_then(t, &t->row[i]);
        memset(t->row[i].now, 0, sizeof t->row[i].now);
    }
    tsi_map_release(&t->there);
    t->there = (tsi_map){ 0 };
    t->block_count = t->free = 0;
    t->op_pending = false;
    t->step++;
    t->phase = phase;
}

void tsi_tracker_phase(tsi_tracker *t, const char *phase)
{
    t->phase = phase;
}

void tsi_tracker_release(tsi_tracker *t)
{
    if (t->pool) {
        tsi_pool_watch_by(t->pool, NULL);
        tsi_observers_remove(&t->me->observers, &t->hears);
    }
    tsi_map_release(&t->there);
    tsi_map_release(&t->labels);
    tsi_free(t->block);
    tsi_free(t->row);
    *t = (tsi_tracker){ 0 };
}

/* ---- the account ----------------------------------------------------------------------------- */

static int64_t bytes_of(const tsi_array *array)
{
    tsi_block block = tsi_array_block(array);
    return tsi_block_count(&block) * (int64_t)ts_dtype_size((ts_dtype)array->dtype);
}

static ts_status add_param(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)m;
    tsi_tracker *t = context;
    tsi_tracker_row *row = &t->row[find_row(t, name)];
    if (param->value && param->value->array)
        row->then[TS_MEMORY_PARAMETER] += bytes_of(param->value->array);
    if (param->mirror && param->mirror->array)
        row->then[TS_MEMORY_MIRROR] += bytes_of(param->mirror->array);
    return TS_OK;
}

static ts_status add_moment(const char *name, ts_tensor *moment, void *context)
{
    tsi_tracker *t = context;
    tsi_tracker_row *row = &t->row[find_row(t, name)];
    if (moment->array) row->then[TS_MEMORY_OPTIMIZER] += bytes_of(moment->array);
    return TS_OK;
}

/* Nobody's are what rows do not have. Where they have more, for states that came after the peak or
 * blocks that another thread gave back, the largest are that much smaller. */
static void settle_kind(tsi_tracker *t, int32_t kind)
{
    int64_t rest = t->kind[kind];
    for (int64_t i = 1; i < t->row_count; i++)
        rest -= t->row[i].then[kind];
    while (rest < 0) {
        tsi_tracker_row *most = &t->row[1];
        for (int64_t i = 2; i < t->row_count; i++)
            if (t->row[i].then[kind] > most->then[kind]) most = &t->row[i];
        int64_t off = most->then[kind] < -rest ? most->then[kind] : -rest;
        most->then[kind] -= off;
        rest += off;
    }
    t->row[NOBODY].then[kind] = rest;
}

static void write_row(const tsi_tracker_row *row, ts_train_peak *out)
{
    int64_t sum = 0;
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        sum += row->then[k];
    if (sum == 0) return;
    bool full = out->row_count == TS_TRAIN_MODULES_MAX;
    ts_train_module *to = &out->row[full ? out->row_count - 1 : out->row_count++];
    snprintf(to->name, sizeof to->name, "%s", full ? "others" : row->name);
    for (int k = 0; k < TS_MEMORY_KINDS; k++)
        to->bytes[k] += row->then[k];
}

static void write_all(tsi_tracker *t, ts_train_peak *out)
{
    out->bytes = t->peak;
    out->kind = t->peak_kind;
    snprintf(out->phase, sizeof out->phase, "%s", t->peak_phase);
    snprintf(out->module, sizeof out->module, "%s", named_from(t, t->peak_label));
    snprintf(out->op, sizeof out->op, "%s", t->peak_op);
    for (int32_t k = 0; k < TS_MEMORY_KINDS; k++)
        settle_kind(t, k);
    for (int64_t i = 0; i < t->row_count; i++)
        write_row(&t->row[i], out);
}

ts_status tsi_tracker_end(tsi_tracker *t, ts_module *root, ts_optimizer *optimizer,
                          ts_train_peak *out)
{
    ts_status status = t->status;
    *out = (ts_train_peak){ .bytes = 0 };
    if (t->pool) tsi_pool_watch_by(t->pool, NULL);
    for (int64_t i = 1; i < t->row_count; i++)
        note_then(t, &t->row[i]);
    if (status == TS_OK) status = tsi_module_visit(root, add_param, t);
    if (status == TS_OK && optimizer) status = ts_optimizer_each(optimizer, add_moment, t);
    if (status == TS_OK && t->peaks > 0) write_all(t, out);
    tsi_tracker_release(t);
    return status;
}
