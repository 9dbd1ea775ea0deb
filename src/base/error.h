/* SPDX-License-Identifier: Apache-2.0 */
/* error.h - recording why a call failed.
 *
 * TSI_FAIL records a sentence and evaluates to the status. It goes to the rank attached to the
 * calling thread, which keeps the first one, else to the thread (ts_last_error). A rank's blast is
 * derived from the status: MEMORY, IO, INTERNAL are LOCAL; LOST is LOST; all else AGREED; a caller
 * that knows better uses TSI_FAIL_BLAST. */
#ifndef TSI_BASE_ERROR_H
#define TSI_BASE_ERROR_H

#include <stdarg.h>

#include "base/compiler.h"
#include "tessera/status.h"

#define TSI_FAIL(status, ...) tsi_fail(TS_BLAST_NONE, (status), __VA_ARGS__)
#define TSI_FAIL_BLAST(blast, status, ...) tsi_fail((blast), (status), __VA_ARGS__)

/* Leaves the function with the status if it is not TS_OK. Only while nothing is held. */
#define TSI_TRY(expression)                                                                        \
    do {                                                                                           \
        ts_status tsi_try_status_ = (expression);                                                  \
        if (TSI_UNLIKELY(tsi_try_status_ != TS_OK)) return tsi_try_status_;                        \
    } while (0)

ts_status tsi_fail(ts_blast blast, ts_status status, const char *format, ...) TS_PRINTF(3, 4);
ts_status tsi_fail_va(ts_blast blast, ts_status status, const char *format, va_list arguments)
    TS_PRINTF(3, 0);

/* An error record with its own text; used by ranks, works and worlds. Zero is "no error". */
enum { TSI_ERROR_TEXT_MAX = 1024, TSI_ERROR_WHERE_MAX = 128 };
typedef struct tsi_error_record {
    ts_error error; /* where and text point into this record */
    char where[TSI_ERROR_WHERE_MAX];
    char text[TSI_ERROR_TEXT_MAX];
} tsi_error_record;
void tsi_error_copy(tsi_error_record *to, const tsi_error_record *from);
void tsi_error_clear(tsi_error_record *record);
/* Fills a record without touching rank or thread: for works and helpers, which have no rank of
 * their own. where NULL: "". The arguments may point into the record itself. */
void tsi_error_set(tsi_error_record *record, const ts_error *error, const char *format, ...)
    TS_PRINTF(3, 4);
/* The calling thread's rank (or the thread) fails with a copy of the record; returns its status. */
ts_status tsi_fail_record(const tsi_error_record *record);
/* What a thread without a rank failed with last; and as if it had not failed yet. */
void tsi_error_last(tsi_error_record *out);
void tsi_error_forget(void);
/* Puts a prefix and ": " before the text of the rank's pending error, else of the thread's last:
 * tsi_error_prefix("matmul") makes "matmul: inner dims differ, 3 vs 4". A text that begins so stays
 * as it is. */
void tsi_error_prefix(const char *format, ...) TS_PRINTF(1, 2);
/* The same, in the place of `was` and ": " where the text begins so: tsi_error_rename("topology",
 * "parallel.topology") makes "parallel.topology: no preset .." of "topology: no preset ..". */
void tsi_error_rename(const char *was, const char *format, ...) TS_PRINTF(2, 3);

#endif
