"""A site is lost and found again, another one is late: what does the training lose, and how long do the others wait?

    python -m hocket.lab.outer.lost [--sites 4] [--rate 10mbit] [--rounds 80] [--grace 1.0]

Sites are network namespaces at a switch (root), each sends at `--rate`; they learn the digits of
hocket.lab.outer.digits by DiLoCo (lr 0.7, momentum 0.5, int8), a round every 10 steps.  Two trainings: one
undisturbed; and one in which a site is stopped after a quarter of the rounds, for three times the grace, and another
one is killed after half of them, and comes back a tenth later.  All train on until all are there.  Exit code: 0, or 1
if the loss is more than 1 % above the undisturbed one's, or somebody has waited longer for a late site than the grace
(and SLACK, for a busy machine).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import hocket
from hocket.conformance.jobs.elastic_trial import STEERED, ElasticTrial
from hocket.conformance.jobs.trial import LOOK, module, say
from hocket.lab.outer.digits import EACH, LAYERS, MOMENTUM, RATE, data, gradients, judged, weights
from hocket.system.namespaces.hosts import refusal
from hocket.system.namespaces.switch import switch
from hocket.training import Crew, DiLoCo, digest

EVERY, STEP, FALLS = 10, 0.005, 0.6
"""Steps of a round; seconds of a step, which a larger network would take; after this part of the rounds the learning
rate falls to a tenth."""
WORSE, SLACK, PATIENCE = 1.01, 1.0, 120.0
"""The loss may be so many times as large; seconds."""


def site(rounds: int, grace: float, sites: int) -> None:
    """One of them: it says what each of its rounds was, and the loss at the end."""
    known, depth = data(1, "iid"), len(LAYERS) - 1
    parameters = weights(1)
    theta = {f"{'w' if i < depth else 'b'}{i % depth}": each for i, each in enumerate(parameters)}
    speeds = [np.zeros_like(each) for each in parameters]
    while os.environ.get("HOCKET_JOIN") and not os.path.exists(_come()):  # it is ready to come back
        time.sleep(LOOK)
    crew = Crew(hocket.init(timeout=60), least=2, grace=grace)
    outer = DiLoCo(crew, theta, every=EVERY, lr=0.7, momentum=0.5, send="int8")
    dice = np.random.default_rng([3, os.getpid()])
    while outer.rounds < rounds or crew.comm.size < sites or crew.left_out:
        rate = RATE * (1 if outer.rounds < FALLS * rounds else 0.1)
        taken = dice.integers(0, known.digits.shape[1], (1, EACH))
        found = gradients(parameters, known.images[0, taken], known.digits[0, taken])
        for parameter, speed, gradient in zip(parameters, speeds, found, strict=True):
            speed *= MOMENTUM
            speed += gradient
            parameter -= rate * speed
        time.sleep(STEP)
        began = time.perf_counter()
        if report := outer.step():
            say(round=outer.rounds, size=crew.comm.size, members=len(report.members), left_out=len(report.left_out),
                waited=time.perf_counter() - began)  # fmt: skip
    accuracy, loss = judged(parameters, known)
    say(loss=loss, accuracy=float(accuracy[0]), digest=digest(*parameters))
    crew.close()


class SitesRun(NamedTuple):
    """The outcome of a training."""

    loss: float
    accuracy: float
    sizes: list[int]
    """The sites that took part in each round, as the first site has it."""
    waited: float
    """Seconds: the longest round in which nobody was late or lost ..."""
    late: float
    """... and the longest one that somebody was left out of."""
    lost: float
    """... and the longest one after a loss, or with a newcomer."""


def trained(options: argparse.Namespace, disturbed: bool) -> SitesRun:
    words = [*module("hocket.lab.outer.lost"), f"--rounds={options.rounds}", f"--grace={options.grace}", "--site"]
    words.append(f"--sites={options.sites}")
    with switch(options.sites, options.rate) as at:
        trial = ElasticTrial(words, options.sites, "hosts", at.hosts, list(range(options.sites)), HOCKET_TIMEOUT="60")
        with trial:
            if disturbed:
                _disturb(trial, options)
            late = trial.wait(PATIENCE)
            alive = [rank for rank in range(trial.size) if rank != VICTIM or not disturbed]
            if late or any(trial.code(rank) for rank in alive):
                raise SystemExit(f"sites {late} did not end\n" + "\n".join(map(trial.cried, range(trial.size))))
            return outcome([trial.said(rank) for rank in alive])


VICTIM, SLOW = 2, 1
"""Sites."""


def _disturb(trial: ElasticTrial, options: argparse.Namespace) -> None:
    """Disturb the sites, by the first one's rounds."""
    new = trial.join(VICTIM)
    _until(trial, lambda done: done >= options.rounds // 4)
    before = len(trial.said(SLOW))
    trial.signal(SLOW, signal.SIGSTOP)
    time.sleep(3 * options.grace)
    trial.signal(SLOW, signal.SIGCONT)
    _until(trial, lambda done: done >= options.rounds // 2 and len(trial.said(SLOW)) > before)
    trial.signal(VICTIM, signal.SIGKILL)
    lost = len(trial.said(0))
    _until(trial, lambda done: len(trial.said(0)) > lost + options.rounds // 10)
    with open(_come(trial.directory), "w"):
        pass
    _until(trial, lambda done: trial.said(new))


def _come(directory: str | None = None) -> str:
    """The file that tells the newcomer to come."""
    return os.path.join(directory or os.environ[STEERED], "come")


def _until(trial: ElasticTrial, true: Callable[[int], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true(max((line.get("round", 0) for line in trial.said(0)), default=0)):
        if time.monotonic() > deadline or (trial.code(0) is not None and not true(sys.maxsize)):
            raise SystemExit(f"the first site did not come so far: {trial.said(0)[-2:]} {trial.cried(0)}")
        time.sleep(LOOK)


def outcome(said: Sequence[Sequence[dict[str, Any]]]) -> SitesRun:
    """The outcome of a training, by the sites' words.  All end with the same bits."""
    ends = [lines[-1] for lines in said]
    if len({end["digest"] for end in ends}) != 1:
        raise SystemExit(f"sites end with different parameters: {ends}")
    longest = {"": 0.0, "late": 0.0, "lost": 0.0}
    for lines in said:
        size = lines[0]["size"]
        for line in [each for each in lines[1:] if "round" in each]:
            why = "lost" if line["size"] != size else "late" if line["left_out"] else ""
            size, longest[why] = line["size"], max(longest[why], line["waited"])
    sizes = [line["members"] for line in said[0] if "round" in line]
    return SitesRun(ends[0]["loss"], ends[0]["accuracy"], sizes, *longest.values())


def wrong(plain: SitesRun, disturbed: SitesRun, sites: int, grace: float) -> list[str]:
    """The promises that were not kept."""
    found = []
    if disturbed.loss > WORSE * plain.loss + 1e-4:
        found.append(f"the loss is {disturbed.loss:.4f}, undisturbed {plain.loss:.4f}")
    if disturbed.late > grace + SLACK:
        found.append(f"somebody waited {disturbed.late:.2f} s for a late site, the grace is {grace:g} s")
    if sites - 1 not in disturbed.sizes or disturbed.sizes[-1] != sites:
        found.append(f"the site was not lost and found again: {disturbed.sizes}")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m hocket.lab.outer.lost", description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--rate", default="10mbit", help="at which a site sends (10mbit)")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--grace", type=float, default=1.0, help="seconds that others wait for a late site (1.0)")
    parser.add_argument("--site", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.site:
        site(options.rounds, options.grace, options.sites)
        return 0
    if why := refusal():
        raise SystemExit(why)
    made = {"undisturbed": trained(options, False), "one lost and found, one late": trained(options, True)}
    print(f"# {options.sites} sites at {options.rate}, {options.rounds} rounds, grace {options.grace:g} s")
    print("| training | loss | accuracy, % | rounds by sites | longest wait, s | one late | loss or newcomer |")
    print("|---|---|---|---|---|---|---|")
    for name, row in made.items():
        sizes = ", ".join(f"{row.sizes.count(n)} of {n}" for n in sorted({*row.sizes}))
        print(f"| {name} | {row.loss:.4f} | {row.accuracy:.2f} | {sizes} | {row.waited:.2f} | {row.late:.2f} "
              f"| {row.lost:.2f} |")  # fmt: skip
    plain, disturbed = made.values()
    broken = wrong(plain, disturbed, options.sites, options.grace)
    print(*broken, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
