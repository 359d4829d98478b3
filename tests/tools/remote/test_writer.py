"""The launcher's words to its agents: the last of them is followed by the end of the agent's input."""

from __future__ import annotations

import os

from hocket.tools.remote.writer import FrameWriter


def test_an_agent_reads_all_words_and_then_the_end() -> None:
    reads, writes = os.pipe()
    gone, into = os.pipe()
    os.close(gone)  # this agent has ended: it is nobody else's loss
    writer = FrameWriter()
    with os.fdopen(reads, "rb") as agent:
        box, ended = writer.box(os.fdopen(writes, "wb")), writer.box(os.fdopen(into, "wb"))
        writer.send(ended, b"x" * 10, last=True)
        writer.send(box, b"a" * 100_000)
        writer.start()
        writer.send(box, b"b", last=True)
        assert agent.read() == b"a" * 100_000 + b"b"
        writer.close()
        assert not box.open and not ended.open and ended.sink.closed
