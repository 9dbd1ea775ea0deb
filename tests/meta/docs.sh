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
mkdir -p "$work/tree/src/op"
cp "$root/src/op/ops.def" "$work/tree/src/op"
cp "$root/docs/errors.md" "$work/tree/docs"
grep -v 'ts_relu2(' "$root/include/tessera/op_pointwise.h" > "$work/tree/include/tessera/op_pointwise.h"
refuses "an operator that is not in the public header" "ts_relu2(...)" "$root/scripts/docs" "$work/tree"

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
cited=$(cd "$root" && grep -rhoE 'INV-[0-9]+' src include tests cli bench docs ./*.md 2> /dev/null | sort -u)
for invariant in $cited; do
    grep -q "^- \*\*$invariant\*\*\|^\*\*$invariant\*\*\|^| $invariant " "$root/ARCHITECTURE.md" ||
        echo "$invariant is cited but not in ARCHITECTURE.md"
done > "$work/invariants"
nothing_in "invariants that are cited" "$work/invariants"

# Repair 21: the variables that are read and those that are documented, in both directions.
environment() { # tree
    (cd "$1" && grep -rhoE '"TESSERA_[A-Z_]+"' src cli | tr -d '"' | sort -u) > "$work/read"
    sed -n 's/^| `\(TESSERA_[A-Z_]*\)` |.*/\1/p' "$1/docs/environment.md" | sort > "$work/documented"
    comm -23 "$work/read" "$work/documented" | sed 's/$/: is read and not documented/'
    comm -13 "$work/read" "$work/documented" | sed 's/$/: is documented and not read/'
}
environment "$root" > "$work/environment"
nothing_in "repair 21: environment variables" "$work/environment"
mkdir -p "$work/tree/cli"
echo 'getenv("TESSERA_LOST"); getenv("TESSERA_RANKS");' > "$work/tree/src/x.c"
printf '| `TESSERA_RANKS` | |\n| `TESSERA_GONE` | |\n' > "$work/tree/docs/environment.md"
refuses "a variable that is not documented" "TESSERA_LOST: is read and not documented" \
    sh -c 'echo "$1"; [ -z "$1" ]' - "$(environment "$work/tree")"
refuses "a variable that is not read" "TESSERA_GONE: is documented and not read" \
    sh -c 'echo "$1"; [ -z "$1" ]' - "$(environment "$work/tree")"

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
# Repair 21: on too few ranks it says what to do, and a mistake that all ranks see alike needs no post-mortem.
said=$(TESSERA_RANKS=2 "$work/readme" 2>&1)
case $said in
*post-mortem*) fail "repair 21: the README's program on 2 ranks" "$said" ;;
*"has 4 ranks, the world only 2: start it with 4 (TESSERA_RANKS=4, or mpirun -n 4)"*)
    pass "repair 21: the README's program on 2 ranks" ;;
*) fail "repair 21: the README's program on 2 ranks" "$said" ;;
esac
for script in "$root"/scripts/* "$root"/.ci/run "$root"/tests/*/*.sh; do
    head -n 1 "$script" | grep -q 'sh$' || [ "$(basename "$script")" = lib.sh ] || continue
    succeeds "$(basename "$script") parses" bash -n "$script"
done
finish
