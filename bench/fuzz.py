"""Are results right whatever is called in whatever order?  Random programs on real ranks, against NumPy.

`python -m hocket.bench.fuzz [--seconds 60] [--seed 7] [--ranks 2..5] [--transport shm,tcp,hosts]`.  Each seed is a
program (fuzz_program.py): collectives, messages, communicators, blocking and asynchronous, which every rank runs and
checks by itself (fuzz_rank.py).  A failure is printed with its round, the call, and the command that repeats it; ranks
that hang are asked where they are.  Exit code: 0, or 1 if a program failed.  Two hosts need root (hosts.py).
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

from hocket.bench.adversary.trial import TRANSPORTS, Trial, module, shown
from hocket.bench.harness.hosts import hosts, refusal, remove_stale

ROUNDS = 60
PATIENCE = 90.0
"""Seconds for one program; HOCKET_TIMEOUT ends most of what hangs before."""
TIMEOUT = 20.0
"""HOCKET_TIMEOUT of the ranks."""
RANK = module("hocket.bench.adversary.fuzz_rank")
"""What a rank runs."""


def ranks_of(text: str) -> range:
    """ "3", or "2..5" with both ends."""
    first, dots, last = text.partition("..")
    try:
        found = range(int(first), int(last if dots else first) + 1)
    except ValueError:
        found = range(0)
    if not found or found[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, like 3, or 2..5")
    return found


def transports_of(text: str) -> list[str]:
    """Names with commas between."""
    found = text.split(",")
    if not set(found) <= set(TRANSPORTS):
        raise argparse.ArgumentTypeError(f"{text!r}: there are {', '.join(TRANSPORTS)}")
    return found


def common(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Add the options that fuzz.py and chaos.py share."""
    parser.add_argument("--seconds", type=float, default=seconds, help=f"how long (default: {seconds:g})")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each further one has the next")
    parser.add_argument("--count", type=int, help="how many, instead of --seconds")
    parser.add_argument("--ranks", type=ranks_of, default=range(2, 6), help="3, or 2..5 (default)")
    parser.add_argument("--transport", type=transports_of, help="shm,tcp,hosts (default: what works here)")


def seeds(options: argparse.Namespace) -> Any:
    """Seeds, one after the other, until time is over."""
    end, seed = time.monotonic() + options.seconds, options.seed
    while seed < options.seed + options.count if options.count else time.monotonic() < end:
        yield seed
        seed += 1


def usable_transports(options: argparse.Namespace) -> list[str]:
    """Those asked for; SystemExit if two hosts were asked for and cannot be."""
    why = refusal()
    if options.transport is None:
        return [transport for transport in TRANSPORTS if transport != "hosts" or why is None]
    if "hosts" in options.transport and why is not None:
        raise SystemExit(why)
    return list(options.transport)


@contextlib.contextmanager
def two_hosts(transports: Sequence[str]) -> Any:
    """The names of two hosts, if one of these transports needs them."""
    if "hosts" not in transports:
        yield []
        return
    remove_stale()
    with hosts() as names:
        yield names


# --------------------------------------------------------------------------------------------- a program


def judged(trial: Trial, late: list[int], stacks: str) -> list[str]:
    """What is wrong with a program that has ended, the cause first; nothing if all is well."""
    found = [(said, rank) for rank in range(trial.size) for said in trial.said(rank) if "error" in said]
    found.sort(key=lambda each: (each[0]["error"] == "PeerLostError", each[0]["at"]))
    lines: list[str] = []
    for said, rank in found:
        line = f"rank {rank}, round {said['round']}: {said['error']}"
        follows = bool(lines) and said["error"] == "PeerLostError"  # from what another rank has said
        lines.append(line if follows else f"{line}: {said['text']}\n  in {said['call']}")
    if late:
        lines.append(f"ranks {late} did not end\n{stacks}")
    for rank in range(trial.size):
        code, cried = trial.code(rank), trial.cried(rank)
        if rank not in late and (code not in (0, 3) or code == 0 and cried):
            lines.append(f"rank {rank} ended with {code}, and wrote: {cried[-3000:]}")
    return lines or unlike(trial) or trial.left()


def unlike(trial: Trial) -> list[str]:
    """Results that all ranks must have alike, and do not."""
    seen: dict[str, tuple[int, int]] = {}
    lines = []
    for rank in range(trial.size):
        for name, found in next(said["sums"] for said in trial.said(rank) if "sums" in said).items():
            first, other = seen.setdefault(name, (rank, found)) if name.endswith("all") else (rank, found)
            if found != other:
                which = name.partition(".")[0]
                lines.append(f"round {which}: ranks {first} and {rank} hold different bits after an allreduce")
    return lines


def run(seed: int, size: int, transport: str, rounds: int, names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Run one program.  Returns what is wrong with it."""
    limit = {"HOCKET_TIMEOUT": f"{TIMEOUT:g}"}
    where = [0, *(random.Random(f"{seed} hosts").randrange(2) for _ in range(size - 1))]
    with Trial([*words, str(seed), str(rounds), transport], size, transport, names, where, **limit) as trial:
        deadline = time.monotonic() + PATIENCE
        while (late := trial.wait(0.2)) and time.monotonic() < deadline:
            if any(trial.code(rank) not in (None, 0) for rank in range(size)):  # the others will say so, or hang
                deadline = min(deadline, time.monotonic() + TIMEOUT)
        return judged(trial, late, trial.stacks(late) if late else "")


def main(argv: Sequence[str] | None = None, words: Sequence[str] = tuple(RANK)) -> int:
    """The exit code.  `words` start a rank."""
    parser = argparse.ArgumentParser(prog="python -m hocket.bench.fuzz", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    common(parser, 60.0)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of a program (default: {ROUNDS})")
    options = parser.parse_args(argv)
    transports = usable_transports(options)
    done = failed = 0
    with two_hosts(transports) as names:
        for seed in seeds(options):
            dice = random.Random(f"{seed} program")
            size, transport = dice.choice(options.ranks), dice.choice(transports)
            wrong = run(seed, size, transport, options.rounds, names, words)
            done, failed = done + 1, failed + bool(wrong)
            if wrong:
                what = {"seed": seed, "count": 1, "ranks": size, "transport": transport, "rounds": options.rounds}
                print(f"seed {seed}, {size} ranks over {transport}:", *wrong, sep="\n")
                print(f"again: python -m hocket.bench.fuzz {shown(what)}\n", flush=True)
    which = f"seeds {options.seed} to {options.seed + done - 1}"
    print(f"{done} programs of {options.rounds} rounds, {which}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
