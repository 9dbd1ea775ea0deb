/* SPDX-License-Identifier: Apache-2.0 */
/* tessera.h - everything public. A program may as well include only what it uses. */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include "autograd.h"
#include "comm.h"
#include "data.h"
#include "event.h"
#include "export.h"
#include "json.h"
#include "layout.h"
#include "mesh.h"
#include "model.h"
#include "nn.h"
#include "op.h"
#include "op_call.h"
#include "op_compose.h"
#include "op_index.h"
#include "op_list.h"
#include "op_matrix.h"
#include "op_nn.h"
#include "op_pointwise.h"
#include "op_query.h"
#include "op_random.h"
#include "op_reduce.h"
#include "op_user.h"
#include "op_view.h"
#include "plan.h"
#include "scope.h"
#include "status.h"
#include "tensor.h"
#include "train.h"
#include "types.h"
#include "verify.h"
#include "version.h"
#include "world.h"

#endif
