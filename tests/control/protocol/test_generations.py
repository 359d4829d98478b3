"""Jobs whose members change, simulated: several generations, with deaths and newcomers, under seeds."""

from __future__ import annotations

import json
import random

import pytest

from hocket.control.protocol import words as of
from hocket.control.protocol.checking import Malformed
from hocket.control.protocol.generations import Dead, Generation, Generations, Says, To
from hocket.control.protocol.messages import pack
from hocket.control.protocol.seats import Seat, name_of, seat_of
from support import cases


def seat(uid: str) -> Seat:
    return Seat(uid, [["tcp", "127.0.0.1", 1]], "host", 1, 2, f"{uid} is new")


class Net:
    """Processes by name; what they say arrives between two of them in order, as JSON."""

    def __init__(self, names: str, seed: int = 0) -> None:
        first = [seat(uid) for uid in names]
        self.all = {uid: Generations(uid, Generation(0, first, uid)) for uid in names}
        self.flight: list[tuple[str, str, str]] = []
        self.dice = random.Random(seed)

    def do(self, uid: str, instructions: list[To | of.Claim]) -> None:
        for each in instructions:
            if isinstance(each, To) and each.uid in self.all and {uid, each.uid} != self.cut:  # nobody grants a Claim
                self.flight.append((uid, each.uid, json.dumps(pack(each.message))))

    def call(self, uid: str, **what: object) -> None:
        self.do(uid, self.all[uid].call(of.Call(**what)))  # type: ignore[arg-type]

    def step(self) -> bool:
        if not self.flight:
            return False
        by, to, text = self.dice.choice(self.flight)
        first = next(i for i, each in enumerate(self.flight) if each[:2] == (by, to))
        text = self.flight.pop(first)[2]
        if to in self.all:
            self.do(to, self.all[to].hear(by, json.loads(text)))
        return True

    def settle(self) -> None:
        while self.step():
            pass

    def kill(self, uid: str) -> None:
        del self.all[uid]
        self.flight = [each for each in self.flight if each[0] != uid or self.dice.random() < 0.5]
        for other, its in self.all.items():
            self.do(other, its.unlinked(uid))
            self.do(other, its.proven(uid))

    def admit(self) -> None:
        """Whoever was let in begins with what a member knows."""
        newest = max(self.all.values(), key=lambda each: each.now.number).now
        for rank, each in enumerate(newest.seats):
            if each.uid not in self.all and each.uid.isupper() and newest.number and each.uid not in self.dead:
                self.all[each.uid] = Generations(
                    each.uid, Generation(newest.number, newest.seats, each.uid, newest.infos, newest.lost.items()))
                assert self.all[each.uid].now.rank == rank
                for other in self.all:
                    self.do(each.uid, self.all[each.uid].linked(other) if other != each.uid else [])
                    self.do(other, self.all[other].linked(each.uid) if other != each.uid else [])

    dead: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()
    """Two that do not reach each other."""


def test_a_name_is_a_seat() -> None:
    assert seat_of(name_of(seat("a"))) == seat("a")


def test_the_next_generation_and_the_one_after() -> None:
    net = Net("abc")
    for uid in "cab":
        net.call(uid, info=f"{uid} says")
    net.settle()
    assert {each.now.number for each in net.all.values()} == {1}
    assert net.all["b"].now.infos == ("a says", "b says", "c says")
    net.kill("a")
    for uid in "bc":
        net.call(uid, info=f"{uid} again")
    net.settle()
    for uid in "bc":
        now = net.all[uid].now
        assert (now.number, [each.uid for each in now.seats], now.lost) == (2, ["b", "c"], {0: "dead"})
        assert now.infos == ("b again", "c again")


def test_who_leaves_is_not_called_dead() -> None:
    net = Net("ab")
    net.do("a", net.all["a"].proven("b", left=True))
    net.call("a")
    assert net.all["a"].now.lost == {1: "left"}


def test_a_word_about_a_later_generation_waits() -> None:
    net = Net("abc")
    for uid in "abc":
        net.call(uid)
    def others() -> list[int]:
        return [i for i, each in enumerate(net.flight) if each[1] != "c" or "decided" not in each[2]]

    while found := others():
        by, to, text = net.flight.pop(found[0])
        net.do(to, net.all[to].hear(by, json.loads(text)))
    net.call("a"), net.call("b")
    assert net.all["c"].now.number == 0
    net.settle()
    net.call("c")
    net.settle()
    assert {each.now.number for each in net.all.values()} == {2}


def test_who_lost_the_decision_is_told_when_it_is_there_again_even_if_it_is_no_member() -> None:
    net = Net("abc")
    net.cut = frozenset("ac")
    net.do("a", net.all["a"].unlinked("c")), net.do("c", net.all["c"].unlinked("a"))
    for uid in "abc":
        net.call(uid)
    net.settle()
    assert net.all["a"].now.lost == {2: "unreachable"} and net.all["c"].member
    net.cut = frozenset()
    net.do("a", net.all["a"].linked("c")), net.do("c", net.all["c"].linked("a"))
    net.settle()
    assert not net.all["c"].member and net.all["c"].now.number == 1


def test_a_second_call_names_whom_the_first_did_not() -> None:
    for caller in "ac":
        net = Net("abcd")
        for uid in "acd":
            net.call(uid)
        net.settle()
        assert net.all["a"].now.number == 0
        net.call(caller, without=(1,))
        net.settle()
        assert {net.all[uid].now.number for uid in "acd"} == {1}
        assert net.all["c"].now.lost == {1: "excluded"}


def test_newcomers_wait_until_all_members_let_them_in() -> None:
    net = Net("ab")
    net.do("b", net.all["b"].waits(seat("N")))
    net.settle()
    assert list(net.all["a"].lobby) == ["N"]
    net.call("a"), net.call("b", admit=False)
    net.settle()
    assert len(net.all["a"].now.seats) == 2 and list(net.all["a"].lobby) == ["N"]
    net.call("a", info=1), net.call("b", info=2)
    net.settle()
    assert net.all["b"].now.infos == (1, 2, "N is new") and not net.all["b"].lobby


def test_a_newcomer_that_gives_up_is_not_let_in() -> None:
    net = Net("ab")
    net.do("a", net.all["a"].waits(seat("N")))
    net.do("a", net.all["a"].gave("N"))
    net.settle()
    net.call("a"), net.call("b")
    net.settle()
    assert len(net.all["b"].now.seats) == 2 and not net.all["b"].lobby


def test_a_newcomer_whose_connection_broke_waits_with_another_member() -> None:
    """The first hears last that it broke; and who does not hear that it gave up, hears it with the next connection."""
    net = Net("abc")
    net.do("a", net.all["a"].waits(seat("N")))
    net.settle()
    net.do("b", net.all["b"].waits(seat("N")))
    net.do("a", net.all["a"].gave("N"))
    net.settle()
    assert [list(each.lobby) for each in net.all.values()] == [["N"]] * 3
    net.cut = frozenset("bc")
    net.do("b", net.all["b"].gave("N"))
    net.settle()
    assert [list(each.lobby) for each in net.all.values()] == [[], [], ["N"]]
    net.cut = frozenset()
    net.do("c", net.all["c"].linked("b"))
    net.do("b", net.all["b"].linked("c"))
    net.settle()
    assert not net.all["c"].lobby


@cases.each("seed", range(300))
def test_generations_agree(seed: int) -> None:
    """Five generations, with deaths and newcomers at any moment: the same members, infos and losses everywhere."""
    dice = random.Random(seed)
    net, new, seen = Net("abcd"[: dice.randint(2, 4)], seed), iter("NOPQRS"), dict[int, tuple[object, ...]]()
    for _ in range(5):
        for uid in list(net.all):
            if uid in net.all:
                net.call(uid, info=f"{uid} says")
            for _ in range(dice.randint(0, 9)):
                net.step()
            if dice.random() < 0.1 and len(net.all) > 2:
                gone = dice.choice(sorted(net.all))
                net.dead |= {gone}
                net.kill(gone)
            if dice.random() < 0.1 and (name := next(new, "")):
                host = dice.choice(sorted(net.all))
                net.do(host, net.all[host].waits(seat(name)))
        net.settle()
        net.admit()
        net.settle()
        for each in net.all.values():
            found = each.now.seats, each.now.infos, tuple(sorted(each.now.lost.items()))
            assert seen.setdefault(each.now.number, found) == found, f"generation {each.now.number}"
    numbers = {each.now.number for each in net.all.values() if each.member}
    assert len(numbers) == 1, numbers


def test_who_is_gone_is_known_in_a_round_that_begins_here() -> None:
    net = Net("abc")
    net.kill("c")
    for uid in "ab":
        net.do(uid, net.all[uid].come(1, of.Call(uid)))
    net.settle()
    made = net.all["a"].now.outcome(1)
    assert made is not None and (made.members, made.lost) == ((0, 1), ((2, "dead"),))


def test_a_round_that_the_others_have_left_far_behind_is_over() -> None:
    """A member that was stopped meanwhile has called, and hears of what is later only."""
    net = Net("abc")
    net.do("c", net.all["c"].come(1, of.Call("c")))
    stopped = net.all.pop("c")
    net.flight.clear()
    for number in range(1, 40):
        for uid in "ab":
            net.do(uid, net.all[uid].come(number, of.Call(f"{uid}{number}", late=(2,))))
        net.settle()
    net.all["c"] = stopped
    assert stopped.now.outcome(1) is None
    net.do("a", net.all["a"].linked("c"))
    net.settle()
    assert stopped.now.next_round() == 40
    made = stopped.now.outcome(1)
    assert made is not None and made.members == (0, 1) and made.infos == ("a39", "b39")


def test_a_connection_says_little_and_the_latest_first() -> None:
    """All rounds of 16 generations came before the one that was under way: where connections broke all the time, one
    seldom lasted so long."""
    net = Net("abc")
    for generation in range(20):
        for number in range(1, 20):
            for uid in "abc":
                net.do(uid, net.all[uid].come(number, of.Call()))
            net.settle()
        if generation < 19:
            for uid in "abc":
                net.call(uid)
            net.settle()
    net.do("a", net.all["a"].come(20, of.Call()))
    said = [each.message for each in net.all["a"].linked("b") if isinstance(each, To)]
    now = [each.round for each in said if each.generation == 19]
    assert now[0] == 20 and now == sorted(now, reverse=True)
    assert {each.round for each in said if each.generation < 19} == {0} and len(said) < 40


def test_what_all_hear_is_one_message() -> None:
    """So that it is encoded once: at 1,000 ranks it has the infos of all, 60 kB."""
    net = Net("abcd")
    said: list[To] = []
    heard = net.do

    def do(uid: str, instructions: list[To | of.Claim]) -> None:
        said.extend(each for each in instructions if isinstance(each, To) and uid == "a")
        heard(uid, instructions)

    net.do = do  # type: ignore[method-assign]
    for uid in net.all:
        net.call(uid)
    net.settle()
    for word in ("prepare", "accept", "decided"):
        same = [each.message for each in said if [*each.message.word] == [word]]
        assert len(same) == 3 and len({id(message) for message in same}) == 1, (word, same)


def elsewhere(*names: str) -> list[Seat]:
    """Each on a host of its own but for the last two, which say that they are on one."""
    return [seat(uid)._replace(host=f"host {min(i, len(names) - 2)}") for i, uid in enumerate(names)]


def test_whom_a_host_has_proven_to_be_dead_is_told_with_the_next_connection() -> None:
    net, seats = Net("abc"), [seat("a"), seat("b"), seat("c")._replace(host="another")]
    net.all = {each.uid: Generations(each.uid, Generation(0, seats, each.uid)) for each in seats}
    net.cut = frozenset("ac")
    net.do("a", net.all["a"].proven("b"))
    net.settle()
    assert not net.all["c"].gone
    net.cut = frozenset()
    net.do("a", net.all["a"].linked("c"))
    net.settle()
    assert net.all["c"].gone == {"b": False}


def test_a_member_that_there_is_a_connection_with_is_not_dead() -> None:
    """Which host one is on is its own word; that another one there is dead counts once its connection has ended."""
    seats = elsewhere("a", "b", "c")
    me = Generations("a", Generation(0, seats, "a"))
    me.linked("b")
    me.hear("c", pack(Dead("b")))
    assert not me.gone
    me.linked("b")  # another connection: what was said is over
    me.cut("b")
    assert not me.gone
    me.linked("b")
    me.hear("c", pack(Dead("b")))
    me.cut("b")
    assert me.gone == {"b": False}


def test_an_agreement_that_cannot_be_is_malformed() -> None:
    me = Generations("a", Generation(0, [seat(uid) for uid in "abc"], "a"))
    name = name_of(seat("d"))
    good = of.Made((0, 1), (name,), (None, None), ((2, "dead"),))
    for made in (
        good._replace(members=(0, 3)), good._replace(members=(1, 0)), good._replace(members=(), infos=()),
        good._replace(infos=(None,)), good._replace(lost=((7, "dead"),)), good._replace(newcomers=(name, name)),
        *(good._replace(newcomers=(each,)) for each in (
            "x", "[" * 9999, name_of(seat("d")._replace(pid=-1)), name_of(seat("d")._replace(addresses=[["tcp"]])))),
    ):  # fmt: skip
        for word in (of.Decided(made), of.Accept((1, 1), made)):
            with pytest.raises(Malformed):
                me.hear("b", pack(Says(0, pack(word))))
    me.hear("b", pack(Says(0, pack(of.Decided(good)))))
    assert me.now.number == 1


def test_early_words_of_a_member_are_bounded() -> None:
    me = Generations("a", Generation(0, [seat(uid) for uid in "abc"], "a"))
    for uid in "bc":
        for _ in range(20):
            me.hear(uid, pack(Says(7, {"a word": "x" * (1 << 20)})))
    assert [[by for by, _ in me._early].count(uid) for uid in "bc"] == [15, 15]
