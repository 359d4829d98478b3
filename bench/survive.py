"""Does an elastic job go on, whoever dies, and whenever?  Members are killed, paused and replaced at random moments.

`python -m hocket.bench.survive [--seconds 60] [--seed 3] [--ranks 4] [--mb 16] [--transport shm]`
runs one job of so many ranks after the other, each for up to `--events` events.  An event is a kill, two kills close
to each other (the second hits the renewal), or a pause; members that died are replaced by newcomers.  Prints what is
wrong with the seed that repeats the events (their moments are not the same), and a table: how long after the kill
survivors knew it, had agreed, and had done the step again; how long members stood still for a newcomer.
Exit code: 0, or 1 if a law was broken: a hang, states that differ, two parts that both went on, an error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hocket.bench.adversary.trial import LOOK, Trial, module

RANK = module("hocket.bench.adversary.survive_rank")
EVENTS = ("kill", "kill", "kill", "two kills", "pause")
PATIENCE = 60.0
"""Seconds in which everything has to happen: more is a hang."""


class Watched:
    """One job, its events, and what its members said."""

    def __init__(self, trial: Trial, seed: int) -> None:
        self.trial, self.dice = trial, random.Random(f"{seed} survive")
        self.dead: set[int] = set()
        self.kills: list[tuple[float, list[int]]] = []
        """When, and which processes."""
        self.pauses = 0

    def members(self) -> list[int]:
        """Processes that have done a step, and live."""
        return [r for r in range(self.trial.size) if r not in self.dead and self.steps(r)]

    def steps(self, process: int) -> list[dict[str, Any]]:
        return [line for line in self.trial.said(process) if "t" in line]

    def until(self, what: str, true: Callable[[], bool]) -> str:
        """Wait for it.  Returns what is wrong, if it does not come, or "" """
        deadline = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > deadline:
                living = [r for r in self.trial.living() if r not in self.dead]
                return f"{what} did not happen within {PATIENCE:g} s\n{self.trial.stacks(living)}"
            gone = [r for r in range(self.trial.size) if r not in self.dead and self.trial.code(r) not in (None, 0)]
            if gone:
                return f"process {gone[0]} ended: {self.trial.said(gone[0])[-1:]} {self.trial.cried(gone[0])[-2000:]}"
            time.sleep(LOOK)
        return ""

    def event(self, size: int) -> str:
        """One thing happens, and the job goes on.  What is wrong."""
        what = self.dice.choice(EVENTS)
        time.sleep(self.dice.random() * 0.3)
        members = self.members()
        if what == "pause":
            victim = self.dice.choice(members)
            self.trial.signal(victim, signal.SIGSTOP)
            time.sleep(self.dice.random() * 0.5)
            self.trial.signal(victim, signal.SIGCONT)
            self.pauses += 1
            return self._goes_on(members)
        victims = self.dice.sample(members, min(1 + (what == "two kills"), len(members) - 1))
        at = time.monotonic()
        for i, victim in enumerate(victims):
            if i:
                time.sleep(self.dice.random() ** 2 * 0.2)
            self.dead.add(victim)
            self.trial.signal(victim, signal.SIGKILL)
        self.kills.append((at, victims))
        wrong = self._goes_on([r for r in members if r not in self.dead])
        for _ in range(size - len(self.members())):
            if wrong:
                break
            new = self.trial.add(HOCKET_JOIN=f"folder:{self.trial.directory}/lobby")
            wrong = self.until(f"newcomer {new}'s first step", lambda new=new: bool(self.steps(new)))  # type: ignore[misc]
        return wrong

    def _goes_on(self, members: Iterable[int]) -> str:
        before = {r: len(self.steps(r)) for r in members}
        return self.until("the next steps of all", lambda: all(len(self.steps(r)) >= n + 2 for r, n in before.items()))

    def end(self) -> str:
        (pathlib.Path(self.trial.directory) / "over").touch()
        late = self.trial.wait(PATIENCE, [r for r in range(self.trial.size) if r not in self.dead])
        if late:
            return f"processes {late} did not end\n{self.trial.stacks(late)}"
        codes = {r: self.trial.code(r) for r in range(self.trial.size) if r not in self.dead and self.trial.code(r)}
        told = [self.trial.said(r)[-1] for r in codes if self.trial.said(r)]
        return f"exit codes {codes}: {told}" if codes else ""


def differs(lines: Iterable[dict[str, Any]]) -> list[str]:
    """In one generation, all that did a step hold the same bits, and know the same size."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    wrong = []
    for line in lines:
        first = found.setdefault((line["generation"], line["t"]), line)
        if (first["digest"], first["size"]) != (line["digest"], line["size"]):
            wrong.append(f"generation {line['generation']}, step {line['t']}: {first} and {line}")
    return wrong


def named_wrongly(watched: Watched) -> list[str]:
    """Only who was killed is lost: an error names ranks, which the generation before had."""
    wrong = []
    for process in range(watched.trial.size):
        before: dict[str, Any] = {}
        for line in watched.steps(process):
            seen = line.get("seen", {})
            if seen.get("named") and before and len(seen["named"]) > len(watched.dead):
                wrong.append(f"process {process} named {seen['named']} and {sorted(watched.dead)} were killed")
            before = line
    return wrong


def measured(watched: Watched) -> dict[str, list[float]]:
    """Seconds: from each kill that stood alone, on each survivor; and that a member stood still for a newcomer."""
    found: dict[str, list[float]] = {"known": [], "agreed": [], "again": [], "for a newcomer": []}
    for process in range(watched.trial.size):
        for line in watched.steps(process):
            seen = line.get("seen", {})
            before = [(at, len(victims)) for at, victims in watched.kills if at < seen.get("error", 0)]
            at, victims = max(before, default=(0.0, 0))
            if victims == 1 and "joined" not in seen:
                found["known"].append(seen["error"] - at)
                found["agreed"].append(seen["agreed"] - at)
                found["again"].append(line["done"] - at)
            elif "joined" in seen and "error" not in seen:
                found["for a newcomer"].append(line["done"] - seen["joined"])
    return found


def job(options: argparse.Namespace, seed: int, until: float) -> tuple[list[str], dict[str, list[float]], int, int]:
    """What is wrong, seconds, kills, pauses."""
    with contextlib.ExitStack() as stack:
        trial = Trial([*RANK], options.ranks, options.transport, HOCKET_ELASTIC="1", HOCKET_TIMEOUT="30")
        trial.env["HOCKET_LOBBY"] = f"{trial.directory}/lobby"
        trial.words = [*RANK, str(options.mb), trial.directory]
        stack.enter_context(trial)
        watched = Watched(trial, seed)
        wrong = watched.until("the first steps", lambda: len(watched.members()) == options.ranks)
        for _ in range(options.events):
            if wrong or time.monotonic() > until:
                break
            wrong = watched.event(options.ranks)
        wrong = wrong or watched.end()
        lines = [line for process in range(trial.size) for line in watched.steps(process)]
        kills = sum(len(victims) for _, victims in watched.kills)
        for rank in trial.living():
            trial.signal(rank, signal.SIGKILL)
        trial.wait(PATIENCE)
        left = [each for each in trial.left() if not each.startswith("tmp/hocket-events-")]
        found = [*([wrong] if wrong else []), *differs(lines), *named_wrongly(watched)]
        return found + [f"left behind: {each}" for each in left], measured(watched), kills, watched.pauses


def table(seconds: dict[str, list[float]]) -> str:
    head = ["| | times | median ms | slowest ms |", "|---|---|---|---|"]
    for name, values in seconds.items():
        shown = [f"{1e3 * statistics.median(values):.0f}", f"{1e3 * max(values):.0f}"] if values else ["", ""]
        head.append(f"| {name} | {len(values)} | {' | '.join(shown)} |")
    return "\n".join(head)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m hocket.bench.survive", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seconds", type=float, default=60.0, help="no event begins later (default: 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mb", type=float, default=16.0, help="megabytes of state (default: 16)")
    parser.add_argument("--events", type=int, default=10, help="of each job (default: 10)")
    parser.add_argument("--transport", choices=("shm", "tcp"), default="shm")
    options = parser.parse_args(argv)
    until, seed = time.monotonic() + options.seconds, options.seed
    total: dict[str, list[float]] = {}
    kills = pauses = bad = 0
    while time.monotonic() < until:
        wrong, seconds, killed, paused = job(options, seed, until)
        kills, pauses, bad = kills + killed, pauses + paused, bad + bool(wrong)
        for name, values in seconds.items():
            total.setdefault(name, []).extend(values)
        if wrong:
            print(f"seed {seed}:", *wrong, sep="\n", flush=True)
        seed += 1
    print(table(total))
    jobs = f"{seed - options.seed} jobs, {bad} with a broken law"
    print(f"{kills} kills, {pauses} pauses, {jobs}; {os.cpu_count()} cores")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
