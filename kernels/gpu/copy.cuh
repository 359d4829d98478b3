/* Many copies in one launch: pack and unpack.
 *
 * A segment is cut into pieces of 16 KiB, numbered through the table, so that one large segment and a thousand small
 * ones both occupy the whole grid. */
#ifndef HOCKET_KERNELS_COPY_CUH
#define HOCKET_KERNELS_COPY_CUH

#include "tiles.cuh"

enum { HK_PIECE = 16384 };

/* `first` is the number of pieces of all segments before this one. */
struct hk_segment {
    const void *from;
    void *to;
    u64 bytes;
    u64 first;
};

/* The last segment whose pieces begin at or before `piece`; empty segments have none and are passed over. */
HK_DEVICE u64 hk_find_segment(const hk_segment *table, u64 segments, u64 piece) {
    u64 low = 0, high = segments;
    while (high - low > 1) {
        u64 middle = (low + high) / 2;
        if (table[middle].first <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* `segments` rows at `table`, in device memory, `pieces` pieces in all.  No segment may overlap another's `to`. */
HK_KERNEL(hk_copy, const hk_segment *table, u64 segments, u64 pieces) {
    for (u64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        const hk_segment segment = table[hk_find_segment(table, segments, piece)];
        const u64 at = (piece - segment.first) * HK_PIECE, rest = segment.bytes - at, most = HK_PIECE;
        hk_copy_block((u8 *)segment.to + at, (const u8 *)segment.from + at, rest < most ? rest : most);
    }
}

#endif
