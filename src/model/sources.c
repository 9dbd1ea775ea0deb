/* SPDX-License-Identifier: Apache-2.0 */
/* sources.c - where a parameter is stored: under its own name, or an older one.
 *
 * A parameter is the row-major concatenation of one or more stored tensors: one as a rule; for
 * experts that are stored singly, those of all experts, gate and up by turns. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "model/weights.h"
#include "op/core/common.h"
#include "op/core/element.h"

enum { NAME_BYTES = 256 };

/* Experts that are stored singly, in two spellings of gate, up and down. */
static const char *const single[2][3] = { { "w1", "w3", "w2" },
                                          { "gate_proj", "up_proj", "down_proj" } };

/* model.layers.L.mlp.X as model.layers.L.block_sparse_moe.X; false: it is no such name. */
static bool older_name(const char *name, char *out, size_t size)
{
    const char *mlp = strstr(name, ".mlp.");
    if (!mlp) return false;
    snprintf(out, size, "%.*s.block_sparse_moe.%s", (int)(mlp - name), name, mlp + 5);
    return true;
}

/* The k-th stored tensor of fused experts, "...experts.E.w1.weight" and so on. */
static void expert_name(const char *fused, const char *const part[3], bool fused_in, int64_t k,
                        char *out, size_t size)
{
    const char *experts = strstr(fused, ".experts.");
    int64_t expert = fused_in ? k / 2 : k;
    const char *which = fused_in ? part[k % 2] : part[2];
    snprintf(out, size, "%.*s.experts.%lld.%s.weight", (int)(experts - fused), fused,
             (long long)expert, which);
}

/* The experts of `name`, as the file spells them: under the older name of their layer, or its own.
 */
static ts_status find_experts(const ts_archive *a, const char *name, const char *older,
                              const ts_shape *shape, tsi_sources *out)
{
    bool fused_in = strstr(name, "gate_up_proj") != NULL;
    int64_t count = shape->extent[0] * (fused_in ? 2 : 1);
    char stored[NAME_BYTES];
    expert_name(older, single[0], fused_in, 0, stored, sizeof stored);
    int spelling = tsi_archive_find(a, stored) ? 0 : 1;
    out->part = tsi_calloc((size_t)count, sizeof *out->part);
    if (!out->part)
        return tsi_fail_memory("the experts of a layer", (size_t)count * sizeof *out->part);
    out->count = count;
    for (int64_t k = 0; k < count; k++) {
        expert_name(spelling ? name : older, single[spelling], fused_in, k, stored, sizeof stored);
        out->part[k] = tsi_archive_find(a, stored);
        if (!out->part[k])
            return TSI_FAIL(TS_ERR_IO, "weights: neither \"%s\" nor \"%s\" is there", name, stored);
    }
    return TS_OK;
}

static ts_status find_parts(const ts_archive *a, const char *name, const ts_shape *shape,
                            tsi_sources *out)
{
    *out = (tsi_sources){ 0 };
    char older[NAME_BYTES];
    const tsi_entry *one = tsi_archive_find(a, name);
    bool renamed = !one && older_name(name, older, sizeof older);
    if (renamed) one = tsi_archive_find(a, older);
    if (!one && renamed && strstr(older, ".experts."))
        return find_experts(a, name, older, shape, out);
    if (!one && strncmp(name, "transformer.", 12) == 0) one = tsi_archive_find(a, name + 12);
    if (!one) return TSI_FAIL(TS_ERR_IO, "weights: tensor \"%s\" is not there", name);
    out->part = tsi_calloc(1, sizeof *out->part);
    if (!out->part) return tsi_fail_memory("a parameter's source", sizeof *out->part);
    out->part[0] = one;
    out->count = 1;
    return TS_OK;
}

static ts_status check_sources(const char *name, const ts_shape *shape, tsi_sources *s)
{
    int64_t total = 0;
    for (int64_t k = 0; k < s->count; k++) {
        int64_t count = ts_shape_count(&s->part[k]->meta.shape);
        if (k > 0 &&
            (count != s->part_elements || s->part[k]->meta.dtype != s->part[0]->meta.dtype))
            return TSI_FAIL(TS_ERR_IO, "weights: the parts of \"%s\" differ in size or dtype",
                            name);
        if (tsi_dtype_category((ts_dtype)s->part[k]->meta.dtype) != TSI_CATEGORY_REAL)
            return TSI_FAIL(TS_ERR_DTYPE, "weights: \"%s\" is stored as %s, which is no weight",
                            name, ts_dtype_name((ts_dtype)s->part[k]->meta.dtype));
        s->part_elements = count;
        total += count;
    }
    bool same = s->count == 1 ? tsi_shape_same(&s->part[0]->meta.shape, shape)
                              : total == ts_shape_count(shape);
    if (same) return TS_OK;
    char there[256], here[256];
    tsi_shape_text(&s->part[0]->meta.shape, there, sizeof there);
    tsi_shape_text(shape, here, sizeof here);
    return TSI_FAIL(TS_ERR_IO,
                    "weights: \"%s\" has another shape in the file than the configuration says: "
                    "%s%s there, %s here",
                    name, there, s->count > 1 ? " each" : "", here);
}

ts_status tsi_sources_find(const ts_archive *archive, const char *name, const ts_shape *shape,
                           tsi_sources *out)
{
    TSI_TRY(find_parts(archive, name, shape, out));
    return check_sources(name, shape, out);
}
