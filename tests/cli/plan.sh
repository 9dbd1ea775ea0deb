#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera plan`: every golden row through the program, executed and compared; answers, refusals, pictures.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
golden=$root/tests/golden/plans.jsonl

plan() { "$tessera" plan "$@"; }
example() { plan --mesh "a=2, b=4" --shape 1024x128 --from "S(1), P(sum)" --to "R, S(1)" "$@"; }

# ---- the golden rows ---------------------------------------------------------------------------------------
if command -v python3 > /dev/null 2>&1; then
    cat > "$work/compare.py" << 'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
answers = [json.loads(line) for line in open(sys.argv[2])]
what = sys.argv[3]
assert len(rows) == len(answers), f"{len(answers)} answers to {len(rows)} rows"
for i, (row, a) in enumerate(zip(rows, answers)):
    where, reference = f"row {i + 1}: ", row["reference"]
    assert "error" not in a, where + a["error"]
    if what == "auto":
        least = min(reference["greedy"]["bytes_received"], reference["graph"]["bytes_received"])
        assert a["bytes_received"] <= least, where + f"{a['bytes_received']} bytes, the reference {least}"
        assert a["bytes_received"] >= a["bytes_bound"], where + "fewer bytes than the bound"
        if a["family"] in ("direct", "hierarchical"):
            assert a["bytes_received"] == a["bytes_bound"], where + "a direct exchange above the bound"
        assert sum(s["bytes_received"] for s in a["steps"]) == a["bytes_received"], where + "steps do not add up"
        assert a["check"] == "ok", where + a["check"]
        for key in ("time_us", "peak_bytes", "why", "other"):
            assert key in a, where + key
    else:
        steps = [[s["axes"][0], s["from"][s["axes"][0]], s["to"][s["axes"][0]]] for s in a["steps"]]
        assert all(len(s["axes"]) == 1 for s in a["steps"]), where + "a step on several axes"
        assert steps == reference[what]["steps"], where + f"{steps} is not {reference[what]['steps']}"
        assert a["bytes_received"] == reference[what]["bytes_received"], where + "other bytes"
print(len(rows), "rows")
PY
    plan --check --batch "$golden" > "$work/auto"
    succeeds "227 rows: no more bytes than the reference, executed" \
        python3 "$work/compare.py" "$golden" "$work/auto" auto
    for planner in greedy graph; do
        plan --planner $planner --topology reference-cpu --batch - < "$golden" > "$work/$planner"
        succeeds "227 rows: the reference's $planner steps" \
            python3 "$work/compare.py" "$golden" "$work/$planner" $planner
    done
    sed '9s/"check": "ok"/"check": "rank 1"/' "$work/auto" > "$work/wrong"
    refuses "the comparison sees a failed check" "row 9" python3 "$work/compare.py" "$golden" "$work/wrong" auto
else
    echo "skipped: the golden rows need python3 to compare"
fi

# ---- requests ----------------------------------------------------------------------------------------------
one() { # request, which may be written over several lines
    printf '%s' "$1" | tr '\n' ' ' | "$tessera" plan --batch -
}
says "a gather" 0 '"bytes_received": 16' one '{"mesh": [2], "tensor": [4], "src": ["S(0)"], "dst": ["R"]}'
says "the dtype counts" 0 '"bytes_received": 8,' \
    one '{"mesh": [2], "tensor": [4], "dtype": "bf16", "src": ["S(0)"], "dst": ["R"]}'
says "nothing to do" 0 '"family": "none"' one '{"mesh": [2], "tensor": [4], "src": ["S(0)"], "dst": ["S(0)"]}'
says "slices only" 0 '"family": "local"' one '{"mesh": [2], "tensor": [4], "src": ["R"], "dst": ["S(0)"]}'
says "two meshes, checked" 0 '"check": "ok"' \
    one '{"mesh": [3], "dst_mesh": "x=2, y=2", "tensor": [7, 5], "src": ["S(0)"],
        "dst": ["S(1)", "SS(0,2)"], "check": true}'
for dtype in f64 f32 bf16 f16 i64 i32 i16 i8 u8 c64 c128; do
    says "a sum of $dtype" 0 '"check": "ok"' \
        one '{"mesh": [2, 3], "tensor": [5, 7], "dtype": "'$dtype'",
            "src": ["P(sum)", "S(0)"], "dst": ["S(1)", "R"], "check": true}'
done
for kind in avg min max prod norm:2; do
    says "terms by $kind" 0 '"check": "ok"' \
        one '{"mesh": [2, 3], "tensor": [5, 7], "src": ["P('$kind')", "S(0)"], "dst": ["R", "S(1)"], "check": true}'
done
for kind in and or band bor; do
    says "terms by $kind" 0 '"check": "ok"' \
        one '{"mesh": [4], "tensor": [9], "dtype": "u8", "src": ["P('$kind')"], "dst": ["R"], "check": true}'
done
says "a budget" 0 '"check": "ok"' \
    one '{"mesh": [4], "tensor": [64, 64], "src": ["S(0)"], "dst": ["S(1)"], "budget": 1024, "check": true}'
says "no target" 1 '\"dst\" is missing' one '{"mesh": [2], "tensor": [4], "src": ["S(0)"]}'
says "unknown dtype" 1 'did you mean f32?' \
    one '{"mesh": [2], "tensor": [4], "dtype": "f31", "src": ["S(0)"], "dst": ["R"]}'
says "unknown planner" 1 'did you mean' \
    one '{"mesh": [2], "tensor": [4], "planner": "gready", "src": ["S(0)"], "dst": ["R"]}'
says "unknown topology" 1 'error' \
    one '{"mesh": [2], "tensor": [4], "topology": "9xh100", "src": ["S(0)"], "dst": ["R"]}'
says "a move without a meaning" 1 'cannot go from' \
    one '{"mesh": [2], "tensor": [4], "src": ["S(0)"], "dst": ["P(sum)"]}'
refuses "a sentence begins once" "tessera plan: axis 'a' cannot go from" \
    plan --mesh a=2 --shape 8 --from "S(0)" --to "P(sum)"
says "a bad budget" 1 '\"budget\" is \"much\": expected a whole number' \
    one '{"mesh": [2], "tensor": [4], "budget": "much", "src": ["S(0)"], "dst": ["R"]}'
says "a bad placement" 1 'source: ' one '{"mesh": [2], "tensor": [4], "src": ["S(1)"], "dst": ["R"]}'
says "a check that is too large is not run" 0 '"check": "not run' \
    one '{"mesh": [2], "tensor": [8000000000], "src": ["S(0)"], "dst": ["R"], "check": true}'
# Repair 30: a known field of another type is refused with its value.
says "a check that is a text" 1 '\"check\" is \"true\": expected true or false' \
    one '{"mesh": [2], "tensor": [4], "src": ["S(0)"], "dst": ["R"], "check": "true"}'
says "a dtype that is a number" 1 '\"dtype\" is 32: expected a text' \
    one '{"mesh": [2], "tensor": [4], "dtype": 32, "src": ["S(0)"], "dst": ["R"]}'
says "an order that is none" 1 '\"src_order\" is true: expected' \
    one '{"mesh": [2], "tensor": [4], "src": ["S(0)"], "src_order": true, "dst": ["R"]}'

# ---- usage and words ---------------------------------------------------------------------------------------
says help 0 "usage: tessera plan" plan --help
says "nothing asked" 2 "--mesh, --shape, --from and --to are needed" plan
says "bad mesh" 2 "tessera plan: " plan --mesh "a=" --shape 4 --from R --to R
says "bad shape" 2 "--shape: shape, column 1" plan --mesh a=2 --shape x --from R --to R
says "bad budget" 2 "--budget: expected a number of bytes" example --budget lots
says "a batch and a mesh" 2 "--batch reads its requests" plan --batch - --mesh a=2
says "the steps" 0 "reduce_exchange" example --planner direct
says "who talks to whom" 0 "16 messages; a rank receives" example --planner direct
says "groups of collectives" 0 "4 groups of 2: {0 4} {1 5} {2 6} {3 7}" \
    plan --mesh "a=2, b=4" --shape 64x64 --from "S(0), R" --to "R, R" --planner greedy
says "the bound and the gap" 0 "bound 2 MiB; gap: none" example --planner direct
says "what lost" 0 "lost      direct" example --planner greedy --topology reference-cpu
says "a check" 0 "check     ok" example --check
says "json" 0 '"family"' example --json
says "html" 0 "<!doctype html>" example --html -
says "a full disk" 1 "cannot write" example --html /dev/full
says "a million ranks" 0 "family    " \
    plan --mesh "a=1000, b=1000" --shape 1000000x4000 --from "S(0), S(1)" --to "S(1), S(0)" --planner direct

# Repair 34: what a request asks for is bounded, whatever the number of ranks or axes.
says "a billion ranks" 0 "family    local" timeout 10 "$tessera" plan --mesh a=1000000000 --shape 1000000000 \
    --dtype u8 --from R --to "S(0)"
says "2 * 10^14 ranks" 0 "100000000000000 groups of 2: {0 1} {2 3}" timeout 10 "$tessera" plan \
    --mesh "a=100000000000000, b=2" --shape 4 --from "R, S(0)" --to "R, R"
says "one group of a billion" 0 "1 group of 1000000000: {0 1 2" timeout 10 "$tessera" plan \
    --mesh "b=1000000000" --shape 4 --from "P(sum)" --to "R" --dtype u8 --planner collectives
says "eight mixed axes by graph" 2 "more than 524288 states lie between" timeout 20 "$tessera" plan --planner graph \
    --mesh "a=2, b=2, c=2, d=2, e=2, f=2, g=2, h=2" --shape 256x256x256x256 \
    --from "S(0), S(1), P(sum), R, S(2), S(0), P(sum), R" --to "R, S(0), R, S(1), S(0), S(2), S(1), S(0)"

# ---- the bench -----------------------------------------------------------------------------------------------
says "bench plan" 0 '"name": "median error of the predictions"' "$tessera" bench plan --seconds 1 --json
says "bench plan with a wrong option" 2 'expected a whole number from 1 to 1024' "$tessera" bench plan --ranks 0
# Repair 21: two times that look alike are not said to be less than each other.
says "repair 21: about as long" 0 "direct about as long" \
    "$tessera" plan --mesh 3 --shape 4096x4096 --from "P(sum)" --to R
says "repair 21: at least as long" 0 "collectives at least as long" \
    "$tessera" plan --mesh 8,8 --shape 1000x64 --from "S(1), P(sum)" --to "R, S(0)"

# ---- blocks that the host cannot read ------------------------------------------------------------------------
TESSERA_DEVICE=queue
export TESSERA_DEVICE
says "plan --check on a device" 0 "check     ok" \
    "$tessera" plan --mesh a=2 --shape 8x8 --from "S(0)" --to "S(1)" --check
says "bench checkpoint on a device" 0 "the same plan again" "$tessera" bench checkpoint --size 1MiB

finish
