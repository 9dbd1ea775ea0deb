/* SPDX-License-Identifier: Apache-2.0 */
/* base_observe.c - observers of a rank: order, removal while news are told, news about news. */
#include "base/observe.h"
#include "harness/test.h"

typedef struct listener {
    tsi_observer self;
    tsi_observers *list;
    char *log; /* one letter per news heard */
    char letter;
    struct listener *removes, *adds; /* when it hears something */
    int nested;                      /* tells so many more */
} listener;

static void hear(void *context, void *what)
{
    listener *l = context;
    size_t length = strlen(l->log);
    l->log[length] = l->letter;
    l->log[length + 1] = '\0';
    if (l->nested-- > 0) tsi_observers_tell(l->list, TSI_NEWS_CALL, what);
    if (l->removes) tsi_observers_remove(l->list, &l->removes->self);
    if (l->adds) (void)tsi_observers_add(l->list, &l->adds->self);
}

typedef struct scene {
    tsi_observers list;
    listener l[4];
    char log[64];
} scene;

static void scene_make(scene *s, int added)
{
    *s = (scene){ 0 };
    for (int i = 0; i < 4; i++) {
        s->l[i] = (listener){ .list = &s->list, .log = s->log, .letter = (char)('a' + i) };
        s->l[i].self = (tsi_observer){ .context = &s->l[i], .hear = { [TSI_NEWS_CALL] = hear } };
        if (i < added) (void)tsi_observers_add(&s->list, &s->l[i].self);
    }
}

static void tell(scene *s)
{
    if (tsi_observers_want(&s->list, TSI_NEWS_CALL))
        tsi_observers_tell(&s->list, TSI_NEWS_CALL, NULL);
}

TS_TEST(observers_hear_in_order)
{
    scene s;
    scene_make(&s, 3);
    TEST_OK(t, tsi_observers_add(&s.list, &s.l[1].self)); /* again: nothing changes */
    tell(&s);
    TEST_TEXT(t, s.log, "abc");
    TEST_CHECK(t, !tsi_observers_want(&s.list, TSI_NEWS_MOVE));
    tsi_observers_remove(&s.list, &s.l[1].self);
    tsi_observers_remove(&s.list, &s.l[3].self); /* was never there */
    tell(&s);
    TEST_TEXT(t, s.log, "abcac");
    tsi_observers_remove(&s.list, &s.l[0].self);
    tsi_observers_remove(&s.list, &s.l[2].self);
    TEST_CHECK(t, !tsi_observers_want(&s.list, TSI_NEWS_CALL));
}

TS_TEST(observers_may_leave_while_told)
{
    static const struct {
        int who, whom;
        const char *first, *second;
    } cases[] = { { 0, 0, "abc", "bc" }, { 1, 1, "abc", "ac" }, { 2, 2, "abc", "ab" },
                  { 0, 1, "ac", "ac" },  { 0, 2, "ab", "ab" },  { 1, 0, "abc", "bc" },
                  { 2, 0, "abc", "bc" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scene s;
        scene_make(&s, 3);
        s.l[cases[i].who].removes = &s.l[cases[i].whom];
        tell(&s);
        TEST_TEXT(t, s.log, cases[i].first);
        s.log[0] = '\0';
        s.l[cases[i].who].removes = NULL;
        tell(&s);
        TEST_TEXT(t, s.log, cases[i].second);
        TEST_EQ(t, s.list.count, 2);
    }
}

TS_TEST(observers_hear_news_about_news)
{
    scene s;
    scene_make(&s, 2);
    s.l[0].nested = 1;
    s.l[1].removes = &s.l[1]; /* inside the inner telling */
    tell(&s);
    TEST_TEXT(t, s.log, "aab"); /* a, and inside it a and b; then b is gone */
    TEST_EQ(t, s.list.count, 1);
    TEST_EQ(t, s.list.telling, 0);
}

TS_TEST(observers_are_added_for_the_next_news)
{
    scene s;
    scene_make(&s, 1);
    s.l[0].adds = &s.l[3];
    tell(&s);
    TEST_TEXT(t, s.log, "a");
    tell(&s);
    TEST_TEXT(t, s.log, "aad");
}

TS_TEST(observers_have_a_limit)
{
    tsi_observers list = { 0 };
    tsi_observer many[TSI_OBSERVERS_MAX + 1] = { 0 };
    for (int i = 0; i < TSI_OBSERVERS_MAX; i++)
        TEST_OK(t, tsi_observers_add(&list, &many[i]));
    TEST_STATUS(t, tsi_observers_add(&list, &many[TSI_OBSERVERS_MAX]), TS_ERR_STATE);
    TEST_SAYS(t, ts_last_error(), "observers: a rank has at most 8");
}
