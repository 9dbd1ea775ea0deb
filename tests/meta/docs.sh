#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Documents say what is: generated tables are current, links lead somewhere, the README's program compiles and
# does what the README says.
. "$(dirname "$0")/lib.sh"
succeeds "generated tables are current" "$root/scripts/docs"
mkdir -p "$work/tree/docs" "$work/tree/include/tessera" "$work/tree/src"
cp "$root/include/tessera/status.h" "$work/tree/include/tessera"
cp "$root/src/LAYERS" "$work/tree/src"
grep -v TS_ERR_PEER "$root/docs/errors.md" > "$work/tree/docs/errors.md"
refuses "a table that lost a row" "TS_ERR_PEER" "$root/scripts/docs" "$work/tree"

# Links to files of the tree, [text](path) or [text](path#part), outside of code.
(cd "$root" && find . \( -name .git -o -name build -o -name .scratch \) -prune -o -name '*.md' -print) |
    while read -r page; do
        awk '/^```/ { code = !code; next } !code' "$root/$page" | sed 's/`[^`]*`//g' |
            grep -o '](\([^)#: ]*\)[^):]*)' | sed 's/^](//; s/[#)].*$//' | while read -r target; do
            [ -z "$target" ] || [ -e "$root/$(dirname "$page")/$target" ] || echo "$page: $target is not there"
        done
    done > "$work/links"
nothing_in "links between documents" "$work/links"

# Every error code and invariant that is cited exists.
cited=$(cd "$root" && grep -rhoE 'INV-[0-9]+' src include tests cli docs ./*.md 2> /dev/null | sort -u)
for invariant in $cited; do
    grep -q "^- \*\*$invariant\*\*\|^\*\*$invariant\*\*\|^| $invariant " "$root/ARCHITECTURE.md" ||
        echo "$invariant is cited but not in ARCHITECTURE.md"
done > "$work/invariants"
nothing_in "invariants that are cited" "$work/invariants"

# Each C block of the README that has a main is a program.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$root/README.md" > "$work/readme.c"
succeeds "the README's program compiles" cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$root/include" \
    "$work/readme.c" -L "$build/lib" -ltessera -Wl,-rpath,"$build/lib" -o "$work/readme"
said=$(TESSERA_RANKS=4 "$work/readme" 2>&1)
expected=$(sed -n 's/^TESSERA_RANKS=4.*"\(.*\)"$/\1/p' "$root/README.md")
if [ -n "$expected" ] && [ "$said" = "$expected" ]; then
    pass "and prints what the README says"
else
    fail "and prints what the README says" "wanted: $expected
it said: $said"
fi
for script in "$root"/scripts/* "$root"/.ci/run "$root"/tests/*/*.sh; do
    head -n 1 "$script" | grep -q 'sh$' || [ "$(basename "$script")" = lib.sh ] || continue
    succeeds "$(basename "$script") parses" bash -n "$script"
done
finish
