/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - memory of the simulated GPU, and the pinned memory of its host.
 *
 *   no access | gap | what was asked for | gap | no access      (pages; it ends near the last one)
 *
 * INV: what nobody has written is noise, so that a kernel that reads it is wrong; gaps have a
 * pattern, which is looked at behind every launch; what was given back cannot be accessed for a
 * while. The caller has the driver's lock. */
#ifndef TESTS_GPU_SIMULATED_MEMORY_H
#define TESTS_GPU_SIMULATED_MEMORY_H

#include <stddef.h>

enum memory_kind { MEMORY_NONE, MEMORY_DEVICE, MEMORY_PINNED };
constexpr size_t MEMORY_BYTES = (size_t)1 << 31; /* of the GPU */

void *memory_take(memory_kind kind, size_t bytes); /* NULL: there is not so much */
bool memory_give_back(void *memory);               /* false: it was not taken */
memory_kind memory_kind_of(const void *at);
/* Whether so many bytes from there on are of one piece that was taken. */
bool memory_holds(const void *at, size_t bytes);
size_t memory_free();

/* What is there, for a sentence. */
void memory_place(const void *at, char *text, size_t size);
/* False: something was written beside a piece, beside the one that begins there; the text says
 * what. Each damage is told once. */
bool memory_whole(char *text, size_t size);
bool memory_whole_at(const void *begin, char *text, size_t size);

void memory_noise(void *to, size_t bytes);

#endif
