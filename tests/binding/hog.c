/* SPDX-License-Identifier: Apache-2.0 */
/* hog.c - a library that uses much thread-local storage, loaded before ours. (tests/meta/symbols.sh
 * uses up the storage at fixed places.) */
#include <string.h>

__attribute__((visibility("default"))) char *hog_touch(int value);

static _Thread_local char large[1 << 18];

/* Writes all of the calling thread's. */
char *hog_touch(int value)
{
    memset(large, value, sizeof large);
    return large[sizeof large - 1] == (char)value ? large : NULL;
}
