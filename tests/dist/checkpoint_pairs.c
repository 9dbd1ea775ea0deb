/* SPDX-License-Identifier: Apache-2.0 */
/* Random trees of tensors saved on a random mesh and loaded on another, bit for bit: scalars, empty
 * and uneven ones, strided ones, every dtype, every placement, one to four axes. The hashes of the
 * index are those of the elements, whoever wrote them. TEST_PAIRS sets how many pairs each number
 * of ranks takes. */
#include <stdlib.h>
#include <unistd.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/hash.h"
#include "base/rank.h"
#include "checkpoint/digest.h"
#include "prop/plan_layouts.h"
#include "tensor/fill.h"
#include "tessera/checkpoint.h"
#include "tessera/tensor.h"

enum { TENSORS_MAX = 5, TEXT = 512, PAIRS = 25 };

typedef struct tree_tensor {
    ts_shape shape;
    ts_dtype dtype;
    uint64_t seed;
    char name[32], placements[2][TEXT]; /* there and here */
    bool strided[2];
} tree_tensor;

typedef struct tree {
    tree_tensor tensor[TENSORS_MAX];
    int count;
    char mesh[2][64];
} tree;

/* ---- drawing, alike on all ranks ------------------------------------------------------------- */

static void draw_mesh(test *t, char *out, size_t size)
{
    int64_t axes = 1 + test_random_below(t, 4), left = t->count;
    size_t used = 0;
    for (int64_t k = 0; k < axes; k++) {
        int64_t extent = 1 + test_random_below(t, left);
        left /= extent;
        used += (size_t)snprintf(out + used, size - used, "%s%c=%lld", k ? ", " : "",
                                 (char)('a' + k), (long long)extent);
    }
}

static void draw_placements(test *t, const char *mesh_text, ts_shape shape, char *out)
{
    layout_choice choice = { .unusual = true, .spans = true };
    ts_rank *me = t->me;
    tsi_rank_set_current(NULL); /* a text that is not allowed is drawn again, and is no failure */
    ts_mesh *mesh = ts_mesh_describe(ts_rank_world(me), mesh_text);
    while (!random_layout(t, &choice, mesh, shape, out, TEXT))
        ;
    ts_mesh_release(mesh);
    tsi_rank_set_current(me);
}

static void draw_tensor(test *t, tree *tr, tree_tensor *x, int number)
{
    static const ts_dtype dtypes[] = { TS_DTYPE_F64, TS_DTYPE_F32, TS_DTYPE_BF16, TS_DTYPE_F16,
                                       TS_DTYPE_I64, TS_DTYPE_I32, TS_DTYPE_U8,   TS_DTYPE_BOOL,
                                       TS_DTYPE_I16, TS_DTYPE_I8,  TS_DTYPE_C64,  TS_DTYPE_C128 };
    *x = (tree_tensor){ .dtype = dtypes[test_random_below(t, 12)], .seed = test_random(t) };
    snprintf(x->name, sizeof x->name, "layer.%d.w", number);
    x->shape.ndim = (int32_t)test_random_below(t, 5);
    int64_t most = test_random_below(t, 8) == 0 ? 70 : 8;
    for (int32_t d = 0; d < x->shape.ndim; d++)
        x->shape.extent[d] = test_random_below(t, d < 2 ? most : 8);
    for (int i = 0; i < 2; i++) {
        draw_placements(t, tr->mesh[i], x->shape, x->placements[i]);
        x->strided[i] = x->shape.ndim > 1 && test_random_below(t, 3) == 0;
    }
}

/* ---- contents: bytes by global index --------------------------------------------------------- */

static void element(const tree_tensor *x, int64_t global, unsigned char *out)
{
    uint64_t word = tsi_hash_mix(x->seed, (uint64_t)global);
    for (size_t i = 0; i < ts_dtype_size(x->dtype); i++)
        out[i] = (unsigned char)(word >> (8 * (i % 8)));
    if (x->dtype == TS_DTYPE_BOOL) out[0] &= 1;
}

typedef struct walk {
    test *t;
    const tree_tensor *x;
    tsi_block block;
    bool compare;
    int64_t wrong;
} walk;

static ts_status walk_run(int64_t global, int64_t local, int64_t length, void *context)
{
    walk *w = context;
    size_t bytes = ts_dtype_size(w->x->dtype);
    for (int64_t i = 0; i < length; i++) {
        unsigned char want[16], *at = (unsigned char *)w->block.data + (size_t)(local + i) * bytes;
        element(w->x, global + i, want);
        if (w->compare)
            w->wrong += memcmp(at, want, bytes) != 0;
        else
            memcpy(at, want, bytes);
    }
    return TS_OK;
}

static void fill(test *t, const tree_tensor *x, ts_tensor *tensor)
{
    walk w = { .t = t, .x = x };
    if (tensor)
        TEST_OK(
            t, tsi_fill_image(tensor->mesh, tensor->layout, tensor->array, walk_run, &w.block, &w));
}

/* The same elements, in memory that has its dims the other way round. */
static ts_tensor *turned(test *t, ts_tensor *tensor)
{
    if (!tensor || tensor->mesh->desc->count != t->count) return tensor;
    ts_tensor *block = ts_tensor_local(tensor);
    int32_t last = block ? block->layout->shape.ndim - 1 : 0; /* dims may be cut as one */
    if (last < 1) return tensor;
    const ts_shape *extents = &block->layout->shape;
    bool shows = ts_shape_count(extents) > 0 && extents->extent[0] > 1 && extents->extent[last] > 1;
    block = ts_transpose(ts_clone(ts_transpose(block, 0, last)), 0, last);
    if (block && shows) TEST_CHECK(t, !tsi_array_is_dense(block->array));
    return ts_from_local(block, tensor->layout->sharding, tensor->layout->shape);
}

static int64_t count_wrong(test *t, const tree_tensor *x, ts_tensor *tensor)
{
    walk w = { .t = t, .x = x, .compare = true };
    if (!tensor || !tensor->mesh->member) return 0;
    tsi_block block = tsi_array_block(tensor->array);
    size_t bytes = (size_t)tsi_block_count(&block) * ts_dtype_size(x->dtype);
    w.block = tsi_block_dense_like(&block, tsi_alloc_aligned(bytes + 1, 64));
    TEST_OK(t, tsi_array_read(tensor->rank, tensor->array, &w.block));
    TEST_OK(t, tsi_fill_runs(tensor->mesh, tensor->layout, walk_run, &w));
    tsi_free(w.block.data);
    return w.wrong;
}

static uint64_t hash_of(const tree_tensor *x)
{
    int64_t count = ts_shape_count(&x->shape);
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        unsigned char bytes[16];
        element(x, i, bytes);
        sum += tsi_digest_elements(x->dtype, i, bytes, 1);
    }
    ts_meta meta = { .shape = x->shape, .dtype = (int32_t)x->dtype };
    return tsi_digest_tensor(&meta, sum);
}

/* ---- one pair -------------------------------------------------------------------------------- */

static ts_state *state_of(test *t, const tree *tr, int side, ts_tensor **out)
{
    ts_mesh *mesh = ts_mesh_create(t->me, tr->mesh[side]);
    ts_state *state = ts_state_create(mesh);
    for (int i = 0; i < tr->count; i++) {
        const tree_tensor *x = &tr->tensor[i];
        out[i] = ts_zeros(mesh, x->dtype, x->shape, x->placements[side]);
        if (side == 0) fill(t, x, out[i]);
        if (x->strided[side]) out[i] = turned(t, out[i]);
        TEST_OK(t, ts_state_add_tensor(state, x->name, out[i]));
    }
    ts_mesh_release(mesh);
    return state;
}

static void check_hashes(test *t, const tree *tr, const char *path)
{
    ts_archive *archive = NULL;
    ts_archive_about about;
    TEST_OK(t, ts_archive_open(path, &archive));
    if (!archive) return;
    ts_archive_about_of(archive, &about);
    uint64_t whole = 0, read = 0;
    for (int i = 0; i < tr->count; i++) {
        int64_t number = ts_archive_find(archive, tr->tensor[i].name);
        ts_archive_tensor stored;
        ts_archive_tensor_at(archive, number, &stored);
        TEST_CHECK(t, stored.hash == hash_of(&tr->tensor[i]));
        TEST_OK(t, ts_archive_hash(archive, number, &read));
        TEST_CHECK(t, read == stored.hash);
        whole = ts_archive_hash_add(whole, stored.name, stored.hash);
    }
    TEST_CHECK(t, whole == about.hash);
    ts_archive_close(archive);
}

static void say_tree(const tree *tr)
{
    fprintf(stderr, "    saved on \"%s\", loaded on \"%s\"\n", tr->mesh[0], tr->mesh[1]);
    for (int i = 0; i < tr->count; i++) {
        const tree_tensor *x = &tr->tensor[i];
        fprintf(stderr, "    %s %s [", x->name, ts_dtype_name(x->dtype));
        for (int32_t d = 0; d < x->shape.ndim; d++)
            fprintf(stderr, "%s%lld", d ? ", " : "", (long long)x->shape.extent[d]);
        fprintf(stderr, "] (%s)%s to (%s)%s\n", x->placements[0], x->strided[0] ? ", strided" : "",
                x->placements[1], x->strided[1] ? ", strided" : "");
    }
}

static void one_pair(test *t, const char *path)
{
    tree tr = { .count = 1 + (int)test_random_below(t, TENSORS_MAX) };
    ts_tensor *from[TENSORS_MAX], *to[TENSORS_MAX];
    for (int i = 0; i < 2; i++)
        draw_mesh(t, tr.mesh[i], sizeof tr.mesh[i]);
    for (int i = 0; i < tr.count; i++)
        draw_tensor(t, &tr, &tr.tensor[i], i);
    ts_save_options options = TS_INIT(ts_save_options);
    options.step = 7;
    options.copies = 1 + (int32_t)test_random_below(t, 2);
    options.background = (int32_t)test_random_below(t, 2);
    int32_t writers = (int32_t)test_random_below(t, 3);
    options.writers = options.background ? 0 : writers;
    ts_load_options loading = TS_INIT(ts_load_options);
    loading.unverified = (int32_t)test_random_below(t, 2);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_state *saved = state_of(t, &tr, 0, from), *loaded = state_of(t, &tr, 1, to);
    TEST_OK(t, ts_checkpoint_save(saved, path, &options));
    TEST_OK(t, ts_state_wait(saved));
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    TEST_OK(t, ts_checkpoint_load(loaded, path, &loading));
    int64_t wrong = 0;
    for (int i = 0; i < tr.count && ts_rank_status(t->me) == TS_OK; i++)
        wrong += count_wrong(t, &tr.tensor[i], to[i]);
    TEST_SAY(t, wrong == 0, "%lld elements differ", (long long)wrong);
    if (t->index == 0) check_hashes(t, &tr, path);
    if (test_failed(t) && t->index == 0) say_tree(&tr);
    ts_state_destroy(saved);
    ts_state_destroy(loaded);
    ts_scope_close(scope);
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
}

TS_TEST_RANKS(random_trees_between_random_meshes, 1, 2, 3, 4, 5, 6, 7, 8)
{
    const char *wanted = getenv("TEST_PAIRS");
    int64_t pairs = wanted ? strtoll(wanted, NULL, 10) : PAIRS, process = (int64_t)getpid();
    ts_array word = TS_INIT(ts_array);
    word.data = &process;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    TEST_OK(t, ts_group_broadcast(ts_group_world(t->me), &word, 0, NULL));
    char path[512], command[600];
    snprintf(path, sizeof path, "%s/pairs-%lld", TS_BINARY_DIR, (long long)process);
    for (int64_t i = 0; i < pairs && !test_failed(t); i++)
        one_pair(t, path);
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (t->index == 0 && system(command) != 0) fprintf(stderr, "%s stays\n", path);
}
