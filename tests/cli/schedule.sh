#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera schedule`: every golden row through the program; costs, drawings, texts, refusals.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
golden=$root/tests/golden/pipelines.jsonl

schedule() { "$tessera" schedule "$@"; }
serve() { printf '%s\n' "$1" | schedule --batch -; }

# ---- the golden rows ---------------------------------------------------------------------------------------
# Rows that name micro-batches the batch has not are misprints of the reference: there a complete schedule.
if command -v python3 > /dev/null 2>&1; then
    cat > "$work/compare.py" << 'PY'
import json, re, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
answers = [json.loads(line) for line in open(sys.argv[2])]
assert len(rows) == len(answers), f"{len(answers)} answers to {len(rows)} rows"
def actions(order):
    return [(int(s), k, int(m)) for rank in order for cell in rank
            for s, k, m in re.findall(r"(\d+)([FBIW])(\d+)", cell)]
misprints = 0
for i, (row, a) in enumerate(zip(rows, answers)):
    where = f"row {i + 1}, {row['schedule']} {row['ranks']} {row['stages_per_rank']} {row['microbatches']}: "
    assert "error" not in a, where + str(a.get("error"))
    M, G = row["microbatches"], row["ranks"] * row["stages_per_rank"]
    if max(m for _, _, m in actions(row["order"])) < M:
        assert a["order"] == row["order"], where + "another order"
        continue
    misprints += 1
    done = actions(a["order"])
    assert len(done) == len(set(done)), where + "something twice"
    for s in range(G):
        for m in range(M):
            kinds = sorted(k for g, k, n in done if (g, n) == (s, m))
            assert kinds in (["B", "F"], ["F", "I", "W"]), where + f"stage {s}, micro-batch {m}: {kinds}"
assert misprints < len(rows) / 4
print(len(rows), "rows, of them", misprints, "misprints")
PY
    schedule --batch "$golden" > "$work/answers"
    succeeds "90 orders of the reference" python3 "$work/compare.py" "$golden" "$work/answers"
    sed 's/"0F0"/"0F1"/' "$work/answers" > "$work/wrong"
    refuses "another order is seen" "AssertionError" python3 "$work/compare.py" "$golden" "$work/wrong"
else
    echo "skipped: the golden rows need python3 to compare"
fi

# ---- costs -------------------------------------------------------------------------------------------------
answers() { # name request words
    said=$(serve "$2")
    case $said in
    *"$3"*) pass "$1" ;;
    *) fail "$1" "wanted: $3
it said: $said" ;;
    esac
}
answers "1F1B under costs" '{"schedule":"1F1B","ranks":4,"microbatches":8,"cost":{"F":1,"I":1,"W":1,"comm":0}}' \
    '"makespan": 33, "bubble": 9, "bubble_fraction": 0.2727272727272727, "peak": [4, 3, 2, 1]'
answers "latency" '{"schedule":"1F1B","ranks":4,"microbatches":8,"cost":{"F":1,"I":1,"W":1,"comm":0.1}}' \
    '"makespan": 34.6'
answers "costs by stage" '{"schedule":"GPipe","ranks":2,"microbatches":2,"cost":{"F":[1,3]}}' \
    '"makespan": 13'
answers "costs by stage, other form" '{"schedule":"GPipe","ranks":2,"microbatches":2,"cost":[{"F":1},{"F":3}]}' \
    '"makespan": 13'
answers "costs of other stages" '{"schedule":"GPipe","ranks":4,"microbatches":2,"cost":{"F":[1,3]}}' \
    'costs of 2 stages for 4'
answers "no schedule" '{"schedule":"1F2B","ranks":4,"microbatches":2}' 'did you mean 1F1B?'
answers "no micro-batches" '{"schedule":"1F1B","ranks":4,"microbatches":0}' \
    '"error": "schedule 1F1B: 4 ranks with 1 stages each, 0 micro-batches'
answers "rounds that do not divide" \
    '{"schedule":"Interleaved1F1B","ranks":4,"microbatches":9,"stages_per_rank":2}' '"0F8"'

# ---- texts and drawings ------------------------------------------------------------------------------------
schedule interleaved1f1b --ranks 3 --micro-batches 5 --csv > "$work/order.csv"
succeeds "a schedule from its text" schedule "$work/order.csv"
schedule "$work/order.csv" --csv > "$work/again.csv"
succeeds "the text reads back" cmp "$work/order.csv" "$work/again.csv"
schedule "$work/order.csv" --lower > "$work/lowered.csv"
succeeds "with messages" schedule "$work/lowered.csv"
grep -v RECV_NOTHING "$work/lowered.csv" | sed 's/,1RECV_F0//' > "$work/missing.csv"
refuses "a receive is missing" "y.stage0.0" schedule "$work/missing.csv"
printf '0F0,0B0\n1B0,1F0\n' > "$work/cycle.csv"
refuses "a deadlock" "1B0 on rank 1 needs 1F0, which stands on rank 1 behind 1B0" schedule "$work/cycle.csv"
printf '0F0,0B0\n1F0,1Q0\n' > "$work/bad.csv"
refuses "a bad text" "schedule, line 2, column 6" schedule "$work/bad.csv"
# Repair 34: a request is bounded.
printf '%s\n' '{"schedule": "LoopedBFS", "ranks": 8, "microbatches": 8, "stages_per_rank": 999999}' > "$work/many"
printf '%s\n' '{"schedule": "LoopedBFS", "ranks": 2, "microbatches": 40000, "stages_per_rank": 2}' > "$work/long"
succeeds "time grows with the number of actions, not with its square" \
    timeout 40 "$tessera" schedule --batch "$work/long"
refuses "more cells than are made" "stages times micro-batches at most 16777216" schedule --batch "$work/many"
refuses "a sentence begins once" 'tessera schedule: "nothing" is no schedule' schedule nothing
refuses "nothing is asked" "which schedule?" schedule
refuses "bad costs" "expected a number of at least 0" schedule 1F1B --cost F=x
refuses "above the cap" "keeps 8 at once, above the cap of 4" schedule GPipe --memory 4
refuses "which one is above the cap" "zbv: schedule: rank 0 keeps 8" schedule 1F1B zbv --memory 4
says "all that fit the cap" 0 "GPipe is left out: schedule: rank 0 keeps 8" schedule --all --memory 4
case $said in
*"ZBVZeroBubble is left out"*"1F1B: 4 ranks"*"InterleavedZeroBubble: 4 ranks"*) pass "and those alone" ;;
*) fail "and those alone" "$said" ;;
esac
refuses "none fits the cap" "none is left" schedule --all --memory 1
said=$(schedule --all)
case $said in
*"rank 0    0F0 0F1 0F2 0F3 .   .   .   .   .   .   0B0 =   0F4"*"ZBVZeroBubble"*"51"*)
    pass "tables and a comparison" ;;
*) fail "tables and a comparison" "$said" ;;
esac
schedule --all --svg "$work/all.svg" --html "$work/all.html"
for file in all.svg all.html; do
    if grep -q "7W0 on rank 0: 9 to 10" "$work/$file" && grep -q "rank 3 keeps at most 16" "$work/$file"; then
        pass "$file has times and memory"
    else
        fail "$file has times and memory"
    fi
done
if command -v python3 > /dev/null 2>&1; then
    succeeds "the drawing is XML" python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$work/all.svg"
fi
finish
