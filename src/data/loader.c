/* SPDX-License-Identifier: Apache-2.0 */
/* loader.c - batches from token files.
 *
 * The order of windows in an epoch is a keyed permutation of their numbers, computed for one number
 * at a time: a Feistel network over the next power of four, whose round function is Philox; numbers
 * that fall outside are sent through again (cycle walking), so it stays a permutation. There is
 * nothing to store and nothing to resume: the state is the step. */
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/philox.h"
#include "data/mix.h"
#include "data/shard.h"
#include "tessera/data.h"

enum { ROUNDS = 6, SHARDS_MAX = 1 << 20 };
#define STREAM 0x6C6F6164u /* keeps these numbers apart from others of the same seed */

struct ts_loader {
    tsi_shard *shard;
    int64_t *end; /* tokens of the stream up to the end of each shard */
    int64_t shard_count;
    int64_t tokens, windows, context, batch;
    uint64_t seed;
    bool in_order;
    unsigned char *block;
    tsi_mix *mix; /* rows are those of others, in turn; or NULL */
};

void ts_loader_close(ts_loader *loader)
{
    if (loader == NULL) return;
    for (int64_t i = 0; i < loader->shard_count; i++)
        tsi_shard_close(&loader->shard[i]);
    tsi_free(loader->shard);
    tsi_free(loader->end);
    tsi_free(loader->block);
    tsi_mix_destroy(loader->mix);
    tsi_free(loader);
}

/* ---- opening --------------------------------------------------------------------------------- */
/* Room for shard number `index`; what is open counts in shard_count. */
static ts_status reserve(ts_loader *l, int64_t index)
{
    if (index >= SHARDS_MAX) return TSI_FAIL(TS_ERR_ARG, "more than %d token files", SHARDS_MAX);
    if ((index & (index - 1)) != 0) return TS_OK; /* grows at 0, 1, 2, 4, 8 ... */
    size_t count = index > 0 ? 2 * (size_t)index : 1;
    tsi_shard *shard = tsi_realloc(l->shard, count * sizeof *shard);
    if (shard == NULL) return tsi_fail_memory("token files", count * sizeof *shard);
    l->shard = shard;
    int64_t *end = tsi_realloc(l->end, count * sizeof *end);
    if (end == NULL) return tsi_fail_memory("token files", count * sizeof *end);
    l->end = end;
    return TS_OK;
}

static ts_status add_shard(ts_loader *l, const char *path)
{
    TSI_TRY(reserve(l, l->shard_count));
    tsi_shard *shard = &l->shard[l->shard_count];
    TSI_TRY(tsi_shard_open(path, shard));
    l->end[l->shard_count++] = l->tokens += shard->head.count;
    const tsi_shard_head *first = &l->shard[0].head;
    if (shard->head.tokenizer != first->tokenizer || shard->head.vocabulary != first->vocabulary)
        return TSI_FAIL(TS_ERR_ARG,
                        "%s and %s were made by different tokenizers (vocabularies of %lld and "
                        "%lld)",
                        l->shard[0].path, path, (long long)first->vocabulary,
                        (long long)shard->head.vocabulary);
    return TS_OK;
}

/* All shards of a set, which must be complete. */
static ts_status add_set(ts_loader *l, const char *prefix)
{
    for (int64_t i = 0;; i++) {
        char *path = tsi_shard_path(prefix, i);
        if (path == NULL) return TS_ERR_MEMORY;
        struct stat about;
        ts_status status = TS_OK;
        if (stat(path, &about) != 0)
            status = TSI_FAIL(TS_ERR_IO, "there is no %s%s", path,
                              i > 0 ? ", and the shard before it is not the last of its set: "
                                      "tokenizing was not finished"
                                    : "");
        if (status == TS_OK) status = add_shard(l, path);
        const tsi_shard_head *head = status == TS_OK ? &l->shard[i].head : NULL;
        if (head != NULL && (head->index != i || head->source != l->shard[0].head.source))
            status = TSI_FAIL(TS_ERR_IO, "%s is shard %lld of another set", path,
                              (long long)head->index);
        tsi_free(path);
        if (status != TS_OK || head->last) return status;
    }
}

static ts_status take_options(const ts_loader_options *from, ts_loader_options *o)
{
    if (from == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_loader_open: options are NULL");
    if (from->struct_size < sizeof(size_t))
        return TSI_FAIL(TS_ERR_ARG, "ts_loader_open: struct_size is %zu; use TS_INIT",
                        from->struct_size);
    *o = (ts_loader_options){ 0 };
    memcpy(o, from, from->struct_size < sizeof *o ? from->struct_size : sizeof *o);
    if ((o->prefix == NULL) == (o->files == NULL || o->file_count < 1))
        return TSI_FAIL(TS_ERR_ARG, "ts_loader_open: give either files or a prefix");
    if (o->context < 1 || o->context > INT32_MAX || o->batch < 1 || o->batch > INT32_MAX)
        return TSI_FAIL(TS_ERR_ARG, "ts_loader_open: context %lld and batch %lld must be positive",
                        (long long)o->context, (long long)o->batch);
    return TS_OK;
}

static ts_status fill(ts_loader *l, const ts_loader_options *o)
{
    l->context = o->context;
    l->batch = o->batch;
    l->seed = o->seed;
    l->in_order = o->in_order != 0;
    l->block = tsi_alloc(TSI_SHARD_BLOCK);
    if (l->block == NULL) return tsi_fail_memory("a loader", TSI_SHARD_BLOCK);
    if (o->prefix != NULL) TSI_TRY(add_set(l, o->prefix));
    for (int64_t i = 0; o->prefix == NULL && i < o->file_count; i++) {
        if (o->files[i] == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_loader_open: a file is NULL");
        TSI_TRY(add_shard(l, o->files[i]));
    }
    l->windows = (l->tokens - 1) / l->context;
    if (l->windows < 1)
        return TSI_FAIL(TS_ERR_ARG, "%lld tokens are fewer than one window of %lld + 1",
                        (long long)l->tokens, (long long)l->context);
    return TS_OK;
}

ts_status ts_loader_open(const ts_loader_options *options, ts_loader **out)
{
    if (out == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_loader_open: out is NULL");
    *out = NULL;
    ts_loader_options taken;
    TSI_TRY(take_options(options, &taken));
    ts_loader *loader = tsi_calloc(1, sizeof *loader);
    if (loader == NULL) return tsi_fail_memory("a loader", sizeof *loader);
    ts_status status = fill(loader, &taken);
    if (status != TS_OK) {
        ts_loader_close(loader);
        return status;
    }
    *out = loader;
    return TS_OK;
}

static ts_status check_alike(ts_loader *const *loader, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (loader[i] == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_loader_mix: a loader is NULL");
        if (loader[i]->mix != NULL)
            return TSI_FAIL(TS_ERR_ARG, "ts_loader_mix: loader %lld is a mix itself", (long long)i);
        for (int64_t k = 0; k < i; k++)
            if (loader[k] == loader[i])
                return TSI_FAIL(TS_ERR_ARG, "ts_loader_mix: loaders %lld and %lld are one",
                                (long long)k, (long long)i);
        if (loader[i]->context != loader[0]->context)
            return TSI_FAIL(TS_ERR_ARG, "ts_loader_mix: rows of %lld and of %lld tokens",
                            (long long)loader[0]->context, (long long)loader[i]->context);
        if (ts_loader_tokenizer_hash(loader[i]) != ts_loader_tokenizer_hash(loader[0]))
            return TSI_FAIL(TS_ERR_ARG,
                            "ts_loader_mix: loaders 0 and %lld have tokens of "
                            "different tokenizers",
                            (long long)i);
    }
    return TS_OK;
}

ts_status ts_loader_mix(ts_loader *const *loader, const double *weight, int64_t count,
                        int64_t batch, ts_loader **out)
{
    if (out == NULL || loader == NULL || weight == NULL)
        return TSI_FAIL(TS_ERR_NULL, "ts_loader_mix: an argument is NULL");
    *out = NULL;
    if (batch < 1 || batch > INT32_MAX)
        return TSI_FAIL(TS_ERR_ARG, "ts_loader_mix: a batch of %lld", (long long)batch);
    TSI_TRY(check_alike(loader, count));
    ts_loader *made = tsi_calloc(1, sizeof *made);
    if (made == NULL) return tsi_fail_memory("a loader", sizeof *made);
    ts_status status = tsi_mix_create(loader, weight, count, &made->mix);
    if (status != TS_OK) {
        tsi_free(made);
        return status;
    }
    made->context = loader[0]->context;
    made->batch = batch;
    for (int64_t i = 0; i < count; i++) {
        made->tokens += ts_loader_tokens(loader[i]);
        made->windows += ts_loader_windows(loader[i]);
    }
    *out = made;
    return TS_OK;
}

/* ---- order ----------------------------------------------------------------------------------- */
/* One pass through the network over [0, 4^half). */
static uint64_t feistel(uint64_t seed, uint64_t epoch, uint64_t value, unsigned half)
{
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        tsi_philox_block b = tsi_philox(seed, right | round << 32, epoch ^ (uint64_t)STREAM << 32);
        uint64_t next = left ^ (b.word[0] & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

int64_t ts_loader_window(const ts_loader *l, int64_t sample, int64_t *epoch)
{
    if (epoch != NULL) *epoch = 0;
    if (l == NULL || sample < 0) return -1;
    if (l->mix != NULL) l = tsi_mix_at(l->mix, sample, &sample);
    int64_t at = sample / l->windows;
    uint64_t value = (uint64_t)(sample % l->windows);
    if (epoch != NULL) *epoch = at;
    if (l->in_order) return (int64_t)value;
    unsigned half = 1;
    while (half < 31 && (uint64_t)l->windows > (uint64_t)1 << (2 * half))
        half++;
    do {
        value = feistel(l->seed, (uint64_t)at, value, half);
    } while (value >= (uint64_t)l->windows);
    return (int64_t)value;
}

/* ---- batches --------------------------------------------------------------------------------- */
/* The shard that holds a token of the stream. */
static int64_t shard_of(const ts_loader *l, int64_t token)
{
    int64_t low = 0, high = l->shard_count - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (l->end[middle] <= token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ts_status read_stream(ts_loader *l, int64_t first, int64_t count, int32_t *out)
{
    for (int64_t i = shard_of(l, first); count > 0; i++) {
        int64_t begin = i > 0 ? l->end[i - 1] : 0;
        int64_t here = tsi_min_i64(count, l->end[i] - first);
        if (here <= 0) continue; /* an empty shard */
        TSI_TRY(tsi_shard_read(&l->shard[i], first - begin, here, l->block, out));
        first += here;
        count -= here;
        out += here;
    }
    return TS_OK;
}

ts_status ts_loader_batch(ts_loader *l, int64_t step, int64_t first_row, int64_t row_count,
                          int32_t *out)
{
    if (l == NULL || (out == NULL && row_count > 0))
        return TSI_FAIL(TS_ERR_NULL, "ts_loader_batch: NULL");
    if (step < 0 || step > INT64_MAX / l->batch - 1)
        return TSI_FAIL(TS_ERR_ARG, "ts_loader_batch: step %lld", (long long)step);
    if (first_row < 0 || row_count < 0 || first_row > l->batch || row_count > l->batch - first_row)
        return TSI_FAIL(TS_ERR_ARG, "ts_loader_batch: rows %lld to %lld of a batch of %lld",
                        (long long)first_row, (long long)first_row + row_count - 1,
                        (long long)l->batch);
    for (int64_t r = 0; r < row_count; r++) {
        int64_t sample = step * l->batch + first_row + r;
        ts_loader *from = l->mix != NULL ? tsi_mix_at(l->mix, sample, &sample) : l;
        int64_t window = ts_loader_window(from, sample, NULL);
        TSI_TRY(read_stream(from, window * l->context, l->context + 1, out + r * (l->context + 1)));
    }
    return TS_OK;
}

/* ---- getters --------------------------------------------------------------------------------- */
int64_t ts_loader_windows(const ts_loader *l)
{
    return l != NULL ? l->windows : 0;
}

int64_t ts_loader_tokens(const ts_loader *l)
{
    return l != NULL ? l->tokens : 0;
}

int64_t ts_loader_vocabulary(const ts_loader *l)
{
    if (l != NULL && l->mix != NULL) l = tsi_mix_loader(l->mix, 0);
    return l != NULL ? l->shard[0].head.vocabulary : 0;
}

uint64_t ts_loader_tokenizer_hash(const ts_loader *l)
{
    if (l != NULL && l->mix != NULL) l = tsi_mix_loader(l->mix, 0);
    return l != NULL ? l->shard[0].head.tokenizer : 0;
}
