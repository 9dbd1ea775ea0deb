/* SPDX-License-Identifier: Apache-2.0 */
/* op_matrix.h - matrix products, einsum, embedding, rotary positions, cross-entropy, attention.
 *
 * makers: NULL on failure, NULL in gives NULL out (world.h). Any operator takes any placement; what
 * cannot stay sharded is moved, as far as the policy of the open scope allows (scope.h). A
 * contracted dim that is sharded gives a partial sum; nothing is flattened, so batch and sequence
 * dims may be sharded too. */
#ifndef TESSERA_OP_MATRIX_H
#define TESSERA_OP_MATRIX_H

#include "mask.h"
#include "tensor.h"

/* How a product runs that must gather rows of x, or whose result is summed and cut along rows. */
typedef enum ts_product_algorithm {
    TS_PRODUCT_AUTO,  /* by cost */
    TS_PRODUCT_WHOLE, /* all rows move, before the product or after it */
    TS_PRODUCT_CHUNKS /* rows of one rank move while those of another are multiplied; where rows
                       * cannot be cut without changing bits: whole */
} ts_product_algorithm;

/* How attention runs where q, k and v are cut along the sequence. */
typedef enum ts_attention_algorithm {
    TS_ATTENTION_AUTO,     /* by cost */
    TS_ATTENTION_GATHER,   /* keys and values that are seen come at once */
    TS_ATTENTION_RING,     /* or from one rank after the other, while others are computed */
    TS_ATTENTION_HEADS,    /* the cut goes from the sequence to the heads, and back */
    TS_ATTENTION_TWO_LEVEL /* of two axes: heads on the inner, ring on the outer */
} ts_attention_algorithm;

typedef struct ts_attention_options {
    size_t struct_size;
    double scale;        /* of scores; 0, unless exact, and NaN: 1 / sqrt(D) */
    int32_t causal;      /* query i sees keys up to i + S - T */
    int32_t exact;       /* 1: a scale of 0 is meant: all keys that are seen weigh the same */
    const ts_mask *mask; /* who sees whom, and changes of scores; NULL: causal or all */
    double dropout;      /* of weights, by global index: the same on any layout */
    uint64_t seed;       /* of its draws */
    int32_t algorithm;   /* ts_attention_algorithm, where the sequence is cut */
    int32_t reserved2;
    /* NULL, or a tensor [B, H, T, S], any extent of which may be 1: numbers that are added to
     * scores after caps, or (bool) which pairs are seen. The last resort: scores of all pairs
     * exist. Gets a gradient like q, k and v. */
    ts_tensor *bias;
} ts_attention_options;

typedef struct ts_attention_saved {
    size_t struct_size;
    ts_tensor *q, *k, *v, *o, *lse;
    ts_tensor *d_o;   /* NULL: 0 */
    ts_tensor *d_lse; /* (optional) the gradient of the log-sum-exp */
} ts_attention_saved;

typedef struct ts_grouped_mlp_options { /* of E experts, K chosen for each row */
    size_t struct_size;
    ts_tensor *weight;      /* [.., K] */
    ts_tensor *in, *out;    /* [E, 2, F, C]: gates, then what they gate; [E, C, F] */
    const char *activation; /* silu (NULL), gelu, gelu_tanh, quick_gelu, relu, relu2, sigmoid, tanh,
                               linear */
    const char *algorithm;  /* where rows and experts are cut by the same axes: auto (NULL), rows,
                               nodes, gather */
    int32_t skips;          /* 1: a choice of -1 is none, and adds nothing */
    int32_t reserved;
} ts_grouped_mlp_options;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_attention_options_init(ts_attention_options *options);
TS_API void ts_grouped_mlp_options_init(ts_grouped_mlp_options *options);

TS_API ts_tensor *ts_matmul(ts_tensor *a,
                            ts_tensor *b); /* over the last two dims; batch dims broadcast */
TS_API ts_tensor *ts_mm(ts_tensor *a, ts_tensor *b);  /* two matrices */
TS_API ts_tensor *ts_bmm(ts_tensor *a, ts_tensor *b); /* two batches of matrices */
TS_API ts_tensor *ts_mv(ts_tensor *a, ts_tensor *b);  /* matrix and vector */
TS_API ts_tensor *ts_dot(ts_tensor *a, ts_tensor *b); /* two vectors */
TS_API ts_tensor *ts_linear(ts_tensor *x, ts_tensor *weight, ts_tensor *bias /* may be NULL */);
/* The same, and where the result would be a pending sum (x and weight are cut along what is summed)
 * it is summed and cut along `dim`, which is not its last one: rows of other ranks are computed
 * first and fetched by them while this one goes on. The bits of ts_linear and ts_redistribute. */
TS_API ts_tensor *ts_linear_scatter(ts_tensor *x, ts_tensor *weight, ts_tensor *bias, int32_t dim);
/* x w^T for 2 or 3 weights (others: one after the other) into out: on a device one product where
 * the weights lie beside each other, as those that a model keeps for q, k and v do. recorded */
TS_API ts_status ts_linear_list(ts_tensor *x, ts_tensor *const *weight, int32_t count,
                                ts_tensor **out);
TS_API ts_tensor *ts_addmm(ts_tensor *bias, ts_tensor *a, ts_tensor *b);
TS_API ts_tensor *ts_baddbmm(ts_tensor *bias, ts_tensor *a, ts_tensor *b);
/* "bhqd,bhkd->bhqk", "...ij,...jk->...ik", or without a result: letters that occur once, in order.
 * One input: b is NULL. */
TS_API ts_tensor *ts_einsum(const char *equation, ts_tensor *a, ts_tensor *b);
TS_API ts_tensor *ts_einsum_many(const char *equation, ts_tensor *const *in,
                                 int32_t count); /* 1 to 8 inputs, multiplied from the left */

/* a [T, K], rows sorted by group, times b [G, K, N]: group g has rows ends[g-1] .. ends[g]-1; rows
 * beyond the last end give zeros. Groups may be sharded (experts): a partial sum. */
TS_API ts_tensor *ts_grouped_mm(ts_tensor *a, ts_tensor *b, ts_tensor *ends);

/* x [.., C], weight [E, F, C], group [..] of 0 .. E-1 -> [.., F]: each row times the matrix of its
 * group, and no others. Sharded groups give a partial sum; no row moves. */
TS_API ts_tensor *ts_grouped_linear(ts_tensor *x, ts_tensor *weight, ts_tensor *group);
TS_API ts_tensor *ts_grouped_linear_backward(ts_tensor *dy, ts_tensor *x, ts_tensor *group,
                                             int64_t groups); /* [E, F, C] */

/* x [.., C], which [.., K] of 0 .. E-1 -> [.., C]: the sum over the K chosen experts of a row of
 * weight out (act(gate x) * up x). Where rows and experts are cut by the same axes each row goes to
 * the ranks that hold its experts once, and one row comes back from each. */
TS_API ts_tensor *ts_grouped_mlp(ts_tensor *x, ts_tensor *which,
                                 const ts_grouped_mlp_options *options);

/* Rows of a table [V, D] by index; a table sharded by rows gives a partial sum, nothing is
 * gathered. */
TS_API ts_tensor *ts_embedding(ts_tensor *table, ts_tensor *ids);
TS_API ts_tensor *ts_embedding_backward(ts_tensor *dy, ts_tensor *ids, int64_t rows);
/* x [.., T, D] rotated by table [T or more, D]: cosines of D/2 angles per position, then their
 * sines. */
TS_API ts_tensor *ts_rope(ts_tensor *x, ts_tensor *table);
TS_API ts_tensor *ts_rope_(ts_tensor *x, ts_tensor *table); /* in place */
/* Mean over labels that are not -100; classes (the last dim) may be sharded. */
TS_API ts_tensor *ts_cross_entropy(ts_tensor *logits, ts_tensor *labels);
TS_API ts_tensor *ts_cross_entropy_sum(ts_tensor *logits, ts_tensor *labels);
/* x itself; backward the loss, one number, gets `factor` as its gradient, as if it had been added
 * to what the tape ends in: the loss of a layer, which need not leave the layer for that. */
TS_API ts_tensor *ts_with_loss(ts_tensor *x, ts_tensor *loss, double factor);
typedef struct ts_cross_entropy_options {
    size_t struct_size;
    ts_tensor *weight;      /* [C], of each class; NULL: 1 */
    double label_smoothing; /* this share of each label is spread over all classes */
    int64_t ignore_index;   /* such labels count for nothing */
    int32_t reduction; /* ts_loss_reduction: mean (over the weights of the labels), sum, none */
    int32_t reserved;
} ts_cross_entropy_options;
TS_API void ts_cross_entropy_options_init(ts_cross_entropy_options *options);
#define TS_CROSS_ENTROPY_OPTIONS_INIT                                                              \
    {                                                                                              \
        sizeof(ts_cross_entropy_options), NULL, 0.0, -100, 0, 0                                    \
    }
TS_API ts_tensor *ts_cross_entropy_with(ts_tensor *logits, ts_tensor *labels,
                                        const ts_cross_entropy_options *options);
typedef struct ts_linear_cross_entropy_options {
    size_t struct_size;
    int64_t ignore_index; /* such labels count for nothing */
    int64_t rows;         /* of a chunk; 0: as many as have 32 MiB of logits, at least 256 */
    int32_t sum;          /* 1: not divided by the number of labels that count */
    int32_t no_gradients; /* 1: the loss alone, which then has none */
} ts_linear_cross_entropy_options;
TS_API void ts_linear_cross_entropy_options_init(ts_linear_cross_entropy_options *options);
#define TS_LINEAR_CROSS_ENTROPY_OPTIONS_INIT                                                       \
    {                                                                                              \
        sizeof(ts_linear_cross_entropy_options), -100, 0, 0, 0                                     \
    }
/* cross_entropy of linear(x, weight): x [.., C], weight [V, C], labels [..]. The logits are made
 * chunk by chunk of rows, each with its part of the loss and of both gradients, and never exist as
 * a whole. The weight is used whole: where its classes are cut, cross_entropy needs no gather. */
TS_API ts_tensor *ts_linear_cross_entropy(ts_tensor *x, ts_tensor *weight, ts_tensor *labels,
                                          const ts_linear_cross_entropy_options *options);
/* x [.., C] log-probabilities instead of logits; labels are not smoothed (op_nn.h: ts_nll_loss). */
TS_API ts_tensor *ts_nll_loss_with(ts_tensor *x, ts_tensor *labels,
                                   const ts_cross_entropy_options *options);
TS_API ts_tensor *ts_pick(ts_tensor *x,
                          ts_tensor *labels); /* x[.., label]; 0 where it is no class */

/* q [B, H, T, D], k [B, G, S, D], v [B, G, S, E] -> [B, H, T, E]; H is a multiple of G, and nobody
 * copies groups. Or packed rows, q [T, H, D], k [S, G, D], v [S, G, E] -> [T, H, E], whose
 * boundaries are the documents of a mask. A query that sees nothing gives zeros. Of bf16, weights
 * and gradients of scores may be rounded to bf16 before they are multiplied; scores, exponentials
 * and all sums are f32. */
TS_API ts_tensor *ts_attention(ts_tensor *q, ts_tensor *k, ts_tensor *v,
                               const ts_attention_options *options);
TS_API ts_status ts_attention_lse(ts_tensor *q, ts_tensor *k, ts_tensor *v,
                                  const ts_attention_options *options,
                                  ts_tensor *out[2]); /* and log-sum-exp [B, H, T] */
TS_API ts_status ts_attention_backward(const ts_attention_saved *saved,
                                       const ts_attention_options *options, ts_tensor *d_qkv[3]);

TS_END_C

/* Each call also tells its place, for messages and events. */
#define ts_matmul(...) (ts_here(TS_HERE), ts_matmul(__VA_ARGS__))
#define ts_mm(...) (ts_here(TS_HERE), ts_mm(__VA_ARGS__))
#define ts_bmm(...) (ts_here(TS_HERE), ts_bmm(__VA_ARGS__))
#define ts_mv(...) (ts_here(TS_HERE), ts_mv(__VA_ARGS__))
#define ts_dot(...) (ts_here(TS_HERE), ts_dot(__VA_ARGS__))
#define ts_linear(...) (ts_here(TS_HERE), ts_linear(__VA_ARGS__))
#define ts_linear_scatter(...) (ts_here(TS_HERE), ts_linear_scatter(__VA_ARGS__))
#define ts_linear_list(...) (ts_here(TS_HERE), ts_linear_list(__VA_ARGS__))
#define ts_addmm(...) (ts_here(TS_HERE), ts_addmm(__VA_ARGS__))
#define ts_baddbmm(...) (ts_here(TS_HERE), ts_baddbmm(__VA_ARGS__))
#define ts_einsum(...) (ts_here(TS_HERE), ts_einsum(__VA_ARGS__))
#define ts_einsum_many(...) (ts_here(TS_HERE), ts_einsum_many(__VA_ARGS__))
#define ts_grouped_linear(...) (ts_here(TS_HERE), ts_grouped_linear(__VA_ARGS__))
#define ts_grouped_mlp(...) (ts_here(TS_HERE), ts_grouped_mlp(__VA_ARGS__))
#define ts_embedding(...) (ts_here(TS_HERE), ts_embedding(__VA_ARGS__))
#define ts_rope_(...) (ts_here(TS_HERE), ts_rope_(__VA_ARGS__))
#define ts_rope(...) (ts_here(TS_HERE), ts_rope(__VA_ARGS__))
#define ts_with_loss(...) (ts_here(TS_HERE), ts_with_loss(__VA_ARGS__))
#define ts_cross_entropy(...) (ts_here(TS_HERE), ts_cross_entropy(__VA_ARGS__))
#define ts_cross_entropy_sum(...) (ts_here(TS_HERE), ts_cross_entropy_sum(__VA_ARGS__))
#define ts_cross_entropy_with(...) (ts_here(TS_HERE), ts_cross_entropy_with(__VA_ARGS__))
#define ts_linear_cross_entropy(...) (ts_here(TS_HERE), ts_linear_cross_entropy(__VA_ARGS__))
#define ts_nll_loss_with(...) (ts_here(TS_HERE), ts_nll_loss_with(__VA_ARGS__))
#define ts_grouped_mm(...) (ts_here(TS_HERE), ts_grouped_mm(__VA_ARGS__))
#define ts_pick(...) (ts_here(TS_HERE), ts_pick(__VA_ARGS__))
#define ts_attention(...) (ts_here(TS_HERE), ts_attention(__VA_ARGS__))
#define ts_attention_lse(...) (ts_here(TS_HERE), ts_attention_lse(__VA_ARGS__))
#define ts_attention_backward(...) (ts_here(TS_HERE), ts_attention_backward(__VA_ARGS__))

#endif
