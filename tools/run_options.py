"""The command line of `hocket run`."""

from __future__ import annotations

import argparse
import os
import re
import sys

from hocket.errors import ArgumentError
from hocket.observe.files.names import SUFFIXES, check
from hocket.tools.remote.hosts import MOST as MOST_HOSTS
from hocket.tools.remote.hosts import check as check_hosts

GRACE = 10.0  # seconds that ranks have to end after Ctrl-C or SIGTERM
REPORT = 3.0  # seconds in which the others report a failure themselves
MOST_RANKS = 4096  # more would bring any machine down before they had met


def asked(argv: list[str]) -> argparse.Namespace:
    """The options by their names, and `slots`, the machines that --hosts or --hostfile name.

    SystemExit: the command line is wrong.
    """
    what = "Start n ranks of a program, on this machine or on several."
    parser = argparse.ArgumentParser(prog="hocket run", description=what, allow_abbrev=False)
    parser.add_argument("-n", type=_count, required=True, metavar="N", help="how many ranks")
    hosts = f"machines for ssh and their ranks, as a:8,b:8; or, as root, so many network namespaces (2 to {MOST_HOSTS})"
    parser.add_argument("--hosts", type=_hosts, default=0, metavar="HOSTS", help=hosts)
    file = "the machines, one a line, as `a slots=8` or `a:8`"
    parser.add_argument("--hostfile", metavar="FILE", help=file)
    agent = "the command that reaches a machine, to which its name is added or put for {host} (default: %(default)s)"
    parser.add_argument("--agent", default="ssh", metavar="COMMAND", help=agent)
    python = "the Python on those machines, with hocket (default: the path of this one)"
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help=python)
    folder = "the ranks' folder on those machines (default: this one's path)"
    parser.add_argument("--wdir", metavar="FOLDER", help=folder)
    export = "a variable that the ranks there get, too, besides HOCKET_...; again for a further one"
    value = "NAME[=VALUE]"
    parser.add_argument("-x", type=_export, action="append", default=[], dest="exports", metavar=value, help=export)
    link = "with --hosts: how fast each host can send, as 20Mbit (default: as this machine can)"
    parser.add_argument("--link", type=_rate, metavar="RATE", help=link)
    bind = "the cores of each rank: its own, its NUMA node's, or all (none, the default)"
    parser.add_argument("--bind", choices=("core", "numa", "none"), default="none", help=bind)
    parser.add_argument("--no-prefix", action="store_true", help="leave the output as it is, without '[rank] '")
    grace = f"seconds for the ranks to end after Ctrl-C, SIGTERM or SIGHUP, which they get too (default: {GRACE:g})"
    parser.add_argument("--grace", type=_seconds, default=GRACE, metavar="S", help=grace)
    report = f"seconds for the others after a rank failed (default: {REPORT:g})"
    parser.add_argument("--timeout-grace", type=_seconds, default=REPORT, metavar="S", help=report)
    elastic = "a rank that fails does not end the job; its exit code is 0 if any rank ends well"
    parser.add_argument("--elastic", action="store_true", help=elastic)
    least = "with --elastic: the job ends once fewer ranks are left"
    parser.add_argument("--least", type=_count, default=0, metavar="N", help=least)
    most = "with --elastic: members that the job has room for (default: no limit)"
    parser.add_argument("--most", type=_count, default=0, metavar="N", help=most)
    again = "with --elastic: how many that died are started again, as newcomers (default: 0; with --least, --most 10)"
    parser.add_argument("--restarts", type=_times, metavar="N", help=again)
    join = "the ranks come to an elastic job that runs, at this address of one of its ranks (comm.door), as newcomers"
    parser.add_argument("--join", metavar="ADDRESS", help=join)
    fork = "start each rank by itself, also where forking them from one process is faster"
    parser.add_argument("--no-fork", dest="fork", action="store_false", help=fork)
    trace = f"record everything, and write it here when the job has ended: a name that ends in {', '.join(SUFFIXES)}"
    parser.add_argument("--trace", type=_trace, metavar="PATH", help=trace)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script.py | command", help="with its arguments")
    options = parser.parse_args(argv)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("nothing to run: hocket run -n 4 script.py")
    if not options.elastic and (options.least or options.most or options.restarts is not None):
        parser.error("--least, --most and --restarts are for --elastic")
    if options.elastic and options.join:
        parser.error("--elastic begins a job, and --join comes to one: give one of them")
    try:
        _check_join(options.join or "auto")
    except ArgumentError as why:
        parser.error(f"--join: {why}")
    if options.least > options.n:
        parser.error(f"--least {options.least} ends a job of -n {options.n} at once: it is at most N")
    if 0 < options.most < options.n:
        parser.error(f"--most {options.most} has no room for the -n {options.n} ranks that begin the job")
    options.exports = dict(options.exports)
    try:
        check_hosts(options)
    except ArgumentError as why:
        parser.error(str(why))
    if options.command[0].endswith(".py"):
        options.command.insert(0, options.python if options.slots else sys.executable)
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, 1 to {MOST_RANKS}, for one machine")
    return int(text)


def _times(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes, 0 or more")
    return int(text)


def _check_join(join: str) -> None:
    """ArgumentError where init(join=) would not take it."""
    from hocket.collectives.job.place import addresses_of  # slow to import, and only newcomers need it

    if not join.startswith("folder:/") and join != "auto":
        kinds = {address[0] for each in join.split(",") for address in addresses_of(each)}
        if "tcp" in kinds and not os.environ.get("HOCKET_SECRET"):
            raise ArgumentError("set HOCKET_SECRET to that of the job")


def _hosts(text: str) -> int | str:
    if not text.isdecimal():
        return text
    if not 2 <= int(text) <= MOST_HOSTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hosts, 2 to {MOST_HOSTS}")
    return int(text)


def _export(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not name or (not given and name not in os.environ):
        raise argparse.ArgumentTypeError(f"there is no variable {name!r} here: give -x {name or 'NAME'}=VALUE")
    return name, value if given else os.environ[name]


def _rate(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*(\.\d+)?[kmg]bit", text, re.IGNORECASE):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: give it as 20Mbit, with kbit, Mbit or Gbit")
    return text.lower()


def _trace(text: str) -> str:
    try:
        path = check(os.path.abspath(text))
    except ArgumentError as why:
        raise argparse.ArgumentTypeError(str(why)) from None
    if not os.access(os.path.dirname(path), os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: there is no such folder, or it is not yours")
    return path


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found
