/* The codes of the dtype table.  kernels/dtypes.py holds the rows; a test keeps the two in step. */
#ifndef HOCKET_KERNELS_DTYPES_H
#define HOCKET_KERNELS_DTYPES_H

enum hk_dtype {
    HK_BOOL,
    HK_INT8,
    HK_UINT8,
    HK_INT16,
    HK_UINT16,
    HK_INT32,
    HK_UINT32,
    HK_INT64,
    HK_UINT64,
    HK_FLOAT16,
    HK_BFLOAT16,
    HK_FLOAT32,
    HK_FLOAT64,
    HK_COMPLEX64,
    HK_COMPLEX128,
    HK_FLOAT8_E4M3FN,
    HK_FLOAT8_E5M2,
    HK_FLOAT32_INT32,
    HK_FLOAT64_INT64,
    HK_INT32_INT32,
    HK_INT64_INT64,
    HK_BYTES,
    HK_DTYPE_COUNT
};

#endif
