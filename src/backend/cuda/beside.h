/* SPDX-License-Identifier: Apache-2.0 */
/* beside.h - small work of a graph that needs nothing of each other, side by side. */
#ifndef TSI_BACKEND_CUDA_BESIDE_H
#define TSI_BACKEND_CUDA_BESIDE_H

#include "backend/cuda/product.h"

/* Where a call goes: the stream itself, or one of its branches. */
typedef struct tsi_cuda_place {
    tsi_stream *on;
    bool member; /* of what runs side by side */
} tsi_cuda_place;

/* Whether so many results leave most of a GPU idle. */
bool tsi_cuda_is_small(int64_t results);
/* What a product touches; false: it is not small. */
bool tsi_cuda_product_touches(const tsi_cuda_product *p, tsi_cuda_touched *out);
/* Around one call that touches this and nothing else; NULL: it stays on the stream. What is put on
 * place->on between the two is counted by the caller (tsi_stream.sent). */
ts_status tsi_cuda_beside_begin(tsi_stream *stream, const tsi_cuda_touched *touched,
                                tsi_cuda_place *place);
ts_status tsi_cuda_beside_end(tsi_stream *stream, const tsi_cuda_place *place);
/* A launch of our own that reads one piece of memory and writes another. */
ts_status tsi_cuda_beside_launch(tsi_stream *stream, tsi_cuda_kernel kernel, int64_t blocks,
                                 int32_t threads, void *args, tsi_bytes read, tsi_bytes written);
/* With the stream; `alive`: the GPU is. */
void tsi_cuda_beside_drop(tsi_stream *stream, bool alive);

#endif
