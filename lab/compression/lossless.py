"""The bytes and the speed of codec="lossless" on real gradients and weights, beside zstd and lz4.

    python -m hocket.lab.compression.lossless               needs torch; of zstandard and lz4 what is installed

A transformer of 3.2 million parameters learns to continue this checkout's own sources; its gradients and weights after
STEPS steps, in float32 and rounded to bfloat16 and float16.  One thread; the best of several turns.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hocket.kernels.codecs import PACKED
from hocket.kernels.cpu.reduce import pack_array, unpack_array

STEPS, TURNS = 30, 5
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


def main() -> None:
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


if __name__ == "__main__":
    main()
