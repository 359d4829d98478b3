"""`python -m support.mutants --seed N --count N`: the mutants, the trials, and a table of what came of them."""

from __future__ import annotations

import argparse
import difflib
import json
import random
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from support.mutants import compiled, mutate
from support.mutants.reach import HERE, Reach, measure
from support.mutants.tree import Tree
from support.mutants.trial import Trials

FOLDERS = (
    "system", "control", "algorithms", "transports", "kernels", "collectives", "compressors", "training", "observe",
    "tools", "conformance", "frameworks", "bench",
)  # fmt: skip
SHARES = {"py": 80, "pyx": 24, "c": 16}
"""Mutants of each language, of 120."""
ENDING = {"py": ".py", "pyx": ".pyx", "c": ".h"}
REACH, COPY, RESULT = HERE / "build/reach", HERE / "build/mutants", HERE / "build/mutants.json"


class Candidate(NamedTuple):
    """A mutant that a seed drew."""

    kind: str
    source: str
    mutant: mutate.Mutant

    def text(self) -> str:
        return self.mutant.text((HERE / self.source).read_text())

    def diff(self) -> str:
        """Its lines with - and +."""
        before, after = (HERE / self.source).read_text().splitlines(), self.text().splitlines()
        return "\n".join(line for line in list(difflib.unified_diff(before, after, n=0))[2:] if line[0] in "-+")


def shares(weights: dict[str, int], total: int) -> dict[str, int]:
    """`total` in proportion, by largest remainders."""
    whole = sum(weights.values())
    exact = {name: total * weight / whole for name, weight in weights.items()}
    given = {name: int(each) for name, each in exact.items()}
    for name in sorted(exact, key=lambda name: given[name] - exact[name])[: total - sum(given.values())]:
        given[name] += 1
    return given


class Choice:
    """Mutants in the order in which a seed draws them."""

    def __init__(self, seed: int, reach: Reach) -> None:
        self._seed, self._reach = seed, reach
        files = sorted((HERE / "tests").rglob("test_*.py"))
        self._more = [str(path.relative_to(HERE)) for path in files if re.search(r"mark\.more\b", path.read_text())]

    def of(self, kind: str, total: int) -> list[list[Candidate]]:
        """For each of `total` mutants those that may stand for it: the first that compiles does."""
        drawn: dict[str, list[Candidate]] = {}
        for folder in FOLDERS:
            rng = random.Random(f"{self._seed} {kind} {folder}")
            paths = (path for path in sorted((HERE / folder).rglob("*")) if path.suffix == ENDING[kind])
            found = [each for path in paths for each in self._in(kind, str(path.relative_to(HERE)), rng)]
            rng.shuffle(found)
            if found:
                drawn[folder] = found
        lists = []
        for folder, count in shares({name: len(found) for name, found in drawn.items()}, total).items():
            lists += [drawn[folder][i::count] for i in range(count)]
        return lists

    def _in(self, kind: str, source: str, rng: random.Random) -> list[Candidate]:
        text = (HERE / source).read_text()
        if kind == "py":
            lines = self._reach.all_lines(source)
            made = mutate.mutants(text, rng, lambda line, statement, _: line in lines or statement in lines)
        else:
            made = compiled.mutants(source, text, rng)
        return [Candidate(kind, source, each) for each in made]

    def tests(self, each: Candidate) -> list[str]:
        """The files that reach it, and those of its folder, whose ranks may have been killed before they told."""
        if each.kind != "py":
            return compiled.tests(each.source)
        line, statement, in_function = each.mutant[:3]
        found = {test for at in (line, statement) for test in self._reach.tests(each.source, at, in_function)}
        return sorted(found.union(self._mirror(each.source)))

    def more(self, each: Candidate) -> list[str]:
        """Files with tests marked `more` that reach its file."""
        near = {*self._reach.lines(each.source), *self._mirror(each.source)}
        return [file for file in self._more if file in near]

    def _mirror(self, source: str) -> list[str]:
        return [str(path.relative_to(HERE)) for path in (HERE / "tests" / source).parent.glob("test_*.py")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--kinds", default="py,pyx,c")
    parser.add_argument("--reach", type=Path, default=REACH)
    options = parser.parse_args()
    if not any(options.reach.glob("*.arcs")):
        print("which tests reach which lines is measured first, once: a quarter of an hour or more", flush=True)
        measure(options.reach)
    choice = Choice(options.seed, Reach(options.reach))
    kinds = options.kinds.split(",")
    counts = shares({kind: SHARES[kind] for kind in kinds}, options.count)
    drawn = [each for kind in kinds for each in choice.of(kind, counts[kind])]
    random.Random(options.seed).shuffle(drawn)
    which = {"seed": options.seed, "count": options.count, "kinds": options.kinds}
    tried, told = tried_before(which)
    ends_by, trials = time.monotonic() + 60 * options.minutes, Trials(Tree(COPY))
    for number, candidates in enumerate(drawn[tried:], tried + 1):
        if time.monotonic() > ends_by:
            print(f"stopped after {options.minutes:g} minutes: {len(drawn) - number + 1} mutants were not tried")
            break
        for each in candidates:
            verdict = trials.judge(each.source, each.text(), choice.tests(each), choice.more(each))
            if verdict is not None:
                told.append({"kind": each.kind, "source": each.source, "line": each.mutant.line, "diff": each.diff()})
                told[-1] |= verdict._asdict()
                place = f"{number}/{len(drawn)} {each.source}:{each.mutant.line}"
                print(f"{place}: {verdict.stage} {verdict.by}, {verdict.seconds:.0f} s", flush=True)
                break
        RESULT.write_text(json.dumps({**which, "tried": number, "mutants": told}, indent=1))
    print(table(told))


def tried_before(which: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    """The count of these mutants that an earlier run has tried, and what came of them."""
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if which.items() <= kept.items():
        return kept["tried"], kept["mutants"]
    return 0, []


def table(told: list[dict[str, Any]]) -> str:
    """Counts by language and folder; then what survived, and what only tests marked `more` notice."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for each in told:
        for folder in (each["source"].partition("/")[0], "all"):
            rows[f"{each['kind']:4}{folder}"].update(["mutants", each["stage"]])
    columns = ("mutants", "quick", "slow", "more", "survived")
    lines = [f"{'':20}" + "".join(f"{column:>10}" for column in columns)]
    lines += [f"{name:20}" + "".join(f"{rows[name][column]:10}" for column in columns) for name in sorted(rows)]
    alive = sorted((each for each in told if each["stage"] in ("survived", "more")), key=lambda each: each["stage"])
    lines += [f"\n{each['stage']}: {each['source']}:{each['line']}\n{each['diff']}" for each in alive]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
