/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - groups: lists of ranks in the caller's order, and what they become on first use.
 *
 * Making a group checks and copies its list, and nothing else. The first collective looks the list
 * up in the world's table of teams and the rank's table of seats. Teams and seats that were used
 * stay until the world closes: a peer may still hold the group and go on counting (slots.h).
 *
 * INV: member i of a group is entry i of the caller's list. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "comm/slots.h"

/* ---- making and releasing handles ----------------------------------------------------------- */

static void group_link(ts_group *group, tsi_comm_rank *comm)
{
    group->comm = comm;
    group->references = 1;
    group->next = comm->groups;
    if (comm->groups != NULL) comm->groups->previous = group;
    comm->groups = group;
}

static void group_free(ts_group *group)
{
    if (group->previous != NULL)
        group->previous->next = group->next;
    else
        group->comm->groups = group->next;
    if (group->next != NULL) group->next->previous = group->previous;
    tsi_free(group->own);
    tsi_free(group->name);
    tsi_free(group);
}

void tsi_group_retain(ts_group *group)
{
    group->references++;
}

void ts_group_release(ts_group *group)
{
    if (group == NULL || group == group->comm->world_group) return;
    if (--group->references == 0) group_free(group);
}

ts_group *ts_group_world(ts_rank *me)
{
    if (me == NULL) return NULL;
    tsi_comm_rank *comm = tsi_comm_of_rank(me);
    if (comm == NULL) return NULL;
    if (comm->world_group != NULL) return comm->world_group;
    ts_group *group = tsi_calloc(1, sizeof *group);
    if (group == NULL) {
        (void)tsi_fail_memory("the group of all ranks", sizeof *group);
        return NULL;
    }
    group_link(group, comm);
    group->size = me->world->rank_count;
    group->member = me->index;
    comm->world_group = group;
    return group;
}

static const char *group_name(const ts_group_options *options)
{
    return options != NULL && options->name != NULL ? options->name : "group";
}

static ts_status check_duplicates(const int64_t *ranks, int64_t count, int64_t bound,
                                  const char *name)
{
    bool ascending = true;
    for (int64_t i = 1; i < count && ascending; i++)
        ascending = ranks[i - 1] < ranks[i];
    if (ascending) return TS_OK;
    size_t bytes = (size_t)(bound / 8 + 1);
    unsigned char *seen = tsi_calloc(bytes, 1);
    if (seen == NULL) return tsi_fail_memory("check of a group's ranks", bytes);
    ts_status status = TS_OK;
    for (int64_t i = 0; i < count && status == TS_OK; i++) {
        unsigned char bit = (unsigned char)(1u << (ranks[i] & 7));
        if (seen[ranks[i] >> 3] & bit)
            status = TSI_FAIL(TS_ERR_ARG, "%s: rank %" PRId64 " is listed twice", name, ranks[i]);
        seen[ranks[i] >> 3] |= bit;
    }
    tsi_free(seen);
    return status;
}

static ts_status check_list(const int64_t *list, int64_t count, int64_t bound, const char *what,
                            const char *name)
{
    if (list == NULL) return TSI_FAIL(TS_ERR_NULL, "%s: the list of %ss is NULL", name, what);
    if (count < 1 || count > bound)
        return TSI_FAIL(TS_ERR_ARG, "%s: %" PRId64 " %ss, 1 to %" PRId64 " are possible", name,
                        count, what, bound);
    for (int64_t i = 0; i < count; i++)
        if (list[i] < 0 || list[i] >= bound)
            return TSI_FAIL(TS_ERR_ARG,
                            "%s: entry %" PRId64 " of the list is %s %" PRId64 ", 0 to %" PRId64
                            " are possible",
                            name, i, what, list[i], bound - 1);
    return check_duplicates(list, count, bound, name);
}

static ts_status check_options(const ts_group_options *options)
{
    if (options == NULL) return TS_OK;
    if (options->struct_size < sizeof *options)
        return TSI_FAIL(TS_ERR_ARG, "group: struct_size of the options is %zu, not %zu",
                        options->struct_size, sizeof *options);
    if (options->timeout_ms < 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: timeout_ms is %" PRId64 ", it must not be negative",
                        group_name(options), options->timeout_ms);
    return TS_OK;
}

/* A handle that owns `list` (world ranks); frees it on failure. */
static ts_group *group_make(tsi_comm_rank *comm, int64_t *list /* takes */, int64_t count,
                            const ts_group_options *options)
{
    ts_group *group = tsi_calloc(1, sizeof *group);
    char *name = NULL;
    if (group != NULL && options != NULL && options->name != NULL) name = tsi_strdup(options->name);
    if (group == NULL || (name == NULL && options != NULL && options->name != NULL)) {
        (void)tsi_fail_memory("a group", sizeof *group);
        tsi_free(group);
        tsi_free(list);
        return NULL;
    }
    group->size = count;
    group->member = -1;
    group->ranks = list;
    group->own = list;
    group->name = name;
    group->timeout_ms = options != NULL ? options->timeout_ms : 0;
    for (int64_t i = 0; i < count && group->member < 0; i++)
        if (list[i] == comm->rank->index) group->member = i;
    group_link(group, comm);
    return group;
}

ts_group *ts_group_create(ts_rank *me, const int64_t *ranks, int64_t count,
                          const ts_group_options *options)
{
    if (tsi_rank_enter(me) != TS_OK) return NULL;
    if (check_options(options) != TS_OK) return NULL;
    if (check_list(ranks, count, me->world->rank_count, "rank", group_name(options)) != TS_OK)
        return NULL;
    tsi_comm_rank *comm = tsi_comm_of_rank(me);
    if (comm == NULL) return NULL;
    int64_t *list = tsi_alloc_array((size_t)count, sizeof *list);
    if (list == NULL) {
        (void)tsi_fail_memory("a group's list of ranks", (size_t)count * sizeof *list);
        return NULL;
    }
    memcpy(list, ranks, (size_t)count * sizeof *list);
    return group_make(comm, list, count, options);
}

ts_group *ts_group_sub(ts_group *parent, const int64_t *members, int64_t count,
                       const ts_group_options *options)
{
    if (parent == NULL) {
        (void)TSI_FAIL(TS_ERR_NULL, "group: the parent is NULL");
        return NULL;
    }
    if (tsi_rank_enter(parent->comm->rank) != TS_OK) return NULL;
    if (check_options(options) != TS_OK) return NULL;
    if (check_list(members, count, parent->size, "member", group_name(options)) != TS_OK)
        return NULL;
    int64_t *list = tsi_alloc_array((size_t)count, sizeof *list);
    if (list == NULL) {
        (void)tsi_fail_memory("a group's list of ranks", (size_t)count * sizeof *list);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        list[i] = ts_group_rank(parent, members[i]);
    return group_make(parent->comm, list, count, options);
}

int64_t ts_group_size(const ts_group *group)
{
    return group != NULL ? group->size : 0;
}

int64_t ts_group_index(const ts_group *group)
{
    return group != NULL ? group->member : -1;
}

int64_t ts_group_rank(const ts_group *group, int64_t member)
{
    if (group == NULL || member < 0 || member >= group->size) return -1;
    return group->ranks != NULL ? group->ranks[member] : member;
}

/* ---- teams: one for each list, in the world -------------------------------------------------- */

typedef struct team_body { /* one allocation: team, list, name */
    tsi_team team;
    char name[64];
    int64_t rank[];
} team_body;

static bool team_equals(const void *value, const void *wanted)
{
    const tsi_team *team = value;
    const ts_group *group = wanted;
    if (team->size != group->size) return false;
    if (group->ranks != NULL)
        return memcmp(team->rank, group->ranks, (size_t)team->size * sizeof *team->rank) == 0;
    for (int64_t i = 0; i < team->size; i++)
        if (team->rank[i] != i) return false;
    return true;
}

/* "world", "ranks 0..3", "ranks 0 2 5", "ranks 0 2 5 ... (40)". */
static void team_describe(team_body *body, int64_t world_size)
{
    const int64_t *rank = body->rank;
    int64_t size = body->team.size;
    bool run = true;
    for (int64_t i = 1; i < size && run; i++)
        run = rank[i] == rank[0] + i;
    if (run && size == world_size)
        (void)snprintf(body->name, sizeof body->name, "world");
    else if (run && size > 2)
        (void)snprintf(body->name, sizeof body->name, "ranks %" PRId64 "..%" PRId64, rank[0],
                       rank[size - 1]);
    else {
        int length = snprintf(body->name, sizeof body->name, "ranks");
        for (int64_t i = 0; i < size && length < 40; i++)
            length += snprintf(body->name + length, sizeof body->name - (size_t)length, " %" PRId64,
                               rank[i]);
        if (length >= 40)
            (void)snprintf(body->name + length, sizeof body->name - (size_t)length,
                           " ... (%" PRId64 ")", size);
    }
    body->team.name = body->name;
}

static tsi_team *team_make(const ts_group *group, uint64_t hash)
{
    size_t bytes = sizeof(team_body) + (size_t)group->size * sizeof(int64_t);
    team_body *body = tsi_calloc(1, bytes);
    if (body == NULL) return NULL;
    for (int64_t i = 0; i < group->size; i++)
        body->rank[i] = ts_group_rank(group, i);
    body->team.hash = hash;
    body->team.size = group->size;
    body->team.rank = body->rank;
    team_describe(body, group->comm->rank->world->rank_count);
    return &body->team;
}

void tsi_team_free(tsi_team *team)
{
    tsi_free(team); /* the first member of its body */
}

static uint64_t list_hash(const ts_group *group)
{
    uint64_t hash = tsi_hash_mix(0x7465616D, (uint64_t)group->size);
    for (int64_t i = 0; i < group->size; i++)
        hash = tsi_hash_mix(hash, (uint64_t)ts_group_rank(group, i));
    return hash;
}

static tsi_team *team_of(const ts_group *group)
{
    tsi_comm_world *world = group->comm->world;
    uint64_t hash = list_hash(group);
    pthread_mutex_lock(&world->lock);
    tsi_team *team = tsi_map_find(&world->team, hash, team_equals, group);
    if (team == NULL) {
        if (tsi_map_reserve(&world->team, 1)) team = team_make(group, hash);
        if (team != NULL) (void)tsi_map_insert(&world->team, hash, team); /* has room */
    }
    pthread_mutex_unlock(&world->lock);
    if (team == NULL) (void)tsi_fail_memory("a group's first use", sizeof *team);
    return team;
}

/* ---- seats: one for each team, in the rank --------------------------------------------------- */

static uint64_t seat_key(const tsi_team *team)
{
    return tsi_hash_mix(0x73656174, (uint64_t)(uintptr_t)team);
}

static bool seat_equals(const void *value, const void *wanted)
{
    return ((const tsi_seat *)value)->team == wanted;
}

static tsi_seat *seat_of(tsi_comm_rank *comm, tsi_team *team)
{
    tsi_seat *seat = tsi_map_find(&comm->seat, seat_key(team), seat_equals, team);
    if (seat != NULL) return seat;
    if (tsi_map_reserve(&comm->seat, 1)) seat = tsi_calloc(1, sizeof *seat);
    if (seat == NULL) {
        (void)tsi_fail_memory("a rank's place in a group", sizeof *seat);
        return NULL;
    }
    seat->team = team;
    (void)tsi_map_insert(&comm->seat, seat_key(team), seat); /* has room */
    return seat;
}

ts_status tsi_seat_peers(tsi_seat *seat)
{
    if (seat->sent != NULL) return TS_OK;
    size_t bytes = 2 * (size_t)seat->team->size * sizeof *seat->sent;
    seat->sent = tsi_calloc(1, bytes);
    if (seat->sent == NULL) return tsi_fail_memory("counters of sends and receives", bytes);
    seat->received = seat->sent + seat->team->size;
    return TS_OK;
}

void tsi_seat_reset_all(tsi_comm_rank *comm)
{
    for (size_t i = 0; i < comm->seat.capacity; i++) {
        tsi_seat *seat = comm->seat.entry[i].value;
        if (seat == NULL) continue;
        memset(seat->sequence, 0, sizeof seat->sequence);
        if (seat->sent != NULL)
            memset(seat->sent, 0, 2 * (size_t)seat->team->size * sizeof *seat->sent);
    }
}

TSI_STEP_PATH ts_status tsi_group_bind(ts_group *group)
{
    if (group->seat != NULL) return TS_OK;
    tsi_team *team = team_of(group);
    if (team == NULL) return TS_ERR_MEMORY;
    tsi_seat *seat = seat_of(group->comm, team);
    if (seat == NULL) return TS_ERR_MEMORY;
    group->team = team;
    group->seat = seat;
    group->ranks = team->rank;
    tsi_free(group->own);
    group->own = NULL;
    return TS_OK;
}

void tsi_group_forget_all(tsi_comm_rank *comm)
{
    while (comm->groups != NULL)
        group_free(comm->groups);
    for (size_t i = 0; i < comm->seat.capacity; i++) {
        tsi_seat *seat = comm->seat.entry[i].value;
        if (seat == NULL) continue;
        tsi_free(seat->sent);
        tsi_free(seat);
    }
}
