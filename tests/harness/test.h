/* SPDX-License-Identifier: Apache-2.0 */
/* test.h - tests that register themselves.
 *
 *   TS_TEST(name) { TEST_CHECK(t, 1 + 1 == 2); }
 *   TS_TEST_RANKS(name, 1, 2, 3, 8) { ... t->me, t->index, t->count ... }   runs on that many ranks
 *
 * A program runs its tests one after another, each in a child process under a timeout (60 s;
 * --timeout), and ends with "N passed, N failed". A rank test counts once for each number of ranks
 * ("name/3"). On failure it prints the seed and the command to run that test again. A test without
 * ranks that passes but leaves memory of tsi_alloc behind fails. Under mpirun only the rank tests
 * of the world's size run, in this process, over MPI.
 *   --list   --no-fork   --seed N   --timeout S   --runs N   [substring of test names ...]
 * --runs N takes at most N numbers of ranks of each test: which, its name and the seed say. */
#ifndef TESTS_HARNESS_TEST_H
#define TESTS_HARNESS_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tessera/tensor.h"
#include "tessera/world.h"

typedef struct test {
    const char *name;
    uint64_t seed;   /* the run's seed; test_random starts from it and the test's name */
    uint64_t random; /* state of test_random; the same on all ranks of a rank test */
    ts_rank *me;     /* rank tests */
    int64_t index, count;
    int64_t rows;       /* of tables, that test_tries was asked about */
    const char *engine; /* rank tests: "threads" or "mpi" */
    struct test_result *result;
} test;

typedef void (*test_fn)(test *t);
struct test_case;
/* Runs a rank test on `count` ranks; in an object of its own, so that tests without ranks do not
 * link the runtime. t->engine says how. */
void test_run_ranks(const struct test_case *body, test *t, int64_t count);

typedef struct test_case {
    const char *name;
    test_fn fn;
    int32_t ranks[8]; /* zero-terminated; empty: no ranks */
    void (*run_ranks)(const struct test_case *body, test *t, int64_t count);
    double timeout_s; /* 0: default */
    struct test_case *next;
} test_case;

void test_register(test_case *added);
/* Records a failure with its place; the test goes on. */
void test_fail(test *t, const char *file, int line, const char *format, ...) TS_PRINTF(4, 5);
uint64_t test_random(test *t);                     /* 64 random bits */
int64_t test_random_below(test *t, int64_t bound); /* 0 .. bound-1 */
bool test_failed(const test *t);
/* Whether the next row of a table is tried: all are, unless TEST_SHARE=N asks for every Nth only
 * (tests/samples), from a row that the seed chooses. All ranks ask about the same rows. */
bool test_tries(test *t);
/* Reads a whole file under the source tree ("tests/golden/x.jsonl"), NUL-terminated; tsi_free it.
 * NULL and a failure if it cannot. */
char *test_read_file(test *t, const char *path, size_t *length);
/* ts_tensor_view, but where the host cannot read the block, of a dense copy, which lives as long as
 * the thread. Whoever writes into a view says so afterwards. */
ts_status test_view(ts_tensor *x, ts_array *out);
ts_status test_written(ts_tensor *x, const ts_array *view);

#define TEST_DEFINE_(symbol, text, ...)                                                            \
    static void symbol(test *t);                                                                   \
    static test_case symbol##_case = { .name = text, .fn = symbol, __VA_ARGS__ };                  \
    __attribute__((constructor)) static void symbol##_register(void)                               \
    {                                                                                              \
        test_register(&symbol##_case);                                                             \
    }                                                                                              \
    static void symbol(__attribute__((unused)) test *t)

#define TS_TEST(name) TEST_DEFINE_(test_##name, #name, .ranks = { 0 })
#define TS_TEST_LONG(name, seconds) TEST_DEFINE_(test_##name, #name, .timeout_s = (seconds))
#define TS_TEST_RANKS(name, ...)                                                                   \
    TEST_DEFINE_(test_##name, #name, .run_ranks = test_run_ranks, .ranks = { __VA_ARGS__ })

#define TEST_CHECK(t, condition)                                                                   \
    ((condition) ? (void)0 : test_fail((t), __FILE__, __LINE__, "%s", #condition))
#define TEST_SAY(t, condition, ...)                                                                \
    ((condition) ? (void)0 : test_fail((t), __FILE__, __LINE__, __VA_ARGS__))
#define TEST_EQ(t, got, want)                                                                      \
    test_eq((t), __FILE__, __LINE__, #got, (int64_t)(got), (int64_t)(want))
#define TEST_TEXT(t, got, want) test_text((t), __FILE__, __LINE__, #got, (got), (want))
/* The text contains the words. */
#define TEST_SAYS(t, got, words) test_says((t), __FILE__, __LINE__, #got, (got), (words))
#define TEST_STATUS(t, expression, want)                                                           \
    test_status((t), __FILE__, __LINE__, #expression, (expression), (want))
#define TEST_OK(t, expression) TEST_STATUS(t, expression, TS_OK)

void test_eq(test *t, const char *file, int line, const char *what, int64_t got, int64_t want);
void test_text(test *t, const char *file, int line, const char *what, const char *got,
               const char *want);
void test_says(test *t, const char *file, int line, const char *what, const char *got,
               const char *words);
void test_status(test *t, const char *file, int line, const char *what, ts_status got,
                 ts_status want);

#endif
