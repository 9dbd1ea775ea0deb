/* SPDX-License-Identifier: Apache-2.0 */
/* version.c - the version that was compiled, for those who hold other headers. */
#include "tessera/version.h"

#include "base/error.h"

const char *ts_version(void)
{
    return TS_VERSION;
}

int32_t ts_abi(void)
{
    return TS_ABI;
}

ts_status ts_abi_check(int32_t abi, const char *version)
{
    if (abi == TS_ABI) return TS_OK;
    return TSI_FAIL(TS_ERR_MISSING,
                    "the library is tessera %s with binary interface %d; the caller was built "
                    "with tessera %s, interface %d: build it again",
                    TS_VERSION, TS_ABI, version ? version : "unknown", (int)abi);
}
