"""The bytes and the speed of codec="lossless" on real gradients and weights, beside zstd and lz4.

    python -m hocket.lab.compression.lossless               needs torch; of zstandard and lz4 what is installed
    python -m hocket.lab.compression.lossless --rate 1gbit  allreduce over a cable between two ranks, in turns (root)

A transformer of 3.2 million parameters learns to continue this checkout's own sources; its gradients and weights after
STEPS steps, in float32 and rounded to bfloat16 and float16.  One thread; the best of several turns.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hocket
from hocket.conformance.jobs.ranks import main_or_rank
from hocket.kernels.codecs import PACKED
from hocket.kernels.cpu.reduce import pack_array, unpack_array
from hocket.lab.program import on_a_cable, tell, timed

STEPS, TURNS, CALLS = 30, 5, 15
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("as it is", {}), ("lossless", {"codec": "lossless"}), ("auto", {"codec": "auto"}), ("exact", {"order": "exact"}),
)  # fmt: skip
Array = np.ndarray[Any, Any]


def trained() -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients and weights, each as one vector."""
    torch.manual_seed(0)
    root = Path(__file__).parents[2]
    text = torch.tensor(bytearray(b"".join(path.read_bytes() for path in sorted((root / "algorithms").glob("*.py")))))
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, 256), torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        torch.nn.Linear(256, 256),
    )  # fmt: skip
    adam = torch.optim.Adam(model.parameters(), 3e-4)
    for _ in range(STEPS):
        at = torch.randint(len(text) - 65, (8,))
        rows = torch.stack([text[i : i + 65] for i in at]).long()
        adam.zero_grad()
        loss: Any = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        adam.step()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return gradients, torch.cat([p.detach().flatten() for p in model.parameters()])


def best(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and the result."""
    seconds = []
    for _ in range(TURNS):
        begin = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), result


def others() -> dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]:
    found: dict[str, Any] = {}
    try:
        zstd: Any = importlib.import_module("zstandard")
        for level in (1, 3):
            found[f"zstd {level}"] = zstd.ZstdCompressor(level=level).compress, zstd.ZstdDecompressor().decompress
    except ImportError:
        print("(zstandard is not installed)")
    try:
        lz4: Any = importlib.import_module("lz4.frame")
        found["lz4"] = lz4.compress, lz4.decompress
    except ImportError:
        print("(lz4 is not installed)")
    return found


def rank() -> None:
    """Times of allreduces by each way, call by call in turns."""
    torch.set_num_threads(1)
    rows = []
    with hocket.init() as comm:
        for what, vector in zip(("gradients", "weights"), trained(), strict=True):
            for name in ("float32", "bfloat16", "float16"):
                x = vector.to(getattr(torch, name))
                out = torch.empty_like(x)
                times = [[timed(comm, partial(comm.allreduce, x, "avg", out, **how)) for _, how in WAYS]
                         for _ in range(3 + CALLS)]  # fmt: skip
                slowest = comm.allreduce(np.array(times[3:]), "max")
                faster = np.median(slowest[:, :1] / slowest, 0)
                rows.append([what, name, *map(float, np.median(slowest, 0)), *map(float, faster[1:])])
        tell(comm, {"rows": rows})


def over(rate: str) -> None:
    """Print what two ranks found with such a cable between them."""
    found = on_a_cable("hocket.lab.compression.lossless", rate, [])
    names = [name for name, _ in WAYS]
    print(f"| {rate} | dtype | {' | '.join(f'{name} ms' for name in names)} | times as fast: {', '.join(names[1:])} |")
    print("|---" * (3 + len(names)) + "|")
    for what, name, *numbers in found["rows"]:
        times, faster = numbers[: len(names)], numbers[len(names) :]
        cells = [what, name, *(f"{1e3 * t:.1f}" for t in times), ", ".join(f"{each:.2f}" for each in faster)]
        print("| " + " | ".join(cells) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hocket.lab.compression.lossless")
    parser.add_argument("--rate", help="in tc's words, as 1gbit")
    if rate := parser.parse_args().rate:
        over(rate)
        return 0
    torch.set_num_threads(1)
    gradients, weights = trained()
    codecs = {"lossless": (None, None), **others()}
    print(f"{len(weights):,} parameters\n")
    print("| what | dtype | by | bytes | pack GB/s | unpack GB/s |\n|---|---|---|---|---|---|")
    for what, vector in (("gradients", gradients), ("weights", weights)):
        for name in ("float32", "bfloat16", "float16"):
            x = vector.to(getattr(torch, name)).view(torch.int16 if name != "float32" else torch.int32).numpy()
            for by, (pack, unpack) in codecs.items():
                if pack is None or unpack is None:
                    out = np.empty_like(x)
                    there, packed = best(partial(pack_array, x, PACKED[name]))
                    back, _ = best(partial(unpack_array, out, packed, PACKED[name]))
                    assert (out == x).all()
                else:
                    data = x.tobytes()
                    there, packed = best(partial(pack, data))
                    back, _ = best(partial(unpack, packed))
                cells = [f"{len(packed) / x.nbytes:.3f}", *(f"{x.nbytes / s * 1e-9:.2f}" for s in (there, back))]
                print("| " + " | ".join([what, name, by, *cells]) + " |", flush=True)
    return 0


if __name__ == "__main__":
    main_or_rank(main, rank)
