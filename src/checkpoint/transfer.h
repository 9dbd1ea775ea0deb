/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h - from the files of a checkpoint to memory, one block of the writer at a time: where
 * its elements lie, and moving them.
 *
 *   writer's block   [..####..|..####..|....]      slots: files of the ranks that held it
 *   runs                ||||      ||||
 *   target           [####|####|..............]
 *
 * INV: pieces of files are read forwards, each byte of the window once; damage is repaired from
 * another copy where there is one. For archive_read.c and archive_serve.c alone. */
#ifndef TSI_CHECKPOINT_TRANSFER_H
#define TSI_CHECKPOINT_TRANSFER_H

#include "checkpoint/archive.h"
#include "checkpoint/share.h"

enum { TSI_WINDOW = TSI_CHUNK_BYTES, TSI_DIRECT_MIN = 64 << 10 };

typedef struct tsi_source { /* a piece of a file, or a whole tensor of one */
    tsi_data_file *file;    /* NULL: published */
    const tsi_stored *stored;
    int64_t slot;       /* which one it is; -1: none */
    int64_t copy;       /* of it */
    int64_t box;        /* of a list of them; else 0 */
    int64_t bytes;      /* of the piece */
    int64_t begin, end; /* what of it lies in the window */
} tsi_source;

typedef struct tsi_transfer {
    ts_archive *archive;
    const tsi_entry *entry;
    ts_shape view; /* the tensor's extents as both sides cut them */
    tsi_region from, to;
    int64_t low, high;          /* the first and the last element of `to` */
    int64_t coord[TS_NDIM_MAX]; /* of the writer's block */
    int64_t wanted;             /* elements of it up to the last that is wanted */
    tsi_share_rule rule;
    tsi_source source;
    char *target;
    ts_dtype dtype;
} tsi_transfer;

size_t tsi_transfer_element_bytes(const tsi_transfer *t); /* of an element in the file */
bool tsi_transfer_is_verified(const tsi_transfer *t);     /* hashes of blocks are asked for */

/* Bytes of a piece from the copy at hand, and from the others if that is damaged or gone; dealt out
 * to places as tsi_data_read does. */
ts_status tsi_transfer_read(tsi_transfer *t, int64_t slot, const tsi_share *share, int64_t offset,
                            const struct iovec *to, int64_t count);
ts_status tsi_transfer_make_window(ts_archive *archive);
/* Elements as they were stored, the first of them `first` of the block, to [to, to + count) of the
 * target. */
ts_status tsi_transfer_put(tsi_transfer *t, int64_t first, int64_t to, const char *from,
                           int64_t count);
/* Elements [first, first + count) of the writer's block go to [to, to + count) of the target. */
ts_status tsi_transfer_move(tsi_transfer *t, int64_t first, int64_t to, int64_t count);

/* What the block `number` holds, with dims joined as the bits say; published tensors are one block,
 * which is known. false: no memory. */
bool tsi_transfer_block(tsi_transfer *t, int64_t number, uint32_t joined, tsi_arena *arena);
/* The coordinate of a block: row-major over the axes that cut; the others stay 0. */
void tsi_block_coord(const ts_layout *layout, int64_t number, int64_t *coord);

/* The extents with dims joined as the bits say, and all of them as a region. */
void tsi_whole_of(const ts_shape *shape, uint32_t joined, ts_shape *view, tsi_region *out);
uint32_t tsi_joined_of(const ts_layout *layout); /* accepts NULL */
/* Where the element lies in the row-major block of a region that holds it. */
int64_t tsi_place_in(const tsi_region *region, const ts_shape *view, int64_t global);
/* The first element of a region, and the last, by row-major index; the region is not empty. */
int64_t tsi_first_of(const tsi_region *region, const ts_shape *view);
int64_t tsi_last_of(const tsi_region *region, const ts_shape *view);

#endif
