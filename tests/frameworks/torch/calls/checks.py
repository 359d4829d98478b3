"""The checks by name, the ranks' main program, and how a call is compared with Gloo's."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

CHECKS: dict[str, Callable[[], None]] = {}
FILES = ("watched", "collectives", "messages", "works", "tensors")
OPS = ("SUM", "PRODUCT", "MIN", "MAX")
GLOO_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64,
)  # fmt: skip
DTYPES = (
    *GLOO_DTYPES, torch.int16, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
MOVED_ONLY = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.uint16, torch.uint32, torch.uint64)
gloo: Any = None


def main() -> None:
    """Run every check on this rank; print which failed."""
    global gloo
    place, rank, size = sys.argv[1], int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"])
    dist.init_process_group("hocket", init_method=f"file://{place}", rank=rank, world_size=size)
    gloo = dist.new_group(backend="gloo")
    for name in FILES:
        importlib.import_module(f"calls.{name}")
    for name, check in CHECKS.items():
        torch.manual_seed(3)
        try:
            check()
        except BaseException:
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            os._exit(1)
        print(f"passed {name}", flush=True)
    dist.destroy_process_group()


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def mine(count: int, dtype: torch.dtype, *seed: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(dist.get_rank() * 100 + sum(seed) + count)
    return torch.randint(0, 4, (count,), generator=made).to(dtype)


def equal(got: Any, wanted: Any, what: str) -> None:
    if isinstance(got, torch.Tensor):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape, what
        assert torch.equal(got.float() if "float8" in str(got.dtype) else got,
                           wanted.float() if "float8" in str(got.dtype) else wanted), f"{what}: {got} {wanted}"
    else:
        assert len(got) == len(wanted), what
        for a, b in zip(got, wanted, strict=True):
            equal(a, b, what)


def both(run: Callable[[Any], Any], what: str) -> None:
    """The same on hocket and on Gloo."""
    equal(run(None), run(gloo), what)


def shifted(x: torch.Tensor) -> list[torch.Tensor]:
    """Tensors that hold x: as it is, in the middle of another one, and with holes between its elements."""
    room, holes = x.new_zeros(x.numel() + 7), x.new_zeros(x.numel(), 3)
    room[3 : 3 + x.numel()] = x
    holes[:, 1] = x
    return [x.clone(), room[3 : 3 + x.numel()], holes[:, 1]]
