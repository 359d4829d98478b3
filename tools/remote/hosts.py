"""The hosts of a `hocket run`: machines that ssh reaches, or, with `--hosts 2 --link 20Mbit`, network namespaces here.

On all of them an agent starts the ranks (agent.py); only the words that start the agent differ.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.errors import ArgumentError, TransportError
from hocket.tools.remote import hostlist

MOST = 8
"""Namespaces."""
SECRETS = ("HOCKET_SECRET", "HOCKET_SECRET_FILE")
"""Variables that stay here: what reaches a host gets none of them."""
SSH = ("-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""It asks no questions: an unknown key, a password, a passphrase are errors."""
AGENT = ("-m", "hocket.tools.remote.agent")
OWN = (
    "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "RENDEZVOUS", "LAST_WORDS", "JOIN", "LOBBY", "ELASTIC", "MOST", "FORKS",
)  # fmt: skip
"""Variables HOCKET_... of one process or job: they are not carried to other hosts."""


class Host(NamedTuple):
    """A host, and the words that start a program there."""

    name: str
    ranks: range
    words: Sequence[str]
    env: Mapping[str, str] = {}
    """Further variables for those words."""
    shows: str = ""
    """Its name in errors, with the line that named it."""
    python: str = ""
    address: str = ""
    """Where it is known before its agent says so."""


@contextlib.contextmanager
def hosts(options: argparse.Namespace, directory: str) -> Iterator[Sequence[Host]]:
    """Namespaces are gone after the block.  Empty: ranks stay on this machine as it is."""
    if options.slots:
        yield machines(options)
    elif not options.hosts:
        yield ()
    else:
        with _namespaces(options, directory) as made:
            yield made


def machines(options: argparse.Namespace) -> list[Host]:
    """Each with the command that reaches it."""
    agent = shlex.split(options.agent)
    quoted = shlex.quote(options.python)
    if os.path.basename(agent[0]) == "ssh":
        agent[1:1] = SSH
    found = []
    for each, ranks in hostlist.spread(options.slots, options.n):
        words = [word.replace("{host}", each.name) for word in agent]
        words += [] if words != agent else [each.name]
        shows = f"{each.name} ({each.line})" if each.line.endswith("'") else each.name
        found.append(Host(each.name, ranks, [*words, quoted, *AGENT], shows=shows, python=options.python))
    return found


@contextlib.contextmanager
def _namespaces(options: argparse.Namespace, directory: str) -> Iterator[list[Host]]:
    """Each has as many ranks as the others, or one more if it is among the first."""
    from hocket.system.namespaces.hosts import on, remove_stale
    from hocket.system.namespaces.switch import NET, switch

    with contextlib.ExitStack() as stack:
        try:
            remove_stale()
            made = stack.enter_context(switch(options.hosts, options.link))
        except subprocess.CalledProcessError as why:
            said = f"{' '.join(why.cmd)}: {why.stderr.strip()}"
            raise TransportError(
                f"hosts are network namespaces, which need root or CAP_NET_ADMIN and CAP_SYS_ADMIN: {said}"
            ) from None
        own = {"TMPDIR": os.path.join(directory, "tmp"), "SSH_CONNECTION": ""}
        for folder in ("tmp", *made.hosts):
            os.mkdir(os.path.join(directory, folder))
        least, more = divmod(options.n, options.hosts)
        found, first = [], 0
        for i, name in enumerate(made.hosts):
            ranks = range(first, first + least + (i < more))
            words = on(name, os.path.join(directory, name), f"host{i}")
            found.append(Host(f"host{i}", ranks, [*words, sys.executable, *AGENT], own, address=f"{NET}{i + 1}"))
            first = ranks.stop
        yield found


def begins(options: argparse.Namespace, host: Host) -> dict[str, Any]:
    """All that its agent is told before the secret."""
    env = {}
    if options.slots:
        left = {*SECRETS, *(f"HOCKET_{name}" for name in OWN)}
        env = {name: value for name, value in os.environ.items() if name.startswith("HOCKET_") and name not in left}
        env |= options.exports
    return {
        "command": options.command, "directory": options.wdir or os.getcwd(), "env": env,
        "path": os.environ.get("PATH", ""), "ranks": [*host.ranks], "size": options.n, "bind": options.bind,
        "fork": options.fork, "reads": 0 in host.ranks,
    }  # fmt: skip


def check(options: argparse.Namespace) -> None:
    """Read --hosts and --hostfile: then `options.slots` are machines, and `options.hosts` is a number of namespaces.

    ArgumentError where the options do not go together.
    """
    options.slots = []
    if isinstance(options.hosts, str) or options.hostfile:
        if options.hosts and options.hostfile:
            raise ArgumentError("--hosts and --hostfile both say where ranks are: give one of them")
        if options.link:
            raise ArgumentError("--link is the rate between namespaces of this machine: give --hosts 2, without names")
        file = options.hostfile
        options.slots = hostlist.from_file(file) if file else hostlist.from_option(options.hosts)
        hostlist.spread(options.slots, options.n)
        if not shlex.split(options.agent):
            raise ArgumentError("--agent is the command that reaches a host, as ssh: it is empty")
        options.hosts = 0
    elif options.link and not options.hosts:
        raise ArgumentError("--link is the rate between hosts: give --hosts, too")
    elif options.hosts > options.n:
        raise ArgumentError(f"{options.n} ranks cannot be on {options.hosts} hosts: give -n {options.hosts} or more")
    elif (options.exports or options.wdir) and not options.hosts:
        raise ArgumentError("-x and --wdir are for ranks on other hosts: give --hosts or --hostfile, too")
    if (options.hosts or options.slots) and (options.elastic or options.join):
        raise ArgumentError("--hosts is for jobs of one generation, without --elastic and --join")
