/* The GPU's own conversions, where they give the bits of small_floats.h (a NaN may be another one).
 *
 * A GPU's NaN is 0x7fffffff, which rounding to bfloat16 would turn into -0: unlike on a CPU, it must be looked for.
 * To fp8 the hardware converts with saturation only, so the bit code does that. */
#ifndef HOCKET_KERNELS_HARDWARE_FLOATS_CUH
#define HOCKET_KERNELS_HARDWARE_FLOATS_CUH

#define HK_OWN_TO_BF16
#ifdef __CUDA_ARCH__
#define HK_OWN_F16

HK_INLINE float hk_from_f16(uint16_t x) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x));
    return value;
}

HK_INLINE uint16_t hk_to_f16(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
HK_INLINE uint16_t hk_to_bf16(float value) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#else
HK_INLINE uint16_t hk_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define HK_OWN_FROM_FLOAT8

HK_INLINE float hk_from_e4m3fn(uint8_t x) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)x));
    return hk_from_f16((uint16_t)halves);
}

HK_INLINE float hk_from_e5m2(uint8_t x) {
    return hk_from_f16((uint16_t)(x << 8));
}
#endif

#endif
