/* SPDX-License-Identifier: Apache-2.0 */
/* border.c - gradients at the border of a step that is recorded (base/keep.h).
 *
 *   [forward backward] update    leaves gradients, which the next run finds cleared
 *   backward [update]            takes gradients, which lie elsewhere each time
 *
 * Kept work adds to a gradient or makes one; which of the two it is was decided when it was
 * recorded. So the step is run again where there is a gradient as there was then, brought to the
 * place where that lay, or none as then; behind it the leaf has what the recording left.
 * INV: a leaf is noted before the recording reads, changes or clears its gradient. */
#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/keep.h"

typedef struct border {
    tsi_leaf *leaf;      /* a reference */
    ts_tensor *found[2]; /* the gradient and what of it is reduced, by value; or NULL */
    ts_tensor *left[2];  /* likewise */
    int32_t settled;     /* of what is left */
    bool reads;          /* what is found, or that there is none */
} border;

static void border_destroy(void *context)
{
    border *b = context;
    for (int i = 0; i < 2; i++) {
        tsi_tensor_release(b->found[i]);
        tsi_tensor_release(b->left[i]);
    }
    tsi_leaf_release(b->leaf);
    tsi_free(b);
}

static ts_status border_settle(void *context)
{
    border *b = context;
    b->settled = b->leaf->settled;
    TSI_TRY(tsi_variable_value(b->leaf->grad, &b->left[0]));
    return tsi_variable_value(b->leaf->reduced, &b->left[1]);
}

static ts_status refuse(const tsi_leaf *leaf, const char *why)
{
    char name[256] = "a leaf";
    if (leaf->self && leaf->self->name) (void)tsi_name_text(leaf->self->name, name, sizeof name);
    return TSI_FAIL_BLAST(TS_BLAST_LOCAL, TS_ERR_STATE, "step: the gradient of %s %s", name, why);
}

/* May what is there now stand for what the recording found? */
static ts_status compare(const tsi_leaf *leaf, ts_tensor *now, const ts_tensor *found)
{
    bool there = now && now->layout;
    if (!found && !there) return TS_OK;
    if (!found)
        return refuse(leaf, "is there, and was not when the step was recorded: run again the step "
                            "would not add to it; clear it before");
    if (!there)
        return refuse(leaf, "is not there, and was when the step was recorded: run again the step "
                            "would read that one");
    TSI_TRY(tsi_tensor_ready(now));
    if (now->layout == found->layout && now->dtype == found->dtype) return TS_OK;
    return refuse(leaf, "lies otherwise than when the step was recorded");
}

static ts_status border_check(void *context)
{
    const border *b = context;
    if (!b->reads || !b->leaf->self) return TS_OK;
    TSI_TRY(compare(b->leaf, b->leaf->grad, b->found[0]));
    return compare(b->leaf, b->leaf->reduced, b->found[1]);
}

/* What is there now, brought to where the recording found it. */
static ts_status bring(const ts_tensor *now, const ts_tensor *found)
{
    bool same = !found || now->array->storage == found->array->storage;
    return same ? TS_OK : tsi_array_copy(found->array, now->array);
}

static ts_status border_enter(void *context)
{
    const border *b = context;
    if (!b->reads || !b->leaf->self) return TS_OK;
    TSI_TRY(bring(b->leaf->grad, b->found[0]));
    return bring(b->leaf->reduced, b->found[1]);
}

static ts_status give(const tsi_leaf *leaf, ts_tensor *left, ts_tensor **to)
{
    ts_tensor *now = *to;
    if (!left) {
        tsi_tensor_release(now);
        *to = NULL;
        return TS_OK;
    }
    bool same = now && now->layout == left->layout && now->array->storage == left->array->storage;
    if (same) return TS_OK;
    if (!now) now = *to = tsi_leaf_variable(leaf);
    return now ? ts_tensor_write(now, left) : ts_rank_status(leaf->rank);
}

static ts_status border_leave(void *context)
{
    const border *b = context;
    if (!b->leaf->self) return TS_OK;
    TSI_TRY(give(b->leaf, b->left[0], &b->leaf->grad));
    TSI_TRY(give(b->leaf, b->left[1], &b->leaf->reduced));
    b->leaf->settled = b->settled;
    return TS_OK;
}

static ts_status note(tsi_leaf *leaf, bool reads)
{
    border *b = tsi_calloc(1, sizeof *b);
    if (!b) return tsi_fail_memory("a gradient of a step", sizeof *b);
    leaf->references++;
    b->leaf = leaf;
    b->reads = reads;
    ts_status status = tsi_variable_value(leaf->grad, &b->found[0]);
    if (status == TS_OK) status = tsi_variable_value(leaf->reduced, &b->found[1]);
    if (status != TS_OK) {
        border_destroy(b);
        return status;
    }
    const tsi_kept_border kept = { .settle = border_settle,
                                   .check = border_check,
                                   .enter = border_enter,
                                   .leave = border_leave,
                                   .destroy = border_destroy,
                                   .context = b };
    return tsi_keep_border(leaf->rank, kept);
}

ts_status tsi_leaf_at_border(tsi_leaf *leaf, bool reads)
{
    if (leaf->is_inner || TSI_LIKELY(!tsi_keep_notes(leaf->rank, &leaf->kept_in))) return TS_OK;
    return note(leaf, reads);
}

ts_tensor *tsi_leaf_variable(const tsi_leaf *leaf)
{
    ts_tensor *v = tsi_variable(leaf->rank);
    if (v) v->is_variable = TSI_VARIABLE_OWNED;
    return v;
}
