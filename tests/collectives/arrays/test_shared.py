"""NumPy's own arrays in memory that ranks share (hocket.shared_arrays): freed, used again, bounded, never an error."""

from __future__ import annotations

import pytest

import hocket
from support import jobs

LAWS = """
    import contextvars, gc, os, threading, asyncio
    import numpy as np
    import hocket
    from hocket.collectives.arrays import shared
    comm = hocket.init(transport="shm")
    def there(x):
        return shared.holds(x.ctypes.data)
    def kept():
        return next((line for line in comm.explain().splitlines() if "lie in shared memory" in line), "")
    assert not there(np.ones(1 << 18)) and not kept()
    with hocket.shared_arrays(1 << 16):
        assert not there(np.ones(100)) and there(np.empty(1 << 16, np.uint8)) and there(np.zeros(1 << 20))
        a, b = np.ones(1 << 18, np.float32), np.arange(1 << 18, dtype=np.float32)
        square = np.ones((300, 300))
        made = dict(add=a + b * 2 - a, copy=b.copy(), cast=b.astype("f8"), joined=np.concatenate([a, b]),
                    taken=b[::2].copy(), sort=np.sort(-b), drawn=np.random.rand(1 << 18), dot=square @ square)
        assert all(map(there, made.values())), {name: there(x) for name, x in made.items()}
        assert np.array_equal(made["add"], b * 2) and a.ctypes.data % 4096 == 64
        # Freed, and used again, as new memory is: nothing of the one before is in np.zeros.
        where = {np.full(1 << 20, 7, np.uint8).ctypes.data for _ in range(50)}
        assert len(where) == 1 and not np.zeros(1 << 20, np.uint8).any()
        # Two that live at once are never one, whatever their lengths; what they hold stays.
        rng, alive = np.random.default_rng(comm.rank), []
        for step in range(400):
            n = int(rng.integers(1 << 13, 1 << 18))
            alive.append((step, np.full(n, step, "f8")))
            if len(alive) > 20:
                number, x = alive.pop(int(rng.integers(20)))
                assert (x == number).all() and len(x)
        spans = sorted((x.ctypes.data, x.ctypes.data + x.nbytes) for _, x in alive)
        assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:]))
        assert all((x == number).all() for number, x in alive)
        # Longer and shorter in place keep what there is.
        z = np.arange(1 << 16, dtype="f8")
        z.resize(1 << 20, refcheck=False)
        assert there(z) and z[: 1 << 16].sum() == (1 << 16) * ((1 << 16) - 1) / 2 and not z[1 << 16 :].any()
        z.resize(1 << 10, refcheck=False)
        assert z.sum() == (1 << 10) * ((1 << 10) - 1) / 2
        # What is kept has a bound.
        many = [np.ones(1 << 22, np.float32) for _ in range(24)]
        places = {each.ctypes.data for each in many}
        del many, x, alive, z
        assert "256 MiB kept" in kept(), kept()
        many = [np.ones(1 << 22, np.float32) for _ in range(24)]        # the place of what was not kept, too
        assert {each.ctypes.data for each in many} == places
        del many
        assert not np.zeros(1 << 22, np.float32).any()
        # Context variables: a new thread has NumPy's own, a task and a copied context have this.
        seen = []
        for target in (lambda: seen.append(there(np.ones(1 << 18))),
                       lambda run=contextvars.copy_context().run: run(lambda: seen.append(there(np.ones(1 << 18))))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        async def task():
            return there(np.ones(1 << 18))
        async def several():
            return await asyncio.create_task(task())
        assert seen == [False, True] and asyncio.run(several())
        freed = np.ones(1 << 18)
        thread = threading.Thread(target=lambda: (globals().pop("freed"), gc.collect()))     # freed by another thread
        thread.start()
        thread.join()
        # A child has its own.
        p = np.zeros(1 << 18, np.float32)
        p[:] = 1
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            good = p.sum() == 1 << 18
            p[:] = 5
            mine = np.ones(1 << 18)
            os.write(w, b"%d" % (good and not there(mine) and p[7] == 5))
            os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(r, 1) == b"1" and (p == 1).all()
        # A message of an array that is dropped at once is the old one's.
        to, of, out = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size, np.empty(1 << 20, np.float32)
        works = [comm.send(np.full(1 << 20, comm.rank + i, np.float32), to, tag=i, async_op=True) for i in range(4)]
        spoil = [np.full(1 << 20, -1, np.float32) for _ in range(8)]
        for i in range(4):
            comm.recv(out, of, tag=i)
            assert (out == of + i).all()
            spoil.append(np.full(1 << 20, -1, np.float32))
        for work in works:
            work.wait()
        outlives = np.full(1 << 20, 3, np.float32)
    assert not there(np.ones(1 << 18)) and there(outlives)
    y = comm.allgather(outlives)
    assert (y == 3).all()
    comm.close()
    assert (outlives == 3).all()
    del outlives, works, spoil, out
    with hocket.init(transport="shm") as again, hocket.shared_arrays():     # another job, another window
        assert there(np.ones(1 << 18))
    print("right")
"""
FULL = """
    import resource
    import numpy as np
    import hocket
    from hocket.collectives.arrays import shared
    comm = hocket.init(transport="shm")         # HOCKET_SHARED_ARRAYS=128K
    assert [shared.holds(np.ones(n, np.uint8).ctypes.data) for n in (1 << 17, 1 << 16)] == [True, False]
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, resource.RLIM_INFINITY))
    alive = [np.full(1 << 20, i, "f8") for i in range(12)]          # 8 MiB each
    inside = [shared.holds(x.ctypes.data) for x in alive]
    assert any(inside) and not all(inside) and all((x == i).all() for i, x in enumerate(alive))
    told = comm.explain()
    assert "are ordinary memory, the last because no shared memory for" in told and "128 KiB" in told, told
    print("right")
"""


def test_laws() -> None:
    assert jobs.run(2, LAWS) == ["right\n"] * 2


def test_full_memory_is_no_error() -> None:
    assert jobs.run(2, FULL, HOCKET_SHARED_ARRAYS="128K", stay=False) == ["right\n"] * 2


def test_without_others_it_is_ordinary_memory() -> None:
    with hocket.init() as comm, hocket.shared_arrays(comm=comm):
        assert "shared memory" not in comm.explain()


def test_bad_arguments() -> None:
    with pytest.raises(hocket.ArgumentError, match="too short: from 4096 bytes on"):
        hocket.shared_arrays(100)
    with pytest.raises(hocket.ArgumentError, match="comm is an int"):
        hocket.shared_arrays(comm=3)  # type: ignore[arg-type]
