"""Are results right whatever is called in whatever order?  Random programs on real ranks, against NumPy.

    python -m hocket.conformance.fuzz [--seconds 60] [--seed 7] [--ranks 2..5] [--transport shm,tcp,hosts]

Each seed is a program (program.py): collectives, messages, communicators, blocking and asynchronous, which every rank
runs and checks by itself (rank.py).  A failure is printed with its round, the call, and the command that repeats it;
ranks that hang are asked where they are.  Exit code: 0, or 1 if a program failed.  Two hosts need root.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from hocket.conformance.jobs.options import common, seeds, two_hosts, usable_transports
from hocket.conformance.jobs.trial import Trial, module, shown

ROUNDS = 60
PATIENCE = 90.0
"""Seconds for one program; HOCKET_TIMEOUT ends most of what hangs before."""
TIMEOUT = 20.0
"""HOCKET_TIMEOUT of the ranks."""
RANK = module("hocket.conformance.fuzz.rank")
"""A rank runs this."""


def judged(trial: Trial, late: list[int], stacks: str) -> list[str]:
    """Faults of a program that has ended, the cause first; nothing if all is well."""
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
    parser = argparse.ArgumentParser(prog="python -m hocket.conformance.fuzz", description=__doc__,
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
                print(f"again: python -m hocket.conformance.fuzz {shown(what)}\n", flush=True)
    which = f"seeds {options.seed} to {options.seed + done - 1}"
    print(f"{done} programs of {options.rounds} rounds, {which}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
