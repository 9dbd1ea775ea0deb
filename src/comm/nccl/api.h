/* SPDX-License-Identifier: Apache-2.0 */
/* api.h - the few functions of NCCL that are used, declared here so that nothing of NCCL is needed
 * to build: the library is opened when a world opens (library.c).
 *
 * Values and layouts are those of NCCL's public header since 2.18; a configuration carries its own
 * size and version, by which newer libraries know which fields it has. */
#ifndef TSI_COMM_NCCL_API_H
#define TSI_COMM_NCCL_API_H

#include <limits.h>
#include <stddef.h>

#include "comm/engine.h"

typedef struct ncclComm *tsi_nccl_comm;

typedef enum tsi_nccl_result {
    TSI_NCCL_SUCCESS = 0,
    TSI_NCCL_UNHANDLED_CUDA = 1,
    TSI_NCCL_SYSTEM = 2,
    TSI_NCCL_INTERNAL = 3,
    TSI_NCCL_ARGUMENT = 4,
    TSI_NCCL_USAGE = 5,
    TSI_NCCL_REMOTE = 6,
    TSI_NCCL_IN_PROGRESS = 7
} tsi_nccl_result;

enum { TSI_NCCL_ID_BYTES = 128, TSI_NCCL_VERSION_LEAST = 21800 };

typedef struct tsi_nccl_id {
    char internal[TSI_NCCL_ID_BYTES];
} tsi_nccl_id;

#define TSI_NCCL_UNSET INT_MIN

typedef struct tsi_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, least_blocks, most_blocks;
    const char *network;
    int split_share;
} tsi_nccl_config;
#define TSI_NCCL_MAGIC 0xcafebeef

typedef enum tsi_nccl_op_kind {
    TSI_NCCL_SUM,
    TSI_NCCL_PROD,
    TSI_NCCL_MAX,
    TSI_NCCL_MIN,
    TSI_NCCL_AVG
} tsi_nccl_op_kind;

typedef enum tsi_nccl_type {
    TSI_NCCL_I8 = 0,
    TSI_NCCL_U8 = 1,
    TSI_NCCL_I32 = 2,
    TSI_NCCL_I64 = 4,
    TSI_NCCL_F16 = 6,
    TSI_NCCL_F32 = 7,
    TSI_NCCL_F64 = 8,
    TSI_NCCL_BF16 = 9,
    TSI_NCCL_TYPE_NONE = -1
} tsi_nccl_type;

/* X(member, symbol, arguments); `stream` is the device's name of it (tsi_device.stream_handle). */
#define TSI_NCCL_FUNCTIONS(X)                                                                      \
    X(version, ncclGetVersion, (int *version))                                                     \
    X(make_id, ncclGetUniqueId, (tsi_nccl_id * id))                                                \
    X(join, ncclCommInitRankConfig,                                                                \
      (tsi_nccl_comm * comm, int count, tsi_nccl_id id, int rank, tsi_nccl_config *config))        \
    X(finalize, ncclCommFinalize, (tsi_nccl_comm comm))                                            \
    X(destroy, ncclCommDestroy, (tsi_nccl_comm comm))                                              \
    X(abort, ncclCommAbort, (tsi_nccl_comm comm))                                                  \
    X(state, ncclCommGetAsyncError, (tsi_nccl_comm comm, tsi_nccl_result * state))                 \
    X(group_begin, ncclGroupStart, (void))                                                         \
    X(group_end, ncclGroupEnd, (void))                                                             \
    X(send, ncclSend,                                                                              \
      (const void *from, size_t count, tsi_nccl_type type, int peer, tsi_nccl_comm comm,           \
       void *stream))                                                                              \
    X(recv, ncclRecv,                                                                              \
      (void *to, size_t count, tsi_nccl_type type, int peer, tsi_nccl_comm comm, void *stream))    \
    X(all_gather, ncclAllGather,                                                                   \
      (const void *from, void *to, size_t count, tsi_nccl_type type, tsi_nccl_comm comm,           \
       void *stream))                                                                              \
    X(broadcast, ncclBroadcast,                                                                    \
      (const void *from, void *to, size_t count, tsi_nccl_type type, int root, tsi_nccl_comm comm, \
       void *stream))                                                                              \
    X(reduce, ncclReduce,                                                                          \
      (const void *from, void *to, size_t count, tsi_nccl_type type, tsi_nccl_op_kind op,          \
       int root, tsi_nccl_comm comm, void *stream))                                                \
    X(all_reduce, ncclAllReduce,                                                                   \
      (const void *from, void *to, size_t count, tsi_nccl_type type, tsi_nccl_op_kind op,          \
       tsi_nccl_comm comm, void *stream))                                                          \
    X(reduce_scatter, ncclReduceScatter,                                                           \
      (const void *from, void *to, size_t count, tsi_nccl_type type, tsi_nccl_op_kind op,          \
       tsi_nccl_comm comm, void *stream))

typedef struct tsi_nccl_api {
#define TSI_NCCL_MEMBER(name, symbol, arguments) tsi_nccl_result(*name) arguments;
    TSI_NCCL_FUNCTIONS(TSI_NCCL_MEMBER)
#undef TSI_NCCL_MEMBER
    const char *(*text)(tsi_nccl_result result); /* ncclGetErrorString */
    const char *(*last)(tsi_nccl_comm comm);     /* ncclGetLastError */
    /* Since 2.19; NULL both: memory is not registered. */
    tsi_nccl_result (*enlist)(tsi_nccl_comm comm, void *memory, size_t bytes,
                              void **handle);                    /* ncclCommRegister */
    tsi_nccl_result (*delist)(tsi_nccl_comm comm, void *handle); /* ncclCommDeregister */
} tsi_nccl_api;

/* Opens the library once for the process: TESSERA_NCCL names a file, else the usual name is looked
 * for, and in TESSERA_CUDA_PATH. NULL: `why` says what is missing, or that another one is open. */
const tsi_nccl_api *tsi_nccl_library(char *why, size_t size);
/* Where it was found and its version, for `doctor`: "libnccl.so.2, 2.28.9". */
void tsi_nccl_found(char *text, size_t size);

#endif
