#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera layout`: every row of the golden files through the program, errors with their place, pictures.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
golden=$root/tests/golden

layout() { "$tessera" layout "$@"; }

# ---- the golden rows, as JSON ------------------------------------------------------------------------------
if command -v python3 > /dev/null 2>&1; then
    cat > "$work/compare.py" << 'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
answers = [json.loads(line) for line in open(sys.argv[2])]
field = sys.argv[3]
assert len(rows) == len(answers), f"{len(answers)} answers to {len(rows)} rows"
for i, (row, answer) in enumerate(zip(rows, answers)):
    assert "error" not in answer, f"row {i + 1}: {answer['error']}"
    assert answer[field] == row[field], f"row {i + 1}: {answer[field]} is not {row[field]}"
print(len(rows), "rows")
PY
    layout --elements --batch "$golden/layouts.jsonl" > "$work/layouts"
    succeeds "400 layouts of the reference" python3 "$work/compare.py" "$golden/layouts.jsonl" "$work/layouts" ranks
    layout --to-strided --batch - < "$golden/orders.jsonl" > "$work/orders"
    succeeds "120 orders of the reference" python3 "$work/compare.py" "$golden/orders.jsonl" "$work/orders" strided
    sed '7s/"shape": \[[0-9]*/"shape": [99/' "$work/layouts" > "$work/wrong"
    refuses "the comparison sees a wrong shape" "row 7" \
        python3 "$work/compare.py" "$golden/layouts.jsonl" "$work/wrong" ranks
else
    echo "skipped: the golden rows need python3 to compare"
fi

# ---- batches: a bad line is answered, the others go on -----------------------------------------------------
good='{"mesh": [2], "tensor": [3], "placements": ["S(0)"]}'
answer='{"ranks": [{"coord": [0], "shape": [2], "offset": [0]}, {"coord": [1], "shape": [1], "offset": [2]}]}'
one() { # request, which may be written over several lines
    printf '%s' "$1" | tr '\n' ' ' | "$tessera" layout --batch - ${2:-}
}
printf '%s\n' "$good" | "$tessera" layout --batch - > "$work/one" 2>&1
if [ "$(cat "$work/one")" = "$answer" ]; then pass "an answer"; else fail "an answer" "$(cat "$work/one")"; fi
printf '%s\n' "$good" 'nonsense' "$good" '{"mesh": [2], "tensor": [3], "placements": ["S(9)"]}' "$good" |
    "$tessera" layout --batch - > "$work/mixed"
code=$?
if [ "$code" -eq 1 ] && [ "$(wc -l < "$work/mixed")" -eq 5 ] && [ "$(grep -c error "$work/mixed")" -eq 2 ] &&
    [ "$(sed -n 5p "$work/mixed")" = "$answer" ]; then
    pass "bad lines among good ones"
else
    fail "bad lines among good ones" "exit code $code
$(cat "$work/mixed")"
fi
says "a batch that is not there" 2 'cannot read' layout --batch "$work/none"
says "a batch that is a folder" 2 'Is a directory' layout --batch "$work"
says "not JSON" 1 'not JSON, line 1, column' one '{"mesh": '
two_before() { printf '%s\r\n\n%s\r\n' "$good" "$1" | "$tessera" layout --batch -; }
says "the line of the batch" 1 'not JSON, line 3, column 10: a value was expected' two_before '{"mesh": '
says "not an object" 1 'a request is a JSON object' one '[1]'
says "no mesh" 1 '\"mesh\" is missing' one '{"tensor": [3], "placements": ["S(0)"]}'
says "no tensor" 1 '\"tensor\" is missing' one '{"mesh": [2], "placements": ["S(0)"]}'
says "an extent that is none" 1 '\"tensor\", item 0' one '{"mesh": [2], "tensor": ["3"], "placements": ["S(0)"]}'
says "a placement's column" 1 'column' one '{"mesh": [2], "tensor": [3], "placements": ["S(x)"]}'
says "too few placements" 1 'error' one '{"mesh": [2, 2], "tensor": [3], "placements": ["S(0)"]}'
says "a mesh as text" 0 '"coord": [1]' one '{"mesh": "dp=2", "tensor": [3], "placements": "S(0)"}'
says "ranks in their own order" 0 '"world_ranks": [1, 0]' \
    one '{"mesh": "dp=2 : 1 0", "tensor": [3], "placements": ["S(0)"]}'
says "a scalar" 0 '"shape": [], "offset": []' one '{"mesh": [2], "tensor": [], "placements": ["R"]}'
says "elements" 0 '"elements": [2]' one "$good" --elements
says "too many elements" 1 'the most that are listed' \
    one '{"mesh": [2], "tensor": [100000000], "placements": ["S(0)"]}' --elements
says "many elements without listing them" 0 '"shape": [50000000000]' \
    one '{"mesh": [2], "tensor": [100000000000], "placements": ["S(0)"]}'
says "an order that no strided shards make" 1 'error' \
    one '{"mesh": [3, 2], "tensor": [7], "placements": ["S(0)", "S(0)"], "shard_order": [[0, [1, 0]]]}' --to-strided
says "a bad order" 1 '\"shard_order\" is [0]: expected a list of [dim, [axes]]' \
    one '{"mesh": [2], "placements": ["S(0)"], "shard_order": [0]}' --to-strided
says "a mesh that is none" 1 '\"mesh\" is 2: expected a list of axis sizes' \
    one '{"mesh": 2, "tensor": [3], "placements": ["S(0)"]}'
says "an unknown field is ignored" 0 '"coord": [1]' \
    one '{"mesh": [2], "tensor": [3], "placements": ["S(0)"], "note": {"x": [1]}}'
# Repair 34: an error text that was cut in the middle of a character is still JSON.
if command -v python3 > /dev/null 2>&1; then
    for extra in "" x xx xxx; do
        long=$extra$(printf '\360\237\230\200%.0s' $(seq 1 400))
        one '{"mesh": "'"$long"'", "tensor": [3], "placements": ["S(0)"]}' > "$work/long"
        succeeds "an error of emoji after \"$extra\" is JSON" \
            python3 -c 'import json, sys; json.loads(open(sys.argv[1], "rb").read().decode())["error"]' "$work/long"
    done
fi

# ---- usage -------------------------------------------------------------------------------------------------
says help 0 "usage: tessera layout" layout --help
says "nothing asked" 2 "--mesh, --shape and --place are needed" layout
says "bad mesh" 2 "--mesh:" layout --mesh "a=" --shape 3 --place R
says "bad shape" 2 '--shape: shape, column 3: expected a size' layout --mesh a=2 --shape 7xy --place R
says "a bracket that is not closed" 2 'shape, column 5: expected "x" or "]"' layout --mesh a=2 --shape "[7x5" --place R
says "a bracket that was not opened" 2 'shape, column 4: expected "x"' layout --mesh a=2 --shape "7x5)" --place R
says "a bracket alone" 2 'shape, column 2: expected a size' layout --mesh a=2 --shape "(" --place R
for shape in "[7, 5]" "(7x5)" "7x5" "7,5 "; do
    says "the shape '$shape'" 0 "7x5 on mesh" layout --mesh a=2 --shape "$shape" --place R
done
says "bad placements" 2 "--place:" layout --mesh a=2 --shape 7 --place "S(3)"
says "misspelt option" 2 'did you mean --shape?' layout --mesh a=2 --shap 7 --place R
says "a slice outside" 2 'index 9 is outside dim 0 of size 2' \
    layout --mesh a=2 --shape 2x3x4 --place "S(0)" --slice 9
says "a batch and a mesh" 2 '--batch reads its requests' layout --batch - --mesh a=2
says "a file that cannot be written" 1 'cannot write' \
    layout --mesh a=2 --shape 4 --place "S(0)" --html "$work/no/such.html"

# ---- pictures ----------------------------------------------------------------------------------------------
says "the grid" 0 '4  3  4  5  3  4 ' layout --mesh "a=2, b=3" --shape 7x5 --place "S(0), SS(1,2)"
says "the table" 0 '   5  (1, 2)      3x1    (4, 2)  [4,7)  [2,3)' \
    layout --mesh "a=2, b=3" --shape 7x5 --place "S(0), SS(1,2)"
says "no colours in a file" 0 'scalar on mesh a=2, placements R' layout --mesh a=2 --shape scalar --place R
case $(layout --mesh a=2 --shape 4 --place "S(0)") in
*"$(printf '\033')"*) fail "plain text" "colours in a pipe" ;;
*) pass "plain text" ;;
esac
says "replicas by name" 0 'replicated over a: 2 ranks hold the same' \
    layout --mesh "a=2, b=3" --shape 6 --place "R, S(0)"
says "terms by name" 0 'partial over a, P(sum): 2 ranks hold a term each' \
    layout --mesh "a=2, b=3" --shape 6 --place "P(sum), S(0)"
says "slices" 0 '[1, :, :]' layout --mesh "a=2, b=3" --shape 2x4x6 --place "S(0), S(2)"
says "one slice" 0 '[1, 2, :, :]' layout --mesh "a=2, b=3" --shape 2x3x4x6 --place "S(0), S(2)" --slice 1,2
says "blocks of a large tensor" 0 'cells are blocks' layout --mesh "a=2, b=3" --shape 4000x3000 --place "S(0), S(1)"
says "a million ranks" 0 'and 999936 more ranks' \
    layout --mesh "a=1000, b=1000" --shape 1000000000000x7 --place "S(0), S(0)"
says "replicas on 10^14 ranks" 0 'names the first of them: 0 = 0 1 2' timeout 10 \
    "$tessera" layout --mesh a=100000000000000 --shape 4 --place R
says "an empty tensor" 0 'the tensor is empty' layout --mesh a=2 --shape 0x4 --place "S(0)"
says "dims cut as one" 0 'dims 0-1' layout --mesh a=2 --shape 3x4x5 --place "S(0-1)"
says "svg" 0 '<svg xmlns' layout --mesh "a=2, b=3" --shape 7x5 --place "S(0), SS(1,2)" --svg -
says "svg names ranks" 0 '<title>rank 5 at (1, 2)' \
    layout --mesh "a=2, b=3" --shape 7x5 --place "S(0), SS(1,2)" --svg -
says "html" 0 '<!doctype html>' layout --mesh "a=2, b=3" --shape 7x5 --place "S(0), SS(1,2)" --html -
says "a full disk" 1 '' layout --mesh "a=2, b=3" --shape 7x5 --place "S(0), R" --html /dev/full
says "json" 0 '"layout_bytes"' layout --mesh "a=2, b=3" --shape 7x5 --place "S(0), SS(1,2)" --json

# ---- the bench -----------------------------------------------------------------------------------------------
says "bench layout" 0 'a plain Philox loop' "$tessera" bench layout --lookups 10000 --elements 65536
says "bench layout as JSON" 0 '"results": [{"name": "lookup of an existing layout' \
    "$tessera" bench layout --lookups 10000 --elements 65536 --json
says "bench layout with a wrong option" 2 'did you mean --lookups?' "$tessera" bench layout --lookup 5
finish
