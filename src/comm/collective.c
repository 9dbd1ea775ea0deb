/* SPDX-License-Identifier: Apache-2.0 */
/* collective.c - the public collectives: each checks its own arguments and describes itself as a
 * work.
 *
 * A check that fails names the operation and the values that clash. Checks here see one rank's
 * arguments; what only two ranks together can see wrong is found by the engine (fingerprint.c).
 *
 * INV: a work that is issued has blocks of one dtype, dim 0 in every block, and rows that fill dim
 * 0. */
#include <inttypes.h>
#include <string.h>

#include "array/array.h"
#include "base/compiler.h"
#include "base/intmath.h"
#include "comm/issue.h"

/* ---- pieces of checks ------------------------------------------------------------------------ */

static ts_status check_root(const tsi_call *call, int64_t root, const char *what)
{
    int64_t size = call->group->size;
    if (root >= 0 && root < size) return TS_OK;
    return TSI_FAIL(TS_ERR_ARG, "%s: %s %" PRId64 " is not a member, the group has 0 to %" PRId64,
                    call->name, what, root, size - 1);
}

/* A scalar is one row. */
static ts_status take_block(tsi_call *call, const ts_array *array, const char *what, tsi_block *out)
{
    if (array == NULL) return TSI_FAIL(TS_ERR_NULL, "%s: `%s` is NULL", call->name, what);
    ts_status status = tsi_block_of_array(array, what, out);
    if (status == TS_OK) status = tsi_call_device(call, array->device);
    if (status != TS_OK) {
        tsi_error_prefix("%s", call->name);
        return status;
    }
    if (out->ndim > 0) return TS_OK;
    out->ndim = 1;
    out->extent[0] = 1;
    out->stride[0] = 1;
    return TS_OK;
}

static ts_status check_reduce(tsi_call *call, ts_reduce reduce, int32_t dtype)
{
    const char *why = NULL;
    if (reduce <= TS_REDUCE_NONE || reduce >= TS_REDUCE_COUNT)
        return TSI_FAIL(TS_ERR_ARG, "%s: there is no reduction number %d", call->name, (int)reduce);
    if (!tsi_reduce_allowed(reduce, (ts_dtype)dtype, &why))
        return TSI_FAIL(TS_ERR_DTYPE, "%s: %s of %s: %s", call->name, ts_reduce_name(reduce),
                        ts_dtype_name((ts_dtype)dtype), why);
    call->local.base.print.reduce = (int32_t)reduce;
    return TS_OK;
}

/* Same dtype and the same extents from dim `first` on. */
static ts_status check_fit(const tsi_call *call, int32_t first)
{
    const tsi_block *in = &call->local.base.in, *out = &call->local.base.out;
    if (in->dtype != out->dtype)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: in is %s, out is %s", call->name,
                        ts_dtype_name((ts_dtype)in->dtype), ts_dtype_name((ts_dtype)out->dtype));
    if (in->ndim != out->ndim)
        return TSI_FAIL(TS_ERR_SHAPE, "%s: in has %d dims, out has %d", call->name, in->ndim,
                        out->ndim);
    for (int32_t d = first; d < in->ndim; d++)
        if (in->extent[d] != out->extent[d])
            return TSI_FAIL(TS_ERR_SHAPE,
                            "%s: dim %d of in has %" PRId64 " elements, of out %" PRId64,
                            call->name, d, in->extent[d], out->extent[d]);
    return TS_OK;
}

/* The rows of a split: given, not negative and filling dim 0; or even. */
static ts_status check_split(const tsi_call *call, const int64_t *rows, const char *what,
                             const tsi_block *block)
{
    int64_t size = call->group->size, total = 0, extent = block->extent[0];
    if (rows == NULL) {
        if (extent % size == 0) return TS_OK;
        return TSI_FAIL(TS_ERR_SHAPE,
                        "%s: %" PRId64 " members cannot share %" PRId64
                        " rows evenly; give %s, one count for each",
                        call->name, size, extent, what);
    }
    for (int64_t i = 0; i < size; i++) {
        if (rows[i] < 0)
            return TSI_FAIL(TS_ERR_ARG, "%s: %s[%" PRId64 "] is %" PRId64, call->name, what, i,
                            rows[i]);
        if (!tsi_add_i64(total, rows[i], &total))
            return TSI_FAIL(TS_ERR_ARG, "%s: the sum of %s overflows", call->name, what);
    }
    if (total == extent) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE, "%s: %s sum to %" PRId64 ", dim 0 has %" PRId64 " rows",
                    call->name, what, total, extent);
}

/* My own share of the split must be what my other block holds. */
static ts_status check_own(const tsi_call *call, const int64_t *rows, const tsi_block *whole,
                           const tsi_block *part, const char *which)
{
    int64_t member = call->group->member;
    int64_t want = rows != NULL ? rows[member] : whole->extent[0] / call->group->size;
    if (part->extent[0] == want) return TS_OK;
    return TSI_FAIL(TS_ERR_SHAPE,
                    "%s: %s has %" PRId64 " rows, the share of member %" PRId64 " is %" PRId64,
                    call->name, which, part->extent[0], member, want);
}

/* The block that the fingerprint shows. */
static void show(tsi_call *call, const tsi_block *block)
{
    tsi_fingerprint *print = &call->local.base.print;
    print->dtype = block->dtype;
    print->count = tsi_block_count(block);
    print->ndim = block->ndim;
    memcpy(print->extent, block->extent, sizeof print->extent);
}

/* ---- collectives ----------------------------------------------------------------------------- */

ts_status(ts_group_barrier)(ts_group *group, const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_BARRIER, options));
    return call.skip ? TS_OK : tsi_call_issue(&call);
}

ts_status(ts_group_broadcast)(ts_group *group, const ts_array *array, int64_t root,
                              const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_BROADCAST, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(check_root(&call, root, "root"));
    TSI_TRY(take_block(&call, array, "array", &work->out));
    work->print.root = root;
    show(&call, &work->out);
    return tsi_call_issue(&call);
}

ts_status(ts_group_scatter)(ts_group *group, const ts_array *in, const ts_array *out, int64_t root,
                            const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_SCATTER, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(check_root(&call, root, "root"));
    TSI_TRY(take_block(&call, out, "out", &work->out));
    if (group->member == root) {
        TSI_TRY(take_block(&call, in, "in", &work->in));
        TSI_TRY(check_fit(&call, 1));
        TSI_TRY(check_split(&call, call.options.send_rows, "send_rows", &work->in));
        work->send_rows = call.options.send_rows;
        TSI_TRY(check_own(&call, work->send_rows, &work->in, &work->out, "out"));
    }
    work->print.root = root;
    show(&call, &work->out);
    return tsi_call_issue(&call);
}

ts_status(ts_group_gather)(ts_group *group, const ts_array *in, const ts_array *out, int64_t root,
                           const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_GATHER, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(check_root(&call, root, "root"));
    TSI_TRY(take_block(&call, in, "in", &work->in));
    if (group->member == root) {
        TSI_TRY(take_block(&call, out, "out", &work->out));
        TSI_TRY(check_fit(&call, 1));
        TSI_TRY(check_split(&call, call.options.recv_rows, "recv_rows", &work->out));
        work->recv_rows = call.options.recv_rows;
        TSI_TRY(check_own(&call, work->recv_rows, &work->out, &work->in, "in"));
    }
    work->print.root = root;
    show(&call, &work->in);
    return tsi_call_issue(&call);
}

static ts_status take_both(tsi_call *call, const ts_array *in, const ts_array *out, int32_t first)
{
    tsi_work *work = &call->local.base;
    TSI_TRY(take_block(call, in, "in", &work->in));
    TSI_TRY(take_block(call, out, "out", &work->out));
    return check_fit(call, first);
}

ts_status(ts_group_all_gather)(ts_group *group, const ts_array *in, const ts_array *out,
                               const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_ALL_GATHER, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(take_both(&call, in, out, 1));
    TSI_TRY(check_split(&call, call.options.recv_rows, "recv_rows", &work->out));
    work->recv_rows = call.options.recv_rows;
    TSI_TRY(check_own(&call, work->recv_rows, &work->out, &work->in, "in"));
    show(&call, &work->out);
    return tsi_call_issue(&call);
}

ts_status(ts_group_reduce)(ts_group *group, const ts_array *in, const ts_array *out,
                           ts_reduce reduce, int64_t root, const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_REDUCE, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(check_root(&call, root, "root"));
    TSI_TRY(take_block(&call, in, "in", &work->in));
    TSI_TRY(check_reduce(&call, reduce, work->in.dtype));
    if (group->member == root) {
        TSI_TRY(take_block(&call, out, "out", &work->out));
        TSI_TRY(check_fit(&call, 0));
    }
    work->print.root = root;
    show(&call, &work->in);
    return tsi_call_issue(&call);
}

ts_status(ts_group_all_reduce)(ts_group *group, const ts_array *in, const ts_array *out,
                               ts_reduce reduce, const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_ALL_REDUCE, options));
    if (call.skip) return TS_OK;
    TSI_TRY(take_both(&call, in, out, 0));
    TSI_TRY(check_reduce(&call, reduce, call.local.base.in.dtype));
    show(&call, &call.local.base.in);
    return tsi_call_issue(&call);
}

ts_status(ts_group_reduce_scatter)(ts_group *group, const ts_array *in, const ts_array *out,
                                   ts_reduce reduce, const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_REDUCE_SCATTER, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(take_both(&call, in, out, 1));
    TSI_TRY(check_reduce(&call, reduce, work->in.dtype));
    TSI_TRY(check_split(&call, call.options.send_rows, "send_rows", &work->in));
    work->send_rows = call.options.send_rows;
    TSI_TRY(check_own(&call, work->send_rows, &work->in, &work->out, "out"));
    show(&call, &work->in);
    return tsi_call_issue(&call);
}

ts_status(ts_group_all_to_all)(ts_group *group, const ts_array *in, const ts_array *out,
                               const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_ALL_TO_ALL, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(take_both(&call, in, out, 1));
    TSI_TRY(check_split(&call, call.options.send_rows, "send_rows", &work->in));
    TSI_TRY(check_split(&call, call.options.recv_rows, "recv_rows", &work->out));
    work->send_rows = call.options.send_rows;
    work->recv_rows = call.options.recv_rows;
    show(&call, &work->in);
    return tsi_call_issue(&call);
}

/* ---- exchange -------------------------------------------------------------------------------- */

static ts_status check_part(const tsi_call *call, const ts_part *part, const char *which, int64_t i,
                            bool has_data)
{
    if (part->peer < 0 || part->peer >= call->group->size)
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: peer %" PRId64 " of %s part %" PRId64
                        " is not a member, the group has 0 to %" PRId64,
                        call->name, part->peer, which, i, call->group->size - 1);
    if (part->ndim < 0 || part->ndim > TS_NDIM_MAX)
        return TSI_FAIL(TS_ERR_ARG, "%s: %s part %" PRId64 " has %d dims, 0 to %d are possible",
                        call->name, which, i, part->ndim, TS_NDIM_MAX);
    ts_shape shape = { .ndim = part->ndim };
    memcpy(shape.extent, part->extent, sizeof shape.extent);
    int64_t count = ts_shape_count(&shape);
    if (count < 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: an extent of %s part %" PRId64 " is negative or too large",
                        call->name, which, i);
    if (has_data && count > 0 && part->data == NULL)
        return TSI_FAIL(TS_ERR_NULL, "%s: data of %s part %" PRId64 " is NULL", call->name, which,
                        i);
    return TS_OK;
}

static bool same_block(const ts_part *a, const ts_part *b)
{
    if (a->data != b->data || a->ndim != b->ndim) return false;
    for (int32_t d = 0; d < a->ndim; d++)
        if (a->extent[d] != b->extent[d] || a->stride[d] != b->stride[d]) return false;
    return true;
}

static ts_status check_combine(const tsi_call *call, const ts_exchange *exchange, int64_t i)
{
    const ts_part *part = &exchange->recv[i];
    if (part->combine == 0) return TS_OK;
    if (i == 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: recv part 0 combines, but no part is before it",
                        call->name);
    if (exchange->reduce == TS_REDUCE_NONE)
        return TSI_FAIL(TS_ERR_ARG, "%s: recv part %" PRId64 " combines, but reduce is not set",
                        call->name, i);
    if (!same_block(part, part - 1))
        return TSI_FAIL(TS_ERR_ARG,
                        "%s: recv part %" PRId64 " combines, but its block is not that of part "
                        "%" PRId64,
                        call->name, i, i - 1);
    return TS_OK;
}

static ts_status check_exchange(tsi_call *call, const ts_exchange *exchange, bool copies)
{
    if (exchange == NULL) return TSI_FAIL(TS_ERR_NULL, "%s: the exchange is NULL", call->name);
    if (exchange->struct_size < sizeof *exchange)
        return TSI_FAIL(TS_ERR_ARG, "%s: struct_size is %zu, not %zu", call->name,
                        exchange->struct_size, sizeof *exchange);
    if (ts_dtype_size((ts_dtype)exchange->dtype) == 0)
        return TSI_FAIL(TS_ERR_DTYPE, "%s: there is no dtype number %d", call->name,
                        exchange->dtype);
    if (exchange->send_count < 0 || exchange->recv_count < 0)
        return TSI_FAIL(TS_ERR_ARG, "%s: %" PRId64 " send and %" PRId64 " recv parts", call->name,
                        exchange->send_count, exchange->recv_count);
    if ((exchange->send_count > 0 && exchange->send == NULL) ||
        (exchange->recv_count > 0 && exchange->recv == NULL))
        return TSI_FAIL(TS_ERR_NULL, "%s: a list of parts is NULL", call->name);
    for (int64_t i = 0; i < exchange->send_count; i++)
        TSI_TRY(check_part(call, &exchange->send[i], "send", i, true));
    for (int64_t i = 0; i < exchange->recv_count; i++) {
        TSI_TRY(check_part(call, &exchange->recv[i], "recv", i, copies));
        TSI_TRY(check_combine(call, exchange, i));
    }
    return TS_OK;
}

/* `standing`: of the library, which has checked its lists, keeps them, and will wait; or NULL. */
static ts_status issue_exchange(ts_group *group, const ts_exchange *exchange,
                                tsi_standing **standing, const tsi_lending *lending,
                                const ts_comm_options *options)
{
    tsi_call call;
    bool own = standing != NULL;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_EXCHANGE, options));
    if (call.skip) return TS_OK;
    if (!own) TSI_TRY(check_exchange(&call, exchange, lending == NULL));
    TSI_TRY(tsi_call_device(&call, exchange->device));
    if (exchange->reduce != TS_REDUCE_NONE)
        TSI_TRY(check_reduce(&call, (ts_reduce)exchange->reduce, exchange->dtype));
    tsi_work *work = &call.local.base;
    work->print.dtype = exchange->dtype;
    work->send = exchange->send_count > 0 ? exchange->send : NULL;
    work->recv = exchange->recv_count > 0 ? exchange->recv : NULL;
    work->send_count = exchange->send_count;
    work->recv_count = exchange->recv_count;
    work->lending = lending;
    work->awaited = work->lists_stay = own;
    if (exchange->struct_size >= sizeof *exchange) work->avg_count = exchange->avg_count;
    ts_status status = tsi_call_issue(&call);
    if (own && status == TS_OK) tsi_standing_note(standing, &call);
    return status;
}

ts_status(ts_group_exchange)(ts_group *group, const ts_exchange *exchange,
                             const ts_comm_options *options)
{
    return issue_exchange(group, exchange, NULL, NULL, options);
}

TSI_STEP_PATH ts_status tsi_group_exchange_own(ts_group *group, const ts_exchange *exchange,
                                               const ts_comm_options *options,
                                               tsi_standing **standing)
{
    if (tsi_standing_serves(*standing, group, options))
        return tsi_standing_issue(*standing, options);
    return issue_exchange(group, exchange, standing, NULL, options);
}

bool tsi_group_lends(const ts_group *group)
{
    const ts_world *world = group->comm->rank->world;
    const tsi_engine *engine = tsi_comm_engine(world);
    bool together = engine->no_data ? world->together : world->local_count == world->rank_count;
    return engine->direct && !group->comm->no_loans && group->size > 1 && together;
}

void tsi_comm_lend_nothing(ts_rank *rank, bool nothing)
{
    tsi_comm_rank *comm = tsi_comm_of_rank(rank);
    if (comm) comm->no_loans = nothing;
}

ts_status tsi_group_lend(ts_group *group, const ts_exchange *exchange, const tsi_lending *lending,
                         const ts_comm_options *options)
{
    TSI_ASSERT(tsi_group_lends(group));
    return issue_exchange(group, exchange, NULL, lending, options);
}

void tsi_lending_end(const ts_group *group, const tsi_lending *lending)
{
    for (int64_t i = 0; i < group->size * lending->own_count; i++) {
        tsi_storage_release(lending->held[i]);
        lending->held[i] = NULL;
    }
}

/* ---- point to point -------------------------------------------------------------------------- */

ts_status(ts_group_send)(ts_group *group, const ts_array *array, int64_t to,
                         const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_SEND, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(check_root(&call, to, "peer"));
    TSI_TRY(take_block(&call, array, "array", &work->in));
    work->print.root = to;
    show(&call, &work->in);
    return tsi_call_issue(&call);
}

ts_status(ts_group_recv)(ts_group *group, const ts_array *array, int64_t from,
                         const ts_comm_options *options)
{
    tsi_call call;
    TSI_TRY(tsi_call_begin(&call, group, TSI_COMM_RECV, options));
    if (call.skip) return TS_OK;
    tsi_work *work = &call.local.base;
    TSI_TRY(check_root(&call, from, "peer"));
    TSI_TRY(take_block(&call, array, "array", &work->out));
    work->print.root = from;
    show(&call, &work->out);
    return tsi_call_issue(&call);
}
