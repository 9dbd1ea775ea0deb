/* SPDX-License-Identifier: Apache-2.0 */
/* check_plan.c - do all ranks call the same operator with the same plan? */
#include "base/error.h"
#include "base/hash.h"
#include "comm/comm.h"
#include "op/core/dispatch.h"
#include "tensor/tensor.h"

static uint64_t hash_layout(uint64_t hash, const ts_layout *layout)
{
    return tsi_hash_text(hash, layout ? layout->text : "-");
}

/* What all ranks must have decided alike; by values, because addresses differ between processes. */
static uint64_t plan_hash(const tsi_op_plan *plan)
{
    uint64_t hash = tsi_hash_text(1, plan->op->name);
    hash = tsi_hash_bytes(hash, plan->given, plan->op->attribute_bytes);
    for (int32_t i = 0; i < plan->input_count; i++) {
        hash = hash_layout(hash, plan->in[i]);
        hash = hash_layout(hash, plan->wanted[i]);
        hash = tsi_hash_bytes(hash, &plan->in_dtype[i], 1);
    }
    for (int32_t o = 0; o < plan->output_count; o++)
        hash = hash_layout(hash, plan->out[o]);
    return hash ^ (uint64_t)plan->algorithm;
}

ts_status tsi_op_check_plan(const tsi_op_plan *plan)
{
    const ts_mesh *mesh = plan->mesh;
    if (!mesh->member || mesh->desc->count < 2) return TS_OK;
    ts_group *group = tsi_mesh_axes_group(plan->mesh, (1u << mesh->desc->ndim) - 1);
    if (!group) return ts_rank_status(mesh->rank);
    ts_status status = tsi_agree(group, "operators", NULL, plan_hash(plan));
    if (status == TS_OK) return TS_OK;
    tsi_error_prefix("%s of %s here", plan->op->name,
                     plan->input_count && plan->in[0] ? plan->in[0]->text : "nothing");
    return status;
}
