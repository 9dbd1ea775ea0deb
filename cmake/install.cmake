# SPDX-License-Identifier: Apache-2.0
# What `make install` puts where. Everything finds its parts relative to itself, so an installed tree can be
# moved: the program by $ORIGIN, tessera.pc by ${pcfiledir}, the CMake package by its own place.
#
#   bin/tessera   include/tessera/*.h   lib/libtessera.{so,a}   lib/tessera/*.so (modules)
#   lib/pkgconfig/tessera.pc   lib/cmake/tessera/   share/bash-completion/completions/tessera
include(CMakePackageConfigHelpers)
set(TS_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

install(TARGETS tessera EXPORT tesseraTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tessera_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
if(TARGET tessera_program)
  install(TARGETS tessera_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
get_property(modules GLOBAL PROPERTY TS_MODULES) # other modules: the bench's rivals
foreach(name ${TS_MPI_FOUND})
  list(APPEND modules tessera_mpi_${name})
endforeach()
if(modules)
  install(TARGETS ${modules} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera)
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/cli/tessera.bash)
  install(FILES ${PROJECT_SOURCE_DIR}/cli/tessera.bash RENAME tessera
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endif()

# What a static link needs beside libtessera.a, by name.
set(TS_STATIC_LIBRARIES m pthread ${CMAKE_DL_LIBS})
get_property(dependencies GLOBAL PROPERTY TS_DEPENDENCIES)
foreach(dependency ${dependencies})
  get_filename_component(library ${dependency} NAME_WE)
  string(REGEX REPLACE "^lib" "" library ${library})
  list(APPEND TS_STATIC_LIBRARIES ${library})
endforeach()
list(TRANSFORM TS_STATIC_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE TS_PC_LIBS_PRIVATE)
list(JOIN TS_PC_LIBS_PRIVATE " " TS_PC_LIBS_PRIVATE)
file(RELATIVE_PATH TS_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/tessera.pc.in ${CMAKE_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${TS_CMAKE_DIR})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in
  ${CMAKE_BINARY_DIR}/tesseraConfig.cmake INSTALL_DESTINATION ${TS_CMAKE_DIR}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tesseraConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tesseraConfig.cmake ${CMAKE_BINARY_DIR}/tesseraConfigVersion.cmake
  DESTINATION ${TS_CMAKE_DIR})
