"""An RDMA peer that is not hocket's: it speaks the protocol of a channel (transports/verbs/protocol.h) through pyverbs.

It takes each message and sends it back, under the message's own tag, until the other side says goodbye.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from pyverbs import enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

HEAD, WORD = struct.Struct("<QQIIQ"), struct.Struct("<IIIIQ")
"""tag, length of the message, of the payload, number of an offer, 0; finished, invited, rkey, queue pair, place."""
RING, PACKET, ALIGN, DEPTH, QPS, WORDS = 1 << 20, 65536, 64, 256, 3, 280
OFFER = PIECE_CAME = 1 << 30
BYE, COUNT, NOBODY = 0x7FFFFFFF, 0x3FFFFFFF, 0xFFFFFFFF
PATIENCE = 60.0


class Half:
    """A completion queue and its queue pairs; what is received comes to slots of WORD's size."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.psn = peer, 4711
        self.cq = CQ(peer.context, 2000)
        cap = QPCap(max_send_wr=400, max_recv_wr=300, max_send_sge=1, max_recv_sge=1)
        how = [QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap) for _ in range(QPS)]
        self.qps = [QP(peer.pd, each) for each in how]
        self.slots = MR(peer.pd, WORDS * WORD.size, e.IBV_ACCESS_LOCAL_WRITE)
        self.sent = self.over = 0

    @property
    def numbers(self) -> list[int]:
        return [qp.qp_num for qp in self.qps]

    def connect(self, gid: str, numbers: list[int], theirs: int, access: int) -> None:
        for qp, number in zip(self.qps, numbers, strict=True):
            attr = QPAttr(port_num=1)
            attr.dest_qp_num, attr.path_mtu, attr.qp_access_flags = number, e.IBV_MTU_1024, access
            attr.rq_psn, attr.sq_psn, attr.max_rd_atomic, attr.max_dest_rd_atomic = theirs, self.psn, 1, 1
            attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
            route = GlobalRoute(dgid=GID(gid), sgid_index=self.peer.gid_index, hop_limit=64)
            attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
            qp.to_rts(attr)

    def expect(self, qp: int, slot: int) -> None:
        part = SGE(self.slots.buf + slot * WORD.size, WORD.size, self.slots.lkey)
        self.qps[qp].post_recv(RecvWR(wr_id=slot, num_sge=1, sg=[part]))

    def send(self, qp: int, opcode: int, part: SGE, imm: int = 0, remote: tuple[int, int] | None = None) -> None:
        wr = SendWR(wr_id=1 << 20, opcode=opcode, num_sge=1, sg=[part], imm_data=socket.htonl(imm))
        if remote is not None:
            wr.set_wr_rdma(*remote)
        self.qps[qp].post_send(wr)
        self.sent += 1

    def heard(self) -> list[Any]:
        """The messages since the last look; RuntimeError: a request has failed."""
        _, done = self.cq.poll(16)
        for each in done:
            if each.status:
                raise RuntimeError(f"{e.ibv_wc_status(each.status) if hasattr(e, 'ibv_wc_status') else each.status}")
        self.over += sum(each.wr_id == 1 << 20 for each in done)
        return [each for each in done if each.wr_id != 1 << 20]

    def drain(self) -> None:
        """Until all that was sent has arrived."""
        until = time.monotonic() + PATIENCE
        while self.over < self.sent:
            self.heard()
            assert time.monotonic() < until


class Taking(Half):
    """The reading end: a ring that is written from afar; long pieces are invited to memory of their own."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.ring = MR(peer.pd, RING, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.words = MR(peer.pd, WORD.size * DEPTH, e.IBV_ACCESS_LOCAL_WRITE)
        self.finished = self.invited = self.said = 0
        self.pieces: dict[int, MR] = {}

    def attach(self, gid: str, offer: dict[str, Any]) -> dict[str, Any]:
        self.connect(gid, offer["qps"], offer["psn"], e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        for slot in range(WORDS - 2 * 20):
            self.expect(0, slot)
        for slot in range(2 * 16):
            self.expect(1 + slot // 16, WORDS - 40 + slot)
        return {"qps": self.numbers, "psn": self.psn, "ring": self.ring.buf, "rkey": self.ring.rkey}

    def say(self, *word: int) -> None:
        at = self.said % DEPTH * WORD.size
        self.said += 1
        self.words.write(WORD.pack(*word), WORD.size, at)
        self.send(0, e.IBV_WR_SEND, SGE(self.words.buf + at, WORD.size, self.words.lkey))

    def message(self) -> tuple[int, bytes] | None:
        """The next one: its tag and bytes.  None: a goodbye."""
        got, whole, tag = b"", None, 0
        while whole is None or len(got) < whole:
            for each in self._arrived():
                imm = socket.ntohl(each.imm_data)
                if imm == BYE:
                    return None
                tag, whole, length, number, _ = HEAD.unpack(self.ring.read(HEAD.size, imm * ALIGN))
                self.expect(0, each.wr_id)
                self.finished = self.finished + 1 & COUNT
                if length & OFFER:
                    got += self._invite(length & ~OFFER, number)
                else:
                    got += self.ring.read(length, imm * ALIGN + HEAD.size) if length else b""
                    self.say(self.finished, NOBODY, 0, 0, 0)
        return tag, got

    def _arrived(self) -> list[Any]:
        until = time.monotonic() + PATIENCE
        while not (found := self.waiting + self.heard()):
            assert time.monotonic() < until
        self.waiting = found[1:]
        return found[:1]

    waiting: list[Any] = []

    def _invite(self, length: int, number: int) -> bytes:
        """A piece of the sender's own memory, which it writes to where it is invited."""
        access = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
        place = MR(self.peer.pd, length, access)
        self.invited += 1
        qp = 1 + self.invited % 2
        self.say(self.finished, number, place.rkey, qp, place.buf)
        until = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < until
            for each in self.heard():
                if socket.ntohl(each.imm_data) == PIECE_CAME | number:
                    self.expect(qp, each.wr_id)
                    got = place.read(length, 0)
                    place.close()
                    return bytes(got)
                self.waiting = [*self.waiting, each]


class Giving(Half):
    """The writing end: packets go to the peer's ring, as far as it has room."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self.copy = MR(peer.pd, RING, e.IBV_ACCESS_LOCAL_WRITE)
        self.head = self.freed = self.packets = self.finished = 0
        self.until: list[int] = []

    @property
    def offer(self) -> dict[str, Any]:
        return {"qps": self.numbers, "psn": self.psn}

    def join(self, gid: str, answer: dict[str, Any]) -> None:
        self.connect(gid, answer["qps"], answer["psn"], e.IBV_ACCESS_LOCAL_WRITE)
        self.remote, self.rkey = answer["ring"], answer["rkey"]
        for slot in range(WORDS):
            self.expect(0, slot)

    def message(self, tag: int, data: bytes) -> None:
        for begin in range(0, max(1, len(data)), PACKET):
            self._packet(tag, len(data), data[begin : begin + PACKET])

    def _packet(self, tag: int, length: int, payload: bytes) -> None:
        need = -(-(HEAD.size + len(payload)) // ALIGN) * ALIGN
        at = self.head % RING
        skip = RING - at if at + need > RING else 0
        at = 0 if skip else at
        until = time.monotonic() + PATIENCE
        while self.packets - self.finished >= DEPTH or self.head + skip + need - self.freed > RING:
            assert time.monotonic() < until
            self._hear()
        self._hear()
        packet = HEAD.pack(tag, length, len(payload), 0, 0) + payload
        self.copy.write(packet, len(packet), at)
        part = SGE(self.copy.buf + at, len(packet), self.copy.lkey)
        self.send(0, e.IBV_WR_RDMA_WRITE_WITH_IMM, part, at // ALIGN, (self.rkey, self.remote + at))
        self.head += skip + need
        self.packets += 1
        self.until.append(self.head)

    def _hear(self) -> None:
        for each in self.heard():
            finished, invited, *_ = WORD.unpack(self.slots.read(WORD.size, each.wr_id * WORD.size))
            self.expect(0, each.wr_id)
            if finished != BYE:
                assert invited == NOBODY, "nothing was offered"
                self.finished += finished - self.finished & COUNT
                self.freed = self.until[self.finished - 1]


class Peer:
    """Both directions, at one device."""

    def __init__(self, device: str, gid_index: int = 1) -> None:
        self.gid_index = gid_index
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.gid = str(self.context.query_gid(1, gid_index).gid)
        self.taking, self.giving = Taking(self), Giving(self)

    @property
    def address(self) -> dict[str, Any]:
        """The address, as a port of hocket's says it."""
        plain = bytes.fromhex(self.gid.replace(":", ""))
        return {"mtu": int(e.IBV_MTU_1024), "lid": 0, "gids": [["RoCE v2, IPv4", plain.hex()]]}

    def echo(self) -> int:
        """Send all messages back.  How many there were."""
        count = 0
        while (found := self.taking.message()) is not None:
            self.giving.message(*found)
            count += 1
        return count

    def close(self) -> None:
        self.context.close()
