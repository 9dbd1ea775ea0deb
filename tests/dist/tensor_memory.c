/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_memory.c - memory of other libraries under tensors: who owns it, who may write it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "array/dlpack_abi.h"
#include "base/alloc.h"
#include "harness/test.h"
#include "tessera/tessera.h"

static const ts_module_desc plain = { .struct_size = sizeof plain, .type = "plain" };
static _Atomic int deleted;

static void count_deleted(DLManagedTensorVersioned *self)
{
    (void)self;
    deleted++;
}

/* A managed matrix of 4 x 4 numbers. */
typedef struct outside {
    float number[16];
    int64_t extent[2];
    DLManagedTensorVersioned managed;
} outside;

static DLManagedTensorVersioned *outside_of(outside *o, bool read_only)
{
    *o = (outside){ .extent = { 4, 4 } };
    for (int i = 0; i < 16; i++)
        o->number[i] = 1;
    o->managed = (DLManagedTensorVersioned){
        .version = { 1, 0 },
        .deleter = count_deleted,
        .flags = read_only ? TSI_DL_FLAG_READ_ONLY : 0,
        .dl_tensor = { .data = o->number,
                       .device = { TSI_DL_CPU, 0 },
                       .ndim = 2,
                       .dtype = { TSI_DL_FLOAT, 32, 1 },
                       .shape = o->extent },
    };
    return &o->managed;
}

/* ---- read-only memory ------------------------------------------------------------------------ */

typedef void (*write_fn)(ts_tensor *x, ts_tensor *y);

static void write_triangle(ts_tensor *x, ts_tensor *y)
{
    (void)y, ts_tril_(x, 0);
}
static void write_view(ts_tensor *x, ts_tensor *y) /* the flag is the memory's, not the handle's */
{
    (void)y, ts_triu_(ts_reshape(x, TS_SHAPE(2, 8)), 0);
}
static void write_op(ts_tensor *x, ts_tensor *y)
{
    ts_scatter_(x, 0, ts_zeros(ts_tensor_mesh(x), TS_DTYPE_I64, TS_SHAPE(4, 4), NULL), y);
}
static void write_list(ts_tensor *x, ts_tensor *y)
{
    ts_tensor *a[] = { y, x };
    (void)ts_foreach_add((ts_list){ a, 2 }, (ts_list){ a, 2 }, 1.0, NULL);
}
static void write_zero(ts_tensor *x, ts_tensor *y)
{
    ts_tensor *a[] = { y, x };
    (void)ts_foreach_zero((ts_list){ a, 2 });
}
static void write_copy(ts_tensor *x, ts_tensor *y)
{
    ts_tensor *a[] = { y, x }, *b[] = { y, y };
    (void)ts_foreach_copy((ts_list){ a, 2 }, (ts_list){ b, 2 });
}
static void write_sgd(ts_tensor *x, ts_tensor *y)
{
    ts_tensor *a[] = { y, x }, *b[] = { y, y };
    ts_sgd_update update = TS_INIT(ts_sgd_update);
    update.param = (ts_list){ a, 2 };
    update.grad = (ts_list){ b, 2 };
    update.lr = 1;
    update.step = 1;
    (void)ts_fused_sgd(&update);
}
static void write_moment(ts_tensor *x, ts_tensor *y)
{
    ts_tensor *z = ts_clone(y);
    ts_adamw_update update = TS_INIT(ts_adamw_update);
    update.param = update.second = (ts_list){ &z, 1 };
    update.grad = (ts_list){ &y, 1 };
    update.first = (ts_list){ &x, 1 };
    update.step = 1;
    (void)ts_fused_adamw(&update);
}
static void write_zeros(ts_tensor *x, ts_tensor *y)
{
    (void)y, (void)ts_init_zeros(x, "w", NULL);
}
static void write_random(ts_tensor *x, ts_tensor *y)
{
    (void)y, (void)ts_init_normal(x, "w", NULL);
}
static void write_step(ts_tensor *x, ts_tensor *y)
{
    ts_rank *me = ts_tensor_rank(x);
    ts_module *m = ts_module_create(ts_tensor_mesh(x), &plain, NULL);
    ts_tensor *w = ts_module_param(m, "w", TS_SHAPE(4, 4), NULL);
    (void)ts_module_materialize(m);
    ts_optimizer *o = ts_sgd_create(m, NULL);
    (void)ts_tensor_write(w, x);
    ts_tape_begin(me);
    (void)ts_backward(ts_sum(ts_mul(w, y), NULL, 0, 0), NULL);
    (void)ts_optimizer_step(o);
    ts_optimizer_destroy(o);
    ts_module_destroy(m);
}

static void write_into(ts_tensor *x, ts_tensor *y)
{
    (void)ts_op_call_into(ts_op_find(ts_tensor_rank(x), "add"), (ts_tensor *[]){ y, y }, 2, NULL, 0,
                          &x);
}

/* A state that was saved from the tensor is loaded into it. */
static void load_state(ts_state *state)
{
    char folder[] = TS_BINARY_DIR "/memory-XXXXXX", path[sizeof folder + 8],
         remove[sizeof folder + 16];
    if (!mkdtemp(folder)) return;
    (void)snprintf(path, sizeof path, "%s/state", folder);
    (void)ts_checkpoint_save(state, path, NULL);
    (void)ts_checkpoint_load(state, path, NULL);
    ts_state_destroy(state);
    (void)snprintf(remove, sizeof remove, "rm -rf '%s'", folder);
    if (system(remove) != 0) perror(remove);
}
static void write_state(ts_tensor *x, ts_tensor *y)
{
    (void)y;
    ts_state *state = ts_state_create(ts_tensor_mesh(x));
    (void)ts_state_add_tensor(state, "x", x);
    load_state(state);
}
static void write_strided(ts_tensor *x, ts_tensor *y)
{
    (void)y;
    ts_state *state = ts_state_create(ts_tensor_mesh(x));
    (void)ts_state_add_tensor(state, "turned", ts_transpose(x, 0, 1));
    load_state(state);
}
static void write_weights(ts_tensor *x, ts_tensor *y)
{
    (void)y;
    ts_module *m = ts_module_create(ts_tensor_mesh(x), &plain, NULL);
    ts_tensor *w = ts_module_param(m, "w", TS_SHAPE(4, 4), NULL);
    (void)ts_module_materialize(m);
    (void)ts_tensor_write(w, x);
    ts_state *state = ts_state_create(ts_tensor_mesh(x));
    (void)ts_state_add_module(state, "model.", m);
    load_state(state);
    ts_module_destroy(m);
}
static void write_decided(ts_tensor *x, ts_tensor *y) /* as write_step, deciding on the device */
{
    ts_rank *me = ts_tensor_rank(x);
    ts_module *m = ts_module_create(ts_tensor_mesh(x), &plain, NULL);
    ts_tensor *w = ts_module_param(m, "w", TS_SHAPE(4, 4), NULL);
    (void)ts_module_materialize(m);
    ts_optimizer *o = ts_adamw_create(m, NULL);
    (void)ts_tensor_write(w, x);
    ts_tape_begin(me);
    (void)ts_backward(ts_sum(ts_mul(w, y), NULL, 0, 0), NULL);
    (void)ts_optimizer_step_with(o, NULL);
    ts_optimizer_destroy(o);
    ts_module_destroy(m);
}

static const struct {
    const char *words;
    write_fn fn;
} writes[] = {
    { "tril_: input 0 is memory", write_triangle },
    { "triu_: input 0 is memory", write_view },
    { "scatter_: input 0 is memory", write_op },
    { "foreach_add: item 1 is memory", write_list },
    { "foreach_zero: item 1 is memory", write_zero },
    { "foreach_copy: item 1 is memory", write_copy },
    { "fused_sgd: item 1 is memory", write_sgd },
    { "fused_adamw: item 0 is memory", write_moment },
    { "init_zeros: the parameter is memory", write_zeros },
    { "init_normal: the parameter is memory", write_random },
    { "optimizer: w is memory", write_step },
    { "optimizer: w is memory", write_decided },
    { "add: output 0 is memory", write_into },
    { "load: x is memory", write_state },
    { "load: turned is memory", write_strided },
    { "load: model.w is memory", write_weights },
};

TS_TEST_RANKS(repair_3_read_only_memory_is_not_written, 1, 2)
{
    for (size_t i = 0; i < 2 * sizeof writes / sizeof writes[0]; i++) {
        bool read_only = i % 2 == 0; /* the same call with memory that may be written succeeds */
        outside memory;
        ts_scope all = ts_scope_open(t->me, "all");
        ts_tensor *x = ts_from_dlpack(t->me, outside_of(&memory, read_only));
        ts_tensor *y = ts_full(2.0, ts_mesh_self(t->me), TS_DTYPE_F32, TS_SHAPE(4, 4), NULL);
        ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
        writes[i / 2].fn(x, y);
        ts_status status = ts_scope_close(scope);
        TEST_SAY(t, status == (read_only ? TS_ERR_ARG : TS_OK), "%s: %s", writes[i / 2].words,
                 status != TS_OK ? ts_rank_error(t->me)->text : "accepted");
        if (read_only) TEST_SAYS(t, ts_rank_error(t->me)->text, writes[i / 2].words);
        for (int k = 0; read_only && k < 16; k++)
            TEST_CHECK(t, memory.number[k] == 1);
        double first = 0;
        TEST_OK(t, ts_tensor_item(ts_select(ts_select(y, 0, 0), 0, 0), &first));
        if (read_only) TEST_CHECK(t, first == 2); /* nothing of a list was written */
        TEST_OK(t, ts_scope_close(all));
    }
}

/* A gradient may be what the program gave as a seed: what changes gradients takes another place. */
TS_TEST_RANKS(repair_3_a_seed_is_not_written, 1, 2)
{
    outside memory;
    ts_scope all = ts_scope_open(t->me, "all");
    ts_tensor *seed = ts_from_dlpack(t->me, outside_of(&memory, true));
    ts_module *m = ts_module_create(ts_mesh_self(t->me), &plain, NULL);
    ts_tensor *w = ts_module_param(m, "w", TS_SHAPE(4, 4), NULL);
    TEST_OK(t, ts_module_materialize(m));
    ts_optimizer *o = ts_sgd_create(m, NULL);
    for (int way = 0; way < 4; way++) {
        ts_scope scope = ts_scope_open(t->me, "step");
        ts_tape_begin(t->me);
        ts_tensor *y = way < 2 ? ts_reshape(w, TS_SHAPE(4, 4)) : ts_neg(w);
        TEST_OK(t, ts_backward_from(&y, &seed, 1, TS_OPTIONS(ts_backward_options, .keep = 1)));
        if (way % 2) TEST_OK(t, ts_backward_from(&y, &seed, 1, NULL));
        TEST_OK(t, ts_grad_scale(m, 3));
        TEST_OK(t, ts_clip_grad_norm(m, 0.5, NULL));
        TEST_OK(t, ts_optimizer_step(o));
        TEST_OK(t, ts_scope_close(scope));
    }
    for (int k = 0; k < 16; k++)
        TEST_CHECK(t, memory.number[k] == 1);
    ts_optimizer_destroy(o);
    ts_module_destroy(m);
    TEST_OK(t, ts_scope_close(all));
}

/* ---- who owns -------------------------------------------------------------------------------- */

/* A refused tensor and one that memory ran out for stay the caller's, at any allocation. */
TS_TEST_RANKS(friction_5_a_refused_dlpack_tensor_is_the_callers, 1)
{
    outside memory;
    deleted = 0; /* other tests of this process count too */
    DLManagedTensorVersioned *managed = outside_of(&memory, false);
    ts_mesh_self(t->me);
    managed->dl_tensor.dtype.lanes = 2;
    ts_scope scope = ts_scope_open_with(t->me, TS_OPTIONS(ts_scope_options, .catches = 1));
    TEST_CHECK(t, ts_from_dlpack(t->me, managed) == NULL);
    TEST_STATUS(t, ts_scope_close(scope), TS_ERR_DTYPE);
    TEST_EQ(t, deleted, 0);
    managed->dl_tensor.dtype.lanes = 1;
    bool done = false;
    for (int64_t n = 1; !done && n < 50; n++) {
        scope = ts_scope_open(t->me, NULL);
        (void)tsi_alloc_fail_at(n);
        ts_tensor *x = ts_from_dlpack(t->me, managed);
        (void)tsi_alloc_fail_at(0);
        TEST_EQ(t, deleted, 0);
        done = x != NULL;
        (void)ts_scope_close(scope);
        TEST_EQ(t, deleted, done);
        if (!done) TEST_OK(t, ts_rank_recover(t->me));
    }
    TEST_CHECK(t, done);
}

/* All strides zero: contiguous. One of them: the same elements again. */
TS_TEST_RANKS(friction_5_zero_strides, 1)
{
    float number[6] = { 1, 2, 3, 4, 5, 6 };
    ts_array block = TS_INIT(ts_array);
    block.data = number;
    block.meta.dtype = TS_DTYPE_F32;
    block.meta.shape = TS_SHAPE(2, 3);
    double sum = 0;
    TEST_OK(t, ts_tensor_item(ts_sum(ts_from_memory(t->me, &block), NULL, 0, 0), &sum));
    TEST_CHECK(t, sum == 21);
    block.stride[1] = 1; /* both rows are the first */
    TEST_OK(t, ts_tensor_item(ts_sum(ts_from_memory(t->me, &block), NULL, 0, 0), &sum));
    TEST_CHECK(t, sum == 12);
    block.stride[0] = 3, block.stride[1] = 0; /* 1, 4, three times each */
    TEST_OK(t, ts_tensor_item(ts_sum(ts_from_memory(t->me, &block), NULL, 0, 0), &sum));
    TEST_CHECK(t, sum == 15);
}

TS_TEST_RANKS(friction_5_a_step_clears_gradients, 1, 2)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    ts_module *m = ts_module_create(mesh, &plain, NULL);
    ts_tensor *w = ts_module_param(m, "w", TS_SHAPE(4), NULL);
    TEST_OK(t, ts_module_materialize(m));
    ts_optimizer *o = ts_sgd_create(m, NULL);
    ts_tape_begin(t->me);
    TEST_OK(t, ts_backward(ts_sum(ts_mul(w, w), NULL, 0, 0), NULL));
    TEST_CHECK(t, ts_tensor_grad(w) != NULL);
    TEST_OK(t, ts_optimizer_step(o));
    TEST_CHECK(t, ts_tensor_grad(w) == NULL);
    ts_optimizer_destroy(o);
    ts_module_destroy(m);
}

/* ---- memory that peers still read ------------------------------------------------------------ */

static ts_tensor *gathered(ts_tensor *x)
{
    return ts_redistribute(x, "R");
}

static ts_tensor *gathered_in_list(ts_tensor *x)
{
    ts_tensor *out = NULL;
    const ts_sharding *whole = ts_sharding_get(ts_tensor_mesh(x), "R");
    return ts_redistribute_many(&x, &whole, 1, &out) == TS_OK ? out : NULL;
}

static void zero_in_list(ts_tensor *x)
{
    (void)ts_foreach_zero((ts_list){ &x, 1 });
}

static void zero_above(ts_tensor *x)
{
    (void)ts_tril_(x, -1);
}

/* A value that is on its way is that of the call, whatever is done to its source meanwhile, by
 * ranks of which one comes late. */
TS_TEST_RANKS(what_is_on_its_way_does_not_change, 2, 3)
{
    ts_tensor *(*const moves[])(ts_tensor *) = { gathered, gathered_in_list };
    void (*const changes[])(ts_tensor *) = { zero_in_list, zero_above };
    const struct timespec pause = { .tv_nsec = 30000000 };
    ts_mesh *mesh = ts_mesh_create(t->me, "x=*");
    for (int m = 0; m < 2; m++)
        for (int w = 0; w < 2; w++)
            for (int64_t late = 0; late < t->count; late++) {
                ts_scope scope = ts_scope_open(t->me, NULL);
                ts_tensor *x = ts_ones(mesh, TS_DTYPE_F32, TS_SHAPE(64, 64), "S(0)");
                double least = NAN, now = NAN;
                TEST_OK(t, ts_tensor_wait(x));
                if (ts_rank_index(t->me) == late) (void)nanosleep(&pause, NULL);
                ts_tensor *y = moves[m](x);
                changes[w](x);
                TEST_OK(t, ts_tensor_item(ts_amin(y, NULL, 0, 0), &least));
                TEST_OK(t, ts_tensor_item(ts_amin(x, NULL, 0, 0), &now));
                TEST_SAY(t, least == 1 && now == 0, "move %d, change %d, rank %d late: %g, %g", m,
                         w, (int)late, least, now);
                ts_scope_close(scope);
            }
}
