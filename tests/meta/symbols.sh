#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library exports ts_ names only; modules export tsi_module and need nothing of the core.
. "$(dirname "$0")/lib.sh"
check=$root/scripts/check-symbols
succeeds "symbols of the library and its modules" "$check" "$build"

object() { # file text
    mkdir -p "$(dirname "$work/$1")"
    printf '%s\n' "$2" | cc -shared -fPIC -x c - -o "$work/$1"
}
object lib/libtessera.so 'int ts_a; int other;'
refuses "an export without the prefix" "libtessera.so exports other" "$check" "$work"
object lib/libtessera.so 'int ts_a;'
object lib/tessera/x.so 'int tsi_module; int more;'
refuses "a module with two exports" "x.so exports more" "$check" "$work"
object lib/tessera/x.so 'int tsi_fail(void); int tsi_module(void) { return tsi_fail(); }'
refuses "a module that needs the core" "x.so needs tsi_fail of the core" "$check" "$work"
object lib/tessera/x.so 'int tsi_module(void) { return 0; }'
succeeds "a good module" "$check" "$work"
finish
