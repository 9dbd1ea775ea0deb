/* SPDX-License-Identifier: Apache-2.0 */
/* 05_ring_attention.c - attention over a sequence that no rank holds whole, and its gradient.
 *
 * Queries, keys and values [B, H, T, D] are cut along T over an axis cp. Keys and values go round
 * the ring: at step i a rank holds the block of the rank i before it, attends to it, and merges
 * what it got into what it has by the log-sum-exp of both. The next block travels meanwhile: a
 * shift returns at once and completes when its result is first used.
 *
 *   rank 0: q0 k0   | k3 -> skipped (it lies in the future) ...
 *   rank 1: q1 k1   | q1 k0  | ...
 *   rank 2: q2 k2   | q2 k1  | q2 k0
 *
 * In the gradient, the gradients of a block of keys travel with it and are home after the last
 * step. T need not divide by the number of ranks. Checked against ts_attention. Run it:
 *
 *   TESSERA_RANKS=3 ./05_ring_attention        or        mpirun -n 3 ./05_ring_attention */
#include <stdbool.h>
#include <stdio.h>

#include <tessera/tessera.h>

typedef struct ring {
    ts_mesh *mesh;
    int64_t size, at; /* ranks of the ring, and my place in it */
} ring;

typedef struct attended {
    ts_tensor *out, *lse; /* blocks of this rank */
} attended;

/* The options for a block of keys that was `back` places before me; false: it lies in the future.
 */
static bool visible(const ring *r, int64_t back, ts_attention_options *options)
{
    ts_attention_options fresh = TS_INIT(ts_attention_options);
    fresh.causal = back == 0; /* earlier blocks are seen whole */
    *options = fresh;
    return back <= r->at;
}

/* a + g (b - a), with g the share of b in both: numerically safe for any sizes. */
static attended merge(attended a, ts_tensor *const b[2])
{
    ts_tensor *share = ts_sigmoid(ts_sub(b[1], a.lse));
    ts_tensor *out = ts_add(a.out, ts_mul(ts_unsqueeze(share, 3), ts_sub(b[0], a.out)));
    return (attended){ out, ts_logaddexp(a.lse, b[1]) };
}

static attended ring_forward(const ring *r, ts_tensor *q, ts_tensor *k, ts_tensor *v)
{
    attended all = { NULL, NULL };
    ts_tensor *mine = ts_tensor_local(q);
    for (int64_t i = 0; i < r->size; i++) {
        bool last = i + 1 == r->size;
        ts_tensor *next_k =
            last ? NULL : ts_shift(k, "cp", 1); /* on their way during what follows */
        ts_tensor *next_v = last ? NULL : ts_shift(v, "cp", 1);
        ts_attention_options options;
        ts_tensor *part[2];
        if (visible(r, i, &options)) {
            ts_attention_lse(mine, ts_tensor_local(k), ts_tensor_local(v), &options, part);
            all = i == 0 ? (attended){ part[0], part[1] } : merge(all, part);
        }
        k = next_k;
        v = next_v;
    }
    return all;
}

/* A block as part of the tensor whose layout `like` has. */
static ts_tensor *whole(ts_tensor *local, ts_tensor *like)
{
    return ts_from_local(local, ts_layout_sharding(ts_tensor_layout(like)), ts_tensor_shape(like));
}

/* Gradients of q, k and v from that of the output: d_out is this rank's block of it. */
static void ring_backward(const ring *r, ts_tensor *const qkv[3], attended saved, ts_tensor *d_out,
                          ts_tensor *grad[3])
{
    ts_tensor *k = qkv[1], *v = qkv[2], *dq = NULL, *dk = NULL, *dv = NULL;
    for (int64_t i = 0; i < r->size; i++) {
        ts_attention_options options;
        ts_tensor *d[3] = { NULL, NULL, NULL };
        if (visible(r, i, &options)) {
            ts_attention_saved s = TS_INIT(ts_attention_saved);
            s.q = ts_tensor_local(qkv[0]);
            s.k = ts_tensor_local(k);
            s.v = ts_tensor_local(v);
            s.o = saved.out;
            s.lse = saved.lse;
            s.d_o = d_out;
            ts_attention_backward(&s, &options, d);
            dq = dq ? ts_add(dq, d[0]) : d[0];
        } else {
            d[1] = ts_zeros_like(ts_tensor_local(k));
            d[2] = ts_zeros_like(ts_tensor_local(v));
        }
        dk = i == 0 ? whole(d[1], k) : ts_add(dk, whole(d[1], k));
        dv = i == 0 ? whole(d[2], v) : ts_add(dv, whole(d[2], v));
        dk = ts_shift(dk, "cp", 1); /* with the block they belong to; the last step leads home */
        dv = ts_shift(dv, "cp", 1);
        k = ts_shift(k, "cp", 1);
        v = ts_shift(v, "cp", 1);
    }
    grad[0] = whole(dq, qkv[0]);
    grad[1] = dk;
    grad[2] = dv;
}

/* ---- the check ------------------------------------------------------------------------------- */

static double difference(ts_tensor *a, ts_tensor *b)
{
    double worst = 1e30;
    ts_tensor_item(ts_amax(ts_abs(ts_sub(a, b)), NULL, 0, 0), &worst);
    return worst;
}

static ts_status compare(ts_rank *me, const ring *r, int64_t length)
{
    ts_scope scope = ts_scope_open(me, "case");
    ts_shape shape = TS_SHAPE(2, 3, length, 8);
    ts_tensor *x[4], *ours[3];
    for (int i = 0; i < 4; i++) /* q, k, v and the gradient of the output */
        x[i] = ts_randn(r->mesh, TS_DTYPE_F64, shape, "cp:S(2)");
    attended all = ring_forward(r, x[0], x[1], x[2]);
    ring_backward(r, x, all, ts_tensor_local(x[3]), ours);

    ts_tape_begin(me); /* the same by one operator, which gathers what it needs */
    ts_tensor *q = ts_watch(x[0]), *k = ts_watch(x[1]), *v = ts_watch(x[2]);
    ts_attention_options causal = TS_INIT(ts_attention_options);
    causal.causal = 1;
    ts_tensor *out = ts_attention(q, k, v, &causal);
    ts_backward_options seed = TS_INIT(ts_backward_options);
    seed.seed = x[3];
    ts_backward(out, &seed);
    double worst = difference(whole(all.out, x[0]), out);
    ts_tensor *const theirs[3] = { ts_tensor_grad(q), ts_tensor_grad(k), ts_tensor_grad(v) };
    for (int i = 0; i < 3; i++) {
        double d = difference(ours[i], theirs[i]);
        worst = d > worst ? d : worst;
    }
    if (ts_rank_index(me) == 0)
        printf("T = %lld on %lld ranks: %s 1e-12 apart\n", (long long)length, (long long)r->size,
               worst < 1e-12 ? "less than" : "MORE than");
    if (ts_rank_status(me) == TS_OK && !(worst < 1e-12))
        ts_rank_fail(me, TS_ERR_STATE, "the ring is %g away from attention", worst);
    ts_scope_close(scope);
    return ts_rank_status(me);
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    ring r = { .mesh = ts_mesh_create(me, "cp=*") };
    r.size = ts_mesh_size(r.mesh, "cp");
    r.at = ts_mesh_coord(r.mesh, "cp");
    for (int64_t length = 3 * r.size; length < 4 * r.size; length++)
        compare(me, &r, length);
    return ts_rank_sync(me);
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
