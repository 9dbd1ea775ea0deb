#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The measurable rules of the sources hold, and the checkers see it when they do not.
. "$(dirname "$0")/lib.sh"
succeeds "sizes, widths, SPDX lines, calls" "$root/scripts/check-source"
succeeds "no paths or hosts of one machine" "$root/scripts/check-words"

head='/* SPDX-License-Identifier: Apache-2.0 */
/* x.c - a file. */'
lines() { # count text
    awk -v n="$1" -v text="$2" 'BEGIN { while (n-- > 0) print text }'
}
tree() { # file, text on standard input
    rm -rf "$work/tree"
    mkdir -p "$(dirname "$work/tree/$1")"
    cat > "$work/tree/$1"
}
check=$root/scripts/check-source
printf '%s\nint x;\n' "$head" | tree src/base/x.c
succeeds "a good file" "$check" "$work/tree"
echo 'int x;' | tree src/base/x.c
refuses "a file without SPDX line" "SPDX" "$check" "$work/tree"
{ printf '%s\n' "$head" && lines 999 'int x;'; } | tree src/base/x.c
refuses "1001 lines" "file has 1001 lines" "$check" "$work/tree"
{ printf '%s\n' "$head" && lines 1498 'int x;'; } | tree tests/unit/x.c
succeeds "1500 lines of tests" "$check" "$work/tree"
{ printf '%s\n' "$head" && lines 1 "$(lines 101 x | tr -d '\n')"; } | tree src/base/x.c
refuses "101 columns" "line has 101 columns" "$check" "$work/tree"
function_of() { # lines of the body
    printf '%s\n\n%sstatic int f(void)\n{\n' "$head" "$2"
    lines "$1" '    x++;'
    printf '}\n'
}
function_of 67 "" | tree src/base/x.c
succeeds "a function of 70 lines" "$check" "$work/tree"
function_of 68 "" | tree src/base/x.c
refuses "a function of 71 lines" "src/base/x.c:4: function has 71 lines" "$check" "$work/tree"
function_of 68 "/* long: a table */
" | tree src/base/x.c
succeeds "unless it says why" "$check" "$work/tree"
printf '%s\nint x; /* FIX%s */\n' "$head" ME | tree src/base/x.c
refuses "a forgotten mark" "FIXME or XXX" "$check" "$work/tree"
printf '%s\nvoid *x = mal%s(3);\n' "$head" loc | tree src/base/x.c
refuses "memory from elsewhere" "memory comes from base/alloc.h" "$check" "$work/tree"
printf '%s\n    host->free(x); /* free(x) */\n' "$head" | tree src/base/x.c
succeeds "a member called free" "$check" "$work/tree"
printf '%s\n    exit(1);\n' "$head" | tree src/base/x.c
refuses "a library that exits" "does not end the process" "$check" "$work/tree"
printf '%s\nextern "C" __global__ void x(int a)\n' "$head" | tree src/backend/cuda/kernels/x.cu
refuses "a kernel that may forget to wait" "declared by TSI_KERNEL" "$check" "$work/tree"
printf '%s\nTSI_KERNEL(x, args) /* __global__ */\n' "$head" | tree src/backend/cuda/kernels/x.cu
succeeds "a kernel that waits" "$check" "$work/tree"
printf '%s\n    asm("membar.gl;");\n' "$head" | tree src/backend/cuda/kernels/x.cu
refuses "PTX in a kernel" "a function of ptx.cuh" "$check" "$work/tree"
printf '%s\n    asm("membar.gl;");\n' "$head" | tree src/backend/cuda/kernels/ptx.cuh
succeeds "PTX in its header" "$check" "$work/tree"
printf 'see /wo%s/main\n' rk | tree docs/x.md
refuses "a path of one machine" "docs/x.md" "$root/scripts/check-words" "$work/tree"
finish
