/* SPDX-License-Identifier: Apache-2.0 */
/* error.c - where the sentence of a failure is kept.
 *
 * A failure belongs to the rank attached to the calling thread; the rank keeps its first one until
 * a scope or recover takes it. A thread without a rank keeps its latest one in a record of its own,
 * made at its first failure: the library's thread-local storage is one pointer (rank.c), since a
 * library that is loaded late beside others finds little room there. A rank's record is part of the
 * rank, so that running out of memory can be reported. */
#include "base/error.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/text.h"

/* ---- the record of a thread ------------------------------------------------------------------ */

static pthread_once_t thread_once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key; /* of the thread's tsi_error_record, freed when the thread ends */
static bool thread_key_made;

static void make_thread_key(void)
{
    thread_key_made = pthread_key_create(&thread_key, tsi_free_kept) == 0;
}

/* NULL: the thread has not failed yet. */
static tsi_error_record *thread_record(void)
{
    pthread_once(&thread_once, make_thread_key);
    return thread_key_made ? pthread_getspecific(thread_key) : NULL;
}

/* Made if it is not there. NULL: no memory; the status alone must do. */
static tsi_error_record *thread_record_made(void)
{
    tsi_error_record *record = thread_record();
    if (record != NULL || !thread_key_made) return record;
    record = tsi_alloc_kept(sizeof *record, 0);
    if (record == NULL) return NULL;
    memset(record, 0, sizeof *record);
    tsi_error_clear(record);
    if (pthread_setspecific(thread_key, record) == 0) return record;
    tsi_free_kept(record);
    return NULL;
}

/* ---- statuses -------------------------------------------------------------------------------- */

const char *ts_status_name(ts_status status)
{
    switch (status) {
#define STATUS_NAME(name, value, meaning)                                                          \
    case name:                                                                                     \
        return #name;
        TS_STATUS_LIST(STATUS_NAME)
#undef STATUS_NAME
    }
    return "TS_ERR_UNKNOWN";
}

const char *ts_status_meaning(ts_status status)
{
    switch (status) {
#define STATUS_MEANING(name, value, meaning)                                                       \
    case name:                                                                                     \
        return meaning;
        TS_STATUS_LIST(STATUS_MEANING)
#undef STATUS_MEANING
    }
    return "a status this version of tessera does not know";
}

const char *ts_last_error(void)
{
    const tsi_error_record *record = thread_record();
    return record != NULL ? record->text : "";
}

/* ---- records --------------------------------------------------------------------------------- */

static ts_blast blast_of(ts_status status)
{
    switch (status) {
    case TS_OK:
        return TS_BLAST_NONE;
    case TS_ERR_MEMORY:
    case TS_ERR_IO:
    case TS_ERR_INTERNAL:
    case TS_ERR_INTERRUPTED:
        return TS_BLAST_LOCAL;
    case TS_ERR_LOST:
        return TS_BLAST_LOST;
    case TS_ERR_ARG:
    case TS_ERR_NULL:
    case TS_ERR_SHAPE:
    case TS_ERR_MESH:
    case TS_ERR_STATE:
    case TS_ERR_THREAD:
    case TS_ERR_POLICY:
    case TS_ERR_PEER:
    case TS_ERR_DTYPE:
    case TS_ERR_MISSING:
        return TS_BLAST_AGREED;
    }
    return TS_BLAST_AGREED;
}

/* Copies what fits and ends a cut text with "...", between two characters: what is shown of an
 * error is UTF-8 if the error was. The two may overlap. */
static void text_put(char *to, size_t size, const char *from)
{
    size_t length = strlen(from);
    bool cut = length >= size;
    if (cut) length = tsi_text_cut(from, size - 4);
    memmove(to, from, length);
    if (cut) memcpy(to + length, "...", 3);
    to[length + (cut ? 3 : 0)] = '\0';
}

static void record_fill(tsi_error_record *record, const ts_error *error, const char *format,
                        va_list arguments) TS_PRINTF(3, 0);

/* Formatting goes through a buffer of its own because an argument may be the text it replaces. */
static void record_fill(tsi_error_record *record, const ts_error *error, const char *format,
                        va_list arguments)
{
    char text[TSI_ERROR_TEXT_MAX + 1] = "";
    (void)vsnprintf(text, sizeof text, format, arguments);
    text_put(record->where, sizeof record->where, error->where != NULL ? error->where : "");
    text_put(record->text, sizeof record->text, text);
    record->error = *error;
    record->error.where = record->where;
    record->error.text = record->text;
}

void tsi_error_set(tsi_error_record *record, const ts_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record_fill(record, error, format, arguments);
    va_end(arguments);
}

void tsi_error_copy(tsi_error_record *to, const tsi_error_record *from)
{
    if (to == from) return;
    *to = *from;
    to->error.where = to->where;
    to->error.text = to->text;
}

void tsi_error_clear(tsi_error_record *record)
{
    record->error =
        (ts_error){ .rank = -1, .event = -1, .where = record->where, .text = record->text };
    record->where[0] = '\0';
    record->text[0] = '\0';
}

static void rank_where(const ts_rank *rank, char *out, size_t size)
{
    const char *label = rank->label != NULL ? rank->label : "";
    const char *place = rank->placed ? rank->where : ""; /* the program's own alone */
    if (label[0] != '\0' && place[0] != '\0')
        (void)snprintf(out, size, "%s (%s)", label, place);
    else
        (void)snprintf(out, size, "%s", label[0] != '\0' ? label : place);
}

ts_status tsi_fail_va(ts_blast blast, ts_status status, const char *format, va_list arguments)
{
    if (status >= TS_OK) status = TS_ERR_INTERNAL; /* a failure must not read as success */
    if (blast == TS_BLAST_NONE) blast = blast_of(status);
    ts_error error = { .status = status, .blast = blast, .rank = -1, .event = -1 };
    ts_rank *rank = tsi_rank_current();
    if (rank == NULL) {
        tsi_error_record *record = thread_record_made();
        if (record != NULL) record_fill(record, &error, format, arguments);
        return status;
    }
    if (rank->error.error.status != TS_OK) return status; /* the first error is kept */
    char where[TSI_ERROR_WHERE_MAX + 1];
    rank_where(rank, where, sizeof where);
    uint64_t event = tsi_ring_last(rank->ring);
    error.rank = rank->index;
    error.event = event > 0 ? (int64_t)event : -1;
    error.where = where;
    record_fill(&rank->error, &error, format, arguments);
    if (rank->on_error != NULL) rank->on_error(rank, &rank->error.error);
    return status;
}

ts_status tsi_fail(ts_blast blast, ts_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    ts_status result = tsi_fail_va(blast, status, format, arguments);
    va_end(arguments);
    return result;
}

ts_status tsi_fail_record(const tsi_error_record *record)
{
    ts_rank *rank = tsi_rank_current();
    tsi_error_record *own = rank == NULL ? thread_record_made() : NULL;
    if (rank != NULL)
        tsi_rank_take_error(rank, record);
    else if (own != NULL)
        tsi_error_copy(own, record);
    return record->error.status;
}

/* The text is behind the prefix; `skip` bytes of its beginning go. */
static void put_prefix(tsi_error_record *record, const char *prefix, size_t skip)
{
    char text[2 * TSI_ERROR_TEXT_MAX] = "";
    size_t length = strlen(prefix);
    bool is_there = strncmp(record->text, prefix, length) == 0 && record->text[length] == ':';
    if (is_there) return;
    (void)snprintf(text, sizeof text, "%s: %s", prefix, record->text + skip);
    text_put(record->text, sizeof record->text, text);
}

/* The record of what failed last on this thread: its rank's pending error, else the thread's. */
static tsi_error_record *latest_record(void)
{
    ts_rank *rank = tsi_rank_current();
    bool on_rank = rank != NULL && rank->error.error.status != TS_OK;
    return on_rank ? &rank->error : thread_record();
}

void tsi_error_prefix(const char *format, ...)
{
    tsi_error_record *record = latest_record();
    if (record == NULL) return;
    char prefix[TSI_ERROR_TEXT_MAX] = "";
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    put_prefix(record, prefix, 0);
}

void tsi_error_rename(const char *was, const char *format, ...)
{
    tsi_error_record *record = latest_record();
    if (record == NULL) return;
    char prefix[TSI_ERROR_TEXT_MAX] = "";
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(prefix, sizeof prefix, format, arguments);
    va_end(arguments);
    size_t length = strlen(was);
    bool begins =
        strncmp(record->text, was, length) == 0 && strncmp(record->text + length, ": ", 2) == 0;
    put_prefix(record, prefix, begins ? length + 2 : 0);
}

void tsi_error_last(tsi_error_record *out)
{
    const tsi_error_record *record = thread_record();
    if (record != NULL)
        tsi_error_copy(out, record);
    else
        tsi_error_clear(out);
}

void tsi_error_forget(void)
{
    tsi_error_record *record = thread_record();
    if (record != NULL) tsi_error_clear(record);
}
