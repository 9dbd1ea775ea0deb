/* SPDX-License-Identifier: Apache-2.0 */
/* 07_mpi_embedding.c - somebody else's MPI program that calls tessera inside its own time loop.
 *
 * The program owns MPI: it starts it at the level it wants (FUNNELED will do), splits its ranks
 * into halves, and lends tessera one of its communicators, which is duplicated, so that messages
 * never mix. progress = 1 asks for no helper thread: tessera communicates inside calls only.
 * Closing the world gives everything back; MPI is finalised by the program.
 *
 * Each half keeps a field that a surrogate step changes (a matrix product on the ranks of the half)
 * while the solver passes messages of its own. A step runs in a catching scope that all ranks of
 * the half agree on: if one fails, none has changed the field. Run it:  mpirun -n 4
 * ./07_mpi_embedding */
#include <math.h>
#include <stdio.h>

#include <mpi.h>
#include <tessera/tessera.h>

enum { SIZE = 24, STEPS = 10 };

/* field <- (field + field^T) / 2, then rows are scaled so that they sum to one. */
static ts_tensor *surrogate(ts_tensor *field)
{
    int64_t rows = 1;
    ts_tensor *even = ts_scale(ts_add(field, ts_transpose(field, 0, 1)), 0.5);
    return ts_div(even, ts_sum(even, &rows, 1, 1));
}

/* One step of the solver beside ours: a value goes round the half. */
static int solver(MPI_Comm half, int step)
{
    int rank = 0, size = 1, got = -1;
    MPI_Comm_rank(half, &rank);
    MPI_Comm_size(half, &size);
    MPI_Sendrecv(&step, 1, MPI_INT, (rank + 1) % size, 7, &got, 1, MPI_INT,
                 (rank + size - 1) % size, 7, half, MPI_STATUS_IGNORE);
    return got == step;
}

static ts_status cell(const int64_t *global, void *element, void *context)
{
    (void)context;
    *(double *)element = 1.0 + (double)((global[0] * SIZE + global[1]) % 17);
    return TS_OK;
}

/* All steps on the ranks of `half`; 1 if the field is what it should be. */
static int simulate(ts_rank *me, MPI_Comm half)
{
    ts_mesh *mesh = ts_mesh_create(me, "tp=*");
    ts_tensor *field = ts_variable(me);
    ts_meta meta = { .shape = TS_SHAPE(SIZE, SIZE), .dtype = TS_DTYPE_F64 };
    ts_tensor_write(field, ts_from_function(cell, NULL, ts_sharding_get(mesh, "tp:S(0)"), meta));
    int good = 1;
    for (int step = 0; step < STEPS && good; step++) {
        ts_scope_options options = TS_INIT(ts_scope_options);
        options.label = "surrogate";
        options.catches = 1;
        options.agree = mesh;
        ts_scope scope = ts_scope_open_with(me, &options);
        ts_tensor_write(field, surrogate(field));
        if (ts_scope_close(scope) != TS_OK) { /* the same answer on every rank of the half */
            fprintf(stderr, "step %d: %s\n", step, ts_rank_error(me)->text);
            good = 0;
        }
        good = solver(half, step) && good;
    }
    double sum = 0;
    ts_tensor_item(ts_sum(field, NULL, 0, 0), &sum);
    ts_tensor_release(field);
    return good && ts_rank_sync(me) == TS_OK && fabs(sum - SIZE) < 1e-9; /* rows sum to one */
}

int main(int argc, char **argv)
{
    int level = 0, rank = 0, good = 0, all = 0;
    MPI_Comm half;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank & 1, rank, &half);
    ts_world_options options = TS_INIT(ts_world_options);
    options.engine = "mpi";
    options.mpi_comm = &half;
    options.progress = 1;
    ts_world *world = NULL;
    ts_rank *me = NULL;
    if (ts_world_open(&options, &world) == TS_OK && ts_rank_attach(world, 0, &me) == TS_OK) {
        good = simulate(me, half);
        ts_rank_detach(me);
    } else {
        fprintf(stderr, "tessera: %s\n", ts_last_error());
    }
    ts_world_close(world);
    MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0) printf("%s\n", all ? "both halves agree: rows sum to one" : "something failed");
    MPI_Comm_free(&half);
    MPI_Finalize();
    return all ? 0 : 1;
}
