#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scripts/test says what it cannot do instead of failing, or passing, for another reason.
. "$(dirname "$0")/lib.sh"
mkdir -p "$work/fresh"
echo 'TS_SANITIZE:STRING=' > "$work/fresh/CMakeCache.txt"
says "repair 21: tests that are not built" 2 "of the programs are not built, such as test_" \
    "$root/scripts/test" "$work/fresh" test_unit_base
says "and how to build them" 2 "--target tests" "$root/scripts/test" "$work/fresh" test_unit_base
says "a pattern that fits nothing" 2 "no test has a name that contains: nothing_like_it" \
    "$root/scripts/test" "$work/fresh" nothing_like_it
says "a directory that is no build" 2 "is not a build directory" "$root/scripts/test" "$work"
for script in "$root"/tests/cli/*.sh "$root"/tests/meta/*.sh "$root"/tests/install/*.sh; do
    [ -x "$script" ] || [ "$(basename "$script")" = lib.sh ] || echo "$script is not executable: it is never run"
done > "$work/idle"
nothing_in "repair 21: every test script is executable" "$work/idle"

# What was once repaired is found in the tests by its number: "repair 7", "Repairs 27 and 28", repair_3_of_what.
grep -rohiE --include='*.[ch]' --include='*.cpp' --include='*.py' --include='*.sh' \
    '(repair|friction)s?[ _]([0-9]+ and )?[0-9]+' "$root/tests" |
    tr 'RF_' 'rf ' | sed -E 's/ and / /; s/^([a-z]+)s /\1 /' |
    awk '{ for (i = 2; i <= NF; i++) print $1, $i }' > "$work/numbered"
{
    for number in $(seq 35); do echo "repair $number"; done
    for number in $(seq 5); do echo "friction $number"; done
} > "$work/wanted"
grep -vxFf "$work/numbered" "$work/wanted" | sed 's/$/ has no test/' > "$work/unnumbered"
nothing_in "every repair has a test under its number" "$work/unnumbered"
# Programs that are no file of one of the kinds are started by name: by tests and by the sanitizers.
for sample in asan tsan; do
    "$root/scripts/test" "$work/fresh" --sample $sample test_binding_load 2>&1 | grep -q "such as test_binding_load" ||
        echo "the binding does not run with $sample"
done > "$work/bindings"
nothing_in "the binding runs with both sanitizers" "$work/bindings"
finish
