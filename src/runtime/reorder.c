/* SPDX-License-Identifier: Apache-2.0 */
/* reorder.c - a recorded step runs in the order of a program (tessera/step.h).
 *
 *   match    each action of the program is one that was recorded, or a bucket of such; each that
 *            was recorded is there once
 *   prove    nothing is wrong with the program (plan/step.h): else a sentence with the actions
 *   keys     the piece of work that ends an action comes at the action's place; what else is kept
 *            for it (copies to and from buffers) comes when it is needed
 *   order    works.h: by these keys, as far as the memory that work touches allows
 *   join     together.h: the operations of a bucket go as one, where all ranks can
 *
 * INV: a program that is refused changes nothing. What runs is right whatever the program says: the
 * program gives wishes, the works have the ties. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "comm/again.h"
#include "plan/program.h"
#include "plan/step_reorder.h"
#include "runtime/together.h"

typedef struct matching {
    const tsi_step *recorded, *given;
    const tsi_step_list *from, *to; /* this rank's */
    int64_t rank;
    char **line;    /* [recorded action]: its text, without how long it takes */
    int32_t *by;    /* recorded actions by text, then by number */
    int32_t *used;  /* [place in `by`]: how many of an equal run that begins there are matched */
    int32_t *place; /* [recorded action]: where the program has it; -1: not yet */
    int32_t moves;  /* the next recorded action that communicates */
} matching;

/* ---- texts ----------------------------------------------------------------------------------- */

static char *line_of(const tsi_step *step, int64_t rank, const tsi_action *action)
{
    tsi_text text = { 0 };
    tsi_action timeless = *action;
    timeless.us = -1;
    tsi_step_print_action(step, rank, &timeless, &text);
    char *line = text.failed ? NULL : tsi_strdup(text.data ? text.data : "");
    tsi_text_release(&text);
    return line;
}

/* By text, then as they stand: a merge of two halves. */
static void sort_lines(char *const *line, int32_t *by, int32_t *scratch, int32_t count)
{
    if (count < 2) return;
    int32_t half = count / 2, i = 0, k = half, at = 0;
    sort_lines(line, by, scratch, half);
    sort_lines(line, by + half, scratch, count - half);
    while (i < half && k < count)
        scratch[at++] = strcmp(line[by[k]], line[by[i]]) < 0 ? by[k++] : by[i++];
    while (i < half)
        scratch[at++] = by[i++];
    memcpy(by, scratch, (size_t)at * sizeof *by);
}

static ts_status matching_begin(matching *m)
{
    size_t n = (size_t)m->from->action_count + 1;
    m->line = tsi_calloc(n, sizeof *m->line);
    m->by = tsi_calloc(n, sizeof *m->by);
    m->used = tsi_calloc(n, sizeof *m->used);
    m->place = tsi_calloc(n, sizeof *m->place);
    if (!m->line || !m->by || !m->used || !m->place) return tsi_fail_memory("a match", n * 20);
    for (int32_t i = 0; i < m->from->action_count; i++) {
        m->line[i] = line_of(m->recorded, m->rank, &m->from->action[i]);
        m->by[i] = i;
        m->place[i] = -1;
        if (!m->line[i]) return tsi_fail_memory("a match", 100);
    }
    sort_lines(m->line, m->by, m->used, m->from->action_count); /* which is scratch so far */
    memset(m->used, 0, n * sizeof *m->used);
    return TS_OK;
}

static void matching_end(matching *m)
{
    for (int32_t i = 0; m->line && i < m->from->action_count; i++)
        tsi_free(m->line[i]);
    tsi_free(m->line);
    tsi_free(m->by);
    tsi_free(m->used);
    tsi_free(m->place);
}

/* ---- matching -------------------------------------------------------------------------------- */

static bool communicates(const tsi_action *a)
{
    return a->group >= 0 || a->peer >= 0;
}

/* The first recorded action of that text that is not matched; -1: none. */
static int32_t find_line(matching *m, const char *line)
{
    int32_t low = 0, high = m->from->action_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (strcmp(m->line[m->by[middle]], line) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == m->from->action_count || strcmp(m->line[m->by[low]], line) != 0) return -1;
    int32_t at = low + m->used[low];
    if (at >= m->from->action_count || strcmp(m->line[m->by[at]], line) != 0) return -1;
    m->used[low]++;
    return m->by[at];
}

static int32_t next_move(const matching *m, int32_t from)
{
    while (from < m->from->action_count && !communicates(&m->from->action[from]))
        from++;
    return from;
}

/* A bucket is the next operations that were recorded, as many as have its bytes and touches. */
static bool match_bucket(matching *m, const tsi_action *bucket, int32_t place)
{
    int64_t bytes = 0;
    int32_t touches = 0, at = m->moves;
    while (bytes < bucket->bytes && (at = next_move(m, at)) < m->from->action_count) {
        const tsi_action *a = &m->from->action[at];
        bool alike =
            a->kind == bucket->kind && a->channel == bucket->channel && a->group >= 0 &&
            strcmp(m->recorded->group[a->group].name, m->given->group[bucket->group].name) == 0;
        int32_t same = alike ? find_line(m, m->line[at]) : -1;
        if (same != at) return false;
        m->place[at++] = place;
        bytes += a->bytes;
        touches += a->touch_count;
    }
    m->moves = at;
    return bytes == bucket->bytes && touches == bucket->touch_count;
}

static ts_status refuse_action(const matching *m, int32_t index)
{
    tsi_text text = { 0 };
    tsi_step_cite(m->given, m->rank, index, &text);
    ts_status status =
        TSI_FAIL(TS_ERR_ARG, "step: the program has %s, which the recorded step does not do",
                 text.data && !text.failed ? text.data : "an action");
    tsi_text_release(&text);
    return status;
}

static ts_status match_action(matching *m, int32_t index)
{
    const tsi_action *a = &m->to->action[index];
    if (tsi_is_bucket(a)) return match_bucket(m, a, index) ? TS_OK : refuse_action(m, index);
    char *line = line_of(m->given, m->rank, a);
    if (!line) return tsi_fail_memory("a match", 100);
    int32_t found = find_line(m, line);
    tsi_free(line);
    if (found < 0) return refuse_action(m, index);
    m->place[found] = index;
    if (communicates(a)) m->moves = found + 1;
    return TS_OK;
}

static ts_status all_there(const matching *m)
{
    tsi_text text = { 0 };
    for (int32_t i = 0; i < m->from->action_count; i++) {
        if (m->place[i] >= 0) continue;
        tsi_step_cite(m->recorded, m->rank, i, &text);
        ts_status status = TSI_FAIL(TS_ERR_ARG, "step: the program lacks %s, which was recorded",
                                    text.data && !text.failed ? text.data : "an action");
        tsi_text_release(&text);
        return status;
    }
    return TS_OK;
}

static ts_status match(matching *m)
{
    TSI_TRY(matching_begin(m));
    for (int32_t i = 0; i < m->to->action_count; i++)
        TSI_TRY(match_action(m, i));
    return all_there(m);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* What no action ends with comes when it is needed. */
static const int64_t when_needed = INT64_MAX;

static void keys_of(const ts_step *s, const matching *m, int64_t *key)
{
    for (int64_t i = 0; i < s->works.piece_count; i++)
        key[i] = when_needed;
    for (int64_t i = 0; i < s->worked.count && i < s->kept.count; i++) {
        int32_t of = s->worked.action[i];
        bool ends = i + 1 == s->worked.count || s->worked.action[i + 1] != of;
        if (of >= 0 && ends) key[tsi_works_piece_of(&s->works, i)] = m->place[of];
    }
}

static ts_status check_ranks(const ts_step *s, const tsi_step *given)
{
    int64_t ranks = s->rank->world->rank_count;
    if (!given->wide && !given->narrowed && given->rank_count == ranks) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "step: the program is of %d ranks%s, the step was recorded on %lld",
                    given->rank_count, given->wide ? ", some in one list" : "", (long long)ranks);
}

static ts_status order_by_program(ts_step *s, const tsi_step *given, int64_t *key,
                                  tsi_buckets *buckets)
{
    int64_t me = s->rank->index;
    matching m = { .recorded = s->value,
                   .given = given,
                   .from = tsi_step_list_of(s->value, me),
                   .to = tsi_step_list_of(given, me),
                   .rank = me };
    ts_status status = match(&m);
    if (status == TS_OK) status = tsi_step_prove(given, &(tsi_step_rules){ .buffered = true });
    if (status == TS_OK) keys_of(s, &m, key);
    if (status == TS_OK) status = tsi_buckets_make(buckets, s, m.from, m.to, m.place);
    matching_end(&m);
    return status;
}

/* ---- the call -------------------------------------------------------------------------------- */

static ts_status order_works(ts_step *s, const tsi_step *given, int64_t bytes_max,
                             tsi_buckets *buckets, tsi_works_report *report)
{
    int64_t *key = tsi_alloc_array((size_t)s->works.piece_count + 1, sizeof *key);
    if (!key) return tsi_fail_memory("an order of a step", (size_t)s->works.piece_count * 8);
    for (int64_t i = 0; i < s->works.piece_count; i++)
        key[i] = i;
    ts_status status = given ? order_by_program(s, given, key, buckets) : TS_OK;
    if (status == TS_OK)
        status = tsi_works_order(&s->works, &s->kept, key, &buckets->members, s->pool, bytes_max,
                                 report);
    tsi_free(key);
    return status;
}

static ts_status find_order(ts_step *s, const tsi_step *given, int64_t bytes_max,
                            tsi_buckets *buckets, tsi_works_report *report)
{
    if (s->captures)
        return TSI_FAIL(TS_ERR_STATE, "step: the device has it as graphs; it keeps its order");
    TSI_TRY(tsi_works_tie(&s->works));
    if (given) TSI_TRY(check_ranks(s, given));
    if (s->works.unclear) return TS_OK; /* it does not fit anywhere else */
    return order_works(s, given, bytes_max, buckets, report);
}

/* A refusal that is this rank's alone is told to nobody: those who took the program meet it where
 * they agree, and go on. The rank has its error afterwards as before. */
static void refuse_with_others(const ts_step *s)
{
    tsi_error_record why;
    if (s->rank->error.error.blast != TS_BLAST_AGREED) return; /* they were told */
    tsi_error_copy(&why, &s->rank->error);
    tsi_error_clear(&s->rank->error);
    if (tsi_buckets_refuse(s) == TS_OK) tsi_rank_take_error(s->rank, &why);
}

static ts_status reorder(ts_step *s, const ts_program *program, int64_t bytes_max,
                         tsi_works_report *report, int64_t *joined)
{
    tsi_buckets buckets = { 0 };
    const tsi_step *given = program ? program->step : NULL;
    ts_status status = find_order(s, given, bytes_max, &buckets, report);
    if (status == TS_OK && given)
        status = tsi_buckets_join(&buckets, s, given, report->fits, joined);
    else if (given)
        refuse_with_others(s);
    tsi_buckets_release(&buckets);
    return status;
}

ts_status ts_step_reorder(ts_step *s, const ts_program *program, int64_t bytes_max,
                          ts_step_order *out)
{
    if (!s) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(s->rank));
    if (s->rank->kept) return TSI_FAIL(TS_ERR_STATE, "step: another one is recorded or run");
    tsi_works_report report = { 0 };
    int64_t cap = bytes_max > 0 ? bytes_max : s->recorded_bytes;
    ts_step_order is = { .bytes_before = tsi_step_bytes(s) };
    tsi_again_part(&s->kept); /* on all ranks, whatever becomes of the order */
    ts_status status = reorder(s, program, cap, &report, &is.joined);
    if (status == TS_OK && !report.fits && bytes_max > 0 && !s->works.unclear)
        status = TSI_FAIL(TS_ERR_ARG, "step: in that order it needs %lld bytes, the cap is %lld",
                          (long long)report.bytes, (long long)bytes_max);
    if (report.fits) s->timed = 0; /* times are of an order */
    is.taken = report.fits;
    is.moved = report.moved;
    is.works = s->kept.count;
    is.bytes = report.bytes;
    is.bytes_needed = report.bytes_needed;
    if (!out) return status;
    is.struct_size = out->struct_size;
    if (status != TS_OK) is = (ts_step_order){ .struct_size = out->struct_size };
    memcpy(out, &is, out->struct_size < sizeof is ? out->struct_size : sizeof is);
    return status;
}
