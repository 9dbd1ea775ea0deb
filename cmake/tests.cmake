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
  # A module for the loader's test, once right and once for each way of being wrong.
  foreach(way good seam ops offer absent nothing)
    string(TOUPPER ${way} WAY)
    add_library(tessera_fake_${way} MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/modules/fake.c)
    set_target_properties(tessera_fake_${way} PROPERTIES PREFIX ""
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/modules)
    target_compile_definitions(tessera_fake_${way} PRIVATE FAKE_${WAY}=1)
    target_include_directories(tessera_fake_${way} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(tessera_fake_${way} PRIVATE tessera_flags)
    add_dependencies(test_unit_runtime_module tessera_fake_${way})
  endforeach()
endif()
