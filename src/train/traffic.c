/* SPDX-License-Identifier: Apache-2.0 */
/* traffic.c - what a rank receives in a step, by the axes of the mesh that its groups lie along and
 * by kind of operation: an observer of what is issued.
 *
 * Bytes are by information, as the model engine counts them, whatever the engine. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/comm.h"
#include "comm/model/model_engine.h"
#include "train/run.h"

/* Axes on which members of the team differ; the names of them, "fsdp+tp". */
static void axes_of(const ts_mesh *mesh, const tsi_team *team, char *out, size_t size)
{
    int64_t first[TS_NDIM_MAX], coord[TS_NDIM_MAX];
    uint32_t differ = 0;
    bool inside = tsi_mesh_desc_coord(mesh->desc, team->rank[0], first);
    for (int64_t i = 1; inside && i < team->size; i++) {
        inside = tsi_mesh_desc_coord(mesh->desc, team->rank[i], coord);
        for (int32_t k = 0; inside && k < mesh->desc->ndim; k++)
            if (coord[k] != first[k]) differ |= 1u << k;
    }
    out[0] = '\0';
    for (int32_t k = 0; inside && k < mesh->desc->ndim; k++) {
        size_t length = strlen(out);
        if (differ >> k & 1)
            snprintf(out + length, size - length, "%s%s", length > 0 ? "+" : "",
                     mesh->desc->name[k]);
    }
    if (!out[0]) snprintf(out, size, "%s", inside ? "self" : "other");
}

static ts_train_traffic *row_of(tsi_traffic *t, const char *axes, const char *kind)
{
    for (int32_t i = 0; i < t->count; i++)
        if (strcmp(t->row[i].axes, axes) == 0 && strcmp(t->row[i].kind, kind) == 0)
            return &t->row[i];
    if (t->count == TS_TRAFFIC_MAX) return &t->row[TS_TRAFFIC_MAX - 1];
    ts_train_traffic *row = &t->row[t->count++];
    snprintf(row->axes, sizeof row->axes, "%s", axes);
    snprintf(row->kind, sizeof row->kind, "%s", kind);
    return row;
}

/* What one operation is and moves. */
static void name_row(const tsi_traffic *t, const tsi_work *work, char *axes, size_t size,
                     const char **kind)
{
    bool folds = work->print.kind == TSI_COMM_EXCHANGE && work->print.reduce != 0;
    axes_of(t->mesh, work->team, axes, size);
    *kind = folds ? "reduce_exchange" : tsi_comm_kind_name((tsi_comm_kind)work->print.kind);
}

int32_t tsi_traffic_row(const tsi_traffic *t, const tsi_work *operation)
{
    char axes[sizeof t->row[0].axes];
    const char *kind;
    if (!operation->team || operation->team->size < 2) return -1;
    name_row(t, operation, axes, sizeof axes, &kind);
    for (int32_t i = 0; i < t->count; i++)
        if (strcmp(t->row[i].axes, axes) == 0 && strcmp(t->row[i].kind, kind) == 0) return i;
    return -1;
}

static void hear_issue(void *context, void *what)
{
    tsi_traffic *t = context;
    const tsi_work *work = ((const tsi_issued *)what)->operation;
    if (!work->team || work->team->size < 2) return;
    tsi_model_counts counts = { 0 };
    char axes[sizeof t->row[0].axes];
    const char *kind;
    tsi_model_cost(&t->machine, work, &counts);
    name_row(t, work, axes, sizeof axes, &kind);
    ts_train_traffic *row = row_of(t, axes, kind);
    row->count++;
    row->seconds += counts.seconds;
    for (int link = 0; link < TSI_LINK_COUNT; link++)
        row->bytes += counts.bytes[link];
}

ts_status tsi_traffic_begin(tsi_traffic *t, ts_mesh *mesh)
{
    *t = (tsi_traffic){ .mesh = mesh };
    TSI_TRY(tsi_model_machine_parse(getenv("TESSERA_MODEL"), &t->machine));
    t->hears = (tsi_observer){ .context = t, .hear = { [TSI_NEWS_ISSUE] = hear_issue } };
    return tsi_observers_add(&mesh->rank->observers, &t->hears);
}

void tsi_traffic_end(tsi_traffic *t)
{
    tsi_observers_remove(&t->mesh->rank->observers, &t->hears);
}
