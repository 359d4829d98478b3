"""Newcomers that differ, make no sense or do not come: each is left out alone, and told; the others go on."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.training.server.member import ViewMember
from hocket.training.server.views import MemberInfo, decide, refused
from support.cases import more
from support.serving import Cluster

TOLD = """
def until_excluded():
    view = os.path.join(HERE, "view-0")
    while not os.path.exists(view) or int(open(view).read()) <= comm.generation:
        time.sleep(0.02)
def told(act):
    try:
        act()
    except Exception as error:
        print(type(error).__name__, error)
    mark(f"told-{case}")
    while not there("judge"):
        time.sleep(0.05)
    os._exit(0)
"""
CASES = {
    "tables": ("Client(comm, {'w': Range(5)})", "MismatchError", "tables differ"),
    "words": ("comm.share([1, 2])", "", ""),
    "another call": ("comm.allreduce(np.ones(3))", "MismatchError", "allreduce"),
    "late": ("until_excluded(), Client(comm, TABLES)", "PeerLostError", "has excluded it"),
}


@pytest.mark.parametrize("cases", [["tables", "words", "late"], *more(["another call"])])
def test_a_newcomer_that_is_not_as_the_others_is_left_out_alone(cases: list[str]) -> None:
    """With a word of its own, another call, or none: pushes go on, and who comes after it is let in."""
    with Cluster(1, 1, copies=0, wait=4.0) as cluster:
        cluster.until_pushed(range(1, 2), 5)
        for case in cases:
            act = CASES[case][0]
            cluster.add(f"case = {case!r}\n{TOLD}\ntold(lambda: ({act}))", 0)
            cluster.read(f"told-{case}")
            cluster.until_pushed(range(1, 2), 5)
        cluster.add("client = Client(comm, TABLES)\nclient.push('w', np.ones(64))\nclient.close()\nmark('worked')", 0)
        cluster.read("worked")
        done, w, _, lost = cluster.end(range(1, 2))[0]
        assert lost == 0 and w == [done + 1] * 64, (done, w)
        for process, case in zip(cluster.more, cases, strict=False):
            _, error, words = CASES[case]
            out = process.communicate(timeout=60)[0]
            assert out.startswith(error) and words in out, (case, out)


OLD = [MemberInfo(i, i > 1, "" if i > 1 else f"tcp:h:{i}", {str(i): "head"} if i < 2 else {}, 2, "t", ["bsp", 0], True)
       for i in range(4)]  # fmt: skip
NEW = MemberInfo(9, True, "", {}, 0, "t", [])


def test_members_agree_on_who_takes_no_part() -> None:
    """They go on with what they have, whatever any newcomer says; nobody is refused where all are new."""
    wrong: list[Any] = [
        7, [], [1, 2], {}, list(NEW)[:5], NEW._replace(tables="u"), NEW._replace(uid=2), NEW._replace(uid="9"),
        NEW._replace(shards=3, settings=["bsp", 0]), NEW._replace(shards=2, settings=["async", 0]),
        NEW._replace(shards=300_000_000), NEW._replace(address="tcp:h\x1b[2J:9"), NEW._replace(address="t" * 301),
        NEW._replace(address="tcp:h:9"), NEW._replace(has=7),
        NEW._replace(settings=["bsp", 7]), NEW._replace(tables="u", viewed=True), NEW._replace(works=1),
    ]  # fmt: skip
    for word in wrong:
        said = [*map(list, OLD), list(word) if isinstance(word, tuple) else word]
        assert [*refused(said, [0, 1, 2, 3, None])] == [4], word
    fine = [NEW, NEW._replace(address="tcp:h:9", settings=["async", 0]),
            NEW._replace(address="tcp:h:9", shards=2, settings=["bsp", 0])]  # fmt: skip
    for word in fine:
        assert refused([*map(list, OLD), list(word)], [0, 1, 2, 3, None]) == {}
        view = decide(5, [*OLD, word], "a test")
        assert (view.shards, view.heads, view.settings, 9 in view.workers) == (2, (0, 1), ("bsp", 0), True)
    assert refused([NEW, NEW._replace(tables="u")], [None, None]) == {}, "all are new: `decide` raises on all"
    assert decide(5, [*OLD[2:], fine[1]], "all servers are new").heads == (9, 9), "with as many shards as before"


class Meets:
    """A communicator that only meets: the words of a dead head's copy, and of a newcomer that lies."""

    rank, generation, previous_ranks, door = 0, 3, (1, None, None), None

    def __init__(self, *words: Any) -> None:
        self.words = words

    def share(self, *_: Any, **__: Any) -> list[Any]:
        return [list(each) for each in self.words]

    def mark(self, name: str, value: int) -> None: ...


def test_a_newcomer_holds_nothing_whatever_it_says(caplog: pytest.LogCaptureFixture) -> None:
    """Else it were the head of a shard whose head has died, with values of its own.  Its words move no cursor."""
    copy = MemberInfo(1, False, "tcp:h:1", {"0": "whole"}, 1, "t", ["async", 0], True)
    liar = copy._replace(uid=9, works=True, address="tcp:h:9", has={"0": "head"})
    odd = NEW._replace(uid=10, tables="\x1b[2J" + "x" * 10_000)
    installed: list[Any] = []
    with caplog.at_level("WARNING", "hocket"):
        ViewMember(Meets(copy, liar, odd), lambda: copy, installed.append, "a test")
    (view,) = installed
    assert view.heads == (1,) and set(view.addresses) == {1, 9}
    assert len(caplog.text) < 2000 and "\x1b" not in caplog.text and "takes no part" in caplog.text
