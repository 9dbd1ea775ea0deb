/* SPDX-License-Identifier: Apache-2.0 */
/* meaning.c - what a state is the state of, as text: a line "name = value" for each setting that
 * decides which function the weights are of and where they lie, an empty line, and a line for each
 * tensor in the order of the file.
 *
 *   parallel.mesh = dp=2              model.embed_tokens.weight = f32 [260, 16](R)
 *   model.heads = 4                   ...
 *
 * Values are those in effect, not those written: a default that is written out means the same. Two
 * runs whose texts are equal can go on from each other's states. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "model/model.h"
#include "model/model_config.h"
#include "tensor/tensor.h"
#include "train/run.h"

#define REST "model: the rest of its configuration"

static void whole(tsi_text *out, const char *name, int64_t value)
{
    tsi_text_printf(out, "model.%s = %lld\n", name, (long long)value);
}

static void real(tsi_text *out, const char *name, double value)
{
    tsi_text_printf(out, "model.%s = ", name);
    tsi_text_real(out, value);
    tsi_text_add(out, "\n");
}

/* What shapes of parameters do not tell. */
static ts_status add_model(tsi_text *out, const ts_model_config *model)
{
    ts_model_config c = *model;
    tsi_text_printf(out, "model.family = %s\n", tsi_family_names[c.family]);
    whole(out, "heads", c.heads);
    whole(out, "kv_heads", c.kv_heads);
    whole(out, "head_dim", c.head_dim);
    if (c.experts > 0) whole(out, "experts_per_token", c.experts_per_token);
    whole(out, "tied", c.tied);
    real(out, "norm_epsilon", c.norm_epsilon);
    if (c.family != TS_MODEL_GPT2) real(out, "rope_theta", c.rope_theta);
    c.positions = 1; /* how long a row may be and how weights began is no part of the function */
    c.init_deviation = 1;
    char *text = tsi_model_config_text(&c);
    if (!text) return TS_ERR_MEMORY;
    tsi_text_printf(out, REST " = %016llx\n", (unsigned long long)tsi_hash_text(1, text));
    tsi_free(text);
    return TS_OK;
}

static ts_status add_tensor(const char *name, ts_tensor *t, void *context)
{
    tsi_text_printf(context, "%s = %s %s\n", name, ts_dtype_name((ts_dtype)t->dtype),
                    t->layout->text);
    return TS_OK;
}

char *tsi_run_meaning(tsi_run *run)
{
    tsi_text out = { 0 };
    tsi_text_printf(&out, "parallel.mesh = %s\noptimizer.kind = %s\n", run->mesh_text,
                    run->config->optimizer.kind);
    ts_status status = add_model(&out, ts_model_configuration(run->model));
    tsi_text_add(&out, "\n");
    if (status == TS_OK) status = ts_module_each(ts_model_module(run->model), add_tensor, &out);
    if (status == TS_OK) status = ts_optimizer_each(run->optimizer, add_tensor, &out);
    if (status == TS_OK) return tsi_text_take(&out);
    tsi_text_release(&out);
    return NULL;
}

/* ---- differences ----------------------------------------------------------------------------- */

typedef struct line {
    const char *name, *value;
    int name_length, value_length;
} line;

/* The line at `at`; false: the text, or its part up to the empty line, ends here. */
static bool line_at(const char *at, line *out)
{
    size_t length = strcspn(at, "\n");
    const char *equals = strstr(at, " = ");
    if (length == 0 || !equals || equals > at + length) return false;
    *out = (line){ at, equals + 3, (int)(equals - at), (int)(at + length - equals - 3) };
    return true;
}

static const char *next_line(const char *at)
{
    at += strcspn(at, "\n");
    return *at ? at + 1 : at;
}

static bool find(const char *text, const line *wanted, line *out)
{
    for (; line_at(text, out); text = next_line(text))
        if (out->name_length == wanted->name_length &&
            memcmp(out->name, wanted->name, (size_t)wanted->name_length) == 0)
            return true;
    return false;
}

/* Lines of `here` that `there` has not, or otherwise: how many; the first `most` are written. */
static int64_t compare(const char *there, const char *here, int64_t most, tsi_text *out)
{
    int64_t count = 0;
    line mine, theirs;
    for (; line_at(here, &mine); here = next_line(here)) {
        bool found = find(there, &mine, &theirs);
        if (found && theirs.value_length == mine.value_length &&
            memcmp(theirs.value, mine.value, (size_t)mine.value_length) == 0)
            continue;
        if (strncmp(mine.name, REST, strlen(REST)) == 0 && count > 0) continue;
        if (count++ >= most) continue;
        tsi_text_printf(out, "%s%.*s is ", out->length > 0 ? "; " : "", mine.name_length,
                        mine.name);
        if (found)
            tsi_text_printf(out, "%.*s there and ", theirs.value_length, theirs.value);
        else
            tsi_text_add(out, "missing there and ");
        tsi_text_printf(out, "%.*s here", mine.value_length, mine.value);
    }
    return count;
}

static const char *tensors_of(const char *text)
{
    const char *empty = strstr(text, "\n\n");
    return empty ? empty + 2 : "";
}

char *tsi_meaning_differences(const char *there, const char *here)
{
    tsi_text out = { 0 };
    (void)compare(there, here, INT64_MAX, &out);
    const char *ours = tensors_of(here), *theirs = tensors_of(there);
    int64_t count = compare(theirs, ours, 1, &out);
    if (count > 1) tsi_text_printf(&out, " (and %lld more tensors differ)", (long long)count - 1);
    if (out.length == 0) tsi_text_add(&out, "it has other tensors, or in another order");
    return tsi_text_take(&out);
}
