"""A compiled schedule as flat C arrays.  Knows nothing of channels or time; `engine` runs it."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport calloc, free

from hocket.collectives.plans.staying import staying
from hocket.errors import ArgumentError
from hocket.kernels.cpu.reduce cimport find_apply, find_codec
from hocket.transports.channel cimport HK_BOTH, HK_MOVED, HK_ONE_WAY, HK_READ, HK_REDUCED, HK_SLOTS, HK_WRITTEN
from hocket.transports.library cimport HK_LIBRARY_CAPSULE, hk_library

TRAFFIC = {"one way": HK_ONE_WAY, "reduced": HK_REDUCED, "moved": HK_MOVED, "slots": HK_SLOTS}
WAYS = {"slots": HK_SLOTS, "reading": HK_READ, "writing": HK_WRITTEN, "both cores": HK_BOTH}
KINDS = {"send": SEND, "recv": RECV, "reduce": REDUCE, "copy": COPY, "apply": APPLY, "call": CALL, "probe": PROBE}


cdef class Counts:
    """The number, bytes and seconds of a queue's calls of one kind, shared by its plans of that kind."""

    @property
    def calls(self):
        return self.count.calls

    @property
    def bytes(self):
        return self.count.bytes

    @property
    def seconds(self):
        return self.count.ns * 1e-9

    @property
    def waited(self):
        return self.count.waited * 1e-9


cdef class Plan:
    """`steps`: for each step a list of `Instr` (instr.py), where `About` is, too.  `segment`: run in segments of so many
    bytes on the wire of every piece (0: whole).  `library`: what a "call" calls (transports/library.h).  `meets`: it
    calls a kernel, which meets those of the other ranks.  `weighs`: where its ranks are to find out how its messages go
    best (weigh.h), the ways, slots first; calls by slots before one counts; and the way until something is found.
    """

    def __cinit__(self, list steps, about, size_t scratch=0, size_t segment=0, *, str traffic="one way", library=None,
                  bint meets=False, tuple weighs=()):
        cdef int n = 0, s, i = 0, peers = 0, pieces = 0, held = 0, rolled = 0
        cdef size_t total = 0, segments = 1
        codec = about.codec
        self.itemsize = about.itemsize
        for step in steps:
            for kind, to, own, after, src, dst, applied, floats, dice, encoded, residual, kept, _ in step:
                n += 1
                each = self._plain(segment, codec, self.itemsize, encoded)
                self.mixed |= not encoded
                held += len(floats or ()) + (len(residual.at) if residual else 0)
                rolled += len(dice or ())
                peers += len(to)
                pieces += len(src or ()) + len(dst or ()) + len(kept or ())
                for _, _, length in (src or dst or ()):
                    total += length
                    if each:
                        segments = max(segments, (length + each - 1) // each)
        self.nsteps, self.ninstrs = len(steps), n
        self.dtype, self.scratch, self.segment, self.fingerprint = about.dtype, scratch, segment, about.fingerprint
        self.collective, self.algorithm, self.text, self.site = about.collective, about.algorithm, about.text, about.site
        self.facts = about.facts
        self.small, self.traffic = total <= 16384 and library is None, TRAFFIC[traffic]
        self.library, self.meets = library, meets
        if weighs:
            self.ways, self.weigh.warm, best = weighs
            self.weigh.count, self.weigh.best = len(self.ways), self.ways.index(best)
            for s, way in enumerate(self.ways):
                self.weigh.way[s] = HK_REDUCED if traffic == "reduced" and way == "slots" else WAYS[way]
            self.weigh.alone = all(instr.kind not in ("recv", "reduce") for step in steps for instr in step)
        self.nbytes, self.counts = about.nbytes, Counts.__new__(Counts)
        self.coded = codec
        if codec is not None:
            self.codec = find_codec(codec)
        if about.packing is not None:
            self.packs, self.packing = True, find_codec(about.packing)
        if library is not None:
            self.called = <hk_library*>PyCapsule_GetPointer(library.capsule, HK_LIBRARY_CAPSULE)
        self.nsegments = segments
        self.peers = frozenset(p for step in steps for instr in step for p in instr.peers)
        self.steps = <Step*>calloc(max(1, self.nsteps), sizeof(Step))
        self.instrs = <Instr*>calloc(max(1, n), sizeof(Instr))
        self.peer_pool = <int*>calloc(max(1, peers), sizeof(int))
        self.piece_pool = <Piece*>calloc(max(1, pieces), sizeof(Piece))
        self.held_pool = <size_t*>calloc(max(1, held), sizeof(size_t))
        self.dice_pool = <uint64_t*>calloc(max(1, rolled), sizeof(uint64_t))
        if not (self.steps and self.instrs and self.peer_pool and self.piece_pool and self.held_pool and self.dice_pool):
            raise MemoryError
        peers = pieces = held = rolled = 0
        stay, change = staying(steps, segment > 0) if codec is None else (set(), set())
        for s, step in enumerate(steps):
            self.steps[s] = Step(i, len(step))
            for instr in step:
                self._fill(i, instr, codec, &peers, &pieces, &held, &rolled)
                self.instrs[i].stays, self.instrs[i].changes = i in stay, i in change
                i += 1

    @property
    def way(self):
        """The fastest way for its messages, as was found: "slots", "reading" ...; "" where nothing is weighed."""
        if not self.weigh.warm:
            return ""
        return self.ways[self.weigh.best]

    def words(self, tag):
        """The call in words; `tag`: a message's, which its plan does not know."""
        if tag is None:
            return self.text
        return f"{self.text[:-1]}, any tag)" if tag >> 63 else f"{self.text[:-1]}, tag={tag & 0xffffffff})"

    @staticmethod
    def _plain(size_t nbytes, codec, size_t itemsize, bint encoded):
        """`nbytes` of the codec's elements; or, of an instruction that is not encoded, those of as many floats."""
        return nbytes if codec is None or encoded else nbytes // itemsize * codec.block * codec.width

    cdef _fill(self, int i, instr, codec, int* peers, int* pieces, int* held, int* rolled):
        cdef Instr* x = &self.instrs[i]
        kind, to, own, after, src, dst, applied, floats, dice, encoded, residual, kept, early = instr
        x.kind, x.own, x.after_sends, x.early = KINDS[kind], own, after, early
        x.segment, x.itemsize = self._plain(self.segment, codec, self.itemsize, encoded), self.itemsize
        if codec is not None:
            x.codec = &self.codec if encoded else NULL
            x.itemsize = self.itemsize if encoded else codec.width
            x.bare = not encoded
        if x.kind == APPLY:
            taken, made = applied.taken, applied.made       # None: as on the wire
            block = 1 if x.codec == NULL else x.codec.block
            x.src_itemsize = x.itemsize if taken is None else block * taken.itemsize
            x.dst_itemsize = x.itemsize if made is None else block * made.itemsize
            x.factor, x.encodes, x.decodes = applied.factor, taken is not None, made is not None
            x.apply = find_apply(self.dtype if taken is None else taken.code, self.dtype if made is None else made.code)
            if x.apply == NULL and taken is not made and x.codec == NULL:
                raise ArgumentError(f"no kernel encodes or decodes what {self.text} needs")
        x.held = self._sizes(floats, held) if floats else NULL
        if residual is not None:
            x.residual = self._sizes(residual.at, held)
            x.before, x.after = residual.before or IN, residual.after
        if dice:
            x.dice = self.dice_pool + rolled[0]
        for number in dice or ():
            self.dice_pool[rolled[0]] = number
            rolled[0] += 1
        x.npeers = len(to)
        x.peers = self.peer_pool + peers[0]
        for p in to:
            self.peer_pool[peers[0]] = p
            peers[0] += 1
        x.npieces = len(src or dst or ())
        if src:
            x.src = self._pieces(src, pieces)
        if dst:
            x.dst = self._pieces(dst, pieces)
        if kept:
            x.kept = self._pieces(kept, pieces)

    cdef size_t* _sizes(self, source, int* held):
        cdef size_t* first = self.held_pool + held[0]
        for n in source:
            self.held_pool[held[0]] = n
            held[0] += 1
        return first

    cdef Piece* _pieces(self, list source, int* pieces):
        cdef Piece* first = self.piece_pool + pieces[0]
        for space, offset, length in source:
            self.piece_pool[pieces[0]] = Piece(space, offset, length)
            pieces[0] += 1
        return first

    def __dealloc__(self):
        free(self.steps)
        free(self.instrs)
        free(self.peer_pool)
        free(self.held_pool)
        free(self.dice_pool)
        free(self.piece_pool)
