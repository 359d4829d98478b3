"""The help that a change would bring: the run is replayed by the simulator, first as it was, then with one thing
changed.

A run is: what each rank computes before each call (the trace's gaps), the calls, and the links as the trace saw them.
A call whose schedule is known is simulated (`algorithms/prediction/simulate.py`); of another, the time behind the last
rank's coming is taken as it was.  A replay that does not come within a tenth of the run's own time, without what was
taken as it was, predicts nothing; nor does one of few simulated calls say what other links or fewer bits would bring.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from hocket.algorithms import CONTRACTS, Algorithm, Link, Topology, get, hierarchical, names, simulate
from hocket.arguments import printable
from hocket.codecs import CODECS
from hocket.errors import ArgumentError
from hocket.observe.cables import Cable, cables
from hocket.observe.evidence import hosts_of
from hocket.observe.findings import CallStats, Findings
from hocket.observe.policies import policy_would
from hocket.observe.sentences import seconds, share
from hocket.observe.timeline import Group

MOST_CALLS = 1000
"""Calls that are replayed, the newest: 1 to 10 ms each."""
OFF = 0.1
"""Part of the run's time by which a replay may be off."""
MOST_OF = 0.5
"""Part of the time in calls that must have been simulated where the change is one of what they send."""
EXAMPLES = 'expected "link 0-1 x2" (ranks or hosts), "rank 2 like the median", "codec int8", or "policy priority"'


@dataclass(frozen=True)
class ReplayedCall:
    """One call of a communicator."""

    members: tuple[int, ...]
    """Ranks of the job, by rank of the communicator."""
    gaps: dict[int, float]
    """Seconds that each computed since its call before; for the first, how much later than the first rank it came."""
    tail: float
    """Seconds from the last rank's coming to the last rank's leaving, as it was."""
    algorithm: Algorithm | None
    """None: not known, or not to be simulated."""
    nbytes: float
    segment: int
    plain: bool
    """Does it send float32, which a codec encodes?"""

    @property
    def simulated(self) -> bool:
        return self.algorithm is not None and not self.algorithm.requires(len(self.members))


@dataclass(frozen=True)
class TracedLinks(Topology):
    """A topology of single links, as a trace saw them."""

    of: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    """From rank to rank of the job."""
    members: tuple[int, ...] = ()
    host_of: Mapping[int, str] = field(default_factory=dict)
    cables: Mapping[Cable, Link] = field(default_factory=dict)
    """Between hosts: all their ranks share it."""

    def _cable(self, source: int, target: int) -> Cable:
        return self.host_of.get(self.members[source], ""), self.host_of.get(self.members[target], "")

    def _between(self, source: int, target: int) -> Link:
        shared = self.cables.get(self._cable(source, target))
        return shared or self.of.get((self.members[source], self.members[target]), self.link)

    def spread(self, size: int) -> bool:
        return len({self.host_of.get(member, "") for member in self.members}) > 1

    def period(self, size: int) -> int:
        return size

    def check(self, size: int) -> None:
        pass

    def latency(self, source: int, target: int) -> float:
        return self._between(source, target).latency

    def handling(self, source: int, target: int) -> float:
        return 0.0

    @property
    def reducing(self) -> float:
        return self.reduction or 0.0

    def ports(self, source: int, target: int, period: int) -> tuple[tuple[str, int, int], ...]:
        cable = self._cable(source, target % period)
        if cable not in self.cables:
            return (("pair", source, target % period),)
        first = {self.host_of[rank]: at for at, rank in reversed(list(enumerate(self.members)))}
        return (("cable", first[cable[0]], first[cable[1]]),)

    def bandwidth(self, port: tuple[str, int, int]) -> float:
        return self._between(port[1], port[2]).bandwidth

    def words(self, port: tuple[str, int, int]) -> str:
        return f"rank {port[1]} to {port[2]}"


@dataclass(frozen=True)
class Run:
    """The run to replay."""

    rounds: list[ReplayedCall]
    links: TracedLinks
    seconds: float
    """It took, from the first rank's coming to the first of these calls to the last one's leaving."""

    @property
    def as_it_was(self) -> float:
        """Seconds in calls that are not simulated."""
        return sum(each.tail for each in self.rounds if not each.simulated)


def what_if(findings: Findings, change: str) -> str:
    """In words: what the run would have taken.  Raises ArgumentError if it cannot be said."""
    if findings.timeline.about.get("source"):
        raise ArgumentError("only a run that hocket traced can be replayed: this trace has no messages")
    if match := re.fullmatch(r"policy (\S+)", change.strip()):
        return policy_would(findings, match[1])
    run = taken(findings)
    changed = with_change(findings, run, change)
    now = reproduced(run)
    then = replayed(changed)
    gain = f"{share(now - then, now)} less" if then <= now else f"{share(then - now, now)} more"
    return (
        f"With {printable(change)} the run would take {seconds(then * run.seconds / now)} instead of"
        f" {seconds(run.seconds)}, {gain}. (Its replay is off by {abs(now / run.seconds - 1):.1%}.)"
    )


def reproduced(run: Run) -> float:
    """Seconds that the replay of the run as it was takes; ArgumentError if it is off by more than a tenth."""
    now = replayed(run)
    if abs(now - run.seconds) > OFF * max(0.0, run.seconds - run.as_it_was):
        raise ArgumentError(
            f"the replay takes {seconds(now)} where the run took {seconds(run.seconds)}: it predicts nothing about"
            " this run (calls that overlap, or a machine that did something else, too)"
        )
    return now


def taken(findings: Findings) -> Run:
    """The newest calls of a trace."""
    stays: dict[Hashable, list[tuple[int, float, float]]] = defaultdict(list)
    for stay in findings.evidence.stays:
        stays[stay.call].append((stay.rank, stay.enter, stay.leave))
    members = _members(findings)
    whole = {call: some for call, some in stays.items() if {r for r, _, _ in some} == set(members.get(call, ()))}
    order = sorted(whole, key=lambda call: min(enter for _, enter, _ in whole[call]))[-MOST_CALLS:]
    if not order:
        raise ArgumentError("the trace has no call that all ranks finished")
    first = min(enter for _, enter, _ in whole[order[0]])
    left: dict[int, float] = {}
    rounds = []
    kinds, hosts = _kinds(findings), hosts_of(findings.timeline)
    for call in order:
        some = whole[call]
        gaps = {rank: enter - left.get(rank, first) for rank, enter, _ in some}
        tail = max(leave for _, _, leave in some) - max(enter for _, enter, _ in some)
        calls, nbytes, segment = kinds.get(call, (None, 0.0, 0))
        algorithm = _algorithm(calls, members[call], hosts) if calls is not None else None
        plain = calls is not None and calls.dtype == "float32"
        rounds.append(ReplayedCall(members[call], gaps, tail, algorithm, nbytes, segment, plain))
        left.update({rank: leave for rank, _, leave in some})
    return Run(rounds, _links(findings), max(left.values()) - first)


def _members(findings: Findings) -> dict[Hashable, tuple[int, ...]]:
    facts = findings.timeline.about.get("comms")
    comms = facts if isinstance(facts, dict) else {}
    calls = {stay.call for stay in findings.evidence.stays}
    by_call = {}
    for call in calls:
        members = comms.get(call[0]) if isinstance(call, tuple) else None
        if isinstance(members, list) and all(isinstance(rank, int) for rank in members):
            by_call[call] = tuple(members)
    return by_call


def _kinds(findings: Findings) -> dict[Hashable, tuple[CallStats, float, int]]:
    """Facts of each call: those of its name, its bytes, and its pipelined segment."""
    rows = findings.timeline.of(Group.CALLS)
    about = {calls.name: calls for calls in findings.calls}
    longest: dict[Hashable, int] = defaultdict(int)
    messages = findings.timeline.of(Group.RECEIVES)
    for track, seq, nbytes in zip(*(messages[n].tolist() for n in ("track", "seq", "bytes")), strict=True):
        call = findings.timeline.tracks[track].comm, seq
        longest[call] = max(longest[call], nbytes)
    kinds: dict[Hashable, tuple[CallStats, float, int]] = {}
    for track, seq, name, nbytes in zip(*(rows[n].tolist() for n in ("track", "seq", "name", "bytes")), strict=True):
        call, said = (findings.timeline.tracks[track].comm, seq), about[findings.timeline.names[name]]
        kinds[call] = said, float(nbytes), longest[call]
    return kinds


def _algorithm(calls: CallStats, members: Sequence[int], hosts: Mapping[int, str]) -> Algorithm | None:
    """The schedule of a call if it is known and needs no root."""
    if calls.collective not in CONTRACTS or CONTRACTS[calls.collective].rooted:
        return None
    if calls.algorithm == "hierarchical":
        groups: dict[str, list[int]] = defaultdict(list)
        for place, rank in enumerate(members):
            groups[hosts.get(rank, "")].append(place)
        return hierarchical(calls.collective, [*groups.values()])
    return get(calls.collective, calls.algorithm) if calls.algorithm in names(calls.collective) else None


def _links(findings: Findings) -> TracedLinks:
    """Latency and bandwidth of each link: a line through the mean times of its smallest and its largest messages.

    Between hosts, those of the cable.  A rank passes on what comes over a cable while it comes, so where there are
    cables, the quickest message tells what a link inside a host carries.
    """
    hosts, between = hosts_of(findings.timeline), cables(findings)
    seen: dict[tuple[int, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in findings.evidence.transfers:
        seen[each.link][each.nbytes].append(each.seconds)
    line = _quickest if between else _line
    lines = {link: line(sizes) for link, sizes in seen.items()}
    near = [line for link, line in lines.items() if hosts.get(link[0]) == hosts.get(link[1])] or [*lines.values()]
    typical = Link(0.0, inf)
    if near:
        latency = statistics.median(link.latency for link in near)
        typical = Link(latency, statistics.median(link.bandwidth for link in near))
    kernels = findings.timeline.of(Group.KERNELS)
    nbytes = int(kernels["bytes"].sum())
    reducing = float((kernels["end"] - kernels["begin"]).sum()) / 1e9 / nbytes if nbytes else 0.0
    return TracedLinks(typical, reduction=reducing, of=lines, host_of=hosts, cables=between)


def _quickest(times: Mapping[int, Sequence[float]]) -> Link:
    """Where most messages waited for something else."""
    return Link(0.0, max(n / min(each) if min(each) else inf for n, each in times.items()))


def _line(times: Mapping[int, Sequence[float]]) -> Link:
    points = {n: statistics.fmean(each) for n, each in times.items()}
    (small, quick), (large, slow) = min(points.items()), max(points.items())
    beta = (slow - quick) / (large - small) if large > small else slow / large if large else 0.0
    if beta <= 0:
        return Link(slow, inf)
    return Link(max(0.0, quick - beta * small) if large > small else 0.0, 1 / beta)


# ------------------------------------------------------------------------------------------------------------ replaying


def replayed(run: Run) -> float:
    """Seconds that the run takes by the simulator."""
    now: dict[int, float] = defaultdict(float)
    for each in run.rounds:
        starts = [now[rank] + max(0.0, each.gaps[rank]) for rank in each.members]
        now.update(zip(each.members, _ends(run, each, starts), strict=True))
    return max(now.values())


def _ends(run: Run, each: ReplayedCall, starts: Sequence[float]) -> Sequence[float]:
    if each.algorithm is None or not each.simulated:
        return [max(starts) + each.tail] * len(starts)
    zero, links = min(starts), replace(run.links, members=each.members)
    since = [start - zero for start in starts]
    replayed = simulate(each.algorithm, len(starts), each.nbytes, links, 0, each.segment, since)
    return [zero + end for end in replayed.ends]


# --------------------------------------------------------------------------------------------------------- what changes


def with_change(findings: Findings, run: Run, change: str) -> Run:
    """The run as it would be.  Raises ArgumentError for what cannot be changed."""
    for pattern, function in CHANGES:
        if match := re.fullmatch(pattern, change.strip()):
            if function is not _like_the_median:
                _most_simulated(run)
            return function(findings, run, *match.groups())
    raise ArgumentError(f"--what-if {printable(change)!r} is not understood: {EXAMPLES}")


def _most_simulated(run: Run) -> None:
    """Raise ArgumentError where what calls send was not replayed."""
    in_calls = sum(each.tail for each in run.rounds)
    if run.as_it_was > (1 - MOST_OF) * in_calls:
        raise ArgumentError(
            f"{share(run.as_it_was, in_calls)} of the time in calls is of collectives with a root or algorithms that"
            " cannot be replayed: this run says nothing about what they send"
        )


def _other_link(findings: Findings, run: Run, one: str, other: str, times: str) -> Run:
    """Both directions between two ranks, or two hosts, carry this factor times as much.

    Ranks of two hosts have no link of their own: it is the hosts' cable that is faster.
    """
    hosts = hosts_of(findings.timeline)
    ranks = [{rank for rank, host in hosts.items() if name in (str(rank), host)} for name in (one, other)]
    pairs = {(a, b) for a in ranks[0] for b in ranks[1]} | {(b, a) for a in ranks[0] for b in ranks[1]}
    met = pairs & set(run.links.of)
    between = {(hosts[a], hosts[b]) for a, b in pairs} & set(run.links.cables)
    if not met and not between:
        raise ArgumentError(f"--what-if: the trace saw no messages between {printable(one)} and {printable(other)}")
    factor = float(times)
    if not factor > 0:
        raise ArgumentError(f"--what-if: x{times} must be more than 0")
    of = {link: _faster(e, factor if link in met else 1) for link, e in run.links.of.items()}
    faster = {cable: _faster(e, factor if cable in between else 1) for cable, e in run.links.cables.items()}
    return replace(run, links=replace(run.links, of=of, cables=faster))


def _faster(link: Link, factor: float) -> Link:
    return Link(link.latency, link.bandwidth * factor)


def _like_the_median(findings: Findings, run: Run, rank: str) -> Run:
    """The run in which this rank computes before each call what the median rank does."""
    number = int(rank)
    if number not in findings.timeline.processes:
        raise ArgumentError(f"--what-if: the trace has no rank {rank}")
    rounds = []
    for each in run.rounds:
        typical = statistics.median_low(each.gaps.values())
        rounds.append(replace(each, gaps={r: typical if r == number else gap for r, gap in each.gaps.items()}))
    return replace(run, rounds=rounds)


def _with_codec(findings: Findings, run: Run, name: str) -> Run:
    """All simulated calls of float32 send this codec; what encoding takes is not counted."""
    known = {codec.name: codec for codec in CODECS}
    if name not in known:
        raise ArgumentError(f"--what-if: {printable(name)!r} is not a codec; known: {', '.join(known)}")
    part = known[name].nbytes(1 << 20) / (4 << 20)
    if not any(each.plain and each.simulated for each in run.rounds):
        raise ArgumentError("--what-if codec: codecs encode float32, and no calls of that can be replayed")
    rounds = [replace(each, nbytes=each.nbytes * part) if each.plain else each for each in run.rounds]
    return replace(run, rounds=rounds)


CHANGES: list[tuple[str, Callable[..., Run]]] = [
    (r"link (\S+?)-(\S+) x(\d+(?:\.\d+)?)", _other_link),
    (r"rank (\d{1,6}) like the median", _like_the_median),
    (r"codec (\S+)", _with_codec),
]
