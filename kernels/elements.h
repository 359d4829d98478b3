/* What one element is: how it is loaded, combined with another, and stored.
 *
 * For a dtype S: any_S is its storage (at any address, aliasing anything), get_S and put_S reach element i.
 * For an arithmetic type A: sum_A, prod_A, ... combine two values, the left operand first.
 *
 * Laws: integers wrap; min and max give NaN if either side is NaN, and the left one of equals; logical ops take any
 * bits but those of zero as true and give 1 or 0. */
#ifndef HOCKET_KERNELS_ELEMENTS_H
#define HOCKET_KERNELS_ELEMENTS_H

#ifndef __CUDACC_RTC__
#include <stddef.h>
#endif

#include "kernels/small_floats.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef float f32;
typedef double f64;
typedef struct { f32 re, im; } c64;
typedef struct { f64 re, im; } c128;
typedef struct { f32 value; i32 index; } f32_i32;
typedef struct { f64 value; i64 index; } f64_i64;
typedef struct { i32 value; i32 index; } i32_i32;
typedef struct { i64 value; i64 index; } i64_i64;

/* What a pointer to elements may assume: nothing, except on a GPU (kernels/gpu/cuda.cuh), whose loads must be aligned. */
#ifndef HK_ANY
#define HK_ANY __attribute__((aligned(1), may_alias))
#define HK_ANY_TWO __attribute__((packed, may_alias))
#endif

/* Elements that are stored as they are computed with. */
#define HK_PLAIN(S)                                                              \
    typedef S HK_ANY any_##S;                                                    \
    HK_INLINE S get_##S(const any_##S *p, size_t i) { return p[i]; }             \
    HK_INLINE void put_##S(any_##S *p, size_t i, S value) { p[i] = value; }

HK_PLAIN(u8) HK_PLAIN(u16) HK_PLAIN(u32) HK_PLAIN(u64) HK_PLAIN(i8) HK_PLAIN(i16) HK_PLAIN(i32) HK_PLAIN(i64)
HK_PLAIN(f32) HK_PLAIN(f64)

/* Elements that are computed with in fp32. */
#define HK_SMALL(S, U)                                                                          \
    typedef U HK_ANY any_##S;                                                                   \
    HK_INLINE f32 get_##S(const any_##S *p, size_t i) { return hk_from_##S(p[i]); }             \
    HK_INLINE void put_##S(any_##S *p, size_t i, f32 value) { p[i] = hk_to_##S(value); }

HK_SMALL(f16, u16) HK_SMALL(bf16, u16) HK_SMALL(e4m3fn, u8) HK_SMALL(e5m2, u8)

/* Elements of two parts, loaded part by part: a packed structure has no alignment to break. */
#define HK_TWO(S, T, U, FIRST, SECOND)                                                                   \
    typedef struct HK_ANY_TWO { T FIRST; U SECOND; } any_##S;                    \
    HK_INLINE S get_##S(const any_##S *p, size_t i) { S v = {p[i].FIRST, p[i].SECOND}; return v; }       \
    HK_INLINE void put_##S(any_##S *p, size_t i, S v) { p[i].FIRST = v.FIRST; p[i].SECOND = v.SECOND; }

HK_TWO(c64, f32, f32, re, im) HK_TWO(c128, f64, f64, re, im)
HK_TWO(f32_i32, f32, i32, value, index) HK_TWO(f64_i64, f64, i64, value, index)
HK_TWO(i32_i32, i32, i32, value, index) HK_TWO(i64_i64, i64, i64, value, index)

/* Unsigned arithmetic in at least 32 bits: it wraps, where promoted or signed integers would overflow. */
#define HK_WRAPPING(S, WIDE)                                                          \
    HK_INLINE S sum_##S(S a, S b) { return (S)((WIDE)a + (WIDE)b); }                  \
    HK_INLINE S prod_##S(S a, S b) { return (S)((WIDE)a * (WIDE)b); }

HK_WRAPPING(u8, u32) HK_WRAPPING(u16, u32) HK_WRAPPING(u32, u32) HK_WRAPPING(u64, u64)
HK_WRAPPING(f32, f32) HK_WRAPPING(f64, f64)

/* `b != b` is false for an integer. */
#define HK_ORDERED(S)                                                                 \
    HK_INLINE S min_##S(S a, S b) { S c = b < a ? b : a; return b != b ? b : c; }     \
    HK_INLINE S max_##S(S a, S b) { S c = b > a ? b : a; return b != b ? b : c; }

HK_ORDERED(u8) HK_ORDERED(u16) HK_ORDERED(u32) HK_ORDERED(u64) HK_ORDERED(i8) HK_ORDERED(i16) HK_ORDERED(i32)
HK_ORDERED(i64) HK_ORDERED(f32) HK_ORDERED(f64)

#define HK_BITS(U)                                                                    \
    HK_INLINE U band_##U(U a, U b) { return a & b; }                                  \
    HK_INLINE U bor_##U(U a, U b) { return a | b; }                                   \
    HK_INLINE U bxor_##U(U a, U b) { return a ^ b; }

HK_BITS(u8) HK_BITS(u16) HK_BITS(u32) HK_BITS(u64)

/* Truth on the bits U of a dtype D, whose sign bit (if it has one) does not count and whose 1 is ONE. */
#define HK_LOGICAL(D, U, SIGN, ONE)                                                                               \
    HK_INLINE int true_##D(U a) { return (a & (U) ~(U)(SIGN)) != 0; }                                             \
    HK_INLINE U land_##D(U a, U b) { return (U)(true_##D(a) & true_##D(b) ? (ONE) : 0); }                         \
    HK_INLINE U lor_##D(U a, U b) { return (U)(true_##D(a) | true_##D(b) ? (ONE) : 0); }                          \
    HK_INLINE U lxor_##D(U a, U b) { return (U)(true_##D(a) ^ true_##D(b) ? (ONE) : 0); }

HK_LOGICAL(u8, u8, 0, 1) HK_LOGICAL(u16, u16, 0, 1) HK_LOGICAL(u32, u32, 0, 1) HK_LOGICAL(u64, u64, 0, 1)
HK_LOGICAL(f16, u16, 0x8000, 0x3c00) HK_LOGICAL(bf16, u16, 0x8000, 0x3f80)
HK_LOGICAL(f32, u32, 0x80000000u, 0x3f800000u) HK_LOGICAL(f64, u64, 1ull << 63, 0x3ff0000000000000ull)
HK_LOGICAL(e4m3fn, u8, 0x80, 0x38) HK_LOGICAL(e5m2, u8, 0x80, 0x3c)

/* A product that is rounded before it is added to: where the CPU can fuse the two, it would give other bits. */
#if defined(HK_CUDA)
#define HK_UNFUSED
#define HK_ROUNDED(x) (x)
#elif defined(__clang__)
#define HK_UNFUSED _Pragma("clang fp contract(off)")
#define HK_ROUNDED(x) (x)
#elif defined(__aarch64__)
#define HK_UNFUSED
#define HK_ROUNDED(x) ({ __typeof__(x) rounded = (x); __asm__("" : "+w"(rounded)); rounded; })
#elif defined(__FMA__)
#define HK_UNFUSED
#define HK_ROUNDED(x) ({ __typeof__(x) rounded = (x); __asm__("" : "+x"(rounded)); rounded; })
#else
#define HK_UNFUSED
#define HK_ROUNDED(x) (x)
#endif

/* The plain product: no rescue of infinities, as in NumPy. */
#define HK_COMPLEX(S)                                                                           \
    HK_INLINE S prod_##S(S a, S b) {                                                            \
        HK_UNFUSED                                                                              \
        S c = {HK_ROUNDED(a.re * b.re) - HK_ROUNDED(a.im * b.im),                               \
               HK_ROUNDED(a.re * b.im) + HK_ROUNDED(a.im * b.re)};                              \
        return c;                                                                               \
    }

HK_COMPLEX(c64) HK_COMPLEX(c128)

/* The better value, of equal ones the lower index.  NaN beats every number: a reduction that met one says where. */
#define HK_LOCATED(S)                                                                                               \
    HK_INLINE S minloc_##S(S a, S b) {                                                                              \
        int a_nan = a.value != a.value, b_nan = b.value != b.value;                                                 \
        int tie = (a.value == b.value) | (a_nan & b_nan);                                                           \
        int take = (tie & (b.index < a.index)) | ((b.value < a.value) | (b_nan & !a_nan));                          \
        return take ? b : a;                                                                                        \
    }                                                                                                               \
    HK_INLINE S maxloc_##S(S a, S b) {                                                                              \
        int a_nan = a.value != a.value, b_nan = b.value != b.value;                                                 \
        int tie = (a.value == b.value) | (a_nan & b_nan);                                                           \
        int take = (tie & (b.index < a.index)) | ((b.value > a.value) | (b_nan & !a_nan));                          \
        return take ? b : a;                                                                                        \
    }

HK_LOCATED(f32_i32) HK_LOCATED(f64_i64) HK_LOCATED(i32_i32) HK_LOCATED(i64_i64)

#endif
