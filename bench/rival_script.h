/* SPDX-License-Identifier: Apache-2.0 */
/* rival_script.h - what a script of bench/rival says about the same work in another library. */
#ifndef BENCH_RIVAL_SCRIPT_H
#define BENCH_RIVAL_SCRIPT_H

#include "cli.h"

typedef void (*bench_answer_fn)(void *context, const ts_json *answer);

/* Runs the command and hands over each line of its output that is a JSON object. Nothing where it
 * cannot be run: a rival that is not installed is no error. */
void bench_rival_ask(const char *command, bench_answer_fn fn, void *context);

#endif
