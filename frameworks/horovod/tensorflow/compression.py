"""Fewer bits on the wire: Horovod's Compression."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class NoneCompressor:
    """Tensors are sent unchanged.  The interface of `compression=`."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and the knowledge that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor again."""
        return tensor


class FP16Compressor(NoneCompressor):
    """Floats are converted to float16, added up so, and converted back."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """float16, and the dtype that it had."""
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor in the dtype that it had."""
        return tf.cast(tensor, ctx)


class Compression:
    """`hvd.Compression.fp16` and so on: what `compression=` takes.  hocket.keras has error feedback."""

    none = NoneCompressor
    fp16 = FP16Compressor
