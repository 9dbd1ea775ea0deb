/* SPDX-License-Identifier: Apache-2.0 */
/* program.c - steps as public values. See tessera/program.h. */
#include "plan/program.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "plan/step_wide.h"

enum { FILE_MAX_BYTES = 1 << 30 };

ts_status tsi_program_make(tsi_step *step, ts_program **out)
{
    *out = tsi_calloc(1, sizeof **out);
    if (*out)
        (*out)->step = step;
    else
        tsi_step_destroy(step);
    return *out ? TS_OK : tsi_fail_memory("a program", sizeof **out);
}

void ts_program_destroy(ts_program *program)
{
    if (!program) return;
    tsi_step_destroy(program->step);
    tsi_free(program);
}

/* ---- text ------------------------------------------------------------------------------------ */

ts_status ts_program_parse(const char *text, ts_program **out)
{
    if (!text || !out) return TSI_FAIL(TS_ERR_NULL, "program: an argument is NULL");
    tsi_step *step = NULL;
    *out = NULL;
    TSI_TRY(tsi_step_parse(text, &step));
    return tsi_program_make(step, out);
}

static ts_status refuse_nul(const char *text)
{
    long long line = 1;
    for (; *text; text++)
        line += *text == '\n';
    return TSI_FAIL(TS_ERR_ARG, "step, line %lld: there is a NUL in it", line);
}

ts_status ts_program_read(const char *path, ts_program **out)
{
    char *text = NULL;
    size_t length = 0;
    if (!path || !out) return TSI_FAIL(TS_ERR_NULL, "program: an argument is NULL");
    *out = NULL;
    TSI_TRY(tsi_file_read(path, FILE_MAX_BYTES, &text, &length));
    ts_status status = strlen(text) == length ? ts_program_parse(text, out) : refuse_nul(text);
    if (status != TS_OK) tsi_error_prefix("%s", path);
    tsi_free(text);
    return status;
}

ts_status ts_program_write(const ts_program *program, const char *path)
{
    tsi_text text = { 0 };
    if (!program || !path) return TSI_FAIL(TS_ERR_NULL, "program: an argument is NULL");
    tsi_step_print(program->step, &text);
    ts_status status = text.failed ? tsi_fail_memory("the text of a program", text.length)
                                   : tsi_file_replace(path, text.data, text.length);
    tsi_text_release(&text);
    return status;
}

size_t ts_program_text(const ts_program *program, char *out, size_t size)
{
    tsi_text text = { 0 };
    if (program) tsi_step_print(program->step, &text);
    return tsi_text_give(&text, out, size);
}

size_t ts_program_differ(const ts_program *a, const ts_program *b, char *why, size_t size)
{
    tsi_text text = { 0 };
    if (a && b) (void)tsi_step_differ(a->step, b->step, &text);
    return tsi_text_give(&text, why, size);
}

ts_status ts_program_summarise(const ts_program *program, ts_program_summary *out)
{
    if (!program || !out) return TSI_FAIL(TS_ERR_NULL, "program: an argument is NULL");
    const tsi_step *step = program->step;
    ts_program_summary is = { .struct_size = out->struct_size,
                              .ranks = step->rank_count,
                              .lists = step->list_count,
                              .actions = tsi_step_action_count(step),
                              .groups = step->group_count,
                              .queues = step->queue_count };
    for (int32_t r = 0; r < step->list_count; r++) {
        is.values += step->list[r].value_count;
        for (int32_t i = 0; i < step->list[r].action_count; i++) {
            tsi_action_class kind = tsi_action_class_of(step->list[r].action[i].kind);
            is.collectives += kind == TSI_CLASS_COLLECTIVE;
            is.messages += kind == TSI_CLASS_PAIR;
            is.waits += step->list[r].action[i].kind == TSI_ACTION_WAIT;
        }
    }
    memcpy(out, &is, out->struct_size < sizeof is ? out->struct_size : sizeof is);
    return TS_OK;
}

/* ---- checking -------------------------------------------------------------------------------- */

ts_status ts_program_check(const ts_program *program, const ts_program_rules *rules,
                           ts_program_finding_fn tell, void *context, int64_t *count)
{
    if (!program || !count) return TSI_FAIL(TS_ERR_NULL, "program: an argument is NULL");
    ts_program_rules given = { .struct_size = sizeof given };
    if (rules)
        memcpy(&given, rules,
               rules->struct_size < sizeof given ? rules->struct_size : sizeof given);
    tsi_step_rules asked = { .buffered = !given.meeting,
                             .no_hidden = given.no_hidden != 0,
                             .memory_bytes_max = given.memory_bytes_max };
    tsi_findings found = { 0 };
    *count = 0;
    ts_status status = tsi_step_check(program->step, &asked, &found);
    for (int64_t i = 0; status == TS_OK && tell && i < found.count; i++)
        tell(tsi_finding_names[found.item[i].kind], found.item[i].text, context);
    if (status == TS_OK) *count = found.total;
    tsi_findings_release(&found);
    return status;
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Of a group, as far as its members are equally far apart. */
static int64_t ranks_on_a_node(const tsi_step_group *group)
{
    int64_t apart = group->size > 1 ? (group->high - group->low) / (group->size - 1) : 1;
    return apart > 0 && apart < TSI_NCCL_NODE ? TSI_NCCL_NODE / apart : 1;
}

/* A message costs its sender. An exchange says what it receives, which is all but its own part. */
static double nccl_us(void *context, const tsi_step *step, int64_t rank, const tsi_action *a)
{
    const tsi_program_cost *c = context;
    double bytes = (double)a->bytes;
    if (a->kind == TSI_ACTION_RECEIVE) return 0;
    if (a->kind == TSI_ACTION_SEND) {
        bool near = tsi_step_shown(step, rank) / TSI_NCCL_NODE ==
                    tsi_step_shown(step, a->peer) / TSI_NCCL_NODE;
        return tsi_collective_cost_of(c->machine, TSI_COLLECTIVE_MESSAGE, 2, near ? 2 : 1, bytes)
            .us;
    }
    if (tsi_action_class_of(a->kind) != TSI_CLASS_COLLECTIVE) return -1;
    const tsi_step_group *group = &step->group[a->group];
    tsi_collective kind = a->kind == TSI_ACTION_GATHER       ? TSI_COLLECTIVE_GATHER
                          : a->kind == TSI_ACTION_REDUCE     ? TSI_COLLECTIVE_REDUCE
                          : a->kind == TSI_ACTION_ALL_REDUCE ? TSI_COLLECTIVE_ALL_REDUCE
                                                             : TSI_COLLECTIVE_ALL_TO_ALL;
    if (kind == TSI_COLLECTIVE_ALL_TO_ALL && group->size > 1)
        bytes *= (double)group->size / (double)(group->size - 1);
    return tsi_collective_cost_of(c->machine, kind, group->size, ranks_on_a_node(group), bytes).us;
}

static ts_status take_costs(int32_t collectives, tsi_program_cost *out)
{
    if (collectives < TS_COSTS_LINKS || collectives > TS_COSTS_B200)
        return TSI_FAIL(TS_ERR_ARG, "program: collectives of machine %d; TS_COSTS_* go up to %d",
                        collectives, TS_COSTS_B200);
    if (collectives == TS_COSTS_LINKS) return TS_OK;
    out->machine = (tsi_nvidia)(collectives - TS_COSTS_V100);
    out->cost.of = nccl_us;
    out->cost.context = out;
    return TS_OK;
}

ts_status tsi_program_cost_of(const ts_program_costs *costs, int64_t ranks, tsi_program_cost *out)
{
    ts_program_costs given = { .struct_size = sizeof given };
    ts_topology topology;
    tsi_mesh_desc none = { 0 };
    if (costs)
        memcpy(&given, costs,
               costs->struct_size < sizeof given ? costs->struct_size : sizeof given);
    if (!(given.moving >= 0 && given.moving <= 1))
        return TSI_FAIL(TS_ERR_ARG, "program: what moving takes of computing is %g, not 0 to 1",
                        given.moving);
    TSI_TRY(ts_topology_load(given.topology ? given.topology : "threads", &topology));
    *out = (tsi_program_cost){ .cost.buffered = !given.meeting, .moving = given.moving };
    tsi_links_make(&topology, &none, ranks, &out->links);
    out->cost.links = &out->links;
    double each = given.compute_us > 0 ? given.compute_us : 1;
    for (int32_t k = 0; k < TSI_ACTION_KINDS; k++)
        if (tsi_action_class_of(k) == TSI_CLASS_COMPUTE) out->cost.us[k] = each;
    return take_costs(given.collectives, out);
}

static bool computes(const tsi_action *a)
{
    return a->queue == 0 && tsi_action_class_of(a->kind) == TSI_CLASS_COMPUTE;
}

/* When the rank's last action ends, and how long its main queue computes. */
static void rank_times(const tsi_step *step, int64_t rank, const tsi_step_times *times, double *end,
                       double *compute)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    *end = *compute = 0;
    for (int32_t i = 0; i < list->action_count; i++) {
        int64_t n = times->first[rank] + i;
        if (times->end_us[n] > *end) *end = times->end_us[n];
        if (computes(&list->action[i])) *compute += times->end_us[n] - times->start_us[n];
    }
}

typedef struct computed { /* all of the main queue before an action */
    int32_t before;
    double us;
} computed;

/* How long the main queue computes until then, which is no earlier than `c` was asked before. */
static double computed_until(const tsi_step_list *list, const double *start, const double *end,
                             double until, computed *c)
{
    for (; c->before < list->action_count; c->before++) {
        int32_t i = c->before;
        if (!computes(&list->action[i])) continue;
        if (end[i] > until) return start[i] < until ? c->us + (until - start[i]) : c->us;
        c->us += end[i] - start[i];
    }
    return c->us;
}

/* Operations of the rank's other queues, each of which ends in order, while the main one computes.
 */
static double rank_hidden(const tsi_step *step, int64_t rank, const tsi_step_times *times)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    const double *start = times->start_us + times->first[rank];
    const double *end = times->end_us + times->first[rank];
    computed by[TSI_STEP_QUEUES] = { 0 };
    double sum = 0;
    for (int32_t i = 0; i < list->action_count; i++) {
        const tsi_action *a = &list->action[i];
        if (a->queue == 0 || tsi_action_class_of(a->kind) != TSI_CLASS_COLLECTIVE) continue;
        double before = computed_until(list, start, end, start[i], &by[a->queue]);
        sum += computed_until(list, start, end, end[i], &by[a->queue]) - before;
    }
    return sum;
}

void tsi_program_times_of(const tsi_step *step, const tsi_step_times *times, double moving,
                          ts_program_times *out)
{
    ts_program_times is = { .struct_size = out->struct_size,
                            .makespan_us = times->makespan_us,
                            .bubble = times->bubble };
    for (int64_t r = 0; r < step->rank_count; r++) {
        double end, compute;
        rank_times(step, r, times, &end, &compute);
        if (compute > is.compute_us) is.compute_us = compute;
        if (end - compute > is.exposed_us) is.exposed_us = end - compute;
        if (moving > 0) is.hidden_us = fmax(is.hidden_us, rank_hidden(step, r, times));
        if (times->peak[r].bytes <= is.peak_bytes) continue;
        is.peak_bytes = times->peak[r].bytes;
        is.peak_rank = tsi_step_shown(step, r);
    }
    is.makespan_us += moving * is.hidden_us;
    memcpy(out, &is, out->struct_size < sizeof is ? out->struct_size : sizeof is);
}

/* The program's own copy of a name of the step that was made of it: that one does not stay. */
static const char *own_name(const tsi_step *own, const char *text)
{
    const char *found = text ? tsi_step_find_name(own, text) : NULL;
    return found ? found : "";
}

static ts_program_bar bar_of(const tsi_step *own, const tsi_step *step, int64_t rank, int32_t index,
                             const tsi_step_times *times)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    const tsi_action *a = &list->action[index];
    int64_t n = times->first[rank] + index;
    tsi_action_class kind = tsi_action_class_of(a->kind);
    return (ts_program_bar){
        .rank = tsi_step_shown(step, rank),
        .alike = list->alike,
        .index = index,
        .kind = tsi_action_names[a->kind],
        .what = own_name(own, a->what),
        .queue = a->queue == 0 ? "main" : own_name(own, step->queue[a->queue]),
        .group = own_name(own, a->group >= 0 ? step->group[a->group].name : NULL),
        .communicates = kind == TSI_CLASS_COLLECTIVE || kind == TSI_CLASS_PAIR,
        .waits = a->kind == TSI_ACTION_WAIT,
        .begin_us = times->start_us[n],
        .end_us = times->end_us[n],
        .bytes = a->bytes,
        .along = own_name(own, a->group >= 0 ? step->group[a->group].along : NULL),
    };
}

static ts_status visit_rank(const tsi_step *own, const tsi_step *step, int64_t rank,
                            const tsi_step_times *times, const bool *critical,
                            ts_program_bar_fn visit, void *context)
{
    const tsi_step_list *list = tsi_step_list_of(step, rank);
    int64_t *line = tsi_alloc_array((size_t)list->action_count + 1, sizeof *line);
    tsi_step_peak peak;
    if (!line) return tsi_fail_memory("the memory of a step", (size_t)list->action_count * 8);
    tsi_step_memory_of(step, rank, &peak, line);
    for (int32_t i = 0; i < list->action_count; i++) {
        ts_program_bar bar = bar_of(own, step, rank, i, times);
        bar.memory_bytes = line[i];
        bar.critical = critical[times->first[rank] + i];
        visit(&bar, context);
    }
    tsi_free(line);
    return TS_OK;
}

static ts_status visit_all(const tsi_step *own, const tsi_step *step, const tsi_step_times *times,
                           ts_program_bar_fn visit, void *context)
{
    bool *critical = tsi_calloc((size_t)times->first[step->rank_count] + 1, sizeof *critical);
    ts_status status = critical ? TS_OK : tsi_fail_memory("the critical path", sizeof *critical);
    for (int64_t i = 0; critical && i < times->critical_count; i++)
        critical[times->critical[i]] = true;
    for (int64_t r = 0; status == TS_OK && r < step->rank_count; r++)
        status = visit_rank(own, step, r, times, critical, visit, context);
    tsi_free(critical);
    return status;
}

ts_status ts_program_simulate(const ts_program *program, const ts_program_costs *costs,
                              ts_program_times *out, ts_program_bar_fn visit, void *context)
{
    if (!program || !out) return TSI_FAIL(TS_ERR_NULL, "program: an argument is NULL");
    tsi_program_cost cost;
    tsi_step *narrow = NULL;
    tsi_step_times times = { 0 };
    TSI_TRY(tsi_program_cost_of(costs, program->step->rank_count, &cost));
    cost.cost.links = &cost.links;
    const tsi_step *step = program->step;
    if (step->wide) TSI_TRY(tsi_step_narrow(step, NULL, &narrow));
    if (narrow) step = narrow;
    ts_status status = tsi_step_simulate(step, &cost.cost, &times);
    if (status == TS_OK) tsi_program_times_of(step, &times, cost.moving, out);
    if (status == TS_OK && visit) status = visit_all(program->step, step, &times, visit, context);
    tsi_step_times_release(&times);
    tsi_step_destroy(narrow);
    return status;
}
