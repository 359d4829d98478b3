"""One rank's arguments of a redistribution, checked by themselves: what is wrong with them is told for this rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hocket.arguments import kind, some_of
from hocket.collectives.calls.encodings import LOSSLESS
from hocket.collectives.layouts.arrays import Array
from hocket.collectives.layouts.comm import Comm
from hocket.collectives.layouts.layout import Layout
from hocket.errors import ArgumentError
from hocket.kernels.dtypes import DType, by_name, from_numpy, from_torch_name

ONE = "x"
"""The name of a list that stands alone."""
SHOWN = 4
"""Names that a text shows, at most."""


class Wishes(NamedTuple):
    """By number, the dtype that each array is to get, and the codec of its messages between hosts."""

    dtypes: list[DType | None]
    codecs: list[str | None]
    named: bool
    """Is the codec said for each array?  One for all counts where it can."""


def wishes(names: Sequence[str], dtype: Any, codec: Any) -> Wishes:
    """`dtype` and `codec` are for all, or by name.  Raises ArgumentError."""
    dtypes, codecs = (
        given if isinstance(given, Mapping) else dict.fromkeys(names, given) for given in (dtype, codec)
    )  # fmt: skip
    known(dtypes, names, "dtype")
    known(codecs, names, "codec")
    if wrong := [each for each in codecs.values() if each not in (None, LOSSLESS)]:
        raise ArgumentError(
            f"codec={wrong[0]!r}: arrays that move take 'lossless' alone, as all holders keep equal bits; for "
            "fewer bytes say dtype=, which rounds once"
        )
    by_number = [_dtype(dtypes.get(name)) for name in names], [codecs.get(name) for name in names]
    return Wishes(*by_number, isinstance(codec, Mapping))


def known(given: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    """Raises ArgumentError for a name that is none of these."""
    if unknown := [name for name in given if name not in set(names)]:
        raise ArgumentError(f"{what} has {shown(unknown)}, which the layouts do not name")


class Given:
    """The arrays and layouts of one rank, by number: names are sorted."""

    def __init__(
        self, comm: Comm, tree: Any, source: Any, target: Any, into: Any, dtype: Any, codec: Any = None
    ) -> None:
        rank = comm.rank
        for each, what in ((source, "source"), (target, "target")):
            if not isinstance(each, (Layout, Mapping)):
                raise ArgumentError(f"{what} must be a Layout, or map names to Layouts, got {kind(each)}")
        self.listed = isinstance(source, Layout) and isinstance(target, Layout) and not isinstance(tree, Mapping)
        if self.listed:
            tree, into = {ONE: tree}, None if into is None else {ONE: into}
        for each, what in ((tree, "tree"), (into, "into")):
            if not isinstance(each, Mapping) and each is not None:
                raise ArgumentError(f"{what} must map names to lists of arrays, got {kind(each)}")
        tree = tree or {}
        self.names: list[str] = sorted(next((each for each in (target, source) if isinstance(each, Mapping)), tree))
        self.sources, self.targets = self._layouts(source, "source"), self._layouts(target, "target")
        for name, layout in zip(self.names * 2, self.sources + self.targets, strict=True):
            if any(layout.ranges[comm.size :]):
                raise ArgumentError(f"the layout of {name!r} has boxes on {layout.size} ranks; there are {comm.size}")
        known(tree, self.names, "tree")
        self.held = [self._arrays(tree.get(name), "tree", i, rank) for i, name in enumerate(self.names)]
        self.into: list[list[Array]] | None = None
        if into is not None:
            known(into, self.names, "into")
            self.into = [self._arrays(into.get(name), "into", i, rank) for i, name in enumerate(self.names)]
            self._apart()
        self.wishes = wishes(self.names, dtype, codec)

    @property
    def digest(self) -> str:
        """A text that all ranks must have alike."""
        return _digest(*self.digests)

    @property
    def digests(self) -> list[str]:
        """The same of each array."""
        rows = zip(self.names, self.sources, self.targets, self.wishes.dtypes, self.wishes.codecs, strict=True)
        return [
            _digest(name, source.digest, target.digest, str(asked), str(codec))
            for name, source, target, asked, codec in rows
        ]

    def _layouts(self, given: Any, what: str) -> list[Layout]:
        if isinstance(given, Layout):
            return [given] * len(self.names)
        if lacking := [name for name in self.names if name not in given]:
            raise ArgumentError(f"{what} has no layout for {shown(lacking)}, which the other one has")
        known(given, self.names, what)
        for name, layout in given.items():
            if not isinstance(layout, Layout):
                raise ArgumentError(f"{what}[{name!r}] must be a Layout, got {kind(layout)}")
        return [given[name] for name in self.names]

    def _arrays(self, given: Any, what: str, number: int, rank: int) -> list[Array]:
        """The arrays of a name, one for each box of this rank."""
        name = self.names[number]
        shapes = (self.sources if what == "tree" else self.targets)[number].shapes(rank)
        where = what if self.listed else f"{what}[{name!r}]"
        arrays = [] if given is None else given
        if hasattr(given, "shape"):
            arrays = [given]
        if not isinstance(arrays, Sequence) or isinstance(arrays, (str, bytes)):
            raise ArgumentError(f"{where} must be a list of arrays, one for each box, got {kind(given)}")
        if len(arrays) != len(shapes):
            raise ArgumentError(f"{where} has {len(arrays)} arrays, and the layout {len(shapes)} boxes on rank {rank}")
        found = [Array(each, f"{where}[{i}]", what == "into") for i, each in enumerate(arrays)]
        for i, (array, shape) in enumerate(zip(found, shapes, strict=True)):
            if array.shape != shape:
                raise ArgumentError(f"{where}[{i}] has shape {array.shape}, and its box {shape}")
            if array.dtype != found[0].dtype:
                raise ArgumentError(f"{where}[{i}] is {array.dtype}, and {where}[0] {found[0].dtype}")
        return found

    def _apart(self) -> None:
        """No array that is written lies where another one of these lies."""
        assert self.into is not None
        read = [(*each.span, False, name) for name, held in zip(self.names, self.held, strict=True) for each in held]
        written = [(*each.span, True, name) for name, into in zip(self.names, self.into, strict=True) for each in into]
        spans = sorted(span for span in read + written if span[0] < span[1])
        end, last, by = 0, False, ""
        for low, high, is_written, name in spans:
            if low < end and (is_written or last):
                shared = name if is_written else by
                raise ArgumentError(f"into[{shared!r}] shares memory with another array: give arrays that lie apart")
            if high > end:
                end, last, by = high, is_written, name


def _digest(*texts: str) -> str:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def shown(names: Sequence[str]) -> str:
    return some_of([*map(repr, names)], SHOWN)


def _dtype(asked: Any) -> DType | None:
    """A dtype as a name, NumPy's or torch's."""
    if asked is None:
        return None
    text = str(asked)
    if text.startswith("torch."):
        return from_torch_name(text)
    if isinstance(asked, str):
        return by_name(asked)
    import numpy

    try:
        return from_numpy(numpy.dtype(asked))
    except TypeError:
        raise ArgumentError(f"dtype={asked!r} is not a dtype") from None
