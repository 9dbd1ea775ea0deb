/* SPDX-License-Identifier: Apache-2.0 */
/* mask_text.c - masks as text, both ways.
 *
 *   mask  := or ("+" score)*         score := "softcap(" c ")" | "alibi"
 *   or    := and ("|" and)*          and   := leaf ("&" leaf)*
 *   leaf  := "(" or ")" | "full" | "causal" | "window(" l "," r ")" | "prefix(" n ")"
 *          | "documents(" n ("," n)* (";" n ("," n)*)* ")" | "user(" name ")" | "dense(" name ")"
 *
 * Printing what was read and reading it again gives the same tree: that is the one spelling. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "mask/mask.h"

typedef struct reader {
    tsi_cursor cursor;
    const tsi_mask_user *users;
    ts_mask *mask;
    int32_t depth, reserved;
} reader;

enum { DEPTH_MAX = 16, DOCUMENTS_MAX = 1 << 24 };

static ts_status read_or(reader *r, int32_t *out);

static ts_status add_node(reader *r, tsi_mask_node node, int32_t *out)
{
    ts_mask *mask = r->mask;
    if (mask->node_count == TSI_MASK_NODES)
        return TSI_FAIL(TS_ERR_ARG, "mask: more than %d parts", (int)TSI_MASK_NODES);
    *out = mask->node_count;
    mask->node[mask->node_count++] = node;
    return TS_OK;
}

static ts_status read_number(reader *r, int64_t low, const char *expected, int64_t *out)
{
    tsi_cursor before = r->cursor;
    if (!tsi_cursor_int(&r->cursor, out) || *out < low || *out >= TSI_EXTENT_MAX)
        return tsi_cursor_fail(&before, expected);
    return TS_OK;
}

static ts_status expect(reader *r, char c, const char *expected)
{
    return tsi_cursor_take(&r->cursor, c) ? TS_OK : tsi_cursor_fail(&r->cursor, expected);
}

/* ---- documents ------------------------------------------------------------------------------- */

/* How many numbers and rows there are up to the ')'. */
static void count_documents(const char *at, int64_t *numbers, int64_t *rows)
{
    *numbers = *rows = 1;
    for (; *at && *at != ')'; at++) {
        *numbers += *at == ',' || *at == ';';
        *rows += *at == ';';
    }
}

static ts_status read_row(reader *r, tsi_mask_node *node, int64_t row, int64_t *count)
{
    int64_t total = 0;
    do {
        int64_t length;
        TSI_TRY(read_number(r, 0, "the length of a document, at least 0", &length));
        if (length >= TSI_EXTENT_MAX - total)
            return TSI_FAIL(TS_ERR_SHAPE, "mask: documents of row %lld are longer than any tensor",
                            (long long)row);
        total += length;
        if (length > 0) node->end[(*count)++] = total; /* an empty document is none */
    } while (tsi_cursor_take(&r->cursor, ','));
    if (row > 0 && total != r->mask->length)
        return TSI_FAIL(TS_ERR_SHAPE,
                        "mask: documents of row %lld have %lld tokens together, those of row 0 "
                        "have %lld",
                        (long long)row, (long long)total, (long long)r->mask->length);
    if (r->mask->length > 0 && row == 0 && total != r->mask->length)
        return TSI_FAIL(TS_ERR_SHAPE, "mask: two lists of documents, of %lld and %lld tokens",
                        (long long)r->mask->length, (long long)total);
    r->mask->length = total;
    return TS_OK;
}

static ts_status read_documents(reader *r, tsi_mask_node *node)
{
    int64_t numbers, rows, count = 0;
    count_documents(r->cursor.at, &numbers, &rows);
    if (numbers > DOCUMENTS_MAX)
        return TSI_FAIL(TS_ERR_ARG, "mask: %lld documents are too many", (long long)numbers);
    node->first = tsi_arena_calloc(&r->mask->memory, (size_t)rows + 1, sizeof *node->first);
    node->end = tsi_arena_calloc(&r->mask->memory, (size_t)numbers, sizeof *node->end);
    if (!node->first || !node->end)
        return tsi_fail_memory("documents of a mask", (size_t)numbers * sizeof *node->end);
    for (int64_t row = 0; row < rows; row++) {
        node->first[row] = count;
        TSI_TRY(read_row(r, node, row, &count));
        node->first[row + 1] = count;
        if (row + 1 < rows) TSI_TRY(expect(r, ';', "',' or ';' or ')'"));
    }
    node->a = rows;
    if (rows > 1 && r->mask->rows > 1 && rows != r->mask->rows)
        return TSI_FAIL(TS_ERR_SHAPE, "mask: documents of %lld and of %lld rows",
                        (long long)r->mask->rows, (long long)rows);
    if (rows > 1) {
        r->mask->rows = rows;
        r->mask->by_row = 1;
    }
    return TS_OK;
}

/* ---- leaves ---------------------------------------------------------------------------------- */

static ts_status read_user(reader *r, tsi_mask_node *node)
{
    char name[TSI_MASK_WORD] = "";
    tsi_cursor before = r->cursor;
    (void)tsi_cursor_word(&r->cursor, name, sizeof name);
    const tsi_mask_user *user = r->users;
    while (user && (strcmp(user->name, name) != 0 || !user->fn != (node->kind == TSI_MASK_DENSE)))
        user = user->next;
    if (!user)
        return tsi_cursor_fail(&before, node->kind == TSI_MASK_USER
                                            ? "the name of a predicate that was registered"
                                            : "the name of a table that was registered");
    node->user = user;
    if (user->fn) r->mask->by_row = r->mask->by_head = 1;
    return TS_OK;
}

static ts_status read_arguments(reader *r, tsi_mask_node *node)
{
    switch ((tsi_mask_kind)node->kind) {
    case TSI_MASK_WINDOW:
        TSI_TRY(read_number(r, -1, "how far back a query sees, or -1", &node->a));
        TSI_TRY(expect(r, ',', "',' and how far ahead a query sees"));
        return read_number(r, -1, "how far ahead a query sees, or -1", &node->b);
    case TSI_MASK_PREFIX:
        return read_number(r, 0, "the length of the prefix", &node->a);
    case TSI_MASK_DOCUMENTS:
        return read_documents(r, node);
    case TSI_MASK_USER:
    case TSI_MASK_DENSE:
        return read_user(r, node);
    case TSI_MASK_FULL:
    case TSI_MASK_CAUSAL:
    case TSI_MASK_AND:
    case TSI_MASK_OR:
        break;
    }
    return TS_OK;
}

static const struct {
    const char *name;
    tsi_mask_kind kind;
} leaves[] = { { "full", TSI_MASK_FULL },           { "causal", TSI_MASK_CAUSAL },
               { "window", TSI_MASK_WINDOW },       { "prefix", TSI_MASK_PREFIX },
               { "documents", TSI_MASK_DOCUMENTS }, { "user", TSI_MASK_USER },
               { "dense", TSI_MASK_DENSE } };

static ts_status read_leaf(reader *r, int32_t *out)
{
    tsi_cursor before = r->cursor;
    char word[16] = "";
    if (tsi_cursor_take(&r->cursor, '(')) {
        if (++r->depth > DEPTH_MAX) return tsi_cursor_fail(&before, "fewer parentheses");
        TSI_TRY(read_or(r, out));
        r->depth--;
        return expect(r, ')', "')'");
    }
    (void)tsi_cursor_word(&r->cursor, word, sizeof word);
    for (size_t i = 0; i < TSI_COUNT_OF(leaves); i++) {
        if (strcmp(word, leaves[i].name) != 0) continue;
        tsi_mask_node node = { .kind = (int32_t)leaves[i].kind };
        if (leaves[i].kind > TSI_MASK_CAUSAL) {
            TSI_TRY(expect(r, '(', "'('"));
            TSI_TRY(read_arguments(r, &node));
            TSI_TRY(expect(r, ')', "')'"));
        }
        return add_node(r, node, out);
    }
    return tsi_cursor_fail(&before, "full, causal, window(l, r), prefix(n), documents(n, ..), "
                                    "user(name) or dense(name)");
}

static ts_status read_and(reader *r, int32_t *out)
{
    TSI_TRY(read_leaf(r, out));
    while (tsi_cursor_take(&r->cursor, '&')) {
        tsi_mask_node both = { .kind = TSI_MASK_AND, .left = *out };
        TSI_TRY(read_leaf(r, &both.right));
        TSI_TRY(add_node(r, both, out));
    }
    return TS_OK;
}

static ts_status read_or(reader *r, int32_t *out)
{
    TSI_TRY(read_and(r, out));
    while (tsi_cursor_take(&r->cursor, '|')) {
        tsi_mask_node either = { .kind = TSI_MASK_OR, .left = *out };
        TSI_TRY(read_and(r, &either.right));
        TSI_TRY(add_node(r, either, out));
    }
    return TS_OK;
}

static ts_status read_score(reader *r)
{
    char word[16] = "";
    tsi_cursor before = r->cursor;
    (void)tsi_cursor_word(&r->cursor, word, sizeof word);
    if (strcmp(word, "alibi") == 0) {
        r->mask->alibi = 1;
        return TS_OK;
    }
    if (strcmp(word, "softcap") != 0) return tsi_cursor_fail(&before, "softcap(c) or alibi");
    TSI_TRY(expect(r, '(', "'('"));
    before = r->cursor;
    if (!tsi_cursor_real(&r->cursor, &r->mask->cap) || !(r->mask->cap > 0) || r->mask->cap > 1e30)
        return tsi_cursor_fail(&before, "a cap above 0");
    return expect(r, ')', "')'");
}

ts_status tsi_mask_parse(const char *text, const tsi_mask_user *users, ts_mask *out)
{
    reader r = { .cursor = tsi_cursor_of("mask", text), .users = users, .mask = out };
    int32_t root;
    TSI_TRY(read_or(&r, &root));
    while (tsi_cursor_take(&r.cursor, '+'))
        TSI_TRY(read_score(&r));
    if (!tsi_cursor_done(&r.cursor)) return tsi_cursor_fail(&r.cursor, "'&', '|', '+' or the end");
    return TS_OK;
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_documents(tsi_text *text, const tsi_mask_node *node)
{
    tsi_text_add(text, "(");
    for (int64_t row = 0; row < node->a; row++) {
        int64_t before = 0;
        if (row > 0) tsi_text_add(text, "; ");
        for (int64_t i = node->first[row]; i < node->first[row + 1]; i++) {
            if (i > node->first[row]) tsi_text_add(text, ", ");
            tsi_text_int(text, node->end[i] - before);
            before = node->end[i];
        }
        if (node->first[row] == node->first[row + 1]) tsi_text_add(text, "0");
    }
    tsi_text_add(text, ")");
}

static void print_leaf(tsi_text *text, const tsi_mask_node *node)
{
    for (size_t i = 0; i < TSI_COUNT_OF(leaves); i++)
        if ((int32_t)leaves[i].kind == node->kind) tsi_text_add(text, leaves[i].name);
    if (node->kind == TSI_MASK_WINDOW)
        tsi_text_printf(text, "(%lld, %lld)", (long long)node->a, (long long)node->b);
    else if (node->kind == TSI_MASK_PREFIX)
        tsi_text_printf(text, "(%lld)", (long long)node->a);
    else if (node->kind == TSI_MASK_DOCUMENTS)
        print_documents(text, node);
    else if (node->user)
        tsi_text_printf(text, "(%s)", node->user->name);
}

/* `binds`: what stands around it. The right part of an operator is in parentheses if it is one of
 * the same kind, so that the tree is read back as it was. */
static void print_node(tsi_text *text, const ts_mask *mask, int32_t at, int32_t binds)
{
    const tsi_mask_node *node = &mask->node[at];
    if (node->kind < TSI_MASK_AND) {
        print_leaf(text, node);
        return;
    }
    int32_t own = node->kind == TSI_MASK_AND ? 2 : 0;
    if (own < binds) tsi_text_add(text, "(");
    print_node(text, mask, node->left, own);
    tsi_text_add(text, node->kind == TSI_MASK_AND ? " & " : " | ");
    print_node(text, mask, node->right, own + 1);
    if (own < binds) tsi_text_add(text, ")");
}

char *tsi_mask_print(const ts_mask *mask)
{
    tsi_text text = { 0 };
    print_node(&text, mask, mask->node_count - 1, 0);
    if (mask->cap > 0) {
        tsi_text_add(&text, " + softcap(");
        tsi_text_real(&text, mask->cap);
        tsi_text_add(&text, ")");
    }
    if (mask->alibi) tsi_text_add(&text, " + alibi");
    return tsi_text_take(&text);
}
