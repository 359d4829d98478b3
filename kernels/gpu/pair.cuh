/* One dtype and one op as a fold F of fold.cuh, named by HK_FOLD, which must be defined before.
 *
 * HK_DTYPE and HK_OP name them; HK_STORAGE, HK_NUMBER and HK_COMBINE say which words of elements.h it is made of (so
 * uint16 addition also serves int16; HK_COMBINE may be an expression of a user's), and HK_PARTS of how many such an
 * element consists (a complex sum: two).  May be included once for each name. */
#include "fold.cuh"

struct HK_FOLD {
    typedef HK_PASTE(any_, HK_STORAGE) element;
    typedef HK_NUMBER number;
    HK_INLINE number get(const element *p, u64 i) { return HK_PASTE(get_, HK_STORAGE)(p, i); }
    HK_INLINE void put(element *p, u64 i, number value) { HK_PASTE(put_, HK_STORAGE)(p, i, value); }
    HK_INLINE number combine(number a, number b) { return HK_COMBINE(a, b); }
};
