"""The control plane while a job runs, by real kills: losses, goodbyes and faults reach everybody once."""

import signal
import time

import pytest

from hocket.control.protocol.faults import Faults, SendMessage
from hocket.control.protocol.membership import Gone
from hocket.control.protocol.messages import Stuck, Verdict
from support.controlled import KEY, exchanged
from support.launcher import state


def fault(comm="world", ranks=(0, 1, 2), **more):
    return {"kind": "timeout", "comm": comm, "seq": 7, "ranks": list(ranks), "text": "too long", **more}


def test_a_killed_member_is_told_to_all_at_once(start, unix):
    ranks = start(4, unix)
    ranks[3].tell("exchange", "I wait", 100)
    assert ranks[3].hear("calls") == "exchange"
    ranks[2].process.kill()
    for rank in (ranks[0], ranks[1], ranks[3]):
        lost = rank.hear("lost")
        assert lost["rank"] == 2 and lost["lost"] == [2] and "process ended" in lost["how"]
    told = ranks[3].hear("error")
    assert told["error"] == "PeerLostError" and told["gone"] == [2]
    ranks[1].process.kill()
    lost = ranks[0].hear("lost")
    assert lost["lost"] == [1, 2] and lost["rank"] == 1


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_killed_rank_0_is_noticed_by_each(start, unix, ports, transport):
    address, key = (unix, None) if transport == "unix" else (("tcp", "127.0.0.1", ports), KEY)
    ranks = start(3, address, key=key, limits=[("session", "GOODBYE", 60.0)])
    ranks[0].process.kill()
    for rank in ranks[1:]:
        assert rank.hear("lost")["lost"] == [0]
        rank.tell("exchange", 1, 100)
        told = rank.hear("error")
        assert told["error"] == "PeerLostError" and told["gone"] == [0]
        rank.tell("close")
        rank.hear("done")


def test_a_killed_rank_is_noticed_though_its_forked_child_lives(start, unix):
    ranks = start(3, unix)
    for rank in ranks[:2]:
        rank.tell("fork")
        rank.hear("done")
    ranks[1].process.kill()
    assert ranks[2].hear("lost")["lost"] == [1]
    ranks[0].process.kill()
    assert ranks[2].hear("lost")["lost"] == [0, 1]


def test_leaving_is_not_dying(start, unix):
    ranks = start(3, unix, limits=[("session", "LAST_OUT", 0.8)])
    ranks[1].tell("close")
    ranks[1].hear("done")
    ranks[1].process.kill()
    for rank in (ranks[0], ranks[2]):
        assert rank.hear("left") == 1
    ranks[0].tell("close")  # waits for rank 2, whose process has not said goodbye, and leaves without it
    assert ranks[2].hear("left") == 0
    assert ranks[0].hear("took") > 0.7
    ranks[0].process.kill()
    ranks[2].silent("lost")
    ranks[2].tell("close")
    ranks[2].hear("done")


def test_rank_0_waits_for_late_goodbyes(start, unix):
    ranks = start(2, unix, limits=[("session", "LAST_OUT", 60.0)])
    ranks[0].tell("close")
    ranks[0].silent("done", 0.2)
    ranks[1].tell("close")
    ranks[0].hear("done")
    ranks[1].silent("lost", 0.1)


def test_an_exchange_names_who_did_not_come(start, unix):
    ranks = start(3, unix)
    ranks[0].tell("exchange", 0, 3.0)
    ranks[1].tell("exchange", 1, 3.0)
    for rank in ranks[:2]:
        told = rank.hear("error")
        assert told["error"] == "TimeoutError" and told["gone"] == [2] and "rank 2 did not come" in told["text"]


def test_values_too_long_together_are_refused_on_all(start, unix):
    ranks = start(2, unix)
    for rank in ranks:
        rank.tell("exchange", "x" * (9 << 20), 30)
    for rank in ranks:
        assert rank.hear("error")["error"] == "ArgumentError"
    for rank in ranks:
        rank.tell("exchange", "y" * (2 << 20), 30)
    for rank in ranks:
        assert [len(value) for value in rank.hear("done")] == [2 << 20] * 2


# --- faults ---


def test_a_fault_stops_its_ranks_and_becomes_one_verdict(start, unix):
    ranks = start(4, unix, limits=[("protocol.faults", "GATHER", 3.0)])
    ranks[1].tell("report", fault(account={"state": "in call", "call": "allreduce"}))
    ranks[2].tell("report", fault(kind="error", text="second", account={"state": "in call", "call": "broadcast"}))
    for rank in ranks[:3]:
        stop = rank.hear("stop")
        assert stop["comm"] == "world" and stop["kind"] in ("timeout", "error")
        verdict = rank.hear("verdict")
        assert verdict["by"] in (1, 2) and verdict["seq"] == 7 and set(verdict["accounts"]) == {"0", "1", "2"}
        assert verdict["accounts"]["0"] == {"state": "idle", "seq": 0}
        assert verdict["accounts"][str(verdict["by"])]["state"] == "in call"
        rank.silent("verdict", 0.1)
    ranks[3].silent("stop", 0.1)
    ranks[0].silent("verdict", 3.2)  # nor another when the time to gather is over
    ranks[3].tell("report", fault(comm="other", ranks=(3,)))
    assert ranks[3].hear("verdict")["accounts"] == {"3": {"state": "idle", "seq": 3}}


def test_a_stopped_process_gives_no_answer_and_is_not_lost(start, unix):
    ranks = start(3, unix, limits=[("protocol.faults", "GATHER", 3.0)])
    ranks[2].process.send_signal(signal.SIGSTOP)
    while state(ranks[2].process.pid) != "T":
        time.sleep(0.001)
    began = time.monotonic()
    ranks[0].tell("report", fault())
    for rank in ranks[:2]:
        verdict = rank.hear("verdict")
        assert verdict["kind"] == "timeout" and verdict["accounts"]["2"] == {"state": "no answer"}
        assert verdict["accounts"]["1"] == {"state": "idle", "seq": 1}
    waited = time.monotonic() - began
    assert waited > 2.9
    ranks[2].process.send_signal(signal.SIGCONT)
    assert ranks[2].hear("verdict")["by"] == 0


def test_the_lost_and_the_left_are_not_waited_for(start, unix):
    ranks = start(4, unix, limits=[("protocol.faults", "GATHER", 60.0)])
    ranks[2].process.kill()
    ranks[3].tell("close")
    for rank in ranks[:2]:
        rank.hear("lost")
        rank.hear("left")
    ranks[0].tell("report", fault(ranks=range(4)))
    accounts = ranks[1].hear("verdict")["accounts"]
    assert accounts["2"] == {"state": "lost"} and accounts["3"] == {"state": "left"}


def test_stuck_reports_of_older_calls_are_forgotten():
    faults = Faults(Gone())

    def stuck(rank, seq, fingerprint):
        return list(faults.stuck(rank, Stuck("c", seq, [0, 1], fingerprint, {"state": "in call"})))

    assert not stuck(0, 1, "a") + stuck(0, 2, "b") + stuck(1, 1, "z")
    sent = [each.message for each in stuck(1, 2, "c") if isinstance(each, SendMessage)]
    assert [message.fault.kind for message in sent if isinstance(message, Verdict)] == ["mismatch"] * 2


def test_malformed_words_disturb_nobody(start, unix):
    ranks = start(2, unix)
    for words in ({"fault": ["error", "c"]}, {"stuck": ["c"]}, {"fault": 3}, {"bye": []}, {}):
        ranks[1].tell("say", words)
        ranks[1].hear("done")
    exchanged(ranks, 0)
