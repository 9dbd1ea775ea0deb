/* SPDX-License-Identifier: Apache-2.0 */
/* redistribute_pairs.c - every pair of layouts: the result equals gather-then-slice, bit for bit.
 *
 * Layouts of a mesh and a number of dims: each axis is R, S(d), SS(d,2), SS(d,3) or partial, and
 * the axes that cut one dim do so in every order. Pairs without a meaning (a cut that should become
 * partial) are left out. Extents are 0 to 9. dtype, kind of partial and planner go round, so that
 * every combination meets every kind of pair.
 *
 *   default       pairs drawn at random from the run's seed (printed on failure), one shape each
 *   TEST_FULL=1   meshes (4), (2,2), (2,3): every pair, 1 and 2 dims with every shape, 3 dims with
 *                 6 shapes drawn; (2,2,2): every pair of 1 dim with every extent, every pair of 2
 *                 dims with one shape drawn, one pair in TEST_STRIDE (16) of 3 dims
 *
 * Each case is moved by one planner; in a full run the case number decides which, as by default. */
#include "bytes_util.h"
#include "redistribute_oracle.h"
#include "tessera/op.h"
#include "tessera/plan.h"

enum { LAYOUTS_MAX = 4096, EXTENT_MAX = 9 };

static const char *const planners[] = { "auto", "direct", "collectives", "greedy", "graph" };
enum { PLANNERS = 5 };

typedef struct list { /* all shardings of one mesh, number of dims and kind of partial */
    const ts_sharding *item[LAYOUTS_MAX];
    int64_t count;
} list;

typedef struct run {
    test *t;
    ts_mesh *mesh;
    const char *mesh_text;
    int32_t ndim;
    int64_t cases, skipped;
    bool counted;
    list all[ORACLE_KINDS];
} run;

/* ---- enumeration ----------------------------------------------------------------------------- */

/* Writes placement `code` of an axis: 0 R, 1 P, else cuts; returns its dim or -1. */
static int32_t placement_text(int32_t code, const char *op, char *out, size_t size)
{
    if (code == 0) snprintf(out, size, "R");
    if (code == 1) snprintf(out, size, "P(%s)", op);
    if (code < 2) return -1;
    int32_t dim = (code - 2) / 3, factor = (code - 2) % 3 + 1;
    if (factor == 1)
        snprintf(out, size, "S(%d)", dim);
    else
        snprintf(out, size, "SS(%d,%d)", dim, factor);
    return dim;
}

static void add(run *r, list *to, const int32_t *code, const int32_t *order, const char *op)
{
    char text[256] = "", one[64];
    size_t used = 0;
    for (int32_t k = 0; k < ts_mesh_ndim(r->mesh); k++) {
        (void)placement_text(code[k], op, one, sizeof one);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", k ? ", " : "", one);
        if (order[k] >= 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "[%d]", order[k]);
    }
    const ts_sharding *sharding = ts_sharding_get(r->mesh, text);
    TEST_SAY(r->t, sharding && to->count < LAYOUTS_MAX, "%s", text);
    if (sharding && to->count < LAYOUTS_MAX) to->item[to->count++] = ts_sharding_retain(sharding);
}

/* Gives the axes from k on every order among those that cut the same dim. */
static void orders(run *r, list *to, const int32_t *code, int32_t *order, int32_t k, const char *op)
{
    int32_t axes = ts_mesh_ndim(r->mesh), same = 0;
    if (k == axes) {
        add(r, to, code, order, op);
        return;
    }
    bool taken[TS_NDIM_MAX] = { false };
    for (int32_t j = 0; j < axes; j++) {
        if (code[k] < 2 || code[j] < 2 || (code[j] - 2) / 3 != (code[k] - 2) / 3) continue;
        same++;
        if (j < k) taken[order[j]] = true;
    }
    order[k] = -1;
    if (same < 2) {
        orders(r, to, code, order, k + 1, op);
        return;
    }
    for (int32_t i = 0; i < same; i++) {
        if (taken[i]) continue;
        order[k] = i;
        orders(r, to, code, order, k + 1, op);
    }
}

static void enumerate(run *r, list *to, const char *op)
{
    int32_t axes = ts_mesh_ndim(r->mesh), codes = 2 + 3 * r->ndim, total = 1;
    for (int32_t k = 0; k < axes; k++)
        total *= codes;
    for (int32_t i = 0; i < total; i++) {
        int32_t code[TS_NDIM_MAX], order[TS_NDIM_MAX], rest = i;
        for (int32_t k = 0; k < axes; k++) {
            code[k] = rest % codes;
            rest /= codes;
        }
        orders(r, to, code, order, 0, op);
    }
}

static run *run_open(test *t, const char *mesh, int32_t ndim)
{
    run *r = calloc(1, sizeof *r);
    if (!r) abort();
    r->t = t;
    r->mesh = ts_mesh_create(t->me, mesh);
    r->mesh_text = mesh;
    r->ndim = ndim;
    for (size_t k = 0; k < ORACLE_KINDS; k++)
        enumerate(r, &r->all[k], oracle_kinds[k].name);
    return r;
}

static void run_close(run *r)
{
    for (size_t k = 0; k < ORACLE_KINDS; k++)
        for (int64_t i = 0; i < r->all[k].count; i++)
            ts_sharding_release(r->all[k].item[i]);
    free(r);
}

/* ---- one case -------------------------------------------------------------------------------- */

typedef struct one_case {
    const ts_sharding *from, *to;
    ts_mesh *from_mesh, *to_mesh;
    const kind *k;
    ts_dtype dtype;
    ts_shape shape;
    const char *planner;
    int64_t budget;
    bool blocking, counted; /* counted: bytes are compared with the plan's */
} one_case;

static void describe(const one_case *c, char *out, size_t size)
{
    char a[256], b[256], mesh[128];
    ts_sharding_text(c->from, a, sizeof a);
    ts_sharding_text(c->to, b, sizeof b);
    ts_mesh_text(c->to_mesh, mesh, sizeof mesh);
    snprintf(out, size, "%s %dd %lldx%lldx%lld (%s) -> (%s) on %s, %s, planner %s",
             ts_dtype_name(c->dtype), c->shape.ndim, (long long)c->shape.extent[0],
             (long long)c->shape.extent[1], (long long)c->shape.extent[2], a, b, mesh, c->k->name,
             c->planner);
}

/* The greedy planner knows plain shards in left-to-right order only. */
static bool is_plain(const ts_sharding *sharding)
{
    int32_t before[TS_NDIM_MAX] = { 0 };
    for (int32_t k = 0; k < ts_sharding_ndim(sharding); k++) {
        ts_placement place = ts_sharding_placement(sharding, k);
        if (place.kind == TS_PLACE_SHARD && place.order == before[place.dim]++) continue;
        if (place.kind != TS_PLACE_REPLICATE && place.kind != TS_PLACE_PARTIAL &&
            place.kind != TS_PLACE_NORM)
            return false;
        if (place.kind == TS_PLACE_SHARD) return false;
    }
    return true;
}

/* The planner asked for, or one that knows the pair: the reference's own never make norms. */
static const char *planner_for(const one_case *c)
{
    bool spans = false, norms = false;
    for (int32_t k = 0; k < ts_sharding_ndim(c->from) && k < ts_sharding_ndim(c->to); k++) {
        ts_placement a = ts_sharding_placement(c->from, k), b = ts_sharding_placement(c->to, k);
        spans = spans || a.dim != a.dim_last || b.dim != b.dim_last;
        norms = norms || b.kind == TS_PLACE_NORM;
    }
    bool greedy = strcmp(c->planner, "greedy") == 0, graph = strcmp(c->planner, "graph") == 0;
    if (spans || ((greedy || graph) && norms)) return "auto";
    return greedy && !(is_plain(c->from) && is_plain(c->to)) ? "graph" : c->planner;
}

/* [coll] What all ranks received since then is what the plan states. */
static void check_bytes(test *t, const one_case *c, const ts_move_options *move, uint64_t since)
{
    int64_t all = received_by_all(ts_mesh_group(c->to_mesh, NULL), since);
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = move->planner;
    ts_plan *plan = NULL;
    const ts_layout *from = ts_layout_get(c->from, c->shape), *to = ts_layout_get(c->to, c->shape);
    TEST_EQ(t, ts_plan_cached(from, to, c->dtype, &options, &plan), TS_OK);
    if (!plan) return;
    ts_plan_summary stated = TS_INIT(ts_plan_summary);
    ts_plan_summarise(plan, &stated);
    char what[1024];
    describe(c, what, sizeof what);
    TEST_SAY(t, all == stated.bytes_received, "%s: %lld bytes, the plan states %lld", what,
             (long long)all, (long long)stated.bytes_received);
    ts_plan_release(plan);
}

/* False: the pair has no meaning. */
static bool check(test *t, const one_case *c)
{
    ts_scope scope = ts_scope_open(t->me, "case");
    char from_text[256], what[1024];
    ts_sharding_text(c->from, from_text, sizeof from_text);
    side from = side_of(c->from_mesh, ts_layout_get(c->from, c->shape));
    side to = side_of(c->to_mesh, ts_layout_get(c->to, c->shape));
    bool meaningful = oracle_meaningful(&from, &to);
    if (meaningful) {
        ts_tensor *x = ts_empty(c->from_mesh, c->dtype, c->shape, from_text);
        ts_move_options options = TS_INIT(ts_move_options);
        options.planner = planner_for(c);
        options.budget = c->budget;
        options.blocking = c->blocking;
        int64_t bad = -1, at = 0;
        if (x) (void)oracle_block_run(x, t->index, c->k, &from, NULL, true, &at);
        uint64_t since = ts_rank_event(t->me);
        ts_tensor *y = ts_redistribute_with(x, c->to, &options);
        if (y) bad = oracle_block_run(y, t->index, c->k, &from, &to, false, &at);
        if (y && c->counted) check_bytes(t, c, &options, since);
        if (bad != 0) {
            describe(c, what, sizeof what);
            test_fail(t, __FILE__, __LINE__, "%s: %lld elements are wrong, the first is %lld: %s",
                      what, (long long)bad, (long long)at,
                      ts_rank_error(t->me) ? ts_rank_error(t->me)->text : "");
        } else if (oracle_block_run(x, t->index, c->k, &from, NULL, false, &at) != 0) {
            describe(c, what, sizeof what);
            test_fail(t, __FILE__, __LINE__, "%s: the source was changed", what);
        }
    }
    ts_scope_close(scope);
    return meaningful;
}

/* ---- the product ----------------------------------------------------------------------------- */

/* What goes round with the case number: dtype, kind, planner, blocking or not. */
static one_case choose(run *r, int64_t number, int64_t *kind_index)
{
    one_case c = { .from_mesh = r->mesh, .to_mesh = r->mesh, .counted = r->counted };
    uint64_t h = oracle_mix((uint64_t)number, r->t->seed);
    c.dtype = oracle_dtypes[h % ORACLE_DTYPES];
    *kind_index = (int64_t)(h >> 8) % ORACLE_KINDS;
    while (!oracle_has(&oracle_kinds[*kind_index], c.dtype))
        *kind_index = (*kind_index + 1) % ORACLE_KINDS;
    c.k = &oracle_kinds[*kind_index];
    c.planner = planners[(h >> 40) % PLANNERS];
    c.blocking = h >> 50 & 1;
    c.shape.ndim = r->ndim;
    return c;
}

static void run_pair(run *r, int64_t from, int64_t to, int64_t shape)
{
    int64_t which = 0;
    one_case c = choose(r, r->cases++, &which);
    const list *all = &r->all[which];
    c.from = all->item[from % all->count];
    c.to = all->item[to % all->count];
    for (int32_t d = 0; d < r->ndim; d++) {
        c.shape.extent[d] = shape % (EXTENT_MAX + 1);
        shape /= EXTENT_MAX + 1;
    }
    if (!check(r->t, &c)) r->skipped++;
}

static int64_t shapes_of(const run *r)
{
    int64_t shapes = 1;
    for (int32_t d = 0; d < r->ndim; d++)
        shapes *= EXTENT_MAX + 1;
    return shapes;
}

static void run_random(run *r, int64_t count)
{
    int64_t n = r->all[0].count;
    for (int64_t i = 0; i < count && !test_failed(r->t); i++) {
        int64_t from = test_random_below(r->t, n), to = test_random_below(r->t, n);
        run_pair(r, from, to, test_random_below(r->t, shapes_of(r)));
    }
}

/* Every `stride`-th pair with `drawn` shapes at random, or with all if 0. */
static void run_product(run *r, int64_t stride, int64_t drawn)
{
    int64_t n = r->all[0].count, shapes = shapes_of(r);
    for (int64_t i = 0; i < n * n && !test_failed(r->t); i += stride) {
        for (int64_t s = 0; s < (drawn ? drawn : shapes); s++)
            run_pair(r, i / n, i % n, drawn ? test_random_below(r->t, shapes) : s);
    }
}

static void all_dims(test *t, const char *mesh, int64_t sample)
{
    const char *full = getenv("TEST_FULL"), *stride = getenv("TEST_STRIDE");
    if (strcmp(t->engine, "mpi") == 0) sample /= 4;
    for (int32_t ndim = 1; ndim <= 3 && !test_failed(t); ndim++) {
        run *r = run_open(t, mesh, ndim);
        bool large = ts_mesh_ndim(r->mesh) == 3;
        int64_t n = r->all[0].count;
        if (!full)
            run_random(r, sample);
        else if (!large || ndim < 3)
            run_product(r, 1, ndim == 3 ? 6 : large && ndim == 2 ? 1 : 0);
        else
            run_product(r, stride ? strtoll(stride, NULL, 10) : 16, 1);
        if (t->index == 0)
            printf("%s, %d dims: %lld layouts, %lld cases run, %lld without a meaning, seed %llu\n",
                   mesh, ndim, (long long)n, (long long)(r->cases - r->skipped),
                   (long long)r->skipped, (unsigned long long)t->seed);
        run_close(r);
    }
}

TS_TEST_RANKS(pairs_on_one_axis, 4)
{
    all_dims(t, "a=4", 3000);
}
TS_TEST_RANKS(pairs_on_two_axes, 4)
{
    all_dims(t, "a=2, b=2", 5000);
}
TS_TEST_RANKS(pairs_on_two_by_three, 6)
{
    all_dims(t, "a=2, b=3", 4000);
}
TS_TEST_RANKS(pairs_on_three_axes, 8)
{
    all_dims(t, "a=2, b=2, c=2", 4000);
}

TS_TEST_RANKS(moves_receive_what_plans_state, 6, 8)
{
    run *r = run_open(t, t->count == 6 ? "a=2, b=3" : "a=2, b=2, c=2", 2);
    r->counted = true;
    run_random(r, 400);
    run_close(r);
}

/* ---- unusual cuts and other meshes ----------------------------------------------------------- */

/* Sizes that sum to the extent. */
static void draw_sizes(test *t, int64_t extent, int64_t n, char *out, size_t size)
{
    size_t used = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t one = i == n - 1 ? extent : test_random_below(t, extent + 1);
        extent -= one;
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? "," : "", (long long)one);
    }
}

static void draw_placement(test *t, const ts_mesh *mesh, int32_t axis, const ts_shape *shape,
                           const kind *k, int32_t dim, bool alone, char *out, size_t size)
{
    char sizes[128];
    int64_t draw = test_random_below(t, 12);
    if (dim < 0) {
        snprintf(out, size, draw < 4 && k ? "P(%s)" : "R", k ? k->name : "");
    } else if (draw < 5) {
        snprintf(out, size, "S(%d)", dim);
    } else if (draw < 8) {
        snprintf(out, size, "SS(%d,%d)", dim, 2 + (int)test_random_below(t, 2));
    } else if (draw < 10 || !alone) {
        snprintf(out, size, "HT(%d)", dim);
    } else {
        draw_sizes(t, shape->extent[dim], ts_mesh_axis_size(mesh, axis), sizes, sizeof sizes);
        snprintf(out, size, "RS(%d:%s)", dim, sizes);
    }
}

/* Any cuts, ragged where one stands alone on its dim; k NULL: no partials. */
static const ts_sharding *draw_sharding(test *t, ts_mesh *mesh, const ts_shape *shape,
                                        const kind *k)
{
    int32_t axes = ts_mesh_ndim(mesh), dim[TS_NDIM_MAX];
    char text[512] = "", one[192];
    size_t used = 0;
    bool span = shape->ndim >= 2 && test_random_below(t, 6) == 0; /* dims 0 and 1 cut as one */
    for (int32_t a = 0; a < axes; a++)
        dim[a] = (int32_t)test_random_below(t, shape->ndim + 1) - 1;
    for (int32_t a = 0; a < axes; a++) {
        bool alone = true;
        for (int32_t b = 0; b < axes; b++)
            alone = alone && (a == b || dim[a] != dim[b]);
        draw_placement(t, mesh, a, shape, k, dim[a], alone, one, sizeof one);
        if (span && dim[a] >= 0 && dim[a] < 2) snprintf(one, sizeof one, "S(0-1)");
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", a ? ", " : "", one);
    }
    return ts_sharding_get(mesh, text);
}

static void draw_pairs(test *t, ts_mesh *const *from, ts_mesh *const *to, int64_t meshes,
                       int64_t count, bool target_partial)
{
    int64_t done = 0;
    for (int64_t i = 0; done < count && !test_failed(t); i++) {
        int64_t a = test_random_below(t, meshes), which = test_random_below(t, ORACLE_KINDS);
        one_case c = { .from_mesh = from[a],
                       .to_mesh = to ? to[test_random_below(t, meshes)] : from[a],
                       .k = &oracle_kinds[which],
                       .dtype = oracle_dtypes[test_random_below(t, ORACLE_DTYPES)],
                       .planner = planners[to ? test_random_below(t, 2) : i % PLANNERS],
                       .blocking = test_random_below(t, 2) };
        c.shape.ndim = 1 + (int32_t)test_random_below(t, 3);
        for (int32_t d = 0; d < c.shape.ndim; d++)
            c.shape.extent[d] = test_random_below(t, EXTENT_MAX + 1);
        if (!oracle_has(c.k, c.dtype)) continue;
        c.from = draw_sharding(t, c.from_mesh, &c.shape, c.k);
        c.to = draw_sharding(t, c.to_mesh, &c.shape, target_partial ? c.k : NULL);
        TEST_CHECK(t, c.from && c.to);
        if (c.from && c.to && check(t, &c)) done++;
    }
    if (t->index == 0)
        printf("%lld pairs, seed %llu\n", (long long)done, (unsigned long long)t->seed);
}

TS_TEST_RANKS(ragged_and_head_tail, 4, 6, 8)
{
    const char *text = t->count == 4 ? "a=2, b=2" : t->count == 6 ? "a=3, b=2" : "a=2, b=2, c=2";
    ts_mesh *mesh[] = { ts_mesh_create(t->me, text), ts_mesh_create(t->me, "x=*") };
    draw_pairs(t, mesh, NULL, 2, strcmp(t->engine, "mpi") == 0 ? 150 : 600, true);
}

/* Larger meshes, of ranks in no order, with axes of size 1. */
TS_TEST_RANKS(pairs_on_larger_meshes, 12, 16)
{
    const char *const twelve[] = { "a=3, b=2, c=2", "a=2, b=1, c=6",
                                   "a=12 : 5 1 3 0 2 4 11 7 9 6 8 10" };
    const char *const sixteen[] = { "a=2, b=2, c=2, d=2", "a=4, b=4", "a=2, b=8" };
    ts_mesh *mesh[3];
    for (int i = 0; i < 3; i++)
        mesh[i] = ts_mesh_create(t->me, t->count == 12 ? twelve[i] : sixteen[i]);
    draw_pairs(t, mesh, NULL, 3, 600, true);
}

/* A machine of nodes with a slow network between them: then elements enter a node once. */
TS_TEST_RANKS(hierarchical_pairs, 4, 8)
{
    ts_topology topology;
    TEST_OK(t, ts_topology_preset("8xh100", &topology));
    topology.level[0].ranks = t->count / 2;
    topology.level[1].bandwidth_gib_s = 1e-6;
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    TEST_OK(t, ts_topology_set(ts_rank_world(t->me), &topology));
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    ts_mesh *mesh[] = { ts_mesh_create(t->me, "a=2, b=*"), ts_mesh_create(t->me, "x=*") };
    draw_pairs(t, mesh, NULL, 2, 400, true);
    ts_plan *plan = NULL;
    ts_plan_options options = TS_INIT(ts_plan_options);
    options.planner = "direct"; /* as one case in five above */
    const ts_layout *from = ts_layout_get(ts_sharding_get(mesh[0], "S(0), R"), TS_SHAPE(64, 64));
    const ts_layout *to = ts_layout_get(ts_sharding_get(mesh[0], "R, R"), TS_SHAPE(64, 64));
    ts_plan_summary summary = { .struct_size = sizeof summary };
    TEST_OK(t, ts_plan_cached(from, to, TS_DTYPE_F32, &options, &plan));
    if (plan) ts_plan_summarise(plan, &summary);
    TEST_EQ(t, summary.family, TS_PLAN_HIERARCHICAL);
    ts_plan_release(plan);
}

/* Other sizes, overlapping, disjoint, permuted; also replicated over or partial on other axes. */
TS_TEST_RANKS(across_meshes, 8)
{
    const char *text[] = {
        "a=4",        "a=2, b=2",           "a=8 : 7 3 5 1 6 2 4 0", "a=2, b=3",    "a=2, b=2, c=2",
        "a=4 : 4-7",  "a=2, b=2 : 3 1 2 0", "a=3, b=2 : 2-7",        "a=3 : 1 4 7", "a=1 : 5",
        "a=4 : 0-6/2"
    };
    ts_mesh *mesh[16];
    int64_t count = (int64_t)(sizeof text / sizeof text[0]);
    for (int64_t i = 0; i < count; i++)
        mesh[i] = ts_mesh_create(t->me, text[i]);
    draw_pairs(t, mesh, mesh, count, 500, true);
}

/* ---- reductions: replicas agree bit by bit on numbers that round ----------------------------- */

static uint64_t hash_block(const ts_array *view)
{
    uint64_t h = 7;
    size_t bytes =
        (size_t)ts_shape_count(&view->meta.shape) * ts_dtype_size((ts_dtype)view->meta.dtype);
    for (size_t i = 0; i < bytes; i++)
        h = oracle_mix(h, ((const unsigned char *)view->data)[i]);
    return h;
}

/* All members of the group have the same number. */
static bool all_alike(ts_group *group, uint64_t number)
{
    int64_t low = (int64_t)(number >> 1), high = low;
    ts_array array = TS_INIT(ts_array);
    array.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    array.data = &low;
    if (ts_group_all_reduce(group, &array, &array, TS_REDUCE_MIN, NULL) != TS_OK) return false;
    array.data = &high;
    if (ts_group_all_reduce(group, &array, &array, TS_REDUCE_MAX, NULL) != TS_OK) return false;
    return low == high;
}

TS_TEST_RANKS(replicas_agree_bitwise, 4, 6, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count == 6 ? "a=2, b=3" : "a=2, b=*");
    const char *from[] = { "P(sum), P(sum)", "P(avg), P(sum)", "P(norm:2), P(norm:2)",
                           "P(sum), S(0)",   "R, P(avg)",      "P(prod), P(prod)" };
    const char *to[] = { "R, R", "R, S(0)", "S(1), R" };
    const char *replicated[] = { "a, b", "a", "b" };
    for (int64_t i = 0; i < 6 * 3 * PLANNERS * 2 && !test_failed(t); i++) {
        int64_t a = i % 6, b = i / 6 % 3, p = i / 18 % PLANNERS;
        ts_dtype dtype = i / 90 ? TS_DTYPE_BF16 : TS_DTYPE_F32;
        ts_scope scope = ts_scope_open(t->me, "case");
        ts_tensor *x = ts_empty(mesh, dtype, TS_SHAPE(13, 7), from[a]);
        ts_array view = TS_INIT(ts_array), result = TS_INIT(ts_array);
        TEST_OK(t, test_view(x, &view));
        for (int64_t e = 0; e < ts_shape_count(&view.meta.shape); e++) {
            uint64_t h =
                oracle_mix((uint64_t)e, (uint64_t)(a == 4 ? ts_mesh_coord(mesh, "b") : t->index));
            float value = (float)(h % 1000003) / 1000.0f + 0.001f;
            uint32_t bits;
            memcpy(&bits, &value, 4);
            uint16_t half = (uint16_t)(bits >> 16);
            if (dtype == TS_DTYPE_F32)
                memcpy((char *)view.data + 4 * e, &value, 4);
            else
                memcpy((char *)view.data + 2 * e, &half, 2);
        }
        TEST_OK(t, test_written(x, &view));
        ts_move_options move = TS_INIT(ts_move_options);
        move.planner = planners[p];
        ts_tensor *y = ts_redistribute_with(x, ts_sharding_get(mesh, to[b]), &move);
        TEST_OK(t, test_view(y, &result));
        TEST_SAY(t, y && all_alike(ts_mesh_group(mesh, replicated[b]), hash_block(&result)),
                 "(%s) -> (%s) by %s: replicas differ", from[a], to[b], planners[p]);
        ts_scope_close(scope);
    }
}

/* Averages among sums: the sum over both axes, divided by the size of the averaged one. */
TS_TEST_RANKS(sum_and_avg_mix, 4, 6)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=*");
    const char *to[] = { "R, R", "S(0), R", "R, S(0)", "S(0), S(0)" };
    for (int64_t i = 0; i < 4 * PLANNERS; i++) {
        ts_scope scope = ts_scope_open(t->me, "case");
        ts_tensor *x = ts_empty(mesh, TS_DTYPE_I64, TS_SHAPE(5), "P(sum), P(avg)");
        ts_array view = TS_INIT(ts_array);
        TEST_OK(t, test_view(x, &view));
        for (int64_t e = 0; e < 5; e++)
            ((int64_t *)view.data)[e] = t->count * (e + 1) * (t->index + 1);
        TEST_OK(t, test_written(x, &view));
        ts_move_options move = TS_INIT(ts_move_options);
        move.planner = planners[i / 4];
        ts_tensor *y =
            ts_tensor_full(ts_redistribute_with(x, ts_sharding_get(mesh, to[i % 4]), &move));
        TEST_OK(t, test_view(y, &view));
        int64_t all = t->count * t->count * (t->count + 1) / 2 / (t->count / 2);
        for (int64_t e = 0; view.data && e < 5; e++)
            TEST_EQ(t, ((const int64_t *)view.data)[e], all * (e + 1));
        ts_scope_close(scope);
    }
}

/* Averages of integers over two axes are divided once, whoever plans: 3, 0, 3, 2 average to 2, and
 * their averages by rows to 1. */
TS_TEST_RANKS(averages_of_integers_by_every_planner, 4)
{
    static const char *const planner[] = { "auto", "collectives", "direct", "greedy", "graph" };
    static const int64_t terms[] = { 3, 0, 3, 2 };
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=2");
    for (int p = 0; p < 5; p++) {
        ts_tensor *mine = ts_full((double)terms[ts_rank_index(t->me)], ts_mesh_self(t->me),
                                  TS_DTYPE_I8, TS_SHAPE(4), NULL);
        ts_tensor *x = ts_from_local(mine, ts_sharding_get(mesh, "P(avg), P(avg)"), TS_SHAPE(4));
        ts_tensor *y = ts_redistribute_with(x, ts_sharding_get(mesh, "R, S(0)"),
                                            TS_OPTIONS(ts_move_options, .planner = planner[p]));
        double sum = 0;
        TEST_OK(t, ts_tensor_item(ts_sum(y, NULL, 0, 0), &sum));
        TEST_SAY(t, sum == 8, "%s: %g is not 8", planner[p], sum);
    }
}
