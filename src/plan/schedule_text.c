/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_text.c - schedules as text: a line a rank, cells with commas between them.
 *
 * Strict: a cell is read whole or refused with its line and column. What is printed reads back as
 * the same schedule. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/schedule.h"

#define OVERLAP "OVERLAP_F_B"

#define CELL_TEXT(name, text, micro) text,
static const char *const kind_text[] = { TS_CELL_LIST(CELL_TEXT) };
#undef CELL_TEXT
#define CELL_MICRO(name, text, micro) micro,
static const uint8_t kind_micro[] = { TS_CELL_LIST(CELL_MICRO) };
#undef CELL_MICRO

/* ---- printing -------------------------------------------------------------------------------- */

static void print_cell(const ts_cell *cell, tsi_text *text)
{
    if (cell->kind == TS_CELL_IDLE) return;
    tsi_text_int(text, cell->stage);
    tsi_text_add(text, kind_text[cell->kind]);
    if (kind_micro[cell->kind]) tsi_text_int(text, cell->micro);
}

size_t ts_cell_text(const ts_cell *cell, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (cell && cell->kind >= 0 && cell->kind < TS_CELL_KINDS) print_cell(cell, &text);
    return tsi_text_give(&text, out, size);
}

static void print_list(const tsi_schedule_list *list, tsi_text *text)
{
    for (int64_t i = 0; i < list->count; i++) {
        if (i > 0) tsi_text_add(text, ",");
        if (!list->cell[i].joined) {
            print_cell(&list->cell[i], text);
            continue;
        }
        tsi_text_add(text, "(");
        print_cell(&list->cell[i], text);
        tsi_text_add(text, ";");
        print_cell(&list->cell[++i], text);
        tsi_text_add(text, ")" OVERLAP);
    }
    tsi_text_add(text, "\n");
}

size_t ts_schedule_text(const ts_schedule *self, char *out, size_t size)
{
    tsi_text text = { 0 };
    for (int32_t r = 0; self && r < self->ranks; r++)
        print_list(&self->list[r], &text);
    return tsi_text_give(&text, out, size);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reading {
    const char *line, *at; /* of the text */
    int32_t number;        /* of the line, from 1 */
    int64_t stages, micros;
    ts_cell *cell; /* of all lines; joined and kind as read */
    int32_t *rank;
    int64_t count, capacity;
    int32_t ranks;
} reading;

static ts_status refuse(const reading *in, const char *expected)
{
    size_t length = strcspn(in->at, ",\r\n");
    return TSI_FAIL(TS_ERR_ARG, "schedule, line %d, column %d: expected %s, found \"%.*s\"",
                    in->number, (int)(in->at - in->line) + 1, expected,
                    (int)(length < 40 ? length : 40), in->at);
}

static ts_status read_number(reading *in, const char *what, int32_t *out)
{
    int64_t value = 0;
    const char *begin = in->at;
    while (*in->at >= '0' && *in->at <= '9' && value < TSI_SCHEDULE_CELLS_MAX)
        value = 10 * value + (*in->at++ - '0');
    if (in->at > begin && value < TSI_SCHEDULE_CELLS_MAX) {
        *out = (int32_t)value;
        return TS_OK;
    }
    in->at = begin;
    return refuse(in, what);
}

/* The longest word that is there: RECV_F is not R. */
static ts_status read_kind(reading *in, int32_t *out)
{
    size_t best = 0;
    for (int32_t k = TS_CELL_FORWARD; k < TS_CELL_KINDS; k++) {
        size_t length = strlen(kind_text[k]);
        if (length <= best || strncmp(in->at, kind_text[k], length) != 0) continue;
        best = length;
        *out = k;
    }
    if (best == 0)
        return refuse(in, "F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD or "
                          "REDUCE_GRAD after the stage");
    in->at += best;
    return TS_OK;
}

static ts_status keep(reading *in, const ts_cell *cell)
{
    if (in->count == in->capacity) {
        int64_t capacity = 2 * in->capacity + 64;
        void *cells = tsi_realloc(in->cell, (size_t)capacity * sizeof *in->cell);
        if (cells) in->cell = cells;
        void *ranks = cells ? tsi_realloc(in->rank, (size_t)capacity * sizeof *in->rank) : NULL;
        if (!ranks) return tsi_fail_memory("a schedule", (size_t)capacity * sizeof *in->cell);
        in->rank = ranks;
        in->capacity = capacity;
    }
    in->rank[in->count] = in->ranks;
    in->cell[in->count++] = *cell;
    if (cell->stage >= in->stages) in->stages = cell->stage + 1;
    if (cell->micro >= in->micros) in->micros = cell->micro + 1;
    return TS_OK;
}

static ts_status read_cell(reading *in, bool joined)
{
    ts_cell cell = tsi_cell_of(TS_CELL_IDLE, -1, -1);
    TSI_TRY(read_number(in, "a cell like 0F3: the stage", &cell.stage));
    TSI_TRY(read_kind(in, &cell.kind));
    if (kind_micro[cell.kind]) TSI_TRY(read_number(in, "the micro-batch", &cell.micro));
    cell.joined = joined;
    return keep(in, &cell);
}

static ts_status read_pair(reading *in)
{
    in->at++;
    TSI_TRY(read_cell(in, true));
    if (*in->at++ != ';') return in->at--, refuse(in, "';' between two actions");
    TSI_TRY(read_cell(in, false));
    const ts_cell *last = &in->cell[in->count - 1];
    if (!tsi_cell_computes(last) || !tsi_cell_computes(last - 1))
        return refuse(in, "a forward and a backward in the brackets before this");
    if (strncmp(in->at, ")" OVERLAP, sizeof ")" OVERLAP - 1) != 0)
        return refuse(in, "')" OVERLAP "'");
    in->at += sizeof ")" OVERLAP - 1;
    return TS_OK;
}

static void skip_blanks(reading *in)
{
    while (*in->at == ' ' || *in->at == '\t')
        in->at++;
}

static ts_status read_line(reading *in)
{
    in->line = in->at;
    while (true) {
        skip_blanks(in);
        if (*in->at == '(') {
            TSI_TRY(read_pair(in));
        } else if (!strchr(",\r\n", *in->at)) { /* the end of the text is among them */
            TSI_TRY(read_cell(in, false));
        } else {
            ts_cell idle = tsi_cell_of(TS_CELL_IDLE, -1, -1);
            TSI_TRY(keep(in, &idle));
        }
        skip_blanks(in);
        if (*in->at != ',') break;
        in->at++;
    }
    in->at += *in->at == '\r';
    if (*in->at != '\n' && *in->at != '\0') return refuse(in, "',' or the end of the line");
    in->at += *in->at == '\n';
    in->ranks++;
    in->number++;
    return TS_OK;
}

/* On a line a message's link and peer follow from its stage. */
static ts_status complete(ts_schedule *s, int32_t rank, int64_t index)
{
    ts_cell *cell = &s->list[rank].cell[index];
    if (!tsi_cell_is_message(cell)) return TS_OK;
    bool up = cell->kind == TS_CELL_SEND_FORWARD || cell->kind == TS_CELL_RECEIVE_BACKWARD;
    int32_t other = cell->stage + (up ? 1 : -1);
    char text[48];
    ts_cell_text(cell, text, sizeof text);
    if (other < 0 || other >= s->stages || s->rank_of[other] < 0 || s->rank_of[other] == rank)
        return TSI_FAIL(TS_ERR_ARG,
                        "schedule, line %d: %s is a message between stages %d and %d, and the "
                        "other one is not on another rank",
                        rank + 1, text, cell->stage, other);
    cell->link = up ? cell->stage : other;
    cell->peer = s->rank_of[other];
    return TS_OK;
}

static ts_status build(const reading *in, ts_schedule *s)
{
    for (int64_t i = 0; i < in->count; i++) {
        const ts_cell *cell = &in->cell[i];
        int32_t before = cell->stage >= 0 ? s->rank_of[cell->stage] : -1;
        if (before >= 0 && before != in->rank[i])
            return TSI_FAIL(TS_ERR_ARG, "schedule: stage %d is on ranks %d and %d; it has one",
                            cell->stage, before, in->rank[i]);
        tsi_schedule_add(s, in->rank[i], cell);
    }
    for (int32_t r = 0; r < s->ranks; r++)
        for (int64_t i = 0; i < s->list[r].count; i++)
            TSI_TRY(complete(s, r, i));
    return TS_OK;
}

ts_status ts_schedule_parse(const char *text, ts_schedule **out)
{
    if (!text || !out) return TSI_FAIL(TS_ERR_NULL, "schedule: an argument is NULL");
    *out = NULL;
    reading in = { .at = text, .number = 1 };
    ts_status status = TS_OK;
    while (*in.at && status == TS_OK)
        status = read_line(&in);
    if (status == TS_OK && in.micros == 0)
        status = TSI_FAIL(TS_ERR_ARG, "schedule: the text has no forward and no backward");
    ts_schedule *made = NULL;
    if (status == TS_OK) status = tsi_schedule_create(in.ranks, in.stages, in.micros, &made);
    if (status == TS_OK) status = tsi_schedule_done(made, build(&in, made), out);
    tsi_free(in.cell);
    tsi_free(in.rank);
    return status;
}
