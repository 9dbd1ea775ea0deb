/* SPDX-License-Identifier: Apache-2.0 */
/* loss.c - what a step goes down by: the mean of the negative log-likelihoods, and with
 * train.z_loss a little of the squares of the logits' log-sum-exp, which keeps them from drifting
 * away.
 *
 * INV: the loss that is shown is the first alone, so that runs with and without the second can be
 * compared; held-out rows never have the second. */
#include "train/run.h"

/* In f32 at least: it is squared. */
static ts_tensor *squares(ts_tensor *logits)
{
    const int64_t last = -1;
    bool narrow = ts_dtype_size(ts_tensor_dtype(logits)) < 4;
    ts_tensor *wide = narrow ? ts_cast(logits, TS_DTYPE_F32) : logits;
    return ts_sum(ts_square(ts_logsumexp(wide, &last, 1, 0)), NULL, 0, 0);
}

ts_tensor *tsi_train_with_z(ts_tensor *loss, ts_tensor *logits, double factor)
{
    return factor != 0.0 && logits ? ts_with_loss(loss, squares(logits), factor) : loss;
}

ts_tensor *tsi_train_loss(const tsi_rows_loss *l)
{
    if (l->z_loss == 0.0) return ts_model_loss(l->model, l->ids, l->labels);
    ts_tensor *logits = ts_model_logits(l->model, l->ids);
    ts_tensor *mean = ts_cross_entropy(logits, l->labels);
    double tokens = (double)l->rows * (double)l->context;
    return tsi_train_with_z(mean, logits, l->z_loss * l->factor / tokens);
}
