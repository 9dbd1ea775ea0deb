#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Models whose sequence is cut over cp against the reference's numbers: every algorithm of attention and every
# balance, pieces that are uneven, beside tp and fsdp. The second argument `all` runs every combination instead of
# a sample.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
cd "$root" || exit 1
models=tests/golden/models

verify() { # model mesh [options]
    local name="$1 on $2 ${*:3}" plan=dp
    case $2 in *tp*) plan=sp ;; esac
    if said=$(timeout 120 "$tessera" verify model "$models/$1" --mesh "$2" --plan $plan "${@:3}" 2>&1) &&
        [[ $said =~ ": "([0-9]+)" of "([0-9]+)" agree"$ ]] && [ "${BASH_REMATCH[1]}" -eq "${BASH_REMATCH[2]}" ]; then
        pass "$name"
    else
        fail "$name" "$said"
    fi
}

ways=(auto ring gather heads)
cuts=(none head_tail per_document ptrr auto)
number=0
for model in llama llama31 qwen3 mixtral gpt2 qwen3_window; do
    for mesh in "cp=2" "cp=3" "cp=4" "cp=2, tp=2" "fsdp=2, cp=2"; do
        number=$((number + 1))
        if [ "${2:-}" != all ]; then
            verify $model "$mesh" --attention "${ways[$((number % 4))]}" --balance "${cuts[$((number % 5))]}"
            continue
        fi
        for way in "${ways[@]}"; do
            for cut in "${cuts[@]}"; do verify $model "$mesh" --attention "$way" --balance "$cut"; done
        done
    done
done
finish
