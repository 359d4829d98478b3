"""`comm.stats()`: calls, bytes, and where their time goes."""

from __future__ import annotations

import json

from support import jobs

COUNT = """
    import json, time, hocket, numpy as np
    comm = hocket.init()
    small, large = np.zeros(2, np.float32), np.zeros(1 << 20, np.float32)
    for _ in range(200):
        comm.allreduce(small, op="avg")
    comm.allreduce(large, algorithm="ring")
    for _ in range(3):
        comm.allreduce(large, algorithm="ring", async_op=True).wait()
    comm.dup().allreduce(small)                             # counted there
    for _ in range(5):
        comm.sendrecv(small, 1 - comm.rank, small.copy(), 1 - comm.rank)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(1.5)                                     # rank 0 waits for it
    comm.broadcast(large, root=1)
    comm.barrier()
    print(json.dumps([s._asdict() for s in comm.stats()]))
"""


def test_calls_bytes_and_seconds() -> None:
    for transport in ("shm", "tcp"):
        for rank, out in enumerate(jobs.run(2, COUNT, HOCKET_TRANSPORT=transport)):
            rows = json.loads(out)
            assert rows == sorted(rows, key=lambda row: -row["seconds"])
            assert {row["transport"] for row in rows} == {transport}, rows
            at = {(row["collective"], row["algorithm"]): row for row in rows}
            assert at["allreduce", "ring"]["calls"] == 4 and at["allreduce", "ring"]["bytes"] == 4 * (4 << 20)
            small = [row for (name, how), row in at.items() if name == "allreduce" and how != "ring"]
            assert sum(row["calls"] for row in small) == 200 and sum(row["bytes"] for row in small) == 1600, rows
            assert at["sendrecv", "message"]["calls"] == 5 and at["sendrecv", "message"]["queue"] == "messages"
            late = next(row for (name, _), row in at.items() if name == "broadcast")
            assert late["calls"] == 1 and late["seconds"] >= late["waited"] >= 0
            if rank == 0:
                assert 0.3 < late["waited"] < 20, late
            else:
                assert late["waited"] < 0.3, late
            assert all(0 < row["seconds"] < 20 and 0 <= row["waited"] <= row["seconds"] for row in rows), rows
