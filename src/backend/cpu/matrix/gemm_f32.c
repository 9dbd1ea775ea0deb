/* SPDX-License-Identifier: Apache-2.0 */
/* gemm_f32.c - products of f32 in tiles of our own: those of the instruction set every machine of
 * the target has, the choice of the best one, and where operands are packed.
 *
 * A thread keeps the memory it packs into until it ends. Where there is none, a little of the
 * stack has to do: slower, and the same bits. */
#define TSI_TILES tsi_tiles_base
#include "backend/cpu/matrix/tiles_body.h"

#include <pthread.h>
#include <unistd.h>

#include "backend/cpu/machine.h"
#include "base/alloc.h"

/* ---- the room of a thread -------------------------------------------------------------------- */

static pthread_once_t room_once = PTHREAD_ONCE_INIT;
static pthread_key_t room_key;
static bool room_key_made;
static int64_t room_columns; /* of b: half of the second cache, 256 KiB to 1 MiB */

static void make_room_key(void)
{
    int64_t cache = 0, column = TSI_TILES_DEPTH * sizeof(float);
#ifdef _SC_LEVEL2_CACHE_SIZE
    cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    room_columns = cache <= 0 ? 512 : cache >= 2048 * column ? 1024 : cache / column / 2;
    if (room_columns < TSI_TILES_COLUMNS) room_columns = TSI_TILES_COLUMNS;
    room_key_made = pthread_key_create(&room_key, tsi_free_kept) == 0;
}

bool tsi_tiles_room_of_thread(tsi_tiles_room *out)
{
    pthread_once(&room_once, make_room_key);
    float *room = room_key_made ? pthread_getspecific(room_key) : NULL;
    if (TSI_UNLIKELY(!room) && room_key_made) {
        size_t floats = (size_t)(TSI_TILES_BAND + room_columns) * TSI_TILES_DEPTH;
        room = tsi_alloc_kept(floats * sizeof *room, TSI_CACHE_LINE);
        if (room && pthread_setspecific(room_key, room) != 0) {
            tsi_free_kept(room);
            room = NULL;
        }
    }
    if (!room) return false;
    *out = (tsi_tiles_room){ room, room + TSI_TILES_BAND * TSI_TILES_DEPTH, TSI_TILES_BAND,
                             room_columns };
    return true;
}

/* ---- products -------------------------------------------------------------------------------- */

typedef void (*tiles_fn)(const tsi_gemm *gemm, const tsi_tiles_room *room);

static tiles_fn tiles_of_machine(void)
{
#if defined(__x86_64__)
    uint32_t has = tsi_machine();
    if (has & TSI_MACHINE_AVX512) return tsi_tiles_avx512;
    if (has & TSI_MACHINE_AVX2) return tsi_tiles_avx2;
#endif
    return tsi_tiles_base;
}

static TSI_NOINLINE void multiply_on_stack(tiles_fn tiles, const tsi_gemm *g)
{
    _Alignas(TSI_CACHE_LINE) float band[TSI_TILES_BAND_LEAST * TSI_TILES_DEPTH];
    _Alignas(TSI_CACHE_LINE) float b[TSI_TILES_COLUMNS_LEAST * TSI_TILES_DEPTH];
    tsi_tiles_room room = { band, b, TSI_TILES_BAND_LEAST, TSI_TILES_COLUMNS_LEAST };
    tiles(g, &room);
}

static void clear(const tsi_gemm *g)
{
    for (int64_t i = 0; i < g->m; i++)
        memset((float *)g->c + i * g->cm, 0, (size_t)g->n * sizeof(float));
}

void tsi_gemm_f32(const tsi_gemm *g)
{
    if (TSI_UNLIKELY(g->k == 0)) {
        if (!g->accumulate) clear(g);
        return;
    }
    tsi_tiles_room room;
    if (tsi_tiles_room_of_thread(&room))
        tiles_of_machine()(g, &room);
    else
        multiply_on_stack(tiles_of_machine(), g);
}

bool tsi_gemm_f32_is_ours(void)
{
#if defined(__aarch64__)
    return true;
#else
    return !TS_HAVE_OPENBLAS || (tsi_machine() & (TSI_MACHINE_AVX2 | TSI_MACHINE_AVX512)) != 0;
#endif
}
