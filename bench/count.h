/* SPDX-License-Identifier: Apache-2.0 */
/* count.h - instructions, counted by callgrind (`valgrind --tool=callgrind`).
 *
 * A program that wants to know how many instructions parts of it take starts itself once more under
 * callgrind and calls cli_count_section there, once for each part. Callgrind counts while that
 * function runs, in the thread that runs it and in no other, and writes what it counted when the
 * function returns; so the n-th section of the child is the n-th number of the parent. */
#ifndef BENCH_COUNT_H
#define BENCH_COUNT_H

#include <stddef.h>
#include <stdint.h>

/* Child: runs `run(context, times)`, counted. Outside of callgrind it just runs it. Returns
 * `times`.
 */
int64_t cli_count_section(void (*run)(void *context, int64_t times), void *context, int64_t times);

/* Parent: runs this program with these arguments (the last is NULL) and fills the totals of its
 * sections, of which there must be `count`. Returns NULL, or in a few words why nothing was
 * counted. */
const char *cli_count_run(char *const *arguments, double *total, size_t count);

#endif
