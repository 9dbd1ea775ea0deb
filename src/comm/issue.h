/* SPDX-License-Identifier: Apache-2.0 */
/* issue.h - the common path of all collectives: begin a call, describe it, issue it.
 *
 *   tsi_call_begin   rank, group, options; `skip` for a rank outside the group
 *   (the collective fills call.local.base: blocks, rows, root, reduction, and checks them)
 *   tsi_call_issue   number, fingerprint, event; then runs it, posts it, or adds it to the open
 *                    batch
 *
 * INV: until tsi_call_issue nothing is allocated and no number is used, so a call that is refused
 * has no effect. */
#ifndef TSI_COMM_ISSUE_H
#define TSI_COMM_ISSUE_H

#include "comm/slots.h"

typedef struct tsi_call {
    ts_group *group;
    ts_comm_options options;
    const char *name; /* of the operation, for sentences */
    bool skip;
    ts_work local;
} tsi_call;

ts_status tsi_call_begin(tsi_call *call, ts_group *group, tsi_comm_kind kind,
                         const ts_comm_options *options);
/* The call's blocks lie on this device (ts_array.device): the host, or the rank's own. */
ts_status tsi_call_device(tsi_call *call, int32_t device);
ts_status tsi_call_issue(tsi_call *call);
/* A standing operation (comm.h), after a call of its kind was issued: noted for the next time,
 * where that is possible; does it serve this call; and the call. */
void tsi_standing_note(tsi_standing **standing, const tsi_call *call);
bool tsi_standing_serves(const tsi_standing *standing, const ts_group *group,
                         const ts_comm_options *options);
ts_status tsi_standing_issue(tsi_standing *standing, const ts_comm_options *options);
/* What the operation is called in sentences and events. */
const char *tsi_call_title(const tsi_call *call);
/* Copies what must outlive the call, if something must, and puts the send parts in order. *kept:
 * the copies. */
ts_status tsi_call_copy_lists(tsi_work *work, bool outlives, void **kept);

#endif
