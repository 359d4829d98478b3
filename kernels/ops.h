/* The codes of the op table.  kernels/ops.py holds the rows; a test keeps the two in step. */
#ifndef HOCKET_KERNELS_OPS_H
#define HOCKET_KERNELS_OPS_H

enum hk_op {
    HK_SUM,
    HK_PROD,
    HK_MIN,
    HK_MAX,
    HK_BAND,
    HK_BOR,
    HK_BXOR,
    HK_LAND,
    HK_LOR,
    HK_LXOR,
    HK_MINLOC,
    HK_MAXLOC,
    HK_OP_COUNT
};

#endif
