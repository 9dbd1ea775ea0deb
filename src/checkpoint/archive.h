/* SPDX-License-Identifier: Apache-2.0 */
/* archive.h - a checkpoint that is open for reading, whatever its format, and reading regions of
 * its tensors.
 *
 *   ours       index.json; a tensor lies in the files of the ranks that wrote it, and where follows
 *              from the writer's mesh and placements (share.h)
 *   published  safetensors: a tensor lies whole in one file
 *   dcp        PyTorch's distributed checkpoints: a tensor is a list of boxes (dcp.h)
 *
 * INV: nothing but the bytes that are asked for is read, up to the borders of blocks, in the order
 * of the files; memory is one window, however large the tensors. What damage is found is repaired
 * from another copy where there is one, and named else. One thread at a time. */
#ifndef TSI_CHECKPOINT_ARCHIVE_H
#define TSI_CHECKPOINT_ARCHIVE_H

#include "checkpoint/data_file.h"
#include "checkpoint/dcp.h"
#include "checkpoint/index_file.h"
#include "device/device.h"
#include "layout/layout.h"
#include "tessera/checkpoint.h"

#define TSI_SCALE_TAIL "_scale_inv"
enum {
    TSI_ARCHIVE_FILES = 64, /* of data that are open at a time */
    TSI_SCALE_BLOCK = 128   /* rows and columns of a block of float8, where nothing is said */
};

typedef struct tsi_entry { /* one tensor */
    const char *name, *of, *sharding;
    ts_meta meta;             /* as it is read */
    const ts_layout *layout;  /* ours: of the writer, retained */
    const tsi_stored *stored; /* published: whole */
    const tsi_dcp_tensor *boxes;
    const tsi_stored *scale;  /* of float8: factors of blocks, f32; or NULL */
    int32_t float8, reserved; /* a tsi_float8; then it is read as f32 */
    uint64_t hash;
} tsi_entry;

typedef struct tsi_archive_file {
    int64_t rank;
    tsi_data_file *file; /* NULL: nothing here */
    uint64_t used;       /* when */
} tsi_archive_file;

struct ts_archive {
    char *path;         /* of the directory or file */
    const char *format; /* "tessera", "hf", "dcp" */
    bool ours;
    bool unverified; /* hashes of blocks are not asked for */
    tsi_index index;
    tsi_weights *weights; /* published */
    tsi_dcp *dcp;
    ts_world *world; /* of nobody: meshes and layouts of the writer are interned there */
    tsi_entry *entry;
    int64_t count;
    tsi_map by_name;
    tsi_archive_file file[TSI_ARCHIVE_FILES];
    uint64_t clock;
    char *window;                /* bytes that were read last */
    struct tsi_dealing *dealing; /* archive_serve.c */
    float *scale;                /* the factors of `scale_of`, which was read last */
    const tsi_entry *scale_of;
    int64_t scale_block[2]; /* rows and columns with one factor; 0: not known yet */
    float float8[256];      /* the number of each byte, */
    int32_t float8_of;      /* of this tsi_float8 */
    int32_t reserved;
    int64_t bytes_read, blocks_repaired;
};

/* ---- float8.c */
/* *scale: the factors of a published tensor in 8 bits, NAME_scale_inv; NULL: there are none. */
ts_status tsi_archive_scale(ts_archive *archive, const tsi_stored *stored,
                            const tsi_stored **scale);

/* An index without its directory: nothing can be read of it. For tests. */
ts_status tsi_archive_open_text(const char *text, size_t length, ts_archive **out);
void tsi_archive_close_files(ts_archive *archive); /* what is known of them stays */
const tsi_entry *tsi_archive_find(const ts_archive *archive, const char *name); /* NULL */

/* The part of the tensor that a rank holds, or a range of its row-major order, into dense memory of
 * the host. Extents are the tensor's. */
ts_status tsi_archive_read_block(ts_archive *archive, const tsi_entry *entry, const ts_layout *to,
                                 const int64_t *coord, const tsi_block *target);
/* The same for several ranks at once: chunks of the blocks that the writer cut the tensor into,
 * each read once. Targets are dense, and of one sharding. */
enum { TSI_CHUNK_BYTES = 1 << 20 };
typedef struct tsi_archive_target {
    const ts_layout *layout;
    const int64_t *coord;
    void *data;
    ts_dtype dtype;
} tsi_archive_target;
/* Do ranks of a process that load `to` want parts of the same chunks, so that it is cheaper to read
 * them once? A function of layouts and the format alone. */
bool tsi_archive_is_common(const ts_archive *archive, const tsi_entry *entry, const ts_layout *to);
int64_t tsi_archive_block_count(const tsi_entry *entry);
int64_t tsi_archive_chunk_count(const tsi_entry *entry, int64_t block);
ts_status tsi_archive_serve_chunk(ts_archive *archive, const tsi_entry *entry, int64_t block,
                                  int64_t chunk, const tsi_archive_target *target, int64_t count);
ts_status tsi_archive_read_range(ts_archive *archive, const tsi_entry *entry, int64_t first,
                                 int64_t count, ts_dtype dtype, void *target);
/* Numbers of an entry in 8 bits (float8.c), the first of them at `first` of its row-major order. */
ts_status tsi_archive_decode(ts_archive *archive, const tsi_entry *entry, int64_t first,
                             const void *from, int64_t count, float *to);
/* The data file of a rank of the writer's; kept open for a while. */
ts_status tsi_archive_file_of(ts_archive *archive, int64_t rank, tsi_data_file **out);

#endif
