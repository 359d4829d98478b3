"""The part of the time that a job trains whose ranks come and go all the time.

`python -m hocket.lab.elastic.churn [--seconds 600] [--each 20] [--least 4] [--most 8] [--mb 1] [--step 0.1]`
One elastic job on this host.  In every `--each` seconds one member is killed and one or two newcomers come, at random
moments, so that there are `--least` to `--most` of them.  A step computes (sleeps) `--step` seconds and averages `--mb`
megabytes.  Goodput: steps that the job has done, times the mean of those that nothing disturbed, in the time that
went by.  conformance/survive/judge.py looks for hangs, wrong bits and sums, and members that were left out.
Exit code: 0, or 1 if a law was broken or goodput is below 93 %.  That is for a machine that does nothing else, so its
load is told, at the start and the end.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from hocket.conformance.jobs.elastic_trial import ElasticTrial
from hocket.conformance.jobs.trial import LOOK
from hocket.conformance.survive import judge
from hocket.conformance.survive.__main__ import RANK
from hocket.conformance.survive.events import Story, Wrong
from hocket.lab.program import arguments

WANTED = 0.93


class ChurnRun(NamedTuple):
    """The outcome of a job."""

    steps: int
    mean: float
    """Seconds of a step that nothing disturbed."""
    seconds: float
    losses: int
    newcomers: int
    wrong: list[str]

    @property
    def goodput(self) -> float:
        return self.steps * self.mean / self.seconds


def period(story: Story, until: float, least: int, most: int) -> tuple[int, int]:
    """One loss, and newcomers, at random moments before `until`.  How many were lost, and came."""
    left, size = until - time.monotonic(), len(story.members())
    fewer, come = int(size > least or story.dice.random() < 0.5), story.dice.choice((1, 2) if size < most else (1,))
    deeds = sorted([(story.dice.random(), "kill")] * fewer + [(story.dice.random(), "join") for _ in range(come)])
    if size <= least:
        deeds.sort(key=lambda deed: deed[1])  # first somebody comes
    begun = time.monotonic()
    for moment, (_, deed) in zip(sorted(each for each, _ in deeds), deeds, strict=True):
        time.sleep(max(0.0, begun + 0.8 * left * moment - time.monotonic()))
        if deed == "join":
            story.note(f"starts {story.trial.join(0)}")
        else:
            story.until("enough members", lambda: len(story.members()) > least)
            story._kill(story._victims(1))
        story.go_on(story.members())
    time.sleep(max(0.0, until - time.monotonic()))
    return fewer, come


def job(options: argparse.Namespace) -> ChurnRun:
    words = [*RANK, str(options.mb), "wait", str(options.step)]
    trial = ElasticTrial(words, options.least, "shm", [], [], HOCKET_TIMEOUT="60")
    story, wrong, losses, newcomers = Story(trial, None, options.seed, options.least), [], 0, 0
    with trial:
        try:
            story.until("the first steps", lambda: len(story.members()) == options.least)
            begun, first = time.monotonic(), done(story)
            ends = begun
            while (ends := ends + options.each) <= begun + options.seconds:
                fewer, come = period(story, ends, options.least, options.most)
                losses, newcomers = losses + fewer, newcomers + come
            steps, seconds = done(story) - first, time.monotonic() - begun
            story.until("all newcomers' first steps", lambda: all(story.steps(p) for p in story.living()))
            wrong = story.end()
        except Wrong as why:
            return ChurnRun(0, 0.0, 1.0, losses, newcomers, [str(why), *story.laws()])
        lines = [line for p in range(trial.size) for line in judge.steps(story.said(p)) if "seen" not in line]
        return ChurnRun(steps, statistics.mean(line["lasted"] for line in lines), seconds, losses, newcomers, wrong)


def done(story: Story) -> int:
    """Steps that the job has done."""
    time.sleep(LOOK)
    return max(int(line["t"]) for p in range(story.trial.size) for line in judge.steps(story.said(p)))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = arguments(
        "hocket.lab.elastic.churn", __doc__, argv, seconds=600.0, each=20.0, least=4, most=8, mb=1.0, step=0.1, seed=1,
    )  # fmt: skip
    before, made, after = os.getloadavg()[0], job(options), os.getloadavg()[0]
    print(f"# {options.least} to {options.most} ranks, {options.mb:g} MB, a loss every {options.each:g} s, "
          f"{os.cpu_count()} cores, load {before:.1f} at the start and {after:.1f} at the end")  # fmt: skip
    print("| s | losses | newcomers | steps | a step, ms | goodput |\n|---|---|---|---|---|---|")
    print(f"| {made.seconds:.0f} | {made.losses} | {made.newcomers} | {made.steps} | {1e3 * made.mean:.1f} "
          f"| {made.goodput:.1%} |")  # fmt: skip
    print(*made.wrong, sep="\n")
    return 1 if made.wrong or made.goodput < WANTED else 0


if __name__ == "__main__":
    sys.exit(main())
