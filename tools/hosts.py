"""`hocket run --hosts 2 --link 20Mbit`: ranks on hosts that are network namespaces at a switch, with slow cables."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
from collections.abc import Iterator

from hocket.errors import ArgumentError, TransportError

MOST = 8
"""Hosts."""
PORT = 29500
"""For others' programs; hocket's ranks meet at the next.  Both are free in a network that was just made."""


class Hosts:
    """Where the ranks of a job are: as many on each host as on the others, or one more on the first ones."""

    def __init__(self, names: list[str], addresses: list[str], ranks: int, directory: str) -> None:
        self._names, self._directory = names, directory
        self._on = sorted(rank % len(names) for rank in range(ranks))
        self.master = (addresses[0], PORT)
        self.meeting = f"tcp:{addresses[0]}:{PORT + 1}"
        for folder in ("tmp", *names):
            os.mkdir(os.path.join(directory, folder))

    def command(self, rank: int, words: list[str]) -> list[str]:
        """The command that starts these words on its host, where no Unix socket of another host is seen."""
        from hocket.system.namespaces.hosts import on

        host = self._on[rank]
        name = self._names[host]
        return [*on(name, os.path.join(self._directory, name), f"host{host}"), *words]

    def environment(self, rank: int) -> dict[str, str]:
        """Variables that differ there."""
        host = self._on[rank]
        local, number = str(self._on.count(host)), str(rank - self._on.index(host))
        return {
            "TMPDIR": os.path.join(self._directory, "tmp"), "HOCKET_LOCAL_RANK": number, "HOCKET_LOCAL_SIZE": local,
            "LOCAL_RANK": number, "LOCAL_WORLD_SIZE": local,
        }  # fmt: skip


@contextlib.contextmanager
def hosts(options: argparse.Namespace, directory: str) -> Iterator[Hosts | None]:
    """They are gone after the block; None: ranks stay on this machine as it is."""
    if not options.hosts:
        yield None
        return
    from hocket.system.namespaces.hosts import remove_stale
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
        addresses = [f"{NET}{i + 1}" for i in range(options.hosts)]
        yield Hosts(made.hosts, addresses, options.n, directory)


def check(options: argparse.Namespace) -> None:
    """Raise ArgumentError where the options do not go together."""
    if options.link and not options.hosts:
        raise ArgumentError("--link is the rate between hosts: give --hosts, too")
    if options.hosts > options.n:
        raise ArgumentError(f"{options.n} ranks cannot be on {options.hosts} hosts: give -n {options.hosts} or more")
    if options.hosts and (options.elastic or options.join):
        raise ArgumentError("--hosts is for jobs of one generation, without --elastic and --join")
