/* SPDX-License-Identifier: Apache-2.0 */
/* runtime_edited.c - programs that somebody edited: lines of a recorded step's text are dropped,
 * doubled, moved and swapped, numbers and names are others. Such a text is refused with a sentence,
 * by reading it, by the check or by the step; or it is the step in some order, which gives its
 * bits. TEST_CASES says how many steps; the seed makes them again. */
#include <stdlib.h>
#include <string.h>

#include "dist/reorder_machine.h"

enum { EDITS = 60, LINES_MAX = 1200 };

typedef struct lines {
    char *line[LINES_MAX]; /* owned */
    int32_t count;
} lines;

static char *copy_of(const char *text, size_t length)
{
    char *out = malloc(length + 1);
    memcpy(out, text, length);
    out[length] = '\0';
    return out;
}

static void split(const char *text, lines *out)
{
    out->count = 0;
    while (*text && out->count < LINES_MAX) {
        size_t length = strcspn(text, "\n");
        out->line[out->count++] = copy_of(text, length);
        text += length + (text[length] == '\n');
    }
}

static char *join(const lines *all)
{
    size_t size = 1, at = 0;
    for (int32_t i = 0; i < all->count; i++)
        size += strlen(all->line[i]) + 1;
    char *out = malloc(size);
    for (int32_t i = 0; i < all->count; i++) {
        size_t length = strlen(all->line[i]);
        memcpy(out + at, all->line[i], length);
        out[at + length] = '\n';
        at += length + 1;
    }
    out[at] = '\0';
    return out;
}

static void release(lines *all)
{
    for (int32_t i = 0; i < all->count; i++)
        free(all->line[i]);
    all->count = 0;
}

/* `length` bytes of a line from `at` on become `by`. */
static void replace(char **line, size_t at, size_t length, const char *by)
{
    size_t had = strlen(*line), size = had - length + strlen(by) + 1;
    char *out = malloc(size);
    (void)snprintf(out, size, "%.*s%s%s", (int)at, *line, by, *line + at + length);
    free(*line);
    *line = out;
}

static void take_out(lines *all, int32_t at)
{
    memmove(&all->line[at], &all->line[at + 1], (size_t)(all->count - at - 1) * sizeof *all->line);
    all->count--;
}

static void put_in(lines *all, int32_t at, char *line /* takes */)
{
    memmove(&all->line[at + 1], &all->line[at], (size_t)(all->count - at) * sizeof *all->line);
    all->line[at] = line;
    all->count++;
}

/* One of its numbers is another. */
static void change_number(machine *m, char **line)
{
    static const char *const numbers[] = { "0",  "1",  "2", "3",          "7",
                                           "64", "-1", "",  "9999999999", "99999999999999999999" };
    const char *at = *line + next(m, (uint32_t)strlen(*line) + 1);
    at += strcspn(at, "0123456789");
    size_t length = strspn(at, "0123456789");
    if (length > 0) replace(line, (size_t)(at - *line), length, numbers[next(m, 10)]);
}

static const char stops[] = " ,=@|";

/* The word, or part of one, that a random place of a line is in. */
static const char *word_of(machine *m, const char *line, size_t *length)
{
    const char *at = line + next(m, (uint32_t)strlen(line) + 1);
    while (at > line && !strchr(stops, at[-1]))
        at--;
    *length = strcspn(at, stops);
    return at;
}

/* One of its words is one of another line. */
static void change_word(machine *m, char **line, const char *other)
{
    char word[300];
    size_t length, by;
    const char *from = word_of(m, other, &by);
    (void)snprintf(word, sizeof word, "%.*s", (int)by, from);
    const char *at = word_of(m, *line, &length);
    replace(line, (size_t)(at - *line), length, word);
}

static void change_byte(machine *m, char *line)
{
    size_t length = strlen(line);
    if (length > 0) line[next(m, (uint32_t)length)] = (char)(' ' + next(m, 95));
}

static void edit(machine *m, lines *all)
{
    int32_t i = (int32_t)next(m, (uint32_t)all->count), k = (int32_t)next(m, (uint32_t)all->count);
    char *line = all->line[i];
    switch (next(m, 8)) {
    case 0:
        take_out(all, i);
        free(line);
        return;
    case 1:
        all->line[i] = all->line[k];
        all->line[k] = line;
        return;
    case 2: /* with its neighbour */
        if (i == 0) return;
        all->line[i] = all->line[i - 1];
        all->line[i - 1] = line;
        return;
    case 3:
        take_out(all, i);
        put_in(all, k < all->count ? k : all->count, line);
        return;
    case 4:
        if (all->count < LINES_MAX) put_in(all, k, copy_of(line, strlen(line)));
        return;
    case 5:
        change_number(m, &all->line[i]);
        return;
    case 6:
        change_word(m, &all->line[i], all->line[k]);
        return;
    default:
        change_byte(m, line);
    }
}

typedef struct fates { /* of edited texts */
    int64_t unread, wrong, refused, taken;
} fates;

static void hear(const char *kind, const char *text, void *context)
{
    *(bool *)context = *(bool *)context && kind[0] && text[0];
}

/* Refusals are caught, and said. */
static ts_scope catching(const test *t)
{
    return ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
}

static void caught(test *t, ts_scope scope, ts_status status)
{
    if (status != TS_OK) TEST_CHECK(t, ts_rank_error(t->me) && ts_rank_error(t->me)->text[0]);
    TEST_STATUS(t, ts_scope_close(scope), status);
}

/* What can be said of it without running it: what is refused, is with a sentence. */
static bool is_good(test *t, const ts_program *program)
{
    bool said = true;
    int64_t count = -1;
    ts_program *better = NULL;
    ts_program_times times = TS_INIT(ts_program_times);
    ts_reorder_options options;
    ts_reorder_options_init(&options);
    options.tries = 5;
    TEST_OK(t, ts_program_check(program, NULL, hear, &said, &count));
    TEST_CHECK(t, said);
    ts_scope scope = catching(t);
    caught(t, scope, ts_program_simulate(program, NULL, &times, NULL, NULL));
    scope = catching(t);
    ts_status ordered = ts_program_reorder(program, &options, NULL, NULL, &better);
    TEST_CHECK(t, (ordered == TS_OK) == (better != NULL) && (count == 0 || ordered != TS_OK));
    caught(t, scope, ordered);
    if (better) TEST_OK(t, ts_program_check(better, NULL, hear, &said, &count));
    if (better) TEST_EQ(t, count, 0);
    ts_program_destroy(better);
    return ordered == TS_OK;
}

/* A rank refuses what is wrong with its own list, or with the whole, and holds nobody up. */
static void run_edited(trial *x, const ts_program *program, fates *sum)
{
    test *t = x->t;
    ts_step_order is = TS_INIT(ts_step_order);
    ts_scope scope = catching(t);
    ts_status status = ts_step_reorder(x->step, program, 16 * x->was.bytes, &is);
    TEST_CHECK(t, status == TS_OK || status == TS_ERR_ARG);
    caught(t, scope, status);
    sum->refused += status != TS_OK;
    sum->taken += status == TS_OK && is.taken;
    trial_runs(x, 1, "edited");
}

static void try_text(trial *x, machine *by, const char *text, fates *sum)
{
    lines all;
    ts_program *program = NULL;
    split(text, &all);
    for (uint32_t i = 0, count = 1 + next(by, 3); i < count && all.count > 1; i++)
        edit(by, &all);
    char *edited = join(&all);
    release(&all);
    ts_scope scope = catching(x->t);
    ts_status status = ts_program_parse(edited, &program);
    TEST_CHECK(x->t, (status == TS_OK) == (program != NULL));
    caught(x->t, scope, status);
    sum->unread += !program;
    bool good = program && is_good(x->t, program);
    sum->wrong += program && !good;
    if (program) run_edited(x, program, sum);
    ts_program_destroy(program);
    free(edited);
}

static char *text_of(test *t, const ts_step *step)
{
    ts_program *program = NULL;
    TEST_OK(t, ts_step_program(step, &program));
    size_t size = ts_program_text(program, NULL, 0) + 1;
    char *text = malloc(size);
    (void)ts_program_text(program, text, size);
    ts_program_destroy(program);
    return text;
}

static void try_step(test *t, ts_mesh *mesh, uint64_t seed, fates *sum)
{
    machine by = { .state = seed };
    trial x;
    trial_begin(&x, t, mesh, seed, moves_of(seed));
    char *text = x.step ? text_of(t, x.step) : NULL;
    for (int i = 0; text && i < EDITS && !ts_rank_status(t->me); i++)
        try_text(&x, &by, text, sum);
    free(text);
    trial_end(&x);
}

TS_TEST_RANKS(edited_programs_are_refused_or_the_step, 1, 2, 3)
{
    const char *said = getenv("TEST_CASES");
    uint64_t cases = said ? (uint64_t)atoll(said) : 3;
    fates sum = { 0 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    if (keeps_order(t, mesh)) return;
    for (uint64_t i = 0; i < cases; i++)
        try_step(t, mesh, t->seed * 7919 + i * 31 + (uint64_t)t->count, &sum);
    TEST_SAY(t, sum.unread > 0 && sum.wrong > 0 && sum.refused > 0 && sum.taken > 0,
             "%lld texts could not be read, %lld were wrong, %lld refused, %lld taken",
             (long long)sum.unread, (long long)sum.wrong, (long long)sum.refused,
             (long long)sum.taken);
}
