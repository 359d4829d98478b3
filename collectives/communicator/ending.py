"""Leaving a communicator: by all members together, alone, with its job, or in a forked child."""

from __future__ import annotations

import _thread
import contextlib
import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hocket.arguments import seconds
from hocket.collectives.base import wording
from hocket.collectives.calls.ask import Ask
from hocket.collectives.calls.shapes import resolve_call
from hocket.collectives.communicator.messenger import LAST_LOOK, Messenger
from hocket.collectives.communicator.planner import NO_OP, Planner
from hocket.collectives.engine.engine import CODES
from hocket.collectives.engine.queue import Queue
from hocket.collectives.failures.leaving import ARRIVAL_WAIT
from hocket.collectives.failures.reporting import Reporter
from hocket.collectives.failures.states import Leaving, Left, Over, Stopped
from hocket.collectives.gpu.gpus import Gpus
from hocket.collectives.members.members import Members
from hocket.collectives.quick.shortcut import NOTHING
from hocket.collectives.waiting.queued import Queued, oldest, unended, unreceived
from hocket.control.protocol.messages import Verdict
from hocket.errors import ArgumentError, Error, PeerLostError, TimeoutError

if TYPE_CHECKING:
    from concurrent.futures import Future

log = logging.getLogger("hocket")
DONE, BUSY = CODES["done"], CODES["busy"]
SETTLE = 1.0
"""Seconds that the end of the job gives messages under way to arrive."""
OTHERS_END = 0.25
"""Seconds that a rank which finds others in a call, at its end, gives them to say that they end too."""


def before_close(comm: Any, call: Future[Any]) -> None:
    """Let this call of a thread end before the rank leaves the job: closing that waits for it, as for its own calls.

    `comm`: any communicator of the job.  A job that has failed does not wait.
    """
    comm.world.background.add(call)
    call.add_done_callback(comm.world.background.discard)


class Ending:
    """The ways to leave one communicator."""

    def __init__(
        self, members: Members, reporter: Reporter, planner: Planner, gpus: Gpus, messenger: Messenger
    ) -> None:
        self.members, self.reporter, self.planner, self.gpus = members, reporter, planner, gpus
        self.messenger = messenger
        self.name, self.world = members.name, members.world

    def close(self, timeout: float, log_as: str | None) -> None:
        """`Communicator.close`."""
        wrong = self._leave(seconds(timeout, "timeout"))
        if wrong is None:
            return
        if log_as is None:
            raise wrong
        self.world.unraised = True
        with contextlib.suppress(ValueError, OSError):  # the program has closed where it would be written
            log.error("%s: %s", log_as, wrong)

    def _leave(self, timeout: float) -> Error | None:
        """Leave with all members.  Returns what is wrong, if anything."""
        before = self.reporter.take(Leaving())
        if before.closed:
            return None
        wrong: Error | None = None
        if before.error is None:
            if self.name == "world":
                self._end_background(timeout)
            wrong = self._last_barrier(timeout)
            self.reporter.take(Over(wrong or ArgumentError(f"{self.reporter.group.text} is closed")))
            self._give_back()
        elif not before.raised:  # a verdict may have come since the last call
            verdict = before.verdict
            if isinstance(verdict, Verdict) and verdict.fault.kind == "mismatch":
                wrong = wording.build(verdict, self.reporter.group, self.world.rank, "close", True)
        if wrong is not None and self.reporter.others_exit():
            log.info("at close: %s", wrong)
            wrong = None
        if self.name == "world":
            for comm in self.world.present():
                comm.ending.end_with_job()
            self.world.close()
        return wrong

    def end_with_job(self) -> None:
        """The job's communicator is closed: those made from it end too, with the transports."""
        why = ArgumentError(f"{self.reporter.group.text} is closed, as its job has ended")
        if not isinstance(self.reporter.take(Over(why)), Left):
            self._give_back()

    def _give_back(self) -> None:
        """Free what its queues and GPUs hold."""
        for queue in list(self.members.queues.values()):
            queue.close()
        self.gpus.close()

    def drop(self, interpreter_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        """The communicator was dropped without being closed: leave the job, in the background.

        Calls under way end first, and other ranks may finish the calls that this rank has finished.  A finalizer calls
        this, so it may not wait or take a lock; and where the interpreter ends, modules have lost their names.
        """
        if interpreter_ends():
            return  # this rank leaves with it
        if not self.reporter.closed and self.name == "world":
            with contextlib.suppress(RuntimeError):  # the interpreter ends, and this rank leaves with it
                _thread.start_new_thread(self._leave_alone, ())

    def _leave_alone(self) -> None:
        """Leave while others stay: calls are not compared, and the others have time to receive what was sent."""
        if any(other.ending is not self and not other.reporter.closed for other in self.world.present()):
            return  # a communicator made from it is in use
        limit = self.members.timeout
        for queue in list(self.members.queues.values()):
            while (first := oldest(queue.engine)) is not None and first.wait(limit) and first.status == DONE:
                pass
        self.reporter.take(Over(ArgumentError(f"{self.reporter.group.text} is closed")))
        self.reporter.take(Stopped())
        self.world.say_goodbye(patient=True)
        time.sleep(ARRIVAL_WAIT)
        self._give_back()
        for comm in self.world.present():
            comm.ending.end_with_job()
        self.world.close()

    def _last_barrier(self, timeout: float) -> Error | None:
        """Wait, bounded, until no member needs this rank's data any more.  Returns what is wrong, if anything."""
        engine = self.members.main.engine
        try:
            ask = Ask("close", timeout=timeout)
            call = resolve_call(ask, NOTHING, None, self.members.rank, self.members.size)
            self.messenger.settle(min(timeout, LAST_LOOK))
            for queue in list(self.members.queues.values()):
                queue.settle(timeout)
            if self.name != "world":
                self._end_calls()
            plan = self.planner.plan(self.members.main, call, NO_OP, ask)
            last = None
            code = engine.execute(plan, 0, 0, -1, None, timeout)
            if code == BUSY:  # works that nobody waited for end first
                last = Queued(engine, plan, 0, 0, timeout=timeout)
                code = last.status if last.wait(timeout + 1) else CODES["timeout"]
            if code == CODES["mismatch"]:
                self.reporter.await_verdict(OTHERS_END)
            if code not in (DONE, CODES["timeout"]):
                self.reporter.fail(engine, code, last.culprit if last else engine.culprit, timeout, last)
            if code == DONE and self.name == "world" and self.members.size > 1:
                return self._left_open(timeout)
        except PeerLostError as error:
            log.info("at close: %s", error)
        except Error as error:
            return error
        except Exception as error:  # leaving must not fail
            log.error("at close: %s", error)
        return None

    def _end_background(self, timeout: float) -> None:
        """Wait for what threads of this rank were given, which other ranks may need."""
        until = time.monotonic() + timeout
        for call in list(self.world.background):
            with contextlib.suppress(Exception):  # its own error, which who waits for it hears; or it is late
                call.exception(max(0.0, until - time.monotonic()))

    def _end_calls(self) -> None:
        """Wait for the collectives under way, which other ranks may need: as long as a call may take."""
        queues = [queue for (kind, _), queue in self.members.queues.items() if kind != "messages"]
        for queue in queues:
            while (first := oldest(queue.engine)) is not None and first.wait(self.members.timeout):
                if first.status != DONE:
                    return

    def _left_open(self, timeout: float) -> Error | None:
        """All ranks have come to the end of the job: the error, if any rank has unfinished calls on a communicator."""
        comms = [
            comm for comm in self.world.present()
            if comm.reporter.broken is None and not comm.membership.idles
            and (comm.ending is self or not comm.reporter.closed)
        ]  # fmt: skip
        deadline = time.monotonic() + SETTLE
        calls: dict[str, list[Any]] = {}
        left_open: list[str] = []
        for comm in comms:
            for (kind, transport), queue in comm.membership.queues.items():
                engine = queue.engine
                for call in unended(engine):
                    call.wait(max(0.0, deadline - time.monotonic()))
                if still := unended(engine):
                    left_open += [f"{call.words} at {call.site}{comm.reporter.group.on}" for call in still]
                elif kind == "messages":
                    comm.messenger.settle(0.0)
                    _open_to_senders(queue, deadline)
                    never = f" that it never received, on {comm.reporter.group.text}"
                    came = {comm.members[r]: tag for r, tag in unreceived(engine).items()}
                    left_open += [f"a message from rank {r} with tag {tag}{never}" for r, tag in came.items()]
                if kind != "messages" and comm.ending is not self:
                    over, number = f" over {transport}" if transport else "", engine.sequence
                    last = engine.plan.fingerprint if engine.plan else 0
                    calls[f"{comm.reporter.group.text}{over}"] = [number, last, engine.call(number)]
        try:
            return wording.unfinished(self.world.session.exchange({"calls": calls, "open": left_open}, timeout))
        except (PeerLostError, TimeoutError) as error:  # a rank did not wait for us
            log.info("at close: %s", error)
            return None

    def disown(self) -> None:
        """In a forked child: this communicator stays the parent's."""
        self.world.recorder = None
        self.reporter.disown(ArgumentError(
            "this process is a fork of a rank; the communicator belongs to its parent. Start processes before "
            "hocket.init(), or with the spawn method."
        ))  # fmt: skip


def _open_to_senders(queue: Queue, deadline: float) -> None:
    """Open the channels with messages that this rank never received, so that it can look into them."""

    def look(peer: int) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {peer} does not answer at the end of the job", [peer])

    for channels in queue.channels.values():
        with contextlib.suppress(Error):  # the peer is gone, or late: the end does not wait for it
            queue.connect(channels.unopened() if hasattr(channels, "unopened") else (), look)
