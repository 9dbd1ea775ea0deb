/* SPDX-License-Identifier: Apache-2.0 */
/* machine_text.c - the few numbers of the modelled machine, from text.
 *
 *   ranks_per_node=8, latency_us=2/10, bandwidth_gb_s=200/25, overhead_us=0.2
 *
 * A pair is "inside a node / between nodes"; one number stands for both. */
#include <string.h>

#include "base/text.h"
#include "comm/model/model_engine.h"

static const char *const keys[] = { "ranks_per_node", "latency_us", "bandwidth_gb_s", "overhead_us",
                                    NULL };

/* One positive number, or two separated by a slash. */
static ts_status read_pair(tsi_cursor *cursor, double unit, double pair[TSI_LINK_COUNT])
{
    double value = 0;
    if (!tsi_cursor_real(cursor, &value) || !(value > 0)) {
        return tsi_cursor_fail(cursor, "a number above 0");
    }
    pair[TSI_LINK_NODE] = pair[TSI_LINK_NETWORK] = value * unit;
    if (!tsi_cursor_take(cursor, '/')) return TS_OK;
    if (!tsi_cursor_real(cursor, &value) || !(value > 0)) {
        return tsi_cursor_fail(cursor, "a number above 0");
    }
    pair[TSI_LINK_NETWORK] = value * unit;
    return TS_OK;
}

static ts_status read_value(tsi_cursor *cursor, const char *key, tsi_model_machine *out)
{
    if (strcmp(key, keys[0]) == 0) {
        if (!tsi_cursor_int(cursor, &out->ranks_per_node) || out->ranks_per_node < 1) {
            return tsi_cursor_fail(cursor, "a whole number above 0");
        }
        return TS_OK;
    }
    if (strcmp(key, keys[1]) == 0) return read_pair(cursor, 1e-6, out->latency_s);
    if (strcmp(key, keys[2]) == 0) return read_pair(cursor, 1e9, out->bandwidth);
    if (strcmp(key, keys[3]) == 0) {
        double pair[TSI_LINK_COUNT];
        TSI_TRY(read_pair(cursor, 1e-6, pair));
        out->overhead_s = pair[TSI_LINK_NODE];
        return TS_OK;
    }
    const char *near = tsi_text_nearest(key, keys);
    return TSI_FAIL(TS_ERR_ARG,
                    "%s: unknown key \"%s\" (ranks_per_node, latency_us, bandwidth_gb_s, "
                    "overhead_us)%s%s%s",
                    cursor->what, key, near ? "; did you mean \"" : "", near ? near : "",
                    near ? "\"?" : "");
}

ts_status tsi_model_machine_parse(const char *text, tsi_model_machine *out)
{
    *out = (tsi_model_machine){ .ranks_per_node = 8,
                                .latency_s = { 2e-6, 10e-6 },
                                .bandwidth = { 200e9, 25e9 },
                                .overhead_s = 0.2e-6 };
    tsi_cursor cursor = tsi_cursor_of("model", text != NULL ? text : "");
    while (!tsi_cursor_done(&cursor)) {
        char key[32];
        if (!tsi_cursor_word(&cursor, key, sizeof key)) {
            return tsi_cursor_fail(&cursor, "a key such as ranks_per_node");
        }
        if (!tsi_cursor_take(&cursor, '=')) return tsi_cursor_fail(&cursor, "'=' after the key");
        TSI_TRY(read_value(&cursor, key, out));
        if (!tsi_cursor_take(&cursor, ',') && !tsi_cursor_done(&cursor)) {
            return tsi_cursor_fail(&cursor, "',' between keys");
        }
    }
    return TS_OK;
}
