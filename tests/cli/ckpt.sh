#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera ckpt`: what it says of states and of published weights, what it finds of damage, conversions there and back
# with the files that came along, and that models read what it wrote.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
models=$root/tests/golden/models

cat > "$work/a.ini" << END
[model]
hidden = 16
layers = 1
heads = 2
[data]
path = text.txt
context = 8
[train]
batch = 4
steps = 4
output = $work/run
[checkpoint]
every = 2
[parallel]
mesh = dp=2
[log]
sample = 0
report = 0
END
for i in 1 2 3 4 5 6 7 8 9; do echo "The fox number $i ran home."; done > "$work/text.txt"
succeeds "a run leaves states" "$tessera" train "$work/a.ini" --quiet
a=$work/run/state/step-2 b=$work/run/state/step-4

# ---- info, verify, diff, cat -------------------------------------------------------------------------------
says "info tells format, step and mesh" 0 "mesh    dp=2" "$tessera" ckpt info "$b"
"$tessera" ckpt info "$b" --json > "$work/info.json"
succeeds "info --json has what the interface names" python3 - "$work/info.json" << 'END'
import json, sys
r = json.load(open(sys.argv[1]))
assert r["format"] == "tessera" and r["step"] == 4 and r["mesh"] == "dp=2" and len(r["hash"]) == 16
t = {x["name"]: x for x in r["tensors"]}
w = t["model.embed_tokens.weight"]
assert w["shape"] == [260, 16] and w["dtype"] == "f32" and w["bytes"] == 16640 and len(w["hash"]) == 16
assert "model.embed_tokens.weight.exp_avg" in t
END
says "verify: all agree" 0 "0 damaged" "$tessera" ckpt verify "$b"
says "diff: equal" 0 "" "$tessera" ckpt diff "$b" "$b"
says "diff: name, index and both values" 1 "model.embed_tokens.weight: [" "$tessera" ckpt diff "$a" "$b"
says "cat: a slice" 0 "" "$tessera" ckpt cat "$b" model.norm.weight --slice 0:4
first=$("$tessera" ckpt cat "$b" model.norm.weight --slice 0)
said=$("$tessera" ckpt cat "$b" model.norm.weight --slice ::9223372036854775807)
[ "$said" = "$first" ] && pass "cat: a step beyond the end" || fail "cat: a step beyond the end" "$said"
said=$("$tessera" ckpt cat "$b" lm_head.weight --slice '0:3, ::5')
[ "$(printf '%s\n' "$said" | awk '{ n += NF } END { print NR, n }')" = "3 12" ] && pass "cat: rows and steps" ||
    fail "cat: rows and steps" "$said"
says "cat: a name that is not there" 2 "has no tensor" "$tessera" ckpt cat "$b" nothing
says "cat: a name that is nearly there" 2 "did you mean model.norm.weight?" "$tessera" ckpt cat "$b" model.norm.weigth
run_words="run: is the output of a run; its model is $work/run/model, its states are in $work/run/state"
says "the output of a run" 2 "$run_words" "$tessera" ckpt verify "$work/run"
says "generate from the output of a run" 2 "its model is $work/run/model" "$tessera" generate "$work/run"
says "a directory that is not there" 2 "there is nothing" "$tessera" ckpt verify "$work/nowhere"
says "bad usage" 2 "did you mean verify" "$tessera" ckpt verfy "$b"

# ---- the bench removes what it made and nothing else, whatever it is called ----------------------------------------
mkdir "$work/it"
says "bench checkpoint of no line" 2 '--only: no line has "nothing"' \
    "$tessera" bench checkpoint --size 1MiB --ranks 1 --only nothing --directory "$work/it' 's"
[ -d "$work/it" ] && [ ! -e "$work/it' 's" ] && pass "its folder is gone, others stay" ||
    fail "its folder is gone, others stay" "$(ls "$work")"

# ---- wrong inputs: one sentence, and a code that is not 0 --------------------------------------------------------
mkdir "$work/empty" "$work/short-index"
echo "hello" > "$work/note.txt"
cp -r "$b" "$work/short"
truncate -s 5000 "$work/short/rank-00000.safetensors"
truncate -s 40 "$work/short-index/index.json"
for what in verify diff convert cat; do
    case $what in
    verify) set -- ;;
    diff) set -- "$b" ;;
    convert) set -- "$work/out" --to hf ;;
    cat) set -- lm_head.weight ;;
    esac
    says "$what: nothing there" 2 "nowhere: there is nothing" "$tessera" ckpt "$what" "$work/nowhere" "$@"
    says "$what: an empty directory" 1 "neither model.safetensors nor its" "$tessera" ckpt "$what" "$work/empty" "$@"
    says "$what: a file of something else" 1 "too short for a safetens" "$tessera" ckpt "$what" "$work/note.txt" "$@"
    says "$what: a file that was cut short" 1 "it is not whole" "$tessera" ckpt "$what" "$work/short" "$@"
    says "$what: an index that was cut short" 1 "index.json" "$tessera" ckpt "$what" "$work/short-index" "$@"
    says "$what: an option that is none" 2 'unknown option "--bad"' "$tessera" ckpt "$what" "$b" "$@" --bad
done
says "convert: a dtype that is none" 2 '"f99" is unknown' "$tessera" ckpt convert "$b" "$work/out" --to hf --dtype f99
says "convert: a dtype of no weights" 2 "i32 is no dtype of weights" \
    "$tessera" ckpt convert "$b" "$work/out" --to hf --dtype i32
says "convert: a format that is none" 2 'found "zip"' "$tessera" ckpt convert "$b" "$work/out" --to zip
says "convert: a name for nothing" 2 '"IN: OUT"' "$tessera" ckpt convert "$b" "$work/out" --to hf --rename x
says "convert: into a file" 1 "Not a directory" "$tessera" ckpt convert "$b" "$work/note.txt" --to hf
[ -e "$work/out" ] && fail "nothing was written" || pass "nothing was written"

# ---- damage: one byte of each file ------------------------------------------------------------------------------
flip() { # file offset
    python3 - "$1" "$2" << 'END'
import sys
f = open(sys.argv[1], "r+b")
at = int(sys.argv[2])
f.seek(at)
byte = f.read(1)[0]
f.seek(at)
f.write(bytes([byte ^ 16]))
END
}
for file in index.json config.json rank-00000.safetensors rank-00001.safetensors; do
    cp -r "$b" "$work/bad"
    flip "$work/bad/$file" 100
    says "verify: a byte of $file" 1 "$file" "$tessera" ckpt verify "$work/bad"
    rm -r "$work/bad"
done
cp -r "$b" "$work/bad"
flip "$work/bad/rank-00001.safetensors" 9000
says "verify: a block, by file, tensor and block" 1 'rank-00001.safetensors: is damaged: tensor "' \
    "$tessera" ckpt verify "$work/bad"
rm "$work/bad/rank-00000.safetensors"
says "verify: a file that is missing" 1 "rank-00000.safetensors" "$tessera" ckpt verify "$work/bad"

# ---- conversions -----------------------------------------------------------------------------------------------
succeeds "a state to published weights" "$tessera" ckpt convert "$b" "$work/hf" --to hf
says "they have what the model of the run has" 0 "" "$tessera" ckpt diff "$work/hf" "$work/run/model"
says "a directory that is not empty is refused" 2 "not empty" "$tessera" ckpt convert "$b" "$work/hf" --to hf
succeeds "and are read" "$tessera" generate "$work/hf" --tokens 2
succeeds "a state is read as a model" "$tessera" generate "$b" --tokens 2
for model in llama gpt2 qwen3 mixtral; do
    cp -r "$models/$model" "$work/in"
    echo '{"temperature": 1}' > "$work/in/generation_config.json"
    echo "terms" > "$work/in/LICENSE"
    succeeds "$model: to tessera" "$tessera" ckpt convert "$work/in" "$work/ours" --to tessera
    succeeds "$model: and back, in several files" \
        "$tessera" ckpt convert "$work/ours" "$work/back" --to hf --shard-size 4KiB
    says "$model: nothing changed" 0 "" "$tessera" ckpt diff "$work/in" "$work/back"
    [ -s "$work/back/model.safetensors.index.json" ] && cmp -s "$work/in/LICENSE" "$work/back/LICENSE" &&
        cmp -s "$work/in/generation_config.json" "$work/back/generation_config.json" &&
        pass "$model: other files come along" || fail "$model: other files come along" "$(ls "$work/back")"
    [ "$("$tessera" ckpt info "$work/in" --json | grep -o '"hash": "[0-9a-f]*"}$')" = \
        "$("$tessera" ckpt info "$work/ours" --json | grep -o '"hash": "[0-9a-f]*"}$')" ] &&
        pass "$model: one hash in both formats" || fail "$model: one hash in both formats"
    for where in ours back; do
        cp "$work/in/reference.json" "$work/$where/" 2> /dev/null
        succeeds "$model: $where computes what it did" "$tessera" verify model "$work/$where" --mesh dp=2
    done
    succeeds "$model: to bf16" "$tessera" ckpt convert "$work/in" "$work/half" --to hf --dtype bf16
    grep -q '"bfloat16"' "$work/half/config.json" && pass "$model: config.json tells the dtype" ||
        fail "$model: config.json tells the dtype" "$(cat "$work/half/config.json")"
    rm -r "$work/in" "$work/ours" "$work/back" "$work/half"
done
# ---- names that a terminal would obey ------------------------------------------------------------------------
mkdir "$work/obeyed"
python3 - "$work/obeyed/model.safetensors" << 'END'
import json, struct, sys
text = json.dumps({"a\u001b[31mb": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + bytes(4))
END
says "info: a name with control characters" 0 "a?[31mb" "$tessera" ckpt info "$work/obeyed"

# ---- memory: a model of 320 MiB in files of 160, and a large file beside it, in at most 64 MiB ---------------
python3 - "$work/large" << 'END'
import json, os, struct, sys
os.makedirs(sys.argv[1])
index = {}
for number in (1, 2):
    name = f"model-{number:05}-of-00002.safetensors"
    header, at = {}, 0
    for i in range(5):
        key = f"layers.{number}.{i}.weight"
        header[key] = {"dtype": "F32", "shape": [2048, 4096], "data_offsets": [at, at + (32 << 20)]}
        index[key] = name
        at += 32 << 20
    text = json.dumps(header).encode()
    with open(f"{sys.argv[1]}/{name}", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
json.dump({"metadata": {}, "weight_map": index}, open(f"{sys.argv[1]}/model.safetensors.index.json", "w"))
with open(f"{sys.argv[1]}/notes.txt", "wb") as file:
    file.truncate(100 << 20)
END
peak() { # command ...
    python3 -c 'import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
sys.exit(code)' "$@"
}
small() { # name command ...
    small_name=$1
    shift
    small_peak=$(peak "$@" 2>&1) && [ "$small_peak" -le 64 ] && pass "$small_name: $small_peak MiB" ||
        fail "$small_name" "$small_peak"
}
small "memory of a conversion" "$tessera" ckpt convert "$work/large" "$work/large-ours" --to tessera
small "memory of one to bf16 and back" "$tessera" ckpt convert "$work/large-ours" "$work/large-hf" --to hf --dtype bf16
small "memory of verify" "$tessera" ckpt verify "$work/large-ours"
small "memory of diff" "$tessera" ckpt diff "$work/large" "$work/large-ours"
cmp -s "$work/large/notes.txt" "$work/large-hf/notes.txt" && pass "a large file comes along" ||
    fail "a large file comes along"
rm -r "$work"/large*

# A limit on the size of files is a sentence, and what was there stays.
says "ulimit -f" 1 "rank-0000" sh -c "ulimit -f 8; '$tessera' train '$work/a.ini' --quiet --set train.steps=6"
says "ulimit -f: the newest state is whole" 0 "0 damaged" "$tessera" ckpt verify "$b"
finish
