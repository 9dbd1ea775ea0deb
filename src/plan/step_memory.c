/* SPDX-License-Identifier: Apache-2.0 */
/* step_memory.c - memory over a step: a walk down one list, exact whatever the clock says. */
#include <string.h>

#include "base/intmath.h"
#include "plan/step.h"

/* Saturates: a step that nobody proved may make one value many times. */
static void add(int64_t *sum, int64_t bytes)
{
    if (!tsi_add_i64(*sum, bytes, sum)) *sum = INT64_MAX;
}

/* Bytes and account change by one value; what is offloaded has an account only. */
static void count(const tsi_value *value, int32_t sign, int64_t *bytes, int64_t *by)
{
    add(&by[value->memory], sign * value->bytes);
    add(bytes, sign * tsi_held_bytes(value));
}

static void count_touches(const tsi_step_list *list, const tsi_action *action, tsi_touch_how how,
                          int64_t *bytes, int64_t *by)
{
    const tsi_touch *touch = tsi_step_touches(list, action);
    for (int32_t i = 0; i < action->touch_count; i++)
        if (touch[i].how == (int32_t)how)
            count(&list->value[touch[i].value], how == TSI_MAKES ? 1 : -1, bytes, by);
}

void tsi_step_memory_of(const tsi_step *step, int64_t rank, tsi_step_peak *out, int64_t *line)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    int64_t bytes = 0, by[TSI_STEP_MEMORY_KINDS] = { 0 };
    for (int32_t v = 0; v < list->value_count; v++)
        if (list->value[v].life & TSI_LIFE_TAKEN) count(&list->value[v], 1, &bytes, by);
    *out = (tsi_step_peak){ .bytes = bytes, .action = -1 };
    memcpy(out->by, by, sizeof by);
    for (int32_t i = 0; i < list->action_count; i++) {
        count_touches(list, &list->action[i], TSI_MAKES, &bytes, by);
        if (line) line[i] = bytes;
        if (bytes > out->bytes) {
            out->bytes = bytes;
            out->action = i;
            memcpy(out->by, by, sizeof by);
        }
        count_touches(list, &list->action[i], TSI_FREES, &bytes, by);
    }
}
