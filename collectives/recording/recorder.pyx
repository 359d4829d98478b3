"""The recorder of this process: a file with a ring for each engine (system/record.h).

Everything here but the writing of records is done under the GIL.
"""

import json
import logging
import os
import socket
import threading
import time

cimport cython
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from hocket.collectives.recording import memory
from hocket.system.machine import boot_id, clock_ahead, counts_ticks


cdef extern from "sys/mman.h" nogil:
    enum: PROT_READ
    enum: PROT_WRITE
    enum: MAP_SHARED
    enum: MAP_PRIVATE
    enum: MAP_ANONYMOUS
    void* MAP_FAILED
    void* mmap(void*, size_t, int, int, int, long)
    int munmap(void*, size_t)
    int madvise(void*, size_t, int)

cdef extern from "system/record.h" nogil:
    enum: HK_RECORD_VERSION
    enum: HK_RING_ROOM
    enum: HK_HEADS_AT
    enum: HK_ABOUT_AT
    enum: HK_ABOUT
    enum: HK_TEXTS_AT
    enum: HK_RINGS_AT
    struct hk_recorder:
        char magic[8]
        uint32_t version, pid, rings, refused, traced, unnamed
        uint64_t monotonic_ns, realtime_ns
        long timens_ns
        uint64_t texts_at, texts_room, texts
        char boot_id[40]
        char host[64]
    void hk_store32(uint32_t*, uint32_t)
    void hk_store64(uint64_t*, uint64_t)
    uint64_t hk_load64(const uint64_t*)
    void hk_fence()
    void hk_fence_stores()

cdef extern from "unistd.h" nogil:
    int close(int)
    enum: _SC_PAGESIZE
    long sysconf(int)

cdef extern from "system/wait.h" nogil:
    uint64_t hk_now()

log = logging.getLogger("hocket")
RECORD_BYTES, RING_BYTES, HEAD_BYTES = sizeof(hk_record), sizeof(hk_ring), sizeof(hk_recorder)
LEAST_LEFT = 1 << 16
"""Bytes of the table that are kept for texts that many calls share, once the others have filled the rest."""
cdef enum:
    MADV_POPULATE_WRITE = 23    # since Linux 5.14
    FIRST_TOUCHED = 1 << 20     # bytes of a trace's ring when it begins ...
    TOUCHED_AHEAD = 1 << 22     # ... and of one that is written to, before its writer
cdef Recorder _of_process = None
_lock = threading.RLock()
"""Ranks may be threads, and files are made without the GIL."""
cdef int _traces = 0
"""The number of traces of the process that are wanted: it has one for all its ranks."""


@cython.no_gc_clear             # which __dealloc__ needs
cdef class Writer:
    """The one writer of a ring, which is given back with this at the latest."""

    def put(self, int kind, str text="", uint64_t nbytes=0, int peer=HK_NOBODY, uint32_t seq=0, what=None,
            int lane=HK_NOBODY, uint64_t ns=0):
        """Write a record, under the GIL, of `what`, a line of the table, or of `text`.  `ns`: its time; 0: now."""
        hk_put(&self.writer, ns or hk_now(), kind, seq, self.recorder.text(text) if what is None else what, nbytes, peer,
               HK_NOBODY, lane)

    cdef void give_back(self) noexcept:
        """Let another have the ring; until then its records can be read."""
        cdef Recorder r = self.recorder
        if not self.given_back:
            self.given_back = True
            r.free[(r.first_free + r.nfree) % HK_RINGS] = self.number
            r.nfree += 1

    def __dealloc__(self):
        self.give_back()


cdef class Recorder:
    """`fd`: of its file, which it owns; -1: it is private memory, because of `refused`.  `traced`: it is a trace's."""

    def __cinit__(self, int fd, str refused="", bint traced=False):
        cdef int flags = MAP_SHARED if fd >= 0 else MAP_PRIVATE | MAP_ANONYMOUS
        cdef hk_recorder* head
        cdef uint64_t magic
        self.fd, self.refused, self.lines = fd, refused, {}
        self.room = memory.TRACE_ROOM if traced else HK_RING_ROOM
        self.size = HK_RINGS_AT + HK_RINGS * self.room * sizeof(hk_record)
        self.base = mmap(NULL, self.size, PROT_READ | PROT_WRITE, flags, fd, 0)
        if self.base == MAP_FAILED:
            self.base = NULL
            raise MemoryError("no room for the recorder")
        head = <hk_recorder*>self.base
        head.version, head.pid, head.timens_ns = HK_RECORD_VERSION, os.getpid(), clock_ahead()
        head.traced = traced
        head.texts_at, head.texts_room = HK_TEXTS_AT, HK_RINGS_AT - HK_TEXTS_AT
        head.monotonic_ns, head.realtime_ns = hk_now(), time.time_ns()
        _copy(head.boot_id, boot_id(), sizeof(head.boot_id))
        _copy(head.host, socket.gethostname(), sizeof(head.host))
        self.line({})                       # line 0: nothing
        memcpy(&magic, b"hocketR", 8)
        hk_store64(<uint64_t*>head.magic, magic)    # last: now it may be read

    def line(self, dict value):
        """The number of a line of the table; 0 if there is no room for it."""
        cdef hk_recorder* head = <hk_recorder*>self.base
        cdef bytes text = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        cdef size_t room = head.texts_room - (0 if "shared" in value else LEAST_LEFT)
        number = self.lines.get(text)
        if number is not None:
            return number
        if head.texts + len(text) > room:
            head.unnamed += 1
            if self.copy is not None:       # a trace has the same lines
                (<hk_recorder*>self.copy.base).unnamed += 1
            return 0
        memcpy(<char*>self.base + head.texts_at + head.texts, <char*>text, len(text))
        hk_store64(&head.texts, head.texts + len(text))
        self.lines[text] = len(self.lines)
        if self.copy is not None:
            self.copy.line(value)
        return self.lines[text]

    def text(self, str words):
        """The number of a text, of a mark say."""
        return self.line({"text": words[:200]}) if words else 0

    def call(self, dict facts):
        """The number of a kind of call.  When the table is nearly full, calls of one algorithm share a line."""
        kept = {name: facts[name] for name in ("collective", "algorithm", "transports")}
        return self.line(facts) or self.line({"text": f"{facts['collective']}(...)", **kept, "shared": True})

    def ring(self, dict about):
        """A ring for what `about` tells; None if all are in use, which is counted."""
        with _lock:
            return self._claim(about)

    def _claim(self, dict about):
        cdef hk_recorder* head = <hk_recorder*>self.base
        cdef hk_ring* rings = <hk_ring*>(<char*>self.base + HK_HEADS_AT)
        cdef bytes text = json.dumps(about, separators=(",", ":")).encode() + b"\n"
        cdef Writer w
        cdef uint32_t number = head.rings
        if len(text) > HK_ABOUT:        # the name of a communicator split from another, and so on, is long
            text = json.dumps({**about, "comm": "...", "members": ""}).encode() + b"\n"
        if head.traced and number < HK_RINGS:
            try:                        # a disk that is full while a mapping is written kills the process
                os.posix_fallocate(self.fd, HK_RINGS_AT + number * self.room * sizeof(hk_record),
                                   self.room * sizeof(hk_record))
            except OSError as why:
                log.warning("hocket: the trace ends here: %s", why)
                head.refused += 1
                return None
        if number == HK_RINGS:          # rather one that nobody has had: what others wrote stays to be read
            if self.nfree == 0:
                head.refused += 1
                return None
            number = self.free[self.first_free]
            self.first_free = (self.first_free + 1) % HK_RINGS
            self.nfree -= 1
        w = Writer.__new__(Writer)
        w.recorder, w.number = self, number
        w.writer.ring = &rings[number]
        hk_store32(&w.writer.ring.claimed, 0)
        hk_fence_stores()               # who sees what follows finds it nobody's, or another's, when it looks again
        w.writer.ring.written, w.writer.ring.room = 0, self.room
        w.writer.ring.at = HK_RINGS_AT + number * self.room * sizeof(hk_record)
        w.writer.records = <hk_record*>(<char*>self.base + w.writer.ring.at)
        w.writer.mask, w.writer.last, w.writer.traces = (self.room - 1) * sizeof(hk_record), hk_now(), head.traced
        w.writer.clock.counts = head.traced and counts_ticks()
        self.touch(number, FIRST_TOUCHED)
        memcpy(<char*>self.base + HK_ABOUT_AT + number * HK_ABOUT, <char*>text, len(text))
        self.claims += 1
        hk_store32(&w.writer.ring.claimed, self.claims)
        if number == head.rings:
            hk_store32(&head.rings, head.rings + 1)
        return w

    cdef void touch(self, uint32_t number, size_t end) noexcept:
        """Have a trace's ring in memory up to here: a page that its writer touches first costs a call 0.5 to 4 us."""
        cdef hk_recorder* head = <hk_recorder*>self.base
        cdef size_t begin = self.touched[number]
        cdef char* ring = <char*>self.base + HK_RINGS_AT + number * self.room * sizeof(hk_record)
        end = min(end, self.room * sizeof(hk_record))
        if head.traced and begin < end:
            self.touched[number] = end
            with nogil:
                madvise(ring + begin, end - begin, MADV_POPULATE_WRITE)     # an old kernel refuses, and pages come later

    def touch_ahead(self):
        """For a thread that has time, now and then: `touch`, of each ring, what its writer comes to next."""
        cdef hk_recorder* head = <hk_recorder*>self.base
        cdef hk_ring* rings = <hk_ring*>(<char*>self.base + HK_HEADS_AT)
        cdef uint32_t number
        cdef uint64_t written
        with _lock:
            for number in range(head.rings):
                written = hk_load64(&rings[number].written)
                if written > FIRST_TOUCHED // 4:
                    self.touch(number, (written + TOUCHED_AHEAD) & ~<uint64_t>(sysconf(_SC_PAGESIZE) - 1))

    def image(self):
        """All of it, for `records.read`; not to be kept longer than this."""
        return PyMemoryView_FromMemory(<char*>self.base, self.size, PyBUF_READ)

    def trace(self, str folder):
        """Begin a trace: a file in this folder, whose table has the same lines; if there is one, it is for this, too.

        Raises OSError.
        """
        global _traces
        with _lock:
            if self.copy is None:
                copy = Recorder(memory.make_file(folder), traced=True)
                for text in list(self.lines):
                    copy.line(json.loads(text))
                (<hk_recorder*>copy.base).unnamed = (<hk_recorder*>self.base).unnamed
                self.copy, _traces = copy, 0
            _traces += 1
            return self.copy

    def untrace(self):
        """End one `trace`; the last of them ends the file: then it has ended.  Its file stays."""
        global _traces
        with _lock:
            _traces -= 1
            if _traces == 0:
                self.copy = None

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.size)
            self.base = NULL
        if self.fd >= 0:
            close(self.fd)


cdef int _copy(char* to, str text, size_t room) except -1:
    """Copy a text as C has it, cut where there is no room."""
    cdef bytes data = text.encode()[:room - 1]
    memset(to, 0, room)
    memcpy(to, <char*>data, len(data))
    return 0


def fence():
    """For who reads memory that others write: what was read before is older than what is read from here on."""
    hk_fence()


def of_process():
    """This process's recorder, made when it is first asked for."""
    global _of_process
    with _lock:
        if _of_process is None:
            fd = memory.handed(os.environ)
            try:
                _of_process = Recorder(memory.make() if fd is None else fd)
            except (OSError, AttributeError) as why:    # AttributeError: this Python has no memfd_create
                _of_process = Recorder(-1, f"the system has no memory that other processes can read ({why})")
        return _of_process


def forked():
    """In a forked child: the recorder is the parent's."""
    global _of_process, _lock
    _of_process, _lock = None, threading.RLock()
