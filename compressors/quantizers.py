"""The codecs that have parameters: `comm.allreduce(x, codec=Int4(block=64))`.

Each function returns a codec, which is told by its parameters: equal ones go together, on all ranks.  An element on the
wire is what one block of floats becomes; `block` is a multiple of 64, at most 1024.

`rounding`: "nearest", or "stochastic", where x is the mean of what may come.  Then each element that a rank brings, and
each sum, is rounded by another random number in each call, counted from `seed`.  All ranks hold the same bits, and the
same program gives the same bits each time.
"""

from __future__ import annotations

from hocket.arguments import choices, whole
from hocket.codecs import FP8 as FP8_KIND
from hocket.codecs import L2, MAX, NATURAL, ONEBIT, SIGN, Codec
from hocket.codecs import WHOLE as WHOLE_KIND
from hocket.errors import ArgumentError

BLOCK_STEP, BLOCK_MOST = 64, 1024
LEVELS_MOST = 127
NORMS = {"max": MAX, "l2": L2}
ROUNDINGS = ("nearest", "stochastic")


def Int8(block: int = 256, rounding: str = "nearest", seed: int = 0) -> Codec:
    """Bytes with a sign, and a float32 that is the block's largest magnitude / 127.

    Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022.
    """
    return _whole_numbers("int8", 8, 256, block, rounding, seed)


def Int4(block: int = 128, rounding: str = "nearest", seed: int = 0) -> Codec:
    """Two codes in a byte, -7 to 7."""
    return _whole_numbers("int4", 4, 128, block, rounding, seed)


def Int(bits: int, block: int = 256, rounding: str = "nearest", seed: int = 0) -> Codec:
    """Codes of 2 to 8 bits, as those of `Int8`: the largest is 2^(bits - 1) - 1."""
    if not 2 <= whole(bits, "bits") <= 8:
        raise ArgumentError(f"bits={bits} must be 2 to 8; for 1 bit use `Sign` or `OneBit`")
    return _whole_numbers(f"int{bits}", bits, 128 if bits == 4 else 256, block, rounding, seed)


def FP8(block: int = 256) -> Codec:
    """float8_e4m3fn, and a float32 that is the block's largest magnitude / 448.

    Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
    """
    _check(block)
    return Codec(_name("fp8", block=(block, 256)), FP8_KIND, block, 4 + block)


def Sign(block: int = 256) -> Codec:
    """A sign for each float, and the block's mean magnitude.  It wants error feedback.

    Source: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
    """
    _check(block)
    return Codec(_name("sign", block=(block, 256)), SIGN, block, 4 + block // 8, 1)


def OneBit(block: int = 256) -> Codec:
    """A sign for each float, the mean of those not below zero, and that of the others: the block keeps its sum.

    It wants error feedback.  Source: Seide et al., "1-Bit Stochastic Gradient Descent and its Application to
    Data-Parallel Distributed Training of Speech DNNs", Interspeech 2014, with blocks for the columns.
    """
    _check(block)
    return Codec(_name("onebit", block=(block, 256)), ONEBIT, block, 8 + block // 8, 1)


def QSGD(levels: int, bucket: int = 512, norm: str = "max", seed: int = 0) -> Codec:
    """Whole numbers from -levels to levels, rounded at random, of ceil(log2(2 levels + 1)) bits; unbiased.

    `norm`: what `levels` stands for, the bucket's largest magnitude or its Euclidean length ("l2").  All codes have
    one length here; a Compressor's `Elias` has the paper's, which are shorter for "l2".

    Source: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017.
    """
    _check(bucket, seed)
    checked_levels(levels)
    if norm not in NORMS:
        raise ArgumentError(f"norm={norm!r} is unknown; {choices(norm, NORMS)}")
    bits = (2 * levels).bit_length()
    name = _name("qsgd", levels=(levels, None), bucket=(bucket, 512), norm=(norm, "max"), seed=(seed, 0))
    return Codec(name, WHOLE_KIND, bucket, 4 + bucket * bits // 8, bits, levels, NORMS[norm], 0.0, True, seed)


def TernGrad(clip: float = 2.5, block: int = 256, seed: int = 0) -> Codec:
    """-1, 0 or 1 times the block's largest magnitude, rounded at random: the mean is x, cut off at `clip` times the
    block's root mean square.  2 bits for each float.  `clip` must be 0.001 or more; infinity cuts nothing off.

    Source: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS
    2017, with a scale for each block of each rank; a Compressor's `SharedScale` has one that all ranks share.
    """
    _check(block, seed)
    name = _name("terngrad", clip=(checked_clip(clip), 2.5), block=(block, 256), seed=(seed, 0))
    cut = 0.0 if clip == float("inf") else float(clip)
    return Codec(name, WHOLE_KIND, block, 4 + block // 4, 2, 1, MAX, cut, True, seed)


def Natural(block: int = 256, rounding: str = "stochastic", seed: int = 0) -> Codec:
    """A sign and a power of two in a byte: those within 2^-126 of the block's largest magnitude.

    Source: Horvath et al., "Natural Compression for Distributed Deep Learning", 2019, with blocks of one range.
    """
    _check(block, seed)
    name = _name("natural", block=(block, 256), rounding=(_rounding(rounding), "stochastic"), seed=(seed, 0))
    return Codec(name, NATURAL, block, 4 + block, stochastic=rounding == "stochastic", seed=seed)


def _whole_numbers(kind: str, bits: int, usual: int, block: int, rounding: str, seed: int) -> Codec:
    _check(block, seed)
    name = _name(kind, block=(block, usual), rounding=(_rounding(rounding), "nearest"), seed=(seed, 0))
    levels = (1 << (bits - 1)) - 1
    return Codec(name, WHOLE_KIND, block, 4 + block * bits // 8, bits, levels, MAX, 0.0, rounding == "stochastic", seed)


def _name(kind: str, **parameters: tuple[object, object]) -> str:
    """With the parameters that are not the usual ones: each is what it is, and what is usual."""
    unusual = [f"{name}={value!r}" for name, (value, usual) in parameters.items() if value != usual]
    return f"{kind}({', '.join(unusual)})" if unusual else kind


def _check(block: int, seed: int = 0) -> None:
    checked_seed(seed)
    if not 0 < whole(block, "block") <= BLOCK_MOST or block % BLOCK_STEP:
        raise ArgumentError(f"block={block} must be a multiple of {BLOCK_STEP}, and at most {BLOCK_MOST}")


def _rounding(rounding: str) -> str:
    if rounding not in ROUNDINGS:
        raise ArgumentError(f"rounding={rounding!r} is unknown; {choices(rounding, ROUNDINGS)}")
    return rounding


def checked_levels(levels: int) -> int:
    if not 1 <= whole(levels, "levels") <= LEVELS_MOST:
        raise ArgumentError(f"levels={levels} must be 1 to {LEVELS_MOST}")
    return levels


def checked_clip(clip: float) -> float:
    """Not so small that a code, before it is limited, is more than kernels/codes.h can round (HK_TO_WHOLE)."""
    if not clip >= 0.001:
        raise ArgumentError(f"clip={clip!r} must be 0.001 or more; infinity cuts nothing off")
    return float(clip)


def checked_seed(seed: int) -> int:
    if not 0 <= whole(seed, "seed") < 1 << 64:
        raise ArgumentError(f"seed={seed} must be 0 to 2^64 - 1")
    return seed
