"""Sizes, counts and the command line's words."""

import pytest

from hocket.collectives.measuring.cases import COLLECTIVES, Case, case, numpy_dtype, parse_size, sizes
from hocket.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "nbytes"), [("8", 8), ("64K", 65536), ("64k", 65536), ("1.5M", 1572864), ("1G", 1 << 30), ("4KiB", 4096)]
)
def test_sizes_have_letters(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "K", "-8", "8Q", "1e3"])
def test_nonsense_sizes_are_named(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a size"):
        parse_size(text)


def test_sizes_grow_by_the_factor() -> None:
    assert sizes(8, 64, 2) == [8, 16, 32, 64]
    assert sizes(8, 100, 4) == [8, 32]
    assert sizes(1, 4, 1.1) == [1, 2, 3, 4], "a small factor still moves on"
    for wrong in ((0, 8, 2), (16, 8, 2), (8, 16, 1)):
        with pytest.raises(ArgumentError):
            sizes(*wrong)


def test_size_is_the_whole_vector_as_in_nccl_tests() -> None:
    for name, kind in COLLECTIVES.items():
        made = case(name, 4, 1024, "float32", "sum", 0)
        per_caller = "block" in (kind.given, kind.result) or name == "alltoall"
        assert made.count == (0 if name == "barrier" else 64 if per_caller else 256), name
        assert made.nbytes == (0 if name == "barrier" else 1024), name
        for which in kind[1:3]:
            assert made.elements(which) == {"all": 256, "block": 64, "": 0}[which]


def test_the_smallest_case_has_one_element_for_each() -> None:
    assert case("allgather", 4, 8, "float32", "sum", 0) == Case("allgather", 4, 1)
    assert case("allreduce", 4, 1, "float64", "sum", 0).nbytes == 8


def test_dtypes() -> None:
    assert numpy_dtype("bfloat16").itemsize == 2
    assert numpy_dtype("uint16").kind == "u"
    for name in ("float33", "finfo", "int7", "bytes", "float32_int32"):
        with pytest.raises(ArgumentError, match=name):
            numpy_dtype(name)
