/* SPDX-License-Identifier: Apache-2.0 */
/* chain.h - ranks that wait for one another: where the chain ends, and the words for a circle. For
 * engines, those of modules too: nothing of the core is called. */
#ifndef TSI_COMM_CHAIN_H
#define TSI_COMM_CHAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* `self` has waited for `needed`, which may wait for another one. */
typedef struct tsi_chain {
    const void *context;
    int64_t (*next)(const void *context, int64_t rank); /* whom it waits for; -1: nobody */
    /* "rank 3 (last: ...)"; its length, as snprintf has it. */
    int (*name)(const void *context, int64_t rank, char *out, size_t size);
    int64_t ranks, self, needed;
} tsi_chain;

static inline int64_t tsi_chain_next(const tsi_chain *c, int64_t rank)
{
    return rank == c->self ? c->needed : c->next(c->context, rank);
}

/* The end of the chain, which waits for nobody but itself, or a rank of the circle that it leads
 * to. */
static inline int64_t tsi_chain_end(const tsi_chain *c, bool *circle)
{
    int64_t end = c->needed;
    for (int64_t hops = 0; hops < c->ranks; hops++) {
        int64_t next = tsi_chain_next(c, end);
        *circle = next >= 0 && next != end;
        if (!*circle) return end;
        end = next;
    }
    return end;
}

/* Behind `used` bytes of the text, as far as there is room; how many there are then. */
static inline size_t tsi_chain_add(size_t used, int length, size_t size)
{
    size_t now = used + (length > 0 ? (size_t)length : 0);
    return now < size ? now : size - 1;
}

/* "ranks 1, 2, 0 wait for each other in a circle: ", and what its first members do but for this
 * one and `named`: "; rank 0 (last: ...)". */
static inline void tsi_chain_circle(const tsi_chain *c, int64_t from, int64_t named, char *ranks,
                                    size_t size, char *others, size_t others_size)
{
    enum { COUNTED = 8, TOLD = 4 };
    int64_t rank = from, count = 0;
    size_t used = tsi_chain_add(0, snprintf(ranks, size, "ranks"), size), told = 0;
    others[0] = '\0';
    do {
        if (count < COUNTED)
            used = tsi_chain_add(used,
                                 snprintf(ranks + used, size - used, "%s %lld",
                                          count > 0 ? "," : "", (long long)rank),
                                 size);
        if (count < TOLD && rank != c->self && rank != named) {
            told =
                tsi_chain_add(told, snprintf(others + told, others_size - told, "; "), others_size);
            told = tsi_chain_add(told, c->name(c->context, rank, others + told, others_size - told),
                                 others_size);
        }
        rank = tsi_chain_next(c, rank);
        count++;
    } while (rank >= 0 && rank != from && count < c->ranks);
    if (count > COUNTED)
        used = tsi_chain_add(
            used,
            snprintf(ranks + used, size - used, " and %lld more", (long long)(count - COUNTED)),
            size);
    (void)snprintf(ranks + used, size - used, " wait for each other in a circle: ");
}

#endif
