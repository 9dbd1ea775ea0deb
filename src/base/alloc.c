/* SPDX-License-Identifier: Apache-2.0 */
/* alloc.c - host memory, counted.
 *
 * The counters are spread over cache lines chosen by the thread, so that ranks which allocate at
 * the same time do not wait for each other; a total is the sum of the lines. Memory may be freed by
 * another thread: then one line is too high and another too low, and the sum is right. */
#include "base/alloc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/compiler.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/intmath.h"
#include "base/text.h"

enum { STRIPE_COUNT = 16, ROOM_MIN = 16, NEAR_MAX = 1024 };

typedef struct stripe {
    _Alignas(
        TSI_CACHE_LINE) _Atomic int64_t tried; /* allocations asked for, failed ones included */
    _Atomic int64_t live;                      /* made minus freed by threads of this line */
} stripe;

static stripe stripes[STRIPE_COUNT];
static _Atomic int64_t fail_in;    /* the n-th allocation from now fails; <= 0: none */
static _Atomic int64_t tried_base; /* sum of `tried` at the last tsi_alloc_fail_at */

static stripe *my_stripe(void)
{
    uint64_t h = (uint64_t)(uintptr_t)pthread_self() * 0x9E3779B97F4A7C15u;
    return &stripes[h >> 60];
}

/* Counts one attempt; false if it is the one chosen to fail. */
static bool attempt(stripe *mine)
{
    atomic_fetch_add_explicit(&mine->tried, 1, memory_order_relaxed);
    if (TSI_LIKELY(atomic_load_explicit(&fail_in, memory_order_relaxed) <= 0)) return true;
    return atomic_fetch_sub_explicit(&fail_in, 1, memory_order_relaxed) != 1;
}

static void *counted(stripe *mine, void *memory)
{
    if (TSI_LIKELY(memory != NULL)) atomic_fetch_add_explicit(&mine->live, 1, memory_order_relaxed);
    return memory;
}

void *tsi_alloc(size_t bytes)
{
    stripe *mine = my_stripe();
    if (TSI_UNLIKELY(!attempt(mine))) return NULL;
    return counted(mine, malloc(bytes > 0 ? bytes : 1));
}

void *tsi_calloc(size_t count, size_t bytes)
{
    size_t total;
    if (!tsi_mul_size(count, bytes, &total)) return NULL;
    stripe *mine = my_stripe();
    if (TSI_UNLIKELY(!attempt(mine))) return NULL;
    /* Small blocks lie near the thread for malloc, where calloc does not look. */
    if (total > NEAR_MAX) return counted(mine, calloc(total, 1));
    void *memory = counted(mine, malloc(total > 0 ? total : 1));
    return memory ? memset(memory, 0, total) : NULL;
}

void *tsi_alloc_array(size_t count, size_t bytes)
{
    size_t total;
    return tsi_mul_size(count, bytes, &total) ? tsi_alloc(total) : NULL;
}

void *tsi_realloc(void *memory, size_t bytes)
{
    if (memory == NULL) return tsi_alloc(bytes);
    if (TSI_UNLIKELY(!attempt(my_stripe()))) return NULL;
    return realloc(memory, bytes > 0 ? bytes : 1);
}

ts_status tsi_room_grow(void *array, int64_t count, int64_t *capacity, size_t item,
                        const char *what)
{
    int64_t wanted = tsi_max_i64(tsi_max_i64(2 * *capacity, ROOM_MIN), count + 1);
    void *old, *grown;
    size_t bytes;
    memcpy(&old, array, sizeof old); /* pointers to all types look alike, but may not be read so */
    if (!tsi_mul_size((size_t)wanted, item, &bytes)) return tsi_fail_memory(what, SIZE_MAX);
    grown = tsi_realloc(old, bytes);
    if (!grown) return tsi_fail_memory(what, bytes);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return TS_OK;
}

void *tsi_alloc_aligned(size_t bytes, size_t alignment)
{
    stripe *mine = my_stripe();
    if (TSI_UNLIKELY(!attempt(mine))) return NULL;
    void *memory = NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) != 0) return NULL;
    return counted(mine, memory);
}

void tsi_free(void *memory)
{
    if (memory == NULL) return;
    atomic_fetch_sub_explicit(&my_stripe()->live, 1, memory_order_relaxed);
    free(memory);
}

void *tsi_alloc_kept(size_t bytes, size_t alignment)
{
    void *memory = NULL;
    if (TSI_UNLIKELY(!attempt(my_stripe()))) return NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) != 0) return NULL;
    if (alignment >= TSI_HUGE_PAGE) tsi_wish_huge_pages(memory, bytes);
    return memory;
}

void tsi_wish_huge_pages(void *memory, size_t bytes)
{
    TSI_ASSERT((uintptr_t)memory % TSI_HUGE_PAGE == 0);
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#else
    (void)bytes;
#endif
}

void tsi_free_kept(void *memory)
{
    free(memory);
}

char *tsi_strndup(const char *text, size_t length)
{
    const char *end = memchr(text, '\0', length);
    if (end != NULL) length = (size_t)(end - text);
    char *copy = length < SIZE_MAX ? tsi_alloc(length + 1) : NULL;
    if (copy == NULL) return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

char *tsi_strdup(const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = tsi_alloc(size);
    return copy != NULL ? memcpy(copy, text, size) : NULL;
}

ts_status tsi_fail_memory(const char *what, size_t bytes)
{
    char amount[32];
    (void)tsi_text_bytes(amount, sizeof amount, bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes);
    return TSI_FAIL(TS_ERR_MEMORY, "out of host memory: %s needs %zu bytes (%s)", what, bytes,
                    amount);
}

int64_t tsi_alloc_fail_at(int64_t n)
{
    static _Atomic int64_t asked; /* n of the last call */
    int64_t tried = 0;
    for (int i = 0; i < STRIPE_COUNT; i++)
        tried += atomic_load_explicit(&stripes[i].tried, memory_order_relaxed);
    int64_t left = atomic_exchange_explicit(&fail_in, n, memory_order_relaxed);
    int64_t wanted = atomic_exchange_explicit(&asked, n, memory_order_relaxed);
    int64_t since = tried - atomic_exchange_explicit(&tried_base, tried, memory_order_relaxed);
    /* Others may have been between both counts at the last call: that one failed is certain. */
    bool failed = wanted > 0 && left <= 0;
    return failed && since < wanted ? wanted : since;
}

int64_t tsi_alloc_live(void)
{
    int64_t live = 0;
    for (int i = 0; i < STRIPE_COUNT; i++)
        live += atomic_load_explicit(&stripes[i].live, memory_order_relaxed);
    return live;
}
