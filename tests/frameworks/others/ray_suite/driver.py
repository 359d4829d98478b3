"""Ray's own CPU tests of ray.util.collective, with hocket's name in place of Gloo's.

    python driver.py RAY/python/ray/util/collective/tests [--nodes 2] [--fresh] [arguments of pytest]

RAY is a checkout of ray-project/ray of the installed version; its tests are copied and changed, and are no part of this
repository.  --nodes 1 runs single_node_cpu_tests on a Ray of one node; --nodes 2 distributed_cpu_tests on one of two,
between which hocket uses TCP.  What tests Gloo's own insides is left out.  Tests use actors again that have left their
groups; with --fresh each has new ones, which takes many times as long.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
FOLDERS = {1: "single_node_cpu_tests", 2: "distributed_cpu_tests"}
OF_GLOO = ["test_gloo_group_isolation.py"]
PACKAGE = "ray_collective_tests"
CHANGES = [
    (r"\bBackend\.(GLOO|NCCL)\b", '"hocket"'),
    (r"\bray\.util\.collective\.tests\b", PACKAGE),
    (r"\bWorker\.remote\(\)", '__import__("pool").worker(Worker)'),
]
"""Changes of the tests' text: the backend, where the tests are, and where actors come from (pool.py)."""


def changed(source: pathlib.Path, target: pathlib.Path) -> None:
    text = source.read_text()
    for pattern, by in CHANGES:
        text = re.sub(pattern, by, text)
    target.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, choices=FOLDERS, default=1)
    parser.add_argument("--fresh", action="store_true")
    given, others = parser.parse_known_args()
    tests = sorted((given.suite / FOLDERS[given.nodes]).glob("test_*.py"))
    if not tests:
        parser.error(f"{given.suite / FOLDERS[given.nodes]} has no tests")
    with tempfile.TemporaryDirectory(prefix="hocket-ray-suite-") as place:
        package = pathlib.Path(place) / PACKAGE
        package.mkdir()
        (package / "__init__.py").touch()
        changed(given.suite / "cpu_util.py", package / "cpu_util.py")
        for test in tests:
            if test.name not in OF_GLOO:
                changed(test, pathlib.Path(place) / test.name)
        (pathlib.Path(place) / "conftest.py").write_text((HERE / "fixtures.py").read_text())
        (pathlib.Path(place) / "pool.py").write_text((HERE / "pool.py").read_text())
        path = os.pathsep.join([place, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path, "RAY_SUITE_NODES": str(given.nodes)}
        env["RAY_SUITE_FRESH"] = "1" if given.fresh else ""
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *(others or ["."])]
        return subprocess.run(command, cwd=place, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
