/* SPDX-License-Identifier: Apache-2.0 */
/* memory.cpp - pieces of memory between pages without access (memory.h). */
#include "memory.h"

#include <deque>
#include <map>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

namespace
{

enum {
    PAGE = 64 << 10, /* no machine's is larger */
    ALIGNED = 256,   /* as the driver's */
    NEAR = 16,
    GAP_BYTE = 0xC5,
    NOISE_BYTE = 0xFF, /* no number in every dtype of reals, -1 in whole ones */
    KEPT = 128         /* pieces that were given back and are still known */
};
constexpr size_t NOISE_WHOLE = 16 << 20, NOISE_ENDS = 1 << 20;

struct piece {
    char *begin;
    size_t bytes;
    char *pages; /* of all of it, with the two without access */
    size_t pages_bytes;
    memory_kind kind;

    char *gap_begin() const
    {
        return pages + PAGE;
    }
    char *gap_end() const
    {
        return pages + pages_bytes - PAGE;
    }
};
std::map<uintptr_t, piece> pieces; /* by their begins */
std::deque<piece> gone;
size_t taken;

/* The last piece that begins at `at` or before; NULL: none. */
const piece *piece_before(const void *at)
{
    auto behind = pieces.upper_bound((uintptr_t)at);
    return behind == pieces.begin() ? nullptr : &std::prev(behind)->second;
}

bool is_gap(const char *from, const char *to)
{
    while (from < to && (unsigned char)*from == GAP_BYTE)
        from++;
    return from == to;
}

/* Up to `near` bytes on both sides. */
bool is_whole(const piece &of, size_t near, char *text, size_t size)
{
    char *end = of.begin + of.bytes;
    size_t behind = (size_t)(of.gap_end() - end);
    bool before_is = is_gap(of.begin - near, of.begin);
    bool behind_is = is_gap(end, end + (behind < near ? behind : near));
    if (before_is && behind_is) return true;
    (void)snprintf(text, size, "something was written %s memory of %zu bytes",
                   before_is ? "behind" : "before", of.bytes);
    memset(of.begin - ALIGNED, GAP_BYTE, ALIGNED); /* told once */
    memset(end, GAP_BYTE, behind);
    return false;
}

} // namespace

void memory_noise(void *to, size_t bytes)
{
    if (bytes <= NOISE_WHOLE) {
        memset(to, NOISE_BYTE, bytes);
        return;
    }
    memset(to, NOISE_BYTE, NOISE_ENDS); /* fresh pages of a large piece are zeros */
    memset((char *)to + bytes - NOISE_ENDS, NOISE_BYTE, NOISE_ENDS);
}

void *memory_take(memory_kind kind, size_t bytes)
{
    if (bytes > MEMORY_BYTES || (kind == MEMORY_DEVICE && bytes > memory_free())) return nullptr;
    size_t room = (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    piece p = {};
    p.kind = kind;
    p.bytes = bytes;
    p.pages_bytes = (room + ALIGNED + PAGE - 1) / PAGE * PAGE + 2 * (size_t)PAGE;
    void *pages = mmap(nullptr, p.pages_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return nullptr;
    p.pages = (char *)pages;
    if (mprotect(p.gap_begin(), p.pages_bytes - 2 * (size_t)PAGE, PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(pages, p.pages_bytes);
        return nullptr;
    }
    p.begin = p.gap_end() - room;
    memset(p.begin - ALIGNED, GAP_BYTE, ALIGNED);
    memset(p.begin + bytes, GAP_BYTE, room - bytes);
    memory_noise(p.begin, bytes);
    if (kind == MEMORY_DEVICE) taken += bytes;
    pieces[(uintptr_t)p.begin] = p;
    return p.begin;
}

bool memory_give_back(void *memory)
{
    auto at = pieces.find((uintptr_t)memory);
    if (at == pieces.end()) return false;
    piece p = at->second;
    pieces.erase(at);
    if (p.kind == MEMORY_DEVICE) taken -= p.bytes;
    (void)mprotect(p.pages, p.pages_bytes, PROT_NONE);
    (void)madvise(p.pages, p.pages_bytes, MADV_DONTNEED);
    gone.push_back(p);
    if (gone.size() > KEPT) {
        (void)munmap(gone.front().pages, gone.front().pages_bytes);
        gone.pop_front();
    }
    return true;
}

bool memory_holds(const void *at, size_t bytes)
{
    const piece *p = piece_before(at);
    if (!p) return false;
    size_t offset = (size_t)((const char *)at - p->begin);
    return offset <= p->bytes && bytes <= p->bytes - offset;
}

memory_kind memory_kind_of(const void *at)
{
    return memory_holds(at, 1) ? piece_before(at)->kind : MEMORY_NONE;
}

size_t memory_free()
{
    return MEMORY_BYTES - taken;
}

void memory_place(const void *at, char *text, size_t size)
{
    const char *p = (const char *)at;
    for (const auto &known : pieces) {
        const piece &of = known.second;
        if (p < of.pages || p >= of.pages + of.pages_bytes) continue;
        bool before = p < of.begin;
        (void)snprintf(text, size, "%zu bytes %s of memory of %zu bytes",
                       (size_t)(before ? of.begin - p : p - of.begin - (ptrdiff_t)of.bytes),
                       before ? "before the begin" : "behind the end", of.bytes);
        return;
    }
    for (const piece &of : gone)
        if (p >= of.pages && p < of.pages + of.pages_bytes) {
            (void)snprintf(text, size, "memory of %zu bytes that was given back", of.bytes);
            return;
        }
    (void)snprintf(text, size, "which is no memory");
}

/* Behind each launch the bytes right beside each piece, which tells the kernel; the whole gap of a
 * piece when it is given back. */
bool memory_whole(char *text, size_t size)
{
    for (const auto &known : pieces)
        if (!is_whole(known.second, NEAR, text, size)) return false;
    return true;
}

bool memory_whole_at(const void *begin, char *text, size_t size)
{
    auto at = pieces.find((uintptr_t)begin);
    return at == pieces.end() || is_whole(at->second, ALIGNED, text, size);
}
