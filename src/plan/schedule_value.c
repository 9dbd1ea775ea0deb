/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_value.c - a schedule as a value: cells per rank, and which rank has a stage.
 *
 * INV: a cell's stage is -1 or below the number of stages, and a stage is on one rank. */
#include "plan/schedule.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

ts_status tsi_schedule_create(int64_t ranks, int64_t stages, int64_t micros, ts_schedule **out)
{
    *out = NULL;
    if (ranks < 1 || stages < 1 || micros < 1 || ranks > TSI_SCHEDULE_CELLS_MAX ||
        stages > TSI_SCHEDULE_CELLS_MAX || micros > TSI_SCHEDULE_CELLS_MAX / stages)
        return TSI_FAIL(TS_ERR_ARG,
                        "schedule: %lld ranks, %lld stages, %lld micro-batches; each is at least "
                        "1, and stages times micro-batches at most %d",
                        (long long)ranks, (long long)stages, (long long)micros,
                        TSI_SCHEDULE_CELLS_MAX);
    ts_schedule *self = tsi_calloc(1, sizeof *self);
    if (!self) return tsi_fail_memory("a schedule", sizeof *self);
    self->ranks = (int32_t)ranks;
    self->stages = (int32_t)stages;
    self->micros = (int32_t)micros;
    self->rank_of = tsi_alloc_array((size_t)stages, sizeof *self->rank_of);
    self->list = tsi_calloc((size_t)ranks, sizeof *self->list);
    if (!self->rank_of || !self->list) {
        ts_schedule_destroy(self);
        return tsi_fail_memory("a schedule", (size_t)(ranks + stages) * sizeof *self->list);
    }
    memset(self->rank_of, 0xff, (size_t)stages * sizeof *self->rank_of); /* -1 */
    *out = self;
    return TS_OK;
}

void ts_schedule_destroy(ts_schedule *self)
{
    if (!self) return;
    for (int32_t r = 0; self->list && r < self->ranks; r++)
        tsi_free(self->list[r].cell);
    tsi_free(self->list);
    tsi_free(self->rank_of);
    tsi_free(self);
}

void tsi_schedule_add(ts_schedule *self, int32_t rank, const ts_cell *cell)
{
    tsi_schedule_list *list = &self->list[rank];
    if (list->count == list->capacity) {
        int64_t capacity = 2 * list->capacity + 16;
        void *more = tsi_realloc(list->cell, (size_t)capacity * sizeof *list->cell);
        self->failed = self->failed || !more;
        if (!more) return;
        list->cell = more;
        list->capacity = capacity;
    }
    TSI_ASSERT(cell->stage < self->stages && cell->micro < self->micros);
    list->cell[list->count++] = *cell;
    if (cell->stage >= 0) self->rank_of[cell->stage] = rank;
    self->messages = self->messages || tsi_cell_is_message(cell);
}

ts_status tsi_schedule_done(ts_schedule *self, ts_status status, ts_schedule **out)
{
    if (status == TS_OK && self->failed) status = tsi_fail_memory("a schedule", sizeof *self);
    *out = status == TS_OK ? self : NULL;
    if (status != TS_OK) ts_schedule_destroy(self);
    return status;
}

ts_status tsi_schedule_copy(const ts_schedule *self, ts_schedule **out)
{
    ts_schedule *copy;
    TSI_TRY(tsi_schedule_create(self->ranks, self->stages, self->micros, &copy));
    for (int32_t r = 0; r < self->ranks; r++)
        for (int64_t i = 0; i < self->list[r].count; i++)
            if (self->list[r].cell[i].kind != TS_CELL_IDLE)
                tsi_schedule_add(copy, r, &self->list[r].cell[i]);
    return tsi_schedule_done(copy, TS_OK, out);
}

/* ---- getters --------------------------------------------------------------------------------- */

int64_t ts_schedule_ranks(const ts_schedule *self)
{
    return self ? self->ranks : 0;
}

int64_t ts_schedule_stages(const ts_schedule *self)
{
    return self ? self->stages : 0;
}

int64_t ts_schedule_micro_batches(const ts_schedule *self)
{
    return self ? self->micros : 0;
}

int64_t ts_schedule_rank_of(const ts_schedule *self, int64_t stage)
{
    return self && stage >= 0 && stage < self->stages ? self->rank_of[stage] : -1;
}

int64_t ts_schedule_count(const ts_schedule *self, int64_t rank)
{
    return self && rank >= 0 && rank < self->ranks ? self->list[rank].count : 0;
}

ts_cell ts_schedule_cell(const ts_schedule *self, int64_t rank, int64_t index)
{
    if (index < 0 || index >= ts_schedule_count(self, rank)) return tsi_cell_of(0, -1, -1);
    return self->list[rank].cell[index];
}

/* ---- what must be there ---------------------------------------------------------------------- */

static ts_status check_slot(const ts_schedule *self, const uint8_t *count, int32_t stage,
                            int32_t micro)
{
    int forward = count[TS_CELL_FORWARD], whole = count[TS_CELL_BACKWARD];
    int input = count[TS_CELL_INPUT], weight = count[TS_CELL_WEIGHT];
    const char *what = forward == 0                ? "the forward is missing"
                       : forward > 1               ? "two forwards"
                       : whole + input == 0        ? "the backward is missing"
                       : whole + input > 1         ? "two backwards"
                       : whole == 1 && weight > 0  ? "a backward and a weight gradient"
                       : whole == 0 && weight == 0 ? "the weight gradient is missing"
                       : whole == 0 && weight > 1  ? "two weight gradients"
                                                   : NULL;
    if (!what) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "schedule: stage %d, micro-batch %d on rank %d: %s", stage, micro,
                    self->rank_of[stage], what);
}

ts_status tsi_schedule_complete(const ts_schedule *self)
{
    enum { KINDS = TS_CELL_WEIGHT + 1 };
    size_t slots = (size_t)self->stages * (size_t)self->micros;
    uint8_t *count = tsi_calloc(slots, KINDS);
    ts_status status = count ? TS_OK : tsi_fail_memory("a schedule", slots * KINDS);
    for (int32_t r = 0; r < self->ranks && status == TS_OK; r++) {
        for (int64_t i = 0; i < self->list[r].count; i++) {
            const ts_cell *c = &self->list[r].cell[i];
            if (!tsi_cell_computes(c)) continue;
            uint8_t *n =
                &count[((size_t)c->stage * (size_t)self->micros + (size_t)c->micro) * KINDS +
                       (size_t)c->kind];
            if (*n < 2) ++*n;
        }
    }
    for (int32_t g = 0; g < self->stages && status == TS_OK; g++) {
        if (self->rank_of[g] < 0)
            status =
                TSI_FAIL(TS_ERR_ARG, "schedule: stage %d of %d is on no rank", g, self->stages);
        for (int32_t m = 0; m < self->micros && status == TS_OK; m++)
            status = check_slot(
                self, &count[((size_t)g * (size_t)self->micros + (size_t)m) * KINDS], g, m);
    }
    tsi_free(count);
    return status;
}
