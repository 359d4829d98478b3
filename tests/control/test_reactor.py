"""The reactor: a callback that fails ends nothing, times are kept, and it sleeps when there is nothing to do."""

import logging
import time

from support.faulty import wait_for


def test_reactor_survives_a_failing_callback_and_keeps_time(reactor, caplog):
    ran = []
    with caplog.at_level(logging.ERROR):
        reactor.soon(lambda: 1 / 0)
        start = time.monotonic()
        reactor.later(0.2, lambda: ran.append(("late", time.monotonic() - start)))
        reactor.later(0.1, lambda: ran.append(("early", time.monotonic() - start)))
        wait_for(lambda: len(ran) == 2)
    assert "ZeroDivisionError" in caplog.text
    assert [name for name, _ in ran] == ["early", "late"] and 0.2 <= ran[1][1] < 0.5


def test_reactor_sleeps(reactor):
    used = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used < 0.05
