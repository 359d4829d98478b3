"""Two streams, of connections that are made again when they break, as a pair of channels; healing.h is how."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from hocket.errors import TransportError
from hocket.system.tls cimport Tls, hk_tls
from hocket.transports.channel cimport HK_AGAIN, HK_CAPSULE, hk_channel, hk_channel_ops


cdef extern from "pthread.h" nogil:
    struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_mutex_destroy(pthread_mutex_t*)

cdef extern from *:
    """
    #include <sys/ioctl.h>
    #include <linux/sockios.h>
    static int hk_unsent(int fd) {
        int n = 0;
        return ioctl(fd, SIOCOUTQ, &n) < 0 ? 0 : n;
    }
    """
    int hk_unsent(int) nogil

cdef extern from "system/atomics.h" nogil:
    void hk_store32(uint32_t*, uint32_t)

cdef extern from "transports/tcp/healing_checked.h" nogil:
    struct hk_record:
        size_t at, end, tail
    long hk_checked_give(hk_healing_sender*, iovec*, int, int) noexcept
    const hk_channel_ops hk_healing_checked_sender_ops, hk_healing_checked_receiver_ops

cdef extern from "transports/tcp/healing_tls.h" nogil:
    enum hk_line_state:
        HK_LINE_NONE
        HK_LINE_OPEN
        HK_LINE_BROKEN
        HK_LINE_AGAIN
        HK_LINE_LOST
    struct hk_line:
        pthread_mutex_t lock
        hk_line_state state
        int fd, bell, idle, mute
        hk_tls* tls
        hk_record* record
        uint32_t damaged, serial
    struct hk_kept:
        char* ring
        size_t room
        uint64_t sent, given, acked
    struct hk_receiver:
        hk_channel base
        char* stage
    struct hk_sender:
        hk_channel base
    struct iovec:
        pass
    struct hk_healing_sender
    struct hk_healing_receiver
    ctypedef long hk_giver(hk_healing_sender*, iovec*, int, int) noexcept
    ctypedef long hk_hearer(hk_healing_sender*, void*, size_t) noexcept
    struct hk_healing_sender:
        hk_sender plain
        hk_line line
        hk_kept kept
        hk_giver* give
        hk_hearer* hear
        size_t word_bytes
        hk_healing_receiver* pair
    struct hk_healing_receiver:
        hk_receiver plain
        hk_line line
        uint64_t got, told
        hk_healing_sender* pair
    ctypedef int hk_teller(hk_healing_receiver*, const char*) noexcept
    int hk_kept_again(hk_kept*, uint64_t)
    int hk_give_again(hk_giver*, hk_healing_sender*)
    int hk_hear(hk_hearer*, hk_healing_sender*)
    void hk_tell(hk_teller, hk_healing_receiver*)
    void hk_line_breaks(hk_line*, hk_channel*)
    long hk_socket_give(hk_healing_sender*, iovec*, int, int) noexcept
    long hk_tls_give(hk_healing_sender*, iovec*, int, int) noexcept
    long hk_socket_hear(hk_healing_sender*, void*, size_t) noexcept
    long hk_tls_hear(hk_healing_sender*, void*, size_t) noexcept
    int hk_socket_tell(hk_healing_receiver*, const char*) noexcept
    int hk_tls_say(hk_healing_receiver*, const char*) noexcept
    const hk_channel_ops hk_healing_sender_ops, hk_healing_receiver_ops
    const hk_channel_ops hk_healing_tls_sender_ops, hk_healing_tls_receiver_ops


cdef class HealingStreams:
    """The two channels over connections: `out`, which we dialled (None: not yet), and the peer's when it has come.

    A connection is a socket, or with `encrypted` a Tls whose handshake is over; this object owns and closes both.
    bell: the end of a pipe, to which a byte is written when one has broken.  checked: see healing_checked.h; not inside
    TLS, which checks by itself.  linger(end) closes our connection where, when this object is closed, the system has not
    yet brought all of it; without it that is closed at once.
    """

    cdef hk_healing_sender sender
    cdef hk_healing_receiver receiver
    cdef object out, incoming, linger
    cdef bint encrypted, shut
    cdef readonly object send, recv     # capsules
    cdef object __weakref__
    cdef list words                     # keeps the texts of losses

    def __cinit__(self, out, bint encrypted, int bell, bint checked=False, linger=None):
        self.encrypted, self.out, self.linger, self.words = encrypted, out, linger, []
        self.sender.pair, self.receiver.pair = &self.receiver, &self.sender
        self.sender.plain.base.late = 1
        pthread_mutex_init(&self.sender.line.lock, NULL)
        pthread_mutex_init(&self.receiver.line.lock, NULL)
        self.sender.plain.base.ops = &hk_healing_tls_sender_ops if encrypted else &hk_healing_sender_ops
        self.receiver.plain.base.ops = &hk_healing_tls_receiver_ops if encrypted else &hk_healing_receiver_ops
        self.sender.give, self.sender.hear = hk_socket_give, hk_socket_hear
        if encrypted:
            self.sender.give, self.sender.hear = hk_tls_give, hk_tls_hear
        if checked and not encrypted:
            self.sender.plain.base.ops = &hk_healing_checked_sender_ops
            self.receiver.plain.base.ops = &hk_healing_checked_receiver_ops
            self.sender.give = hk_checked_give
            self.sender.line.record = <hk_record*>calloc(1, sizeof(hk_record))
            self.receiver.line.record = <hk_record*>calloc(1, sizeof(hk_record))
            if self.sender.line.record == NULL or self.receiver.line.record == NULL:
                raise MemoryError
        self.sender.line.bell = self.receiver.line.bell = bell
        self.sender.plain.base.fd = self.receiver.plain.base.fd = -1
        if out is not None:
            self.connect(&self.sender.line, &self.sender.plain.base, self.tls_of(out), self.ready(out), HK_LINE_OPEN)
        self.send = PyCapsule_New(&self.sender.plain.base, HK_CAPSULE, NULL)
        self.recv = PyCapsule_New(&self.receiver.plain.base, HK_CAPSULE, NULL)

    def __dealloc__(self):
        free(self.sender.kept.ring)
        free(self.receiver.plain.stage)
        free(self.sender.line.record)
        free(self.receiver.line.record)
        pthread_mutex_destroy(&self.sender.line.lock)
        pthread_mutex_destroy(&self.receiver.line.lock)

    cdef int connect(self, hk_line* line, hk_channel* ch, hk_tls* tls, int fd, hk_line_state state) noexcept:
        """Use this connection.  Nothing of Python's: who holds the lock never waits for the GIL."""
        line.tls, line.fd, line.state = tls, fd, state
        line.idle = line.mute = 0
        hk_store32(&line.serial, line.serial + 1)
        if line.record != NULL:
            line.record.at = line.record.end = line.record.tail = 0
        hk_store32(<uint32_t*>&ch.fd, <uint32_t>(fd if state == HK_LINE_OPEN else -1))
        return 0

    cdef hk_tls* tls_of(self, end) except? NULL:
        return &(<Tls?>end).tls if self.encrypted else NULL

    def ready(self, end):
        """The descriptor of a connection that nobody waits on."""
        socket = (<Tls?>end).socket if self.encrypted else end
        socket.setblocking(False)
        return socket.fileno()

    # --- ours

    def start(self, end):
        """Our first connection, where there was none."""
        cdef hk_tls* tls = self.tls_of(end)
        cdef int fd = self.ready(end)
        cdef bint right = False
        pthread_mutex_lock(&self.sender.line.lock)
        if self.sender.line.state == HK_LINE_NONE:
            right = True
            self.connect(&self.sender.line, &self.sender.plain.base, tls, fd, HK_LINE_OPEN)
        pthread_mutex_unlock(&self.sender.line.lock)
        if right:
            self.out = end
        else:
            end.close()
        return right

    @property
    def to_give(self):
        """Is our connection broken, or new and not given all yet, and to be made again now?"""
        cdef hk_line_state state = self.sender.line.state
        return state == HK_LINE_AGAIN or state == HK_LINE_BROKEN and not self.sender.line.idle

    def breaks(self):
        """Our connection is none any more.  True if it is to be made again now: the peer may lack some bytes."""
        cdef hk_line* line = &self.sender.line
        pthread_mutex_lock(&line.lock)
        if line.state == HK_LINE_OPEN:
            self.hear()
            line.state = HK_LINE_BROKEN
            line.idle = self.sender.kept.acked == self.sender.kept.sent
            hk_store32(<uint32_t*>&self.sender.plain.base.fd, <uint32_t>-1)
        pthread_mutex_unlock(&line.lock)
        return self.to_give

    cdef object hear(self):
        hk_hear(self.sender.hear, &self.sender)

    def again(self, end, uint64_t got):
        """A new connection, whose receiver has so many bytes.  TransportError: it cannot have them."""
        cdef bint right = False
        cdef hk_tls* tls = self.tls_of(end)
        cdef int fd = self.ready(end)
        pthread_mutex_lock(&self.sender.line.lock)
        if self.sender.line.state != HK_LINE_LOST:
            right = hk_kept_again(&self.sender.kept, got)
            if right:
                self.sender.word_bytes = 0
                self.connect(&self.sender.line, &self.sender.plain.base, tls, fd, HK_LINE_AGAIN)
        pthread_mutex_unlock(&self.sender.line.lock)
        if right:
            self.out, end = end, self.out
        end.close()
        if not right:
            known = f"{self.sender.kept.acked} to {self.sender.kept.sent}"
            raise TransportError(f"the other side says that it has {got} bytes of a stream: {known} can be")

    def give(self):
        """Give the new connection what is kept, as far as it takes it.  True: it is as good as the old one was.

        None: it has broken, too.
        """
        cdef int rc
        with nogil:
            pthread_mutex_lock(&self.sender.line.lock)
            rc = hk_give_again(self.sender.give, &self.sender)
            pthread_mutex_unlock(&self.sender.line.lock)
        return None if rc < 0 and rc != HK_AGAIN else rc == 1

    @property
    def kept(self):
        """(bytes sent, bytes that the peer has said to have, bytes of the ring that holds the rest)."""
        return self.sender.kept.sent, self.sender.kept.acked, self.sender.kept.room

    def out_fd(self):
        """The descriptor of our connection; -1: there is none."""
        return self.sender.line.fd if self.out is not None else -1

    # --- the peer's

    @property
    def to_get(self):
        """Is the peer's connection broken?"""
        return self.receiver.line.state == HK_LINE_BROKEN

    def got(self):
        """The number of bytes that have come.  No more will, until `receive_from`."""
        cdef hk_line* line = &self.receiver.line
        pthread_mutex_lock(&line.lock)
        if line.state == HK_LINE_OPEN:
            line.state = HK_LINE_BROKEN
            hk_store32(<uint32_t*>&self.receiver.plain.base.fd, <uint32_t>-1)
        count = self.receiver.got
        pthread_mutex_unlock(&line.lock)
        return count

    def receive_from(self, end):
        """The peer's connection has come, or another one after `got`.  From any thread; a run may be waiting for it."""
        cdef hk_tls* tls = self.tls_of(end)
        cdef int fd = self.ready(end)
        cdef bint right = False
        pthread_mutex_lock(&self.receiver.line.lock)
        if self.receiver.line.state != HK_LINE_LOST:
            right = True
            self.receiver.told = self.receiver.got
            self.connect(&self.receiver.line, &self.receiver.plain.base, tls, fd, HK_LINE_OPEN)
        pthread_mutex_unlock(&self.receiver.line.lock)
        if right:
            self.incoming, end = end, self.incoming
        if end is not None:
            end.close()

    @property
    def damaged(self):
        """The number of records of the peer's that came damaged."""
        return self.receiver.line.damaged

    # --- both

    def lost(self, str words, bint ours):
        """Our connection, or the peer's, will not come again."""
        text = words.encode()
        self.words.append(text)     # an engine may be reading an earlier one
        self.end(&self.sender.line if ours else &self.receiver.line,
                 &self.sender.plain.base if ours else &self.receiver.plain.base, text)

    cdef object end(self, hk_line* line, hk_channel* ch, bytes text):
        pthread_mutex_lock(&line.lock)
        if line.state != HK_LINE_LOST:
            line.state = HK_LINE_LOST
            if text is not None:
                ch.words = text
            hk_store32(<uint32_t*>&ch.fd, <uint32_t>-1)
        pthread_mutex_unlock(&line.lock)

    @property
    def closed(self):
        return self.sender.line.state == HK_LINE_LOST and self.receiver.line.state == HK_LINE_LOST

    def close(self):
        """Calls on the channels fail from now on, or find nothing; what was sent arrives.  May come twice."""
        cdef int left = 0
        if self.shut:
            return
        self.shut = True
        pthread_mutex_lock(&self.receiver.line.lock)
        if self.receiver.line.state == HK_LINE_OPEN and self.receiver.got > self.receiver.told:
            if self.encrypted:
                hk_tell(hk_tls_say, &self.receiver)
            else:
                hk_tell(hk_socket_tell, &self.receiver)
        pthread_mutex_unlock(&self.receiver.line.lock)
        self.end(&self.receiver.line, &self.receiver.plain.base, None)
        if self.incoming is not None:
            self.incoming.close()
        pthread_mutex_lock(&self.sender.line.lock)
        if self.sender.line.state == HK_LINE_OPEN:
            self.hear()             # the system would not bring the rest where something is unread
            if self.sender.kept.acked < self.sender.kept.sent:
                left = hk_unsent(self.sender.line.fd)
        pthread_mutex_unlock(&self.sender.line.lock)
        self.end(&self.sender.line, &self.sender.plain.base, None)
        if left and self.linger is not None:
            self.linger(self.out)
        elif self.out is not None:
            self.out.close()


def unsent(int fd):
    """Bytes of a socket that the other side's system does not have yet."""
    return hk_unsent(fd)
