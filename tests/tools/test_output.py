"""Merging of the ranks' lines into one screen by `hocket run`."""


import pytest

from hocket.tools.output import HOLD, Screen, Source


def screen_of(*words):
    """The screen after sources said words: (source, bytes), each flushed as after a pause."""
    shown, screen = [], Screen()
    sources = [Source(b"[%d] " % number, screen, shown.append) for number in range(2)]
    for number, data in words:
        sources[number].feed(data, 0.0)
        sources[number].flush()
    for source in sources:
        source.finish()
    return b"".join(shown)


@pytest.mark.parametrize(
    "words, screen",
    [
        ([(0, b"a\nb\n")], b"[0] a\n[0] b\n"),
        ([(0, b"a"), (0, b"b\n")], b"[0] ab\n"),
        ([(0, b"a"), (1, b"x\n"), (0, b"b\n")], b"[0] a\n[1] x\n[0] b\n"),
        ([(0, b"a"), (1, b"x\n"), (0, b"\n"), (0, b"b\n")], b"[0] a\n[1] x\n[0] b\n"),
        ([(0, b"\n\n")], b"[0] \n[0] \n"),
        ([(0, b"a"), (1, b"\n"), (0, b"\n")], b"[0] a\n[1] \n"),
        ([(0, b"\r10%"), (0, b"\r20%"), (0, b"\n")], b"[0] 10%\r[0] 20%\n"),
        ([(0, b"\r10%"), (1, b"x\n"), (0, b"\r20%"), (0, b"\n")], b"[0] 10%\n[1] x\n[0] 20%\n"),
        ([(0, b"a\r\nb\r\n")], b"[0] a\n[0] b\n"),
        ([(0, b"no end"), (1, b"nor here")], b"[0] no end\n[1] nor here\n"),
    ],
)
def test_merging(words, screen):
    assert screen_of(*words) == screen


def test_a_line_that_comes_in_pieces_is_held_a_moment():
    shown, screen = [], Screen()
    one, other = (Source(b"[%d] " % number, screen, shown.append) for number in range(2))
    one.feed(b"hel", 1.0)
    other.feed(b"x\n", 1.0)
    one.feed(b"lo\r", 1.001)
    assert one.due() == pytest.approx(1.001 + HOLD) and other.due() is None
    one.feed(b"\n", 1.002)
    assert b"".join(shown) == b"[1] x\n[0] hello\n" and one.due() is None
    one.feed(b"a", 1.1)
    one.feed(b"b\nc", 1.14)
    assert one.due() == pytest.approx(1.14 + HOLD), "the line that is held now began then"
