# SPDX-License-Identifier: Apache-2.0
# Each examples/<name>.c is a program examples/<name> of the build directory. It links the shared library
# and sees the public headers only: an example that needs more shows a hole in the public API. Examples with
# mpi in their names are MPI programs: there is one of each for every MPI that was found, <name>_<mpi>.
file(GLOB TS_EXAMPLE_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c)
add_custom_target(examples)
function(ts_example target name source)
  add_executable(${target} ${source})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples)
  target_link_libraries(${target} PRIVATE tessera tessera_flags m)
  add_dependencies(examples ${target})
endfunction()
foreach(source ${TS_EXAMPLE_SOURCES})
  get_filename_component(name ${source} NAME_WE)
  if(NOT name MATCHES mpi)
    ts_example(example_${name} ${name} ${source})
    continue()
  endif()
  foreach(flavour ${TS_MPI_FOUND})
    ts_example(example_${name}_${flavour} ${name}_${flavour} ${source})
    target_link_libraries(example_${name}_${flavour} PRIVATE tessera_mpi_${flavour}_flags)
    add_dependencies(example_${name}_${flavour} tessera_mpi_${flavour})
  endforeach()
endforeach()
