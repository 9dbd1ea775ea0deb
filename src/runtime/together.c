/* SPDX-License-Identifier: Apache-2.0 */
/* together.c - see together.h.
 *
 * Why no rank can wait for ever: on each rank the members of a bucket could follow each other in an
 * order that keeps all ties, and such orders end (works.h). Nothing waits between them, so who has
 * begun the first has begun all of them. */
#include "runtime/together.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/again.h"
#include "plan/step_reorder.h"
#include "tessera/comm.h"

/* ---- wanted ---------------------------------------------------------------------------------- */

void tsi_last_works(const ts_step *s, int64_t *last, int64_t actions)
{
    for (int64_t i = 0; i < actions; i++)
        last[i] = -1;
    for (int64_t i = 0; i < s->worked.count && i < s->kept.count; i++)
        if (s->worked.action[i] >= 0 && !tsi_again_is_part(&s->works.recorded[i]))
            last[s->worked.action[i]] = i;
}

static bool begins(const tsi_kept_work *work)
{
    switch (work->kind->order) {
    case TSI_KEPT_ISSUE:
    case TSI_KEPT_MEET:
    case TSI_KEPT_DRAWN:
    case TSI_KEPT_BATCH:
    case TSI_KEPT_CLOSE:
        return true;
    case TSI_KEPT_FENCE:
    case TSI_KEPT_FREE:
    case TSI_KEPT_RANDOM:
    case TSI_KEPT_WAIT:
    case TSI_KEPT_PART: /* of those that go in buckets there is none */
    case TSI_KEPT_LAST:
        break;
    }
    return false;
}

static bool may_join(const ts_step *s, int64_t one, int64_t other)
{
    const tsi_kept_work *work = s->works.recorded;
    if (one < 0 || other <= one || !tsi_again_alike(&work[one], &work[other])) return false;
    for (int64_t i = one + 1; i < other; i++)
        if (begins(&work[i])) return false;
    return true;
}

/* The piece that waits for what a work began; -1: none. */
static int32_t find_wait(const ts_step *s, int32_t begun, const void *context)
{
    const tsi_works *w = &s->works;
    for (int32_t i = begun + 1; i < w->piece_count; i++) {
        const tsi_kept_work *work = &w->recorded[w->piece[i].first];
        if (w->piece[i].order == TSI_KEPT_WAIT && work->context == context) return i;
    }
    return -1;
}

static bool meet(const tsi_work_touch *a, const tsi_work_touch *b)
{
    return a->block == b->block && (a->is.writes || b->is.writes) && a->is.low < b->is.high &&
           b->is.low < a->is.high;
}

/* Does one of two pieces change what the other touches? What begins later may count on the channel
 * to have moved what it reads, without a wait. */
static bool touch_each_other(const tsi_works *w, int32_t one, int32_t other)
{
    const tsi_piece *a = &w->piece[one], *b = &w->piece[other];
    for (int64_t i = a->touch_first; i < a->touch_first + a->touch_count; i++)
        for (int64_t k = b->touch_first; k < b->touch_first + b->touch_count; k++)
            if (meet(&w->touch[i], &w->touch[k])) return true;
    return false;
}

/* Has it nothing to do with those before it that it would go with? */
static bool is_apart(const tsi_members *members, const tsi_works *w, int64_t at)
{
    const tsi_member *m = members->member;
    for (int64_t i = at - 1; i >= 0; i--) {
        if (touch_each_other(w, m[i].piece, m[at].piece)) return false;
        if (!m[i].follows) break;
    }
    return true;
}

static void describe_members(const tsi_buckets *b, const ts_step *s)
{
    bool waited = false; /* the one before */
    for (int64_t i = 0; i < b->members.count; i++) {
        tsi_member *m = &b->members.member[i];
        int64_t work = b->work[i];
        m->follows = m->follows && waited && may_join(s, b->work[i - 1], work);
        waited = false;
        if (work < 0) continue;
        m->piece = tsi_works_piece_of(&s->works, work);
        m->until = find_wait(s, m->piece, s->works.recorded[work].context);
        m->bytes = tsi_again_bytes(&s->works.recorded[work]);
        waited = m->until >= 0;
        m->follows = m->follows && waited && is_apart(&b->members, &s->works, i);
    }
}

ts_status tsi_buckets_make(tsi_buckets *b, const ts_step *s, const tsi_step_list *recorded,
                           const tsi_step_list *given, const int32_t *place)
{
    size_t n = (size_t)recorded->action_count + 1;
    int64_t *last = tsi_alloc_array(n, sizeof *last);
    b->members.member = tsi_calloc(n, sizeof *b->members.member);
    b->of = tsi_calloc(n, sizeof *b->of);
    b->work = tsi_calloc(n, sizeof *b->work);
    bool room = last && b->members.member && b->of && b->work;
    if (room) tsi_last_works(s, last, recorded->action_count);
    for (int32_t i = 0; room && i < recorded->action_count; i++) {
        if (!tsi_is_bucket(&given->action[place[i]])) continue;
        int64_t at = b->members.count++;
        bool same =
            at > 0 && b->of[at - 1] == place[i] && tsi_goes_in_buckets(&recorded->action[i]);
        b->of[at] = place[i];
        b->work[at] = last[i];
        b->members.member[at] = (tsi_member){ .follows = same };
    }
    if (room) describe_members(b, s);
    tsi_free(last);
    return room ? TS_OK : tsi_fail_memory("buckets of a step", n * sizeof *last);
}

void tsi_buckets_release(tsi_buckets *b)
{
    tsi_free(b->members.member);
    tsi_free(b->of);
    tsi_free(b->work);
    *b = (tsi_buckets){ 0 };
}

/* ---- the buckets of all ranks ---------------------------------------------------------------- */

static bool of_one_channel(const tsi_action *a, const tsi_action *b, tsi_action_is is)
{
    return is(a) && a->group == b->group && a->channel == b->channel;
}

/* How many of its channel stand before it in its list. */
static int64_t nth_of(const tsi_step_list *list, int32_t action, tsi_action_is is)
{
    int64_t nth = 0;
    for (int32_t i = 0; i < action; i++)
        nth += of_one_channel(&list->action[i], &list->action[action], is);
    return nth;
}

int64_t tsi_number_of(const tsi_step *step, int64_t rank, int32_t action, tsi_action_is is)
{
    const tsi_step_list *own = tsi_step_list_of(step, rank);
    const tsi_action *wanted = action >= 0 ? &own->action[action] : NULL;
    int64_t number = 0, nth = wanted ? nth_of(own, action, is) : 0;
    for (int32_t r = 0; r < step->list_count; r++)
        for (int32_t i = 0; i < step->list[r].action_count; i++) {
            const tsi_action *a = &step->list[r].action[i];
            if (!is(a) || step->group[a->group].member[0] != r) continue;
            if (wanted && of_one_channel(a, wanted, is) && nth-- == 0) return number;
            number++;
        }
    return wanted ? -1 : number;
}

int64_t tsi_hash_of_operations(const tsi_step *step)
{
    uint64_t hash = (uint64_t)step->list_count;
    for (int32_t r = 0; r < step->list_count; r++)
        for (int32_t i = 0; i < step->list[r].action_count; i++) {
            const tsi_action *a = &step->list[r].action[i];
            if (a->group < 0) continue;
            hash = tsi_hash_mix(hash, (uint64_t)r << 32 | (uint64_t)(uint32_t)a->group);
            hash = tsi_hash_mix(hash, (uint64_t)a->channel << 1 | tsi_is_bucket(a));
            hash = tsi_hash_mix(hash, (uint64_t)a->bytes);
        }
    return (int64_t)(hash >> 2);
}

/* ---- agreement ------------------------------------------------------------------------------- */

static const char of_buckets[] = "buckets of a step";

ts_status tsi_reduce_of_all(ts_rank *me, const char *about, ts_reduce reduce, int64_t *value,
                            int64_t count)
{
    ts_array all = TS_INIT(ts_array);
    all.data = value;
    all.meta = (ts_meta){ .shape = TS_SHAPE(count), .dtype = TS_DTYPE_I64 };
    return ts_group_all_reduce(ts_group_world(me), &all, &all, reduce,
                               TS_OPTIONS(ts_comm_options, .name = about));
}

bool tsi_all_can(ts_rank *me, const char *about, bool can, int64_t hash)
{
    int64_t same[3] = { can, hash, -hash };
    tsi_error_record why = { 0 };
    if (me->world->rank_count < 2) return can;
    bool failed = me->error.error.status != TS_OK;
    if (failed && me->error.error.blast != TS_BLAST_AGREED) return false; /* others were told */
    if (failed) {
        tsi_error_copy(&why, &me->error);
        tsi_error_clear(&me->error);
        same[0] = 0;
    }
    ts_status status = tsi_reduce_of_all(me, about, TS_REDUCE_MIN, same, 3);
    if (failed && status == TS_OK) tsi_rank_take_error(me, &why);
    return status == TS_OK && same[0] == 1 && same[1] == hash && same[2] == -hash;
}

bool tsi_shares_cancel(ts_rank *me, int64_t share, int64_t modulus)
{
    if (me->world->rank_count < 2) return true;
    ts_status status = tsi_reduce_of_all(me, "groups of a step", TS_REDUCE_SUM, &share, 1);
    return status == TS_OK && share % modulus == 0;
}

/* How many from `at` on follow each other, with room to go as one where that needs room. */
static int64_t possible(const tsi_members *members, int64_t at)
{
    int64_t count = 1;
    while (at + count < members->count && members->member[at + count].follows)
        count++;
    return members->member[at].room || members->member[at].bytes == 0 ? count : 1;
}

typedef struct joining {
    const tsi_kept_work **operation; /* scratch for as many as there are members */
    int64_t *least;                  /* [number of a bucket]: how many can go as one */
    int64_t buckets;
} joining;

/* The number of the bucket that this member is the first of on this rank; -1: another is, or it has
 * none. Others of it may follow the first, or begin behind members of other buckets. */
static int64_t first_of_bucket(const tsi_buckets *b, int64_t member, const ts_step *s,
                               const tsi_step *given, const joining *j)
{
    if (member > 0 && b->of[member] == b->of[member - 1]) return -1;
    int64_t number = tsi_number_of(given, s->rank->index, b->of[member], tsi_is_bucket);
    return number >= 0 && j->least[number] == INT64_MAX ? number : -1;
}

static ts_status join_agreed(const tsi_buckets *b, const ts_step *s, const tsi_step *given,
                             joining *j, int64_t *joined)
{
    int64_t *number = tsi_alloc_array((size_t)b->members.count + 1, sizeof *number);
    bool room = number != NULL; /* without it nobody joins */
    for (int64_t i = 0; i < j->buckets; i++)
        j->least[i] = room ? INT64_MAX : 1;
    for (int64_t i = 0; room && i < b->members.count; i++) {
        number[i] = first_of_bucket(b, i, s, given, j);
        if (number[i] >= 0) j->least[number[i]] = possible(&b->members, i);
    }
    ts_status status = tsi_reduce_of_all(s->rank, of_buckets, TS_REDUCE_MIN, j->least, j->buckets);
    for (int64_t i = 0; status == TS_OK && room && i < b->members.count; i++) {
        int64_t count = number[i] >= 0 ? j->least[number[i]] : 1;
        if (count < 2) continue;
        for (int64_t k = 0; k < count; k++)
            j->operation[k] = &s->works.recorded[b->work[i + k]];
        tsi_again_join(j->operation, count, b->members.member[i].room);
        *joined += count;
    }
    tsi_free(number);
    return status;
}

ts_status tsi_buckets_join(const tsi_buckets *b, const ts_step *s, const tsi_step *given,
                           bool taken, int64_t *joined)
{
    *joined = 0;
    if (s->rank->world->rank_count < 2) return TS_OK;
    int64_t hash = tsi_hash_of_operations(given);
    joining j = { .buckets = tsi_number_of(given, s->rank->index, -1, tsi_is_bucket) };
    j.operation = tsi_alloc_array((size_t)b->members.count + 1, sizeof *j.operation);
    j.least = tsi_alloc_array((size_t)j.buckets + 1, sizeof *j.least);
    bool all = tsi_all_can(s->rank, of_buckets, taken && j.operation && j.least, hash);
    ts_status status = ts_rank_status(s->rank);
    if (status == TS_OK && all && j.buckets > 0) status = join_agreed(b, s, given, &j, joined);
    tsi_free(j.operation);
    tsi_free(j.least);
    return status;
}

void tsi_buckets_refuse(const ts_step *s)
{
    (void)tsi_all_can(s->rank, of_buckets, false, 0);
}
