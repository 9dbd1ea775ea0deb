# SPDX-License-Identifier: Apache-2.0
# The library: all of src/ but the modules, once as objects; shared (exports ts_* only) and static.
file(GLOB_RECURSE TS_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.c)
list(FILTER TS_SOURCES EXCLUDE REGEX "/src/(base/lent|comm/(mpi|nccl)|backend/cuda)/")
# Plain loops that the compiler turns into vector code; -O2 of gcc 12 does so only where it is free.
file(GLOB TS_LOOPS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu_*.c ${PROJECT_SOURCE_DIR}/src/array/random*.c
    ${PROJECT_SOURCE_DIR}/src/checkpoint/digest.c)
set_source_files_properties(${TS_LOOPS} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
# Kernels: the same, and each directory of an instruction set with its flags, where the machine may have it.
# What runs is chosen at run time.
file(GLOB_RECURSE TS_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cpu/*.c)
set_source_files_properties(${TS_KERNELS} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
function(ts_isa directory processor)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cpu/${directory}/*.c)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "${processor}")
    list(REMOVE_ITEM TS_SOURCES ${sources})
    set(TS_SOURCES "${TS_SOURCES}" PARENT_SCOPE)
    return()
  endif()
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>;${ARGN}")
endfunction()
ts_isa(neon "aarch64|arm64")
ts_isa(x86 "x86_64|amd64|AMD64")
ts_isa(avx2 "x86_64|amd64|AMD64" -mavx2 -mfma)
ts_isa(avx512 "x86_64|amd64|AMD64" -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512)
ts_isa(amx "x86_64|amd64|AMD64" -mamx-tile -mamx-bf16)
set_property(SOURCE
    ${PROJECT_SOURCE_DIR}/src/backend/cpu/neon/bf16.c
    ${PROJECT_SOURCE_DIR}/src/backend/cpu/neon/rows_bf16.c
    APPEND PROPERTY COMPILE_OPTIONS -march=armv8.2-a+bf16)
set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/backend/cpu/avx512/bf16.c APPEND PROPERTY COMPILE_OPTIONS -mavx512bf16)
# Loops of all elementwise operators, once for each instruction set: optimised, a sanitizer takes minutes for each.
file(GLOB TS_ROWS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cpu/*/rows*.c)
set_property(SOURCE ${TS_ROWS} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Sanitize>:-O0>)
# Which operators have a function of their own: names of the public headers, in order.
file(GLOB TS_OP_HEADERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/tessera/op_*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${TS_OP_HEADERS})
set(TS_OP_FUNCTIONS "")
foreach(header ${TS_OP_HEADERS})
  file(STRINGS ${header} lines REGEX "^(TS_API [^(]*[ *]|#define )ts_[a-z0-9_]+\\(")
  foreach(line ${lines})
    string(REGEX REPLACE "^[^(]*[ *](ts_[a-z0-9_]+)\\(.*$" "\"\\1\"," line "${line}")
    list(APPEND TS_OP_FUNCTIONS "${line}")
  endforeach()
endforeach()
list(REMOVE_DUPLICATES TS_OP_FUNCTIONS)
list(SORT TS_OP_FUNCTIONS)
string(REPLACE ";" "\n" TS_OP_FUNCTIONS "${TS_OP_FUNCTIONS}")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/op/functions.inc CONTENT "${TS_OP_FUNCTIONS}\n" @ONLY)
add_library(tessera_core OBJECT ${TS_SOURCES})
target_include_directories(tessera_core PUBLIC ${PROJECT_SOURCE_DIR}/include
    PRIVATE ${PROJECT_SOURCE_DIR}/src ${CMAKE_BINARY_DIR}/generated)
target_compile_definitions(tessera_core PRIVATE TS_HERE=NULL)
target_link_libraries(tessera_core PRIVATE tessera_flags PUBLIC tessera_deps)
# Without a processor in mind gcc fills and copies small structs by "rep stos" and "rep movs", which take 30 cycles to
# begin. No instruction is added by this.
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
  target_compile_options(tessera_core PRIVATE -mtune=skylake)
endif()

add_library(tessera SHARED $<TARGET_OBJECTS:tessera_core>)
target_include_directories(tessera PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(tessera PRIVATE tessera_flags tessera_deps)
set_target_properties(tessera PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${TS_ABI})
if(NOT TS_SANITIZE) # the runtime of a sanitizer comes with the program
  target_link_options(tessera PRIVATE LINKER:-z,defs LINKER:--as-needed
    LINKER:-Bsymbolic-functions # calls of ts_* within the library are direct
    LINKER:-z,nodelete) # threads that failed have its destructor, helper threads its code
endif()

add_library(tessera_static STATIC $<TARGET_OBJECTS:tessera_core>)
set_target_properties(tessera_static PROPERTIES OUTPUT_NAME tessera)
target_include_directories(tessera_static PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(tessera_static PUBLIC tessera_deps)
