/* SPDX-License-Identifier: Apache-2.0 */
/* tessera.h - everything public. A program may as well include only what it uses. */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include "comm.h"
#include "event.h"
#include "layout.h"
#include "mesh.h"
#include "op.h"
#include "plan.h"
#include "scope.h"
#include "status.h"
#include "tensor.h"
#include "types.h"
#include "world.h"

#endif
