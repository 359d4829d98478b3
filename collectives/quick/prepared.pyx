"""A call that is made again and again with the same arrays; MPI calls it persistent.

What Python does to make a call costs more than the short way itself (shortcut.pyx): names are bound to values, and go
through two functions.  Here they are bound once.
"""

from hocket.collectives.calls.ask cimport Ask, fill
from hocket.collectives.quick.short_messages cimport RECEIVES, SENDS, ShortMessages
from hocket.collectives.quick.shortcut cimport MISS, ShortWay

cdef dict ENDS = {"send": SENDS, "recv": RECEIVES, "sendrecv": SENDS | RECEIVES}


cdef class Prepared:
    """A prepared call, which `Communicator.prepare` returns: calling it makes the call, `start()` makes it
    asynchronously."""

    cdef ShortWay comm
    cdef str name
    cdef object x, out

    def __call__(self):
        """Make the call.  Its result."""
        return self._go(False)

    def start(self):
        """Make the call asynchronously.  Its `Work`."""
        return self._go(True)

    cdef object _go(self, bint async_op):
        raise NotImplementedError

    def __repr__(self):
        return f"{self.comm!r}.prepare({self.name!r})"


cdef class PreparedCollective(Prepared):
    cdef tuple asked
    cdef Ask ask                # of what `asked` keeps alive

    def __init__(self, ShortWay comm, x, out, asked):
        self.comm, self.name, self.x, self.out, self.asked = comm, asked[0], x, out, tuple(asked)
        fill(&self.ask, self.asked)

    cdef object _go(self, bint async_op):
        cdef Ask ask = self.ask
        ask.async_op = async_op
        return self.comm.call(self.x, self.out, &ask)


cdef class PreparedMessage(Prepared):
    cdef object dest, source, tag, messenger
    cdef int ends
    cdef ShortMessages messages

    def __init__(self, ShortWay comm, messenger, str name, x, dest, out, source, tag):
        self.comm, self.name, self.x, self.out = comm, name, x, out
        self.messenger, self.messages, self.ends = messenger, messenger.short, ENDS[name]
        self.dest, self.source, self.tag = dest, source, tag

    cdef object _go(self, bint async_op):
        done = self.messages.take(self.ends, self.x, self.dest, self.out, self.source, self.tag, async_op)
        if done is not MISS:
            return done
        outgoing = (self.x, self.dest) if self.ends & SENDS else ()
        incoming = (self.out, self.source) if self.ends & RECEIVES else ()
        return getattr(self.messenger, self.name)(*outgoing, *incoming, self.tag, async_op, None, None)
