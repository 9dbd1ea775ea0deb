/* SPDX-License-Identifier: Apache-2.0 */
/* linear_list.c - several weights times one x, by the products of contract.c. */
#include "op/matrix/linear_list.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/matrix/contract.h"

static ts_status multiply(const tsi_kernel_io *io, const char *equation,
                          const tsi_block *const block[3], bool accumulate)
{
    (void)io;
    tsi_contraction problem;
    tsi_contraction_make(equation, block[0], block[1], block[2], &problem);
    return tsi_cpu_contract(&problem, accumulate);
}

ts_status tsi_cpu_linear_list(const tsi_kernel_io *io)
{
    return tsi_linear_list_by(io, multiply, false);
}

ts_status tsi_cpu_linear_list_input(const tsi_kernel_io *io)
{
    return tsi_linear_list_input_by(io, multiply, false);
}

ts_status tsi_cpu_linear_list_weights(const tsi_kernel_io *io)
{
    return tsi_linear_list_weights_by(io, multiply, false);
}
