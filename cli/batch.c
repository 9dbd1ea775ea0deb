/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - one JSON request a line in, exactly one JSON line out, in order.
 *
 * A line that cannot be served gets {"error": sentence} and the rest go on. Empty lines are
 * skipped: they are not requests. Nothing else is written to standard output. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* ---- members of a request -------------------------------------------------------------------- */

bool cli_field_refuse(const char *key, const ts_json *value, const char *expected, char *error,
                      size_t size)
{
    enum { SHOWN_MAX = 80 }; /* bytes of the value: it may be a list of a thousand */
    ts_json_writer text = { 0 };
    ts_json_put_value(&text, value);
    size_t length = text.length;
    if (length > SHOWN_MAX)
        for (length = SHOWN_MAX; length > 0 && (text.data[length] & 0xC0) == 0x80;)
            length--; /* not inside a character */
    (void)snprintf(error, size, "\"%s\" is %.*s%s: expected %s", key, (int)length,
                   text.failed ? "" : text.data, length < text.length ? "..." : "", expected);
    ts_json_writer_release(&text);
    return false;
}

/* The member, or NULL where it is absent or null. */
static const ts_json *field(const ts_json *request, const char *key)
{
    const ts_json *value = ts_json_member(request, key);
    return ts_json_kind_of(value) != TS_JSON_NULL ? value : NULL;
}

bool cli_field_text(const ts_json *request, const char *key, const char **out, char *error,
                    size_t size)
{
    const ts_json *value = field(request, key);
    if (value == NULL) return true;
    if (ts_json_kind_of(value) != TS_JSON_TEXT)
        return cli_field_refuse(key, value, "a text", error, size);
    *out = ts_json_text(value, NULL);
    return true;
}

bool cli_field_bool(const ts_json *request, const char *key, bool *out, char *error, size_t size)
{
    const ts_json *value = field(request, key);
    if (value == NULL) return true;
    if (ts_json_kind_of(value) != TS_JSON_BOOL)
        return cli_field_refuse(key, value, "true or false", error, size);
    *out = ts_json_bool(value, false);
    return true;
}

bool cli_field_count(const ts_json *request, const char *key, int64_t *out, char *error,
                     size_t size)
{
    const ts_json *value = field(request, key);
    if (value == NULL) return true;
    if (ts_json_kind_of(value) != TS_JSON_INT || ts_json_int(value, -1) < 0)
        return cli_field_refuse(key, value, "a whole number of at least 0", error, size);
    *out = ts_json_int(value, -1);
    return true;
}

bool cli_field_kind(const ts_json *request, const char *key, ts_json_kind kind, const ts_json **out,
                    char *error, size_t size)
{
    const ts_json *value = field(request, key);
    if (value == NULL) return true;
    if (ts_json_kind_of(value) != kind)
        return cli_field_refuse(key, value, kind == TS_JSON_OBJECT ? "an object" : "a list", error,
                                size);
    *out = value;
    return true;
}

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct batch {
    const char *command;
    cli_batch_fn serve;
    void *context;
    ts_json_writer answer;
    int64_t line; /* that is served, of all there are; from 1 */
    bool failed;  /* some line got an error */
} batch;

static void answer_error(batch *self, const char *sentence)
{
    self->failed = true;
    ts_json_writer_reset(&self->answer);
    ts_json_put_open(&self->answer, '{');
    ts_json_put_member_text(&self->answer, "error", sentence);
    ts_json_put_close(&self->answer, '}');
}

/* The parser counts the lines of what it was given, which is one of the batch. */
static void answer_no_json(batch *self, const char *sentence)
{
    static const char begin[] = "not JSON, line 1";
    char error[1024];
    bool counts = strncmp(sentence, begin, sizeof begin - 1) == 0;
    if (counts)
        (void)snprintf(error, sizeof error, "not JSON, line %lld%s", (long long)self->line,
                       sentence + sizeof begin - 1);
    answer_error(self, counts ? error : sentence);
}

static void serve_line(batch *self, const char *line, size_t length)
{
    char error[1024] = "";
    ts_json_document *document = NULL;
    ts_json_writer_reset(&self->answer);
    if (ts_json_parse("not JSON", line, length, &document) != TS_OK) {
        answer_no_json(self, ts_last_error());
        return;
    }
    const ts_json *request = ts_json_root(document);
    if (ts_json_kind_of(request) != TS_JSON_OBJECT)
        answer_error(self, "a request is a JSON object");
    else if (!self->serve(request, &self->answer, error, sizeof error, self->context))
        answer_error(self, error[0] != '\0' ? error : "the request cannot be served");
    else if (self->answer.failed)
        answer_error(self, "out of memory");
    ts_json_release(document);
}

static int serve_file(batch *self, FILE *file)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    int code = 0;
    while (code == 0 && (length = getline(&line, &capacity, file)) >= 0) {
        self->line++;
        if (strspn(line, " \t\r\n") == (size_t)length) continue;
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            length--;
        serve_line(self, line, (size_t)length);
        if (cli_json_print(&self->answer, stdout) != 0) {
            code = cli_fail(self->command, "cannot write the answer: %s", strerror(errno));
        }
    }
    if (code == 0 && ferror(file))
        code = cli_fail_usage(self->command, "--batch: cannot read it: %s", strerror(errno));
    free(line);
    return code != 0 ? code : self->failed;
}

int cli_batch(const char *command, const char *path, cli_batch_fn serve, void *context)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (file == NULL) {
        return cli_fail_usage(command, "--batch: cannot read \"%s\": %s", path, strerror(errno));
    }
    batch self = { .command = command, .serve = serve, .context = context };
    int code = serve_file(&self, file);
    ts_json_writer_release(&self.answer);
    if (file != stdin) fclose(file);
    return code;
}
