/* Module: the kernels that know no dtype. */
#include "checksum.cuh"
#include "copy.cuh"
#include "gather.cuh"
