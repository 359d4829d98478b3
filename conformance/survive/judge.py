"""The lines of an elastic job's members, and the laws that they break (docs/survive.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hocket.conformance.survive.life import EACH, part

Lines = Mapping[int, list[dict[str, Any]]]
"""By process."""
NEAR = 1e-3
"""The tolerance of a sum of small whole numbers, in float32."""


@dataclass
class Deeds:
    """The deeds done to the processes."""

    killed: dict[int, float]
    """When."""
    silent: set[int]
    """They were stopped or cut off for a while, or loaded for long: the others may have gone on without them."""
    left: set[int] = field(default_factory=set)
    wrong: set[int] = field(default_factory=set)
    """Newcomers that do not fit."""

    @property
    def gone(self) -> set[int]:
        return self.left | self.wrong


def judge(lines: Lines, deeds: Deeds) -> list[str]:
    """Broken laws, in words."""
    return [
        *crashes(lines), *two_parts(lines), *wrong_bits(lines), *wrong_sums(lines), *left_out(lines, deeds),
        *wrongly_accused(lines, deeds), *kept(lines), *waited(lines, deeds), *taken_in(lines, deeds),
    ]  # fmt: skip


def steps(said: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in said if "t" in line]


def crashes(lines: Lines) -> list[str]:
    return [f"process {p}: {line['crash']}" for p, said in lines.items() for line in said if "crash" in line]


def members(lines: Lines) -> dict[int, list[int]]:
    """The members of each generation but the first, as the first process has it that says so."""
    found: dict[int, list[int]] = {}
    for said in lines.values():
        for line in said:
            if "who" in line:
                found.setdefault(line["generation"], line["who"])
    return found


def two_parts(lines: Lines) -> list[str]:
    """All members of a generation know the same members."""
    known = members(lines)
    return [
        f"two generations {line['generation']}: for process {p} {line['who']}, for another {known[line['generation']]}"
        for p, said in lines.items() for line in said if "who" in line and line["who"] != known[line["generation"]]
    ]  # fmt: skip


def wrong_bits(lines: Lines) -> list[str]:
    """In one generation, all that did a step hold the same bits."""
    first: dict[tuple[int, int], dict[str, Any]] = {}
    wrong = []
    for said in lines.values():
        for line in steps(said):
            other = first.setdefault((line["generation"], line["t"]), line)
            if other["digest"] != line["digest"]:
                wrong.append(f"generation {line['generation']}, step {line['t']}: {other} and {line}")
    return wrong


def wrong_sums(lines: Lines) -> list[str]:
    """Each step adds the members' parts, once, to a state that somebody had."""
    sizes = {number: len(who) for number, who in members(lines).items()}
    sizes[0] = sum(1 for said in lines.values() if any(line["generation"] == 0 for line in steps(said)))
    values: dict[int, set[float]] = {0: {0.0}}
    for said in lines.values():
        for line in steps(said):
            values.setdefault(line["t"], set()).add(line["value"])
    wrong = []
    for p, said in lines.items():
        for line in steps(said):
            t, size = line["t"] - 1, line.get("size") or sizes[line["generation"]]
            before = line["value"] - sum(part(t, rank) for rank in range(size)) / size
            if not any(abs(before - value) < NEAR * max(1.0, before) for value in values.get(t, ())):
                wrong.append(f"process {p}, step {t + 1}: {line}; before it there was {values.get(t)}")
    return wrong


def left_out(lines: Lines, deeds: Deeds) -> list[str]:
    """Nobody is left out in silence: who is no member any more was killed, stopped or cut off."""
    reason = deeds.killed.keys() | deeds.silent | deeds.gone
    wrong = []
    for p, said in lines.items():
        for line in said:
            if gone := set(line.get("before") or ()) - set(line.get("who", ())) - reason:
                wrong.append(f"process {p}: generation {line['generation']} is without {sorted(gone)}, who did nothing")
            if "fenced" in line and p not in deeds.silent:
                wrong.append(f"process {p} was there, and was left out: {line['fenced']}")
    return wrong


def lost(line: dict[str, Any]) -> dict[int, str]:
    """The ranks that are no members any more since the step before, and why."""
    return {int(p): how for p, how in line.get("seen", {}).get("lost", {}).items()}


def wrongly_accused(lines: Lines, deeds: Deeds) -> list[str]:
    """A process that is called dead has ended; one that is called unreachable or excluded was silent, or has ended."""
    fenced = {p for p, said in lines.items() if any("fenced" in line for line in said)}
    ended = deeds.killed.keys() | deeds.gone | fenced
    wrong = []
    for p, said in lines.items():
        for line in steps(said):
            for other, how in lost(line).items():
                if other not in ended and (how == "dead" or other not in deeds.silent):
                    wrong.append(f"process {p} says that process {other} is {how}: {json.dumps(line)}")
    return wrong


def unnamed(lines: Lines, victims: Iterable[int], survivors: Iterable[int]) -> list[str]:
    """A member killed beside a living member of its host is called dead by all that went on."""
    wrong = []
    for p in survivors:
        said = [lost(line).get(victim) for line in steps(lines[p]) for victim in victims]
        if said.count("dead") != len([*victims]):
            wrong.append(f"process {p} does not say that {victims} are dead, but {[each for each in said if each]}")
    return wrong


def kept(lines: Lines) -> list[str]:
    """A process that has left holds nothing that it did not hold before."""
    return [f"process {p} still has {line['held']}" for p, said in lines.items() for line in said if line.get("held")]


def waited(lines: Lines, deeds: Deeds) -> list[str]:
    """Nobody healthy waits in one call for longer than its limit, and a fifth, and a second."""
    return [f"process {p} waited for {line['waited']:.1f} s" for p, said in lines.items() if p not in deeds.silent
            for line in said if line.get("waited", 0) > 1.2 * EACH + 1]  # fmt: skip


def taken_in(lines: Lines, deeds: Deeds) -> list[str]:
    """A newcomer with another setting is refused, and nobody else is."""
    wrong = {p for p, said in lines.items() if any("refused" in line for line in said)} - deeds.wrong
    return [f"process {p}, which fits, was refused: {lines[p][-1]}" for p in sorted(wrong)] + [
        f"process {p} took part, and does not fit" for p in sorted(deeds.wrong) if steps(lines[p])]


def parsed(text: bytes) -> list[dict[str, Any]]:
    """Lines of JSON; others are left out."""
    return [json.loads(line) for line in text.splitlines() if line.startswith(b"{") and line.endswith(b"}")]
