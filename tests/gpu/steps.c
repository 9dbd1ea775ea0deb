/* SPDX-License-Identifier: Apache-2.0 */
/* steps.c - training steps on a GPU: beside the host's, twice with the same bits, without waits. */
#include "dist/step_util.h"
#include "gpu/gpu.h"
#include "tessera/step.h"

static double farthest(const walk_of *a, const walk_of *b)
{
    double far = 0;
    for (int i = 0; i + 1 < a->count; i++)
        far = fmax(far, fabs(a->loss[i] - b->loss[i]) / fabs(b->loss[i]));
    return far;
}

TS_TEST(steps_are_the_hosts)
{
    static const struct {
        int32_t dtype, count;
        double most;
        bool sgd;
        int32_t moments;
    } kinds[] = { { TS_DTYPE_F32, 50, 1e-5, false, 0 },
                  { TS_DTYPE_F64, 100, 1e-9, false, 0 },
                  { TS_DTYPE_F32, 20, 1e-5, true, 0 },
                  { TS_DTYPE_F64, 50, 1e-9, true, 0 },
                  /* A gradient's last bit may turn a rounding by chance: 2^-8 of a moment. */
                  { TS_DTYPE_F32, 20, 1e-3, false, TS_DTYPE_BF16 } };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        walk_of cpu = { .t = t, .mesh = "dp=1", .poison_at = -1 };
        cpu.dtype = kinds[k].dtype;
        cpu.count = gpu_is_simulated() ? kinds[k].count / 10 : kinds[k].count;
        cpu.sgd = kinds[k].sgd;
        cpu.moments = kinds[k].moments;
        walk_of cuda = cpu;
        run_on(&cpu, "cpu", 1);
        run_on(&cuda, "cuda", 1);
        double far = farthest(&cuda, &cpu);
        TEST_SAY(t, far <= kinds[k].most, "%s by %s: %g", ts_dtype_name((ts_dtype)cpu.dtype),
                 cpu.sgd ? "sgd" : "adamw", far);
    }
}

TS_TEST(two_runs_have_the_same_bits)
{
    for (int narrow = 0; narrow < 2; narrow++) {
        walk_of a = { .t = t, .mesh = "dp=1", .count = 50, .poison_at = -1 };
        if (gpu_is_simulated()) a.count = 8;
        a.compute = narrow ? TS_DTYPE_BF16 : 0;
        walk_of b = a;
        run_on(&a, "cuda", 1);
        run_on(&b, "cuda", 1);
        TEST_CHECK(t, memcmp(a.loss, b.loss, sizeof a.loss) == 0);
        TEST_CHECK(t, memcmp(a.norm, b.norm, sizeof a.norm) == 0);
    }
}

TS_TEST(a_step_waits_for_nothing)
{
    walk_of s = { .t = t, .mesh = "dp=1", .count = 8, .poison_at = -1, .compute = TS_DTYPE_BF16 };
    run_on(&s, "cuda", 1);
    TEST_EQ(t, s.waits, 0);
    for (int i = 2; i < s.count; i++)
        TEST_EQ(t, s.reserved[i], s.reserved[1]);
}

TS_TEST(what_is_not_finite_ends_the_updates)
{
    walk_of s = { .t = t, .mesh = "dp=1", .count = 8, .poison_at = 3 };
    walk_of good = { .t = t, .mesh = "dp=1", .count = 8, .poison_at = -1 };
    run_on(&s, "cuda", 1);
    run_on(&good, "cuda", 1);
    TEST_CHECK(t, s.loss[2] == good.loss[2] && isnan(s.loss[3]));
    TEST_CHECK(t, s.loss[4] != good.loss[4] && isfinite(s.loss[4]));
}

/* ---- recorded steps -------------------------------------------------------------------------- */

typedef struct replayed {
    test *t;
    ts_rank *me;
    ts_model *model;
    ts_optimizer *optimizer;
    ts_tensor *ids, *labels; /* that the recorded step reads */
    int32_t compute, moments;
    bool replays, reads;
    double loss[STEPS_KEPT], norm[STEPS_KEPT];
    ts_step_summary summary;
} replayed;

enum { REPLAYED = 12, RECORDED_AT = 2 };

static ts_status learn(void *context)
{
    replayed *r = context;
    ts_scope scope = ts_scope_open(r->me, "");
    ts_tape_begin(r->me);
    ts_tensor *loss = ts_model_loss(r->model, r->ids, r->labels);
    ts_status status = ts_backward(loss, NULL);
    double number;
    if (status == TS_OK && r->reads) status = ts_tensor_item(loss, &number);
    if (status == TS_OK)
        status = ts_optimizer_step_with(r->optimizer,
                                        TS_OPTIONS(ts_step_options, .norm_max = 0.5, .loss = loss));
    ts_scope_close(scope);
    return status;
}

static void set_one(const replayed *r, ts_step *recorded, ts_tensor **input, int32_t salt)
{
    ts_scope scope = ts_scope_open(r->me, NULL);
    ts_tensor *value = tokens(r->model, salt);
    if (recorded) {
        TEST_OK(r->t, ts_step_input(recorded, *input, value));
    } else {
        if (*input) ts_tensor_release(*input);
        *input = ts_tensor_retain(value);
    }
    ts_scope_close(scope);
}

/* The tokens of a step, where the recorded one reads them. */
static void set_tokens(replayed *r, ts_step *recorded, int32_t step)
{
    set_one(r, recorded, &r->ids, step);
    set_one(r, recorded, &r->labels, step + 1);
}

static ts_status walk_again(ts_rank *me, void *argument)
{
    replayed *r = argument;
    ts_step *recorded = NULL;
    r->me = me;
    r->model = ts_model_create(ts_mesh_create(me, "dp=1"), &tiny,
                               TS_OPTIONS(ts_model_options, .compute = r->compute));
    r->optimizer = ts_adamw_create(ts_model_module(r->model),
                                   TS_OPTIONS(ts_adamw_options, .lr = 1e-2, .moments = r->moments));
    for (int32_t step = 0; step < REPLAYED && ts_rank_status(me) == TS_OK; step++) {
        ts_step_outcome is = TS_INIT(ts_step_outcome);
        set_tokens(r, recorded, step);
        if (r->replays && step == RECORDED_AT)
            recorded = ts_step_record(me, learn, r);
        else
            TEST_OK(r->t, recorded ? ts_step_replay(recorded) : learn(r));
        if (ts_rank_status(me) != TS_OK) break;
        TEST_OK(r->t, ts_optimizer_outcome(r->optimizer, step + 1, &is));
        r->loss[step] = is.loss;
        r->norm[step] = is.norm;
    }
    if (recorded) TEST_OK(r->t, ts_step_summarise(recorded, &r->summary));
    ts_step_destroy(recorded);
    ts_tensor_release(r->ids);
    ts_tensor_release(r->labels);
    ts_optimizer_destroy(r->optimizer);
    ts_model_destroy(r->model);
    return ts_rank_status(me);
}

static ts_status run_replayed(replayed *r, char *error, size_t size)
{
    ts_world_options options = TS_INIT(ts_world_options);
    options.rank_count = 1;
    options.device = "cuda";
    r->summary = (ts_step_summary)TS_INIT(ts_step_summary);
    return ts_launch_with(&options, walk_again, r, error, size);
}

TS_TEST(replayed_steps_have_the_same_bits)
{
    static const int32_t kinds[][2] = { { 0, 0 },
                                        { TS_DTYPE_BF16, 0 },
                                        { TS_DTYPE_BF16, TS_DTYPE_BF16 } };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        char error[1024] = "";
        replayed usual = { .t = t, .compute = kinds[k][0], .moments = kinds[k][1] };
        replayed again = usual;
        again.replays = true;
        TEST_SAY(t, run_replayed(&usual, error, sizeof error) == TS_OK, "%s", error);
        TEST_SAY(t, run_replayed(&again, error, sizeof error) == TS_OK, "%s", error);
        TEST_CHECK(t, memcmp(usual.loss, again.loss, sizeof usual.loss) == 0);
        TEST_CHECK(t, memcmp(usual.norm, again.norm, sizeof usual.norm) == 0);
        TEST_EQ(t, again.summary.replays, REPLAYED - RECORDED_AT - 1);
        TEST_SAY(t, again.summary.works < 10, "%lld works, not a few graphs",
                 (long long)again.summary.works);
    }
}

TS_TEST(what_the_host_reads_in_a_recorded_step_is_refused)
{
    char error[1024] = "";
    replayed r = { .t = t, .replays = true };
    r.reads = true;
    TEST_CHECK(t, run_replayed(&r, error, sizeof error) != TS_OK);
    TEST_SAYS(t, error, "values cross between the host and a step that is recorded");
}
