/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h - what the libraries of the simulated GPU (lt.cpp) ask its driver for. */
#ifndef TESTS_GPU_SIMULATED_DRIVER_H
#define TESTS_GPU_SIMULATED_DRIVER_H

#include <cuda.h>
#include <functional>

/* Work for a stream, or a node of the graph that it captures. What it returns other than success
 * ends the GPU as a fault does. */
typedef std::function<CUresult()> simulated_work;
__attribute__((visibility("default"))) CUresult simulated_enqueue(CUstream stream,
                                                                  simulated_work work);
/* Work that runs says that it took so much longer, for events with a time. */
__attribute__((visibility("default"))) void simulated_takes(double seconds);
/* Whether so many bytes from there on are of one piece of the GPU's memory. */
__attribute__((visibility("default"))) bool simulated_holds(const void *at, size_t bytes);

#endif
