/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize.c - text files to shards, a part of a file at a time.
 *
 * A part is read, cut where that changes no token (ts_tokenizer_cut) and encoded. Its tokens fill
 * the current shard; a full one is completed, and its header says where the text goes on: after
 * `tokens` tokens of the part that begins at `offset` of input `file`. That is all a later run
 * needs to continue, so there is no state beside the shards, and the same bytes come out however
 * often the work was interrupted. Of "*.jsonl" a part is whole lines, each an object with a
 * document. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/intmath.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include "tessera/json.h"

enum { SHARD_TOKENS = 100000000, PART_BYTES = 4 << 20, PART_BYTES_MAX = 1 << 30 };

typedef struct job {
    ts_tokenize_options options;
    ts_tokenizer *tokenizer;
    tsi_shard_head head;     /* what the shards have in common, and the next one's index */
    tsi_shard_writer writer; /* of the current shard, if any */
    tsi_shard_position at;   /* of the next token to write */
    char *part;
    size_t part_capacity;
    ts_tokens tokens; /* of the part */
    int64_t *bytes;   /* of each file */
    ts_tokenize_progress progress;
    int32_t eos;
    bool complete; /* the set was finished by an earlier run */
    int64_t shards_kept;
} job;

/* ---- inputs ---------------------------------------------------------------------------------- */
static ts_status take_options(const ts_tokenize_options *from, ts_tokenize_options *out)
{
    if (from == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_tokenize_files: options are NULL");
    if (from->struct_size < sizeof(size_t))
        return TSI_FAIL(TS_ERR_ARG, "ts_tokenize_files: struct_size is %zu; use TS_INIT",
                        from->struct_size);
    *out = (ts_tokenize_options){ 0 };
    memcpy(out, from, from->struct_size < sizeof *out ? from->struct_size : sizeof *out);
    if (out->tokenizer == NULL) out->tokenizer = "byte";
    if (out->shard_tokens == 0) out->shard_tokens = SHARD_TOKENS;
    if (out->part_bytes == 0) out->part_bytes = PART_BYTES;
    if (out->json_key == NULL) out->json_key = "text";
    if (out->files == NULL || out->file_count < 1)
        return TSI_FAIL(TS_ERR_ARG, "ts_tokenize_files: there are no input files");
    if (out->prefix == NULL || *out->prefix == '\0')
        return TSI_FAIL(TS_ERR_ARG, "ts_tokenize_files: there is no prefix for the shards");
    if (out->shard_tokens < 1 || out->part_bytes < 64 || out->part_bytes > PART_BYTES_MAX)
        return TSI_FAIL(TS_ERR_ARG, "ts_tokenize_files: shards of %lld tokens, parts of %lld bytes",
                        (long long)out->shard_tokens, (long long)out->part_bytes);
    return TS_OK;
}

/* Are its lines the documents? */
static bool has_lines(const char *path)
{
    static const char end[] = ".jsonl";
    size_t length = strlen(path), n = sizeof end - 1;
    return length > n && strcmp(path + length - n, end) == 0;
}

/* Sizes of the inputs, and the hash that tells this job from others: inputs are known by name and
 * size. */
static ts_status survey(job *j)
{
    const ts_tokenize_options *o = &j->options;
    j->bytes = tsi_calloc((size_t)o->file_count, sizeof *j->bytes);
    if (j->bytes == NULL) return tsi_fail_memory("inputs", (size_t)o->file_count);
    uint64_t hash = tsi_hash_mix((uint64_t)o->part_bytes, (uint64_t)o->shard_tokens);
    hash = tsi_hash_mix(hash, (uint64_t)(o->specials != 0) | (uint64_t)(o->plain != 0) << 1 |
                                  (uint64_t)(o->no_eos != 0) << 2);
    for (int64_t i = 0; i < o->file_count; i++) {
        int file;
        if (o->files[i] == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_tokenize_files: a file is NULL");
        TSI_TRY(tsi_file_open(o->files[i], &file, &j->bytes[i]));
        close(file);
        hash = tsi_hash_mix(tsi_hash_text(hash, o->files[i]), (uint64_t)j->bytes[i]);
        if (has_lines(o->files[i])) hash = tsi_hash_text(hash, o->json_key);
        if (!tsi_add_i64(j->progress.bytes_total, j->bytes[i], &j->progress.bytes_total))
            return TSI_FAIL(TS_ERR_ARG, "ts_tokenize_files: the inputs are too long");
    }
    j->head.source = hash;
    return TS_OK;
}

/* ---- what is there already ------------------------------------------------------------------- */
/* The header of shard i, or *there false. */
static ts_status peek(const job *j, int64_t i, tsi_shard_head *head, bool *there)
{
    char *path = tsi_shard_path(j->options.prefix, i);
    if (path == NULL) return TS_ERR_MEMORY;
    struct stat about;
    *there = stat(path, &about) == 0;
    ts_status status = *there ? tsi_shard_peek(path, head) : TS_OK;
    bool same = status == TS_OK && *there && head->source == j->head.source &&
                head->tokenizer == j->head.tokenizer && head->index == i &&
                head->first == j->head.first;
    if (status == TS_OK && *there && !same)
        status =
            TSI_FAIL(TS_ERR_STATE,
                     "%s belongs to other inputs or options; remove it, choose another prefix, "
                     "or start again over it",
                     path);
    tsi_free(path);
    return status;
}

static ts_status keep_shards(job *j)
{
    for (int64_t i = 0; !j->complete; i++) {
        tsi_shard_head head = { 0 };
        bool there;
        TSI_TRY(peek(j, i, &head, &there));
        if (!there) break;
        j->at = head.next;
        j->complete = head.last;
        j->head.first += head.count;
        j->head.index = j->shards_kept = i + 1;
    }
    bool sane = j->at.file >= 0 && j->at.file <= j->options.file_count && j->at.offset >= 0 &&
                j->at.tokens >= 0;
    if (!sane || (j->at.file < j->options.file_count && j->at.offset > j->bytes[j->at.file]))
        return TSI_FAIL(TS_ERR_IO, "shard %lld of %s continues at a place that is not there",
                        (long long)(j->shards_kept - 1), j->options.prefix);
    return TS_OK;
}

/* Removes shards 0, 1, ... of an older set. */
static ts_status remove_shards(const job *j)
{
    for (int64_t i = 0;; i++) {
        char *path = tsi_shard_path(j->options.prefix, i);
        if (path == NULL) return TS_ERR_MEMORY;
        int result = unlink(path), reason = errno;
        ts_status status = TS_OK;
        if (result != 0 && reason != ENOENT)
            status = TSI_FAIL(TS_ERR_IO, "%s cannot be removed: %s", path, strerror(reason));
        tsi_free(path);
        if (status != TS_OK || result != 0) return status;
    }
}

/* ---- writing --------------------------------------------------------------------------------- */
static ts_status begin_shard(job *j)
{
    char *path = tsi_shard_path(j->options.prefix, j->head.index);
    if (path == NULL) return TS_ERR_MEMORY;
    ts_status status = tsi_shard_create(path, &j->head, &j->writer);
    tsi_free(path);
    return status;
}

static ts_status end_shard(job *j, bool last)
{
    int64_t count = j->writer.head.count;
    TSI_TRY(tsi_shard_finish(&j->writer, j->at, last));
    j->head.first += count;
    j->head.index++;
    return TS_OK;
}

/* Writes the tokens of the part from j->at.tokens on. A full shard is completed when the next token
 * comes, so that the one that ends the set is known to be the last. */
static ts_status write_part(job *j)
{
    if (j->at.tokens > j->tokens.count)
        return TSI_FAIL(TS_ERR_IO, "%s changed since shard %lld of %s was written",
                        j->options.files[j->at.file], (long long)j->head.index - 1,
                        j->options.prefix);
    while (j->at.tokens < j->tokens.count) {
        if (j->writer.file >= 0 && j->writer.head.count == j->options.shard_tokens) {
            TSI_TRY(end_shard(j, false));
        }
        if (j->writer.file < 0) TSI_TRY(begin_shard(j));
        int64_t room = j->options.shard_tokens - j->writer.head.count;
        int64_t count = tsi_min_i64(room, j->tokens.count - j->at.tokens);
        TSI_TRY(tsi_shard_append(&j->writer, j->tokens.id + j->at.tokens, count));
        j->at.tokens += count;
    }
    return TS_OK;
}

static ts_status report(job *j)
{
    if (j->options.progress == NULL) return TS_OK;
    j->progress.tokens = j->head.first + (j->writer.file >= 0 ? j->writer.head.count : 0);
    j->progress.shards = j->head.index;
    if (j->options.progress(&j->progress, j->options.context) == 0) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE, "tokenizing was stopped after %lld shards; run it again to go on",
                    (long long)j->head.index);
}

/* ---- reading --------------------------------------------------------------------------------- */
/* Bytes up to the end of the last whole line; 0: there is none. */
static size_t whole_lines(const char *part, size_t length)
{
    while (length > 0 && part[length - 1] != '\n')
        length--;
    return length;
}

/* Reads at j->at.offset and finds where the part ends; without a place to cut it reads twice as
 * much. */
static ts_status read_part(job *j, int file, size_t *length)
{
    const char *path = j->options.files[j->at.file];
    int64_t left = j->bytes[j->at.file] - j->at.offset;
    for (int64_t wanted = j->options.part_bytes;; wanted *= 2) {
        if (wanted > PART_BYTES_MAX)
            return TSI_FAIL(TS_ERR_IO, "%s: no place to cut within %d bytes from byte %lld on",
                            path, PART_BYTES_MAX, (long long)j->at.offset);
        size_t bytes = (size_t)tsi_min_i64(wanted, left), done;
        if (bytes > j->part_capacity) {
            char *part = tsi_realloc(j->part, bytes);
            if (part == NULL) return tsi_fail_memory("a part of a text", bytes);
            j->part = part;
            j->part_capacity = bytes;
        }
        TSI_TRY(tsi_file_read_at(path, file, j->at.offset, j->part, bytes, &done));
        if (done < bytes) return TSI_FAIL(TS_ERR_IO, "%s became shorter while it was read", path);
        *length = bytes;
        if ((int64_t)bytes == left) return TS_OK;
        if (has_lines(path))
            *length = whole_lines(j->part, bytes);
        else
            TSI_TRY(ts_tokenizer_cut(j->tokenizer, j->part, bytes, length));
        if (*length > 0) return TS_OK;
    }
}

static ts_status add_all(ts_tokens *out, const ts_tokens *more)
{
    for (int64_t i = 0; i < more->count; i++)
        TSI_TRY(tsi_tokens_add(out, more->id[i]));
    return TS_OK;
}

/* Text of a document, its first or a later part, with what stands before and behind it. */
static ts_status encode_text(job *j, const char *text, size_t length, bool first, bool last)
{
    bool specials = j->options.specials != 0;
    uint32_t flags = (first ? 0u : TS_ENCODE_CONTINUED) | (j->options.plain ? TS_ENCODE_PLAIN : 0u);
    ts_tokens *out = &j->tokens;
    if (first && specials) {
        if (j->tokenizer->bytes) TSI_TRY(tsi_tokens_add(out, TS_BYTE_BOS));
        TSI_TRY(add_all(out, &j->tokenizer->before));
    }
    TSI_TRY(ts_tokenizer_encode(j->tokenizer, text, length, flags, out));
    if (!last) return TS_OK;
    if (specials) TSI_TRY(add_all(out, &j->tokenizer->behind));
    bool ended = out->count > 0 && out->id[out->count - 1] == j->eos;
    return j->eos >= 0 && !ended ? tsi_tokens_add(out, j->eos) : TS_OK;
}

/* The number of the line that begins at a byte, for an error. */
static int64_t line_at(const char *path, int64_t at)
{
    int64_t number = 1;
    FILE *file = fopen(path, "r");
    for (int c; file && at > 0 && (c = getc(file)) != EOF; at--)
        number += c == '\n';
    if (file) fclose(file);
    return number;
}

/* One line of a part: an object with a document. */
static ts_status encode_line(job *j, const char *line, size_t length)
{
    const char *path = j->options.files[j->at.file], *key = j->options.json_key;
    int64_t at = j->at.offset + (line - j->part);
    ts_json_document *document = NULL;
    ts_status status = ts_json_parse("JSON", line, length, &document);
    if (status != TS_OK) {
        tsi_error_prefix("%s, line %lld", path, (long long)line_at(path, at));
        return status;
    }
    const char *text = ts_json_text(ts_json_member(ts_json_root(document), key), NULL);
    if (!text)
        status = TSI_FAIL(TS_ERR_IO, "%s, line %lld: the object has no text \"%s\"", path,
                          (long long)line_at(path, at), key);
    else if (*text) /* as of files, nothing is written for one that is empty */
        status = encode_text(j, text, strlen(text), true, true);
    ts_json_release(document);
    return status;
}

static ts_status encode_lines(job *j, size_t length)
{
    for (size_t begin = 0; begin < length;) {
        const char *line = j->part + begin, *newline = memchr(line, '\n', length - begin);
        size_t n = newline ? (size_t)(newline - line) : length - begin, blanks = 0;
        while (blanks < n && memchr(" \t\r", line[blanks], 3) != NULL)
            blanks++;
        if (blanks < n) TSI_TRY(encode_line(j, line, n));
        begin += n + 1;
    }
    return TS_OK;
}

static ts_status encode_part(job *j, size_t length, bool last)
{
    j->tokens.count = 0;
    if (has_lines(j->options.files[j->at.file])) return encode_lines(j, length);
    return encode_text(j, j->part, length, j->at.offset == 0, last);
}

/* One input from j->at on; an empty file is no document. */
static ts_status tokenize_file(job *j)
{
    int file;
    int64_t bytes, total = j->bytes[j->at.file], base = j->progress.bytes_done - j->at.offset;
    TSI_TRY(tsi_file_open(j->options.files[j->at.file], &file, &bytes));
    ts_status status = TS_OK;
    if (bytes != total)
        status = TSI_FAIL(TS_ERR_IO, "%s changed its size", j->options.files[j->at.file]);
    while (status == TS_OK && j->at.offset < total) {
        size_t length = 0;
        status = read_part(j, file, &length);
        bool last = status == TS_OK && j->at.offset + (int64_t)length == total;
        if (status == TS_OK) status = encode_part(j, length, last);
        if (status == TS_OK) status = write_part(j);
        if (status != TS_OK) break;
        j->at.offset += (int64_t)length;
        j->at.tokens = 0;
        j->progress.bytes_done = base + j->at.offset;
        status = report(j);
    }
    close(file);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */
static ts_status prepare(job *j)
{
    TSI_TRY(ts_tokenizer_open(j->options.tokenizer, &j->tokenizer));
    TSI_TRY(survey(j));
    j->head.vocabulary = ts_tokenizer_vocabulary(j->tokenizer);
    j->head.width = j->head.vocabulary <= 65536 ? 2 : 4;
    j->head.tokenizer = ts_tokenizer_hash(j->tokenizer);
    j->eos = j->options.no_eos != 0 ? -1 : ts_tokenizer_eos(j->tokenizer);
    if (j->options.restart != 0) TSI_TRY(remove_shards(j));
    TSI_TRY(keep_shards(j));
    for (int64_t i = 0; i < j->at.file; i++)
        j->progress.bytes_done += j->bytes[i];
    j->progress.bytes_done += j->at.offset;
    return report(j);
}

static ts_status run(job *j)
{
    TSI_TRY(prepare(j));
    if (j->complete) return TS_OK;
    while (j->at.file < j->options.file_count) {
        TSI_TRY(tokenize_file(j));
        j->at = (tsi_shard_position){ .file = j->at.file + 1 };
    }
    if (j->writer.file < 0 && j->head.index == 0)
        return TSI_FAIL(TS_ERR_ARG, "the inputs are empty: there are no tokens to write");
    if (j->writer.file < 0) TSI_TRY(begin_shard(j)); /* an empty last shard says that it is over */
    TSI_TRY(end_shard(j, true));
    return report(j);
}

ts_status ts_tokenize_files(const ts_tokenize_options *options, ts_tokenize_result *out)
{
    if (out == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_tokenize_files: out is NULL");
    *out = (ts_tokenize_result){ 0 };
    job j = { .writer = { .file = -1 } };
    TSI_TRY(take_options(options, &j.options));
    ts_status status = run(&j);
    if (status == TS_OK)
        *out = (ts_tokenize_result){ .bytes = j.progress.bytes_total,
                                     .tokens = j.head.first,
                                     .shards = j.head.index,
                                     .shards_kept = j.shards_kept,
                                     .vocabulary = j.head.vocabulary,
                                     .token_bytes = j.head.width,
                                     .eos = j.eos };
    tsi_shard_abandon(&j.writer);
    ts_tokenizer_close(j.tokenizer);
    ts_tokens_release(&j.tokens);
    tsi_free(j.part);
    tsi_free(j.bytes);
    return status;
}
