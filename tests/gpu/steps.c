/* SPDX-License-Identifier: Apache-2.0 */
/* steps.c - training steps on a GPU: beside the host's, twice with the same bits, without waits. */
#include "dist/step_util.h"

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
    } kinds[] = { { TS_DTYPE_F32, 50, 1e-5, false },
                  { TS_DTYPE_F64, 100, 1e-9, false },
                  { TS_DTYPE_F32, 20, 1e-5, true },
                  { TS_DTYPE_F64, 50, 1e-9, true } };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        walk_of cpu = { .t = t, .mesh = "dp=1", .poison_at = -1 };
        cpu.dtype = kinds[k].dtype;
        cpu.count = kinds[k].count;
        cpu.sgd = kinds[k].sgd;
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
