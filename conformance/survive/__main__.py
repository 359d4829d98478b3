"""Does an elastic job go on, whoever dies, and whenever?  Members are killed, stopped, cut off and replaced.

    python -m hocket.conformance.survive [--seconds 60] [--events 1000] [--seed 3] [--ranks 4] [--mb 1] [--hosts 3]
                                         [--life crew] [--jobs 4]

runs `--jobs` elastic jobs side by side, one after the other, until time is over or so many events have happened.  An
event is one of events.py: a kill, two, a stop, a cable that is pulled, and several at once: in a step, in the
renewal, in the lobby, while the state moves.  A job lives as one of LIVES: by `renew`, with those who are silent or
without; as a crew, where newcomers come that are slow or do not fit, and members leave; on the axes of a mesh.  In some
jobs half of the processes have another clock (a time namespace; root).  Hosts are network namespaces (root); without
them there are no cables.
Prints what is wrong with the seed that repeats the events (their moments are not the same), and tables: how often what
was; how long after a kill survivors knew it, had agreed, and had done the step again; how long members stood still for
a newcomer.  Times are worth something with one job at a time (`--jobs 1`).
Exit code: 0, or 1 if a law was broken: a hang, wrong bits, two parts that both went on, somebody left out or called
dead who lives, an error, something left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hocket.conformance.jobs.elastic_trial import ElasticTrial
from hocket.conformance.jobs.ranks import started
from hocket.conformance.jobs.trial import EMPTY, module
from hocket.conformance.survive import judge
from hocket.conformance.survive.events import PATIENCE, Story, Wrong
from hocket.system.namespaces.hosts import refusal, remove_stale
from hocket.system.namespaces.switch import Switch, switch

RANK = module("hocket.conformance.survive.rank")
LIVES = ("wait", "expel", "crew", "mesh")
OF_A_JOB = 12
"""Events."""


def measured(story: Story) -> dict[str, list[float]]:
    """Seconds: from each kill that stood alone, on each survivor; and that a member stood still for a newcomer."""
    found: dict[str, list[float]] = {"known": [], "agreed": [], "again": [], "for a newcomer": []}
    for process in range(story.trial.size):
        for line in judge.steps(story.said(process)):
            seen = line.get("seen", {})
            at = max((at for at, _ in story.alone if at < seen.get("error", 0)), default=None)
            others = [at for at in story.deeds.killed.values() if at < seen.get("error", 0)]
            if at is not None and at == max(others) and seen["error"] - at < 1.0 and "joined" not in seen:
                found["known"].append(seen["error"] - at)
                found["agreed"].append(seen["agreed"] - at)
                found["again"].append(line["done"] - at)
            elif "joined" in seen and "error" not in seen:
                found["for a newcomer"].append(line["done"] - seen["joined"])
    return found


def job(
    options: argparse.Namespace, seed: int, until: float, at: Switch | None
) -> tuple[list[str], str, dict[str, int], dict[str, list[float]]]:
    """Faults of one job; how it lived; how often what happened; seconds."""
    dice = random.Random(f"{seed} job")
    where = [dice.randrange(options.hosts) for _ in range(options.ranks)] if at is not None else []
    where[:1] = [0] * len(where[:1])  # where the ranks meet
    life = dice.choice(LIVES) if options.life is None else options.life
    words = [*RANK, str(options.mb), life]
    names = at.hosts if at is not None else []
    transport = "hosts" if names else options.transport
    trial = ElasticTrial(words, options.ranks, transport, names, where, HOCKET_TIMEOUT="30")
    trial.clocks = dice.random() < 0.3 and os.geteuid() == 0 and os.path.exists("/proc/self/ns/time")
    story, wrong = Story(trial, at, seed, options.ranks, life == "crew"), []
    with trial:
        try:
            story.until("the first steps", lambda: len(story.members()) == options.ranks)
            for _ in range(options.each):
                if time.monotonic() > until:
                    break
                story.happen()
            wrong += story.end()
            wrong += story.deed if wrong else []
        except Wrong as why:
            wrong += [str(why), *story.laws(), *story.deed]
        finally:
            for host in range(len(names)):
                at.plug(host)  # type: ignore[union-attr]
        wrong += _accounts(trial.directory) if wrong else []
        times = measured(story)
        for rank in trial.living():
            trial.signal(rank, signal.SIGKILL)
        trial.wait(PATIENCE)
        excused = ("hocket-events-", f"hocket-{os.getuid()}", *([EMPTY] if story.deeds.killed else []))
        left = [each for each in trial.left() if not any(word in each for word in excused)]
    lived = f"{life}, two clocks" if trial.clocks else life
    return wrong + [f"left behind: {each}" for each in left], lived, story.counts, times


def _accounts(directory: str) -> list[str]:
    """The latest accounts of what ranks did last."""
    files = sorted(pathlib.Path(directory).glob("**/hocket-events-*/*.txt"), key=lambda each: each.stat().st_mtime)
    return [f"{each.name}:\n{each.read_text()}" for each in files[-2:]]


def worker(options: argparse.Namespace) -> dict[str, Any]:
    """One job after the other.  What was, and what is wrong."""
    until, seed, counts, lives = time.monotonic() + options.seconds, options.seed, Counter[str](), Counter[str]()
    times: dict[str, list[float]] = {}
    bad = 0
    with contextlib.ExitStack() as stack:
        at = stack.enter_context(switch(options.hosts)) if options.hosts else None
        while time.monotonic() < until and (not options.events or counts.total() < options.events):
            wrong, lived, happened, seconds = job(options, seed, until, at)
            counts.update(happened)
            lives[lived] += 1
            for name, values in seconds.items():
                times.setdefault(name, []).extend(values)
            if wrong:
                print(f"seed {seed}:", *wrong, sep="\n", file=sys.stderr, flush=True)
            bad, seed = bad + bool(wrong), seed + 1
    return {"counts": counts, "times": times, "lives": lives, "bad": bad}


def side_by_side(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Workers, each with seeds and hosts of its own."""
    words = [f"--{name}={getattr(options, name)}" for name in ("seconds", "ranks", "mb", "hosts", "each", "transport")]
    share = -(-options.events // options.jobs)
    words += [f"--life={options.life}"] if options.life else []
    words = [*module("hocket.conformance.survive"), *words, f"--events={share}", "--jobs=1", "--json"]
    commands = [([*words, f"--seed={options.seed + 10_000 * i}"], os.environ) for i in range(options.jobs)]
    with started(commands) as jobs:
        return [json.loads(each.communicate()[0]) for each in jobs]


def table(seconds: Mapping[str, list[float]]) -> str:
    head = ["| | times | median ms | slowest ms |", "|---|---|---|---|"]
    for name, values in seconds.items():
        shown = [f"{1e3 * statistics.median(values):.0f}", f"{1e3 * max(values):.0f}"] if values else ["", ""]
        head.append(f"| {name} | {len(values)} | {' | '.join(shown)} |")
    return "\n".join(head)


def report(found: Sequence[Mapping[str, Any]], seconds: float) -> int:
    """The exit code."""
    counts, lives, times = Counter[str](), Counter[str](), dict[str, list[float]]()
    for each in found:
        counts.update(each["counts"])
        lives.update(each["lives"])
        for name, values in each["times"].items():
            times.setdefault(name, []).extend(values)
    bad = sum(each["bad"] for each in found)
    print("| what happened | times |\n|---|---|")
    print(*(f"| {name} | {count} |" for name, count in sorted(counts.items())), sep="\n")
    print(f"\n{table(times)}\n")
    print("; ".join(f"{count} jobs {life}" for life, count in sorted(lives.items())))
    print(f"{counts.total()} events in {lives.total()} jobs, {bad} with a broken law; {seconds:.0f} s, "
          f"{os.cpu_count()} cores")  # fmt: skip
    return 1 if bad else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m hocket.conformance.survive", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seconds", type=float, default=60.0, help="no event begins later (default: 60)")
    parser.add_argument("--events", type=int, default=0, help="no job begins after so many (default: no limit)")
    parser.add_argument("--each", type=int, default=OF_A_JOB, help=f"events of each job (default: {OF_A_JOB})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--mb", type=float, default=1.0, help="megabytes of state (default: 1)")
    parser.add_argument("--hosts", type=int, default=None, help="0: none; default: 3 where this system allows them")
    parser.add_argument("--transport", choices=("shm", "tcp"), default="shm", help="without hosts")
    parser.add_argument("--life", choices=LIVES, help="of all jobs; default: drawn for each")
    parser.add_argument("--jobs", type=int, default=1, help="so many side by side (default: 1)")
    parser.add_argument("--json", action="store_true", help="what was, as JSON")
    options = parser.parse_args(argv)
    began, why = time.monotonic(), refusal()
    options.hosts = (0 if why else 3) if options.hosts is None else options.hosts
    if options.hosts and why:
        raise SystemExit(why)
    if options.hosts and not options.json:
        remove_stale()
    if options.json:
        print(json.dumps(worker(options)))
        return 0
    return report(side_by_side(options) if options.jobs > 1 else [worker(options)], time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
