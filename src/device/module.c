/* SPDX-License-Identifier: Apache-2.0 */
/* module.c - the functions of the core that modules of devices call. */
#include "device/module.h"

#include "base/alloc.h"

static const tsi_module_host host_table = {
    .struct_size = sizeof(tsi_module_host),
    .device_size = sizeof(tsi_device),
    .fail_va = tsi_fail_va,
    .alloc = tsi_alloc,
    .calloc = tsi_calloc,
    .free = tsi_free,
    .assert_failed = tsi_assert_failed,
    .dtype_size = ts_dtype_size,
    .dtype_name = ts_dtype_name,
    .reduce_name = ts_reduce_name,
    .reduce_allowed = tsi_reduce_allowed,
    .block_count = tsi_block_count,
    .block_is_dense = tsi_block_is_dense,
};

const tsi_module_host *tsi_module_host_table(void)
{
    return &host_table;
}
