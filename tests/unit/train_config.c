/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations: what is refused and with which words, that a printed one reads back, and learning
 * rates against values worked out by hand. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "harness/test.h"
#include "tessera/train.h"

static ts_train_config *fresh(test *t)
{
    ts_train_config *config = NULL;
    TEST_OK(t, ts_train_config_create(&config));
    return config;
}

static void refused(test *t, const char *text, const char *words)
{
    ts_train_config *config = fresh(t);
    TEST_STATUS(t, ts_train_config_parse(config, "a.ini", text), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), words);
    ts_train_config_destroy(config);
}

TS_TEST(config_refuses)
{
    refused(t, "[train]\nstep = 5\n",
            "a.ini, line 2: unknown key \"step\" in [train]; did you mean \"steps\"?");
    refused(t, "[trian]\n", "line 1: unknown section [trian]; did you mean [train]?");
    refused(t, "[com]\n", "unknown section [com]; did you mean [comm]?");
    refused(t, "[xyzzy]\n", "there are model, data");
    refused(t, "# a\n\n[model]\nmesh = dp=2\n",
            "line 4: unknown key \"mesh\" in [model]; it belongs to [parallel]");
    refused(t, "steps = 5\n", "line 1: a key before the first [section]");
    refused(t, "[train]\nsteps\n", "line 2: expected \"key = value\"");
    refused(t, "[train\n", "a section is written [name]");
    refused(t, "[train]\nsteps = many\n", "train.steps: expected a whole number from 1");
    refused(t, "[train]\nsteps = 0\n", "found \"0\"");
    refused(t, "[train]\nsteps = 5 6\n", "found \"5 6\"");
    refused(t, "[train]\nsteps = 99999999999999999999\n", "train.steps");
    refused(t, "[optimizer]\nrate = -1\n", "optimizer.rate: expected a number from 0");
    refused(t, "[optimizer]\nrate = nan\n", "optimizer.rate");
    refused(t, "[model]\ndtype = a-word-that-is-too-long\n", "longer than 15 bytes");
    refused(t, "[data]\npath = \"a.txt\"\n",
            "a.ini, line 2: data.path: values are written without quotes");
    refused(t, "[train]\noutput = 'run'\n", "train.output: values are written without quotes");
}

static void set_refused(test *t, const char *assignment, const char *words)
{
    ts_train_config *config = fresh(t);
    TEST_STATUS(t, ts_train_config_set(config, assignment), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), words);
    ts_train_config_destroy(config);
}

TS_TEST(config_set_refuses)
{
    set_refused(t, "steps=5", "expected section.key=value");
    set_refused(t, "train.steps", "expected section.key=value");
    set_refused(t, "train.stpes=5", "did you mean \"steps\"?");
    set_refused(t, "tarin.steps=5", "did you mean [train]?");
    set_refused(t, "train.output=\"run\"", "values are written without quotes");
    set_refused(t, "optimizer.muon_steps=0", "optimizer.muon_steps");
}

static void check_refused(test *t, const char *assignment, const char *words)
{
    ts_train_config *config = fresh(t);
    TEST_OK(t, ts_train_config_set(config, "data.path=x"));
    TEST_OK(t, ts_train_config_check(config));
    TEST_OK(t, ts_train_config_set(config, assignment));
    TEST_STATUS(t, ts_train_config_check(config), TS_ERR_ARG);
    TEST_SAYS(t, ts_last_error(), words);
    ts_train_config_destroy(config);
}

TS_TEST(config_check_refuses)
{
    check_refused(t, "data.path=", "data.path: is empty");
    check_refused(t, "optimizer.kind=adam", "did you mean \"adamw\"?");
    check_refused(t, "comm.reduce=natve", "did you mean \"native\"?");
    check_refused(t, "optimizer.decay=parabolic", "one of cosine, linear, sqrt, constant");
    check_refused(t, "model.family=lama", "did you mean \"llama\"?");
    check_refused(t, "train.accumulate=3", "16 rows cannot be run in 3 equal parts");
    check_refused(t, "optimizer.rate=0", "must be above 0");
    check_refused(t, "parallel.mesh=pp=7",
                  "6 blocks cannot be cut into 7 stages (pp=7, 1 of a "
                  "rank); pp could be 6, or model.layers 5");
    /* Without an axis pp, too. */
    check_refused(t, "parallel.schedule=1F1", "\"1F1\" is no schedule");
    check_refused(t, "parallel.schedule=GPype", "did you mean GPipe?");
    check_refused(t, "parallel.stages=two", "parallel.stages, column 1: expected a number of");
    check_refused(t, "train.memory=3GB", "expected auto, none or bytes of a rank, 80GiB");
    check_refused(t, "train.memory=-3", "found \"-3\"");
    /* Repair 30: a moment that never sees a gradient; weights that become 0 / 0. */
    check_refused(t, "optimizer.beta1=1", "optimizer.beta1: is 1, must be below 1");
    check_refused(t, "optimizer.beta2=1.0", "optimizer.beta2: is 1, must be below 1");
    check_refused(t, "optimizer.muon_adjust=moon", "one of rms, original");
    check_refused(t, "optimizer.muon_dtype=f16", "optimizer.muon_dtype: unknown \"f16\"");
    check_refused(t, "optimizer.muon_momentum=1", "optimizer.muon_momentum: is 1, must be below 1");
    check_refused(t, "optimizer.epsilon=0", "optimizer.epsilon: must be above 0");
}

/* Where a rank asks, the rank has the sentence, and it begins with the key. */
TS_TEST_RANKS(config_of_a_rank_is_refused_by_its_key, 1)
{
    ts_train_config *config = fresh(t);
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.catches = 1;
    ts_scope scope = ts_scope_open_with(t->me, &options);
    TEST_OK(t, ts_train_config_set(config, "parallel.topology=8xh10"));
    TEST_STATUS(t, ts_train_config_check(config), TS_ERR_ARG);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_ARG);
    TEST_TEXT(t, ts_rank_error(t->me)->text,
              "parallel.topology: no preset '8xh10'; did you mean '8xh100'?");
    ts_train_config_destroy(config);
}

TS_TEST(config_reads_back)
{
    ts_train_config *a = fresh(t), *b = fresh(t);
    TEST_OK(t, ts_train_config_parse(
                   a, "a.ini",
                   "\xEF\xBB\xBF; comment\r\n [ parallel ]\n mesh = dp=2, tp=2 \n"
                   "[log]\nprompt = a = b # c\n[optimizer]\nrate=0.1\n[train]\nsteps=7"));
    TEST_OK(t, ts_train_config_set(a, "model.rope_theta = 5e5"));
    char value[64];
    TEST_EQ(t, ts_train_config_get(a, "parallel.mesh", value, sizeof value), 10);
    TEST_TEXT(t, value, "dp=2, tp=2");
    ts_train_config_get(a, "log.prompt", value, sizeof value);
    TEST_TEXT(t, value, "a = b # c");
    TEST_OK(t, ts_train_config_set(a, "log.prompt=\"Who?\"")); /* said by somebody */
    ts_train_config_get(a, "log.prompt", value, sizeof value);
    TEST_TEXT(t, value, "\"Who?\"");
    TEST_EQ(t, ts_train_config_get(a, "train.nothing", value, sizeof value), -1);
    size_t length = ts_train_config_text(a, NULL, 0);
    char *text = tsi_alloc(length + 1), *again = tsi_alloc(length + 1);
    TEST_EQ(t, ts_train_config_text(a, text, length + 1), length);
    TEST_OK(t, ts_train_config_parse(b, "printed", text));
    TEST_EQ(t, ts_train_config_text(b, again, length + 1), length);
    TEST_TEXT(t, again, text);
    tsi_free(text);
    tsi_free(again);
    ts_train_config_destroy(a);
    ts_train_config_destroy(b);
}

TS_TEST(config_without_memory)
{
    for (int64_t n = 1; n < 10; n++) {
        ts_train_config *config = NULL;
        tsi_alloc_fail_at(n);
        ts_status status = ts_train_config_create(&config);
        if (status == TS_OK) status = ts_train_config_set(config, "train.steps=5");
        bool reached = tsi_alloc_fail_at(0) >= n;
        TEST_STATUS(t, status, reached ? TS_ERR_MEMORY : TS_OK);
        ts_train_config_destroy(config);
    }
}

/* ---- learning rates -------------------------------------------------------------------------- */

static void rate_is(test *t, const ts_rate_schedule *schedule, int64_t step, double want)
{
    double got = ts_rate_factor(schedule, step);
    TEST_SAY(t, fabs(got - want) < 1e-12, "step %lld: %.15g, not %.15g", (long long)step, got,
             want);
}

TS_TEST(schedule_warmup_stable_decay)
{
    /* 10 steps: 2 up, 11 - 2 - 4 = 5 stable, then p = 1/4, 2/4, 3/4. */
    ts_rate_schedule s = { .struct_size = sizeof s,
                           .steps = 10,
                           .warmup = 2,
                           .decay_share = 0.4,
                           .floor = 0.0,
                           .decay = TS_DECAY_LINEAR };
    const double want[10] = { 0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25 };
    for (int64_t i = 0; i < 10; i++)
        rate_is(t, &s, i, want[i]);
    s.floor = 0.2;
    rate_is(t, &s, 8, 0.2 + 0.8 * 0.5);
    s.decay = TS_DECAY_SQRT;
    rate_is(t, &s, 7, 0.2 + 0.8 * 0.5); /* 1 - sqrt(1/4) */
    s.decay = TS_DECAY_COSINE;
    rate_is(t, &s, 8, 0.2 + 0.8 * 0.5);
    rate_is(t, &s, 7, 0.2 + 0.8 * 0.5 * (1 + sqrt(0.5)));
    s.decay = TS_DECAY_NONE;
    rate_is(t, &s, 9, 1.0);
}

TS_TEST(schedule_edges)
{
    ts_rate_schedule s = {
        .struct_size = sizeof s, .steps = 4, .decay_share = -1, .decay = TS_DECAY_LINEAR
    };
    rate_is(t, &s, 0, 1.0); /* one stable step, the rest goes down, and never to 0 */
    rate_is(t, &s, 1, 0.75);
    rate_is(t, &s, 3, 0.25);
    rate_is(t, &s, 100, 0.0);
    s.warmup = 9; /* does not fit: cut to 4 */
    rate_is(t, &s, 1, 0.5);
    rate_is(t, &s, 3, 1.0);
    s.warmup = 2;
    s.decay_share = 1.0; /* cut to 2 */
    rate_is(t, &s, 2, 1.0);
    rate_is(t, &s, 3, 0.5);
}
