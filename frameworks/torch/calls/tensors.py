"""Tensors as hocket takes them: plain, contiguous, and several as one where they lie one behind the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from hocket.extending import TORCH_NAMES
from hocket.torch.errors import ArgumentError

Tensor = torch.Tensor
After = Callable[[], object]
"""The work that is left when a call has ended: to copy a result to where the caller wants it."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""By the bytes of an element."""
_SAME_DISPATCH = torch.Tensor.__torch_dispatch__


def plain(tensor: Tensor, call: str) -> Tensor:
    """`tensor` itself, as it lies in memory.  TypeError for one that has none of its own, or is sparse.

    Nobody stands between torch's Python functions and us: FakeTensors and DTensors come as they are.
    """
    kind = type(tensor)
    if kind is not Tensor:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{call}: got a {kind.__name__} instead of a tensor")
        if kind.__torch_dispatch__ != _SAME_DISPATCH:
            raise TypeError(
                f"{call}: a {kind.__name__} has no memory of its own that could be sent; pass a plain tensor"
                + (" (its to_local())" if hasattr(tensor, "to_local") else "")
            )
    if tensor.is_nested:
        raise TypeError(f"{call}: a nested tensor is several; pass each of its unbind()")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{call}: {tensor.layout} tensors can only be summed, by all_reduce; pass tensor.to_dense()")
    if tensor.is_meta:
        raise TypeError(f"{call}: a meta tensor has no data")
    if tensor.is_quantized:
        raise TypeError(f"{call}: the scale of a quantised tensor is not sent; pass tensor.int_repr()")
    if tensor.numel() and not in_memory(tensor):
        raise ArgumentError(f"{call}: a tensor has no memory: its storage was freed, or it stands for zeros")
    return tensor.detach() if tensor.requires_grad or kind is not Tensor else tensor


def in_memory(tensor: Tensor) -> bool:
    """Has its storage room for all of it?  FSDP, for one, gives memory back and keeps the tensors."""
    if not tensor.data_ptr():
        return False
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() >= (tensor.storage_offset() + last + 1) * tensor.element_size()


def as_integers(tensor: Tensor) -> Tensor:
    """The same elements under a dtype that torch can copy; it moves its sub-byte and quantised ones no other way."""
    can = str(tensor.dtype) in TORCH_NAMES or tensor.is_complex()
    return tensor if can else tensor.view(INTEGERS[tensor.element_size()])


def contiguous(tensor: Tensor) -> Tensor:
    return as_integers(tensor).contiguous().view(tensor.dtype)


def empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    return as_integers(like).new_empty(shape).view(like.dtype)


def copy(to: Tensor, source: Tensor) -> None:
    """Into a tensor of the caller's.  One of inference mode may be written to outside of it, as calls do in place."""
    with torch.inference_mode() if to.is_inference() else contextlib.nullcontext():
        as_integers(to).copy_(as_integers(source))


def readable(tensor: Tensor, call: str) -> Tensor:
    """A tensor's values, contiguous."""
    found = plain(tensor, call)
    if found.is_complex() and found.is_conj() or found.is_neg():
        found = found.resolve_conj().resolve_neg()
    return found if found.is_contiguous() else contiguous(found)


def writable(tensor: Tensor, call: str, keep: bool = True) -> tuple[Tensor, After | None]:
    """Where a result may be written, contiguous, and how it comes to `tensor` from there.  `keep`: with its values."""
    found = plain(tensor, call)
    if any(step == 0 and n > 1 for step, n in zip(found.stride(), found.shape, strict=True)):
        raise ArgumentError(f"{call}: elements of the output share memory (as after expand()); pass output.clone()")
    if found.is_contiguous() and not found.is_neg() and not (found.is_complex() and found.is_conj()):
        return found, None
    made = contiguous(found.resolve_conj().resolve_neg()) if keep else empty(found, found.shape)
    made = made.clone() if made.data_ptr() == found.data_ptr() else made
    return made, lambda: copy(found, made)


def moved(tensor: Tensor) -> Tensor:
    """The same memory for calls that only move: flat, as bytes where hocket does not know the dtype."""
    flat = tensor.reshape(-1)
    return flat if str(flat.dtype) in TORCH_NAMES else flat.view(torch.uint8)


def unit(tensor: Tensor) -> int:
    """The number of elements of `moved(tensor)` that are one of `tensor`."""
    return 1 if str(tensor.dtype) in TORCH_NAMES else tensor.element_size()


def apart(x: Tensor, out: Tensor) -> Tensor:
    """`x`, or a copy of it if `out` would be written over it."""
    first, last = out.data_ptr(), out.data_ptr() + out.numel() * out.element_size()
    overlap = x.data_ptr() < last and first < x.data_ptr() + x.numel() * x.element_size()
    return x.clone() if overlap else x


def joined(tensors: Sequence[Tensor]) -> Tensor | None:
    """All of them as one flat tensor, if they lie one behind the other in one storage."""
    first = tensors[0]
    start = at = first.data_ptr()
    base = first.untyped_storage().data_ptr()
    for each in tensors:
        if not each.is_contiguous() or each.dtype != first.dtype or each.device != first.device:
            return None
        if each.data_ptr() != at or each.untyped_storage().data_ptr() != base:
            return None
        at += each.numel() * each.element_size()
    return first.as_strided(((at - start) // first.element_size(),), (1,))


def gathered(tensors: Sequence[Tensor], call: str) -> Tensor:
    """The values of these as one flat tensor: a copy, unless they lie one behind the other."""
    found = [readable(each, call) for each in tensors]
    whole = joined(found)
    if whole is not None:
        return whole
    flat = [each.reshape(-1) for each in found]
    made = torch.cat([as_integers(each) for each in flat])
    return made if as_integers(flat[0]) is flat[0] else made.view(flat[0].dtype)


def scattered(tensors: Sequence[Tensor], call: str) -> tuple[Tensor, After | None]:
    """One flat tensor to write into, and how it comes to them from there."""
    found = [plain(each, call) for each in tensors]
    whole = joined(found)
    if whole is not None:
        return whole, None
    made = empty(found[0], (sum(each.numel() for each in found),))
    parts = torch.split(made, [each.numel() for each in found])

    def deal() -> None:
        for each, part in zip(found, parts, strict=True):
            copy(each, part.view(each.shape))

    return made, deal
