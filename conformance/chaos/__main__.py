"""Does a rank's death or pause end as promised, whenever it comes?  Ranks are killed and stopped at random moments.

    python -m hocket.conformance.chaos [--seconds 60] [--seed 3] [--ranks 2..5] [--transport shm,tcp,hosts]
                                       [--phase small] [--how kill]

Each seed is one job in one phase of its life (rank.py) in which one rank is killed, stopped, stopped and then killed,
or paused (stopped for less than a second).  judge.py says what the others must do.  Prints each violation with the
command that repeats it (the moment is chosen alike, but no two runs are), and a table.
Exit code: 0, or 1 if there was a violation.  Two hosts need root.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hocket.conformance.chaos.judge import LEAVING, LIMIT, MET, TIMEOUT, VERDICT, Observed, Verdict, judge
from hocket.conformance.chaos.rank import MEETING, PHASES
from hocket.conformance.jobs.options import common, seeds, two_hosts, usable_transports
from hocket.conformance.jobs.trial import LOOK, Trial, module, shown

HOWS = (*("kill",) * 5, "stop-kill", "pause", "stop")
STOPPABLE = ("blocking", "small", "huge", "async", "group", "op", "messages", "making")
"""Phases in which the limit of a call ends the wait for a rank that is stopped for good."""
PATIENCE = 30.0
"""Seconds for ranks to start."""
SLACK = 1.0
"""Seconds more than promised, for a busy machine."""
RANK = module("hocket.conformance.chaos.rank")


@dataclass(frozen=True)
class Scenario:
    """One trial, as its seed says."""

    seed: int
    size: int
    transport: str
    phase: str
    how: str
    victim: int
    late: int
    """The rank that is held back from the meeting; -1: none."""
    where: tuple[int, ...]
    waits: tuple[float, float]
    """Parts of the longest waits before the signal and after it."""

    @property
    def again(self) -> str:
        options = {"seed": self.seed, "count": 1, "ranks": self.size, "transport": self.transport, "phase": self.phase}
        return f"python -m hocket.conformance.chaos {shown({**options, 'how': self.how})}"


def scenario(
    seed: int, sizes: Sequence[int], transports: Sequence[str], phases: Sequence[str], hows: Sequence[str]
) -> Scenario:
    dice = random.Random(f"{seed} chaos")
    size, transport, phase = dice.choice(sizes), dice.choice(transports), dice.choice(phases)
    known = [how for how in hows if how in ("kill", "stop-kill") or phase in STOPPABLE] or ["kill"]
    how, victim = dice.choice(known), random.Random(f"{seed} victim").randrange(size)
    own = random.Random(f"{seed} moment")  # not shifted by how many there were to choose from
    late = own.choice([r for r in range(size) if r != victim]) if phase == "meeting" and size > 1 else -1
    where = (0, *(own.randrange(2) for _ in range(size - 1)))
    return Scenario(seed, size, transport, phase, how, victim, late, where, (own.random(), own.random()))


# ---------------------------------------------------------------------------------------------- a trial


def run(what: Scenario, names: Sequence[str], words: Sequence[str]) -> tuple[Observed, str]:
    """Run it: what was seen, and the stacks of the ranks that hang."""
    limit = {"HOCKET_TIMEOUT": f"{TIMEOUT if what.how == 'stop' else 30.0:g}"}
    with contextlib.ExitStack() as stack:
        trial = Trial([*words], what.size, what.transport, names, what.where, **limit)
        trial.words = [*words, what.phase, str(what.seed), trial.directory, str(what.late)]
        stack.enter_context(trial)
        _await(trial, what)
        hit, at = time.monotonic(), _hit(trial, what)
        (pathlib.Path(trial.directory) / "go").touch()
        survivors = [rank for rank in range(what.size) if rank != what.victim or what.how == "pause"]
        late = trial.wait(TIMEOUT + VERDICT + LEAVING + MEETING + 10 * LIMIT, survivors)
        stacks = trial.stacks(late) if late else ""
        codes = [None if rank in late else trial.code(rank) for rank in range(what.size)]
        for rank in trial.living():
            trial.signal(rank, signal.SIGKILL)
        trial.wait(PATIENCE)
        ranks = range(what.size)
        said, cried = [trial.said(r) for r in ranks], [trial.cried(r) for r in ranks]
        return Observed(what.victim, what.how, hit, at, said, codes, cried, trial.left()), stacks


def _await(trial: Trial, what: Scenario) -> None:
    """Wait until the phase has begun, and a random time more."""
    if what.phase == "meeting":
        _until(lambda: all(trial.said(r) for r in range(what.size) if r != what.late), trial)
        time.sleep(MET + what.waits[0] * 0.5)
    elif what.phase == "init":
        _until(lambda: bool(trial.said(what.victim)), trial)
        time.sleep(what.waits[0] * 0.4)
    else:
        _until(lambda: all(any(s.get("state") == "ready" for s in trial.said(r)) for r in range(what.size)), trial)
        time.sleep(what.waits[0] ** 2)


def _until(true: Callable[[], bool], trial: Trial) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < deadline and len(trial.living()) == trial.size:
        time.sleep(LOOK)


def _hit(trial: Trial, what: Scenario) -> float:
    """Kill or stop the victim.  Returns when that was."""
    if what.how != "kill":
        trial.signal(what.victim, signal.SIGSTOP)
        if what.how == "stop":
            return time.monotonic()
        time.sleep(what.waits[1])
    at = time.monotonic()
    if what.how == "pause":
        trial.signal(what.victim, signal.SIGCONT)
        time.sleep(what.waits[0] * 0.2)
        (pathlib.Path(trial.directory) / "done").touch()
        return at
    trial.signal(what.victim, signal.SIGKILL)
    return at


# ---------------------------------------------------------------------------------------------- the table


@dataclass
class PhaseRow:
    """All trials of one phase and one way to be hit."""

    tries: int = 0
    bad: int = 0
    outcomes: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.tries, self.bad = self.tries + 1, self.bad + bool(verdict.wrong)
        self.outcomes += verdict.outcomes
        self.seconds += verdict.seconds

    def line(self, phase: str, how: str) -> str:
        counts = ", ".join(f"{self.outcomes.count(each)} {each}" for each in sorted(set(self.outcomes)))
        times = [f"{statistics.median(self.seconds):.3f}", f"{max(self.seconds):.3f}"] if self.seconds else ["", ""]
        return f"| {' | '.join([phase, how, str(self.tries), counts, *times, str(self.bad)])} |"


def table(rows: dict[tuple[str, str], PhaseRow]) -> str:
    head = "| phase | how | jobs | survivors | median s | slowest s | violations |"
    order = {phase: place for place, phase in enumerate(PHASES)}
    ordered = sorted(rows, key=lambda key: (order[key[0]], key[1]))
    return "\n".join([head, "|---|---|---|---|---|---|---|", *(rows[key].line(*key) for key in ordered)])


def main(argv: Sequence[str] | None = None, words: Sequence[str] = tuple(RANK)) -> int:
    """The exit code.  `words` start a rank."""
    parser = argparse.ArgumentParser(prog="python -m hocket.conformance.chaos", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    common(parser, 60.0)
    parser.add_argument("--phase", type=_among(PHASES), default=list(PHASES), help=",".join(PHASES))
    parser.add_argument("--how", type=_among(HOWS), default=list(HOWS), help=",".join(sorted(set(HOWS))))
    parser.add_argument("--slack", type=float, default=SLACK, help=f"seconds more than promised (default: {SLACK:g})")
    options = parser.parse_args(argv)
    transports = usable_transports(options)
    rows: dict[tuple[str, str], PhaseRow] = {}
    with two_hosts(transports) as names:
        for seed in seeds(options):
            what = scenario(seed, options.ranks, transports, options.phase, options.how)
            seen, stacks = run(what, names, words)
            verdict = judge(seen, options.slack)
            rows.setdefault((what.phase, what.how), PhaseRow()).add(verdict)
            if verdict.wrong:
                print(f"seed {seed}, {what.how} of rank {what.victim} of {what.size}, {what.phase}, {what.transport}:")
                print(*verdict.wrong, *([stacks] if stacks else []), sep="\n")
                print(f"again: {what.again}\n", flush=True)
    print(table(rows))
    return 1 if any(row.bad for row in rows.values()) else 0


def _among(known: Sequence[str] | dict[str, Callable[..., None]]) -> Callable[[str], list[str]]:
    """An option's type: some of these names, with commas between."""

    def parse(text: str) -> list[str]:
        if not set(text.split(",")) <= set(known):
            raise argparse.ArgumentTypeError(f"{text!r}: there are {', '.join(dict.fromkeys(known))}")
        return text.split(",")

    return parse


if __name__ == "__main__":
    sys.exit(main())
