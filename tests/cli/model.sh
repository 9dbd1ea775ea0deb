#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The four model families against the numbers of another implementation, on several meshes and plans.
set -u
build=$1
passed=0 failed=0
verify() { # model mesh plan
    if said=$(timeout 120 "$build/bin/tessera" verify model "tests/golden/models/$1" --mesh "$2" --plan "$3" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s on %s (%s):\n%s\n' "$1" "$2" "$3" "$said"
    fi
}
for model in llama qwen3 mixtral gpt2; do
    verify $model "dp=1" dp
    verify $model "dp=2" dp
    verify $model "dp=3" dp
    verify $model "tp=2" tp
    verify $model "tp=4" tp
    verify $model "dp=2, tp=2" tp
    verify $model "dp=2, tp=2" sp
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
