"""JAX's own tests of several processes, each file on hocket and on Gloo, compared test by test.

    python tests/frameworks/suites/jax_files.py JAX/tests/multiprocess [FILE ...] [--sizes 2x1,2x2,4x1,4x2]

The files are no part of this repository; they need absl-py and portpicker.  They run as they are, in processes that
never heard of hocket: two variables of the environment choose.  A size is processes x devices of each.  Prints for
each file and size how many tests passed on both, and each one that passes on Gloo alone.  Exits with 1 if there is one
that is not about float16 or float8, which XLA itself refuses before it calls another library than Gloo.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from hocket.xla import loading

FILES = (
    "all_gather", "all_reduce", "all_to_all", "array", "axis_index", "colocated_python", "device_id", "host_callback",
    "key_value_store", "multihost_utils", "pjit", "pmap", "wait_barrier",
)  # fmt: skip
"""Files whose tests need no TPU or GPU."""
END = re.compile(r"\[\s+(OK|FAILED|SKIPPED)\s+\] (\S+)")
REFUSED = re.compile(r"[Uu]nsupported primitive type for reduction: f(16|8\w*)")
"""XLA's own words about float16 and float8, which becomes float16."""


def run(file: Path, processes: int, devices: int, chosen: dict[str, str], limit: float) -> tuple[dict[str, str], str]:
    """By test how it ended, in all processes together; and what they said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    bare = {name: value for name, value in os.environ.items() if name not in (loading.FILE, loading.CHOICE)}
    flags = f"--xla_force_host_platform_device_count={devices}"
    with tempfile.TemporaryDirectory() as folder:
        env = {**bare, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "TMPDIR": folder, **chosen}
        common = [sys.executable, str(file), f"--num_processes={processes}"]
        common += [f"--multiprocess_test_controller_address=localhost:{port}", "--logtostderr"]
        logs = [Path(folder) / f"{number}.log" for number in range(processes)]
        started = []
        for number, log in enumerate(logs):
            with log.open("w") as to:
                command = [*common, f"--multiprocess_test_worker_id={number}"]
                started.append(subprocess.Popen(command, env=env, stdout=to, stderr=subprocess.STDOUT, cwd=folder))
        try:
            for process in started:
                process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        for process in started:
            process.kill()
            process.wait()
        texts = [log.read_text(errors="replace") for log in logs]
    ends: dict[str, str] = {}
    for text in texts:
        for end, name in END.findall(text):
            ends[name] = end if ends.get(name, end) == end else "FAILED"
    return ends, "\n".join(texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--sizes", default="2x1,2x2,4x1,4x2")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a file")
    parser.add_argument("--show", action="store_true", help="print what the processes said, where something is worse")
    options = parser.parse_args()
    worse = 0
    for name in options.files:
        file = options.folder / f"{name}_test.py"
        if not file.exists():
            print(f"{name}: not in this checkout")
            continue
        for processes, devices in ([int(n) for n in size.split("x")] for size in options.sizes.split(",")):
            gloo, _ = run(file, processes, devices, {loading.CHOICE: "gloo"}, options.limit)
            ours, said = run(file, processes, devices, loading.variables({}), options.limit)
            better = [test for test, end in gloo.items() if end == "OK" and ours.get(test) != "OK"]
            halves = [test for test in better if REFUSED.search(_about(test, said))]
            count = lambda ends: sum(end == "OK" for end in ends.values())  # noqa: E731
            print(f"{name} {processes}x{devices}: Gloo {count(gloo)}, hocket {count(ours)} of {len(gloo)}", flush=True)
            for test in better:
                print(f"  {test}: {'XLA refuses float16' if test in halves else 'passes on Gloo alone'}", flush=True)
            worse += len(better) - len(halves)
            if options.show and len(better) > len(halves):
                print(said)
    return 1 if worse else 0


def _about(test: str, said: str) -> str:
    """The error of one test."""
    name = test.rpartition(".")[2]
    return "".join(re.findall(rf"^(?:ERROR|FAIL): {re.escape(name)} .*?(?=^=====|\Z)", said, re.M | re.S))


if __name__ == "__main__":
    sys.exit(main())
