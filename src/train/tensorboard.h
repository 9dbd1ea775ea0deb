/* SPDX-License-Identifier: Apache-2.0 */
/* tensorboard.h - event files that TensorBoard reads. */
#ifndef TSI_TRAIN_TENSORBOARD_H
#define TSI_TRAIN_TENSORBOARD_H

#include <stdint.h>
#include <stdio.h>

#include "tessera/train.h"

typedef struct tsi_tensorboard {
    FILE *file; /* NULL: none is written */
} tsi_tensorboard;

/* A new file in OUTPUT/tensorboard; files of earlier processes stay, and are read as one. */
ts_status tsi_tensorboard_open(tsi_tensorboard *board, const char *folder);
ts_status tsi_tensorboard_add(tsi_tensorboard *board, const ts_train_step *step);
void tsi_tensorboard_close(tsi_tensorboard *board);

uint32_t tsi_crc32c(const void *data, size_t length);        /* Castagnoli */
uint32_t tsi_crc32c_masked(const void *data, size_t length); /* as records of event files have it */

#endif
