/* SPDX-License-Identifier: Apache-2.0 */
/* train.h - what the files of `tessera train` share. */
#ifndef CLI_TRAIN_H
#define CLI_TRAIN_H

#include <stdbool.h>

#include <tessera/tessera.h>

/* Prints what a step of the configuration costs; flops 0: the rate of this machine's products. */
int cli_train_plan(const ts_train_config *config, bool json, double flops);

#endif
