/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - lines for a person on standard error.
 *
 * One write per line, so that lines of many ranks do not mix. The first rank that says a text is
 * its speaker; the same text from other ranks is counted and not written. A speaker that repeats
 * itself is written again: that is news. The counts are written by tsi_log_flush or when a line of
 * the small memory of texts is needed for another. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/hash.h"
#include "base/rank.h"

enum { LINE_MAX_BYTES = 2048, REMEMBERED = 32, REMEMBERED_TEXT = 160 };

typedef struct remembered {
    uint64_t hash; /* of level and text; 0: free */
    int64_t speaker;
    int64_t repeats; /* by other ranks, not yet written */
    tsi_log_level level;
    char text[REMEMBERED_TEXT]; /* the beginning, for the line with the count */
} remembered;

static const char *const level_name[] = { "error", "warn", "info", "debug" };
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static remembered memory[REMEMBERED];
static int memory_next;
static _Atomic int level_cached = -1;

static int level_from_environment(void)
{
    const char *wanted = getenv("TESSERA_LOG");
    for (int i = 0; wanted != NULL && i < (int)TSI_COUNT_OF(level_name); i++)
        if (strcasecmp(wanted, level_name[i]) == 0) return i;
    return TSI_LOG_WARN;
}

bool tsi_log_enabled(tsi_log_level level)
{
    int limit = atomic_load_explicit(&level_cached, memory_order_relaxed);
    if (TSI_UNLIKELY(limit < 0)) {
        limit = level_from_environment();
        atomic_store_explicit(&level_cached, limit, memory_order_relaxed);
    }
    return (int)level <= limit;
}

static void write_line(char *line, size_t length)
{
    line[length] = '\n';
    for (size_t done = 0; done < length + 1;) {
        ssize_t wrote = write(STDERR_FILENO, line + done, length + 1 - done);
        if (wrote <= 0) return; /* nobody is left to be told */
        done += (size_t)wrote;
    }
}

static void write_count(remembered *entry)
{
    if (entry->repeats == 0) return;
    char line[REMEMBERED_TEXT + 96];
    int length = snprintf(line, sizeof line - 1, "tessera %s: said by %lld more: %s",
                          level_name[entry->level], (long long)entry->repeats, entry->text);
    entry->repeats = 0;
    if (length > 0) write_line(line, strlen(line));
}

/* True if the line is to be written: it is new, or its speaker repeats it. */
static bool is_news(tsi_log_level level, int64_t speaker, const char *text)
{
    uint64_t hash = tsi_hash_text((uint64_t)level + 1, text);
    if (hash == 0) hash = 1;
    bool news = true;
    pthread_mutex_lock(&memory_lock);
    int i = 0;
    while (i < REMEMBERED && memory[i].hash != hash)
        i++;
    if (i < REMEMBERED) {
        news = memory[i].speaker == speaker;
        if (!news) memory[i].repeats++;
    } else {
        remembered *entry = &memory[memory_next];
        memory_next = (memory_next + 1) % REMEMBERED;
        write_count(entry);
        *entry = (remembered){ .hash = hash, .speaker = speaker, .level = level };
        (void)snprintf(entry->text, sizeof entry->text, "%s", text);
    }
    pthread_mutex_unlock(&memory_lock);
    return news;
}

void tsi_log(tsi_log_level level, const char *format, ...)
{
    if (!tsi_log_enabled(level)) return;
    const ts_rank *rank = tsi_rank_current();
    char line[LINE_MAX_BYTES];
    int head = rank == NULL
                   ? snprintf(line, sizeof line, "tessera %s: ", level_name[level])
                   : snprintf(line, sizeof line, "tessera %s, rank %lld: ", level_name[level],
                              (long long)rank->index);
    va_list arguments;
    va_start(arguments, format);
    int body = vsnprintf(line + head, sizeof line - 1 - (size_t)head, format, arguments);
    va_end(arguments);
    if (body < 0) return;
    if (rank != NULL && !is_news(level, rank->index, line + head)) return;
    write_line(line, strlen(line));
}

void tsi_log_flush(void)
{
    pthread_mutex_lock(&memory_lock);
    for (int i = 0; i < REMEMBERED; i++) {
        write_count(&memory[i]);
        memory[i] = (remembered){ 0 };
    }
    memory_next = 0;
    pthread_mutex_unlock(&memory_lock);
}

void tsi_assert_failed(const char *condition, const char *file, int line)
{
    tsi_log(TSI_LOG_ERROR, "%s:%d: broken invariant: %s; please report it", file, line, condition);
    tsi_log_flush();
    abort();
}
