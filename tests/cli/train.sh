#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera train` and `tessera generate`: exit codes, sentences, what a run leaves, going on.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"

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

says help 0 "Trains a model" "$tessera" train --help
says no_config 2 "needs one CONFIG" "$tessera" train
says json_of_a_run 2 "--json is for --plan-only" "$tessera" train "$work/a.ini" --json
says rate_of_a_run 2 "--gflops is for --plan-only" "$tessera" train "$work/a.ini" --gflops 5
says no_file 2 "No such file" "$tessera" train "$work/none.ini"
says bad_key 2 'line 2: unknown key "stesp" in [train]; did you mean "steps"?' "$tessera" train "$work/bad.ini"
printf '[train]\nsteps = 4\n\0\n[nonsense]\n' > "$work/zero.ini"
says bad_byte 2 'zero.ini, line 3: has a byte of 0' "$tessera" train "$work/zero.ini" --print-config
{ cat "$work/a.ini"; printf '[data]\ncontext = 6\n'; } > "$work/twice.ini"
says twice 0 'twice.ini, line 18: data.context is said in line 7 already; this one counts' \
    "$tessera" train "$work/twice.ini" --print-config
says twice_last 0 'context = 6' "$tessera" train "$work/twice.ini" --print-config
printf '\357\273\277[train]\r\nsteps = 7\r\n' > "$work/mark.ini"
says order_mark 0 'steps = 7' "$tessera" train "$work/mark.ini" --print-config
says quotes 2 'data.path: values are written without quotes' "$tessera" train "$work/a.ini" --set 'data.path="a"'
says bad_set 2 'did you mean "batch"?' "$tessera" train "$work/a.ini" --set train.bacth=2
says bad_mesh 2 "parallel.mesh" "$tessera" train "$work/a.ini" --set parallel.mesh=dp=
says no_role 2 'parallel.mesh: mesh "ddp=4": "ddp" is no role of an axis' \
    "$tessera" train "$work/a.ini" --set parallel.mesh=ddp=4
says no_role_like_pp 2 'parallel.mesh: mesh "tpp=4": "tpp" is no role of an axis' \
    "$tessera" train "$work/a.ini" --set parallel.mesh=tpp=4
says bad_reshard 2 'reshard: expected auto, yes, no or a number of ranks, found "maybe"' \
    "$tessera" train "$work/a.ini" --set parallel.mesh=fsdp=2 --set parallel.reshard=maybe
for plan in gpt2-124m llama3-8b llama3-70b llama3-405b mixtral-8x7b; do
    says plan_$plan 0 '"step_seconds"' "$tessera" train examples/train/$plan.ini --plan-only --json
done
says plan_untied 0 '"parameters": 163037184' "$tessera" train examples/train/gpt2-124m.ini --plan-only --json \
    --gflops 1000 --set model.tied=0
says plan_places 0 'fsdp:S(0)[1] tp:S(0)[0]' "$tessera" train examples/train/llama3-70b.ini --plan-only --gflops 1000
says plan_groups 0 '8 apart, in 8 groups: 0 8 ..' \
    "$tessera" train examples/train/llama3-70b.ini --plan-only --gflops 1000
says plan_peak 0 '"operator"' "$tessera" train examples/train/llama3-8b.ini --plan-only --json --gflops 1000
says plan_where 0 'at the peak: ' "$tessera" train examples/train/llama3-8b.ini --plan-only --gflops 1000
says plan_least 0 'the least is' "$tessera" train examples/train/tales.ini --plan-only --gflops 1 \
    --set "parallel.mesh=pp=2, tp=2"
says plan_days 0 ' days of computing' "$tessera" train examples/train/llama3-8b.ini --plan-only --gflops 1
says plan_text 0 'gathered' "$tessera" train examples/train/llama3-8b.ini --plan-only --gflops 1000
says plan_of_nothing 2 'model.vocab: is not said' "$tessera" train examples/train/llama3-8b.ini --plan-only \
    --set model.vocab=0
# Sizes that have to agree are refused before anything is made, with what would do.
nearest() { # name words settings
    says "fits_$1" 2 "$2" \
        "$tessera" train examples/train/tales.ini --plan-only --gflops 1 --set "$3" --set "${4:-log.report=1}"
}
nearest batch 'train.accumulate could be 2 or 4' train.accumulate=3
nearest kv_heads 'model.kv_heads: 4 heads are no multiple of 3; it could be 2 or 4' model.kv_heads=3
nearest heads 'model.heads: a width of 96 cannot be cut into 5 heads; it could be 4 or 6' model.heads=5
nearest head_dim 'it could be 6 or 8' model.head_dim=7
nearest experts 'model.experts: the family mixtral has experts' model.family=mixtral
nearest ep 'groups of 3 do not divide the 8 ranks of the mesh "fsdp=8"; it could be 2 or 4' \
    parallel.ep=3 parallel.mesh=fsdp=8
nearest ep_of_none 'parallel.ep: is 2, and the family llama has no experts to cut; it could be 1' \
    parallel.ep=2 parallel.mesh=fsdp=2
nearest context 'data.context: is 128, model.positions 64; it could be 64' model.positions=64
# A value that means nothing is bad usage, planned or run.
for how in --plan-only --quiet; do
    says "bad_plan $how" 2 'there is no plan and no file "zz"' \
        "$tessera" train "$work/a.ini" $how --set parallel.plan=zz
    says "bad_words $how" 2 'comm.reduce: unknown "zz"' "$tessera" train "$work/a.ini" $how --set comm.reduce=zz
    says "bad_axis $how" 2 '"foo" is no role' "$tessera" train "$work/a.ini" $how --set parallel.mesh=foo=2
done
says native_of_nobody 0 'comm.reduce: native is of the engine nccl; sums of the engine threads are in order' \
    "$tessera" train "$work/a.ini" --set comm.reduce=native --set train.output="$work/native"
says explain_key 0 'whole number from 1 to 1e+12, by default 100' "$tessera" train --explain train.steps
says explain_value 0 'train.steps = 4' "$tessera" train "$work/a.ini" --explain train.steps
says explain_section 0 'checkpoint.keep' "$tessera" train --explain checkpoint
says explain_nothing 2 'there is no key "train.stesp"' "$tessera" train --explain train.stesp
# What is printed is a configuration that prints the same.
"$tessera" train "$work/a.ini" --set optimizer.rate=0.1 --set train.clip=1e-7 --print-config > "$work/printed.ini"
"$tessera" train "$work/printed.ini" --print-config > "$work/again.ini"
succeeds "a printed configuration reads as itself" cmp "$work/printed.ini" "$work/again.ini"
says bad_recompute 2 'parallel.recompute: unknown "0"' "$tessera" train "$work/a.ini" --set parallel.recompute=0
says every_second 0 'step' "$tessera" train "$work/a.ini" --plan-only --set parallel.recompute=2
says sharded 0 "done after step 2" "$tessera" train "$work/a.ini" --set train.output="$work/sharded" \
    --set parallel.mesh=fsdp=2 --set parallel.recompute=select --set train.steps=2
says sharded_on 0 "going on after step 2" "$tessera" train "$work/a.ini" --set train.output="$work/sharded" \
    --set parallel.mesh=fsdp=2 --set parallel.recompute=select
# The links that moves are planned for: a preset, or a file that is looked for beside the configuration.
says bad_topology 2 "parallel.topology: no preset '8xh10'; did you mean '8xh100'?" \
    "$tessera" train "$work/a.ini" --set parallel.topology=8xh10
printf '{"name": "mine", "levels": [{"name": "wire", "bandwidth_gib_s": 1}]}' > "$work/links.json"
{ cat "$work/a.ini"; printf '\n[parallel]\ntopology = links.json\nmesh = fsdp=2\n'; } > "$work/links.ini"
says topology_file 0 "plans take the links for those of mine" env TESSERA_LOG=info "$tessera" train "$work/links.ini" \
    --set train.output="$work/links" --set train.steps=1
says topology_planned 0 '"step_seconds"' "$tessera" train "$work/links.ini" --plan-only --json --gflops 1
# Copies are units, too: gradients are reduced block by block, once a step, and give the bits of shards.
for parts in 1 2; do
    says "copies in units, accumulated $parts" 0 'reduce_exchange       3 times' "$tessera" train "$work/a.ini" \
        --plan-only --gflops 1 --set parallel.mesh=replicate=2 --set train.accumulate=$parts
done
for mesh in fsdp=3 replicate=3; do
    "$tessera" train "$work/a.ini" --set train.output="$work/$mesh" --set parallel.mesh=$mesh --set log.sample=0 \
        --set parallel.recompute=full --set train.clip=0 > /dev/null 2>&1
    sed 's/.*"loss": \([0-9.]*\).*/\1/' "$work/$mesh/train.jsonl" > "$work/$mesh.loss"
done
[ "$(wc -l < "$work/fsdp=3.loss")" -eq 4 ] && cmp "$work/fsdp=3.loss" "$work/replicate=3.loss" > /dev/null &&
    pass "shards and copies have the same bits" ||
    fail "shards and copies have the same bits" "$(paste "$work/fsdp=3.loss" "$work/replicate=3.loss")"
# Groups of experts may be a part of an axis, which no configuration names: planned, then run.
for row in "fsdp=4 2" "fsdp=4 4" "replicate=4,fsdp=2 4" "fsdp=4,tp=2 4" "pp=2,fsdp=4 2"; do
    for how in "--plan-only --gflops 1" "--set train.steps=1"; do
        says "experts ${row##* } on ${row% *} ${how%% *}" 0 'step' "$tessera" train "$work/a.ini" $how \
            --set model.family=mixtral --set model.experts=4 --set model.experts_per_token=2 --set log.sample=0 \
            --set train.output="$work/experts" --set parallel.mesh="${row% *}" --set parallel.ep="${row##* }"
        rm -rf "$work/experts"
    done
done
# A sequence that is cut loses as a whole one does, its documents too ('\n' ends one).
losses() { # mesh [options] -> losses of the steps, to five digits
    rm -rf "$work/cut"
    "$tessera" train "$work/a.ini" --set train.output="$work/cut" --set data.context=13 --set log.sample=0 \
        --set parallel.mesh="$@" > /dev/null 2>&1
    sed 's/.*"loss": \([0-9.]*\).*/\1/' "$work/cut/train.jsonl" | cut -c1-7 | tr '\n' ' '
}
for options in "data.end=10" "data.documents=separate --set data.end=10"; do
    whole=$(losses dp=1 --set $options)
    for mesh in "cp=2" "cp=3" "dp=2, cp=2"; do
        cut=$(losses "$mesh" --set $options)
        [ -n "$whole" ] && [ "$whole" = "$cut" ] && pass "losses on $mesh, $options" ||
            fail "losses on $mesh, $options" "$whole is not $cut"
    done
done
says documents_then_a_sample 0 "loss" "$tessera" train "$work/a.ini" --set train.output="$work/sampled" \
    --set data.context=13 --set data.documents=separate --set data.end=10 --set log.sample=3
says no_end 2 "data.end: separate documents need the token" "$tessera" train "$work/a.ini" \
    --set data.documents=separate
says bad_balance 2 'did you mean head_tail' "$tessera" train "$work/a.ini" --set parallel.balance=head_tale
says bad_data 1 "neither a text file" "$tessera" train "$work/a.ini" --set data.path="$work/none"
says print_config 0 "mesh = dp=2" "$tessera" train "$work/a.ini" --print-config
says print_defaults 0 "steps = 100" "$tessera" train --print-config
says device_said 0 "device  queue
" env TESSERA_DEVICE=queue "$tessera" train "$work/a.ini" --set train.steps=1 --set train.output="$work/device"
if ! "$tessera" doctor | grep -q '^  cuda *yes'; then
    says device_auto 0 "device  cpu (auto: cuda is not here, tessera doctor says why)
" env -u TESSERA_DEVICE "$tessera" train "$work/a.ini" --set train.steps=1 --set train.resume=0 \
        --set train.output="$work/device"
    succeeds "the report says it, too" grep -q '; device cpu (auto: cuda is not here' "$work/device/report.html"
fi
says any_order 0 "done after step 1" "$tessera" train "$work/a.ini" --set train.steps=1 --set train.resume=0 \
    --set train.deterministic=0 --set train.output="$work/device"
says no_order 2 "train.deterministic: expected a whole number from 0 to 1" "$tessera" train "$work/a.ini" \
    --set train.deterministic=2
says part 0 "done after step 2" "$tessera" train "$work/a.ini" --set train.steps=2
says goes_on 0 "going on after step 2" "$tessera" train "$work/a.ini"
grep -q '<polyline' "$work/run/report.html" && grep -q 'all_reduce' "$work/run/report.html" &&
    pass "the report has curves and communication" || fail "the report has curves and communication" ""
says shown 0 "ms after the start" "$tessera" train "$work/a.ini" --set train.output="$work/shown" --trace 2-3 \
    --set log.tensorboard=1 --set log.every=1 --set log.sample=5 --set log.sample_every=2 \
    --set train.eval_every=2 --set data.held_out="$work/text.txt"
case $said in
*"held out "*"step 3/4"*"best loss"*) pass "evaluations and every step are told" ;;
*) fail "evaluations" "$said" ;;
esac
for words in 'One step of all ranks' 'aria-label="memory planned"' 'aria-label="memory held"' \
    'ms a step without waiting' 'by axis and kind' 'Where parameters lie' \
    'is the slowest most often' 'loss of held-out rows'; do
    succeeds "the report has: $words" grep -q "$words" "$work/shown/report.html"
done
succeeds "samples are kept on the way" grep -q '^{"step": 2, "text": "' "$work/shown/samples.jsonl"
succeeds "there are event files" grep -aq 'brain.Event:2' "$work"/shown/tensorboard/events.out.tfevents.*
succeeds "the log names the slowest rank" grep -q '"busy_rank": [01],' "$work/shown/train.jsonl"
succeeds "the trace has both ranks" grep -q '"rank 1"' "$work/shown/trace.json"
[ "$(grep -c '"name":"fused_adamw' "$work/shown/trace.json")" = 4 ] && pass "the trace has two steps of two ranks" ||
    fail "the trace has two steps of two ranks" "$(grep -c '"name":"fused_adamw' "$work/shown/trace.json")"
for i in 1 2 3 4 5 6; do echo "{\"text\": \"Line $i of the other text.\"}"; done > "$work/more.jsonl"
cat "$work/a.ini" > "$work/mix.ini" && printf '[data]\npath = text.txt, more.jsonl\nweights = 3, 1\n' >> "$work/mix.ini"
says mixed 0 "done after step 4" "$tessera" train "$work/mix.ini" --set train.output="$work/mixed"
cp "$work/mixed/train.jsonl" "$work/mixed.jsonl"
says mixed_part 0 "after step 2" "$tessera" train "$work/mix.ini" --set train.output="$work/mixed" \
    --set train.resume=0 \
    --set train.stop_after=2
says mixed_on 0 "going on after step 2" "$tessera" train "$work/mix.ini" --set train.output="$work/mixed"
losses_of() { sed 's/.*"loss": \([0-9.]*\).*/\1/' "$1"; }
[ "$(losses_of "$work/mixed.jsonl")" = "$(losses_of "$work/mixed/train.jsonl")" ] &&
    pass "sources go on where they were" ||
    fail "sources go on where they were" "$(losses_of "$work/mixed.jsonl") $(losses_of "$work/mixed/train.jsonl")"
says few_weights 1 'data.weights: "3" has no number for' "$tessera" train "$work/mix.ini" --set data.weights=3
says many_weights 1 'has more numbers than' "$tessera" train "$work/mix.ini" --set "data.weights=3, 1, 1"
says no_weight 1 'data.weights: is 0 for ' "$tessera" train "$work/mix.ini" --set "data.weights=3, 0"
: > "$work/nothing.txt"
says empty_held_out 1 'data.held_out: "'"$work/nothing.txt"'": the inputs are empty' "$tessera" train "$work/a.ini" \
    --set train.output="$work/empty" --set train.eval_every=2 --set data.held_out="$work/nothing.txt"
printf 'ab' > "$work/short.txt"
says short_path 1 'data.path: "'"$work/short.txt"'": 3 tokens are fewer' "$tessera" train "$work/a.ini" \
    --set train.output="$work/empty" --set data.path="$work/short.txt"
printf '{"text": "a"}\n\nno json\n' > "$work/broken.jsonl"
"$tessera" tokenize --out "$work/bytes" "$work/text.txt" > /dev/null 2>&1
says other_tokenizer 0 'hand_pieces.json" did not make the tokens of' "$tessera" train "$work/a.ini" \
    --set train.output="$work/other" --set data.path="$work/bytes" \
    --set data.tokenizer="$root/tests/golden/tokenizer/hand_pieces.json"
succeeds "and its own is not told" sh -c "! '$tessera' train '$work/a.ini' --set train.output='$work/own' \
    --set data.path='$work/bytes' --set log.sample=2 2>&1 | grep 'did not make'"
says broken_lines 1 'broken.jsonl, line 3: JSON, line 1, column 1' "$tessera" train "$work/a.ini" \
    --set train.output="$work/empty" --set data.path="$work/broken.jsonl"
traced() { [ "$(grep -c '"name":"fused_adamw' "$work/ended/trace.json")" = "$1" ]; }
says "a trace of steps beyond the end" 0 "done after step 4" "$tessera" train "$work/a.ini" --trace 3-9 \
    --set train.output="$work/ended"
succeeds "has those that were taken" traced 4
says "a trace of a run that goes on" 0 "done after step 7" "$tessera" train "$work/a.ini" --trace 3-5 \
    --set train.output="$work/ended" --set train.steps=7
succeeds "has those that it takes" traced 2
says "a trace of steps that are behind" 0 "of 3-5 none is among the steps 8 to 9 of this run" \
    "$tessera" train "$work/a.ini" --trace 3-5 --set train.output="$work/ended" --set train.steps=9
says "a trace of steps that never come" 0 "of 8-9 none is among the steps 1 to 4" "$tessera" train "$work/a.ini" \
    --trace 8-9 --set train.output="$work/untraced"
says bad_trace 2 'log.trace' "$tessera" train "$work/a.ini" --trace 3-2
says nothing_left 0 "done after step 4" "$tessera" train "$work/a.ini"
for file in model/config.json model/model.safetensors report.html train.jsonl state/step-4/rank-00001.safetensors; do
    succeeds "there is $file" test -s "$work/run/$file"
done
[ "$(wc -l < "$work/run/train.jsonl")" = 4 ] && pass "a line for each step" ||
    fail "a line for each step" "$(cat "$work/run/train.jsonl")"

# An interrupt lets the step end, saves, and ends well; the same command goes on from there.
"$tessera" train "$work/a.ini" --set train.output="$work/long" --set train.steps=1000000 > "$work/long.out" 2>&1 &
child=$!
for i in $(seq 200); do
    [ "$(cat "$work/long/train.jsonl" 2> /dev/null | wc -l)" -ge 3 ] && break
    sleep 0.1
done
kill -INT $child
wait $child
code=$?
steps=$(wc -l < "$work/long/train.jsonl")
said=$(cat "$work/long.out")
case $code:$said in
0:*"stopped after step $steps:"*"report  "*) pass "an interrupt ends the run after its step" ;;
*) fail "an interrupt ends the run after its step" "exit code $code, $steps lines in the log: $said" ;;
esac
succeeds "the interrupted run saved its state" test -s "$work/long/state/step-$steps/rank-00001.safetensors"
says interrupted_goes_on 0 "going on after step $steps" "$tessera" train "$work/a.ini" \
    --set train.output="$work/long" --set train.steps=$((steps + 2))
[ "$(wc -l < "$work/long/train.jsonl")" = $((steps + 2)) ] && pass "the log goes on" ||
    fail "the log goes on" "$(wc -l < "$work/long/train.jsonl") lines"

says half 0 "done after step 4" "$tessera" train "$work/a.ini" --set train.output="$work/half" \
    --set model.compute=f16 --set train.loss_scale=65536 --set train.loss_scale_every=100
grep -q '"scale": 65536' "$work/half/train.jsonl" && pass "the log has the scale" ||
    fail "the log has the scale" "$(cat "$work/half/train.jsonl")"
says overflow 1 "were not changed" "$tessera" train "$work/a.ini" --set train.output="$work/over" \
    --set model.compute=f16 --set train.loss_scale=1e12
says bad_compute 2 'did you mean "bf16"?' "$tessera" train "$work/a.ini" --set model.compute=bf17
says bench 0 '"tp=2: peak memory"' "$tessera" bench train --hidden 64 --layers 2 --vocab 64 --context 16 \
    --seconds 1 --json
says bench_worlds 0 '"fsdp=2 over dp=1, median of 3 pairs"' "$tessera" bench train --hidden 64 --layers 1 --vocab 64 \
    --context 16 --mesh fsdp=2 --against dp=1 --pairs 3 --warmup 1 --json
says bench_worlds_predict 0 'dp=1: predicted time of a step' "$tessera" bench train --hidden 64 --layers 1 --vocab 64 \
    --context 16 --mesh tp=2 --against dp=1 --pairs 1 --warmup 1
says bench_every_second 0 'replicate=2: predicted' "$tessera" bench train --hidden 64 --layers 3 --vocab 64 \
    --context 16 --mesh fsdp=2 --against replicate=2 --rows 2 --pairs 1 --recompute 2
says bench_bytes 0 'replicate=2: over the bytes that must cross' "$tessera" bench train --hidden 64 --layers 1 \
    --vocab 64 --context 16 --mesh fsdp=2 --against replicate=2 --rows 2 --pairs 1
says bench_recompute_nothing 2 '--recompute 0' "$tessera" bench train --mesh fsdp=2 --recompute 0
says bench_against_nothing 2 'go with --mesh' "$tessera" bench train --against dp=2
says bench_dtype_of_nothing 2 'goes with --mesh or --model' "$tessera" bench train --dtype f64
says bench_pairs_of_model 2 'and without --model' "$tessera" bench train --model tiny --mesh dp=2 --pairs 3
says bench_optimizer_nobody 2 'expected adamw or muon, found "lion"' "$tessera" bench train --model tiny \
    --optimizer lion
says bench_optimizer_of_nothing 2 '--optimizer, --replay and --rate-only go with' "$tessera" bench train \
    --optimizer muon
says verify_no_plan 2 'there is no plan and no file "nope"' "$tessera" verify model "$root/tests/golden/models/llama" \
    --plan nope
says bench_start 0 'dp=2: from the start to the first step' "$tessera" bench train --start --mesh dp=2

# ---- repair 35: steps that are not finite do not go on for ever, and what cannot be written is said --------------
half="--set model.compute=f16 --set train.loss_scale=1e30 --set train.loss_scale_every=4"
# shellcheck disable=SC2086
says "repair 35: steps that are left out end the run" 1 "the 32 steps up to here were left out" \
    "$tessera" train "$work/a.ini" --set train.output="$work/skip" $half --set train.steps=60
# shellcheck disable=SC2086
says "repair 35: a run that takes no step fails" 1 "the 4 steps up to here were left out" \
    "$tessera" train "$work/a.ini" --set train.output="$work/none_taken" $half
says "repair 35: good states stay" 0 "done after step 4" "$tessera" train "$work/a.ini" \
    --set train.output="$work/good" --set checkpoint.every=2
says "repair 35: a run that diverges after them" 1 "were left out" "$tessera" train "$work/a.ini" \
    --set train.output="$work/good" --set checkpoint.every=2 --set train.steps=60 --set optimizer.rate=1e6 \
    --set train.loss_scale_every=1000 --set train.clip=0 --set train.skips_max=9
succeeds "repair 35: has not driven them out" test -s "$work/good/state/step-4/rank-00001.safetensors"
if [ -w /dev/full ]; then
    full() { # name command ...
        full_name=$1
        shift
        refuses "repair 35: $full_name" "standard output: " sh -c '"$@" > /dev/full' - "$@"
    }
    full "--print-config" "$tessera" train --print-config
    full "--list" "$tessera" op --list
    full "--help" "$tessera" --help
    full "generate" "$tessera" generate "$work/run/model" --prompt The --tokens 2
fi

# ---- repair 29: signals --------------------------------------------------------------------------------------------
# Starts a run that has no end and waits for its third step; $child is its process.
start_long() { # output command ...
    long=$1
    shift
    "$@" "$tessera" train "$work/a.ini" --set train.output="$work/$long" --set train.steps=1000000 \
        --set log.sample=1000000 --set log.temperature=0 > "$work/$long.out" 2>&1 &
    child=$!
    wait_for_lines "$work/$long/train.jsonl" 3
}
wait_for_lines() { # file count
    for i in $(seq 200); do
        [ "$(cat "$1" 2> /dev/null | wc -l)" -ge "$2" ] && return
        sleep 0.1
    done
}
end_long() { # name words: it ended well and said them
    wait $child
    code=$?
    said=$(cat "$work/$long.out")
    case $code:$said in
    0:*"$2"*) pass "$1" ;;
    *) fail "$1" "exit code $code: $said" ;;
    esac
}
start_long asked
kill -USR1 $child
wait_for_lines "$work/asked.out" 7
sleep 0.2
kill -INT $child
sleep 0.5
kill -INT $child
end_long "repair 29: SIGUSR1 asks, a second interrupt ends the sample" "stopped after step"
case $said in
*"post-mortem of 2 ranks"*) pass "repair 29: SIGUSR1 writes what ranks do" ;;
*) fail "repair 29: SIGUSR1 writes what ranks do" "$said" ;;
esac
if has mpi:openmpi; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    cat > "$work/one.sh" << 'END'
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || echo $$ > "$PLACE"
exec "$@"
END
    says "a trace under MPI" 0 "done after step 4" mpirun.openmpi -n 2 "$tessera" train "$work/a.ini" --trace 2-3 \
        --set train.output="$work/traced"
    [ "$(grep -c '"name":"fused_adamw' "$work/traced/trace.json")" = 4 ] && [ ! -e "$work/traced/trace.json.1" ] &&
        [ "$(tail -c 5 "$work/traced/trace.json")" = "$(printf '}\n]}')" ] && pass "one file has both processes" ||
        fail "one file has both processes" "$(ls "$work/traced")"
    PLACE=$work/second.pid
    export PLACE
    start_long mpi mpirun.openmpi -n 2 sh "$work/one.sh"
    kill -TERM "$(cat "$PLACE")"
    sleep 0.5
    kill -TERM "$(cat "$PLACE")"
    end_long "repair 29: SIGTERM to the second MPI rank is heard" "stopped after step"
fi

# ---- repair 21: paths beside the configuration ---------------------------------------------------------------------
tessera=$(cd "$build" && pwd)/bin/tessera
mkdir -p "$work/deep/er" "$work/elsewhere"
sed -e "s|^path = .*|path = er/text.txt|" -e "s|^output = .*|output = out|" "$work/a.ini" > "$work/deep/b.ini"
cp "$work/text.txt" "$work/deep/er/text.txt"
from_elsewhere() { (cd "$work/elsewhere" && "$tessera" train ../deep/b.ini); }
says "repair 21: data.path beside the file" 0 "done after step 4" from_elsewhere
succeeds "the output is in the working directory" test -s "$work/elsewhere/out/train.jsonl"
rm -r "$work/deep/er" && mkdir "$work/elsewhere/er" && cp "$work/text.txt" "$work/elsewhere/er"
says "repair 21: else in the working directory" 0 "done after step 4" from_elsewhere
: > "$work/deep/byte-00000.bin" # token files of that name are no tokenizer
says "the tokenizer of bytes is no file" 0 "done after step 4" from_elsewhere

# ---- repair 32: blanks of tokens that are written one by one -------------------------------------------------------
says "a run with marked blanks" 0 "done after step 4" "$tessera" train "$work/a.ini" --set train.output="$work/marked" \
    --set data.tokenizer="$root/tests/golden/tokenizer/llama2.json"
said=$("$tessera" generate "$work/marked/model" --prompt "The fox" --tokens 60 --temperature 1 | tr -d '\000')
case $said in
"The fox"*" "*) pass "repair 32: blanks are written" ;;
*) fail "repair 32: blanks are written" "$said" ;;
esac

# ---- a tokenizer is a file or a folder whatever its name; one that was written anew reads the text anew -----------
cp "$root/tests/golden/tokenizer/llama2.json" "$work/tokens.of"
says "a tokenizer of any name" 0 "done after step 4" "$tessera" train "$work/a.ini" --set train.output="$work/named" \
    --set data.tokenizer="$work/tokens.of"
mkdir "$work/folder.json" && cp "$work/tokens.of" "$work/folder.json/tokenizer.json"
says "a folder of any name" 0 "done after step 4" "$tessera" train "$work/a.ini" --set train.output="$work/folder" \
    --set data.tokenizer="$work/folder.json"
cp "$root/tests/golden/tokenizer/hand_pieces.json" "$work/tokens.of"
says "another tokenizer of that name" 0 "done after step 4" "$tessera" train "$work/a.ini" --set train.resume=0 \
    --set train.output="$work/named" --set data.tokenizer="$work/tokens.of"
succeeds "the model has it" cmp -s "$work/tokens.of" "$work/named/model/tokenizer.json"

says generate_help 0 "Text from a model" "$tessera" generate --help
says generate_no_folder 2 "needs one directory" "$tessera" generate
says generate_no_model 2 "none: cannot be opened" "$tessera" generate "$work/none"
says "a file whose name is the command's" 2 "tessera generate: generate: cannot be opened" "$tessera" generate generate
says generate_hot 2 "--temperature" "$tessera" generate "$work/run/model" --temperature warm
says generate 0 "The" "$tessera" generate "$work/run/model" --prompt The --tokens 8
a=$("$tessera" generate "$work/run/model" --prompt The --tokens 8 --seed 3 | od -c)
b=$("$tessera" generate "$work/run/model" --prompt The --tokens 8 --seed 3 | od -c)
[ "$a" = "$b" ] && pass "the same seed, the same text" || fail "the same seed, the same text" "$a
$b"
finish
