/* SPDX-License-Identifier: Apache-2.0 */
/* version.h - which tessera this is. The build reads its version here.
 *
 * TS_ABI is the number of the binary interface: it is part of the shared library's name, so that a
 * program finds only one that fits, and grows with every change that a compiled program would not
 * survive. A binding that opens the library by hand asks ts_abi_check first. */
#ifndef TESSERA_VERSION_H
#define TESSERA_VERSION_H

#include <stdint.h>

#include "export.h"
#include "status.h"

#define TS_VERSION "0.1.0"
#define TS_ABI 1

TS_BEGIN_C

TS_API const char *ts_version(void); /* TS_VERSION of the library that is loaded */
TS_API int32_t ts_abi(void);         /* its TS_ABI */
/* TS_OK if the library has the caller's TS_ABI; TS_ERR_MISSING names both and both versions. */
TS_API TS_NODISCARD ts_status ts_abi_check(int32_t abi, const char *version);

TS_END_C

#endif
