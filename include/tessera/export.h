/* SPDX-License-Identifier: Apache-2.0 */
/* export.h - the compiler-specific words of the public headers, and nothing else.
 *
 * Every other public header includes this one. Extensions of gcc and clang stand here and in
 * src/base/compiler.h only; with another compiler each word expands to nothing. */
#ifndef TESSERA_EXPORT_H
#define TESSERA_EXPORT_H

#if defined(__GNUC__)
#define TS_API __attribute__((visibility("default")))
#define TS_NODISCARD __attribute__((warn_unused_result))
#define TS_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define TS_IS_LITERAL(text) __builtin_constant_p(text) /* a text that lives as long as the code */
#else
#define TS_API
#define TS_NODISCARD
#define TS_PRINTF(text, first)
#define TS_IS_LITERAL(text) 0
#endif

#ifdef __cplusplus
#define TS_BEGIN_C extern "C" {
#define TS_END_C }
#else
#define TS_BEGIN_C
#define TS_END_C
#endif

/* The place of a call as text, "file.c:12"; see ts_here in world.h. */
#define TS_TEXT_OF_(x) #x
#define TS_TEXT_OF(x) TS_TEXT_OF_(x)
#ifndef TS_HERE /* the library itself calls without a place: that of its caller stays */
#define TS_HERE __FILE__ ":" TS_TEXT_OF(__LINE__)
#endif

#endif
