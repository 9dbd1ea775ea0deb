/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - what `tessera layout` and `tessera plan` share: reading meshes, shapes and placements,
 * and the picture of a layout.
 *
 * A picture is a layout seen dim by dim. Dims are cut independently, so along every dim there is a
 * list of pieces, each held by one choice of the coordinates that cut this dim. The number of a
 * coordinate (row-major in the mesh) is the sum of the keys of its pieces over all dims, plus any
 * coordinates along the replicated and partial axes:
 *
 *   mesh a=2, b=3, "S(0), S(1)"        dim 1:  [0,2) key 0   [2,4) key 1   [4,5) key 2
 *   dim 0:  [0,4) key 0, [4,7) key 3          so element (5, 3) is at number 3 + 1 = (1, 1) */
#ifndef CLI_LAYOUT_H
#define CLI_LAYOUT_H

#include "cli.h"

/* ---- reading (layout_request.c) -------------------------------------------------------------- */
enum { LAYOUT_ERROR_MAX = 1024 };

/* A world for planning only: one rank that is never attached. NULL: said on standard error. */
ts_world *layout_world(const char *command);
/* "7x5", "7,5", "[7, 5]"; "", "[]" and "scalar" have no dims. False: `error` says why. */
bool layout_read_shape(const char *text, ts_shape *out, char *error, size_t size);
/* A mesh by its text; NULL: `error` says why, with the column. */
ts_mesh *layout_mesh(ts_world *world, const char *text, char *error, size_t size);
/* The layout of placements on a mesh, retained; NULL: `error` begins with `what`. */
const ts_layout *layout_make(ts_mesh *mesh, const char *placements, ts_shape shape,
                             const char *what, char *error, size_t size);
/* "7x5"; "scalar". Returns the buffer. */
const char *layout_shape_text(const ts_shape *shape, char *out, size_t size);
/* "(0, 2)" of a list. Returns the buffer. */
const char *layout_list_text(const int64_t *values, int32_t count, char *out, size_t size);
/* Coordinate of a row-major number, and back. */
void layout_coord(const ts_mesh *mesh, int64_t number, int64_t *coord);
int64_t layout_rank(const ts_mesh *mesh, int64_t number); /* the world rank there */
/* 1 where rank and row-major number are the same everywhere. */
bool layout_is_row_major(const ts_mesh *mesh);

/* Values of a request; `key` names them in errors. Texts are to be freed; NULL or false: `error`
 * says why. A mesh is a list of sizes or a text, placements a list of texts or a text. */
char *layout_field_mesh(const ts_json *value, const char *key, char *error, size_t size);
bool layout_field_shape(const ts_json *value, const char *key, ts_shape *out, char *error,
                        size_t size);
char *layout_field_placements(const ts_json *value, const char *key, const ts_json *order,
                              char *error, size_t size);
/* The member `key`, a shard order for a list of placements: [[dim, [axes]], ...]; NULL if absent.
 */
bool layout_field_order(const ts_json *request, const char *key, const ts_json **out, char *error,
                        size_t size);

/* ---- answers (layout_answer.c) --------------------------------------------------------------- */
enum { LAYOUT_ELEMENTS_MAX = 1 << 24, LAYOUT_RANKS_MAX = 1 << 22 };

typedef struct layout_options {
    bool elements, to_strided;
    ts_world *world;
} layout_options;

/* The members of an answer, without the brackets around them. False: `error` says why. */
bool layout_answer(const ts_mesh *mesh, const ts_layout *layout, bool elements,
                   ts_json_writer *json, char *error, size_t size);
bool layout_answer_strided(ts_mesh *mesh, const char *placements, const ts_shape *shape,
                           ts_json_writer *json, char *error, size_t size);
/* A cli_batch_fn; the context is a layout_options. */
bool layout_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
                  void *context);
/* Walks what a coordinate holds, in local row-major order, as runs of row-major global indices. */
typedef struct layout_walk {
    int32_t ndim;
    bool more;
    struct {
        ts_interval *interval;
        int64_t count, at, position, stride;
    } dim[TS_NDIM_MAX];
} layout_walk;
bool layout_walk_open(layout_walk *walk, const ts_layout *layout, const int64_t *coord);
bool layout_walk_next(layout_walk *walk, int64_t *index, int64_t *length);
void layout_walk_close(layout_walk *walk);
/* All intervals of one dim at a coordinate, to be freed; *count is how many. NULL: no memory. */
ts_interval *layout_intervals(const ts_layout *layout, const int64_t *coord, int32_t dim,
                              int64_t *count);

/* ---- the picture (layout_picture.c) ---------------------------------------------------------- */
typedef struct layout_piece {
    int64_t begin, end; /* positions of the dim */
    int64_t local;      /* of the first position, at its owner */
    int64_t key;        /* added to the number of the coordinate */
    bool mixed;         /* stands for several pieces: there are too many to list */
} layout_piece;

typedef struct layout_dim {
    int64_t extent;
    layout_piece *piece;
    int64_t count;
    int32_t first, last; /* dims of the tensor that are cut as this one */
} layout_dim;

typedef struct layout_picture {
    ts_mesh *mesh;           /* borrowed */
    const ts_layout *layout; /* borrowed */
    int32_t ndim;
    layout_dim dim[TS_NDIM_MAX];
    uint32_t replicated, partial; /* axes, by bit */
    bool sampled;                 /* some dim has mixed pieces */
} layout_picture;

/* Choices of the coordinates along these axes, and the row-major number of the i-th of them, with
 * coordinate 0 along the others (its coordinate is in `coord`). */
int64_t layout_places(const ts_mesh *mesh, uint32_t axes);
int64_t layout_place(const ts_mesh *mesh, uint32_t axes, int64_t i, int64_t *coord);
bool layout_picture_make(ts_mesh *mesh, const ts_layout *layout, layout_picture *out);
void layout_picture_release(layout_picture *picture);
/* The piece of a dim that holds a position. */
const layout_piece *layout_piece_at(const layout_dim *dim, int64_t position);
/* At most `most` pieces that stand for all of a dim, to be freed: its own if they are few enough.
 */
layout_piece *layout_bins(const layout_dim *dim, int64_t most, int64_t *count);
/* How many numbers hold one element, and the i-th of them, given the first. */
int64_t layout_holders(const layout_picture *picture);
int64_t layout_holder(const layout_picture *picture, int64_t first, int64_t i);
/* Different owners: coordinates along the axes that cut. And which of them a number is. */
int64_t layout_owners(const layout_picture *picture);
int64_t layout_owner(const layout_picture *picture, int64_t i); /* the first number it has */
int64_t layout_owner_index(const layout_picture *picture, int64_t number);
/* "a=2, b=3", of the mesh; "S(0), R". To be freed. */
char *layout_mesh_text(const ts_mesh *mesh);
char *layout_sharding_text(const ts_sharding *sharding);
/* "a", or "axis 0" where it has no name. */
const char *layout_axis_name(const ts_mesh *mesh, int32_t axis, char *out, size_t size);

/* ---- for a person (layout_grid.c, layout_svg.c, layout_html.c) ------------------------------ */
typedef struct layout_look {
    int64_t slice[TS_NDIM_MAX]; /* indices of the leading dims, if `sliced` */
    bool sliced, colour, all;
    int32_t width; /* columns of the terminal */
} layout_look;
void layout_print(const layout_picture *picture, const layout_look *look, FILE *out);
/* 0, or 1 with a sentence on standard error. */
int layout_write_svg(const layout_picture *picture, const layout_look *look, const char *path);
int layout_write_html(const layout_picture *picture, const char *path);

#endif
