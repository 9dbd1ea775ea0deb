/* SPDX-License-Identifier: Apache-2.0 */
/* random.h - random elements as a pure function of (seed, stream, offset, global index).
 *
 * Philox4x32-10 with key = seed and counter = (offset + block, stream). The element with row-major
 * index g in the logical tensor uses the k words g*k .. g*k+k-1 of the sequence: block w/4, lane
 * w%4. So any split over ranks, any order of filling and any machine give the same bits; all
 * arithmetic is IEEE without fusing, log and sincos are our own.
 *
 *   kind        k                         element, from words w0 w1 ..
 *   UNIFORM     1 (f32 bf16 f16) 2 (f64)  a + (b - a) u, u = the top 24, 8, 11 or 53 bits / 2^bits;
 *                                         below b always
 *   NORMAL      2 (f32 bf16 f16) 4 (f64)  a + b sqrt(-2 ln u) cos(2 pi v), u in (0, 1] from the
 *                                         first half of the words, v in [0, 1) from the second;
 *                                         32 bits each, f64: 53
 *   INTEGER     1 (8, 16 bits, bool) 2    low + floor(word * (high - low) / 2^32), or 2^64 with
 *                                         both words
 *   BERNOULLI   1 (every dtype)           1 if w0 < a * 2^32, else 0
 *
 * Complex elements: UNIFORM draws the parts one after the other with twice the words; NORMAL takes
 * cosine and sine of one pair as parts, each with standard deviation b / sqrt(2). Values are
 * computed in f64 and rounded once. */
#ifndef TSI_ARRAY_RANDOM_H
#define TSI_ARRAY_RANDOM_H

#include "base/rank.h"
#include "device/device.h"
#include "device/recipe.h"

typedef struct tsi_random {
    tsi_random_kind kind;
    uint64_t seed, stream, offset; /* offset in blocks of four words */
    double a, b;       /* UNIFORM [a, b); NORMAL mean a, deviation b; BERNOULLI probability a */
    int64_t low, high; /* INTEGER low <= x < high */
    ts_rank *rank; /* whose threads fill long blocks, on its own thread; NULL: the caller alone */
} tsi_random;

/* Checks the request for a dtype and works out what its loops need: also for a device that fills
 * its own memory. */
ts_status tsi_random_recipe_make(const tsi_random *random, ts_dtype dtype, tsi_random_recipe *out);
/* Fills a dense block of host memory whose first element has the global index `global`. */
ts_status tsi_random_fill(const tsi_random *random, const tsi_block *to, int64_t global);
/* Fills the runs of a dense block; places outside every run stay as they are. */
ts_status tsi_random_fill_runs(const tsi_random *random, const tsi_block *to,
                               const tsi_random_run *run, int64_t run_count);
/* Words first .. first + count - 1 of the sequence, for kernels that make elements of them; at most
 * TSI_RANDOM_DRAW. `buffer` holds TSI_RANDOM_BUFFER; the first word is at the returned place. */
enum { TSI_RANDOM_DRAW = 1024, TSI_RANDOM_BUFFER = TSI_RANDOM_DRAW + 264 };
const uint32_t *tsi_random_draw(const tsi_random *random, uint64_t first, int64_t count,
                                uint32_t *buffer);
/* k, the words of one element; 0 if the kind has no meaning for the dtype. */
int32_t tsi_random_words(tsi_random_kind kind, ts_dtype dtype);
/* Blocks that a tensor of `count` elements uses: what the offset advances by after it, on every
 * rank. */
uint64_t tsi_random_blocks(tsi_random_kind kind, ts_dtype dtype, int64_t count);

#endif
