/* SPDX-License-Identifier: Apache-2.0 */
/* by_hand.c - what a program does with units itself: gathering and letting go, naming what is
 * gathered ahead, switches, statistics.
 *
 * INV: whatever is said of a unit holds for those beside it. */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "parallel/unit.h"

ts_status ts_reshard_parse(const char *text, int32_t *out)
{
    static const char *const word[] = { "auto", "yes", "no" };
    static const int32_t value[] = { TS_RESHARD_AUTO, TS_RESHARD_YES, TS_RESHARD_NO };
    if (!text || !out) return TSI_FAIL(TS_ERR_NULL, "reshard: an argument is NULL");
    for (int32_t i = 0; i < 3; i++) {
        if (strcmp(text, word[i]) != 0) continue;
        *out = value[i];
        return TS_OK;
    }
    tsi_cursor cursor = tsi_cursor_of("reshard", text);
    int64_t number = 0;
    bool good = tsi_cursor_int(&cursor, &number) && tsi_cursor_done(&cursor);
    if (!good || number < 1 || number > INT32_MAX)
        return TSI_FAIL(TS_ERR_ARG,
                        "reshard: expected auto, yes, no or a number of ranks, found \"%.40s\"",
                        text);
    *out = (int32_t)number;
    return TS_OK;
}

/* ---- by hand --------------------------------------------------------------------------------- */

static ts_status unit_of(const ts_module *m, tsi_unit **out)
{
    char name[TSI_PARAM_NAME_MAX];
    *out = NULL;
    if (!m) return TSI_FAIL(TS_ERR_NULL, "fsdp: there is no module");
    TSI_TRY(tsi_rank_enter(m->rank));
    if (!m->unit)
        return TSI_FAIL(TS_ERR_STATE, "fsdp: %s is no unit", tsi_unit_title(m, name, sizeof name));
    *out = m->unit;
    return TS_OK;
}

ts_status ts_fsdp_gather(ts_module *m)
{
    tsi_unit *u;
    TSI_TRY(unit_of(m, &u));
    TSI_TRY(tsi_units_find(u));
    TSI_TRY(tsi_unit_gather_ahead(u));
    for (; u; u = u->beside) {
        u->users++;
        TSI_TRY(tsi_unit_bind(u));
    }
    return TS_OK;
}

ts_status ts_fsdp_release(ts_module *m)
{
    tsi_unit *u;
    TSI_TRY(unit_of(m, &u));
    for (; u; u = u->beside) {
        if (u->users > 0) u->users--;
        if (u->users == 0) TSI_TRY(tsi_unit_drop(u, false));
    }
    return TS_OK;
}

ts_status ts_fsdp_prefetch(ts_module *m, ts_module *const *next, int32_t count, int32_t backward)
{
    tsi_unit *u, *one;
    TSI_TRY(unit_of(m, &u));
    if (count < 0 || (count > 0 && !next))
        return TSI_FAIL(TS_ERR_ARG, "fsdp: unit %s: %d units are to be gathered ahead", u->name,
                        count);
    TSI_TRY(tsi_units_find(u));
    tsi_unit_ahead *list = &u->ahead[backward != 0];
    tsi_unit **units = tsi_calloc((size_t)count + 1, sizeof *units);
    if (!units) return tsi_fail_memory("units to gather ahead", (size_t)count * sizeof *units);
    for (int32_t i = 0; i < count; i++) {
        ts_status status = unit_of(next[i], &one);
        if (status == TS_OK) status = tsi_units_find(one);
        if (status == TS_OK && one->all != u->all)
            status =
                TSI_FAIL(TS_ERR_ARG, "fsdp: units %s and %s are of two trees", u->name, one->name);
        if (status != TS_OK) {
            tsi_free(units);
            return status;
        }
        units[i] = one;
    }
    tsi_free(list->unit);
    *list = (tsi_unit_ahead){ units, count };
    return TS_OK;
}

static ts_status set_unit(tsi_unit *u, ts_fsdp_switch what, int32_t value)
{
    switch (what) {
    case TS_FSDP_ALL_REDUCE:
        return tsi_unit_set(u, what, value != 0);
    case TS_FSDP_RESHARD_FORWARD:
        if (value > 0)
            return TSI_FAIL(TS_ERR_ARG, "fsdp: unit %s: groups of ranks are said when it is made",
                            u->name);
        if (value < TS_RESHARD_NO)
            return TSI_FAIL(TS_ERR_ARG, "fsdp: unit %s: reshard is %d", u->name, (int)value);
        return tsi_unit_set(u, what, value);
    case TS_FSDP_RESHARD_BACKWARD:
        return tsi_unit_set(u, what, value != 0);
    case TS_FSDP_TIMES:
        TSI_TRY(tsi_units_find(u));
        tsi_watch_set(u->all, value != 0);
        return TS_OK;
    case TS_FSDP_SWITCH_COUNT:
        break;
    }
    return TSI_FAIL(TS_ERR_ARG, "fsdp: there is no switch %d", (int)what);
}

static ts_status set_below(ts_module *m, ts_fsdp_switch what, int32_t value)
{
    for (tsi_unit *u = m->unit; u; u = u->beside)
        TSI_TRY(set_unit(u, what, value));
    for (ts_module *child = m->first; child; child = child->next)
        TSI_TRY(set_below(child, what, value));
    return TS_OK;
}

ts_status ts_fsdp_set(ts_module *root, ts_fsdp_switch what, int32_t value)
{
    if (!root) return TSI_FAIL(TS_ERR_NULL, "fsdp: there is no module");
    TSI_TRY(tsi_rank_enter(root->rank));
    return set_below(root, what, value);
}

static tsi_unit *first_below(const ts_module *m)
{
    tsi_unit *u = m->unit;
    for (const ts_module *child = m->first; child && !u; child = child->next)
        u = first_below(child);
    return u;
}

ts_status ts_fsdp_statistics(ts_module *root, ts_fsdp_stats *out)
{
    if (!root || !out) return TSI_FAIL(TS_ERR_NULL, "fsdp: an argument is NULL");
    size_t size = out->struct_size;
    TSI_TRY(tsi_rank_enter(root->rank));
    tsi_unit *u = first_below(root);
    ts_fsdp_stats stats = { 0 };
    if (u) {
        TSI_TRY(tsi_units_find(u));
        stats = u->all->stats;
    }
    memcpy(out, &stats, size < sizeof stats ? size : sizeof stats);
    out->struct_size = size;
    return TS_OK;
}
