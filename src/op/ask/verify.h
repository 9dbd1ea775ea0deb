/* SPDX-License-Identifier: Apache-2.0 */
/* verify.h - one sampled call with its truth, and trying a choice of layouts on it in one thread.
 */
#ifndef TSI_OP_VERIFY_H
#define TSI_OP_VERIFY_H

#include "op/ask/numbers.h"
#include "op/core/dispatch.h"
#include "tessera/verify.h"

typedef struct tsi_verify_call {
    const tsi_op_desc *op;
    ts_world *world;
    uint64_t attributes[128]; /* normalised */
    uint64_t given[128];      /* as sampled */
    ts_meta in[TSI_INPUT_MAX], out[TSI_OUTPUT_MAX];
    int32_t input_count, reserved;
    int64_t limit;                                       /* of indices */
    double complex *truth[TSI_PATTERNS][TSI_OUTPUT_MAX]; /* NULL: the pattern is unusable */
    double scale[TSI_PATTERNS][TSI_OUTPUT_MAX];
    tsi_arena memory, scratch;
} tsi_verify_call;

typedef struct tsi_verify_choice {
    tsi_mesh_desc *mesh;
    const ts_layout *in[TSI_INPUT_MAX]; /* NULL: absent */
    const ts_layout *out[TSI_OUTPUT_MAX];
} tsi_verify_choice;

/* Computes the truth of a call whose op, world, given, in and input_count are set. False: the
 * operator does not accept it, or nothing can be learnt from it. */
bool tsi_verify_begin(tsi_verify_call *call);
void tsi_verify_end(tsi_verify_call *call);
/* Do the kernels on the blocks of the choice give what the choice says, with this pattern?
 * Outputs that are not in the mask are not looked at. `why` receives what differs. */
bool tsi_verify_try(tsi_verify_call *call, const tsi_verify_choice *choice, int32_t pattern,
                    uint32_t outputs, char *why, size_t size);
/* Would the operator itself give blocks of these local shapes? (For choices nobody has vouched
 * for.) */
bool tsi_verify_fits(tsi_verify_call *call, const tsi_verify_choice *choice);
/* Layouts of a rule's roles on a mesh of one axis; false: they cannot be made. */
bool tsi_verify_choose(const tsi_verify_call *call, tsi_mesh_desc *mesh, const tsi_role *role,
                       tsi_verify_choice *choice);
void tsi_verify_unchoose(tsi_verify_choice *choice);
/* Why a legal assignment is not offered; NULL: no reason is written. */
const char *tsi_verify_reason(const tsi_verify_call *call, const tsi_role *role);

#endif
