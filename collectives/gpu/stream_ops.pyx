"""A GPU as a queue uses it: copies and reductions of a run's arrays, issued to a stream and not waited for.

The engine walks a plan as it does for host memory, and its channels say when a piece may be used; what would be a
memcpy or a loop is put into the stream here.  So a run is done when all of it has been issued.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport memset

from hocket.collectives.gpu.meeting cimport Meet, Meeting, gave_up, hk_peers, hk_pointers, next_call
from hocket.collectives.engine.placed cimport Placed
from hocket.collectives.plans.plan cimport SCRATCH, Instr
from hocket.collectives.engine.instructions cimport MAX_WAYS
from hocket.collectives.engine.run cimport DeviceOps, Kernels, Run
from hocket.kernels.cpu.reduce cimport hk_dice, hk_residual
from hocket.system.cuda.nccl cimport hk_nccl, hk_nccl_issue
from hocket.system.cuda.driver cimport (CU_STREAM_CAPTURE_STATUS_NONE, CUevent, CUfunction, CUresult, CUstream,
                                     CUstreamCaptureStatus, Device, hk_device, hk_device_await, hk_device_copy,
                                     hk_device_enter, hk_device_leave, hk_device_record, hk_device_refused,
                                     hk_device_zero)

import ctypes

from hocket.collectives.gpu.compiled import function
from hocket.errors import ArgumentError, Error, TransportError
from hocket.kernels.gpu import catalogue as kernels
from hocket.kernels.gpu.launch import arguments, geometry, meeting_geometry
from hocket.transports.cuda_ipc.channels import SLOT

cdef enum:
    WAYS = 8                # operands that the usual kernels take (kernels/gpu/cuda.cuh)
    THREAD_BYTES = 16       # bytes of each operand that a thread takes at a time

cdef struct hk_ways:        # kernels/gpu/cuda.cuh
    uint64_t at[MAX_WAYS]


cdef int copy(DeviceOps* a, void* stream, void* to, const void* source, size_t n) noexcept nogil:
    cdef hk_device* d = (<Gpu*>a).device
    cdef int entered = hk_device_enter(d)
    cdef int rc = -1 if entered < 0 else hk_device_copy(d, stream, to, source, n)
    hk_device_leave(d, entered)
    return rc


cdef int reduce(DeviceOps* a, Run* r, Instr* x, void* out, const void** ways, int k, size_t count,
                hk_dice dice, hk_residual kept) noexcept nogil:
    """`count`: of elements, of a codec's of floats.  Dice and residuals are for what encodes; other kernels have four
    parameters."""
    cdef bint few = k <= WAYS and x.codec == NULL
    cdef void* kernel = r.kernels.reduce if few else r.kernels.many if x.codec == NULL else r.kernels.fold
    if kept.after != NULL:
        kernel = r.kernels.fold_kept
    cdef hk_ways given
    cdef uint64_t to = <uintptr_t>out, n = count, first = dice.first
    cdef void* parameters[8]
    cdef int i
    memset(&given, 0, sizeof(hk_pointers) if few else sizeof(hk_ways))
    for i in range(k):
        given.at[i] = <uintptr_t>ways[i]
    parameters[:] = [&given, &to, &n, &k, &dice.key, &first, &kept.before, &kept.after]
    return spread(<Gpu*>a, r, kernel, count * (x.itemsize if x.codec == NULL else sizeof(float)), parameters)


cdef int apply(DeviceOps* a, Run* r, Instr* x, void* out, const void* source, size_t count,
               hk_dice dice, hk_residual kept) noexcept nogil:
    """Dice and residuals are for what encodes; other kernels have four parameters."""
    if kept.after != NULL and x.codec == NULL:
        return add_residual(<Gpu*>a, r, out, source, count, kept)
    cdef uint64_t to = <uintptr_t>out, given = <uintptr_t>source, n = count, first = dice.first
    cdef void* kernel = r.kernels.encode if x.encodes else r.kernels.decode if x.decodes else r.kernels.scale
    cdef size_t itemsize = sizeof(float) if x.encodes or x.decodes else x.itemsize
    cdef void* parameters[7]
    if kept.after != NULL:
        kernel = r.kernels.encode_kept
        parameters[:] = [&to, &given, &n, &dice.key, &first, &kept.before, &kept.after]
    else:
        parameters[:6] = [&to, &given, &n, &x.factor, &dice.key, &first]
    return spread(<Gpu*>a, r, kernel, count * itemsize, parameters)


cdef int add_residual(Gpu* gpu, Run* r, void* out, const void* source, size_t count, hk_residual kept) noexcept nogil:
    """out = source + before; after = 0, as hk_add_residual of the host."""
    cdef hk_pointers given
    cdef uint64_t to = <uintptr_t>out, n = count
    cdef int two = 2, entered, rc
    cdef void* parameters[4]
    if kept.before == NULL:
        rc = copy(&gpu.base, r.call.stream, out, source, count * sizeof(float))
    else:
        memset(&given, 0, sizeof(given))
        given.at[0], given.at[1] = <uintptr_t>source, <uintptr_t>kept.before
        parameters[:] = [&given, &to, &n, &two]
        rc = spread(gpu, r, r.kernels.add, count * sizeof(float), parameters)
    if rc < 0:
        return rc
    entered = hk_device_enter(gpu.device)
    rc = -1 if entered < 0 else hk_device_zero(gpu.device, r.call.stream, kept.after, count * sizeof(float))
    hk_device_leave(gpu.device, entered)
    return rc


cdef int spread(Gpu* gpu, Run* r, void* kernel, uint64_t nbytes, void** parameters) noexcept nogil:
    """Launch a kernel over so many bytes of each operand."""
    cdef uint64_t each = <uint64_t>THREAD_BYTES * gpu.block
    cdef uint64_t blocks = (nbytes + each - 1) // each
    cdef int entered = hk_device_enter(gpu.device), rc = -1
    if blocks > <uint64_t>gpu.most:
        blocks = gpu.most
    if entered >= 0:
        rc = issue(gpu.device, r.call.stream, <CUfunction>kernel, <unsigned int>blocks, gpu.block, parameters)
    hk_device_leave(gpu.device, entered)
    return rc


cdef int issue(hk_device* d, void* stream, CUfunction kernel, unsigned int blocks, unsigned int threads,
               void** parameters) noexcept nogil:
    """Within the device's context."""
    cdef CUresult rc = d.cuda.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, <CUstream>stream, parameters, NULL)
    return hk_device_refused(d, b"a kernel", rc) if rc else 0


cdef int meet(DeviceOps* a, Run* r, void* source, void* out) noexcept nogil:
    """Launch the kernel that meets those of the other ranks, or call NCCL."""
    cdef hk_device* d = (<Gpu*>a).device
    cdef Launch* l = <Launch*>r.meeting
    cdef int entered = hk_device_enter(d), rc = -1
    if entered >= 0 and l.captured and l.nccl == NULL:
        (<uint64_t*>l.parameters[l.x])[0], (<uint64_t*>l.parameters[l.x + 1])[0] = <uintptr_t>source, <uintptr_t>out
        rc = captured(d, r, l)
    elif entered >= 0 and l.nccl != NULL:
        rc = hk_nccl_issue(l.nccl, &l.call, source, out, r.call.stream, r.limit, d.words, sizeof(d.words))
    elif entered >= 0:
        (<uint64_t*>l.parameters[l.x])[0], (<uint64_t*>l.parameters[l.x + 1])[0] = <uintptr_t>source, <uintptr_t>out
        next_call(l.meet, r.limit)
        rc = issue(d, r.call.stream, l.function, l.blocks, l.threads, l.parameters)
    hk_device_leave(d, entered)
    return rc


cdef int captured(hk_device* d, Run* r, Launch* l) noexcept nogil:
    """The same in a graph, whose replays nobody counts: a meeting before it, and one after it.

    Then all ranks have left the calls before it, and the next ones find all that they share free.  Each of the three
    has flags of its own, which a rank clears behind the next of them: all have come to that, so all have left this one.
    """
    cdef Meet* m = l.meet
    cdef hk_peers usual = m.peers[0]
    cdef void* peers = m.peers
    cdef int i, j, rc = 0
    m.peers.epoch, m.peers.limit_ns, m.windows[0] = 1, r.limit if r.limit else <uint64_t>1 << 62, m.both[0]
    for i in range(3):
        for j in range(usual.world):
            m.peers.flags[j] = usual.flags[j] + m.sets + i * m.bytes
        if i == 1:
            rc = issue(d, r.call.stream, l.function, l.blocks, l.threads, l.parameters)
        else:
            rc = issue(d, r.call.stream, l.barrier, 1, l.threads, &peers)
        if rc == 0:
            rc = hk_device_zero(d, r.call.stream, <void*>(usual.flags[usual.rank] + m.sets + (i + 2) % 3 * m.bytes),
                                m.bytes)
        if rc < 0:
            break
    m.peers[0] = usual
    return rc


# Runs follow each other as the engine issues them, whatever their streams: only one at a time may use the scratch
# memory, and kernels meet those of the other ranks in the order of the calls.

cdef int begin(DeviceOps* a, Run* r) noexcept nogil:
    cdef Gpu* gpu = <Gpu*>a
    if gpu.meet != NULL and gave_up(gpu.meet, b"the result of an earlier call: ", gpu.device.words,
                                    sizeof(gpu.device.words)):
        return -1
    return in_turn(gpu, r, hk_device_await)


cdef int end(DeviceOps* a, Run* r) noexcept nogil:
    return in_turn(<Gpu*>a, r, hk_device_record)


cdef int in_turn(Gpu* gpu, Run* r, int (*what)(hk_device*, void*, CUevent) noexcept nogil) noexcept nogil:
    cdef int entered, rc = -1
    cdef Launch* l = <Launch*>r.meeting
    if r.base[SCRATCH] == NULL and l == NULL or l != NULL and l.captured:
        return 0
    entered = hk_device_enter(gpu.device)
    if entered >= 0:
        rc = what(gpu.device, r.call.stream, gpu.through)
    hk_device_leave(gpu.device, entered)
    return rc


def refuse_capture(Device device, uintptr_t stream) -> None:
    """Raise ArgumentError if `stream` is being captured into a CUDA graph."""
    if device.is_capturing(stream):
        raise ArgumentError(
            "this call cannot be captured into a CUDA graph, as ranks agree on it when it is made: end the capture of "
            "this stream before it; what can be captured are calls that one kernel of each rank carries out, and those by "
            "algorithm='nccl', if one like it was made before, and without async_op"
        )


cdef class StreamOps:
    """`device` for one queue: its scratch memory, its own stream, and the order between the calls' streams."""

    def __cinit__(self, Device device):
        self.device = device
        self.gpu.base.copy, self.gpu.base.reduce, self.gpu.base.apply, self.gpu.base.call = copy, reduce, apply, meet
        self.gpu.base.begin, self.gpu.base.end = begin, end
        self.gpu.base.words, self.gpu.base.piece = device.d.words, SLOT
        self.gpu.device = &device.d
        self.gpu.most, self.gpu.block = geometry(1 << 62, device.multiprocessors)
        self.side, self.blocks, self.loaded = 0, [], {kernels.BARRIER.name}   # which the trial has run
        self.gpu.through = <CUevent><uintptr_t>device.event()

    def join(self, Meeting meeting) -> None:
        """Let kernels of this queue meet those of the other ranks in `meeting`."""
        self.meeting, self.gpu.meet = meeting, &meeting.meet

    def function(self, kernel, uintptr_t stream=0, expression=None) -> int:
        """The kernel, compiled for this GPU if it is the first time: then `stream` may not be captured.

        `expression`: the user's text that it is made of, for errors.
        """
        if kernel.name not in self.loaded:
            refuse_capture(self.device, stream)
            self.loaded.add(kernel.name)
        try:
            return function(self.device, kernel)
        except Error as why:
            if expression is None:
                raise
            raise type(why)(f"expression({expression!r}): {why}") from None

    def own_stream(self) -> int:
        """The stream of asynchronous calls."""
        if not self.side:
            self.side = self.device.take_stream()
        return self.side

    cdef char* memory(self, size_t nbytes) except NULL:
        """Scratch of at least so many bytes.  One run at a time uses it (`in_turn`)."""
        if self.largest < nbytes:
            nbytes = max(nbytes, 2 * self.largest)      # so the blocks are few, and together less than twice the last
            self.scratch, self.largest = self.device.alloc(nbytes), nbytes
            self.blocks.append(self.scratch)    # what was issued before may still use the smaller ones
        return <char*>self.scratch

    @property
    def closed(self):
        return self.gpu.through == NULL

    def close(self) -> None:
        """Waits for the calls that were issued."""
        if self.side:
            self.device.synchronize(self.side)
        for address in self.blocks:
            self.device.free(address)       # waits for the GPU
        if self.side:
            self.device.give_stream(self.side)
        if self.gpu.through != NULL:
            self.device.end_event(<uintptr_t>self.gpu.through)
        self.blocks, self.side, self.gpu.through = [], 0, NULL


cdef class OnStream(Placed):
    """Arrays on this GPU: the stream that orders their call, and the functions that its instructions launch."""

    def __init__(self, StreamOps at, uintptr_t stream, *, uintptr_t reduce=0, uintptr_t many=0, uintptr_t scale=0,
                 uintptr_t encode=0, uintptr_t decode=0, uintptr_t fold=0, uintptr_t encode_kept=0,
                 uintptr_t fold_kept=0, uintptr_t add=0):
        self.at, self.device = at, &at.gpu.base
        self.stream, self.kept = stream, None
        self.kernels = Kernels(<void*>reduce, <void*>many, <void*>scale, <void*>encode, <void*>decode, <void*>fold,
                               <void*>encode_kept, <void*>fold_kept, <void*>add)

    def meet(self, kernel, size_t nbytes, size_t count, expression=None) -> None:
        """Let this kernel carry out the call, of so many bytes, when the hosts have met."""
        cdef Meeting meeting = self.at.meeting
        cdef uintptr_t parameters, handle = self.at.function(kernel, self.stream, expression)
        self.launch.captured = self.at.device.is_capturing(self.stream)
        if self.launch.captured:
            self.launch.barrier = <CUfunction><uintptr_t>self.at.function(kernels.BARRIER, self.stream)
        self.launch.function, self.launch.meet = <CUfunction>handle, &meeting.meet
        self.launch.blocks, self.launch.threads = meeting_geometry(nbytes, meeting.multiprocessors)
        tables = [meeting.peers, meeting.windows]
        if kernel.params[len(tables)][0] == "scratch":
            tables.append(meeting.scratch)
        where, values = arguments(kernel, *tables, 0, 0, count)  # x and out are known when its turn has come
        self.kept, parameters = (where, values), ctypes.addressof(where)
        self.launch.parameters, self.launch.x = <void**>parameters, len(tables)
        self.meeting = &self.launch

    def delegate(self, nccl, uintptr_t function, list words) -> None:
        """Let NCCL carry out the call, when the hosts have met, by this function with these arguments (nccl.h)."""
        cdef uintptr_t address = nccl.address
        self.launch.nccl, self.launch.call.function = <hk_nccl*>address, function
        self.launch.call.words = len(words)
        for i, word in enumerate(words):
            self.launch.call.word[i] = word
        self.launch.captured = self.at.device.is_capturing(self.stream)
        self.kept, self.meeting = nccl, &self.launch

    cdef char* memory(self, size_t nbytes) except NULL:
        return self.at.memory(nbytes)

    cdef bint follow(self, uintptr_t stream) except -1:
        cdef hk_device* d = self.at.gpu.device
        cdef CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE
        cdef int entered = hk_device_enter(d), rc = -1
        if entered >= 0:
            rc = d.cuda.cuStreamIsCapturing(<CUstream>stream, &capturing)
        hk_device_leave(d, entered)
        self.stream, self.launch.captured = stream, False
        return rc == 0 and capturing == CU_STREAM_CAPTURE_STATUS_NONE
