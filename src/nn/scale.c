/* SPDX-License-Identifier: Apache-2.0 */
/* scale.c - loss scaling: small gradients survive a dtype of few exponents.
 *
 * The loss is multiplied before backward, the gradients divided after it. A power of two changes no
 * bits but the exponent's, so where nothing under- or overflows a scaled run is an unscaled one. */
#include <math.h>

#include "nn/module.h"
#include "tensor/tensor.h"

/* What this backward gave, and what earlier ones left aside. */
static ts_status scale_one(ts_module *m, tsi_param *param, const char *name, void *context)
{
    (void)name;
    tsi_leaf *leaf = tsi_leaf_of(param->value);
    if (leaf) TSI_TRY(tsi_leaf_at_border(leaf, true));
    ts_tensor *part[] = { leaf ? leaf->grad : NULL, leaf ? leaf->reduced : NULL };
    ts_scope scope = ts_scope_open_with(m->rank, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_status status = TS_OK;
    for (int i = 0; i < 2 && status == TS_OK; i++)
        if (part[i] && ts_tensor_layout(part[i]))
            status = ts_tensor_write(part[i], ts_mul_scalar(part[i], *(const double *)context));
    ts_scope_close(scope);
    return status;
}

ts_status ts_grad_scale(ts_module *root, double factor)
{
    if (!root) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(root->rank));
    return factor == 1.0 ? TS_OK : tsi_module_visit(root, scale_one, &factor);
}

ts_status ts_loss_scale_update(ts_loss_scale *s, int finite)
{
    enum { EXPONENT_MAX = 40 };
    if (!s) return TSI_FAIL(TS_ERR_NULL, "loss scale: is NULL");
    if (finite) {
        s->good++;
        if (s->every > 0 && s->good % s->every == 0 && s->value < ldexp(1.0, EXPONENT_MAX))
            s->value *= 2.0;
        return TS_OK;
    }
    if (s->every == 0)
        return TSI_FAIL(TS_ERR_STATE, "loss scale: gradients are not finite at a fixed scale of %g",
                        s->value);
    s->good = 0;
    s->value *= 0.5;
    if (s->value >= ldexp(1.0, -EXPONENT_MAX)) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE, "loss scale: gradients are not finite at any scale");
}
