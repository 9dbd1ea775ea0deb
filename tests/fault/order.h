/* SPDX-License-Identifier: Apache-2.0 */
/* order.h - a recorded step in another order, for faults that fall on its replays. */
#ifndef TESTS_FAULT_ORDER_H
#define TESTS_FAULT_ORDER_H

#include "base/alloc.h"
#include "base/keep.h"
#include "harness/test.h"
#include "plan/program.h"
#include "plan/step_reorder.h"
#include "tessera/program.h"
#include "tessera/step.h"

typedef enum order_kind { AS_RECORDED, HOISTED, IN_BUCKETS, IN_PARTS, ORDER_KINDS } order_kind;

/* Of work in which a fault strikes: others may pass it. */
static const tsi_kept_kind order_loose = { TSI_KEPT_FREE, NULL };

/* The first operation that can be cut is. */
static inline void order_cut(test *t, tsi_step *step)
{
    size_t count = (size_t)tsi_step_action_count(step) + 1;
    int64_t *first = tsi_calloc((size_t)step->list_count + 1, sizeof *first), cut = 0, at = 0;
    double *us = tsi_calloc(count, sizeof *us), *end = tsi_calloc(count, sizeof *end);
    for (int32_t r = 0; r < step->list_count; r++) {
        first[r] = at;
        for (int32_t i = 0; i < step->list[r].action_count; i++, at++) {
            us[at] = 10;
            end[at] = 10 * (double)at;
        }
    }
    tsi_wholes wholes;
    tsi_step_cost cost = { 0 };
    TEST_OK(t, tsi_wholes_find(step, us, first, &wholes));
    const tsi_split_job job = { step, &cost, first, us, end, 2 };
    for (int64_t i = 0; i < wholes.count && cut == 0; i++)
        TEST_OK(t, tsi_pass_split(&job, &wholes.op[i], &cut));
    TEST_CHECK(t, cut > 0);
    tsi_wholes_release(&wholes);
    tsi_free(first);
    tsi_free(us);
    tsi_free(end);
}

/* What is begun early and waited for late can be joined or cut. */
static inline ts_status order_change(test *t, ts_program **program, order_kind kind)
{
    ts_program *better = NULL;
    ts_reorder_options options;
    int64_t moves = 0;
    ts_reorder_options_init(&options);
    options.passes = TS_PASS_HOIST | TS_PASS_SINK;
    options.memory_bytes_max = (int64_t)1 << 40;
    TSI_TRY(ts_program_reorder(*program, &options, NULL, NULL, &better));
    ts_program_destroy(*program);
    *program = better;
    if (kind == IN_PARTS) order_cut(t, better->step);
    return kind == IN_BUCKETS ? tsi_pass_bucket(better->step, 1 << 20, &moves) : TS_OK;
}

/* [coll] From now on its replays are in such an order, which it takes. */
static inline ts_status order_anew(test *t, ts_step *step, order_kind kind)
{
    ts_program *program = NULL;
    ts_step_order is = TS_INIT(ts_step_order);
    if (kind == AS_RECORDED) return TS_OK;
    ts_status status = ts_step_program(step, &program);
    if (status == TS_OK) status = order_change(t, &program, kind);
    if (status == TS_OK) status = ts_step_reorder(step, program, 1 << 24, &is);
    TEST_CHECK(t, kind != HOISTED || is.moved > 0);
    TEST_CHECK(t, kind != IN_BUCKETS || is.joined > 0);
    TEST_CHECK(t, kind != IN_PARTS || is.parted > 0);
    ts_program_destroy(program);
    return status;
}

#endif
