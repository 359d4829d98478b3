"""Fewer bits on the wire: Horovod's Compression, and hocket's codecs and methods behind the same interface."""

from __future__ import annotations

from typing import Any

import torch

from hocket.compression import resolved
from hocket.horovod.torch.perform import METHOD

Tensor = torch.Tensor


class Compressor:
    """The interface of `compression=`: makes of a tensor what is sent, and of what has come a tensor.

    `codec`: how the ranks send it; "" as it is.
    """

    codec = ""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor to send, and the knowledge that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor again."""
        return tensor


class NoneCompressor(Compressor):
    """Tensors are sent unchanged."""


class FP16Compressor(Compressor):
    """Floats are converted to float16, added up so, and converted back."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """float16, and the dtype that it had."""
        return (tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor in the dtype that it had."""
        return tensor.to(ctx) if ctx.is_floating_point else tensor


class Coded(Compressor):
    """float32 is sent in fewer bits, and added up in float32; other dtypes go as they are.

    One object for a model: as a class would be, it may be given to many optimizers.
    """

    def __init__(self, codec: str) -> None:
        self.codec = codec

    def __repr__(self) -> str:
        return f"Compression {self.codec.removeprefix(METHOD)!r}"


class Compression:
    """`hvd.Compression.fp16` and so on: what `compression=` takes."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16, int8, fp8 = Coded("bf16"), Coded("int8"), Coded("fp8")
    int4, sign = Coded("int4"), Coded("sign")
    """hocket's codecs (docs/codecs.md): what rounding loses is forgotten."""

    @staticmethod
    def method(name: str) -> Coded:
        """One of hocket's methods with error feedback, as `hocket.compression.Compressor` names them: "topk:0.01",
        "powersgd:4", "dgc:0.001".  What is not sent in a step is added to the next step's tensor of the same name
        and shape.  Without a name it is lost: give tensors names."""
        resolved(name)
        return Coded(METHOD + name)
