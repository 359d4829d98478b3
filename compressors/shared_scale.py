"""One scale for all ranks, so that sums are whole numbers: TernGrad as its paper has it, and finer steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hocket.compression.bucket import Bucket
from hocket.compression.memory import Array
from hocket.compression.method import Averaged, MethodState, Together, chunks
from hocket.compression.quantizers import checked_clip, checked_levels, checked_seed

WORD = 64


class SharedScale(Together):
    """Whole numbers from -levels to levels times a scale that the ranks agree on first, rounded at random; unbiased.

    The scale is the largest magnitude of a key on any rank, or where that is less the largest of `clip` times the root
    mean square; what is above it is cut off.  Nothing else is rounded: a code takes as many bits as the ranks' sum may
    need, ceil(log2(2 levels p + 1)), and codes are added as they lie, many in a word of 64 bits.  So the result does
    not depend on the algorithm, and its error does not grow with the steps of one.  2n(p-1)/p bytes per rank, where n
    are those of the codes, and 8(p-1)/p for each key.  Nothing is owed.

    Source: with levels = 1 and clip = 2.5, Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in
    Distributed Deep Learning", NeurIPS 2017, with its scaler sharing; with more, Xin et al., "Global-QSGD: Practical
    Floatless Quantization for Distributed Learning with Theoretical Guarantees", 2023.
    """

    def __init__(self, levels: int = 1, clip: float = 2.5, seed: int = 0) -> None:
        self.levels, self.clip, self.seed = checked_levels(levels), checked_clip(clip), checked_seed(seed)

    @property
    def name(self) -> str:
        return f"shared:{self.levels}" + (f":{self.clip:g}" if self.clip != 2.5 else "")

    host = "it rounds by NumPy's random numbers"

    def average_all(
        self, comm: Any, vectors: Bucket, results: Bucket, kepts: Sequence[MethodState], seeds: Sequence[int]
    ) -> list[Averaged]:
        """Two calls for all: the scales, and the words."""
        scales = comm.allreduce(np.array([self._scale(part) for part in vectors.parts], np.float32), "max")
        fields = Fields((2 * self.levels * comm.size).bit_length())
        codes = Bucket.of(np.empty(vectors.flat.size, fields.kind), [part.shape for part in vectors.parts])
        for part, scale, code, seed in zip(vectors.parts, scales, codes.parts, seeds, strict=True):
            dice = np.random.Generator(np.random.Philox(key=[self.seed ^ seed, comm.rank]))
            self._encode(part.reshape(-1), scale, dice, code.reshape(-1))
        words = comm.allreduce(fields.packed(codes.flat), "sum")
        fields.unpack(words, codes.flat)
        most, each, averages = np.float32(self.levels * comm.size), words.nbytes / max(codes.flat.size, 1), []
        for result, scale, code in zip(results.parts, scales, codes.parts, strict=True):
            np.subtract(code, most, out=result, dtype=np.float32)
            result *= scale / most
            averages.append(Averaged({}, int(result.size * each) + 4, bool(np.isfinite(scale))))
        vectors.flat[...] = 0
        return averages

    def _scale(self, part: Array) -> np.float32:
        """This rank's; a NaN where an element is one."""
        if not part.size:
            return np.float32(0)
        flat = part.reshape(-1)
        top = np.abs(flat).max()
        if not top > 0 or not np.isfinite(self.clip) or not np.isfinite(top):
            return np.float32(top)
        square = sum(float(np.square(flat[one] / top).sum()) for one in chunks(flat))
        return np.float32(min(top, top * self.clip * np.sqrt(square / flat.size)))

    def _encode(self, x: Array, scale: np.float32, dice: np.random.Generator, codes: Array) -> None:
        """Codes from 0 to 2 levels; of a scale of 0, or of none, those of zeros."""
        with np.errstate(all="ignore"):
            by = np.float32(self.levels) / scale
        if not 0 < by < np.inf:  # `scale` is subnormal, or no number
            codes[...] = self.levels
            return
        for one in chunks(x):
            rolled = dice.random(one.stop - one.start, np.float32)
            rolled += x[one] * by
            np.floor(rolled, out=rolled)
            np.clip(rolled, -self.levels, self.levels, out=rolled)
            np.add(rolled, self.levels, out=codes[one], casting="unsafe")


class Fields:
    """Whole numbers of so many bits, as many in a word of 64 bits as fit; words add up as their fields do."""

    def __init__(self, bits: int) -> None:
        self.each = WORD // bits
        self.kind = np.uint16 if bits <= 16 else np.uint32
        """The dtype that holds one."""
        self._shifts = np.arange(self.each, dtype=np.uint64) * np.uint64(bits)
        self._mask = np.uint64((1 << bits) - 1)

    def packed(self, codes: Array) -> Array:
        """A word has the codes i, i + count, i + 2 count, ..., where count are the words."""
        count = -(-codes.size // self.each)
        words = np.zeros(count, np.uint64)
        for j, shift in enumerate(self._shifts):
            row = codes[j * count : (j + 1) * count]
            words[: row.size] |= row.astype(np.uint64) << shift
        return words

    def unpack(self, words: Array, codes: Array) -> None:
        count = words.size
        for j, shift in enumerate(self._shifts):
            row = codes[j * count : (j + 1) * count]
            np.bitwise_and(words[: row.size] >> shift, self._mask, out=row, casting="unsafe")
