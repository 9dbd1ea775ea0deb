/* SPDX-License-Identifier: Apache-2.0 */
/* frontier.c - hash table and lazy binary heap of the searches. Memory is three arrays that double.
 */
#include "plan/frontier.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"

enum { FIRST_NODES = 256 };

bool tsi_frontier_open(tsi_frontier *f)
{
    memset(f, 0, sizeof *f);
    f->node_capacity = FIRST_NODES;
    f->heap_capacity = 2 * FIRST_NODES;
    f->table_mask = 2 * FIRST_NODES - 1;
    f->node = tsi_alloc_array(f->node_capacity, sizeof *f->node);
    f->heap = tsi_alloc_array(f->heap_capacity, sizeof *f->heap);
    f->table = tsi_calloc((size_t)f->table_mask + 1, sizeof *f->table);
    if (f->node && f->heap && f->table) return true;
    tsi_frontier_close(f);
    return false;
}

void tsi_frontier_close(tsi_frontier *f)
{
    tsi_free(f->node);
    tsi_free(f->heap);
    tsi_free(f->table);
    memset(f, 0, sizeof *f);
}

static inline uint32_t slot_of(tsi_state state)
{
    uint64_t h = state * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return (uint32_t)(h >> 32);
}

static bool grow_nodes(tsi_frontier *f)
{
    uint32_t capacity = f->node_capacity * 2;
    tsi_node *node = tsi_realloc(f->node, (size_t)capacity * sizeof *node);
    if (!node) return false;
    f->node = node;
    f->node_capacity = capacity;
    uint32_t mask = 2 * capacity - 1;
    uint32_t *table = tsi_calloc((size_t)mask + 1, sizeof *table);
    if (!table) return false;
    for (uint32_t i = 0; i < f->node_count; i++) {
        uint32_t slot = slot_of(f->node[i].state) & mask;
        while (table[slot])
            slot = (slot + 1) & mask;
        table[slot] = i + 1;
    }
    tsi_free(f->table);
    f->table = table;
    f->table_mask = mask;
    return true;
}

static inline bool before(const tsi_heap_entry *a, const tsi_heap_entry *b)
{
    if (a->key[0] != b->key[0]) return a->key[0] < b->key[0];
    if (a->key[1] != b->key[1]) return a->key[1] < b->key[1];
    return a->entry < b->entry;
}

static bool push(tsi_frontier *f, const tsi_heap_entry *entry)
{
    if (f->heap_count == f->heap_capacity) {
        tsi_heap_entry *heap = tsi_realloc(f->heap, 2 * (size_t)f->heap_capacity * sizeof *heap);
        if (!heap) return false;
        f->heap = heap;
        f->heap_capacity *= 2;
    }
    uint32_t at = f->heap_count++;
    while (at > 0) {
        uint32_t up = (at - 1) / 2;
        if (!before(entry, &f->heap[up])) break;
        f->heap[at] = f->heap[up];
        at = up;
    }
    f->heap[at] = *entry;
    return true;
}

static void pop_top(tsi_frontier *f)
{
    TSI_ASSERT(f->heap_count > 0);
    tsi_heap_entry last = f->heap[--f->heap_count];
    uint32_t at = 0, count = f->heap_count;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && before(&f->heap[child + 1], &f->heap[child])) child++;
        if (!before(&f->heap[child], &last)) break;
        f->heap[at] = f->heap[child];
        at = child;
    }
    if (count > 0) f->heap[at] = last;
}

bool tsi_frontier_relax(tsi_frontier *f, tsi_state state, uint32_t parent, int32_t kind,
                        uint32_t axes, const double cost[2], const double h[2])
{
    uint32_t slot = slot_of(state) & f->table_mask;
    while (f->table[slot] && f->node[f->table[slot] - 1].state != state) {
        slot = (slot + 1) & f->table_mask;
    }
    tsi_node *node;
    if (f->table[slot]) {
        node = &f->node[f->table[slot] - 1];
        if (node->cost[0] < cost[0] || (node->cost[0] == cost[0] && node->cost[1] <= cost[1]))
            return true;
    } else {
        if (f->node_count == f->node_capacity) {
            if (!grow_nodes(f)) return false;
            return tsi_frontier_relax(f, state, parent, kind, axes, cost, h);
        }
        f->table[slot] = f->node_count + 1;
        node = &f->node[f->node_count++];
        node->state = state;
    }
    uint32_t index = (uint32_t)(node - f->node);
    /* A way back ends at the first node, which is its own parent. */
    TSI_ASSERT(f->node_count == 1 || parent < f->node_count);
    node->cost[0] = cost[0];
    node->cost[1] = cost[1];
    node->parent = f->node_count == 1 ? index : parent;
    node->kind = (uint8_t)kind;
    node->axes = (uint16_t)axes;
    node->closed = 0;
    node->refined = 0;
    node->entry = f->entry_next++;
    tsi_heap_entry entry = { { cost[0] + h[0], cost[1] + h[1] }, node->entry, index };
    return push(f, &entry);
}

int64_t tsi_frontier_pop(tsi_frontier *f, double key[2])
{
    while (f->heap_count > 0) {
        tsi_heap_entry top = f->heap[0];
        pop_top(f);
        tsi_node *node = &f->node[top.node];
        if (node->closed || node->entry != top.entry) continue;
        node->closed = 1;
        key[0] = top.key[0];
        key[1] = top.key[1];
        return top.node;
    }
    return -1;
}

bool tsi_frontier_raise(tsi_frontier *f, uint32_t index, const double key[2])
{
    tsi_node *node = &f->node[index];
    TSI_ASSERT(node->closed); /* it was popped, and goes back with a higher key */
    node->closed = 0;
    node->entry = f->entry_next++;
    tsi_heap_entry entry = { { key[0], key[1] }, node->entry, index };
    return push(f, &entry);
}
