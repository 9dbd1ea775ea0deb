/* SPDX-License-Identifier: Apache-2.0 */
/* data_file.c - writing and reading the files of a checkpoint: see the head of data_file.h. */
#include "checkpoint/data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/intmath.h"
#include "base/text.h"
#include "checkpoint/digest.h"
#include "checkpoint/safetensors_dtype.h"
#include "tessera/json.h"

#define METADATA "{\"__metadata__\":{\"format\":\"pt\",\"tessera.save\":\""
enum { TABLE_HEAD = 2, TABLE_FILL = 512, PAGE = 4096, SYNC_AHEAD = 8 << 20 };

void tsi_data_file_name(char *out, int64_t rank)
{
    snprintf(out, TSI_DATA_NAME_MAX, "rank-%05lld.safetensors", (long long)rank);
}

char *tsi_data_copy_name(const char *name, int64_t copy)
{
    tsi_text text = { 0 };
    tsi_text_printf(&text, "tessera.copy%lld.%s", (long long)copy, name);
    return tsi_text_take(&text);
}

/* ---- the plan of a file ---------------------------------------------------------------------- */

static int64_t blocks_of(int64_t bytes)
{
    return tsi_ceil_div(bytes, TSI_BLOCK_BYTES);
}

/* Numbers the blocks and places the pieces behind the table, by the size of their elements. */
static int64_t place_pieces(tsi_data_piece *piece, int64_t count, tsi_data_plan *plan)
{
    plan->block_count = 0;
    for (int64_t i = 0; i < count; i++)
        plan->block_count += blocks_of(piece[i].bytes);
    plan->table_count = tsi_round_up(TABLE_HEAD + plan->block_count, TABLE_FILL);
    int64_t at = plan->table_count * 8, block = 0;
    for (size_t element = 16; element > 0; element /= 2)
        for (int64_t i = 0; i < count; i++) {
            if (ts_dtype_size((ts_dtype)piece[i].meta.dtype) != element) continue;
            piece[i].begin = at;
            piece[i].block = block;
            at += piece[i].bytes;
            block += blocks_of(piece[i].bytes);
        }
    return at;
}

static void add_entry(tsi_text *text, const char *name, const ts_meta *meta, int64_t begin,
                      int64_t bytes)
{
    tsi_text_add(text, ",");
    tsi_text_json(text, name);
    tsi_text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[",
                    tsi_safetensors_dtype((ts_dtype)meta->dtype));
    for (int32_t d = 0; d < meta->shape.ndim; d++)
        tsi_text_printf(text, "%s%lld", d ? "," : "", (long long)meta->shape.extent[d]);
    tsi_text_printf(text, "],\"data_offsets\":[%lld,%lld]}", (long long)begin,
                    (long long)(begin + bytes));
}

static int by_begin(const void *a, const void *b)
{
    const tsi_data_piece *x = *(const tsi_data_piece *const *)a,
                         *y = *(const tsi_data_piece *const *)b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* In the order of the data, filled up with blanks so that the data begins on a page. */
static char *header_text(const tsi_data_piece *const *sorted, int64_t count, uint64_t save,
                         int64_t rank, const tsi_data_plan *plan, size_t *bytes)
{
    tsi_text text = { 0 };
    ts_meta table = { .shape = TS_SHAPE(plan->table_count), .dtype = TS_DTYPE_I64 };
    tsi_text_add(&text, "01234567"); /* the length goes there */
    tsi_text_printf(&text,
                    METADATA "%016llx\","
                             "\"tessera.rank\":\"%lld\",\"tessera.block\":\"%d\"}",
                    (unsigned long long)save, (long long)rank, TSI_BLOCK_BYTES);
    add_entry(&text, TSI_TABLE_NAME, &table, 0, plan->table_count * 8);
    for (int64_t i = 0; i < count; i++)
        add_entry(&text, sorted[i]->name, &sorted[i]->meta, sorted[i]->begin, sorted[i]->bytes);
    tsi_text_add(&text, "}");
    while (!text.failed && text.length % PAGE != 0)
        tsi_text_add(&text, " ");
    *bytes = text.length;
    char *header = tsi_text_take(&text);
    for (int i = 0; header && i < 8; i++)
        header[i] = (char)(unsigned char)((uint64_t)(*bytes - 8) >> (8 * i));
    return header;
}

ts_status tsi_data_plan_make(tsi_data_piece *piece, int64_t count, uint64_t save, int64_t rank,
                             tsi_data_plan *out)
{
    *out = (tsi_data_plan){ 0 };
    const tsi_data_piece **sorted = tsi_alloc_array((size_t)count + 1, sizeof *sorted);
    if (!sorted) return tsi_fail_memory("the pieces of a file", (size_t)count * sizeof *sorted);
    for (int64_t i = 0; i < count; i++) {
        sorted[i] = &piece[i];
        piece[i].bytes = ts_shape_count(&piece[i].meta.shape) *
                         (int64_t)ts_dtype_size((ts_dtype)piece[i].meta.dtype);
    }
    int64_t bytes = place_pieces(piece, count, out);
    qsort(sorted, (size_t)count, sizeof *sorted, by_begin);
    out->header = header_text(sorted, count, save, rank, out, &out->header_bytes);
    tsi_free(sorted);
    if (!out->header) return TS_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++)
        piece[i].begin += (int64_t)out->header_bytes;
    out->begin = (int64_t)out->header_bytes + out->table_count * 8;
    out->bytes = bytes + (int64_t)out->header_bytes;
    return TS_OK;
}

void tsi_data_plan_stamp(tsi_data_plan *plan, uint64_t save)
{
    char digits[20], *at = plan->header + 8 + strlen(METADATA);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)save);
    memcpy(at, digits, 16);
}

void tsi_data_plan_release(tsi_data_plan *plan)
{
    tsi_free(plan->header);
    *plan = (tsi_data_plan){ 0 };
}

/* ---- writing --------------------------------------------------------------------------------- */

struct tsi_data_writer {
    char *path;
    int fd;
    int32_t reserved;
    const tsi_data_plan *plan;
    uint64_t *table;
    int64_t ahead; /* bytes whose writing was not begun yet */
};

static ts_status write_at(const tsi_data_writer *w, const void *data, size_t bytes, int64_t offset)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t done = pwrite(w->fd, at, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return TSI_FAIL(TS_ERR_IO, "%s: %s", w->path,
                            done < 0 ? strerror(errno) : "nothing could be written");
        at += done;
        offset += done;
        bytes -= (size_t)done;
    }
    return TS_OK;
}

/* Takes the room before anything is written, so that a full disk is known at once; file systems
 * that cannot are asked by the writing itself. */
static ts_status take_room(const tsi_data_writer *w)
{
    int error = posix_fallocate(w->fd, 0, (off_t)w->plan->bytes);
    if (error == 0 || error == EINVAL || error == EOPNOTSUPP || error == ENODEV) return TS_OK;
    char room[32];
    return TSI_FAIL(TS_ERR_IO, "%s: no room for %s: %s", w->path,
                    tsi_text_bytes(room, sizeof room, w->plan->bytes), strerror(error));
}

ts_status tsi_data_create(const char *path, const tsi_data_plan *plan, tsi_data_writer **out)
{
    *out = NULL;
    tsi_data_writer *w = tsi_calloc(1, sizeof *w);
    if (!w) return tsi_fail_memory("a file of a checkpoint", sizeof *w);
    w->plan = plan;
    w->fd = -1;
    w->path = tsi_strdup(path);
    w->table = tsi_calloc((size_t)plan->table_count, sizeof *w->table);
    ts_status status =
        w->path && w->table
            ? TS_OK
            : tsi_fail_memory("the hashes of a file", (size_t)plan->table_count * sizeof *w->table);
    if (status == TS_OK) {
        w->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (w->fd < 0) status = TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (status == TS_OK) status = take_room(w);
    if (status == TS_OK)
        *out = w;
    else
        (void)tsi_data_finish(w, false);
    return status;
}

/* The device begins while the next bytes are hashed; the sync at the end has less to wait for. */
static void begin_writing(tsi_data_writer *w, int64_t end, size_t bytes)
{
    w->ahead += (int64_t)bytes;
    if (w->ahead < SYNC_AHEAD) return;
    (void)sync_file_range(w->fd, (off_t)(end - w->ahead > 0 ? end - w->ahead : 0), (off_t)w->ahead,
                          SYNC_FILE_RANGE_WRITE);
    w->ahead = 0;
}

/* Each block is written while it is in the cache, up to where a block of the file ends: wherever a
 * piece begins, the page cache holds it in large pages then, which are read faster. */
ts_status tsi_data_put(tsi_data_writer *w, const tsi_data_piece *piece, int64_t offset,
                       const void *data, size_t bytes)
{
    TSI_ASSERT(offset % TSI_BLOCK_BYTES == 0);
    const char *at = data;
    int64_t begin = piece->begin + offset, end = begin + (int64_t)bytes;
    uint64_t *hash = w->table + TABLE_HEAD + piece->block + offset / TSI_BLOCK_BYTES;
    for (int64_t hashed = begin, written = begin; hashed < end;) {
        int64_t count = tsi_min_i64(end - hashed, TSI_BLOCK_BYTES);
        *hash++ = tsi_digest_block(at + (hashed - begin), (size_t)count);
        hashed += count;
        int64_t to = hashed < end ? hashed - hashed % TSI_BLOCK_BYTES : end;
        TSI_TRY(write_at(w, at + (written - begin), (size_t)(to - written), written));
        written = to;
    }
    begin_writing(w, end, bytes);
    return TS_OK;
}

static ts_status write_head(tsi_data_writer *w)
{
    const tsi_data_plan *plan = w->plan;
    w->table[0] = tsi_digest_block(plan->header, plan->header_bytes);
    w->table[1] = tsi_digest_block(w->table + TABLE_HEAD,
                                   (size_t)(plan->table_count - TABLE_HEAD) * sizeof *w->table);
    TSI_TRY(write_at(w, plan->header, plan->header_bytes, 0));
    TSI_TRY(write_at(w, w->table, (size_t)plan->table_count * sizeof *w->table,
                     (int64_t)plan->header_bytes));
    struct stat about;
    if (fsync(w->fd) != 0 || fstat(w->fd, &about) != 0)
        return TSI_FAIL(TS_ERR_IO, "%s: %s", w->path, strerror(errno));
    if (about.st_nlink > 0) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: was removed while it was being written", w->path);
}

ts_status tsi_data_finish(tsi_data_writer *w, bool keep)
{
    if (!w) return TS_OK;
    ts_status status = keep ? write_head(w) : TS_OK;
    if (w->fd >= 0 && close(w->fd) != 0 && keep && status == TS_OK)
        status = TSI_FAIL(TS_ERR_IO, "%s: %s", w->path, strerror(errno));
    if (w->fd >= 0 && (!keep || status != TS_OK)) unlink(w->path);
    tsi_free(w->table);
    tsi_free(w->path);
    tsi_free(w);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct tsi_data_file {
    tsi_weights *weights;
    uint64_t *table;
    int64_t *first; /* of each stored tensor: the number of its first block */
};

static bool text_is(const ts_json *metadata, const char *key, const char *want)
{
    return strcmp(ts_json_text(ts_json_member(metadata, key), ""), want) == 0;
}

static ts_status check_save(const tsi_weights *w, const char *path, uint64_t save, int64_t rank)
{
    char id[20], number[24], block[24];
    snprintf(id, sizeof id, "%016llx", (unsigned long long)save);
    snprintf(number, sizeof number, "%lld", (long long)rank);
    snprintf(block, sizeof block, "%d", TSI_BLOCK_BYTES);
    tsi_weights_file file = tsi_weights_file_at(w, 0);
    ts_json_document *document = NULL;
    TSI_TRY(ts_json_parse(path, file.header, file.header_length, &document));
    const ts_json *metadata = ts_json_member(ts_json_root(document), "__metadata__");
    bool same = text_is(metadata, "tessera.save", id) && text_is(metadata, "tessera.rank", number);
    bool fits = text_is(metadata, "tessera.block", block);
    ts_json_release(document);
    if (!same)
        return TSI_FAIL(
            TS_ERR_IO, "%s: is of another save than the index beside it, or of another rank", path);
    return fits ? TS_OK : TSI_FAIL(TS_ERR_IO, "%s: has blocks of another size", path);
}

static ts_status check_table(const tsi_data_file *f, const char *path, const tsi_stored *table,
                             int64_t count)
{
    tsi_weights_file file = tsi_weights_file_at(f->weights, 0);
    size_t bytes = file.header_length + 8;
    char *head = tsi_alloc(bytes);
    if (!head) return tsi_fail_memory("the header of a file", bytes);
    for (int i = 0; i < 8; i++)
        head[i] = (char)(unsigned char)((uint64_t)file.header_length >> (8 * i));
    memcpy(head + 8, file.header, file.header_length);
    uint64_t of_head = tsi_digest_block(head, bytes);
    tsi_free(head);
    ts_status status = tsi_weights_read_bytes(f->weights, table, 0, (size_t)count * 8, f->table);
    if (status != TS_OK) return status;
    uint64_t of_table = tsi_digest_block(f->table + TABLE_HEAD, (size_t)(count - TABLE_HEAD) * 8);
    if (f->table[0] == of_head && f->table[1] == of_table) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: is damaged: the hash of its %s does not fit", path,
                    f->table[0] == of_head ? "table of hashes" : "header");
}

/* Stored tensors stand in the header in the order of their data. */
static bool number_blocks(tsi_data_file *f, int64_t table_count)
{
    int64_t block = 0, at = 0;
    for (int64_t i = 0; i < tsi_weights_count(f->weights); i++) {
        const tsi_stored *stored = tsi_weights_at(f->weights, i);
        if (stored->begin < at) return false;
        at = stored->begin;
        f->first[i] = block;
        if (i > 0) block += blocks_of(stored->end - stored->begin);
    }
    return TABLE_HEAD + block <= table_count;
}

static ts_status read_table(tsi_data_file *f, const char *path)
{
    const tsi_stored *table = tsi_weights_at(f->weights, 0);
    bool good = tsi_weights_count(f->weights) > 0 && strcmp(table->name, TSI_TABLE_NAME) == 0 &&
                table->meta.dtype == TS_DTYPE_I64 && table->meta.shape.ndim == 1 &&
                table->meta.shape.extent[0] >= TABLE_HEAD;
    if (!good) return TSI_FAIL(TS_ERR_IO, "%s: has no table of hashes", path);
    int64_t count = table->meta.shape.extent[0];
    f->table = tsi_alloc_array((size_t)count, sizeof *f->table);
    f->first = tsi_calloc((size_t)tsi_weights_count(f->weights), sizeof *f->first);
    if (!f->table || !f->first) return tsi_fail_memory("the hashes of a file", (size_t)count * 8);
    TSI_TRY(check_table(f, path, table, count));
    if (number_blocks(f, count)) return TS_OK;
    return TSI_FAIL(TS_ERR_IO, "%s: its table has not a hash for each block", path);
}

ts_status tsi_data_open(const char *path, uint64_t save, int64_t rank, tsi_data_file **out)
{
    *out = NULL;
    tsi_data_file *f = tsi_calloc(1, sizeof *f);
    if (!f) return tsi_fail_memory("a file of a checkpoint", sizeof *f);
    ts_status status = tsi_weights_open(path, &f->weights);
    if (status == TS_OK) status = read_table(f, path);
    if (status == TS_OK) status = check_save(f->weights, path, save, rank);
    if (status == TS_OK)
        *out = f;
    else
        tsi_data_close(f);
    return status;
}

void tsi_data_close(tsi_data_file *file)
{
    if (!file) return;
    tsi_weights_close(file->weights);
    tsi_free(file->table);
    tsi_free(file->first);
    tsi_free(file);
}

const tsi_stored *tsi_data_find(const tsi_data_file *file, const char *name)
{
    return tsi_weights_find(file->weights, name);
}

static ts_status check_block(const tsi_data_file *f, const tsi_stored *piece, int64_t number,
                             size_t bytes, uint64_t have)
{
    int64_t place = piece - tsi_weights_at(f->weights, 0);
    uint64_t want = f->table[TABLE_HEAD + f->first[place] + number];
    if (have == want) return TS_OK;
    int64_t begin = piece->begin + number * TSI_BLOCK_BYTES;
    return TSI_FAIL(TS_ERR_IO,
                    "%s: is damaged: tensor \"%.200s\", block %lld (bytes %lld to %lld of the "
                    "file) has the hash %016llx, written was %016llx",
                    tsi_weights_file_at(f->weights, 0).path, piece->name, (long long)number,
                    (long long)begin, (long long)(begin + (int64_t)bytes), (unsigned long long)have,
                    (unsigned long long)want);
}

/* Adds bytes to the sum of the block that they lie in, and compares it at its end. */
typedef struct checking {
    const tsi_data_file *file;
    const tsi_stored *piece;
    int64_t number; /* of the block */
    size_t done;    /* bytes of it */
    uint64_t sum;
} checking;

static ts_status end_block(checking *c)
{
    uint64_t have = tsi_digest_block_of(c->done, c->sum);
    TSI_TRY(check_block(c->file, c->piece, c->number, c->done, have));
    c->number++;
    c->done = 0;
    c->sum = 0;
    return TS_OK;
}

static ts_status check_part(checking *c, const char *data, size_t bytes)
{
    for (size_t n; bytes > 0; bytes -= n, data += n) {
        n = TSI_BLOCK_BYTES - c->done;
        if (n > bytes) n = bytes;
        c->sum += tsi_digest_part(c->done, data, n);
        c->done += n;
        if (c->done == TSI_BLOCK_BYTES) TSI_TRY(end_block(c));
    }
    return TS_OK;
}

ts_status tsi_data_read(const tsi_data_file *f, const tsi_stored *piece, int64_t offset,
                        const struct iovec *to, int64_t count, bool verify)
{
    TSI_TRY(tsi_weights_read_parts(f->weights, piece, offset, to, count));
    if (!verify) return TS_OK;
    TSI_ASSERT(offset % TSI_BLOCK_BYTES == 0);
    checking c = { .file = f, .piece = piece, .number = offset / TSI_BLOCK_BYTES };
    for (int64_t i = 0; i < count; i++) {
        TSI_ASSERT(i + 1 == count || to[i].iov_len % 4 == 0);
        TSI_TRY(check_part(&c, to[i].iov_base, to[i].iov_len));
    }
    return c.done > 0 ? end_block(&c) : TS_OK;
}
