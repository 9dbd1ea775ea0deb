#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The model families against the numbers of another implementation, on several meshes and plans: with threads, and under
# every MPI that is there. The second argument `all`: sharded data parallelism in every way instead.
set -u
build=$1
passed=0 failed=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export TESSERA_LOG=${TESSERA_LOG:-error}
pass() { passed=$((passed + 1)); }
fail() { # label output
    failed=$((failed + 1))
    printf 'FAIL %s:\n%s\n' "$1" "$2"
}
# The values of a reference, each once: whatever the mesh, as many are compared.
values() { # model
    python3 - "tests/golden/models/$1/reference.json" <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
print(2 + len(r["logits_first_row_last_pos"]) + len(r["grad_norm"]) + 2 * len(r["adamw"]["loss_and_total_norm"]))
END
}
declare -A wanted
verify() { # model mesh plan [options]
    local said n
    [ -n "${wanted[$1]:-}" ] || wanted[$1]=$(values "$1")
    n=${wanted[$1]}
    if said=$(timeout 120 "$build/bin/tessera" verify model "tests/golden/models/$1" --mesh "$2" \
        --plan "$3" "${@:4}" 2>&1) && [[ $said == *": $n of $n agree" ]]; then pass
    else fail "$1 on $2 ($3)" "$said"; fi
}
# One summary line from all four processes together.
verify_mpi() { # mpi model plan [mesh]
    local said
    if said=$(timeout 120 "mpirun.$1" -n 4 "$build/bin/tessera" verify model "tests/golden/models/$2" \
        --mesh "${4:-dp=2, tp=2}" --plan "$3" "${@:5}" 2>&1) && [ "$(grep -c ' agree$' <<<"$said")" -eq 1 ]; then pass
    else fail "$2 with $1 ($3)" "$said"; fi
}
sharded=(llama llama31 qwen3 mixtral gpt2)
meshes=("fsdp=2" "fsdp=3" "fsdp=4" "fsdp=8" "replicate=2" "replicate=2, fsdp=2" "fsdp=2, tp=2"
    "replicate=2, fsdp=2, tp=2")
verify_cut() { # model mesh recompute reshard
    case $2 in *tp=*) plan=sp ;; *) plan=dp ;; esac
    verify $1 "$2" $plan --recompute $3 --reshard $4
}
if [ "${2:-}" = all ]; then
    for model in "${sharded[@]}"; do
        for mesh in "${meshes[@]}"; do
            for again in none full select 2; do
                for reshard in auto yes no; do verify_cut $model "$mesh" $again $reshard; done
                [[ $mesh != fsdp=[48] ]] || verify_cut $model "$mesh" $again 2
            done
        done
    done
    echo "$passed passed, $failed failed"
    exit $((failed > 0))
fi
for model in llama qwen3 mixtral gpt2; do
    verify $model "dp=1" dp
    verify $model "dp=2" dp
    verify $model "dp=3" dp
    verify $model "tp=2" tp
    verify $model "tp=4" tp
    verify $model "dp=2, tp=2" tp
    verify $model "dp=2, tp=2" sp
done
for model in llama_bias llama_long qwen3_window mixtral_window gpt2_plain; do
    verify $model "dp=1" dp
    verify $model "dp=2" dp
    verify $model "tp=2" sp
    verify $model "tp=3" tp
    verify $model "tp=4" tp
    verify $model "dp=3, tp=2" sp
done
for model in llama31 qwen3_moe deepseek_v3; do
    verify $model "dp=1" dp
    verify $model "dp=3" dp
    verify $model "tp=2" tp
    verify $model "dp=2, tp=2" sp
done
for model in llama mixtral gpt2 deepseek_v3; do
    verify $model "dp=1" dp --recompute full
    verify $model "replicate=2, tp=2" sp --recompute full
    verify $model "fsdp=2" dp --recompute 2
done
# Sharded data parallelism: even, uneven, more ranks than rows, beside copies and tensor parallel cuts.
# Each model on each mesh, with one way to recompute and to let go in turn.
turn=0
for model in "${sharded[@]}"; do
    for mesh in "${meshes[@]}"; do
        again=(none full select) reshard=(auto yes no)
        [[ $mesh == fsdp=[48] ]] && reshard=(2 yes no auto)
        verify_cut $model "$mesh" "${again[turn % 3]}" "${reshard[turn / 3 % ${#reshard[@]}]}"
        turn=$((turn + 1))
    done
    verify_cut $model "fsdp=4" full 2
done
for mpi in openmpi mpich; do
    [ -e "$build/lib/tessera/tessera_mpi_$mpi.so" ] && command -v mpirun.$mpi >/dev/null || continue
    for model in llama qwen3 mixtral gpt2; do
        verify_mpi $mpi $model tp
        verify_mpi $mpi $model sp
    done
    verify_mpi $mpi llama_bias tp
    verify_mpi $mpi llama dp "fsdp=4"
    verify_mpi $mpi gpt2 sp "fsdp=2, tp=2"
    verify_mpi $mpi mixtral dp "replicate=2, fsdp=2"
    verify_mpi $mpi qwen3_moe dp "fsdp=4" --ep 4
    verify_mpi $mpi gpt2_plain sp
    verify_mpi $mpi llama dp "cp=4"
done
# Plans as text and as files; patterns that match nothing are refused with the nearest name.
plans=$(mktemp -d)
printf '# cut by heads\nmodel.layers.*.self_attn.q_proj.*: R, S(0)\n  *.v_proj.*: tp?:S(0)\r\n%s\n' \
    'lm_head.weight: dp:S(0) tp:S(1)' >"$plans/own.plan"
printf 'base: sp\n\nlm_head.weight: R, R\n' >"$plans/base.plan"
verify llama_bias "dp=2, tp=2" "$plans/own.plan"
verify llama_bias "dp=2, tp=2" "$plans/base.plan"
verify mixtral_window "dp=2, tp=2" "*.experts.*: R, S(0)"
# Experts cut over the ranks that cut the batch: rows go to them. Eight over five leave one rank without any.
both=$(printf 'base: sp\n*.experts.gate_up_proj: S(0), SS(1,2)\n*.experts.down_proj: S(0), S(2)')
for model in mixtral qwen3_moe deepseek_v3; do
    verify $model "dp=2" "*.experts.*: dp:S(0)"
    verify $model "dp=5" "*.experts.*: dp:S(0)"
    verify $model "dp=2, tp=2" "$both"
done
# Groups of neighbours that are an axis, a part of one, tp, and two axes.
verify mixtral "fsdp=2" dp --ep 2
verify qwen3_moe "fsdp=4" dp --ep 2
verify qwen3_moe "fsdp=2, tp=2" sp --ep 2
verify deepseek_v3 "fsdp=2, tp=2" sp --ep 4
verify deepseek_v3 "fsdp=5" dp --ep 5
verify mixtral "replicate=2, fsdp=2" dp --ep 4 --recompute full
verify qwen3_moe "fsdp=3, tp=2" sp --ep 3
verify deepseek_v3 "pp=2, fsdp=2" dp --ep 2
verify mixtral "fsdp=2, cp=2" dp --ep 2
# Of tp and cp no part is a group: the whole axis is.
verify mixtral "tp=4" sp --ep 2
verify deepseek_v3 "cp=4" dp --ep 2
verify qwen3_moe "fsdp=3, tp=4" tp --ep 6
refused_ep() { # model mesh number words
    local said
    if said=$("$build/bin/tessera" verify model "tests/golden/models/$1" --mesh "$2" --ep "$3" 2>&1)
    then fail "$1 on $2 with --ep $3 was accepted" "$said"
    elif [[ $said == *"$4"* ]]; then pass
    else fail "--ep $3: expected \"$4\"" "$said"; fi
}
refused_ep llama "fsdp=2" 2 "the model has none"
refused_ep mixtral "fsdp=4" 3 "that number does not divide the ranks of a stage"
refused() { # plan words
    local said
    if said=$("$build/bin/tessera" verify model tests/golden/models/llama_bias --mesh "dp=2, tp=2" --plan "$1" 2>&1)
    then fail "plan $1 was accepted" "$said"
    elif [[ $said == *"$2"* ]]; then pass
    else fail "plan $1: expected \"$2\"" "$said"; fi
}
refused "model.layers.*.self_attn.q_pro.weight: R, S(0)" "did you mean model.layers.*.self_attn.q_proj.weight"
refused "layers.*.attn.wq: R, S(0)" 'plan, line 1: no parameter matches "layers.*.attn.wq"'
refused "lm_head.weight: R" "parameter lm_head.weight: placements"
refused "lm_head.weight: R, S(7)" "it has no such dim"
refused "lm_head.weight" 'there is no plan and no file "lm_head.weight"'
refused "base: pp" 'there is no plan "pp" to be the base'
# Axes are roles: nothing else is taken for a mesh on which all ranks do the same.
not_a_mesh() { # mesh words
    local said
    said=$("$build/bin/tessera" verify model tests/golden/models/llama --mesh "$1" 2>&1)
    if [ $? -eq 2 ] && [[ $said == *"$2"* ]]; then pass
    else fail "mesh $1: expected \"$2\"" "$said"; fi
}
not_a_mesh "ddp=2" 'did you mean dp?'
not_a_mesh "4" 'an axis has no name'
not_a_mesh "dp=2, replicate=2" 'two axes have the role of replicate'
# A name of the reference without a parameter is a failure; older spellings of names are not.
spoiled=$(mktemp -d)
trap 'rm -rf "$spoiled" "$plans"' EXIT
cp tests/golden/models/llama/* "$spoiled"
sed -i 's/"model.norm.weight"/"model.nrom.weight"/' "$spoiled/reference.json"
said=$("$build/bin/tessera" verify model "$spoiled" --mesh dp=2 2>&1)
code=$?
n=$(values llama)
if [ $code -eq 1 ] && [[ $said == *"gradient of model.nrom.weight: there is no such parameter"* ]] &&
    [[ $said == *": $((n - 1)) of $n agree" ]]; then pass
else fail "a name without a parameter (exit code $code)" "$said"; fi
cp tests/golden/models/mixtral/* "$spoiled"
sed -i 's/\.mlp\.gate\./.block_sparse_moe.gate./' "$spoiled/reference.json"
if said=$("$build/bin/tessera" verify model "$spoiled" --mesh tp=2 2>&1); then pass
else fail "older names" "$said"; fi
# A model that is another one is noticed, by the exit code as well.
cp tests/golden/models/llama_bias/* "$spoiled"
sed -i 's/"hidden_act": "gelu"/"hidden_act": "relu"/' "$spoiled/config.json"
said=$("$build/bin/tessera" verify model "$spoiled" 2>&1)
code=$?
if [ $code -eq 1 ] && [[ $said == *"loss: "*" not "* ]]; then pass
else fail "another activation (exit code $code)" "$said"; fi
# What a reference lacks is not compared; what it has and cannot be read is refused by its name.
reference() { # label python exit-code words: the program changes `r`
    cp tests/golden/models/llama_bias/* "$spoiled"
    python3 - "$spoiled/reference.json" "$2" <<'END'
import json, sys
r = json.load(open(sys.argv[1]))
exec(sys.argv[2])
json.dump(r, open(sys.argv[1], "w"))
END
    said=$("$build/bin/tessera" verify model "$spoiled" 2>&1)
    code=$?
    if [ $code -eq "$3" ] && [[ $said == *"$4"* ]]; then pass
    else fail "$1: expected \"$4\" and $3 (exit code $code)" "$said"; fi
}
n=$(($(values llama_bias) - 20))
reference "no steps" 'del r["adamw"]' 0 ": $n of $n agree"
reference "no betas" 'del r["adamw"]["betas"]' 2 "adamw.betas: two numbers are expected"
reference "one beta" 'r["adamw"]["betas"] = [0.9]' 2 "adamw.betas: two numbers are expected"
reference "no tokens" 'del r["tokens"]' 2 "tokens: rows of at least two are expected"
reference "rows of two lengths" 'r["tokens"][1].pop()' 2 "tokens, row 1: "
reference "a token that is none" 'r["tokens"][1][2] = "a"' 2 'tokens, row 1: is no whole number of at least 0 at 2'
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
