/* SPDX-License-Identifier: Apache-2.0 */
/* 03_serve.c - a process that serves for long: a failed request is answered, and the state of the
 * last good one stays.
 *
 * Each request runs in a catching scope that all ranks agree on: either both caches moved on, on
 * every rank, or neither did. Run it:  TESSERA_RANKS=2 ./03_serve */
#include <stdio.h>

#include <tessera/tessera.h>

typedef struct dialogue {
    ts_tensor *sum, *count; /* variables: what is kept between requests */
} dialogue;

static ts_status serve(ts_rank *me, ts_mesh *mesh, dialogue *user, int number)
{
    ts_scope_options options = TS_INIT(ts_scope_options);
    options.label = "request";
    options.catches = 1;
    options.no_grad = 1;
    options.agree = mesh;
    ts_scope scope = ts_scope_open_with(me, &options);
    ts_tensor *x = ts_full(number, mesh, TS_DTYPE_F64, TS_SHAPE(6, 4), "tp?:S(0)");
    ts_tensor *total =
        ts_sum(x, NULL, 0, 0); /* pending a sum over tp: nothing was communicated yet */
    ts_tensor_write(user->sum, number > 1 ? ts_add(user->sum, total) : total);
    if (number % 5 == 4)
        ts_rank_fail(me, TS_ERR_ARG, "request %d wants more than is allowed", number);
    ts_tensor_write(user->count, ts_full(number, mesh, TS_DTYPE_F64, TS_SHAPE(1), NULL));
    return ts_scope_close(scope);
}

static ts_status work(ts_rank *me, void *arg)
{
    (void)arg;
    ts_mesh *mesh = ts_mesh_create(me, "tp=*");
    dialogue user = { ts_variable(me), ts_variable(me) };
    for (int number = 1; number <= 10; number++) {
        ts_status status = serve(me, mesh, &user, number);
        if (status != TS_OK && ts_rank_index(me) == 0)
            printf("refused: %s\n", ts_rank_error(me)->text);
        if (status == TS_ERR_PEER || status == TS_ERR_MEMORY) ts_rank_recover(me);
        if (ts_rank_status(me) != TS_OK) break;
    }
    double sum = 0, last = 0;
    ts_tensor_item(user.sum, &sum);
    ts_tensor_item(user.count, &last);
    if (ts_rank_index(me) == 0) printf("after request %g the sum is %g\n", last, sum);
    ts_tensor_release(user.sum);
    ts_tensor_release(user.count);
    return ts_rank_sync(me);
}

int main(int argc, char **argv)
{
    return ts_launch(argc, argv, work, NULL);
}
