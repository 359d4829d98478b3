"""NVRTC and the disassembler by themselves: what CUDA C++ becomes, on a machine without a GPU."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hocket.system.cuda.nvrtc import compile


@cache
def folder() -> Path:
    """Where the packages nvidia-cuda-nvrtc, -cuobjdump and -nvdisasm (in the test extra) put their files."""
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    found = [path.parent.parent for place in places for path in place.glob("cu*/lib/libnvrtc.so.*")]
    assert found, "NVRTC is missing: pip install nvidia-cuda-nvrtc nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    return found[0]


def compile_cubin(text: str, options: Sequence[str], arch: int) -> bytes:
    """The cubin for sm_`arch`, made without a warning."""
    cubin, log = compile(text, options, arch, "kernels.cu")
    assert "warning" not in log, log
    return cubin


def assembly(cubin: Path) -> dict[str, str]:
    """The instructions of each kernel, one a line."""
    text = subprocess.run([folder() / "bin/nvdisasm", "-c", cubin], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def resources(cubin: Path) -> dict[str, dict[str, int]]:
    """REG, STACK, SHARED, LOCAL, ... of each kernel."""
    command = [folder() / "bin/cuobjdump", "-res-usage", cubin]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = re.findall(r"Function (\w+):\s*\n\s*(REG:.*)", done.stdout + done.stderr)
    return {name: {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", row)} for name, row in rows}
