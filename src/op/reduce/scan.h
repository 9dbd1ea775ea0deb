/* SPDX-License-Identifier: Apache-2.0 */
/* scan.h - running values along a dim (scan.c) and across the ranks that cut it
 * (scan_prefix.c). */
#ifndef TSI_OP_SCAN_H
#define TSI_OP_SCAN_H

#include "op/core/common.h"

typedef struct tsi_scan_attributes {
    int64_t dim;
    int32_t reverse, reserved; /* 1: from the end */
} tsi_scan_attributes;

/* What has been met so far on a line, in the widest type of its category. */
typedef struct tsi_scan_value {
    double complex both;
    double real;
    int64_t whole;
    int64_t at; /* extremes: the global index of the value; -1: none yet */
} tsi_scan_value;

typedef struct tsi_scan_kind {
    tsi_scan_value identity;
    /* value op next, in the category */
    void (*step)(tsi_category category, tsi_scan_value *value, const tsi_scan_value *next);
    bool extreme; /* two outputs: values and indices */
} tsi_scan_kind;

typedef struct tsi_scan_job {
    const tsi_scan_kind *kind;
    int32_t dim, reverse;
    int64_t offset; /* global index of position 0 of the dim */
    const tsi_block *in;
    const tsi_block *out, *index; /* NULL: only the totals are wanted; no indices */
    const tsi_scan_value *carry;  /* per line, row-major; NULL: none */
    tsi_scan_value *total;        /* per line; NULL: not wanted */
} tsi_scan_job;
void tsi_scan_run(const tsi_scan_job *job);
int64_t tsi_scan_lines(const tsi_block *in, int32_t dim); /* how many lines there are */

/* Local scans, then the totals of the ranks before this one: number 1 of the scans' algorithms. */
extern const tsi_algorithm tsi_scan_prefix[];

#endif
