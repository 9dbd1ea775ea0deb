/* SPDX-License-Identifier: Apache-2.0 */
/* install.c - one call that enters every fast kernel of the cpu into the table [device][op]. */
#include "backend/cpu/install.h"

#include <pthread.h>

#include "backend/cpu/cpu.h"

static pthread_once_t installed = PTHREAD_ONCE_INIT;

static void install(void)
{
    tsi_pointwise_install();
    tsi_product_install();
    tsi_small_install();
    tsi_grouped_install();
    tsi_reduce_install();
    tsi_along_install();
    tsi_softmax_install();
    tsi_softmax_back_install();
    tsi_norm_install();
    tsi_norm_group_install();
    tsi_norm_back_install();
    tsi_attend_install();
    tsi_copy_install();
    tsi_update_install();
    tsi_rope_install();
    tsi_entropy_install();
    tsi_loss_install();
    tsi_embedding_install();
    tsi_move_install();
    tsi_select_install();
    tsi_gather_install();
    tsi_draw_install();
    tsi_sort_install();
    tsi_conv_install();
    tsi_pool_install();
    tsi_count_install();
    tsi_mask_install();
}

void tsi_backend_cpu_install(void)
{
    (void)pthread_once(&installed, install);
}
