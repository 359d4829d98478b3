"""The methods by name: "int8", "topk:0.01", "powersgd:4"."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

from hocket.arguments import choices
from hocket.codecs import HALF_NAMES, Codec, others
from hocket.compression.adasum import AdaSum
from hocket.compression.dense import BY_NAME, Coded, DoubleSqueeze
from hocket.compression.elias import Elias
from hocket.compression.low_rank import PowerSGD
from hocket.compression.method import Method
from hocket.compression.quantizers import QSGD
from hocket.compression.shared_scale import SharedScale
from hocket.compression.sparse.largest_sums import OkTopK, SqueezedTopK
from hocket.compression.sparse.methods import NonZero, RandomK, Threshold, TopK
from hocket.compression.sparse.two_bits import TwoBits
from hocket.compression.stateful import DGC, EF21
from hocket.errors import ArgumentError

PLAIN: dict[str, Callable[[], Method]] = {"adasum": AdaSum, "nonzero": NonZero}
"""Methods without an argument."""
WITH_ARGUMENT: dict[str, tuple[str, Callable[[str], Method]]] = {
    "topk": ("0.01", lambda text: _with_words(TopK, text)),
    "twobits": ("0.01", lambda text: _chunked(*text.split(":", 1))),
    "threshold": ("0.001", lambda text: _with_words(Threshold, text)),
    "randomk": ("0.01", lambda text: RandomK(float(text))),
    "powersgd": ("4", lambda text: _ranked(*text.split(":", 1))),
    "oktopk": ("0.01", lambda text: _with_words(OkTopK, text)),
    "doublesqueeze": ("int8", lambda text: _squeezed(*text.split(":", 1))),
    "nonzero": ("256", lambda text: NonZero(int(text))),
    "elias": ("4", lambda text: Elias(QSGD(int(text), norm="l2"))),
    "shared": ("1", lambda text: _scaled(*text.split(":", 1))),
    "dgc": ("0.001", lambda text: _with_words(DGC, text)),
    "ef21": ("topk:0.01", lambda text: EF21(resolved(text))),
}
"""By what stands before the first colon of a name: an argument, for errors, and what makes the method of one.

The argument is what follows the colon: numbers, a codec, another method.
"""
EXAMPLES = {kind: f"{kind}:{argument}" for kind, (argument, _) in WITH_ARGUMENT.items()}


def _scaled(levels: str, clip: str = "2.5") -> Method:
    """A whole number; then, if wished, where elements are cut off."""
    return SharedScale(int(levels), float(clip))


def _chunked(density: str, chunk: str = "4096") -> Method:
    """A number; then, if wished, how many elements a chunk has."""
    return TwoBits(float(density), int(chunk))


def _squeezed(codec: str, density: str | None = None) -> Method:
    """A codec of blocks, or topk and a number."""
    if density is not None and codec == "topk":
        return SqueezedTopK(float(density))
    return DoubleSqueeze(codec if density is None else f"{codec}:{density}")


def _ranked(rank: str, codec: str | None = None) -> Method:
    """A whole number; then, if wished, what the thin matrices are sent as: "4:bf16"."""
    return PowerSGD(int(rank), codec)


def _with_words(make: Callable[..., Method], text: str) -> Method:
    """A number; then, if wished, a whole one, and what values are sent as: "0.01:4096:fp16"."""
    number, *words = text.split(":")
    chunk = [int(word) for word in words if word.isdigit()]
    codec = [word for word in words if not word.isdigit()]
    if len(chunk) > 1 or len(codec) > 1 or (chunk and make is not TopK):
        raise ArgumentError(f"{text!r} is not NUMBER[:CHUNK][:fp16]; only topk takes a chunk")
    more: dict[str, Any] = {"chunk": chunk[0]} if chunk else {}
    return make(float(number), codec=codec[0] if codec else None, **more)


def resolved(method: str | Codec | Method) -> Method:
    """The method of this name."""
    if isinstance(method, Codec):
        return Coded(method)
    if not isinstance(method, str):
        if isinstance(method, type) or not hasattr(method, "average_all"):
            raise ArgumentError(
                f"{reprlib.repr(method)} is not a method; expected a name such as 'int8', a codec, or a Method"
            )
        return method
    if method in BY_NAME:
        return Coded(method)
    if method in PLAIN:
        return PLAIN[method]()
    kind, colon, rest = method.partition(":")
    if not colon or kind not in WITH_ARGUMENT:
        if kind in others():
            return _of_a_package(method, kind, rest)
        if method in HALF_NAMES:
            raise ArgumentError(f"{method!r} needs no Compressor: pass it to the call, as codec={method!r}")
        raise ArgumentError(
            f"{method!r} is not a method ({' and '.join(HALF_NAMES)} are codecs of calls, codec='fp16'); "
            f"{choices(method, [*BY_NAME, *PLAIN, *EXAMPLES.values(), *others()])}"
        )
    try:
        return WITH_ARGUMENT[kind][1](rest)
    except ArgumentError:
        raise
    except ValueError:
        raise ArgumentError(f"{method!r}: {rest!r} is not a number; it is written as {EXAMPLES[kind]!r}") from None


def _of_a_package(method: str, kind: str, rest: str) -> Method:
    """The method that another package's function makes of what follows the colon."""
    entry = others()[kind]
    try:
        return resolved(entry.load()(rest))
    except ArgumentError:
        raise
    except Exception as error:  # someone else's code
        raise ArgumentError(f"{method!r} of {entry.value} cannot be made: {type(error).__name__}: {error}") from error
