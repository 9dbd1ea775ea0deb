/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h - the one way from an operator to the code that computes it.
 *
 * A device's kernels stand before the references. A device without a kernel for a call borrows the
 * host's: operands are copied to the host, results back (a fallback: an event, a warning, a
 * policy).
 *
 * INV: tsi_kernel_run is the only caller of kernels and references, so that every kernel is found,
 * deferred, staged and reported in one place. */
#ifndef TSI_OP_CORE_KERNEL_H
#define TSI_OP_CORE_KERNEL_H

#include "base/keep.h"
#include "op/op.h"

/* A fast kernel declines a dtype it has no loops for with TSI_KERNEL_DECLINED (positive, not a
 * status), and the reference runs. */
enum { TSI_KERNEL_DECLINED = 1 };

/* ---- lists: one kernel over the dense blocks of many tensors --------------------------------- */
#define TSI_LISTS(X)                                                                               \
    X(ADAMW, adamw) X(SGD, sgd) X(SQUARES, squares) X(DECIDE, decide) /* op/nn/update.h */
typedef enum tsi_list_id {
#define TSI_LIST_ENUM(id, name) TSI_LIST_##id,
    TSI_LISTS(TSI_LIST_ENUM)
#undef TSI_LIST_ENUM
        TSI_LIST_COUNT
} tsi_list_id;

/* Parts of an item have the same extents and are dense in the same order, so that element i of each
 * is the same place. */
enum { TSI_LIST_PARTS = 6 };
typedef struct tsi_list_part {
    void *data; /* NULL: there is none */
    ts_dtype dtype;
    int32_t reserved;
} tsi_list_part;
typedef struct tsi_list_item {
    int64_t count; /* elements */
    tsi_list_part part[TSI_LIST_PARTS];
    /* Element i has the global index base + i / inner * outer + i % inner, where that matters;
     * inner 0: base + i. `salt` tells tensors apart. */
    int64_t base, inner, outer;
    uint64_t salt;
} tsi_list_item;

static inline uint64_t tsi_list_index(const tsi_list_item *item, int64_t i)
{
    if (item->inner == 0) return (uint64_t)(item->base + i);
    return (uint64_t)(item->base + i / item->inner * item->outer + i % item->inner);
}
typedef struct tsi_list_io {
    const void *attributes;
    const tsi_list_item *item;
    int64_t count;
    ts_rank *rank;
    const tsi_device *device;
    tsi_stream *queue;
    void *reserved; /* from tsi_list_reserve, taken; or NULL */
} tsi_list_io;
typedef ts_status (*tsi_list_fn)(const tsi_list_io *io);

typedef struct tsi_list_op {
    const char *name; /* of events */
    tsi_list_id id;
    uint32_t writes; /* bit k: part k is written */
    uint32_t single; /* bit k: part k has `single_count` elements, whatever the count */
    int32_t single_count, reserved; /* 0: one */
    size_t attribute_bytes;
    tsi_list_fn reference;
} tsi_list_op;

/* ---- the kernels of one kind of device ------------------------------------------------------- */
/* Plain data, so that a module can hold one; made from the backend's kernels.def. Its places are
 * numbers of operators: whoever loads one from elsewhere compares the lists first (ops_hash.h). */
typedef struct tsi_kernels {
    const char *kind;                  /* of devices; those that run host code take the host's */
    tsi_kernel_fn op[TSI_OP_ID_COUNT]; /* NULL: none */
    tsi_list_fn list[TSI_LIST_COUNT];
    /* (optional) Of devices of the host, by operator: its kernel may be run dry (tsi_dry), to take
     * the scratch a call takes where there is no data. */
    const uint8_t *dry;
    /* (optional) Of devices of the host: a call that is made again and again, as work that does the
     * same to the same blocks without asking how; or TSI_KERNEL_DECLINED. It touches nothing yet.
     */
    ts_status (*keep)(tsi_kernel_fn kernel, const tsi_kernel_io *io, tsi_kept_work *out);
    /* (optional) Have rows of a product of this dtype, computed alone, the bits they have in the
     * whole? In pieces as chunks.h cuts them. */
    bool (*rows_alone)(ts_dtype dtype);
} tsi_kernels;
/* The places of a table by names: .op[TSI_OP_NUMBER_softmax], .list[TSI_LIST_NUMBER_sgd]. */
enum {
#define TS_OP(id, name) TSI_OP_NUMBER_##name = TSI_OP_ID_##id,
#include "op/ops.def"
#undef TS_OP
#define TSI_LIST_NUMBER(id, name) TSI_LIST_NUMBER_##name = TSI_LIST_##id,
    TSI_LISTS(TSI_LIST_NUMBER)
#undef TSI_LIST_NUMBER
};

/* The structs that kernels in a module share with the core. */
#define TSI_KERNEL_SEAM(ROW)                                                                       \
    ROW(tsi_kernels)                                                                               \
    ROW(tsi_kernel_io)                                                                             \
    ROW(tsi_operand)                                                                               \
    ROW(tsi_op_desc)                                                                               \
    ROW(ts_meta)                                                                                   \
    ROW(tsi_region)                                                                                \
    ROW(tsi_list_io)                                                                               \
    ROW(tsi_list_item)

/* Before a world opens that uses such a device; kept by reference. A kind that is there already
 * stays as it is. */
ts_status tsi_kernels_add(const tsi_kernels *kernels);
/* The kernel of a device; NULL: none, the host's reference runs. */
tsi_kernel_fn tsi_kernel_of(const tsi_device *device, const tsi_op_desc *op);

/* Do the kernels that run there compute rows of products alone, with the same bits? */
bool tsi_kernel_rows_alone(const tsi_device *device, ts_dtype dtype);
/* Can the host's kernel be run dry (tsi_dry)? */
bool tsi_kernel_is_dry(const tsi_op_desc *op);

/* Runs `kernel` (NULL: the reference) on the call's blocks, in the order of io->queue. What a
 * kernel finds wrong with its data on a device that runs later is told by the next wait. */
ts_status tsi_kernel_run(tsi_kernel_fn kernel, const tsi_kernel_io *io);

/* The same for a list, on the rank's device, in an event of its own: `io` without device and
 * queue. Items and attributes may be reused when the call returns. */
ts_status tsi_list_run(const tsi_list_op *op, tsi_list_io io);
/* What was asked of the rank's queue so far has not failed, and a list of `count` items at most
 * will need no memory to be posted: for what several ranks do together or not at all. *out goes
 * into tsi_list_io.reserved, or to tsi_free; NULL: nothing is needed. */
ts_status tsi_list_reserve(const tsi_list_op *op, ts_rank *rank, int64_t count, void **out);

/* The blocks of a rank's device as blocks of the host, for work that only the host can do: a
 * user's function, a reference, a step of an algorithm. The first `ins` are read, the others
 * written; `name` is for events and messages. On a device the host reads, fn gets them as they
 * are. */
typedef ts_status (*tsi_host_fn)(void *context, const tsi_block *block);
ts_status tsi_host_run(ts_rank *rank, const char *name, const tsi_block *block, int32_t ins,
                       int32_t outs, tsi_host_fn fn, void *context);

#endif
