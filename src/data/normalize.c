/* SPDX-License-Identifier: Apache-2.0 */
/* normalize.c - the rewriting of texts before they are cut. Two scratch texts take turns. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

void tsi_replace(tsi_text *out, tsi_string text, tsi_string from, tsi_string to)
{
    const char *at = text.data, *end = text.data + text.length;
    while (at < end) {
        const char *found = memmem(at, (size_t)(end - at), from.data, from.length);
        const char *stop = found != NULL ? found : end;
        tsi_text_add_n(out, at, (size_t)(stop - at));
        if (found != NULL) tsi_text_add_n(out, to.data, to.length);
        at = found != NULL ? found + from.length : end;
    }
}

/* Applies one normalizer; false: the text stays as it is. */
static bool apply(const tsi_normal *normal, tsi_string text, bool continued, tsi_text *out)
{
    switch (normal->kind) {
    case TSI_NORMAL_PREPEND:
        if (continued || text.length == 0) return false;
        tsi_text_add_n(out, normal->to.data, normal->to.length);
        tsi_text_add_n(out, text.data, text.length);
        return true;
    case TSI_NORMAL_REPLACE:
        tsi_replace(out, text, normal->from, normal->to);
        return true;
    case TSI_NORMAL_NFC:
        return tsi_nfc(text.data, text.length, out);
    }
    return false;
}

ts_status tsi_normalize(ts_tokenizer *tokenizer, tsi_string text, bool continued, tsi_string *out)
{
    size_t turn = 0;
    for (size_t i = 0; i < tokenizer->normal_count; i++) {
        tsi_text *scratch = &tokenizer->scratch[TSI_TOKEN_STEPS_MAX + turn];
        scratch->length = 0;
        if (!apply(&tokenizer->normal[i], text, continued, scratch)) continue;
        if (scratch->failed) {
            tsi_text_release(scratch);
            return tsi_fail_memory("a normalized text", text.length);
        }
        text = (tsi_string){ scratch->data, scratch->length };
        turn = 1 - turn;
    }
    *out = text;
    return TS_OK;
}
