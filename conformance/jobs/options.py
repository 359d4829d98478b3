"""The options that programs of random jobs share: seeds, numbers of ranks, transports."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence

from hocket.conformance.jobs.trial import TRANSPORTS
from hocket.system.namespaces.hosts import hosts, refusal, remove_stale


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
    """Add them."""
    parser.add_argument("--seconds", type=float, default=seconds, help=f"how long (default: {seconds:g})")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each further one has the next")
    parser.add_argument("--count", type=int, help="how many, instead of --seconds")
    parser.add_argument("--ranks", type=ranks_of, default=range(2, 6), help="3, or 2..5 (default)")
    parser.add_argument("--transport", type=transports_of, help="shm,tcp,hosts (default: what works here)")


def seeds(options: argparse.Namespace) -> Iterator[int]:
    """Seeds, one after the other, until time is over."""
    end, seed = time.monotonic() + options.seconds, options.seed
    while seed < options.seed + options.count if options.count else time.monotonic() < end:
        yield seed
        seed += 1


def usable_transports(options: argparse.Namespace) -> list[str]:
    """Transports that are asked for; SystemExit if two hosts were asked for and cannot be."""
    why = refusal()
    if options.transport is None:
        return [transport for transport in TRANSPORTS if transport != "hosts" or why is None]
    if "hosts" in options.transport and why is not None:
        raise SystemExit(why)
    return list(options.transport)


@contextlib.contextmanager
def two_hosts(transports: Sequence[str]) -> Iterator[list[str]]:
    """The names of two hosts, if one of these transports needs them."""
    if "hosts" not in transports:
        yield []
        return
    remove_stale()
    with hosts() as names:
        yield names
