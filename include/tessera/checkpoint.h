/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - named tensors on disk: saved by any mesh, loaded by any other.
 *
 * A state is a set of named tensors, modules and optimisers of one rank. Saving writes a directory
 * of safetensors files and, last, one small index.json; loading fills the tensors of a state from
 * such a directory, or from published weights, whatever mesh, placement and number of ranks wrote
 * them. Every rank writes and reads its own part alone. Formats and hashes: docs/checkpoints.md.
 *
 * A checkpoint is one such directory (or a safetensors file) opened for reading, by one thread at a
 * time and without ranks. */
#ifndef TESSERA_CHECKPOINT_H
#define TESSERA_CHECKPOINT_H

#include "nn.h"

typedef struct ts_state ts_state;
typedef struct ts_archive ts_archive;
typedef struct ts_safetensors ts_safetensors;

typedef struct ts_save_options {
    size_t struct_size;
    int64_t step;    /* told by the index */
    int32_t dtype;   /* of real tensors in the files; 0: each its own */
    int32_t copies;  /* of what several ranks hold, in different files: a damaged block is then read
                        from another. 0: 1 */
    int32_t writers; /* ranks of a process that write at once; 0: all. Processes do not wait for
                        each other: under MPI, where each has one rank, all write at once. Not with
                        background */
    int32_t background; /* 1: returns when the tensors are copied; ts_state_wait, or the next save,
                           ends it */
} ts_save_options;

typedef struct ts_load_options {
    size_t struct_size;
    const char *names;   /* patterns, one a line, "*" any run of characters: these alone are loaded.
                            NULL: all */
    const char *renamed; /* lines "name here: name there", "*" stands for the same on both sides;
                            first match wins. NULL: none */
    int32_t partial;     /* 1: names that are missing there, or unknown here, are no error */
    int32_t unverified;  /* 1: hashes are not checked */
} ts_load_options;

typedef struct ts_archive_about { /* borrowed texts */
    size_t struct_size;
    const char *format; /* "tessera"; "hf": published weights; "dcp": PyTorch's distributed ones */
    const char *mesh;   /* text of the writer's; "" where it is not known */
    int64_t step;       /* -1: none */
    int64_t tensor_count;
    uint64_t hash;  /* of the whole state, as stored */
    int32_t hashed; /* 0: the format stores no hashes */
    int32_t copies;
} ts_archive_about;

typedef struct ts_archive_tensor { /* borrowed texts */
    size_t struct_size;
    const char *name;
    const char *of;       /* "" a weight or what the caller added, "optimizer" */
    const char *sharding; /* of the writer; "R" where one file has all of it */
    ts_meta meta;
    int64_t bytes;
    uint64_t hash; /* as stored; see ts_archive_about.hashed */
} ts_archive_tensor;

typedef enum ts_convert_to {
    TS_CONVERT_PUBLISHED, /* safetensors with config.json and an index, as model hubs have them */
    TS_CONVERT_TESSERA
} ts_convert_to;

typedef struct ts_convert_options {
    size_t struct_size;
    int32_t to;          /* a ts_convert_to */
    int32_t dtype;       /* of real tensors; 0: each its own */
    int64_t shard_bytes; /* most data of a published file; 0: 4 GiB */
    /* May be NULL; called now and then, with bytes of data. */
    void (*on_bytes)(int64_t done, int64_t all, void *context);
    void *context;
    const char *from;    /* the format that is expected, as ts_archive_about.format; NULL: any */
    const char *names;   /* as in ts_load_options, of names in the source. NULL: all */
    const char *renamed; /* lines "name in the source: name in the result", as there. NULL: none */
} ts_convert_options;

typedef struct ts_safetensors_entry {
    const char *name;
    ts_meta meta;
} ts_safetensors_entry;

TS_BEGIN_C

/* [any] Real defaults, after which every number is meant as it stands (types.h). */
TS_API void ts_save_options_init(ts_save_options *options);
TS_API void ts_load_options_init(ts_load_options *options);
TS_API void ts_convert_options_init(ts_convert_options *options);

/* ---- states ---------------------------------------------------------------------------------- */
/* Empty; its saves and loads are collective over the mesh. maker [coll] */
TS_API ts_state *ts_state_create(ts_mesh *mesh);
/* Waits for a save in the background, as ts_state_wait. [any] accepts NULL */
TS_API void ts_state_destroy(ts_state *state);
/* What the state is made of; names are `prefix` + the name, and must differ. Tensors and modules
 * must live as long as the state does; they are read and filled where they are. The count of an
 * optimiser's steps goes with it. recorded */
TS_API ts_status ts_state_add_tensor(ts_state *state, const char *name, ts_tensor *tensor);
TS_API ts_status ts_state_add_module(ts_state *state, const char *prefix, ts_module *root);
TS_API ts_status ts_state_add_optimizer(ts_state *state, const char *prefix, ts_optimizer *o);
/* A short text that is saved and loaded with it; NULL removes it. recorded */
TS_API ts_status ts_state_set(ts_state *state, const char *name, const char *text);
/* A file that lies beside the data, config.json say; copied. recorded */
TS_API ts_status ts_state_add_file(ts_state *state, const char *name, const void *data,
                                   size_t bytes);
TS_API const char *ts_state_get(const ts_state *state, const char *name); /* getter; NULL: none */

/* ---- saving and loading ---------------------------------------------------------------------- */
/* Writes the directory: beside it first, synced, then renamed, so that a crash at any moment leaves
 * what was there before or all of the new one. Ranks exchange one vector with a word for each
 * tensor at the end, and whether it was renamed. recorded [coll] */
TS_API ts_status ts_checkpoint_save(ts_state *state, const char *directory,
                                    const ts_save_options *options);
/* Ends a save in the background: its failure is returned here, on every rank. recorded [coll] */
TS_API ts_status ts_state_wait(ts_state *state);
/* As ts_state_wait if every rank has written its part, else nothing: *busy says which. recorded
 * [coll] */
TS_API ts_status ts_state_poll(ts_state *state, int *busy);
/* Fills the tensors of the state, each rank its own regions. A tensor that has another shape there
 * is an error with both shapes; dtypes are converted. recorded [coll] */
TS_API ts_status ts_checkpoint_load(ts_state *state, const char *directory,
                                    const ts_load_options *options);

/* ---- reading without ranks ------------------------------------------------------------------- */
/* Of a directory with index.json, with published weights, or with a distributed checkpoint of
 * PyTorch (.metadata: nothing of its pickles is executed), or of one safetensors file. */
TS_API TS_NODISCARD ts_status ts_archive_open(const char *path, ts_archive **out);
TS_API void ts_archive_close(ts_archive *archive); /* accepts NULL */
TS_API void ts_archive_about_of(const ts_archive *archive, ts_archive_about *out);
TS_API void ts_archive_tensor_at(const ts_archive *archive, int64_t index, ts_archive_tensor *out);
TS_API int64_t ts_archive_find(const ts_archive *archive, const char *name); /* -1 */
TS_API const char *ts_archive_value(const ts_archive *archive, const char *name);
/* Elements [first, first + count) of a tensor's row-major order, as `dtype`; hashes of the blocks
 * they lie in are checked where the format has them. */
TS_API TS_NODISCARD ts_status ts_archive_read(ts_archive *archive, int64_t index, int64_t first,
                                              int64_t count, ts_dtype dtype, void *to);
/* Reads all of a tensor and gives its hash, which does not depend on who wrote it. */
TS_API TS_NODISCARD ts_status ts_archive_hash(ts_archive *archive, int64_t index, uint64_t *out);
/* The hash of a whole state from those of its tensors: start with 0, then once for each. */
TS_API uint64_t ts_archive_hash_add(uint64_t hash, const char *name, uint64_t tensor);
/* What they are made of (docs/checkpoints.md): the hash of a block of a file; the sum over elements
 * [first, first + count) of a tensor, whose parts add up; the hash of a tensor with that sum. */
TS_API uint64_t ts_hash_block(const void *data, size_t bytes);
TS_API uint64_t ts_hash_elements(ts_dtype dtype, int64_t first, const void *data, int64_t count);
TS_API uint64_t ts_hash_tensor(const ts_meta *meta, uint64_t sum);
/* Files beside the data, such as config.json, that the index knows: TS_ERR_IO names one that is
 * missing or changed. */
TS_API TS_NODISCARD ts_status ts_archive_check_others(const ts_archive *archive);

/* ---- converting ------------------------------------------------------------------------------ */
/* Writes what `from` has into the directory `to`, which is missing or empty: atomically, in bounded
 * memory. Published weights are those of the model alone, without the state of an optimiser; the
 * dtype in config.json is that of the files; other files of the directory come along. */
TS_API TS_NODISCARD ts_status ts_checkpoint_convert(const char *from, const char *to,
                                                    const ts_convert_options *options);

/* ---- writing safetensors --------------------------------------------------------------------- */
/* The header at once, then the data of the entries in their order, in pieces of any size; the file
 * has a temporary name until finish, which removes it unless `keep`. */
TS_API TS_NODISCARD ts_status ts_safetensors_create(const char *path,
                                                    const ts_safetensors_entry *entry,
                                                    int64_t count, ts_safetensors **out);
TS_API TS_NODISCARD ts_status ts_safetensors_write(ts_safetensors *file, const void *data,
                                                   size_t bytes);
TS_API TS_NODISCARD ts_status ts_safetensors_finish(ts_safetensors *file /* takes */, int keep);

TS_END_C
#endif
