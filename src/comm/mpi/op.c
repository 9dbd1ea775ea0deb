/* SPDX-License-Identifier: Apache-2.0 */
/* op.c - one rank's side of an operation, as streams and jobs.
 *
 *   stream   what I let member p read: a range of my blocks (or the bytes themselves, if few)
 *   job      a range of my output and the streams it is made of: one is copied, several are folded
 *
 *   all_gather      out: `in` to everybody           jobs: one per member
 *   reduce_scatter  out: slice p of `in` to p        jobs: one, folding slice `self` of all members
 *   all_reduce      phase 0 as reduce_scatter over equal slices, phase 1 all_gather of the slices;
 *                   when it is small, everything goes to everybody and each folds for itself
 *   exchange        out: parts per peer              jobs: one per receive part, with its combines
 *
 * Sources of a fold stand in the order of the group, so every rank and engine gets the same bits.
 */
#include <stdio.h>
#include <string.h>

#include "comm/mpi/internal.h"

static int64_t block_bytes(const tsi_block *block, int64_t size)
{
    return tsi_range_elements(block) * size;
}

/* Keeps a squeezed copy of a block; the array was sized for it. */
static const tsi_block *keep_block(tsi_mpi_op *op, const tsi_block *block)
{
    tsi_block *kept = &op->block[op->block_count++];
    TSI_ASSERT((const void *)(kept + 1) <= (const void *)op->source);
    *kept = *block;
    tsi_squeeze(kept);
    return kept;
}

static tsi_job *add_job(tsi_mpi_op *op, const tsi_block *to, int32_t phase)
{
    tsi_job *job = &op->job[op->job_count++];
    TSI_ASSERT((const void *)(job + 1) <= (const void *)op->block);
    tsi_source *source = job == op->job ? op->source : job[-1].source + job[-1].source_count;
    *job = (tsi_job){ .to_block = *to, .phase = phase, .source = source };
    tsi_squeeze(&job->to_block);
    job->to = (tsi_range){ &job->to_block, 1, 0, block_bytes(to, op->size) };
    op->jobs_left[phase]++;
    return job;
}

static void add_source(tsi_mpi_op *op, tsi_job *job, int64_t member, int64_t offset)
{
    tsi_source *source = &job->source[job->source_count++];
    TSI_ASSERT((const char *)(source + 1) <= (const char *)op->memory + op->memory_bytes);
    *source = (tsi_source){ member, offset };
    op->peer[member].expect[job->phase] += job->to.bytes;
}

static void set_out(tsi_mpi_op *op, int64_t member, int phase, tsi_range range)
{
    op->peer[member].out[phase].range = range;
}

/* ---- the shapes of the collectives ------------------------------------------------------- */
static bool fold_kind(int32_t kind)
{
    return kind == TSI_COMM_REDUCE || kind == TSI_COMM_REDUCE_SCATTER ||
           kind == TSI_COMM_ALL_REDUCE;
}

/* Streams of everything but all_reduce and exchange. */
static void build_sends(const tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_work *work)
{
    tsi_block block;
    for (int64_t p = 0; p < op->count; p++) {
        if (!rank->mpi->host->send_block(work, p, &block)) continue;
        int64_t bytes = block_bytes(&block, op->size);
        if (bytes > 0) set_out(op, p, 0, (tsi_range){ keep_block(op, &block), 1, 0, bytes });
    }
}

static void build_moves(const tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_work *work)
{
    tsi_block block;
    for (int64_t i = 0; i < op->count; i++) {
        int64_t p = (op->self + i) % op->count; /* not all from the same member at once */
        if (p == op->self && work->print.kind == TSI_COMM_BROADCAST) continue;
        if (!rank->mpi->host->recv_block(work, p, &block)) continue;
        if (block_bytes(&block, op->size) > 0) add_source(op, add_job(op, &block, 0), p, 0);
    }
}

static void build_fold(tsi_mpi_op *op, const tsi_work *work)
{
    bool mine = work->print.kind != TSI_COMM_REDUCE || work->print.root == op->self;
    if (!mine || block_bytes(&work->out, op->size) == 0) return;
    tsi_job *job = add_job(op, &work->out, 0);
    job->fold = true;
    for (int64_t p = 0; p < op->count; p++)
        add_source(op, job, p, 0);
}

/* Slices of an all_reduce: equal but for the last ones, in whole cache lines. */
static tsi_range slice_of(const tsi_mpi_op *op, const tsi_block *block, int64_t bytes, int64_t p)
{
    int64_t line = 64 * op->size, lines = (bytes + line - 1) / line;
    int64_t each = (lines + op->count - 1) / op->count * line;
    int64_t begin = each * p < bytes ? each * p : bytes;
    int64_t end = begin + each < bytes ? begin + each : bytes;
    return (tsi_range){ block, 1, begin, end - begin };
}

static void build_all_reduce(const tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_work *work)
{
    int64_t bytes = block_bytes(&work->in, op->size);
    if (bytes == 0) return;
    const tsi_block *in = keep_block(op, &work->in), *out = keep_block(op, &work->out);
    op->two_phase = bytes > rank->mpi->small_max && op->count > 1;
    tsi_range whole = { in, 1, 0, bytes };
    tsi_range mine =
        op->two_phase ? slice_of(op, out, bytes, op->self) : (tsi_range){ out, 1, 0, bytes };
    tsi_job *fold = add_job(op, &work->out, 0);
    fold->to.base = mine.base;
    fold->to.bytes = mine.bytes;
    fold->fold = true;
    for (int64_t p = 0; p < op->count; p++) {
        set_out(op, p, 0, op->two_phase ? slice_of(op, in, bytes, p) : whole);
        add_source(op, fold, p, 0);
    }
    if (mine.bytes == 0) op->jobs_left[0] = op->job_count = 0;
    for (int64_t i = 1; op->two_phase && i < op->count; i++) {
        int64_t p = (op->self + i) % op->count;
        tsi_range theirs = slice_of(op, out, bytes, p);
        set_out(op, p, 1, mine);
        if (theirs.bytes == 0) continue;
        tsi_job *job = add_job(op, &work->out, 1);
        job->to.base = theirs.base;
        job->to.bytes = theirs.bytes;
        add_source(op, job, p, 0);
    }
}

/* The parts come in order of peers, so those of one peer lie together. */
static void build_exchange_sends(tsi_mpi_op *op, const tsi_work *work)
{
    for (int64_t i = 0, p = 0; p < op->count; p++) {
        tsi_range range = { &op->block[op->block_count], 0, 0, 0 };
        for (; i < work->send_count && work->send[i].peer == p; i++) {
            tsi_block block = tsi_part_block(&work->send[i], work->print.dtype);
            int64_t bytes = block_bytes(&block, op->size);
            if (bytes == 0) continue;
            keep_block(op, &block);
            range.count++;
            range.bytes += bytes;
        }
        set_out(op, p, 0, range);
    }
}

static void build_exchange(tsi_mpi_op *op, const tsi_work *work)
{
    build_exchange_sends(op, work);
    tsi_job *job = NULL;
    for (int64_t i = 0; i < work->recv_count; i++) {
        const ts_part *part = &work->recv[i];
        tsi_block block = tsi_part_block(part, work->print.dtype);
        int64_t bytes = block_bytes(&block, op->size);
        if (bytes == 0) continue;
        int64_t offset = op->peer[part->peer].expect[0];
        bool joins = part->combine && job != NULL;
        if (!joins) job = add_job(op, &block, 0);
        add_source(op, job, part->peer, offset);
        job->fold |= joins;
    }
}

static void build_pair(tsi_mpi_op *op, const tsi_work *work)
{
    bool send = work->print.kind == TSI_COMM_SEND;
    const tsi_block *mine = send ? &work->in : &work->out;
    int64_t bytes = block_bytes(mine, op->size);
    if (bytes == 0) return;
    if (send)
        set_out(op, 0, 0, (tsi_range){ keep_block(op, mine), 1, 0, bytes });
    else
        add_source(op, add_job(op, mine, 0), 0, 0);
}

/* ---- memory ------------------------------------------------------------------------------ */
/* One stretch: peers, jobs, blocks, sources, as many as the shapes above add at most. */
static bool reserve(tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_work *work)
{
    size_t n = (size_t)op->count, jobs = 2 * n + (size_t)work->recv_count;
    size_t sources = 3 * n + (size_t)work->recv_count;
    size_t blocks = n + 2 + (size_t)work->send_count;
    size_t bytes = n * sizeof *op->peer + jobs * sizeof *op->job + sources * sizeof *op->source +
                   blocks * sizeof *op->block;
    if (bytes > op->memory_bytes) {
        rank->mpi->host->core.free(op->memory);
        op->memory = rank->mpi->host->core.alloc(bytes);
        op->memory_bytes = op->memory != NULL ? bytes : 0;
        if (op->memory == NULL) return false;
    }
    op->peer = op->memory;
    op->job = (tsi_job *)(void *)(op->peer + n);
    op->block = (tsi_block *)(void *)(op->job + jobs);
    op->source = (tsi_source *)(void *)(op->block + blocks);
    memset(op->peer, 0, n * sizeof *op->peer);
    return true;
}

/* Which streams travel inside their message, and who will therefore say DONE. */
static void choose_inline(const tsi_mpi_rank *rank, tsi_mpi_op *op)
{
    int64_t head = (int64_t)(sizeof(tsi_message) + sizeof(tsi_fingerprint));
    for (int64_t p = 0; p < op->count; p++) {
        tsi_mpi_peer *peer = &op->peer[p];
        if (p == op->self) continue;
        for (int phase = 0; phase < 2; phase++) {
            tsi_stream_out *out = &peer->out[phase];
            out->is_inline = out->range.bytes <= tsi_wire_limit(rank, peer->rank) - head;
            if (out->range.bytes > 0 && !out->is_inline) peer->reads = true;
        }
        op->dones_due += peer->reads;
    }
}

bool tsi_op_build(tsi_mpi_rank *rank, tsi_mpi_op *op, tsi_work *work)
{
    int32_t kind = work->print.kind;
    bool pair = kind == TSI_COMM_SEND || kind == TSI_COMM_RECV;
    op->count = pair ? 1 : work->team->size;
    op->self = pair ? -1 : work->member;
    op->size = tsi_element_bytes(work->print.dtype);
    op->offers = op->dones = op->dones_due = op->job_count = op->block_count = 0;
    op->jobs_left[0] = op->jobs_left[1] = 0;
    op->two_phase = false;
    op->folding = NULL;
    op->peer_jobs_left = op->said_done = false;
    op->offers_due = pair ? kind == TSI_COMM_RECV : op->count - 1;
    if (!reserve(rank, op, work)) return false;
    op->work = work;
    for (int64_t p = 0; p < op->count; p++)
        op->peer[p].rank = pair ? work->team->rank[work->print.root] : work->team->rank[p];
    if (pair)
        build_pair(op, work);
    else if (kind == TSI_COMM_ALL_REDUCE)
        build_all_reduce(rank, op, work);
    else if (kind == TSI_COMM_EXCHANGE)
        build_exchange(op, work);
    else if (kind != TSI_COMM_BARRIER) {
        build_sends(rank, op, work);
        if (fold_kind(kind))
            build_fold(op, work);
        else
            build_moves(rank, op, work);
    }
    choose_inline(rank, op);
    return true;
}

/* ---- messages out ------------------------------------------------------------------------ */
static int32_t channel_for(const tsi_work *work)
{
    if (work->print.kind == TSI_COMM_SEND) return TSI_CHANNEL_TO_RECV;
    if (work->print.kind == TSI_COMM_RECV) return TSI_CHANNEL_TO_SEND;
    return work->print.channel;
}

tsi_message *tsi_op_begin(tsi_mpi_rank *rank, tsi_mpi_op *op, int64_t p, tsi_message_kind kind,
                          size_t payload)
{
    tsi_message *message = tsi_wire_begin(rank, op->peer[p].rank, payload);
    if (message == NULL) return NULL;
    message->kind = (uint16_t)kind;
    message->channel = channel_for(op->work);
    message->team = op->work->print.team;
    message->sequence = op->work->print.sequence;
    message->member = op->self < 0 ? 0 : op->self;
    return message;
}

/* OFFER and READY: what I let p read in a phase. */
static bool send_stream(tsi_mpi_rank *rank, tsi_mpi_op *op, int64_t p, int phase)
{
    const tsi_stream_out *out = &op->peer[p].out[phase];
    size_t print = phase == 0 ? sizeof(tsi_fingerprint) : 0;
    bool with_block = !out->is_inline && out->range.count == 1;
    size_t payload = print + (out->is_inline ? (size_t)out->range.bytes : 0) +
                     (with_block ? sizeof(tsi_block) : 0);
    tsi_message *message =
        tsi_op_begin(rank, op, p, phase == 0 ? TSI_MESSAGE_OFFER : TSI_MESSAGE_READY, payload);
    if (message == NULL) return false;
    char *at = (char *)(message + 1);
    if (print > 0) memcpy(at, &op->work->print, print);
    message->is_inline = out->is_inline;
    message->value[0] = out->range.bytes;
    message->value[1] = out->range.base;
    message->value[2] = (int64_t)(uintptr_t)out->range.block;
    message->value[3] = out->range.count;
    if (out->is_inline)
        tsi_pack(&out->range, 0, out->range.bytes, op->size, at + print);
    else if (with_block)
        memcpy(at + print, out->range.block, sizeof(tsi_block));
    tsi_wire_end(rank, message);
    return true;
}

bool tsi_op_offer(tsi_mpi_rank *rank, tsi_mpi_op *op)
{
    if (op->work->print.kind == TSI_COMM_RECV) return true;
    for (int64_t i = op->self < 0 ? 0 : 1; i < op->count; i++) {
        int64_t p = op->self < 0 ? 0 : (op->self + i) % op->count;
        if (!send_stream(rank, op, p, 0)) return false;
    }
    return true;
}

bool tsi_op_ready(tsi_mpi_rank *rank, tsi_mpi_op *op)
{
    for (int64_t i = 1; i < op->count; i++) {
        int64_t p = (op->self + i) % op->count;
        if (op->peer[p].out[1].range.bytes > 0 && !send_stream(rank, op, p, 1)) return false;
    }
    return true;
}

bool tsi_op_done(tsi_mpi_rank *rank, tsi_mpi_op *op)
{
    for (int64_t p = 0; p < op->count; p++) {
        if (!op->peer[p].read) continue;
        tsi_message *message = tsi_op_begin(rank, op, p, TSI_MESSAGE_DONE, 0);
        if (message == NULL) return false;
        tsi_wire_end(rank, message);
    }
    return true;
}

/* ---- messages in ------------------------------------------------------------------------- */
static bool accept_stream(tsi_mpi_rank *rank, tsi_mpi_op *op, int64_t p, int phase,
                          const tsi_message *message, tsi_parcel **parcel)
{
    tsi_mpi_peer *peer = &op->peer[p];
    tsi_stream_in *in = &peer->in[phase];
    size_t print = phase == 0 ? sizeof(tsi_fingerprint) : 0;
    const char *payload = (const char *)(message + 1) + print;
    in->known = true;
    in->range = (tsi_range){ NULL, message->value[3], message->value[1], message->value[0] };
    in->list = (uint64_t)message->value[2];
    if (in->range.bytes == 0) return true;
    if (!message->is_inline) {
        peer->read = true;
        if (in->range.count != 1) return true;
        memcpy(&in->one, payload, sizeof in->one);
        in->range.block = &in->one;
        return true;
    }
    if (*parcel == NULL) {
        *parcel = tsi_parcel_make(rank->mpi, message->bytes);
        if (*parcel == NULL) {
            tsi_poison_memory(rank, "data that came with a message");
            return false;
        }
        memcpy(&(*parcel)->message, message, message->bytes);
    }
    in->parcel = *parcel;
    in->data = (const char *)(&(*parcel)->message + 1) + print;
    *parcel = NULL;
    return true;
}

/* The first thing that differs, as a phrase. */
static const char *difference(const tsi_fingerprint *a, const tsi_fingerprint *b, bool pair)
{
    if (a->kind != b->kind && !pair) return "they called different operations";
    if (a->sequence != b->sequence) return "they are at different numbers";
    if (a->dtype != b->dtype) return "dtypes differ";
    if (a->reduce != b->reduce && !pair) return "reductions differ";
    if (a->root != b->root && !pair) return "roots differ";
    if (a->count != b->count) return "counts differ";
    return "shapes or rows per member differ";
}

/* Does the peer's side fit mine? If not the world is poisoned with both sides' names. */
static bool agree(tsi_mpi_rank *rank, tsi_mpi_op *op, int64_t p, const tsi_message *message)
{
    const tsi_fingerprint *mine = &op->work->print, *a, *b;
    tsi_fingerprint theirs;
    memcpy(&theirs, message + 1, sizeof theirs);
    int64_t sent = message->value[0] / op->size, expected = op->peer[p].expect[0] / op->size;
    if (mine->hash == theirs.hash && sent == expected) return true;
    char what[160], first[256], second[256];
    if (mine->hash == theirs.hash)
        snprintf(what, sizeof what, "rank %lld sends %lld elements, rank %lld expects %lld",
                 (long long)theirs.rank, (long long)sent, (long long)mine->rank,
                 (long long)expected);
    else
        snprintf(what, sizeof what, "%s", difference(mine, &theirs, op->self < 0));
    a = mine->rank < theirs.rank ? mine : &theirs;
    b = mine->rank < theirs.rank ? &theirs : mine;
    rank->mpi->host->fingerprint_text(a, first, sizeof first);
    rank->mpi->host->fingerprint_text(b, second, sizeof second);
    tsi_poison_set(rank, TS_ERR_PEER, TSI_TWO_DISAGREE,
                   "ranks disagree, %s: rank %lld called %s, rank %lld called %s", what,
                   (long long)a->rank, first, (long long)b->rank, second);
    return false;
}

bool tsi_op_message(tsi_mpi_rank *rank, tsi_mpi_op *op, const tsi_message *message,
                    tsi_parcel *parcel)
{
    int64_t p = message->member < op->count && op->self >= 0 ? message->member : 0;
    bool good = true;
    switch ((tsi_message_kind)message->kind) {
    case TSI_MESSAGE_OFFER:
        good = agree(rank, op, p, message) && accept_stream(rank, op, p, 0, message, &parcel);
        op->peer[p].offered = good;
        op->offers += good;
        break;
    case TSI_MESSAGE_READY:
        good = accept_stream(rank, op, p, 1, message, &parcel);
        break;
    case TSI_MESSAGE_GET:
        good = tsi_serve_add(rank, op, p, message);
        break;
    case TSI_MESSAGE_DATA:
        good = tsi_get_data(rank, op, message);
        break;
    case TSI_MESSAGE_DONE:
        if (!op->peer[p].done) op->dones++;
        op->peer[p].done = true;
        break;
    case TSI_MESSAGE_SKIP:
    case TSI_MESSAGE_LEAVE:
    case TSI_MESSAGE_ABORT:
    case TSI_MESSAGE_RECOVER:
        break;
    }
    rank->mpi->host->core.free(parcel);
    return good;
}

/* ---- the end ----------------------------------------------------------------------------- */
/* `aborted`: requests may be open. What MPI still sends from is left to it. */
void tsi_op_clear(tsi_mpi_rank *rank, tsi_mpi_op *op, bool aborted)
{
    const tsi_host *host = rank->mpi->host;
    int64_t now = tsi_clock_ns();
    for (int64_t p = 0; op->stage != TSI_OP_IDLE && p < op->count; p++) {
        for (int phase = 0; phase < 2; phase++) {
            host->core.free(op->peer[p].in[phase].parcel);
            host->core.free(op->peer[p].in[phase].fetched_list);
        }
    }
    for (tsi_get *get; (get = op->gets) != NULL;) {
        op->gets = get->next;
        if (get->net)
            tsi_net_cancel(rank->mpi, &get->request, true, tsi_clock_ns() + TSI_CANCEL_NS);
        host->core.free(get->staging);
        host->core.free(get);
    }
    for (tsi_serve *serve; (serve = op->serves) != NULL;) {
        op->serves = serve->next;
        bool open = serve->net && serve->request != MPI_REQUEST_NULL;
        if (open) tsi_net_cancel(rank->mpi, &serve->request, false, now + TSI_SENT_NS);
        if (!open || !aborted) host->core.free(serve->staging);
        host->core.free(serve);
    }
    op->get_count = 0;
    op->stage = TSI_OP_IDLE;
    op->work = NULL;
}

void tsi_op_release(tsi_mpi_rank *rank, tsi_mpi_op *op)
{
    rank->mpi->host->core.free(op->fold_space);
    rank->mpi->host->core.free(op->memory);
    memset(op, 0, sizeof *op);
}
