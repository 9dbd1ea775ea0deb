/* SPDX-License-Identifier: Apache-2.0 */
/* queue.h - the device `queue`: host memory behind streams that run later, for tests without a GPU.
 */
#ifndef TSI_DEVICE_QUEUE_H
#define TSI_DEVICE_QUEUE_H

#include "device/device.h"

const tsi_device *tsi_device_queue(void);

#endif
