/* SPDX-License-Identifier: Apache-2.0 */
/* modelled.c - the public view of the model engine's counts and clock. */
#include "comm/comm.h"
#include "comm/model/model_engine.h"
#include "runtime/runtime.h"
#include "tessera/event.h"

ts_status ts_rank_modelled(ts_rank *me, ts_modelled *out)
{
    TSI_TRY(tsi_rank_enter(me));
    if (out == NULL) return TSI_FAIL(TS_ERR_NULL, "ts_rank_modelled: out is NULL");
    if (out->struct_size != sizeof *out) {
        return TSI_FAIL(TS_ERR_ARG, "ts_rank_modelled: out->struct_size is %zu, expected %zu",
                        out->struct_size, sizeof *out);
    }
    const tsi_engine *engine = tsi_comm_engine(me->world);
    if (engine->model_read == NULL) {
        return TSI_FAIL(TS_ERR_STATE, "ts_rank_modelled: engine %s moves data and models nothing",
                        engine->name);
    }
    tsi_model_counts counts;
    TSI_TRY(engine->model_read(tsi_comm_engine_state(me->world), me, &counts));
    out->seconds = counts.seconds;
    out->operations = counts.operations;
    for (int link = 0; link < TSI_LINK_COUNT; link++) {
        out->messages[link] = counts.messages[link];
        out->bytes[link] = counts.bytes[link];
    }
    return TS_OK;
}

ts_status ts_rank_model_compute(ts_rank *me, double seconds)
{
    TSI_TRY(tsi_rank_enter(me));
    if (!(seconds >= 0) || seconds > 1e12) {
        return TSI_FAIL(TS_ERR_ARG, "ts_rank_model_compute: %g is not a time in seconds", seconds);
    }
    if (tsi_comm_engine(me->world) == tsi_engine_model()) {
        tsi_model_compute(tsi_comm_engine_state(me->world), me, seconds);
    }
    return TS_OK;
}
