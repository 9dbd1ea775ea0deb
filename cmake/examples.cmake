# SPDX-License-Identifier: Apache-2.0
# Each examples/<name>.c is a program examples/<name> of the build directory. It links the shared library
# and sees the public headers only: an example that needs more shows a hole in the public API.
file(GLOB TS_EXAMPLE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
add_custom_target(examples)
foreach(source ${TS_EXAMPLE_SOURCES})
  get_filename_component(name ${source} NAME_WE)
  add_executable(example_${name} ${source})
  set_target_properties(example_${name} PROPERTIES OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples)
  target_link_libraries(example_${name} PRIVATE tessera tessera_flags m)
  add_dependencies(examples example_${name})
endforeach()
