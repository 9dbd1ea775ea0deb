/* SPDX-License-Identifier: Apache-2.0 */
/* muon.c - Muon: the direction of a matrix is made orthogonal by one rank that has it whole.
 *
 *   momentum, gradient --one pass--> d --one exchange--> whole on its owner --Newton-Schulz--> o
 *   o --one exchange--> as the parameter lies --the update of the optimiser--> parameter
 *
 * The ranks of a mesh, copies too, share the matrices: the most work first, each to who has least.
 * Who has which is a layout, ragged along dim 0, on the mesh as one axis; so any layout of a
 * parameter will do, and both ways are moves of a list.
 *
 * INV: what is added to a parameter has the bits of one rank on any mesh: all that depends on the
 * whole matrix is computed on a mesh of one rank. Until the ranks have agreed on a step neither
 * parameters nor momentum are written. */
#include <math.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "nn/optimizer.h"
#include "op/core/list.h"
#include "op/matrix/contract.h"
#include "tensor/scope.h"

#define EPSILON 1e-7 /* of the norm that a direction is divided by */

typedef struct home { /* the ranks of a mesh, as one axis */
    tsi_mesh_desc *of;
    ts_mesh *line; /* retained */
    double *load;  /* of each, while matrices are given out */
} home;

typedef struct tsi_muon {
    ts_mesh *self; /* this rank, retained */
    home *home;
    int64_t home_count, home_capacity;
    /* Of the step that runs; room for every slot. */
    tsi_trained **slot;
    ts_tensor **from, **to;
    const ts_sharding **where; /* borrowed */
    int64_t count;
    int32_t direction, momentum; /* indices of the control's copies */
    void *reserved_list;         /* of the momentum's update */
} tsi_muon;

/* ---- shapes ---------------------------------------------------------------------------------- */

typedef struct matrices { /* of a tensor: the last two dims, once for each index of the others */
    int64_t count, rows, columns;
} matrices;

static matrices matrices_of(const ts_shape *shape)
{
    matrices m = { 1, shape->extent[shape->ndim - 2], shape->extent[shape->ndim - 1] };
    for (int32_t d = 0; d + 2 < shape->ndim; d++)
        m.count *= shape->extent[d];
    return m;
}

double tsi_muon_adjust(const ts_optimizer *o, const ts_shape *shape)
{
    matrices is = matrices_of(shape);
    double m = fmax(1.0, (double)is.rows), n = fmax(1.0, (double)is.columns);
    if (o->adjust == TS_MUON_ADJUST_ORIGINAL) return sqrt(fmax(1.0, m / n));
    return 0.2 * sqrt(fmax(m, n));
}

/* Operations of a round of Newton-Schulz, but for a factor. */
static double cost_of(const ts_shape *shape)
{
    matrices is = matrices_of(shape);
    double m = (double)is.rows, n = (double)is.columns;
    return fmin(m, n) * fmin(m, n) * fmax(m, n);
}

static bool is_turned(const ts_optimizer *o, const tsi_trained *s)
{
    return o->group[s->group].rule == TSI_RULE_MUON;
}

/* ---- owners ---------------------------------------------------------------------------------- */

static home *home_of(tsi_muon *u, ts_mesh *mesh)
{
    for (int64_t i = 0; i < u->home_count; i++)
        if (u->home[i].of == mesh->desc) return &u->home[i];
    if (tsi_room(&u->home, u->home_count, &u->home_capacity, sizeof *u->home,
                 "the owners of matrices") != TS_OK)
        return NULL;
    home *h = &u->home[u->home_count];
    *h = (home){ .of = mesh->desc };
    h->line = mesh->desc->ndim == 1 ? ts_mesh_retain(mesh) : ts_mesh_flatten(mesh, "owner");
    if (!h->line) return NULL;
    u->home_count++;
    size_t ranks = (size_t)mesh->desc->count;
    h->load = tsi_calloc(ranks, sizeof *h->load);
    if (!h->load) (void)tsi_fail_memory("the owners of matrices", ranks * sizeof *h->load);
    return h->load ? h : NULL;
}

static int64_t least(const double *load, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (load[i] < load[best]) best = i;
    return best;
}

/* Indices of dim 0 go to ranks, all of a matrix and each of several; sizes[] are how many. */
static void give_out(const home *h, const ts_shape *shape, int64_t *sizes)
{
    int64_t all = shape->extent[0], ranks = h->of->count;
    bool one = shape->ndim == 2;
    double cost = cost_of(shape);
    for (int32_t d = 1; d + 2 < shape->ndim; d++)
        cost *= (double)shape->extent[d];
    for (int64_t r = 0; r < ranks; r++)
        sizes[r] = 0;
    for (int64_t i = 0; i < all; i += one ? all : 1) {
        int64_t rank = least(h->load, ranks);
        h->load[rank] += cost;
        sizes[rank] += one ? all : 1;
    }
}

static ts_status plan_slot(tsi_muon *u, tsi_trained *s)
{
    const ts_tensor *param = s->param;
    if (param->mesh->desc->count == 1) return TS_OK;
    const home *h = home_of(u, param->mesh);
    if (!h) return ts_rank_status(param->rank);
    int64_t ranks = h->of->count, *sizes = tsi_alloc_array((size_t)ranks, sizeof *sizes);
    if (!sizes) return tsi_fail_memory("the owners of matrices", (size_t)ranks * sizeof *sizes);
    give_out(h, &param->layout->shape, sizes);
    ts_placement place = { .kind = TS_PLACE_RAGGED, .factor = 1, .align = 1, .sizes = sizes };
    s->owner = tsi_sharding_intern(h->line->desc, &place);
    tsi_free(sizes);
    return s->owner ? TS_OK : ts_rank_status(param->rank);
}

/* The most work first; among equals the first. */
static int by_cost(const void *a, const void *b)
{
    const tsi_trained *x = *(tsi_trained *const *)a, *y = *(tsi_trained *const *)b;
    double cost[] = { cost_of(&x->param->layout->shape), cost_of(&y->param->layout->shape) };
    if (cost[0] != cost[1]) return cost[0] > cost[1] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static ts_status plan_all(ts_optimizer *o, tsi_muon *u)
{
    for (int64_t i = 0; i < o->count; i++)
        if (is_turned(o, &o->slot[i])) u->slot[u->count++] = &o->slot[i];
    qsort(u->slot, (size_t)u->count, sizeof(tsi_trained *), by_cost);
    for (int64_t i = 0; i < u->count; i++)
        TSI_TRY(plan_slot(u, u->slot[i]));
    for (int64_t i = 0; i < u->home_count; i++) {
        tsi_free(u->home[i].load);
        u->home[i].load = NULL;
    }
    return TS_OK;
}

ts_status tsi_muon_plan(ts_optimizer *o)
{
    size_t count = 0;
    for (int64_t i = 0; i < o->count; i++)
        count += is_turned(o, &o->slot[i]);
    if (count == 0) return TS_OK;
    tsi_muon *u = o->muon = tsi_calloc(1, sizeof *u);
    if (!u) return tsi_fail_memory("muon", sizeof *u);
    u->self = ts_mesh_self(o->rank);
    if (!u->self) return ts_rank_status(o->rank);
    u->slot = tsi_alloc_array(count, sizeof(tsi_trained *));
    u->from = tsi_alloc_array(count, sizeof(ts_tensor *));
    u->to = tsi_alloc_array(count, sizeof(ts_tensor *));
    u->where = tsi_alloc_array(count, sizeof(const ts_sharding *));
    if (!u->slot || !u->from || !u->to || !u->where)
        return tsi_fail_memory("muon", count * 4 * sizeof(void *));
    return plan_all(o, u);
}

void tsi_muon_release(ts_optimizer *o)
{
    tsi_muon *u = o->muon;
    if (!u) return;
    for (int64_t i = 0; i < u->home_count; i++) {
        ts_mesh_release(u->home[i].line);
        tsi_free(u->home[i].load);
    }
    ts_mesh_release(u->self);
    tsi_free(u->reserved_list);
    tsi_free(u->home);
    tsi_free(u->slot);
    tsi_free(u->from);
    tsi_free(u->to);
    tsi_free(u->where);
    tsi_free(u);
    o->muon = NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct need { /* of a rank, in elements */
    double whole;     /* matrices that it has whole */
    double turned;    /* what the one that needs most takes beside them while it is turned */
    bool shares;      /* it is of a mesh whose ranks share matrices */
} need;

/* A round has the matrix twice, before and after, and two of squares of its smaller side. */
static double turned_elements(const ts_shape *shape)
{
    matrices is = matrices_of(shape);
    double m = (double)is.rows, n = (double)is.columns;
    return 2 * m * n + 2 * fmin(m, n) * fmin(m, n);
}

static void add_slot(const tsi_trained *s, need *of)
{
    const tsi_mesh_desc *line = s->owner->mesh;
    const ts_shape *shape = &s->param->layout->shape;
    double each = 1, turned = turned_elements(shape);
    for (int32_t d = 1; d < shape->ndim; d++)
        each *= (double)shape->extent[d];
    for (int64_t i = 0; i < line->count; i++) {
        need *n = &of[tsi_mesh_desc_rank(line, &i)];
        int64_t rows = s->owner->place[0].sizes[i];
        n->shares = true;
        n->whole += (double)rows * each;
        if (rows > 0) n->turned = fmax(n->turned, turned);
    }
}

ts_status tsi_muon_range(const ts_optimizer *o, int64_t *most, int64_t *least)
{
    int64_t ranks = o->rank->world->rank_count, from = -1, to = -1;
    need *of = tsi_calloc((size_t)ranks, sizeof *of);
    *most = *least = -1;
    if (!of) return tsi_fail_memory("the owners of matrices", (size_t)ranks * sizeof *of);
    for (int64_t i = 0; i < o->count; i++)
        if (is_turned(o, &o->slot[i]) && o->slot[i].owner) add_slot(&o->slot[i], of);
    for (int64_t r = 0; r < ranks; r++) {
        double here = of[r].whole + of[r].turned;
        if (!of[r].shares) continue;
        if (to < 0 || here > of[to].whole + of[to].turned) to = r;
        if (from < 0 || here <= of[from].whole + of[from].turned) from = r;
    }
    if (to >= 0 && of[to].whole + of[to].turned > of[from].whole + of[from].turned) {
        *most = to;
        *least = from;
    }
    tsi_free(of);
    return TS_OK;
}

/* ---- directions ------------------------------------------------------------------------------ */

/* By the kernel of SGD: x -= rate (f g + decay x). With M the momentum before the step, mu M + f g
 * is the one after it, and f g + mu (mu M + f g) the direction, which is on all ranks alike and
 * needs no other memory than x. */
static tsi_sgd_step momentum_step(const ts_optimizer *o)
{
    return (tsi_sgd_step){ .lr = -1.0, .weight_decay = o->momentum - 1.0, .factor = 1.0 };
}

static tsi_sgd_step direction_step(const ts_optimizer *o)
{
    tsi_sgd_step step = momentum_step(o);
    step.lr = -(1.0 + o->momentum);
    return step;
}

ts_status tsi_muon_control(ts_optimizer *o)
{
    if (!o->muon) return TS_OK;
    const tsi_control_own direction = { .plus = direction_step(o).lr },
                          momentum = { .plus = momentum_step(o).lr };
    TSI_TRY(tsi_control_add(o->control, &direction, &o->muon->direction));
    return tsi_control_add(o->control, &momentum, &o->muon->momentum);
}

/* The step of each item x[i] by the gradient of its slot. */
static ts_status run_items(ts_optimizer *o, const tsi_sgd_step *step, tsi_list_part control,
                           void *reserved, tsi_array *(*x)(const tsi_muon *u, int64_t i))
{
    const tsi_muon *u = o->muon;
    for (int64_t i = 0; i < u->count; i++) {
        tsi_array *array = x(u, i);
        tsi_block block = tsi_array_block(array);
        tsi_array_wrote(array);
        o->item[i] = (tsi_list_item){
            .count = tsi_block_count(&block),
            .part = { [TSI_UPDATE_PARAM] = tsi_part_of(array),
                      [TSI_UPDATE_GRAD] = tsi_part_of(ts_tensor_grad(u->slot[i]->param)->array),
                      [TSI_UPDATE_CONTROL] = control },
        };
    }
    return tsi_list_run(&tsi_list_sgd, (tsi_list_io){ .attributes = step,
                                                      .item = o->item,
                                                      .count = u->count,
                                                      .rank = o->rank,
                                                      .reserved = reserved });
}

static tsi_array *direction_at(const tsi_muon *u, int64_t i)
{
    return u->from[i]->array;
}

static tsi_array *momentum_at(const tsi_muon *u, int64_t i)
{
    return u->slot[i]->first;
}

/* u->from: copies of momentum, or zeros where there is none. */
static ts_status begin_directions(ts_optimizer *o, tsi_muon *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        const tsi_trained *s = u->slot[i];
        ts_tensor *p = s->param;
        ts_dtype dtype = p->dtype == TS_DTYPE_F64 ? TS_DTYPE_F64 : TS_DTYPE_F32;
        tsi_array *block = tsi_tensor_block_tagged(p->mesh, p->layout, dtype, TSI_TAG_GRADIENT);
        u->from[i] = block ? tsi_tensor_make(p->mesh, p->layout, dtype, block, NULL) : NULL;
        u->to[i] = s->first ? tsi_trained_tensor(s, s->first) : u->from[i];
        if (!u->from[i] || !u->to[i]) return ts_rank_status(o->rank);
    }
    const ts_list to = { u->from, u->count }, from = { u->to, u->count };
    return o->momentum != 0.0 ? ts_foreach_copy(to, from) : ts_foreach_zero(to);
}

static void tell_directions(const ts_optimizer *o, const tsi_muon *u)
{
    for (int64_t i = 0; i < u->count; i++) {
        ts_tensor *grad = ts_tensor_grad(u->slot[i]->param);
        const ts_list lists[] = { { &u->from[i], 1 }, { &grad, 1 } };
        tsi_tell(o->rank, TSI_NEWS_LIST, &(tsi_listed){ "muon", NULL, lists, 2, 1, 0, 0 });
    }
}

static ts_status make_directions(ts_optimizer *o, tsi_muon *u, bool controlled)
{
    tsi_list_part control = { 0 };
    tsi_sgd_step step = direction_step(o);
    TSI_TRY(begin_directions(o, u));
    if (controlled) control = tsi_control_part_of(o->control, u->direction);
    TSI_TRY(run_items(o, &step, control, NULL, direction_at));
    tell_directions(o, u);
    for (int64_t i = 0; o->product == TS_DTYPE_BF16 && i < u->count; i++) {
        ts_tensor *wide = u->from[i];
        u->from[i] = (ts_cast)(wide, TS_DTYPE_BF16);
        if (!u->from[i]) return ts_rank_status(o->rank);
        ts_tensor_drop(wide);
    }
    return TS_OK;
}

/* ---- Newton and Schulz ----------------------------------------------------------------------- */

/* a x + (b x x^T + c (x x^T)^2) x of the quintic whose coefficients are Keller Jordan's: singular
 * values go to between 0.7 and 1.2 in five rounds. */
static ts_tensor *round_of(ts_tensor *x)
{
    const double a = 3.4445, b = -4.7750, c = 2.0315;
    ts_tensor *square = ts_linear(x, x, NULL);
    ts_tensor *sum = square ? tsi_addmm(square, square, square, c, b) : NULL;
    return sum ? tsi_addmm(x, sum, x, 1.0, a) : NULL;
}

/* The matrix [m, n] of this rank alone becomes orthogonal where it lies. */
static ts_status turn(ts_rank *rank, ts_tensor *d, int32_t rounds)
{
    const int64_t *extent = d->layout->shape.extent;
    bool tall = extent[0] > extent[1];
    ts_scope scope = ts_scope_open(rank, NULL);
    ts_tensor *x = tall ? ts_transpose(d, 0, 1) : d;
    x = ts_div(x, ts_clamp(ts_vector_norm(x, NULL), EPSILON, (double)NAN));
    for (int32_t i = 0; x && i < rounds; i++)
        x = ts_scope_turn(scope, round_of(x));
    if (x && tall) x = ts_transpose(x, 0, 1);
    ts_status status =
        x ? ts_foreach_copy((ts_list){ &d, 1 }, (ts_list){ &x, 1 }) : ts_rank_status(rank);
    ts_scope_close(scope);
    return status;
}

/* Matrix `index` of a block, as a tensor of this rank alone; NULL: recorded. */
static ts_tensor *matrix_at(const tsi_muon *u, const tsi_array *block, int64_t index)
{
    ts_shape all = tsi_array_shape(block);
    matrices is = matrices_of(&all);
    ts_shape shape = TS_SHAPE(is.rows, is.columns);
    const ts_layout *layout = tsi_tensor_layout_of(u->self, NULL, shape);
    if (!layout) return NULL;
    tsi_array *view = tsi_array_view((tsi_array *)(uintptr_t)block, (ts_dtype)block->dtype, &shape,
                                     NULL, block->offset + index * is.rows * is.columns);
    ts_tensor *t =
        view ? tsi_tensor_make(u->self, layout, (ts_dtype)block->dtype, view, NULL) : NULL;
    ts_layout_release(layout);
    return t;
}

/* All matrices that this rank has whole, one after the other. */
static ts_status turn_block(const ts_optimizer *o, const tsi_array *block)
{
    tsi_block is = tsi_array_block(block);
    if (tsi_block_count(&is) == 0) return TS_OK;
    ts_shape shape = tsi_array_shape(block);
    matrices all = matrices_of(&shape);
    for (int64_t i = 0; i < all.count; i++) {
        ts_scope scope = ts_scope_open(o->rank, NULL);
        ts_tensor *d = matrix_at(o->muon, block, i);
        ts_status status = d ? turn(o->rank, d, o->turns) : ts_rank_status(o->rank);
        ts_scope_close(scope);
        TSI_TRY(status);
    }
    return TS_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* u->from goes where u->where says, all in one exchange, and becomes what arrived. */
static ts_status move(tsi_muon *u, uint32_t tag)
{
    TSI_TRY(tsi_redistribute_tagged(u->from, u->where, (int32_t)u->count, tag, u->to));
    for (int64_t i = 0; i < u->count; i++)
        TSI_TRY(tsi_tensor_ready(u->to[i]));
    for (int64_t i = 0; i < u->count; i++) {
        ts_tensor_drop(u->from[i]);
        u->from[i] = u->to[i];
    }
    return TS_OK;
}

ts_status tsi_muon_turn(ts_optimizer *o, bool controlled)
{
    tsi_muon *u = o->muon;
    u->count = 0;
    for (int64_t i = 0; i < o->count; i++)
        if (is_turned(o, &o->slot[i]) && ts_tensor_grad(o->slot[i].param))
            u->slot[u->count++] = &o->slot[i];
    if (u->count == 0) return TS_OK;
    TSI_TRY(make_directions(o, u, controlled));
    for (int64_t i = 0; i < u->count; i++) {
        const tsi_trained *s = u->slot[i];
        u->where[i] = s->owner ? s->owner : s->param->layout->sharding;
    }
    TSI_TRY(move(u, TSI_TAG_GATHERED));
    for (int64_t i = 0; i < u->count; i++)
        TSI_TRY(turn_block(o, u->from[i]->array));
    for (int64_t i = 0; i < u->count; i++)
        u->where[i] = u->slot[i]->param->layout->sharding;
    TSI_TRY(move(u, TSI_TAG_GRADIENT));
    for (int64_t i = 0; i < u->count; i++)
        u->slot[i]->turned = u->from[i];
    return TS_OK;
}

ts_status tsi_muon_reserve(ts_optimizer *o)
{
    if (!o->muon) return TS_OK;
    tsi_free(o->muon->reserved_list); /* of a step that was not agreed on */
    o->muon->reserved_list = NULL;
    return tsi_list_reserve(&tsi_list_sgd, o->rank, o->item_capacity, &o->muon->reserved_list);
}

ts_status tsi_muon_momentum(ts_optimizer *o, bool controlled)
{
    tsi_muon *u = o->muon;
    tsi_list_part control = { 0 };
    if (!u || u->count == 0 || o->momentum == 0.0) return TS_OK;
    tsi_sgd_step step = momentum_step(o);
    if (controlled) control = tsi_control_part_of(o->control, u->momentum);
    void *reserved = u->reserved_list;
    u->reserved_list = NULL;
    return run_items(o, &step, control, reserved, momentum_at);
}
