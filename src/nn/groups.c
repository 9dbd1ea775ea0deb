/* SPDX-License-Identifier: Apache-2.0 */
/* groups.c - parameters that are trained otherwise than the rest, said by patterns over names.
 *
 *   *norm*: decay=0
 *   model.embed_tokens.weight: rate=0.1 decay=0
 *   model.layers.0.*: frozen
 *   *.router.weight: adamw
 *
 * What a line says is kept in the parameter, before it has storage: optimisers, units and estimates
 * read it there, so that all of them know the same groups. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "nn/module.h"

enum { SETTINGS_MAX = 128 };

typedef struct settings {
    double rate, decay; /* NaN: not said */
    bool frozen, adamw;
} settings;

static ts_status fail_word(const tsi_match *match)
{
    return TSI_FAIL(TS_ERR_ARG,
                    "groups, line %d: expected rate=NUMBER, decay=NUMBER, adamw or frozen, found "
                    "\"%.*s\"",
                    match->line, (int)match->length, match->value);
}

/* The number behind "rate=" or "decay=". */
static bool number_of(tsi_cursor *cursor, double *out)
{
    return tsi_cursor_take(cursor, '=') && tsi_cursor_real(cursor, out) && *out >= 0 &&
           isfinite(*out);
}

static ts_status parse(const tsi_match *match, settings *out)
{
    char text[SETTINGS_MAX], word[16];
    *out = (settings){ .rate = (double)NAN, .decay = (double)NAN };
    if (match->length == 0 || match->length >= sizeof text) return fail_word(match);
    snprintf(text, sizeof text, "%.*s", (int)match->length, match->value);
    tsi_cursor cursor = tsi_cursor_of("groups", text);
    while (!tsi_cursor_done(&cursor)) {
        bool good = tsi_cursor_word(&cursor, word, sizeof word);
        if (good && strcmp(word, "frozen") == 0)
            out->frozen = true;
        else if (good && strcmp(word, "adamw") == 0)
            out->adamw = true;
        else if (good && strcmp(word, "rate") == 0)
            good = number_of(&cursor, &out->rate);
        else if (good && strcmp(word, "decay") == 0)
            good = number_of(&cursor, &out->decay);
        else
            good = false;
        if (!good) return fail_word(match);
    }
    return TS_OK;
}

static ts_status apply(const tsi_match *match, void *context)
{
    (void)context;
    settings said;
    TSI_TRY(parse(match, &said));
    if (ts_tensor_layout(match->param->value))
        return TSI_FAIL(TS_ERR_STATE, "groups: the parameter %s is materialised already",
                        match->name);
    if (!isnan(said.rate)) match->param->rate = said.rate;
    if (!isnan(said.decay)) match->param->decay = said.decay;
    if (said.frozen) match->param->frozen = 1;
    if (said.adamw) match->param->adamw = 1;
    return TS_OK;
}

ts_status ts_module_groups(ts_module *root, const char *groups)
{
    if (!root) return TS_ERR_NULL;
    TSI_TRY(tsi_rank_enter(root->rank));
    if (!groups) return TSI_FAIL(TS_ERR_NULL, "groups: the text is NULL");
    return tsi_module_match(root, &(tsi_match_list){ "groups", groups, apply, NULL });
}
