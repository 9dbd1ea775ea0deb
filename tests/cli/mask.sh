#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera mask`: balances of the reference and of the specification, tiles, pictures, bad input.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"

mask() { "$tessera" mask "$@"; }

# ---- the golden rows ---------------------------------------------------------------------------------------
# Per document the reference's order is document by document and not the ranks' own: there the rule is checked.
if command -v python3 > /dev/null 2>&1; then
    cat > "$work/compare.py" << 'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
answers = [json.loads(line) for line in open(sys.argv[2])]
assert len(rows) == len(answers)
for row, answer in zip(rows, answers):
    if row["kind"] == "head_tail":
        assert answer["indices"] == row["indices"] and answer["restore"] == row["restore"], row
        continue
    world = row["world"]
    for docs, indices, restore in zip(row["docs"], answer["indices"], answer["restore"]):
        want = []
        for k in range(world):
            begin = 0
            for n in docs:
                c = n // (2 * world)
                want += range(begin + k * c, begin + k * c + c)
                want += range(begin + (2 * world - 1 - k) * c, begin + (2 * world - k) * c)
                begin += n
        assert indices == want and [restore[i] for i in indices] == list(range(len(want))), row
print(len(rows), "rows")
PY
    mask --batch "$root/tests/golden/balancers.jsonl" > "$work/tables"
    succeeds "balances of the reference" python3 "$work/compare.py" "$root/tests/golden/balancers.jsonl" "$work/tables"
fi

says() { # title, wanted words, request
    printf '%s\n' "$3" | mask --batch - > "$work/answer"
    succeeds "$1" grep -qF "$2" "$work/answer"
}
says "ptrr by costs" '"indices": [0, 2, 5, 10, 3, 7, 9, 11, 1, 4, 6, 8]' \
    '{"kind": "ptrr", "costs": [7, 3, 12, 5, 9, 1, 4, 8, 10, 2, 6, 11], "world": 3}'
says "ptrr of packed documents" '"indices": [[2, 4, 5, 7, 8, 9, 0, 1, 3, 6, 10, 11]]' \
    '{"kind": "ptrr", "docs": [[3, 5, 4]], "world": 2}'
says "ptrr of dear blocks" '"indices": [0, 1, 2, 3]' \
    '{"kind": "ptrr", "costs": [4000000000000, 7, 9000000, 8000000], "world": 2}'
says "a block that is too large" 'is above 2^26' '{"kind": "ptrr", "costs": [1, 2], "block": 1000000000000, "world": 2}'
says "ptrr in blocks" '"indices": [0, 1, 6, 7, 2, 3, 4, 5]' '{"kind": "ptrr", "seq": 8, "block": 2, "world": 2}'
says "a length that does not divide" 'does not divide by 4' '{"kind": "head_tail", "seq": 9, "world": 2}'
says "more ranks than can be counted twice" 'balance: 9223372036854775807 ranks' \
    '{"kind": "head_tail", "seq": 16, "world": 9223372036854775807}'
says "nothing, cut among as many ranks as there may be" '"indices": []' \
    '{"kind": "head_tail", "seq": 0, "world": 4611686018427387903}'
says "a kind that is none" 'did you mean head_tail' '{"kind": "head_tial", "seq": 8, "world": 2}'
says "tiles of a mask" '"empty": 6, "partial": 4, "full": 6, "pairs": 131328' '{"mask": "causal", "seq": 512}'

# ---- pictures ----------------------------------------------------------------------------------------------
mask "causal & documents(300, 500, 224)" --length 1024 --block 64 --ranks 4 > "$work/picture"
succeeds "the picture has the fraction" grep -q '73.4 % skipped' "$work/picture"
succeeds "and the tiles" grep -qF '....+#####+.....' "$work/picture"
mask "causal | prefix(200)" --length 512 --svg "$work/mask.svg" --html "$work/mask.html"
succeeds "a drawing" grep -q '</svg>' "$work/mask.svg"
succeeds "a page with the fraction" grep -q 'skipped' "$work/mask.html"
refuses "documents that do not sum to the length" "another length" mask "documents(3, 4)" --length 8
refuses "a text that is no mask" "column 10" mask "causal & wide" --length 8
finish
