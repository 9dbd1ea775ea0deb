#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Repairs 27 and 28: `tessera train` killed with -9 at random times, and two runs in one output. After every kill the
# log has each step once up to some step and the newest state is as new as before; at the end the weights are those
# of a run that nobody disturbed.
#
#   tests/cli/train_kill.sh [BUILD_DIR] [KILLS] [SEED]      default 10 kills, seed 1; 500 take some minutes
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
kills=${2:-10} seed=${3:-1}
echo "again with: $0 $build $kills $seed"

cat > "$work/a.ini" << END
[model]
hidden = 16
layers = 1
heads = 2
[data]
path = text.txt
context = 8
[train]
batch = 4
steps = 150
[checkpoint]
every = 3
[optimizer]
rate = 1e-4
[parallel]
mesh = dp=2
[log]
sample = 0
END
for i in 1 2 3 4 5 6 7 8 9; do echo "The fox number $i ran home."; done > "$work/text.txt"
train() { # output
    "$tessera" train "$work/a.ini" --quiet --set train.output="$work/$1"
}
begin() { # output file: as train, in the background; the process itself is $child
    "$tessera" train "$work/a.ini" --quiet --set train.output="$work/$1" > "$2" 2>&1 &
    child=$!
}
seconds() { # number: a time from 0 to 0.5 s, a function of the seed
    awk -v s="$seed" -v n="$1" 'BEGIN { srand(1000 * s + n); rand(); printf "%.3f", 0.5 * rand() }'
}
newest() { # output: the step of its newest state
    ls "$work/$1/state" 2> /dev/null | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1
}
# Steps 1, 2, ... once each; only the very last line may be torn.
log_is_whole() { # output
    [ ! -e "$work/$1/train.jsonl" ] ||
        sed 's/^{"step": \([0-9]*\), .*"run": "[0-9a-f]*"}$/\1/' "$work/$1/train.jsonl" |
        awk '{ lines = NR; if ($0 != NR) { bad = NR; exit } } END { exit bad && bad < lines }'
}

succeeds "undisturbed" train whole
bad="" before=0
for kill in $(seq "$kills"); do
    begin killed "$work/out"
    sleep "$(seconds "$kill")"
    kill -9 $child 2> /dev/null
    wait $child 2> /dev/null
    code=$?
    after=$(newest killed)
    [ "${after:-0}" -ge "$before" ] || bad="$bad; kill $kill: the newest state was $before, is ${after:-none}"
    log_is_whole killed || bad="$bad; kill $kill: the log is torn"
    lines=$(cat "$work/killed/train.jsonl" 2> /dev/null | wc -l)
    [ "$lines" -ge "${after:-0}" ] || bad="$bad; kill $kill: the log has $lines lines for the state of step $after"
    [ $code = 137 ] || [ $code = 0 ] || bad="$bad; kill $kill: exit code $code: $(cat "$work/out")"
    before=${after:-0}
    # Begins anew when it is through, so that every kill meets a run.
    if [ "$before" -ge 150 ]; then
        cmp -s "$work/whole/model/model.safetensors" "$work/killed/model/model.safetensors" || [ $code = 137 ] ||
            bad="$bad; kill $kill: other weights"
        train killed > "$work/out" 2>&1 || bad="$bad; kill $kill: $(cat "$work/out")"
        rm -rf "$work/killed"
        before=0
    fi
done
[ -z "$bad" ] && pass "repair 28: $kills kills leave a log and a state that can be gone on from" ||
    fail "repair 28: $kills kills leave a log and a state that can be gone on from" "seed $seed$bad"
succeeds "the killed run is run to its end" train killed
succeeds "repair 28: its weights are those of a run without kills" \
    cmp "$work/whole/model/model.safetensors" "$work/killed/model/model.safetensors"
[ "$(wc -l < "$work/killed/train.jsonl")" = 150 ] && log_is_whole killed && pass "its log has each step once" ||
    fail "its log has each step once" "$(wc -l < "$work/killed/train.jsonl") lines"
left=$(find "$work/killed" -name '*.tmp' -o -name '*.part' -o -name '*.old')
[ -z "$left" ] && pass "repair 28: nothing is left over" || fail "repair 28: nothing is left over" "$left"

# Two runs at once: one is refused with a sentence, whichever it is; then the first is killed and the second goes on.
bad=""
for pair in $(seq $(((kills + 9) / 10))); do
    rm -rf "$work/pair"
    begin pair "$work/one"
    one=$child
    begin pair "$work/two"
    two=$child
    sleep "$(seconds "$((5000 + pair))")"
    kill -9 $one 2> /dev/null
    wait $one 2> /dev/null
    first=$?
    wait $two
    second=$?
    case $first:$second in
    1:0 | 137:0) ;; # the first was refused, or killed before it had the lock
    0:1 | 137:1)
        grep -q 'another run (process [0-9]* on ' "$work/two" || bad="$bad; pair $pair: $(cat "$work/two")" ;;
    *) bad="$bad; pair $pair: exit codes $first and $second: $(cat "$work/one" "$work/two")" ;;
    esac
    train pair > "$work/three" 2>&1 || bad="$bad; pair $pair: $(cat "$work/three")"
    cmp -s "$work/whole/model/model.safetensors" "$work/pair/model/model.safetensors" ||
        bad="$bad; pair $pair: other weights"
    log_is_whole pair || bad="$bad; pair $pair: the log is torn"
done
[ -z "$bad" ] && pass "repair 27: two runs in one output" || fail "repair 27: two runs in one output" "seed $seed$bad"
finish
