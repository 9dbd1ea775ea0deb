/* SPDX-License-Identifier: Apache-2.0 */
/* layout_exhaustive.c - all small layouts against an oracle that literally cuts arrays of indices.
 *
 * The whole space is every shape up to 7 x 7 x 3, every mesh of up to 8 ranks and 3 axes, every
 * placement with factors 1 to 4 on each axis, and every order. It is factored, because what a
 * coordinate holds is a product of one list per dim, and a dim's list depends only on that dim's
 * extent and on the cuts of that dim:
 *
 *   one dim     every extent 0..7, every mesh, on each axis nothing, SS(0,1..4) or HT(0), every
 *               order: each list equals the array, is in its one spelling, maps invert, owners
 *               agree; and where all cuts are plain, conversion to strided shards is accepted
 *               exactly when the arrays agree.
 *   products    every shape 0..7 x 0..7 x 0..3, every mesh, each axis R or S of any dim, every
 *               order; and for three shapes every placement P, R, SS(0..2, 1..4) on each axis: the
 *               region equals the product of the arrays of its dims, runs come in row-major order,
 *               each element is held replicas times terms times.
 *   ragged      every way to write an extent up to 6 as sizes on an axis of up to 4, before and
 *               after a plain or strided cut.
 *   spans       dims cut as one, with alignments 1..3, against the array of the joined dim. */
#include "base/alloc.h"
#include "base/error.h"
#include "base/rank.h"
#include "harness/test.h"
#include "layout/layout.h"

enum { N_MAX = 64 };

typedef struct array { /* the oracle: indices, literally */
    int32_t count, index[N_MAX];
} array;

static array iota(int64_t extent)
{
    array a = { .count = (int32_t)extent };
    for (int32_t i = 0; i < a.count; i++)
        a.index[i] = i;
    return a;
}

static void append(array *out, const array *in, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end && i < in->count; i++)
        out->index[out->count++] = in->index[i];
}

/* Chunk r of the positions [begin, end) over n. */
static void append_chunk(array *out, const array *in, int64_t begin, int64_t end, int64_t n,
                         int64_t r, int64_t align)
{
    int64_t c = (end - begin + n - 1) / n;
    c = (c + align - 1) / align * align;
    int64_t from = begin + r * c, to = from + c;
    append(out, in, from < end ? from : end, to < end ? to : end);
}

static array cut_array(const array *in, const ts_placement *place, int64_t n, int64_t r)
{
    array out = { 0 };
    int64_t from = 0, piece;
    switch ((ts_placement_kind)place->kind) {
    case TS_PLACE_SHARD:
    case TS_PLACE_STRIDED:
        piece = (in->count + place->factor - 1) / place->factor;
        for (int64_t j = 0; j < place->factor; j++) {
            int64_t begin = j * piece < in->count ? j * piece : in->count;
            int64_t end = begin + piece < in->count ? begin + piece : in->count;
            append_chunk(&out, in, begin, end, n, r, place->align);
        }
        break;
    case TS_PLACE_HEAD_TAIL:
        append_chunk(&out, in, 0, in->count, 2 * n, r, place->align);
        append_chunk(&out, in, 0, in->count, 2 * n, 2 * n - 1 - r, place->align);
        break;
    case TS_PLACE_RAGGED:
        for (int64_t i = 0; i < n * place->factor; from += place->sizes[i++])
            if (i % n == r) append(&out, in, from, from + place->sizes[i]);
        break;
    case TS_PLACE_REPLICATE:
    case TS_PLACE_PARTIAL:
    case TS_PLACE_NORM:
        out = *in;
        break;
    }
    return out;
}

/* What a coordinate holds of dim d (cut as `extent` indices): axes apply in the order of their
 * positions. */
static array held_array(const ts_sharding *s, int32_t d, int64_t extent, const int64_t *coord)
{
    array a = iota(extent);
    for (int32_t position = 0; position < s->ndim; position++)
        for (int32_t k = 0; k < s->ndim; k++) {
            const ts_placement *place = &s->place[k];
            if (!tsi_placement_cuts(place) || place->dim != d || place->order != position) continue;
            a = cut_array(&a, place, s->mesh->size[k], coord[k]);
        }
    return a;
}

/* ---- meshes --------------------------------------------------------------------------------- */

typedef struct meshes {
    ts_world *world;
    tsi_mesh_desc *desc[80];
    int count;
} meshes;

static void add_mesh(test *t, meshes *all, int a, int b, int c)
{
    char text[32];
    int used = snprintf(text, sizeof text, "%d", a);
    if (b) used += snprintf(text + used, sizeof text - (size_t)used, ", %d", b);
    if (c) snprintf(text + used, sizeof text - (size_t)used, ", %d", c);
    TEST_OK(t, tsi_mesh_desc_parse(all->world, text, -1, &all->desc[all->count++]));
}

static meshes make_meshes(test *t)
{
    meshes all = { 0 };
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &all.world));
    for (int a = 1; a <= 8; a++) {
        add_mesh(t, &all, a, 0, 0);
        for (int b = 1; a * b <= 8; b++) {
            add_mesh(t, &all, a, b, 0);
            for (int c = 1; a * b * c <= 8; c++)
                add_mesh(t, &all, a, b, c);
        }
    }
    return all;
}

static void free_meshes(meshes *all)
{
    for (int i = 0; i < all->count; i++)
        tsi_mesh_desc_release(all->desc[i]);
    tsi_world_unmake(all->world);
}

static bool next_coord(const tsi_mesh_desc *mesh, int64_t *coord)
{
    for (int32_t k = mesh->ndim - 1; k >= 0; k--) {
        if (++coord[k] < mesh->size[k]) return true;
        coord[k] = 0;
    }
    return false;
}

static const int permutations[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                        { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };

/* ---- one dim -------------------------------------------------------------------------------- */

static void fail_at(test *t, const ts_layout *layout, const int64_t *coord, const char *what)
{
    char mesh[64];
    (void)tsi_mesh_desc_text(layout->sharding->mesh, mesh, sizeof mesh);
    test_fail(t, __FILE__, __LINE__, "mesh %s, %s at (%d, %d, %d): %s", mesh, layout->text,
              (int)coord[0], (int)coord[1], (int)coord[2], what);
}

/* The list against the array: every index, every position, and its spelling. */
static bool check_list(const tsi_span_list *list, const array *want, int64_t extent,
                       tsi_arena *arena)
{
    tsi_span_list spelled = { 0 };
    if (list->total != want->count) return false;
    for (int32_t i = 0; i < want->count; i++) {
        if (tsi_span_list_at(list, i) != want->index[i]) return false;
        if (!tsi_span_list_append(&spelled, (tsi_span){ want->index[i], 1, 1, 1 }, arena))
            return false;
    }
    int32_t at = 0;
    for (int64_t x = 0; x < extent; x++) {
        bool held = at < want->count && want->index[at] == x;
        if (tsi_span_list_find(list, x) != (held ? at : -1)) return false;
        at += held;
    }
    return tsi_span_list_equal(list, &spelled);
}

static void check_maps(test *t, const ts_layout *layout, const int64_t *coord, const array *want)
{
    int64_t offset, owner[3], back;
    ts_shape local = ts_layout_local(layout, coord);
    if (local.extent[0] != want->count) fail_at(t, layout, coord, "local shape");
    TEST_OK(t, ts_layout_offset(layout, coord, &offset));
    if (offset != (want->count ? want->index[0] : layout->shape.extent[0]))
        fail_at(t, layout, coord, "offset");
    for (int64_t x = 0, at = 0; x < layout->shape.extent[0]; x++) {
        bool held = at < want->count && want->index[at] == x;
        if (ts_layout_to_local(layout, coord, &x, &back) != (int)held || (held && back != at))
            fail_at(t, layout, coord, "to_local");
        if (!held) continue;
        int64_t global;
        ts_layout_to_global(layout, coord, &at, &global);
        if (global != x) fail_at(t, layout, coord, "to_global");
        TEST_OK(t, ts_layout_owner(layout, &x, owner));
        for (int32_t k = 0; k < layout->sharding->ndim; k++)
            if (owner[k] != (layout->axes_cut >> k & 1 ? coord[k] : 0))
                fail_at(t, layout, coord, "owner");
        at++;
    }
}

static void check_line(test *t, const ts_layout *layout, tsi_arena *arena, uint8_t *held)
{
    int64_t coord[3] = { 0 }, extent = layout->view.extent[0],
            copies = layout->replicas * layout->terms;
    memset(held, 0, N_MAX);
    do {
        tsi_arena_reset(arena);
        tsi_span_list list;
        array want = held_array(layout->sharding, 0, extent, coord);
        TEST_CHECK(t, tsi_layout_region_dim(layout, coord, 0, arena, &list));
        if (!check_list(&list, &want, extent, arena)) fail_at(t, layout, coord, "list");
        if (layout->shape.ndim == 1) check_maps(t, layout, coord, &want);
        for (int32_t i = 0; i < want.count; i++)
            held[want.index[i]]++;
    } while (!test_failed(t) && next_coord(layout->sharding->mesh, coord));
    for (int64_t x = 0; x < extent && !test_failed(t); x++)
        if (held[x] != copies) fail_at(t, layout, coord, "not a partition");
}

/* Placement number p of an axis: nothing, SS(0,1..4), HT(0). */
static ts_placement numbered(int p, int order)
{
    ts_placement place = { .factor = 1, .align = 1, .order = order };
    if (p == 0) return place;
    place.kind = p == 5 ? TS_PLACE_HEAD_TAIL : TS_PLACE_STRIDED;
    place.factor = p == 5 ? 1 : p;
    return place;
}

static bool same_arrays(const ts_sharding *a, const ts_sharding *b, int64_t extent)
{
    int64_t coord[3] = { 0 };
    do {
        array x = held_array(a, 0, extent, coord), y = held_array(b, 0, extent, coord);
        if (x.count != y.count ||
            memcmp(x.index, y.index, (size_t)x.count * sizeof x.index[0]) != 0)
            return false;
    } while (next_coord(a->mesh, coord));
    return true;
}

/* Conversion without a shape gives the candidate; with one it is given exactly if the arrays agree.
 */
static int check_conversion(test *t, const ts_sharding *s)
{
    int refused = 0;
    ts_mesh handle = { .desc = s->mesh, .world = s->mesh->world };
    const ts_sharding *strided = ts_sharding_retain(ts_sharding_to_strided(&handle, s, NULL));
    TEST_SAY(t, strided, "%s", ts_last_error());
    for (int64_t extent = 0; extent <= 7 && strided; extent++) {
        ts_shape shape = TS_SHAPE(extent);
        bool same = same_arrays(s, strided, extent);
        const ts_sharding *got = ts_sharding_to_strided(&handle, s, &shape);
        TEST_CHECK(t, got == (same ? strided : NULL));
        if (same) TEST_CHECK(t, ts_sharding_to_order(&handle, strided, &shape) != NULL);
        refused += !same;
    }
    ts_sharding_release(strided);
    return refused;
}

static int check_mesh_line(test *t, tsi_mesh_desc *mesh, tsi_arena *arena, int *refused)
{
    int layouts = 0;
    uint8_t held[N_MAX];
    int choices = mesh->ndim == 1 ? 6 : mesh->ndim == 2 ? 36 : 216;
    int orders = mesh->ndim == 1   ? 1
                 : mesh->ndim == 2 ? 3
                                   : 6; /* of 3 axes; 2 of them matter for two */
    for (int choice = 0; choice < choices; choice++) {
        for (int o = 0; o < orders; o++) {
            ts_placement place[3];
            bool plain = true;
            for (int32_t k = 0, rest = choice; k < mesh->ndim; k++, rest /= 6) {
                place[k] = numbered(rest % 6, permutations[o][k]);
                plain = plain && rest % 6 <= 1;
            }
            const ts_sharding *s = tsi_sharding_intern(mesh, place);
            for (int64_t extent = 0; extent <= 7 && s; extent++, layouts++) {
                const ts_layout *layout = tsi_layout_intern(s, &TS_SHAPE(extent));
                TEST_SAY(t, layout, "%s", ts_last_error());
                if (layout) check_line(t, layout, arena, held);
                ts_layout_release(layout);
            }
            if (plain) *refused += check_conversion(t, s);
            ts_sharding_release(s);
            if (test_failed(t)) return layouts;
        }
    }
    return layouts;
}

TS_TEST_LONG(layout_one_dim, 60)
{
    meshes all = make_meshes(t);
    tsi_arena arena = { 0 };
    int layouts = 0, refused = 0;
    for (int i = 0; i < all.count && !test_failed(t); i++)
        layouts += check_mesh_line(t, all.desc[i], &arena, &refused);
    TEST_CHECK(t, layouts > 300000 / 8);
    TEST_CHECK(t, refused > 0);
    tsi_arena_release(&arena);
    free_meshes(&all);
}

/* ---- products ------------------------------------------------------------------------------- */

/* Walks over the region and compares with the product of the arrays of its dims. */
static bool check_product(const ts_layout *layout, const int64_t *coord, tsi_arena *arena,
                          uint8_t *held)
{
    tsi_region region;
    tsi_region_iterator it;
    array want[3];
    const int64_t *extent = layout->shape.extent;
    int64_t local = 0;
    for (int32_t d = 0; d < 3; d++)
        want[d] = held_array(layout->sharding, d, extent[d], coord);
    tsi_arena_reset(arena);
    if (!tsi_layout_region(layout, coord, arena, &region)) return false;
    tsi_region_iterate(&it, &region, &layout->view);
    bool more = tsi_region_next(&it);
    for (int32_t i = 0; i < want[0].count; i++)
        for (int32_t j = 0; j < want[1].count; j++)
            for (int32_t k = 0; k < want[2].count; k++, local++) {
                int64_t g = (want[0].index[i] * extent[1] + want[1].index[j]) * extent[2] +
                            want[2].index[k];
                if (more && local == it.local + it.length) more = tsi_region_next(&it);
                if (!more || it.global + (local - it.local) != g) return false;
                held[g]++;
            }
    return !more || (local == it.local + it.length && !tsi_region_next(&it));
}

static void check_block(test *t, const ts_layout *layout, tsi_arena *arena)
{
    uint8_t held[7 * 7 * 3] = { 0 };
    int64_t coord[3] = { 0 };
    do {
        if (!check_product(layout, coord, arena, held)) fail_at(t, layout, coord, "region");
    } while (!test_failed(t) && next_coord(layout->sharding->mesh, coord));
    for (int64_t x = 0; x < layout->count && !test_failed(t); x++)
        if (held[x] != layout->replicas * layout->terms)
            fail_at(t, layout, coord, "not a partition");
}

/* Placement number p of an axis: R, then S or SS of dims 0..2 with factors 1 .. factors, then P. */
static ts_placement of_block(int p, int factors, int order)
{
    ts_placement place = { .factor = 1, .align = 1, .order = order };
    if (p == 0) return place;
    if (p > 3 * factors) {
        place.kind = TS_PLACE_PARTIAL;
        place.reduce = TS_REDUCE_SUM;
        return place;
    }
    place.kind = TS_PLACE_STRIDED;
    place.dim = place.dim_last = (p - 1) / factors;
    place.factor = (p - 1) % factors + 1;
    return place;
}

/* All placements of one mesh: calls visit with each distinct sharding. An order is tried where it
 * differs from the orders tried before, which the interned pointers tell. */
static int64_t each_sharding(test *t, tsi_mesh_desc *mesh, int factors, bool partial,
                             void (*visit)(test *t, const ts_sharding *s, void *context),
                             void *context)
{
    int kinds = 1 + 3 * factors + partial, choices = 1;
    int64_t count = 0;
    for (int32_t k = 0; k < mesh->ndim; k++)
        choices *= kinds;
    for (int choice = 0; choice < choices && !test_failed(t); choice++) {
        const ts_sharding *seen[6];
        for (int o = 0; o < 6; o++) {
            ts_placement place[3];
            for (int32_t k = 0, rest = choice; k < mesh->ndim; k++, rest /= kinds)
                place[k] = of_block(rest % kinds, factors, permutations[o][k]);
            seen[o] = tsi_sharding_intern(mesh, place);
            bool again = false;
            for (int i = 0; i < o; i++)
                again = again || seen[i] == seen[o];
            if (!again) visit(t, seen[o], context);
            count += !again;
        }
        for (int o = 0; o < 6; o++)
            ts_sharding_release(seen[o]);
    }
    return count;
}

typedef struct block_run {
    const ts_shape *shape;
    int shape_count;
    int64_t layouts;
    tsi_arena arena;
} block_run;

static void visit_shapes(test *t, const ts_sharding *s, void *context)
{
    block_run *run = context;
    for (int i = 0; i < run->shape_count && !test_failed(t); i++) {
        const ts_layout *layout = tsi_layout_intern(s, &run->shape[i]);
        TEST_SAY(t, layout, "%s", ts_last_error());
        if (layout) check_block(t, layout, &run->arena);
        ts_layout_release(layout);
        run->layouts++;
    }
}

TS_TEST_LONG(layout_products_of_all_shapes, 60)
{
    meshes all = make_meshes(t);
    ts_shape shape[8 * 8 * 4];
    block_run run = { .shape = shape };
    for (int a = 0; a <= 7; a++)
        for (int b = 0; b <= 7; b++)
            for (int c = 0; c <= 3; c++)
                shape[run.shape_count++] = TS_SHAPE(a, b, c);
    for (int i = 0; i < all.count && !test_failed(t); i++)
        (void)each_sharding(t, all.desc[i], 1, false, visit_shapes, &run);
    TEST_CHECK(t, run.layouts > 500000);
    tsi_arena_release(&run.arena);
    free_meshes(&all);
}

TS_TEST_LONG(layout_products_of_all_placements, 60)
{
    meshes all = make_meshes(t);
    const ts_shape shape[] = { TS_SHAPE(7, 7, 3), TS_SHAPE(6, 4, 2), TS_SHAPE(5, 3, 1) };
    block_run run = { .shape = shape, .shape_count = 3 };
    for (int i = 0; i < all.count && !test_failed(t); i++)
        (void)each_sharding(t, all.desc[i], 4, true, visit_shapes, &run);
    TEST_CHECK(t, run.layouts > 300000);
    tsi_arena_release(&run.arena);
    free_meshes(&all);
}

/* ---- ragged cuts and spans ------------------------------------------------------------------- */

static void check_ragged(test *t, tsi_mesh_desc *mesh, const int64_t *sizes, int64_t rounds,
                         tsi_arena *arena)
{
    uint8_t held[N_MAX];
    int64_t extent = 0;
    for (int64_t i = 0; i < mesh->size[1] * rounds; i++)
        extent += sizes[i];
    ts_placement ragged = { .kind = TS_PLACE_RAGGED, .sizes = sizes, .factor = rounds };
    ts_placement other = { .kind = TS_PLACE_STRIDED, .factor = 1 };
    for (int64_t factor = 1; factor <= 3; factor++) {
        for (int first = 0; first < 2; first++) {
            other.factor = factor;
            other.order = first ? 0 : 1;
            ragged.order = first ? 1 : 0;
            const ts_sharding *s = tsi_sharding_intern(mesh, (ts_placement[]){ other, ragged });
            /* Behind a cut, the sizes are those of what that cut leaves, so its parts must be
             * equal. */
            int64_t whole = first ? extent * mesh->size[0] : extent;
            const ts_layout *layout = s ? tsi_layout_intern(s, &TS_SHAPE(whole)) : NULL;
            bool even = !first || mesh->size[0] == 1 || extent % factor == 0;
            if (layout) check_line(t, layout, arena, held);
            TEST_SAY(t, layout || (first && !even), "%s", ts_last_error());
            ts_layout_release(layout);
            ts_sharding_release(s);
        }
    }
}

TS_TEST(layout_ragged)
{
    ts_world *world;
    tsi_arena arena = { 0 };
    TEST_OK(t, tsi_world_make(1, 1, 0, 0, &world));
    for (int64_t n = 1; n <= 4; n++) {
        for (int64_t other = 1; other <= 3; other++) {
            char text[32];
            tsi_mesh_desc *mesh;
            (void)snprintf(text, sizeof text, "%d, %d", (int)other, (int)n);
            TEST_OK(t, tsi_mesh_desc_parse(world, text, -1, &mesh));
            for (int code = 0; code < 7 * 7 * 7 * 7; code++) {
                int64_t sizes[4] = { code % 7, code / 7 % 7, code / 49 % 7, code / 343 },
                        extent = 0;
                for (int64_t i = 0; i < 4; i++)
                    extent += sizes[i];
                bool extra = false;
                for (int64_t i = n; i < 4; i++)
                    extra = extra || sizes[i];
                if (extent > 6) continue;
                if (!extra) check_ragged(t, mesh, sizes, 1, &arena);
                if (n < 3) check_ragged(t, mesh, sizes, 4 / n, &arena);
            }
            tsi_mesh_desc_release(mesh);
        }
    }
    tsi_arena_release(&arena);
    tsi_world_unmake(world);
}

TS_TEST(layout_spans_and_alignment)
{
    meshes all = make_meshes(t);
    tsi_arena arena = { 0 };
    uint8_t held[N_MAX];
    for (int i = 0; i < all.count && !test_failed(t); i++)
        for (int code = 0; code < 4 * 3 * 3 * 3 && !test_failed(t); code++) {
            ts_placement place[3];
            int64_t align = code % 3 + 1;
            for (int32_t k = 0; k < all.desc[i]->ndim; k++) {
                place[k] = numbered((code / 3 + k) % 6, (code + k) % 3);
                place[k].dim_last = tsi_placement_cuts(&place[k]) ? 1 : 0;
                place[k].align = tsi_placement_cuts(&place[k]) ? align : 1;
            }
            const ts_sharding *s = tsi_sharding_intern(all.desc[i], place);
            TEST_SAY(t, s, "%s", ts_last_error());
            for (int64_t rows = 0; rows <= 5 && s; rows++) {
                ts_shape shape = TS_SHAPE(rows, 4, 2);
                if (!s->joined) continue;
                const ts_layout *layout = tsi_layout_intern(s, &shape);
                TEST_SAY(t, layout && layout->view.extent[0] == rows * 4 && layout->view.ndim == 2,
                         "view");
                if (layout) check_line(t, layout, &arena, held);
                ts_layout_release(layout);
            }
            ts_sharding_release(s);
        }
    tsi_arena_release(&arena);
    free_meshes(&all);
}
