/* SPDX-License-Identifier: Apache-2.0 */
/* topology_file.c - the JSON form of topologies.
 *
 *   {"name": "my-cluster", "base_us": 9, "all_to_all_us": 2, "exchange_us": 4, "copy_gib_s": 1300,
 *    "reduce_gib_s": 900, "shared_gib_s": 0, "local_us": 0, "run_us": 0, "product_gflops": 50000,
 *    "product_half_gflops": 600000, "hops": "tree",
 *    "levels": [{"name": "nvlink", "ranks": 8, "latency_us": 0.7, "bandwidth_gib_s": 340,
 *                "total_gib_s": 0},
 *               {"name": "infiniband", "ranks": 0, "latency_us": 3.5, "bandwidth_gib_s": 43}],
 *    "axes": [{"name": "tp", "latency_us": 0.6, "bandwidth_gib_s": 300}]}
 *
 * Members that are absent are 0; unknown ones are refused with the nearest name, so that a typing
 * error cannot pass for a measurement. What is saved is read back to the same bits. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "plan/topology.h"
#include "tessera/json.h"

static const char *const hops_names[] = { "ring", "log", "flat", "tree", NULL };

typedef struct field {
    const char *name;
    size_t offset;
} field;

static const field topology_fields[] = {
    { "base_us", offsetof(ts_topology, base_us) },
    { "all_to_all_us", offsetof(ts_topology, all_to_all_us) },
    { "exchange_us", offsetof(ts_topology, exchange_us) },
    { "copy_gib_s", offsetof(ts_topology, copy_gib_s) },
    { "reduce_gib_s", offsetof(ts_topology, reduce_gib_s) },
    { "shared_gib_s", offsetof(ts_topology, shared_gib_s) },
    { "local_us", offsetof(ts_topology, local_us) },
    { "run_us", offsetof(ts_topology, run_us) },
    { "product_gflops", offsetof(ts_topology, product_gflops) },
    { "product_half_gflops", offsetof(ts_topology, product_half_gflops) },
};
static const char *const topology_names[] = { "name",
                                              "base_us",
                                              "all_to_all_us",
                                              "exchange_us",
                                              "copy_gib_s",
                                              "reduce_gib_s",
                                              "shared_gib_s",
                                              "local_us",
                                              "run_us",
                                              "product_gflops",
                                              "product_half_gflops",
                                              "hops",
                                              "levels",
                                              "axes",
                                              NULL };
static const char *const level_names[] = { "name",        "ranks", "latency_us", "bandwidth_gib_s",
                                           "total_gib_s", NULL };

static ts_status unknown_member(const char *where, const char *name, const char *const *names)
{
    const char *near = tsi_text_nearest(name, names);
    return TSI_FAIL(TS_ERR_ARG, "topology: %s has no member '%s'%s%s%s", where, name,
                    near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static ts_status want_number(const char *name, const ts_json *value, double *out)
{
    ts_json_kind kind = ts_json_kind_of(value);
    if (kind != TS_JSON_INT && kind != TS_JSON_REAL) {
        return TSI_FAIL(TS_ERR_ARG, "topology: '%s' must be a number", name);
    }
    *out = kind == TS_JSON_INT ? (double)ts_json_int(value, 0) : ts_json_real(value, 0);
    return TS_OK;
}

static ts_status want_name(const char *name, const ts_json *value, char *out)
{
    const char *text = ts_json_text(value, NULL);
    if (!text || strlen(text) >= TS_TOPOLOGY_NAME) {
        return TSI_FAIL(TS_ERR_ARG, "topology: '%s' must be a text of fewer than %d bytes", name,
                        TS_TOPOLOGY_NAME);
    }
    memcpy(out, text, strlen(text) + 1);
    return TS_OK;
}

static ts_status level_member(const char *name, const ts_json *value, void *context)
{
    ts_topology_level *level = context;
    if (strcmp(name, "name") == 0) return want_name(name, value, level->name);
    if (strcmp(name, "latency_us") == 0) return want_number(name, value, &level->latency_us);
    if (strcmp(name, "bandwidth_gib_s") == 0)
        return want_number(name, value, &level->bandwidth_gib_s);
    if (strcmp(name, "total_gib_s") == 0) return want_number(name, value, &level->total_gib_s);
    if (strcmp(name, "ranks") == 0) {
        if (ts_json_kind_of(value) != TS_JSON_INT || ts_json_int(value, -1) < 0) {
            return TSI_FAIL(TS_ERR_ARG, "topology: 'ranks' must be an integer, 0 for everything");
        }
        level->ranks = ts_json_int(value, 0);
        return TS_OK;
    }
    return unknown_member("a level", name, level_names);
}

static ts_status axis_member(const char *name, const ts_json *value, void *context)
{
    ts_topology_axis *axis = context;
    if (strcmp(name, "name") == 0) return want_name(name, value, axis->name);
    if (strcmp(name, "latency_us") == 0) return want_number(name, value, &axis->latency_us);
    if (strcmp(name, "bandwidth_gib_s") == 0)
        return want_number(name, value, &axis->bandwidth_gib_s);
    return unknown_member("an axis", name, level_names);
}

static ts_status read_levels(ts_topology *t, const ts_json *list)
{
    int64_t count = ts_json_count(list);
    if (ts_json_kind_of(list) != TS_JSON_LIST || count < 1 || count > TS_TOPOLOGY_LEVELS) {
        return TSI_FAIL(TS_ERR_ARG, "topology: 'levels' must be a list of 1 to %d levels",
                        TS_TOPOLOGY_LEVELS);
    }
    t->level_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++) {
        TSI_TRY(ts_json_each(ts_json_item(list, i), level_member, &t->level[i]));
    }
    return TS_OK;
}

static ts_status read_axes(ts_topology *t, const ts_json *list)
{
    int64_t count = ts_json_count(list);
    if (ts_json_kind_of(list) != TS_JSON_LIST || count > TS_TOPOLOGY_AXES) {
        return TSI_FAIL(TS_ERR_ARG, "topology: 'axes' must be a list of up to %d axes",
                        TS_TOPOLOGY_AXES);
    }
    t->axis_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++) {
        TSI_TRY(ts_json_each(ts_json_item(list, i), axis_member, &t->axis[i]));
    }
    return TS_OK;
}

static ts_status topology_member(const char *name, const ts_json *value, void *context)
{
    ts_topology *t = context;
    for (size_t i = 0; i < TSI_COUNT_OF(topology_fields); i++) {
        if (strcmp(name, topology_fields[i].name) != 0) continue;
        double number = 0;
        TSI_TRY(want_number(name, value, &number));
        memcpy((char *)t + topology_fields[i].offset, &number, sizeof number);
        return TS_OK;
    }
    if (strcmp(name, "name") == 0) return want_name(name, value, t->name);
    if (strcmp(name, "levels") == 0) return read_levels(t, value);
    if (strcmp(name, "axes") == 0) return read_axes(t, value);
    if (strcmp(name, "hops") == 0) {
        const char *text = ts_json_text(value, "");
        for (int32_t i = 0; hops_names[i]; i++) {
            if (strcmp(text, hops_names[i]) == 0) {
                t->hops = i;
                return TS_OK;
            }
        }
        return TSI_FAIL(TS_ERR_ARG, "topology: 'hops' must be ring, log, flat or tree");
    }
    return unknown_member("the file", name, topology_names);
}

static ts_status parse_json(const char *what, const char *text, ts_topology *out)
{
    ts_json_document *document = NULL;
    TSI_TRY(ts_json_parse(what, text, strlen(text), &document));
    const ts_json *root = ts_json_root(document);
    ts_status status = TS_OK;
    if (ts_json_kind_of(root) != TS_JSON_OBJECT) {
        status = TSI_FAIL(TS_ERR_ARG, "%s: a topology is a JSON object", what);
    }
    if (status == TS_OK) status = ts_json_each(root, topology_member, out);
    if (status == TS_OK) status = tsi_topology_check(out);
    ts_json_release(document);
    out->struct_size = sizeof *out;
    if (status != TS_OK) memset(out, 0, sizeof *out);
    return status;
}

ts_status ts_topology_parse(const char *text, ts_topology *out)
{
    if (!out) return TSI_FAIL(TS_ERR_NULL, "topology: the output is NULL");
    memset(out, 0, sizeof *out);
    if (!text) return TSI_FAIL(TS_ERR_NULL, "topology: the text is NULL");
    return parse_json("topology", text, out);
}

ts_status ts_topology_load(const char *name, ts_topology *out)
{
    if (!out) return TSI_FAIL(TS_ERR_NULL, "topology: the output is NULL");
    memset(out, 0, sizeof *out);
    if (!name) return TSI_FAIL(TS_ERR_NULL, "topology: the name is NULL");
    if (strchr(name, '{')) return parse_json("topology", name, out);
    for (int32_t i = 0; tsi_topology_presets[i]; i++) {
        if (strcmp(name, tsi_topology_presets[i]) == 0) return ts_topology_preset(name, out);
    }
    bool path = strchr(name, '/') || strchr(name, '.');
    if (!path && tsi_text_nearest(name, tsi_topology_presets)) return ts_topology_preset(name, out);
    enum { FILE_BYTES_MAX = 16 << 20 };
    char *text = NULL;
    size_t length = 0;
    if (access(name, F_OK) != 0)
        return TSI_FAIL(TS_ERR_IO,
                        "topology: '%s' is neither a preset nor a file that can be read (%s)", name,
                        strerror(errno));
    TSI_TRY(tsi_file_read(name, FILE_BYTES_MAX, &text, &length));
    ts_status status = parse_json(name, text, out);
    tsi_free(text);
    return status;
}

/* ---- writing -------------------------------------------------------------------------------- */

static void write_topology(const ts_topology *t, tsi_text *text)
{
    tsi_text_add(text, "{\"name\": ");
    tsi_text_json(text, t->name);
    for (size_t i = 0; i < TSI_COUNT_OF(topology_fields); i++) {
        double value;
        memcpy(&value, (const char *)t + topology_fields[i].offset, sizeof value);
        tsi_text_printf(text, ", \"%s\": %.17g", topology_fields[i].name, value);
    }
    tsi_text_printf(text, ", \"hops\": \"%s\", \"levels\": [", hops_names[t->hops]);
    for (int32_t i = 0; i < t->level_count; i++) {
        const ts_topology_level *level = &t->level[i];
        tsi_text_add(text, i ? ", {\"name\": " : "{\"name\": ");
        tsi_text_json(text, level->name);
        tsi_text_printf(text,
                        ", \"ranks\": %lld, \"latency_us\": %.17g, \"bandwidth_gib_s\": %.17g, "
                        "\"total_gib_s\": %.17g}",
                        (long long)level->ranks, level->latency_us, level->bandwidth_gib_s,
                        level->total_gib_s);
    }
    tsi_text_add(text, "], \"axes\": [");
    for (int32_t i = 0; i < t->axis_count; i++) {
        tsi_text_add(text, i ? ", {\"name\": " : "{\"name\": ");
        tsi_text_json(text, t->axis[i].name);
        tsi_text_printf(text, ", \"latency_us\": %.17g, \"bandwidth_gib_s\": %.17g}",
                        t->axis[i].latency_us, t->axis[i].bandwidth_gib_s);
    }
    tsi_text_add(text, "]}");
}

size_t ts_topology_json(const ts_topology *topology, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (size > 0) out[0] = '\0';
    if (!topology || tsi_topology_check(topology) != TS_OK) return 0;
    write_topology(topology, &text);
    size_t length = text.failed ? 0 : text.length;
    if (size > 0 && length > 0) {
        size_t copied = length < size - 1 ? length : size - 1;
        memcpy(out, text.data, copied);
        out[copied] = '\0';
    }
    tsi_text_release(&text);
    return length;
}

ts_status ts_topology_save(const ts_topology *topology, const char *path)
{
    if (!topology || !path) return TSI_FAIL(TS_ERR_NULL, "topology: what or where to save is NULL");
    TSI_TRY(tsi_topology_check(topology));
    tsi_text text = { 0 };
    write_topology(topology, &text);
    tsi_text_add(&text, "\n");
    if (text.failed) {
        tsi_text_release(&text);
        return tsi_fail_memory("the text of a topology", 1024);
    }
    FILE *file = fopen(path, "wb");
    bool good = file && fwrite(text.data, 1, text.length, file) == text.length;
    if (file && fclose(file) != 0) good = false;
    tsi_text_release(&text);
    if (!good)
        return TSI_FAIL(TS_ERR_IO, "topology: '%s' could not be written (%s)", path,
                        strerror(errno));
    return TS_OK;
}
