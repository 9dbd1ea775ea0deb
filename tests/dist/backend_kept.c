/* SPDX-License-Identifier: Apache-2.0 */
/* backend_kept.c - elementwise calls as a recorded step keeps them, against the kernel itself: the
 * same bits and no byte beside, where the call was made and after its memory was moved; and what
 * they say they touch is what their blocks cover. */
#include "backend/cpu/cpu.h"
#include "backend_util.h"
#include "device/block_task.h"

enum { TOUCHES_MAX = 4, MARK = 0xA5 };

typedef struct told {
    tsi_kept_touch touch[TOUCHES_MAX];
    int32_t count;
} told;

static void note(void *to, const tsi_kept_touch *touch)
{
    told *all = to;
    if (all->count < TOUCHES_MAX) all->touch[all->count] = *touch;
    all->count++;
}

typedef struct setting { /* a call in memory of its own */
    operand in[TSI_INPUT_MAX], out[1];
    tsi_operand in_is[TSI_INPUT_MAX], out_is[1];
    tsi_kernel_io io;
} setting;

static void settle(test *t, const call *c, spread how, setting *s)
{
    *s = (setting){ 0 };
    for (int32_t i = 0; i < c->input_count; i++) {
        place(t, &s->in[i], &c->in[i], how);
        fill(t, &s->in[i], 0, false);
        s->in_is[i] = s->in[i].is;
    }
    place(t, &s->out[0], &c->out[0], how == GAPS ? DENSE : how);
    memset(s->out[0].memory, MARK, s->out[0].bytes);
    s->out_is[0] = s->out[0].is;
    s->io = (tsi_kernel_io){ .op = c->op,
                             .attributes = c->attributes,
                             .in = s->in_is,
                             .out = s->out_is,
                             .input_count = c->input_count,
                             .output_count = 1,
                             .rank = t->me,
                             .device = tsi_device_host() };
}

static void unsettle(setting *s)
{
    release(s->in, TSI_INPUT_MAX);
    release(s->out, 1);
}

/* The kept work, which writes where `s` does, against the kernel. */
static void same_as_kernel(test *t, const call *c, const setting *s, const tsi_kept_work *work,
                           const char *when)
{
    size_t bytes = s->out[0].bytes;
    TEST_OK(t, tsi_cpu_pointwise(&s->io));
    void *want = tsi_alloc(bytes);
    memcpy(want, s->out[0].memory, bytes);
    memset(s->out[0].memory, MARK, bytes);
    TEST_OK(t, work->run(work->context));
    TEST_SAY(t, memcmp(want, s->out[0].memory, bytes) == 0, "%s of %s, %s: other bits", c->op->name,
             ts_dtype_name((ts_dtype)c->in[0].dtype), when);
    tsi_free(want);
}

/* Each block that covers something, the result last, by an address that is the work's own. */
static void check_touches(test *t, const call *c, const setting *s, const told *all)
{
    int32_t at = 0;
    for (int32_t i = 0; i <= c->input_count; i++) {
        bool writes = i == c->input_count;
        tsi_kept_touch want = tsi_block_covers(writes ? &s->out_is[0].block : &s->in_is[i].block);
        if (!want.low) continue;
        const tsi_kept_touch *have = &all->touch[at++];
        TEST_SAY(t,
                 at <= all->count && have->low == want.low && have->high == want.high &&
                     *have->at == want.low && have->writes == writes,
                 "%s: touch %d is not its operand", c->op->name, i);
    }
    TEST_EQ(t, at, all->count);
}

/* The work in other memory, as an order of the step has it. */
static void move(const call *c, const setting *to, const told *all)
{
    int32_t at = 0;
    for (int32_t i = 0; i <= c->input_count; i++) {
        const tsi_block *b = i < c->input_count ? &to->in_is[i].block : &to->out_is[0].block;
        if (tsi_block_covers(b).low) *all->touch[at++].at = b->data;
    }
}

/* Is it kept as a row? */
static bool check_kept(test *t, const call *c, spread how)
{
    setting s, other;
    tsi_kept_work work;
    told all = { .count = 0 };
    settle(t, c, how, &s);
    settle(t, c, how, &other);
    int verdict = (int)tsi_cpu_keep_row(&s.io, &work);
    bool kept = verdict == TS_OK;
    TEST_CHECK(t, kept || verdict == TSI_KERNEL_DECLINED);
    if (kept) {
        same_as_kernel(t, c, &s, &work, "where it was made");
        work.kind->touches(work.context, note, &all);
        check_touches(t, c, &s, &all);
        move(c, &other, &all);
        same_as_kernel(t, c, &other, &work, "in other memory");
        work.destroy(work.context);
    }
    unsettle(&s);
    unsettle(&other);
    return kept;
}

static bool valid(test *t, call *c)
{
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    bool is = infer(c);
    (void)ts_scope_close(scope); /* a dtype the operator refuses */
    return is;
}

TS_TEST_RANKS(elementwise_operators_are_kept_as_rows, 1)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16,
                                       TS_DTYPE_F16, TS_DTYPE_I64, TS_DTYPE_I32 };
    int64_t kept[TSI_COUNT_OF(dtypes)] = { 0 }, calls = 0;
    tsi_backend_cpu_add();
    for (int32_t id = 0; id < TSI_OP_ID_COUNT; id++) {
        const tsi_op_desc *op = tsi_op_at(id);
        if (!op->sample || tsi_kernel_of(tsi_device_host(), op) != tsi_cpu_pointwise) continue;
        for (size_t d = 0; d < TSI_COUNT_OF(dtypes); d++)
            for (int32_t variant = 0; variant < 8; variant++) {
                call c = { .op = op, .input_count = op->input_max };
                uint64_t random = t->seed + (uint64_t)variant;
                if (!tsi_op_sample(op, &random, variant, c.in, &c.input_count, c.attributes)) break;
                for (int32_t i = 0; i < c.input_count; i++)
                    if (c.in[i].dtype == TS_DTYPE_F64) c.in[i].dtype = (int32_t)dtypes[d];
                if (!valid(t, &c)) continue;
                for (int how = 0; how < SPREADS; how++, calls++)
                    kept[d] += check_kept(t, &c, (spread)how);
            }
    }
    TEST_SAY(t, kept[0] > 100 && kept[1] > 100 && kept[4] > 20, "of %lld: %lld, %lld, %lld",
             (long long)calls, (long long)kept[0], (long long)kept[1], (long long)kept[4]);
}

/* Which shapes come to one row: at most 8192 elements that lie side by side in all operands, or are
 * one number. */
TS_TEST_RANKS(one_row_is_kept, 1)
{
    const struct {
        ts_shape a, b;
        spread how;
        bool kept;
    } cases[] = {
        { TS_SHAPE(4), TS_SHAPE(4), DENSE, true },
        { TS_SHAPE_SCALAR, TS_SHAPE_SCALAR, DENSE, true },
        { TS_SHAPE(1), TS_SHAPE(1, 1), DENSE, true },
        { TS_SHAPE(3, 0), TS_SHAPE(3, 0), DENSE, true },
        { TS_SHAPE(64, 128), TS_SHAPE(64, 128), DENSE, true },
        { TS_SHAPE(8193), TS_SHAPE(8193), DENSE, false },
        { TS_SHAPE(3, 5, 7), TS_SHAPE(3, 5, 7), PERMUTED, true },
        { TS_SHAPE(3, 5), TS_SHAPE(1), DENSE, true },
        { TS_SHAPE(1), TS_SHAPE(3, 5), DENSE, true },
        { TS_SHAPE(3, 5), TS_SHAPE(5), DENSE, false },
        { TS_SHAPE(3, 5), TS_SHAPE(3, 1), DENSE, false },
        { TS_SHAPE(3, 5), TS_SHAPE(3, 5), GAPS, false },
    };
    static const char *const names[] = { "add", "mul", "sub" };
    tsi_backend_cpu_add();
    for (size_t i = 0; i < TSI_COUNT_OF(cases); i++)
        for (size_t k = 0; k < TSI_COUNT_OF(names); k++) {
            call c = call_of(names[k], 2, (ts_shape[]){ cases[i].a, cases[i].b }, TS_DTYPE_F32);
            TEST_CHECK(t, valid(t, &c));
            TEST_SAY(t, check_kept(t, &c, cases[i].how) == cases[i].kept, "%s, case %zu", names[k],
                     i);
        }
}
