"""Where and with what a benchmark ran, for its JSON file: a number without these means little."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

import numpy

import hocket
from hocket.bench.harness.table import Row
from hocket.kernels.cpu.reduce import features
from hocket.system.cores import processor, usable_cores


def describe() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "processor": processor(),
        "features": features(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "load": list(os.getloadavg()),
    }


def write(path: str, before: dict[str, Any], abouts: dict[str, str], rows: Sequence[Row]) -> None:
    """All of it as one JSON object."""
    content = {
        "command": sys.argv,
        "machine": before,
        "load_after": list(os.getloadavg()),
        "versions": {
            "python": platform.python_version(), "numpy": numpy.__version__, "hocket": hocket.__version__, **abouts
        },
        "rows": [row.record() for row in rows],
    }  # fmt: skip
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
