"""Which hosts, and how many ranks on each: `--hosts a:8,b:8`, a hostfile in either syntax, Slurm's compressed lists.

    node1 slots=8               Open MPI's; further words as max_slots=8 are read and left alone
    node1:8                     MPICH's and Intel MPI's
    node[01-16]:8               Slurm's; so are node[01-16] slots=8 and rack[1-2]n[1-4]
    user@node1  [fd00::1]:8     a name is whatever ssh takes; an IPv6 address stands in brackets

A name without a number has one slot, and a name that comes again has more, as with mpirun.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hocket.control.nodes import names, parts
from hocket.errors import ArgumentError

MOST = 1024
"""Hosts: each has a connection of its own."""
WORD = re.compile(
    r"(?:(?P<user>\w[\w.+-]*)@)?"
    r"(?:\[(?P<six>[0-9a-fA-F:.]*:[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<name>[\w\[][\w.\-\[\],]*))"
    r"(?::(?P<slots>\d+))?",
    re.ASCII,
)
"""No name begins with a dash, which ssh would take for an option."""


class Slots(NamedTuple):
    """A host and the ranks it may have; `line`: where it was named, for a text."""

    name: str
    slots: int
    line: str = ""


def from_option(text: str) -> list[Slots]:
    """ArgumentError: nobody understands it."""
    return _added(_words(text, None, f"--hosts {text}"))


def from_file(path: str) -> list[Slots]:
    """ArgumentError: it cannot be read, or a line that nobody understands, with its number."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as why:
        raise ArgumentError(f"--hostfile {path}: {getattr(why, 'strerror', None) or 'it is not text'}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            found += _line(words, f"{path}:{number}: {line.strip()!r}")
    if not found:
        raise ArgumentError(f"--hostfile {path}: it names no host; a line is `node1 slots=8` or `node1:8`")
    return _added(found)


def _line(words: list[str], where: str) -> list[Slots]:
    slots = None
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or not value.isdecimal():
            raise ArgumentError(f"{where}: {word!r} is not understood; a line is `node1 slots=8` or `node1:8`")
        if name in ("slots", "cpus", "count"):
            slots = int(value)
        elif name not in ("max_slots", "max-slots"):
            raise ArgumentError(f"{where}: {name!r} is not known; a line is `node1 slots=8` or `node1:8`")
    return _words(words[0], slots, where)


def _words(text: str, slots: int | None, where: str) -> list[Slots]:
    words, text = parts(text), text.removesuffix(",")
    if ",".join(words) != text:
        raise ArgumentError(f"{where}: {text!r} is not a list of hosts: is a name, or a bracket, missing?")
    return [each for word in words for each in _word(word.strip(), slots, where)]


def _word(word: str, slots: int | None, where: str) -> list[Slots]:
    match = WORD.fullmatch(word)
    if match is None or (slots is not None and match["slots"]):
        raise ArgumentError(f"{where}: {word!r} is not a host: write n1, n1:8, n[1-4]:8, me@n1 or [fd00::1]:8")
    count = int(match["slots"] or (1 if slots is None else slots))
    if count < 1:
        raise ArgumentError(f"{where}: {word!r} has no slots; leave it out, or give 1 or more")
    user = f"{match['user']}@" if match["user"] else ""
    try:
        found = [match["six"]] if match["six"] else names(match["name"], MOST)
    except ValueError as why:
        raise ArgumentError(f"{where}: {word!r}: {why}") from None
    return [Slots(user + name, count, where) for name in found]


def _added(found: list[Slots]) -> list[Slots]:
    """A host that comes again has more slots."""
    by_name: dict[str, Slots] = {}
    for each in found:
        before = by_name.get(each.name)
        by_name[each.name] = each if before is None else before._replace(slots=before.slots + each.slots)
    if len(by_name) > MOST:
        raise ArgumentError(f"{len(by_name)} hosts are more than {MOST}, for one launcher")
    return [*by_name.values()]


def spread(hosts: list[Slots], ranks: int) -> list[tuple[Slots, range]]:
    """Ranks fill the first host's slots, then the next one's.  ArgumentError: there are too few."""
    room = sum(each.slots for each in hosts)
    if ranks > room:
        shown = ", ".join(f"{each.name}:{each.slots}" for each in hosts[:8]) + (", ..." if len(hosts) > 8 else "")
        raise ArgumentError(
            f"{ranks} ranks are more than the {room} slots of {shown}: give -n {room}, or more slots (a name without a "
            "number has one)"
        )
    found, first = [], 0
    for each in hosts:
        last = min(first + each.slots, ranks)
        if last > first:
            found.append((each, range(first, last)))
        first = last
    return found
