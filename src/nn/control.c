/* SPDX-License-Identifier: Apache-2.0 */
/* control.c - the numbers of a step, from the host and back to it, in the order of the queue. */
#include "nn/control.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "array/image.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/keep.h"
#include "comm/slots.h"

enum { BYTES = TSI_CONTROL_COUNT * sizeof(double) };

typedef struct copy {           /* of the numbers, some of them its own */
    tsi_array *array, *decided; /* decided: a view of all that is not its own */
    tsi_control_own own;
} copy;

struct tsi_control {
    ts_rank *rank;
    const tsi_rank_device *where;
    tsi_array *array; /* f64 [TSI_CONTROL_COUNT] on the device */
    tsi_array *loss;  /* a view of its one element */
    double *kept;     /* [TSI_CONTROL_KEPT][TSI_CONTROL_COUNT], memory that copies need not stage */
    tsi_device_event *event[TSI_CONTROL_KEPT];
    int64_t count;
    tsi_array *decided[2]; /* where there are copies: what they take, without a factor of their own
                              and with one */
    copy *copies;
    int64_t copy_count, copy_capacity;
};

/* ---- making ---------------------------------------------------------------------------------- */

static ts_status kept_make(tsi_control *c)
{
    const tsi_device *device = c->where->device;
    size_t bytes = (size_t)TSI_CONTROL_KEPT * BYTES;
    void *memory = NULL;
    if (device->host_alloc) {
        TSI_TRY(device->host_alloc(device, bytes, &memory));
    } else {
        memory = tsi_alloc(bytes);
        if (!memory) return tsi_fail_memory("the numbers of a step", bytes);
    }
    c->kept = memory;
    memset(memory, 0, bytes);
    return TS_OK;
}

static ts_status fill(tsi_control *c)
{
    ts_shape shape = TS_SHAPE(TSI_CONTROL_COUNT), one = TS_SHAPE_SCALAR;
    double zero = 0.0;
    c->array = tsi_array_create_tagged(c->rank, TS_DTYPE_F64, &shape, TSI_TAG_OPTIMIZER);
    if (!c->array) return ts_rank_status(c->rank);
    c->loss = tsi_array_view(c->array, TS_DTYPE_F64, &one, NULL, TSI_CONTROL_LOSS);
    if (!c->loss) return ts_rank_status(c->rank);
    TSI_TRY(kept_make(c));
    return tsi_array_fill(c->array, &zero);
}

tsi_control *tsi_control_create(ts_rank *rank)
{
    tsi_control *c = tsi_calloc(1, sizeof *c);
    if (!c) {
        tsi_fail_memory("the numbers of a step", sizeof *c);
        return NULL;
    }
    c->rank = rank;
    c->where = tsi_rank_device_of(rank);
    if (c->where && fill(c) == TS_OK) return c;
    tsi_control_destroy(c);
    return NULL;
}

static void event_drop(tsi_control *c, int64_t slot)
{
    if (c->event[slot]) c->where->device->event_destroy(c->where->device, c->event[slot]);
    c->event[slot] = NULL;
}

void tsi_control_destroy(tsi_control *c)
{
    if (!c) return;
    const tsi_device *device = c->where ? c->where->device : NULL;
    if (c->kept && c->count > 0) (void)device->stream_sync(device, c->where->queue);
    for (int64_t i = 0; device && i < TSI_CONTROL_KEPT; i++)
        event_drop(c, i);
    if (c->kept && device->host_free)
        device->host_free(device, c->kept, (size_t)TSI_CONTROL_KEPT * BYTES);
    else
        tsi_free(c->kept);
    for (int64_t i = 0; i < c->copy_count; i++) {
        tsi_array_release(c->copies[i].decided);
        tsi_array_release(c->copies[i].array);
    }
    tsi_free(c->copies);
    tsi_array_release(c->decided[0]);
    tsi_array_release(c->decided[1]);
    tsi_array_release(c->loss);
    tsi_array_release(c->array);
    tsi_free(c);
}

/* All numbers but the rate, which is the first; and but the factor, with what is before it. */
static tsi_array *decided_of(tsi_array *array, bool plain)
{
    int64_t first = plain ? TSI_CONTROL_FACTOR + 1 : 1;
    ts_shape rest = TS_SHAPE(TSI_CONTROL_COUNT - first);
    return tsi_array_view(array, TS_DTYPE_F64, &rest, NULL, first);
}

static ts_status send_to(tsi_control *c, const tsi_array *array, int32_t first, const double *from,
                         int32_t count)
{
    if (tsi_world_describes(c->rank->world)) return TS_OK;
    double *to = tsi_array_data(array);
    return c->where->device->copy_in(c->where->device, to + first, from,
                                     (size_t)count * sizeof *from, c->where->queue);
}

ts_status tsi_control_add(tsi_control *c, const tsi_control_own *own, int32_t *index)
{
    ts_shape shape = TS_SHAPE(TSI_CONTROL_COUNT);
    double zero = 0.0, one = 1.0;
    bool plain = own->plain;
    TSI_ASSERT(TSI_CONTROL_RATE == 0);
    TSI_TRY(tsi_room(&c->copies, c->copy_count, &c->copy_capacity, sizeof *c->copies,
                     "the numbers of a step"));
    if (!c->decided[plain]) c->decided[plain] = decided_of(c->array, plain);
    copy *made = &c->copies[c->copy_count++];
    *made = (copy){ .own = *own };
    made->array = tsi_array_create_tagged(c->rank, TS_DTYPE_F64, &shape, TSI_TAG_OPTIMIZER);
    if (made->array) made->decided = decided_of(made->array, plain);
    if (!c->decided[plain] || !made->decided) return ts_rank_status(c->rank);
    *index = (int32_t)c->copy_count;
    TSI_TRY(tsi_array_fill(made->array, &zero));
    return plain ? send_to(c, made->array, TSI_CONTROL_FACTOR, &one, 1) : TS_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static ts_status send(tsi_control *c, int32_t first, const double *from, int32_t count)
{
    return send_to(c, c->array, first, from, count);
}

ts_status tsi_control_begin(tsi_control *c, const double *input)
{
    for (int64_t i = 0; i < c->copy_count; i++) {
        const tsi_control_own *own = &c->copies[i].own;
        double rate = input[TSI_CONTROL_RATE] * own->times + own->plus;
        TSI_TRY(send_to(c, c->copies[i].array, TSI_CONTROL_RATE, &rate, 1));
    }
    double numbers[TSI_CONTROL_LOSS + 1];
    memcpy(numbers, input, TSI_CONTROL_INPUTS * sizeof *input);
    numbers[TSI_CONTROL_NUMBER] = (double)++c->count;
    numbers[TSI_CONTROL_LOSS] = 0.0;
    return send(c, 0, numbers, TSI_CONTROL_LOSS + 1);
}

static ts_status take_loss(tsi_control *c, ts_tensor *loss)
{
    if (loss->layout->count != 1)
        return TSI_FAIL(TS_ERR_SHAPE, "optimizer: the loss has %lld elements, not one (%s)",
                        (long long)loss->layout->count, loss->layout->text);
    ts_scope scope = ts_scope_open_with(c->rank, TS_OPTIONS(ts_scope_options, .no_grad = 1));
    ts_tensor *full = (ts_tensor_full)(loss);
    ts_status status = full ? tsi_tensor_ready(full) : ts_rank_status(c->rank);
    if (status == TS_OK && full->mesh->member) {
        ts_shape one = TS_SHAPE_SCALAR;
        tsi_array *flat =
            tsi_array_view(full->array, (ts_dtype)full->dtype, &one, NULL, full->array->offset);
        status = flat ? tsi_array_copy(c->loss, flat) : ts_rank_status(c->rank);
        tsi_array_release(flat);
    }
    ts_scope_close(scope);
    return status;
}

/* ---- the norm of all stages ------------------------------------------------------------------ */

/* By way of the host: stages wait for each other anyhow. In a step that runs again, again. */
typedef struct stages_sum {
    const tsi_control *control;
    ts_group *stages;
    bool adds_loss; /* beside it that of the loss, where it lies */
    tsi_array *own; /* squares of this rank; NULL: it has no gradient */
    int64_t count;  /* of them */
    tsi_array *sum; /* of all */
} stages_sum;

static void stages_sum_destroy(void *context)
{
    stages_sum *s = context;
    tsi_array_release(s->own);
    tsi_array_release(s->sum);
    ts_group_release(s->stages);
    tsi_free(s);
}

/* What this rank has, once everything before it is done. */
static ts_status stages_sum_read(const stages_sum *s, double *sum, double *loss)
{
    const tsi_rank_device *where = s->control->where;
    const tsi_device *device = where->device;
    double own[TSI_NORM_MASKS] = { 0 };
    bool numbers = !tsi_world_describes(s->control->rank->world); /* else there are none */
    if (s->own && numbers)
        TSI_TRY(device->copy_out(device, own, tsi_array_data(s->own),
                                 (size_t)s->count * sizeof *own, where->queue));
    if (s->adds_loss && numbers)
        TSI_TRY(device->copy_out(device, loss, tsi_array_data(s->control->loss), sizeof *loss,
                                 where->queue));
    TSI_TRY(tsi_rank_device_sync(s->control->rank));
    for (int64_t i = 0; i < s->count; i++)
        *sum += own[i];
    return TS_OK;
}

static ts_status stages_sum_run(void *context)
{
    const stages_sum *s = context;
    const tsi_rank_device *where = s->control->where;
    const tsi_device *device = where->device;
    double both[2] = { 0 }; /* squares and loss */
    TSI_TRY(tsi_comm_now(s->control->rank, "a norm over stages"));
    TSI_TRY(stages_sum_read(s, &both[0], &both[1]));
    ts_array words = TS_INIT(ts_array);
    words.data = both;
    words.meta = (ts_meta){ .shape = TS_SHAPE(1 + s->adds_loss), .dtype = TS_DTYPE_F64 };
    TSI_TRY((ts_group_all_reduce)(s->stages, &words, &words, TS_REDUCE_SUM, NULL));
    if (tsi_world_describes(s->control->rank->world)) return TS_OK;
    TSI_TRY(
        device->copy_in(device, tsi_array_data(s->sum), &both[0], sizeof both[0], where->queue));
    if (!s->adds_loss) return TS_OK;
    return device->copy_in(device, tsi_array_data(s->control->loss), &both[1], sizeof both[1],
                           where->queue);
}

static void stages_sum_touches(void *context, tsi_kept_tell tell, void *to)
{
    const stages_sum *s = context;
    const char *own = s->own ? tsi_array_data(s->own) : NULL, *sum = tsi_array_data(s->sum);
    if (own)
        tell(to, &(tsi_kept_touch){ NULL, own, own + (size_t)s->count * sizeof(double), false });
    tell(to, &(tsi_kept_touch){ NULL, sum, sum + sizeof(double), true });
    if (!s->adds_loss) return;
    const char *loss = tsi_array_data(s->control->loss);
    tell(to, &(tsi_kept_touch){ NULL, loss, loss + sizeof(double), true });
}

/* NULL: recorded. */
static tsi_array *squares_of_stages(const tsi_control *c, tsi_norm_sums *sums, ts_group *stages,
                                    bool adds_loss)
{
    static const tsi_kept_kind kind = { TSI_KEPT_FENCE, stages_sum_touches };
    ts_shape one = TS_SHAPE(1);
    stages_sum *s = tsi_calloc(1, sizeof *s);
    if (!s) {
        (void)tsi_fail_memory("the norm of all stages", sizeof *s);
        return NULL;
    }
    *s = (stages_sum){
        .control = c, .stages = stages, .count = sums->count, .adds_loss = adds_loss
    };
    tsi_group_retain(stages);
    s->sum = tsi_array_create(c->rank, TS_DTYPE_F64, &one);
    s->own = s->sum && s->count > 0 ? tsi_norm_squares(sums) : NULL;
    if (!s->sum || (s->count > 0 && !s->own)) {
        stages_sum_destroy(s);
        return NULL;
    }
    tsi_array *sum = tsi_array_retain(s->sum);
    tsi_kept_work work = { stages_sum_run, s, stages_sum_destroy, &kind };
    if (tsi_keep_work(c->rank, work) == TS_OK) return sum;
    tsi_array_release(sum);
    return NULL;
}

ts_status tsi_control_decide(tsi_control *c, tsi_norm_sums *sums, const ts_step_options *given)
{
    ts_group *stages = given->stages;
    if (given->loss) TSI_TRY(take_loss(c, given->loss));
    int64_t count = stages ? 1 : sums->count;
    tsi_array *squares = NULL;
    if (count > 0) {
        squares =
            stages ? squares_of_stages(c, sums, stages, given->adds_loss) : tsi_norm_squares(sums);
        if (!squares) return ts_rank_status(c->rank);
    }
    tsi_list_item item = { .count = count };
    if (squares)
        item.part[TSI_DECIDE_SUMS] = (tsi_list_part){ tsi_array_data(squares), TS_DTYPE_F64, 0 };
    item.part[TSI_DECIDE_CONTROL] = tsi_control_part_of(c, 0);
    ts_status status =
        tsi_list_run(&tsi_list_decide, (tsi_list_io){ .item = &item, .count = 1, .rank = c->rank });
    tsi_array_release(squares);
    for (int64_t i = 0; status == TS_OK && i < c->copy_count; i++)
        status = tsi_array_copy(c->copies[i].decided, c->decided[c->copies[i].own.plain]);
    return status;
}

tsi_list_part tsi_control_part_of(const tsi_control *c, int32_t index)
{
    const tsi_array *array = index > 0 ? c->copies[index - 1].array : c->array;
    return (tsi_list_part){ tsi_array_data(array), TS_DTYPE_F64, 0 };
}

ts_status tsi_control_end(tsi_control *c)
{
    if (tsi_world_describes(c->rank->world)) return TS_OK;
    const tsi_device *device = c->where->device;
    int64_t slot = c->count % TSI_CONTROL_KEPT;
    event_drop(c, slot);
    TSI_TRY(device->copy_out(device, c->kept + slot * TSI_CONTROL_COUNT, tsi_array_data(c->array),
                             BYTES, c->where->queue));
    return device->event_record(device, c->where->queue, &c->event[slot]);
}

int64_t tsi_control_count(const tsi_control *c)
{
    return c ? c->count : 0;
}

/* The queue goes on meanwhile: only this step's numbers are waited for. */
static void wait_for(const tsi_control *c, int64_t slot)
{
    const tsi_device *device = c->where->device;
    struct timespec nap = { .tv_nsec = 20000 };
    while (!device->event_done(device, c->event[slot]))
        (void)nanosleep(&nap, NULL);
}

ts_status tsi_control_read(tsi_control *c, int64_t number, double *out)
{
    int64_t slot = number % TSI_CONTROL_KEPT;
    memset(out, 0, BYTES);
    if (tsi_world_describes(c->rank->world)) return TS_OK;
    if (number < 1 || number > c->count || number + TSI_CONTROL_KEPT <= c->count)
        return TSI_FAIL(TS_ERR_ARG, "optimizer: step %lld is not one of the last %d of %lld",
                        (long long)number, TSI_CONTROL_KEPT, (long long)c->count);
    if (c->event[slot]) wait_for(c, slot);
    TSI_TRY(tsi_rank_enter(c->rank)); /* what the queue has passed may have been ended early */
    memcpy(out, c->kept + slot * TSI_CONTROL_COUNT, BYTES);
    if (out[TSI_CONTROL_NUMBER] == (double)number) return TS_OK;
    /* What failed on the way says so at a wait, and what was behind it had no effect. */
    TSI_TRY(tsi_rank_device_sync(c->rank));
    return TSI_FAIL(TS_ERR_INTERNAL, "optimizer: the numbers of step %lld did not arrive",
                    (long long)number);
}

tsi_array *tsi_control_taken(const tsi_control *c)
{
    ts_shape one = TS_SHAPE_SCALAR;
    return tsi_array_view(c->array, TS_DTYPE_F64, &one, NULL, TSI_CONTROL_GO);
}

ts_status tsi_control_resume(tsi_control *c, int64_t steps)
{
    double taken = (double)steps;
    return send(c, TSI_CONTROL_STEPS, &taken, 1);
}
