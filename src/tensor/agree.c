/* SPDX-License-Identifier: Apache-2.0 */
/* agree.c - one verdict for all members of a group before anything moves.
 *
 * Costs one small all_reduce when all is well. Only after a bad verdict, which all members know,
 * does a second collective carry the words of the first member that complained, or every
 * member's hash. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/keep.h"
#include "comm/comm.h"
#include "tensor/tensor.h"

enum { SENTENCE_MAX = 512, WORDS = 3 };

typedef struct complaint_words { /* as they travel */
    int32_t status;
    char sentence[SENTENCE_MAX];
} complaint_words;

static ts_array vector_of(void *data, ts_dtype dtype, int64_t count)
{
    ts_array array = TS_INIT(ts_array);
    array.data = data;
    array.meta.shape = TS_SHAPE(count);
    array.meta.dtype = dtype;
    return array;
}

/* The status and the sentence of `member`, on every member. */
static ts_status share_words(ts_group *group, int64_t member, const char *what, ts_status status,
                             const char *complaint)
{
    complaint_words words = { .status = (int32_t)status };
    if (complaint) snprintf(words.sentence, sizeof words.sentence, "%s", complaint);
    ts_array array = vector_of(&words, TS_DTYPE_U8, sizeof words);
    TSI_TRY(ts_group_broadcast(group, &array, member, NULL));
    words.sentence[SENTENCE_MAX - 1] = '\0';
    return TSI_FAIL_BLAST(TS_BLAST_AGREED, (ts_status)words.status, "%s: rank %lld: %s", what,
                          (long long)ts_group_rank(group, member), words.sentence);
}

/* Names the first member whose hash differs from member 0's. */
static ts_status blame_hash(ts_group *group, const char *what, uint64_t hash)
{
    int64_t size = ts_group_size(group), mine = (int64_t)hash, other = 0;
    int64_t *all = tsi_alloc_array((size_t)size, sizeof *all);
    if (!all) return tsi_fail_memory("the hashes of a group", (size_t)size * sizeof *all);
    ts_array in = vector_of(&mine, TS_DTYPE_I64, 1), out = vector_of(all, TS_DTYPE_I64, size);
    ts_status status = ts_group_all_gather(group, &in, &out, NULL);
    while (status == TS_OK && other < size && all[other] == all[0])
        other++;
    tsi_free(all);
    if (status != TS_OK) return status;
    return TSI_FAIL_BLAST(TS_BLAST_AGREED, TS_ERR_ARG,
                          "%s: ranks were not called alike: rank %lld and rank %lld gave different "
                          "arguments",
                          what, (long long)ts_group_rank(group, 0),
                          (long long)ts_group_rank(group, other));
}

ts_status tsi_agree_on(ts_group *group, const char *what, ts_status bad, const char *complaint,
                       uint64_t hash)
{
    if (ts_group_index(group) < 0) return TS_OK;
    ts_rank *rank = tsi_rank_current();
    TSI_TRY(tsi_comm_now(rank, what));
    bool complains = complaint && *complaint;
    int64_t half = (int64_t)(hash >> 1);
    int64_t mine[WORDS] = { complains ? ts_group_index(group) : INT64_MAX, half, -half };
    int64_t least[WORDS] = { mine[0], mine[1], mine[2] }; /* all that a world without data hears */
    ts_array in = vector_of(mine, TS_DTYPE_I64, WORDS), out = vector_of(least, TS_DTYPE_I64, WORDS);
    ts_comm_options options = TS_INIT(ts_comm_options);
    options.name = what;
    tsi_keep_pause(rank); /* the same step again has nothing to agree on */
    ts_status status = ts_group_all_reduce(group, &in, &out, TS_REDUCE_MIN, &options);
    tsi_keep_resume(rank);
    TSI_TRY(status);
    tsi_tell(rank, TSI_NEWS_AGREE, (void *)(uintptr_t)what);
    if (least[0] != INT64_MAX) return share_words(group, least[0], what, bad, complaint);
    if (least[1] != -least[2]) return blame_hash(group, what, hash);
    return TS_OK;
}

ts_status tsi_agree(ts_group *group, const char *what, const char *complaint, uint64_t hash)
{
    return tsi_agree_on(group, what, TS_ERR_SHAPE, complaint, hash);
}
