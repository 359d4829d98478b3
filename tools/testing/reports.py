"""The ranks' reports of a test become one, which pytest prints, counts and hands on as its own.

Failures that follow from another rank's are left out, those that are alike are one, and each names its ranks.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTraceback

from hocket.tools.doctor.units import ranks
from hocket.tools.testing.hearing import Outcome

NUMBER = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?")
"""Parts that may differ between texts that are alike: ranks, values, addresses."""
MOST = 8
"""Ranks whose own messages are listed below a failure that is alike on all of them."""
Chained = tuple[ReprTraceback, "ReprFileLocation | None", "str | None"]
ByRank = Mapping[int, pytest.TestReport]


class Failure(NamedTuple):
    """One failure, on one rank or alike on several."""

    ranks: dict[int, str]
    """And the message of each."""
    links: list[Chained]


def merged(item: pytest.Item, size: int, outcome: Outcome) -> list[pytest.TestReport]:
    """One report for each phase of the test."""
    load = item.config.hook.pytest_report_from_serializable
    done = sorted(outcome.done.items())
    by_rank = {r: [load(config=item.config, data=each) for each in ran.reports] for r, ran in done}
    phases = _phases(by_rank)
    notes = [f"{ranks([r])} {how}" for r, how in outcome.died.items()]
    notes += [f"{ranks([r])} ended the test by {_last(each.text)}\n{each.text}" for r, each in outcome.raised.items()]
    notes += [outcome.account] if outcome.account else []
    if notes:
        return [_stopped(item, size, phases, notes)]
    if any(_kind(each) < 2 for found in phases for each in found.values() if each.failed):
        phases = [_without_echoes(found) for found in phases]
    return [_phase(found, size) for found in phases if found]


def _kind(failed: pytest.TestReport) -> int:
    """The kind of a failure, by `rank.kind_of`."""
    return int(getattr(failed, "hocket_kind", 0))


def _without_echoes(found: ByRank) -> ByRank:
    """Failures of other ranks in another phase than that of the rank on which it began."""
    failed = {r: _kind(each) for r, each in found.items() if each.failed}
    return found if min(failed.values(), default=0) < 2 else {r: each for r, each in found.items() if r not in failed}


def _phases(by_rank: Mapping[int, Sequence[pytest.TestReport]]) -> list[ByRank]:
    """Reports of ranks on the same: the setup, each subtest, the call, the teardown."""
    phases: dict[tuple[object, ...], dict[int, pytest.TestReport]] = {}
    for when in ("setup", "call", "teardown"):
        for r, several in by_rank.items():
            seen: list[str] = []
            for each in several:
                if each.when == when:
                    seen.append(repr(getattr(each, "context", "")))
                    phases.setdefault((when, seen[-1], seen.count(seen[-1])), {})[r] = each
    return list(phases.values())


def _stopped(item: pytest.Item, size: int, phases: Sequence[ByRank], notes: list[str]) -> pytest.TestReport:
    """Some ranks have no report."""
    path, line, _ = item.location
    crash = ReprFileLocation(path, (line or 0) + 1, notes[0].partition("\n")[0])
    failures = [Failure({}, [(_native("\n".join(notes)), crash, None)])]
    found = {r: each for several in phases for r, each in several.items()}
    for several in phases:
        failures += _failures({r: each for r, each in several.items() if each.failed and _kind(each) < 2})
    start = min((each.start for each in found.values()), default=0.0)
    stop = max((each.stop for each in found.values()), default=0.0)
    keywords: dict[str, Any] = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(
        item.nodeid, item.location, keywords, "failed", _chained(failures, size), "call", _sections(found, size),
        stop - start, start, stop,
    )  # fmt: skip


def _phase(found: ByRank, size: int) -> pytest.TestReport:
    expected = [each for each in found.values() if each.skipped and hasattr(each, "wasxfail")]
    failed = {r: each for r, each in found.items() if each.failed}
    if expected:  # another rank may pass, or fail with it
        failed = {r: each for r, each in failed.items() if _kind(each) < 2 and "[XPASS" not in str(each.longrepr)}
    passed = [each for each in found.values() if each.passed]
    base = copy.copy(next(iter([*failed.values(), *expected, *passed, *found.values()])))
    if failed:
        least = min(map(_kind, failed.values()))
        own = {r: each for r, each in failed.items() if _kind(each) == least}
        base.longrepr = _chained(_failures(own), size, set(failed) - set(own))
    base.sections = list(_sections(found, size))
    if base.passed:
        skipped = {r: each for r, each in found.items() if each.skipped}
        base.sections += [(f"Skipped on {ranks([r])}", str(each.longrepr)) for r, each in skipped.items()]
    base.user_properties = [each for report in found.values() for each in report.user_properties]
    base.start, base.stop = min(each.start for each in found.values()), max(each.stop for each in found.values())
    base.duration = max(each.duration for each in found.values())
    return base


def _failures(failed: ByRank) -> list[Failure]:
    """Groups of reports that are alike."""
    alike: dict[tuple[object, ...], Failure] = {}
    key: tuple[object, ...]
    for r, report in failed.items():
        links = _links(report.longrepr)
        crash = links[-1][1]
        message = crash.message if crash is not None else ""
        if crash is None or not getattr(report, "hocket_kind", 0):
            key = (crash and crash.path, crash and crash.lineno, NUMBER.sub("#", str(report.longrepr)))
        else:  # hocket's own tells of all ranks, wherever each is
            key = (NUMBER.sub("#", message),)
        alike.setdefault(key, Failure({}, links)).ranks[r] = message
    return list(alike.values())


def _links(longrepr: Any) -> list[Chained]:
    if isinstance(longrepr, ExceptionChainRepr):
        return list(longrepr.chain)
    if hasattr(longrepr, "reprtraceback"):
        return [(longrepr.reprtraceback, longrepr.reprcrash, None)]
    return [(_native(str(longrepr)), None, None)]


def _last(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]


def _native(text: str) -> ReprTraceback:
    return ReprTraceback([ReprEntryNative([f"{text}\n"])], None, "native")


def _chained(failures: Iterable[Failure], size: int, ended: Iterable[int] = ()) -> ExceptionChainRepr:
    """All as one, which also goes from process to process (pytest-xdist); its message is the first one's."""
    chain: list[Chained] = []
    crashes: list[ReprFileLocation | None] = []
    for failure in failures:
        (trace, crash, after), *more = failure.links
        crash = failure.links[-1][1]
        if failure.ranks and size > 1:
            name = ranks(failure.ranks)
            entries = [*_native(f"on {name}:").reprentries, *trace.reprentries]
            trace = ReprTraceback(entries, trace.extraline, trace.style)
            crash = crash and ReprFileLocation(crash.path, crash.lineno, f"{name}: {crash.message}")
        chain += [(trace, None, after), *more]
        chain[-1] = (chain[-1][0], None, "\n".join(_apart(failure.ranks)) or None)
        crashes.append(crash)
    trace, _, after = chain.pop()
    if ended := list(ended):
        after = "\n".join(filter(None, [after, f"{ranks(ended)} failed because of this"]))
    return ExceptionChainRepr([*chain, (trace, crashes[0], after)])


def _apart(messages: Mapping[int, str]) -> Iterator[str]:
    """Lines that other ranks say instead."""
    first, *others = messages.items() or [(0, "")]
    for r, message in others[:MOST]:
        if message != first[1]:
            yield f"on {ranks([r])}: {message.partition(chr(10))[0]}"


def _sections(found: ByRank, size: int) -> Iterator[tuple[str, str]]:
    """Captured sections, with the ranks that wrote them."""
    by_text: dict[tuple[str, str], list[int]] = {}
    for r, report in found.items():
        for section in report.sections:
            by_text.setdefault(section, []).append(r)
    for (name, text), which in by_text.items():
        yield (f"{name} on {ranks(which)}" if size > 1 else name), text
