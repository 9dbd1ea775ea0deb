/* SPDX-License-Identifier: Apache-2.0 */
/* run.cpp - blocks one after another, and the threads of a block as fibers.
 *
 * A thread runs until it waits for others: at a barrier, or for what lanes of its warp give. The
 * last one to come goes on at once and puts the others in line. A fiber whose thread has ended
 * takes the next thread that has not begun, so that threads which never wait cost a call each.
 *
 *   not begun --> runs --> ended
 *     in line -->--'  `--> waits --> in line
 *
 * INV: the result of a right kernel does not depend on the order of threads and blocks, so orders
 * are tried: every other launch goes through threads, and every third through blocks, from the last
 * one to the first, and in two of four launches a warp that has met runs ahead of all others. A
 * kernel that lacks a barrier is wrong in one of them.
 * INV: a block whose threads cannot go on, an access to what is no memory of the GPU or is off its
 * alignment, and a write beside memory that was asked for end the launch, with a sentence. */
#include "run.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

#include "fiber.h"
#include "memory.h"

simulated_place simulated_thread, simulated_block, simulated_block_size, simulated_grid_size;

namespace
{

enum {
    WARP = 32,
    THREADS_MOST = 1024,
    PAGE = 64 << 10, /* no machine's is larger */
    STACK = 256 << 10,
    ROOM_MOST = 256 << 10,
    ROOM_ON = 1024, /* where rooms begin */
    GAP_BYTE = 0xC5
};

/* What lanes that meet have given; `turn` alternates, so that one that is late to look still finds
 * it while others give the next. */
struct warp {
    uint32_t here, mask; /* lanes that meet: that came, that are to come */
    uint32_t ended;
    int turn;
    simulated_slot given[2][WARP];
};

struct fetched {
    uint32_t to;
    int size, bytes, group;
    const void *from;
};

struct product {
    void (*run)(const void *);
    int group;
    std::vector<char> of;
};

struct thread_state {
    fiber *on;  /* where it waits */
    bool waits; /* at the barrier */
    int groups; /* of fetches, that it has ended */
    std::vector<fetched> later;
    std::vector<uint32_t> hidden; /* places of fetches that products do not see yet */
    int product_groups;
    std::vector<product> products;
};

struct machine {
    const simulated_launch *launch;
    uint64_t launches;

    char *stacks, *room, *room_end;
    bool hidden[ROOM_MOST / 16]; /* from products: 16 bytes that were fetched and not shown */
    fiber main, worker[THREADS_MOST];
    fiber *current, *idle[THREADS_MOST]; /* idle: its thread has ended */
    unsigned idle_count, worker_count;

    thread_state thread[THREADS_MOST];
    unsigned begun, left; /* threads that have begun, that have not ended */
    unsigned line[THREADS_MOST], line_first, line_count;
    warp of_warp[THREADS_MOST / WARP];
    unsigned meeting; /* threads at the barrier */
    int any, said[2], turn;

    bool runs;
    pthread_t by;
    jmp_buf out;
    simulated_end end;
    char *sentence;
    size_t sentence_size;
} now;

/* ---- what ends a launch ---------------------------------------------------------------------- */

void say(const char *format, va_list args)
{
    char what[256];
    (void)vsnprintf(what, sizeof what, format, args);
    (void)snprintf(now.sentence, now.sentence_size,
                   "kernel %s, block %u of %u, thread %u of %u: %s", now.launch->kernel->name,
                   simulated_block.x, simulated_grid_size.x, simulated_thread.x,
                   simulated_block_size.x, what);
}

[[noreturn]] void leave(simulated_end end, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void leave(simulated_end end, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    now.end = end;
    _longjmp(now.out, 1);
}

void on_signal(int number, siginfo_t *info, void *)
{
    if (!now.runs || !pthread_equal(now.by, pthread_self())) {
        (void)signal(number, SIG_DFL); /* not ours: it comes again and ends the process */
        return;
    }
    if (number != SIGSEGV && number != SIGBUS)
        leave(SIMULATED_MISALIGNED, "an access off its alignment or behind an array, or a trap");
    char where[128];
    memory_place(info->si_addr, where, sizeof where);
    leave(SIMULATED_ADDRESS, "an access to %p, %s", info->si_addr, where);
}

/* On a stack of their own: a fiber's may be what has no room left. */
void catch_signals()
{
    static thread_local bool has_stack;
    static bool catches;
    if (!has_stack) {
        stack_t other = {};
        other.ss_size = PAGE;
        other.ss_sp = malloc(PAGE);
        has_stack = sigaltstack(&other, nullptr) == 0;
    }
    if (catches) return;
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int number : { SIGSEGV, SIGBUS, SIGILL, SIGTRAP })
        (void)sigaction(number, &action, nullptr);
    catches = true;
}

/* ---- which thread goes on -------------------------------------------------------------------- */

unsigned nth_thread(unsigned i)
{
    return now.launches % 2 ? now.launch->threads - 1 - i : i;
}

void put_in_line(unsigned thread)
{
    now.line[(now.line_first + now.line_count++) % THREADS_MOST] = thread;
}

/* Before all others. */
void put_ahead(unsigned thread)
{
    now.line_first = (now.line_first + THREADS_MOST - 1) % THREADS_MOST;
    now.line[now.line_first] = thread;
    now.line_count++;
}

unsigned first_in_line()
{
    unsigned thread = now.line[now.line_first];
    now.line_first = (now.line_first + 1) % THREADS_MOST;
    now.line_count--;
    return thread;
}

void work();

fiber *a_worker()
{
    if (now.idle_count > 0) return now.idle[--now.idle_count];
    fiber *worker = &now.worker[now.worker_count];
    char *stack = now.stacks + (size_t)now.worker_count++ * STACK;
    fiber_make(*worker, stack + PAGE, STACK - PAGE, work);
    return worker;
}

/* The fiber that runs waits, or has nothing to do: to one that has. */
void go_elsewhere()
{
    fiber *from = now.current, *to = &now.main;
    if (now.line_count > 0) {
        simulated_thread.x = first_in_line();
        to = now.thread[simulated_thread.x].on;
    } else if (now.begun < now.launch->threads) {
        to = a_worker();
    }
    now.current = to;
    fiber_switch(*from, *to);
}

void wait_for_others()
{
    unsigned me = simulated_thread.x;
    now.thread[me].on = now.current;
    go_elsewhere();
}

void open_barrier()
{
    now.turn ^= 1;
    now.said[now.turn] = now.any;
    now.any = 0;
    now.meeting = 0;
    for (unsigned i = 0; i < now.launch->threads; i++) {
        thread_state &t = now.thread[nth_thread(i)];
        if (t.waits) put_in_line(nth_thread(i));
        t.waits = false;
    }
}

void end_thread()
{
    unsigned me = simulated_thread.x;
    if (!now.thread[me].products.empty())
        leave(SIMULATED_WRONG, "it ends before it has waited for its products");
    warp &w = now.of_warp[me / WARP];
    if (w.here && (w.mask >> me % WARP & 1))
        leave(SIMULATED_WRONG, "it ends while lanes of its warp wait for it");
    w.ended |= 1u << me % WARP;
    now.left--;
    if (now.left > 0 && now.meeting == now.left) open_barrier();
}

/* One thread after another; those in line first, which have stacks of their own. */
void work()
{
    for (;;) {
        while (now.line_count == 0 && now.begun < now.launch->threads) {
            simulated_thread.x = nth_thread(now.begun++);
            now.launch->kernel->run(now.launch->args);
            end_thread();
        }
        now.idle[now.idle_count++] = now.current;
        go_elsewhere();
    }
}

/* ---- a block, a launch ----------------------------------------------------------------------- */

void look_behind_room()
{
    for (const char *at = now.room + now.launch->room; at < now.room_end; at++)
        if ((unsigned char)*at != GAP_BYTE)
            leave(SIMULATED_WRONG, "something was written behind the %u bytes of shared memory",
                  now.launch->room);
}

void run_block(unsigned block)
{
    unsigned threads = now.launch->threads;
    simulated_block.x = block;
    now.begun = now.meeting = now.line_count = 0;
    now.left = threads;
    now.worker_count = now.idle_count = 0;
    for (unsigned t = 0; t < threads; t++) {
        now.thread[t].waits = false;
        now.thread[t].groups = 0;
        now.thread[t].later.clear();
        now.thread[t].hidden.clear();
        now.thread[t].product_groups = 0;
        now.thread[t].products.clear();
    }
    memset(now.hidden, 0, sizeof now.hidden);
    for (unsigned w = 0; w <= (threads - 1) / WARP; w++)
        now.of_warp[w].here = now.of_warp[w].ended = 0;
    now.current = &now.main;
    go_elsewhere();
    if (now.left > 0)
        leave(SIMULATED_WRONG, "%u threads wait at a barrier, %u for lanes of their warps",
              now.meeting, now.left - now.meeting);
    look_behind_room();
}

void prepare()
{
    if (!now.stacks) {
        size_t bytes = (size_t)THREADS_MOST * STACK;
        now.stacks = (char *)mmap(nullptr, bytes + ROOM_MOST + PAGE, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        for (size_t t = 0; t < THREADS_MOST; t++)
            (void)mprotect(now.stacks + t * STACK, PAGE, PROT_NONE);
        now.room_end = now.stacks + bytes + ROOM_MOST;
        (void)mprotect(now.room_end, PAGE, PROT_NONE);
    }
    catch_signals();
    size_t room = ((size_t)now.launch->room + ROOM_ON - 1) / ROOM_ON * ROOM_ON;
    now.room = now.room_end - room;
    memory_noise(now.room, now.launch->room);
    memset(now.room + now.launch->room, GAP_BYTE, room - now.launch->room);
    simulated_variables_noise();
}

} // namespace

simulated_end simulated_run(const simulated_launch &launch, char *sentence, size_t size)
{
    now.launch = &launch;
    now.sentence = sentence;
    now.sentence_size = size;
    now.end = SIMULATED_DONE;
    now.by = pthread_self();
    now.launches++;
    simulated_block_size = { launch.threads, 1, 1 };
    simulated_grid_size = { launch.blocks, 1, 1 };
    prepare();
    if (_setjmp(now.out) == 0) {
        now.runs = true;
        for (unsigned b = 0; b < launch.blocks; b++)
            run_block(now.launches % 3 ? b : launch.blocks - 1 - b);
        char what[128];
        if (!memory_whole(what, sizeof what)) leave(SIMULATED_WRONG, "%s", what);
    }
    now.runs = false;
    return now.end;
}

/* ---- what threads call ----------------------------------------------------------------------- */

void simulated_wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    now.end = SIMULATED_WRONG;
    _longjmp(now.out, 1);
}

int simulated_meet(int any)
{
    int turn = now.turn ^ 1;
    now.any |= any != 0;
    if (++now.meeting == now.left) {
        open_barrier();
        return now.said[turn];
    }
    now.thread[simulated_thread.x].waits = true;
    wait_for_others();
    return now.said[turn];
}

const simulated_slot *simulated_exchange(unsigned mask, const void *give, size_t bytes)
{
    unsigned me = simulated_thread.x, lane = me % WARP, first = me - lane;
    warp &w = now.of_warp[me / WARP];
    int turn = w.turn;
    if (first + WARP > now.launch->threads) /* lanes that the block has */
        mask &= (1u << (now.launch->threads - first)) - 1;
    if (!(mask >> lane & 1) || (w.here && w.mask != mask))
        simulated_wrong("lanes of a warp meet by the masks %08x and %08x", w.mask, mask);
    if (mask & w.ended)
        simulated_wrong("it waits for lanes %08x, which have ended", mask & w.ended);
    w.mask = mask;
    if (bytes) memcpy(w.given[turn][lane].byte, give, bytes);
    w.here |= 1u << lane;
    if (w.here != mask) {
        wait_for_others();
        return w.given[turn];
    }
    w.here = 0;
    w.turn ^= 1;
    for (unsigned i = 0; i < WARP; i++) {
        unsigned l = now.launches % 2 ? WARP - 1 - i : i;
        if (l != lane && (mask >> l & 1))
            now.launches & 2 ? put_ahead(first + l) : put_in_line(first + l);
    }
    return w.given[turn];
}

void *simulated_room()
{
    return now.room;
}

void *simulated_room_at(uint32_t at, size_t bytes)
{
    if (at > now.launch->room || bytes > now.launch->room - at)
        simulated_wrong("%zu bytes at %u of %u bytes of shared memory", bytes, at,
                        now.launch->room);
    return now.room + at;
}

void simulated_fetch(uint32_t to, const void *from, int size, int bytes)
{
    thread_state &mine = now.thread[simulated_thread.x];
    (void)simulated_room_at(to, (size_t)size);
    if (to % (uint32_t)size || (uintptr_t)from % (uintptr_t)size)
        simulated_wrong("a fetch of %d bytes from %p to %u, which are not on them", size, from, to);
    mine.later.push_back({ to, size, bytes, mine.groups, from });
}

void simulated_fetch_end()
{
    now.thread[simulated_thread.x].groups++;
}

void simulated_fetch_wait(int later)
{
    thread_state &mine = now.thread[simulated_thread.x];
    size_t done = 0;
    while (done < mine.later.size() && mine.later[done].group < mine.groups - later) {
        const fetched &f = mine.later[done++];
        memset(now.room + f.to, 0, (size_t)f.size);
        memcpy(now.room + f.to, f.from, (size_t)f.bytes);
        now.hidden[f.to / 16] = true;
        mine.hidden.push_back(f.to);
    }
    mine.later.erase(mine.later.begin(), mine.later.begin() + (ptrdiff_t)done);
}

void simulated_show()
{
    thread_state &mine = now.thread[simulated_thread.x];
    for (uint32_t at : mine.hidden)
        now.hidden[at / 16] = false;
    mine.hidden.clear();
}

const void *simulated_room_shown(uint32_t at, size_t bytes)
{
    const void *place = simulated_room_at(at, bytes);
    if (now.hidden[at / 16])
        simulated_wrong("a product reads what was fetched to %u and is not shown to it", at);
    return place;
}

void simulated_product_later(void (*run)(const void *), const void *of, size_t bytes)
{
    thread_state &mine = now.thread[simulated_thread.x];
    const char *from = (const char *)of;
    if (now.launches / 2 % 2)
        mine.products.push_back({ run, mine.product_groups, { from, from + bytes } });
    else
        run(of);
}

void simulated_products_end()
{
    now.thread[simulated_thread.x].product_groups++;
}

void simulated_products_wait(int later)
{
    thread_state &mine = now.thread[simulated_thread.x];
    size_t done = 0;
    while (done < mine.products.size() && mine.products[done].group < mine.product_groups - later) {
        const product &p = mine.products[done++];
        p.run(p.of.data());
    }
    mine.products.erase(mine.products.begin(), mine.products.begin() + (ptrdiff_t)done);
}
