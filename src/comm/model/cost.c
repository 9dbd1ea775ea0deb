/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c - what one operation costs the rank that calls it, as a pure function.
 *
 * Received bytes and messages are counted peer by peer, so uneven and empty blocks are exact:
 *
 *   all_gather, gather (root)   each peer's block
 *   all_to_all, exchange        what each peer sends me
 *   broadcast, scatter, recv    one block, from the root
 *   reduce_scatter              my block from each peer
 *   all_reduce                  a reduce_scatter by elements, then an all_gather of its result
 *   reduce (root)               each peer's array; the clock counts at most two arrays, as engines
 *                               that cut the array into parts need
 *
 * INV: one walk over the members, no allocation, so a group of 100,000 costs a fraction of a
 * millisecond. */
#include "base/intmath.h"
#include "comm/model/model_engine.h"

/* Traffic of one operation: what is received, and what the clock must wait for. */
typedef struct traffic {
    int64_t messages[TSI_LINK_COUNT], bytes[TSI_LINK_COUNT]; /* received */
    int64_t sent[TSI_LINK_COUNT];  /* bytes, where sending is the longer side */
    int64_t peers[TSI_LINK_COUNT]; /* other members by class */
} traffic;

static int link_to(const tsi_model_machine *machine, const tsi_work *work, int64_t peer)
{
    int64_t mine = work->team->rank[work->member] / machine->ranks_per_node;
    int64_t theirs = work->team->rank[peer] / machine->ranks_per_node;
    return mine == theirs ? TSI_LINK_NODE : TSI_LINK_NETWORK;
}

static int64_t element_bytes(const tsi_work *work)
{
    return (int64_t)ts_dtype_size((ts_dtype)work->print.dtype);
}

/* Bytes of one row (an index of dim 0) of a block; a scalar is one row. */
static int64_t row_bytes(const tsi_work *work, const tsi_block *block)
{
    int64_t bytes = element_bytes(work);
    for (int32_t dim = 1; dim < block->ndim; dim++)
        bytes *= block->extent[dim];
    return bytes;
}

static int64_t block_bytes(const tsi_work *work, const tsi_block *block)
{
    return block->dtype != 0 ? tsi_block_count(block) * element_bytes(work) : 0;
}

static int64_t rows_of(const tsi_block *block)
{
    return block->ndim > 0 ? block->extent[0] : 1;
}

/* Rows of member `peer` of an array that is split among the members. */
static int64_t split_rows(const tsi_work *work, const int64_t *rows, const tsi_block *whole,
                          int64_t peer)
{
    return rows != NULL ? rows[peer] : rows_of(whole) / work->team->size;
}

static void receive(traffic *t, int link, int64_t bytes)
{
    if (bytes <= 0) return;
    t->messages[link]++;
    t->bytes[link] += bytes;
}

/* Elements of the part of an array of `count` that member i reduces: the first count % n parts are
 * one longer. */
static int64_t part_of(int64_t count, int64_t n, int64_t i)
{
    return count / n + (i < count % n);
}

static void count_all_reduce(const tsi_work *work, int64_t peer, int link, traffic *t)
{
    int64_t count = tsi_block_count(&work->in), n = work->team->size, size = element_bytes(work);
    receive(t, link, part_of(count, n, work->member) * size);
    receive(t, link, part_of(count, n, peer) * size);
}

/* What comes from one other member. */
static void count_peer(const tsi_work *work, int64_t peer, int link, traffic *t)
{
    bool from_root = peer == work->print.root, at_root = work->member == work->print.root;
    switch ((tsi_comm_kind)work->print.kind) {
    case TSI_COMM_BARRIER:
        return;
    case TSI_COMM_BROADCAST:
        if (from_root)
            receive(t, link, block_bytes(work, &work->out));
        else if (at_root && t->sent[link] == 0)
            t->sent[link] = block_bytes(work, &work->out);
        return;
    case TSI_COMM_SCATTER:
        if (from_root)
            receive(t, link, block_bytes(work, &work->out));
        else if (at_root) {
            t->sent[link] +=
                split_rows(work, work->send_rows, &work->in, peer) * row_bytes(work, &work->in);
        }
        return;
    case TSI_COMM_GATHER:
        if (at_root) {
            receive(t, link,
                    split_rows(work, work->recv_rows, &work->out, peer) *
                        row_bytes(work, &work->out));
        } else if (from_root) {
            t->sent[link] += block_bytes(work, &work->in);
        }
        return;
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_ALL_TO_ALL:
        receive(t, link,
                split_rows(work, work->recv_rows, &work->out, peer) * row_bytes(work, &work->out));
        return;
    case TSI_COMM_REDUCE:
        if (at_root)
            receive(t, link, block_bytes(work, &work->in));
        else if (from_root)
            t->sent[link] += block_bytes(work, &work->in);
        return;
    case TSI_COMM_ALL_REDUCE:
        count_all_reduce(work, peer, link, t);
        return;
    case TSI_COMM_REDUCE_SCATTER:
        receive(t, link, block_bytes(work, &work->out));
        return;
    case TSI_COMM_SEND:
        if (from_root) t->sent[link] += block_bytes(work, &work->in);
        return;
    case TSI_COMM_RECV:
        if (from_root) receive(t, link, block_bytes(work, &work->out));
        return;
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_KIND_COUNT:
        return;
    }
}

static int64_t part_bytes(const tsi_work *work, const ts_part *part)
{
    return element_bytes(work) * tsi_part_elements(part);
}

/* Parts from one peer that follow each other travel as one message. */
static void count_exchange(const tsi_model_machine *machine, const tsi_work *work, traffic *t)
{
    for (int64_t i = 0; i < work->recv_count;) {
        int64_t peer = work->recv[i].peer, bytes = 0;
        for (; i < work->recv_count && work->recv[i].peer == peer; i++) {
            bytes += part_bytes(work, &work->recv[i]);
        }
        if (peer != work->member) receive(t, link_to(machine, work, peer), bytes);
    }
    for (int64_t i = 0; i < work->send_count; i++) {
        int64_t peer = work->send[i].peer;
        if (peer != work->member)
            t->sent[link_to(machine, work, peer)] += part_bytes(work, &work->send[i]);
    }
}

/* Depth of a binary tree over n peers and oneself. */
static int depth_of(int64_t peers)
{
    int depth = 0;
    for (int64_t reach = 1; reach < peers + 1; reach *= 2)
        depth++;
    return depth;
}

/* Is the latency that of a tree over the group, or of separate messages? */
static bool is_tree(tsi_comm_kind kind)
{
    switch (kind) {
    case TSI_COMM_BARRIER:
    case TSI_COMM_BROADCAST:
    case TSI_COMM_SCATTER:
    case TSI_COMM_GATHER:
    case TSI_COMM_ALL_GATHER:
    case TSI_COMM_REDUCE:
    case TSI_COMM_ALL_REDUCE:
    case TSI_COMM_REDUCE_SCATTER:
        return true;
    case TSI_COMM_ALL_TO_ALL:
    case TSI_COMM_EXCHANGE:
    case TSI_COMM_SEND:
    case TSI_COMM_RECV:
    case TSI_COMM_KIND_COUNT:
        return false;
    }
    return false;
}

static double seconds_of(const tsi_model_machine *machine, const tsi_work *work, const traffic *t)
{
    double seconds = 0;
    tsi_comm_kind kind = (tsi_comm_kind)work->print.kind;
    int phases = kind == TSI_COMM_ALL_REDUCE || kind == TSI_COMM_REDUCE ? 2 : 1;
    for (int link = 0; link < TSI_LINK_COUNT; link++) {
        int64_t bytes = tsi_max_i64(t->bytes[link], t->sent[link]);
        if (kind == TSI_COMM_REDUCE) bytes = tsi_min_i64(bytes, 2 * block_bytes(work, &work->in));
        if (is_tree(kind)) {
            seconds += phases * depth_of(t->peers[link]) * machine->latency_s[link];
        } else if (bytes > 0) {
            seconds += machine->latency_s[link] + machine->overhead_s * (double)t->messages[link];
        }
        seconds += (double)bytes / machine->bandwidth[link];
    }
    return seconds;
}

void tsi_model_cost(const tsi_model_machine *machine, const tsi_work *work, tsi_model_counts *out)
{
    traffic t = { 0 };
    tsi_comm_kind kind = (tsi_comm_kind)work->print.kind;
    if (kind == TSI_COMM_EXCHANGE) {
        count_exchange(machine, work, &t);
    } else {
        for (int64_t peer = 0; peer < work->team->size; peer++) {
            if (peer == work->member) continue;
            int link = link_to(machine, work, peer);
            t.peers[link]++;
            count_peer(work, peer, link, &t);
        }
    }
    out->operations++;
    out->seconds += seconds_of(machine, work, &t);
    for (int link = 0; link < TSI_LINK_COUNT; link++) {
        out->messages[link] += t.messages[link];
        out->bytes[link] += t.bytes[link];
    }
}
