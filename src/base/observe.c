/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c - the list of a rank's observers.
 *
 * While news are told, a removed entry becomes a gap, so that no index in use changes; the
 * outermost telling closes the gaps. */
#include "base/observe.h"

#include "base/error.h"

static void count_hearers(tsi_observers *list)
{
    for (int32_t n = 0; n < TSI_NEWS_COUNT; n++) {
        list->hearers[n] = 0;
        list->only[n] = NULL;
        for (int32_t i = 0; i < list->count; i++) {
            if (!list->list[i] || !list->list[i]->hear[n]) continue;
            list->only[n] = list->hearers[n] ? NULL : list->list[i];
            list->hearers[n] |= (uint8_t)(1u << i);
        }
    }
}

static void close_gaps(tsi_observers *list)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < list->count; i++)
        if (list->list[i]) list->list[kept++] = list->list[i];
    list->count = kept;
    list->gaps = false;
    count_hearers(list);
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
    count_hearers(list);
    return TS_OK;
}

void tsi_observers_remove(tsi_observers *list, const tsi_observer *observer)
{
    int32_t at = find(list, observer);
    if (at < 0) return;
    list->list[at] = NULL;
    list->gaps = true;
    if (list->telling == 0)
        close_gaps(list);
    else
        count_hearers(list);
}

void tsi_observers_tell_all(tsi_observers *list, tsi_news news, void *what)
{
    uint32_t left = list->hearers[news]; /* who is added from now on hears the next news */
    list->telling++;
    for (int32_t i = 0; left >> i != 0; i++) {
        if (!(left >> i & 1)) continue;
        const tsi_observer *observer = list->list[i];
        TSI_ASSERT(observer); /* a removed one has lost its bit */
        observer->hear[news](observer->context, what);
        left &= list->hearers[news]; /* without those it removed */
    }
    TSI_ASSERT(list->telling > 0);
    if (--list->telling == 0 && TSI_UNLIKELY(list->gaps)) close_gaps(list);
}
