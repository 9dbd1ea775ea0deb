/* SPDX-License-Identifier: Apache-2.0 */
/* ops_hash.h - the list of operators as one number: their names in their order, which is what a
 * table of kernels by operator depends on. For modules too, so it needs no symbol of the core. */
#ifndef TSI_OP_OPS_HASH_H
#define TSI_OP_OPS_HASH_H

#include <stdint.h>

/* FNV-1a over the names, each with its zero. */
static inline uint64_t tsi_ops_hash(int64_t *count)
{
    static const char names[] =
#define TS_OP(id, name) #name "\0"
#include "op/ops.def"
#undef TS_OP
        ;
    uint64_t hash = 0xcbf29ce484222325u;
    *count = 0;
    for (const char *p = names; p < names + sizeof names - 1; p++) {
        hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
        *count += *p == '\0';
    }
    return hash;
}

#endif
