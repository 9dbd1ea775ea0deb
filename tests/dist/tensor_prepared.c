/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_prepared.c - moves that were prepared give the bits of moves that were not, run after run,
 * and beside ranks that go the other way. */
#include <string.h>

#include "base/alloc.h"
#include "comm/comm.h"
#include "harness/test.h"
#include "tensor/prepared.h"
#include "tessera/tessera.h"

enum { MOVES = 4 };

typedef struct moves {
    ts_tensor *x[MOVES], *variable[MOVES], *one[MOVES];
    const ts_sharding *sharding[MOVES];
    const ts_layout *to[MOVES];
} moves;

static ts_shape shape_of(int i)
{
    const ts_shape all[MOVES] = { TS_SHAPE(7, 5), TS_SHAPE(9), TS_SHAPE(16, 3), TS_SHAPE_SCALAR };
    return all[i];
}

/* Terms that differ by rank and turn, to be added up. */
static ts_tensor *terms(test *t, ts_mesh *mesh, const char *from, ts_shape shape, int turn)
{
    float value[64];
    for (int k = 0; k < 64; k++)
        value[k] = 1.0f / (float)(1 + k + 3 * t->index + 7 * turn);
    ts_array block = { .struct_size = sizeof block, .data = value };
    block.meta = (ts_meta){ .shape = shape, .dtype = TS_DTYPE_F32 };
    ts_tensor *local = ts_clone(ts_from_memory(t->me, &block));
    TEST_OK(t, ts_tensor_wait(local));
    return ts_from_local(local, ts_sharding_get(mesh, from), shape);
}

static void fill(test *t, ts_mesh *mesh, const char *from, int turn, moves *m)
{
    for (int i = 0; i < MOVES; i++) {
        ts_shape shape = shape_of(i);
        m->x[i] = terms(t, mesh, from, shape, turn + i);
        m->sharding[i] = ts_sharding_get(mesh, shape.ndim > 0 ? "a:R b:S(0)" : "a:R b:R");
        m->to[i] = ts_layout_get(m->sharding[i], shape);
        m->variable[i] = ts_variable(t->me);
    }
}

static void read_block(test *t, ts_tensor *x, float *value)
{
    ts_array block = { .struct_size = sizeof block, .data = value };
    block.meta = (ts_meta){ .shape = ts_tensor_shape(ts_tensor_local(x)), .dtype = TS_DTYPE_F32 };
    TEST_OK(t, ts_tensor_read(x, &block));
}

static void same_bits(test *t, ts_tensor *a, ts_tensor *b)
{
    float left[64] = { 0 }, right[64] = { 0 };
    TEST_CHECK(t, ts_tensor_layout(a) == ts_tensor_layout(b));
    read_block(t, a, left);
    read_block(t, b, right);
    TEST_CHECK(t, memcmp(left, right, sizeof left) == 0);
}

/* In the last turns some ranks go the other way. */
static void run(test *t, tsi_prepared *p, int turn, moves *m)
{
    ts_tensor *out[MOVES];
    TEST_OK(t, ts_redistribute_many(m->x, m->sharding, MOVES, m->one));
    bool other = !p || (turn >= 3 && t->index % 2 == turn % 2);
    if (!other) TEST_OK(t, tsi_prepared_run(p, "turn", m->x, m->variable));
    if (other) TEST_OK(t, ts_redistribute_many(m->x, m->sharding, MOVES, out));
    for (int i = 0; i < MOVES; i++) {
        same_bits(t, other ? out[i] : m->variable[i], m->one[i]);
        ts_tensor_release(m->variable[i]);
    }
}

TS_TEST_RANKS(prepared_moves_give_the_same_bits, 2, 3, 4, 6, 8)
{
    static const char *const from[] = { "a:R b:P(sum)", "a:P(sum) b:P(sum)" };
    ts_mesh *mesh = ts_mesh_create(t->me, t->count % 2 ? "a=1, b=*" : "a=2, b=*");
    for (int way = 0; way < 2; way++) {
        tsi_prepared *p = NULL;
        for (int turn = 0; turn < 5; turn++) {
            moves m;
            ts_scope scope = ts_scope_open(t->me, NULL);
            fill(t, mesh, from[way], turn, &m);
            if (turn == 0) TEST_OK(t, tsi_prepared_make(m.x, m.to, MOVES, TSI_TAG_GRADIENT, &p));
            if (p) TEST_CHECK(t, tsi_prepared_fits(p, m.x, m.to, MOVES));
            run(t, p, turn, &m);
            if (p) TEST_CHECK(t, !tsi_prepared_fits(p, m.one, m.to, MOVES));
            if (p) TEST_CHECK(t, !tsi_prepared_fits(p, m.x, m.to, MOVES - 1));
            TEST_OK(t, ts_scope_close(scope));
        }
        TEST_CHECK(t, p != NULL || (way == 0 && t->count == 2));
        tsi_prepared_destroy(p);
    }
}

/* What stays, or has another dtype than the rest, takes the other way. */
TS_TEST_RANKS(prepared_moves_are_alike, 2, 3)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "b=*");
    ts_scope scope = ts_scope_open(t->me, NULL);
    ts_tensor *x[2] = { ts_empty(mesh, TS_DTYPE_F32, TS_SHAPE(6, 2), "P(sum)"),
                        ts_empty(mesh, TS_DTYPE_F64, TS_SHAPE(6, 2), "P(sum)") };
    const ts_layout *cut = ts_layout_get(ts_sharding_get(mesh, "S(0)"), TS_SHAPE(6, 2));
    const ts_layout *to[2] = { cut, cut };
    tsi_prepared *p = NULL;
    TEST_OK(t, tsi_prepared_make(x, to, 2, TSI_TAG_GRADIENT, &p));
    TEST_CHECK(t, p == NULL);
    x[1] = ts_empty(mesh, TS_DTYPE_F32, TS_SHAPE(6, 2), "S(0)");
    TEST_OK(t, tsi_prepared_make(x, to, 2, TSI_TAG_GRADIENT, &p));
    TEST_CHECK(t, p == NULL);
    TEST_OK(t, tsi_prepared_make(x, to, 1, TSI_TAG_GRADIENT, &p));
    TEST_CHECK(t, p != NULL);
    tsi_prepared_destroy(p);
    TEST_OK(t, ts_scope_close(scope));
}

/* A run may begin before anybody waited for the last one, and what was prepared may be forgotten
 * while it is under way. */
TS_TEST_RANKS(prepared_moves_outlive_their_preparation, 2, 3, 4, 8)
{
    ts_mesh *mesh = ts_mesh_create(t->me, t->count % 2 ? "a=1, b=*" : "a=2, b=*");
    for (int turn = 0; turn < 20; turn++) {
        moves m[2];
        tsi_prepared *p = NULL;
        ts_scope scope = ts_scope_open(t->me, NULL);
        for (int k = 0; k < 2; k++)
            fill(t, mesh, "a:P(sum) b:P(sum)", 2 * turn + k, &m[k]);
        TEST_OK(t, tsi_prepared_make(m[0].x, m[0].to, MOVES, TSI_TAG_GRADIENT, &p));
        for (int k = 0; k < 2 && p; k++)
            TEST_OK(t, tsi_prepared_run(p, "turn", m[k].x, m[k].variable));
        tsi_prepared_destroy(p);
        TEST_CHECK(t, p != NULL);
        for (int k = 0; k < 2 && p; k++) {
            TEST_OK(t, ts_redistribute_many(m[k].x, m[k].sharding, MOVES, m[k].one));
            for (int i = 0; i < MOVES; i++)
                same_bits(t, m[k].variable[i], m[k].one[i]);
        }
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < MOVES; i++)
                ts_tensor_release(m[k].variable[i]);
        TEST_OK(t, ts_scope_close(scope));
    }
}

/* The last rank comes when it hears that the first has begun its rounds and goes on: who waited for
 * one of them would wait for ever. */
static void begin_before_others(test *t, tsi_prepared *p, moves *m)
{
    float word = 1;
    ts_array one = { .struct_size = sizeof one, .data = &word };
    one.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_F32 };
    ts_group *all = ts_group_world(t->me);
    if (t->index == t->count - 1) TEST_OK(t, ts_group_recv(all, &one, 0, NULL));
    if (p) TEST_OK(t, tsi_prepared_run(p, "turn", m->x, m->variable));
    if (!p) TEST_OK(t, ts_redistribute_many(m->x, m->sharding, MOVES, m->one));
    if (t->index == 0) TEST_OK(t, ts_group_send(all, &one, t->count - 1, NULL));
}

/* Rounds that send what others folded are issued without a wait between, by either way. */
TS_TEST_RANKS(no_round_of_a_move_is_waited_for, 4, 6)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "a=2, b=*");
    moves m, other;
    tsi_prepared *p = NULL;
    ts_scope scope = ts_scope_open(t->me, NULL);
    fill(t, mesh, "a:P(sum) b:P(sum)", 0, &m);
    fill(t, mesh, "a:P(sum) b:P(sum)", 0, &other);
    bool follows = tsi_comm_follows(t->me, m.x[0]->array->storage->device->dlpack_type);
    TEST_CHECK(t, follows || tsi_comm_engine(t->me->world)->copies_early);
    TEST_OK(t, tsi_prepared_make(m.x, m.to, MOVES, TSI_TAG_GRADIENT, &p));
    TEST_CHECK(t, p && tsi_prepared_rounds(p) == 2);
    for (int i = 0; i < MOVES; i++)
        TEST_OK(t, ts_tensor_wait(m.x[i]));
    TEST_OK(t, ts_group_barrier(ts_group_world(t->me), NULL));
    if (follows) begin_before_others(t, p, &m);
    if (follows) begin_before_others(t, NULL, &other);
    for (int i = 0; follows && i < MOVES; i++)
        same_bits(t, m.variable[i], other.one[i]);
    for (int i = 0; i < MOVES; i++) {
        ts_tensor_release(m.variable[i]);
        ts_tensor_release(other.variable[i]);
    }
    tsi_prepared_destroy(p);
    TEST_OK(t, ts_scope_close(scope));
}

/* Lists, works and bodies of moves are used again, where ranks are threads in the host's memory. */
TS_TEST_RANKS(prepared_runs_allocate_nothing, 2, 3, 8)
{
    moves m;
    tsi_prepared *p = NULL;
    ts_group *world = ts_group_world(t->me);
    bool counts = strcmp(ts_world_engine(ts_rank_world(t->me)), "threads") == 0 &&
                  tsi_rank_device_of(t->me)->device->host_readable;
    ts_mesh *mesh = ts_mesh_create(t->me, t->count % 2 ? "a=1, b=*" : "a=2, b=*");
    ts_scope scope = ts_scope_open(t->me, NULL);
    fill(t, mesh, "a:P(sum) b:P(sum)", 0, &m);
    TEST_OK(t, tsi_prepared_make(m.x, m.to, MOVES, TSI_TAG_GRADIENT, &p));
    for (int turn = 0; p && turn < 6; turn++) {
        TEST_OK(t, ts_group_barrier(world, NULL));
        if (t->index == 0) (void)tsi_alloc_fail_at(0);
        TEST_OK(t, ts_group_barrier(world, NULL));
        TEST_OK(t, tsi_prepared_run(p, "turn", m.x, m.variable));
        for (int i = 0; i < MOVES; i++)
            TEST_OK(t, ts_tensor_wait(m.variable[i]));
        TEST_OK(t, ts_group_barrier(world, NULL));
        if (counts && t->index == 0 && turn >= 3) TEST_EQ(t, tsi_alloc_fail_at(0), 0);
    }
    TEST_CHECK(t, p != NULL);
    tsi_prepared_destroy(p);
    for (int i = 0; i < MOVES; i++)
        ts_tensor_release(m.variable[i]);
    TEST_OK(t, ts_scope_close(scope));
}
