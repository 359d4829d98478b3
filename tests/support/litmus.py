"""Litmus programs (tests/litmus): read, tied to the source lines that they stand for, weakened, and written for herd7.

A program is C11 as herd7 reads it.  A comment behind a statement says which lines of the source it stands for:

    atomic_store_explicit(seq, 1, memory_order_release);
    // transports/shm/send.h hk_publish: hk_store32(&line->seq, p->next);

`// free` says that this order is stronger than the program needs: the line serves others, too, or its function does.
Every other order is weakened in turn, and then the program must fail.  `// stores`: a fence of stores alone;
`// kernel`: the system orders it, in a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/litmus"
RANKS = {"plain": 0, "relaxed": 1, "acquire": 2, "release": 2, "acq_rel": 3, "seq_cst": 4}
"""Orders.  One that is not below another is as strong, but for acquire and release, which are different."""
CALL = re.compile(r"(?:(?:int )?(\w+) = )?atomic_(load|store|fetch_add|thread_fence)(?:_explicit)?\(([^)]*)\);")
PLAIN = re.compile(r"\*(\w+) = (\w+);|(?:int )?(\w+) = \*(\w+);")
LOCAL = re.compile(r"int (\w+) = (\d+);")
CONDITION = re.compile(r"if \((\w+) == (\d+)\) \{")
TIE = re.compile(r"// ([\w/]+\.\w+) (\w+): (.+)")


@dataclass(frozen=True)
class Line:
    """A line of the source, or a part of it, that a statement stands for."""

    path: str
    function: str
    text: str


@dataclass(frozen=True)
class Statement:
    """One statement of a thread."""

    kind: str
    """load, store, fetch_add, thread_fence; local, if, end"""
    order: str = "plain"
    result: str = ""
    place: str = ""
    value: str = ""
    free: bool = False
    stores_only: bool = False
    """A fence that orders stores alone (hk_fence_stores): on aarch64 it is DMB ISHST."""
    kernel: bool = False
    """The system orders it, in a call."""
    lines: tuple[Line, ...] = ()

    @property
    def ordered(self) -> bool:
        return RANKS[self.order] > 1


@dataclass(frozen=True)
class Program:
    """A litmus program."""

    name: str
    words: str
    threads: tuple[tuple[Statement, ...], ...]
    bad: str
    """herd7's condition for the outcome that must not be."""
    init: tuple[tuple[str, str], ...] = ()
    """Places that are not 0 at first."""
    allowed: bool = False
    """The bad outcome is there, and the words say why it does no harm."""
    path: Path = field(default=FOLDER, compare=False)

    @property
    def weakened(self) -> Iterator[tuple[str, bool, Program]]:
        """(what was weakened, must it fail, the program) for each order."""
        for t, thread in enumerate(self.threads):
            for i, each in enumerate(thread):
                if each.ordered:
                    weak = replace(each, order="relaxed")
                    changed = (*thread[:i], *(() if each.kind == "thread_fence" else (weak,)), *thread[i + 1 :])
                    told = f"P{t}: {' '.join(filter(None, (each.kind, each.place, each.order)))}"
                    threads = *self.threads[:t], changed, *self.threads[t + 1 :]
                    yield told, not each.free, replace(self, threads=threads)


def programs() -> list[Program]:
    """All of them, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.litmus"))]


def read(path: Path) -> Program:
    """A program from its file; ValueError names the line that is none."""
    head, *parts = re.split(r"^P\d \([^)]*\) \{\n", path.read_text(), flags=re.M)
    name, words = re.match(r'C (\S+)\n"((?:[^"]|\n)*)"\n', head).groups()  # type: ignore[union-attr]
    parts[-1], _, end = parts[-1].partition("\n}\n")
    parts[:-1] = [part.rpartition("\n}\n")[0] for part in parts[:-1]]
    threads = tuple(tuple(_statements(part, path)) for part in parts)
    found = re.search(r"exists \((.+)\)", end)
    if name != path.stem or found is None:
        raise ValueError(f"{path.name}: it needs its file's name, and a condition")
    init = tuple(re.findall(r"(\w+) = (\d+);", head.rpartition('"')[2]))
    return Program(name, " ".join(words.split()), threads, found[1], init, words.startswith("allowed:"), path)


def _statements(text: str, path: Path) -> list[Statement]:
    made: list[Statement] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if tie := TIE.fullmatch(line):
            made[-1] = replace(made[-1], lines=(*made[-1].lines, Line(*tie.groups())))
        elif line == "}":
            made.append(Statement("end"))
        elif line.startswith("//"):
            continue
        else:
            code, _, remark = (part.strip() for part in line.partition("//"))
            words = set(remark.split(", ")) - {""}
            if not words <= {"free", "stores", "kernel"}:
                raise ValueError(f"{path.name}: {remark!r} is no remark of these programs")
            marks = {"free": "free" in words, "stores_only": "stores" in words, "kernel": "kernel" in words}
            made.append(replace(_statement(code, path), **marks))
    return made


def _statement(code: str, path: Path) -> Statement:
    if found := CALL.fullmatch(code):
        result, kind, inside = found.groups()
        *rest, order = inside.split(", ")
        place, value = [*rest, "", ""][:2]
        return Statement(kind, order.removeprefix("memory_order_"), result or "", place, value)
    if found := PLAIN.fullmatch(code):
        place, value, result, source = found.groups()
        return Statement("store", "plain", "", place, value) if place else Statement("load", "plain", result, source)
    if found := LOCAL.fullmatch(code):
        return Statement("local", result=found[1], value=found[2])
    if found := CONDITION.fullmatch(code):
        return Statement("if", result=found[1], value=found[2])
    raise ValueError(f"{path.name}: {code!r} is no statement of these programs")


# ------------------------------------------------------------------------------------------------- for herd7

def as_c(program: Program) -> str:
    """The program in C11."""
    init = " ".join(f"[{name}] = {value};" for name, value in program.init)
    text = f'C {program.name}\n"x"\n\n{{ {init} }}\n'
    for t, thread in enumerate(program.threads):
        places = {each.place: "int" if each.order == "plain" else "atomic_int" for each in thread if each.place}
        places |= {name: kind for name, kind in _kinds(program).items() if name in places}
        text += f"\nP{t} ({', '.join(f'{kind} *{name}' for name, kind in places.items())}) {{\n"
        known: set[str] = set()
        text += "".join(f"  {_c(each, known)}\n" for each in thread) + "}\n"
    return text + f"\nexists ({program.bad})\n"


def _kinds(program: Program) -> dict[str, str]:
    every = [each for thread in program.threads for each in thread if each.place]
    atomic = {each.place for each in every if each.order != "plain"}
    return {each.place: "atomic_int" if each.place in atomic else "int" for each in every}


def _c(each: Statement, known: set[str]) -> str:
    result = each.result if each.result in known else f"int {each.result}"
    if each.kind not in ("if", "end") and each.result:
        known.add(each.result)
    order = f"memory_order_{each.order}"
    match each.kind, each.order:
        case "store", "plain":
            return f"*{each.place} = {each.value};"
        case "load", "plain":
            return f"{result} = *{each.place};"
        case "store", _:
            return f"atomic_store_explicit({each.place}, {each.value}, {order});"
        case "load", _:
            return f"{result} = atomic_load_explicit({each.place}, {order});"
        case "fetch_add", _:
            return f"{result} = atomic_fetch_add_explicit({each.place}, {each.value}, {order});"
        case "thread_fence", _:
            return f"atomic_thread_fence({order});"
        case "local", _:
            return f"{result} = {each.value};"
        case "if", _:
            return f"if ({each.result} == {each.value}) {{"
    return "}"


def as_aarch64(program: Program, exclusive: bool = False, weak_loads: bool = False) -> str:
    """The same as gcc and clang compile it for aarch64.

    `exclusive`: for a core without LSE's atomics (ARMv8.0).  `weak_loads`: with -march=armv8.3-a and above, where a
    load that acquires may pass an earlier store that releases.
    """
    places = sorted({each.place for thread in program.threads for each in thread if each.place})
    columns, bad = [list[str]() for _ in program.threads], program.bad
    init = [f"v_{name}={value};" for name, value in program.init]
    for t, thread in enumerate(program.threads):
        own = [name for name in places if any(each.place == name for each in thread)]
        address = {name: f"X{20 + i}" for i, name in enumerate(own)}
        init += [f"{t}:{register}=v_{name};" for name, register in address.items()]
        numbers, code, labels, spare = dict[str, int](), columns[t], list[str](), 10
        for each in thread:
            if each.result and each.result not in numbers:
                numbers[each.result] = len(numbers)
            w = f"W{numbers[each.result]}" if each.result else "W9"
            at = f"[{address[each.place]}]" if each.place else ""
            if each.kind == "store":
                code += [f"MOV W9,#{each.value}", f"{'STLR' if each.ordered else 'STR'} W9,{at}"]
            elif each.kind == "load":
                code.append(f"{('LDAPR' if weak_loads else 'LDAR') if each.ordered else 'LDR'} {w},{at}")
            elif each.kind == "fetch_add" and not exclusive:
                code += [f"MOV W9,#{each.value}", f"{'LDADDAL' if each.ordered else 'LDADD'} W9,{w},{at}"]
            elif each.kind == "fetch_add":
                load, store = ("LDAXR", "STLXR") if each.ordered else ("LDXR", "STXR")
                spare += 1
                code += [f"{load} {w},{at}", f"ADD W9,{w},#{each.value}", f"{store} W{spare},W9,{at}"]
                if not labels:
                    bad += f" /\\ {t}:X{spare}=0"
            elif each.kind == "thread_fence":
                code.append("DMB ISHST" if each.stores_only else "DMB ISH")
            elif each.kind == "local":
                code.append(f"MOV {w},#{each.value}")
            elif each.kind == "if":
                labels.append(f"L{t}{len(code)}")
                code += [f"CMP {w},#{each.value}", f"B.NE {labels[-1]}"]
            else:
                code.append(f"{labels.pop()}:")
        bad = re.sub(rf"\b{t}:(?!X\d)(\w+)=", lambda m, t=t, n=numbers: f"{t}:X{n[m[1]]}=", bad)  # type: ignore[misc]
    bad = re.sub(r"(?<![\w:])([a-z]\w*)=", r"v_\1=", bad)
    rows = max(map(len, columns))
    table = [[f"P{t}" for t in range(len(columns))]]
    table += [[column[i] if i < len(column) else "" for column in columns] for i in range(rows)]
    body = "\n".join(f" {' | '.join(row)} ;" for row in table)
    return f"AArch64 {program.name}\n{{\n" + "\n".join(init) + f"\n}}\n{body}\nexists ({bad})\n"
