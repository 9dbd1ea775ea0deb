#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `tessera tokenize`: exit codes, sentences, JSON, going on after an interruption.
. "$(dirname "$0")/../meta/lib.sh"
tessera=$build/bin/tessera
[ -x "$tessera" ] || skip_all "the program was not built"
golden=$root/tests/golden/tokenizer
text=$root/examples/data/tales.txt

says help 0 "Turns text files into token files" "$tessera" tokenize --help
says no_out 2 "--out PREFIX is missing" "$tessera" tokenize "$text"
says no_text 2 "there are no text files" "$tessera" tokenize --out "$work/a"
says empty_out 2 "--out PREFIX is missing" "$tessera" tokenize --out "" "$text"
says bad_option 2 "--shard-tokens" "$tessera" tokenize --shard-tokens 0 --out "$work/a" "$text"
says no_file 2 "nothing.txt\": No such file" "$tessera" tokenize --out "$work/a" "$work/nothing.txt"
says no_tokenizer 2 "x.json\": No such file" "$tessera" tokenize --tokenizer "$work/x.json" --out "$work/a" "$text"
says no_json 1 "tales.txt, line 1" "$tessera" tokenize --tokenizer "$text" --out "$work/a" "$text"
says no_folder 1 "cannot be created" "$tessera" tokenize --out "$work/no/where" "$text"
printf '{"body": "one two", "id": 1}\n{"body": "three", "id": 2}\n' > "$work/lines.jsonl"
says no_member 1 'line 1: the object has no text "text"' "$tessera" tokenize --out "$work/lines" "$work/lines.jsonl"
says member 0 "lines: 14 tokens" "$tessera" tokenize --json-key body --out "$work/lines" "$work/lines.jsonl"
says bytes 0 "vocabulary 260" "$tessera" tokenize --out "$work/bytes" "$text"
says again 0 "(1 were there)" "$tessera" tokenize --out "$work/bytes" "$text"
says other 1 "belongs to other inputs" "$tessera" tokenize --out "$work/bytes" --no-eos "$text"
says restart 0 "(0 were there)" "$tessera" tokenize --out "$work/bytes" --no-eos --restart "$text"

tokenize() { # prefix
    "$tessera" tokenize --tokenizer "$golden/llama2.json" --shard-tokens 10000 --json --out "$1" "$text"
}
tokenize "$work/whole" > "$work/json"
succeeds "the result is JSON" python3 -m json.tool "$work/json"
tokenize "$work/parts" > /dev/null
rm "$work"/parts-0000[3-9].bin
printf 'half a shard' > "$work/parts-00003.bin.tmp"
tokenize "$work/parts" > "$work/json"
if grep -q '"shards_kept": 3' "$work/json"; then
    pass "goes on after shard 3"
else
    fail "goes on after shard 3" "$(cat "$work/json")"
fi
same=yes
for shard in "$work"/whole-*.bin; do
    cmp -s "$shard" "$work/parts-${shard##*-}" || same="$shard differs"
done
if [ "$same" = yes ]; then pass "the same bytes"; else fail "the same bytes" "$same"; fi

# Ctrl-C, when some shards are there; run again, it goes on, and nothing shows that it was interrupted.
i=0
while [ $i -lt 60 ]; do cat "$text"; i=$((i + 1)); done > "$work/long.txt"
long() { # prefix
    "$tessera" tokenize --tokenizer "$golden/llama2.json" --shard-tokens 20000 --json --out "$1" "$work/long.txt"
}
long "$work/once" > /dev/null 2>&1
(exec "$tessera" tokenize --tokenizer "$golden/llama2.json" --shard-tokens 20000 --json --out "$work/twice" \
    "$work/long.txt") > /dev/null 2> "$work/said" &
runner=$!
i=0
while [ ! -e "$work/twice-00002.bin" ] && [ $i -lt 1000 ]; do
    sleep 0.01
    i=$((i + 1))
done
kill -INT $runner
wait $runner
code=$?
if [ $code -eq 1 ] && grep -q "run it again to go on" "$work/said"; then pass "Ctrl-C ends it"
elif [ $code -eq 0 ]; then pass "Ctrl-C came too late"
else fail "Ctrl-C ends it" "exit code $code, it said: $(cat "$work/said")"; fi
ls "$work"/twice-*.tmp > /dev/null 2>&1 && left=yes || left=no
long "$work/twice" > "$work/json" 2>&1
if grep -q '"shards_kept": 0,' "$work/json"; then fail "goes on after Ctrl-C" "$(cat "$work/json")"
else pass "goes on after Ctrl-C"; fi
same=yes
for shard in "$work"/once-*.bin; do
    cmp -s "$shard" "$work/twice-${shard##*-}" || same="$shard differs (a temporary file was left: $left)"
done
if [ "$(ls "$work"/once-*.bin | wc -l)" = "$(ls "$work"/twice-*.bin | wc -l)" ] && [ "$same" = yes ]; then
    pass "the same bytes after Ctrl-C"
else
    fail "the same bytes after Ctrl-C" "$same"
fi
finish
