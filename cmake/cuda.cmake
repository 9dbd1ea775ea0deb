# SPDX-License-Identifier: Apache-2.0
# The cuda module: devices and kernels of NVIDIA GPUs, one shared object that is loaded on first use.
#
# Kernels (src/backend/cuda/kernels/*.cu) become fatbins by nvcc and arrays of C by embed.cmake; the host side is C
# on the driver API. Nothing of CUDA is linked: libraries are found when the module runs. Without nvcc the
# module is not built and nothing else changes.
set(TS_CUDA AUTO CACHE STRING "build the cuda module: AUTO (where nvcc is found), ON, OFF")
set(TS_CUDA_TARGETS "80;90a" CACHE STRING "GPU architectures with code of their own; PTX of 9.0 serves later ones")
set(TS_CUDA_OPTIMISE "-O3" CACHE STRING "how nvcc optimises kernels, as a list of options")
set(TS_CUDA_FOUND OFF)
if(TS_CUDA STREQUAL "OFF")
  return()
endif()
find_program(TS_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(TS_NVCC)
  get_filename_component(bin ${TS_NVCC} REALPATH)
  get_filename_component(bin ${bin} DIRECTORY)
  find_path(TS_CUDA_INCLUDE cudaTypedefs.h HINTS ${bin}/../include
    ${bin}/../targets/x86_64-linux/include ${bin}/../targets/sbsa-linux/include)
endif()
if(NOT TS_NVCC OR NOT TS_CUDA_INCLUDE)
  if(TS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TS_CUDA=ON: nvcc or cudaTypedefs.h was not found")
  endif()
  message(STATUS "CUDA: not found")
  return()
endif()

set(TS_CUDA_DIR ${PROJECT_SOURCE_DIR}/src/backend/cuda)
set(gencode "")
foreach(target ${TS_CUDA_TARGETS})
  list(APPEND gencode -gencode arch=compute_${target},code=sm_${target})
endforeach()
list(APPEND gencode -gencode arch=compute_90,code=compute_90)
file(GLOB kernels CONFIGURE_DEPENDS ${TS_CUDA_DIR}/kernels/*.cu)
set(images "")
foreach(kernel ${kernels})
  get_filename_component(name ${kernel} NAME_WE)
  set(fatbin ${CMAKE_BINARY_DIR}/cuda/${name}.fatbin)
  # Bits that the host has too must not depend on what is fused.
  set(fused -fmad=true)
  if(name MATCHES "^(cast|copy|fold|pointwise.*|random|update)$")
    set(fused -fmad=false)
  endif()
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
    COMMAND ${TS_NVCC} -fatbin -std=c++17 ${TS_CUDA_OPTIMISE} ${fused} ${gencode} --Werror all-warnings
      -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
      -MD -MF ${fatbin}.d -o ${fatbin} ${kernel}
    DEPENDS ${kernel} DEPFILE ${fatbin}.d COMMENT "Building CUDA kernels ${name}" VERBATIM)
  set(image ${CMAKE_BINARY_DIR}/cuda/${name}.c)
  add_custom_command(OUTPUT ${image}
    COMMAND ${CMAKE_COMMAND} -DIN=${fatbin} -DOUT=${image} -DNAME=tsi_cuda_image_${name}
      -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${fatbin} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  list(APPEND images ${image})
endforeach()
file(GLOB sources CONFIGURE_DEPENDS ${TS_CUDA_DIR}/*.c)
# Plain functions of the core, which need nothing of it, and its words through the table that it lends.
list(APPEND sources ${PROJECT_SOURCE_DIR}/src/base/lent/words.c ${PROJECT_SOURCE_DIR}/src/base/types.c
  ${PROJECT_SOURCE_DIR}/src/device/block.c ${PROJECT_SOURCE_DIR}/src/device/bytes.c
  ${PROJECT_SOURCE_DIR}/src/device/identity.c ${PROJECT_SOURCE_DIR}/src/op/index/index_geometry.c
  ${PROJECT_SOURCE_DIR}/src/op/matrix/linear_list_by.c)
add_library(tessera_cuda MODULE ${sources} ${images})
set_target_properties(tessera_cuda PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/tessera
  LINK_DEPENDS ${TS_CUDA_DIR}/module.map)
if("90a" IN_LIST TS_CUDA_TARGETS)
  target_compile_definitions(tessera_cuda PRIVATE TS_CUDA_HOPPER)
endif()
target_include_directories(tessera_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_include_directories(tessera_cuda SYSTEM PRIVATE ${TS_CUDA_INCLUDE})
target_link_libraries(tessera_cuda PRIVATE tessera_flags Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(tessera_cuda PRIVATE LINKER:--version-script=${TS_CUDA_DIR}/module.map LINKER:-z,defs)
set_property(GLOBAL APPEND PROPERTY TS_MODULES tessera_cuda)
set(TS_CUDA_FOUND ON)
message(STATUS "CUDA: ${TS_NVCC}")
