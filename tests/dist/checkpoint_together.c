/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a process that read for each other: tensors of several chunks, cut in every way there
 * and here, bit for bit; damage that one rank finds ends all with its sentence, or is repaired. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_util.h"
#include "harness/test.h"
#include "tessera/checkpoint.h"
#include "tessera/tensor.h"

enum { ROWS = 701, COLUMNS = 1003 };

static ts_mesh *mesh_of(test *t)
{
    char axes[48];
    int64_t inner = t->count % 2 == 0 ? 2 : 1;
    snprintf(axes, sizeof axes, "x=%lld, y=%lld", (long long)(t->count / inner), (long long)inner);
    return ts_mesh_create(t->me, axes);
}

static ts_tensor *numbers(ts_mesh *mesh, ts_dtype dtype, const char *placements)
{
    ts_arange_options options;
    ts_arange_options_init(&options);
    return ts_arange(mesh, dtype, TS_SHAPE(ROWS, COLUMNS), placements, &options);
}

static bool same_bits(test *t, ts_tensor *a, ts_tensor *b)
{
    int same = 0;
    TEST_OK(t, ts_equal(a, b, &same));
    return same;
}

static ts_status save(ts_mesh *mesh, const char *path, const char *placements, int32_t copies)
{
    ts_save_options options = TS_INIT(ts_save_options);
    options.copies = copies;
    ts_state *state = ts_state_create(mesh);
    (void)ts_state_add_tensor(state, "w", numbers(mesh, TS_DTYPE_F32, placements));
    (void)ts_state_add_tensor(state, "b", ts_full(2.5, mesh, TS_DTYPE_BF16, TS_SHAPE(9), "R, R"));
    ts_status status = ts_checkpoint_save(state, path, &options);
    ts_state_destroy(state);
    return status;
}

static ts_status load(ts_mesh *mesh, const char *path, ts_tensor *w, int32_t unverified)
{
    ts_load_options options = TS_INIT(ts_load_options);
    options.unverified = unverified;
    ts_state *state = ts_state_create(mesh);
    (void)ts_state_add_tensor(state, "w", w);
    (void)ts_state_add_tensor(state, "b", ts_zeros(mesh, TS_DTYPE_BF16, TS_SHAPE(9), "R, R"));
    ts_status status = ts_checkpoint_load(state, path, &options);
    ts_state_destroy(state);
    return status;
}

static const char *const cuts[] = { "S(0), R", "R, S(1)",    "S(1), S(0)",
                                    "R, R",    "S(1), S(1)", "S(0), S(0)" };
enum { CUTS = sizeof cuts / sizeof cuts[0] };

TS_TEST_RANKS(every_cut_to_every_other, 1, 2, 3, 4)
{
    char path[PATH];
    make_path(t, "together", path);
    ts_mesh *mesh = mesh_of(t);
    for (int there = 0; there < CUTS; there++) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        TEST_OK(t, save(mesh, path, cuts[there], 1));
        for (int here = 0; here < CUTS; here++) {
            ts_dtype dtype = (there + here) % 5 == 0 ? TS_DTYPE_F64 : TS_DTYPE_F32;
            ts_tensor *w = ts_zeros(mesh, dtype, TS_SHAPE(ROWS, COLUMNS), cuts[here]);
            TEST_OK(t, load(mesh, path, w, (there + here) % 2));
            TEST_SAY(t, same_bits(t, w, numbers(mesh, dtype, cuts[here])), "from (%s) to (%s)",
                     cuts[there], cuts[here]);
        }
        ts_scope_close(scope);
    }
    ts_mesh_release(mesh);
    remove_path(t, path);
}

/* So many chunks that a rank takes several at once; portions end within blocks, and behind them. */
TS_TEST_RANKS(several_chunks_at_once, 2, 3)
{
    enum { MANY = 14687 };
    char path[PATH];
    make_path(t, "portions", path);
    ts_mesh *mesh = mesh_of(t);
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_state *there = ts_state_create(mesh), *here = ts_state_create(mesh);
    ts_arange_options from;
    ts_arange_options_init(&from);
    ts_shape shape = TS_SHAPE(MANY, COLUMNS);
    ts_tensor *w = ts_arange(mesh, TS_DTYPE_F32, shape, "S(0), S(0)", &from);
    ts_tensor *got = ts_zeros(mesh, TS_DTYPE_F32, shape, "S(1), S(1)");
    (void)ts_state_add_tensor(there, "w", w);
    (void)ts_state_add_tensor(here, "w", got);
    TEST_OK(t, ts_checkpoint_save(there, path, NULL));
    TEST_OK(t, ts_checkpoint_load(here, path, NULL));
    TEST_CHECK(t, same_bits(t, got, ts_arange(mesh, TS_DTYPE_F32, shape, "S(1), S(1)", &from)));
    ts_state_destroy(there);
    ts_state_destroy(here);
    ts_scope_close(scope);
    ts_mesh_release(mesh);
    remove_path(t, path);
}

/* Runs that hashes cannot be taken of apart (2 bytes), short ones, rows of several dims, and some
 * that no rank of a process wants where there are several processes. */
static const struct kind {
    ts_dtype dtype;
    ts_shape shape;
} kinds[] = { { TS_DTYPE_BF16, { .ndim = 2, .extent = { 157, 1001 } } },
              { TS_DTYPE_BF16, { .ndim = 2, .extent = { 256, 768 } } },
              { TS_DTYPE_F32, { .ndim = 3, .extent = { 9, 31, 211 } } },
              { TS_DTYPE_F32, { .ndim = 2, .extent = { 20001, 5 } } },
              { TS_DTYPE_U8, { .ndim = 3, .extent = { 3, 200, 640 } } },
              { TS_DTYPE_F64, { .ndim = 4, .extent = { 5, 6, 10, 96 } } },
              { TS_DTYPE_F32, { .ndim = 2, .extent = { 3, 30011 } } } };
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static ts_tensor *numbers_of(ts_mesh *mesh, const struct kind *kind, const char *placements)
{
    ts_arange_options options;
    ts_arange_options_init(&options);
    return ts_arange(mesh, kind->dtype, kind->shape, placements, &options);
}

/* how: 0 saves, 1 loads, 2 loads without a look at hashes. */
static ts_status move_state(ts_mesh *mesh, ts_tensor *const *w, const char *path, int how)
{
    ts_load_options options = TS_INIT(ts_load_options);
    options.unverified = how == 2;
    ts_state *state = ts_state_create(mesh);
    for (int k = 0; k < KINDS; k++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", k);
        (void)ts_state_add_tensor(state, name, w[k]);
    }
    ts_status status =
        how ? ts_checkpoint_load(state, path, &options) : ts_checkpoint_save(state, path, NULL);
    ts_state_destroy(state);
    return status;
}

TS_TEST_RANKS(parts_of_every_kind, 3, 4)
{
    static const char *const wanted[6] = { "R, S(1)",    "S(1), R",    "S(1), S(1)",
                                           "SS(1,2), R", "R, SS(1,2)", "S(0), SS(1,3)" };
    char path[PATH];
    make_path(t, "together", path);
    ts_mesh *mesh = mesh_of(t);
    for (int there = 0; there < CUTS; there += 4) {
        ts_scope scope = ts_scope_open(t->me, NULL);
        ts_tensor *w[KINDS];
        for (int k = 0; k < KINDS; k++)
            w[k] = numbers_of(mesh, &kinds[k], cuts[there]);
        TEST_OK(t, move_state(mesh, w, path, 0));
        for (int here = there / 4; here < 6; here += 2) {
            for (int k = 0; k < KINDS; k++)
                w[k] = ts_zeros(mesh, kinds[k].dtype, kinds[k].shape, wanted[here]);
            TEST_OK(t, move_state(mesh, w, path, 1 + (there / 4 + here / 2) % 2));
            for (int k = 0; k < KINDS; k++)
                TEST_SAY(t, same_bits(t, w[k], numbers_of(mesh, &kinds[k], wanted[here])),
                         "kind %d from (%s) to (%s)", k, cuts[there], wanted[here]);
        }
        ts_scope_close(scope);
    }
    ts_mesh_release(mesh);
    remove_path(t, path);
}

/* Of the file of rank 0, so far from its end. */
static void flip_byte(test *t, const char *path, int64_t from_end)
{
    char file[PATH + 32];
    struct stat about;
    snprintf(file, sizeof file, "%s/rank-00000.safetensors", path);
    int fd = open(file, O_RDWR | O_CLOEXEC);
    unsigned char byte = 0;
    TEST_EQ(t, fstat(fd, &about), 0);
    off_t at = about.st_size - from_end;
    TEST_EQ(t, pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    TEST_EQ(t, pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* The copy is read where a rank reads the files by itself, too, and the rank has not failed. */
static void read_repaired(test *t, const char *path)
{
    enum { COUNT = ROWS * COLUMNS };
    ts_archive *archive = NULL;
    double *have = malloc(COUNT * sizeof *have);
    TEST_OK(t, ts_archive_open(path, &archive));
    int64_t at = ts_archive_find(archive, "w");
    TEST_OK(t, ts_archive_read(archive, at, 0, COUNT, TS_DTYPE_F64, have));
    TEST_OK(t, ts_rank_status(t->me));
    for (int64_t i = 0; i < COUNT && ts_rank_status(t->me) == TS_OK; i += COUNT - 1)
        TEST_EQ(t, (int64_t)have[i], i);
    ts_archive_close(archive);
    free(have);
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
}

/* That byte of the file of rank 0 is of "w" or of a copy of it. */
static void load_damaged(test *t, const char *path, const char *placements, int32_t copies)
{
    ts_mesh *mesh = mesh_of(t);
    ts_scope scope = ts_scope_open(t->me, NULL);
    TEST_OK(t, save(mesh, path, "R, R", copies));
    if (t->index == 0) flip_byte(t, path, 1000);
    if (t->index == 0 && copies > 1) flip_byte(t, path, ROWS * COLUMNS * 4 * 2 / t->count - 1000);
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    ts_tensor *w = ts_zeros(mesh, TS_DTYPE_F32, TS_SHAPE(ROWS, COLUMNS), placements);
    ts_status status = load(mesh, path, w, 0);
    if (copies > 1) {
        TEST_OK(t, status);
        TEST_CHECK(t, same_bits(t, w, numbers(mesh, TS_DTYPE_F32, placements)));
        read_repaired(t, path);
    } else {
        TEST_EQ(t, status, TS_ERR_IO);
        TEST_SAYS(t, ts_rank_error(t->me)->text, "is damaged: tensor \"w\"");
        (void)ts_rank_recover(t->me);
    }
    ts_scope_close(scope);
    ts_mesh_release(mesh);
}

TS_TEST_RANKS(damage_ends_all_or_is_repaired, 2, 3, 4)
{
    if (strcmp(t->engine, "threads") != 0) return; /* a process that fails takes others along */
    char path[PATH];
    make_path(t, "together", path);
    load_damaged(t, path, "R, S(1)", 2);
    load_damaged(t, path, "S(1), R", 1);
    load_damaged(t, path, "R, R", 1);
    remove_path(t, path);
}
