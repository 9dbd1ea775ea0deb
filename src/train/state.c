/* SPDX-License-Identifier: Apache-2.0 */
/* state.c - weights and optimiser state of a run on disk: a run goes on from any of them, whatever
 * mesh wrote it, and bit for bit on the same one.
 *
 *   OUTPUT/state/step-N/     a checkpoint (tessera/checkpoint.h) with config.json, tokenizer.json
 *                            and other files of model.directory beside the data, and with layers
 *                            of it that the model has not: so it is a model too
 *
 * What is no tensor is a value of the checkpoint: the run, the loss and its scale, the updates, and
 * what the state is the state of (meaning.c). The order of the data and of random numbers is a
 * function of the step.
 *
 * INV: a folder named step-N is complete. Those that checkpoint.keep does not ask for are removed,
 * but never the newest. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/intmath.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/state.h"
#include "model/weights.h"
#include "tensor/tensor.h"
#include "tessera/version.h"
#include "train/run.h"

enum { PATH_BYTES = TSI_CONFIG_TEXT_MAX + 96, FILE_MOST = 1 << 30 };

static void step_path(char *out, const char *states, int64_t step)
{
    snprintf(out, PATH_BYTES, "%s/step-%lld", states, (long long)step);
}

/* The largest step below `limit` whose state is complete; 0: none. */
static int64_t newest(const char *states, int64_t limit)
{
    DIR *directory = opendir(states);
    int64_t best = 0;
    if (!directory) return 0;
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        long long step = 0;
        char end = 0;
        if (sscanf(entry->d_name, "step-%lld%c", &step, &end) == 1 && step > best && step < limit)
            best = step;
    }
    closedir(directory);
    return best;
}

/* ---- what is kept ---------------------------------------------------------------------------- */

ts_status tsi_keep_parse(const char *text, tsi_keep *out)
{
    *out = (tsi_keep){ 0 };
    tsi_cursor cursor = tsi_cursor_of("checkpoint.keep", text);
    do {
        char word[16] = "last";
        int64_t *number = &out->last;
        (void)tsi_cursor_word(&cursor, word, sizeof word);
        if (strcmp(word, "every") == 0) number = &out->every;
        if (strcmp(word, "best") == 0) number = &out->best;
        bool known = number != &out->last || strcmp(word, "last") == 0;
        if (!known || !tsi_cursor_int(&cursor, number) || *number < 0)
            return tsi_cursor_fail(&cursor, "\"last N\", \"every N\" or \"best N\"");
    } while (tsi_cursor_take(&cursor, ','));
    if (!tsi_cursor_done(&cursor)) return tsi_cursor_fail(&cursor, "\",\" or the end");
    return TS_OK;
}

/* The loss that a state was saved with, of held-out rows where there are; infinite: not known. */
static double loss_of(const char *states, int64_t step)
{
    char path[PATH_BYTES];
    double loss = HUGE_VAL;
    ts_archive *archive = NULL;
    step_path(path, states, step);
    if (ts_archive_open(path, &archive) == TS_OK) {
        const char *text = ts_archive_value(archive, "loss");
        if (text) loss = strtod(text, NULL);
    }
    ts_archive_close(archive);
    return loss;
}

/* Is it one of the `count` states with the smallest losses? Of equal ones the older is; one whose
 * loss is not known, or no number, is none of them however few there are. */
static bool is_best(const char *states, int64_t step, int64_t count)
{
    double mine = loss_of(states, step);
    if (!isfinite(mine)) return false;
    for (int64_t other = newest(states, INT64_MAX); other > 0; other = newest(states, other)) {
        double loss = other != step ? loss_of(states, other) : HUGE_VAL;
        count -= loss < mine || (loss == mine && other < step);
    }
    return count > 0;
}

/* Removes what is not asked for. Runs without the rank: a state that cannot be read is no failure.
 */
static void forget(const tsi_run *run, const char *states)
{
    tsi_keep keep;
    int64_t place = 0;
    if (tsi_keep_parse(run->config->checkpoint.keep, &keep) != TS_OK) return;
    int64_t last = keep.last > 0 ? keep.last : keep.every || keep.best ? 1 : INT64_MAX;
    for (int64_t step = newest(states, INT64_MAX); step > 0; step = newest(states, step)) {
        char path[PATH_BYTES];
        if (place++ < last) continue;
        if (keep.every > 0 && step % keep.every == 0) continue;
        if (keep.best > 0 && is_best(states, step, keep.best)) continue;
        step_path(path, states, step);
        tsi_folder_retire(path, run->id);
    }
}

/* ---- the state of a run ---------------------------------------------------------------------- */

static ts_status add_file(tsi_run *run, const char *name, const char *path)
{
    char *text = NULL;
    size_t length = 0;
    TSI_TRY(tsi_file_read(path, FILE_MOST, &text, &length));
    ts_status status = ts_state_add_file(run->state, name, text, length);
    tsi_free(text);
    return status;
}

/* They are held in memory while the run lasts, so that no save depends on where they came from. */
static ts_status add_other(const char *directory, const char *name, void *context)
{
    const tsi_run *run = context;
    if (run->tokenized && strcmp(name, "tokenizer.json") == 0) return TS_OK; /* the run's own */
    char path[PATH_BYTES + 300];
    struct stat about;
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
        return TSI_FAIL(TS_ERR_ARG, "%.64s...: the path is too long", path);
    if (stat(path, &about) == 0 && about.st_size <= FILE_MOST) return add_file(context, name, path);
    tsi_log(TSI_LOG_WARN, "train: %s is left out of states: more than 1 GiB, or gone", path);
    return TS_OK;
}

/* Beside the data, as ts_model_save and the trainer leave them in OUTPUT/model. */
static ts_status add_files(tsi_run *run)
{
    char path[TSI_CONFIG_TEXT_MAX + 32];
    if (ts_rank_index(run->me) != 0) return TS_OK;
    char *config = tsi_model_config_saved(run->model);
    if (!config) return ts_rank_status(run->me);
    ts_status status = ts_state_add_file(run->state, "config.json", config, strlen(config));
    tsi_free(config);
    TSI_TRY(status);
    if (run->model->origin) TSI_TRY(tsi_others_each(run->model->origin->path, add_other, run));
    if (!tsi_run_tokenizer(run->config, path, sizeof path)) return TS_OK;
    return add_file(run, "tokenizer.json", path);
}

static ts_status state_of(ts_mesh *mesh, ts_model *model, ts_optimizer *optimizer, ts_state **out)
{
    *out = ts_state_create(mesh);
    if (!*out) return ts_rank_status(model->rank);
    TSI_TRY(ts_state_add_module(*out, "", ts_model_module(model)));
    if (optimizer) TSI_TRY(ts_state_add_optimizer(*out, "", optimizer));
    return model->unsaved ? tsi_state_copied(*out, model->tied_name) : TS_OK;
}

ts_status tsi_state_behind(ts_mesh *mesh, ts_model *model, ts_optimizer *optimizer, ts_state **out)
{
    ts_save_options options = TS_INIT(ts_save_options);
    options.background = 1;
    TSI_TRY(state_of(mesh, model, optimizer, out));
    return ts_checkpoint_save(*out, "state", &options);
}

static ts_status open_state(tsi_run *run)
{
    TSI_TRY(state_of(run->mesh, run->model, run->optimizer, &run->state));
    TSI_TRY(tsi_model_add_beyond(run->model, run->mesh, run->state));
    return add_files(run);
}

static ts_status set_real(ts_state *state, const char *name, double value)
{
    char text[64];
    snprintf(text, sizeof text, "%.17g", value);
    return ts_state_set(state, name, text);
}

/* How far the run is from its best evaluation, so that patience goes on where it was. */
static ts_status set_held_out(tsi_run *run)
{
    char text[64];
    const tsi_held_out *h = &run->held_out;
    if (!h->loader) return TS_OK;
    snprintf(text, sizeof text, "%lld %lld", (long long)h->best_step, (long long)h->worse);
    TSI_TRY(ts_state_set(run->state, "eval.best_step", text));
    return set_real(run->state, "eval.best", h->best);
}

/* Who wrote it: tokens that the run has seen, a hash of the whole configuration, the version. */
static ts_status set_origin(tsi_run *run, int64_t step)
{
    char text[32];
    size_t length = ts_train_config_text(run->config, NULL, 0);
    char *config = tsi_alloc(length + 1);
    if (!config) return tsi_fail_memory("a configuration", length);
    ts_train_config_text(run->config, config, length + 1);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)ts_hash_block(config, length));
    tsi_free(config);
    TSI_TRY(ts_state_set(run->state, "config", text));
    snprintf(text, sizeof text, "%lld", (long long)(step * run->plan.tokens_per_step));
    TSI_TRY(ts_state_set(run->state, "tokens", text));
    return ts_state_set(run->state, "version", ts_version());
}

static ts_status set_values(tsi_run *run, double loss)
{
    char text[32], *meaning = tsi_run_meaning(run);
    if (!meaning) return ts_rank_status(run->me);
    ts_status status = ts_state_set(run->state, "meaning", meaning);
    tsi_free(meaning);
    TSI_TRY(status);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)run->id);
    TSI_TRY(ts_state_set(run->state, "run", text));
    snprintf(text, sizeof text, "%lld", (long long)run->scale.good);
    TSI_TRY(ts_state_set(run->state, "scale.good", text));
    snprintf(text, sizeof text, "%lld", (long long)run->skipped);
    TSI_TRY(ts_state_set(run->state, "scale.skipped", text));
    TSI_TRY(set_real(run->state, "scale", run->scale.value));
    TSI_TRY(set_real(run->state, "scale.set", run->config->train.loss_scale));
    TSI_TRY(set_held_out(run));
    return set_real(run->state, "loss", loss);
}

static const char *value(const tsi_run *run, const char *name, const char *otherwise)
{
    const char *text = ts_state_get(run->state, name);
    return text ? text : otherwise;
}

/* A scale that is found goes on where it was, unless the configuration has another one to begin
 * with by now; a fixed one is the configuration's. */
static void take_scale(tsi_run *run)
{
    const char *is = ts_state_get(run->state, "scale"),
               *set = ts_state_get(run->state, "scale.set");
    bool changed = set && strtod(set, NULL) != run->config->train.loss_scale;
    if (!is || changed || run->scale.every == 0) return;
    run->scale.value = strtod(is, NULL);
    run->scale.good = strtoll(value(run, "scale.good", "0"), NULL, 10);
    run->skipped = strtoll(value(run, "scale.skipped", "0"), NULL, 10);
}

/* What was loaded beside the tensors. */
static void take_values(tsi_run *run)
{
    run->id = strtoull(value(run, "run", "0"), NULL, 16);
    take_scale(run);
    if (!run->held_out.loader) return;
    char *rest = NULL;
    run->held_out.best = strtod(value(run, "eval.best", "nan"), NULL);
    run->held_out.best_step = strtoll(value(run, "eval.best_step", "0 0"), &rest, 10);
    run->held_out.worse = strtoll(rest, NULL, 10);
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* A save is complete: rank 0 looks what may go. */
static void saved(tsi_run *run)
{
    char states[TSI_CONFIG_TEXT_MAX];
    if (ts_rank_index(run->me) != 0) return;
    tsi_rank_set_current(NULL);
    if (tsi_train_path(run->config, "state", states) == TS_OK) forget(run, states);
    tsi_rank_set_current(run->me);
}

ts_status tsi_state_save(tsi_run *run, int64_t step, double loss)
{
    char states[TSI_CONFIG_TEXT_MAX], path[PATH_BYTES];
    TSI_TRY(tsi_state_wait(run));
    TSI_TRY(tsi_train_path(run->config, "state", states));
    step_path(path, states, step);
    TSI_TRY(set_values(run, loss));
    TSI_TRY(set_origin(run, step));
    ts_save_options options = TS_INIT(ts_save_options);
    options.step = step;
    options.background = (int32_t)run->config->checkpoint.async;
    TSI_TRY(ts_checkpoint_save(run->state, path, &options));
    run->saving = options.background != 0;
    if (!run->saving) saved(run);
    return TS_OK;
}

ts_status tsi_state_poll(tsi_run *run)
{
    int busy = 0;
    if (!run->saving) return TS_OK;
    TSI_TRY(ts_state_poll(run->state, &busy));
    run->saving = busy != 0;
    if (!busy) saved(run);
    return TS_OK;
}

ts_status tsi_state_wait(tsi_run *run)
{
    if (!run->saving) return TS_OK;
    TSI_TRY(ts_state_wait(run->state));
    run->saving = false;
    saved(run);
    return TS_OK;
}

/* ---- room on the disk ------------------------------------------------------------------------ */

typedef struct disk_bytes {
    int64_t state, model; /* of one state; of its weights, which the model written at the end has */
} disk_bytes;

static ts_status add_bytes(const char *name, const char *of, ts_tensor *t, void *context)
{
    (void)name;
    disk_bytes *d = context;
    if (!t->layout) return TS_OK;
    int64_t bytes = tsi_mul_most(t->layout->count, (int64_t)ts_dtype_size((ts_dtype)t->dtype));
    d->state += bytes;
    if (!of[0]) d->model += bytes;
    return TS_OK;
}

static int64_t multiples(int64_t of, int64_t first, int64_t last) /* in (first, last] */
{
    return of > 0 ? last / of - first / of : 0;
}

/* How many more states than now there will be at once, at least: saves of evaluations that are the
 * best so far are not counted, and the best may be the last ones. Until a save is complete it is
 * one more than are kept. */
static int64_t states_to_come(const tsi_run *run, const char *states, int64_t first, int64_t last)
{
    const ts_train_config *c = run->config;
    tsi_keep keep;
    int64_t every = c->checkpoint.every > 0 ? c->checkpoint.every : c->train.save_every;
    int64_t saves = multiples(every, first, last) + !(every > 0 && last % every == 0), now = 0;
    if (first >= last || tsi_keep_parse(c->checkpoint.keep, &keep) != TS_OK) return 0;
    for (int64_t step = newest(states, INT64_MAX); step > 0; step = newest(states, step))
        now++;
    if (keep.last == 0 && !keep.every && !keep.best) return saves;
    int64_t most = tsi_max_i64(keep.last > 0 ? keep.last : 1, keep.best) + 1;
    if (every > 0 && keep.every % every == 0)
        most = tsi_max_i64(most, multiples(keep.every, 0, last));
    return tsi_max_i64(tsi_min_i64(now + saves, most) - now, 1);
}

/* Of this rank's parts; in stages others have more, so that less is asked for than is written. */
void tsi_state_room(tsi_run *run, int64_t last)
{
    char states[TSI_CONFIG_TEXT_MAX], room[32], is[32], model[32];
    disk_bytes d = { 0 };
    int64_t left, first = run->plan.step_first;
    bool asks = ts_rank_index(run->me) == 0 && run->state && first < last &&
                tsi_train_path(run->config, "state", states) == TS_OK &&
                tsi_state_each(run->state, add_bytes, &d) == TS_OK &&
                tsi_folder_free(run->config->train.output, &left);
    if (!asks) return;
    int64_t count = states_to_come(run, states, first, last);
    double wanted = (double)count * (double)d.state + (double)d.model + TSI_FOLDER_SPARE;
    if ((double)left >= wanted) return;
    tsi_log(TSI_LOG_WARN,
            "checkpoint: %s are free at %s, and this run is to write %lld more state%s of %s "
            "(checkpoint.every, checkpoint.keep) and a model of %s: a save may not fit",
            tsi_text_bytes(room, sizeof room, left), run->config->train.output, (long long)count,
            count == 1 ? "" : "s", tsi_text_bytes(is, sizeof is, d.state),
            tsi_text_bytes(model, sizeof model, d.model));
}

/* ---- loading --------------------------------------------------------------------------------- */

static bool is_intact(const char *path)
{
    ts_archive *archive = NULL;
    uint64_t hash = 0;
    bool good = ts_archive_open(path, &archive) == TS_OK;
    ts_archive_about about = { 0 };
    if (good) ts_archive_about_of(archive, &about);
    for (int64_t i = 0; good && i < about.tensor_count; i++) {
        ts_archive_tensor tensor;
        ts_archive_tensor_at(archive, i, &tensor);
        good = ts_archive_hash(archive, i, &hash) == TS_OK && hash == tensor.hash;
    }
    ts_archive_close(archive);
    return good;
}

typedef struct advice {
    const char *states;
    int64_t step;
} advice;

/* A damaged state: which older one is whole, and how to take it. */
static void advise(void *context, char *out, size_t size)
{
    const advice *a = context;
    char folder[PATH_BYTES], other[PATH_BYTES];
    step_path(folder, a->states, a->step);
    int64_t older = newest(a->states, a->step);
    for (; older > 0; older = newest(a->states, older)) {
        step_path(other, a->states, older);
        if (is_intact(other)) break;
    }
    if (older == 0)
        snprintf(out, size, "; no older state is whole: train.resume=0 starts anew");
    else
        snprintf(out, size, "; the state of step %lld is whole: remove %s to go on from it",
                 (long long)older, folder);
}

static ts_status fail_meaning(const char *path, const char *differences)
{
    return TSI_FAIL_BLAST(
        TS_BLAST_LOCAL, TS_ERR_STATE,
        "%s: this run cannot go on from it: %s; train.resume=0 starts anew, model.directory takes "
        "the weights of OUTPUT/model alone",
        path, differences);
}

/* Refuses what is not a state of this function. A file that cannot be read is left to the loading,
 * which says more. */
static ts_status compare(tsi_run *run, const char *path)
{
    ts_archive *archive = NULL;
    tsi_rank_set_current(NULL);
    ts_status status = ts_archive_open(path, &archive);
    tsi_rank_set_current(run->me);
    if (status != TS_OK) return TS_OK;
    char *differences = NULL;
    status = tsi_meaning_compare(run, archive, &differences);
    ts_archive_close(archive);
    if (status == TS_OK && differences) status = fail_meaning(path, differences);
    tsi_free(differences);
    return status;
}

/* Every rank learns a word of rank 0's. */
static ts_status broadcast(tsi_run *run, void *word)
{
    ts_array array = TS_INIT(ts_array);
    array.data = word;
    array.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    return ts_group_broadcast(run->all, &array, 0, NULL);
}

ts_status tsi_state_none(tsi_run *run)
{
    char states[TSI_CONFIG_TEXT_MAX], path[PATH_BYTES];
    TSI_TRY(open_state(run));
    TSI_TRY(tsi_train_path(run->config, "state", states));
    if (ts_rank_index(run->me) == 0) {
        for (int64_t step = newest(states, INT64_MAX); step > 0; step = newest(states, step)) {
            step_path(path, states, step);
            tsi_folder_retire(path, run->id);
        }
    }
    return broadcast(run, &run->id);
}

ts_status tsi_state_load(tsi_run *run, int64_t *step)
{
    char states[TSI_CONFIG_TEXT_MAX], path[PATH_BYTES];
    int64_t found = 0;
    *step = 0;
    TSI_TRY(open_state(run));
    TSI_TRY(tsi_train_path(run->config, "state", states));
    if (ts_rank_index(run->me) == 0) {
        found = newest(states, INT64_MAX);
        step_path(path, states, found);
        if (found > 0) TSI_TRY(compare(run, path));
    }
    TSI_TRY(broadcast(run, &found));
    if (found == 0) return broadcast(run, &run->id);
    step_path(path, states, found);
    ts_load_options options = TS_INIT(ts_load_options);
    options.unverified = run->config->checkpoint.verify == 0;
    advice a = { states, found };
    TSI_TRY(tsi_checkpoint_load(run->state, path, &options, advise, &a));
    take_values(run);
    *step = found;
    return TS_OK;
}
