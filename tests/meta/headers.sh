#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every public header compiles alone, as C11 and C++17, with every compiler that is here; one test for each.
. "$(dirname "$0")/lib.sh"
"$root/scripts/check-headers" "$root/include" > "$work/said" 2>&1
cat "$work/said"
passed=$(grep -c '^ok ' "$work/said")
failed=$(grep -c '^FAIL ' "$work/said")
mkdir -p "$work/include/tessera"
echo 'ts_status x(void);' > "$work/include/tessera/x.h"
: > "$work/include/tessera/tessera.h"
refuses "a header that needs another one" "FAIL x.h as C11" "$root/scripts/check-headers" "$work/include"
refuses "a header that tessera.h forgot" "tessera.h does not include x.h" "$root/scripts/check-headers" "$work/include"
finish
