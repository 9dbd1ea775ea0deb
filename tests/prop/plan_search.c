/* SPDX-License-Identifier: Apache-2.0 */
/* plan_search.c - the search for collectives against an exhaustive one.
 *
 * The oracle knows nothing of A*, heaps or limits: it keeps a table of all placement states, and
 * goes over all edges again and again until no cost falls (Bellman and Ford). Both must agree on
 * the least time and, by bytes first, on the fewest bytes. Also: merged groups never make a plan
 * slower, `auto` keeps its promise, equal questions get equal plans. */
#include <math.h>

#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "plan/plan.h"
#include "plan_layouts.h"

enum { STATES_MAX = 4096 };

typedef struct slow_state {
    int32_t place[TS_NDIM_MAX]; /* -1: R, -2: P, else the dim */
    int32_t order[TS_NDIM_MAX]; /* position in its dim */
    double time, bytes;
} slow_state;

typedef struct slow {
    const tsi_space *space;
    const tsi_links *links;
    bool bytes_first, changed;
    uint32_t kept;
    int32_t count;
    slow_state *state;
} slow;

static slow_state slow_of(const tsi_space *space, tsi_state state)
{
    slow_state out = { .time = HUGE_VAL, .bytes = HUGE_VAL };
    for (int32_t k = 0; k < space->axes; k++) {
        int32_t code = tsi_state_code(state, k);
        out.place[k] = code == TSI_CODE_R ? -1 : code >= TSI_CODE_P ? -2 : code - TSI_CODE_S;
        out.order[k] = tsi_code_cuts(code) ? tsi_state_position(state, k) : 0;
    }
    return out;
}

static bool slow_same(const tsi_space *space, const slow_state *a, const slow_state *b)
{
    for (int32_t k = 0; k < space->axes; k++) {
        if (a->place[k] != b->place[k] || a->order[k] != b->order[k]) return false;
    }
    return true;
}

static int32_t slow_depth(const tsi_space *space, const slow_state *s, int32_t dim)
{
    int32_t depth = 0;
    for (int32_t k = 0; k < space->axes; k++)
        depth += s->place[k] == dim;
    return depth;
}

/* Bytes of the largest block, and how many copies of the tensor there are. */
static double slow_local(const tsi_space *space, const slow_state *s, double *copies,
                         double *lengths)
{
    double local = (double)space->item;
    *copies = 1;
    for (int32_t k = 0; k < space->axes; k++) {
        if (s->place[k] < 0) *copies *= (double)space->size[k];
    }
    for (int32_t d = 0; d < space->dims; d++) {
        int64_t length = space->extent[d];
        for (int32_t position = 0; position < space->axes; position++) {
            for (int32_t k = 0; k < space->axes; k++) {
                if (s->place[k] == d && s->order[k] == position) {
                    length = (length + space->size[k] - 1) / space->size[k];
                }
            }
        }
        local *= (double)length;
        lengths[d] = (double)length;
    }
    return local;
}

/* Every run costs: those of the innermost dim that changes, of the bytes that are moved. */
static double slow_runs(const slow *x, const double *a, const double *b, double bytes)
{
    double run = (double)x->space->item;
    int32_t d = x->space->dims - 1;
    for (; d >= 0 && a[d] == b[d]; d--)
        run *= a[d];
    run *= d >= 0 ? fmin(a[d], b[d]) : 1;
    return d >= 0 && bytes > run ? bytes / run * x->links->run : 0;
}

static void slow_reach(slow *x, slow_state to, double time, double bytes)
{
    int32_t i = 0;
    while (i < x->count && !slow_same(x->space, &x->state[i], &to))
        i++;
    if (i == x->count) {
        to.time = to.bytes = HUGE_VAL;
        x->state[x->count++] = to;
    }
    slow_state *at = &x->state[i];
    double old0 = x->bytes_first ? at->bytes : at->time, new0 = x->bytes_first ? bytes : time;
    double old1 = x->bytes_first ? at->time : at->bytes, new1 = x->bytes_first ? time : bytes;
    if (new0 > old0 || (new0 == old0 && new1 >= old1)) return;
    at->time = time;
    at->bytes = bytes;
    x->changed = true;
}

/* All edges of one axis. */
static void slow_axis(slow *x, slow_state from, int32_t k)
{
    const tsi_space *space = x->space;
    double copies, more, a[TS_NDIM_MAX], b[TS_NDIM_MAX];
    double in = slow_local(space, &from, &copies, a);
    double unit = (double)space->count * (double)space->item;
    double n = (double)space->size[k];
    tsi_links_group g = tsi_links_of(x->links, 1u << k);
    if (n == 1 || (x->kept >> k & 1u)) return;
    if (from.place[k] >= 0 && from.order[k] != slow_depth(space, &from, from.place[k]) - 1) return;
    for (int32_t to = -1; to < space->dims; to++) {
        if (to == from.place[k]) continue;
        slow_state next = from;
        next.place[k] = to;
        next.order[k] = to >= 0 ? slow_depth(space, &from, to) : 0;
        double out = slow_local(space, &next, &more, b), time = 0, bytes = 0;
        if (from.place[k] == -1) {
            time = x->links->local + out * x->links->copy + slow_runs(x, a, b, out);
        } else if (from.place[k] >= 0 && to == -1) {
            time = tsi_time_all_gather(x->links, &g, out, false) + slow_runs(x, a, b, out);
            bytes = (more - copies) * unit;
        } else if (from.place[k] >= 0) {
            time = tsi_time_all_to_all(x->links, &g, in) + slow_runs(x, a, b, in);
            bytes = copies * unit * (n - 1) / n;
        } else if (to == -1) {
            time = tsi_time_all_reduce(x->links, &g, in);
            bytes = 2 * copies * unit * (n - 1) / n;
        } else {
            time = tsi_time_reduce_scatter(x->links, &g, in, false) + slow_runs(x, a, b, in);
            bytes = copies * unit * (n - 1) / n;
        }
        slow_reach(x, next, from.time + tsi_grid_us(time), from.bytes + tsi_grid_bytes(bytes));
    }
}

static slow_state slow_run(const tsi_space *space, const tsi_links *links, bool bytes_first)
{
    slow x = { .space = space, .links = links, .bytes_first = bytes_first };
    slow_state goal = slow_of(space, space->dst);
    x.state = tsi_calloc(STATES_MAX, sizeof *x.state);
    for (int32_t k = 0; k < space->axes; k++) {
        if (tsi_code_partial(tsi_state_code(space->dst, k))) x.kept |= 1u << k;
    }
    x.state[x.count++] = slow_of(space, space->src);
    x.state[0].time = x.state[0].bytes = 0;
    do {
        x.changed = false;
        for (int32_t i = 0; i < x.count; i++) {
            for (int32_t k = 0; k < space->axes; k++)
                slow_axis(&x, x.state[i], k);
        }
    } while (x.changed);
    for (int32_t i = 0; i < x.count; i++) {
        if (slow_same(space, &x.state[i], &goal)) goal = x.state[i];
    }
    tsi_free(x.state);
    return goal;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-7 * fmax(1, fmax(fabs(a), fabs(b)));
}

static void check_search(test *t, const tsi_space *space, const tsi_links *links, const char *what)
{
    for (int bytes_first = 0; bytes_first < 2; bytes_first++) {
        tsi_search search = { .space = space,
                              .links = links,
                              .limit_us = HUGE_VAL,
                              .limit_bytes = HUGE_VAL,
                              .state_limit = INT64_MAX,
                              .bytes_first = bytes_first };
        tsi_path path, merged;
        TEST_OK(t, tsi_search_run(&search, &path));
        slow_state want = slow_run(space, links, bytes_first);
        TEST_SAY(t, path.found && near(path.time_us, want.time) && near(path.bytes, want.bytes),
                 "%s: %.9g us %.9g bytes, exhaustive %.9g us %.9g bytes", what, path.time_us,
                 path.bytes, want.time, want.bytes);
        search.merged = true;
        TEST_OK(t, tsi_search_run(&search, &merged));
        double with = bytes_first ? merged.bytes : merged.time_us,
               without = bytes_first ? path.bytes : path.time_us;
        TEST_SAY(t, merged.found && with <= without * (1 + 1e-12), "%s: merging made it worse",
                 what);
        search.merged = false;
        search.limit_us = want.time * 0.999 - 1e-9;
        TEST_OK(t, tsi_search_run(&search, &path));
        if (!bytes_first && want.time > 0)
            TEST_SAY(t, !path.found && path.time_us <= want.time, "%s: below the least time", what);
    }
}

static void check_auto(test *t, const ts_layout *src, const ts_layout *dst,
                       const ts_topology *topology, const char *what)
{
    ts_plan *plan[3] = { NULL };
    static const char *const planners[] = { "auto", "collectives", "auto" };
    for (int i = 0; i < 3; i++) {
        ts_plan_options options = TS_INIT(ts_plan_options);
        options.planner = planners[i];
        options.topology = topology;
        TEST_OK(t, ts_plan_create(src, dst, TS_DTYPE_F32, &options, &plan[i]));
        if (!plan[i]) return;
    }
    TEST_SAY(t, plan[0]->bytes_received <= plan[1]->bytes_received, "%s: auto receives more", what);
    TEST_SAY(t, plan[0]->bytes_received >= plan[0]->bytes_bound, "%s: below the bound", what);
    char a[8192], b[8192];
    ts_plan_json(plan[0], a, sizeof a);
    ts_plan_json(plan[2], b, sizeof b);
    TEST_TEXT(t, a, b);
    for (int i = 0; i < 3; i++)
        ts_plan_release(plan[i]);
}

/* Partials of the target must be partials of the source: the rest is local and not searched for. */
static bool searchable(const ts_layout *src, const ts_layout *dst)
{
    for (int32_t k = 0; k < src->sharding->ndim; k++) {
        if (tsi_placement_partial(&dst->sharding->place[k]) &&
            !tsi_placement_partial(&src->sharding->place[k])) {
            return false;
        }
    }
    return true;
}

TS_TEST_LONG(least_time_and_bytes, 240)
{
    static const char *const meshes[] = { "4", "2, 2", "2, 3", "2, 4", "2, 2, 2", "4, 2, 3" };
    static const char *const presets[] = { "reference-cpu", "8xh100", "threads", "ethernet",
                                           "torus" };
    layout_choice choice = { .partial = true, .op = "sum" };
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(1, 1, 0, 64, &world));
    for (int i = 0; i < 1000 && !test_failed(t); i++) {
        const char *text = meshes[test_random_below(t, 6)];
        ts_mesh *mesh = ts_mesh_describe(world, text);
        ts_shape shape = { .ndim = 1 + (int32_t)test_random_below(t, 3) };
        for (int32_t d = 0; d < shape.ndim; d++) {
            int64_t kind = test_random_below(t, 5);
            shape.extent[d] = kind == 0  ? test_random_below(t, 6)
                              : kind < 3 ? 1 + test_random_below(t, 300)
                                         : 48 << test_random_below(t, 4);
        }
        char from[256], to[256], what[700];
        const ts_layout *src = random_layout(t, &choice, mesh, shape, from, sizeof from);
        const ts_layout *dst = random_layout(t, &choice, mesh, shape, to, sizeof to);
        ts_topology topology;
        TEST_OK(t, ts_topology_preset(presets[test_random_below(t, 5)], &topology));
        topology.level[0].ranks = topology.level_count > 1 ? 4 : 0;
        if (test_random_below(t, 3) == 0) topology.local_us = (double)test_random_below(t, 8);
        if (test_random_below(t, 2)) topology.run_us = (double)test_random_below(t, 64) / 256;
        snprintf(what, sizeof what, "%s on %s, %d dims, %lld %lld %lld: (%s) -> (%s)", text,
                 topology.name, shape.ndim, (long long)shape.extent[0], (long long)shape.extent[1],
                 (long long)shape.extent[2], from, to);
        if (src && dst && tsi_plan_check(src, dst, TS_DTYPE_F32) == TS_OK && searchable(src, dst)) {
            tsi_space space;
            tsi_links links;
            TEST_OK(t, tsi_space_make(src, dst, TS_DTYPE_F32, &space));
            tsi_links_make(&topology, src->sharding->mesh, space.ranks, &links);
            check_search(t, &space, &links, what);
            check_auto(t, src, dst, &topology, what);
        }
        ts_mesh_release(mesh);
    }
    tsi_world_unmake(world);
}
