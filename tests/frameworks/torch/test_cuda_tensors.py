"""CUDA tensors under torch.distributed, as far as that can be seen without a card (support/gpu/tensors.py)."""

from __future__ import annotations

from pathlib import Path

from support.gpu import ranks as gpu_ranks

HEAD = """
os.environ["TMPDIR"] = os.environ["FAULTY"]  # the folder of the sockets stays
import datetime, torch, torch.distributed as dist
from support.gpu import tensors as T
import hocket.torch
T.install()
rank, size = int(os.environ["HOCKET_RANK"]), int(os.environ["HOCKET_SIZE"])
dist.init_process_group("hocket", init_method="file://" + os.environ["FAULTY"] + "/store", rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=60))
pg = dist.group.WORLD
comm = pg.comm
def call(options, method, *args, later=False, **more):
    "As torch's functions do; which themselves would take our tensors for plain ones of the host."
    opts = getattr(torch._C._distributed_c10d, options)()
    opts.asyncOp = later
    for name, value in more.items():
        setattr(opts, name, value)
    return method(*args, opts)
def all_reduce(x, later=False):
    return call("AllreduceOptions", pg.allreduce, [x], later=later)
def all_gather(parts, x, later=False):
    return call("AllgatherOptions", pg.allgather, [parts], [x], later=later)
device = cuda.device(0)
one, two, three = (device.stream() for _ in range(3))
def mine(n, turn=0):
    return np.arange(n, dtype=np.float32) % 97 + rank + turn
def total(n, turn=0):
    return sum(np.arange(n, dtype=np.float32) % 97 + r + turn for r in range(size))
def same(tensor, stream, want):
    got = T.read(tensor, stream)
    assert (got == want).all(), (got, want)
"""
ORDER = """
for turn, n in enumerate((5, 70_001, 300_001)):
    with T.stream(T.Stream(one)):
        x = T.late(mine(n), one)
        all_reduce(x)
        same(x, one, total(n))

        x = T.late(mine(n, 1), one)
        work = all_reduce(x, True)
    for other in (two, three):  # each that waits follows
        with T.stream(T.Stream(other)):
            work.wait()
    same(x, three, total(n, 1))
    same(x, two, total(n, 1))
    side = work._side.stream.cuda_stream
    assert side not in (1, one, two, three) and T.kept_for(x) == {side}

    x = T.late(mine(n, 2), 1)
    work = all_reduce(x, True)
    future, seen = work.get_future(), []
    def look(done):
        seen.append((T.current_stream().cuda_stream, done.value()[0] is x))
    future.then(look).wait()
    same(x, 1, total(n, 2))
    assert seen[0][0] not in (1, one, two, three) and seen[0][1]
    assert work._inner.stream.cuda_stream == side, "no stream of the caller's waits for it"

    x = T.late(mine(n, 3), 1)
    work = all_reduce(x, True)
    while not work.is_completed():
        time.sleep(0.0005)
    same(x, three, total(n, 3))  # which follows nothing: it is there
    assert work.is_success()
assert comm.gpus.why_staged == "", comm.gpus.why_staged
"""
LISTS = """
n = 70_001
with T.stream(T.Stream(one)):
    x = T.late(mine(n), one)
    parts = [T.empty(n) for _ in range(size)]
    all_gather(parts, x)
    for r, part in enumerate(parts):
        same(part, one, mine(n, r - rank))
    parts = [T.empty(n) for _ in range(size)]
    work = all_gather(parts, x, True)
busy = T.empty(n), T.empty(n)
with T.stream(T.Stream(two)):
    for _ in range(50):
        busy[0].copy_(busy[1])
for other in (two, three):
    with T.stream(T.Stream(other)):
        work.wait()  # the copies into the list have been issued where the call was
for other in (three, two):
    for r, part in enumerate(parts):
        same(part, other, mine(n, r - rank))
side = work._side.stream.cuda_stream
assert all(T.kept_for(part) == {side} for part in parts)

parts = [T.empty(n) for _ in range(size)]
future = all_gather(parts, x, True).get_future()
with T.stream(T.Stream(three)):
    future.wait()
    for r, part in enumerate(parts):
        same(part, three, mine(n, r - rank))

out, given = T.empty(1000), T.late(np.tile(mine(1000), size), two)
with T.stream(T.Stream(two)):
    call("ReduceScatterOptions", pg._reduce_scatter_base, out, given)
    same(out, two, total(1000))
x = T.late(mine(n), one)
with T.stream(T.Stream(one)):
    call("BroadcastOptions", pg.broadcast, [x], rootRank=1)
same(x, one, mine(n, 1 - rank))
"""
FAILS = """
x = T.late(mine(100), 1)
all_reduce(x)
y = T.late(mine(100 + rank), 1)
work = all_reduce(y, True)
future = work.get_future()
for what in (work.wait, future.wait, work.wait):
    try:
        what()
    except RuntimeError as error:
        assert "float32[100]" in str(error) and "float32[101]" in str(error), error
    else:
        raise AssertionError(what)
assert work.is_completed() and not work.is_success()
"""
ALWAYS = """
pg.always_work = True
word = device.alloc(4096)
device.clear(word, 4)
with T.stream(T.Stream(one)):
    device.wait_word(word, 1, one)  # however slow this rank is, its values come behind the question
    x = T.late(mine(70_001), one)
    work = all_reduce(x)
    device.wait_word(word, 2, one)  # what the stream is given later is no part of the call
    assert not work.is_completed()
    device.write_word(word, 1, three)
    while not work.is_completed():
        time.sleep(0.0005)
    device.write_word(word, 2, three)
    future = work.get_future()
with T.stream(T.Stream(two)):
    future.wait()
same(x, two, total(70_001))
device.free(word)
pg.always_work = False

x = [T.late(mine(70_001, turn), one) for turn in range(3)]
with T.stream(T.Stream(one)):
    work = call("AllreduceCoalescedOptions", pg.allreduce_coalesced, x, later=True)
    whole = [T.empty(70_001) for _ in range(size)]
    rooted = pg.start_coalescing()
    call("GatherOptions", pg.gather, [whole] if rank == 0 else [], [x[0]], later=True)
    rooted = pg.end_coalescing()
for each in (work, rooted):
    with T.stream(T.Stream(two)):
        each.wait()
    with T.stream(T.Stream(three)):
        each.wait()
    assert each._side is not None
for turn in range(3):
    same(x[turn], three, total(70_001, turn))
if rank == 0:
    for r, part in enumerate(whole):
        same(part, three, total(70_001))
"""
END = """
dist.destroy_process_group()
T.free()
say(misuses=gpu_ranks.count("misuses"))
"""


def test_calls_are_ordered_in_streams(built: Path, tmp_path: Path) -> None:
    """One job, as its start takes longest; the calls that fail are last, as nothing works after them."""
    for said in gpu_ranks.run(built, 2, HEAD + ORDER + LISTS + ALWAYS + FAILS + END, tmp_path, delay=300):
        assert said["misuses"] == 0
