/* SPDX-License-Identifier: Apache-2.0 */
/* together.h - operations that a program has as one bucket go as one when the step runs in that
 * order.
 *
 *   wanted     members of a bucket that could travel together: alike, and nothing begins between
 *   possible   nothing of this rank's work keeps them from following each other (works.h)
 *   agreed     on all ranks: as many from the first on as are possible everywhere
 *
 * INV: members of a group join the same operations, or none. So the n-th operation of a channel
 * meets the n-th on every other member, as before. */
#ifndef TSI_RUNTIME_TOGETHER_H
#define TSI_RUNTIME_TOGETHER_H

#include "plan/step.h"
#include "runtime/replay.h"

typedef struct tsi_buckets {
    tsi_members members; /* of all buckets, in the order in which they begin */
    int32_t *of;         /* [member]: the bucket's action in the program */
    int64_t *work;       /* [member]: the kept work that begins it; -1: none */
} tsi_buckets;

/* The work that ends each recorded action, of those that were recorded; -1: none. */
void tsi_last_works(const ts_step *s, int64_t *last, int64_t actions);
/* A number for each action of a kind that all who take part in it give it, too: its place among
 * those of the first member. -1: it has none. With action -1: how many there are. */
typedef bool (*tsi_action_is)(const tsi_action *action);
int64_t tsi_number_of(const tsi_step *given, int64_t rank, int32_t action, tsi_action_is is);
/* Of all operations, in their order: ranks that were given different programs differ. */
int64_t tsi_hash_of_operations(const tsi_step *given);
/* [coll] */
ts_status tsi_reduce_of_all(ts_rank *me, const char *about, ts_reduce reduce, int64_t *value,
                            int64_t count);
/* Those of this rank. `place`: where the program has each recorded action. The works are tied. */
ts_status tsi_buckets_make(tsi_buckets *buckets, const ts_step *s, const tsi_step_list *recorded,
                           const tsi_step_list *given, const int32_t *place);
void tsi_buckets_release(tsi_buckets *buckets);
/* [coll] Joins what all ranks can join: those that `taken` the order of this program. Returns how
 * many operations go with another one. */
ts_status tsi_buckets_join(const tsi_buckets *buckets, const ts_step *s, const tsi_step *given,
                           bool taken, int64_t *joined);
/* [coll] Can all ranks, and have they the same hash? A rank that has failed cannot, and keeps its
 * error; one whose failure was told to the others asks nobody, and they fail with it. `about` names
 * the question. */
bool tsi_all_can(ts_rank *me, const char *about, bool can, int64_t hash);
/* [coll] Do the shares of all ranks, each from 0 to below modulus, add up to 0 modulo it? */
bool tsi_shares_cancel(ts_rank *me, int64_t share, int64_t modulus);
/* [coll] In its place, of a rank that refuses the program: then nobody joins anything. */
void tsi_buckets_refuse(const ts_step *s);

#endif
