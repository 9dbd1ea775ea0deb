/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of fifty steps: one rank against four, stopped and resumed, in few bits, in parts, and what
 * they take in memory against what was said before. */
#include "dist/train_util.h"
#include "tessera/checkpoint.h"

enum { LONG = 50 };

static void one_and_four(test *t, const char *dtype, double tolerance)
{
    folder f = make_folder(t);
    outcome one = { 0 }, four = { 0 };
    char more[160];
    snprintf(more, sizeof more, "[model]\ndtype = %s\n[train]\nsteps = %d\n[parallel]\n", dtype,
             LONG);
    TEST_OK(t, train(t, &f, "one", more, 1, &one));
    strncat(more, "mesh = dp=4\n", sizeof more - strlen(more) - 1);
    TEST_OK(t, train(t, &f, "four", more, 4, &four));
    same_losses(t, &one, &four, LONG, tolerance);
    TEST_SAY(t, one.loss[LONG] < 0.6 * one.loss[1], "from %g to %g", one.loss[1], one.loss[LONG]);
    remove_folder(&f);
}

TS_TEST(one_rank_and_four_in_f64)
{
    one_and_four(t, "f64", 1e-9);
}

TS_TEST(one_rank_and_four_in_f32)
{
    one_and_four(t, "f32", 1e-4);
}

/* Stopped after `at` steps and run again, it is the run that was not stopped. */
static void stop_and_go_on(test *t, const char *more, int64_t ranks, int steps, int at)
{
    folder f = make_folder(t);
    outcome whole = { 0 }, begun = { .stop_at = at }, rest = { 0 };
    TEST_OK(t, train(t, &f, "whole", more, ranks, &whole));
    TEST_OK(t, train(t, &f, "parts", more, ranks, &begun));
    TEST_EQ(t, begun.result.step, at);
    TEST_OK(t, train(t, &f, "parts", more, ranks, &rest));
    TEST_EQ(t, rest.step_first, at);
    same_losses(t, &whole, &begun, at, 0);
    for (int i = 1; i <= at; i++)
        rest.loss[i] = whole.loss[i];
    same_losses(t, &whole, &rest, steps, 0);
    same_weights(t, &f, "whole", "parts");
    remove_folder(&f);
}

TS_TEST(stopped_at_twenty)
{
    stop_and_go_on(t, "[train]\nsteps = 30\n[parallel]\nmesh = dp=2, tp=2\n", 4, 30, 20);
}

/* A scale that is far too large at first: steps are left out until it fits; the scale is part of
 * the state. */
static const char half[] =
    "[model]\ncompute = f16\n[train]\nsteps = 40\nloss_scale = 1099511627776\n"
    "loss_scale_every = 4\n";

TS_TEST(half_precision_finds_its_scale)
{
    folder f = make_folder(t);
    outcome f32 = { 0 }, f16 = { 0 };
    TEST_OK(t, train(t, &f, "f16", half, 1, &f16));
    TEST_OK(t, train(t, &f, "f32", "[train]\nsteps = 40\n", 1, &f32));
    TEST_SAY(t, f16.skipped >= 10 && f16.skipped < 30, "%lld steps were left out",
             (long long)f16.skipped);
    TEST_SAY(t, f16.scale[40] < 0x1p40 && f16.scale[40] > 0x1p8, "the scale is %g", f16.scale[40]);
    TEST_SAY(t, f16.loss[40] < 0.95 * f16.loss[1], "from %g to %g", f16.loss[1], f16.loss[40]);
    TEST_SAY(t, fabs(f16.loss[1] - f32.loss[1]) < 1e-2, "%g and %g", f16.loss[1], f32.loss[1]);
    remove_folder(&f);
}

TS_TEST(half_precision_resumes)
{
    stop_and_go_on(t, half, 1, 40, 17);
}

/* Steps that are left out are counted over stops: that of a run is no way around its end. */
TS_TEST(left_out_over_stops)
{
    static const char more[] = "[model]\ncompute = f16\n[train]\nloss_scale = 1e30\n"
                               "loss_scale_every = 4\nskips_max = 5\nstop_after = %d\n";
    folder f = make_folder(t);
    for (int stop = 2; stop <= 6; stop += 2) {
        char text[256];
        outcome o = { 0 };
        snprintf(text, sizeof text, more, stop);
        ts_status status = train(t, &f, "a", text, 1, &o);
        TEST_EQ(t, status, stop < 6 ? TS_OK : TS_ERR_STATE);
        if (stop == 6) TEST_SAYS(t, o.error, "step 5: the 5 steps up to here were left out");
    }
    remove_folder(&f);
}

/* What a run that goes on is told counts: a fixed scale always, one that is found where it is
 * another than the run was told before. */
TS_TEST(another_scale_takes_effect)
{
    folder f = make_folder(t);
    outcome fixed = { 0 }, found = { 0 };
    TEST_OK(t, train(t, &f, "a", "[train]\nloss_scale = 16\nstop_after = 2\n", 1, &fixed));
    TEST_OK(t, train(t, &f, "a", "[train]\nloss_scale = 4\nstop_after = 3\n", 1, &fixed));
    TEST_EQ(t, (int64_t)fixed.scale[2], 16);
    TEST_EQ(t, (int64_t)fixed.scale[3], 4);
    static const char every[] = "[train]\nloss_scale = %d\nloss_scale_every = 1\nstop_after = %d\n";
    static const int row[][3] = { { 64, 4, 64 }, { 64, 5, 128 }, { 8, 6, 8 } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        char more[128];
        snprintf(more, sizeof more, every, row[i][0], row[i][1]);
        TEST_OK(t, train(t, &f, "a", more, 1, &found));
        TEST_EQ(t, (int64_t)found.scale[row[i][1]], row[i][2]);
    }
    remove_folder(&f);
}

TS_TEST(bf16_is_near_f32)
{
    folder f = make_folder(t);
    outcome wide = { 0 }, narrow = { 0 }, two = { 0 };
    TEST_OK(t, train(t, &f, "wide", "[train]\nsteps = 30\n", 1, &wide));
    TEST_OK(t,
            train(t, &f, "narrow", "[train]\nsteps = 30\n[model]\ncompute = bf16\n", 1, &narrow));
    same_losses(t, &wide, &narrow, 30, 0.15);
    TEST_OK(t, train(t, &f, "two",
                     "[train]\nsteps = 30\n[model]\ncompute = bf16\n[parallel]\nmesh = dp=2\n", 2,
                     &two));
    same_losses(t, &narrow, &two, 30, 0.05); /* gradients are cast before they are reduced in f32 */
    remove_folder(&f);
}

/* Loads of one step in experts.jsonl, of the one layer there is. */
static void move_by(double bias[4], const char *line, double rate)
{
    double load[4] = { 0 }, mean = 0, turn = 0;
    const char *at = strstr(line, "\"load\": [");
    char *end = NULL;
    at = at ? at + strlen("\"load\": [") : "";
    for (int e = 0; e < 4; e++, at = end + 1) {
        load[e] = strtod(at, &end);
        mean += load[e] / 4;
    }
    for (int e = 0; e < 4; e++)
        turn += (double)((mean > load[e]) - (mean < load[e])) / 4;
    for (int e = 0; e < 4; e++)
        bias[e] += rate * ((double)((mean > load[e]) - (mean < load[e])) - turn);
}

/* Selection biases move with the update: not in steps that are left out. */
TS_TEST(biases_of_steps_that_are_left_out)
{
    static const char more[] =
        "[model]\nfamily = deepseek_v3\nhead_dim = 4\nplain_dim = 4\nkv_rank = 6\nexperts = 4\n"
        "experts_per_token = 1\nexpert_width = 8\ncompute = f16\n[experts]\nbias_rate = 0.125\n"
        "[train]\nsteps = 48\nloss_scale = 1e15\nloss_scale_every = 100\nskips_max = 100\n";
    static const char name[] = "model.layers.0.mlp.gate.e_score_correction_bias";
    folder f = make_folder(t);
    outcome o = { 0 };
    char path[2 * FOLDER_PATH_MAX], *text = NULL;
    double want[4] = { 0 };
    float have[4] = { NAN, NAN, NAN, NAN };
    size_t length = 0;
    ts_archive *archive = NULL;
    TEST_OK(t, train(t, &f, "a", more, 1, &o));
    TEST_SAY(t, o.skipped > 5 && o.skipped < 48, "%d steps were left out", (int)o.skipped);
    snprintf(path, sizeof path, "%s/a/experts.jsonl", f.path);
    TEST_OK(t, tsi_file_read(path, 1 << 20, &text, &length));
    char *line = text;
    for (int step = 1; line && step <= 48; step++) {
        if (isfinite(o.norm[step])) move_by(want, line, 0.125);
        line = strchr(line, '\n');
        if (line) line++;
    }
    snprintf(path, sizeof path, "%s/a/state/step-48", f.path);
    TEST_OK(t, ts_archive_open(path, &archive));
    int64_t at = archive ? ts_archive_find(archive, name) : -1;
    TEST_CHECK(t, at >= 0);
    if (at >= 0) TEST_OK(t, ts_archive_read(archive, at, 0, 4, TS_DTYPE_F32, have));
    for (int e = 0; e < 4; e++)
        TEST_SAY(t, fabs((double)have[e] - want[e]) < 1e-6, "expert %d: %g, not %g", e,
                 (double)have[e], want[e]);
    ts_archive_close(archive);
    tsi_free(text);
    remove_folder(&f);
}

/* A power of two changes exponents alone. */
TS_TEST(a_scale_changes_no_bits)
{
    folder f = make_folder(t);
    outcome plain = { 0 }, scaled = { 0 };
    TEST_OK(t, train(t, &f, "plain", "", 1, &plain));
    TEST_OK(t, train(t, &f, "scaled", "[train]\nloss_scale = 1024\n", 1, &scaled));
    same_losses(t, &plain, &scaled, STEPS, 0);
    same_weights(t, &f, "plain", "scaled");
    remove_folder(&f);
}

TS_TEST(parts_are_the_whole)
{
    folder f = make_folder(t);
    outcome whole = { 0 }, parts = { 0 }, two = { 0 };
    TEST_OK(t, train(t, &f, "whole", "[model]\ndtype = f64\n", 1, &whole));
    TEST_OK(t, train(t, &f, "parts", "[model]\ndtype = f64\n[train]\naccumulate = 2\n", 1, &parts));
    TEST_OK(t, train(t, &f, "two",
                     "[model]\ndtype = f64\n[train]\naccumulate = 2\n[parallel]\nmesh = dp=2\n", 2,
                     &two));
    same_losses(t, &whole, &parts, STEPS, 1e-12);
    same_losses(t, &whole, &two, STEPS, 1e-12);
    for (int i = 1; i <= STEPS; i++)
        TEST_SAY(t, fabs(whole.norm[i] - two.norm[i]) < 1e-11, "step %d: norm %.17g and %.17g", i,
                 whole.norm[i], two.norm[i]);
    remove_folder(&f);
}

/* On two threads, since each thread has buffers of its own, which count in models as small as
 * these.
 */
TS_TEST(memory_is_as_estimated)
{
    (void)setenv("TESSERA_THREADS", "2", 1);
    static const char big[] = "[model]\nhidden = 64\nintermediate = 160\nlayers = 8\nheads = 4\n"
                              "[data]\ncontext = 64\n[train]\nbatch = 8\nsteps = 2\n";
    static const struct {
        const char *name, *more;
        int64_t ranks;
    } cases[] = {
        { "one", "", 1 },
        { "dp", "[parallel]\nmesh = dp=2\n", 2 },
        { "tp", "[parallel]\nmesh = tp=2\n", 2 },
        { "bf16", "[model]\ncompute = bf16\n", 1 },
        { "qwen3", "[model]\nfamily = qwen3\n", 1 },
        { "gpt2", "[model]\nfamily = gpt2\n", 1 },
        { "mixtral", "[model]\nfamily = mixtral\nexperts = 4\nexperts_per_token = 2\n", 1 },
        { "parts", "[train]\naccumulate = 4\n", 1 },
    };
    folder f = make_folder(t);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome o = { 0 };
        char more[512];
        snprintf(more, sizeof more, "%s%s", big, cases[i].more);
        TEST_OK(t, train(t, &f, cases[i].name, more, cases[i].ranks, &o));
        double ratio = (double)o.memory / (double)o.estimate;
        TEST_SAY(t, ratio < 1.1 && ratio >= 1.0, "%s: %lld bytes, estimated %lld: %.3f",
                 cases[i].name, (long long)o.memory, (long long)o.estimate, ratio);
    }
    (void)unsetenv("TESSERA_THREADS");
    remove_folder(&f);
}
