/* SPDX-License-Identifier: Apache-2.0 */
/* units.c - a model in units of sharded data parallelism: each block is one.
 *
 * A tied weight is used by two blocks, so it belongs to what is around both: the whole model is a
 * unit of what the blocks leave. */
#include <string.h>

#include "model/model.h"

ts_status ts_model_fsdp(ts_model *m, const ts_fsdp_options *options)
{
    if (!m) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(m->rank));
    m->units = (ts_fsdp_options){ .struct_size = sizeof m->units };
    if (options)
        memcpy(&m->units, options,
               options->struct_size < sizeof m->units ? options->struct_size : sizeof m->units);
    if (!m->units.compute) { /* what products take is cast; norms and biases are as they are */
        m->units.compute = m->compute;
        m->units.compute_ndim = 2;
    }
    bool tied = m->config.tied;
    for (int64_t i = tied; i < m->block_count; i++)
        TSI_TRY(ts_fsdp(m->block[i], &m->units));
    if (tied) TSI_TRY(ts_fsdp(m->root, &m->units));
    m->has_units = 1;
    return TS_OK;
}
