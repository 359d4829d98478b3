"""The command line of `hocket doctor`: this machine, or with --job the ranks of a job."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from hocket.errors import ArgumentError

SECONDS = 10.0
WAIT = 60.0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hocket doctor", allow_abbrev=False,
        description="What works on this machine; with --job, under a launcher, what is slow or different in its job.",
    )  # fmt: skip
    add = made.add_argument
    add("--job", action="store_true", help="on all ranks under a launcher: hocket run -n 4 -- hocket doctor --job")
    add("--seconds", type=float, default=SECONDS, metavar="S", help=f"about how long --job measures ({SECONDS:g})")
    add("--timeout", type=float, default=WAIT, metavar="S", help=f"how long ranks wait for each other ({WAIT:g})")
    add("--plot", metavar="FILE", help="of --job: draw latency and bandwidth between the ranks (needs matplotlib)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.  0; 1: something that hocket needs is lacking, or ranks do not meet; 2: bad arguments."""
    made = parser()
    options = made.parse_args(argv)
    try:
        if not options.job:
            if options.plot:
                raise ArgumentError("--plot goes with --job")
            from hocket.tools.doctor import local

            return local.examine()
        check(options)
        from hocket.tools.doctor import job

        return job.examine(options.seconds, options.timeout, options.plot)
    except ArgumentError as why:
        made.error(str(why))


def check(options: argparse.Namespace) -> None:
    """ArgumentError before anything is started."""
    from hocket.arguments import seconds
    from hocket.collectives.job.place import is_first, launched

    seconds(options.seconds, "--seconds")
    seconds(options.timeout, "--timeout")
    if launched(None) is None:
        raise ArgumentError("--job asks all ranks of a job: start it under a launcher, as in "
                            "`hocket run -n 4 -- hocket doctor --job`")  # fmt: skip
    if not options.plot or not is_first():
        return  # rank 0 draws; other hosts need neither matplotlib nor the folder
    if find_spec("matplotlib") is None:
        raise ArgumentError("--plot needs matplotlib (pip install matplotlib)")
    if not os.access(os.path.dirname(os.path.abspath(options.plot)), os.W_OK):
        raise ArgumentError(f"--plot {options.plot} cannot be written")


if __name__ == "__main__":
    sys.exit(main())
