/* SPDX-License-Identifier: Apache-2.0 */
/* reorder.c - a recorded step runs in the order of a program (tessera/step.h).
 *
 *   match    each action of the program is one that was recorded, a bucket of such, or a part of
 *            one; each that was recorded is there once
 *   prove    nothing is wrong with the program (plan/step.h): else a sentence with the actions
 *   keys     the piece of work that ends an action comes at the action's place; what else is kept
 *            for it (copies to and from buffers) comes when it is needed
 *   order    works.h: by these keys, as far as the memory that work touches allows. Operations
 *            begin as the program has them, if all ranks do the same operations one after another,
 *            change their places alike, and can; else as they were recorded
 *   parts    parts.h: an operation in parts goes in parts, where all ranks can
 *   join     together.h: the operations of a bucket go as one, where all ranks can
 *
 * INV: a program that is refused, or does not fit, changes nothing; but an order in which
 * operations begin as all ranks agreed ends with it, because no rank stays in such an order alone:
 * it is the recorded order then, without a cap. What runs is right whatever the program says: the
 * program gives wishes, the works have the ties. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "comm/again.h"
#include "plan/program.h"
#include "plan/step_reorder.h"
#include "runtime/parts.h"
#include "runtime/replay_events.h"
#include "runtime/together.h"

typedef struct matching {
    const tsi_step *recorded, *given;
    const tsi_step_list *from, *to; /* this rank's */
    int64_t rank;
    char **line;    /* [recorded action]: its text, without how long it takes */
    int32_t *by;    /* recorded actions by text, then by number */
    int32_t *used;  /* [place in `by`]: how many of an equal run that begins there are matched */
    int32_t *place; /* [recorded action]: where the program has it (its first part); -1: not yet */
    int32_t *whole; /* [action of the program]: the recorded one that it is a part of; -1: none */
    int64_t *left;  /* [recorded action]: bytes of parts that are still to come */
    int64_t *last;  /* [recorded action]: its last piece of work; -1: none, an operation is inside
                       of the next action that has one */
    int32_t moves;  /* the first recorded operation that did not come yet */
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
    m->left = tsi_calloc(n, sizeof *m->left);
    m->last = tsi_calloc(n, sizeof *m->last);
    m->whole = tsi_alloc_array((size_t)m->to->action_count + 1, sizeof *m->whole);
    if (!m->line || !m->by || !m->used || !m->place || !m->left || !m->last || !m->whole)
        return tsi_fail_memory("a match", n * 40);
    for (int32_t i = 0; i < m->to->action_count; i++)
        m->whole[i] = -1;
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
    tsi_free(m->left);
    tsi_free(m->last);
    tsi_free(m->whole);
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

/* Has the bucket all that the recorded action touches? */
static bool has_touches(const matching *m, const tsi_action *bucket, const tsi_action *a)
{
    const tsi_touch *all = tsi_step_touches(m->to, bucket), *own = tsi_step_touches(m->from, a);
    for (int32_t i = 0; i < a->touch_count; i++) {
        const char *name = m->from->value[own[i].value].name;
        int32_t k = 0;
        while (k < bucket->touch_count &&
               (all[k].how != own[i].how || strcmp(m->to->value[all[k].value].name, name) != 0))
            k++;
        if (k == bucket->touch_count) return false;
    }
    return true;
}

/* Is it one that the pass could have taken, and are its touches the bucket's? */
static bool goes_in(const matching *m, const tsi_action *bucket, int32_t at)
{
    const tsi_action *a = &m->from->action[at];
    return m->place[at] < 0 && a->kind == bucket->kind && a->channel == bucket->channel &&
           a->group >= 0 && a->queue != 0 && a->bytes > 0 &&
           strcmp(m->recorded->queue[a->queue], m->given->queue[bucket->queue]) == 0 &&
           strcmp(m->recorded->group[a->group].name, m->given->group[bucket->group].name) == 0 &&
           has_touches(m, bucket, a);
}

/* Those that touch something, or those that do not, as far as there are bytes of the bucket left:
 * *bytes. Returns how many touches they have; -1: one is not there. */
static int32_t fill_bucket(matching *m, const tsi_action *bucket, int32_t place, bool touches,
                           int64_t *bytes)
{
    int32_t count = 0;
    for (int32_t at = next_move(m, m->moves); *bytes > 0 && at < m->from->action_count;
         at = next_move(m, at + 1)) {
        const tsi_action *a = &m->from->action[at];
        if ((a->touch_count > 0) != touches || a->bytes > *bytes || !goes_in(m, bucket, at))
            continue;
        if (find_line(m, m->line[at]) != at) return -1;
        m->place[at] = place;
        *bytes -= a->bytes;
        count += a->touch_count;
    }
    return count;
}

/* A bucket is operations that were recorded and did not come yet, as many as have its bytes and
 * touches. What touches nothing says least about where it belongs: it comes last. */
static bool match_bucket(matching *m, const tsi_action *bucket, int32_t place)
{
    int64_t bytes = bucket->bytes;
    int32_t touches = fill_bucket(m, bucket, place, true, &bytes);
    return touches == bucket->touch_count && fill_bucket(m, bucket, place, false, &bytes) == 0 &&
           bytes == 0;
}

/* The recorded operation that a first part is of; -1: none. */
static int32_t find_whole(matching *m, const tsi_action *a, const tsi_part_name *part)
{
    for (int32_t at = next_move(m, m->moves); at < m->from->action_count;
         at = next_move(m, at + 1)) {
        const tsi_action *whole = &m->from->action[at];
        if (!goes_in(m, a, at) || whole->touch_count != a->touch_count) continue;
        if (strcmp(whole->what ? whole->what : "", part->of) != 0) continue;
        return find_line(m, m->line[at]) == at ? at : -1;
    }
    return -1;
}

/* That of the part before it. */
static int32_t whole_before(const matching *m, int32_t index, const tsi_part_name *part)
{
    const tsi_action *a = &m->to->action[index];
    tsi_part_name before;
    for (int32_t i = index - 1; i >= 0; i--) {
        const tsi_action *b = &m->to->action[i];
        if (m->whole[i] >= 0 && tsi_is_part(b, &before) && a->kind == b->kind &&
            a->group == b->group && a->channel == b->channel && strcmp(before.of, part->of) == 0)
            return m->whole[i];
    }
    return -1;
}

/* Parts of an operation have its bytes; that they are all there is proved of the program. */
static bool match_part(matching *m, int32_t index, const tsi_part_name *part)
{
    const tsi_action *a = &m->to->action[index];
    bool first = part->index == 0;
    int32_t whole = first ? find_whole(m, a, part) : whole_before(m, index, part);
    if (whole < 0) return false;
    m->whole[index] = whole;
    if (first) m->place[whole] = index;
    if (first) m->left[whole] = m->from->action[whole].bytes;
    m->left[whole] -= a->bytes;
    return part->index + 1 < part->count ? m->left[whole] > 0 : m->left[whole] == 0;
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
    while (m->moves < m->from->action_count &&
           (!communicates(&m->from->action[m->moves]) || m->place[m->moves] >= 0))
        m->moves++;
    tsi_part_name part;
    if (tsi_is_part(a, &part)) return match_part(m, index, &part) ? TS_OK : refuse_action(m, index);
    if (tsi_is_bucket(a)) return match_bucket(m, a, index) ? TS_OK : refuse_action(m, index);
    char *line = line_of(m->given, m->rank, a);
    if (!line) return tsi_fail_memory("a match", 100);
    int32_t found = find_line(m, line);
    tsi_free(line);
    if (found < 0) return refuse_action(m, index);
    m->place[found] = index;
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
    for (int64_t of = 0; of < m->from->action_count; of++)
        if (m->last[of] >= 0) key[tsi_works_piece_of(&s->works, m->last[of])] = m->place[of];
}

static void keys_of_parts(const tsi_parteds *all, int64_t *key)
{
    for (int64_t i = 0; i < all->count; i++)
        for (int32_t k = 1; k < all->op[i].parts; k++)
            key[all->op[i].piece + k] = all->op[i].place[k];
}

/* ---- the order in which operations begin ----------------------------------------------------- */

typedef struct begin {
    int64_t key;
    int32_t number, piece; /* as recorded */
} begin;

typedef struct chain {
    ts_step *step;
    tsi_parteds parts;
    int32_t *piece; /* in the program's order */
    int64_t count;  /* of them */
    int64_t hash;   /* of all that ranks must have alike */
    int64_t share;  /* of all ranks they add up to nothing, modulo SHARES */
    int64_t ahead;  /* that come before others which they were recorded behind */
    bool asked, parts_asked;
} chain;

enum { SHARES = INT32_MAX }; /* a prime */

static int compare_begins(const void *a, const void *b)
{
    const begin *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Members that have the group at one place of their chains add up to nothing; others, almost never:
 * the n-th operation of a rank must be the n-th of all who take part in it. */
static int64_t share_of(const tsi_step_group *group, int64_t rank, int32_t number)
{
    uint64_t one = tsi_hash_mix(tsi_hash_text(0, group->name), (uint64_t)number) % SHARES;
    uint64_t times = rank == group->member[0] ? (uint64_t)group->count - 1 : SHARES - 1;
    return (int64_t)(one * times % SHARES);
}

/* Which operations there are, in the recorded order: ranks that do not do the same ones differ. The
 * ends of a message have no place that is the same on both: with one, a rank differs from all. */
static uint64_t hash_action(uint64_t hash, const tsi_action *a, int64_t rank)
{
    hash = tsi_hash_mix(hash, (uint64_t)a->kind << 32 | (uint32_t)a->channel);
    if (a->peer >= 0) hash = tsi_hash_mix(hash, (uint64_t)rank);
    return tsi_hash_text(hash, a->what ? a->what : "");
}

static void add_action(chain *c, const matching *m, int32_t of, int32_t number, uint64_t *hash)
{
    const tsi_action *a = &m->from->action[of];
    *hash = hash_action(*hash, a, m->rank);
    if (a->group >= 0) c->share += share_of(&m->recorded->group[a->group], m->rank, number);
    c->share %= SHARES;
}

/* The action that a piece begins: of its works the first that has an operation. -1: not known. All
 * that it begins, several where it is a batch or an operator with operations inside, goes into the
 * hash and the share. */
static int32_t add_piece(chain *c, const matching *m, const tsi_piece *p, int32_t number,
                         uint64_t *hash)
{
    const tsi_worked *worked = &c->step->worked;
    int32_t any = -1, first = -1, before = -1;
    for (int32_t i = p->first; i < p->first + p->count && i < worked->count; i++) {
        int32_t of = worked->action[i];
        if (of < 0 || of == before) continue;
        const tsi_action *a = &m->from->action[of];
        if (any < 0) any = of;
        if (first < 0 && communicates(a)) first = of;
        for (int32_t k = of - 1; k >= 0 && m->last[k] < 0; k--)
            if (communicates(&m->from->action[k])) add_action(c, m, k, number, hash);
        add_action(c, m, of, number, hash);
        before = of;
    }
    *hash = tsi_hash_mix(*hash, (uint64_t)number);
    return first >= 0 ? first : any;
}

/* In the recorded order: operations, each with its parts behind it. */
static void list_begins(chain *c, const matching *m, begin *all, uint64_t *hash)
{
    const tsi_works *w = &c->step->works;
    int64_t key = -1;
    for (int64_t i = 0; i < w->begin_count; i++) {
        const tsi_parted *parted = tsi_parts_of(&c->parts, w->begin[i]);
        for (int32_t k = 0; k < (parted ? parted->parts : 1); k++) {
            int32_t number = (int32_t)c->count++, piece = w->begin[i] + k;
            int32_t of = add_piece(c, m, &w->piece[piece], number, hash);
            if (of >= 0) key = parted ? parted->place[k] : m->place[of];
            all[number] = (begin){ key, number, piece };
        }
    }
}

typedef struct tied {
    int32_t before, after;
} tied;

static int compare_tied(const void *a, const void *b)
{
    const tied *x = a, *y = b;
    return x->before < y->before ? -1 : x->before > y->before;
}

/* least[piece]: the greatest key of the begins that it is tied behind; ties go forward. */
static void find_least_keys(const tied *tie, int64_t count, const int64_t *wish, int64_t *least)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t of = least[tie[i].before], own = wish[tie[i].before];
        if (own > of) of = own;
        if (of > least[tie[i].after]) least[tie[i].after] = of;
    }
}

/* The program does not know all ties of the work: that an operation stands behind a fence of the
 * host's, say. One that cannot begin where the program has it comes behind those that it is tied
 * behind, and the others are where they are: on all ranks alike, as their ties are. */
static ts_status heed_ties(const tsi_works *w, begin *all, int64_t count)
{
    size_t n = (size_t)w->piece_count + 1;
    tied *tie = tsi_alloc_array((size_t)w->pair_count / 2 + 1, sizeof *tie);
    int64_t *wish = tsi_alloc_array(n, sizeof *wish), *least = tsi_alloc_array(n, sizeof *least);
    bool room = tie && wish && least;
    for (int64_t i = 0; room && i < w->piece_count; i++)
        wish[i] = least[i] = -1;
    for (int64_t i = 0; room && i < count; i++)
        wish[all[i].piece] = all[i].key;
    for (int64_t i = 0; room && i < w->pair_count; i += 2)
        tie[i / 2] = (tied){ w->pair[i], w->pair[i + 1] };
    if (room && w->pair_count > 0) qsort(tie, (size_t)w->pair_count / 2, sizeof *tie, compare_tied);
    if (room) find_least_keys(tie, w->pair_count / 2, wish, least);
    for (int64_t i = 0; room && i < count; i++)
        if (least[all[i].piece] > all[i].key) all[i].key = least[all[i].piece];
    tsi_free(tie);
    tsi_free(wish);
    tsi_free(least);
    return room ? TS_OK : tsi_fail_memory("an order of a step", n * 32);
}

static ts_status chain_make(chain *c, const matching *m)
{
    const tsi_works *w = &c->step->works;
    size_t n = (size_t)(w->begin_count + c->parts.count * TSI_PARTS_LIVE) + 1;
    begin *all = tsi_alloc_array(n, sizeof *all);
    c->piece = tsi_alloc_array(n, sizeof *c->piece);
    uint64_t hash = (uint64_t)w->begin_count;
    bool room = all && c->piece;
    if (room) list_begins(c, m, all, &hash);
    ts_status status =
        room ? heed_ties(w, all, c->count) : tsi_fail_memory("an order of a step", n * sizeof *all);
    room = status == TS_OK;
    if (room) qsort(all, (size_t)c->count, sizeof *all, compare_begins);
    int32_t least = INT32_MAX; /* of those that come later */
    for (int64_t i = c->count - 1; room && i >= 0; i--) {
        c->ahead += all[i].number > least;
        if (all[i].number < least) least = all[i].number;
    }
    for (int64_t i = 0; room && i < c->count; i++) {
        c->piece[i] = all[i].piece;
        hash = tsi_hash_mix(hash, (uint64_t)all[i].number);
    }
    c->hash = (int64_t)(hash >> 2);
    tsi_free(all);
    return status;
}

/* [coll] */
static bool all_can(void *context, bool can)
{
    chain *c = context;
    c->asked = true;
    ts_rank *rank = c->step->rank;
    return tsi_all_can(rank, "the order of a step", can, c->hash) &&
           tsi_shares_cancel(rank, c->share, SHARES);
}

static ts_status check_ranks(const ts_step *s, const tsi_step *given)
{
    int64_t ranks = s->rank->world->rank_count;
    if (!given->wide && !given->narrowed && given->rank_count == ranks) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "step: the program is of %d ranks%s, the step was recorded on %lld",
                    given->rank_count, given->wide ? ", some in one list" : "", (long long)ranks);
}

static ts_status order_by_program(ts_step *s, const tsi_step *given, int64_t *key,
                                  tsi_buckets *buckets, chain *c)
{
    int64_t me = s->rank->index;
    matching m = { .recorded = s->value,
                   .given = given,
                   .from = tsi_step_list_of(s->value, me),
                   .to = tsi_step_list_of(given, me),
                   .rank = me };
    ts_status status = match(&m);
    if (status == TS_OK) status = tsi_step_prove(given, &(tsi_step_rules){ .buffered = true });
    if (status == TS_OK) tsi_last_works(s, m.last, m.from->action_count);
    if (status == TS_OK) keys_of(s, &m, key);
    if (status == TS_OK) status = tsi_parts_find(&c->parts, s, m.to, m.whole, m.from->action_count);
    c->parts_asked = status == TS_OK;
    if (status == TS_OK) status = tsi_parts_agree(&c->parts, s, given);
    if (status == TS_OK) keys_of_parts(&c->parts, key);
    if (status == TS_OK) status = tsi_buckets_make(buckets, s, m.from, m.to, m.place);
    if (status == TS_OK) status = chain_make(c, &m);
    matching_end(&m);
    return status;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Operations begin as the program has them, or not at all in a new order: members as they were. */
static ts_status order_agreed(ts_step *s, const int64_t *key, chain *c, const tsi_members *members,
                              int64_t bytes_max, tsi_works_report *report)
{
    size_t bytes = (size_t)members->count * sizeof *members->member;
    tsi_member *were = tsi_alloc(bytes + 1);
    if (!were) return tsi_fail_memory("an order of a step", bytes);
    if (bytes > 0) memcpy(were, members->member, bytes);
    tsi_begins begins = { c->piece, c->count, all_can, c };
    ts_status status =
        tsi_works_order(&s->works, &s->kept, key, &begins, members, s->pool, bytes_max, report);
    s->agreed = status == TS_OK && report->fits;
    s->epoch = tsi_again_epoch(s->rank);
    if (!s->agreed && bytes > 0) memcpy(members->member, were, bytes);
    tsi_free(were);
    return status;
}

static ts_status order_works(ts_step *s, const tsi_step *given, int64_t bytes_max,
                             tsi_buckets *buckets, tsi_works_report *report, chain *c)
{
    int64_t *key = tsi_alloc_array((size_t)s->works.piece_count + 1, sizeof *key);
    if (!key) return tsi_fail_memory("an order of a step", (size_t)s->works.piece_count * 8);
    for (int64_t i = 0; i < s->works.piece_count; i++)
        key[i] = i;
    ts_status status = given ? order_by_program(s, given, key, buckets, c) : TS_OK;
    if (status == TS_OK && given)
        status = order_agreed(s, key, c, &buckets->members, bytes_max, report);
    const tsi_begins recorded = { 0 };
    if (status == TS_OK && !s->agreed)
        status = tsi_works_order(&s->works, &s->kept, key, &recorded, &buckets->members, s->pool,
                                 bytes_max, report);
    tsi_free(key);
    return status;
}

ts_status tsi_step_undo(ts_step *s)
{
    tsi_works_report report = { 0 };
    tsi_buckets none = { 0 };
    s->agreed = false;
    s->timed = 0; /* times are of an order */
    tsi_replay_forget(s);
    ts_status status = order_works(s, NULL, 0, &none, &report, NULL);
    s->lost = status != TS_OK;
    return status;
}

static ts_status find_order(ts_step *s, const tsi_step *given, int64_t bytes_max,
                            tsi_buckets *buckets, tsi_works_report *report, chain *c)
{
    if (s->captures)
        return TSI_FAIL(TS_ERR_STATE, "step: the device has it as graphs; it keeps its order");
    TSI_TRY(tsi_parts_make_room(s));
    TSI_TRY(tsi_works_tie(&s->works));
    if (given) TSI_TRY(check_ranks(s, given));
    if (s->works.unclear) return TS_OK; /* it does not fit anywhere else */
    return order_works(s, given, bytes_max, buckets, report, c);
}

/* A refusal that is this rank's alone is told to nobody: those who took the program meet it where
 * they agree, and go on. The rank has its error afterwards as before. One that goes back to the
 * recorded order, while others may take a program, is met there as well. */
static void refuse_with_others(chain *c)
{
    if (!c->parts_asked) tsi_parts_refuse(c->step);
    if (!c->asked) (void)all_can(c, false);
    tsi_buckets_refuse(c->step);
}

static ts_status reorder(ts_step *s, const ts_program *program, int64_t bytes_max,
                         tsi_works_report *report, ts_step_order *out)
{
    tsi_buckets buckets = { 0 };
    chain c = { .step = s };
    const tsi_step *given = program ? program->step : NULL;
    bool agreed = s->agreed; /* on the order that it has: it may not stay alone */
    s->agreed = false;
    ts_status status = find_order(s, given, bytes_max, &buckets, report, &c);
    if (status == TS_OK && given && !c.parts_asked) tsi_parts_refuse(s);
    if (status == TS_OK && given && !c.asked) (void)all_can(&c, false);
    out->parted = tsi_parts_take(&c.parts, s, s->agreed);
    out->whole = c.parts.count - out->parted;
    if (status == TS_OK && given)
        status = tsi_buckets_join(&buckets, s, given, report->fits, &out->joined);
    else
        refuse_with_others(&c);
    if (status == TS_OK) status = ts_rank_status(s->rank);
    tsi_buckets_release(&buckets);
    tsi_parts_release(&c.parts);
    tsi_free(c.piece);
    out->ahead = s->agreed ? c.ahead : 0;
    ts_status undone = agreed && !report->fits ? tsi_step_undo(s) : TS_OK;
    return status != TS_OK ? status : undone;
}

ts_status ts_step_reorder(ts_step *s, const ts_program *program, int64_t bytes_max,
                          ts_step_order *out)
{
    if (!s) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(s->rank));
    if (s->rank->kept) return TSI_FAIL(TS_ERR_STATE, "step: another one is recorded or run");
    TSI_TRY(tsi_comm_now(s->rank, "step"));
    tsi_works_report report = { 0 };
    int64_t cap = bytes_max > 0 ? bytes_max : s->recorded_bytes;
    ts_step_order is = { .bytes_before = tsi_step_bytes(s) };
    tsi_replay_forget(s);
    tsi_again_go_alone(&s->kept); /* on all ranks, whatever becomes of the order */
    ts_status status = reorder(s, program, cap, &report, &is);
    if (status == TS_OK && !report.fits && bytes_max > 0 && !s->works.unclear)
        status = TSI_FAIL(TS_ERR_ARG, "step: in that order it needs %lld bytes, the cap is %lld",
                          (long long)report.bytes, (long long)bytes_max);
    if (report.fits) s->timed = 0; /* times are of an order */
    if (report.fits) s->lost = false;
    is.taken = report.fits;
    is.agreed = s->agreed;
    is.moved = report.moved;
    is.works = s->kept.count - s->room;
    is.bytes = report.bytes;
    is.bytes_needed = report.bytes_needed;
    if (!out) return status;
    is.struct_size = out->struct_size;
    if (status != TS_OK) is = (ts_step_order){ .struct_size = out->struct_size };
    memcpy(out, &is, out->struct_size < sizeof is ? out->struct_size : sizeof is);
    return status;
}
