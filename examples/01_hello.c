/* SPDX-License-Identifier: Apache-2.0 */
/* 01_hello.c - a guided tour: ranks, groups, collectives, a failure that everybody hears of, the
 * events.
 *
 *   TESSERA_RANKS=4 ./01_hello        four threads of this process
 *   mpirun -n 4 ./01_hello            the same program as four processes
 *
 * Every rank runs `work`. Rank 0 tells what happens; the others only take part. */
#include <stdio.h>
#include <tessera/tessera.h>

enum { ROWS_MAX = 64 };

/* A vector of i64 in the caller's memory, as the collectives want it. */
static ts_array vector_of(int64_t *data, int64_t count)
{
    ts_array array = { .struct_size = sizeof array, .data = data };
    array.meta.dtype = TS_DTYPE_I64;
    array.meta.shape.ndim = 1;
    array.meta.shape.extent[0] = count;
    return array;
}

static void print_vector(const char *what, const int64_t *data, int64_t count)
{
    printf("   %s [", what);
    for (int64_t i = 0; i < count; i++)
        printf("%s%lld", i > 0 ? " " : "", (long long)data[i]);
    printf("]\n");
}

/* 1. Every rank contributes one number; every rank gets all of them, and their sum. */
static void gather_and_sum(ts_rank *me, int64_t n, int narrator)
{
    int64_t mine = 10 * ts_rank_index(me), all[ROWS_MAX] = { 0 }, sum = 0;
    ts_array in = vector_of(&mine, 1), out = vector_of(all, n), total = vector_of(&sum, 1);
    ts_group_all_gather(ts_group_world(me), &in, &out, NULL);
    ts_group_all_reduce(ts_group_world(me), &in, &total, TS_REDUCE_SUM, NULL);
    if (!narrator) return;
    printf("1. all_gather and all_reduce: each rank gave 10 times its number\n");
    print_vector("everybody has", all, n);
    printf("   and the sum   %lld\n", (long long)sum);
}

/* 2. A group is a list of ranks in the caller's order; the others just pass. */
static void reversed_group(ts_rank *me, int64_t n, int narrator)
{
    int64_t ranks[ROWS_MAX], mine = ts_rank_index(me), all[ROWS_MAX] = { 0 };
    for (int64_t i = 0; i < n; i++)
        ranks[i] = n - 1 - i;
    ts_group *group =
        ts_group_create(me, ranks, n, TS_OPTIONS(ts_group_options, .name = "reversed"));
    ts_array in = vector_of(&mine, 1), out = vector_of(all, n);
    ts_group_all_gather(group, &in, &out, NULL);
    ts_group_release(group);
    if (!narrator) return;
    printf("2. a group keeps the order it was given: all_gather over the reversed ranks\n");
    print_vector("everybody has", all, n);
}

/* 3. Uneven parts, and communication while something else is computed. */
static void uneven_and_async(ts_rank *me, int64_t n, int narrator)
{
    int64_t index = ts_rank_index(me), rows[ROWS_MAX], total = 0;
    for (int64_t i = 0; i < n; i++) {
        rows[i] = i < 3 ? i : 1; /* rank 0 has nothing to give */
        total += rows[i];
    }
    int64_t part[2] = { index, index }, all[2 * ROWS_MAX] = { 0 }, busy = 0;
    ts_array in = vector_of(part, rows[index]), out = vector_of(all, total);
    ts_work *work = NULL;
    ts_group_all_gather(
        ts_group_world(me), &in, &out,
        TS_OPTIONS(ts_comm_options, .name = "uneven", .recv_rows = rows, .work = &work));
    for (int64_t i = 0; i < 1000; i++)
        busy += i; /* computing goes on meanwhile */
    ts_work_wait(work);
    if (!narrator) return;
    printf("3. asynchronous and uneven: rank 0 gave nothing, and computed %lld meanwhile\n",
           (long long)busy);
    print_vector("everybody has", all, total);
}

/* 4. One rank fails; the others, who wait for it, are told why. Then all recover together. */
static void failure(ts_rank *me, int64_t n, int narrator)
{
    ts_group *world = ts_group_world(me);
    ts_group_barrier(world, NULL);
    if (ts_rank_index(me) == n - 1)
        ts_rank_fail(me, TS_ERR_IO, "the disk is full (only in this demo)");
    ts_group_barrier(world, TS_OPTIONS(ts_comm_options, .name = "never complete"));
    /* From here on every rank is failed: calls have no effect until it recovers. */
    if (narrator && ts_rank_error(me) != NULL) {
        printf("4. the last rank fails, and rank 0, which waits for it, hears:\n   %s: %s\n",
               ts_status_name(ts_rank_status(me)), ts_rank_error(me)->text);
    }
    ts_rank_recover(me);
    ts_group_barrier(world, NULL);
    if (narrator && ts_rank_status(me) == TS_OK)
        printf("   all ranks recovered and met in a barrier\n");
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    int64_t n = ts_rank_count(me);
    int narrator = ts_rank_index(me) == 0;
    if (n > ROWS_MAX) return ts_rank_fail(me, TS_ERR_ARG, "this demo is for up to 64 ranks");
    if (narrator) {
        printf("%lld ranks, engine %s\n\n", (long long)n, ts_world_engine(ts_rank_world(me)));
    }
    gather_and_sum(me, n, narrator);
    reversed_group(me, n, narrator);
    uneven_and_async(me, n, narrator);
    failure(me, n, narrator);
    ts_counts counts = TS_INIT(ts_counts);
    if (narrator && ts_rank_counts(me, 0, &counts) == TS_OK) {
        char table[2048];
        ts_counts_text(&counts, table, sizeof table);
        printf("5. what rank 0 did, from its event ring:\n%s\n", table);
        printf(
            "Next: tessera doctor, tessera bench comm; TESSERA_TRACE=trace.json for a timeline.\n");
    }
    return ts_rank_status(me); /* the first error of the whole function, or TS_OK */
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
