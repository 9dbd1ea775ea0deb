/* SPDX-License-Identifier: Apache-2.0 */
/* mix.h - rows of several loaders in turn. */
#ifndef TSI_DATA_MIX_H
#define TSI_DATA_MIX_H

#include "tessera/data.h"

typedef struct tsi_mix tsi_mix;

/* On success the mix owns the loaders. */
ts_status tsi_mix_create(ts_loader *const *loader, const double *weight, int64_t count,
                         tsi_mix **out);
void tsi_mix_destroy(tsi_mix *mix); /* accepts NULL */
/* Whose row sample n is, and which of its samples. */
ts_loader *tsi_mix_at(const tsi_mix *mix, int64_t sample, int64_t *own);
ts_loader *tsi_mix_loader(const tsi_mix *mix, int64_t index);

#endif
