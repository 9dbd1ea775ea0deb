/* SPDX-License-Identifier: Apache-2.0 */
/* limit.c - does the memory that a step needs fit into what a rank may have? Asked after the plan
 * and before anything is allocated.
 *
 *   train.memory   none: nobody asks    80GiB: so much    auto: what is free where the rank is,
 *                  divided by the ranks that are there
 *
 * Where it does not fit, settings that need less are planned one after another, those that cost
 * least first, and the sentence has the first that fits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "array/pool.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/launcher.h"
#include "base/rank.h"
#include "base/room.h"
#include "base/text.h"
#include "base/thread.h"
#include "model/model.h"
#include "runtime/record.h"
#include "train/run.h"

enum { SENTENCE = 640, STACK_BYTES = 1 << 20 };

/* ---- how much there is ----------------------------------------------------------------------- */

ts_status tsi_limit_parse(const char *text, int64_t *bytes)
{
    static const char *const units[] = { "", "KiB", "MiB", "GiB", "TiB" };
    tsi_cursor cursor = tsi_cursor_of("train.memory", text);
    double number = 0;
    char unit[8] = "";
    *bytes = 0;
    if (strcmp(text, "none") == 0) return TS_OK;
    *bytes = -1;
    if (strcmp(text, "auto") == 0) return TS_OK;
    bool good = tsi_cursor_real(&cursor, &number);
    if (good && !tsi_cursor_done(&cursor)) good = tsi_cursor_word(&cursor, unit, sizeof unit);
    size_t i = 0;
    while (i < TSI_COUNT_OF(units) && strcmp(unit, units[i]) != 0)
        i++;
    number = number * (double)((int64_t)1 << (10 * (i < 5 ? i : 0)));
    good = good && number >= 1 && number < 9e18; /* none is said by its name */
    if (good && i < TSI_COUNT_OF(units) && tsi_cursor_done(&cursor)) {
        *bytes = (int64_t)number;
        return TS_OK;
    }
    return TSI_FAIL(TS_ERR_ARG,
                    "train.memory: expected auto, none or bytes of a rank, 80GiB, found \"%s\"",
                    text);
}

ts_status tsi_limit_share(ts_group *all, uint64_t place, int64_t *bytes)
{
    int64_t ranks = ts_group_size(all), sharers = 0;
    uint64_t *places = tsi_calloc((size_t)ranks, sizeof *places);
    if (!places) return tsi_fail_memory("where ranks are", (size_t)ranks * sizeof *places);
    ts_array in = TS_INIT(ts_array), out = TS_INIT(ts_array);
    in.data = &place;
    in.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    out.data = places;
    out.meta = (ts_meta){ .shape = TS_SHAPE(ranks), .dtype = TS_DTYPE_I64 };
    ts_status status = ts_group_all_gather(all, &in, &out, NULL);
    for (int64_t i = 0; i < ranks; i++)
        sharers += places[i] == place;
    tsi_free(places);
    if (status == TS_OK && place != 0 && sharers > 0) *bytes /= sharers;
    return status;
}

/* Which device a rank has, among those of all machines; what a process may see of them is part of
 * its name. */
static uint64_t place_of(const tsi_device *device)
{
    char host[256] = "";
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    (void)gethostname(host, sizeof host - 1);
    uint64_t place = tsi_hash_text(tsi_hash_text(1, host), device->name);
    return tsi_hash_text(place, visible ? visible : "") | 1;
}

/* *bytes: of one rank; -1: it is not known. [coll] */
static ts_status found_here(const tsi_run *run, int64_t *bytes)
{
    const tsi_rank_device *mine = tsi_rank_device_of(run->me);
    tsi_device_properties about = { .bytes = 0 };
    if (mine && !mine->device->host_readable && mine->device->properties)
        mine->device->properties(mine->device, &about);
    if (about.bytes > 0) {
        *bytes = about.bytes;
        return tsi_limit_share(run->all, place_of(mine->device), bytes);
    }
    tsi_launcher launcher = tsi_launcher_find();
    int64_t processes = launcher.local_size > 0 ? launcher.local_size : 1;
    *bytes = tsi_host_bytes_free();
    if (*bytes >= 0) *bytes /= run->me->world->local_count * processes;
    return tsi_limit_share(run->all, 0, bytes); /* others may have devices */
}

/* ---- what would fit -------------------------------------------------------------------------- */

typedef struct search {
    const ts_train_config *config;
    const char *device; /* kind of the run's; NULL: that of the configuration */
    int64_t vocab, limit;
    int64_t least;  /* of all that was tried */
    char fits[256]; /* "parallel.recompute=full"; "": nothing that was tried */
    int64_t fits_bytes;
    const char *set[2]; /* that are tried with others, at the moment */
    int set_count;
    bool more_ranks; /* may be tried */
} search;

/* "fsdp=8" for "dp=8" where `from` is "dp"; sizes times `times` where `from` is `to`. False: there
 * is no such axis. */
static bool other_mesh(const char *mesh, const char *from, const char *to, int64_t times, char *out,
                       size_t size)
{
    size_t length = strlen(from);
    for (const char *at = strstr(mesh, from); at; at = strstr(at + 1, from)) {
        bool begins = at == mesh || at[-1] == ' ' || at[-1] == ',';
        if (!begins || at[length] != '=') continue;
        char *end;
        long long extent = strtoll(at + length + 1, &end, 10);
        snprintf(out, size, "%.*s%s=%lld%s", (int)(at - mesh), mesh, to, extent * times, end);
        return extent > 1 || times > 1;
    }
    return false;
}

/* With all settings of the search and `more`, if it is not NULL. True: it fits, the search ends. */
static bool try_out(search *s, const char *more)
{
    ts_train_config *copy = tsi_alloc(sizeof *copy);
    ts_train_cost *cost = tsi_alloc(sizeof *cost);
    bool good = copy && cost;
    if (good) *copy = *s->config;
    if (good && s->vocab > 0) copy->model.vocab = s->vocab;
    if (good && s->device)
        (void)snprintf(copy->train.device, sizeof copy->train.device, "%s", s->device);
    for (int i = 0; good && i < s->set_count; i++)
        good = ts_train_config_set(copy, s->set[i]) == TS_OK;
    if (good && more) good = ts_train_config_set(copy, more) == TS_OK;
    good = good && ts_train_forecast(copy, cost) == TS_OK;
    int64_t peak = good ? cost->memory.peak : INT64_MAX;
    tsi_free(copy);
    tsi_free(cost);
    if (peak < s->least) s->least = peak;
    if (peak > s->limit) return false;
    s->fits_bytes = peak;
    for (int i = 0; i < s->set_count; i++)
        snprintf(s->fits + strlen(s->fits), sizeof s->fits - strlen(s->fits), "%s%s",
                 i ? " and " : "", s->set[i]);
    if (more)
        snprintf(s->fits + strlen(s->fits), sizeof s->fits - strlen(s->fits), "%s%s",
                 s->set_count ? " and " : "", more);
    return true;
}

/* Larger divisors of the batch, the next ones first. */
static bool try_parts(search *s)
{
    enum { TRIES = 4 };
    int64_t batch = s->config->train.batch, parts = s->config->train.accumulate;
    char set[64];
    for (int i = 0; i < TRIES && parts < batch; i++) {
        do
            parts++;
        while (parts < batch && batch % parts != 0);
        snprintf(set, sizeof set, "train.accumulate=%lld", (long long)parts);
        if (try_out(s, set)) return true;
    }
    return false;
}

/* The same ranks with shards instead of copies; false: there are no copies. */
static bool shards_for_copies(const search *s, char *out, size_t size)
{
    static const char *const copies[] = { "replicate", "dp" };
    char other[TSI_CONFIG_TEXT_MAX + 64];
    const char *mesh = s->config->parallel.mesh;
    for (size_t i = 0; i < TSI_COUNT_OF(copies) && !strstr(mesh, "fsdp"); i++) {
        if (!other_mesh(mesh, copies[i], "fsdp", 1, other, sizeof other)) continue;
        snprintf(out, size, "parallel.mesh=%s", other);
        return true;
    }
    return false;
}

/* More of them, on as many more ranks. */
static bool try_ranks(search *s)
{
    enum { TIMES = 64 };
    char other[TSI_CONFIG_TEXT_MAX + 64], set[sizeof other + 16];
    for (int64_t times = 2; s->more_ranks && times <= TIMES; times *= 2) {
        if (!other_mesh(s->config->parallel.mesh, "fsdp", "fsdp", times, other, sizeof other))
            return false;
        snprintf(set, sizeof set, "parallel.mesh=%s", other);
        if (try_out(s, set)) return true;
    }
    return false;
}

/* Inputs of a layer's first products stay cut over tp and are gathered again in backward. */
static bool try_saved(search *s)
{
    const tsi_parallel_keys *p = &s->config->parallel;
    ts_roles roles;
    bool sequence = p->plan[0] == '\0' || strcmp(p->plan, "sp") == 0;
    bool cut = ts_roles_parse(p->mesh, &roles) == TS_OK && roles.size[TS_ROLE_TENSOR] > 1;
    return cut && sequence && strcmp(p->saved, "gathered") == 0 &&
           try_out(s, "parallel.saved=sharded");
}

static void *look(void *argument)
{
    static const char full[] = "parallel.recompute=full";
    search *s = argument;
    const char *word = s->config->parallel.recompute;
    char mesh[TSI_CONFIG_TEXT_MAX + 96];
    bool again = strcmp(word, "full") != 0, shards = shards_for_copies(s, mesh, sizeof mesh);
    if (strcmp(word, "full") != 0 && try_saved(s)) return NULL;
    if (strcmp(word, "none") == 0 && try_out(s, "parallel.recompute=select")) return NULL;
    if (try_parts(s)) return NULL;
    for (int sharded = 0; sharded <= shards; sharded++) {
        s->set_count = 0;
        if (sharded) s->set[s->set_count++] = mesh;
        if (sharded && (try_out(s, NULL) || try_parts(s))) return NULL;
        if (again) s->set[s->set_count++] = full;
        if (again && (try_out(s, NULL) || try_parts(s))) return NULL;
    }
    s->set_count = 0;
    if (try_ranks(s) || !again) return NULL;
    s->set[s->set_count++] = full;
    (void)try_ranks(s);
    return NULL;
}

/* In a thread of its own: what fails on the way is no rank's error. */
static void find_setting(search *s)
{
    pthread_t thread;
    if (tsi_thread_start(&thread, look, s, STACK_BYTES) == TS_OK) pthread_join(thread, NULL);
}

static void write_sentence(const search *s, int64_t needed, bool found, char *out, size_t size)
{
    char a[32], b[32], c[32];
    int length =
        snprintf(out, size, "train.memory: a step needs %s on a rank, and %s %s",
                 tsi_text_bytes(a, sizeof a, needed), tsi_text_bytes(b, sizeof b, s->limit),
                 found ? "are free for it here" : "are allowed");
    if (length < 0 || (size_t)length >= size) return;
    if (s->fits[0])
        snprintf(out + length, size - (size_t)length, "; with %s it needs %s", s->fits,
                 tsi_text_bytes(c, sizeof c, s->fits_bytes));
    else
        snprintf(out + length, size - (size_t)length,
                 "; no other setting that was tried fits, the least needs %s",
                 tsi_text_bytes(c, sizeof c, s->least < needed ? s->least : needed));
}

ts_status ts_train_limit(const ts_train_config *config, const ts_train_cost *cost)
{
    int64_t limit;
    char sentence[SENTENCE];
    if (!config || !cost) return TSI_FAIL(TS_ERR_NULL, "limit: an argument is NULL");
    TSI_TRY(tsi_limit_parse(config->train.memory, &limit));
    if (limit <= 0 || cost->memory.peak <= limit) return TS_OK;
    search s = { .config = config, .limit = limit, .least = INT64_MAX, .more_ranks = true };
    find_setting(&s);
    write_sentence(&s, cost->memory.peak, false, sentence, sizeof sentence);
    return TSI_FAIL(TS_ERR_MEMORY, "%s", sentence);
}

/* Whose plan is the largest over its limit looks for all; its words go to the others. */
ts_status tsi_limit_check(tsi_run *run, const ts_train_cost *cost)
{
    int64_t limit, ranks = ts_rank_count(run->me), mine = ts_rank_index(run->me);
    TSI_TRY(tsi_limit_parse(run->config->train.memory, &limit));
    bool found = limit < 0;
    if (found) TSI_TRY(found_here(run, &limit));
    int64_t needed = cost->memory.peak, first = ranks;
    if (limit > 0 && needed > limit) first = mine;
    ts_array word = TS_INIT(ts_array);
    word.data = &first;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    TSI_TRY(ts_group_all_reduce(run->all, &word, &word, TS_REDUCE_MIN, NULL));
    if (first == ranks) return TS_OK;
    char sentence[SENTENCE] = "";
    if (first == mine) {
        search s = { .config = run->config,
                     .device = tsi_world_device(run->me->world)->kind,
                     .vocab = run->model->config.vocab,
                     .limit = limit,
                     .least = INT64_MAX,
                     .more_ranks = !found };
        find_setting(&s);
        write_sentence(&s, needed, found, sentence, sizeof sentence);
    }
    word.data = sentence;
    word.meta = (ts_meta){ .shape = TS_SHAPE(SENTENCE), .dtype = TS_DTYPE_U8 };
    TSI_TRY(ts_group_broadcast(run->all, &word, first, NULL));
    return TSI_FAIL_BLAST(TS_BLAST_AGREED, TS_ERR_MEMORY, "%s", sentence);
}

ts_status tsi_limit_tell(ts_rank *me, const ts_memory *planned)
{
    tsi_pool *pool = tsi_pool_of(me);
    tsi_pool_plan plan = { .peak = planned ? planned->peak : 0 };
    if (!pool) return ts_rank_status(me);
    for (uint32_t tag = 0; planned && tag < TSI_TAG_COUNT; tag++)
        plan.tag[tag] = planned->at_peak[tsi_memory_of_tag(tag)];
    tsi_pool_plan_for(pool, planned ? &plan : NULL);
    return TS_OK;
}
