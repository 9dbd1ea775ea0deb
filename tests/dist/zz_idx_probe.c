/* SPDX-License-Identifier: Apache-2.0 */
/* zz */
#include "dist/op_family.h"
TS_TEST_RANKS(probe, 4)
{
    ts_mesh *mesh = ts_mesh_create(t->me, "x=2, y=2");
    for (int v = 0; v < 4; v++) {
        ts_meta in[3]; int32_t count; uint64_t random = 0; int64_t at[64] = { 0 };
        tsi_op_scatter_add.sample(&random, v, in, &count, at);
        ts_tensor *a[] = { family_input(mesh, 0, in, "P(sum), R"), family_input(mesh, 1, in + 1, "R, S(0)"), family_input(mesh, 2, in + 2, "P(avg), R") };
        ts_tensor *r[] = { family_input(mesh, 0, in, NULL), family_input(mesh, 1, in + 1, NULL), family_input(mesh, 2, in + 2, NULL) };
        tsi_op_args args = { &tsi_op_scatter_add, a, 3, 0, at };
        tsi_op_plan *p = tsi_op_plan_make(t->me, &args);
        ts_tensor *out[8], *w[3];
        for (int i = 0; i < 3; i++) {
            if (t->index == 0) printf("%d.%d: %s -> %s\n", v, i, p->in[i]->text, p->wanted[i] ? p->wanted[i]->text : "-");
            w[i] = p->wanted[i] ? ts_redistribute_to(a[i], p->wanted[i]->sharding) : a[i];
            family_same(t, w[i], r[i], "moved");
        }
        tsi_op_run(&args, out);
        ts_tensor *y = ts_scatter_add(r[0], (int)at[0], r[1], r[2]);
        family_same(t, out[0], y, "y");
        family_same(t, ts_scatter_add(w[0], (int)at[0], w[1], w[2]), y, "by hand");
        if (t->index == 0) printf("%s\n", out[0]->layout->text);
        for (int k = 0; k < 4; k++) { ts_group_barrier(ts_group_world(t->me), NULL); if (k == t->index && v == 2) { tsi_block b = tsi_array_block(w[1]->array); printf("rank %d idx local %lld x %lld; x[6]=%g out[6]=%g\n", k, (long long)b.extent[0], (long long)b.extent[1], ((double*)tsi_array_data(w[0]->array))[6], ((double*)tsi_array_data(out[0]->array))[6]); fflush(stdout);} }
    }
}
