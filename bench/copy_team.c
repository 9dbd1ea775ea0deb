/* SPDX-License-Identifier: Apache-2.0 */
/* copy_team.c - see copy_team.h. */
#include "copy_team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKS = 4000 }; /* some ten microseconds */

typedef struct copier {
    pthread_t thread;
    copy_team *team;
    int index;
} copier;

struct copy_team {
    int threads;
    copier *helpers;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Atomic unsigned turn;
    _Atomic int left;
    bool ending;
    char *to;
    const char *from;
    size_t bytes;
    _Atomic uint64_t seen; /* what reads came to, so that they happen */
};

/* Lines of four quarters in turn, since a machine follows several streams faster than one; one word
 * of each, so that nothing but their arrival takes time. */
static uint64_t read_all(const char *from, size_t bytes)
{
    uint64_t sum[4] = { 0 };
    size_t quarter = bytes / 4 / 64 * 64;
    for (size_t i = 0; i < quarter; i += 64) {
        sum[0] += *(const uint64_t *)(const void *)(from + i);
        sum[1] += *(const uint64_t *)(const void *)(from + quarter + i);
        sum[2] += *(const uint64_t *)(const void *)(from + 2 * quarter + i);
        sum[3] += *(const uint64_t *)(const void *)(from + 3 * quarter + i);
    }
    return (sum[0] ^ sum[1]) + (sum[2] ^ sum[3]);
}

static void do_part(copy_team *team, int index)
{
    size_t part = (team->bytes / (size_t)team->threads + 63) / 64 * 64,
           begin = part * (size_t)index;
    if (begin >= team->bytes) return;
    size_t length = team->bytes - begin < part ? team->bytes - begin : part;
    if (team->to != NULL)
        memcpy(team->to + begin, team->from + begin, length);
    else
        atomic_fetch_add_explicit(&team->seen, read_all(team->from + begin, length),
                                  memory_order_relaxed);
}

static unsigned wait_for_turn(copy_team *team, unsigned seen)
{
    for (int i = 0; i < LOOKS; i++) {
        unsigned turn = atomic_load_explicit(&team->turn, memory_order_acquire);
        if (turn != seen) return turn;
    }
    pthread_mutex_lock(&team->lock);
    unsigned turn;
    while ((turn = atomic_load_explicit(&team->turn, memory_order_acquire)) == seen)
        pthread_cond_wait(&team->changed, &team->lock);
    pthread_mutex_unlock(&team->lock);
    return turn;
}

static void *help(void *argument)
{
    copier *me = argument;
    copy_team *team = me->team;
    for (unsigned seen = 0;;) {
        seen = wait_for_turn(team, seen);
        if (team->ending) return NULL;
        do_part(team, me->index);
        atomic_fetch_sub_explicit(&team->left, 1, memory_order_release);
    }
}

static void next_turn(copy_team *team)
{
    atomic_store_explicit(&team->left, team->threads - 1, memory_order_relaxed);
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add_explicit(&team->turn, 1, memory_order_release);
    pthread_cond_broadcast(&team->changed);
    pthread_mutex_unlock(&team->lock);
}

copy_team *copy_team_start(int threads)
{
    copy_team *team = calloc(1, sizeof *team);
    if (team == NULL) return NULL;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->changed, NULL);
    team->threads = 1;
    team->helpers = calloc((size_t)threads, sizeof *team->helpers);
    for (int i = 1; team->helpers != NULL && i < threads; i++) {
        copier *helper = &team->helpers[i];
        *helper = (copier){ .team = team, .index = i };
        if (pthread_create(&helper->thread, NULL, help, helper) != 0) break;
        team->threads++;
    }
    if (team->threads == threads) return team;
    copy_team_end(team);
    return NULL;
}

void copy_team_end(copy_team *team)
{
    if (team == NULL) return;
    team->ending = true;
    next_turn(team);
    for (int i = 1; i < team->threads; i++)
        pthread_join(team->helpers[i].thread, NULL);
    pthread_cond_destroy(&team->changed);
    pthread_mutex_destroy(&team->lock);
    free(team->helpers);
    free(team);
}

static void run_together(copy_team *team, void *to, const void *from, size_t bytes)
{
    team->to = to;
    team->from = from;
    team->bytes = bytes;
    if (team->threads > 1) next_turn(team);
    do_part(team, 0);
    while (team->threads > 1 && atomic_load_explicit(&team->left, memory_order_acquire) > 0)
        sched_yield();
}

void copy_team_copy(copy_team *team, void *to, const void *from, size_t bytes)
{
    run_together(team, to, from, bytes);
}

void copy_team_read(copy_team *team, const void *from, size_t bytes)
{
    run_together(team, NULL, from, bytes);
}
