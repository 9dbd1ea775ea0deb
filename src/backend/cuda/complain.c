/* SPDX-License-Identifier: Apache-2.0 */
/* complain.c - data that kernels find wrong, told by the next wait in the host's words.
 *
 *   kernel --first wrong value--> record on the device --next wait--> sentence, with the place of
 *                                                                     the call
 *
 * The record is read only where a kernel that may complain was launched since the last wait. */
#include "backend/cuda/complain.h"

#include "base/error.h"

ts_status tsi_cuda_record_make(tsi_stream *stream)
{
    CUdeviceptr memory = 0;
    if (stream->complaint) return TS_OK;
    TSI_CUDA_TRY(stream->cuda, "a record", tsi_cu.alloc(&memory, sizeof(tsi_cuda_complaint)));
    stream->complaint = (tsi_cuda_complaint *)(uintptr_t)memory;
    TSI_CUDA_TRY(stream->cuda, "a record",
                 tsi_cu.set_bytes(memory, 0, sizeof(tsi_cuda_complaint), tsi_cuda_apart(stream)));
    return TS_OK;
}

ts_status tsi_cuda_ask(const tsi_kernel_io *io, int32_t kind, int64_t bound, bool cut,
                       tsi_cuda_asker *out)
{
    tsi_stream *stream = io->queue;
    TSI_TRY(tsi_cuda_record_make(stream));
    uint64_t serial = stream->asked++;
    stream->asking = true;
    if (stream->capture) stream->capture->asks = true;
    stream->call[serial % TSI_CUDA_CALLS] =
        (tsi_cuda_call){ io->op->name, io->rank ? io->rank->where : "" };
    bool alone = !io->rank || io->rank->world->rank_count == 1;
    *out = (tsi_cuda_asker){ .to = stream->complaint,
                             .serial = serial,
                             .bound = bound,
                             .kind = kind,
                             .cut = cut && !alone };
    return TS_OK;
}

static ts_status tell(const tsi_stream *stream, const tsi_cuda_complaint *c)
{
    static const char *const words[][3] = { [TSI_CUDA_BAD_INDEX] = { "index", "", " rows" },
                                            [TSI_CUDA_BAD_LABEL] = { "label", "", " classes" },
                                            [TSI_CUDA_BAD_GROUP] = { "group", "", " groups" },
                                            [TSI_CUDA_BAD_PLACE] = { "index", "extent ", "" } };
    bool known = stream->asked - c->serial <= TSI_CUDA_CALLS;
    tsi_cuda_call call = { "an operator", "" };
    if (known) call = stream->call[c->serial % TSI_CUDA_CALLS];
    bool placed = call.where && call.where[0];
    ts_blast blast = c->cut ? TS_BLAST_LOCAL : TS_BLAST_AGREED;
    if (c->kind == TSI_CUDA_BAD_NUMBER)
        return TSI_FAIL_BLAST(blast, TS_ERR_ARG, "%s: %lld is not in 0 .. %lld%s%s", call.op,
                              (long long)c->value, (long long)c->bound - 1,
                              placed ? ", called at " : "", placed ? call.where : "");
    if (c->kind == TSI_CUDA_BAD_END)
        return TSI_FAIL_BLAST(
            blast, TS_ERR_ARG, "%s: group %lld ends at row %lld, which is not in %lld .. %lld%s%s",
            call.op, (long long)c->place, (long long)c->value, (long long)c->least,
            (long long)c->bound, placed ? ", called at " : "", placed ? call.where : "");
    return TSI_FAIL_BLAST(blast, TS_ERR_ARG, "%s: %s %lld is out of range for %s%lld%s%s%s",
                          call.op, words[c->kind][0], (long long)c->value, words[c->kind][1],
                          (long long)c->bound, words[c->kind][2], placed ? ", called at " : "",
                          placed ? call.where : "");
}

ts_status tsi_cuda_complaint_tell(tsi_stream *stream)
{
    tsi_cuda_complaint seen = { 0 };
    if (!stream->asking) return TS_OK;
    stream->asking = false;
    CUdeviceptr record = tsi_cuda_pointer(stream->complaint);
    TSI_CUDA_TRY(stream->cuda, "a record",
                 tsi_cu.copy_out(&seen, record, sizeof seen, tsi_cuda_apart(stream)));
    TSI_CUDA_TRY(stream->cuda, "a wait", tsi_cu.stream_sync(stream->handle));
    if (seen.order == 0) return TS_OK;
    TSI_CUDA_TRY(stream->cuda, "a record",
                 tsi_cu.set_bytes(record, 0, sizeof seen, tsi_cuda_apart(stream)));
    return tell(stream, &seen);
}
