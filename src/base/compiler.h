/* SPDX-License-Identifier: Apache-2.0 */
/* compiler.h - compiler-specific words of the internal code. No other internal file uses them. */
#ifndef TSI_BASE_COMPILER_H
#define TSI_BASE_COMPILER_H

#include <stdint.h>

#if defined(__GNUC__)
#define TSI_LIKELY(x) __builtin_expect(!!(x), 1)
#define TSI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define TSI_NOINLINE __attribute__((noinline))
#define TSI_INLINE inline __attribute__((always_inline))
#define TSI_COLD __attribute__((cold, noinline))
#define TSI_UNUSED __attribute__((unused))
#define TSI_PREFETCH(address) __builtin_prefetch(address)
#define TSI_PREFETCH_NEAR(address) __builtin_prefetch(address, 0, 2) /* to the second cache */
#else
#define TSI_LIKELY(x) (x)
#define TSI_UNLIKELY(x) (x)
#define TSI_NOINLINE
#define TSI_INLINE inline
#define TSI_COLD
#define TSI_UNUSED
#define TSI_PREFETCH(address) ((void)(address))
#define TSI_PREFETCH_NEAR(address) ((void)(address))
#endif

#if defined(__x86_64__)
#define TSI_CPU_RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define TSI_CPU_RELAX() __asm__ __volatile__("yield" ::: "memory")
#else
#define TSI_CPU_RELAX() ((void)0)
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TSI_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define TSI_SANITIZED 1
#endif
#endif
#ifndef TSI_SANITIZED
#define TSI_SANITIZED 0
#endif

/* Before a loop whose iterations are independent even if its arrays are the same: gcc then makes
 * vector code without asking whether they overlap. TSI_INDEPENDENT_HERE is 0 where the compiler has
 * no such word. */
#if defined(__GNUC__) && !defined(__clang__)
#define TSI_INDEPENDENT _Pragma("GCC ivdep")
#define TSI_INDEPENDENT_HERE 1
#else
#define TSI_INDEPENDENT
#define TSI_INDEPENDENT_HERE 0
#endif

/* Before a loop of at most 16 iterations, all of which are written out, so that arrays they index
 * may lie in registers. */
#if defined(__clang__)
#define TSI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define TSI_UNROLL _Pragma("GCC unroll 16")
#else
#define TSI_UNROLL
#endif

/* A vector the compiler does not see through: gcc 12 takes a constant one of bf16 for one of f16.
 */
#if defined(__aarch64__) && defined(__GNUC__)
#define TSI_OPAQUE_VECTOR(v) __asm__("" : "+w"(v))
#endif

/* a * b + c in f32: fused where the target has an instruction for it, else rounded twice. */
#if defined(__GNUC__) && defined(__FP_FAST_FMAF)
#define TSI_FMAF(a, b, c) __builtin_fmaf(a, b, c)
#elif defined(__GNUC__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
#define TSI_FMAF(a, b, c) __builtin_fmaf(a, b, c)
#else
#define TSI_FMAF(a, b, c) ((a) * (b) + (c))
#endif

/* A thread-local at a fixed place: read without a call, also from a shared library. For one pointer
 * or two: where the library is loaded late, such places are few. */
#if defined(__GNUC__)
#define TSI_TLS_DIRECT __attribute__((tls_model("initial-exec")))
#else
#define TSI_TLS_DIRECT
#endif

/* For our own bugs only, never for a user's value. A broken assertion logs and stops the process in
 * every build: continuing would spread wrong numbers to other ranks. */
#define TSI_ASSERT(condition)                                                                      \
    do {                                                                                           \
        if (TSI_UNLIKELY(!(condition))) tsi_assert_failed(#condition, __FILE__, __LINE__);         \
    } while (0)
#if defined(__GNUC__)
__attribute__((noreturn, cold))
#endif
void tsi_assert_failed(const char *condition, const char *file, int line);

#define TSI_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define TSI_CACHE_LINE 64

/* A counter that runs at a constant rate, without ordering: a cheaper clock once its rate is known.
 * Always 0 where there is none. */
static inline uint64_t tsi_ticks(void)
{
#if defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#elif defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
#else
    return 0;
#endif
}

/* Before functions that every unit of every step runs, while little else does: they lie side by
 * side, so that after kernels that went through megabytes few pages are looked up again. */
#if defined(__GNUC__) && defined(__ELF__)
#define TSI_STEP_PATH __attribute__((section(".text.hot.step")))
#else
#define TSI_STEP_PATH
#endif

#endif
