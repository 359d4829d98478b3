"""Slurm's compressed lists of hosts: node[03-05,12],login is node03, node04, node05, node12, login."""

from __future__ import annotations

import re


def parts(text: str) -> list[str]:
    """The words between commas, but for commas in brackets."""
    return re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)


def names(text: str, most: int = 1 << 16) -> list[str]:
    """The list, written out.  ValueError: more than `most`, or a range that ends before it begins."""
    found: list[str] = []
    for each in parts(text):
        made = [""]
        for part in re.findall(r"\[[^\]]*\]|[^\[]+", each):
            tails = _numbers(part[1:-1], most) if part[0] == "[" else [part]
            if len(made) * len(tails) > most:
                raise ValueError(f"these are more than {most} names")
            made = [head + tail for head in made for tail in tails]
        found += made
    return found


def _numbers(ranges: str, most: int) -> list[str]:
    """03-05,12: each with as many digits as the first of its range."""
    found: list[str] = []
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        if last and first.isdecimal() and last.isdecimal():
            if not 0 <= int(last) - int(first) < most:
                raise ValueError(f"{each} is not a range of at most {most} numbers")
            found += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
        else:
            found.append(each)
    return found
