/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.cpp - the list of kernels, and the memory of their variables. The library of kernels has
 * no variables but those that its kernels share (cuda_words.h); the linker says where they lie. */
#include <string.h>

#include "run.h"

extern "C" {
extern const simulated_kernel __start_simulated_kernels[], __stop_simulated_kernels[];
extern char __bss_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));
}

const simulated_kernel *simulated_kernel_find(const char *name)
{
    for (const simulated_kernel *k = __start_simulated_kernels; k < __stop_simulated_kernels; k++)
        if (strcmp(k->name, name) == 0) return k;
    return nullptr;
}

void simulated_variables_noise()
{
    memset(__bss_start, 0xFF, (size_t)(_end - __bss_start));
}
