/* SPDX-License-Identifier: Apache-2.0 */
/* symmetric.c - memory that every member of a group has and all of them address.
 *
 *   head | member 0: pad, data | member 1: pad, data | ...      all on whole pages
 *   pad  [channel][member] words: twice the epoch, 1 more for a signal of that member that was not
 *        taken; of an earlier epoch: none, since a failure may have left it behind
 *
 * The first member makes it, the others find it: in its process by the pointer, in another one of
 * its node as an anonymous file (memfd) that is opened through /proc, so nothing is left behind
 * however a process ends. A number in the head tells the file from another node's of that name.
 *
 * INV: in an epoch a word gets its signal by its sender and loses it by its owner, so signals are
 * counted and never lost. Whether the memory can be had is agreed by all members before any gets
 * it, and all of it is there then: a page that is missing later would be a signal, not a sentence.
 */
#include "tessera/symmetric.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/intmath.h"
#include "base/room.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "comm/slots.h"

#if defined(__linux__)
#include <sys/syscall.h>
#endif

enum { PAGE = 4096, CHANNELS = 4, NAME_BYTES = 48, TIMEOUT_MS = 60000, SPIN_NS = 20000 };
enum { SLICE = 64 << 20 }; /* of a reservation: what a signal may undo */

typedef struct head {
    uint64_t cookie;
} head;

typedef struct home { /* one mapping; shared by the members of a process that made it */
    _Atomic int64_t references;
    char *base;
    size_t bytes;
    int fd; /* of the maker, while others open it; -1: none */
    bool mapped;
} home;

struct ts_symmetric {
    ts_group *group; /* retained */
    home *home;
    size_t bytes, pad, step; /* of a member: data, pad, both */
    int64_t size, me, timeout_ms;
    int32_t channels;
    bool one_process;
    char name[NAME_BYTES];
};

/* ---- homes ----------------------------------------------------------------------------------- */

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static void home_release(home *h)
{
    if (!h || atomic_fetch_sub_explicit(&h->references, 1, memory_order_acq_rel) != 1) return;
    if (h->fd >= 0) (void)close(h->fd);
    if (h->mapped)
        (void)munmap(h->base, h->bytes);
    else
        tsi_free(h->base);
    tsi_free(h);
}

static home *home_new(size_t bytes)
{
    home *h = tsi_calloc(1, sizeof *h);
    if (!h) return NULL;
    atomic_init(&h->references, 1);
    h->bytes = bytes;
    h->fd = -1;
    return h;
}

static bool map(home *h, int fd)
{
    void *at = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return false;
    h->base = at;
    h->mapped = true;
    return true;
}

#if defined(__linux__)
/* An anonymous file with all its pages; 0 or an errno. */
static int make_file(home *h)
{
    h->fd = (int)syscall(SYS_memfd_create, "tessera", 1u /* close on exec */);
    if (h->fd < 0) return errno;
    for (size_t at = 0; at < h->bytes;) {
        size_t slice = h->bytes - at < SLICE ? h->bytes - at : SLICE;
        int error = posix_fallocate(h->fd, (off_t)at, (off_t)slice);
        if (error == 0) at += slice;
        if (error != 0 && error != EINTR) return error;
    }
    return map(h, h->fd) ? 0 : errno;
}
#else
static int make_file(home *h)
{
    (void)h;
    return ENOSYS;
}
#endif

static int make_block(home *h)
{
    h->base = tsi_alloc_aligned(h->bytes, PAGE);
    if (!h->base) return ENOMEM;
    memset(h->base, 0, h->bytes);
    return 0;
}

/* Memory of this process alone, or a file that others can open; NULL: *error says why. */
static home *home_make(size_t bytes, bool alone, int64_t *error)
{
    int64_t room = tsi_host_bytes_free(); /* the system would end a process rather than refuse */
    home *h = home_new(bytes);
    if (!h || (room >= 0 && bytes > (size_t)room))
        *error = ENOMEM;
    else
        *error = alone ? make_block(h) : make_file(h);
    if (*error == 0) {
        uint64_t seed = (uint64_t)tsi_clock_ns() ^ (uint64_t)(uintptr_t)h;
        ((head *)(void *)h->base)->cookie = tsi_hash_mix(seed, (uint64_t)getpid()) | 1;
        return h;
    }
    home_release(h);
    return NULL;
}

/* The maker's memory from another process. NULL: it cannot be had from here. */
static home *home_open(size_t bytes, const int64_t *where)
{
    char path[64];
    home *h = home_new(bytes);
    if (!h) return NULL;
    (void)snprintf(path, sizeof path, "/proc/%" PRId64 "/fd/%" PRId64, where[0], where[1]);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool found = fd >= 0 && lseek(fd, 0, SEEK_END) == (off_t)bytes && map(h, fd) &&
                 ((const head *)(const void *)h->base)->cookie == (uint64_t)where[2];
    if (fd >= 0) (void)close(fd);
    if (found) return h;
    home_release(h);
    return NULL;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

enum { FACTS = 4 };

static ts_status gather(const ts_symmetric *s, const int64_t *mine, int64_t *all)
{
    ts_array in = TS_INIT(ts_array), out = in;
    ts_comm_options options = TS_INIT(ts_comm_options);
    in.meta = (ts_meta){ .shape = TS_SHAPE(FACTS), .dtype = TS_DTYPE_I64 };
    out.meta = (ts_meta){ .shape = TS_SHAPE(FACTS * s->size), .dtype = TS_DTYPE_I64 };
    in.data = (void *)(uintptr_t)mine;
    out.data = all;
    options.name = s->name;
    return (ts_group_all_gather)(s->group, &in, &out, &options);
}

static ts_status check_alike(const ts_symmetric *s, const int64_t *all)
{
    for (int64_t m = 1; m < s->size; m++) {
        const int64_t *other = all + FACTS * m;
        if (other[0] == all[0] && other[1] == all[1]) continue;
        return TSI_FAIL(TS_ERR_SHAPE,
                        "%s: rank %" PRId64 " asks for %" PRId64 " bytes and %" PRId64
                        " channels, rank %" PRId64 " for %" PRId64 " and %" PRId64,
                        s->name, ts_group_rank(s->group, 0), all[0], all[1],
                        ts_group_rank(s->group, m), other[0], other[1]);
    }
    return TS_OK;
}

static ts_status check_found(const ts_symmetric *s, const int64_t *all)
{
    int64_t first = ts_group_rank(s->group, 0);
    if (!all[0])
        return TSI_FAIL(TS_ERR_MEMORY, "%s: rank %" PRId64 " cannot get %zu bytes: %s", s->name,
                        first, s->step * (size_t)s->size + PAGE, strerror((int)all[1]));
    for (int64_t m = 1; m < s->size; m++)
        if (!all[FACTS * m])
            return TSI_FAIL(TS_ERR_MISSING,
                            "%s: ranks %" PRId64 " and %" PRId64
                            " cannot address the same memory: they are not on one node, or the "
                            "system does not let them",
                            s->name, first, ts_group_rank(s->group, m));
    return TS_OK;
}

static bool is_here(const ts_symmetric *s, int64_t member)
{
    const ts_world *world = s->group->comm->rank->world;
    int64_t rank = ts_group_rank(s->group, member);
    return rank >= world->first_index && rank < world->first_index + world->local_count;
}

/* [coll] The first member makes the memory and tells where it is; all tell whether they have it. */
static ts_status find_home(ts_symmetric *s, int64_t *all)
{
    size_t bytes = s->step * (size_t)s->size + PAGE;
    int64_t mine[FACTS] = { (int64_t)s->bytes, s->channels, 0, 0 };
    TSI_TRY(gather(s, mine, all));
    TSI_TRY(check_alike(s, all));
    memset(mine, 0, sizeof mine);
    int64_t error = 0;
    if (s->me == 0) s->home = home_make(bytes, s->one_process, &error);
    /* Members of this process are counted before they know of it: one that fails leaves it behind
     * instead of taking it from others. */
    for (int64_t m = 1; s->me == 0 && s->home && m < s->size; m++)
        if (is_here(s, m)) atomic_fetch_add_explicit(&s->home->references, 1, memory_order_relaxed);
    if (s->me == 0 && s->home) {
        mine[0] = getpid();
        mine[1] = s->home->fd;
        mine[2] = (int64_t)((const head *)(const void *)s->home->base)->cookie;
        mine[3] = (int64_t)(uintptr_t)s->home;
    }
    TSI_TRY(gather(s, mine, all));
    if (s->me > 0 && all[2] && is_here(s, 0)) {
        s->home = (home *)(uintptr_t)all[3]; /* its maker counted this member */
    } else if (s->me > 0 && all[2]) {
        s->home = home_open(bytes, all);
    }
    mine[0] = s->home != NULL;
    mine[1] = error;
    TSI_TRY(gather(s, mine, all)); /* nobody lets go of it before all have it */
    if (s->me == 0 && s->home && s->home->fd >= 0) {
        (void)close(s->home->fd);
        s->home->fd = -1;
    }
    return check_found(s, all);
}

/* ---- the memory ------------------------------------------------------------------------------ */

static ts_status check_options(const ts_group *group, size_t bytes, const ts_symmetric_options *o)
{
    ts_world *world = group->comm->rank->world;
    if (tsi_comm_engine(world)->no_data)
        return TSI_FAIL(TS_ERR_STATE, "symmetric memory: ranks of the engine \"%s\" have no memory",
                        tsi_comm_engine(world)->name);
    if (o->channels < 0 || o->channels > TS_SYMMETRIC_CHANNELS_MAX)
        return TSI_FAIL(TS_ERR_ARG, "symmetric memory: %d channels are asked for, 1 to %d can be",
                        o->channels, TS_SYMMETRIC_CHANNELS_MAX);
    if (o->timeout_ms < 0)
        return TSI_FAIL(TS_ERR_ARG,
                        "symmetric memory: timeout_ms is %" PRId64 ", it must not be negative",
                        o->timeout_ms);
    if (bytes > (size_t)INT64_MAX / 4 / (size_t)group->size)
        return TSI_FAIL(TS_ERR_ARG, "symmetric memory: %zu bytes on each of %" PRId64 " ranks",
                        bytes, group->size);
    return TS_OK;
}

static int64_t timeout_of(const ts_group *group, const ts_symmetric_options *o)
{
    const ts_world *world = group->comm->rank->world;
    if (o->timeout_ms > 0) return o->timeout_ms;
    if (group->timeout_ms > 0) return group->timeout_ms;
    return world->timeout_ms > 0 ? world->timeout_ms : TIMEOUT_MS;
}

static ts_symmetric *symmetric_new(ts_group *group, size_t bytes, const ts_symmetric_options *o)
{
    ts_symmetric *s = tsi_calloc(1, sizeof *s);
    if (!s) {
        (void)tsi_fail_memory("symmetric memory", sizeof *s);
        return NULL;
    }
    const ts_world *world = group->comm->rank->world;
    s->group = group;
    group->references++;
    s->size = group->size;
    s->me = group->member;
    s->channels = o->channels ? o->channels : CHANNELS;
    s->timeout_ms = timeout_of(group, o);
    s->bytes = bytes;
    s->pad = pages((size_t)s->channels * (size_t)s->size * sizeof(tsi_word));
    s->step = s->pad + pages(bytes);
    s->one_process = world->local_count == world->rank_count;
    (void)snprintf(s->name, sizeof s->name, "%s", o->name ? o->name : "symmetric memory");
    return s;
}

ts_symmetric *(ts_symmetric_alloc)(ts_group *group, size_t bytes,
                                   const ts_symmetric_options *options)
{
    ts_symmetric_options o = TS_INIT(ts_symmetric_options);
    if (!group) {
        (void)TSI_FAIL(TS_ERR_NULL, "symmetric memory: the group is NULL");
        return NULL;
    }
    if (tsi_rank_enter(group->comm->rank) != TS_OK || group->member < 0) return NULL;
    if (tsi_comm_once(group->comm->rank, "symmetric memory") != TS_OK) return NULL;
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (check_options(group, bytes, &o) != TS_OK) return NULL;
    ts_symmetric *s = symmetric_new(group, bytes, &o);
    int64_t *all = s ? tsi_alloc_array((size_t)s->size * FACTS, sizeof *all) : NULL;
    ts_status status = all ? find_home(s, all) : TS_ERR_MEMORY;
    if (s && !all) status = tsi_fail_memory("symmetric memory", (size_t)s->size * 32);
    tsi_free(all);
    if (status == TS_OK) return s;
    ts_symmetric_release(s);
    return NULL;
}

void ts_symmetric_release(ts_symmetric *s)
{
    if (!s) return;
    home_release(s->home);
    ts_group_release(s->group);
    tsi_free(s);
}

size_t ts_symmetric_bytes(const ts_symmetric *s)
{
    return s ? s->bytes : 0;
}

int64_t ts_symmetric_size(const ts_symmetric *s)
{
    return s ? s->size : 0;
}

int64_t ts_symmetric_index(const ts_symmetric *s)
{
    return s ? s->me : -1;
}

int32_t ts_symmetric_channel_count(const ts_symmetric *s)
{
    return s ? s->channels : 0;
}

static char *member_at(const ts_symmetric *s, int64_t member)
{
    return s->home->base + PAGE + (size_t)member * s->step;
}

void *ts_symmetric_data(const ts_symmetric *s, int64_t member)
{
    return s && member >= 0 && member < s->size ? member_at(s, member) + s->pad : NULL;
}

ts_status ts_symmetric_view(const ts_symmetric *s, int64_t member, size_t offset,
                            const ts_meta *meta, ts_array *out)
{
    if (!s || !meta || !out)
        return TSI_FAIL(TS_ERR_NULL, "symmetric memory: %s is NULL",
                        !s      ? "it"
                        : !meta ? "the meta of a view"
                                : "the view");
    *out = (ts_array)TS_INIT(ts_array);
    char *data = ts_symmetric_data(s, member);
    int64_t count = ts_shape_count(&meta->shape);
    size_t size = ts_dtype_size((ts_dtype)meta->dtype);
    if (!data)
        return TSI_FAIL(TS_ERR_ARG, "%s: there is no member %" PRId64 " of %" PRId64, s->name,
                        member, s->size);
    if (count < 0 || size == 0 || offset % size != 0 || offset > s->bytes ||
        (size_t)count > (s->bytes - offset) / size)
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: a view of %" PRId64 " elements of %s, %zu bytes from the begin, does "
                        "not fit in %zu bytes or is not on its size",
                        s->name, count, ts_dtype_name((ts_dtype)meta->dtype), offset, s->bytes);
    out->data = data + offset;
    out->meta = *meta;
    return TS_OK;
}

/* ---- signals --------------------------------------------------------------------------------- */

/* In the pad of member `to`: the word of signals from `from`. */
static tsi_word *word_of(const ts_symmetric *s, int64_t to, int64_t from, int32_t channel)
{
    tsi_word *pad = (tsi_word *)(void *)member_at(s, to);
    return pad + (int64_t)channel * s->size + from;
}

static ts_status enter(const ts_symmetric *s, int64_t member, int32_t channel)
{
    if (!s) return TSI_FAIL(TS_ERR_NULL, "symmetric memory: it is NULL");
    TSI_TRY(tsi_rank_enter(s->group->comm->rank));
    TSI_TRY(tsi_comm_once(s->group->comm->rank, s->name));
    if (channel < 0 || channel >= s->channels)
        return TSI_FAIL(TS_ERR_ARG, "%s: there is no channel %d of %d", s->name, channel,
                        s->channels);
    if (member < 0 || member >= s->size)
        return TSI_FAIL(TS_ERR_ARG, "%s: there is no member %" PRId64 " of %" PRId64, s->name,
                        member, s->size);
    return TS_OK;
}

/* waited_ms 0: the member has ended. */
static ts_status in_vain(const ts_symmetric *s, int64_t member, int32_t channel, bool takes,
                         int64_t waited_ms)
{
    char doing[256];
    const char *where = s->group->comm->rank->where;
    (void)snprintf(doing, sizeof doing, "ts_symmetric_%s '%s', channel %d (%.120s)",
                   takes ? "wait" : "signal", s->name, channel, where);
    return tsi_comm_unmet(s->group, ts_group_rank(s->group, member), waited_ms, doing, s->name);
}

/* Takes the signal, or puts it where there is none; *slept: not at once. Members of other processes
 * wake nobody here, so that one looks more often. */
static ts_status turn_when_due(const ts_symmetric *s, tsi_word *word, bool takes, int64_t member,
                               int32_t channel, bool *slept)
{
    ts_rank *rank = s->group->comm->rank;
    int64_t look_ns = s->one_process ? 2000000 : 100000;
    int64_t spin_ns = rank->world->rank_count <= tsi_core_count() ? SPIN_NS : 0;
    int64_t now = tsi_clock_ns();
    int64_t end = tsi_clock_after_ms(s->timeout_ms);
    int64_t peer = ts_group_rank(s->group, member);
    uint32_t none = (uint32_t)(2 * s->group->comm->epoch), signal = none + 1;
    for (;;) {
        bool absent = tsi_comm_absent(rank->world, peer); /* before the look at what it did last */
        uint32_t have = atomic_load_explicit(word, memory_order_acquire);
        if (takes == (have == signal) &&
            atomic_compare_exchange_strong_explicit(word, &have, takes ? none : signal,
                                                    memory_order_acq_rel, memory_order_acquire)) {
            if (s->one_process) tsi_wake_all(word);
            return TS_OK;
        }
        if (tsi_comm_faulty(rank->world)) TSI_TRY(tsi_comm_ended(s->group, s->name));
        if (absent) return in_vain(s, member, channel, takes, 0);
        if (now >= end) return in_vain(s, member, channel, takes, s->timeout_ms);
        *slept = true;
        tsi_comm_awaits(rank, peer);
        (void)tsi_wait_word(word, have, spin_ns, now + look_ns < end ? now + look_ns : end);
        now = tsi_clock_ns();
    }
}

static ts_status turn(const ts_symmetric *s, tsi_word *word, bool takes, int64_t member,
                      int32_t channel)
{
    bool slept = false;
    ts_status status = turn_when_due(s, word, takes, member, channel, &slept);
    if (slept) tsi_comm_awaits(s->group->comm->rank, -1);
    return status;
}

ts_status(ts_symmetric_signal)(ts_symmetric *s, int64_t member, int32_t channel)
{
    TSI_TRY(enter(s, member, channel));
    return turn(s, word_of(s, member, s->me, channel), false, member, channel);
}

ts_status(ts_symmetric_wait)(ts_symmetric *s, int64_t member, int32_t channel)
{
    TSI_TRY(enter(s, member, channel));
    return turn(s, word_of(s, s->me, member, channel), true, member, channel);
}

ts_status(ts_symmetric_barrier)(ts_symmetric *s, int32_t channel)
{
    TSI_TRY(enter(s, 0, channel));
    for (int64_t i = 1; i < s->size; i++)
        TSI_TRY((ts_symmetric_signal)(s, (s->me + i) % s->size, channel));
    for (int64_t i = 1; i < s->size; i++)
        TSI_TRY((ts_symmetric_wait)(s, (s->me + i) % s->size, channel));
    return TS_OK;
}
