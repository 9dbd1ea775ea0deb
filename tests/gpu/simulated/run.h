/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - running a kernel on the simulated GPU: what a kernel is, what its threads call, and how a
 * launch ends. One launch runs at a time in a process. */
#ifndef TESTS_GPU_SIMULATED_RUN_H
#define TESTS_GPU_SIMULATED_RUN_H

#include <stddef.h>
#include <stdint.h>

#define SIMULATED_SEEN __attribute__((visibility("default"))) /* by the library of kernels */

/* ---- what kernels use (cuda_words.h) --------------------------------------------------------- */

struct simulated_place {
    unsigned x, y, z;
};
extern SIMULATED_SEEN simulated_place simulated_thread, simulated_block, simulated_block_size,
    simulated_grid_size;

/* All threads of the block that have not ended: true if any of them says so. */
SIMULATED_SEEN int simulated_meet(int any);

/* The lanes of `mask` of this warp meet; each has what all gave, until it meets them again. */
struct simulated_slot {
    alignas(16) unsigned char byte[32];
};
SIMULATED_SEEN const simulated_slot *simulated_exchange(unsigned mask, const void *give,
                                                        size_t bytes);

/* Shared memory of the block that the launch asked for; a place in it, counted from its begin, for
 * so many bytes. */
SIMULATED_SEEN void *simulated_room();
SIMULATED_SEEN void *simulated_room_at(uint32_t at, size_t bytes);

/* `size` bytes to the room, of them `bytes` from memory, when this thread waits for them: for all
 * but the last `later` groups. */
SIMULATED_SEEN void simulated_fetch(uint32_t to, const void *from, int size, int bytes);
SIMULATED_SEEN void simulated_fetch_end();
SIMULATED_SEEN void simulated_fetch_wait(int later);

/* What this thread has fetched is seen by products, behind a barrier; such a place of the room. */
SIMULATED_SEEN void simulated_show();
SIMULATED_SEEN const void *simulated_room_shown(uint32_t at, size_t bytes);

/* run(a copy of `product`) now, or when this thread waits for it: for all but the last `later`
 * groups. */
SIMULATED_SEEN void simulated_product_later(void (*run)(const void *), const void *product,
                                            size_t bytes);
SIMULATED_SEEN void simulated_products_end();
SIMULATED_SEEN void simulated_products_wait(int later);

/* The thread has done what no GPU would do: the launch ends with this sentence. */
[[noreturn]] SIMULATED_SEEN void simulated_wrong(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* ---- kernels --------------------------------------------------------------------------------- */

struct simulated_kernel {
    const char *name;
    void (*run)(const void *args); /* one thread */
    size_t bytes;                  /* of its arguments */
    unsigned threads;              /* at most; 0: 1024 */
};
/* NULL: there is none. */
SIMULATED_SEEN const simulated_kernel *simulated_kernel_find(const char *name);
/* Noise into what kernels have in shared memory as variables. */
SIMULATED_SEEN void simulated_variables_noise();

/* ---- a launch -------------------------------------------------------------------------------- */

struct simulated_launch {
    const simulated_kernel *kernel;
    const void *args;
    unsigned blocks, threads, room; /* room: bytes of shared memory */
};
enum simulated_end {
    SIMULATED_DONE,
    SIMULATED_ADDRESS,    /* an access to what is no memory of the GPU */
    SIMULATED_MISALIGNED, /* or behind the end of an array whose extent is known; or __trap() */
    SIMULATED_WRONG
};
/* Other than done: `sentence` says what was wrong, and where. */
simulated_end simulated_run(const simulated_launch &launch, char *sentence, size_t size);

#endif
