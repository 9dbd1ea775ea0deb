/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c - the list of a rank's observers.
 *
 * While news are told, a removed entry becomes a gap, so that no index in use changes; the
 * outermost telling closes the gaps. */
#include "base/observe.h"

#include "base/error.h"

static void count_wants(tsi_observers *list)
{
    list->wants = 0;
    for (int32_t i = 0; i < list->count; i++)
        for (int32_t n = 0; list->list[i] && n < TSI_NEWS_COUNT; n++)
            if (list->list[i]->hear[n]) list->wants |= 1u << n;
}

static void close_gaps(tsi_observers *list)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < list->count; i++)
        if (list->list[i]) list->list[kept++] = list->list[i];
    list->count = kept;
    list->gaps = false;
}

static int32_t find(const tsi_observers *list, const tsi_observer *observer)
{
    for (int32_t i = 0; i < list->count; i++)
        if (list->list[i] == observer) return i;
    return -1;
}

ts_status tsi_observers_add(tsi_observers *list, const tsi_observer *observer)
{
    if (find(list, observer) >= 0) return TS_OK;
    if (list->count == TSI_OBSERVERS_MAX)
        return TSI_FAIL(TS_ERR_STATE, "observers: a rank has at most %d", TSI_OBSERVERS_MAX);
    list->list[list->count++] = observer;
    count_wants(list);
    return TS_OK;
}

void tsi_observers_remove(tsi_observers *list, const tsi_observer *observer)
{
    int32_t at = find(list, observer);
    if (at < 0) return;
    list->list[at] = NULL;
    list->gaps = true;
    if (list->telling == 0) close_gaps(list);
    count_wants(list);
}

void tsi_observers_tell(tsi_observers *list, tsi_news news, void *what)
{
    int32_t count = list->count; /* who is added from now on hears the next news */
    list->telling++;
    for (int32_t i = 0; i < count; i++) {
        const tsi_observer *observer = list->list[i];
        if (observer && observer->hear[news]) observer->hear[news](observer->context, what);
    }
    if (--list->telling == 0 && list->gaps) close_gaps(list);
}
