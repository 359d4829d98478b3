/* How a grid shares out a range: tiles of 16 bytes per thread, tile t to block t % gridDim.
 *
 * Which block owns a byte depends on neither the alignment nor the code path, so that in shots.cuh block b of
 * every rank reads just what block b of its peers wrote, and waits for nobody else. */
#ifndef HOCKET_KERNELS_TILES_CUH
#define HOCKET_KERNELS_TILES_CUH

#include "cuda.cuh"

enum { HK_VECTOR = 16 };

/* Sixteen bytes of elements T, moved by one instruction. */
template <class T> struct alignas(HK_VECTOR) hk_pack {
    T at[HK_VECTOR / sizeof(T)];
};

/* A value of T as one word W, which the address is aligned to. */
template <class W, class T> HK_DEVICE T hk_load_as(const void *from) {
    static_assert(sizeof(W) == sizeof(T), "one word holds all of it");
    W word = *(const W *)from;
    T value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* By way of 32-bit words, put together by hand: NVRTC takes an aggregate apart and would store its parts one by one. */
template <class W, class T> HK_DEVICE void hk_store_as(void *to, const T &value) {
    static_assert(sizeof(W) == sizeof(T), "one word holds all of it");
    const int size = sizeof value.at[0], words = sizeof(W) / 4;
    u32 word[words];
    if constexpr (size < 4) {
        HK_UNROLL for (int i = 0; i < words; i++) {
            word[i] = 0;
            HK_UNROLL for (int j = 0; j < 4 / size; j++)
                word[i] |= ((u32)value.at[i * 4 / size + j] & ((1u << 8 * size) - 1)) << 8 * size * j;
        }
    } else {
        memcpy(word, &value, sizeof word);
    }
    hk_store_words((W *)to, word);
}

HK_DEVICE bool hk_is_vector(const void *at) {
    return (u64)at % HK_VECTOR == 0;
}

HK_DEVICE u64 hk_tile_bytes() {
    return (u64)HK_VECTOR * blockDim.x;
}

/* The whole block copies `n` words of W, four in flight per thread. */
template <class W> HK_DEVICE void hk_copy_words(W *to, const W *from, u64 n) {
    for (u64 first = threadIdx.x; first < n; first += 4 * (u64)blockDim.x) {
        W word[4];
        HK_UNROLL for (int j = 0; j < 4; j++)
            if (first + j * (u64)blockDim.x < n)
                word[j] = from[first + j * (u64)blockDim.x];
        HK_UNROLL for (int j = 0; j < 4; j++)
            if (first + j * (u64)blockDim.x < n)
                to[first + j * (u64)blockDim.x] = word[j];
    }
}

/* The same for bytes whose two addresses differ by a multiple of the word. */
template <class W> HK_DEVICE void hk_copy_by(u8 *to, const u8 *from, u64 bytes) {
    u64 head = (0 - (u64)to) % sizeof(W);
    head = head < bytes ? head : bytes;
    u64 words = (bytes - head) / sizeof(W), tail = head + words * sizeof(W);
    hk_copy_words(to, from, head);
    hk_copy_words((W *)(to + head), (const W *)(from + head), words);
    hk_copy_words(to + tail, from + tail, bytes - tail);
}

/* The whole block copies `bytes` bytes between any addresses: by 16, 4 or 1, as far as the two are aligned alike. */
HK_DEVICE void hk_copy_block(void *to, const void *from, u64 bytes) {
    u64 skew = (u64)to ^ (u64)from;
    if (skew % HK_VECTOR == 0)
        hk_copy_by<uint4>((u8 *)to, (const u8 *)from, bytes);
    else if (skew % sizeof(u32) == 0)
        hk_copy_by<u32>((u8 *)to, (const u8 *)from, bytes);
    else
        hk_copy_words((u8 *)to, (const u8 *)from, bytes);
}

/* The grid copies, each block its own tiles. */
HK_DEVICE void hk_copy_tiles(void *to, const void *from, u64 bytes) {
    const u64 tile = hk_tile_bytes();
    for (u64 at = blockIdx.x * tile; at < bytes; at += gridDim.x * tile)
        hk_copy_block((u8 *)to + at, (const u8 *)from + at, bytes - at < tile ? bytes - at : tile);
}

#endif
