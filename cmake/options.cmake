# SPDX-License-Identifier: Apache-2.0
# Compiler flags shared by everything, as an interface target.
add_library(tessera_flags INTERFACE)
target_compile_definitions(tessera_flags INTERFACE _GNU_SOURCE)
target_compile_options(tessera_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wundef -Wvla -Wformat=2
  -Wcast-qual -Wswitch-enum -Wstrict-prototypes -Wmissing-prototypes
  -ffp-contract=off -fno-math-errno -fno-trapping-math)
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
