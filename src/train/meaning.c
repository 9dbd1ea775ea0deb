/* SPDX-License-Identifier: Apache-2.0 */
/* meaning.c - what a state is the state of, as text: a line "name = value" for each setting that
 * decides which function the weights are of. The tensors of both sides are compared as such lines
 * too, by dtype and shape: where they lie does not count.
 *
 *   model.heads = 4                   model.embed_tokens.weight = f32 [260, 16]
 *
 * Values are those in effect, not those written: a default that is written out means the same. Two
 * runs whose texts and tensors are equal can go on from each other's states. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/state.h"
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

char *tsi_run_meaning(tsi_run *run)
{
    tsi_text out = { 0 };
    tsi_text_printf(&out, "optimizer.kind = %s\n", run->config->optimizer.kind);
    ts_status status = add_model(&out, ts_model_configuration(run->model));
    if (status == TS_OK) return tsi_text_take(&out);
    tsi_text_release(&out);
    return NULL;
}

static void add_line(tsi_text *out, const char *name, const ts_meta *meta)
{
    tsi_text_printf(out, "%s = %s [", name, ts_dtype_name((ts_dtype)meta->dtype));
    for (int32_t d = 0; d < meta->shape.ndim; d++)
        tsi_text_printf(out, "%s%lld", d ? ", " : "", (long long)meta->shape.extent[d]);
    tsi_text_add(out, "]\n");
}

static ts_status add_tensor(const char *name, const char *of, ts_tensor *t, void *context)
{
    (void)of;
    ts_meta meta = { .shape = ts_tensor_shape(t), .dtype = t->dtype };
    add_line(context, name, &meta);
    return TS_OK;
}

static char *tensors_here(tsi_run *run)
{
    tsi_text out = { 0 };
    if (tsi_state_each(run->state, add_tensor, &out) == TS_OK) return tsi_text_take(&out);
    tsi_text_release(&out);
    return NULL;
}

static char *tensors_there(const ts_archive *archive)
{
    tsi_text out = { 0 };
    ts_archive_about about;
    ts_archive_about_of(archive, &about);
    for (int64_t i = 0; i < about.tensor_count; i++) {
        ts_archive_tensor tensor;
        ts_archive_tensor_at(archive, i, &tensor);
        add_line(&out, tensor.name, &tensor.meta);
    }
    return tsi_text_take(&out);
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

/* Lines of `there` that `here` has not at all: how many; the first is written. */
static int64_t add_more(const char *there, const char *here, tsi_text *out)
{
    int64_t count = 0;
    line theirs, mine;
    for (; line_at(there, &theirs); there = next_line(there))
        if (!find(here, &theirs, &mine) && count++ == 0)
            tsi_text_printf(out, "%.*s is there and not here", theirs.name_length, theirs.name);
    return count;
}

static ts_status differences(tsi_text *out, const char *meaning_there, const char *meaning,
                             const char *there, const char *here)
{
    if (!there || !here) return TS_ERR_MEMORY;
    (void)compare(meaning_there, meaning, INT64_MAX, out);
    int64_t count = compare(there, here, 1, out);
    if (count > 1) tsi_text_printf(out, " (and %lld more tensors differ)", (long long)count - 1);
    if (out->length > 0) return TS_OK;
    count = add_more(there, here, out);
    if (count > 1) tsi_text_printf(out, " (and %lld more)", (long long)count - 1);
    return TS_OK;
}

ts_status tsi_meaning_compare(tsi_run *run, const ts_archive *archive, char **out)
{
    *out = NULL;
    const char *meaning_there = ts_archive_value(archive, "meaning");
    char *meaning = tsi_run_meaning(run), *here = tensors_here(run),
         *there = tensors_there(archive);
    tsi_text text = { 0 };
    ts_status status =
        meaning ? differences(&text, meaning_there ? meaning_there : "", meaning, there, here)
                : ts_rank_status(run->me);
    tsi_free(meaning);
    tsi_free(here);
    tsi_free(there);
    if (status == TS_OK && text.length > 0) *out = tsi_text_take(&text);
    tsi_text_release(&text);
    return status;
}
