#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example programs run, on one rank and on several, with threads and under every MPI that is there, and say
# what they should. They check their own results and leave with an exit code.
set -u
build=$1
passed=0 failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export TESSERA_LOG=${TESSERA_LOG:-error}
expect() { # words command ...
    local words=$1 said
    shift
    said=$(timeout 60 "$@" 2>&1 < /dev/null)
    if [ $? -eq 0 ] && [[ $said == *"$words"* ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s: expected "%s", got:\n%s\n' "$*" "$words" "$said"
    fi
}
[ -x "$build/examples/02_mlp" ] || { echo "the examples were not built"; exit 77; }
for ranks in 1 3 4; do
    export TESSERA_RANKS=$ranks
    expect "step 60: loss 0.7" "$build/examples/02_mlp"
    expect "after request 10 the sum is 1008" "$build/examples/03_serve"
    expect "steps on $ranks ranks: 0." "$build/examples/04_llama_block"
    expect "T = $((4 * ranks - 1)) on $ranks ranks: less than 1e-12 apart" "$build/examples/05_ring_attention"
    expect "loss 4.2784, sum of the gradient 4.5000" "$build/examples/06_user_op"
    expect "step 60: loss 0.0" "$build/examples/09_fsdp"
    expect "$ranks stages, 6 micro-batches: gradients as those" "$build/examples/08_pipeline"
    expect "200 steps on $ranks ranks: the sum is kept" "$build/examples/10_symmetric"
done
unset TESSERA_RANKS
for mpi in openmpi mpich; do
    [ -e "$build/lib/tessera/tessera_mpi_$mpi.so" ] && command -v mpirun.$mpi >/dev/null || continue
    expect "steps on 4 ranks: 0." mpirun.$mpi -n 4 "$build/examples/04_llama_block"
    expect "T = 11 on 3 ranks: less than 1e-12 apart" mpirun.$mpi -n 3 "$build/examples/05_ring_attention"
    expect "200 steps on 3 ranks: the sum is kept" mpirun.$mpi -n 3 "$build/examples/10_symmetric"
    expect "4 stages, 6 micro-batches: gradients as those" mpirun.$mpi -n 4 "$build/examples/08_pipeline"
    for ranks in 1 2 4; do
        expect "both halves agree" mpirun.$mpi -n $ranks "$build/examples/07_mpi_embedding_$mpi"
    done
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
