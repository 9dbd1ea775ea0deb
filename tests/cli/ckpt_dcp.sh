#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera ckpt` on distributed checkpoints of PyTorch (tests/golden/dcp): every element of every tensor, conversions to
# both formats, names, values, and that what is damaged or would have to be executed is refused with a sentence.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
golden=$root/tests/golden/dcp

# Elements of all tensors against those that torch told.
agree() { # directory
    python3 - "$tessera" "$1" "$golden/expected.jsonl" << 'END'
import json, subprocess, sys
tessera, directory, expected = sys.argv[1:]
short = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
         "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool", "complex64": "c64", "float8_e4m3fn": "f32"}
def ckpt(*arguments):
    return subprocess.run([tessera, "ckpt", *arguments], capture_output=True, check=True, text=True).stdout
info = json.loads(ckpt("info", directory, "--json"))
tensors = {t["name"]: t for t in info["tensors"]}
rows = [json.loads(line) for line in open(expected)]
assert len(rows) == len(tensors) == 18, len(tensors)
for row in rows:
    t = tensors[row["name"]]
    assert t["shape"] == row["shape"] and t["dtype"] == short[row["dtype"]], (row["name"], t)
    said = ckpt("cat", directory, row["name"])
    if row["dtype"] == "complex64":
        numbers = [x for word in said.split() for x in (complex(word).real, complex(word).imag)]
    else:
        numbers = [float(word) for word in said.split()]
    same = all(abs(a - b) <= 1e-6 * abs(b) for a, b in zip(numbers, map(float, row["elements"])))
    assert len(numbers) == len(row["elements"]) and same, (row["name"], numbers, row["elements"])
END
}
for made in sharded older; do
    says "$made: info tells the format" 0 "format  dcp" "$tessera" ckpt info "$golden/$made"
    says "$made: verify reads all of it" 0 "18 tensors, 0 damaged" "$tessera" ckpt verify "$golden/$made"
    succeeds "$made: every element" agree "$golden/$made"
    succeeds "$made: to tessera" "$tessera" ckpt convert "$golden/$made" "$work/$made" --from dcp --to tessera
    says "$made: nothing changed" 0 "" "$tessera" ckpt diff "$golden/$made" "$work/$made"
    says "$made: with hashes" 0 "18 tensors, 0 damaged" "$tessera" ckpt verify "$work/$made"
    succeeds "$made: every element of that" agree "$work/$made"
    succeeds "$made: to published files" "$tessera" ckpt convert "$golden/$made" "$work/$made-hf" --from dcp --to hf \
        --shard-size 200
    says "$made: nothing changed there" 0 "" "$tessera" ckpt diff "$golden/$made" "$work/$made-hf"
done
says "both versions wrote the same" 0 "" "$tessera" ckpt diff "$golden/sharded" "$golden/older"
python3 - "$work/sharded/index.json" << 'END' && pass "values come along" || fail "values come along"
import json, sys
values = json.load(open(sys.argv[1]))["values"]
assert json.loads(values["more.lr"]) == 0.125 and json.loads(values["more.step"]) == 7, values
assert json.loads(values["more.list.3.x"]) == -2.5 and json.loads(values["more.note"]) == "a text", values
END

# ---- names -------------------------------------------------------------------------------------------------------
succeeds "the model of a nested state alone, by its own names" "$tessera" ckpt convert "$golden/nested" "$work/model" \
    --from dcp --to hf --names "model.*" --rename "model.*: *"
says "its names" 0 "model.embed.weight" "$tessera" ckpt info "$work/model"
"$tessera" ckpt cat "$golden/sharded" rows > "$work/a" &&
    "$tessera" ckpt cat "$work/model" model.embed.weight > "$work/b"
cmp -s "$work/a" "$work/b" && pass "its numbers" || fail "its numbers" "$(cat "$work/b")"
succeeds "published files have no state of an optimizer" \
    "$tessera" ckpt convert "$golden/nested" "$work/plain" --from dcp --to hf
refuses "it is not there" "has no tensor" "$tessera" ckpt cat "$work/plain" optim.state.lm_head.weight.exp_avg
says "two of one name" 2 "would both be" \
    "$tessera" ckpt convert "$golden/nested" "$work/no" --to hf --rename "*: same"
says "no name matches" 2 "matches" \
    "$tessera" ckpt convert "$golden/nested" "$work/no" --to hf --names "nothing.*"
says "another format than was said" 2 "is of the format hf" \
    "$tessera" ckpt convert "$root/tests/golden/models/llama" "$work/no" --from dcp --to hf
[ ! -e "$work/no" ] && pass "what is refused leaves nothing" || fail "what is refused leaves nothing"

# ---- damage ------------------------------------------------------------------------------------------------------
damaged() { # name words python, with edit(file, changed bytes of what it was)
    rm -rf "$work/bad"
    cp -r "$golden/sharded" "$work/bad"
    (cd "$work/bad" && python3 -c "import os
def edit(file, change):
    data = open(file, 'rb').read()
    open(file, 'wb').write(change(data))
$3") || fail "$1" "cannot make it"
    says "$1" 1 "$2" "$tessera" ckpt verify "$work/bad"
}
damaged "a call of another function" "it names os.system" \
    'edit(".metadata", lambda d: b"\x80\x04cos\nsystem\n\x8c\x0atouch /tmp\x85R.")'
damaged "an opcode that imports" "opcode 0x69 (INST)" 'edit(".metadata", lambda d: b"\x80\x02(ios\nsystem\n.")'
damaged "an opcode that nobody knows" "opcode 0xff (unknown)" 'edit(".metadata", lambda d: b"\x80\x02\xff.")'
damaged "a pickle of something else" "none of a checkpoint" 'edit(".metadata", lambda d: b"\x80\x02]q\x00.")'
damaged "a pickle that ends early" "longer than the file" 'edit(".metadata", lambda d: d[:900])'
damaged "a file that is missing" "__1_0.distcp" 'os.remove("__1_0.distcp")'
damaged "a file that is shorter" "__1_0.distcp: has" 'os.truncate("__1_0.distcp", 9000)'
damaged "a file of another directory" "not one of this directory" \
    'edit(".metadata", lambda d: d.replace(b"__1_0.distcp", b"../../etc/ab"))'
damaged "chunks that leave something out" "do not cover it, or overlap" \
    'edit(".metadata", lambda d: d.replace(b"K\x02K\x03\x86", b"K\x01K\x03\x86", 1))'
damaged "data of another function in an archive" "it names torch._utils._rebuild_tensor_vX" \
    'edit("__1_0.distcp", lambda d: d.replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_vX"))'
damaged "an archive of another shape" "another shape or dtype" 'edit("__0_0.distcp", lambda d:
    d.replace(b"K\x02K\x03\x86", b"K\x03K\x02\x86").replace(b"K\x03K\x01\x86", b"K\x02K\x01\x86"))'
finish
