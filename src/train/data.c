/* SPDX-License-Identifier: Apache-2.0 */
/* data.c - the tokens of a run: text becomes token files once, and rows become tensors.
 *
 * Token files of a text lie in OUTPUT/tokens under a name made of what they depend on, so that a
 * text that changed is tokenised again and one that did not is not. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "train/run.h"

static bool is_prefix(const char *path)
{
    char name[TSI_CONFIG_TEXT_MAX + 16];
    struct stat info;
    snprintf(name, sizeof name, "%s-00000.bin", path);
    return stat(name, &info) == 0;
}

/* By name, size and time, as the text itself: one that was written anew cuts texts otherwise. */
static uint64_t mix_tokenizer(uint64_t hash, const ts_train_config *config)
{
    char path[TSI_CONFIG_TEXT_MAX + 32];
    struct stat info;
    hash = tsi_hash_text(hash, config->data.tokenizer);
    if (!tsi_run_tokenizer(config, path, sizeof path)) return hash; /* it is built in */
    if (stat(path, &info) != 0) return hash;                        /* opening it will say why */
    hash = tsi_hash_mix(hash, (uint64_t)info.st_size);
    hash = tsi_hash_mix(hash, (uint64_t)info.st_mtim.tv_sec);
    return tsi_hash_mix(hash, (uint64_t)info.st_mtim.tv_nsec);
}

/* What the token files of a text depend on; 0: it cannot be read, and that was recorded. */
static uint64_t text_hash(const ts_train_config *config, const tsi_source *source)
{
    const char *path = source->path;
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
        TSI_FAIL(TS_ERR_IO, "data.%s: \"%s\" is neither a text file nor the prefix of token files",
                 source->key, path);
        return 0;
    }
    uint64_t hash = tsi_hash_text(1, path);
    hash = mix_tokenizer(hash, config);
    hash = tsi_hash_text(hash, config->data.json_key);
    hash = tsi_hash_mix(hash, (uint64_t)info.st_size);
    hash = tsi_hash_mix(hash, (uint64_t)info.st_mtim.tv_sec);
    return tsi_hash_mix(hash, (uint64_t)info.st_mtim.tv_nsec) | 1;
}

/* Text becomes token files `prefix` of the output directory, by rank 0. */
static ts_status tokenize(tsi_run *run, const char *path, uint64_t hash, char *prefix)
{
    char folder[TSI_CONFIG_TEXT_MAX];
    TSI_TRY(tsi_train_path(run->config, "tokens", folder));
    int length =
        snprintf(prefix, TSI_CONFIG_TEXT_MAX, "%s/%016llx", folder, (unsigned long long)hash);
    if (length >= TSI_CONFIG_TEXT_MAX)
        return TSI_FAIL(TS_ERR_ARG, "train.output: the path is too long");
    run->tokenized = true;
    if (ts_rank_index(run->me) != 0) return TS_OK;
    TSI_TRY(tsi_folder_make(folder));
    const char *files[] = { path };
    ts_tokenize_options options = TS_INIT(ts_tokenize_options);
    options.tokenizer = run->config->data.tokenizer;
    options.files = files;
    options.file_count = 1;
    options.json_key = run->config->data.json_key;
    options.prefix = prefix;
    ts_tokenize_result result;
    return ts_tokenize_files(&options, &result);
}

/* What is wrong with a file is said with the key that names it. */
static ts_status named(ts_status status, const tsi_source *source)
{
    if (status != TS_OK) tsi_error_prefix("data.%s: \"%s\"", source->key, source->path);
    return status;
}

/* Token files say which tokenizer made them, but others may write such files, too: another hash is
 * told, not refused. What reads and writes text is that of the configuration. */
static ts_status compare_tokenizer(const tsi_run *run, const char *path, const ts_loader *loader)
{
    const ts_train_config *c = run->config;
    char file[TSI_CONFIG_TEXT_MAX + 32];
    bool used = tsi_run_tokenizer(c, file, sizeof file) || c->log.sample > 0;
    if (ts_rank_index(run->me) != 0 || !used) return TS_OK;
    ts_tokenizer *tokenizer = NULL;
    TSI_TRY(ts_tokenizer_open(c->data.tokenizer, &tokenizer));
    if (ts_tokenizer_hash(tokenizer) != ts_loader_tokenizer_hash(loader))
        tsi_log(TSI_LOG_WARN,
                "data.tokenizer: \"%s\" did not make the tokens of \"%s\"; samples and the model's "
                "texts may mean other tokens",
                c->data.tokenizer, path);
    ts_tokenizer_close(tokenizer);
    return TS_OK;
}

ts_status tsi_run_open(tsi_run *run, const tsi_source *source, ts_loader **out)
{
    const ts_train_config *c = run->config;
    const char *path = source->path;
    char prefix[TSI_CONFIG_TEXT_MAX];
    uint64_t hash = 0;
    if (ts_rank_index(run->me) == 0 && !is_prefix(path)) {
        hash = text_hash(c, source);
        TSI_TRY(ts_rank_status(run->me));
    }
    ts_array word = TS_INIT(ts_array);
    word.data = &hash;
    word.meta = (ts_meta){ .shape = TS_SHAPE(1), .dtype = TS_DTYPE_I64 };
    TSI_TRY(ts_group_broadcast(run->all, &word, 0, NULL));
    snprintf(prefix, sizeof prefix, "%s", path);
    if (hash != 0) TSI_TRY(named(tokenize(run, path, hash, prefix), source));
    TSI_TRY(ts_group_barrier(run->all, NULL)); /* the files are there */
    ts_loader_options options = TS_INIT(ts_loader_options);
    options.prefix = prefix;
    options.context = c->data.context;
    options.batch = source->batch;
    options.seed = (uint64_t)c->train.seed;
    options.in_order = source->in_order;
    TSI_TRY(named(ts_loader_open(&options, out), source));
    ts_status status = hash == 0 ? compare_tokenizer(run, path, *out) : TS_OK;
    if (status == TS_OK) return TS_OK;
    ts_loader_close(*out);
    *out = NULL;
    return status;
}

static ts_status open_path(tsi_run *run, const char *path, ts_loader **out)
{
    const ts_train_config *c = run->config;
    tsi_source source = { "path", path, c->train.batch, c->data.shuffle == 0 };
    return tsi_run_open(run, &source, out);
}

/* Several paths with their weights. */
static ts_status open_mix(tsi_run *run)
{
    enum { MANY = 64 };
    const ts_train_config *c = run->config;
    ts_loader *loader[MANY] = { NULL };
    double weight[MANY];
    char path[TSI_CONFIG_TEXT_MAX], text[TSI_CONFIG_TEXT_MAX];
    int64_t count = 0;
    ts_status status = TS_OK;
    while (status == TS_OK && count < MANY && tsi_train_item(c->data.path, count, path)) {
        tsi_cursor cursor = tsi_cursor_of("data.weights", text);
        if (!tsi_train_item(c->data.weights, count, text) ||
            !tsi_cursor_real(&cursor, &weight[count]) || !tsi_cursor_done(&cursor))
            status = TSI_FAIL(TS_ERR_ARG, "data.weights: \"%s\" has no number for \"%s\"",
                              c->data.weights, path);
        else if (!(weight[count] > 0 && weight[count] < HUGE_VAL))
            status = TSI_FAIL(TS_ERR_ARG,
                              "data.weights: is %g for \"%s\", and must be above 0; leave out what "
                              "no row is of",
                              weight[count], path);
        else
            status = open_path(run, path, &loader[count]);
        if (status == TS_OK) count++;
    }
    if (status == TS_OK && tsi_train_item(c->data.path, count, path))
        status = TSI_FAIL(TS_ERR_ARG, "data.path: names more than %d files", MANY);
    if (status == TS_OK && tsi_train_item(c->data.weights, count, text))
        status = TSI_FAIL(TS_ERR_ARG,
                          "data.weights: \"%s\" has more numbers than data.path has "
                          "files",
                          c->data.weights);
    if (status == TS_OK)
        status = ts_loader_mix(loader, weight, count, c->train.batch, &run->loader);
    for (int64_t i = 0; status != TS_OK && i < count; i++)
        ts_loader_close(loader[i]);
    return status;
}

ts_status tsi_run_data(tsi_run *run)
{
    const ts_train_config *c = run->config;
    TSI_TRY(c->data.weights[0] ? open_mix(run) : open_path(run, c->data.path, &run->loader));
    run->row = tsi_alloc_array((size_t)c->data.context + 1, sizeof *run->row);
    return run->row ? TS_OK : tsi_fail_memory("a row of tokens", (size_t)c->data.context * 4);
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct rows {
    tsi_run *run;
    int64_t step, first, shift;
    int64_t at; /* the row that is loaded, or -1 */
    bool failed;
} rows;

/* A rank asks for the elements of its own block, row by row: it reads no other rows. */
static ts_status token_at(const int64_t *global, void *element, void *context)
{
    rows *r = context;
    int64_t row = r->first + global[0];
    if (row != r->at && !r->failed)
        r->failed = ts_loader_batch(r->run->loader, r->step, row, 1, r->run->row) != TS_OK;
    r->at = row;
    *(int64_t *)element = r->failed ? 0 : r->run->row[global[1] + r->shift];
    return TS_OK;
}

ts_tensor *tsi_run_rows(tsi_run *run, int64_t step, int64_t first, int64_t count, int64_t shift)
{
    rows r = { run, step, first, shift, -1, false };
    ts_meta meta = { .shape = TS_SHAPE(count, run->config->data.context), .dtype = TS_DTYPE_I64 };
    const ts_sharding *where =
        ts_model_tokens_of(run->model, run->config->data.context, run->model->documents);
    ts_tensor *t = ts_from_function(token_at, &r, where, meta);
    return r.failed ? NULL : t;
}

/* ---- documents ------------------------------------------------------------------------------- */

/* Lengths of the documents of one row, of `context` tokens; how many. */
static int64_t lengths_of(const int32_t *row, int64_t context, int64_t end, int64_t *length)
{
    int64_t count = 0, begin = 0;
    for (int64_t i = 0; i < context; i++)
        if (row[i] == end || i + 1 == context) {
            length[count++] = i + 1 - begin;
            begin = i + 1;
        }
    return count;
}

/* Every rank reads all rows: lengths are never sent. */
static ts_status take_documents(tsi_run *run, int64_t step, const int64_t *row, int64_t first,
                                int64_t count)
{
    const tsi_data_keys *keys = &run->config->data;
    if (strcmp(keys->documents, "separate") != 0) return TS_OK;
    int64_t *length = tsi_alloc_array((size_t)(count * (keys->context + 1)), sizeof *length);
    if (!length) return tsi_fail_memory("lengths of documents", (size_t)count * 8);
    int64_t *counts = length + count * keys->context, used = 0;
    ts_status status = TS_OK;
    for (int64_t r = 0; r < count && status == TS_OK; r++) {
        int64_t at = first + (row ? row[r] : r);
        status = ts_loader_batch(run->loader, step, at, 1, run->row);
        counts[r] = lengths_of(run->row, keys->context, keys->end, length + used);
        used += counts[r];
    }
    if (status == TS_OK) {
        const ts_mask *mask = ts_mask_documents(ts_rank_world(run->me), length, counts, count);
        status = mask ? ts_model_documents(run->model, mask) : ts_rank_status(run->me);
    }
    tsi_free(length);
    return status;
}

ts_status tsi_run_documents(tsi_run *run, int64_t step, int64_t first, int64_t count)
{
    return take_documents(run, step, NULL, first, count);
}

ts_status tsi_run_documents_of(tsi_run *run, int64_t step, const int64_t *row, int64_t first,
                               int64_t count)
{
    return take_documents(run, step, row, first, count);
}
