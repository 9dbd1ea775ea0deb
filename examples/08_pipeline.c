/* SPDX-License-Identifier: Apache-2.0 */
/* 08_pipeline.c - a network cut into stages, one per rank, trained in the order 1F1B.
 *
 * Stage s sends the activations of a micro-batch to stage s + 1 and gets back their gradient. After
 * a warm-up, each stage alternates one forward and one backward, so that at most as many
 * micro-batches are in flight as there are stages behind it:
 *
 *   stage 0   F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5
 *   stage 1      F0 F1 B0 F2 B1 F3 B2 ...
 *   stage 2         F0 B0 F1 B1 F2 ...
 *
 * The forward of micro-batch m + 1 runs before the backward of m, so lifetimes are not nested: each
 * micro-batch has a tape of its own, kept until its backward. Sends return at once and hold what
 * they send; receives complete on first use; activations go on channel 0 and gradients on
 * channel 1.
 *
 * The gradients are checked against the whole network on each rank alone: weights are initialised
 * by name, so it has the same ones. Run it:  TESSERA_RANKS=3 ./08_pipeline */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera/tessera.h>

enum { ROWS = 4, WIDTH = 8, MICRO = 6, STAGES_MAX = 16 };

typedef struct layers { /* consecutive ones, of the whole network or of one stage */
    ts_tensor *weight[STAGES_MAX];
    int64_t first, count;
} layers;

static void forward(void *state, const ts_module_io *io)
{
    const layers *l = state;
    ts_tensor *x = io->input[0];
    for (int64_t i = 0; i < l->count; i++)
        x = ts_tanh(ts_matmul(x, l->weight[i]));
    io->output[0] = x;
}

static const ts_module_desc layers_desc = { .struct_size = sizeof(ts_module_desc),
                                            .type = "layers",
                                            .input_count = 1,
                                            .output_count = 1,
                                            .forward = forward };

static ts_module *layers_make(ts_mesh *mesh, layers *l)
{
    ts_module *m = ts_module_create(mesh, &layers_desc, l);
    ts_param_options options = TS_INIT(ts_param_options);
    double deviation = 0.5;
    options.init = ts_init_normal;
    options.init_state = &deviation;
    for (int64_t i = 0; i < l->count; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layer.%lld", (long long)(l->first + i));
        l->weight[i] = ts_module_param(m, name, TS_SHAPE(WIDTH, WIDTH), &options);
    }
    ts_module_materialize(m);
    return m;
}

/* Rows of micro-batch *context; what they should become is the next one's. */
static ts_status pixel(const int64_t *global, void *element, void *context)
{
    int64_t i = *(const int64_t *)context * ROWS * WIDTH + global[0] * WIDTH + global[1];
    *(double *)element = sin((double)i);
    return TS_OK;
}

static ts_tensor *rows_of(ts_mesh *self, int64_t micro)
{
    ts_meta meta = { .shape = TS_SHAPE(ROWS, WIDTH), .dtype = TS_DTYPE_F64 };
    return ts_cast(ts_from_function(pixel, &micro, ts_sharding_get(self, "R"), meta), TS_DTYPE_F32);
}

/* ---- a stage --------------------------------------------------------------------------------- */

typedef struct flight { /* a micro-batch between its forward and its backward */
    ts_tape *tape;
    ts_tensor *x, *y;
} flight;

typedef struct stage {
    ts_rank *me;
    ts_mesh *mesh, *self;
    ts_module *net;
    int64_t index, count;
    flight slot[MICRO];
} stage;

static ts_tensor *receive(const stage *s, int64_t offset, int64_t channel)
{
    ts_meta contract = { .shape = TS_SHAPE(ROWS, WIDTH), .dtype = TS_DTYPE_F32 };
    ts_peer peer = { s->mesh, "pp", offset, channel };
    return ts_recv(&contract, ts_sharding_get(s->self, "R"), &peer);
}

static void stage_forward(stage *s, int64_t micro)
{
    ts_scope scope = ts_scope_open(s->me, "F");
    ts_tensor *x = ts_watch(s->index == 0 ? rows_of(s->self, micro) : receive(s, -1, 0));
    ts_tape *tape = ts_tape_begin(s->me);
    ts_tensor *y = TS_CALL(s->net, x);
    if (s->index + 1 == s->count) {
        y = ts_mse_loss(y, rows_of(s->self, micro + 1), NULL);
    } else {
        ts_peer after = { s->mesh, "pp", 1, 0 };
        ts_send(y, &after); /* in flight when the scope closes: the send holds what it sends */
    }
    s->slot[micro] = (flight){ ts_tape_retain(tape), ts_tensor_retain(x), ts_tensor_retain(y) };
    ts_scope_close(scope);
}

static void stage_backward(stage *s, int64_t micro)
{
    flight *f = &s->slot[micro];
    ts_scope scope = ts_scope_open(s->me, "B");
    ts_backward_options options = TS_INIT(ts_backward_options);
    if (s->index + 1 < s->count) options.seed = receive(s, 1, 1);
    ts_backward(f->y, &options); /* gradients of weights add up over the micro-batches */
    if (s->index > 0) {
        ts_peer before = { s->mesh, "pp", -1, 1 };
        ts_send(ts_tensor_grad(f->x), &before);
    }
    ts_tape_release(f->tape);
    ts_tensor_release(f->x);
    ts_tensor_release(f->y);
    ts_scope_close(scope);
}

static void run_1f1b(stage *s)
{
    int64_t warm = s->count - 1 - s->index, f = 0, b = 0;
    while (f < warm && f < MICRO)
        stage_forward(s, f++);
    while (b < MICRO && ts_rank_status(s->me) == TS_OK) {
        if (f < MICRO) stage_forward(s, f++);
        stage_backward(s, b++);
    }
}

/* ---- the check ------------------------------------------------------------------------------- */

/* How far the gradient of this stage's weight is from that of the whole network. */
static double compare(const stage *s, ts_tensor *weight)
{
    layers all = { .first = 0, .count = s->count };
    ts_module *whole = layers_make(s->self, &all);
    for (int64_t micro = 0; micro < MICRO; micro++) {
        ts_scope scope = ts_scope_open(s->me, "whole");
        ts_tape_begin(s->me);
        ts_tensor *y = TS_CALL(whole, rows_of(s->self, micro));
        ts_backward(ts_mse_loss(y, rows_of(s->self, micro + 1), NULL), NULL);
        ts_scope_close(scope);
    }
    double worst = 1e30;
    ts_tensor *theirs = ts_tensor_grad(all.weight[s->index]);
    ts_tensor_item(ts_amax(ts_abs(ts_sub(ts_tensor_grad(weight), theirs)), NULL, 0, 0), &worst);
    ts_module_destroy(whole);
    return worst;
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    stage s = { .me = me, .mesh = ts_mesh_create(me, "pp=*"), .self = ts_mesh_self(me) };
    s.index = ts_mesh_coord(s.mesh, "pp");
    s.count = ts_mesh_size(s.mesh, "pp");
    if (s.count > STAGES_MAX) return ts_rank_fail(me, TS_ERR_ARG, "at most %d stages", STAGES_MAX);
    layers mine = { .first = s.index, .count = 1 };
    s.net = layers_make(s.self, &mine);
    run_1f1b(&s);
    double worst = compare(&s, mine.weight[0]);
    if (ts_rank_status(me) == TS_OK && !(worst < 1e-6))
        ts_rank_fail(me, TS_ERR_STATE, "stage %lld: its gradient is %g away", (long long)s.index,
                     worst);
    if (s.index == 0 && ts_rank_status(me) == TS_OK)
        printf("%lld stages, %d micro-batches: gradients as those of the whole network\n",
               (long long)s.count, MICRO);
    ts_module_destroy(s.net);
    return ts_rank_sync(me);
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
