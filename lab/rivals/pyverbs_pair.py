"""Two ends of pyverbs in one process: what an RDMA device gives to Python, beside perftest's C and hocket.

    python -m hocket.lab.rivals.pyverbs_pair TOOL DEVICE DEVICE GID_INDEX

Prints a line of JSON.  `pyverbs_send_lat`: us of 8 bytes one way, half of the median round trip.  `pyverbs_write_bw`:
bytes/s of RDMA writes of 1 MiB, 16 under way; seconds of CPU of the process for a GB.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from importlib.util import find_spec
from resource import RUSAGE_SELF, getrusage
from statistics import median
from typing import Any

from hocket.errors import Error
from hocket.lab.rivals.perftest import LONG, LONG_CALLS, PATIENCE, SMALL_CALLS, WARM, Ends, Numbers, machine_seconds

PYVERBS = ("pyverbs_send_lat", "pyverbs_write_bw")
UNDER_WAY = 16


def installed() -> bool:
    return find_spec("pyverbs") is not None


def pyverbs(tool: str, place: Ends, gid_index: int) -> Numbers:
    """One round, in a process of its own."""
    words = [sys.executable, "-m", "hocket.lab.rivals.pyverbs_pair", tool, *place.devices, str(gid_index)]
    begin = machine_seconds()
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise Error(f"{tool} failed: {' '.join(done.stderr.split())[-300:]}")
    found: Numbers = json.loads(done.stdout)
    return {**found, "machine": (machine_seconds() - begin) / (LONG * LONG_CALLS / 1e9)}


class End:
    """A queue pair with its memory.  pyverbs has no types, and is not there where this project is checked."""

    def __init__(self, device: str, gid_index: int) -> None:
        self.e: Any = importlib.import_module("pyverbs.enums")
        cq, mr, pd, qp = (importlib.import_module(f"pyverbs.{name}") for name in ("cq", "mr", "pd", "qp"))
        self.context = importlib.import_module("pyverbs.device").Context(name=device)
        self.gid_index = gid_index
        self.pd = pd.PD(self.context)
        self.cq = cq.CQ(self.context, 256)
        access = self.e.IBV_ACCESS_LOCAL_WRITE | self.e.IBV_ACCESS_REMOTE_WRITE
        self.mr = mr.MR(self.pd, LONG, access)
        cap = qp.QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=1, max_recv_sge=1)
        self.qp = qp.QP(self.pd, qp.QPInitAttr(qp_type=self.e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        self.wr: Any = importlib.import_module("pyverbs.wr")

    def connect(self, other: End) -> None:
        addr, qp = importlib.import_module("pyverbs.addr"), importlib.import_module("pyverbs.qp")
        attr = qp.QPAttr(port_num=1)
        attr.dest_qp_num, attr.path_mtu = other.qp.qp_num, self.context.query_port(1).active_mtu
        attr.qp_access_flags = self.e.IBV_ACCESS_LOCAL_WRITE | self.e.IBV_ACCESS_REMOTE_WRITE
        attr.rq_psn = attr.sq_psn = 1
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        index = max(0, self.gid_index)
        gid = other.context.query_gid(1, max(0, other.gid_index))
        route = addr.GlobalRoute(dgid=gid, sgid_index=index, hop_limit=64)
        attr.ah_attr = addr.AHAttr(gr=route, is_global=1, port_num=1, dlid=other.context.query_port(1).lid)
        self.qp.to_rts(attr)

    def expect(self) -> None:
        self.qp.post_recv(self.wr.RecvWR(num_sge=1, sg=[self.wr.SGE(self.mr.buf, 8, self.mr.lkey)]))

    def post(self, opcode: int, nbytes: int, to: End | None = None) -> None:
        made = self.wr.SendWR(opcode=opcode, num_sge=1, sg=[self.wr.SGE(self.mr.buf, nbytes, self.mr.lkey)])
        if to is not None:
            made.set_wr_rdma(to.mr.rkey, to.mr.buf)
        self.qp.post_send(made)

    def completed(self, least: int) -> int:
        """Wait for so many completions at least.  How many there were."""
        count = 0
        while count < least:
            n, done = self.cq.poll(UNDER_WAY)
            if any(each.status for each in done):
                raise Error(f"status {[each.status for each in done]}")
            count += n
        return count


def latency(one: End, other: End) -> Numbers:
    took = []
    for end in (one, other):
        end.expect()
    for _ in range(WARM + SMALL_CALLS):
        begin = time.perf_counter()
        for source, sink in ((one, other), (other, one)):
            source.post(source.e.IBV_WR_SEND, 8)
            sink.completed(1 if sink is other else 2)  # what came; and `one` has its own send's before the answer
            sink.expect()
        other.completed(1)
        took.append((time.perf_counter() - begin) / 2)
    return {"us": median(took[WARM:]) * 1e6}


def bandwidth(one: End, other: End) -> Numbers:
    used = _used()
    begin, posted, done = time.perf_counter(), 0, 0
    while done < LONG_CALLS:
        while posted < min(LONG_CALLS, done + UNDER_WAY):
            one.post(one.e.IBV_WR_RDMA_WRITE, LONG, other)
            posted += 1
        done += one.completed(1)
    whole = LONG * LONG_CALLS
    return {"bandwidth": whole / (time.perf_counter() - begin), "cpu": (_used() - used) / (whole / 1e9)}


def _used() -> float:
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(tool: str, first: str, second: str, gid_index: str) -> None:
    one, other = End(first, int(gid_index)), End(second, int(gid_index))
    one.connect(other)
    other.connect(one)
    print(json.dumps(latency(one, other) if tool == PYVERBS[0] else bandwidth(one, other)))
    for end in (one, other):
        end.context.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
