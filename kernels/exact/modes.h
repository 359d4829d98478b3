/* How this thread rounds: the exact kernels round to nearest and keep subnormal numbers, whatever the caller has chosen
 * (torch.set_flush_denormal, fesetround), and leave it as it was.  Else bits would depend on who calls. */
#ifndef HOCKET_KERNELS_MODES_H
#define HOCKET_KERNELS_MODES_H

#include <stdint.h>

#if defined(__x86_64__)
typedef uint32_t hk_mode;
enum { HK_USUAL_MODE = 0x1f80 };
#define HK_READ_MODE(mode) __asm__ volatile("stmxcsr %0" : "=m"(mode) : : "memory")
#define HK_SET_MODE(mode) __asm__ volatile("ldmxcsr %0" : : "m"(mode) : "memory")
#elif defined(__aarch64__)
typedef uint64_t hk_mode;
enum { HK_USUAL_MODE = 0 };
#define HK_READ_MODE(mode) __asm__ volatile("mrs %0, fpcr" : "=r"(mode) : : "memory")
#define HK_SET_MODE(mode) __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory")
#else
typedef uint32_t hk_mode;
enum { HK_USUAL_MODE = 0 };
#define HK_READ_MODE(mode) ((mode) = 0)
#define HK_SET_MODE(mode) ((void)(mode))
#endif

/* Between these two the usual mode holds.  What they enclose reads and writes memory, so no compiler moves it across. */
static inline hk_mode hk_mode_usual(void) {
    hk_mode before;
    const hk_mode usual = HK_USUAL_MODE;
    HK_READ_MODE(before);
    HK_SET_MODE(usual);
    return before;
}

static inline void hk_mode_back(hk_mode before) { HK_SET_MODE(before); }

#endif
