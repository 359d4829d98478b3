"""The source as the litmus programs see it: where memory is ordered, and whether it is as the programs have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.litmus import RANKS, ROOT, Line, Statement

PRIMITIVE = re.compile(
    r"\b(hk_(?:load|store|relaxed|add)(?:32|64)|hk_fence(?:_stores)?|hk_store_release|hk_load_acquire)\("
)
RAW = re.compile(r"__atomic_\w+\(|\bvolatile\b|__sync_\w+\(")
DECLARED = re.compile(r"(?:u?int(?:32|64)_t|void) hk_\w+\(|asm |HK_DEVICE|/?\*")
C_HEAD = re.compile(r"^( *)(?:static|HK_\w+|__attribute__)[^;=]*?\b(\w+)\(", re.M)
CYTHON_HEAD = re.compile(r"^( *)(?:cdef|def|cpdef)\b[^#\n=]*?\b(\w+)\(", re.M)
GPU = {"hk_store_release": ("st.release.sys", "release"), "hk_load_acquire": ("ld.acquire.sys", "acquire")}


class Source:
    """The library's C and Cython under `root`."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.text = cache(lambda path: (root / path).read_text())
        self.functions = cache(lambda path: list(_functions(path, self.text(path))))
        self.primitives = self._primitives()
        """The order of each function of system/atomics.h, and of the two of kernels/gpu/cuda.cuh."""

    def _primitives(self) -> dict[str, str]:
        found = {}
        for name, begin, end in self.functions("system/atomics.h"):
            body = self.text("system/atomics.h")[begin:end]
            order = re.search(r"__ATOMIC_(\w+)\)", body)
            if order and ("dmb ishst" in body) == (name == "hk_fence_stores"):
                found[name] = order[1].lower()
        for name, (mark, order_of_gpu) in GPU.items():
            text = self.text("kernels/gpu/cuda.cuh")
            body = text[text.index(f" {name}(") :].partition("\n}")[0]
            found[name] = order_of_gpu if mark in body else "plain"
        return found

    def bodies(self, line: Line) -> list[str]:
        """The functions of that name that have this line."""
        text = self.text(line.path)
        spans = [text[begin:end] for name, begin, end in self.functions(line.path) if name == line.function]
        return [span for span in spans if line.text in span]

    def uses(self, folders: tuple[str, ...]) -> Iterator[Line]:
        """Every place where memory is ordered, or read and written without a lock."""
        for path in sorted(each for folder in folders for each in (self.root / folder).rglob("*")):
            if path.suffix not in (".h", ".c", ".cuh", ".pyx", ".pxd") or path.name == "atomics.h":
                continue
            name, text = str(path.relative_to(self.root)), path.read_text()
            for found in [*PRIMITIVE.finditer(text), *RAW.finditer(text)]:
                line = text[text.rfind("\n", 0, found.start()) + 1 : text.index("\n", found.start())].strip()
                if not DECLARED.match(line):
                    inside = [each for each, begin, end in self.functions(name) if begin <= found.start() < end]
                    yield Line(name, inside[-1] if inside else "", line)

    def fault(self, statement: Statement) -> str:
        """Why a statement no longer stands for its lines; "": it does."""
        for line in statement.lines:
            if not self.bodies(line):
                return f"{line.path} has no longer `{line.text}` in {line.function}"
            if statement.order in ("plain", "relaxed") or statement.kernel:
                continue
            called, raw = PRIMITIVE.search(line.text), re.search(r"__ATOMIC_(\w+)", line.text)
            order = self.primitives.get(called[1], "plain") if called else raw[1].lower() if raw else "plain"
            if RANKS[order] < RANKS[statement.order] or {order, statement.order} == {"acquire", "release"}:
                return f"{line.path}, {line.function}: `{line.text}` is {order} now, and was {statement.order}"
        return ""

    def disorder(self, thread: tuple[Statement, ...]) -> str:
        """Two lines of one function that are in another order than their statements; "": none."""
        last: dict[tuple[str, str], tuple[int, str]] = {}
        for line in (line for each in thread for line in each.lines):
            key = line.path, line.function
            after, text = last.get(key, (0, ""))
            places = [body.find(line.text, after) for body in self.bodies(line)]
            if max(places, default=-1) < 0:
                return f"{line.path}, {line.function}: `{line.text}` no longer comes behind `{text}`"
            last[key] = min(place for place in places if place >= 0), line.text
        return ""


def _functions(path: str, text: str) -> Iterator[tuple[str, int, int]]:
    """(name, begin, end) of each function."""
    for head in C_HEAD.finditer(text):
        line_end = text.index("\n", head.end())
        short = text[head.start() : line_end].rstrip().endswith("}")
        yield head[2], head.start(), line_end if short else text.find(f"\n{head[1]}}}", head.start())
    for head in CYTHON_HEAD.finditer(text) if path.endswith((".pyx", ".pxd")) else ():
        after = re.compile(rf"^ {{0,{len(head[1])}}}[^\s#)]", re.M).search(text, text.find("\n", head.end()))
        yield head[2], head.start(), after.start() if after else len(text)
