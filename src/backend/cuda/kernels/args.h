/* SPDX-License-Identifier: Apache-2.0 */
/* args.h - what kernels are called with: one struct each, read by C and CUDA alike.
 *
 * INV: plain data in the common part of C11 and C++17; at most 4096 bytes. Strides are in units of
 * what the kernel moves (elements, or units of 1 to 16 bytes), extents outermost first. */
#ifndef TSI_BACKEND_CUDA_KERNELS_ARGS_H
#define TSI_BACKEND_CUDA_KERNELS_ARGS_H

#include <stdint.h>

#include "base/philox.h"
#include "base/portable.h"
#include "device/recipe.h"

enum { TSI_CUDA_DIMS = 8, TSI_CUDA_SOURCES = 32, TSI_CUDA_BLOCK = 256 };

/* n / divisor for n < 2^31 as a product and a shift. */
typedef struct tsi_cuda_divisor {
    uint32_t divisor, magic, shift;
} tsi_cuda_divisor;

/* The index space of a launch. Counts from 2^31 on divide by the extents themselves. */
typedef struct tsi_cuda_space {
    int64_t count;
    int32_t ndim, reserved;
    int64_t extent[TSI_CUDA_DIMS];
    tsi_cuda_divisor by[TSI_CUDA_DIMS];
} tsi_cuda_space;

typedef struct tsi_cuda_operand {
    void *data;
    int64_t stride[TSI_CUDA_DIMS];
} tsi_cuda_operand;

#ifdef __CUDACC__
#define TSI_BOTH_SIDES __host__ __device__
#else
#define TSI_BOTH_SIDES
#endif

/* The global indices of one dim of a block, as spans of the host's (layout/region.h). */
enum { TSI_CUDA_SPANS = 4 };
typedef struct tsi_cuda_span {
    int64_t begin, length, period, count;
} tsi_cuda_span;
typedef struct tsi_cuda_places {
    int64_t count; /* 0: indices are places */
    tsi_cuda_span span[TSI_CUDA_SPANS];
} tsi_cuda_places;

TSI_BOTH_SIDES static inline int64_t tsi_cuda_index_at(const tsi_cuda_places *p, int64_t place)
{
    for (int64_t s = 0; s < p->count; s++) {
        const tsi_cuda_span *span = &p->span[s];
        int64_t size = span->length * span->count;
        if (place < size)
            return span->begin + place / span->length * span->period + place % span->length;
        place -= size;
    }
    return place;
}

/* The place of a global index; -1: it is not here. */
TSI_BOTH_SIDES static inline int64_t tsi_cuda_place_of(const tsi_cuda_places *p, int64_t index)
{
    int64_t before = 0;
    if (p->count == 0) return index;
    for (int64_t s = 0; s < p->count; s++) {
        const tsi_cuda_span *span = &p->span[s];
        int64_t off = index - span->begin, nth = off / span->period;
        if (off < 0) return -1;
        if (nth < span->count && off % span->period < span->length)
            return before + nth * span->length + off % span->period;
        before += span->length * span->count;
    }
    return -1;
}

/* What a kernel finds wrong with its data: the first one is kept, on the device, until the next
 * wait tells it (complain.c). */
enum {
    TSI_CUDA_BAD_INDEX = 1,
    TSI_CUDA_BAD_LABEL,
    TSI_CUDA_BAD_GROUP,
    TSI_CUDA_BAD_PLACE,
    TSI_CUDA_BAD_NUMBER,
    TSI_CUDA_BAD_END
};
typedef struct tsi_cuda_complaint {
    uint64_t order; /* 0: none; else the greater, the earlier: calls, then places (complain.cuh) */
    int64_t value, least, bound; /* values from `least` up to the bound are right */
    int64_t place;
    uint64_t serial; /* of the call */
    int32_t kind, cut;
    int32_t lock, reserved; /* 1: a thread writes it */
} tsi_cuda_complaint;
typedef struct tsi_cuda_asker {
    tsi_cuda_complaint *to;
    uint64_t serial;
    int64_t bound;     /* values up to it are right */
    int32_t kind, cut; /* cut: other ranks have other values */
} tsi_cuda_asker;

/* copy.cu: units of one size, or a cast between dtypes. */
typedef struct tsi_cuda_copy_args {
    tsi_cuda_space space;
    tsi_cuda_operand to, from;
    int32_t to_dtype, from_dtype;
} tsi_cuda_copy_args;

/* copy.cu: pieces of one shape that lie apart; to.data and from.data are not used. */
enum { TSI_CUDA_PIECES = 64 };
typedef struct tsi_cuda_copy_list_args {
    tsi_cuda_copy_args each;
    int64_t count, blocks; /* pieces; blocks of threads for one of them */
    void *to[TSI_CUDA_PIECES];
    const void *from[TSI_CUDA_PIECES];
} tsi_cuda_copy_list_args;

/* copy.cu: dims `row` and `column` in tiles; `from` is contiguous along `row`, `to` along `column`.
 * The other dims are the space. */
typedef struct tsi_cuda_transpose_args {
    tsi_cuda_space space;
    tsi_cuda_operand to, from; /* over the space */
    int64_t rows, columns;
    int64_t to_row, from_column; /* strides: to[row * to_row + column], from[column * .. + row] */
    int64_t row_tiles, column_tiles;
} tsi_cuda_transpose_args;

typedef struct tsi_cuda_fill_args {
    tsi_cuda_space space;
    tsi_cuda_operand to;
    uint32_t pattern[4]; /* 16 bytes of repeated elements */
} tsi_cuda_fill_args;

/* fold.cu */
typedef struct tsi_cuda_fold_args {
    tsi_cuda_space space;
    tsi_cuda_operand to;
    int64_t sources, divisor;
    int32_t reduce, dense;        /* dense: all blocks contiguous and on 16 bytes */
    const tsi_cuda_operand *more; /* on the device, where there are too many; else NULL */
    tsi_cuda_operand from[TSI_CUDA_SOURCES];
} tsi_cuda_fold_args;

/* pointwise.cu: the operators of scalars.def. */
enum {
#define TSI_HOT(name, real, whole) TSI_POINTWISE_##name,
#define TSI_POINT(name, real, whole) TSI_POINTWISE_##name,
#include "op/pointwise/scalars.def"
#undef TSI_HOT
#undef TSI_POINT
    TSI_POINTWISE_COUNT
};
typedef struct tsi_cuda_pointwise_args {
    tsi_cuda_space space; /* of elements; of loops over 16 bytes: of such units */
    tsi_cuda_operand to, from[3];
    int64_t count;    /* elements */
    int32_t dtype[4]; /* of the result, then of the inputs */
    int32_t single;   /* loops over 16 bytes: bit k: input k is one number for a unit */
    int32_t op, inputs, flag;
    double number[3];
    int64_t whole[3]; /* the same as whole numbers, where they are */
} tsi_cuda_pointwise_args;

/* reduce.cu: `outer` are the results, `inner` what is reduced into each. Pieces of the inner space
 * leave partial results, which are folded in order. */
enum {
    TSI_CUDA_SUM,
    TSI_CUDA_MAX,
    TSI_CUDA_MIN,
    TSI_CUDA_PROD,
    TSI_CUDA_ANY,
    TSI_CUDA_ALL,
    TSI_CUDA_COUNT,
    TSI_CUDA_POWER,
    TSI_CUDA_SQUARES,      /* of what differs from the center */
    TSI_CUDA_EXPONENTIALS, /* over the center */
    TSI_CUDA_NORM          /* powers of sizes, as parts of the center */
};
enum { TSI_CUDA_TICKETS = 528 };       /* of a stream */
enum { TSI_CUDA_REDUCE_LARGE = 1024 }; /* threads of a block that folds columns, or parts at most */
/* What is written of a result. */
enum { TSI_CUDA_AS_IT_IS, TSI_CUDA_ITS_ROOT, TSI_CUDA_ITS_LOG, TSI_CUDA_ITS_NORM };
typedef struct tsi_cuda_reduce_args {
    tsi_cuda_space outer, inner;
    tsi_cuda_operand from, within; /* along outer; along inner, without data of its own */
    tsi_cuda_operand to;
    int64_t pieces, piece; /* how many, how long */
    void *partial;         /* [pieces][results] where there are several */
    uint32_t *tickets;     /* zeros, one for each row or tile of columns in pieces */
    int64_t start;         /* of extremes of whole numbers */
    double power, divide;
    int32_t op, from_dtype, to_dtype, after;
    const void *center; /* (optional) of each result, in what is computed in */
} tsi_cuda_reduce_args;

/* reduce.cu: the place of an extreme. `at` has an i64 for each result. */
typedef struct tsi_cuda_extreme_args {
    tsi_cuda_space outer, inner;
    tsi_cuda_operand from, within, to, at; /* to: no data if only places are wanted */
    int32_t least, from_dtype, to_dtype, whole;
} tsi_cuda_extreme_args;

/* loss.cu: the term of each element; the numbers are X(name, term of x, t, point and flag). */
#define TSI_CUDA_LOSSES(X)                                                                         \
    X(mse_loss, (x - t) * (x - t))                                                                 \
    X(l1_loss, fabs(x - t))                                                                        \
    X(smooth_l1_loss, bent(fabs(x - t), point))                                                    \
    X(huber_loss, point *bent(fabs(x - t), point))                                                 \
    X(bce, -(t * at_least(log(x), R(-100)) + (R(1) - t) * at_least(log1p(-x), R(-100))))           \
    X(bce_with_logits, fmax(x, R(0)) - x * t + log1p(exp(-fabs(x))))                               \
    X(kl_div, flag ? exp(t) * (t - x) : t <= R(0) && !isnan(x) ? R(0) : t * (log(t) - x))
typedef enum tsi_cuda_loss {
#define TSI_CUDA_LOSS_NAME(name, term) TSI_CUDA_LOSS_##name,
    TSI_CUDA_LOSSES(TSI_CUDA_LOSS_NAME)
#undef TSI_CUDA_LOSS_NAME
} tsi_cuda_loss;
typedef struct tsi_cuda_loss_args {
    tsi_cuda_space space;
    tsi_cuda_operand x, target, to;
    double point;
    int32_t kind, flag;
    int32_t dtype[3], reserved; /* of x, target, to */
} tsi_cuda_loss_args;

/* nll.cu: of each label the cost of its class, by its weight; then their sum, by one block. */
typedef struct tsi_cuda_nll_args {
    tsi_cuda_space space;            /* of the labels */
    tsi_cuda_operand x, labels, to;  /* x: without its classes; to: no data if sums are wanted */
    const void *weight;              /* (optional) */
    int64_t class_step, weight_step; /* from class to class */
    tsi_cuda_places place, weight_place; /* of the classes */
    int64_t ignore;
    tsi_cuda_asker asker;
    double *terms; /* one a label, then what each weighs */
    void *loss;
    int32_t dtype, label_dtype, weight_dtype, to_dtype; /* to: of the terms or the loss */
    int32_t mean, reserved;
} tsi_cuda_nll_args;

/* group_norm.cu: a block a group of channels of a batch element. */
typedef struct tsi_cuda_group_norm_args {
    tsi_cuda_space inner;                       /* of a group: its channels, then places */
    tsi_cuda_operand x, y, channel;             /* along inner; channel: its number in the group */
    tsi_cuda_operand weight, bias;              /* (optional data) along channels */
    tsi_cuda_operand mean, scale;               /* along batch and groups */
    int64_t x_batch, x_group, y_batch, y_group; /* strides */
    int64_t batch, groups, channels;            /* channels: of a group */
    double eps;
    int32_t dtype, weight_dtype, bias_dtype, sum_dtype;
} tsi_cuda_group_norm_args;

/* norm.cu: rows of `length`, contiguous, rows a stride apart. `partial` has a row of f32 (two for
 * layer_norm) for each block. */
typedef struct tsi_cuda_norm_args {
    const void *x, *dy;
    const void *weight, *bias;
    void *y;            /* or dx */
    void *scale, *mean; /* one a row; mean: layer_norm */
    float *partial;
    void *dw, *db;
    int64_t rows, length;
    int64_t x_stride, dy_stride, y_stride;
    double eps;
    int32_t dtype, weight_dtype, sum_dtype, blocks; /* sum: of dw and db */
    int32_t layer, kept; /* units of weight in shared memory for one of a row */
} tsi_cuda_norm_args;

/* rope.cu: x [.., T, D] with its table [T, D]; pairs in chunks of `width`. */
typedef struct tsi_cuda_rope_args {
    tsi_cuda_space space; /* leading dims, T, chunks of D / 2 */
    tsi_cuda_operand from, to;
    const void *table;
    int64_t table_row, table_column, half, from_column, to_column;
    tsi_cuda_places place; /* of T */
    int32_t sequence;      /* which dim of the space T is */
    int32_t dtype, table_dtype, inverse;
} tsi_cuda_rope_args;

/* entropy.cu: logits in rows, labels and the rest one a row. */
typedef struct tsi_cuda_entropy_args {
    const void *x, *labels, *lse, *g;
    void *out; /* forward: terms, f32 or f64; backward: dx */
    void *lse_out, *loss;
    int64_t rows, length, x_stride, out_stride;
    int64_t label_stride, lse_stride, g_stride; /* from row to row */
    int64_t ignore, classes;
    tsi_cuda_places place; /* of the classes */
    tsi_cuda_asker asker;
    int32_t dtype, label_dtype, lse_dtype, g_dtype;
    int32_t mean, reserved; /* the loss is divided by the number of labels that count */
    uint32_t *ticket;       /* a zero: the last block adds the rows; NULL: a kernel of its own */
} tsi_cuda_entropy_args;

/* embedding.cu: rows of a table by index; the gradient adds the tokens of each row in order. */
typedef struct tsi_cuda_embedding_args {
    const void *table, *ids;
    void *out;
    int64_t tokens, columns; /* columns, and strides of rows, in units of the kernel */
    int64_t table_row, out_row, rows, id_stride;
    tsi_cuda_places place; /* of the rows */
    tsi_cuda_asker asker;
    int32_t id_dtype, dtype;
    int32_t *count, *begin, *left; /* of each row: its tokens, where their list begins */
    int32_t *order, *cursor;       /* the lists; the end of the last */
} tsi_cuda_embedding_args;

/* sort.cu: lines of `length`, a block each; the first `wanted` in order with their places. */
typedef struct tsi_cuda_sort_args {
    tsi_cuda_space space; /* the lines */
    tsi_cuda_operand from, values, places;
    int64_t from_step, values_step, places_step;
    int64_t length, wanted, padded;         /* padded: a power of two */
    int32_t dtype, whole, descending, mask; /* mask: ones and zeros instead, and no places */
} tsi_cuda_sort_args;

/* scan.cu: running sums or products of lines of `length`, a block each; backwards with negative
 * steps from the last element. */
typedef struct tsi_cuda_scan_args {
    tsi_cuda_space space; /* the lines */
    tsi_cuda_operand from, to;
    int64_t from_step, to_step, length;
    int32_t from_dtype, to_dtype, product, least; /* least: of extremes */
    tsi_cuda_operand at;                          /* extremes: i64 places of the values */
    int64_t at_step;
} tsi_cuda_scan_args;

/* scan.cu: the gradient of running products, a thread a line; steps are along it. */
typedef struct tsi_cuda_scan_back_args {
    tsi_cuda_space space; /* the lines */
    tsi_cuda_operand dy, x, dx;
    int64_t dy_step, x_step, dx_step, length;
    double *room; /* `length` for each line; lines lie side by side */
    int32_t dy_dtype, x_dtype, dx_dtype, reserved;
} tsi_cuda_scan_back_args;

/* index.cu: along dim `dim` an index says where. The space is that of the index. */
typedef struct tsi_cuda_index_args {
    tsi_cuda_space space;
    tsi_cuda_operand index, near, far; /* near: like the index; far: what it points into, without
                                          its own dim, whose stride is far_step */
    int64_t far_step;
    tsi_cuda_places place; /* of far's dim */
    tsi_cuda_asker asker;
    int32_t index_dtype, dtype, size, wraps; /* wraps: negative ones count from the end */
} tsi_cuda_index_args;

/* index.cu: sums into a dim: an item a result, which walks the lines that point at it. */
typedef struct tsi_cuda_index_add_args {
    tsi_cuda_space space;               /* of the results */
    tsi_cuda_operand out, from, index;  /* from, index: along all dims but `dim`, then by steps */
    int64_t from_step, index_step;      /* along `dim` */
    int64_t length;                     /* of `dim` of from and index */
    int64_t from_extent[TSI_CUDA_DIMS]; /* results beyond them receive nothing */
    tsi_cuda_places place;              /* of `dim` of the results */
    tsi_cuda_asker asker;
    int32_t dim, keep; /* keep: the result is added to */
    int32_t index_dtype, dtype;
} tsi_cuda_index_add_args;

/* A number as it was said. */
typedef struct tsi_cuda_number {
    double re, im;
    int64_t whole;
    int64_t is_whole;
} tsi_cuda_number;

/* put.cu: an element for each item of the space, where its indices point. An index is what its
 * operand has at the item's offset, or, without data, the offset itself. Rows are places that
 * indices point at, numbers those of claims in order. */
typedef struct tsi_cuda_put_args {
    tsi_cuda_space space;
    tsi_cuda_operand near, far;   /* far: along what is not indexed */
    tsi_cuda_operand row, number; /* without data: the row's number without indices, the claim's */
    tsi_cuda_operand index[TSI_CUDA_DIMS];
    /* Of the dim that an index indexes: its indices here, its extent, steps along it. */
    tsi_cuda_places place[TSI_CUDA_DIMS];
    int64_t bound[TSI_CUDA_DIMS], far_step[TSI_CUDA_DIMS], row_step[TSI_CUDA_DIMS];
    int32_t index_dtype[TSI_CUDA_DIMS];
    int32_t count, size, dtype; /* of indices; bytes of an element */
    int32_t words;              /* of shared memory, for bits of claims */
    int64_t first;              /* the row of the first element of far */
    tsi_cuda_asker asker;
    tsi_cuda_number value; /* where near has no data */
    uint64_t *winner;      /* 1 + the last claim of each row; 0: none */
    int64_t rows;
    tsi_cuda_space rest;                  /* of a row, */
    tsi_cuda_operand far_rest, near_rest; /* without data of their own */
    int32_t *tally, *begin, *left;        /* of each row: its claims, where their list begins */
    int32_t *cursor, *touched; /* the end of the last list, and of the rows that have one */
    int32_t *order, *sorted;   /* the lists, as they were filled and in order */
} tsi_cuda_put_args;

/* put.cu: elements by their row-major number. */
typedef struct tsi_cuda_take_args {
    tsi_cuda_space space;
    tsi_cuda_operand index, near;
    const void *far;
    int64_t extent[TSI_CUDA_DIMS], stride[TSI_CUDA_DIMS]; /* of far: global, and here */
    tsi_cuda_places place[TSI_CUDA_DIMS];
    int64_t bound;
    int32_t ndim, size, index_dtype, reserved;
} tsi_cuda_take_args;

/* histogram.cu: elements that fall into each of some bins. */
typedef struct tsi_cuda_histogram_args {
    tsi_cuda_space space;
    tsi_cuda_operand from;
    void *to;
    uint64_t *tally;   /* one a bin, zeros before */
    uint64_t *extreme; /* two keys, zeros before: of the largest and of the smallest, turned about;
                          NULL: bounds are given */
    double min, max;   /* the bounds; equal ones if there are no elements */
    int64_t bins, to_step;
    tsi_cuda_asker asker; /* of whole numbers, whose bins begin at 0 */
    int32_t from_dtype, to_dtype, whole;
    int32_t shared; /* bins are counted in a block first */
} tsi_cuda_histogram_args;

/* histogram.cu: how many different values there are, by a table of those that were seen. */
typedef struct tsi_cuda_unique_args {
    tsi_cuda_space space;
    tsi_cuda_operand from;
    uint64_t *table; /* `slots`, a power of two, and one more; all bits are set before */
    uint64_t *count; /* 0 before */
    int64_t slots;
    int32_t dtype, whole;
} tsi_cuda_unique_args;

/* index.cu: triangles of the last two dims. */
typedef struct tsi_cuda_triangle_args {
    tsi_cuda_space space;
    tsi_cuda_operand from, to;
    tsi_cuda_places row, column;
    int64_t diagonal;
    int32_t lower, size;
} tsi_cuda_triangle_args;

/* attend.cu: blocks of four dims, [batch, head, position, column] each. */
enum { TSI_CUDA_HEADS = 256 };
typedef struct tsi_cuda_heads {
    void *data;
    int64_t stride[4];
    int32_t dtype, reserved;
} tsi_cuda_heads;

/* The block lists of a mask on the device (mask/mask.h says what they are): tiles of so many
 * queries and keys, so that a row of a partial one is one word. */
enum { TSI_CUDA_TILE_QUERIES = 128, TSI_CUDA_TILE_KEYS = 64 };
typedef struct tsi_cuda_run { /* as tsi_mask_run */
    int32_t first, count;
    int64_t bits;
    int32_t begin, end;
} tsi_cuda_run;
typedef struct tsi_cuda_tiles {
    const int64_t *first; /* of each list, and row of tiles: its first run */
    const tsi_cuda_run *run;
    const uint64_t *bits;
    const int64_t *column_first; /* the same by columns of tiles: runs of rows that have one */
    const tsi_cuda_run *column_run;
    const int64_t *query_at, *key_at; /* positions, those of queries as keys count them */
    int64_t rows, columns;            /* of tiles in a list */
    int64_t by_row, by_head; /* lists from a row, or head, to the next; 0: it is the same */
} tsi_cuda_tiles;

/* Weights that are dropped: op/nn/attention.h, whose draws these are. */
typedef struct tsi_cuda_drop {
    uint64_t seed;
    uint32_t below, reserved; /* draws below are dropped; 0: none */
    double factor;            /* of the others */
} tsi_cuda_drop;

typedef struct tsi_cuda_attend_args {
    tsi_cuda_heads q, k, v, out, lse, d_out, dq, dk, dv; /* lse has three strides */
    void *delta; /* a number for each row of q; two of f32 on the tensor cores */
    int64_t batch, heads, queries, depth, groups, keys, width;
    int64_t reach; /* without tiles, causal: query i sees keys up to i + reach */
    int32_t causal, alibi;
    int32_t adds, reserved;          /* out and lse, or dq, go on from what they hold */
    double scale, cap;               /* cap of scores; 0: none */
    float scale_power, scale_narrow; /* scale log2(e), and scale, of the tensor cores */
    tsi_cuda_tiles tiles;
    tsi_cuda_drop drop;
    int64_t heads_all, queries_all, offset; /* globally; positions of queries are shifted by it */
    tsi_cuda_places row_at, head_at;        /* global rows and heads */
    int16_t group_of[TSI_CUDA_HEADS];       /* of a head */
} tsi_cuda_attend_args;

/* rows.cu: softmax of rows and its gradient */
enum { TSI_CUDA_KEPT_THREADS = 512 }; /* at most, of a block that keeps a row */
typedef struct tsi_cuda_softmax_args {
    const void *x, *dy; /* dy: the gradient's, whose x is the result of softmax */
    void *y;
    int64_t rows, length;
    int64_t x_stride, dy_stride, y_stride;
    int32_t dtype, log;
} tsi_cuda_softmax_args;

/* update.cu: items in chunks of TSI_CUDA_UPDATE_CHUNK elements; the table is on the device. */
enum { TSI_CUDA_UPDATE_CHUNK = 16384, TSI_CUDA_UPDATE_PARTS = 5 };
typedef struct tsi_cuda_update_item {
    void *part[TSI_CUDA_UPDATE_PARTS]; /* param, grad, moments, mirror or NULL; squares: x, sum */
    int64_t count, first_chunk;
    int32_t dtype[TSI_CUDA_UPDATE_PARTS], reserved;
    int64_t base, inner, outer; /* global indices, as in tsi_list_item */
    uint64_t salt;
} tsi_cuda_update_item;
typedef struct tsi_cuda_update_args {
    const tsi_cuda_update_item *item;
    int64_t items, chunks;
    double *partial;       /* squares: one a chunk, then one an item */
    const double *control; /* tsi_control_number; NULL: the numbers below */
    double beta1, beta2, epsilon, weight_decay, lr, correction1, correction2, factor, steps;
    uint64_t noise;  /* 0: moments are rounded to nearest */
    double momentum; /* of sgd */
    int32_t nesterov, first;
} tsi_cuda_update_args;

/* add_norm.cu: rows of `length`, contiguous, columns in threads; `partial` has a row of R a block.
 */
typedef struct tsi_cuda_add_norm_args {
    const void *x, *r; /* forward; backward: sum and dsum */
    const void *dy;    /* backward */
    const void *weight;
    void *sum, *y, *scale; /* backward: dx in y, scale is read */
    void *partial, *dw;
    int64_t rows, length;
    double eps;
    int32_t weight_dtype, blocks, by_units;
    int32_t group; /* threads of a row, where a block has several */
} tsi_cuda_add_norm_args;

/* swiglu.cu: rows of one dtype, on 16 bytes; what lies without gaps is one row. */
enum {
    TSI_CUDA_SWIGLU_DY,
    TSI_CUDA_SWIGLU_GATE,
    TSI_CUDA_SWIGLU_UP,
    TSI_CUDA_SWIGLU_D_GATE,
    TSI_CUDA_SWIGLU_D_UP,
    TSI_CUDA_SWIGLU_ARRAYS
};
typedef struct tsi_cuda_swiglu_args {
    void *data[TSI_CUDA_SWIGLU_ARRAYS];
    int64_t stride[TSI_CUDA_SWIGLU_ARRAYS]; /* of rows, in units of 16 bytes */
    tsi_cuda_divisor by;                    /* units of a row; zeros: there is one */
    int32_t reserved;
    int64_t units, rest; /* of all rows; elements behind the last unit, if there is one row */
} tsi_cuda_swiglu_args;

/* update.cu: what the update of a step goes by, from the sums of squares of its gradients. */
typedef struct tsi_cuda_decide_args {
    const double *sum;
    double *control;
    int64_t count;
} tsi_cuda_decide_args;

/* random.cu: `runs` runs of `length`, the i-th at local + i * local_step with the global index
 * global + i * global_step. */
typedef struct tsi_cuda_random_args {
    tsi_random_recipe recipe;
    void *to;
    int64_t runs, length, local, local_step, global, global_step;
    uint32_t key[TSI_PHILOX_ROUNDS][2]; /* of each round, for draws of four */
} tsi_cuda_random_args;

/* Blocks of four words in which a run of so many elements of one word may lie, wherever it begins.
 */
TSI_SHARED int64_t tsi_cuda_quads(int64_t length)
{
    return (length + 6) / 4;
}

/* random.cu: x by `scale` where it is kept, else 0; draws.to is the mask. Dense, alike. */
typedef struct tsi_cuda_dropout_args {
    tsi_cuda_random_args draws;
    const void *x;
    void *y;
    double scale;
    float near_scale; /* in f32 */
    uint32_t reserved;
} tsi_cuda_dropout_args;

/* random.cu: 1 where the draw of an element is below what the input says, else 0. */
typedef struct tsi_cuda_bernoulli_args {
    tsi_random_recipe recipe; /* of uniform f64 */
    tsi_cuda_space space;
    tsi_cuda_operand from, to;
    tsi_cuda_places place[TSI_CUDA_DIMS];
    int64_t global[TSI_CUDA_DIMS]; /* strides of global indices */
    int32_t from_dtype, to_dtype;
} tsi_cuda_bernoulli_args;

#endif
