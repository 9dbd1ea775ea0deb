#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Models as pipelines against the reference's numbers: every schedule, uneven and empty micro-batches, stages
# beside other roles, tied weights on two stages, threads and MPI. The second argument `all` runs every
# combination instead of a sample.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
cd "$root" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
models=tests/golden/models

verify() { # model mesh [options]
    verify_name="$1 on $2 ${*:3}"
    if said=$(timeout 120 "$tessera" verify model "$models/$1" --mesh "$2" "${@:3}" 2>&1) &&
        [[ $said =~ ": "([0-9]+)" of "([0-9]+)" agree"$ ]] && [ "${BASH_REMATCH[1]}" -eq "${BASH_REMATCH[2]}" ]; then
        pass "$verify_name"
    else
        fail "$verify_name" "$said"
    fi
}
verify_mpi() { # mpi ranks model mesh [options]
    has "mpi:$1" || return 0
    if said=$(timeout 120 "mpirun.$1" -n "$2" "$tessera" verify model "$models/$3" --mesh "$4" "${@:5}" 2>&1) &&
        [ "$(grep -c ' agree$' <<< "$said")" -eq 1 ]; then
        pass "$3 on $4 with $1 ${*:5}"
    else
        fail "$3 on $4 with $1 ${*:5}" "$said"
    fi
}

schedules="GPipe 1F1B LoopedBFS Interleaved1F1B InterleavedZeroBubble ZBVZeroBubble DualPipeV search"
if [ "${2:-}" = all ]; then
    for model in llama llama31 qwen3 mixtral gpt2; do
        for mesh in "pp=2" "pp=3" "pp=4" "pp=2, tp=2" "dp=2, pp=2" "pp=2, dp=3" "pp=2, fsdp=2" \
            "pp=2, cp=2"; do
            for schedule in $schedules; do
                case $schedule in
                GPipe | 1F1B | InterleavedZeroBubble | search) stages=1 ;;
                *) stages=2 ;;
                esac
                case "$model $mesh $stages" in # more stages than blocks
                "llama31 "*) ;;
                *"pp=3 2" | *"pp=4 2") continue ;;
                esac
                [ "$model $mesh $stages" != "llama31 pp=4 2" ] || continue
                for micros in 1 3 4 8; do
                    verify $model "$mesh" --schedule $schedule --stages $stages --micro-batches $micros
                done
            done
        done
    done
    for schedule in GPipe 1F1B InterleavedZeroBubble search; do
        for micros in 1 3 4 8; do
            verify llama31 "pp=5" --schedule $schedule --micro-batches $micros
            verify llama "pp=5" --schedule $schedule --micro-batches $micros
            verify mixtral "pp=2, fsdp=2" --ep 2 --schedule $schedule --micro-batches $micros
            verify mixtral "pp=2, tp=2" --ep 2 --schedule $schedule --micro-batches $micros
            verify_mpi openmpi 3 llama "pp=3" --schedule $schedule --micro-batches $micros
            verify_mpi mpich 4 gpt2 "pp=2, fsdp=2" --schedule $schedule --micro-batches $micros
        done
    done
else
    for schedule in $schedules; do
        verify qwen3 "pp=2" --schedule "$schedule" --micro-batches 3
    done
    verify gpt2 "pp=2" --schedule zbv --micro-batches 8
    verify llama "pp=3" --micro-batches 1
    verify llama31 "pp=5" --micro-batches 4
    verify mixtral "pp=4" --schedule zb1p
    verify gpt2 "pp=2, tp=2" --micro-batches 3
    verify qwen3 "dp=2, pp=2" --schedule zb1p --micro-batches 8
    verify llama "pp=2, dp=3" --recompute full
    verify llama "pp=2, fsdp=2" --recompute select --dtype f64
    verify qwen3 "pp=2, cp=2" --schedule zbv --micro-batches 3
    verify gpt2 "fsdp=2, pp=2" --schedule zbv --micro-batches 3 --reshard no
    verify mixtral "pp=2, fsdp=2" --ep 2 --micro-batches 3
    verify llama "pp=2, fsdp=2" --schedule zb1p --micro-batches 3 --reshard yes
fi
verify_mpi mpich 2 qwen3 "pp=2" --schedule zbv --micro-batches 3
verify_mpi openmpi 4 gpt2 "pp=2, tp=2" --schedule zb1p

# ---- training ----------------------------------------------------------------------------------------------
cat > "$work/a.ini" << END
[model]
hidden = 16
layers = 2
heads = 2
[data]
path = $work/text.txt
context = 8
[train]
output = $work/run
steps = 3
batch = 4
[log]
sample = 4
prompt = The
END
for i in 1 2 3 4 5 6 7 8 9; do echo "The fox number $i ran home."; done > "$work/text.txt"
losses() { sed 's/.*"loss": \([0-9.]*\).*/\1/' "$work/run/train.jsonl" | cut -c1-7 | tr '\n' ' '; }
succeeds "one rank trains" "$tessera" train "$work/a.ini"
one=$(losses)
says "a pipeline trains" 0 "idle 20.0 % by the schedule," "$tessera" train "$work/a.ini" --set train.resume=0 \
    --set parallel.mesh="pp=2, fsdp=2"
check_same() { # name
    if [ "$(losses)" = "$one" ]; then pass "$1"; else fail "$1" "$(losses) and $one"; fi
}
check_same "it loses as one rank does"
says "receives that begin late" 0 "done after step 3" "$tessera" train "$work/a.ini" --set train.resume=0 \
    --set parallel.mesh="pp=2, fsdp=2" --set parallel.prefetch=1
check_same "it loses the same"
succeeds "the report draws its last step" grep -q 'class="gantt"' "$work/run/report.html"
succeeds "it tells the time of modules" grep -q '<td>model.layers.0.mlp' "$work/run/report.html"
succeeds "and not of each micro-batch" [ "$(grep -Ec '<td>[0-9]+[FBIW][0-9]' "$work/run/report.html")" = 0 ]
says "its costs are those of a schedule" 0 "makespan" "$tessera" schedule 1F1B --cost "$work/run/stages.json"
says "another pipeline goes on" 0 "going on after step 3" "$tessera" train "$work/a.ini" --set train.steps=4 \
    --set parallel.mesh="pp=4"
says "the plan tells its memory" 0 '"pipeline": {"stages": 4, "micro_batches": 8, "bubble": ' "$tessera" train \
    "$work/a.ini" --plan-only --json --set parallel.mesh="pp=2, tp=2" --set parallel.schedule=zbv \
    --set parallel.micro_batches=8
says "the plan tells the schedule and the stages" 0 \
    '"schedule": "zbv", "stage": [{"place": 0, "first_block": 0, "blocks": 1}' "$tessera" train "$work/a.ini" \
    --plan-only --json --set parallel.mesh="pp=2, tp=2" --set parallel.schedule=zbv --set parallel.micro_batches=8
says "the blocks of a stage have names" 0 'pp 1     layer 1, norm and head' "$tessera" train "$work/a.ini" --plan-only \
    --set parallel.mesh="pp=2"
says "waiting for each other is a row of the time" 0 'idle             pipeline ' "$tessera" train "$work/a.ini" \
    --plan-only --gflops 1 --set parallel.mesh="pp=2"
says "a run with more stages than blocks" 2 "4 blocks cannot be cut into 5 stages" "$tessera" train "$work/a.ini" \
    --set parallel.mesh="pp=5" --set train.resume=0
says "a run with no micro-batches" 2 "parallel.micro_batches: expected a whole number from 1" "$tessera" train \
    "$work/a.ini" --set parallel.micro_batches=0
generate=("$tessera" generate "$work/run/model" --prompt The --tokens 6 --temperature 0)
check_text() { # name what generates
    if [ "$("${generate[@]}" 2>&1)" = "$("${@:2}" 2>&1)" ]; then
        pass "$1"
    else
        fail "$1" "$("${@:2}" 2>&1 | od -c)"
    fi
}
check_text "stages generate as one rank does" "${generate[@]}" --mesh "pp=2, tp=2"
says "a run is evaluated through its stages" 0 "done after step 2" "$tessera" train "$work/a.ini" --set train.resume=0 \
    --set train.steps=2 --set parallel.mesh="pp=2, dp=2" --set train.eval_every=1 --set data.held_out="$work/text.txt"
for mpi in openmpi mpich; do
    has mpi:$mpi || continue
    says "a pipeline trains with $mpi" 0 "measured in the last step" mpirun.$mpi -n 4 "$tessera" train "$work/a.ini" \
        --set parallel.mesh="pp=2, tp=2" --set parallel.schedule=search --set train.resume=0
    check_same "it loses as one rank does with $mpi"
    check_text "it generates with $mpi" mpirun.$mpi -n 4 "${generate[@]}" --mesh "pp=2, tp=2"
    says "a mesh of some of the processes of $mpi" 2 '"pp=2" has 2 ranks, this job has 4' mpirun.$mpi -n 4 \
        "${generate[@]}" --mesh pp=2
done

# ---- the bench ---------------------------------------------------------------------------------------------
for device in cpu queue; do
    says "bench pipeline, $device" 0 "it sends and receives" env TESSERA_DEVICE=$device "$tessera" bench pipeline \
        --steps 2 --layers 4 --hidden 64 --vocab 64 --context 16
done

# ---- schedules from files, and what is refused -------------------------------------------------------------
"$tessera" schedule zb1p --ranks 2 --micro-batches 3 --lower > "$work/order.csv"
verify qwen3 "pp=2" --schedule "$work/order.csv"
sed 's/,0SEND_F2//' "$work/order.csv" > "$work/broken.csv"
refuses "a send is missing" "is met by nothing on rank 0: of the messages from rank 0 to rank 1" \
    "$tessera" verify model $models/qwen3 --mesh pp=2 --schedule "$work/broken.csv"
refuses "more stages than blocks" "4 blocks cannot be cut into 5 stages: a stage has at least one block" \
    "$tessera" verify model $models/qwen3 --mesh pp=5
refuses "no micro-batches" "micro-batches" "$tessera" verify model $models/qwen3 --mesh pp=2 --micro-batches 0
refuses "no schedule" "did you mean 1F1B?" "$tessera" verify model $models/qwen3 --mesh pp=2 --schedule 1F1A
refuses "a schedule of other ranks" "the schedule is for 2 ranks, the axis pp has 3" \
    "$tessera" verify model $models/llama --mesh pp=3 --schedule "$work/order.csv"
finish
