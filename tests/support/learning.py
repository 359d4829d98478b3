"""Ranks of frameworks on top of torch.distributed: what they run, how they are started, and one task that all learn."""

from __future__ import annotations

import os
import pathlib
import socket
import sys
import warnings
from collections.abc import Callable
from typing import Any

from support import jobs
from support.worlds import PATH

SIZE = 2
RANKS: dict[str, Callable[[], None]] = {}
"""Programs of ranks, by name."""


def ranks(function: Callable[[], None]) -> Callable[[], None]:
    RANKS[function.__name__] = function
    return function


def start(file: str, name: str, place: pathlib.Path, home: str) -> list[str]:
    """SIZE ranks run a function of `file`, whose last line is `main()`.  What each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {"PYTHONPATH": PATH, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "HOME": home}
    with jobs.Job(SIZE, argv=[sys.executable, file, name, str(place)], env=env) as job:
        ends = job.wait(240)
    for rank, end in enumerate(ends):
        assert end.code == 0, f"rank {rank} ended with {end.code}:\n{end.err[-6000:]}\n{end.out[-2000:]}"
        assert f"done {name}" in end.out
    return [end.out for end in ends]


def main() -> None:
    """On a rank.  argv: the name, and a directory that the ranks share."""
    for name in ("RANK", "LOCAL_RANK"):
        os.environ[name] = os.environ["HOCKET_RANK"]
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ[name] = os.environ["HOCKET_SIZE"]
    warnings.simplefilter("ignore")
    import torch.distributed as dist

    import hocket.torch  # noqa: F401  makes the name known also where no entry point is installed

    RANKS[sys.argv[1]]()
    if dist.is_initialized():
        dist.destroy_process_group()
    print(f"done {sys.argv[1]}", flush=True)


# --- one task that everybody learns


def network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def data() -> Any:
    import torch

    made = torch.Generator().manual_seed(7)
    return torch.utils.data.TensorDataset(torch.randn(32, 8, generator=made), torch.randn(32, 4, generator=made))


def loader(rows: int, **options: Any) -> Any:
    import torch

    return torch.utils.data.DataLoader(data(), batch_size=rows, **options)


def loss_of(model: Any, batch: Any) -> Any:
    import torch

    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def sgd(model: Any) -> Any:
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: Any) -> Any:
    import torch

    return torch.optim.Adam(model.parameters(), lr=0.01)


def learned(kind: Any = sgd, rows: int = 8, epochs: int = 2) -> tuple[Any, list[float]]:
    """One process: the model, and each step's loss."""
    model, losses = network(), []
    optimizer = kind(model)
    for _ in range(epochs):
        for batch in loader(rows):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


def same(got: Any, wanted: Any) -> None:
    """Models with the same parameters."""
    from torch.testing import assert_close

    assert_close([p.detach() for p in got.parameters()], [p.detach() for p in wanted.parameters()])


def on_hocket() -> None:
    import torch.distributed as dist

    from hocket.torch.group.process_group import ProcessGroupHocket

    assert dist.get_backend() == "hocket" and dist.get_world_size() == SIZE
    assert type(dist.group.WORLD) is ProcessGroupHocket
