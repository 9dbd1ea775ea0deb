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
finish
