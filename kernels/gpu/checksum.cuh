/* A number that says whether two ranks hold the same bytes: a sum of words mixed with their place, so any grid and any
 * order give the same.  It does not protect against intent. */
#ifndef HOCKET_KERNELS_CHECKSUM_CUH
#define HOCKET_KERNELS_CHECKSUM_CUH

#include "tiles.cuh"

/* The finisher of splitmix64. */
HK_DEVICE u64 hk_mix(u64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* The little-endian word i of a range, zeros past its end. */
HK_DEVICE u64 hk_word(const u8 *from, u64 bytes, u64 i) {
    if ((u64)from % 8 == 0 && i * 8 + 8 <= bytes)
        return ((const u64 *)from)[i];
    u64 word = 0;
    for (u64 j = i * 8; j < bytes && j < i * 8 + 8; j++)
        word |= (u64)from[j] << (j % 8 * 8);
    return word;
}

/* Adds the sum of mix(word[i] + (i + 1) * 0x9e3779b97f4a7c15) to *sum, modulo 2^64.  Whole warps only. */
HK_KERNEL(hk_checksum, const void *from, u64 bytes, u64 *sum) {
    const u64 words = (bytes + 7) / 8, stride = (u64)gridDim.x * blockDim.x;
    u64 part = 0;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride)
        part += hk_mix(hk_word((const u8 *)from, bytes, i) + (i + 1) * 0x9e3779b97f4a7c15ull);
    for (int distance = 16; distance; distance /= 2)
        part += __shfl_xor_sync(0xffffffffu, (unsigned long long)part, distance);
    if (threadIdx.x % 32 == 0)
        atomicAdd((unsigned long long *)sum, (unsigned long long)part);
}

#endif
