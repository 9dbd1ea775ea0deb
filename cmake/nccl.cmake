# SPDX-License-Identifier: Apache-2.0
# The nccl engine: collectives of device memory, one shared object that is loaded on first use. Nothing of NCCL is
# needed to build it; its library is found when a world opens (docs/gpu.md).
set(TS_NCCL_DIR ${PROJECT_SOURCE_DIR}/src/comm/nccl)
file(GLOB sources CONFIGURE_DEPENDS ${TS_NCCL_DIR}/*.c)
# Plain functions of the core, which need nothing of it, and its words through the table that it lends.
list(APPEND sources ${PROJECT_SOURCE_DIR}/src/base/lent/words.c
  ${PROJECT_SOURCE_DIR}/src/base/types.c ${PROJECT_SOURCE_DIR}/src/device/block.c)
add_library(tessera_nccl MODULE ${sources})
set_target_properties(tessera_nccl PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/tessera
  LINK_DEPENDS ${TS_NCCL_DIR}/module.map)
target_include_directories(tessera_nccl PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(tessera_nccl PRIVATE tessera_flags Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(tessera_nccl PRIVATE LINKER:--version-script=${TS_NCCL_DIR}/module.map)
set_property(GLOBAL APPEND PROPERTY TS_MODULES tessera_nccl)
