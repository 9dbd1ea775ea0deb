# SPDX-License-Identifier: Apache-2.0
# The program `tessera`: links the shared library, so it can only use the public API.
file(GLOB TS_CLI_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.c ${PROJECT_SOURCE_DIR}/bench/*.c)
if(TS_CLI_SOURCES)
  add_executable(tessera_program ${TS_CLI_SOURCES})
  set_target_properties(tessera_program PROPERTIES OUTPUT_NAME tessera
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  target_include_directories(tessera_program PRIVATE ${PROJECT_SOURCE_DIR}/cli ${PROJECT_SOURCE_DIR}/bench)
  target_link_libraries(tessera_program PRIVATE tessera tessera_flags tessera_deps)
endif()

# The raw MPI calls that `tessera bench comm` is compared with, beside each MPI's engine.
foreach(name ${TS_MPI_FOUND})
  add_library(tessera_rival_${name} MODULE ${PROJECT_SOURCE_DIR}/bench/rival/mpi.c)
  set_target_properties(tessera_rival_${name} PROPERTIES PREFIX ""
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/tessera)
  target_include_directories(tessera_rival_${name} PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/cli ${PROJECT_SOURCE_DIR}/bench)
  target_link_libraries(tessera_rival_${name} PRIVATE tessera_flags tessera_mpi_${name}_flags)
  set_property(GLOBAL APPEND PROPERTY TS_MODULES tessera_rival_${name})
endforeach()
