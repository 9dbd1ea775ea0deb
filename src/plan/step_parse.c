/* SPDX-License-Identifier: Apache-2.0 */
/* step_parse.c - a step from its text.
 *
 * Line by line and strict: an unknown word, a key that is given twice, a number out of range or a
 * value that was not declared is refused with the line and what stood there. Memory is bounded by
 * the text: every rank has a line, and groups have a limit together. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "plan/step_wide.h"

enum { LINE_MAX_BYTES = 1 << 20 };

typedef struct reader {
    tsi_step *step; /* NULL before the line `ranks` */
    int64_t rank;   /* whose lines these are, or the number of the section; -1: still the head */
    int64_t shown;  /* the same for people: the first rank of a section */
    int64_t line;
    char *word, *rest; /* of the line; word is NULL at its end */
    tsi_touch *touch;  /* of the line's action, owned */
    const char **form; /* as which each is seen: into the line; owned */
    int64_t touch_count, touch_capacity, form_capacity;
    int32_t *member; /* of the line's group, owned */
    int64_t member_count, member_capacity;
    int64_t peak; /* of the rank; 0: not said */
    bool begun;   /* `step 1` was read */
    bool acting;  /* the rank has an action, so no value may follow */
} reader;

/* ---- words and numbers ----------------------------------------------------------------------- */

/* The next word of the line, cut off by a NUL. */
static char *next_word(reader *r)
{
    static const char blanks[] = " \t\r";
    char *at = r->rest + strspn(r->rest, blanks);
    size_t length = strcspn(at, blanks);
    r->word = length > 0 ? at : NULL;
    r->rest = at + length;
    if (*r->rest != '\0') *r->rest++ = '\0';
    return r->word;
}

static ts_status want_word(reader *r, const char *what, const char **out)
{
    *out = next_word(r);
    return *out ? TS_OK : TSI_FAIL(TS_ERR_ARG, "%s is missing at the end of the line", what);
}

static ts_status want_end(reader *r)
{
    const char *more = next_word(r);
    return more ? TSI_FAIL(TS_ERR_ARG, "'%.60s' is one word too many", more) : TS_OK;
}

/* A whole number and nothing else, from `low` to `high`. */
static ts_status number_of(const char *what, const char *text, int64_t low, int64_t high,
                           int64_t *out)
{
    tsi_cursor cursor = tsi_cursor_of(what, text);
    *out = 0;
    bool good = tsi_cursor_int(&cursor, out) && *cursor.at == '\0';
    if (good && *out >= low && *out <= high) return TS_OK;
    if (low == high)
        return TSI_FAIL(TS_ERR_ARG, "%s is '%.60s'; %lld is possible", what, text, (long long)low);
    return TSI_FAIL(TS_ERR_ARG, "%s is '%.60s'; whole numbers from %lld to %lld are possible", what,
                    text, (long long)low, (long long)high);
}

static ts_status want_number(reader *r, const char *what, int64_t low, int64_t high, int64_t *out)
{
    const char *text;
    TSI_TRY(want_word(r, what, &text));
    return number_of(what, text, low, high, out);
}

static int32_t index_in(const char *const *names, const char *name)
{
    for (int32_t i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

static ts_status unknown(const char *what, const char *name, const char *const *names)
{
    const char *near = strlen(name) < 64 ? tsi_text_nearest(name, names) : NULL;
    return TSI_FAIL(TS_ERR_ARG, "'%.60s' is no %s%s%s%s", name, what,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* ---- the head -------------------------------------------------------------------------------- */

static ts_status read_ranks(reader *r)
{
    int64_t ranks;
    if (r->step) return TSI_FAIL(TS_ERR_ARG, "the ranks are given twice");
    TSI_TRY(want_number(r, "the number of ranks", 1, TSI_STEP_RANKS_MAX, &ranks));
    return tsi_step_create(ranks, &r->step);
}

static ts_status read_stages(reader *r)
{
    int64_t stages, micros;
    const char *word;
    TSI_TRY(want_number(r, "the number of stages", 1, INT32_MAX, &stages));
    TSI_TRY(want_word(r, "'micro-batches'", &word));
    if (strcmp(word, "micro-batches") != 0)
        return TSI_FAIL(TS_ERR_ARG, "'%.60s' stands where 'micro-batches' is expected", word);
    TSI_TRY(want_number(r, "the number of micro-batches", 1, INT32_MAX, &micros));
    if (r->step->stage_count) return TSI_FAIL(TS_ERR_ARG, "the stages are given twice");
    return tsi_step_stages(r->step, stages, micros);
}

static ts_status read_queue(reader *r)
{
    const char *name;
    int32_t before = r->step->queue_count, index;
    TSI_TRY(want_word(r, "the name of the queue", &name));
    TSI_TRY(tsi_step_queue(r->step, name, &index));
    return r->step->queue_count > before
               ? TS_OK
               : TSI_FAIL(TS_ERR_ARG, "queue %.60s is there already", name);
}

/* "3", "0..7" or "0..6:2" at the cursor. */
static ts_status read_span(const reader *r, tsi_cursor *cursor, tsi_ranks *out)
{
    *out = (tsi_ranks){ .stride = 1 };
    bool good = tsi_cursor_int(cursor, &out->first);
    out->last = out->first;
    if (good && cursor->at[0] == '.' && cursor->at[1] == '.') {
        cursor->at += 2;
        good = tsi_cursor_int(cursor, &out->last) && out->last >= out->first;
        if (good && tsi_cursor_take(cursor, ':'))
            good = tsi_cursor_int(cursor, &out->stride) && out->stride > 0 &&
                   (out->last - out->first) % out->stride == 0;
    }
    if (good && out->first >= 0 && out->last < r->step->rank_count) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG,
                    "the %s are '%.60s'; ranks below %d as 0,3 or 0..7 or 0..6:2 are possible",
                    cursor->what, cursor->start, r->step->rank_count);
}

static ts_status add_members(reader *r, const tsi_ranks *span)
{
    for (int64_t rank = span->first; rank <= span->last; rank += span->stride) {
        if (tsi_room(&r->member, r->member_count, &r->member_capacity, sizeof *r->member,
                     "the text of a step") != TS_OK)
            return tsi_fail_memory("the members of a group", sizeof *r->member);
        r->member[r->member_count++] = (int32_t)rank;
    }
    return r->member_count <= TSI_STEP_MEMBERS_MAX
               ? TS_OK
               : TSI_FAIL(TS_ERR_ARG, "the group has more than %d members", TSI_STEP_MEMBERS_MAX);
}

/* The axes that it lies along, where they are said. */
static ts_status read_axes(reader *r, int32_t group)
{
    const char *axes = next_word(r);
    return axes ? tsi_step_group_along(r->step, group, axes) : TS_OK;
}

static ts_status read_group(reader *r)
{
    const char *name, *members;
    int32_t before = r->step->group_count, index;
    TSI_TRY(want_word(r, "the name of the group", &name));
    TSI_TRY(want_word(r, "the list of members", &members));
    tsi_cursor cursor = tsi_cursor_of("members", members);
    tsi_ranks span;
    if (r->step->wide)
        return TSI_FAIL(TS_ERR_ARG, "a wide step has families: groups %.60s COUNT:APART", name);
    r->member_count = 0;
    do {
        TSI_TRY(read_span(r, &cursor, &span));
        TSI_TRY(add_members(r, &span));
    } while (tsi_cursor_take(&cursor, ','));
    if (*cursor.at != '\0')
        return TSI_FAIL(TS_ERR_ARG, "'%.60s' stands behind the members", cursor.at);
    TSI_TRY(tsi_step_group_of(r->step, name, r->member, r->member_count, &index));
    if (r->step->group_count == before)
        return TSI_FAIL(TS_ERR_ARG, "group %.60s is there already", name);
    return read_axes(r, index);
}

static ts_status read_wide(reader *r)
{
    return tsi_step_widen(r->step);
}

/* "8:1" or "16:8,8:1" */
static ts_status read_groups(reader *r)
{
    const char *name, *digits;
    int32_t before = r->step->group_count, index;
    TSI_TRY(want_word(r, "the name of the groups", &name));
    TSI_TRY(want_word(r, "how many ranks, how far apart", &digits));
    if (!r->step->wide)
        return TSI_FAIL(TS_ERR_ARG, "'groups' needs the line 'wide' above it; 'group' has members");
    tsi_cursor cursor = tsi_cursor_of("digits", digits);
    tsi_family family = { 0 };
    do {
        int32_t d = family.digits++;
        bool good = d < TSI_WIDE_DIGITS && tsi_cursor_int(&cursor, &family.count[d]) &&
                    tsi_cursor_take(&cursor, ':') && tsi_cursor_int(&cursor, &family.stride[d]);
        if (!good)
            return TSI_FAIL(TS_ERR_ARG, "'%.60s' is no COUNT:APART, or at most %d of them", digits,
                            TSI_WIDE_DIGITS);
    } while (tsi_cursor_take(&cursor, ','));
    if (*cursor.at != '\0')
        return TSI_FAIL(TS_ERR_ARG, "'%.60s' stands behind the digits", cursor.at);
    TSI_TRY(tsi_wide_family(r->step, name, &family, &index));
    if (r->step->group_count == before)
        return TSI_FAIL(TS_ERR_ARG, "groups %.60s are there already", name);
    return read_axes(r, index);
}

/* Of a wide step: a section, with all its ranks. */
static ts_status read_section(reader *r)
{
    const char *ranks;
    TSI_TRY(want_word(r, "the ranks", &ranks));
    if (++r->rank >= r->step->rank_count)
        return TSI_FAIL(TS_ERR_ARG, "there are more lists than ranks");
    TSI_TRY(tsi_step_list_make(r->step, r->rank)); /* an empty one too: its spans name it */
    tsi_cursor cursor = tsi_cursor_of("ranks", ranks);
    tsi_ranks span;
    r->shown = -1;
    do {
        TSI_TRY(read_span(r, &cursor, &span));
        if (r->shown < 0) r->shown = span.first;
        span.list = (int32_t)r->rank;
        TSI_TRY(tsi_wide_span(r->step, &span));
    } while (tsi_cursor_take(&cursor, ','));
    return *cursor.at == '\0' ? TS_OK
                              : TSI_FAIL(TS_ERR_ARG, "'%.60s' stands behind the ranks", cursor.at);
}

static ts_status read_rank(reader *r)
{
    int64_t rank;
    r->acting = false;
    r->peak = 0;
    if (r->step->wide) return read_section(r);
    TSI_TRY(want_number(r, "the rank", 0, r->step->rank_count - 1, &rank));
    if (rank != r->rank + 1)
        return TSI_FAIL(TS_ERR_ARG, "rank %lld stands where rank %lld is expected", (long long)rank,
                        (long long)(r->rank + 1));
    r->rank = r->shown = rank;
    return tsi_step_list_make(r->step, rank);
}

static ts_status read_peak(reader *r)
{
    if (r->rank < 0) return TSI_FAIL(TS_ERR_ARG, "'peak' stands before the first rank");
    return want_number(r, "the peak", 1, INT64_MAX / 4, &r->peak);
}

/* ---- values and actions ---------------------------------------------------------------------- */

static ts_status read_value(reader *r, int32_t life)
{
    tsi_value value = { .life = life };
    const char *memory;
    int32_t index;
    TSI_TRY(want_word(r, "the name of the value", &value.name));
    TSI_TRY(want_number(r, "the value's bytes", 0, INT64_MAX / 4, &value.bytes));
    TSI_TRY(want_word(r, "the kind of memory", &memory));
    value.memory = index_in(tsi_step_memory_names, memory);
    if (value.memory < 0) return unknown("kind of memory", memory, tsi_step_memory_names);
    value.form = next_word(r);
    if (r->acting)
        return TSI_FAIL(TS_ERR_ARG, "value %.60s stands behind actions of its rank", value.name);
    if (tsi_step_find_value(r->step, r->rank, value.name) >= 0)
        return TSI_FAIL(TS_ERR_ARG, "value %.60s of rank %lld is there already", value.name,
                        (long long)r->shown);
    return tsi_step_value(r->step, r->rank, &value, &index);
}

static ts_status read_touches(reader *r, int32_t how, char *names)
{
    for (int64_t i = 0; i < r->touch_count; i++)
        if (r->touch[i].how == how)
            return TSI_FAIL(TS_ERR_ARG, "%s is given twice", tsi_touch_names[how]);
    for (char *next; names; names = next) {
        next = strchr(names, ',');
        if (next) *next++ = '\0';
        int32_t value = tsi_step_find_value(r->step, r->rank, names);
        char *form = value < 0 ? strrchr(names, '@') : NULL;
        if (form) {
            *form++ = '\0';
            value = tsi_step_find_value(r->step, r->rank, names);
        }
        if (value < 0)
            return TSI_FAIL(TS_ERR_ARG, "%s '%.60s', which is no value of rank %lld",
                            tsi_touch_names[how], names, (long long)r->shown);
        if (tsi_room(&r->touch, r->touch_count, &r->touch_capacity, sizeof *r->touch,
                     "the text of a step") != TS_OK ||
            tsi_room(&r->form, r->touch_count, &r->form_capacity, sizeof *r->form,
                     "the text of a step") != TS_OK)
            return tsi_fail_memory("what an action touches", sizeof *r->touch);
        r->form[r->touch_count] = form;
        r->touch[r->touch_count++] = (tsi_touch){ value, how };
    }
    return TS_OK;
}

typedef enum key { STAGE, MICRO, TO, FROM, OVER, CHANNEL, QUEUE, BYTES, US, HIDDEN, AT, KEYS } key;
static const char *const key_names[] = { "stage", "micro", "to", "from",   "over", "channel",
                                         "queue", "bytes", "us", "hidden", "at",   NULL };

static ts_status read_name(reader *r, key k, const char *text, tsi_action *a)
{
    if (k == QUEUE) {
        for (a->queue = 0; a->queue < r->step->queue_count; a->queue++)
            if (strcmp(r->step->queue[a->queue], text) == 0) return TS_OK;
        return TSI_FAIL(TS_ERR_ARG, "'%.60s' is no queue of the step", text);
    }
    if (tsi_action_class_of(a->kind) != TSI_CLASS_COLLECTIVE)
        return TSI_FAIL(TS_ERR_ARG, "%s has no 'over'", tsi_action_names[a->kind]);
    a->group = tsi_step_find_group(r->step, text);
    if (a->group >= 0) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "'%.60s' is no group of the step", text);
}

static ts_status read_us(const char *text, double *out)
{
    tsi_cursor cursor = tsi_cursor_of("us", text);
    bool good = tsi_cursor_real(&cursor, out) && *cursor.at == '\0' && *out >= 0;
    return good ? TS_OK : TSI_FAIL(TS_ERR_ARG, "us is '%.60s'; numbers from 0 are possible", text);
}

/* "send h: " and then: one sentence about an action. */
static ts_status refuse_action(const tsi_action *a, const char *format, ...) TS_PRINTF(2, 3);
static ts_status refuse_action(const tsi_action *a, const char *format, ...)
{
    char why[200];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    return TSI_FAIL(TS_ERR_ARG, "%s%s%.60s: %s", tsi_action_names[a->kind], a->what ? " " : "",
                    a->what ? a->what : "", why);
}

static ts_status refuse_self(key k, const char *text, const tsi_action *a)
{
    return refuse_action(a, "%s is %.60s, which is the rank itself", key_names[k], text);
}

static ts_status read_peer(reader *r, key k, const char *text, tsi_action *a)
{
    int64_t number = 0, ranks = r->step->rank_count;
    if ((k == TO) != (a->kind == TSI_ACTION_SEND))
        return TSI_FAIL(TS_ERR_ARG, "%s has no '%s'", tsi_action_names[a->kind], key_names[k]);
    if (r->step->wide) {
        bool sign = text[0] == '+' || text[0] == '-';
        if (!sign)
            return TSI_FAIL(TS_ERR_ARG,
                            "%s is '%.60s'; in a wide step it is a distance: +1 or -8192",
                            key_names[k], text);
        TSI_TRY(number_of(key_names[k], text + (text[0] == '+'), 1 - ranks, ranks - 1, &number));
        a->away = (int32_t)number;
        return number != 0 ? TS_OK : refuse_self(k, text, a);
    }
    TSI_TRY(number_of(key_names[k], text, 0, ranks - 1, &number));
    a->peer = (int32_t)number;
    return number != r->rank ? TS_OK : refuse_self(k, text, a);
}

/* Messages and collectives say with whom. */
static ts_status want_partners(const tsi_action *a, uint32_t seen)
{
    switch (tsi_action_class_of(a->kind)) {
    case TSI_CLASS_PAIR:
        if (seen & (1u << TO | 1u << FROM)) return TS_OK;
        return a->kind == TSI_ACTION_SEND
                   ? refuse_action(a, "'to' is missing, the rank that it goes to")
                   : refuse_action(a, "'from' is missing, the rank that it comes from");
    case TSI_CLASS_COLLECTIVE:
        if (seen & 1u << OVER) return TS_OK;
        return refuse_action(a, "'over' is missing, the group that takes part");
    case TSI_CLASS_COMPUTE:
    case TSI_CLASS_MARK:
        break;
    }
    return TS_OK;
}

static ts_status read_key(reader *r, key k, const char *text, tsi_action *a)
{
    int64_t number = 0;
    switch (k) {
    case OVER:
    case QUEUE:
        return read_name(r, k, text, a);
    case US:
        return read_us(text, &a->us);
    case BYTES:
        return number_of("bytes", text, 0, INT64_MAX / 4, &a->bytes);
    case STAGE:
    case MICRO:
    case CHANNEL:
        TSI_TRY(number_of(key_names[k], text, 0, INT32_MAX, &number));
        *(k == STAGE ? &a->stage : k == MICRO ? &a->micro : &a->channel) = (int32_t)number;
        return TS_OK;
    case HIDDEN:
        TSI_TRY(number_of(key_names[k], text, 0, 1, &number));
        a->hidden = (int32_t)number;
        return TS_OK;
    case AT:
        a->place = text;
        return TS_OK;
    case TO:
    case FROM:
        return read_peer(r, k, text, a);
    case KEYS:
        break;
    }
    return TS_OK;
}

/* One "key=text". */
static ts_status read_pair(reader *r, char *word, uint32_t *seen, tsi_action *a)
{
    char *text = strchr(word, '=');
    if (!text) return TSI_FAIL(TS_ERR_ARG, "'%.60s' is no key=value", word);
    *text++ = '\0';
    int32_t how = index_in(tsi_touch_names, word), k = index_in(key_names, word);
    if (how >= 0) return read_touches(r, how, text);
    if (k < 0) return unknown("key of an action", word, key_names);
    if (*seen >> k & 1) return TSI_FAIL(TS_ERR_ARG, "%s is given twice", key_names[k]);
    *seen |= 1u << k;
    return read_key(r, (key)k, text, a);
}

static ts_status read_action(reader *r, int32_t kind)
{
    tsi_action action = TSI_ACTION_INIT(kind);
    uint32_t seen = 0;
    r->touch_count = 0;
    r->acting = true;
    char *word = next_word(r);
    if (word && !strchr(word, '=')) {
        action.what = word;
        word = next_word(r);
    }
    for (; word; word = next_word(r))
        TSI_TRY(read_pair(r, word, &seen, &action));
    TSI_TRY(want_partners(&action, seen));
    return tsi_step_append_as(r->step, r->rank, &action, r->touch, r->form,
                              (int32_t)r->touch_count);
}

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct head_word {
    const char *name;
    ts_status (*read)(reader *r);
} head_word;
static const head_word heads[] = { { "wide", read_wide },
                                   { "stages", read_stages },
                                   { "groups", read_groups },
                                   { "queue", read_queue },
                                   { "group", read_group } };

static ts_status read_head(reader *r, bool *found)
{
    *found = true;
    for (size_t i = 0; i < TSI_COUNT_OF(heads); i++) {
        if (strcmp(heads[i].name, r->word) != 0) continue;
        if (r->rank >= 0) return TSI_FAIL(TS_ERR_ARG, "'%s' stands behind a rank", heads[i].name);
        TSI_TRY(heads[i].read(r));
        return want_end(r);
    }
    *found = false;
    return TS_OK;
}

static ts_status read_body(reader *r)
{
    const char *word = r->word;
    bool found;
    TSI_TRY(read_head(r, &found));
    if (found) return TS_OK;
    if (strcmp(word, "rank") == 0) {
        TSI_TRY(read_rank(r));
        return want_end(r);
    }
    if (strcmp(word, "peak") == 0) {
        TSI_TRY(read_peak(r));
        return want_end(r);
    }
    int32_t life = index_in(tsi_life_names, word), kind = index_in(tsi_action_names, word);
    if (life < 0 && kind < 0) return unknown("action", word, tsi_action_names);
    if (r->rank < 0) return TSI_FAIL(TS_ERR_ARG, "'%s' stands before the first rank", word);
    if (kind >= 0) return read_action(r, kind);
    TSI_TRY(read_value(r, life));
    return want_end(r);
}

static ts_status read_line(reader *r)
{
    const char *word = next_word(r);
    if (!word || word[0] == '#') return TS_OK;
    if (!r->begun) {
        int64_t version;
        if (strcmp(word, "step") != 0)
            return TSI_FAIL(TS_ERR_ARG, "'%.60s' stands where 'step 1' is expected", word);
        TSI_TRY(want_number(r, "the version", 1, 1, &version));
        r->begun = true;
        return want_end(r);
    }
    if (strcmp(word, "ranks") == 0) {
        TSI_TRY(read_ranks(r));
        return want_end(r);
    }
    if (!r->step) return TSI_FAIL(TS_ERR_ARG, "'%.60s' stands where 'ranks' is expected", word);
    return read_body(r);
}

/* Copies the line that begins at `at`, so that it can be cut; *next is behind it. */
static ts_status take_line(const char *at, char **line, const char **next)
{
    size_t length = strcspn(at, "\n");
    *next = at + length + (at[length] == '\n');
    if (length > LINE_MAX_BYTES)
        return TSI_FAIL(TS_ERR_ARG, "the line has %zu bytes; %d are possible", length,
                        LINE_MAX_BYTES);
    tsi_free(*line);
    *line = tsi_strndup(at, length);
    return *line ? TS_OK : tsi_fail_memory("a line of a step", length);
}

ts_status tsi_step_parse(const char *text, tsi_step **out)
{
    static const char order_mark[] = "\xEF\xBB\xBF"; /* what some editors put before UTF-8 */
    reader r = { .rank = -1 };
    char *line = NULL;
    ts_status status = TS_OK;
    *out = NULL;
    if (strncmp(text, order_mark, strlen(order_mark)) == 0) text += strlen(order_mark);
    for (const char *at = text, *next; *at && status == TS_OK; at = next) {
        r.line++;
        status = take_line(at, &line, &next);
        r.rest = line;
        if (status == TS_OK) status = read_line(&r);
        if (status == TS_OK && r.peak > 0) r.step->list[r.rank].peak = r.peak;
    }
    if (status != TS_OK)
        tsi_error_rename("step", "step, line %lld", (long long)r.line);
    else if (!r.step)
        status = TSI_FAIL(TS_ERR_ARG, "step: the text ends before the line 'ranks'");
    if (status == TS_OK)
        *out = r.step;
    else
        tsi_step_destroy(r.step);
    tsi_free(r.touch);
    tsi_free(r.form);
    tsi_free(r.member);
    tsi_free(line);
    return status;
}
