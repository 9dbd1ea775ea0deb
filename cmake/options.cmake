# SPDX-License-Identifier: Apache-2.0
# Compiler flags shared by everything, as an interface target. gcc 12 and clang 14 know all of them.
# A build that links an installed copy sees none of this.
add_library(tessera_flags INTERFACE)
target_compile_definitions(tessera_flags INTERFACE _GNU_SOURCE)
target_compile_options(tessera_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wundef -Wvla -Wformat=2
  -Wcast-qual -Wswitch-enum -Wstrict-prototypes -Wmissing-prototypes
  -ffp-contract=off -fno-math-errno -fno-trapping-math
  # __FILE__ in messages and events is a path in the source tree, the same on every machine.
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
# clang also warns where gcc, which checks the same rules, sees that nothing can go wrong: an enum of ours as
# int32_t, INFINITY as a double, !"a text".
if(CMAKE_C_COMPILER_ID MATCHES "Clang")
  target_compile_options(tessera_flags INTERFACE
    -Wno-sign-conversion -Wno-double-promotion -Wno-string-conversion)
endif()
if(TS_WERROR)
  target_compile_options(tessera_flags INTERFACE -Werror)
endif()
if(TS_SANITIZE)
  target_compile_options(tessera_flags INTERFACE
    -fsanitize=${TS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TS_SANITIZE})
endif()
set(CMAKE_C_FLAGS_RELEASE "-O2 -g -DNDEBUG")
set(CMAKE_C_FLAGS_DEBUG "-O0 -g")
set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1") # a report shows functions and lines
