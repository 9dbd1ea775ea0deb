#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Repair 30: every known field of every --batch request with every value of a wrong type is refused by a sentence
# that names the field; a value of the right type, and null where a field may be missing, are taken.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
command -v python3 > /dev/null 2>&1 || skip_all "python3 is needed"

cat > "$work/types.py" << 'PY'
import json, subprocess, sys

program = sys.argv[1]
# A good request of each command, the fields that it cannot do without, and fields that take another kind too.
REQUESTS = {
    "layout": ({"mesh": [2, 2], "tensor": [4, 6], "placements": ["S(0)", "S(1)"], "shard_order": [[0, [0]], [1, [1]]]},
               {"mesh", "tensor", "placements"}, {"mesh": ["text"], "placements": ["text"]}),
    "plan": ({"mesh": [2], "tensor": [4], "dtype": "f32", "src": ["S(0)"], "dst": ["R"], "dst_mesh": [2],
              "src_order": [[0, [0]]], "dst_order": [], "planner": "direct", "topology": "reference-cpu",
              "budget": 100000, "check": False},
             {"mesh", "tensor", "src", "dst"}, {key: ["text"] for key in ("mesh", "dst_mesh", "src", "dst")}),
    "op": ({"op": "sum", "mesh": [2], "attrs": {"dims": [0]}, "shapes": [[4, 6]], "in": [["S(0)"]], "dtype": "f32",
            "policy": "allow", "check": False},
           {"op", "mesh", "shapes", "in"}, {"mesh": ["text"]}),
    "schedule": ({"schedule": "1F1B", "ranks": 2, "microbatches": 4, "stages_per_rank": 1, "seconds": 1, "memory": 8,
                  "cost": {"F": 1, "I": 1, "W": 1, "comm": 0}},
                 {"schedule"}, {"cost": ["list"], "seconds": ["real"], "memory": ["real"]}),
    "mask": ({"kind": "head_tail", "seq": 16, "world": 2, "docs": [[8, 8]], "mask": "causal", "block": 4},
             {"world"}, {}),
}
VALUES = {"text": "a word", "number": 7, "real": 2.5, "below": -3, "bool": True, "list": [None], "object": {"a": 1},
          "deep": [[["x"]]], "null": None}
KINDS = {str: {"text"}, bool: {"bool"}, int: {"number"}, list: {"list", "deep"}, dict: {"object"}}

failed, asked = 0, 0
for command, (good, needed, also) in REQUESTS.items():
    rows, what = [good], [("nothing", "", False)]
    for key, value in good.items():
        for kind, other in VALUES.items():
            right = kind in KINDS[type(value)] or kind in also.get(key, []) or (kind == "null" and key not in needed)
            rows.append({**good, key: other})
            what.append((key, kind, not right))
    answers = subprocess.run([program, command, "--batch", "-"], input="".join(json.dumps(r) + "\n" for r in rows),
                             capture_output=True, text=True, timeout=120).stdout.splitlines()
    if len(answers) != len(rows):
        sys.exit(f"{command}: {len(answers)} answers to {len(rows)} requests")
    for (key, kind, refused), answer in zip(what, map(json.loads, answers)):
        asked += 1
        said = answer.get("error")
        bad = (refused and not (said and f'"{key}"' in said)) or (not key and said)
        # A value of the right kind may be no mesh or no operator; then, too, it is a sentence.
        if bad or (said is not None and len(said) < 10):
            failed += 1
            print(f"{command}: {key} of kind {kind}: {said or 'taken'}")
    if "error" in json.loads(answers[0]):
        failed += 1
        print(f"{command}: the good request: {answers[0]}")
print(f"{asked} requests, {failed} wrong")
sys.exit(failed > 0)
PY
succeeds "repair 30: fields of requests of every wrong type" python3 "$work/types.py" "$tessera"
finish
