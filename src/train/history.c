/* SPDX-License-Identifier: Apache-2.0 */
/* history.c - the log of a run, one JSON object a line, and the same numbers in memory.
 *
 * When a run goes on from step k, lines up to k are read back and later ones dropped, so that the
 * log has each step once. Losses are written with all their digits: equal bits, equal text. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "train/run.h"

static ts_status keep(tsi_history *h, const ts_train_step *step)
{
    if (h->count == h->capacity) {
        int64_t capacity = h->capacity ? 2 * h->capacity : 256;
        ts_train_step *grown = tsi_realloc(h->step, (size_t)capacity * sizeof *grown);
        if (!grown)
            return tsi_fail_memory("the history of steps", (size_t)capacity * sizeof *grown);
        h->step = grown;
        h->capacity = capacity;
    }
    h->step[h->count++] = *step;
    return TS_OK;
}

static void member(tsi_text *text, const char *name, double value)
{
    tsi_text_printf(text, ", \"%s\": ", name);
    tsi_text_real(text, value);
}

static ts_status write_line(tsi_history *h, const ts_train_step *s)
{
    tsi_text text = { 0 };
    tsi_text_printf(&text, "{\"step\": %lld", (long long)s->step);
    member(&text, "loss", s->loss);
    member(&text, "norm", s->norm);
    member(&text, "rate", s->rate);
    tsi_text_printf(&text, ", \"tokens\": %lld", (long long)s->tokens);
    member(&text, "seconds", s->seconds);
    member(&text, "tokens_per_second", s->tokens_per_second);
    member(&text, "flops", s->flops);
    tsi_text_printf(&text, ", \"memory_bytes\": %lld", (long long)s->memory_bytes);
    member(&text, "scale", s->scale);
    tsi_text_printf(&text, ", \"skipped\": %lld}\n", (long long)s->skipped);
    char *line = tsi_text_take(&text);
    if (!line) return TS_ERR_MEMORY;
    bool good = fputs(line, h->log) >= 0 && fflush(h->log) == 0;
    tsi_free(line);
    return good ? TS_OK : TSI_FAIL(TS_ERR_IO, "train.jsonl: %s", strerror(errno));
}

static double real(const tsi_json *root, const char *name)
{
    return tsi_json_real(tsi_json_member(root, name), (double)NAN); /* null: was not finite */
}

/* One line of an earlier run; a torn or foreign line is left out. */
static ts_status read_line(tsi_history *h, const char *path, const char *line, int64_t last)
{
    size_t length = strlen(line);
    if (length < 2 || line[length - 1] != '\n' || line[length - 2] != '}') return TS_OK;
    tsi_json_document *document = NULL;
    TSI_TRY(tsi_json_parse(path, line, length, &document));
    const tsi_json *root = tsi_json_root(document);
    ts_train_step s = { .struct_size = sizeof s,
                        .step = tsi_json_int(tsi_json_member(root, "step"), 0),
                        .tokens = tsi_json_int(tsi_json_member(root, "tokens"), 0),
                        .loss = real(root, "loss"),
                        .norm = real(root, "norm"),
                        .rate = real(root, "rate"),
                        .seconds = real(root, "seconds"),
                        .tokens_per_second = real(root, "tokens_per_second"),
                        .flops = real(root, "flops"),
                        .memory_bytes = tsi_json_int(tsi_json_member(root, "memory_bytes"), 0),
                        .scale = real(root, "scale"),
                        .skipped = tsi_json_int(tsi_json_member(root, "skipped"), 0) };
    tsi_json_release(document);
    bool next =
        s.step >= 1 && s.step <= last && (h->count == 0 || s.step > h->step[h->count - 1].step);
    return next ? keep(h, &s) : TS_OK;
}

ts_status tsi_history_open(tsi_history *h, const char *path, int64_t step)
{
    char line[1024];
    FILE *old = step > 0 ? fopen(path, "r") : NULL;
    ts_status status = TS_OK;
    while (old && status == TS_OK && fgets(line, sizeof line, old))
        status = read_line(h, path, line, step);
    if (old) fclose(old);
    if (status != TS_OK) return status;
    h->log = fopen(path, "w");
    if (!h->log) return TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    for (int64_t i = 0; i < h->count && status == TS_OK; i++)
        status = write_line(h, &h->step[i]);
    return status;
}

ts_status tsi_history_add(tsi_history *h, const ts_train_step *step)
{
    TSI_TRY(keep(h, step));
    return write_line(h, step);
}

void tsi_history_close(tsi_history *h)
{
    if (h->log) fclose(h->log);
    tsi_free(h->step);
    *h = (tsi_history){ 0 };
}
