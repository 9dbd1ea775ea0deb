/* SPDX-License-Identifier: Apache-2.0 */
/* plan_wide.c - a wide step, checked by classes of ranks, against the same step written down rank
 * by rank: random lists of stages, groups inside and across them, with mistakes in some: what is
 * found is of the same kinds. */
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "plan/step_wide.h"

enum { SECTIONS_MAX = 8, LINES_MAX = 16, RANKS_MAX = 32, LINE = 96 };

typedef struct section {
    int first, last, stride;
    char line[LINES_MAX][LINE]; /* "%s" where a group's name ends in its base, "%d" a peer */
    int count;
} section;

typedef struct wide_step {
    int ranks, sections, tp, fsdp; /* sizes of groups: tp 1 apart, fsdp tp apart */
    section section[SECTIONS_MAX];
} wide_step;

static void add(section *s, const char *line)
{
    if (s->count < LINES_MAX) snprintf(s->line[s->count++], LINE, "%s", line);
}

static int below(test *t, int bound)
{
    return (int)test_random_below(t, bound);
}

/* Distances stand as "to=@8": from=-8 and to=+8 in the wide text, ranks in the other. */
static void fill(section *s, int stage, int stages, int apart)
{
    char line[LINE];
    if (stage > 0) {
        snprintf(line, sizeof line, "receive h from=@-%d bytes=8 makes=h", apart);
        add(s, line);
    }
    add(s, "gather w over=fsdp queue=comm bytes=64 reads=w makes=g");
    add(s, "wait reads=g");
    add(s, stage > 0 ? "forward f reads=g,h makes=a frees=h" : "forward f reads=g makes=a");
    add(s, "release frees=g");
    if (stage < stages - 1) {
        snprintf(line, sizeof line, "send h to=@%d bytes=8 reads=a", apart);
        add(s, line);
    }
    add(s, "all_reduce r over=tp bytes=16 reads=a makes=b");
    add(s, "all_reduce q over=fsdp queue=comm bytes=16 reads=b makes=c");
    add(s, "wait reads=c");
    add(s, "update w reads=c writes=w frees=a,b,c");
}

/* A line goes, comes twice, changes places with its neighbour, or says other bytes. */
static void spoil(test *t, section *s)
{
    int at = below(t, s->count), what = below(t, 4);
    char line[LINE];
    memcpy(line, s->line[at], LINE);
    if (what == 0) {
        memmove(s->line[at], s->line[at + 1], (size_t)(s->count - at - 1) * LINE);
        s->count--;
    } else if (what == 1 && s->count < LINES_MAX) {
        memmove(s->line[at + 1], s->line[at], (size_t)(s->count - at) * LINE);
        s->count++;
    } else if (what == 2 && at + 1 < s->count) {
        memcpy(s->line[at], s->line[at + 1], LINE);
        memcpy(s->line[at + 1], line, LINE);
    } else {
        char *bytes = strstr(s->line[at], "bytes=");
        if (bytes) bytes[6] = '9';
    }
}

static void draw_step(test *t, wide_step *w)
{
    static const int sizes[][2] = { { 2, 2 }, { 2, 4 }, { 4, 2 }, { 1, 4 }, { 2, 3 } };
    const int *size = sizes[below(t, 5)];
    int stages = 1 + below(t, 3), each = size[0] * size[1];
    bool halves = below(t, 2) && each % 2 == 0; /* two lists of every stage, taking turns */
    *w = (wide_step){ .ranks = stages * each, .tp = size[0], .fsdp = size[1] };
    for (int k = 0; k < stages; k++)
        for (int half = 0; half < 1 + halves; half++) {
            section *s = &w->section[w->sections++];
            *s = (section){ k * each + half, (k + 1) * each - (halves ? 2 - half : 1),
                            halves ? 2 : 1, .count = 0 };
            fill(s, k, stages, each);
        }
    for (int mistakes = below(t, 3); mistakes > 0; mistakes--)
        spoil(t, &w->section[below(t, w->sections)]);
}

static const char values[] = "holds w 8 parameter\nvalue g 64 gathered\nvalue h 8 activation\n"
                             "value a 16 activation\nvalue b 16 gradient\nvalue c 16 gradient\n";

/* One line as a rank has it; rank -1: as the wide text has it. */
static void put_line(const wide_step *w, const char *line, int rank, tsi_text *out)
{
    const char *at = strchr(line, '@'), *over = strstr(line, "over=");
    if (at && rank < 0) {
        int apart = atoi(at + 1);
        tsi_text_printf(out, "%.*s%+d%s\n", (int)(at - line), line, apart, strchr(at, ' '));
    } else if (at) {
        tsi_text_printf(out, "%.*s%d%s\n", (int)(at - line), line, rank + atoi(at + 1),
                        strchr(at, ' '));
    } else if (over && rank >= 0) {
        bool tp = strncmp(over, "over=tp", 7) == 0;
        int each = w->tp * w->fsdp,
            base = tp ? rank / w->tp * w->tp : rank / each * each + rank % w->tp;
        const char *rest = strchr(over, ' ');
        tsi_text_printf(out, "%.*sover=%s.%d%s\n", (int)(over - line), line, tp ? "tp" : "fsdp",
                        base, rest);
    } else {
        tsi_text_printf(out, "%s\n", line);
    }
}

static void put_wide(const wide_step *w, tsi_text *out)
{
    tsi_text_printf(out, "step 1\nranks %d\nwide\nqueue comm\ngroups tp %d:1\ngroups fsdp %d:%d\n",
                    w->ranks, w->tp, w->fsdp, w->tp);
    for (int i = 0; i < w->sections; i++) {
        const section *s = &w->section[i];
        tsi_text_printf(out, "rank %d..%d:%d\n%s", s->first, s->last, s->stride, values);
        for (int k = 0; k < s->count; k++)
            put_line(w, s->line[k], -1, out);
    }
}

static void put_whole(const wide_step *w, tsi_text *out)
{
    int each = w->tp * w->fsdp;
    tsi_text_printf(out, "step 1\nranks %d\nqueue comm\n", w->ranks);
    for (int base = 0; base < w->ranks; base += w->tp)
        tsi_text_printf(out, "group tp.%d %d..%d\n", base, base, base + w->tp - 1);
    for (int base = 0; base < w->ranks; base++)
        if (base % each < w->tp)
            tsi_text_printf(out, "group fsdp.%d %d..%d:%d\n", base, base,
                            base + (w->fsdp - 1) * w->tp, w->tp);
    for (int rank = 0; rank < w->ranks; rank++) {
        tsi_text_printf(out, "rank %d\n%s", rank, values);
        for (int i = 0; i < w->sections; i++) {
            const section *s = &w->section[i];
            bool has = rank >= s->first && rank <= s->last && (rank - s->first) % s->stride == 0;
            for (int k = 0; has && k < s->count; k++)
                put_line(w, s->line[k], rank, out);
        }
    }
}

static bool find(test *t, const tsi_text *text, tsi_findings *found)
{
    tsi_step *step = NULL;
    ts_status status = tsi_step_parse(text->data, &step);
    TEST_SAY(t, status == TS_OK, "%s\n%s", ts_last_error(), text->data);
    if (status == TS_OK) TEST_OK(t, tsi_step_check(step, NULL, found));
    tsi_step_destroy(step);
    return status == TS_OK;
}

TS_TEST_LONG(wide_steps_are_what_their_ranks_are, 120)
{
    int64_t good = 0, bad = 0;
    for (int round = 0; round < 2000 && !test_failed(t); round++) {
        wide_step w;
        tsi_text wide = { 0 }, whole = { 0 };
        tsi_findings few = { 0 }, many = { 0 };
        draw_step(t, &w);
        put_wide(&w, &wide);
        put_whole(&w, &whole);
        if (find(t, &wide, &few) && find(t, &whole, &many)) {
            for (int k = 0; k < TSI_FINDING_KINDS; k++)
                TEST_SAY(t, (few.by[k] > 0) == (many.by[k] > 0),
                         "%s: %lld by classes, %lld by ranks\n%s\n%s", tsi_finding_names[k],
                         (long long)few.by[k], (long long)many.by[k],
                         few.count ? few.item[0].text : "", wide.data);
            good += many.total == 0;
            bad += many.total > 0;
        }
        tsi_findings_release(&few);
        tsi_findings_release(&many);
        tsi_text_release(&wide);
        tsi_text_release(&whole);
    }
    TEST_CHECK(t, good > 400 && bad > 400);
}
