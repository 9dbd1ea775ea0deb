/* SPDX-License-Identifier: Apache-2.0 */
/* fill.c - filling a rank's block: constants, ranges and random numbers, by global index.
 *
 * INV: an element's value is a function of its global index alone, so every mesh, placement and
 * number of ranks gives the bits that one rank gives. */
#include "tensor/fill.h"

#include "array/image.h"
#include "base/alloc.h"
#include "base/keep.h"
#include "device/block_task.h"

ts_status tsi_fill_runs(ts_mesh *mesh, const ts_layout *layout, tsi_run_fn fn, void *context)
{
    if (!mesh->member) return TS_OK;
    tsi_arena arena = { 0 };
    tsi_region region;
    ts_status status = TS_OK;
    if (!tsi_layout_region(layout, mesh->coord, &arena, &region)) {
        status = ts_rank_status(mesh->rank);
    } else if (tsi_region_count(&region) > 0) {
        ts_shape view = tsi_layout_view(layout);
        tsi_region_iterator run;
        tsi_region_iterate(&run, &region, &view);
        while (status == TS_OK && tsi_region_next(&run))
            status = fn(run.global, run.local, run.length, context);
    }
    tsi_arena_release(&arena);
    return status;
}

/* A number as one element of the dtype: through the copy kernel, so that rounding is one rule. */
static ts_status element_of(ts_number value, ts_dtype dtype, void *element)
{
    double both[2] = { value.real, value.imaginary };
    tsi_block from = { .data = both, .dtype = TS_DTYPE_F64 },
              to = { .data = element, .dtype = dtype };
    if (value.kind == TS_NUMBER_INT)
        from = (tsi_block){ .data = &value.whole, .dtype = TS_DTYPE_I64 };
    if (value.kind == TS_NUMBER_COMPLEX) from.dtype = TS_DTYPE_C128;
    const tsi_device *host = tsi_device_host();
    return host->copy(host, &to, &from, NULL);
}

ts_status tsi_fill_constant(tsi_array *array, ts_number value)
{
    unsigned char element[16] = { 0 };
    TSI_TRY(element_of(value, (ts_dtype)array->dtype, element));
    return tsi_array_fill(array, element);
}

/* ---- fills by the host: every run of the block, in an image of it ---------------------------- */

ts_status tsi_fill_image(ts_mesh *mesh, const ts_layout *layout, tsi_array *array, tsi_run_fn fn,
                         tsi_block *image_block, void *context)
{
    if (!mesh->member || tsi_world_describes(mesh->rank->world)) return TS_OK;
    tsi_image image;
    tsi_block block = tsi_array_block(array);
    TSI_TRY(tsi_image_open(mesh->rank, &block, TSI_IMAGE_WRITE, &image));
    *image_block = image.block;
    ts_status status = tsi_fill_runs(mesh, layout, fn, context);
    if (status == TS_OK) return tsi_image_close(&image);
    tsi_image_drop(&image);
    return status;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

enum { RANGE_CHUNK = 512 };

typedef struct range_fill {
    tsi_block to; /* dense */
    double start, step;
    uint64_t start_i, step_i; /* exact where both are whole numbers; wrap */
    bool whole;
} range_fill;

/* Up to RANGE_CHUNK values at once through a staging buffer and the cast kernel. */
static ts_status range_chunk(const range_fill *range, int64_t global, int64_t local, int64_t length)
{
    int64_t whole[RANGE_CHUNK];
    double real[RANGE_CHUNK];
    for (int64_t i = 0; i < length; i++) {
        if (range->whole)
            whole[i] = (int64_t)(range->start_i + range->step_i * (uint64_t)(global + i));
        else
            real[i] = range->start + range->step * (double)(global + i);
    }
    size_t bytes = ts_dtype_size((ts_dtype)range->to.dtype);
    tsi_block from = { .dtype = range->whole ? TS_DTYPE_I64 : TS_DTYPE_F64,
                       .ndim = 1,
                       .extent = { length },
                       .stride = { 1 } };
    from.data = range->whole ? (void *)whole : (void *)real;
    tsi_block to = { .data = (char *)range->to.data + (size_t)local * bytes,
                     .dtype = range->to.dtype,
                     .ndim = 1,
                     .extent = { length },
                     .stride = { 1 } };
    const tsi_device *host = tsi_device_host();
    return host->copy(host, &to, &from, NULL);
}

static ts_status range_run(int64_t global, int64_t local, int64_t length, void *context)
{
    for (int64_t done = 0; done < length; done += RANGE_CHUNK) {
        int64_t chunk = length - done < RANGE_CHUNK ? length - done : RANGE_CHUNK;
        TSI_TRY(range_chunk(context, global + done, local + done, chunk));
    }
    return TS_OK;
}

/* Whole reals count as whole numbers as far as they are exact. */
static bool is_whole(ts_number *n)
{
    if (n->kind == TS_NUMBER_INT) return true;
    if (!(n->real >= -0x1p53 && n->real <= 0x1p53) || (double)(int64_t)n->real != n->real)
        return false;
    n->whole = (int64_t)n->real;
    return true;
}

typedef struct kept_range { /* of a step that is recorded: a range is the same each time */
    ts_mesh *mesh;
    const ts_layout *layout;
    tsi_array *array;
    range_fill range;
} kept_range;

static ts_status fill_range(void *context)
{
    kept_range *k = context;
    return tsi_fill_image(k->mesh, k->layout, k->array, range_run, &k->range.to, &k->range);
}

static void kept_range_destroy(void *context)
{
    kept_range *k = context;
    ts_layout_release(k->layout);
    tsi_array_release(k->array);
    tsi_free(k);
}

static void range_touches(void *context, tsi_kept_tell tell, void *to)
{
    const kept_range *k = context;
    tsi_block block = tsi_array_block(k->array);
    tsi_kept_touch touch = tsi_block_covers(&block);
    touch.writes = true;
    if (touch.low) tell(to, &touch);
}

static const tsi_kept_kind range_kind = { TSI_KEPT_FREE, range_touches };

ts_status tsi_fill_arange(ts_mesh *mesh, const ts_layout *layout, tsi_array *array, ts_number start,
                          ts_number step)
{
    range_fill range = { .start = start.real, .step = step.real };
    range.whole = is_whole(&start) && is_whole(&step);
    range.start_i = (uint64_t)start.whole;
    range.step_i = (uint64_t)step.whole;
    if (start.kind == TS_NUMBER_INT) range.start = (double)start.whole;
    if (step.kind == TS_NUMBER_INT) range.step = (double)step.whole;
    kept_range kept = { mesh, layout, array, range };
    if (!tsi_keeps(mesh->rank)) return fill_range(&kept);
    kept_range *again = tsi_alloc(sizeof *again);
    if (!again) return tsi_fail_memory("a range of a step", sizeof *again);
    *again = kept;
    (void)ts_layout_retain(layout);
    (void)tsi_array_retain(array);
    return tsi_keep_work(mesh->rank,
                         (tsi_kept_work){ fill_range, again, kept_range_destroy, &range_kind });
}

/* ---- random streams -------------------------------------------------------------------------- */

static tsi_ordinal *ordinal_of(tsi_tensor_state *state, uint64_t label)
{
    tsi_ordinal *counter = tsi_map_find(&state->ordinals, label, NULL, NULL);
    if (counter) return counter;
    counter = tsi_calloc(1, sizeof *counter);
    if (counter && tsi_map_insert(&state->ordinals, label, counter) == TS_OK) return counter;
    tsi_free(counter);
    tsi_fail_memory("the counter of a random stream", sizeof *counter);
    return NULL;
}

static void log_push(tsi_stream_log *log, uint64_t stream)
{
    if (tsi_room(&log->stream, log->count, &log->capacity, sizeof *log->stream,
                 "the random streams of a function") == TS_OK)
        log->stream[log->count++] = stream;
}

/* The next draw of the scope. */
static uint64_t draw(ts_rank *rank, tsi_tensor_state *state)
{
    uint64_t label = tsi_hash_text(0x6c6162656c, rank->label ? rank->label : "");
    tsi_ordinal *counter = state ? ordinal_of(state, label) : NULL;
    if (!counter) return 0;
    tsi_undo undo = { .stream = label, .ordinal = counter->next };
    tsi_tensor_undo_push(rank, &undo);
    uint64_t stream = tsi_hash_mix(label, (uint64_t)++counter->next);
    tsi_keep_draw(rank, stream);
    return stream;
}

uint64_t tsi_random_stream(ts_rank *rank, const char *name)
{
    if (name) return tsi_hash_text(0x73747265616d, name);
    tsi_tensor_state *state = tsi_tensor_state_of(rank);
    tsi_stream_log *replay = state ? state->streams : NULL;
    while (replay && !replay->replays)
        replay = replay->below;
    if (replay && replay->next >= replay->count) {
        TSI_FAIL(TS_ERR_STATE, "a function drew %lld random tensors, and more when it ran again",
                 (long long)replay->count);
        return 0;
    }
    uint64_t stream = replay ? replay->stream[replay->next++] : draw(rank, state);
    for (tsi_stream_log *log = state ? state->streams : NULL; log && log != replay;
         log = log->below)
        log_push(log, stream);
    return stream;
}

/* ---- random fills ---------------------------------------------------------------------------- */

enum { RUNS_AT_ONCE = 256 };

typedef struct random_fill {
    const tsi_random *random;
    tsi_block block; /* dense, one dim */
    tsi_random_run run[RUNS_AT_ONCE];
    int64_t run_count;
} random_fill;

static ts_status random_flush(random_fill *fill)
{
    ts_status status = tsi_random_fill_runs(fill->random, &fill->block, fill->run, fill->run_count);
    fill->run_count = 0;
    return status;
}

static ts_status random_run(int64_t global, int64_t local, int64_t length, void *context)
{
    random_fill *fill = context;
    fill->run[fill->run_count++] = (tsi_random_run){ global, local, length };
    return fill->run_count == RUNS_AT_ONCE ? random_flush(fill) : TS_OK;
}

ts_status tsi_fill_random(ts_mesh *mesh, const ts_layout *layout, tsi_array *array,
                          const tsi_random *random)
{
    tsi_random_recipe recipe;
    /* Also where this rank has nothing to fill: all of them refuse alike. */
    TSI_TRY(tsi_random_recipe_make(random, (ts_dtype)array->dtype, &recipe));
    if (tsi_world_describes(mesh->rank->world)) return TS_OK;
    tsi_block block = tsi_array_block(array);
    tsi_image image;
    TSI_TRY(tsi_image_open(mesh->rank, &block, TSI_IMAGE_WRITE, &image));
    tsi_random with = *random;
    with.rank = mesh->rank;
    random_fill fill = { .random = &with,
                         .block = { .data = image.block.data,
                                    .dtype = block.dtype,
                                    .ndim = 1,
                                    .extent = { tsi_block_count(&block) },
                                    .stride = { 1 } } };
    ts_status status = tsi_fill_runs(mesh, layout, random_run, &fill);
    if (status == TS_OK && fill.run_count > 0) status = random_flush(&fill);
    if (status == TS_OK) return tsi_image_close(&image);
    tsi_image_drop(&image);
    return status;
}
