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
object lib/libtessera.so 'static _Thread_local char record[1200]; char *ts_a(void) { return record; }'
refuses "much thread-local storage" "has 1200 bytes of thread-local storage" "$check" "$work"
object lib/libtessera.so 'int ts_a;'
object lib/tessera/x.so 'int tsi_module; int more;'
refuses "a module with two exports" "x.so exports more" "$check" "$work"
object lib/tessera/x.so 'int tsi_fail(void); int tsi_module(void) { return tsi_fail(); }'
refuses "a module that needs the core" "x.so needs tsi_fail of the core" "$check" "$work"
object lib/tessera/x.so 'int tsi_module(void) { return 0; }'
succeeds "a good module" "$check" "$work"

# Repair 1: the library is loaded late in a process whose room for thread-local storage is all but used up. Fillers
# of 64 bytes are loaded until one is refused; then, in a new process, one less of them and the library.
filler='__attribute__((tls_model("initial-exec"))) _Thread_local char filler[64]; char *ts_f(void) { return filler; }'
object fill/0.so "$filler"
for i in $(seq 1 99); do cp "$work/fill/0.so" "$work/fill/$i.so"; done
cat > "$work/load.c" << 'END'
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **word) /* DIR N [LIBRARY]: loads N fillers or, without a library, all it can */
{
    int loaded = 0, most = atoi(word[2]);
    char path[4096];
    while (loaded < most) {
        snprintf(path, sizeof path, "%s/%d.so", word[1], loaded);
        if (dlopen(path, RTLD_NOW) == NULL) break;
        loaded++;
    }
    if (count < 4) return printf("%d\n", loaded) < 0;
    if (dlopen(word[3], RTLD_NOW) != NULL) return loaded != most;
    fprintf(stderr, "%s\n", dlerror());
    return 1;
}
END
cc "$work/load.c" -o "$work/load" -ldl
room=$("$work/load" "$work/fill" 100)
if [ "$room" -lt 100 ] && ! nm -D "$build/lib/libtessera.so" | grep -q '__[at]san'; then
    succeeds "loaded with $room times 64 bytes of thread-local storage used" \
        "$work/load" "$work/fill" $((room - 1)) "$build/lib/libtessera.so"
    object fat.so "$(printf '%s' "$filler" | sed 's/64/1200/')"
    refuses "1,200 bytes beside them" "static TLS" "$work/load" "$work/fill" $((room - 1)) "$work/fat.so"
fi
finish
