/* SPDX-License-Identifier: Apache-2.0 */
/* parse_step.c - any bytes as a step: refused with a sentence, or a step that prints and parses to
 * itself, and that can be proved or refused, simulated or refused and, with nothing wrong with it,
 * reordered: no slower, no larger, and with nothing wrong with it again. */
#include "corpus.h"

#include "plan/program.h"
#include "plan/step.h"

static void hear(const char *kind, const char *text, void *context)
{
    FUZZ_CHECK(kind[0] && text[0]);
    ++*(int64_t *)context;
}

static void hear_bar(const ts_program_bar *bar, void *context)
{
    FUZZ_CHECK(bar->what && bar->queue && bar->group && bar->along && bar->begin_us <= bar->end_us);
    ++*(int64_t *)context;
}

static void hear_pass(const ts_reorder_report *report, void *context)
{
    const ts_reorder_report *r = report;
    FUZZ_CHECK(r->pass[0] && r->why[0] && r->makespan_after_us <= r->makespan_before_us);
    ++*(int64_t *)context;
}

static void check_better(const ts_program *program, const ts_program_times *was)
{
    ts_program *better = NULL;
    ts_program_times is = TS_INIT(ts_program_times);
    ts_reorder_options options;
    int64_t passes = 0, count = -1, told = 0;
    ts_reorder_options_init(&options);
    options.tries = 3;
    ts_status status = ts_program_reorder(program, &options, hear_pass, &passes, &better);
    FUZZ_CHECK(status == TS_OK && passes > 0);
    FUZZ_CHECK(ts_program_check(better, NULL, hear, &told, &count) == TS_OK && count == 0);
    FUZZ_CHECK(ts_program_simulate(better, NULL, &is, NULL, NULL) == TS_OK);
    FUZZ_CHECK(is.makespan_us <= was->makespan_us && is.peak_bytes <= was->peak_bytes);
    ts_program_destroy(better);
}

/* All of it by public calls; takes the step. */
static void check_program(tsi_step *step)
{
    ts_program *program = NULL;
    ts_program_times times = TS_INIT(ts_program_times);
    int64_t count = -1, told = 0, bars = 0;
    FUZZ_CHECK(tsi_program_make(step, &program) == TS_OK);
    FUZZ_CHECK(ts_program_check(program, NULL, hear, &told, &count) == TS_OK);
    FUZZ_CHECK(count >= told && (told > 0) == (count > 0));
    ts_status status = ts_program_simulate(program, NULL, &times, hear_bar, &bars);
    FUZZ_CHECK(status == TS_OK || ts_last_error()[0]);
    if (count == 0 && status == TS_OK) check_better(program, &times);
    ts_program_destroy(program);
}

static void check_step(const tsi_step *step)
{
    tsi_text text = { 0 };
    tsi_step *again = NULL;
    tsi_step_print(step, &text);
    FUZZ_CHECK(!text.failed && tsi_step_parse(text.data, &again) == TS_OK);
    FUZZ_CHECK(!tsi_step_differ(step, again, NULL));
    tsi_step_destroy(again);
    tsi_text_release(&text);
    bool proved = tsi_step_prove(step, NULL) == TS_OK;
    FUZZ_CHECK(proved || ts_last_error()[0]);
    if (step->rank_count > 1000 || step->wide) return; /* that is narrowed first: below */
    tsi_step_times times;
    bool timed = tsi_step_simulate(step, &(tsi_step_cost){ .buffered = false }, &times) == TS_OK;
    FUZZ_CHECK(timed || !proved);
    tsi_step_times_release(&times);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 4000) return 0;
    char text[4096];
    memcpy(text, data, size);
    text[size] = '\0';
    tsi_step *step = NULL;
    ts_status status = tsi_step_parse(text, &step);
    FUZZ_CHECK((status == TS_OK) == (step != NULL));
    FUZZ_CHECK(step || ts_last_error()[0]);
    if (step) check_step(step);
    if (step && step->rank_count <= 1000)
        check_program(step);
    else
        tsi_step_destroy(step);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(parse_step_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "parse_step") >= 16);
}

typedef struct spans { /* lines of a text, or words of a line */
    const char *at[256];
    size_t length[256];
    int64_t count;
} spans;

static spans cut(const char *text, size_t length, const char *stops)
{
    spans out = { .count = 0 };
    for (size_t at = 0; at < length && out.count < 256; out.count++) {
        size_t end = at;
        while (end < length && !strchr(stops, text[end]))
            end++;
        out.at[out.count] = text + at;
        out.length[out.count] = end - at;
        at = end + (end < length);
    }
    return out;
}

static void put(char *out, size_t *size, const char *text, size_t length)
{
    if (*size + length >= 4000) return;
    memcpy(out + *size, text, length);
    *size += length;
}

/* Whole lines and words at other places: dropped, doubled, swapped, instead of each other. */
static void move_lines(test *t, const char *text, size_t length)
{
    spans line = cut(text, length, "\n");
    char out[4096];
    for (int i = 0; i < 400 && line.count > 0; i++) {
        int64_t a = test_random_below(t, line.count), b = test_random_below(t, line.count);
        int64_t what = test_random_below(t, 5);
        size_t size = 0;
        for (int64_t k = 0; k < line.count; k++) {
            int64_t from = what == 0 && k == a ? b : what == 0 && k == b ? a : k;
            if (what == 1 && k == a) continue;
            if (what == 2 && k == a) put(out, &size, line.at[b], line.length[b] + 1);
            if (what > 2 && k == a) {
                spans own = cut(line.at[a], line.length[a], " ,=@");
                spans other = cut(line.at[b], line.length[b], " ,=@");
                int64_t w = own.count ? test_random_below(t, own.count) : 0;
                int64_t v = other.count ? test_random_below(t, other.count) : 0;
                size_t before = own.count ? (size_t)(own.at[w] - line.at[a]) : 0;
                put(out, &size, line.at[a], before);
                if (other.count) put(out, &size, other.at[v], other.length[v]);
                size_t behind = own.count ? before + own.length[w] : 0;
                put(out, &size, line.at[a] + behind, line.length[a] - behind);
            } else {
                put(out, &size, line.at[from], line.length[from]);
            }
            put(out, &size, "\n", 1);
        }
        fuzz_bytes(out, size);
    }
}

TS_TEST(steps_with_lines_elsewhere)
{
    char path[64];
    for (int i = 0; i < 16; i++) {
        size_t length = 0;
        (void)snprintf(path, sizeof path, "tests/fuzz/corpus/parse_step/%02d", i);
        char *text = test_read_file(t, path, &length);
        if (text) move_lines(t, text, length);
        tsi_free(text);
    }
}
#endif
