/* The few atomic operations that threads and processes without a lock need: acquire and release, never "x86 orders it
 * anyway".  Each protocol is a litmus program in tests/litmus; docs/architecture.md lists them. */
#ifndef HK_ATOMICS_H
#define HK_ATOMICS_H

#include <stdint.h>

static inline uint32_t hk_load32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void hk_store32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint32_t hk_relaxed32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline uint64_t hk_relaxed64(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
static inline uint64_t hk_load64(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void hk_store64(uint64_t *p, uint64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline int hk_swap64(uint64_t *p, uint64_t *seen, uint64_t v) { /* 0: it is not what was seen, and `seen` is what it is */
    return __atomic_compare_exchange_n(p, seen, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
static inline void hk_add32(uint32_t *p, uint32_t v) { __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }

/* Of two threads that store, fence, load, at least one sees the other's store. */
static inline void hk_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* Whoever sees what is stored behind it sees what was stored before it: a store that releases does not keep later ones back. */
static inline void hk_fence_stores(void) {
#ifdef __aarch64__
    __asm__ __volatile__("dmb ishst" ::: "memory"); /* the compiler's fence would order loads, too */
#else
    __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}

/* Fetch a line for a store that follows: no other core has it then.  On x86 the compiler's prefetch would leave it there. */
static inline void hk_fetch_to_store(const void *p) {
#ifdef __x86_64__
    __asm__ __volatile__("prefetchw %0" : : "m"(*(const char *)p));
#else
    __builtin_prefetch(p, 1);
#endif
}

static inline void hk_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory"); /* `yield` is a no-op on most cores; isb costs about a PAUSE */
#else
    __asm__ __volatile__("" ::: "memory");
#endif
}

#endif
