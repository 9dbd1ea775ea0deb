# SPDX-License-Identifier: Apache-2.0
# Optional libraries. Whatever is found is switched on and reported by `tessera doctor`.
add_library(tessera_deps INTERFACE)
target_link_libraries(tessera_deps INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})
find_package(PkgConfig QUIET)

# ts_dependency(NAME header library): defines TS_HAVE_NAME to 0 or 1 and links the library.
function(ts_dependency name header library)
  find_path(TS_${name}_INCLUDE ${header} PATH_SUFFIXES ${library})
  find_library(TS_${name}_LIBRARY ${library})
  mark_as_advanced(TS_${name}_INCLUDE TS_${name}_LIBRARY)
  if(TS_${name}_INCLUDE AND TS_${name}_LIBRARY)
    target_compile_definitions(tessera_deps INTERFACE TS_HAVE_${name}=1)
    target_include_directories(tessera_deps SYSTEM INTERFACE ${TS_${name}_INCLUDE})
    target_link_libraries(tessera_deps INTERFACE ${TS_${name}_LIBRARY})
    set_property(GLOBAL APPEND PROPERTY TS_DEPENDENCIES ${TS_${name}_LIBRARY}) # for a static link
    set(TS_HAVE_${name} 1 PARENT_SCOPE)
    message(STATUS "${name}: ${TS_${name}_LIBRARY}")
  else()
    target_compile_definitions(tessera_deps INTERFACE TS_HAVE_${name}=0)
    set(TS_HAVE_${name} 0 PARENT_SCOPE)
    message(STATUS "${name}: not found")
  endif()
endfunction()

ts_dependency(PCRE2 pcre2.h pcre2-8)
ts_dependency(OPENBLAS cblas.h openblas)
