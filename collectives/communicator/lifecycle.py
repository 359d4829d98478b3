"""The end of a communicator, and all that is under its public face (communicator.py).

    members.py    who belongs to it, its queues
    failing.py    the error paths
    running.py    how a collective is carried out
    messages.py   send and recv
    base.py       closing, leaving, forks
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import time
from typing import Any

from hocket.arguments import seconds
from hocket.collectives.calls.call import resolve_call
from hocket.collectives.calls.options import Options
from hocket.collectives.communicator.messages import Messages
from hocket.collectives.communicator.runner import NO_OP
from hocket.collectives.engine.engine import CODES
from hocket.collectives.engine.queue import Queue
from hocket.collectives.failures import wording
from hocket.collectives.failures.leaving import GRACE
from hocket.collectives.waiting.queued import Queued, oldest, unreceived
from hocket.errors import ArgumentError, Error, PeerLostError, TimeoutError, TransportError

log = logging.getLogger("hocket")
DONE, BUSY = CODES["done"], CODES["busy"]
SETTLE = 1.0
"""Seconds that the end of the job gives messages under way to arrive."""


class CommunicatorBase(Messages):
    """Everything but the public methods."""

    def close(self, timeout: float = 5.0) -> None:
        """Leave: waits (bounded) until all members have come to it, then frees what it holds.

        Raises MismatchError, on all ranks, if their last calls differ.  To close the communicator of `hocket.init` is
        to end the job: calls that only some ranks have made on others made of it, and recvs that nobody has sent to,
        are told too.  Raises nothing on a communicator that failed before, nor where a rank is gone or does not come.
        A communicator that has had GPU arrays waits for its GPU first, however long that is busy.
        """
        timeout = seconds(timeout, "timeout")
        if self._closed:
            return
        self._closed = True
        wrong = None
        if self._broken is None:
            wrong = self._last_barrier(timeout)
            self._broken = wrong or ArgumentError(f"communicator {self.name!r} is closed")
            for queue in self._queues.values():
                queue.close()
            self.gpus.close()
        elif not self._raised and self._verdict is not None and self._verdict["kind"] == "mismatch":
            wrong = wording.build(self._verdict, self.members, self.rank, "close", True)  # heard since the last call
        self._gone = True
        if self.name == "world":
            for comm in self.world.present():
                comm.end_with_job()
            self.world.close()
        if wrong is not None:
            raise wrong

    def end_with_job(self) -> None:
        """The job's own communicator is closed: what was made of it ends too, as its transports do."""
        if not self._gone:
            self._closed = self._gone = True
            self._broken = self._broken or ArgumentError(f"communicator {self.name!r} is closed, as its job has ended")
            for queue in self._queues.values():
                queue.close()
            self.gpus.close()

    def drop(self) -> None:
        """Nobody uses it any more, and nobody has closed it: leave the job, in the background.

        Calls under way end first; the others may finish what this rank has finished.  For a finalizer, where nothing
        may wait or take a lock.
        """
        if not self._closed and self.name == "world":
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and we leave with it
                _thread.start_new_thread(self._leave_alone, ())

    def _leave_alone(self) -> None:
        """To leave while others stay: nothing is compared, and they may take their time to hear what was sent."""
        if any(other is not self and not other._closed for other in self.world.present()):
            return  # what was made of it is in use
        for queue in list(self._queues.values()):
            while (first := oldest(queue.engine)) is not None and first.wait(self.timeout) and first.status == DONE:
                pass
        self._closed = True
        self._broken = self._broken or ArgumentError(f"communicator {self.name!r} is closed")
        self._halt()
        self.world.say_goodbye(patient=True)
        time.sleep(GRACE)
        for comm in self.world.present():
            comm.end_with_job()
        self.world.close()

    def _last_barrier(self, timeout: float) -> Error | None:
        """Wait, bounded, until no member can still need what this rank has written.  What is wrong, if anything."""
        engine = self._main.engine
        try:
            call = resolve_call("close", self._nothing, None, 0, None, self.rank, self.size)
            gpu = self._queues.get(("gpu", None))
            if gpu is not None:
                self._settle(gpu, time.monotonic() + timeout)
            plan = self._plan(self._main, call, NO_OP, Options(timeout=timeout))
            last = None
            code = engine.execute(plan, 0, 0, -1, None, timeout)
            if code == BUSY:  # works that nobody waited for end first
                last = Queued(engine, plan, 0, 0, timeout=timeout)
                code = last.status if last.wait(timeout + 1) else CODES["timeout"]
            if code not in (DONE, CODES["timeout"]):
                self._fail(engine, code, last.culprit if last else engine.culprit, timeout, last)
            if code == DONE and self.name == "world" and self.size > 1:
                return self._left_open(timeout)
        except PeerLostError as error:
            log.info("at close: %s", error)
        except Error as error:
            return error
        except Exception as error:  # leaving must not fail
            log.error("at close: %s", error)
        return None

    def _left_open(self, timeout: float) -> Error | None:
        """All ranks have come to the end of the job: is anything of its communicators not finished, on any?"""
        there = [comm for comm in self.world.present() if comm._broken is None and (comm is self or not comm._closed)]
        deadline = time.monotonic() + SETTLE
        calls: dict[str, list[Any]] = {}
        left_open: list[str] = []
        for comm in there:
            for (kind, road), queue in comm._queues.items():
                engine = queue.engine
                while (first := oldest(engine)) is not None and first.status == 0:
                    if not first.wait(max(0.0, deadline - time.monotonic())):
                        break
                if first is not None:
                    left_open.append(f"{first.words} at {first.site}")
                elif kind == "messages":
                    never = f" that it never received, on communicator {comm.name!r}"
                    left_open += [f"a message from rank {r} with tag {t}{never}" for r, t in unreceived(engine).items()]
                if kind != "messages" and comm is not self:
                    name, number = f"communicator {comm.name!r}" + (f" over {road}" if road else ""), engine.sequence
                    calls[name] = [number, engine.plan.fingerprint if engine.plan else 0, engine.call(number)]
        try:
            return wording.unfinished(self.world.session.exchange({"calls": calls, "open": left_open}, timeout))
        except (PeerLostError, TimeoutError) as error:  # a rank did not wait for us
            log.info("at close: %s", error)
            return None

    def _settle(self, gpu: Queue, deadline: float) -> None:
        """Calls on GPU arrays that nobody waited for end before the barrier, as others do; so does the GPU's own part.

        After the barrier nobody waits long for another to let go of its memory.
        """
        while (first := oldest(gpu.engine)) is not None:
            if not first.wait(max(0.0, deadline - time.monotonic())) or first.status != DONE:
                return
        with contextlib.suppress(TransportError):  # that GPU is lost
            gpu.accelerator.device.settle()
        meeting = gpu.accelerator.meeting
        if meeting is not None and meeting.given_up:  # and no call came that would have said so
            log.error("at close: the result of an earlier call is wrong: %s", meeting.given_up)

    def disown(self) -> None:
        """In a forked child: this communicator stays the parent's."""
        self._closed = True
        self._broken = ArgumentError(
            "this process is a fork of a rank; the communicator belongs to its parent. Start processes before "
            "hocket.init(), or with the spawn method."
        )
        self._halt_engines()  # and leave the GPU alone: a fork has nothing of CUDA's

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        if isinstance(exc[1], BaseException):
            self.give_up(exc[1])  # after which close raises nothing
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: rank {self.rank} of {self.size}>"
