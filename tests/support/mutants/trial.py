"""Trials of a mutant: the tests that reach it run in the copy of the tree, quick ones first, shortest first."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from support.mutants.tree import Tree
from support.mutants.trial_plugin import ORDER
from support.pace import pace
from support.running.record import Record

PACE = pace()
"""Seconds here for one of the seconds below, which are of the machine whose times the record has."""
LIMIT = 60.0
"""Seconds of all trials of a mutant."""
HANGS = {"quick": 20, "slow": 20, "more": 60}
"""Seconds of one test."""
START = 6.0
"""Seconds of a pytest until its first test."""
WORKERS = 2
OPTIONS = {"quick": ["--quick"], "slow": [], "more": ["-m", "more"]}
"""Options of pytest, for each stage."""
PASSED, NOTHING = 0, 5
"""pytest's exit codes."""


class Verdict(NamedTuple):
    """`by`: a test, or what else showed it; "" where it survived.  `stage`: quick, slow, more, survived."""

    by: str
    stage: str
    seconds: float
    files: int


class Trials:
    """Results of the tree as it is: a test that fails there kills nothing."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.record = Record()
        self.broken: set[str] = set()
        """Tests that fail without a mutant."""
        self.sound: set[str] = set()
        """Tests that passed without a mutant."""
        self._spent = 0.0
        self._codes: dict[tuple[str, ...], int | None] = {}

    def judge(self, source: str, text: str, files: Iterable[str], more: Iterable[str]) -> Verdict | None:
        """`more`: the files whose tests marked `more` run if all others pass.  None: it does not compile."""
        changed = self.tree.built(source, text)
        if changed is None:
            return None
        count, self._spent = 0, 0.0
        for stage, chosen in {"quick": files, "slow": files, "more": more}.items():
            left = LIMIT - self._spent if stage != "more" else LIMIT
            if names := self._names(stage, chosen, left):
                count += len(names)
                if by := self._stage(changed, names, stage, left):
                    return Verdict(by, stage, self._spent, count)
        return Verdict("", "survived", self._spent, count)

    def _stage(self, changed: dict[str, bytes], names: list[str], stage: str, limit: float) -> str:
        while True:
            began = time.monotonic()
            with self.tree.changed(changed):
                code, failed = self._pytest(names, stage, limit)
            self._spent += (time.monotonic() - began) / PACE
            if code in (PASSED, NOTHING):
                return ""
            if not failed:
                how = "out of time" if code is None else f"pytest's end with {code}"
                return how if self._unchanged(names, stage, limit) != code else ""
            for test in failed:
                if self._is_sound(test, stage) and self._fails_again(changed, test, stage):
                    return test

    def _is_sound(self, test: str, stage: str) -> bool:
        if test not in self.sound:
            code, _ = self._pytest([test], stage, LIMIT)
            (self.sound if code == PASSED else self.broken).add(test)
        return test in self.sound

    def _fails_again(self, changed: dict[str, bytes], test: str, stage: str) -> bool:
        """Else it failed by chance, and is left out from now on.  Quick tests know no chance."""
        if stage == "quick":
            return True
        with self.tree.changed(changed):
            fails = self._pytest([test], stage, LIMIT)[0] != PASSED
        if not fails:
            self.sound.discard(test)
            self.broken.add(test)
        return fails

    def _unchanged(self, names: list[str], stage: str, limit: float) -> int | None:
        """The exit code without a mutant, in half the time: a busy machine must not look like a mutant that hangs."""
        key = (stage, *names)
        if key not in self._codes:
            self._codes[key] = self._pytest(names, stage, limit / 2)[0]
        return self._codes[key]

    def _names(self, stage: str, files: Iterable[str], seconds: float) -> list[str]:
        """Files, the shortest first, as many as fit into the time."""
        walls: dict[str, float] = defaultdict(float)
        for name, line in self.record.lines.items():
            quick = line.starts == 0 and line.wall < 1 and "torch" not in line.words
            if (stage == "quick") == quick:
                walls[name.partition("::")[0]] += line.wall
        if stage == "more":
            return sorted(files)
        left, chosen = (seconds - START) * WORKERS, []
        for file in sorted((file for file in files if file in walls), key=lambda file: walls[file]):
            left -= walls[file]
            if left > 0:
                chosen.append(file)
        return chosen

    def _pytest(self, names: list[str], stage: str, limit: float) -> tuple[int | None, list[str]]:
        """Its exit code, None if it was ended; and what failed."""
        order, told = self.tree.root / "build/order.json", self.tree.root / "build/told.json"
        told.unlink(missing_ok=True)
        order.write_text(json.dumps({"without": sorted(self.broken), "slow": stage == "slow", "told": str(told)}))
        env = {**os.environ, ORDER: str(order)}
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            env.pop(name, None)
        hangs = HANGS[stage] * PACE
        words = ["-m", "pytest", "-p", "no:cacheprovider", "-x", f"--workers={WORKERS}", f"--timeout={hangs:.0f}"]
        command = [self.tree.root / ".venv/bin/python", *words, *OPTIONS[stage], *names]
        with open(self.tree.root / "build/trial.log", "w") as log:
            run = subprocess.Popen(command, cwd=self.tree.root, env=env, stdout=log, stderr=log, start_new_session=True)
            try:
                code: int | None = run.wait(limit * PACE)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(run.pid, signal.SIGKILL)  # workers, if it was ended
                run.wait()
        return code, json.loads(told.read_text()) if told.exists() else []
