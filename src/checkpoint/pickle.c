/* SPDX-License-Identifier: Apache-2.0 */
/* pickle.c - the stack machine of pickles, protocols 2 to 5, as far as data needs it: see pickle.h.
 *
 * INV: an opcode makes at most one value, and a memo has no holes, so stack, memo and values are
 * bounded by the bytes that were read. Depth of the stack is checked before anything is taken. */
#include "checkpoint/pickle.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

enum { NAME_BYTES = 256 }; /* of a module or a class, with its end */

typedef struct values { /* a growing list of values */
    tsi_pickled **item;
    int64_t count, capacity;
} values;

typedef struct machine {
    const char *path;
    int64_t base;
    const unsigned char *data;
    size_t bytes, at, begin; /* begin: of the opcode at hand */
    tsi_pickle_names names;
    tsi_arena *memory;
    values stack, memo; /* a mark lies on the stack as NULL */
    bool done;
} machine;

/* ---- failing --------------------------------------------------------------------------------- */

static ts_status refuse(const machine *m, const char *why)
{
    return TSI_FAIL(TS_ERR_IO, "%s: byte %lld of a pickle: %s", m->path,
                    (long long)(m->base + (int64_t)m->begin), why);
}

static ts_status fail_memory(void)
{
    return tsi_fail_memory("a pickle", sizeof(tsi_pickled));
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static ts_status take(machine *m, size_t bytes, const unsigned char **out)
{
    if (bytes > m->bytes - m->at) return refuse(m, "it ends too early");
    *out = m->data + m->at;
    m->at += bytes;
    return TS_OK;
}

/* A number of `bytes` bytes, the least significant first. */
static ts_status take_number(machine *m, size_t bytes, uint64_t *out)
{
    const unsigned char *raw = NULL;
    *out = 0;
    TSI_TRY(take(m, bytes, &raw));
    for (size_t i = bytes; i > 0; i--)
        *out = *out << 8 | raw[i - 1];
    return TS_OK;
}

/* ---- the stack ------------------------------------------------------------------------------- */

static ts_status append(values *list, tsi_pickled *value)
{
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 256;
        tsi_pickled **grown = tsi_realloc(list->item, (size_t)capacity * sizeof *grown);
        if (!grown) return fail_memory();
        list->item = grown;
        list->capacity = capacity;
    }
    list->item[list->count++] = value;
    return TS_OK;
}

static ts_status push(machine *m, tsi_pickled value)
{
    tsi_pickled *kept = tsi_arena_alloc(m->memory, sizeof *kept);
    if (!kept) return fail_memory();
    *kept = value;
    return append(&m->stack, kept);
}

/* The value on top, of the given kind or (NONE) of any. */
static ts_status top(const machine *m, tsi_pickle_kind kind, tsi_pickled **out)
{
    *out = m->stack.count > 0 ? m->stack.item[m->stack.count - 1] : NULL;
    if (!*out) return refuse(m, "the stack has nothing to take");
    if (kind == TSI_PICKLE_NONE || (*out)->kind == kind) return TS_OK;
    return refuse(m, "the stack has a value of another kind than the opcode takes");
}

static ts_status pop(machine *m, tsi_pickle_kind kind, tsi_pickled **out)
{
    TSI_TRY(top(m, kind, out));
    m->stack.count--;
    return TS_OK;
}

/* Values above the last mark, which goes: *first .. *first + *count of the stack. */
static ts_status pop_mark(machine *m, tsi_pickled ***first, int64_t *count)
{
    int64_t at = m->stack.count;
    while (at > 0 && m->stack.item[at - 1])
        at--;
    if (at == 0) return refuse(m, "there is no mark on the stack");
    *first = m->stack.item + at;
    *count = m->stack.count - at;
    m->stack.count = at - 1;
    return TS_OK;
}

/* Adds values to a list or dict; what they were in the arena stays there, once more. */
static ts_status extend(machine *m, tsi_pickled *to, tsi_pickled *const *item, int64_t count)
{
    if (count > INT32_MAX / 2 - to->count) return refuse(m, "a list is too long");
    int32_t wanted = to->count + (int32_t)count;
    if (wanted > to->capacity) {
        int32_t capacity = wanted > 2 * to->capacity ? wanted : 2 * to->capacity;
        tsi_pickled **grown = tsi_arena_alloc(m->memory, (size_t)capacity * sizeof(*grown));
        if (!grown) return fail_memory();
        if (to->count > 0) memcpy(grown, to->item, (size_t)to->count * sizeof(*grown));
        to->item = grown;
        to->capacity = capacity;
    }
    if (count > 0) memcpy(to->item + to->count, item, (size_t)count * sizeof(*item));
    to->count = wanted;
    return TS_OK;
}

static ts_status push_many(machine *m, tsi_pickle_kind kind, tsi_pickled *const *item,
                           int64_t count)
{
    tsi_pickled value = { .kind = kind };
    TSI_TRY(extend(m, &value, item, count));
    return push(m, value);
}

/* ---- opcodes: plain values ------------------------------------------------------------------- */

static ts_status op_none(machine *m)
{
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_NONE });
}

static ts_status op_true(machine *m)
{
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_BOOL, .number = 1 });
}

static ts_status op_false(machine *m)
{
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_BOOL });
}

/* A whole number of two's complement, `bytes` long. */
static ts_status push_int(machine *m, size_t bytes, bool is_signed)
{
    uint64_t number = 0;
    if (bytes > 8) return refuse(m, "a whole number of more than 64 bits");
    TSI_TRY(take_number(m, bytes, &number));
    if (is_signed && bytes > 0 && bytes < 8 && number >> (8 * bytes - 1))
        number |= UINT64_MAX << (8 * bytes);
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_INT, .number = (int64_t)number });
}

static ts_status op_int1(machine *m)
{
    return push_int(m, 1, false);
}

static ts_status op_int2(machine *m)
{
    return push_int(m, 2, false);
}

static ts_status op_int4(machine *m)
{
    return push_int(m, 4, true);
}

static ts_status op_long1(machine *m)
{
    uint64_t bytes = 0;
    TSI_TRY(take_number(m, 1, &bytes));
    return push_int(m, (size_t)bytes, true);
}

static ts_status op_real(machine *m)
{
    const unsigned char *raw = NULL;
    uint64_t bits = 0;
    tsi_pickled value = { .kind = TSI_PICKLE_REAL };
    TSI_TRY(take(m, 8, &raw));
    for (int i = 0; i < 8; i++) /* the most significant byte first, unlike all else */
        bits = bits << 8 | raw[i];
    memcpy(&value.real, &bits, sizeof value.real);
    return push(m, value);
}

static ts_status push_text(machine *m, uint64_t bytes)
{
    const unsigned char *raw = NULL;
    TSI_TRY(take(m, bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes, &raw));
    const char *from = (const char *)raw;
    for (size_t at = 0, length; at < bytes; at += length) {
        length = tsi_text_character(from + at, (size_t)bytes - at);
        if (length == 0 || from[at] == '\0') return refuse(m, "a text that is no UTF-8");
    }
    char *text = tsi_arena_alloc(m->memory, (size_t)bytes + 1);
    if (!text) return fail_memory();
    memcpy(text, from, (size_t)bytes);
    text[bytes] = '\0';
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_TEXT, .text = text });
}

static ts_status take_and_push_text(machine *m, size_t bytes)
{
    uint64_t length = 0;
    TSI_TRY(take_number(m, bytes, &length));
    return push_text(m, length);
}

static ts_status op_text1(machine *m)
{
    return take_and_push_text(m, 1);
}

static ts_status op_text4(machine *m)
{
    return take_and_push_text(m, 4);
}

static ts_status op_text8(machine *m)
{
    return take_and_push_text(m, 8);
}

static ts_status push_bytes(machine *m, size_t bytes)
{
    uint64_t length = 0;
    const unsigned char *raw = NULL;
    TSI_TRY(take_number(m, bytes, &length));
    if (length > INT32_MAX) return refuse(m, "more bytes than 2 GiB in a row");
    TSI_TRY(take(m, (size_t)length, &raw));
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_BYTES, .count = (int32_t)length });
}

static ts_status op_bytes1(machine *m)
{
    return push_bytes(m, 1);
}

static ts_status op_bytes4(machine *m)
{
    return push_bytes(m, 4);
}

/* ---- opcodes: tuples, lists, dicts ----------------------------------------------------------- */

static ts_status op_mark(machine *m)
{
    return append(&m->stack, NULL);
}

static ts_status op_empty_tuple(machine *m)
{
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_TUPLE });
}

static ts_status op_empty_list(machine *m)
{
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_LIST });
}

static ts_status op_empty_dict(machine *m)
{
    return push(m, (tsi_pickled){ .kind = TSI_PICKLE_DICT });
}

static ts_status op_tuple(machine *m)
{
    tsi_pickled **item = NULL;
    int64_t count = 0;
    TSI_TRY(pop_mark(m, &item, &count));
    return push_many(m, TSI_PICKLE_TUPLE, item, count);
}

static ts_status tuple_of(machine *m, int64_t count)
{
    tsi_pickled *item[3] = { NULL };
    for (int64_t i = count; i > 0; i--)
        TSI_TRY(pop(m, TSI_PICKLE_NONE, &item[i - 1]));
    return push_many(m, TSI_PICKLE_TUPLE, item, count);
}

static ts_status op_tuple1(machine *m)
{
    return tuple_of(m, 1);
}

static ts_status op_tuple2(machine *m)
{
    return tuple_of(m, 2);
}

static ts_status op_tuple3(machine *m)
{
    return tuple_of(m, 3);
}

static ts_status op_append(machine *m)
{
    tsi_pickled *item = NULL, *list = NULL;
    TSI_TRY(pop(m, TSI_PICKLE_NONE, &item));
    TSI_TRY(top(m, TSI_PICKLE_LIST, &list));
    return extend(m, list, &item, 1);
}

static ts_status op_appends(machine *m)
{
    tsi_pickled **item = NULL, *list = NULL;
    int64_t count = 0;
    TSI_TRY(pop_mark(m, &item, &count));
    TSI_TRY(top(m, TSI_PICKLE_LIST, &list));
    return extend(m, list, item, count);
}

static ts_status op_setitem(machine *m)
{
    tsi_pickled *pair[2] = { NULL }, *dict = NULL;
    TSI_TRY(pop(m, TSI_PICKLE_NONE, &pair[1]));
    TSI_TRY(pop(m, TSI_PICKLE_NONE, &pair[0]));
    TSI_TRY(top(m, TSI_PICKLE_DICT, &dict));
    return extend(m, dict, pair, 2);
}

static ts_status op_setitems(machine *m)
{
    tsi_pickled **item = NULL, *dict = NULL;
    int64_t count = 0;
    TSI_TRY(pop_mark(m, &item, &count));
    TSI_TRY(top(m, TSI_PICKLE_DICT, &dict));
    if (count % 2 != 0) return refuse(m, "a key without a value");
    return extend(m, dict, item, count);
}

/* ---- opcodes: the memo ----------------------------------------------------------------------- */

static ts_status op_memoize(machine *m)
{
    tsi_pickled *value = NULL;
    TSI_TRY(top(m, TSI_PICKLE_NONE, &value));
    return append(&m->memo, value);
}

static ts_status put(machine *m, size_t bytes)
{
    uint64_t index = 0;
    tsi_pickled *value = NULL;
    TSI_TRY(take_number(m, bytes, &index));
    TSI_TRY(top(m, TSI_PICKLE_NONE, &value));
    if (index > (uint64_t)m->memo.count) return refuse(m, "the memo would have a hole");
    if (index == (uint64_t)m->memo.count) return append(&m->memo, value);
    m->memo.item[index] = value;
    return TS_OK;
}

static ts_status op_put1(machine *m)
{
    return put(m, 1);
}

static ts_status op_put4(machine *m)
{
    return put(m, 4);
}

static ts_status get(machine *m, size_t bytes)
{
    uint64_t index = 0;
    TSI_TRY(take_number(m, bytes, &index));
    if (index >= (uint64_t)m->memo.count) return refuse(m, "the memo has no such value");
    return append(&m->stack, m->memo.item[index]);
}

static ts_status op_get1(machine *m)
{
    return get(m, 1);
}

static ts_status op_get4(machine *m)
{
    return get(m, 4);
}

/* ---- opcodes: classes and objects ------------------------------------------------------------ */

static bool is_allowed(tsi_pickle_names names, const char *name)
{
    for (; *names; names++) {
        size_t length = strlen(*names);
        bool rest = length > 0 && (*names)[length - 1] == '*';
        if (rest ? strncmp(*names, name, length - 1) == 0 : strcmp(*names, name) == 0) return true;
    }
    return false;
}

static ts_status push_class(machine *m, const char *module, const char *name)
{
    char *text = tsi_arena_printf(m->memory, "%s.%s", module, name);
    if (!text) return fail_memory();
    if (is_allowed(m->names, text))
        return push(m, (tsi_pickled){ .kind = TSI_PICKLE_CLASS, .text = text });
    return TSI_FAIL(TS_ERR_IO,
                    "%s: byte %lld of a pickle: it names %.200s, which no checkpoint needs; "
                    "nothing of it was executed",
                    m->path, (long long)(m->base + (int64_t)m->begin), text);
}

static ts_status take_line(machine *m, char *out, size_t size)
{
    size_t length = 0;
    const unsigned char *raw = m->data + m->at;
    while (m->at + length < m->bytes && raw[length] != '\n')
        length++;
    if (m->at + length == m->bytes || length >= size || memchr(raw, '\0', length))
        return refuse(m, "a name that is too long, or does not end");
    memcpy(out, raw, length);
    out[length] = '\0';
    m->at += length + 1;
    return TS_OK;
}

static ts_status op_global(machine *m)
{
    char module[NAME_BYTES], name[NAME_BYTES];
    TSI_TRY(take_line(m, module, sizeof module));
    TSI_TRY(take_line(m, name, sizeof name));
    return push_class(m, module, name);
}

static ts_status op_stack_global(machine *m)
{
    tsi_pickled *module = NULL, *name = NULL;
    TSI_TRY(pop(m, TSI_PICKLE_TEXT, &name));
    TSI_TRY(pop(m, TSI_PICKLE_TEXT, &module));
    if (strlen(module->text) >= NAME_BYTES || strlen(name->text) >= NAME_BYTES)
        return refuse(m, "a name that is too long, or does not end");
    return push_class(m, module->text, name->text);
}

/* What would be made by a call, or by the class, is the class with the arguments. */
static ts_status op_object(machine *m)
{
    tsi_pickled *part[3] = { NULL };
    TSI_TRY(pop(m, TSI_PICKLE_TUPLE, &part[1]));
    TSI_TRY(pop(m, TSI_PICKLE_CLASS, &part[0]));
    return push_many(m, TSI_PICKLE_OBJECT, part, 3);
}

static ts_status op_build(machine *m)
{
    tsi_pickled *state = NULL, *object = NULL;
    TSI_TRY(pop(m, TSI_PICKLE_NONE, &state));
    TSI_TRY(top(m, TSI_PICKLE_OBJECT, &object));
    if (object->item[2]) return refuse(m, "an object gets a second state");
    object->item[2] = state;
    return TS_OK;
}

static ts_status op_stored(machine *m)
{
    tsi_pickled *id = NULL;
    TSI_TRY(pop(m, TSI_PICKLE_NONE, &id));
    return push_many(m, TSI_PICKLE_STORED, &id, 1);
}

/* ---- opcodes: the frame of it all ------------------------------------------------------------ */

static ts_status op_proto(machine *m)
{
    uint64_t version = 0;
    TSI_TRY(take_number(m, 1, &version));
    if (version >= 2 && version <= 5) return TS_OK;
    return refuse(m, "a protocol other than 2 to 5");
}

static ts_status op_frame(machine *m)
{
    uint64_t bytes = 0;
    TSI_TRY(take_number(m, 8, &bytes));
    if (bytes <= m->bytes - m->at) return TS_OK;
    return refuse(m, "a frame that is longer than the file");
}

static ts_status op_stop(machine *m)
{
    m->done = true;
    return TS_OK;
}

/* By code. A row without a function is one that is refused, by its name. */
static const struct opcode {
    unsigned char code;
    const char *name;
    ts_status (*run)(machine *m);
} opcodes[] = {
    { '(', "MARK", op_mark },
    { ')', "EMPTY_TUPLE", op_empty_tuple },
    { '.', "STOP", op_stop },
    { '0', "POP", NULL },
    { '1', "POP_MARK", NULL },
    { '2', "DUP", NULL },
    { 'B', "BINBYTES", op_bytes4 },
    { 'C', "SHORT_BINBYTES", op_bytes1 },
    { 'F', "FLOAT", NULL },
    { 'G', "BINFLOAT", op_real },
    { 'I', "INT", NULL },
    { 'J', "BININT", op_int4 },
    { 'K', "BININT1", op_int1 },
    { 'L', "LONG", NULL },
    { 'M', "BININT2", op_int2 },
    { 'N', "NONE", op_none },
    { 'P', "PERSID", NULL },
    { 'Q', "BINPERSID", op_stored },
    { 'R', "REDUCE", op_object },
    { 'S', "STRING", NULL },
    { 'T', "BINSTRING", NULL },
    { 'U', "SHORT_BINSTRING", NULL },
    { 'V', "UNICODE", NULL },
    { 'X', "BINUNICODE", op_text4 },
    { ']', "EMPTY_LIST", op_empty_list },
    { 'a', "APPEND", op_append },
    { 'b', "BUILD", op_build },
    { 'c', "GLOBAL", op_global },
    { 'd', "DICT", NULL },
    { 'e', "APPENDS", op_appends },
    { 'g', "GET", NULL },
    { 'h', "BINGET", op_get1 },
    { 'i', "INST", NULL },
    { 'j', "LONG_BINGET", op_get4 },
    { 'l', "LIST", NULL },
    { 'o', "OBJ", NULL },
    { 'p', "PUT", NULL },
    { 'q', "BINPUT", op_put1 },
    { 'r', "LONG_BINPUT", op_put4 },
    { 's', "SETITEM", op_setitem },
    { 't', "TUPLE", op_tuple },
    { 'u', "SETITEMS", op_setitems },
    { '}', "EMPTY_DICT", op_empty_dict },
    { 0x80, "PROTO", op_proto },
    { 0x81, "NEWOBJ", op_object },
    { 0x82, "EXT1", NULL },
    { 0x83, "EXT2", NULL },
    { 0x84, "EXT4", NULL },
    { 0x85, "TUPLE1", op_tuple1 },
    { 0x86, "TUPLE2", op_tuple2 },
    { 0x87, "TUPLE3", op_tuple3 },
    { 0x88, "NEWTRUE", op_true },
    { 0x89, "NEWFALSE", op_false },
    { 0x8a, "LONG1", op_long1 },
    { 0x8b, "LONG4", NULL },
    { 0x8c, "SHORT_BINUNICODE", op_text1 },
    { 0x8d, "BINUNICODE8", op_text8 },
    { 0x8e, "BINBYTES8", NULL },
    { 0x8f, "EMPTY_SET", NULL },
    { 0x90, "ADDITEMS", NULL },
    { 0x91, "FROZENSET", NULL },
    { 0x92, "NEWOBJ_EX", NULL },
    { 0x93, "STACK_GLOBAL", op_stack_global },
    { 0x94, "MEMOIZE", op_memoize },
    { 0x95, "FRAME", op_frame },
    { 0x96, "BYTEARRAY8", NULL },
    { 0x97, "NEXT_BUFFER", NULL },
    { 0x98, "READONLY_BUFFER", NULL },
};

static ts_status step(machine *m)
{
    const unsigned char *code = NULL;
    m->begin = m->at;
    TSI_TRY(take(m, 1, &code));
    const struct opcode *found = NULL;
    for (size_t i = 0; i < TSI_COUNT_OF(opcodes) && !found; i++)
        if (opcodes[i].code == *code) found = &opcodes[i];
    if (found && found->run) return found->run(m);
    return TSI_FAIL(
        TS_ERR_IO, "%s: byte %lld of a pickle: opcode 0x%02x (%s), which checkpoints do not use",
        m->path, (long long)(m->base + (int64_t)m->begin), *code, found ? found->name : "unknown");
}

ts_status tsi_pickle_read(const char *path, int64_t base, const void *data, size_t bytes,
                          tsi_pickle_names names, tsi_arena *memory, const tsi_pickled **out)
{
    *out = NULL;
    machine m = {
        .path = path, .base = base, .data = data, .bytes = bytes, .names = names, .memory = memory
    };
    ts_status status = TS_OK;
    while (status == TS_OK && !m.done)
        status = step(&m);
    tsi_pickled *value = NULL;
    if (status == TS_OK) status = pop(&m, TSI_PICKLE_NONE, &value);
    if (status == TS_OK && m.stack.count != 0)
        status = refuse(&m, "it ends with more than a value");
    if (status == TS_OK && m.at != m.bytes) status = refuse(&m, "it ends before the file does");
    tsi_free(m.stack.item);
    tsi_free(m.memo.item);
    if (status == TS_OK) *out = value;
    return status;
}

/* ---- looking at values ----------------------------------------------------------------------- */

const tsi_pickled *tsi_pickle_item(const tsi_pickled *value, int32_t index)
{
    bool row = value && (value->kind == TSI_PICKLE_TUPLE || value->kind == TSI_PICKLE_LIST);
    return row && index >= 0 && index < value->count ? value->item[index] : NULL;
}

const tsi_pickled *tsi_pickle_member(const tsi_pickled *dict, const char *name)
{
    for (int32_t i = 0; dict && dict->kind == TSI_PICKLE_DICT && i < dict->count; i += 2) {
        const char *key = tsi_pickle_text(dict->item[i]);
        if (key && strcmp(key, name) == 0) return dict->item[i + 1];
    }
    return NULL;
}

bool tsi_pickle_int(const tsi_pickled *value, int64_t *out)
{
    if (!value || value->kind != TSI_PICKLE_INT) return false;
    *out = value->number;
    return true;
}

const char *tsi_pickle_text(const tsi_pickled *value)
{
    return value && value->kind == TSI_PICKLE_TEXT ? value->text : NULL;
}

bool tsi_pickle_is(const tsi_pickled *value, const char *name)
{
    if (value && value->kind == TSI_PICKLE_OBJECT) value = value->item[0];
    return value && value->kind == TSI_PICKLE_CLASS && strcmp(value->text, name) == 0;
}

const tsi_pickled *tsi_pickle_arguments(const tsi_pickled *object)
{
    return object && object->kind == TSI_PICKLE_OBJECT ? object->item[1] : NULL;
}

const tsi_pickled *tsi_pickle_state(const tsi_pickled *object)
{
    return object && object->kind == TSI_PICKLE_OBJECT ? object->item[2] : NULL;
}
