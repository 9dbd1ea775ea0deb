/* SPDX-License-Identifier: Apache-2.0 */
/* plan_exchange.c - every rank's part of direct exchanges, run on paper.
 *
 * All ranks' parts are computed one by one, as ranks would; messages are matched, terms folded,
 * results compared with what the layouts say each rank must hold. So this shows that both ends
 * agree, that each needed element arrives exactly once, that the bytes equal the bound, and that
 * the bound is the one counted element by element. */
#include "base/alloc.h"
#include "base/rank.h"
#include "harness/test.h"
#include "plan/plan.h"
#include "plan_layouts.h"

enum { RANKS_MAX = 16, ELEMENTS_MAX = 1024, UNSET = -1 };

typedef struct stream { /* from one rank to another, within a round */
    int64_t value[4 * ELEMENTS_MAX];
    int64_t count, taken;
} stream;

typedef struct paper {
    test *t;
    const ts_plan *plan;
    const char *what;
    int64_t ranks, received;
    tsi_part part[RANKS_MAX];
    int64_t source[RANKS_MAX][ELEMENTS_MAX], target[RANKS_MAX][ELEMENTS_MAX];
    stream *wire; /* [from * RANKS_MAX + to] */
} paper;

/* The term of global element x at a coordinate of the source mesh. */
static int64_t term_of(const ts_layout *src, const int64_t *coord, int64_t x)
{
    int64_t value = x * 1000003 + 17;
    for (int32_t k = 0; k < src->sharding->ndim; k++) {
        if (tsi_placement_partial(&src->sharding->place[k])) value = value * 31 + coord[k] * 7 + 1;
    }
    return value & 0xffffff;
}

static int64_t linear(const ts_shape *shape, const int64_t *index)
{
    int64_t x = 0;
    for (int32_t d = 0; d < shape->ndim; d++)
        x = x * shape->extent[d] + index[d];
    return x;
}

/* Visits the local elements of a coordinate in their order: writes global numbers, returns how
 * many. */
static int64_t held(const ts_layout *layout, const int64_t *coord, int64_t *out)
{
    ts_shape local = ts_layout_local(layout, coord);
    int64_t count = ts_shape_count(&local), at[TS_NDIM_MAX] = { 0 }, global[TS_NDIM_MAX];
    for (int64_t i = 0; i < count; i++) {
        ts_layout_to_global(layout, coord, at, global);
        out[i] = linear(&layout->shape, global);
        for (int32_t d = local.ndim - 1; d >= 0 && ++at[d] == local.extent[d]; d--)
            at[d] = 0;
    }
    return count;
}

/* What rank r must end with for element x. */
static int64_t wanted_value(const paper *p, const int64_t *dst_coord, int64_t x)
{
    const tsi_pair *pair = &p->plan->pair;
    const tsi_mesh_desc *mesh = pair->src.mesh;
    int64_t sum = 0, coord[TS_NDIM_MAX] = { 0 };
    for (int32_t k = 0; k < pair->dst.mesh->ndim; k++) {
        if ((pair->dst.owner >> k & 1u) && dst_coord[k] != 0) return 0;
    }
    for (int32_t k = 0; k < mesh->ndim; k++) {
        if (pair->src.kept >> k & 1u) coord[k] = dst_coord[k];
    }
    for (int64_t term = 0; term < pair->src.terms; term++) {
        int64_t rest = term;
        for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
            if (!(pair->src.term >> k & 1u)) continue;
            coord[k] = rest % mesh->size[k];
            rest /= mesh->size[k];
        }
        sum += term_of(p->plan->src, coord, x);
    }
    return sum;
}

typedef void (*element_fn)(paper *p, int64_t *array, int64_t offset, void *context);

/* Visits the elements of a piece in row-major order. */
static void each_element(paper *p, int64_t *array, const tsi_piece *piece, element_fn visit,
                         void *context)
{
    int64_t at[TS_NDIM_MAX] = { 0 }, count = 1;
    for (int32_t d = 0; d < piece->ndim; d++)
        count *= piece->extent[d];
    for (int64_t i = 0; i < count; i++) {
        int64_t offset = piece->offset;
        for (int32_t d = 0; d < piece->ndim; d++)
            offset += at[d] * piece->stride[d];
        visit(p, array, offset, context);
        for (int32_t d = piece->ndim - 1; d >= 0 && ++at[d] == piece->extent[d]; d--)
            at[d] = 0;
    }
}

static void put(paper *p, int64_t *array, int64_t offset, void *context)
{
    stream *s = context;
    TEST_SAY(p->t, array[offset] != UNSET, "%s: an unset element is sent", p->what);
    s->value[s->count++] = array[offset];
}

typedef struct taking {
    stream *s;
    bool combine;
} taking;

static void take(paper *p, int64_t *array, int64_t offset, void *context)
{
    taking *x = context;
    if (x->s->taken == x->s->count) {
        test_fail(p->t, __FILE__, __LINE__, "%s: more is received than was sent", p->what);
        return;
    }
    int64_t value = x->s->value[x->s->taken++];
    TEST_SAY(p->t, x->combine == (array[offset] != UNSET),
             "%s: an element arrives twice, or a term comes first", p->what);
    array[offset] = x->combine ? array[offset] + value : value;
}

static void run_round(paper *p, int64_t number)
{
    for (int64_t r = 0; r < p->ranks; r++) {
        for (int64_t q = 0; q < p->ranks; q++) {
            p->wire[r * RANKS_MAX + q].count = p->wire[r * RANKS_MAX + q].taken = 0;
        }
        if (number >= p->part[r].round_count) continue;
        const tsi_round *round = &p->part[r].round[number];
        for (int64_t i = 0; i < round->send_count; i++) {
            const tsi_piece *piece = &round->send[i];
            int64_t *array = piece->array == TSI_PIECE_SOURCE ? p->source[r] : p->target[r];
            each_element(p, array, piece, put, &p->wire[r * RANKS_MAX + piece->peer]);
        }
    }
    for (int64_t r = 0; r < p->ranks; r++) {
        if (number >= p->part[r].round_count) continue;
        const tsi_round *round = &p->part[r].round[number];
        for (int64_t i = 0; i < round->recv_count; i++) {
            taking x = { &p->wire[round->recv[i].peer * RANKS_MAX + r], round->recv[i].combine };
            each_element(p, p->target[r], &round->recv[i], take, &x);
        }
        p->received += round->elements_received;
    }
    for (int64_t i = 0; i < p->ranks * RANKS_MAX; i++) {
        TEST_SAY(p->t, p->wire[i].taken == p->wire[i].count,
                 "%s: round %lld, %lld to %lld: %lld sent, %lld taken", p->what, (long long)number,
                 (long long)(i / RANKS_MAX), (long long)(i % RANKS_MAX),
                 (long long)p->wire[i].count, (long long)p->wire[i].taken);
    }
}

static void run_local(paper *p, int64_t r)
{
    for (int64_t i = 0; i < p->part[r].local_count; i++) {
        const tsi_box *box = &p->part[r].local[i];
        int64_t at[TS_NDIM_MAX] = { 0 }, count = 1;
        for (int32_t d = 0; d < box->ndim; d++)
            count *= box->extent[d];
        for (int64_t j = 0; j < count; j++) {
            int64_t a = box->offset_a, b = box->offset_b;
            for (int32_t d = 0; d < box->ndim; d++) {
                a += at[d] * box->stride_a[d];
                b += at[d] * box->stride_b[d];
            }
            TEST_SAY(p->t, p->target[r][b] == UNSET, "%s: a local copy of what arrived", p->what);
            p->target[r][b] = p->source[r][a];
            for (int32_t d = box->ndim - 1; d >= 0 && ++at[d] == box->extent[d]; d--)
                at[d] = 0;
        }
    }
}

static void fill_source(paper *p, int64_t r)
{
    int64_t coord[TS_NDIM_MAX], element[ELEMENTS_MAX];
    for (int64_t i = 0; i < ELEMENTS_MAX; i++)
        p->source[r][i] = p->target[r][i] = UNSET;
    if (!tsi_mesh_desc_coord(p->plan->pair.src.mesh, r, coord)) return;
    int64_t count = held(p->plan->src, coord, element);
    for (int64_t i = 0; i < count; i++)
        p->source[r][i] = term_of(p->plan->src, coord, element[i]);
}

static void check_target(paper *p, int64_t r)
{
    int64_t coord[TS_NDIM_MAX], element[ELEMENTS_MAX];
    if (!tsi_mesh_desc_coord(p->plan->pair.dst.mesh, r, coord)) return;
    int64_t count = held(p->plan->dst, coord, element);
    for (int64_t i = 0; i < count; i++) {
        int64_t got = p->part[r].fill ? 0 : p->target[r][i],
                want = wanted_value(p, coord, element[i]);
        if (got == want) continue;
        test_fail(p->t, __FILE__, __LINE__, "%s: rank %lld, element %lld is %lld, wanted %lld",
                  p->what, (long long)r, (long long)element[i], (long long)got, (long long)want);
        return;
    }
}

/* Does the rank hold (source) or need (target) element x? */
static bool has(const ts_layout *layout, const int64_t *coord, const int64_t *index)
{
    int64_t local[TS_NDIM_MAX];
    return ts_layout_to_local(layout, coord, index, local) != 0;
}

/* The bound, element by element, for one choice of the kept coordinates. */
static int64_t element_bound(const paper *p, const int64_t *index, const int64_t *kept)
{
    const tsi_pair *pair = &p->plan->pair;
    int64_t need = 0, lack = 0;
    bool meet = false;
    for (int64_t r = 0; r < p->ranks; r++) {
        int64_t s[TS_NDIM_MAX], d[TS_NDIM_MAX];
        bool in = tsi_mesh_desc_coord(pair->src.mesh, r, s) && has(p->plan->src, s, index);
        bool out = tsi_mesh_desc_coord(pair->dst.mesh, r, d) && has(p->plan->dst, d, index);
        for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
            if ((pair->src.kept >> k & 1u) && s[k] != kept[k]) in = out = false;
        }
        for (int32_t k = 0; k < pair->dst.mesh->ndim; k++) {
            if ((pair->dst.owner >> k & 1u) && out && d[k] != 0) out = false;
        }
        need += out;
        lack += out && !in;
        meet |= out && in;
    }
    if (pair->src.terms == 1) return lack;
    return pair->src.terms - 1 + need - 1 + !meet;
}

static int64_t brute_bound(const paper *p)
{
    const tsi_pair *pair = &p->plan->pair;
    const ts_shape *shape = &p->plan->src->shape;
    int64_t total = 0, kept_count = 1;
    for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
        if (pair->src.kept >> k & 1u) kept_count *= pair->src.mesh->size[k];
    }
    for (int64_t choice = 0; choice < kept_count; choice++) {
        int64_t kept[TS_NDIM_MAX] = { 0 }, rest = choice, index[TS_NDIM_MAX] = { 0 };
        for (int32_t k = 0; k < pair->src.mesh->ndim; k++) {
            if (!(pair->src.kept >> k & 1u)) continue;
            kept[k] = rest % pair->src.mesh->size[k];
            rest /= pair->src.mesh->size[k];
        }
        for (int64_t x = 0; x < pair->count; x++) {
            total += element_bound(p, index, kept);
            for (int32_t d = shape->ndim - 1; d >= 0 && ++index[d] == shape->extent[d]; d--)
                index[d] = 0;
        }
    }
    return total;
}

static void run_paper(paper *p)
{
    tsi_arena arena = { 0 };
    int64_t rounds = 0;
    p->received = 0;
    for (int64_t r = 0; r < p->ranks; r++) {
        fill_source(p, r);
        TEST_OK(p->t, tsi_plan_part(p->plan, r, &arena, &p->part[r]));
        if (p->part[r].round_count > rounds) rounds = p->part[r].round_count;
    }
    for (int64_t i = 0; i < rounds; i++)
        run_round(p, i);
    for (int64_t r = 0; r < p->ranks; r++) {
        run_local(p, r);
        check_target(p, r);
    }
    TEST_SAY(p->t, p->received * p->plan->pair.item == p->plan->bytes_bound,
             "%s: %lld elements received, bound %lld bytes", p->what, (long long)p->received,
             (long long)p->plan->bytes_bound);
    TEST_SAY(p->t, brute_bound(p) * p->plan->pair.item == p->plan->bytes_bound,
             "%s: bound is %lld, counted %lld", p->what, (long long)p->plan->bytes_bound,
             (long long)(brute_bound(p) * p->plan->pair.item));
    tsi_arena_release(&arena);
}

/* A machine of nodes of `node` ranks with a slow network, so that the hierarchical variant is
 * chosen. */
static ts_topology node_machine(test *t, int64_t node)
{
    ts_topology topology;
    TEST_OK(t, ts_topology_preset("8xh100", &topology));
    topology.level[0].ranks = node;
    topology.level[1].bandwidth_gib_s = 1e-6;
    return topology;
}

static int64_t check_pair(test *t, paper *p, const ts_layout *src, const ts_layout *dst,
                          const char *what, const ts_plan_options *options)
{
    ts_plan *plan = NULL;
    int64_t family = -1;
    ts_status status = ts_plan_create(src, dst, TS_DTYPE_I64, options, &plan);
    if (status == TS_ERR_SHAPE || status == TS_ERR_MEMORY)
        return -1; /* refused: no meaning, or no budget */
    TEST_SAY(t, status == TS_OK, "%s: %s", what, ts_last_error());
    if (!plan) return -1;
    p->t = t;
    p->plan = plan;
    p->what = what;
    run_paper(p);
    if (plan->budget_bytes > 0) {
        TEST_SAY(t, plan->peak_bytes <= plan->budget_bytes, "%s: %lld bytes staged", what,
                 (long long)plan->peak_bytes);
    }
    family = plan->family;
    ts_plan_release(plan);
    return family;
}

static paper *paper_make(int64_t ranks)
{
    paper *p = tsi_calloc(1, sizeof *p);
    p->wire = tsi_calloc(RANKS_MAX * RANKS_MAX, sizeof *p->wire);
    p->ranks = ranks;
    return p;
}

static void paper_free(paper *p)
{
    tsi_free(p->wire);
    tsi_free(p);
}

static ts_shape random_shape(test *t, int32_t ndim_max, int64_t extent_max)
{
    ts_shape shape = { .ndim = (int32_t)test_random_below(t, ndim_max + 1) };
    for (int32_t d = 0; d < shape.ndim; d++)
        shape.extent[d] = test_random_below(t, extent_max + 1);
    return shape;
}

static void random_pairs(test *t, const char *const *src_meshes, const char *const *dst_meshes,
                         int64_t count, layout_choice choice)
{
    ts_world *world = NULL;
    TEST_OK(t, tsi_world_make(RANKS_MAX, 1, 0, 64, &world));
    paper *p = paper_make(RANKS_MAX);
    int64_t families[8] = { 0 }, meshes = 0;
    while (src_meshes[meshes])
        meshes++;
    for (int64_t i = 0; i < count && !test_failed(t); i++) {
        int64_t which = test_random_below(t, meshes);
        ts_mesh *a = ts_mesh_describe(world, src_meshes[which]);
        ts_mesh *b = dst_meshes ? ts_mesh_describe(world, dst_meshes[which]) : ts_mesh_retain(a);
        ts_shape shape = random_shape(t, 3, 9);
        char from[512], to[512], what[1100];
        const ts_layout *src = random_layout(t, &choice, a, shape, from, sizeof from);
        const ts_layout *dst = random_layout(t, &choice, b, shape, to, sizeof to);
        ts_topology machine = node_machine(t, test_random_below(t, 2) ? 2 : 4);
        ts_plan_options options = TS_INIT(ts_plan_options);
        options.planner = "direct";
        options.topology = &machine;
        options.staged = (int32_t)test_random_below(t, 2);
        if (options.staged) options.budget_bytes = 1 + test_random_below(t, 4096);
        snprintf(what, sizeof what, "%s: %dd %lldx%lldx%lld (%s) -> (%s)", src_meshes[which],
                 shape.ndim, (long long)shape.extent[0], (long long)shape.extent[1],
                 (long long)shape.extent[2], from, to);
        if (src && dst) {
            int64_t family = check_pair(t, p, src, dst, what, &options);
            if (family >= 0) families[family]++;
        }
        ts_mesh_release(a);
        ts_mesh_release(b);
    }
    TEST_CHECK(t, families[TS_PLAN_DIRECT] > count / 20);
    if (!dst_meshes) TEST_CHECK(t, families[TS_PLAN_HIERARCHICAL] > 0);
    paper_free(p);
    tsi_world_unmake(world);
}

static const char *const one_mesh[] = { "4",       "2, 2", "2, 3",    "2, 2, 2",
                                        "3, 1, 2", "2, 4", "4, 2, 2", "x=3, y=2 : 5 1 3 0 2 4",
                                        NULL };

TS_TEST_LONG(plain_cuts, 120)
{
    random_pairs(t, one_mesh, NULL, 1500, (layout_choice){ .op = "sum" });
}

TS_TEST_LONG(unusual_cuts, 120)
{
    random_pairs(t, one_mesh, NULL, 1500,
                 (layout_choice){ .unusual = true, .spans = true, .op = "sum" });
}

TS_TEST_LONG(partial_sources, 120)
{
    random_pairs(t, one_mesh, NULL, 2000,
                 (layout_choice){ .partial = true, .unusual = true, .op = "sum" });
}

static const char *const from_meshes[] = {
    "4", "2, 2", "8", "2, 3", "2, 2, 2", "4 : 4-7", "x=2, y=2 : 3 1 2 0", "6 : 0-10/2", NULL
};
static const char *const to_meshes[] = { "3",    "2, 4", "4 : 8-11", "3, 2 : 2-7", "4 : 6 4 2 0",
                                         "2, 2", "8",    "2, 3",     NULL };

TS_TEST_LONG(cross_mesh, 120)
{
    random_pairs(t, from_meshes, to_meshes, 1500, (layout_choice){ .unusual = true, .op = "sum" });
}

TS_TEST_LONG(cross_mesh_partial, 120)
{
    random_pairs(t, from_meshes, to_meshes, 1500, (layout_choice){ .partial = true, .op = "sum" });
}
