/* SPDX-License-Identifier: Apache-2.0 */
/* history.c - the log of a run, one JSON object a line, and the numbers of some steps in memory:
 * of all of them in a short run, else of every so many, at equal distances.
 *
 * When a run goes on from step k, its lines up to k are read back and written to a new file that
 * takes the place of the old one; later ones, torn ones and those of other runs are left out, so
 * that the log has each step once, and is whole whenever the process is killed. Losses are written
 * with all their digits: equal bits, equal text. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rank.h"
#include "base/text.h"
#include "tessera/json.h"
#include "train/run.h"

/* Of two steps that follow each other the later stays, with the held-out loss of either. */
static void join(ts_train_step *earlier, const ts_train_step *later)
{
    double eval_loss = earlier->eval_loss;
    *earlier = *later;
    if (isnan(later->eval_loss)) earlier->eval_loss = eval_loss;
}

/* Half as many, so that a run of any length has a history of at most TSI_HISTORY_MAX. */
static void thin(tsi_history *h)
{
    for (int64_t i = 0; i < h->count; i += 2) {
        h->step[i / 2] = h->step[i];
        join(&h->step[i / 2], &h->step[i + 1]);
    }
    h->count /= 2;
    h->stride *= 2;
}

static ts_status keep(tsi_history *h, const ts_train_step *step)
{
    if (h->filled < h->stride) {
        join(&h->step[h->count - 1], step);
        h->filled++;
        return TS_OK;
    }
    if (h->count == h->capacity && h->capacity < TSI_HISTORY_MAX) {
        int64_t capacity = h->capacity ? 2 * h->capacity : 256;
        ts_train_step *grown = tsi_realloc(h->step, (size_t)capacity * sizeof *grown);
        if (!grown)
            return tsi_fail_memory("the history of steps", (size_t)capacity * sizeof *grown);
        h->step = grown;
        h->capacity = capacity;
    }
    if (h->stride == 0) h->stride = 1;
    if (h->count == TSI_HISTORY_MAX) thin(h);
    h->step[h->count++] = *step;
    h->filled = 1;
    return TS_OK;
}

static void member(tsi_text *text, const char *name, double value)
{
    tsi_text_printf(text, ", \"%s\": ", name);
    tsi_text_real(text, value);
}

static void add_line(tsi_text *text, const tsi_history *h, const ts_train_step *s)
{
    tsi_text_printf(text, "{\"step\": %lld", (long long)s->step);
    member(text, "loss", s->loss);
    member(text, "norm", s->norm);
    member(text, "rate", s->rate);
    tsi_text_printf(text, ", \"tokens\": %lld", (long long)s->tokens);
    member(text, "seconds", s->seconds);
    member(text, "tokens_per_second", s->tokens_per_second);
    member(text, "flops", s->flops);
    member(text, "busy_most", s->busy_most);
    member(text, "busy_least", s->busy_least);
    tsi_text_printf(text, ", \"busy_rank\": %lld", (long long)s->busy_rank);
    tsi_text_printf(text, ", \"memory_bytes\": %lld", (long long)s->memory_bytes);
    member(text, "scale", s->scale);
    if (!isnan(s->eval_loss)) member(text, "eval_loss", s->eval_loss);
    if (s->load_ratio > 0) {
        member(text, "load_ratio", s->load_ratio);
        member(text, "load_entropy", s->load_entropy);
        member(text, "router_loss", s->router_loss);
        tsi_text_printf(text, ", \"dropped\": %lld", (long long)s->dropped);
    }
    tsi_text_printf(text, ", \"skipped\": %lld, \"run\": \"%016llx\"}\n", (long long)s->skipped,
                    (unsigned long long)h->run);
}

static ts_status write_line(tsi_history *h, const ts_train_step *s)
{
    tsi_text text = { 0 };
    add_line(&text, h, s);
    char *line = tsi_text_take(&text);
    if (!line) return TS_ERR_MEMORY;
    ts_status status = tsi_line_put(h->log, "train.jsonl", line);
    tsi_free(line);
    return status;
}

static double real(const ts_json *root, const char *name)
{
    return ts_json_real(ts_json_member(root, name), (double)NAN); /* null: was not finite */
}

/* One line of an earlier process, into the new log; what is torn, or of another run, is left out.
 */
static ts_status read_line(tsi_history *h, const char *line, int64_t last, tsi_text *log)
{
    char run[20];
    size_t length = strlen(line);
    ts_json_document *document = NULL;
    if (length < 2 || line[length - 1] != '\n' || line[length - 2] != '}') return TS_OK;
    if (ts_json_parse("train.jsonl", line, length, &document) != TS_OK) return TS_OK;
    const ts_json *root = ts_json_root(document);
    ts_train_step s = { .struct_size = sizeof s,
                        .step = ts_json_int(ts_json_member(root, "step"), 0),
                        .tokens = ts_json_int(ts_json_member(root, "tokens"), 0),
                        .loss = real(root, "loss"),
                        .norm = real(root, "norm"),
                        .rate = real(root, "rate"),
                        .seconds = real(root, "seconds"),
                        .tokens_per_second = real(root, "tokens_per_second"),
                        .flops = real(root, "flops"),
                        .memory_bytes = ts_json_int(ts_json_member(root, "memory_bytes"), 0),
                        .scale = real(root, "scale"),
                        .eval_loss = real(root, "eval_loss"),
                        .busy_most = real(root, "busy_most"),
                        .busy_least = real(root, "busy_least"),
                        .busy_rank = ts_json_int(ts_json_member(root, "busy_rank"), 0),
                        .load_ratio = ts_json_real(ts_json_member(root, "load_ratio"), 0),
                        .load_entropy = ts_json_real(ts_json_member(root, "load_entropy"), 0),
                        .router_loss = ts_json_real(ts_json_member(root, "router_loss"), 0),
                        .dropped = ts_json_int(ts_json_member(root, "dropped"), 0),
                        .skipped = ts_json_int(ts_json_member(root, "skipped"), 0) };
    snprintf(run, sizeof run, "%016llx", (unsigned long long)h->run);
    bool ours = strcmp(ts_json_text(ts_json_member(root, "run"), ""), run) == 0;
    ts_json_release(document);
    bool next =
        s.step >= 1 && s.step <= last && (h->count == 0 || s.step > h->step[h->count - 1].step);
    if (!ours || !next) return TS_OK;
    add_line(log, h, &s);
    return keep(h, &s);
}

static ts_status read_lines(tsi_history *h, const char *path, int64_t step, tsi_text *log)
{
    char line[1024];
    FILE *old = step > 0 ? fopen(path, "r") : NULL;
    /* A line that is no JSON is an answer, not a failure of this rank. */
    ts_rank *me = tsi_rank_current();
    tsi_rank_set_current(NULL);
    ts_status status = TS_OK;
    while (old && status == TS_OK && fgets(line, sizeof line, old))
        status = read_line(h, line, step, log);
    tsi_rank_set_current(me);
    if (old) fclose(old);
    return status == TS_OK ? TS_OK : tsi_fail_memory("the history of steps", sizeof line);
}

ts_status tsi_history_open(tsi_history *h, const char *path, int64_t step)
{
    tsi_text text = { 0 };
    ts_status status = read_lines(h, path, step, &text);
    size_t length = text.length;
    char *kept = tsi_text_take(&text);
    if (status == TS_OK) status = kept ? tsi_file_replace(path, kept, length) : TS_ERR_MEMORY;
    tsi_free(kept);
    if (status != TS_OK) return status;
    h->log = fopen(path, "a");
    return h->log ? TS_OK : TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
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
