/* SPDX-License-Identifier: Apache-2.0 */
/* segment.c - memory shared by the ranks of a node.
 *
 *   head | poison | slot 0 .. n-1 | ring 0->0, 0->1, ... n-1->n-1
 *
 * It is an anonymous file (memfd) that peers open through /proc, so nothing is left behind however
 * a process ends, and a small /dev/shm does not matter. Where that fails, the ranks of one process
 * still share a private segment and everything else goes through MPI. Pages are touched on first
 * use only.
 *
 * INV: a slot is written by its own rank (the bell by everybody); a ring by its two ends. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "comm/mpi/internal.h"

static const uint64_t probe_value = UINT64_C(0x7465737365726121);

typedef struct segment_head {
    _Atomic uint64_t cookie;
    int64_t count;
} segment_head;

enum { HEAD_BYTES = 4096, RING_HEAD = 128 };

static size_t ring_bytes_of(int64_t count)
{
    if (count <= 4) return (size_t)256 << 10;
    if (count <= 16) return (size_t)64 << 10;
    if (count <= 64) return (size_t)16 << 10;
    return (size_t)4 << 10;
}

static size_t ring_stride(const tsi_segment *segment)
{
    return RING_HEAD + segment->ring_bytes;
}

static void lay_out(tsi_segment *segment, int64_t count)
{
    segment->count = count;
    segment->ring_bytes = ring_bytes_of(count);
    size_t slots = sizeof(tsi_mpi_slot) * (size_t)count;
    slots = (slots + 4095) & ~(size_t)4095;
    segment->bytes = HEAD_BYTES + slots + ring_stride(segment) * (size_t)(count * count);
}

static void attach(tsi_segment *segment)
{
    segment->poison = (_Atomic uint64_t *)(void *)(segment->base + 64);
    segment->slot = (tsi_mpi_slot *)(void *)(segment->base + HEAD_BYTES);
    size_t slots = sizeof(tsi_mpi_slot) * (size_t)segment->count;
    segment->rings = segment->base + HEAD_BYTES + ((slots + 4095) & ~(size_t)4095);
}

tsi_mpi_ring *tsi_segment_ring(const tsi_segment *segment, int64_t from, int64_t to)
{
    size_t number = (size_t)(to * segment->count + from); /* a reader's rings lie together */
    return (tsi_mpi_ring *)(void *)(segment->rings + number * ring_stride(segment));
}

static char *map_private(size_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

static char *map(int fd, size_t bytes)
{
    int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    return base == MAP_FAILED ? NULL : base;
}

/* The first process makes the file and tells the others its name; cookie: so that nobody maps a
 * file of another container that happens to have the same number. */
static char *map_shared(MPI_Comm comm, int rank, size_t bytes, uint64_t cookie)
{
    int64_t name[3] = { getpid(), -1, (int64_t)cookie };
    char *base = NULL;
    int fd = -1;
    if (rank == 0) {
        fd = (int)syscall(SYS_memfd_create, "tessera", 1u /* close on exec */);
        if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) base = map(fd, bytes);
        if (base != NULL) {
            name[1] = fd;
            atomic_store(&((segment_head *)(void *)base)->cookie, cookie);
        }
    }
    if (MPI_Bcast(name, 3, MPI_INT64_T, 0, comm) != MPI_SUCCESS) name[1] = -1;
    if (rank != 0 && name[1] >= 0) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)name[0], (long long)name[1]);
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0 && lseek(fd, 0, SEEK_END) == (off_t)bytes) base = map(fd, bytes);
        if (base != NULL &&
            atomic_load(&((segment_head *)(void *)base)->cookie) != (uint64_t)name[2]) {
            munmap(base, bytes);
            base = NULL;
        }
    }
    int mine = base != NULL, all = 0;
    if (MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS) all = 0;
    if (fd >= 0) close(fd);
    if (!all && base != NULL) {
        munmap(base, bytes);
        base = NULL;
    }
    return base;
}

bool tsi_segment_open(tsi_mpi *mpi, MPI_Comm comm, bool shared)
{
    tsi_segment *segment = &mpi->segment;
    int rank = 0, processes = 1;
    if (shared) {
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &processes);
    }
    int64_t count = processes * mpi->threads;
    lay_out(segment, count);
    uint64_t cookie = (uint64_t)tsi_clock_ns() ^ ((uint64_t)getpid() << 40);
    segment->base =
        shared ? map_shared(comm, rank, segment->bytes, cookie) : map(-1, segment->bytes);
    if (segment->base == NULL) return false;
    attach(segment);
    segment->pidfd =
        (int *)(void *)map_private(sizeof(int) * (size_t)count); /* may outlive the world */
    segment->rank = mpi->host->core.alloc(sizeof(int64_t) * (size_t)count);
    for (int64_t i = 0; segment->pidfd != NULL && i < count; i++)
        segment->pidfd[i] = -1;
    return true; /* the caller agrees on missing memory */
}

void tsi_segment_close(tsi_segment *segment)
{
    for (int64_t i = 0; segment->pidfd != NULL && i < segment->count; i++)
        if (segment->pidfd[i] >= 0) close(segment->pidfd[i]);
    if (segment->pidfd != NULL) munmap(segment->pidfd, sizeof(int) * (size_t)segment->count);
    if (segment->base != NULL) munmap(segment->base, segment->bytes);
    segment->pidfd = NULL;
    segment->base = NULL;
}

bool tsi_segment_probe(tsi_mpi *mpi, MPI_Comm comm)
{
    tsi_segment *segment = &mpi->segment;
    int works = 1, all = 0;
    MPI_Barrier(comm); /* pids and probes are set */
    for (int64_t i = 0; i < segment->count && works; i += mpi->threads) {
        uint64_t got = 0;
        struct iovec to = { &got, sizeof got };
        struct iovec from = { (void *)(uintptr_t)atomic_load(&segment->slot[i].probe), sizeof got };
        pid_t pid = atomic_load(&segment->slot[i].pid);
        works =
            process_vm_readv(pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof got && got == probe_value;
    }
    if (MPI_Allreduce(&works, &all, 1, MPI_INT, MPI_MIN, comm) != MPI_SUCCESS) all = 0;
    return all != 0;
}

void tsi_slot_open(tsi_mpi_slot *slot)
{
    atomic_store(&slot->pid, (int32_t)getpid());
    atomic_store(&slot->probe, (uint64_t)(uintptr_t)&probe_value);
    atomic_store(&slot->life, TSI_LIFE_OPEN);
}

/* ---- bells ------------------------------------------------------------------------------- */
void tsi_bell_ring(tsi_mpi_slot *slot)
{
    atomic_fetch_add_explicit(&slot->bell, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&slot->asleep, memory_order_seq_cst) != 0)
        syscall(SYS_futex, &slot->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void tsi_bell_wait(tsi_mpi_slot *slot, uint32_t seen, int64_t timeout_ns)
{
    struct timespec time = { .tv_sec = timeout_ns / 1000000000,
                             .tv_nsec = timeout_ns % 1000000000 };
    atomic_fetch_add_explicit(&slot->asleep, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&slot->bell, memory_order_seq_cst) == seen)
        syscall(SYS_futex, &slot->bell, FUTEX_WAIT, seen, &time, NULL, 0);
    atomic_fetch_sub_explicit(&slot->asleep, 1, memory_order_seq_cst);
}

/* ---- what a rank is doing ---------------------------------------------------------------- */
void tsi_slot_print(tsi_mpi_slot *slot, const tsi_fingerprint *print, bool busy)
{
    if (print != NULL) {
        uint32_t version = atomic_load_explicit(&slot->version, memory_order_relaxed);
        atomic_store_explicit(&slot->version, version + 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_release);
        slot->print = *print;
        atomic_store_explicit(&slot->version, version + 2, memory_order_release);
    }
    atomic_store_explicit(&slot->busy, busy, memory_order_release);
}

bool tsi_slot_read(const tsi_mpi_slot *slot, tsi_fingerprint *print)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        uint32_t version = atomic_load_explicit(&slot->version, memory_order_acquire);
        if (version == 0) return false;
        if (version & 1) continue;
        *print = slot->print;
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&slot->version, memory_order_relaxed) == version) {
            print->name[sizeof print->name - 1] = 0;
            print->where[sizeof print->where - 1] = 0;
            return true;
        }
    }
    return false; /* it died while writing */
}

/* Has the process of that place ended? A zombie has. */
bool tsi_place_dead(const tsi_segment *segment, int64_t place)
{
    pid_t pid = atomic_load(&segment->slot[place].pid);
    if (pid == 0 || pid == getpid()) return false;
#ifdef SYS_pidfd_open
    if (segment->pidfd[place] == -1) {
        int fd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (fd < 0 && errno == ESRCH) return true;
        segment->pidfd[place] = fd >= 0 ? fd : -2; /* -2: this kernel has none */
    }
    if (segment->pidfd[place] >= 0) {
        struct pollfd look = { .fd = segment->pidfd[place], .events = POLLIN };
        return poll(&look, 1, 0) == 1;
    }
#endif
    return kill(pid, 0) != 0 && errno == ESRCH;
}
