"""`make compare`: the judgement, and a real run of a line or two."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hocket.bench.compare import Machine, Result, line, title
from hocket.bench.harness.targets import TARGETS, Target


def result(target: Target, **seconds: float) -> Result:
    made = Result(target, seconds, {}, "ring")
    made.judge()
    return made


def test_the_better_thread_level_of_the_best_mpi_counts() -> None:
    target = Target(2, 1024, mpi=0.5)
    met = result(target, hocket=1e-6, mpich=4e-6, openmpi=3e-6, **{"mpich-single": 2e-6}, gloo=1e-9)
    assert met.best_mpi == ("mpich-single", 2e-6) and met.verdicts == []
    missed = result(target, hocket=1.1e-6, mpich=4e-6, **{"mpich-single": 2e-6})
    assert missed.verdicts == ["0.55 x MPI > 0.5"]
    assert "| 0.55 | 0.5 |" in line(missed) and line(missed).endswith("0.55 x MPI > 0.5 |")


def test_what_falls_short_is_said() -> None:
    target = Target(2, 64 << 20, gloo=4, us=100, limit=1.2)
    verdicts = result(target, hocket=150e-6, gloo=300e-6, limits=100e-6).verdicts
    assert verdicts == ["2.0 x faster than Gloo < 4", "150.00 us > 100", "1.50 x the machine > 1.2"]


def test_what_falls_short_of_ourselves_or_beside_a_neighbour_is_said() -> None:
    made = Result(Target(2, 8, own=0.6, busy=True), {"hocket": 7e-6}, {}, "ring")
    made.plain, made.slow = 10e-6, {"hocket": 12e-6, "openmpi": 20e-6, "openmpi-single": 11e-6, "mpich": 1e-6}
    made.judge()
    assert made.verdicts == ["0.70 x our float32 > 0.6", "p99 12.0 us > Open MPI's 11.0"]
    assert "| 12.00 |" in line(made) and "a busy neighbour" in line(made)


def test_every_line_has_a_title_of_its_own() -> None:
    titles = [title(t) for t in TARGETS]
    assert len(set(titles)) == len(titles) and "allreduce 64 KiB, 4 ranks" in titles


class Heard:
    """A team that remembers its orders."""

    name = about = "heard"

    def order(self, do: str, **fields: object) -> list[dict[str, object]]:
        self.last = do, fields
        return []

    def close(self) -> None: ...


def test_the_machine_moves_what_the_ranks_would() -> None:
    """Over TCP p ranks send 2(p - 1)n bytes in all, and one socket carries n each way."""
    heard = Heard()
    machine = Machine(heard, Target(4, 1 << 20, transport="tcp"))
    machine.order("prepare", collective="allreduce", size=4, count=1 << 18)
    assert heard.last == ("prepare", {"collective": "duplex", "size": 2, "count": 3 << 18})
    machine.order("time", iterations=3)
    assert heard.last == ("time", {"iterations": 3})


@pytest.mark.timeout(300)  # MPIs wait without yielding: beside another program's they take milliseconds a call
@pytest.mark.parametrize(("only", "peer"), [("barrier", "mpich"), ("1 MiB, 2 ranks, tcp", "openmpi-single")])
def test_a_run(only: str, peer: str, tmp_path: Path) -> None:
    """A line beside Gloo, an MPI and the machine."""
    file, picture = tmp_path / "compare.json", tmp_path / "compare.png"
    words = [sys.executable, "-m", "hocket.bench.compare", "--only", only, "--peers", f"gloo,{peer}"]
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- make compare -->\nold\n<!-- end -->\nafter\n")
    words += ["--time", "0.02", "--blocks", "2", "--json", str(file), "--plot", str(picture), "--readme", str(readme)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "1 lines, " in done.stdout
    text = readme.read_text()
    assert text.startswith("before\n<!-- make compare -->\n") and text.endswith("|\n<!-- end -->\nafter\n")
    assert f"\n| {only}" in text.replace("allreduce ", "") and "old" not in text
    pingpong, row = json.loads(file.read_text())["rows"]
    assert pingpong["collective"] == "pingpong" and 0.01 < pingpong["us"]["hocket"] < 1000
    assert {"hocket", "gloo", peer} <= set(row["us"]), done.stderr
    assert row["us"].get("limits", 100) > 10, "a megabyte takes longer than that"
    assert picture.read_bytes().startswith(b"\x89PNG")
