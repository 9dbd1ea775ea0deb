#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera train` and `tessera generate`: exit codes, sentences, what a run leaves, going on.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"

ends() { # name code words command ...
    ends_name=$1 ends_code=$2 ends_words=$3
    shift 3
    said=$("$@" 2>&1)
    code=$?
    case $code:$said in
    $ends_code:*"$ends_words"*) pass "$ends_name" ;;
    *) fail "$ends_name" "exit code $code (wanted $ends_code), wanted the words: $ends_words
it said: $said" ;;
    esac
}

cat > "$work/a.ini" <<END
[model]
hidden = 16
layers = 1
heads = 2
[data]
path = $work/text.txt
context = 8
[train]
output = $work/run
steps = 4
batch = 4
[parallel]
mesh = dp=2
[log]
sample = 8
prompt = The
END
for i in 1 2 3 4 5 6 7 8 9; do echo "The fox number $i ran home."; done > "$work/text.txt"
printf '[train]\nstesp = 4\n' > "$work/bad.ini"

ends help 0 "Trains a model" "$tessera" train --help
ends no_config 2 "needs one CONFIG" "$tessera" train
ends no_file 2 "No such file" "$tessera" train "$work/none.ini"
ends bad_key 2 'line 2: unknown key "stesp" in [train]; did you mean "steps"?' "$tessera" train "$work/bad.ini"
ends bad_set 2 'did you mean "batch"?' "$tessera" train "$work/a.ini" --set train.bacth=2
ends bad_mesh 2 "parallel.mesh" "$tessera" train "$work/a.ini" --set parallel.mesh=dp=
ends bad_data 1 "neither a text file" "$tessera" train "$work/a.ini" --set data.path="$work/none"
ends print_config 0 "mesh = dp=2" "$tessera" train "$work/a.ini" --print-config
ends print_defaults 0 "steps = 100" "$tessera" train --print-config
ends part 0 "done after step 2" "$tessera" train "$work/a.ini" --set train.steps=2
ends goes_on 0 "going on after step 2" "$tessera" train "$work/a.ini"
grep -q '<polyline' "$work/run/report.html" && grep -q 'all_reduce' "$work/run/report.html" &&
    pass "the report has curves and communication" || fail "the report has curves and communication" ""
ends nothing_left 0 "done after step 4" "$tessera" train "$work/a.ini"
for file in model/config.json model/model.safetensors report.html train.jsonl state/step-4/rank-1.bin; do
    succeeds "there is $file" test -s "$work/run/$file"
done
[ "$(wc -l < "$work/run/train.jsonl")" = 4 ] && pass "a line for each step" ||
    fail "a line for each step" "$(cat "$work/run/train.jsonl")"

ends generate_help 0 "Text from a model" "$tessera" generate --help
ends generate_no_folder 2 "needs one directory" "$tessera" generate
ends generate_no_model 1 "none: cannot be opened" "$tessera" generate "$work/none"
ends generate_hot 2 "--temperature" "$tessera" generate "$work/run/model" --temperature warm
ends generate 0 "The" "$tessera" generate "$work/run/model" --prompt The --tokens 8
a=$("$tessera" generate "$work/run/model" --prompt The --tokens 8 --seed 3 | od -c)
b=$("$tessera" generate "$work/run/model" --prompt The --tokens 8 --seed 3 | od -c)
[ "$a" = "$b" ] && pass "the same seed, the same text" || fail "the same seed, the same text" "$a
$b"
finish
