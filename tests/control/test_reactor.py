"""The reactor: a callback that fails ends nothing, times are kept, and it sleeps when there is nothing to do."""

import logging
import time

from hocket.control.reactor import Reactor
from support.faulty import wait_for
from support.pace import pace


def test_reactor_survives_a_failing_callback_and_keeps_time(reactor, caplog):
    ran = []
    with caplog.at_level(logging.ERROR):
        reactor.soon(lambda: 1 / 0)
        start = time.monotonic()
        reactor.later(0.2, lambda: ran.append(("late", time.monotonic() - start)))
        reactor.later(0.1, lambda: ran.append(("early", time.monotonic() - start)))
        reactor.later(60, lambda: ran.append(("much later", 60)))
        wait_for(lambda: len(ran) == 2)
    assert "ZeroDivisionError" in caplog.text
    assert [name for name, _ in ran] == ["early", "late"] and ran[1][1] >= 0.2


def test_reactor_sleeps(reactor):
    before = time.process_time()
    time.sleep(0.3)
    used = time.process_time() - before
    assert used < 0.03 * pace()


def test_close_waits_for_what_waits_aside():
    reactor, steps = Reactor(), []

    def wait() -> None:
        steps.append("waits")
        while not reactor.dead:
            time.sleep(0.01)
        time.sleep(0.05)
        steps.append("lets go")

    reactor.aside("test", wait)
    reactor.close()
    assert steps == ["waits", "lets go"]
