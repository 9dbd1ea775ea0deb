/* SPDX-License-Identifier: Apache-2.0 */
/* parse_step.c - any bytes as a step: refused with a sentence, or a step that prints and parses to
 * itself, and that can be proved or refused and simulated or refused. */
#include "corpus.h"

#include "plan/step.h"

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
    if (step->rank_count > 1000) return;
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
    tsi_step_destroy(step);
    return 0;
}

#ifndef TS_FUZZER
TS_TEST(parse_step_corpus)
{
    TEST_CHECK(t, fuzz_corpus(t, "parse_step") >= 8);
}
#endif
