/* SPDX-License-Identifier: Apache-2.0 */
/* tensorboard.c - scalars of each step as an event file.
 *
 *   record   length u64 | masked crc32c of it u32 | data | masked crc32c of the data u32
 *   data     Event { 1: wall time f64, 2: step, 3: version "brain.Event:2" or 5: Summary }
 *   Summary  { 1: Value { 1: tag, 2: value f32 } ... }         (protocol buffers, little endian)
 *
 * INV: a record is written with one call and flushed, so a reader sees whole records but at most
 * the last. */
#include "train/tensorboard.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "checkpoint/folder.h"

enum { RECORD_MAX = 1024, PATH_MAX_BYTES = 640 };

typedef struct bytes { /* a message under construction */
    unsigned char data[RECORD_MAX];
    size_t length;
} bytes;

/* ---- checksums ------------------------------------------------------------------------------- */

uint32_t tsi_crc32c(const void *data, size_t length)
{
    const unsigned char *at = data;
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < length; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (UINT32_C(0x82f63b78) & (0 - (crc & 1)));
    }
    return ~crc;
}

uint32_t tsi_crc32c_masked(const void *data, size_t length)
{
    uint32_t crc = tsi_crc32c(data, length);
    return (crc >> 15 | crc << 17) + UINT32_C(0xa282ead8);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* What does not fit is left out; RECORD_MAX holds all that is ever put. */
static void put(bytes *b, const void *data, size_t length)
{
    if (length > sizeof b->data - b->length) return;
    memcpy(b->data + b->length, data, length);
    b->length += length;
}

static void put_byte(bytes *b, unsigned value)
{
    unsigned char byte = (unsigned char)value;
    put(b, &byte, 1);
}

static void put_little(bytes *b, uint64_t value, int count)
{
    for (int i = 0; i < count; i++)
        put_byte(b, (unsigned)(value >> (8 * i) & 0xff));
}

static void put_varint(bytes *b, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_byte(b, (unsigned)(value & 0x7f) | 0x80);
    put_byte(b, (unsigned)value);
}

/* A field of bytes: its number, its length, itself. */
static void put_field(bytes *b, unsigned number, const void *data, size_t length)
{
    put_byte(b, number << 3 | 2);
    put_varint(b, length);
    put(b, data, length);
}

static void put_scalar(bytes *summary, const char *tag, double value)
{
    bytes one = { .length = 0 };
    float narrow = (float)value;
    uint32_t bits;
    if (isnan(value)) return;
    memcpy(&bits, &narrow, sizeof bits);
    put_field(&one, 1, tag, strlen(tag));
    put_byte(&one, 2 << 3 | 5);
    put_little(&one, bits, 4);
    put_field(summary, 1, one.data, one.length);
}

static void begin_event(bytes *event, int64_t step)
{
    struct timespec now;
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &now);
    double wall = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(&bits, &wall, sizeof bits);
    event->length = 0;
    put_byte(event, 1 << 3 | 1);
    put_little(event, bits, 8);
    put_byte(event, 2 << 3 | 0);
    put_varint(event, (uint64_t)step);
}

static ts_status write_record(tsi_tensorboard *board, const bytes *event)
{
    bytes record = { .length = 0 };
    put_little(&record, event->length, 8);
    put_little(&record, tsi_crc32c_masked(record.data, 8), 4);
    put(&record, event->data, event->length);
    put_little(&record, tsi_crc32c_masked(event->data, event->length), 4);
    bool good = fwrite(record.data, 1, record.length, board->file) == record.length &&
                fflush(board->file) == 0;
    return good ? TS_OK : TSI_FAIL(TS_ERR_IO, "tensorboard: %s", strerror(errno));
}

/* ---- files ----------------------------------------------------------------------------------- */

ts_status tsi_tensorboard_open(tsi_tensorboard *board, const char *folder)
{
    char path[PATH_MAX_BYTES], host[128] = "host";
    bytes event;
    TSI_TRY(tsi_folder_make(folder));
    (void)gethostname(host, sizeof host - 1);
    int length = snprintf(path, sizeof path, "%s/events.out.tfevents.%010lld.%s.%ld", folder,
                          (long long)time(NULL), host, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof path)
        return TSI_FAIL(TS_ERR_ARG, "train.output: the path is too long");
    board->file = fopen(path, "w");
    if (!board->file) return TSI_FAIL(TS_ERR_IO, "%s: %s", path, strerror(errno));
    begin_event(&event, 0);
    put_field(&event, 3, "brain.Event:2", strlen("brain.Event:2"));
    return write_record(board, &event);
}

ts_status tsi_tensorboard_add(tsi_tensorboard *board, const ts_train_step *s)
{
    bytes summary = { .length = 0 }, event;
    if (!board->file) return TS_OK;
    put_scalar(&summary, "loss/train", s->loss);
    put_scalar(&summary, "loss/held_out", s->eval_loss);
    put_scalar(&summary, "norm", s->norm);
    put_scalar(&summary, "rate", s->rate);
    put_scalar(&summary, "speed/tokens_per_second", s->tokens_per_second);
    put_scalar(&summary, "speed/flops", s->flops);
    put_scalar(&summary, "speed/seconds", s->seconds);
    put_scalar(&summary, "speed/busy_most", s->busy_most);
    put_scalar(&summary, "speed/busy_least", s->busy_least);
    put_scalar(&summary, "memory/bytes", (double)s->memory_bytes);
    begin_event(&event, s->step);
    put_field(&event, 5, summary.data, summary.length);
    return write_record(board, &event);
}

void tsi_tensorboard_close(tsi_tensorboard *board)
{
    if (board->file) fclose(board->file);
    board->file = NULL;
}
