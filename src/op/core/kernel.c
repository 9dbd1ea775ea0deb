/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.c - running kernels: at once, later in a stream, or on the host for a device that has
 * none.
 *
 *   the device's kernel    host memory     called now
 *                          device.defer    a copy of the call goes into the stream
 *                          other devices   called now: it launches and returns
 *   none, or it declines   host memory     the reference
 *                          TSI_OP_MOVES    the reference: it copies by the device
 *                          else            a fallback: blocks to the host, the host's kernel or
 *                                          the reference, results back
 *
 * While a device captures a step, what it cannot capture (fallbacks, and draws, whose stream is
 * another each time) is kept as a call of its own between two graphs.
 *
 * On the device of worlds without data nothing is computed: flops are added up, and the host's
 * kernels take their scratch. */
#include "op/core/kernel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/keep.h"
#include "base/log.h"
#include "base/text.h"
#include "device/block_task.h"
#include "device/moments.h"
#include "op/core/dispatch.h"

/* ---- the tables ------------------------------------------------------------------------------ */

enum { KINDS_MAX = 16 };

/* Written before the worlds that use them open, never shrinks: read without a lock. */
static struct {
    pthread_mutex_t lock;
    const tsi_kernels *of[KINDS_MAX];
    _Atomic int32_t count;
} known = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const tsi_kernels *kernels_of_kind(const char *kind)
{
    int32_t count = atomic_load_explicit(&known.count, memory_order_acquire);
    for (int32_t i = 0; i < count; i++)
        if (known.of[i]->kind == kind || strcmp(known.of[i]->kind, kind) == 0) return known.of[i];
    return NULL;
}

static const tsi_kernels *kernels_of(const tsi_device *device)
{
    bool runs_host_code = device->host_readable || device->defer;
    return kernels_of_kind(runs_host_code ? tsi_device_host()->kind : device->kind);
}

ts_status tsi_kernels_add(const tsi_kernels *kernels)
{
    TSI_ASSERT(kernels->kind);
    pthread_mutex_lock(&known.lock);
    int32_t count = atomic_load_explicit(&known.count, memory_order_relaxed);
    bool there = kernels_of_kind(kernels->kind) != NULL, full = count == KINDS_MAX;
    if (!there && !full) {
        known.of[count] = kernels;
        atomic_store_explicit(&known.count, count + 1, memory_order_release);
    }
    pthread_mutex_unlock(&known.lock);
    if (there || !full) return TS_OK;
    return TSI_FAIL(TS_ERR_STATE, "kernels of %s: there are %d kinds already", kernels->kind,
                    KINDS_MAX);
}

bool tsi_kernel_rows_alone(const tsi_device *device, ts_dtype dtype)
{
    const tsi_kernels *kernels = kernels_of(device);
    return kernels && kernels->rows_alone && kernels->rows_alone(dtype);
}

bool tsi_kernel_is_dry(const tsi_op_desc *op)
{
    const tsi_kernels *host = kernels_of_kind(tsi_device_host()->kind);
    int32_t index = tsi_op_number(op);
    return host && host->dry && index >= 0 && host->dry[index];
}

/* The host's kernel takes what it needs while it runs, and gives it back. */
static ts_status run_dry(const tsi_kernel_io *io)
{
    if (!tsi_kernel_is_dry(io->op)) return TS_OK;
    TSI_ASSERT(!io->rank->dry);
    io->rank->dry = 1;
    int verdict = (int)tsi_kernel_of(tsi_device_host(), io->op)(io);
    io->rank->dry = 0;
    return verdict == TSI_KERNEL_DECLINED ? TS_OK : (ts_status)verdict;
}

static void see_block(const tsi_block *block, ts_meta *meta)
{
    if (meta->dtype == TS_DTYPE_NONE || block->ndim != meta->shape.ndim) return;
    memcpy(meta->shape.extent, block->extent, sizeof meta->shape.extent);
}

static void count_flops(const tsi_kernel_io *io, tsi_op_state *state)
{
    ts_meta in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    for (int32_t i = 0; i < io->input_count; i++)
        in[i] = *io->in[i].global;
    for (int32_t o = 0; o < io->output_count; o++)
        out[o] = *io->out[o].global;
    tsi_op_call call = { io->op, io->attributes, in, out, io->input_count, io->output_count };
    state->flops += io->op->flops(&call);
    for (int32_t i = 0; i < io->input_count; i++)
        see_block(&io->in[i].block, &in[i]);
    for (int32_t o = 0; o < io->output_count; o++)
        see_block(&io->out[o].block, &out[o]);
    state->flops_here += io->op->flops(&call);
}

/* Instead of every kernel where there is no data: it knows what it would have computed, and what
 * it would have taken. */
static ts_status describe(const tsi_kernel_io *io)
{
    tsi_op_state *state = tsi_op_state_of(io->rank);
    if (!state) return ts_rank_status(io->rank);
    if (io->op->flops) count_flops(io, state);
    return io->rank->world->scratch ? run_dry(io) : TS_OK;
}

tsi_kernel_fn tsi_kernel_of(const tsi_device *device, const tsi_op_desc *op)
{
    if (device == tsi_device_none()) return describe;
    const tsi_kernels *kernels = kernels_of(device);
    int32_t index = tsi_op_number(op);
    return kernels && index >= 0 ? kernels->op[index] : NULL;
}

/* ---- at once --------------------------------------------------------------------------------- */

static ts_status run_now(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    if (kernel) {
        int verdict = (int)kernel(io);
        if (verdict != TSI_KERNEL_DECLINED) return (ts_status)verdict;
    }
    return tsi_dry(io->rank) ? TS_OK : io->op->reference(io); /* references take no scratch */
}

/* ---- later: a copy of everything the call points to ------------------------------------------ */

typedef struct deferred {
    tsi_kernel_fn kernel;
    tsi_kernel_io io;
    tsi_arena arena;       /* of what kernels seldom look at */
    tsi_operand operand[]; /* inputs, then outputs; attributes lie behind them */
} deferred;

static bool copy_spans(tsi_span_list *list, tsi_arena *arena)
{
    if (!list->more) return true;
    size_t bytes = (size_t)list->span_count * sizeof *list->more;
    tsi_span *copy = tsi_arena_alloc(arena, bytes);
    if (copy) memcpy(copy, list->more, bytes);
    list->more = copy;
    return copy != NULL;
}

static bool copy_operand(tsi_operand *operand, tsi_arena *arena)
{
    TSI_ASSERT(operand->global); /* of an absent input too: its dtype is NONE */
    ts_meta *global = tsi_arena_alloc(arena, sizeof *global);
    if (!global) return false;
    *global = *operand->global;
    operand->global = global;
    if (!operand->region) return true;
    /* A plan keeps no more of a region than its dims. */
    size_t dims = (size_t)operand->region->ndim;
    size_t bytes = offsetof(tsi_region, dim) + dims * sizeof operand->region->dim[0];
    tsi_region *region = tsi_arena_alloc(arena, bytes);
    if (!region) return false;
    memcpy(region, operand->region, bytes);
    operand->region = region;
    for (int32_t d = 0; d < region->ndim; d++)
        if (!copy_spans(&region->dim[d], arena)) return false;
    return true;
}

static bool copy_call(deferred *d, const tsi_kernel_io *io)
{
    size_t ins = (size_t)io->input_count, outs = (size_t)io->output_count;
    size_t bytes = io->op->attribute_bytes;
    tsi_operand *operand = d->operand;
    void *attributes = operand + ins + outs;
    memcpy(operand, io->in, ins * sizeof *operand);
    memcpy(operand + ins, io->out, outs * sizeof *operand);
    if (bytes && io->attributes) memcpy(attributes, io->attributes, bytes);
    for (size_t i = 0; i < ins + outs; i++) {
        if (!copy_operand(&operand[i], &d->arena)) return false;
        operand[i].block.data = tsi_device_near(io->device, operand[i].block.data);
    }
    d->io = *io;
    d->io.attributes = attributes;
    d->io.in = operand;
    d->io.out = operand + ins;
    d->io.queue = NULL; /* it runs in its place already */
    return true;
}

static ts_status deferred_run(void *context)
{
    const deferred *d = context;
    bool draws = d->io.op->flags & TSI_OP_RANDOM && d->io.rank == tsi_rank_current();
    if (!draws) return run_now(d->kernel, &d->io); /* in a stream's thread it is known already */
    tsi_kernel_io io = d->io;
    io.stream = tsi_kept_stream_now(io.rank, io.stream);
    return run_now(d->kernel, &io);
}

static void deferred_destroy(void *context)
{
    deferred *d = context;
    tsi_arena_release(&d->arena);
    tsi_free(d);
}

/* Calls of a step lie close together, and no two of them a power of two apart, so that they share a
 * cache. */
static deferred *deferred_alloc(const tsi_kernel_io *io)
{
    size_t operands = (size_t)(io->input_count + io->output_count);
    size_t bytes = sizeof(deferred) + operands * sizeof(tsi_operand) + io->op->attribute_bytes;
    size_t seldom = sizeof(ts_meta) + offsetof(tsi_region, dim) + 4 * sizeof(tsi_span_list) + 64;
    deferred *d = tsi_calloc(1, bytes);
    if (d) d->arena.block_size = operands * seldom; /* but for long regions */
    return d;
}

static deferred *deferred_make(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    deferred *d = deferred_alloc(io);
    if (!d || !copy_call(d, io)) {
        if (d) deferred_destroy(d);
        (void)tsi_fail_memory("a call in a stream", sizeof *d);
        return NULL;
    }
    d->kernel = kernel;
    return d;
}

static void deferred_touches(void *context, tsi_kept_tell tell, void *to)
{
    deferred *d = context;
    for (int32_t i = 0; i < d->io.input_count + d->io.output_count; i++)
        tsi_block_touch(&d->operand[i].block, i >= d->io.input_count, tell, to);
}

/* A user's function may do anything beside. */
static const tsi_kept_kind *kind_of_call(const tsi_op_desc *op)
{
    static const tsi_kept_kind plain = { TSI_KEPT_FREE, deferred_touches },
                               random = { TSI_KEPT_RANDOM, deferred_touches },
                               any = { TSI_KEPT_FENCE, deferred_touches };
    if (op->flags & (TSI_OP_USER | TSI_OP_HOST)) return &any;
    return op->flags & TSI_OP_RANDOM ? &random : &plain;
}

static ts_status run_later(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    deferred *d = deferred_make(kernel, io);
    if (!d) return TS_ERR_MEMORY; /* recorded */
    return io->device->defer(io->device, io->queue, deferred_run, d, deferred_destroy);
}

/* As the host's kernels keep it, or else a copy. */
static ts_status kept_call(tsi_kernel_fn kernel, const tsi_kernel_io *io, tsi_kept_work *out)
{
    const tsi_kernels *kernels = kernels_of(tsi_device_host());
    int verdict =
        kernel && kernels->keep ? (int)kernels->keep(kernel, io, out) : TSI_KERNEL_DECLINED;
    if (verdict != TSI_KERNEL_DECLINED) return (ts_status)verdict;
    deferred *d = deferred_make(kernel, io);
    if (!d) return TS_ERR_MEMORY; /* recorded */
    d->io.device = tsi_device_host();
    *out = (tsi_kept_work){ deferred_run, d, deferred_destroy, kind_of_call(io->op) };
    return TS_OK;
}

/* Of a step that is recorded on the host: the call as it is made there, by a kernel or without. */
static ts_status run_and_keep(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    tsi_kept_work work;
    TSI_TRY(kept_call(kernel, io, &work));
    return tsi_keep_work(io->rank, work);
}

/* ---- on the host ----------------------------------------------------------------------------- */

typedef struct staged {
    const tsi_block *block;
    tsi_image image;
    int32_t mode;
} staged;

/* In place, an output is the image of the input it lies over. */
static int32_t stage_list(staged *list, const tsi_block *block, int32_t ins, int32_t outs,
                          int32_t *image_of)
{
    int32_t count = 0;
    for (int32_t i = 0; i < ins + outs; i++) {
        int32_t found = 0;
        while (found < count &&
               (i < ins || !block[i].data || list[found].block->data != block[i].data))
            found++;
        if (found == count) list[count++] = (staged){ .block = &block[i] };
        list[found].mode |= i < ins ? TSI_IMAGE_READ : TSI_IMAGE_WRITE;
        image_of[i] = found;
    }
    return count;
}

static ts_status stage_open(ts_rank *rank, staged *list, int32_t count, int64_t *bytes)
{
    for (int32_t i = 0; i < count; i++) {
        TSI_TRY(tsi_image_open(rank, list[i].block, list[i].mode, &list[i].image));
        *bytes += (int64_t)list[i].image.bytes;
    }
    return tsi_rank_device_sync(rank);
}

static ts_status run_staged(ts_rank *rank, const char *name, const tsi_block *block, int32_t ins,
                            int32_t outs, tsi_host_fn fn, void *context)
{
    enum { BLOCKS_MAX = TSI_INPUT_MAX + TSI_OUTPUT_MAX };
    TSI_ASSERT(ins + outs <= BLOCKS_MAX);
    staged list[BLOCKS_MAX];
    int32_t image_of[BLOCKS_MAX];
    tsi_block image[BLOCKS_MAX];
    int32_t count = stage_list(list, block, ins, outs, image_of);
    tsi_event event = {
        .kind = TSI_EVENT_OP, .kind_name = "fallback", .name = name, .where = rank->where
    };
    uint64_t number = tsi_ring_begin(rank->ring, &event);
    int64_t bytes = 0;
    ts_status status = stage_open(rank, list, count, &bytes);
    for (int32_t i = 0; i < ins + outs; i++)
        image[i] = list[image_of[i]].image.block;
    if (status == TS_OK) status = fn(context, image);
    for (int32_t i = 0; i < count && status == TS_OK; i++)
        status = tsi_image_close(&list[i].image);
    for (int32_t i = 0; i < count; i++)
        tsi_image_drop(&list[i].image); /* closed ones are empty */
    tsi_ring_end(rank->ring, number, bytes);
    return status;
}

ts_status tsi_host_run(ts_rank *rank, const char *name, const tsi_block *block, int32_t ins,
                       int32_t outs, tsi_host_fn fn, void *context)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    if (!mine) return ts_rank_status(rank);
    if (mine->device->host_readable) return fn(context, block);
    if (mine->device == tsi_device_none()) return TS_OK;
    return run_staged(rank, name, block, ins, outs, fn, context);
}

/* ---- fallbacks ------------------------------------------------------------------------------- */

typedef struct fallback {
    const tsi_kernel_io *io;
    tsi_kernel_fn kernel;
} fallback;

static ts_status fallback_run(void *context, const tsi_block *image)
{
    const fallback *f = context;
    tsi_operand operand[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    int32_t ins = f->io->input_count;
    for (int32_t i = 0; i < ins + f->io->output_count; i++) {
        operand[i] = i < ins ? f->io->in[i] : f->io->out[i - ins];
        operand[i].block = image[i];
    }
    tsi_kernel_io io = *f->io;
    io.in = operand;
    io.out = operand + ins;
    io.device = tsi_device_host();
    io.queue = NULL;
    return run_now(f->kernel, &io);
}

/* The policy of TESSERA_FALLBACK: allow, warn (once an operator), forbid. What is the host's by
 * nature, a user's function or an answer to the host, needs none. */
static ts_status fallback_policy(const tsi_kernel_io *io)
{
    static _Atomic bool told[TSI_OP_ID_COUNT];
    int32_t number = tsi_op_number(io->op);
    if (number < 0 || io->op->flags & (TSI_OP_USER | TSI_OP_HOST)) return TS_OK;
    const char *policy = getenv("TESSERA_FALLBACK");
    if (policy && strcmp(policy, "forbid") == 0)
        return TSI_FAIL(TS_ERR_POLICY,
                        "%s: device %s has no kernel for it, and TESSERA_FALLBACK forbids the "
                        "host's",
                        io->op->name, io->device->name);
    if (!policy || strcmp(policy, "warn") != 0 || atomic_exchange(&told[number], true))
        return TS_OK;
    tsi_log(TSI_LOG_WARN, "%s: device %s has no kernel for it; the host's is used", io->op->name,
            io->device->name);
    return TS_OK;
}

static ts_status run_fallback(const tsi_kernel_io *io)
{
    TSI_TRY(fallback_policy(io));
    tsi_block block[TSI_INPUT_MAX + TSI_OUTPUT_MAX];
    int32_t ins = io->input_count, outs = io->output_count, read = ins + (io->adds ? outs : 0);
    for (int32_t i = 0; i < read + outs; i++) /* what is joined to is read, too */
        block[i] = i < ins ? io->in[i].block : io->out[(i - ins) % outs].block;
    fallback f = { io, tsi_kernel_of(tsi_device_host(), io->op) };
    return run_staged(io->rank, io->op->name, block, read, outs, fallback_run, &f);
}

/* ---- the one door ---------------------------------------------------------------------------- */

/* The device's own kernel, if it has one that takes the call. */
static int run_native(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    if (tsi_keeps_calls(io->rank)) return (int)run_and_keep(kernel, io);
    if (io->device->defer) return kernel ? (int)run_later(kernel, io) : TSI_KERNEL_DECLINED;
    int verdict = kernel ? (int)kernel(io) : TSI_KERNEL_DECLINED;
    bool moves = verdict == TSI_KERNEL_DECLINED && io->op->flags & TSI_OP_MOVES;
    return moves ? (int)io->op->reference(io) : verdict;
}

static void passed(ts_rank *rank, tsi_stream *queue, tsi_device_event *mark, const char *name)
{
    if (!mark) return;
    tsi_event event = { .kind_name = name, .name = rank->label, .where = rank->where };
    tsi_moment_passed(rank, queue, mark, &event);
}

static ts_status apart_run(void *context)
{
    const deferred *d = context;
    tsi_kernel_io io = d->io;
    if (io.op->flags & TSI_OP_RANDOM) io.stream = tsi_kept_stream_now(io.rank, io.stream);
    tsi_device_event *mark = tsi_moment_mark(io.rank, io.queue);
    int verdict = run_native(d->kernel, &io);
    if (verdict == TSI_KERNEL_DECLINED) verdict = (int)run_fallback(&io);
    passed(io.rank, io.queue, mark, io.op->name);
    return (ts_status)verdict;
}

static ts_status run_apart(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    deferred *d = deferred_make(kernel, io);
    if (!d) return TS_ERR_MEMORY; /* recorded */
    d->io.queue = io->queue;
    return tsi_keep_work(io->rank, (tsi_kept_work){ apart_run, d, deferred_destroy, NULL });
}

static ts_status find_way(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    bool captures = tsi_captures(io->rank);
    if (captures && io->op->flags & TSI_OP_RANDOM) return run_apart(kernel, io);
    int verdict = run_native(kernel, io);
    if (verdict != TSI_KERNEL_DECLINED) return (ts_status)verdict;
    return captures ? run_apart(kernel, io) : run_fallback(io);
}

/* Apart, so that the host's way has a small frame: each call of a small operator takes it. */
static TSI_NOINLINE ts_status run_on_device(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    tsi_device_event *mark = tsi_captures(io->rank) ? NULL : tsi_moment_mark(io->rank, io->queue);
    ts_status status = find_way(kernel, io);
    passed(io->rank, io->queue, mark, io->op->name);
    return status == TS_OK ? tsi_rank_device_pace(io->rank) : status;
}

ts_status tsi_kernel_run(tsi_kernel_fn kernel, const tsi_kernel_io *io)
{
    return TSI_LIKELY(io->device->host_readable) ? run_now(kernel, io) : run_on_device(kernel, io);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static ts_status list_now(const tsi_list_op *op, tsi_list_fn kernel, const tsi_list_io *io)
{
    if (kernel) {
        int verdict = (int)kernel(io);
        if (verdict != TSI_KERNEL_DECLINED) return (ts_status)verdict;
    }
    return op->reference(io);
}

typedef struct deferred_list {
    const tsi_list_op *op;
    tsi_list_fn kernel;
    tsi_list_io io; /* its items and attributes lie behind this struct */
} deferred_list;

static ts_status deferred_list_run(void *context)
{
    const deferred_list *d = context;
    return list_now(d->op, d->kernel, &d->io);
}

static void deferred_list_touches(void *context, tsi_kept_tell tell, void *to)
{
    deferred_list *d = context;
    tsi_list_item *item = (tsi_list_item *)(d + 1);
    int64_t few = d->op->single_count ? d->op->single_count : 1;
    for (int64_t i = 0; i < d->io.count; i++)
        for (int32_t k = 0; k < TSI_LIST_PARTS; k++) {
            tsi_list_part *part = &item[i].part[k];
            int64_t count = d->op->single >> k & 1 ? few : item[i].count;
            const char *low = part->data;
            if (!low || count <= 0) continue;
            const char *high = low + count * (int64_t)ts_dtype_size((ts_dtype)part->dtype);
            tell(to, &(tsi_kept_touch){ &part->data, low, high, d->op->writes >> k & 1 });
        }
}

static const tsi_kept_kind list_kind = { TSI_KEPT_FREE, deferred_list_touches };

static ts_status list_later(const tsi_list_op *op, tsi_list_fn kernel, const tsi_list_io *io)
{
    size_t items = (size_t)io->count * sizeof *io->item;
    deferred_list *d =
        io->reserved ? io->reserved : tsi_alloc(sizeof *d + items + op->attribute_bytes);
    if (!d) return tsi_fail_memory("a list in a stream", sizeof *d + items);
    tsi_list_item *item = (tsi_list_item *)(d + 1);
    memcpy(item, io->item, items);
    for (int64_t i = 0; i < io->count; i++)
        for (int32_t k = 0; k < TSI_LIST_PARTS; k++)
            item[i].part[k].data = tsi_device_near(io->device, item[i].part[k].data);
    void *attributes = (char *)item + items;
    if (op->attribute_bytes) memcpy(attributes, io->attributes, op->attribute_bytes);
    *d = (deferred_list){ op, kernel, *io };
    d->io.item = item;
    d->io.attributes = attributes;
    d->io.queue = NULL;
    if (tsi_keeps_calls(io->rank))
        return tsi_keep_work(io->rank,
                             (tsi_kept_work){ deferred_list_run, d, tsi_free, &list_kind });
    return io->device->defer(io->device, io->queue, deferred_list_run, d, tsi_free);
}

/* Item by item: its parts are read, those that are written come back over themselves. */
typedef struct list_fallback {
    const tsi_list_op *op;
    tsi_list_fn kernel;
    tsi_list_io io; /* of one item */
} list_fallback;

static ts_status list_fallback_run(void *context, const tsi_block *image)
{
    const list_fallback *f = context;
    tsi_list_item item = *f->io.item;
    for (int32_t k = 0, at = 0; k < TSI_LIST_PARTS; k++)
        if (item.part[k].data) item.part[k].data = image[at++].data;
    tsi_list_io io = f->io;
    io.item = &item;
    io.device = tsi_device_host();
    io.queue = NULL;
    return list_now(f->op, f->kernel, &io);
}

static ts_status list_fallback_item(list_fallback *f)
{
    tsi_block block[2 * TSI_LIST_PARTS];
    int32_t ins = 0, outs = 0;
    for (int32_t k = 0; k < TSI_LIST_PARTS; k++) {
        const tsi_list_part *part = &f->io.item->part[k];
        if (!part->data) continue;
        int64_t few = f->op->single_count ? f->op->single_count : 1;
        int64_t count = f->op->single >> k & 1 ? few : f->io.item->count;
        block[ins++] = (tsi_block){ .data = part->data,
                                    .dtype = (int32_t)part->dtype,
                                    .ndim = 1,
                                    .extent = { count },
                                    .stride = { 1 } };
    }
    for (int32_t k = 0, at = 0; k < TSI_LIST_PARTS; k++) {
        if (!f->io.item->part[k].data) continue;
        if (f->op->writes >> k & 1) block[ins + outs++] = block[at];
        at++;
    }
    return run_staged(f->io.rank, f->op->name, block, ins, outs, list_fallback_run, f);
}

static ts_status list_on_host(const tsi_list_op *op, const tsi_list_io *io)
{
    const tsi_kernels *host = kernels_of(tsi_device_host());
    list_fallback f = { op, host ? host->list[op->id] : NULL, *io };
    f.io.count = 1;
    for (int64_t i = 0; i < io->count; i++) {
        f.io.item = &io->item[i];
        TSI_TRY(list_fallback_item(&f));
    }
    return TS_OK;
}

static ts_status list_dispatch(const tsi_list_op *op, const tsi_list_io *io)
{
    const tsi_kernels *kernels = kernels_of(io->device);
    tsi_list_fn kernel = kernels ? kernels->list[op->id] : NULL;
    if (io->device->host_readable) return list_now(op, kernel, io);
    if (io->device->defer) return list_later(op, kernel, io);
    if (!kernel) return list_on_host(op, io);
    int verdict = (int)kernel(io);
    return verdict == TSI_KERNEL_DECLINED ? list_on_host(op, io) : (ts_status)verdict;
}

ts_status tsi_list_reserve(const tsi_list_op *op, ts_rank *rank, int64_t count, void **out)
{
    const tsi_rank_device *mine = tsi_rank_device_of(rank);
    *out = NULL;
    if (!mine) return ts_rank_status(rank);
    const tsi_device *device = mine->device;
    if (!device->defer || device->host_readable) return TS_OK;
    /* A task that failed in the queue would take along what is posted behind it. What is kept has
     * run already. */
    if (!tsi_keeps(rank)) TSI_TRY(tsi_rank_device_sync(rank));
    if (device->reserve) TSI_TRY(device->reserve(device, mine->queue));
    size_t bytes = sizeof(deferred_list) + (size_t)count * sizeof(tsi_list_item);
    *out = tsi_alloc(bytes + op->attribute_bytes);
    return *out ? TS_OK : tsi_fail_memory("a list in a stream", bytes);
}

/* Where there is no data: the host's kernel takes what it needs while it runs, as run_dry() has it.
 */
static ts_status describe_list(const tsi_list_op *op, const tsi_list_io *io)
{
    const tsi_kernels *host = kernels_of(tsi_device_host());
    tsi_list_fn kernel = host ? host->list[op->id] : NULL;
    if (!kernel || !io->rank->world->scratch) return TS_OK;
    TSI_ASSERT(!io->rank->dry);
    io->rank->dry = 1;
    int verdict = (int)kernel(io);
    io->rank->dry = 0;
    return verdict == TSI_KERNEL_DECLINED ? TS_OK : (ts_status)verdict;
}

ts_status tsi_list_run(const tsi_list_op *op, tsi_list_io io)
{
    TSI_ASSERT(io.rank == tsi_rank_current()); /* its ring and its queue (INV-16) */
    const tsi_rank_device *mine = tsi_rank_device_of(io.rank);
    if (!mine) return ts_rank_status(io.rank);
    if (mine->device == tsi_device_none()) return describe_list(op, &io);
    io.device = mine->device;
    io.queue = mine->queue;
    tsi_event event = {
        .kind = TSI_EVENT_OP, .kind_name = op->name, .name = io.rank->label, .where = io.rank->where
    };
    uint64_t number = tsi_ring_begin(io.rank->ring, &event);
    tsi_device_event *mark = tsi_captures(io.rank) ? NULL : tsi_moment_mark(io.rank, io.queue);
    ts_status status = list_dispatch(op, &io);
    passed(io.rank, io.queue, mark, op->name);
    if (status == TS_OK) status = tsi_rank_device_pace(io.rank);
    tsi_ring_end(io.rank->ring, number, 0);
    return status;
}
