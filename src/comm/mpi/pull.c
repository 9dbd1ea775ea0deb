/* SPDX-License-Identifier: Apache-2.0 */
/* pull.c - reading a peer's memory: another thread's by its address, another process's by the
 * kernel.
 *
 * process_vm_readv copies once, from the peer's array straight into ours. It takes lists of pieces,
 * so strided blocks cost no intermediate as long as their rows are long. Short pieces are dear (the
 * kernel looks up a page for each), so rows of short or single elements are read as one stretch
 * into scratch memory and picked apart there, unless the gaps are so wide that the pieces are
 * cheaper.
 *
 * INV: only memory that the peer offered and that it still waits with is read. */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include "comm/mpi/internal.h"

enum { PIECES = 128, SHORT_RUN = 1024, GAP_MAX = 2048 };

static bool same_process(const tsi_mpi_rank *rank, int64_t peer)
{
    return peer >= rank->mpi->first && peer < rank->mpi->first + rank->mpi->threads;
}

bool tsi_pull_direct(const tsi_mpi_rank *rank, int64_t peer)
{
    return same_process(rank, peer) || (rank->mpi->cma && tsi_wire_near(rank, peer));
}

static pid_t pid_of(const tsi_mpi_rank *rank, int64_t peer)
{
    const tsi_mpi *mpi = rank->mpi;
    return atomic_load_explicit(&mpi->segment.slot[mpi->place[peer]].pid, memory_order_relaxed);
}

/* Drops the first `bytes` bytes of a list of pieces. */
static void drop_bytes(struct iovec **piece, unsigned long *count, size_t bytes)
{
    while (*count > 0 && bytes >= (*piece)->iov_len) {
        bytes -= (*piece)->iov_len;
        (*piece)++;
        (*count)--;
    }
    if (*count > 0) {
        (*piece)->iov_base = (char *)(*piece)->iov_base + bytes;
        (*piece)->iov_len -= bytes;
    }
}

static bool read_pieces(pid_t pid, struct iovec *to, unsigned long to_count, struct iovec *from,
                        unsigned long from_count)
{
    while (to_count > 0 && from_count > 0) {
        ssize_t got = process_vm_readv(pid, to, to_count, from, from_count, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        drop_bytes(&to, &to_count, (size_t)got);
        drop_bytes(&from, &from_count, (size_t)got);
    }
    return true;
}

static bool read_flat(pid_t pid, char *to, const char *from, int64_t bytes)
{
    struct iovec local = { to, (size_t)bytes };
    struct iovec remote = { (void *)(uintptr_t)from, (size_t)bytes };
    return read_pieces(pid, &local, 1, &remote, 1);
}

/* Collects runs at the position until `limit` bytes or the list is full; returns the bytes. */
static int64_t collect(tsi_cursor_at *at, int64_t limit, struct iovec *piece, unsigned long *count)
{
    int64_t bytes = 0;
    unsigned long n = 0;
    while (bytes < limit && n < PIECES) {
        int64_t run = 0;
        char *address = tsi_next_run(at, limit - bytes, &run);
        if (n > 0 && (char *)piece[n - 1].iov_base + piece[n - 1].iov_len == address)
            piece[n - 1].iov_len += (size_t)run;
        else
            piece[n++] = (struct iovec){ address, (size_t)run };
        bytes += run;
    }
    *count = n;
    return bytes;
}

/* Equal short units (single elements, or whole short rows) at a small distance from each other. */
typedef struct unit_row {
    int32_t dim; /* the dim along which they lie */
    int64_t unit, step, count;
} unit_row;

static bool unit_row_at(const tsi_cursor_at *at, int64_t limit, unit_row *out)
{
    const tsi_block *block = at->block;
    int32_t last = block->ndim - 1;
    bool rows = block->stride[last] == 1;
    if (rows && (last == 0 || at->index[last] != 0)) return false;
    out->dim = rows ? last - 1 : last;
    out->unit = rows ? block->extent[last] * at->size : at->size;
    out->step = block->stride[out->dim] * at->size;
    if (out->step < out->unit || out->step > GAP_MAX || out->unit >= SHORT_RUN) return false;
    out->count = block->extent[out->dim] - at->index[out->dim];
    if (out->count > limit / out->unit) out->count = limit / out->unit;
    int64_t fit = (TSI_SCRATCH_BYTES / 2 - out->unit) / out->step + 1;
    if (out->count > fit) out->count = fit;
    return out->count > 1;
}

/* Reads such units as one stretch into `scratch` and picks them apart. Returns the bytes it took,
 * 0: there are none here, -1: the peer is gone. */
static int64_t read_units(pid_t pid, tsi_cursor_at *at, int64_t limit, char *scratch, char *to)
{
    unit_row row;
    if (!unit_row_at(at, limit, &row)) return 0;
    tsi_cursor_at here = *at;
    int64_t bytes = 0, element = 0;
    const char *from = tsi_next_run(&here, at->size, &bytes);
    if (!read_flat(pid, scratch, from, (row.count - 1) * row.step + row.unit)) return -1;
    for (int64_t i = 0; i < row.count; i++)
        memcpy(to + i * row.unit, scratch + i * row.step, (size_t)row.unit);
    for (int32_t d = 0; d < at->block->ndim; d++)
        element = element * at->block->extent[d] + at->index[d];
    tsi_range rest = { .block = at->block, .count = at->left, .base = 0, .bytes = 0 };
    tsi_seek(at, &rest, element * at->size + row.count * row.unit, at->size);
    return row.count * row.unit;
}

bool tsi_pull_flat(tsi_mpi_rank *rank, int64_t peer, const tsi_range *from, int64_t offset,
                   int64_t bytes, int64_t size, char *to)
{
    if (same_process(rank, peer)) {
        tsi_pack(from, offset, bytes, size, to);
        return true;
    }
    pid_t pid = pid_of(rank, peer);
    tsi_cursor_at at;
    tsi_seek(&at, from, offset, size);
    while (bytes > 0) {
        int64_t took = read_units(pid, &at, bytes, rank->scratch + TSI_SCRATCH_BYTES / 2, to);
        if (took < 0) return false;
        if (took == 0) {
            struct iovec piece[PIECES];
            unsigned long count = 0;
            took = collect(&at, bytes, piece, &count);
            struct iovec local = { to, (size_t)took };
            if (!read_pieces(pid, &local, 1, piece, count)) return false;
        }
        to += took;
        bytes -= took;
    }
    return true;
}

/* Long rows on both sides: no intermediate. */
static bool pull_pieces(tsi_mpi_rank *rank, int64_t peer, tsi_cursor_at *from, tsi_cursor_at *to,
                        int64_t bytes)
{
    bool near = same_process(rank, peer);
    pid_t pid = pid_of(rank, peer);
    while (bytes > 0) {
        struct iovec source[PIECES], target[PIECES];
        unsigned long sources = 0, targets = 0;
        if (near) {
            int64_t run = 0, fit = 0;
            char *address = tsi_next_run(to, bytes, &fit);
            while (fit > 0) {
                const char *data = tsi_next_run(from, fit, &run);
                memcpy(address, data, (size_t)run);
                address += run;
                fit -= run;
                bytes -= run;
            }
            continue;
        }
        int64_t took = collect(to, bytes, target, &targets);
        bytes -= took;
        while (took > 0) { /* the source may have more pieces than one list holds */
            int64_t part = collect(from, took, source, &sources);
            struct iovec *piece = target;
            unsigned long count = targets;
            if (!read_pieces(pid, piece, count, source, sources)) return false;
            drop_bytes(&piece, &count, (size_t)part);
            memmove(target, piece, count * sizeof *piece);
            targets = count;
            took -= part;
        }
    }
    return true;
}

bool tsi_pull(tsi_mpi_rank *rank, int64_t peer, const tsi_range *from, int64_t from_offset,
              const tsi_range *to, int64_t to_offset, int64_t bytes, int64_t size)
{
    if (tsi_range_run(from, size) >= SHORT_RUN && tsi_range_run(to, size) >= SHORT_RUN) {
        tsi_cursor_at source, target;
        tsi_seek(&source, from, from_offset, size);
        tsi_seek(&target, to, to_offset, size);
        return pull_pieces(rank, peer, &source, &target, bytes);
    }
    while (bytes > 0) {
        int64_t piece = bytes < TSI_SCRATCH_BYTES / 2 ? bytes : TSI_SCRATCH_BYTES / 2;
        char *flat = tsi_range_flat(to, to_offset, piece, size);
        char *target = flat != NULL ? flat : rank->scratch;
        if (!tsi_pull_flat(rank, peer, from, from_offset, piece, size, target)) return false;
        if (flat == NULL) tsi_unpack(to, to_offset, piece, size, target);
        from_offset += piece;
        to_offset += piece;
        bytes -= piece;
    }
    return true;
}

bool tsi_pull_list(tsi_mpi_rank *rank, int64_t peer, uint64_t list, int64_t count, tsi_block *to)
{
    size_t bytes = (size_t)count * sizeof *to;
    if (same_process(rank, peer)) {
        memcpy(to, (const void *)(uintptr_t)list, bytes);
        return true;
    }
    return read_flat(pid_of(rank, peer), (char *)to, (const char *)(uintptr_t)list, (int64_t)bytes);
}
