/* SPDX-License-Identifier: Apache-2.0 */
/* plan_check.c - a plan run on thread ranks with real numbers, compared with gathering and slicing.
 *
 * The value of every element, and every term of it, is a function of its index (plan_numbers.c),
 * and who holds what comes from the layouts' maps; so each rank knows what it must receive without
 * any communication. Checked are every element of every target block (bit by bit where nothing is
 * combined; of replicas of the first one), that replicas are equal bit by bit, and that the source
 * was left as it was. Blocks of partial targets are combined after the run. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { CHECK_RANKS_MAX = 1024, PROBLEM_MAX = 320 };
#define CHECK_BYTES_MAX (INT64_C(4) << 30)

typedef struct check {
    const plan_case *self;
    const plan_request *request;
    char *src_mesh, *dst_mesh, *src, *dst; /* texts */
    plan_terms src_terms, dst_terms, values;
    bool any_bits;                /* nothing is combined: any pattern must arrive as it is */
    unsigned char **block;        /* by rank: its target block, where the target is partial */
    uint64_t *hash;               /* by rank: of its target block */
    char (*problem)[PROBLEM_MAX]; /* by rank */
} check;

static void report(check *c, int64_t rank, const char *format, ...) TS_PRINTF(3, 4);
static void report(check *c, int64_t rank, const char *format, ...)
{
    va_list arguments;
    if (c->problem[rank][0] != '\0') return;
    va_start(arguments, format);
    (void)vsnprintf(c->problem[rank], PROBLEM_MAX, format, arguments);
    va_end(arguments);
}

static uint64_t hash_of(const unsigned char *data, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325), word = 0;
    for (size_t i = 0; i < bytes; i += sizeof word) {
        size_t left = bytes - i < sizeof word ? bytes - i : sizeof word;
        word = 0;
        memcpy(&word, data + i, left);
        hash = (hash ^ word) * UINT64_C(0x9ddfea08eb382d69);
        hash ^= hash >> 29;
    }
    return hash;
}

/* Row-major number of a coordinate along the partial axes. */
static int64_t term_of(const ts_mesh *mesh, const ts_layout *layout, const int64_t *coord)
{
    int64_t term = 0;
    for (int32_t k = 0; k < ts_mesh_ndim(mesh); k++) {
        int32_t kind = ts_sharding_placement(ts_layout_sharding(layout), k).kind;
        if (kind == TS_PLACE_PARTIAL || kind == TS_PLACE_NORM)
            term = term * ts_mesh_axis_size(mesh, k) + coord[k];
    }
    return term;
}

/* ---- source blocks --------------------------------------------------------------------------- */
static ts_array block_array(const check *c, ts_shape shape, void *data)
{
    ts_array array = { .struct_size = sizeof array, .data = data };
    array.meta.shape = shape;
    array.meta.dtype = (int32_t)c->self->dtype;
    return array;
}

/* This rank's source block, to be freed; a rank outside gets an empty one. */
static unsigned char *make_block(const check *c, int64_t rank, ts_shape *shape)
{
    const plan_case *p = c->self;
    int64_t coord[TS_NDIM_MAX], index, length;
    size_t item = ts_dtype_size(p->dtype);
    *shape = TS_SHAPE(0);
    if (!ts_mesh_coord_of(p->src_mesh, rank, coord)) return malloc(1);
    *shape = ts_layout_local(p->src, coord);
    unsigned char *data = malloc((size_t)ts_shape_count(shape) * item + 16), *at = data;
    int64_t term = term_of(p->src_mesh, p->src, coord);
    layout_walk walk;
    if (data == NULL || !layout_walk_open(&walk, p->src, coord)) {
        free(data);
        return NULL;
    }
    while (layout_walk_next(&walk, &index, &length)) {
        for (int64_t i = 0; i < length; i++, at += item)
            plan_value(&c->values, c->any_bits, index + i, term, at);
    }
    layout_walk_close(&walk);
    return data;
}

/* ---- target blocks --------------------------------------------------------------------------- */
/* A rank's block as a contiguous one of the host, to be freed. NULL: no memory, or the rank failed.
 */
static unsigned char *read_block(ts_tensor *t, const ts_meta *meta)
{
    size_t bytes = (size_t)ts_shape_count(&meta->shape) * ts_dtype_size((ts_dtype)meta->dtype);
    ts_array to = { .struct_size = sizeof to, .data = malloc(bytes + 16), .meta = *meta };
    if (to.data != NULL && ts_tensor_read(t, &to) == TS_OK) return to.data;
    free(to.data);
    return NULL;
}

/* What a value is once it has been made terms of: a norm has no sign, logic knows 0 and 1. */
static plan_number as_terms(const plan_terms *t, plan_number value)
{
    bool logical = t->reduce == TS_REDUCE_AND || t->reduce == TS_REDUCE_OR;
    if (t->kind == TS_PLACE_NORM) value.re = value.re < 0 ? -value.re : value.re;
    if (t->kind == TS_PLACE_PARTIAL && logical) value.whole = value.whole != 0;
    return value;
}

/* What the source's terms of an element combine to; *size is the sum of their magnitudes. */
static plan_number expected(const check *c, int64_t element, double *size)
{
    plan_number value = plan_combine_begin(&c->src_terms);
    unsigned char bytes[16];
    *size = 0;
    for (int64_t t = 0; t < c->src_terms.count; t++) {
        plan_value(&c->values, false, element, t, bytes);
        plan_combine(&c->src_terms, plan_read(c->self->dtype, bytes), &value, size);
    }
    plan_combine_end(&c->src_terms, &value);
    return c->dst_terms.count > 1 ? as_terms(&c->dst_terms, value) : value;
}

static void report_element(check *c, int64_t rank, int64_t element, const char *got,
                           const char *wanted)
{
    ts_shape shape = ts_layout_shape(c->self->dst);
    int64_t index[TS_NDIM_MAX];
    char text[128];
    for (int32_t d = shape.ndim - 1; d >= 0; d--) {
        index[d] = element % shape.extent[d];
        element /= shape.extent[d];
    }
    report(c, rank, "rank %lld, element %s: got %s, expected %s", (long long)rank,
           layout_list_text(index, shape.ndim, text, sizeof text), got, wanted);
}

static void number_text(const check *c, plan_number n, char *out, size_t size)
{
    ts_dtype dtype = c->self->dtype;
    if (dtype == TS_DTYPE_C64 || dtype == TS_DTYPE_C128)
        (void)snprintf(out, size, "%.9g%+.9gi", n.re, n.im);
    else if (n.whole != 0)
        (void)snprintf(out, size, "%lld", (long long)n.whole);
    else
        (void)snprintf(out, size, "%.9g", n.re);
}

static bool compare_value(check *c, int64_t rank, int64_t element, plan_number got)
{
    double size;
    char a[64], b[64];
    plan_number wanted = expected(c, element, &size);
    bool from_terms = c->src_terms.kind != TS_PLACE_REPLICATE;
    const plan_terms *terms = from_terms ? &c->src_terms : &c->dst_terms;
    if (plan_same(terms, wanted, got, size, c->dst_terms.divisor > 1)) return true;
    bool roots = from_terms && c->dst_terms.kind == TS_PLACE_NORM;
    if (roots && plan_same(&c->dst_terms, wanted, got, size, false)) return true;
    number_text(c, got, a, sizeof a);
    number_text(c, wanted, b, sizeof b);
    report_element(c, rank, element, a, b);
    return false;
}

static bool compare_bits(check *c, int64_t rank, int64_t element, const unsigned char *got)
{
    unsigned char wanted[16];
    char a[40] = "", b[40] = "";
    size_t item = c->values.item;
    plan_value(&c->values, c->any_bits, element, 0, wanted);
    if (memcmp(wanted, got, item) == 0) return true;
    for (size_t i = 0; i < item; i++) {
        (void)snprintf(a + 2 * i, 3, "%02x", got[item - 1 - i]);
        (void)snprintf(b + 2 * i, 3, "%02x", wanted[item - 1 - i]);
    }
    report_element(c, rank, element, a, b);
    return false;
}

/* A run of elements that are moved as they are. */
static bool compare_run(check *c, int64_t rank, int64_t element, int64_t length,
                        const unsigned char *got)
{
    enum { SOME = 256 };
    unsigned char wanted[SOME * 16];
    size_t item = c->values.item;
    for (int64_t done = 0; done < length; done += SOME, got += SOME * item) {
        int64_t count = length - done < SOME ? length - done : SOME;
        for (int64_t i = 0; i < count; i++)
            plan_value(&c->values, c->any_bits, element + done + i, 0, wanted + (size_t)i * item);
        if (memcmp(wanted, got, (size_t)count * item) == 0) continue;
        for (int64_t i = 0; i < count; i++)
            if (!compare_bits(c, rank, element + done + i, got + (size_t)i * item)) return false;
    }
    return true;
}

/* Every element of a rank's target block, where the target has no terms. */
static void compare_block(check *c, int64_t rank, const int64_t *coord, const unsigned char *data)
{
    layout_walk walk;
    int64_t index, length;
    size_t item = ts_dtype_size(c->self->dtype);
    bool moved = c->src_terms.count == 1, good = layout_walk_open(&walk, c->self->dst, coord);
    if (!good) report(c, rank, "rank %lld: no memory to compare", (long long)rank);
    while (good && layout_walk_next(&walk, &index, &length)) {
        if (moved) good = compare_run(c, rank, index, length, data);
        for (int64_t i = 0; !moved && i < length && good; i++)
            good = compare_value(c, rank, index + i,
                                 plan_read(c->self->dtype, data + (size_t)i * item));
        data += (size_t)length * item;
    }
    layout_walk_close(&walk);
}

static bool is_first_replica(const check *c, const int64_t *coord)
{
    const ts_sharding *sharding = ts_layout_sharding(c->self->dst);
    bool first = true;
    for (int32_t k = 0; k < ts_mesh_ndim(c->self->dst_mesh); k++)
        first &= coord[k] == 0 || ts_sharding_placement(sharding, k).kind != TS_PLACE_REPLICATE;
    return first;
}

static void examine(check *c, int64_t rank, ts_tensor *t, const ts_meta *meta)
{
    int64_t coord[TS_NDIM_MAX], count = ts_shape_count(&meta->shape);
    if (!ts_mesh_coord_of(c->self->dst_mesh, rank, coord)) {
        if (count != 0) report(c, rank, "rank %lld is outside and got a block", (long long)rank);
        return;
    }
    ts_shape want = ts_layout_local(c->self->dst, coord);
    if (ts_shape_count(&want) != count) {
        char a[128], b[128];
        report(c, rank, "rank %lld: the block is %s, expected %s", (long long)rank,
               layout_shape_text(&meta->shape, a, sizeof a), layout_shape_text(&want, b, sizeof b));
        return;
    }
    size_t item = ts_dtype_size(c->self->dtype);
    unsigned char *data = read_block(t, meta);
    if (data == NULL) {
        report(c, rank, "rank %lld: no memory to compare", (long long)rank);
        return;
    }
    c->hash[rank] = hash_of(data, (size_t)count * item);
    if (c->dst_terms.count > 1) {
        c->block[rank] = data;
        return;
    }
    if (is_first_replica(c, coord)) compare_block(c, rank, coord, data);
    free(data);
}

/* ---- the run --------------------------------------------------------------------------------- */
static ts_tensor *redistribute(check *c, ts_rank *me, const ts_array *block)
{
    ts_mesh *from = ts_mesh_create(me, c->src_mesh);
    ts_mesh *to = ts_mesh_create(me, c->dst_mesh);
    const ts_sharding *src = ts_sharding_get(from, c->src);
    const ts_sharding *dst = ts_sharding_get(to, c->dst);
    ts_tensor *x = ts_from_local(ts_from_memory(me, block), src, c->request->shape);
    ts_move_options options = { .struct_size = sizeof options,
                                .planner = c->request->planner,
                                .budget = c->request->budget };
    return ts_redistribute_with(x, dst, &options);
}

static ts_status work(ts_rank *me, void *arg)
{
    check *c = arg;
    int64_t rank = ts_rank_index(me);
    ts_shape shape;
    ts_status status = TS_OK;
    if (rank == 0 && c->self->has_topology)
        status = ts_topology_set(ts_rank_world(me), &c->self->topology);
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    unsigned char *data = status == TS_OK ? make_block(c, rank, &shape) : NULL;
    if (status == TS_OK && data == NULL)
        status = ts_rank_fail(me, TS_ERR_MEMORY, "no memory for the block of rank %lld",
                              (long long)rank);
    if (status != TS_OK) return status;
    size_t bytes = (size_t)ts_shape_count(&shape) * ts_dtype_size(c->self->dtype);
    uint64_t before = hash_of(data, bytes);
    ts_scope scope = ts_scope_open(me, "check");
    ts_array block = block_array(c, shape, data), out = { .struct_size = sizeof out };
    ts_tensor *y = redistribute(c, me, &block);
    if (y != NULL && ts_tensor_view(y, &out) == TS_OK) examine(c, rank, y, &out.meta);
    status = ts_rank_status(me);
    if (status == TS_OK) status = ts_rank_sync(me);
    if (status == TS_OK) status = ts_group_barrier(ts_group_world(me), NULL);
    if (status == TS_OK && hash_of(data, bytes) != before)
        report(c, rank, "rank %lld: the source was changed", (long long)rank);
    (void)ts_scope_close(scope);
    free(data);
    return status;
}

/* ---- after the run --------------------------------------------------------------------------- */
/* Replicas of a block must have the bits of the first. */
static void compare_replicas(check *c, const layout_picture *dst)
{
    int64_t count = ts_mesh_size(dst->mesh, NULL);
    for (int64_t i = 0; i < count; i++) {
        int64_t coord[TS_NDIM_MAX];
        layout_coord(dst->mesh, i, coord);
        int64_t rank = ts_mesh_rank_at(dst->mesh, coord);
        for (int32_t k = 0; k < ts_mesh_ndim(dst->mesh); k++)
            if (dst->replicated >> k & 1u) coord[k] = 0;
        int64_t first = ts_mesh_rank_at(dst->mesh, coord);
        if (c->hash[rank] != c->hash[first])
            report(c, rank, "ranks %lld and %lld hold replicas that differ", (long long)first,
                   (long long)rank);
    }
}

/* One block of a partial target: its terms are combined and compared. */
static void compare_terms(check *c, const layout_picture *dst, const int64_t *coord, int64_t first)
{
    layout_walk walk;
    int64_t index, length, at = 0;
    size_t item = ts_dtype_size(c->self->dtype);
    bool good = layout_walk_open(&walk, c->self->dst, coord);
    while (good && layout_walk_next(&walk, &index, &length)) {
        for (int64_t i = 0; i < length && good; i++, at++) {
            plan_number value = plan_combine_begin(&c->dst_terms);
            double size = 0;
            int64_t holders = layout_holders(dst);
            for (int64_t h = 0; h < holders; h++) {
                int64_t number = layout_holder(dst, first, h), place[TS_NDIM_MAX];
                layout_coord(dst->mesh, number, place);
                bool replica = false;
                for (int32_t k = 0; k < ts_mesh_ndim(dst->mesh); k++)
                    replica |= (dst->replicated >> k & 1u) && place[k] > 0;
                const unsigned char *block = c->block[ts_mesh_rank_at(dst->mesh, place)];
                if (replica || block == NULL) continue;
                plan_combine(&c->dst_terms, plan_read(c->self->dtype, block + (size_t)at * item),
                             &value, &size);
            }
            plan_combine_end(&c->dst_terms, &value);
            good = compare_value(c, ts_mesh_rank_at(dst->mesh, coord), index + i, value);
        }
    }
    layout_walk_close(&walk);
}

static void compare_after(check *c)
{
    layout_picture dst;
    if (!layout_picture_make(c->self->dst_mesh, c->self->dst, &dst)) {
        report(c, 0, "no memory to compare");
        return;
    }
    compare_replicas(c, &dst);
    int64_t count = c->dst_terms.count > 1 ? ts_mesh_size(dst.mesh, NULL) : 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t coord[TS_NDIM_MAX];
        bool first = true;
        layout_coord(dst.mesh, i, coord);
        for (int32_t k = 0; k < ts_mesh_ndim(dst.mesh); k++)
            first &= !((dst.replicated | dst.partial) >> k & 1u) || coord[k] == 0;
        if (first) compare_terms(c, &dst, coord, i);
    }
    layout_picture_release(&dst);
}

/* ---- the whole ------------------------------------------------------------------------------- */
/* Bytes of all blocks of a layout; -1: too many. */
static int64_t bytes_of(const ts_mesh *mesh, const ts_layout *layout, ts_dtype dtype)
{
    int64_t total = 0, count = ts_mesh_size(mesh, NULL);
    for (int64_t i = 0; i < count; i++) {
        int64_t coord[TS_NDIM_MAX];
        layout_coord(mesh, i, coord);
        ts_shape local = ts_layout_local(layout, coord);
        int64_t elements = ts_shape_count(&local);
        if (elements < 0 || elements > CHECK_BYTES_MAX) return -1;
        total += elements * (int64_t)ts_dtype_size(dtype);
        if (total > CHECK_BYTES_MAX) return -1;
    }
    return total;
}

static bool prepare(check *c, char *out, size_t size)
{
    const plan_case *p = c->self;
    if (p->ranks > CHECK_RANKS_MAX) {
        (void)snprintf(out, size, "not run: %lld ranks are needed, at most %d are started",
                       (long long)p->ranks, CHECK_RANKS_MAX);
        return false;
    }
    int64_t src = bytes_of(p->src_mesh, p->src, p->dtype);
    int64_t dst = bytes_of(p->dst_mesh, p->dst, p->dtype);
    if (src < 0 || dst < 0 || src + dst > CHECK_BYTES_MAX) {
        (void)snprintf(out, size, "not run: the blocks of all ranks take more than 4 GiB");
        return false;
    }
    plan_terms_of(p->src_mesh, p->src, p->dtype, &c->src_terms);
    plan_terms_of(p->dst_mesh, p->dst, p->dtype, &c->dst_terms);
    c->values = c->src_terms.kind != TS_PLACE_REPLICATE ? c->src_terms : c->dst_terms;
    c->values.count = c->src_terms.count;
    if (c->dst_terms.divisor > c->values.divisor) c->values.divisor = c->dst_terms.divisor;
    c->any_bits = c->values.kind == TS_PLACE_REPLICATE;
    c->src_mesh = layout_mesh_text(p->src_mesh);
    c->dst_mesh = layout_mesh_text(p->dst_mesh);
    c->src = layout_sharding_text(ts_layout_sharding(p->src));
    c->dst = layout_sharding_text(ts_layout_sharding(p->dst));
    c->block = calloc((size_t)p->ranks, sizeof *c->block);
    c->hash = calloc((size_t)p->ranks, sizeof *c->hash);
    c->problem = calloc((size_t)p->ranks, sizeof *c->problem);
    if (c->src_mesh && c->dst_mesh && c->src && c->dst && c->block && c->hash && c->problem)
        return true;
    (void)snprintf(out, size, "not run: out of memory");
    return false;
}

static void release(check *c)
{
    for (int64_t i = 0; c->block != NULL && i < c->self->ranks; i++)
        free(c->block[i]);
    free(c->block);
    free(c->hash);
    free(c->problem);
    free(c->src_mesh);
    free(c->dst_mesh);
    free(c->src);
    free(c->dst);
}

bool plan_check(const plan_case *self, const plan_request *request, char *out, size_t size)
{
    check c = { .self = self, .request = request };
    char error[LAYOUT_ERROR_MAX] = "";
    bool good = prepare(&c, out, size);
    if (good) {
        ts_world_options options = { .struct_size = sizeof options,
                                     .engine = "threads",
                                     .rank_count = self->ranks };
        (void)snprintf(out, size, "ok");
        if (ts_launch_with(&options, work, &c, error, sizeof error) != TS_OK) {
            (void)snprintf(out, size, "the run failed: %s", error);
            good = false;
        }
    }
    if (good) compare_after(&c);
    for (int64_t i = 0; good && i < self->ranks; i++) {
        if (c.problem[i][0] == '\0') continue;
        (void)snprintf(out, size, "%s", c.problem[i]);
        good = false;
    }
    release(&c);
    return good;
}
