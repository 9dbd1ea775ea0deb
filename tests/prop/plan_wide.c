/* SPDX-License-Identifier: Apache-2.0 */
/* plan_wide.c - a wide step, checked by classes of ranks, against the same step written down rank
 * by rank: random lists of stages, groups inside and across them, with mistakes in some: what is
 * found is of the same kinds. And ranks that do anything, or nothing, in any groups: something is
 * wrong with both texts, or with neither. */
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

/* ---- ranks that do anything ------------------------------------------------------------------ */

enum { LOOSE_RANKS = 12, LOOSE_LISTS = 3, LOOSE_LINES = 12, FAMILIES = 2 };

typedef struct loose_line {
    int family; /* of a collective; -1: a message with the rank so far away */
    int away, bytes, channel;
    bool sends;
} loose_line;

typedef struct loose {
    int ranks, own[LOOSE_RANKS]; /* the list of a rank; -1: it does nothing */
    int size[FAMILIES], apart[FAMILIES];
    loose_line line[LOOSE_LISTS][LOOSE_LINES];
    int count[LOOSE_LISTS];
} loose;

static void insert(test *t, loose *w, int list, loose_line line)
{
    if (list < 0 || w->count[list] == LOOSE_LINES) return;
    loose_line *all = w->line[list];
    int at = below(t, w->count[list] + 1);
    memmove(&all[at + 1], &all[at], (size_t)(w->count[list]++ - at) * sizeof *all);
    all[at] = line;
}

/* The list of all ranks that are so far from those of a list; -2: they are of several, or of
 * one that has others too. */
static int list_at(const loose *w, int list, int away)
{
    int other = -3;
    for (int r = 0; r < w->ranks; r++) {
        if (w->own[r] != list) continue;
        if (r + away < 0 || r + away >= w->ranks) return -2;
        int own = w->own[r + away];
        if (other != -3 && own != other) return -2;
        other = own;
    }
    return other;
}

/* Most messages are received by whom they are for; some are sent all the same. */
static void draw_message(test *t, loose *w, int list)
{
    int away = below(t, 2 * w->ranks - 1) - w->ranks + 1, channel = below(t, 4) == 0;
    int other = away ? list_at(w, list, away) : -2;
    loose_line line = { -1, away, 8, channel, true };
    if (other < 0 && (other != -1 || below(t, 4) > 0)) return;
    bool meets = other >= 0 && list_at(w, other, -away) == list;
    if (!meets && below(t, 4) > 0) return;
    insert(t, w, list, line);
    line.away = -away;
    line.sends = false;
    if (meets) insert(t, w, other, line);
}

static void draw_loose(test *t, loose *w)
{
    static const int counts[] = { 2, 3, 4, 4, 6, 8, 8, 12 };
    *w = (loose){ .ranks = counts[below(t, 8)] };
    int lists = 1 + below(t, LOOSE_LISTS), block = 1 + below(t, w->ranks);
    for (int f = 0; f < FAMILIES; f++) {
        do {
            w->size[f] = 1 + below(t, w->ranks);
            w->apart[f] = 1 + below(t, w->ranks);
        } while (w->ranks % (w->size[f] * w->apart[f]) != 0);
    }
    for (int r = 0; r < w->ranks; r++)
        w->own[r] = r % block ? w->own[r - 1] : below(t, lists + 1) - 1;
    for (int s = 0; s < lists; s++)
        for (int k = below(t, 5); k > 0; k--) {
            if (below(t, 2))
                insert(t, w, s, (loose_line){ .family = below(t, FAMILIES), .bytes = 8 });
            else
                draw_message(t, w, s);
        }
}

static void put_loose_line(const loose *w, const loose_line *line, int rank, tsi_text *out)
{
    const char *key = line->sends ? "send h to" : "receive h from";
    if (line->family < 0 && rank < 0)
        tsi_text_printf(out, "%s=%+d", key, line->away);
    else if (line->family < 0)
        tsi_text_printf(out, "%s=%d", key, rank + line->away);
    else
        tsi_text_printf(out, "all_reduce r over=f%d", line->family);
    if (line->family >= 0 && rank >= 0) {
        int apart = w->apart[line->family], size = w->size[line->family];
        tsi_text_printf(out, ".%d", rank - rank / apart % size * apart);
    }
    tsi_text_printf(out, " bytes=%d channel=%d\n", line->bytes, line->channel);
}

static void put_loose_wide(const loose *w, tsi_text *out)
{
    tsi_text_printf(out, "step 1\nranks %d\nwide\n", w->ranks);
    for (int f = 0; f < FAMILIES; f++)
        tsi_text_printf(out, "groups f%d %d:%d\n", f, w->size[f], w->apart[f]);
    for (int s = 0; s < LOOSE_LISTS; s++) {
        const char *comma = "rank ";
        for (int r = 0; r < w->ranks; r++) {
            if (w->own[r] != s) continue;
            tsi_text_printf(out, "%s%d", comma, r);
            comma = ",";
        }
        if (comma[0] != ',') continue;
        tsi_text_add(out, "\n");
        for (int k = 0; k < w->count[s]; k++)
            put_loose_line(w, &w->line[s][k], -1, out);
    }
}

static void put_loose_whole(const loose *w, tsi_text *out)
{
    tsi_text_printf(out, "step 1\nranks %d\n", w->ranks);
    for (int f = 0; f < FAMILIES; f++)
        for (int base = 0; base < w->ranks; base++) {
            if (base / w->apart[f] % w->size[f] != 0) continue;
            tsi_text_printf(out, "group f%d.%d %d", f, base, base);
            for (int i = 1; i < w->size[f]; i++)
                tsi_text_printf(out, ",%d", base + i * w->apart[f]);
            tsi_text_add(out, "\n");
        }
    for (int r = 0; r < w->ranks; r++) {
        tsi_text_printf(out, "rank %d\n", r);
        for (int k = 0; w->own[r] >= 0 && k < w->count[w->own[r]]; k++)
            put_loose_line(w, &w->line[w->own[r]][k], r, out);
    }
}

TS_TEST_LONG(ranks_may_do_anything_in_any_groups, 120)
{
    int64_t good = 0, bad = 0;
    for (int round = 0; round < 4000 && !test_failed(t); round++) {
        loose w;
        tsi_text wide = { 0 }, whole = { 0 };
        tsi_findings few = { 0 }, many = { 0 };
        draw_loose(t, &w);
        put_loose_wide(&w, &wide);
        put_loose_whole(&w, &whole);
        if (find(t, &wide, &few) && find(t, &whole, &many)) {
            TEST_SAY(t, (few.total > 0) == (many.total > 0), "%s by classes, %s by ranks\n%s",
                     few.count ? few.item[0].text : "nothing",
                     many.count ? many.item[0].text : "nothing", wide.data);
            good += many.total == 0;
            bad += many.total > 0;
        }
        tsi_findings_release(&few);
        tsi_findings_release(&many);
        tsi_text_release(&wide);
        tsi_text_release(&whole);
    }
    TEST_SAY(t, good > 400 && bad > 400, "%lld good, %lld bad", (long long)good, (long long)bad);
}
