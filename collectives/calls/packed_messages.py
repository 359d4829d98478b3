"""Messages with codec="lossless": the sender packs x; the receiver asks for the length, then takes the message."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy

from hocket.collectives.arrays.buffers import Buffer, describe
from hocket.collectives.calls.ask import Ask, checked
from hocket.collectives.calls.call import IS_PACKED
from hocket.collectives.calls.encodings import LOSSLESS
from hocket.errors import ArgumentError, TimeoutError
from hocket.kernels.codecs import PACKED, Codec
from hocket.kernels.cpu.reduce import pack_array, unpack_array

INTS = {2: "int16", 4: "int32"}


def _of(x: Buffer, codec: object) -> tuple[Codec, Any]:
    """The codec for this array, and its memory as NumPy sees it."""
    if codec != LOSSLESS:
        raise ArgumentError(f"codec={codec!r}: messages take 'lossless' alone; collectives take others")
    if x.device >= 0 or x.foreign:
        raise ArgumentError("codec='lossless' is for arrays in host memory, and x is on a GPU: omit codec=, or copy it")
    if x.dtype.name not in PACKED:
        raise ArgumentError(f"codec='lossless' takes {', '.join(PACKED)}, got {x.dtype.name}")
    array = x.array if x.host is None else x.host
    if hasattr(array, "data_ptr"):  # torch's, whose bfloat16 NumPy does not know
        array = array.detach().view(getattr(sys.modules["torch"], INTS[x.dtype.itemsize])).numpy()
    return PACKED[x.dtype.name], array


class PackedArray(NamedTuple):
    """An array that is packed, as `Messenger.send` takes it."""

    wire: Any
    code: int
    """The dtype's, with IS_PACKED."""


def packed(x: Any, codec: object) -> PackedArray:
    """x, packed."""
    buffer = describe(x)
    form, array = _of(buffer, codec)
    return PackedArray(pack_array(array, form), buffer.dtype.code | IS_PACKED)


def received(
    messenger: Any, out: Any, source: int | None, tag: int | None, codec: object, async_op: bool,
    timeout: float | None, transport: str | None,
) -> Any:  # fmt: skip
    """Receive what was `packed`, into `out`."""
    buffer = describe(out, "out")
    form, array = _of(buffer, codec)
    if async_op or transport is not None:
        raise ArgumentError("recv with codec='lossless' looks at the message first: omit async_op and transport")
    limit = messenger.members.limit(checked(Ask("message", timeout=timeout)).timeout)
    message = messenger.probe(*messenger.wanted(source, tag), limit)
    if message is None:
        raise TimeoutError(f"no message with tag={tag} came within {limit:g} s")
    if message.source < 0:  # PROC_NULL sends nothing
        return out
    if message.codec != LOSSLESS:
        came = f"rank {message.source} sent {message.dtype} without codec='lossless'"
        raise ArgumentError(f"{came}: omit codec= here, or say it there, too")
    if message.dtype != buffer.dtype.name:
        raise ArgumentError(f"rank {message.source} sent {message.dtype}, and out has dtype {buffer.dtype.name}")
    wire = numpy.empty(message.nbytes, numpy.uint8)
    messenger.recv(wire, message.source, message.tag, False, timeout, None, buffer.dtype.code | IS_PACKED)
    unpack_array(array, wire, form)
    buffer.restore()
    return out
