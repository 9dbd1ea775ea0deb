/* SPDX-License-Identifier: Apache-2.0 */
/* border.c - switches of a unit (ts_fsdp_set) at the border of a recorded step (base/keep.h): they
 * are in its kept work as they were when it was recorded. So is how often ranks that share shards
 * gathered them: after a reset each rank counts on from elsewhere, until they join again.
 *
 * One that the step sets before its unit does anything in it is the step's own. The others must be
 * as they were found, else the step is not run again. What the step set is set behind each run. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/keep.h"
#include "parallel/unit.h"

enum { SWITCHES = TS_FSDP_TIMES }; /* those that change what a step does, which come first */

struct tsi_unit_border {
    tsi_unit *unit;
    int32_t found[SWITCHES], left[SWITCHES];
    uint32_t own, set; /* bit i: switch i is the step's own; was set in it */
    bool begun;        /* the unit did something in the step */
};

static int32_t *switch_of(tsi_unit *u, int32_t what)
{
    int32_t *const at[SWITCHES] = { [TS_FSDP_ALL_REDUCE] = &u->all_reduce,
                                    [TS_FSDP_RESHARD_FORWARD] = &u->options.reshard,
                                    [TS_FSDP_RESHARD_BACKWARD] = &u->reshard_backward };
    return at[what];
}

static ts_status check(void *context)
{
    const tsi_unit_border *b = context;
    for (int32_t i = 0; i < SWITCHES; i++) {
        if (b->own >> i & 1 || *switch_of(b->unit, i) == b->found[i]) continue;
        return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE,
                              "step: ts_fsdp_set was called since the step was recorded, which "
                              "unit %s is part of; run again it would do as then: call it in the "
                              "step, or record another one",
                              b->unit->name);
    }
    return TS_OK;
}

/* Ranks meet again where their shards lie: there the recorded step reads them. */
static ts_status enter(void *context)
{
    tsi_unit *u = ((const tsi_unit_border *)context)->unit;
    int64_t serial = u->serial;
    if (u->shares <= 0 || u->joined) return TS_OK;
    TSI_TRY(tsi_unit_join(u));
    if (u->serial == serial) return TS_OK;
    return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE,
                          "step: the shards of unit %s lie elsewhere since ts_module_reset: record "
                          "another one",
                          u->name);
}

static ts_status settle(void *context)
{
    tsi_unit_border *b = context;
    for (int32_t i = 0; i < SWITCHES; i++)
        b->left[i] = *switch_of(b->unit, i);
    return TS_OK;
}

static ts_status leave(void *context)
{
    const tsi_unit_border *b = context;
    for (int32_t i = 0; i < SWITCHES; i++)
        if (b->set >> i & 1) *switch_of(b->unit, i) = b->left[i];
    return TS_OK;
}

/* Of the step that is recorded; NULL: none is, or memory ended, which was recorded. */
static tsi_unit_border *border_of(tsi_unit *u)
{
    if (!tsi_keeps(u->rank)) return NULL;
    if (!tsi_keep_notes(u->rank, &u->kept_in)) return u->border;
    u->border = NULL;
    tsi_unit_border *b = tsi_calloc(1, sizeof *b);
    if (!b) {
        (void)tsi_fail_memory("switches of a step", sizeof *b);
        return NULL;
    }
    b->unit = u;
    for (int32_t i = 0; i < SWITCHES; i++)
        b->found[i] = *switch_of(u, i);
    const tsi_kept_border kept = { .settle = settle,
                                   .check = check,
                                   .enter = enter,
                                   .leave = leave,
                                   .destroy = tsi_free,
                                   .context = b };
    if (tsi_keep_border(u->rank, kept) == TS_OK) u->border = b;
    return u->border;
}

ts_status tsi_unit_at_border(tsi_unit *u)
{
    tsi_unit_border *b = border_of(u);
    if (b) b->begun = true;
    return b || !tsi_keeps(u->rank) ? TS_OK : ts_rank_status(u->rank);
}

ts_status tsi_unit_set(tsi_unit *u, ts_fsdp_switch what, int32_t value)
{
    tsi_unit_border *b = border_of(u);
    if (b && !b->begun) b->own |= 1u << what;
    if (b) b->set |= 1u << what;
    if (!b && tsi_keeps(u->rank)) return ts_rank_status(u->rank);
    *switch_of(u, (int32_t)what) = value;
    return TS_OK;
}
