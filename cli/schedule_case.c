/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_case.c - requests to schedules with times; batches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "schedule.h"

/* ---- costs ----------------------------------------------------------------------------------- */

static const char *const keys[] = { "F", "I", "W", "comm", "memory", "B" };
enum { KEY_COUNT = sizeof keys / sizeof keys[0], KEY_B = 5, STAGES_MAX = 1 << 16 };

static void set_cost(ts_stage_cost *cost, int key, double value)
{
    double *const places[] = { &cost->forward, &cost->input, &cost->weight, &cost->send,
                               &cost->memory };
    if (key < KEY_B) *places[key] = value;
    if (key == KEY_B) cost->input = cost->weight = value / 2; /* not told apart */
}

static int key_of(const char *text, size_t length)
{
    for (int k = 0; k < KEY_COUNT; k++)
        if (strlen(keys[k]) == length && strncasecmp(text, keys[k], length) == 0) return k;
    return -1;
}

/* A list that grows: new stages get what the last one has. */
static bool widen(ts_stage_cost **cost, int64_t *count, int64_t wanted)
{
    if (wanted <= *count) return true;
    ts_stage_cost *more = realloc(*cost, (size_t)wanted * sizeof *more);
    if (more == NULL) return false;
    for (int64_t g = *count; g < wanted; g++)
        more[g] = *count > 0 ? more[*count - 1] : (ts_stage_cost){ 1, 1, 1, 0, 1 };
    *cost = more;
    *count = wanted;
    return true;
}

static bool refuse(char *error, size_t size, const char *what, const char *found, size_t length)
{
    (void)snprintf(error, size, "%s, found \"%.*s\"", what, (int)(length < 40 ? length : 40),
                   found);
    return false;
}

/* "F=1:1:2": a value for all stages, or one for each. */
static bool read_item(const char **at, ts_stage_cost **cost, int64_t *count, char *error,
                      size_t size)
{
    const char *begin = *at;
    size_t length = strcspn(begin, "=,");
    int key = key_of(begin, length);
    if (key < 0 || begin[length] != '=')
        return refuse(error, size, "expected F=, I=, W=, B=, comm= or memory=", begin,
                      strcspn(begin, ","));
    *at += length + 1;
    for (int64_t g = 0;; g++) {
        char *end;
        double value = strtod(*at, &end);
        if (end == *at || !(value >= 0) || value > 1e18)
            return refuse(error, size, "expected a number of at least 0", *at, strcspn(*at, ",:"));
        if (g >= STAGES_MAX || !widen(cost, count, g + 1))
            return refuse(error, size, "too many stages", begin, length);
        for (int64_t k = g; k < *count; k++)
            set_cost(&(*cost)[k], key, value);
        *at = end;
        if (*end != ':') return true;
        ++*at;
    }
}

static bool read_file(const char *path, ts_stage_cost **out, int64_t *count, char *error,
                      size_t size)
{
    ts_json_document *document = NULL;
    if (!cli_json_read("schedule", path, &document))
        return refuse(error, size, "expected F=1,I=1,W=1 or a JSON file", path, strlen(path));
    const ts_json *root = ts_json_root(document), *measured = ts_json_member(root, "cost");
    bool good = schedule_cost_json(measured != NULL ? measured : root, out, count, error, size);
    ts_json_release(document);
    return good;
}

void schedule_measured(const char *path, ts_schedule_options *size)
{
    ts_json_document *document = NULL;
    if (strchr(path, '=') != NULL || !cli_json_read("schedule", path, &document)) return;
    const ts_json *root = ts_json_root(document);
    if (size->ranks == 0) size->ranks = ts_json_int(ts_json_member(root, "ranks"), 0);
    if (size->micro_batches == 0)
        size->micro_batches = ts_json_int(ts_json_member(root, "micro_batches"), 0);
    ts_json_release(document);
}

bool schedule_cost_text(const char *text, ts_stage_cost **out, int64_t *count, char *error,
                        size_t size)
{
    *out = NULL;
    *count = 0;
    if (strchr(text, '=') == NULL) return read_file(text, out, count, error, size);
    while (read_item(&text, out, count, error, size)) {
        if (*text == '\0') return true;
        if (*text != ',') {
            refuse(error, size, "expected ','", text, strlen(text));
            break;
        }
        text++;
    }
    free(*out);
    *out = NULL;
    return false;
}

static bool json_number(const char *key, const ts_json *value, double *out, char *error,
                        size_t size)
{
    *out = ts_json_real(value, -1);
    if (*out >= 0 && *out <= 1e18) return true;
    return cli_field_refuse(key, value, "a number of at least 0", error, size);
}

/* One member of an object: a number, or a list with one for each stage. */
static bool json_item(const ts_json *object, int key, ts_stage_cost **cost, int64_t *count,
                      char *error, size_t size)
{
    const ts_json *value = ts_json_member(object, keys[key]);
    bool list = ts_json_kind_of(value) == TS_JSON_LIST;
    int64_t given = list ? ts_json_count(value) : 1;
    if (value == NULL || ts_json_kind_of(value) == TS_JSON_NULL) return true;
    if (given < 1 || given > STAGES_MAX || !widen(cost, count, given))
        return cli_field_refuse(keys[key], value, "a number, or one for each stage", error, size);
    for (int64_t g = 0; g < given; g++) {
        double number;
        if (!json_number(keys[key], list ? ts_json_item(value, g) : value, &number, error, size))
            return false;
        for (int64_t k = g; k < *count; k++)
            set_cost(&(*cost)[k], key, number);
    }
    return true;
}

/* {"F": 1, ...}, {"F": [1, 2], ...} or [{"F": 1, ...}, ...]. */
static bool json_costs(const ts_json *value, ts_stage_cost **out, int64_t *count, char *error,
                       size_t size)
{
    static const int order[KEY_COUNT] = { KEY_B, 0, 1, 2, 3, 4 }; /* I and W count above B */
    if (ts_json_kind_of(value) == TS_JSON_OBJECT) {
        for (int k = 0; k < KEY_COUNT; k++)
            if (!json_item(value, order[k], out, count, error, size)) return false;
        return widen(out, count, 1);
    }
    int64_t stages = ts_json_kind_of(value) == TS_JSON_LIST ? ts_json_count(value) : 0;
    if (stages < 1 || stages > STAGES_MAX || !widen(out, count, stages))
        return cli_field_refuse("cost", value, "an object, or a list of one for each stage", error,
                                size);
    for (int64_t g = 0; g < stages; g++) {
        const ts_json *stage = ts_json_item(value, g);
        if (ts_json_kind_of(stage) != TS_JSON_OBJECT)
            return cli_field_refuse("cost", stage, "an object for each stage", error, size);
        for (int k = 0; k < KEY_COUNT; k++) {
            const ts_json *number = ts_json_member(stage, keys[order[k]]);
            double read;
            if (number == NULL) continue;
            if (!json_number(keys[order[k]], number, &read, error, size)) return false;
            set_cost(&(*out)[g], order[k], read);
        }
    }
    return true;
}

bool schedule_cost_json(const ts_json *value, ts_stage_cost **out, int64_t *count, char *error,
                        size_t size)
{
    *out = NULL;
    *count = 0;
    if (json_costs(value, out, count, error, size)) return true;
    free(*out);
    *out = NULL;
    return false;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static ts_status make(const schedule_request *r, schedule_case *c)
{
    if (strcasecmp(r->name, "search") == 0) {
        ts_schedule_search_options options = { .struct_size = sizeof options,
                                               .size = r->size,
                                               .costs = c->costs,
                                               .memory_max = r->memory_max,
                                               .seconds = r->seconds };
        return ts_schedule_search(&options, &c->schedule, &c->bound);
    }
    return ts_schedule_find(r->name, &r->size, &c->schedule);
}

static ts_status measure(const schedule_request *r, schedule_case *c)
{
    int64_t ranks = ts_schedule_ranks(c->schedule), cells = 0;
    c->first = calloc((size_t)ranks + 1, sizeof *c->first);
    for (int64_t rank = 0; c->first != NULL && rank < ranks; rank++) {
        c->first[rank] = cells;
        cells += ts_schedule_count(c->schedule, rank);
    }
    c->begin = calloc((size_t)cells + 1, sizeof *c->begin);
    c->end = calloc((size_t)cells + 1, sizeof *c->end);
    c->peak = calloc((size_t)ranks, sizeof *c->peak);
    if (!c->first || !c->begin || !c->end || !c->peak) return TS_ERR_MEMORY;
    c->first[ranks] = cells;
    c->times.struct_size = sizeof c->times;
    ts_status status = ts_schedule_check(c->schedule, &c->costs, r->memory_max);
    if (status != TS_OK) return status;
    return ts_schedule_simulate(c->schedule, &c->costs, &c->times, c->begin, c->end, c->peak);
}

bool schedule_open(const schedule_request *r, schedule_case *c, char *error, size_t size)
{
    *c = (schedule_case){
        .name = r->name,
        .costs = { .struct_size = sizeof c->costs, .stage = r->cost, .count = r->cost_count }
    };
    ts_status status = make(r, c);
    if (status == TS_OK) status = measure(r, c);
    if (status == TS_OK) return true;
    (void)snprintf(error, size, "%s", status == TS_ERR_MEMORY ? "out of memory" : ts_last_error());
    schedule_close(c);
    return false;
}

void schedule_close(schedule_case *c)
{
    ts_schedule_destroy(c->schedule);
    free(c->first);
    free(c->begin);
    free(c->end);
    free(c->peak);
    *c = (schedule_case){ 0 };
}

double schedule_memory(const schedule_case *c, int64_t stage)
{
    if (c->costs.stage == NULL) return 1;
    return c->costs.stage[c->costs.count == 1 ? 0 : stage].memory;
}

/* ---- batches --------------------------------------------------------------------------------- */

static void put_number(ts_json_writer *json, double value)
{
    if (value == floor(value) && fabs(value) < 1e15)
        ts_json_put_int(json, (int64_t)value);
    else
        ts_json_put_real(json, value);
}

static void put_member(ts_json_writer *json, const char *key, double value)
{
    ts_json_put_key(json, key);
    put_number(json, value);
}

/* Two cells that run together are one text. */
static void put_list(const ts_schedule *schedule, int64_t rank, ts_json_writer *json)
{
    ts_json_put_open(json, '[');
    for (int64_t i = 0; i < ts_schedule_count(schedule, rank); i++) {
        char first[48], second[48], both[128];
        ts_cell cell = ts_schedule_cell(schedule, rank, i);
        ts_cell_text(&cell, first, sizeof first);
        if (!cell.joined) {
            ts_json_put_text(json, first);
            continue;
        }
        cell = ts_schedule_cell(schedule, rank, ++i);
        ts_cell_text(&cell, second, sizeof second);
        (void)snprintf(both, sizeof both, "(%s;%s)OVERLAP_F_B", first, second);
        ts_json_put_text(json, both);
    }
    ts_json_put_close(json, ']');
}

void schedule_answer(const schedule_case *c, bool costs, ts_json_writer *json)
{
    int64_t ranks = ts_schedule_ranks(c->schedule);
    ts_json_put_key(json, "order");
    ts_json_put_open(json, '[');
    for (int64_t rank = 0; rank < ranks; rank++)
        put_list(c->schedule, rank, json);
    ts_json_put_close(json, ']');
    if (!costs) return;
    put_member(json, "makespan", c->times.makespan);
    put_member(json, "bubble", c->times.bubble);
    put_member(json, "bubble_fraction", c->times.fraction);
    ts_json_put_key(json, "peak");
    ts_json_put_open(json, '[');
    for (int64_t rank = 0; rank < ranks; rank++)
        put_number(json, c->peak[rank]);
    ts_json_put_close(json, ']');
    if (c->bound > 0) put_member(json, "bound", c->bound);
}

static bool read_request(const ts_json *request, schedule_request *r, char *error, size_t size)
{
    const ts_json *cost = ts_json_member(request, "cost");
    const ts_json *memory = ts_json_member(request, "memory");
    const ts_json *seconds = ts_json_member(request, "seconds");
    r->size = (ts_schedule_options){ .struct_size = sizeof r->size };
    if (!cli_field_text(request, "schedule", &r->name, error, size) ||
        !cli_field_count(request, "ranks", &r->size.ranks, error, size) ||
        !cli_field_count(request, "microbatches", &r->size.micro_batches, error, size) ||
        !cli_field_count(request, "stages_per_rank", &r->size.stages_per_rank, error, size))
        return false;
    if (r->name == NULL || ts_schedule_is_file(r->name)) {
        (void)snprintf(error, size, "\"schedule\" is missing: the name of one, or search");
        return false;
    }
    if (ts_json_kind_of(memory) != TS_JSON_NULL &&
        !json_number("memory", memory, &r->memory_max, error, size))
        return false;
    if (ts_json_kind_of(seconds) != TS_JSON_NULL &&
        !json_number("seconds", seconds, &r->seconds, error, size))
        return false;
    return ts_json_kind_of(cost) == TS_JSON_NULL ||
           schedule_cost_json(cost, &r->cost, &r->cost_count, error, size);
}

bool schedule_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
                    void *context)
{
    (void)context;
    schedule_request r = { 0 };
    schedule_case c = { 0 };
    bool good = read_request(request, &r, error, size) && schedule_open(&r, &c, error, size);
    if (good) {
        ts_json_put_open(answer, '{');
        ts_json_put_member_text(answer, "schedule", r.name);
        schedule_answer(&c, r.cost != NULL || c.bound > 0, answer);
        ts_json_put_close(answer, '}');
    }
    schedule_close(&c);
    free(r.cost);
    return good;
}
