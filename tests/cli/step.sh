#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera step`: a configuration recorded without data, checked, drawn, reordered; edited texts refused.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"

step() { "$tessera" step "$@"; }

cat > "$work/tiny.ini" << 'INI'
[model]
vocab = 64
hidden = 32
layers = 2
heads = 4
kv_heads = 2
[data]
context = 16
[train]
batch = 8
[parallel]
mesh = fsdp=2, tp=2
INI

# ---- recorded and looked at --------------------------------------------------------------------------------
succeeds "a step is recorded" step record "$work/tiny.ini" --out "$work/a.txt"
succeeds "and with a list for every rank" step record "$work/tiny.ini" --apart --out "$work/b.txt"
succeeds "nothing is wrong with it" step check "$work/a.txt"
succeeds "nor with the other" step check "$work/b.txt"
refuses "a cap of memory" "more than the cap" step check "$work/a.txt" --memory 64K
succeeds "on uneven ranks too" step record "$work/tiny.ini" --mesh "fsdp=3" --out "$work/c.txt"
succeeds "which are three kinds" step check "$work/c.txt"
succeeds "on two that differ" step record "$work/tiny.ini" --mesh "pp=2" --out "$work/d.txt"
succeeds "which are two kinds" step check "$work/d.txt"
succeeds "with stages" step record "$work/tiny.ini" --mesh "pp=2, fsdp=2" --out "$work/p.txt"
succeeds "that meet" step check "$work/p.txt"
sed 's/^\[model\]/&\nfamily = mixtral\nexperts = 4\nexperts_per_token = 2/' "$work/tiny.ini" > "$work/experts.ini"
succeeds "experts on some ranks" step record "$work/experts.ini" --set parallel.ep=2 --out "$work/e.txt"
succeeds "whose rooms are known" step check "$work/e.txt"
succeeds "many ranks" \
    step record "$work/tiny.ini" --mesh "replicate=1024, tp=4" --set train.batch=8192 --out "$work/w.txt"
succeeds "are checked as one" step check "$work/w.txt"
# Moves of several steps keep blocks between them, which the plan counts and so does the program.
cat > "$work/ring.json" << 'JSON'
{"name": "ring", "base_us": 9, "copy_gib_s": 1300, "reduce_gib_s": 900, "hops": "ring", "levels": [
 {"name": "node", "ranks": 8, "latency_us": 0.7, "bandwidth_gib_s": 340},
 {"name": "network", "ranks": 0, "latency_us": 3.5, "bandwidth_gib_s": 43}]}
JSON
between() { # mesh topology
    step record "$work/tiny.ini" --mesh "$1" --set train.batch=64 --set parallel.topology="$2" --out "$work/s.txt" &&
        grep -q '^value stage' "$work/s.txt" && step check "$work/s.txt"
}
succeeds "blocks between the steps of a move" between "replicate=16, tp=4" "$work/ring.json"
succeeds "of two moves for one call" between "replicate=4, fsdp=4, tp=4" "$work/ring.json"
succeeds "and blocks that are copied first" between "cp=8, tp=4" auto
product_us() { sed -n 's/^operator lm_head:linear .* us=\([0-9.]*\).*/\1/p' "$1" | head -n 1; }
for mesh in fsdp=1 fsdp=4; do
    step record "$work/tiny.ini" --mesh "$mesh" --set model.hidden=512 --gbytes 100000 --out "$work/$mesh.txt" \
        > "$work/said.txt"
done
succeeds "a rank's products take a rank's share of the time" \
    awk -v one="$(product_us "$work/fsdp=1.txt")" -v four="$(product_us "$work/fsdp=4.txt")" \
    'BEGIN { exit !(four > 0 && one > 3.9 * four && one < 4.1 * four) }'
succeeds "a summary" step show "$work/a.txt" --json
step show "$work/a.txt" > "$work/said.txt"
succeeds "what ranks wait for" grep -Eq "^waits .* times for [a-z_]+ over (fsdp|tp|fsdp.tp)$" "$work/said.txt"
printf 'step 1\nranks 2\nqueue comm\ngroup all 0,1 tp\n' > "$work/late.txt"
for rank in 0 1; do
    printf 'rank %s\nholds s 8 parameter\nvalue w 8 gathered\n' "$rank"
    printf 'gather w over=all queue=comm bytes=8 reads=s makes=w us=50\n'
    printf 'operator a us=%s\nwait reads=w\noperator b reads=w us=10\nrelease frees=w\n' "$((30 - 10 * rank))"
done >> "$work/late.txt"
step show "$work/late.txt" > "$work/said.txt"
succeeds "as long as nothing is computed" grep -q "^waits    25.00 us .* 1.0 times for gather over tp$" "$work/said.txt"
succeeds "a drawing" step draw "$work/a.txt" --svg "$work/a.svg"
succeeds "in the terminal" step draw "$work/p.txt"
succeeds "the drawing has an end" grep -q "</svg>" "$work/a.svg"

# ---- compared and reordered --------------------------------------------------------------------------------
succeeds "equal to itself" step diff "$work/a.txt" "$work/a.txt"
refuses "another model's" "and" step diff "$work/a.txt" "$work/c.txt"
succeeds "reordered" step reorder "$work/b.txt" --tries 20 --out "$work/r.txt"
succeeds "by another machine's costs" step reorder "$work/b.txt" --costs h100 --tries 5 --out "$work/h.txt"
says "of no machine" 2 "--costs: expected links, v100" "$tessera" step show "$work/b.txt" --costs h800
succeeds "still right" step check "$work/r.txt"
refuses "a pass that is none" "has an unknown one" step reorder "$work/b.txt" --passes hoist,sort
step reorder "$work/w.txt" --tries 1 --out "$work/one.txt" > "$work/said.txt"
succeeds "one rank of each kind is written" grep -q "of 4096 ranks, a rank of each kind" "$work/said.txt"
step reorder "$work/w.txt" --tries 1 --out "$work/one.txt" --json > "$work/said.txt"
succeeds "in JSON too" grep -q "written_ranks" "$work/said.txt"
step show "$work/a.txt" --text > "$work/same.txt"
succeeds "printed as it is read" cmp "$work/a.txt" "$work/same.txt"

# ---- edited by hand ----------------------------------------------------------------------------------------
printf 'step 1\nranks 2\n' > "$work/circle.txt"
printf 'rank 0\nsend a to=1\nreceive b from=1\nrank 1\nsend b to=0\nreceive a from=0\n' >> "$work/circle.txt"
succeeds "buffered sends" step check "$work/circle.txt"
refuses "a circle of sends that meet" "deadlock: " step check "$work/circle.txt" --meeting
refuses "and it cannot be drawn" "deadlock" step draw "$work/circle.txt" --meeting
sed 's/^wait reads=move.*//' "$work/b.txt" > "$work/nowait.txt"
refuses "waits that are gone" "race: " step check "$work/nowait.txt"
step check "$work/nowait.txt" | grep "^race: " > "$work/races.txt"
succeeds "every finding has both places in the source" \
    awk '{ if (split($0, part, " at src/[a-z]*/[a-z_]*[.]c:[0-9]+ ") != 3) exit 1 }' "$work/races.txt"
succeeds "the model's and the unit's" grep -q \
    "embedding at src/model/[a-z]*[.]c:[0-9]* (.* reads move.4 while .* at src/parallel/gather.c:" "$work/races.txt"
sed 's/^operator/opperator/' "$work/a.txt" > "$work/word.txt"
refuses "a word that is none" "did you mean 'operator'" step check "$work/word.txt"
printf 'step 1\nranks 1\nrank\000 0\n' > "$work/nul.txt"
refuses "a NUL" "step, line 3: there is a NUL in it" step check "$work/nul.txt"
refuses "a file that is none" "cannot be opened" step check "$work/none.txt"
says "a topology that is none" 2 "--topology: 'none' is neither" \
    "$tessera" step show "$work/a.txt" --topology none
says "a mesh that is none" 2 "--mesh: mesh, column 3: expected '='" \
    "$tessera" step record "$work/tiny.ini" --mesh "tp" --out "$work/x.txt"
refuses "a subject that is none" "did you mean check" step chekc "$work/a.txt"
finish
