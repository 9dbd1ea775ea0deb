# SPDX-License-Identifier: Apache-2.0
# Engines that are loaded on first use, one shared object for each MPI that is found.
