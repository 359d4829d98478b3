"""Helpers of the tests of a listener: its key, and a client's hello."""

from hocket.control.handshake import Hello

KEY = b"k" * 32


def hello(rank=1):
    return Hello(rank, "data", "job")  # to a coordinator, as the listeners here are
