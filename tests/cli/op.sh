#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera op` and `tessera verify rules`: every call of the reference is answered, run and right; every difference
# has a reason; the rules of the whole table are proved; docs/ops.md is current.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
golden=$root/tests/golden/oprules.jsonl

op() { "$tessera" op "$@"; }

# ---- the golden rows ---------------------------------------------------------------------------------------
if command -v python3 > /dev/null 2>&1; then
    cat > "$work/compare.py" << 'PY'
import collections, json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
answers = [json.loads(line) for line in open(sys.argv[2])]
assert len(rows) == len(answers), f"{len(answers)} answers to {len(rows)} rows"

# Where both communicate and leave another placement: from what the reference leaves to what is left here.
CHANGED = {
    "RS": "the result stays cut, with 1/n of the bytes of a replica",
    "SS": "cut along another dim: of two inputs the one that is cheaper to move is moved",
    "PS": "the pending input is settled by the move that is made anyway, nothing stays pending",
    "PR": "the reference leaves terms of counts or of averages that are wrong for other cuts",
    "SP": "one factor is settled, the other stays pending: fewer bytes than settling both",
    "RP": "one factor is settled, the other stays pending: fewer bytes than settling all",
    "PP": "terms of the whole mean instead of an average of averages",
}

def reason(row, answer):
    """None: the same. A text: why it differs. An exception: it may not."""
    op, ref = row["op"], row["reference"]
    if "error" in answer:
        raise AssertionError("refused: " + answer["error"])
    assert answer["check"] == "ok", "wrong: " + answer["check"]
    if "error" in ref:
        return "the reference refuses"
    moved, free = answer["bytes_received"] > 0, ref["comm"] == {}
    if ref["out"] == "bool":
        assert answer["out"] == "host"
        return "a result of the host" if not free else None
    if op == "squeeze" and answer["out_shape"] != ref["out_shape"]:
        assert row["in"] == [["S(1)"]]
        return "the reference keeps a sharded dim of one element"
    assert answer["out_shape"] == ref["out_shape"], f"shape {answer['out_shape']}"
    partial = row["in"][0][0].startswith("P")
    if free and moved:
        assert op == "cast" and partial, f"moves {answer['bytes_received']} bytes"
        return "not exact: rounding terms to bf16 is not rounding their sum"
    if answer["out"] == ref["out"]:
        return None
    if free:
        if ref["out"] == ["P(product)"] and answer["out"] == ["P(prod)"]:
            return "another name"
        if op in ("mean", "mse_loss") and ref["out"] == ["P(avg)"] and answer["out"] == ["P(sum)"]:
            return "an average of averages is wrong for uneven shards: terms of the whole mean"
        if op == "vector_norm" and answer["out"] == ["P(norm:2)"]:
            return "a norm of norms, said as such"
        raise AssertionError(f"{answer['out']} instead of {ref['out']}")
    if not moved:
        return "free where the reference communicates"
    return "both communicate: " + CHANGED[ref["out"][0][0] + answer["out"][0][0]]

why, bad = collections.Counter(), []
for i, (row, answer) in enumerate(zip(rows, answers)):
    try:
        why[reason(row, answer)] += 1
    except AssertionError as problem:
        bad.append(f"row {i + 1}, {row['op']} {row['attrs']} {row['in']}: {problem}")
for text, count in why.most_common():
    print(f"{count:4}  {text or 'the same'}")
print("\n".join(bad[:40]))
sys.exit(bool(bad))
PY
    op --check --batch "$golden" > "$work/answers"
    if said=$(python3 "$work/compare.py" "$golden" "$work/answers"); then
        pass "855 calls of the reference: answered, run, right"
        printf '%s\n' "$said" | sed 's/^/     /'
    else
        fail "855 calls of the reference" "$said"
    fi
fi

# ---- variations of the golden rows --------------------------------------------------------------------------
if command -v python3 > /dev/null 2>&1; then
    seed=${SEED:-1}
    vary=$root/tests/cli/op_vary.py
    python3 "$vary" make "$seed" 900 > "$work/rows"
    op --batch "$work/rows" > "$work/answers"
    if said=$(python3 "$vary" judge "$work/rows" "$work/answers"); then
        pass "other shapes, meshes, placements and dtypes (SEED=$seed): $said"
    else
        fail "other shapes, meshes, placements and dtypes, SEED=$seed" "$said"
    fi
fi

# ---- requests: a known field of another type is refused with its value (repair 30) ------------------------------
one() { printf '%s\n' "$1" | op --batch -; }
says "attributes" 0 '"out": ["P(sum)"]' \
    one '{"op": "sum", "mesh": [4], "shapes": [[8, 12]], "in": [["S(0)"]], "attrs": {"dims": [0]}}'
says "attributes that are a text" 1 '\"attrs\" is \"dim=0\": expected an object' \
    one '{"op": "sum", "mesh": [4], "shapes": [[8, 12]], "in": [["S(0)"]], "attrs": "dim=0"}'
says "a check that is a text" 1 '\"check\" is \"true\": expected true or false' \
    one '{"op": "relu", "mesh": [4], "shapes": [[8, 12]], "in": [["S(0)"]], "check": "true"}'
says "inputs that are an object" 1 '\"in\" is {\"a\": 1}: expected a list' \
    one '{"op": "relu", "mesh": [4], "shapes": [[8, 12]], "in": {"a": 1}}'
says "a field that nobody knows" 0 '"out": ["S(0)"]' \
    one '{"op": "relu", "mesh": [4], "shapes": [[8, 12]], "in": [["S(0)"]], "id": {"x": 1}}'

# Repair 34: what a check makes is bounded.
says "a check of too many elements" 0 '"check": "not run: at most 134217728 elements' \
    one '{"op": "histc", "mesh": [4], "attrs": {"bins": 1000000000}, "shapes": [[8, 12]], "in": [["R"]], "check": true}'

# ---- one call ----------------------------------------------------------------------------------------------
says "a product of shards" 0 "S(0),R->S(0)" op matmul --mesh x=4 --in "8x12 S(0)" --in "12x16 R" --check
says "and is checked" 0 "check: ok" op matmul --mesh "x=2, y=3" --in "8x12 S(0), S(1)" --in "12x16 R, P(sum)" --check
says "a product of what does not fit" 2 "dim 'k' is 4 in one place and 1 in another" \
    op mm --mesh x=2 --in "5x4 R" --in "1x3 R"
says "any mesh is planned" 0 "received by all ranks" op add --mesh "x=100000" --in "100000x4 S(0)" --in "4 R"
says "what no mesh can be planned for" 2 "at most 67108864 are looked at" \
    op relu --mesh "x=1099511627776" --in "8x12 P(sum)"
says "a large mesh that divides the shape" 0 "received by all ranks" \
    op relu --mesh "x=1048576" --in "1048576x3 P(sum)"
# What is cut stays so where ranks are many: a sum of few numbers goes by a tree, a gather goes round.
on_gpus() { TESSERA_TOPOLOGY=8xh100 op "$@"; }
says "rows of a loss stay where they are" 0 'dp: S(0),S(0)->P(sum),S(0); tp: R,R->R,R' \
    on_gpus cross_entropy --mesh "dp=1024, tp=4" --in "8192x16x64 S(0), S(2)" --in "8192x16 S(0), R"
says "classes stay cut beside rows" 0 'algorithm sharded classes, ' \
    on_gpus cross_entropy --mesh "dp=128, tp=8" --in "128x4096x128256 S(0), S(2)" --in "128x4096 S(0), R" --dtype bf16
says "and with weights" 0 "check: ok" op cross_entropy --mesh "dp=3, tp=2" --in "16x5x641 S(0), S(2)" \
    --in "16x5 S(0), R" --in "641 R, S(0)" --attr label_smoothing=0.1 --check
says "an algorithm costs what the other axes leave of it" 0 'algorithm two-phase, ' \
    on_gpus rms_norm --mesh "dp=1024, tp=8" --in "1024x4096x4096 S(0), S(2)" --in "4096 R, R" --dtype bf16
says "candidates of ranks are gathered, not summed" 0 'dp: S(1)->S(0)' \
    on_gpus argmax --mesh "dp=1024" --in "8192x16 S(0)" --attr dim=0
says "JSON" 0 '"out": ["P(sum)"]' op sum --mesh x=4 --in "8x12 S(0)" --attr "dims=[0]" --json
says "a form in place keeps its layout" 0 "P(sum)" op add_ --mesh x=4 --in "8x12 P(sum)" --in "8x12 S(0)" --check
says "a form in place on an axis of one rank" 0 "check: ok" op relu_ --mesh "x=1, y=2" --in "8x12 P(sum), S(0)" --check
says "kinds that do not mix, one of them on an axis of one rank" 0 "check: ok" \
    op index_add --mesh "x=1, y=4" --in "1 P(prod), R" --in "5 R, R" --in "5 R, S(0)" --attr dim=0 --check
says "indices of a table of whole numbers" 0 "check: ok" op embedding --mesh x=3 --in "7x4 S(0)" --in "5 R" \
    --dtype i64 --check
says "a mask sets what the shape says" 0 "check: ok" op masked_select --mesh x=3 --in "8x5 S(0)" --in "8x5 R" \
    --attr count=7 --check
says "other names of operators and attributes" 0 "transpose" op swapaxes --mesh x=2 --in "8x2 S(0)" --attr axis0=0 \
    --attr axis1=1
says "a name that is made of others" 2 "is made of slice" op split --mesh x=2 --in "8x2 S(0)"
says "dtypes that an operator takes" 2 "but for f64 f32 bf16 f16" op conv --mesh x=2 --in 1x2x4 --in 2x2x1 --dtype i64
says "logits are reals" 2 "cross_entropy: is not defined for c64, but for f64 f32 bf16 f16" \
    op cross_entropy --mesh x=2 --in 4x8 --in 4 --dtype c64
says "a dim of a reduction" 2 "sum: dim 5 is out of range for 2 dims" op sum --mesh x=2 --in 8x12 --attr "dims=[5]"
says "a form in place that cannot" 2 "would have to leave its layout" op relu_ --mesh x=4 --in "8x12 P(sum)"
says "the nearest operator" 2 "did you mean softmax?" op softmix --mesh x=4 --in "8x12 R"
says "the nearest attribute" 2 'did you mean "dim"?' op softmax --mesh x=4 --in "8x12 R" --attr dom=1
says "a required attribute" 2 '"shape" is required' op reshape --mesh x=4 --in "8x12 R"
says "an attribute of another type" 2 "must be a whole number" op softmax --mesh x=4 --in "8x12 R" --attr dim=one
says "a dim out of range" 2 "dim 7 is out of range" op softmax --mesh x=4 --in "8x12 R" --attr dim=7
says "shapes that clash" 2 "do not broadcast" op add --mesh x=4 --in "8x12 R" --in "8x5 R"
says "too few inputs" 2 "takes 2 to 2 inputs, not 1" op add --mesh x=4 --in "8x12 R"
says "forbidden moves" 2 "implicit moves are forbidden" op relu --mesh x=4 --in "8x12 P(sum)" --policy forbid
says "and the fix" 2 'ts_redistribute(x, "' op relu --mesh x=4 --in "8x12 P(sum)" --policy forbid
says "what moves nothing is not forbidden" 0 "S(0)" op relu --mesh x=4 --in "8x12 S(0)" --policy forbid
says "usage" 2 "are needed" op matmul
says "the table" 0 "matmul" op --list

# ---- the bench ----------------------------------------------------------------------------------------------
says "bench cuda without a GPU" 0 "add_rms_norm_backward, 1 MiB, 2048 columns" "$tessera" bench cuda --device cpu \
    --mib 1 --only rms_norm_backward
says "bench space" 0 "max_pool 3x3, rows over 2 ranks" "$tessera" bench space --seconds 1 --extent 9 --channels 2
says "bench replay" 0 "a step of 1 x 64 on fsdp=2, replayed" "$tessera" bench replay --seconds 1 --layers 1 \
    --hidden 64 --ranks 2 --mesh fsdp=2
says "bench replay in another order" 0 "fsdp=2: of it for exchange over fsdp" "$tessera" bench replay --order \
    --seconds 1 --layers 1 --hidden 64 --context 8 --threads 1
says "bench replay on no mesh" 2 "expected '=' after the axis name" "$tessera" bench replay --mesh xx
says "bench replay on no engine" 2 'there is no engine "warp"' "$tessera" bench replay --engine warp
says "bench replay, a variable of no word" 2 'TESSERA_ISA: there is no "avx"' \
    env TESSERA_ISA=avx "$tessera" bench replay --seconds 1
says "bench experts" 0 "dense layer of equal arithmetic" \
    "$tessera" bench experts --seconds 1 --tokens 32 --experts 4 --choices 2 --width 8 --inner 4 --json
says "bench experts of no line" 2 '--only: no line has "nothing"' "$tessera" bench experts --only nothing
says "bench experts of too few" 2 "9 choices of 4 experts" "$tessera" bench experts --experts 4 --choices 9
says "bench dispatch" 0 "softmax, plan made" "$tessera" bench dispatch --calls 64 --time-only
says "floors of dispatch" 0 '"floor": {"name": "its kernel", "value": ' \
    "$tessera" bench dispatch --calls 64 --time-only --json
says "without valgrind" 0 "valgrind not found: not counted" env PATH=/nowhere "$tessera" bench dispatch --calls 64
case $(env PATH="$PATH" "$tessera" bench dispatch --calls 64 2>&1) in
*"softmax, plan found: instructions"*"fused_adamw, all of it, each: instructions"*)
    pass "instructions are counted" ;;
*"valgrind not found"* | *"valgrind failed"*) pass "instructions cannot be counted here" ;; # or a sanitizer is in it
*) fail "instructions are counted" "no line of instructions, no reason" ;;
esac

# ---- the table ---------------------------------------------------------------------------------------------
op --list --markdown > "$work/ops.md"
if diff "$root/docs/ops.md" "$work/ops.md" > "$work/difference"; then
    pass "docs/ops.md is current"
else
    fail "docs/ops.md is current" \
        "$(head -n 5 "$work/difference"; echo "run: tessera op --list --markdown > docs/ops.md")"
fi

# ---- the rules ---------------------------------------------------------------------------------------------
said=$("$tessera" verify rules --quick --seed 1) # without --quick: make test-long
code=$?
if [ "$code" -eq 0 ]; then
    pass "$(printf '%s\n' "$said" | tail -n 1)"
else
    fail "verify rules" "$(printf '%s\n' "$said" | tail -n 20)"
fi
says "an operator that is not there" 2 "there is no operator" "$tessera" verify rules soft
says "one operator" 0 "1 operators" "$tessera" verify rules softmax
finish
