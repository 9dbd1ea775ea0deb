/* SPDX-License-Identifier: Apache-2.0 */
/* parse_steps.c - the stages of a tokenizer.json around its model. What is not known is refused by
 * its name: a tokenizer that nearly does the same is worse than none. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

static ts_status unsupported(const char *stage, const char *name)
{
    return TSI_FAIL(TS_ERR_ARG, "%s %.64s is not supported", stage, name);
}

static const char *type_of(const ts_json *value)
{
    return ts_json_text(ts_json_member(value, "type"), "without a type");
}

static bool is_type(const ts_json *value, const char *name)
{
    return strcmp(type_of(value), name) == 0;
}

/* Each element of a Sequence's list, through the reader of that stage. */
static ts_status each_of(ts_tokenizer *t, const ts_json *value, const char *list,
                         ts_status (*read)(ts_tokenizer *, const ts_json *))
{
    const ts_json *items = ts_json_member(value, list);
    if (ts_json_kind_of(items) != TS_JSON_LIST)
        return TSI_FAIL(TS_ERR_ARG, "a Sequence has no list \"%s\"", list);
    for (int64_t i = 0; i < ts_json_count(items); i++)
        TSI_TRY(read(t, ts_json_item(items, i)));
    return TS_OK;
}

static ts_status too_many(const char *stage)
{
    return TSI_FAIL(TS_ERR_ARG, "%s has more than %d steps", stage, TSI_TOKEN_STEPS_MAX);
}

/* A required text of a component, copied; empty only where that is allowed. */
static ts_status read_text(ts_tokenizer *t, const ts_json *value, const char *name,
                           bool may_be_empty, tsi_string *out)
{
    const char *text = ts_json_text(ts_json_member(value, name), NULL);
    if (text == NULL || (*text == '\0' && !may_be_empty))
        return TSI_FAIL(TS_ERR_ARG, "%s needs a text \"%s\"", type_of(value), name);
    const char *copy = tsi_arena_strdup(&t->texts, text);
    if (copy == NULL) return tsi_fail_memory("a tokenizer's texts", strlen(text));
    *out = (tsi_string){ copy, strlen(copy) };
    return TS_OK;
}

/* {"pattern": {"String": "..."}, "content": "..."} */
static ts_status read_replace(ts_tokenizer *t, const ts_json *value, const char *stage,
                              tsi_string *from, tsi_string *to)
{
    const ts_json *pattern = ts_json_member(value, "pattern");
    if (ts_json_member(pattern, "Regex") != NULL) return unsupported(stage, "Replace with a Regex");
    TSI_TRY(read_text(t, pattern, "String", false, from));
    return read_text(t, value, "content", true, to);
}

ts_status tsi_read_normalizer(ts_tokenizer *t, const ts_json *value)
{
    if (ts_json_kind_of(value) == TS_JSON_NULL) return TS_OK;
    if (is_type(value, "Sequence")) return each_of(t, value, "normalizers", tsi_read_normalizer);
    if (t->normal_count == TSI_TOKEN_STEPS_MAX) return too_many("the normalizer");
    tsi_normal *normal = &t->normal[t->normal_count++];
    if (is_type(value, "NFC")) {
        normal->kind = TSI_NORMAL_NFC;
        return TS_OK;
    }
    if (is_type(value, "Prepend")) {
        normal->kind = TSI_NORMAL_PREPEND;
        return read_text(t, value, "prepend", true, &normal->to);
    }
    if (is_type(value, "Replace")) {
        normal->kind = TSI_NORMAL_REPLACE;
        return read_replace(t, value, "normalizer", &normal->from, &normal->to);
    }
    return unsupported("normalizer", type_of(value));
}

/* ---- pre-tokenizers -------------------------------------------------------------------------- */
/* NULL, and the error is recorded, if there are too many. */
static tsi_token_step *new_step(ts_tokenizer *t, tsi_token_step_kind kind)
{
    if (t->step_count == TSI_TOKEN_STEPS_MAX) {
        too_many("the pre_tokenizer");
        return NULL;
    }
    tsi_token_step *step = &t->step[t->step_count++];
    step->kind = kind;
    return step;
}

static ts_status add_pattern(ts_tokenizer *t, const char *name, const char *expression,
                             tsi_split_kind split, bool invert)
{
    char what[96];
    (void)snprintf(what, sizeof what, "pre_tokenizer %.64s", name);
    tsi_token_step *step = new_step(t, TSI_TOKEN_STEP_SPLIT);
    if (step == NULL) return TS_ERR_ARG;
    step->split = split;
    step->invert = invert;
    step->scan = tsi_scan_of(expression);
    return tsi_pattern_compile(what, expression, &step->pattern);
}

static ts_status read_split(ts_tokenizer *t, const ts_json *value)
{
    static const char *const names[] = { "Isolated", "Removed", "MergedWithPrevious",
                                         "MergedWithNext", "Contiguous" };
    const char *behavior = ts_json_text(ts_json_member(value, "behavior"), "(none)");
    bool invert = ts_json_bool(ts_json_member(value, "invert"), false);
    size_t kind = 0;
    while (kind < TSI_COUNT_OF(names) && strcmp(names[kind], behavior) != 0)
        kind++;
    if (kind == TSI_COUNT_OF(names))
        return unsupported("pre_tokenizer Split with behavior", behavior);
    const ts_json *pattern = ts_json_member(value, "pattern");
    const char *expression = ts_json_text(ts_json_member(pattern, "Regex"), NULL);
    if (expression != NULL)
        return add_pattern(t, "Split", expression, (tsi_split_kind)kind, invert);
    tsi_token_step *step = new_step(t, TSI_TOKEN_STEP_SPLIT);
    if (step == NULL) return TS_ERR_ARG;
    step->split = (tsi_split_kind)kind;
    step->invert = invert;
    return read_text(t, pattern, "String", false, &step->literal);
}

static ts_status read_byte_level(ts_tokenizer *t, const ts_json *value)
{
    t->bpe.byte_level = true;
    bool prefix = ts_json_bool(ts_json_member(value, "add_prefix_space"), true);
    if (prefix && new_step(t, TSI_TOKEN_STEP_PREFIX) == NULL) return TS_ERR_ARG;
    if (!ts_json_bool(ts_json_member(value, "use_regex"), true)) return TS_OK;
    return add_pattern(t, "ByteLevel", tsi_pattern_gpt2, TSI_SPLIT_ISOLATED, false);
}

/* How Metaspace's mark stands before a text: prepend_scheme, or add_prefix_space in old files. */
static ts_status read_scheme(const ts_json *value, tsi_mark_prefix *out)
{
    bool add = ts_json_bool(ts_json_member(value, "add_prefix_space"), true);
    const char *scheme =
        ts_json_text(ts_json_member(value, "prepend_scheme"), add ? "always" : "never");
    if (strcmp(scheme, "always") == 0)
        *out = TSI_MARK_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        *out = TSI_MARK_FIRST;
    else if (strcmp(scheme, "never") == 0)
        *out = TSI_MARK_NEVER;
    else
        return unsupported("Metaspace with prepend_scheme", scheme);
    return TS_OK;
}

static bool is_character(tsi_string text)
{
    size_t used = 0;
    if (text.length > 0) tsi_utf8_read(text.data, text.length, &used);
    return text.length > 0 && used == text.length;
}

/* "first" means: nothing stands before it in the raw text. Behind a normalizer that adds or removes
 * characters the reference implementation loses track of that. */
static ts_status check_first(const ts_tokenizer *t)
{
    for (size_t i = 0; i < t->normal_count; i++) {
        const tsi_normal *normal = &t->normal[i];
        bool keeps = normal->kind == TSI_NORMAL_NFC ||
                     (normal->kind == TSI_NORMAL_REPLACE && is_character(normal->from) &&
                      is_character(normal->to));
        if (!keeps)
            return unsupported("pre_tokenizer Metaspace with prepend_scheme first",
                               "behind a normalizer that adds or removes characters");
    }
    return TS_OK;
}

static ts_status read_metaspace(ts_tokenizer *t, const ts_json *value)
{
    tsi_token_step *step = new_step(t, TSI_TOKEN_STEP_MARK);
    if (step == NULL) return TS_ERR_ARG;
    TSI_TRY(read_text(t, value, "replacement", false, &step->literal));
    TSI_TRY(read_scheme(value, &step->prefix));
    if (step->prefix == TSI_MARK_FIRST) TSI_TRY(check_first(t));
    if (!ts_json_bool(ts_json_member(value, "split"), true)) return TS_OK;
    tsi_token_step *cut = new_step(t, TSI_TOKEN_STEP_SPLIT);
    if (cut == NULL) return TS_ERR_ARG;
    cut->split = TSI_SPLIT_WITH_NEXT;
    cut->literal = step->literal;
    return TS_OK;
}

ts_status tsi_read_pre_tokenizer(ts_tokenizer *t, const ts_json *value)
{
    if (ts_json_kind_of(value) == TS_JSON_NULL) return TS_OK;
    if (is_type(value, "Sequence"))
        return each_of(t, value, "pretokenizers", tsi_read_pre_tokenizer);
    if (t->bpe.byte_level) return unsupported("a pre_tokenizer behind ByteLevel:", type_of(value));
    if (is_type(value, "ByteLevel")) return read_byte_level(t, value);
    if (is_type(value, "Split")) return read_split(t, value);
    if (is_type(value, "Metaspace")) return read_metaspace(t, value);
    if (is_type(value, "Digits")) {
        bool single = ts_json_bool(ts_json_member(value, "individual_digits"), false);
        return add_pattern(t, "Digits", single ? "\\p{N}" : "\\p{N}+", TSI_SPLIT_ISOLATED, false);
    }
    return unsupported("pre_tokenizer", type_of(value));
}

/* ---- decoders -------------------------------------------------------------------------------- */
static ts_status read_strip(ts_tokenizer *t, const ts_json *value, tsi_decode *step)
{
    step->kind = TSI_DECODE_STRIP;
    step->start = ts_json_int(ts_json_member(value, "start"), 0);
    step->stop = ts_json_int(ts_json_member(value, "stop"), 0);
    return read_text(t, value, "content", false, &step->from);
}

static ts_status read_mark_decoder(ts_tokenizer *t, const ts_json *value, tsi_decode *step)
{
    tsi_mark_prefix prefix;
    step->kind = TSI_DECODE_MARK;
    TSI_TRY(read_scheme(value, &prefix));
    step->keep_first = prefix == TSI_MARK_NEVER;
    return read_text(t, value, "replacement", false, &step->from);
}

ts_status tsi_read_decoder(ts_tokenizer *t, const ts_json *value)
{
    if (ts_json_kind_of(value) == TS_JSON_NULL) return TS_OK;
    t->joined = true;
    if (is_type(value, "Sequence")) return each_of(t, value, "decoders", tsi_read_decoder);
    if (t->decode_count == TSI_TOKEN_STEPS_MAX) return too_many("the decoder");
    tsi_decode *step = &t->decode[t->decode_count++];
    if (is_type(value, "Replace")) {
        step->kind = TSI_DECODE_REPLACE;
        return read_replace(t, value, "decoder", &step->from, &step->to);
    }
    if (is_type(value, "Strip")) return read_strip(t, value, step);
    if (is_type(value, "Metaspace")) return read_mark_decoder(t, value, step);
    if (is_type(value, "ByteLevel"))
        step->kind = TSI_DECODE_BYTE_LEVEL;
    else if (is_type(value, "ByteFallback"))
        step->kind = TSI_DECODE_BYTE_FALLBACK;
    else if (is_type(value, "Fuse"))
        step->kind = TSI_DECODE_FUSE;
    else
        return unsupported("decoder", type_of(value));
    return TS_OK;
}

/* ---- post-processors ------------------------------------------------------------------------- */
/* The ids of a special token of a template, by the template's own table. */
static ts_status add_special(const ts_json *table, const char *name, ts_tokens *out)
{
    const ts_json *ids = ts_json_member(ts_json_member(table, name), "ids");
    if (ts_json_count(ids) == 0)
        return TSI_FAIL(TS_ERR_ARG, "post_processor TemplateProcessing has no ids for \"%.64s\"",
                        name);
    for (int64_t i = 0; i < ts_json_count(ids); i++) {
        int64_t id = ts_json_int(ts_json_item(ids, i), -1);
        if (id < 0 || id > TSI_VOCAB_ID_MAX)
            return TSI_FAIL(TS_ERR_ARG, "post_processor: \"%.64s\" has no proper id", name);
        TSI_TRY(tsi_tokens_add(out, (int32_t)id));
    }
    return TS_OK;
}

static ts_status read_template(ts_tokenizer *t, const ts_json *value)
{
    const ts_json *single = ts_json_member(value, "single");
    const ts_json *table = ts_json_member(value, "special_tokens");
    if (ts_json_kind_of(single) != TS_JSON_LIST)
        return TSI_FAIL(TS_ERR_ARG, "post_processor TemplateProcessing needs a list \"single\"");
    bool behind = false;
    for (int64_t i = 0; i < ts_json_count(single); i++) {
        const ts_json *item = ts_json_item(single, i);
        const ts_json *special = ts_json_member(item, "SpecialToken");
        if (special != NULL) {
            const char *name = ts_json_text(ts_json_member(special, "id"), "");
            TSI_TRY(add_special(table, name, behind ? &t->behind : &t->before));
        } else if (ts_json_member(item, "Sequence") != NULL && !behind) {
            behind = true;
        } else {
            return unsupported("post_processor TemplateProcessing", "with this template");
        }
    }
    return behind ? TS_OK : unsupported("post_processor TemplateProcessing", "without a Sequence");
}

/* {"cls": ["<s>", 0], "sep": ["</s>", 2]} */
static ts_status read_cls_sep(ts_tokenizer *t, const ts_json *value)
{
    int64_t cls = ts_json_int(ts_json_item(ts_json_member(value, "cls"), 1), -1);
    int64_t sep = ts_json_int(ts_json_item(ts_json_member(value, "sep"), 1), -1);
    if (cls < 0 || sep < 0 || cls > TSI_VOCAB_ID_MAX || sep > TSI_VOCAB_ID_MAX)
        return TSI_FAIL(TS_ERR_ARG, "post_processor %s needs ids in cls and sep", type_of(value));
    TSI_TRY(tsi_tokens_add(&t->before, (int32_t)cls));
    return tsi_tokens_add(&t->behind, (int32_t)sep);
}

ts_status tsi_read_post_processor(ts_tokenizer *t, const ts_json *value)
{
    if (ts_json_kind_of(value) == TS_JSON_NULL) return TS_OK;
    if (is_type(value, "Sequence")) return each_of(t, value, "processors", tsi_read_post_processor);
    if (is_type(value, "ByteLevel")) return TS_OK; /* changes offsets only */
    if (t->before.count + t->behind.count > 0)
        return unsupported("a post_processor behind one that adds tokens:", type_of(value));
    if (is_type(value, "TemplateProcessing")) return read_template(t, value);
    if (is_type(value, "RobertaProcessing") || is_type(value, "BertProcessing"))
        return read_cls_sep(t, value);
    return unsupported("post_processor", type_of(value));
}
