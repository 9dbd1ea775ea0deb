/* SPDX-License-Identifier: Apache-2.0 */
/* observe.h - who is told what happens on a rank.
 *
 * A rank has a list of observers. Each layer tells what it does, with a struct of its own header as
 * `what`; an observer hears those news for which it has a function. Automatic differentiation is
 * one observer among others; recording a step is another.
 *
 * Observers are told in the order in which they were added. One that is added while news are told
 * hears the next ones; one that is removed, be it by itself, hears nothing more. Nothing here is
 * locked: only the rank's own thread tells, adds and removes.
 *
 * INV: news that nobody hears cost one test of a byte. */
#ifndef TSI_BASE_OBSERVE_H
#define TSI_BASE_OBSERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/compiler.h"
#include "tessera/status.h"
#include "tessera/world.h"

typedef enum tsi_news {
    TSI_NEWS_FREE,   /* tsi_storage (array/array.h) that was asked to be told of: memory goes */
    TSI_NEWS_ISSUE,  /* tsi_issued (comm/comm.h): a collective or message was issued */
    TSI_NEWS_WAIT,   /* ts_work: an asynchronous one was waited for */
    TSI_NEWS_AGREE,  /* its name: what was issued last was an agreement of ranks, for no data */
    TSI_NEWS_STAGE,  /* tsi_storage: a move took it for itself, beside source and target */
    TSI_NEWS_FILL,   /* tsi_filled (tensor/tensor.h): a tensor was made, by no call */
    TSI_NEWS_MOVING, /* NULL: a move or an algorithm begins; what was issued before is not for it */
    TSI_NEWS_MOVE,   /* tsi_moved (tensor/tensor.h): a tensor is now another, in another layout */
    TSI_NEWS_WRITE,  /* ts_tensor: a variable is about to get a value */
    TSI_NEWS_MESSAGE, /* tsi_message (tensor/tensor.h): a tensor was sent or received */
    TSI_NEWS_DROP,    /* ts_tensor: one with a history, or a variable, goes */
    TSI_NEWS_CLOSE,   /* tsi_closed (tensor/tensor.h): a scope is about to close */
    TSI_NEWS_ROWS, /* tsi_op_record (op/core/dispatch.h): of a call whose first input is on its way
                    * the rows that are here are computed; in[0] is where those lie, the call is
                    * told later */
    TSI_NEWS_CALL, /* tsi_op_record: an operator was called */
    TSI_NEWS_LISTING, /* tsi_listed (op/core/list.h): lists of tensors are about to be changed in
                       * place; who refuses that does so now */
    TSI_NEWS_LIST,    /* tsi_listed: they were, by no operator */
    TSI_NEWS_COUNT
} tsi_news;

typedef struct tsi_observer {
    void *context;
    void (*hear[TSI_NEWS_COUNT])(void *context, void *what); /* (optional) */
} tsi_observer;

enum { TSI_OBSERVERS_MAX = 8 };
typedef struct tsi_observers {                   /* of one rank; zero is none */
    uint8_t hearers[TSI_NEWS_COUNT];             /* of each news: bit i is entry i of the list */
    bool gaps;                                   /* entries were removed while news were told */
    int32_t count, telling;                      /* of entries; depth of news about news */
    const tsi_observer *only[TSI_NEWS_COUNT];    /* who hears it, if it is one; else NULL */
    const tsi_observer *list[TSI_OBSERVERS_MAX]; /* borrowed; NULL: removed */
} tsi_observers;

/* The observer is borrowed until it is removed. Adding one again does nothing. */
ts_status tsi_observers_add(tsi_observers *list, const tsi_observer *observer);
void tsi_observers_remove(tsi_observers *list, const tsi_observer *observer); /* or does nothing */
void tsi_observers_tell_all(tsi_observers *list, tsi_news news, void *what);

static inline bool tsi_observers_want(const tsi_observers *list, tsi_news news)
{
    return TSI_UNLIKELY(list->hearers[news] != 0);
}

/* One hearer is called straight away: nothing of the list is used after the call. */
static inline void tsi_observers_tell(tsi_observers *list, tsi_news news, void *what)
{
    const tsi_observer *only = list->only[news];
    if (TSI_LIKELY(only != NULL))
        only->hear[news](only->context, what);
    else
        tsi_observers_tell_all(list, news, what);
}

#endif
