"""Programs of examples/ on ranks that start warm (support/warm): their imports take longer than most of them run."""

from __future__ import annotations

import textwrap
from pathlib import Path

from support import jobs

EXAMPLES = Path(__file__).parents[2] / "examples"


def program(name: str, *words: str) -> str:
    """A rank's program that is like `python examples/NAME.py WORDS`.  The text names what its warm parent shall import.
    """
    path = EXAMPLES / f"{name}.py"
    learns = "import sklearn.datasets" if "sklearn" in path.read_text() else ""
    return textwrap.dedent(f"""
        import runpy, sys
        {learns}
        sys.argv = {[str(path), *words]!r}
        runpy.run_path({str(path)!r}, run_name="__main__")
    """)


def run(name: str, ranks: int, *words: str, seconds: float = 100.0) -> str:
    """The output of its ranks; they must end well, and complain about nothing."""
    with jobs.Job(ranks, program(name, *words)) as job:
        ends = job.wait(seconds)
    assert [(end.code, end.err) for end in ends] == [(0, "")] * ranks
    return "".join(end.out for end in ends)
