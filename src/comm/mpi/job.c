/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - runs the jobs of an operation: copies and folds, and serves what peers ask for.
 *
 * A source is my own blocks, bytes that came with a message, a peer's memory that can be read, or
 * else bytes that are asked for: GET, answered by DATA through the ring or by MPI. Folds go chunk
 * by chunk through memory of a cache's size; asked-for chunks are double-buffered.
 *
 * INV: a chunk of a fold is computed once, from all its sources in order, with one rounding. */
#include <string.h>

#include "comm/mpi/internal.h"

typedef enum source_way { WAY_SELF, WAY_INLINE, WAY_PULL, WAY_GET, WAY_UNKNOWN } source_way;

static source_way way_of(const tsi_mpi_rank *rank, const tsi_mpi_op *op, const tsi_job *job,
                         const tsi_source *source)
{
    if (source->member == op->self) return WAY_SELF;
    const tsi_stream_in *in = &op->peer[source->member].in[job->phase];
    if (!in->known) return WAY_UNKNOWN;
    if (in->data != NULL) return WAY_INLINE;
    return tsi_pull_direct(rank, op->peer[source->member].rank) ? WAY_PULL : WAY_GET;
}

static bool lost(tsi_mpi_rank *rank, const tsi_mpi_op *op, int64_t member)
{
    tsi_poison_set(rank, TS_ERR_PEER, op->peer[member].rank,
                   "rank %lld is gone: its memory can no longer be read",
                   (long long)op->peer[member].rank);
    return false;
}

/* The peer's list of blocks, if it was too long for the message. */
static bool fetch_list(tsi_mpi_rank *rank, tsi_mpi_op *op, int64_t member, int32_t phase)
{
    tsi_stream_in *in = &op->peer[member].in[phase];
    if (in->range.block != NULL) return true;
    tsi_block *list = rank->mpi->host->core.alloc(sizeof *list * (size_t)in->range.count);
    if (list == NULL) {
        tsi_poison_memory(rank, "a peer's list of blocks");
        return false;
    }
    in->fetched_list = list;
    if (!tsi_pull_list(rank, op->peer[member].rank, in->list, in->range.count, list))
        return lost(rank, op, member);
    in->range.block = list;
    return true;
}

static void job_finished(tsi_mpi_op *op, tsi_job *job)
{
    op->jobs_left[job->phase]--;
}

/* ---- asking ------------------------------------------------------------------------------ */
/* Asks for bytes of a source; they go to `to`, or into the job's range. */
static bool ask(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_job *job, const tsi_source *source,
                int64_t offset, int64_t bytes, char *to)
{
    tsi_mpi *mpi = rank->mpi;
    int64_t peer = op->peer[source->member].rank;
    tsi_get *get = mpi->host->core.alloc(sizeof *get);
    if (get == NULL) {
        tsi_poison_memory(rank, "a transfer");
        return false;
    }
    *get = (tsi_get){ .job = job,
                      .member = source->member,
                      .offset = offset,
                      .bytes = bytes,
                      .to = to,
                      .request = MPI_REQUEST_NULL,
                      .net = !tsi_wire_near(rank, peer) };
    int tag = 0;
    bool good = true;
    if (get->net) {
        if (get->to == NULL) get->to = tsi_range_flat(&job->to, offset, bytes, op->size);
        if (get->to == NULL) get->to = get->staging = mpi->host->core.alloc((size_t)bytes);
        tag = tsi_net_tag(mpi);
        good = get->to != NULL && tsi_net_irecv(mpi, get->to, bytes, peer, tag, &get->request);
    }
    tsi_message *message = good ? tsi_op_begin(rank, op, source->member, TSI_MESSAGE_GET, 0) : NULL;
    if (message == NULL) {
        if (get->request != MPI_REQUEST_NULL)
            tsi_net_cancel(mpi, &get->request, true, tsi_clock_ns() + TSI_CANCEL_NS);
        mpi->host->core.free(get->staging);
        mpi->host->core.free(get);
        tsi_poison_memory(rank, "a transfer");
        return false;
    }
    message->value[0] = source->offset + offset;
    message->value[1] = bytes;
    message->value[2] = (int64_t)(intptr_t)get;
    message->value[3] = tag;
    message->value[4] = job->phase;
    tsi_wire_end(rank, message);
    get->next = op->gets;
    op->gets = get;
    return true;
}

/* Data of a GET through the ring. */
bool tsi_get_data(tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_message *message)
{
    tsi_get *get = op->gets;
    while (get != NULL && (int64_t)(intptr_t)get != message->value[0])
        get = get->next;
    if (get == NULL) {
        tsi_poison_set(rank, TS_ERR_INTERNAL, message->from,
                       "rank %lld got data it did not ask for", (long long)rank->index);
        return false;
    }
    int64_t offset = message->value[1], bytes = message->value[2];
    const char *data = (const char *)(message + 1);
    if (get->to != NULL)
        memcpy(get->to + offset, data, (size_t)bytes);
    else
        tsi_unpack(&get->job->to, get->offset + offset, bytes, op->size, data);
    get->arrived += bytes;
    return true;
}

static void free_get(tsi_mpi_rank *rank, tsi_get **link)
{
    tsi_get *get = *link;
    *link = get->next;
    rank->mpi->host->core.free(get->staging);
    rank->mpi->host->core.free(get);
}

/* Finished gets of a copy count as moved; those of a fold stay until their chunk is folded. */
static void collect_gets(tsi_mpi_rank *rank, tsi_mpi_op *op, bool *progress)
{
    for (tsi_get **link = &op->gets; *link != NULL;) {
        tsi_get *get = *link;
        if (get->net && get->arrived < get->bytes && tsi_net_test(rank->mpi, &get->request)) {
            get->arrived = get->bytes;
            if (get->staging != NULL)
                tsi_unpack(&get->job->to, get->offset, get->bytes, op->size, get->staging);
            *progress = true;
        }
        if (get->arrived < get->bytes || get->job->fold) {
            link = &get->next;
            continue;
        }
        get->job->moved += get->bytes;
        if (get->job->moved == get->job->to.bytes) job_finished(op, get->job);
        *progress = true;
        free_get(rank, link);
    }
}

/* ---- copies ------------------------------------------------------------------------------ */
static bool ask_more(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_job *job, bool *progress)
{
    while (job->asked < job->to.bytes &&
           job->asked - job->moved < (int64_t)TSI_GETS_MAX * TSI_PIECE_BYTES) {
        int64_t bytes = job->to.bytes - job->asked;
        if (bytes > TSI_PIECE_BYTES) bytes = TSI_PIECE_BYTES;
        if (!ask(rank, op, job, job->source, job->asked, bytes, NULL)) return false;
        job->asked += bytes;
        *progress = true;
    }
    return true;
}

static bool copy_step(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_job *job, bool *progress)
{
    const tsi_source *source = job->source;
    tsi_mpi_peer *peer = &op->peer[source->member];
    tsi_stream_in *in = &peer->in[job->phase];
    int64_t left = job->to.bytes - job->moved;
    switch (way_of(rank, op, job, source)) {
    case WAY_UNKNOWN:
        return true;
    case WAY_GET:
        return ask_more(rank, op, job, progress);
    case WAY_INLINE:
        tsi_unpack(&job->to, 0, left, op->size, in->data + source->offset);
        break;
    case WAY_SELF:
        if (left > TSI_SELF_BYTES)
            left = TSI_SELF_BYTES; /* peers' messages are looked at in between */
        tsi_pull(rank, rank->index, &peer->out[0].range, source->offset + job->moved, &job->to,
                 job->moved, left, op->size);
        break;
    case WAY_PULL:
        if (!fetch_list(rank, op, source->member, job->phase)) return false;
        if (left > TSI_STEP_BYTES) left = TSI_STEP_BYTES;
        if (!tsi_pull(rank, peer->rank, &in->range, source->offset + job->moved, &job->to,
                      job->moved, left, op->size))
            return lost(rank, op, source->member);
        break;
    }
    job->moved += left;
    *progress = true;
    if (job->moved == job->to.bytes) job_finished(op, job);
    return true;
}

/* ---- folds ------------------------------------------------------------------------------- */
static bool asks(const tsi_mpi_rank *rank, const tsi_mpi_op *op, const tsi_job *job)
{
    for (int64_t s = 0; s < job->source_count; s++)
        if (way_of(rank, op, job, &job->source[s]) == WAY_GET) return true;
    return false;
}

/* Memory for a chunk of each source and of the result, twice where bytes are asked for. */
static bool fold_reserve(tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_job *job, bool asking)
{
    int64_t total = asking ? 4 << 20 : 512 << 10, most = asking ? 256 << 10 : 128 << 10;
    int64_t chunk = total / (job->source_count + 1) & ~(int64_t)4095;
    if (chunk > most) chunk = most;
    if (chunk < 4096) chunk = 4096;
    int64_t bytes = chunk * (job->source_count + 1) * (asking ? 2 : 1) +
                    (int64_t)(sizeof(tsi_block) + sizeof(void *)) * (job->source_count + 1);
    op->fold_chunk = chunk;
    if (bytes <= op->fold_bytes) return true;
    rank->mpi->host->core.free(op->fold_space);
    op->fold_space = rank->mpi->host->core.alloc((size_t)bytes);
    op->fold_bytes = op->fold_space != NULL ? bytes : 0;
    if (op->fold_space == NULL) tsi_poison_memory(rank, "a reduction");
    return op->fold_space != NULL;
}

static tsi_block *fold_blocks(const tsi_mpi_op *op)
{
    return (tsi_block *)(void *)op->fold_space;
}

static char *fold_chunk(const tsi_mpi_op *op, const tsi_job *job, int64_t source, int64_t offset)
{
    int64_t n = job->source_count + 1, set = offset / op->fold_chunk % 2;
    int64_t head = (int64_t)(sizeof(tsi_block) + sizeof(void *)) * n;
    bool two = op->fold_bytes - head >= 2 * n * op->fold_chunk;
    return op->fold_space + head + ((two ? set * n : 0) + source) * op->fold_chunk;
}

static bool ask_chunks(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_job *job, bool *progress)
{
    while (job->asked < job->to.bytes && job->asked - job->moved < 2 * op->fold_chunk) {
        int64_t bytes = job->to.bytes - job->asked;
        if (bytes > op->fold_chunk) bytes = op->fold_chunk;
        for (int64_t s = 0; s < job->source_count; s++) {
            if (way_of(rank, op, job, &job->source[s]) != WAY_GET) continue;
            char *to = fold_chunk(op, job, s, job->asked);
            if (!ask(rank, op, job, &job->source[s], job->asked, bytes, to)) return false;
        }
        job->asked += bytes;
        *progress = true;
    }
    return true;
}

/* Have all asked-for bytes of the chunk come? Then they are no longer counted. */
static bool chunk_came(tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_job *job)
{
    for (tsi_get *get = op->gets; get != NULL; get = get->next)
        if (get->job == job && get->offset == job->moved && get->arrived < get->bytes) return false;
    for (tsi_get **link = &op->gets; *link != NULL;) {
        if ((*link)->job == job && (*link)->offset == job->moved)
            free_get(rank, link);
        else
            link = &(*link)->next;
    }
    return true;
}

/* Where `bytes` of source s from the job's position on lie: in place, or in its chunk after a copy.
 */
static const char *chunk_source(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_job *job, int64_t s,
                                int64_t bytes)
{
    const tsi_source *source = &job->source[s];
    tsi_mpi_peer *peer = &op->peer[source->member];
    int64_t offset = source->offset + job->moved;
    char *chunk = fold_chunk(op, job, s, job->moved), *flat;
    switch (way_of(rank, op, job, source)) {
    case WAY_SELF:
        flat = tsi_range_flat(&peer->out[0].range, offset, bytes, op->size);
        if (flat != NULL) return flat;
        tsi_pack(&peer->out[0].range, offset, bytes, op->size, chunk);
        return chunk;
    case WAY_INLINE:
        return peer->in[job->phase].data + offset;
    case WAY_PULL:
        if (!fetch_list(rank, op, source->member, job->phase)) return NULL;
        if (!tsi_pull_flat(rank, peer->rank, &peer->in[job->phase].range, offset, bytes, op->size,
                           chunk)) {
            lost(rank, op, source->member);
            return NULL;
        }
        return chunk;
    case WAY_GET:
    case WAY_UNKNOWN:
        break;
    }
    return chunk;
}

static tsi_block flat_block(const void *data, int32_t dtype, int64_t elements)
{
    return (tsi_block){ .data = (void *)(uintptr_t)data,
                        .dtype = dtype,
                        .ndim = 1,
                        .extent = { elements },
                        .stride = { 1 } };
}

static bool fold_chunk_now(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_job *job, int64_t bytes)
{
    const tsi_device *cpu = rank->mpi->host->cpu;
    const tsi_fingerprint *print = &op->work->print;
    int64_t n = job->source_count, elements = bytes / op->size;
    tsi_block *block = fold_blocks(op);
    const tsi_block **list = (const tsi_block **)(void *)(block + n + 1);
    for (int64_t s = 0; s < n; s++) {
        const char *data = chunk_source(rank, op, job, s, bytes);
        if (data == NULL) return false;
        block[s] = flat_block(data, print->dtype, elements);
        list[s] = &block[s];
    }
    char *flat = tsi_range_flat(&job->to, job->moved, bytes, op->size);
    char *to = flat != NULL ? flat : fold_chunk(op, job, n, job->moved);
    block[n] = flat_block(to, print->dtype, elements);
    ts_status status =
        cpu->fold(cpu, &block[n], list, n, (ts_reduce)print->reduce, op->work->avg_count, NULL);
    if (status != TS_OK) {
        tsi_poison_set(rank, status, rank->index, "rank %lld could not reduce",
                       (long long)rank->index);
        return false;
    }
    if (flat == NULL) tsi_unpack(&job->to, job->moved, bytes, op->size, to);
    return true;
}

static bool fold_step(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_job *job, bool *progress)
{
    bool asking = asks(rank, op, job);
    if (op->folding != NULL && op->folding != job) return true;
    op->folding = job;
    if (job->moved == 0 && job->asked == 0 && !fold_reserve(rank, op, job, asking)) return false;
    for (int64_t done = 0; done < TSI_STEP_BYTES && job->moved < job->to.bytes;) {
        if (asking && !ask_chunks(rank, op, job, progress)) return false;
        if (asking && !chunk_came(rank, op, job)) return true;
        int64_t bytes = job->to.bytes - job->moved;
        if (bytes > op->fold_chunk) bytes = op->fold_chunk;
        if (!fold_chunk_now(rank, op, job, bytes)) return false;
        job->moved += bytes;
        done += bytes;
        *progress = true;
    }
    if (job->moved == job->to.bytes) {
        job_finished(op, job);
        op->folding = NULL;
    }
    return true;
}

static bool is_own_copy(const tsi_mpi_op *op, const tsi_job *job)
{
    return !job->fold && job->source->member == op->self;
}

/* One step of each job of a phase that reads peers (own: of each that copies my own blocks). */
static bool run_some(tsi_mpi_rank *rank, tsi_mpi_op *op, int32_t phase, bool own, bool *progress)
{
    op->peer_jobs_left = false;
    for (int64_t j = 0; j < op->job_count && op->jobs_left[phase] > 0; j++) {
        tsi_job *job = &op->job[j];
        if (job->phase != phase || job->moved == job->to.bytes) continue;
        if (is_own_copy(op, job) != own) continue;
        bool good =
            job->fold ? fold_step(rank, op, job, progress) : copy_step(rank, op, job, progress);
        if (!good) return false;
        op->peer_jobs_left |= job->moved < job->to.bytes;
    }
    return true;
}

/* Moves jobs of a phase forward: what peers wait for first, my own blocks when there is nothing to
 * read or not yet all offers are here. false: the world is poisoned. */
bool tsi_jobs_run(tsi_mpi_rank *rank, tsi_mpi_op *op, int32_t phase, bool *progress)
{
    bool verified = op->offers == op->offers_due, moved = false;
    if (op->gets != NULL) collect_gets(rank, op, &moved);
    if (verified && !run_some(rank, op, phase, false, &moved)) return false;
    *progress |= moved;
    if (verified && op->peer_jobs_left && moved) return true;
    if (verified && !op->peer_jobs_left && !op->two_phase && !op->said_done) {
        op->said_done = true; /* peers need not wait for my own copies */
        if (!tsi_op_done(rank, op)) return false;
    }
    bool left = op->peer_jobs_left;
    bool good = run_some(rank, op, phase, true, progress);
    op->peer_jobs_left = left;
    return good;
}

/* ---- serving ----------------------------------------------------------------------------- */
bool tsi_serve_add(tsi_mpi_rank *rank, tsi_mpi_op *op, int64_t member, const tsi_message *message)
{
    tsi_mpi *mpi = rank->mpi;
    tsi_serve *serve = mpi->host->core.alloc(sizeof *serve);
    if (serve == NULL) {
        tsi_poison_memory(rank, "a transfer");
        return false;
    }
    *serve = (tsi_serve){ .member = member,
                          .offset = message->value[0],
                          .bytes = message->value[1],
                          .id = message->value[2],
                          .phase = message->value[4],
                          .request = MPI_REQUEST_NULL,
                          .net = !tsi_wire_near(rank, message->from) };
    serve->next = op->serves;
    op->serves = serve;
    if (!serve->net) return true;
    const tsi_range *range = &op->peer[member].out[serve->phase].range;
    char *from = tsi_range_flat(range, serve->offset, serve->bytes, op->size);
    if (from == NULL) {
        from = serve->staging = mpi->host->core.alloc((size_t)serve->bytes);
        if (from != NULL) tsi_pack(range, serve->offset, serve->bytes, op->size, from);
    }
    int tag = (int)message->value[3];
    if (from != NULL && tsi_net_isend(mpi, from, serve->bytes, message->from, tag, &serve->request))
        return true;
    tsi_poison_memory(rank, "a transfer");
    return false;
}

/* Fills the ring with the bytes a peer asked for, as far as there is room. */
static bool serve_ring(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_serve *serve, bool *progress)
{
    int64_t to = op->peer[serve->member].rank;
    int64_t most = (tsi_wire_limit(rank, to) - (int64_t)sizeof(tsi_message)) & ~(int64_t)15;
    const tsi_range *range = &op->peer[serve->member].out[serve->phase].range;
    while (serve->sent < serve->bytes) {
        int64_t bytes = serve->bytes - serve->sent;
        if (bytes > most) bytes = most;
        if (!tsi_wire_room(rank, to, (size_t)bytes)) return true;
        tsi_message *message =
            tsi_op_begin(rank, op, serve->member, TSI_MESSAGE_DATA, (size_t)bytes);
        if (message == NULL) return false;
        message->value[0] = serve->id;
        message->value[1] = serve->sent;
        message->value[2] = bytes;
        tsi_pack(range, serve->offset + serve->sent, bytes, op->size, (char *)(message + 1));
        tsi_wire_end(rank, message);
        serve->sent += bytes;
        *progress = true;
    }
    return true;
}

bool tsi_serve_run(tsi_mpi_rank *rank, tsi_mpi_op *op, bool *progress)
{
    for (tsi_serve **link = &op->serves; *link != NULL;) {
        tsi_serve *serve = *link;
        bool done;
        if (serve->net) {
            done = tsi_net_test(rank->mpi, &serve->request);
        } else {
            if (!serve_ring(rank, op, serve, progress)) return false;
            done = serve->sent == serve->bytes;
        }
        if (!done) {
            link = &serve->next;
            continue;
        }
        *link = serve->next;
        rank->mpi->host->core.free(serve->staging);
        rank->mpi->host->core.free(serve);
        *progress = true;
    }
    return true;
}
