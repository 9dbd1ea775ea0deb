# SPDX-License-Identifier: Apache-2.0
# A GPU that is not there, for the tests: the driver and cuBLASLt as libraries that are found before the real ones
# (LD_LIBRARY_PATH), and the kernels of the cuda module by the host's C++ compiler (tests/gpu/simulated).
#
# It is part of the target `tests` where the cuda module is, and of nothing that is installed. Sanitizers are left
# out: they take the switch between threads of a block for a fault of the stack.
set(TS_SIMULATED OFF)
if(NOT TS_CUDA_FOUND OR TS_SANITIZE)
  return()
endif()
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
  message(STATUS "simulated GPU: no C++ compiler")
  return()
endif()
enable_language(CXX)
set(TS_SIMULATED_DIR ${PROJECT_SOURCE_DIR}/tests/gpu/simulated)
file(GLOB kernels CONFIGURE_DEPENDS ${TS_CUDA_DIR}/kernels/*.cu ${TS_SIMULATED_DIR}/*.cu)

# ts_simulated(name file suffix sources...): a library of that file name.
function(ts_simulated name file suffix)
  add_library(${name} SHARED EXCLUDE_FROM_ALL ${ARGN})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${file} SUFFIX ${suffix} CXX_STANDARD 17 CXX_EXTENSIONS ON
    CXX_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/simulated)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_include_directories(${name} SYSTEM PRIVATE ${TS_CUDA_INCLUDE})
endfunction()

# Words of CUDA before the first line, and headers of the simulation before those of the same names. An access off
# its alignment and one behind an array of a known extent are traps, which run.cpp tells by the kernel's name.
# nvcc warns about the kernels.
ts_simulated(simulated_kernels simulated_kernels .so ${kernels} ${TS_SIMULATED_DIR}/kernels.cpp)
set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX
  COMPILE_OPTIONS "-xc++;-w;-O1;-ffp-contract=off;-fno-math-errno;-fsanitize=alignment,bounds;-fsanitize-trap=all"
  OBJECT_DEPENDS ${TS_SIMULATED_DIR}/cuda_words.h)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  get_source_file_property(options ${TS_SIMULATED_DIR}/wrong.cu COMPILE_OPTIONS)
  list(TRANSFORM options REPLACE "-fsanitize-trap=all" "-fsanitize-undefined-trap-on-error")
  set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS "${options}")
endif()
# Where most of the time goes.
foreach(kernel attend attend_tile grouped)
  set_property(SOURCE ${TS_CUDA_DIR}/kernels/${kernel}.cu APPEND PROPERTY COMPILE_OPTIONS -O2)
endforeach()
target_compile_options(simulated_kernels PRIVATE -include ${TS_SIMULATED_DIR}/cuda_words.h)
target_include_directories(simulated_kernels BEFORE PRIVATE ${TS_SIMULATED_DIR}/shadow ${TS_SIMULATED_DIR})

set(sources "")
foreach(file run memory fiber stream driver)
  list(APPEND sources ${TS_SIMULATED_DIR}/${file}.cpp)
endforeach()
ts_simulated(simulated_cuda cuda .so.1 ${sources})
ts_simulated(simulated_lt cublasLt .so.13 ${TS_SIMULATED_DIR}/lt.cpp)
target_link_libraries(simulated_cuda PRIVATE simulated_kernels Threads::Threads)
target_link_libraries(simulated_lt PRIVATE simulated_cuda)
# Where a distribution asks for it, longjmp refuses to go from stack to stack.
foreach(name simulated_cuda simulated_lt)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow $<$<BOOL:${TS_WERROR}>:-Werror> -ffp-contract=off
    -U_FORTIFY_SOURCE)
endforeach()
set(TS_SIMULATED ON)
