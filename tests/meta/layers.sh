#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The include rules of src/LAYERS and src/FOREIGN hold, and the checker sees it when they do not.
. "$(dirname "$0")/lib.sh"
succeeds "includes respect the layers" "$root/scripts/check-layers"

# A tree with one file, checked by the real rules.
tree() { # file include-line
    rm -rf "$work/tree"
    mkdir -p "$work/tree/src" "$(dirname "$work/tree/$1")"
    cp "$root/src/LAYERS" "$root/src/FOREIGN" "$work/tree/src"
    echo "$2" > "$work/tree/$1"
}
tree src/base/x.c '#include "comm/engine.h"'
refuses "base may not see comm" "base (level 0) includes comm/engine.h" "$root/scripts/check-layers" "$work/tree"
tree src/plan/x.c '#include "array/array.h"'
refuses "nor a neighbour of the same level" "plan (level 2) includes array/array.h" \
    "$root/scripts/check-layers" "$work/tree"
tree src/comm/x.c '#include "plan/plan.h"'
succeeds "comm may see plan" "$root/scripts/check-layers" "$work/tree"
tree src/comm/threads/x.c '#include <mpi.h>'
refuses "mpi.h stays in comm/mpi" "<mpi.h> is allowed in src/comm/mpi/ only" \
    "$root/scripts/check-layers" "$work/tree"
tree src/comm/mpi/x.c '#include <mpi.h>'
succeeds "where it is allowed" "$root/scripts/check-layers" "$work/tree"
tree src/base/x.c '#include "alloc.h"'
refuses "an include says its directory" "does not begin with a directory" "$root/scripts/check-layers" "$work/tree"
tree src/other/x.c ''
refuses "a new directory needs a level" "has no level in src/LAYERS" "$root/scripts/check-layers" "$work/tree"
tree cli/x.c '#include "base/alloc.h"'
refuses "the program sees the public API only" "public API only" "$root/scripts/check-layers" "$work/tree"
tree bench/x.c '#include "base/alloc.h"'
refuses "so do the measurements" "bench/ uses the public API only" "$root/scripts/check-layers" "$work/tree"
tree include/tessera/x.h '#include "base/alloc.h"'
refuses "public headers see no internal one" "a public header includes its neighbours" \
    "$root/scripts/check-layers" "$work/tree"

# One door, one device, one mirror.
tree src/nn/x.c 'static const void *d(void) { return tsi_device_cpu(); }'
refuses "only src/device names the cpu's device" "the cpu's device is named in src/device only" \
    "$root/scripts/check-layers" "$work/tree"
tree src/device/x.c 'static const void *d(void) { return tsi_device_cpu(); }'
succeeds "it may itself" "$root/scripts/check-layers" "$work/tree"
tree src/op/nn/x.c '    return io->op->reference(io);'
refuses "references are called in one place" "called by tsi_kernel_run alone" \
    "$root/scripts/check-layers" "$work/tree"
tree src/op/core/kernel.c '    return io->op->reference(io);'
succeeds "in kernel.c" "$root/scripts/check-layers" "$work/tree"
tree src/backend/cpu/kernels.c '    return tsi_cpu_softmax(io);'
echo 'TS_KERNEL(softmax, tsi_cpu_softmax)' > "$work/tree/src/backend/cpu/kernels.def"
refuses "so are kernels" "a kernel, tsi_cpu_softmax, is called by tsi_kernel_run alone" \
    "$root/scripts/check-layers" "$work/tree"
tree src/backend/cpu/nn/melt_fast.c ''
mkdir -p "$work/tree/src/op/nn"
refuses "a kernel's file mirrors an operator's" "there is no operator src/op/nn/melt_fast.c" \
    "$root/scripts/check-layers" "$work/tree"
touch "$work/tree/src/op/nn/melt.c"
succeeds "by the first words of its name" "$root/scripts/check-layers" "$work/tree"
rm "$work/tree/src/op/nn/melt.c" && touch "$work/tree/src/backend/cpu/nn/melt.h"
succeeds "or a header beside it says what it is" "$root/scripts/check-layers" "$work/tree"
finish
