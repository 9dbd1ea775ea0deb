/* SPDX-License-Identifier: Apache-2.0 */
/* base_log.c - what reaches standard error: levels, one line per text, counts at the flush. */
#include "base/log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rank.h"
#include "harness/test.h"

/* Standard error goes to a file between capture and captured. */
typedef struct capture {
    FILE *file;
    int saved;
    char text[8192];
} capture;

static void capture_begin(capture *c)
{
    c->file = tmpfile();
    c->saved = dup(STDERR_FILENO);
    (void)dup2(fileno(c->file), STDERR_FILENO);
}

static const char *capture_end(capture *c)
{
    (void)dup2(c->saved, STDERR_FILENO);
    (void)close(c->saved);
    rewind(c->file);
    size_t length = fread(c->text, 1, sizeof c->text - 1, c->file);
    c->text[length] = '\0';
    (void)fclose(c->file);
    return c->text;
}

TS_TEST(log_level_from_the_environment)
{
    (void)setenv("TESSERA_LOG", "info", 1);
    TEST_CHECK(t, tsi_log_enabled(TSI_LOG_INFO) && !tsi_log_enabled(TSI_LOG_DEBUG));
    capture c;
    capture_begin(&c);
    tsi_log(TSI_LOG_INFO, "%d cores", 2);
    tsi_log(TSI_LOG_DEBUG, "unheard");
    TEST_TEXT(t, capture_end(&c), "tessera info: 2 cores\n");
}

TS_TEST(log_default_is_warn)
{
    (void)setenv("TESSERA_LOG", "loud", 1);
    TEST_CHECK(t, tsi_log_enabled(TSI_LOG_WARN) && !tsi_log_enabled(TSI_LOG_INFO));
}

TS_TEST(log_says_once_what_all_ranks_say)
{
    (void)unsetenv("TESSERA_LOG");
    ts_world *world;
    TEST_OK(t, tsi_world_make(4, 4, 0, 16, &world));
    capture c;
    capture_begin(&c);
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 4; i++) {
            tsi_rank_set_current(world->rank[i]);
            tsi_log(TSI_LOG_WARN, "the cache is full");
            if (i == 2) tsi_log(TSI_LOG_WARN, "only here, step %d", step);
        }
    }
    tsi_rank_set_current(NULL);
    tsi_world_unmake(world); /* flushes */
    TEST_TEXT(t, capture_end(&c),
              "tessera warn, rank 0: the cache is full\n"
              "tessera warn, rank 2: only here, step 0\n"
              "tessera warn, rank 0: the cache is full\n" /* its speaker again: news */
              "tessera warn, rank 2: only here, step 1\n"
              "tessera warn: said by 6 more: the cache is full\n");
}

TS_TEST(log_forgets_old_texts_with_their_counts)
{
    (void)unsetenv("TESSERA_LOG");
    ts_world *world;
    TEST_OK(t, tsi_world_make(2, 2, 0, 16, &world));
    capture c;
    capture_begin(&c);
    for (int text = 0; text < 40; text++) {
        for (int i = 0; i < 2; i++) {
            tsi_rank_set_current(world->rank[i]);
            tsi_log(TSI_LOG_ERROR, "text %d", text);
        }
    }
    const char *said = capture_end(&c);
    TEST_SAYS(t, said, "rank 0: text 39\n");
    TEST_SAYS(t, said, "said by 1 more: text 7\n");
    TEST_CHECK(t, strstr(said, "said by 1 more: text 8\n") == NULL);
    capture_begin(&c);
    tsi_world_unmake(world);
    TEST_SAYS(t, capture_end(&c), "said by 1 more: text 8\n");
}

TS_TEST(log_cuts_long_lines)
{
    char text[5000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    capture c;
    capture_begin(&c);
    tsi_log(TSI_LOG_ERROR, "%s", text);
    const char *said = capture_end(&c);
    TEST_CHECK(t, strlen(said) <= 2048 && said[strlen(said) - 1] == '\n');
}

TS_TEST(assertion_logs_and_stops)
{
    capture c;
    capture_begin(&c);
    pid_t child = fork();
    if (child == 0) {
        TSI_ASSERT(1 + 1 == 2);
        TSI_ASSERT(child != 0);
        _exit(0);
    }
    int status = 0;
    (void)waitpid(child, &status, 0);
    const char *said = capture_end(&c);
    TEST_CHECK(t, WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    TEST_SAYS(t, said, "base_log.c");
    TEST_SAYS(t, said, "broken invariant: child != 0");
}
