/* SPDX-License-Identifier: Apache-2.0 */
/* fiber.h - functions that stop in the middle and go on later, each on a stack of its own.
 *
 * A switch is a dozen instructions where they are written down here (x86_64), else a longjmp, and
 * never a system call. A fiber that is not switched to again costs nothing: its stack may be begun
 * anew. */
#ifndef TESTS_GPU_SIMULATED_FIBER_H
#define TESTS_GPU_SIMULATED_FIBER_H

#include <stddef.h>

#if defined(__x86_64__) && !defined(SIMULATED_LONGJMP)

struct fiber {
    void *stopped; /* top of its stack: registers that calls keep, and where it goes on */
};

extern "C" void simulated_switch(void **from, void *to);

/* To be begun by the next switch: entry(), which does not return. */
inline void fiber_make(fiber &f, void *stack, size_t bytes, void (*entry)())
{
    void **top = (void **)((char *)stack + bytes);
    *--top = nullptr; /* where it would return to; entry begins 8 off 16 bytes, as behind a call */
    *--top = (void *)entry;
    f.stopped = top - 6;
}
inline void fiber_switch(fiber &from, fiber &to)
{
    simulated_switch(&from.stopped, to.stopped);
}

#else

#include <setjmp.h>
#include <ucontext.h>

struct fiber {
    jmp_buf stopped;
    ucontext_t first;
    bool begun;
};

inline void fiber_make(fiber &f, void *stack, size_t bytes, void (*entry)())
{
    (void)getcontext(&f.first);
    f.first.uc_stack.ss_sp = stack;
    f.first.uc_stack.ss_size = bytes;
    f.first.uc_link = nullptr;
    makecontext(&f.first, entry, 0);
    f.begun = false;
}
inline void fiber_switch(fiber &from, fiber &to)
{
    from.begun = true; /* also one that nobody has made: the first of all */
    if (_setjmp(from.stopped)) return;
    if (to.begun) _longjmp(to.stopped, 1);
    to.begun = true;
    (void)setcontext(&to.first);
}

#endif
#endif
