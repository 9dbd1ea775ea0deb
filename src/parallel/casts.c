/* SPDX-License-Identifier: Apache-2.0 */
/* casts.c - dtypes of what goes into a unit's modules and comes out of them.
 *
 * Casts are recorded outside of what the module does, so that one that runs again keeps its inputs
 * as it saw them. Whole numbers and truths stay as they are, and so do inputs that the program
 * named: tables of positions and scores of routers lose by rounding. */
#include "base/hash.h"
#include "op/core/element.h"
#include "parallel/unit.h"

static bool is_real(int32_t dtype)
{
    return tsi_dtype_category((ts_dtype)dtype) == TSI_CATEGORY_REAL;
}

ts_status tsi_unit_check_casts(const tsi_unit *u)
{
    const ts_fsdp_options *o = &u->options;
    const struct {
        const char *what;
        int32_t dtype;
    } all[] = { { "outputs", o->output }, { "compute", o->compute }, { "reductions", o->reduce } };
    for (size_t i = 0; i < TSI_COUNT_OF(all); i++) {
        int32_t dtype = all[i].dtype;
        if (!dtype || (dtype > 0 && dtype < TS_DTYPE_COUNT && is_real(dtype))) continue;
        return TSI_FAIL(TS_ERR_DTYPE, "fsdp: unit %s: the dtype of %s is %s, which is not real",
                        u->name, all[i].what, ts_dtype_name((ts_dtype)dtype));
    }
    if (o->cast_inputs && !o->compute)
        return TSI_FAIL(
            TS_ERR_ARG,
            "fsdp: unit %s: inputs are to be cast to the dtype of compute, and there is "
            "none",
            u->name);
    return TS_OK;
}

static uint64_t shapes_of(ts_tensor *const *x, int32_t count)
{
    uint64_t hash = (uint64_t)count;
    for (int32_t i = 0; i < count; i++) {
        const ts_layout *layout = x[i] ? ts_tensor_layout(x[i]) : NULL;
        for (int32_t d = 0; layout && d < layout->shape.ndim; d++)
            hash = tsi_hash_mix(hash, (uint64_t)layout->shape.extent[d]);
        hash = tsi_hash_mix(hash, layout ? (uint64_t)x[i]->dtype : 0);
    }
    return hash;
}

/* `x` in that dtype if it is a real tensor; 0: as it is. NULL: recorded, or x is. */
static ts_tensor *cast_real(ts_tensor *x, int32_t dtype)
{
    bool casts = x && dtype && ts_tensor_layout(x) && x->dtype != dtype && is_real(x->dtype);
    return casts ? ts_cast(x, (ts_dtype)dtype) : x;
}

ts_status tsi_unit_input(ts_module *m, ts_tensor *const *in, int32_t count, ts_tensor **out)
{
    tsi_unit *u = m->unit;
    u->shapes = shapes_of(in, count);
    for (int32_t i = 0; i < count; i++) {
        bool casts = u->options.cast_inputs && !(u->options.keep_inputs >> i & 1);
        out[i] = cast_real(in[i], casts ? u->options.compute : 0);
        if (in[i] && !out[i]) return ts_rank_status(u->rank);
    }
    return TS_OK;
}

ts_status tsi_unit_output(ts_module *m, ts_tensor **output)
{
    const tsi_unit *u = m->unit;
    for (int32_t i = 0; u->options.output && i < m->desc.output_count; i++) {
        ts_tensor *cast = cast_real(output[i], u->options.output);
        if (output[i] && !cast) return ts_rank_status(u->rank);
        output[i] = cast;
    }
    return TS_OK;
}
