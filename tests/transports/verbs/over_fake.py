"""Channels of the verbs transport over the stand-in for libibverbs: the laws, what fails, and whose memory it is.

Run by test_verbs.py, in processes that find the stand-in, with fake_verbs.py as a plugin.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_verbs import FAKE, LONG, PINS, Registered, both, get, pin, put, talk

from hocket.collectives.plans.instr import Instr
from hocket.conformance import GROUP_LAWS, LAWS, InProcess, NotOfferedError, ends, laws
from hocket.conformance.ends import End, data, each
from hocket.errors import TransportError
from hocket.transports.verbs.transport import VerbsTransport

laws.STILL = 0.1

# ------------------------------------------------------------------------------------------------------- the laws

@pytest.mark.parametrize("law", [*LAWS, *GROUP_LAWS], ids=lambda law: law.__name__)
def test_law(law: Callable[[Any], None], ranks: InProcess) -> None:
    none = law.__name__ == "a_multicast_reaches_every_reader"
    with pytest.raises(NotOfferedError) if none else contextlib.nullcontext():
        law(ranks.sides if law in GROUP_LAWS else ranks.pair)
    assert not get("bad_keys")


@pytest.mark.parametrize("law", [*LAWS, GROUP_LAWS[0]], ids=lambda law: law.__name__)
def test_law_of_registered_arrays(
    law: Callable[[Any], None], ranks: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("laws", "ends"):
        monkeypatch.setattr(f"hocket.conformance.{module}.End", Registered)
    began = {name: get(name) for name in ("long_writes", "binds", "invalidated")}
    law(ranks.sides if law in GROUP_LAWS else ranks.pair)
    made = {name: get(name) - n for name, n in began.items()}
    if law.__name__ in ("a_message_may_exceed_every_buffer", "both_directions_at_once"):
        pieces = 2 * (5_000_003 // (256 << 10))
        assert made["long_writes"] >= pieces, made
        assert made["binds"] == made["invalidated"] >= (pieces if get("windows") else 0), made


# ------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("status", range(1, 24))
def test_a_failed_completion_is_said_in_words(status: int, ranks: InProcess) -> None:
    FAKE.ibv_wc_status_str.restype = ctypes.c_char_p
    words, silence = (FAKE.ibv_wc_status_str(n).decode() for n in (status, 12))
    said = 0
    for at in (1, 2, 3, 4, 6, 9, 14, 23):
        pair = ranks.pair()
        put(fail_status=status, fail_at=at)
        began = time.monotonic()
        ended = both(pair)
        assert get("fail_at") == 0, "it was not injected"
        assert all(each.startswith(("lost", "fault")) for each in ended), (at, ended)
        # A rank that does not look at the end that failed hears of it by the peer, who gets no answer.
        assert any(words in each or silence in each for each in ended), (at, words, ended)
        assert time.monotonic() - began < 20, (at, ended)
        said += any(words in each for each in ended)
    assert said >= 3


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_a_refused_request_is_said(at: int, ranks: InProcess) -> None:
    pair = ranks.pair()
    put(refuse_post=at, refuse_errno=12)
    ended = both(pair)
    assert "fault: the device refused a work request" in ended and "done" not in ended, ended


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("length", [0, 8])
def test_a_place_in_the_ring_that_is_lost_is_said_at_once(length: int, reduced: bool, ranks: InProcess) -> None:
    a, b = ranks.pair()
    one, other = ends.End(0, [None, a]), ends.End(1, [b, None])
    assert one.send(ends.data(length)) == "done"
    put(refuse_recv=1, refuse_errno=12)
    assert (other.reduce(ends.data(length), [0]) if reduced else other.recv(length))[0] == "fault"
    assert other.engine.channel_error(0) == "the device refused a work request"


@pytest.mark.parametrize("what", ["mr", "mw"])
def test_what_cannot_be_registered_is_copied(what: str, ranks: InProcess) -> None:
    if what == "mw":
        put(refuse_mw=-1)
        assert both(ranks.pair()) == ["done", "done"]
        return
    for first in range(1, 8):
        put(refuse_mr=0)
        pair = ranks.pair()
        put(refuse_mr=first, refuse_errno=12)
        assert both(pair) == ["done", "done"]
    put(refuse_mr=0)
    pair, began = ranks.pair(), get("long_writes")
    put(refuse_mr=-1)
    assert both(pair) == ["done", "done"] and get("long_writes") == began


@pytest.mark.parametrize("what", ["mr", "qp", "cq", "channel", "modify"])
def test_a_channel_that_cannot_be_made_is_an_error(what: str, ranks: InProcess) -> None:
    table = ranks.sides(2)
    assert table
    transports = table[0][1].owner[1]  # type: ignore[union-attr]
    for at in range(1, 5):
        put(**{f"refuse_{what}": at}, refuse_errno=12)
        with contextlib.suppress(TransportError):
            for channels in [t.channels(f"x{what}{at}", i, [0, 1]) for i, t in enumerate(transports)]:
                channels.open(1 - transports.index(channels.transport), None)
            assert get(f"refuse_{what}") > 0, "it was refused, and nobody said so"
        put(**{f"refuse_{what}": 0})


def test_unreachable_where_nothing_can_be_made() -> None:
    put(refuse_qp=-1, refuse_errno=12)
    words = "no queue pair: Cannot allocate memory.*ulimit -l"
    with pytest.raises(AssertionError, match=words), InProcess(VerbsTransport) as ranks:
        ranks.pair()
    put(refuse_qp=0, max_inline=16)
    words = "fake0 gives no queue pair: Invalid argument"
    with pytest.raises(AssertionError, match=words), InProcess(VerbsTransport) as ranks:
        ranks.pair()


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.1])
def test_closed_in_the_middle(delay: float, ranks: InProcess) -> None:
    """Nothing is left, and the other end hears of it."""
    pair = ranks.pair()

    def run(end: End) -> str:
        if end.rank == 0:
            time.sleep(delay)
            transport = pair[0].owner[1][0]
            transport.close()
            return "closed"
        return talk(pair, 10_000)(end)

    def one_sided(end: End) -> str:
        x = data(LONG)
        for _ in range(10_000):
            result = end.run(Instr("send", [0], src=ends.pieces(0, LONG)), source=x, timeout=60)
            if result != "done":
                return result
        return "done"

    ended = each([Registered(0, [None, pair[0]]), Registered(1, [pair[1], None])], [run, one_sided])
    assert ended == ["closed", "lost"]


def test_a_transport_may_be_closed_while_a_peer_comes() -> None:
    """Memory that a late writer was given goes too."""
    for seconds in (0.0, 0.002, 0.005, 0.01, 0.02):
        ranks = InProcess(VerbsTransport)
        ranks.sides(2)
        one, other = (made for made in ranks.made if isinstance(made, VerbsTransport))

        def knock(one: VerbsTransport = one) -> None:
            with contextlib.suppress(TransportError, OSError):
                one.channels("late", 0, [0, 1]).open(1, None)

        one.context.timeout = 1.0
        thread = threading.Thread(target=knock)
        thread.start()
        time.sleep(seconds)
        other.close()
        thread.join(20)
        ranks.close()


# --------------------------------------------------------------------------------------- memory that is ours again

def test_the_key_to_a_received_message_is_dead(ranks: InProcess) -> None:
    pair = ranks.pair()
    x, began = data(LONG), get("long_writes")

    def send(end: End) -> list[str]:
        return [end.send(x) for _ in range(5)]

    def recv(end: End) -> None:
        for _ in range(5):
            result, into = end.recv(LONG)
            assert result == "done" and np.array_equal(into, x)
            assert not FAKE.fake_replay(), "the peer could write there again"

    each([Registered(0, [None, pair[0]]), Registered(1, [pair[1], None])], [send, recv])
    assert get("long_writes") == began + 5 * 3


def test_a_late_write_is_refused(ranks: InProcess) -> None:
    """The reader gives up between its invitation and the write: its memory is its own again."""
    pair, given_up = ranks.pair(), threading.Event()
    put(hold=1)

    def send(end: End) -> str:
        x = data(LONG)
        threading.Thread(target=lambda: (given_up.wait(20), FAKE.fake_release())).start()
        return end.send(x, timeout=60)

    def recv(end: End) -> tuple[str, bool]:
        result, into = end.recv(LONG, timeout=0.3)
        assert result == "timeout" and not FAKE.fake_replay()
        into[:] = 7
        given_up.set()
        time.sleep(0.2)
        return result, bool((into == 7).all())

    sent, got = each([Registered(0, [None, pair[0]]), Registered(1, [pair[1], None])], [send, recv])
    assert sent == "lost" and got == ("timeout", True) and not get("bad_keys")


def test_an_array_in_use_stays(ranks: InProcess) -> None:
    """... while other threads fill the cache; and what it carries arrives."""
    pair = ranks.pair()
    transports, stop = pair[0].owner[1], threading.Event()

    def fill() -> None:
        while not stop.is_set():
            kept = [np.zeros(64, np.uint8) for _ in range(PINS)]
            for one in transports:
                for array in kept:
                    pin(one.device, array)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        assert both(pair, functools.partial(talk, rounds=100)) == ["done", "done"]
    finally:
        stop.set()
        thread.join()


def test_the_owner_dies_while_it_travels(ranks: InProcess) -> None:
    """The collectives keep their arrays; if somebody did not, the run would end, and nothing else would be harmed."""
    pair = ranks.pair()
    end = Registered(0, [None, pair[0]])
    x = data(LONG)
    device = pair[0].owner[1][0].device
    send = Instr("send", [1], src=ends.pieces(0, LONG))
    assert device.pin(x.ctypes.data, LONG, owner := type("Owner", (), {})())
    assert End.run(end, send, source=x, timeout=0.2) == "timeout"  # and the channel has been told to forget it
    assert weakref.ref(owner)() is owner and device.pinned == 1
    del owner
    assert device.pinned == 0
    for side in pair:
        side.close()


def test_what_is_offered_travels_as_json(ranks: InProcess) -> None:
    pair = ranks.pair()
    transport = pair[0].owner[1][0]
    assert json.loads(json.dumps(transport.offer()))["gids"][2] == ["RoCE v2, IPv4", transport.port.gids[2][2].hex()]
    windows = "through windows" if get("windows") else "registered one by one, as the device has no windows"
    assert transport.detail(1) == f"fake0 port 1, RoCE v2, IPv4; long messages are not copied: {windows}"
