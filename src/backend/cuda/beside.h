/* SPDX-License-Identifier: Apache-2.0 */
/* beside.h - products of a graph that need nothing of each other, side by side. */
#ifndef TSI_BACKEND_CUDA_BESIDE_H
#define TSI_BACKEND_CUDA_BESIDE_H

#include "backend/cuda/product.h"

/* Around the call of a product, which goes to *on: the stream itself, or its branch. */
ts_status tsi_cuda_beside_begin(tsi_stream *stream, const tsi_cuda_product *p, tsi_stream **on);
ts_status tsi_cuda_beside_end(tsi_stream *stream, const tsi_cuda_product *p, tsi_stream *on);
/* With the stream; `alive`: the GPU is. */
void tsi_cuda_beside_drop(tsi_stream *stream, bool alive);

#endif
