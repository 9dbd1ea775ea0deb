/* SPDX-License-Identifier: Apache-2.0 */
/* fill.h - filling a rank's block by global index. */
#ifndef TSI_TENSOR_FILL_H
#define TSI_TENSOR_FILL_H

#include "array/random.h"
#include "tensor/tensor.h"

/* A complex number needs a complex dtype, a range real numbers. */
ts_status tsi_fill_constant(tsi_array *array, ts_number value);
ts_status tsi_fill_arange(ts_mesh *mesh, const ts_layout *layout, tsi_array *array, ts_number start,
                          ts_number step);
ts_status tsi_fill_random(ts_mesh *mesh, const ts_layout *layout, tsi_array *array,
                          const tsi_random *random);
/* Calls fn for each contiguous run of the block: `global` is the row-major index of its first
 * element, `local` its place in the block. Nothing on ranks outside the mesh. */
typedef ts_status (*tsi_run_fn)(int64_t global, int64_t local, int64_t length, void *context);
ts_status tsi_fill_runs(ts_mesh *mesh, const ts_layout *layout, tsi_run_fn fn, void *context);
/* The same for values that the host writes: *image_block, a part of the context, is the array's
 * dense block on the host while fn is called, and goes to the device afterwards. */
ts_status tsi_fill_image(ts_mesh *mesh, const ts_layout *layout, tsi_array *array, tsi_run_fn fn,
                         tsi_block *image_block, void *context);

#endif
