# SPDX-License-Identifier: Apache-2.0
# Engines that are loaded on first use, one shared object for each MPI that is found.
#
# An MPI is found by its compiler wrapper, which is asked for its flags; the wrapper itself is not used.
# Both Open MPI and MPICH may be installed side by side: their ABIs differ, so each gets a module.
set(TS_MPI_FOUND "")

# ts_mpi_ask(wrapper out): the wrapper's command line, or "" (Open MPI says --showme, MPICH -show).
function(ts_mpi_ask wrapper out)
  foreach(question --showme -show)
    execute_process(COMMAND ${wrapper} ${question} OUTPUT_VARIABLE answer ERROR_QUIET
      RESULT_VARIABLE code OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(code EQUAL 0 AND answer MATCHES "-l[^ ]*mpi")
      set(${out} "${answer}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# Words of a wrapper's answer, by kind.
function(ts_mpi_words answer includes directories libraries)
  separate_arguments(words UNIX_COMMAND "${answer}")
  set(i "")
  set(d "")
  set(l "")
  foreach(word ${words})
    if(word MATCHES "^-I(.+)")
      list(APPEND i ${CMAKE_MATCH_1})
    elseif(word MATCHES "^-L(.+)")
      list(APPEND d ${CMAKE_MATCH_1})
    elseif(word MATCHES "^-l(.+)")
      list(APPEND l ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set(${includes} "${i}" PARENT_SCOPE)
  set(${directories} "${d}" PARENT_SCOPE)
  set(${libraries} "${l}" PARENT_SCOPE)
endfunction()

# ts_mpi_module(name wrapper): the module of that MPI, and the interface target tessera_mpi_<name>_flags
# that tests/mpi compiles with.
function(ts_mpi_module name answer)
  ts_mpi_words("${answer}" includes directories libraries)
  add_library(tessera_mpi_${name}_flags INTERFACE)
  target_include_directories(tessera_mpi_${name}_flags SYSTEM INTERFACE ${includes})
  target_link_directories(tessera_mpi_${name}_flags INTERFACE ${directories})
  target_link_libraries(tessera_mpi_${name}_flags INTERFACE ${libraries})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/mpi/*.c)
  add_library(tessera_mpi_${name} MODULE ${sources})
  set_target_properties(tessera_mpi_${name} PROPERTIES PREFIX ""
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/tessera)
  target_include_directories(tessera_mpi_${name} PRIVATE
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(tessera_mpi_${name} PRIVATE
    tessera_flags tessera_mpi_${name}_flags Threads::Threads ${CMAKE_DL_LIBS})
  set_property(GLOBAL APPEND PROPERTY TS_MODULES tessera_mpi_${name})
  message(STATUS "MPI: ${name} (${libraries})")
endfunction()

if(TS_MPI)
  foreach(name openmpi mpich)
    unset(TS_MPICC CACHE)
    find_program(TS_MPICC NAMES mpicc.${name})
    set(answer "")
    if(TS_MPICC)
      ts_mpi_ask(${TS_MPICC} answer)
    endif()
    if(NOT answer) # a machine with one MPI: plain mpicc, if it is this one
      unset(TS_MPICC CACHE)
      find_program(TS_MPICC NAMES mpicc)
      if(TS_MPICC)
        ts_mpi_ask(${TS_MPICC} answer)
        execute_process(COMMAND ${TS_MPICC} --showme:version OUTPUT_VARIABLE version ERROR_VARIABLE
          version_too RESULT_VARIABLE is_openmpi)
        if((name STREQUAL "openmpi") AND NOT is_openmpi EQUAL 0)
          set(answer "")
        elseif((name STREQUAL "mpich") AND is_openmpi EQUAL 0)
          set(answer "")
        endif()
      endif()
    endif()
    unset(TS_MPICC CACHE)
    if(answer)
      ts_mpi_module(${name} "${answer}")
      list(APPEND TS_MPI_FOUND ${name})
    else()
      message(STATUS "MPI: ${name} not found")
    endif()
  endforeach()
endif()

# Programs of tests/mpi, once per MPI: somebody else's MPI program that embeds tessera, the faults, the speed
# beside the raw calls. They use the public API. test_mpi_dist holds all of tests/dist, the objects of their own
# programs, so that one mpirun per MPI and rank count suffices. See scripts/mpi-tests.
if(TS_TESTS AND TS_MPI_FOUND)
  file(GLOB TS_MPI_TESTS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/mpi/*.c)
  file(GLOB TS_MPI_DIST CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/dist/*.c)
  list(FILTER TS_MPI_DIST EXCLUDE REGEX "/backend_") # ranks do not meet in them
  foreach(flavour ${TS_MPI_FOUND})
    foreach(source ${TS_MPI_TESTS})
      get_filename_component(name ${source} NAME_WE)
      set(target test_mpi_${name}_${flavour})
      add_executable(${target} EXCLUDE_FROM_ALL ${source})
      set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
      target_link_libraries(${target} PRIVATE tessera tessera_flags tessera_mpi_${flavour}_flags)
      add_dependencies(${target} tessera_mpi_${flavour})
      list(APPEND TS_MPI_TEST_TARGETS ${target})
    endforeach()
  endforeach()
  if(TS_MPI_DIST)
    add_executable(test_mpi_dist EXCLUDE_FROM_ALL)
    set_target_properties(test_mpi_dist PROPERTIES LINKER_LANGUAGE C
      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    foreach(source ${TS_MPI_DIST})
      get_filename_component(name ${source} NAME_WE)
      target_sources(test_mpi_dist PRIVATE $<TARGET_OBJECTS:test_dist_${name}>) # of tests.cmake
      add_dependencies(test_mpi_dist test_dist_${name})
    endforeach()
    target_link_libraries(test_mpi_dist PRIVATE tessera_harness) # of tests.cmake
    list(APPEND TS_MPI_TEST_TARGETS test_mpi_dist)
  endif()
  add_custom_target(mpi_tests DEPENDS ${TS_MPI_TEST_TARGETS})
  cmake_language(DEFER CALL add_dependencies tests mpi_tests) # the target comes later
endif()
