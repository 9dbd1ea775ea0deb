/* SPDX-License-Identifier: Apache-2.0 */
/* complain.h - data that kernels find wrong: asking, and telling it at the next wait. */
#ifndef TSI_BACKEND_CUDA_COMPLAIN_H
#define TSI_BACKEND_CUDA_COMPLAIN_H

#include "backend/cuda/cuda.h"
#include "op/core/kernel.h"

/* What a kernel of this call needs to complain; values from 0 up to `bound` are right. */
ts_status tsi_cuda_ask(const tsi_kernel_io *io, int32_t kind, int64_t bound, bool cut,
                       tsi_cuda_asker *out);
/* Where kernels write what they find, if it is not there yet. */
ts_status tsi_cuda_record_make(tsi_stream *stream);
/* At a wait: fails with the sentence of what was found since the last, and forgets it. */
ts_status tsi_cuda_complaint_tell(tsi_stream *stream);

#endif
