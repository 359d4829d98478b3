/* Random numbers by counting: number i of a stream depends on its key and i alone, so that any part of a vector may be
 * encoded by itself, in any order, with the same bits.
 *
 * The mixing is the 32-bit finaliser of MurmurHash3 (Appleby, 2011), with the key's second half added in its middle. */
#ifndef HOCKET_KERNELS_DICE_H
#define HOCKET_KERNELS_DICE_H

#include "kernels/elements.h"

/* Where random numbers come from, if a codec rounds by them: a number is a function of `key` and of its place, counted
 * from `first`, and of nothing else. */
typedef struct {
    u64 key;
    u32 first;
} hk_dice;

#define HK_DICE_STEP 0x9e3779b9u

HK_INLINE u32 hk_roll(u64 key, u32 i) {
    u32 h = i * HK_DICE_STEP + (u32)key;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) + (u32)(key >> 32);
    h *= 0xc2b2ae35u;
    return h ^ h >> 16;
}

/* A key of several numbers: the finaliser of SplitMix64 (Steele et al., 2014), once for each. */
HK_INLINE u64 hk_stir(u64 key, u64 with) {
    u64 z = (key ^ with) + 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Number i serves two floats, i and i + n / 2 of a block of n: all of its bits the one, its lower half the other. */
typedef struct {
    u32 first, second;
} hk_rolls;

HK_INLINE hk_rolls hk_roll_two(hk_dice dice, u32 i) {
    const u32 roll = hk_roll(dice.key, dice.first + i);
    hk_rolls two = {roll, roll << 16};
    return two;
}

/* Between -1/2 and 1/2, and at least 2^-15 away from both.  So a value that is a whole number but for an error of less than
 * that stays nearest to it when this is added.  A float's mean is off by 2^-15 of a step at most. */
#define HK_SPREAD (0x1p-32f - 0x1p-46f)

HK_INLINE f32 hk_spread(u32 roll) { return (f32)(i32)roll * HK_SPREAD; }

#endif
