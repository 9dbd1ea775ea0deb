#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `tessera verify parallel`: the whole matrix once, a sample of it on the device that runs behind, with models
# from files and of another seed; what is refused. The second argument `all` runs more seeds instead.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
cd "$root" || exit 1

agree() { # name [options]: all that was run agrees
    if said=$("$tessera" verify parallel "${@:2}" 2>&1) &&
        [[ $said =~ ": "([0-9]+)" of "([0-9]+)" agree with one rank" ]] &&
        [ "${BASH_REMATCH[1]}" -eq "${BASH_REMATCH[2]}" ] && [ "${BASH_REMATCH[2]}" -gt 0 ]; then
        pass "$1"
    else
        fail "$1" "$said"
    fi
}

if [ "${2:-}" = all ]; then
    for seed in 11 12 13 14 15 16; do agree "seed $seed" --seed $seed; done
    agree "on the queue" --device queue
    agree "models of files" --models tests/golden/models/*/
    finish
    exit
fi
seed=$((RANDOM + 100))
echo "seed $seed"
agree "the whole matrix" --seed 1
table=$said
rows=$(grep -c '=' <<< "$table")
[ "$rows" -eq 33 ] && pass "21 pairs and 12 of more" || fail "21 pairs and 12 of more" "$rows rows"
case $table in *"77 of 77 agree"*"22 mean nothing"*) pass "three families" ;; *) fail "three families" "$table" ;; esac
agree "a sample of another seed" --sample 12 --seed $seed
agree "a sample on the queue" --sample 8 --seed $seed --device queue
agree "models of files" --sample 10 --seed $seed --models \
    tests/golden/models/deepseek_v3 tests/golden/models/mixtral_window
agree "one key head on several ranks" --only "tp, pp" --models tests/golden/models/mixtral_window
# What is compared is not the same run twice: sums of several ranks differ in the last bits.
"$tessera" verify parallel --only "fsdp, tp" --json > "$work/pair.json"
grep -q '"roles": "fsdp, tp", "mesh": "fsdp=2, tp=2"' "$work/pair.json" &&
    ! grep -q '"difference": 0[,}]' "$work/pair.json" &&
    pass "differences are measured" || fail "differences are measured" "$(cat "$work/pair.json")"
says experts_of_none 0 "the model has none" "$tessera" verify parallel --only "fsdp, ep" --json
says bad_role 2 'roles are replicate, fsdp' "$tessera" verify parallel --only "fsdp, dpp"
says bad_device 2 '--device: expected cpu, cuda, queue or auto, found "tpu"' "$tessera" verify parallel --device tpu
says no_model 2 'No such file' "$tessera" verify parallel --models "$work/none"
# Commands of the documents run: training for two steps, the rules of one operator.
while read -r command; do
    case $command in
    *--plan-only*) ;;
    "tessera train "*) command="$command --set train.steps=2 --set train.output=$work/run --set log.sample=0" ;;
    "tessera verify rules") command="$command add" ;;
    "tessera verify parallel") command="$command --sample 2" ;;
    esac
    succeeds "$command" eval "\"$build\"/bin/$command"
done < <(sed -n '/^```/,/^```/s/^\(tessera [^#]*[^# ]\) *\(#.*\)*$/\1/p' README.md docs/training.md docs/parallel.md)
# The table that is printed in the documents has these rows.
while read -r row; do
    grep -qF "$row" docs/parallel.md || fail "docs/parallel.md has the row: $row"
done < <(grep '=' <<< "$table" | sed -E 's/  +[0-9]+  .*//; s/^(.*[^ ])  +(.*)$/| \1 | `\2` |/')
finish
