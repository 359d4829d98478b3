"""A call that is made again and again with the same arrays; MPI calls it persistent.

What Python does to make a call costs more than the short way itself (shortcut.pyx): names are bound to values, and go
through two functions.  Here they are bound once.
"""

from hocket.collectives.calls.ask cimport Ask
from hocket.collectives.engine.shortcut cimport ShortWay, fill


cdef class Prepared:
    """What `Communicator.prepare` returns: calling it makes the call, `start()` makes it asynchronously."""

    cdef ShortWay comm
    cdef object x, out
    cdef tuple asked
    cdef Ask ask                # of what `asked` keeps alive

    def __init__(self, ShortWay comm, x, out, asked):
        self.comm, self.x, self.out, self.asked = comm, x, out, tuple(asked)
        fill(&self.ask, self.asked)

    def __call__(self):
        """Make the call.  Its result."""
        return self._go(False)

    def start(self):
        """Make the call asynchronously.  Its `Work`."""
        return self._go(True)

    cdef object _go(self, bint async_op):
        cdef Ask ask = self.ask
        ask.async_op = async_op
        return self.comm.call(self.x, self.out, &ask)

    def __repr__(self):
        return f"{self.comm!r}.prepare({self.asked[0]!r})"
