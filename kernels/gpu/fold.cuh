/* The shape of every reduction on a GPU: out = in[0] op in[1] op ... op in[k-1], left to right, in registers.
 *
 * A fold F gives: element (as it is stored), number (as it is computed with), get, put and combine, all from
 * elements.h.  `out` may be exactly one of the inputs: a thread reads its elements of all inputs before it writes. */
#ifndef HOCKET_KERNELS_FOLD_CUH
#define HOCKET_KERNELS_FOLD_CUH

#include "tiles.cuh"

/* One element at the alignment of its parts. */
template <class F, int K> HK_DEVICE void hk_fold_one(const hk_pointers &in, u64 first, void *out, u64 i) {
    typedef typename F::element element;
    if constexpr (K == 1) {
        ((element *)out)[i] = ((const element *)in.at[0])[first + i];
    } else {
        typename F::number value = F::get((const element *)in.at[0], first + i);
        HK_UNROLL for (int r = 1; r < K; r++)
            value = F::combine(value, F::get((const element *)in.at[r], first + i));
        F::put((element *)out, i, value);
    }
}

/* Sixteen bytes: all K loads are in flight before the first is used. */
template <class F, int K> HK_DEVICE void hk_fold_vector(const hk_pointers &in, u64 first, void *out, u64 i) {
    typedef typename F::element element;
    typedef hk_pack<element> pack;
    pack from[K];
    HK_UNROLL for (int r = 0; r < K; r++)
        from[r] = hk_load_as<uint4, pack>((const element *)in.at[r] + first + i);
    if constexpr (K == 1) {
        hk_store_as<uint4>((element *)out + i, from[0]);
    } else {
        pack to;
        HK_UNROLL for (int j = 0; j < (int)(HK_VECTOR / sizeof(element)); j++) {
            typename F::number value = F::get(from[0].at, j);
            HK_UNROLL for (int r = 1; r < K; r++)
                value = F::combine(value, F::get(from[r].at, j));
            F::put(to.at, j, value);
        }
        hk_store_as<uint4>((element *)out + i, to);
    }
}

template <class F, int K> HK_DEVICE void hk_fold_tiles(const hk_pointers &in, u64 first, void *out, u64 count) {
    typedef typename F::element element;
    const u64 each = HK_VECTOR / sizeof(element), tile = each * blockDim.x;
    bool vectors = hk_is_vector(out);
    HK_UNROLL for (int r = 0; r < K; r++)
        vectors = vectors && hk_is_vector((const element *)in.at[r] + first);
    for (u64 at = blockIdx.x * tile; at < count; at += gridDim.x * tile) {
        const u64 mine = at + threadIdx.x * each, end = count - at < tile ? count : at + tile;
        if (vectors && mine + each <= end)
            hk_fold_vector<F, K>(in, first, out, mine);
        else if (vectors)
            for (u64 i = mine; i < end; i++)
                hk_fold_one<F, K>(in, first, out, i);
        else
            for (u64 i = at + threadIdx.x; i < end; i += blockDim.x)
                hk_fold_one<F, K>(in, first, out, i);
    }
}

/* out[i] = in[0][first + i] op ... op in[k-1][first + i] for i < count, by the whole grid; 1 <= k <= 8. */
template <class F> HK_DEVICE void hk_fold(const hk_pointers &in, u64 first, void *out, u64 count, int k) {
    switch (k) {
    case 1: hk_fold_tiles<F, 1>(in, first, out, count); return;
    case 2: hk_fold_tiles<F, 2>(in, first, out, count); return;
    case 3: hk_fold_tiles<F, 3>(in, first, out, count); return;
    case 4: hk_fold_tiles<F, 4>(in, first, out, count); return;
    case 5: hk_fold_tiles<F, 5>(in, first, out, count); return;
    case 6: hk_fold_tiles<F, 6>(in, first, out, count); return;
    case 7: hk_fold_tiles<F, 7>(in, first, out, count); return;
    case 8: hk_fold_tiles<F, 8>(in, first, out, count); return;
    }
}

/* out[i] = in[0][i] op ... op in[k-1][i], by the whole grid, for more operands than registers are kept for. */
template <class F> HK_DEVICE void hk_fold_many(const hk_ways &in, void *out, u64 count, int k) {
    typedef typename F::element element;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        typename F::number value = F::get((const element *)in.at[0], i);
        for (int r = 1; r < k; r++)
            value = F::combine(value, F::get((const element *)in.at[r], i));
        F::put((element *)out, i, value);
    }
}

#endif
