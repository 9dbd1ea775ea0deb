# SPDX-License-Identifier: Apache-2.0
# Each tests/<kind>/<name>.c is one program test_<kind>_<name>; it sees internal headers and links the
# static library. Tests of one program register themselves (tests/harness/test.h). They are built by the
# target `tests`, and run by scripts/test or ctest.
file(GLOB TS_HARNESS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/harness/*.c)
if(TS_HARNESS)
  add_library(tessera_harness STATIC EXCLUDE_FROM_ALL ${TS_HARNESS})
  target_include_directories(tessera_harness PUBLIC ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(tessera_harness PRIVATE TS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(tessera_harness PUBLIC tessera_static tessera_flags)
  # The library's code takes the time of a test; a sanitizer compiles a test's own in a third of it so.
  target_compile_options(tessera_harness PUBLIC $<$<CONFIG:Sanitize>:-O0>)
  # Each program is linked with all of the library: lld does that in a quarter of the time.
  find_program(TS_LLD ld.lld)
  if(TS_LLD)
    target_link_options(tessera_harness PUBLIC -fuse-ld=lld)
  endif()
  foreach(kind unit prop op dist fault fuzz)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${kind}/*.c)
    foreach(source ${sources})
      get_filename_component(name ${source} NAME_WE)
      set(target test_${kind}_${name})
      add_executable(${target} EXCLUDE_FROM_ALL ${source})
      set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
      target_compile_definitions(${target} PRIVATE
        TS_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TS_BINARY_DIR="${CMAKE_BINARY_DIR}")
      target_link_libraries(${target} PRIVATE tessera_harness)
      add_dependencies(tests ${target})
      add_test(NAME ${target} COMMAND ${target})
    endforeach()
  endforeach()
  # The same files of tests/fuzz as programs of libFuzzer, for scripts/fuzz; it follows what readers of files do.
  if(TS_FUZZ)
    file(GLOB watched CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/base/*.c ${PROJECT_SOURCE_DIR}/src/checkpoint/*.c
      ${PROJECT_SOURCE_DIR}/src/layout/*.c)
    set_property(SOURCE ${watched} APPEND PROPERTY COMPILE_OPTIONS -fsanitize=fuzzer-no-link)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/*.c)
    foreach(source ${sources})
      get_filename_component(name ${source} NAME_WE)
      add_executable(fuzz_${name} EXCLUDE_FROM_ALL ${source})
      set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
      target_compile_definitions(fuzz_${name} PRIVATE TS_FUZZER=1 TS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      target_include_directories(fuzz_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
      target_link_libraries(fuzz_${name} PRIVATE tessera_static tessera_flags)
      target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer-no-link)
      target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    endforeach()
  endif()
  # A module for the loader's test, once right and once for each way of being wrong.
  foreach(way good seam ops offer absent nothing cuda)
    string(TOUPPER ${way} WAY)
    add_library(tessera_fake_${way} MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/modules/fake.c)
    set_target_properties(tessera_fake_${way} PROPERTIES PREFIX ""
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/modules)
    target_compile_definitions(tessera_fake_${way} PRIVATE FAKE_${WAY}=1)
    target_include_directories(tessera_fake_${way} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(tessera_fake_${way} PRIVATE tessera_flags)
    add_dependencies(test_unit_runtime_module tessera_fake_${way})
  endforeach()
  set_target_properties(tessera_fake_cuda PROPERTIES OUTPUT_NAME tessera_cuda # by which it is looked for
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/modules/cuda)
  # A library with NCCL's functions on the `queue` device: tests name it in TESSERA_NCCL.
  add_library(nccl_stub MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/modules/nccl_stub.c)
  set_target_properties(nccl_stub PROPERTIES PREFIX "lib" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/modules)
  target_include_directories(nccl_stub PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(nccl_stub PRIVATE tessera_flags Threads::Threads rt)
  add_dependencies(tests nccl_stub tessera_nccl) # which tests load
  # Tests of the cuda module: built by `gpu-tests`, run by scripts/gpu-check where a GPU is, and part of `tests` on
  # the simulated one.
  include(cmake/simulated.cmake)
  if(TS_CUDA_FOUND)
    add_custom_target(gpu-tests DEPENDS tessera_cuda)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/gpu/*.c)
    foreach(source ${sources})
      get_filename_component(name ${source} NAME_WE)
      set(target test_gpu_${name})
      add_executable(${target} EXCLUDE_FROM_ALL ${source})
      set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
      target_compile_definitions(${target} PRIVATE
        TS_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TS_BINARY_DIR="${CMAKE_BINARY_DIR}")
      target_include_directories(${target} SYSTEM PRIVATE ${TS_CUDA_INCLUDE})
      target_link_libraries(${target} PRIVATE tessera_harness)
      add_dependencies(gpu-tests ${target})
      if(TS_SIMULATED AND NOT name STREQUAL "rates")
        add_test(NAME ${target} COMMAND ${target})
        set_tests_properties(${target} PROPERTIES ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/simulated)
      endif()
    endforeach()
    if(TS_SIMULATED)
      add_custom_target(simulated-tests DEPENDS gpu-tests simulated_cuda simulated_lt)
      add_dependencies(tests simulated-tests)
    endif()
  endif()
endif()

# A host program that links nothing of tessera and loads a binding of it, after a large user of thread-local
# storage: test_binding_load.
if(TARGET tessera AND UNIX)
  add_library(tessera_test_hog MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/binding/hog.c)
  add_library(tessera_test_binding MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/binding/module.c)
  add_executable(test_binding_load EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/binding/main.c)
  find_package(Threads REQUIRED)
  target_link_libraries(tessera_test_hog PRIVATE tessera_flags)
  target_link_libraries(tessera_test_binding PRIVATE tessera tessera_flags Threads::Threads)
  target_link_libraries(test_binding_load PRIVATE tessera_flags Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_definitions(test_binding_load PRIVATE
    TS_HOG="$<TARGET_FILE:tessera_test_hog>" TS_MODULE="$<TARGET_FILE:tessera_test_binding>")
  set_target_properties(tessera_test_hog tessera_test_binding PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set_target_properties(test_binding_load PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(test_binding_load tessera_test_hog tessera_test_binding)
  add_dependencies(tests test_binding_load)
  add_test(NAME test_binding_load COMMAND test_binding_load)
endif()
