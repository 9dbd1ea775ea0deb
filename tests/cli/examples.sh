#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example programs run, on one rank and on several, and say what they should.
set -u
build=$1
passed=0 failed=0
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
for ranks in 1 3; do
    export TESSERA_RANKS=$ranks
    expect "step 60: loss 0.7" "$build/examples/02_mlp"
    expect "after request 10 the sum is 1008" "$build/examples/03_serve"
    expect "loss 4.2784, sum of the gradient 4.5000" "$build/examples/06_user_op"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
