/* SPDX-License-Identifier: Apache-2.0 */
/* 04_llama_block.c - a small Llama written by hand, trained on any mesh of data and tensor parallel
 * ranks, and checked against the same model on each rank alone.
 *
 * The model is ordinary code: products, norms, rotary positions, attention. Where its weights lie
 * is said once, in the options of each parameter ("tp?:S(1)": cut by columns on axis tp, if there
 * is one), and where activations lie between blocks by two redistributions a block. Nothing else
 * knows of ranks. Parameters are initialised by (seed, name, global index), so every mesh begins
 * with the same bits, which is what makes the comparison possible. Run it:
 *
 *   ./04_llama_block                      as many ranks as there are cores
 *   TESSERA_RANKS=4 ./04_llama_block      dp=2, tp=2
 *   mpirun -n 4 ./04_llama_block          the same over MPI
 *
 * Letters in names: B batch, T time, C channels, H heads, D size of a head. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <tessera/tessera.h>

typedef struct llama_config {
    int64_t dim, heads, kv_heads, hidden, layers, vocab, length;
    double epsilon;
} llama_config;

/* ---- a block --------------------------------------------------------------------------------- */

typedef struct block {
    llama_config c;
    ts_tensor *norm_a, *wq, *wk, *wv, *wo, *norm_f, *gate, *up, *down;
} block;

static ts_tensor *heads(ts_tensor *x_BTC, int64_t count)
{
    ts_shape s = ts_tensor_shape(x_BTC); /* no dims if x failed: then reshape returns NULL too */
    return ts_transpose(ts_reshape(x_BTC, TS_SHAPE(s.extent[0], s.extent[1], count, -1)), 1, 2);
}

static ts_tensor *attention(const block *b, ts_tensor *x_BTC, ts_tensor *table)
{
    ts_tensor *q = ts_rope(heads(ts_matmul(x_BTC, b->wq), b->c.heads), table);
    ts_tensor *k = ts_rope(heads(ts_matmul(x_BTC, b->wk), b->c.kv_heads), table);
    ts_tensor *v = heads(ts_matmul(x_BTC, b->wv), b->c.kv_heads);
    ts_attention_options options = TS_INIT(ts_attention_options);
    options.causal = 1;
    ts_tensor *o_BTHD = ts_transpose(ts_attention(q, k, v, &options), 1, 2);
    return ts_matmul(ts_reshape(o_BTHD, ts_tensor_shape(x_BTC)), b->wo);
}

static ts_tensor *swiglu(const block *b, ts_tensor *x)
{
    return ts_matmul(ts_mul(ts_silu(ts_matmul(x, b->gate)), ts_matmul(x, b->up)), b->down);
}

/* Between blocks the sequence is cut over tp as well, so norms are not computed twice. */
static ts_tensor *settle(ts_tensor *x)
{
    return ts_redistribute(x, "dp?:S(0) tp?:S(1)");
}

static void block_forward(void *state, const ts_module_io *io)
{
    const block *b = state;
    ts_tensor *x = io->input[0], *table = io->input[1];
    x = ts_add(x, settle(attention(b, ts_rms_norm(x, b->norm_a, b->c.epsilon), table)));
    io->output[0] = ts_add(x, settle(swiglu(b, ts_rms_norm(x, b->norm_f, b->c.epsilon))));
}

static const ts_module_desc block_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "llama.block",
                                           .input_count = 2,
                                           .output_count = 1,
                                           .forward = block_forward,
                                           .destroy = free };

static ts_tensor *param(ts_module *m, const char *name, ts_shape shape, const char *stored)
{
    ts_param_options options = TS_INIT(ts_param_options);
    options.stored = stored;
    options.init = shape.ndim == 1 ? ts_init_ones : ts_init_normal;
    return ts_module_param(m, name, shape, &options);
}

static ts_module *block_create(ts_mesh *mesh, const llama_config *c)
{
    block *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->c = *c;
    ts_module *m = ts_module_create(mesh, &block_desc, b);
    int64_t kv = c->dim / c->heads * c->kv_heads;
    b->norm_a = param(m, "attention_norm.weight", TS_SHAPE(c->dim), NULL);
    b->wq = param(m, "attention.wq.weight", TS_SHAPE(c->dim, c->dim), "tp?:S(1)");
    b->wk = param(m, "attention.wk.weight", TS_SHAPE(c->dim, kv), "tp?:S(1)");
    b->wv = param(m, "attention.wv.weight", TS_SHAPE(c->dim, kv), "tp?:S(1)");
    b->wo = param(m, "attention.wo.weight", TS_SHAPE(c->dim, c->dim), "tp?:S(0)");
    b->norm_f = param(m, "ffn_norm.weight", TS_SHAPE(c->dim), NULL);
    b->gate = param(m, "feed_forward.w1.weight", TS_SHAPE(c->dim, c->hidden), "tp?:S(1)");
    b->up = param(m, "feed_forward.w3.weight", TS_SHAPE(c->dim, c->hidden), "tp?:S(1)");
    b->down = param(m, "feed_forward.w2.weight", TS_SHAPE(c->hidden, c->dim), "tp?:S(0)");
    return m;
}

/* ---- the model ------------------------------------------------------------------------------- */

typedef struct llama {
    llama_config c;
    ts_tensor *embedding, *norm, *head;
    ts_module *layer[16];
} llama;

static void llama_forward(void *state, const ts_module_io *io)
{
    const llama *l = state;
    ts_scope scope = ts_scope_open(io->rank, "layers");
    ts_tensor *x = settle(ts_embedding(l->embedding, io->input[0]));
    for (int64_t i = 0; i < l->c.layers; i++) /* without a tape, turn frees the former x here */
        x = ts_scope_turn(scope, TS_CALL(l->layer[i], x, io->input[1]));
    x = ts_scope_leave(scope, x);
    io->output[0] = ts_matmul(ts_rms_norm(x, l->norm, l->c.epsilon), l->head);
}

static const ts_module_desc llama_desc = { .struct_size = sizeof(ts_module_desc),
                                           .type = "llama",
                                           .input_count = 2,
                                           .output_count = 1,
                                           .forward = llama_forward,
                                           .destroy = free };

static ts_module *llama_create(ts_mesh *mesh, const llama_config *c)
{
    llama *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->c = *c;
    ts_module *m = ts_module_create(mesh, &llama_desc, l);
    l->embedding = param(m, "tok_embeddings.weight", TS_SHAPE(c->vocab, c->dim), "tp?:S(0)");
    for (int64_t i = 0; i < c->layers; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layers.%lld", (long long)i);
        l->layer[i] = ts_module_add(m, name, block_create(mesh, c));
    }
    l->norm = param(m, "norm.weight", TS_SHAPE(c->dim), NULL);
    l->head = param(m, "output.weight", TS_SHAPE(c->dim, c->vocab), "tp?:S(1)");
    ts_module_materialize(m); /* each rank gets its shards, and nothing more */
    return m;
}

/* ---- data ------------------------------------------------------------------------------------ */

/* Cosines of the D/2 angles of each position, then their sines. */
static ts_status angle(const int64_t *global, void *element, void *context)
{
    int64_t half = *(const int64_t *)context / 2, i = global[1] % half;
    double a = (double)global[0] * pow(10000.0, -(double)i / (double)half);
    *(float *)element = (float)(global[1] < half ? cos(a) : sin(a));
    return TS_OK;
}

/* A text that repeats itself with another period in each row: what comes next can be learned. */
static ts_status token(const int64_t *global, void *element, void *context)
{
    int64_t shift = *(const int64_t *)context;
    *(int64_t *)element = (global[1] + shift) % (3 + global[0]) + 7 * global[0];
    return TS_OK;
}

typedef struct lesson {
    ts_tensor *ids, *labels, *table;
} lesson;

static lesson lesson_of(ts_mesh *mesh, const llama_config *c)
{
    const ts_sharding *rows = ts_sharding_get(mesh, "dp?:S(0)");
    const ts_sharding *whole = ts_sharding_get(mesh, "dp?:R");
    ts_meta ids = { .shape = TS_SHAPE(6, c->length), .dtype = TS_DTYPE_I64 };
    int64_t now = 0, next = 1, size = c->dim / c->heads;
    ts_meta table = { .shape = TS_SHAPE(c->length, size), .dtype = TS_DTYPE_F32 };
    return (lesson){ ts_from_function(token, &now, rows, ids),
                     ts_from_function(token, &next, rows, ids),
                     ts_from_function(angle, &size, whole, table) };
}

/* Trains, and returns the last loss. */
static double train(ts_rank *me, ts_mesh *mesh, const llama_config *c, int steps)
{
    ts_module *net = llama_create(mesh, c);
    ts_adamw_options adamw = TS_INIT(ts_adamw_options);
    adamw.lr = 1e-2;
    ts_optimizer *optimizer = ts_adamw_create(net, &adamw);
    double loss = 0;
    for (int step = 0; step < steps && ts_rank_status(me) == TS_OK; step++) {
        ts_scope scope = ts_scope_open(me, "step");
        ts_tape_begin(me);
        lesson l = lesson_of(mesh, c);
        ts_tensor *y = ts_cross_entropy(TS_CALL(net, l.ids, l.table), l.labels);
        ts_tensor_item(y, &loss);
        ts_backward(y, NULL);
        ts_optimizer_step(optimizer);
        ts_scope_close(scope);
    }
    ts_optimizer_destroy(optimizer);
    ts_module_destroy(net);
    return loss;
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    const llama_config c = { .dim = 32,
                             .heads = 4,
                             .kv_heads = 2,
                             .hidden = 48,
                             .layers = 2,
                             .vocab = 64,
                             .length = 16,
                             .epsilon = 1e-5 };
    bool even = ts_rank_count(me) % 2 == 0;
    ts_mesh *mesh = ts_mesh_create(me, even ? "dp=*, tp=2" : "dp=*, tp=1");
    double together = train(me, mesh, &c, 40), alone = train(me, ts_mesh_self(me), &c, 40);
    if (ts_rank_index(me) == 0)
        printf("loss after 40 steps on %lld ranks: %.4f\n", (long long)ts_rank_count(me), together);
    if (ts_rank_status(me) == TS_OK && !(fabs(together - alone) < 1e-3 && together < 1.0))
        ts_rank_fail(me, TS_ERR_STATE, "%.6f together, %.6f alone, below 1 expected", together,
                     alone);
    return ts_rank_sync(me);
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
