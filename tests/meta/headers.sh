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

# Friction 3: every option struct has an exported init function, and its defaults are in options.c.
options=$(grep -ohE '^} ts_[a-z_]+_options;' "$root"/include/tessera/*.h | sed 's/^} //; s/;$//')
missing=""
for type in $options; do
    grep -q "^TS_API void ${type}_init(" "$root"/include/tessera/*.h &&
        grep -qE "^(PLAIN|DEFAULTS)\($type[,)]" "$root/src/base/options.c" || missing="$missing $type"
done
[ -n "$options" ] && [ -z "$missing" ] && pass "every option struct has its init" ||
    fail "every option struct has its init" "missing:$missing"

# Friction 5: an error keeps the place of the call in C++ as it does in C.
cat > "$work/place.cpp" << 'END'
#include <cstdio>
#include <tessera/tessera.h>
static ts_status work(ts_rank *me, void *)
{
    ts_tensor *x = ts_ones(ts_mesh_self(me), TS_DTYPE_F32, TS_SHAPE(3), nullptr);
    ts_mm(x, x);
    std::printf("%s\n", ts_rank_error(me)->where);
    return TS_OK;
}
int main()
{
    return ts_launch(0, nullptr, work, nullptr) == 1 ? 0 : 1;
}
END
if c++ -std=c++17 -I"$root/include" "$work/place.cpp" -L"$build/lib" -ltessera -Wl,-rpath,"$build/lib" \
    -o "$work/place" 2> "$work/said"; then
    said=$(TESSERA_RANKS=1 "$work/place" 2> "$work/said")
    case $said in
    *place.cpp:6*) pass "an error of a call in C++ has its place" ;;
    *) fail "an error of a call in C++ has its place" "$said" ;;
    esac
else
    fail "a program in C++" "$(cat "$work/said")"
fi
finish
