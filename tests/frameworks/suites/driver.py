"""Test files of others, each on hocket and on Gloo, compared test by test.

    python tests/frameworks/suites/driver.py torch PYTORCH/test/distributed/algorithms/test_join.py ... [-k NAME]
    python tests/frameworks/suites/driver.py torchft process_group_test.py local_sgd_test.py

The files are no part of this repository: those of PyTorch are in its checkout (of a folder all test_*.py are taken),
torchft installs its own.  They run as they are.  What is changed around them is in inside/: where they ask for Gloo
they get hocket.  Each file has a pytest of its own for each backend, ended after --limit seconds.

Prints for each file how many tests passed, failed, were skipped and made a process group, then each test that ends
otherwise than on Gloo, with its error.  Exits with 1 if a test passes on Gloo alone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).parent
BACKENDS = ("hocket", "gloo")
LINES = 12
"""Lines of an error that are shown."""


@dataclass
class Run:
    """The outcome of one file on one backend."""

    ends: dict[str, str] = field(default_factory=dict)
    """A test's name -> passed, failed or skipped."""
    errors: dict[str, str] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    """The tests that made a process group of this backend."""
    whole: bool = True
    """Did pytest come to its end?"""

    def count(self) -> str:
        counts = collections.Counter(self.ends.values())
        said = ", ".join(f"{counts[end]} {end}" for end in ("passed", "failed", "skipped") if counts[end])
        return f"{said or 'nothing'}; {len(self.groups)} with groups{'' if self.whole else '; NOT TO ITS END'}"


def read(place: pathlib.Path) -> Run:
    """From what pytest and the processes of the tests have left in `place`."""
    run = Run()
    with contextlib.suppress(FileNotFoundError):
        for line in (place / "ends").read_text().splitlines():
            name, _, end = line.rpartition(" ")
            run.ends[name] = end
    with contextlib.suppress(FileNotFoundError, xml.ParseError):
        for case in xml.parse(place / "junit.xml").iter("testcase"):
            for bad in [*case.iter("failure"), *case.iter("error")]:
                run.errors[f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"] = bad.text or ""
    with contextlib.suppress(FileNotFoundError):
        run.groups = set((place / "groups").read_text().split())
    return run


def run_file(suite: str, file: pathlib.Path, backend: str, limit: int, words: list[str]) -> Run:
    with tempfile.TemporaryDirectory(prefix="hocket-suite-") as folder:
        place = pathlib.Path(folder)
        # What lies beside a file of PyTorch is imported by its name; torchft's folder, a package, would hide modules.
        beside = [str(file.parent)] if suite == "torch" else []
        path = os.pathsep.join([str(HERE / "inside"), *beside, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {
            **os.environ, "PYTHONPATH": path, "SUITE_BACKEND": backend, "SUITE_PLACE": folder, "TMPDIR": folder,
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1",
            "PYTHONHASHSEED": "0",  # some name their tests in the order of a set
        }  # fmt: skip
        line = [sys.executable, "-m", "pytest", "-p", f"on_{suite}", "-p", "no:cacheprovider", "-p", "no:xdist", "-q"]
        line += ["-c", os.devnull, f"--rootdir={folder}", f"--junitxml={folder}/junit.xml", "-W", "ignore", *words]
        log = open(place / "log", "wb+")  # noqa: SIM115
        tests = subprocess.Popen([*line, str(file)], env=env, cwd=folder, stdout=log, stderr=log,
                                 start_new_session=True)  # fmt: skip
        try:
            tests.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(tests.pid, signal.SIGKILL)
            tests.wait()
        with contextlib.suppress(ProcessLookupError):  # ranks that a test has left
            os.killpg(tests.pid, signal.SIGKILL)
        run = read(place)
        run.whole = tests.returncode in (0, 1, 5)
        if not run.ends or not run.whole:
            log.seek(0)
            run.errors["the file"] = log.read().decode(errors="replace")[-3000:]
        log.close()
        return run


def differ(hocket: Run, gloo: Run) -> list[str]:
    """The tests that end differently."""
    names = sorted({*hocket.ends, *gloo.ends})
    return [name for name in names if hocket.ends.get(name, "missing") != gloo.ends.get(name, "missing")]


def short(error: str) -> list[str]:
    """The lines of the exception in pytest's text, or its end."""
    lines = error.strip().splitlines()
    return [line[:400] for line in ([line for line in lines if line.startswith("E ")] or lines)[-LINES:]]


def files_of(given: pathlib.Path, suite: str) -> list[pathlib.Path]:
    """The files of a folder, or of the installed package."""
    if not given.exists() and (found := importlib.util.find_spec(suite)) and found.origin:
        given = pathlib.Path(found.origin).parent / given
    if not given.exists():
        raise SystemExit(f"there is no {given}")
    return sorted(given.rglob("test_*.py")) if given.is_dir() else [given]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=("torch", "torchft"))
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    parser.add_argument("-k", default="", help="only tests with these names, as pytest takes it")
    parser.add_argument("--on", choices=BACKENDS, help="only on this backend, with all errors")
    parser.add_argument("--limit", type=int, default=300, help="seconds for a file on a backend (300)")
    options = parser.parse_args()
    words = ["-k", options.k] if options.k else []
    worse = 0
    for file in [file for given in options.files for file in files_of(given, options.suite)]:
        runs = {}
        for backend in [options.on] if options.on else BACKENDS:
            run = runs[backend] = run_file(options.suite, file.resolve(), backend, options.limit, words)
            print(f"{file.name:45} {backend:7} {run.count()}", flush=True)
        if options.on:
            shown = list(runs[options.on].errors)
        else:
            shown = differ(runs["hocket"], runs["gloo"])
            worse += sum(runs["gloo"].ends.get(name) == "passed" for name in shown)
        for name in [*shown, "the file"]:
            ends = " ".join(f"{backend}: {run.ends.get(name, 'missing')}" for backend, run in runs.items())
            for backend, run in runs.items():
                if name in run.errors:
                    print(f"    {name} ({ends}); on {backend}:", *short(run.errors[name]), sep="\n        ")
            if name in shown and not any(name in run.errors for run in runs.values()):
                print(f"    {name} ({ends})")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
