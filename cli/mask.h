/* SPDX-License-Identifier: Apache-2.0 */
/* mask.h - what the files of `tessera mask` share. */
#ifndef CLI_MASK_H
#define CLI_MASK_H

#include "cli.h"

typedef struct mask_picture { /* one row and head of a mask, in tiles */
    const ts_mask *mask;
    char *text; /* of the mask */
    ts_mask_size size;
    ts_mask_summary summary;
    int64_t rows, columns; /* of tiles */
    unsigned char *tile;   /* ts_mask_tile */
    int32_t *owner;        /* of a row of tiles, by --ranks; NULL: none */
    ts_cut cut;            /* with --ranks */
} mask_picture;

/* One request of a batch: INTERFACES, `mask --batch`. */
bool mask_serve(const ts_json *request, ts_json_writer *answer, char *error, size_t size,
                void *context);

double mask_skipped(const mask_picture *picture); /* fraction of tiles */
void mask_print(const mask_picture *picture, bool colour, FILE *out);
int mask_write_svg(const mask_picture *picture, const char *path);
int mask_write_html(const mask_picture *picture, const char *path);

#endif
