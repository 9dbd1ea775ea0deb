/* SPDX-License-Identifier: Apache-2.0 */
/* query_kernels.c - the kernels of a call that compete by sizes, as `tessera op` tells of them: on
 * the blocks of the first rank. */
#include "op/ask/query.h"

#include "base/text.h"

/* False: the operator has no choice of kernels. */
static bool kernels_of(const ts_op_query *query, tsi_kernel_choice *out)
{
    const tsi_op_plan *plan = query->plan;
    const int64_t first[TS_NDIM_MAX] = { 0 };
    ts_meta in[TSI_INPUT_MAX];
    if (!query->op->kernels) return false;
    for (int32_t i = 0; i < plan->input_count; i++) {
        const ts_layout *layout = plan->wanted[i] ? plan->wanted[i] : plan->in[i];
        in[i] = plan->in_meta[i];
        if (layout) in[i].shape = ts_layout_local(layout, first);
    }
    tsi_op_call call = { query->op, plan->attributes, in, NULL, plan->input_count, 0 };
    query->op->kernels(&call, out);
    return true;
}

void tsi_query_kernels_json(const ts_op_query *query, tsi_text *text)
{
    tsi_kernel_choice all;
    if (!kernels_of(query, &all)) return;
    tsi_text_printf(text, ", \"kernel\": \"%s\", \"kernels\": [", all.candidate[all.chosen].name);
    const char *between = "";
    for (int32_t i = 0; i < all.count; i++) {
        if (all.candidate[i].us < 0) continue;
        tsi_text_printf(text, "%s{\"name\": \"%s\", \"time_us\": %.6g}", between,
                        all.candidate[i].name, all.candidate[i].us);
        between = ", ";
    }
    tsi_text_add(text, "]");
}

void tsi_query_kernels_words(const ts_op_query *query, tsi_text *text)
{
    tsi_kernel_choice all;
    if (!kernels_of(query, &all)) return;
    for (int32_t i = 0; i < all.count; i++)
        if (all.candidate[i].us >= 0)
            tsi_text_printf(text, "  kernel %s %-12s %10.4g us on a rank's block\n",
                            i == all.chosen ? "takes" : "or   ", all.candidate[i].name,
                            all.candidate[i].us);
}
