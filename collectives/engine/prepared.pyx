"""A call that is made again and again with the same arrays; MPI calls it persistent.

What Python does to make a call costs more than the short way itself (shortcut.pyx): names are bound to values, and go
through two functions.  Here they are bound once.
"""

from hocket.collectives.engine.shortcut cimport MISS, Shortcut


cdef class Prepared:
    """What `Communicator.prepare` returns: calling it makes the call, `start()` makes it asynchronously."""

    cdef object comm, x, out, op, root, algorithm, order
    cdef str collective
    cdef Shortcut shortcut

    def __init__(self, comm, str collective, x, out, op, root, algorithm, order):
        self.comm, self.shortcut, self.collective = comm, comm.shortcut, collective
        self.x, self.out, self.op, self.root, self.algorithm, self.order = x, out, op, root, algorithm, order

    def __call__(self):
        """Make the call.  Its result."""
        return self._go(False)

    def start(self):
        """Make the call asynchronously.  Its `Work`."""
        return self._go(True)

    cdef object _go(self, bint async_op):
        done = self.shortcut.take(
            self.collective, self.x, self.out, self.op, self.root, None, self.algorithm, self.order, False,
            async_op
        )
        if done is not MISS:
            return done
        what = self.collective, self.x, self.out, self.op, self.root, None
        return self.comm._call(*what, async_op, None, self.algorithm, None, self.order)

    def __repr__(self):
        return f"{self.comm!r}.prepare({self.collective!r})"
