/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - one JSON request a line in, exactly one JSON line out, in order.
 *
 * A line that cannot be served gets {"error": sentence} and the rest go on. Empty lines are
 * skipped: they are not requests. Nothing else is written to standard output. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#if TS_HAVE_JANSSON
#include <jansson.h>

typedef struct batch {
    const char *command;
    cli_batch_fn serve;
    void *context;
    cli_json answer;
    bool failed; /* some line got an error */
} batch;

static void answer_error(batch *self, const char *sentence)
{
    self->failed = true;
    cli_json_reset(&self->answer);
    cli_json_open(&self->answer, '{');
    cli_json_member_text(&self->answer, "error", sentence);
    cli_json_close(&self->answer, '}');
}

static void serve_line(batch *self, const char *line, size_t length)
{
    char error[1024] = "";
    json_error_t where;
    cli_json_reset(&self->answer);
    json_t *request = json_loadb(line, length, JSON_REJECT_DUPLICATES, &where);
    if (request == NULL) {
        (void)snprintf(error, sizeof error, "not JSON, column %d: %s", where.column, where.text);
        answer_error(self, error);
    } else if (!json_is_object(request)) {
        answer_error(self, "a request is a JSON object");
    } else if (!self->serve(request, &self->answer, error, sizeof error, self->context)) {
        answer_error(self, error[0] != '\0' ? error : "the request cannot be served");
    } else if (self->answer.failed) {
        answer_error(self, "out of memory");
    }
    json_decref(request);
}

static int serve_file(batch *self, FILE *file)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    int code = 0;
    while (code == 0 && (length = getline(&line, &capacity, file)) >= 0) {
        if (strspn(line, " \t\r\n") == (size_t)length) continue;
        serve_line(self, line, (size_t)length);
        if (cli_json_print(&self->answer, stdout) != 0) {
            code = cli_fail(self->command, "cannot write the answer: %s", strerror(errno));
        }
    }
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
    cli_json_release(&self.answer);
    if (file != stdin) fclose(file);
    return code;
}

#else

int cli_batch(const char *command, const char *path, cli_batch_fn serve, void *context)
{
    (void)path;
    (void)serve;
    (void)context;
    return cli_fail_usage(command, "--batch needs jansson; install libjansson-dev and build again");
}

#endif
