"""When a call fails: tell the others, hear them, and raise what happened.

The control plane asks what a rank was doing (`stop`), and later tells its verdict (`hear`), both on the reactor's
thread, while the failed call waits in `fail`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any, NoReturn

from hocket.collectives.base import wording
from hocket.collectives.base.callsite import caller_site, has_handlers, in_handler, thread_site
from hocket.collectives.calls.call import in_words
from hocket.collectives.engine.engine import CODES, Engine
from hocket.collectives.failures import states
from hocket.collectives.failures.accounts import account_of, latest_calls
from hocket.collectives.failures.leaving import HAS_LEFT, RENEWS, HasLeft, Parted
from hocket.collectives.failures.long_waits import LongWaits
from hocket.collectives.members.members import Members
from hocket.collectives.waiting.queued import Queued, first_failed, oldest, unended
from hocket.control.protocol.faults import LEFT
from hocket.control.protocol.messages import Account, Fault, FaultKind, Lost, Verdict
from hocket.errors import ArgumentError, Error, PeerLostError

DONE = CODES["done"]
VERDICT_WAIT = 3.0
"""Seconds a failed call waits for the coordinator to hear all sides."""
TOLD = 1.0
"""Seconds that a call waits for the control plane to tell why a connection has ended."""
RENEWS_WAIT = 0.1
"""Seconds that a call waits for the loss because of which others have called renew()."""
SAME_SIGNAL = 0.5
"""Seconds that a rank waits for its own signal where a signal may have ended another: they do not get it at once."""


class Reporter:
    """A communicator's acts when it fails, and whether it has."""

    def __init__(self, members: Members) -> None:
        self.members, self.world_ranks, self.world = members, members.world_ranks, members.world
        self.name, self.group = members.name, members.group
        self.state: states.State = states.Open()
        self._moving = threading.RLock()
        self.long_waits = LongWaits(members)
        self._heard = threading.Event()
        self._other_exits = threading.Event()
        """Has a signal's handler ended another rank in a call?"""
        self.renews = False
        """Has this rank called renew()?"""
        self._awaited = False
        """Has this rank waited for a signal of its own?"""
        self._told: BaseException | None = None
        """The error of calls after the end, with the words of the ranks' recorders for the first of them."""

    @property
    def broken(self) -> BaseException | None:
        """The error that ended it."""
        return self.state.error

    @property
    def closed(self) -> bool:
        """Has this rank begun to leave it?"""
        return self.state.closed

    @property
    def halted(self) -> bool:
        """Do calls end here?"""
        return isinstance(self.state, (states.Failed, states.Left))

    def take(self, event: states.Event) -> states.State:
        """Go to the next state, and do what it asks for.  Returns the state before."""
        with self._moving:
            before = self.state
            after, todo = states.step(before, event)
            while before is not self.state:  # a signal's handler came in between
                before = self.state
                after, todo = states.step(before, event)
            self.state = after
        for each in todo:
            if each is states.Do.WAKE:
                self._heard.set()
            else:
                if each is states.Do.HALT:
                    self._halt_engines(getattr(event, "first", 0))
                if not isinstance(event, states.Forked):  # in a fork CUDA does not work
                    self._end_waits()
        return before

    def disown(self, error: Error) -> None:
        """In a forked child: another thread of the parent's may have been in `take`."""
        self._moving = threading.RLock()
        self.take(states.Forked(error))

    def usable(self) -> None:
        """Raise what ended this communicator, if something did, but for a collective that other ranks have finished."""
        if self.broken is not None and not self.members.main.engine.spares_next:
            self.refuse()

    def refuse_broken(self) -> None:
        """Raise what ended this communicator, if something did.  Messages are not numbered, so none is spared."""
        if self.broken is not None:
            self.refuse()

    def refuse(self) -> NoReturn:
        """A call on a communicator that has failed or is closed."""
        state = self.state
        assert state.error is not None
        error = state.error
        if not isinstance(error, ArgumentError):
            if self._told is None:
                of_verdict = state.judged is not None and error is state.judged.error
                self._told = self._seen(error, state.verdict if of_verdict else None)
            error = self._told
        if not state.raised and isinstance(state.error, PeerLostError):
            self._await_own_signal()
        self.take(states.Raising())
        if isinstance(error, ArgumentError):
            raise ArgumentError(str(error))
        cause = error if error.__traceback__ else None  # one that nobody raised would print the same text twice
        raise type(error)(*error.args, *_details(error)) from cause

    def fail(self, engine: Engine, code: int, culprit: int, timeout: float, ended: Queued | None = None) -> NoReturn:
        """Tell the others, hear them, and raise what happened.

        `ended`: the queued call that is waited for.  Another one may have failed, and this one with it.
        """
        try:
            self._fail(engine, code, culprit, timeout, ended)
        except PeerLostError:
            self._await_own_signal()
            raise
        except SystemExit as own:  # of a signal's handler, in the call or while its error was found out
            self._end_by(own)
            raise

    def _fail(self, engine: Engine, code: int, culprit: int, timeout: float, ended: Queued | None) -> NoReturn:
        where = caller_site
        if (first := first_failed(engine)) is not None:
            code, culprit, timeout, ended = first.status, first.culprit, first.limit, first
        elif ended is not None and ended.followed:  # another thread's blocking call failed
            ended, where = None, partial(thread_site, engine.caller)
        if self.broken is not None and (code == CODES["aborted"] or code == CODES["raised"] and engine.error is None):
            self.refuse()  # it had failed, or was closed, before this call; or another call has raised the error
        self.take(states.Raising())
        account = account_of(engine, oldest(engine) if code == CODES["aborted"] else ended, self.world_ranks, where)
        call, seq, here = account["call"], account["seq"], account["site"]
        if code == CODES["raised"]:
            error = engine.error or Error("unknown")
            engine.error = None
            if isinstance(error, HasLeft):
                self._end_as_left(error.ranks, engine, account)
            if isinstance(error, Parted):
                self._report("mismatch", "", account, seq, seq)
                self._raise(CODES["mismatch"], culprit, seq, account)
            if isinstance(error, SystemExit):
                raise error
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, ArgumentError) or not isinstance(error, (Error, KeyboardInterrupt)):
                self._report("op", text, account)  # this rank goes on; what failed is a function given as op
                self.abort(Error(f"this communicator failed at {here}: {text}"))
            else:
                self._report("interrupt" if isinstance(error, KeyboardInterrupt) else "error", text, account)
                self.abort(PeerLostError(f"this communicator failed at {here}: {text}"))
            raise error
        left = self.world_ranks[culprit] in self.world.gone.left
        if left and code == CODES["mismatch"] and "waits_for" not in account:  # its close() came instead
            self._end_as_left([culprit], engine, account)
        if code == CODES["mismatch"]:
            odd = ended.foreign if ended is not None else engine.foreign
            text = ""  # of a collective: all ranks' calls tell it
            if "waits_for" in account:
                came = ended.came if ended is not None else engine.came
                source = self.world_ranks[culprit]
                text = f"{call} at {here} got {in_words(odd, came)} from rank {source}"
            elif engine is self.members.main.engine and 0 < odd < seq:  # an earlier call's: there the ranks parted
                account["then"], seq = engine.call(odd), odd
            self._report("mismatch", text, account, seq, seq if engine is self.members.main.engine else 0)
        elif code == CODES["timeout"]:
            self._report("timeout", f"{call} at {here} did not finish within {timeout:g} s", account)
        elif code in (CODES["lost"], CODES["fault"]) and not self._hears_of(culprit):
            lost, peer = code == CODES["lost"], self.world_ranks[culprit]
            what = f"rank {peer} closed the connection" if lost else f"the connection to rank {peer} failed"
            self._report("error", f"{what} ({engine.channel_error(culprit)})", account)
        if self.world_ranks[culprit] in self.world.gone.left and code == CODES["lost"] and not self._heard.is_set():
            self._end_as_left([culprit], engine, account)
        self._raise(code, culprit, seq, account)

    def _raise(self, code: int, culprit: int, seq: int, account: Account) -> NoReturn:
        """Raise the verdict on a report: raise the verdict."""
        heard = self._heard.wait(VERDICT_WAIT)
        verdict = (self.state.verdict if heard else None) or self._alone(code, self.world_ranks[culprit], seq, account)
        call = account["call"]
        self._tell(wording.build(verdict, self.group, self.world.rank, call, self.closed), verdict, call)

    def _tell(self, error: BaseException, verdict: Verdict | Lost | None = None, call: str = "") -> NoReturn:
        """Raise this as it is told from now on; it ended the communicator, if nothing did before."""
        self._told = error = self._seen(error, verdict, call)
        self.abort(error)
        raise error

    def _seen(self, error: BaseException, verdict: Verdict | Lost | None = None, call: str = "") -> BaseException:
        """The error as it is raised, with what the ranks' recorders tell.  `verdict`: what it was built of."""
        if isinstance(error, ArgumentError) or not isinstance(error, Error):
            return error
        processes = self.long_waits.flight.look()
        if verdict is not None:
            seen = self.long_waits.flight.seen(processes)
            call = call or (self.state.judged.during if self.state.judged is not None else "")
            error = wording.build(verdict, self.group, self.world.rank, call, self.closed, seen)
        return type(error)(f"{error}{self.long_waits.flight.file(processes)}", *_details(error))

    def _alone(self, code: int, culprit: int, seq: int, account: Account) -> Verdict | Lost:
        """The coordinator itself is silent: what this rank knows."""
        kinds: dict[int, FaultKind] = {CODES["timeout"]: "timeout", CODES["mismatch"]: "mismatch"}
        if code not in kinds:
            return Lost(culprit, "and the job's control plane does not answer", [culprit])
        accounts: dict[int, Account] = {self.world.rank: account, culprit: {"state": "no answer"}}
        if code == CODES["timeout"]:
            accounts.setdefault(self.world_ranks[0], {"state": "no answer"})
        fault = Fault(kinds[code], self.name, seq, self.world_ranks, account["call"], by=self.world.rank)
        return Verdict(fault, accounts)

    def _hears_of(self, culprit: int) -> bool:
        """Wait a little for the control plane to say why that rank's connection has ended: it was lost, or has left."""
        deadline = time.monotonic() + TOLD
        while not self._heard.wait(0.01) and self.world_ranks[culprit] not in self.world.gone.left:
            if time.monotonic() > deadline:
                return False
        return True

    def _end_as_left(self, gone: list[int], engine: Engine, account: Account) -> NoReturn:
        """These ranks have left, and the call cannot end without them.

        The others notice it themselves in their next collective.  In messages they may wait for this rank: it reports.
        """
        gone = sorted({r for each in gone for r in self.long_waits.stranded.get(each, [each])})
        left = [self.world_ranks[r] for r in gone]
        renews = not any(rank in self.world.gone.left for rank in left)
        if renews:
            self._heard.wait(RENEWS_WAIT)
        if (verdict := self.state.verdict) is not None:
            told = wording.build(verdict, self.group, self.world.rank, account["call"], self.closed)
            self._tell(told, verdict, account["call"])
        self._report(LEFT, RENEWS if renews else HAS_LEFT, account, left=left)
        text = wording.renewing if renews else partial(wording.lost, how=HAS_LEFT)
        self._tell(text(left, group=self.group, me=self.world.rank, call=account["call"]))

    def _report(
        self, kind: FaultKind, text: str, account: Account, seq: int | None = None, first: int = 0,
        left: list[int] | None = None,
    ) -> None:  # fmt: skip
        number = account["seq"] if seq is None else seq
        fault = Fault(kind, self.name, number, self.world_ranks, text, account, first, left or [])
        self.world.session.report(fault)

    def abort(self, error: BaseException) -> None:
        """This ended it, if nothing did before."""
        self.take(states.Broke(error))

    def _halt_engines(self, first: int) -> None:
        for queue in list(self.members.queues.values()):
            queue.engine.abort(first if queue is self.members.main else 0)

    def _end_waits(self) -> None:
        """End the waits of streams."""
        for queue in list(self.members.queues.values()):
            queue.abort()

    def stop(self, fault: Fault) -> Account:
        """The control plane says that this communicator failed: end every wait, say what this rank is doing."""
        account = self.account(fault.seq if fault.kind == "mismatch" else 0)
        self.take(states.Stopped(fault.first))
        return account

    def hear(self, verdict: Verdict | Lost) -> None:
        """The verdict on a communicator, or a rank that was lost."""
        first = 0
        if isinstance(verdict, Lost):
            if not set(verdict.lost) & set(self.world_ranks):
                return
        elif (fault := verdict.fault).comm != self.name:
            return
        else:
            first = fault.first
            if fault.kind == "exit" and fault.by != self.world.rank:
                self._other_exits.set()
            if fault.kind == LEFT:
                self.long_waits.strand(fault.by, fault.left)
                return
        during = self.members.main.engine.words if self.members.main.engine.in_call else ""
        error = wording.build(verdict, self.group, self.world.rank, during, self.closed)
        self.take(states.Judged(verdict, error, first, during))

    def account(self, seq: int = 0) -> Account:
        """This rank's activity here, for the others; if it is past call number `seq`, also what that was."""
        main = self.members.main.engine
        then: Account = {"then": main.call(seq)} if 0 < seq <= main.sequence else {}
        for queue in list(self.members.queues.values()):
            engine = queue.engine
            if engine.in_call or oldest(engine) is not None:
                account = account_of(engine, oldest(engine), self.world_ranks, partial(thread_site, engine.caller))
                if engine.in_call and in_handler(engine.caller):
                    account["handling"] = True
                return account | (then if seq < account["seq"] else {})
        return {"state": "idle", "seq": main.sequence, "call": "", "site": thread_site(self.world.thread), **then}

    def finished(self) -> int:
        """The number of collectives that this rank has finished: it has sent all that others need for them."""
        queues = self.members.queues
        counted = [queues[kind, None].engine for kind in ("collectives", "gpu") if (kind, None) in queues]
        first = [work.seq for work in map(oldest, counted) if work is not None]
        main = self.members.main.engine
        return min([main.sequence + 1 - main.failed, *first]) - 1

    def latest(self, finished: int) -> list[tuple[int, str]]:
        """The last of these `finished` calls, a few: fingerprints and words."""
        return latest_calls(self.members.main.engine, finished)

    def on_wait(self, engine: Engine, seconds: float) -> None:
        """Called by the engine now and then in a long wait (holding the GIL)."""
        waiting = self.long_waits.go_on(engine, seconds)
        if self.world.session.ended:
            self.world.look_who_is_lost()
        # a verdict knows more: one may have left because another failed
        if not self.halted and (self.world.gone.left or self.world.renewing()):
            self.long_waits.look_who_left(engine, waiting)

    def give_up(self, error: BaseException, tell: bool = True) -> None:
        """This rank fails with `error`: `tell` the others now, so that they do not wait for it.

        Collectives that it has finished, they may finish, too.
        """
        self.take(states.Raising())
        if self.broken is None:
            text = f"{type(error).__name__}: {error}"
            kind: FaultKind = "exit" if isinstance(error, SystemExit) else "error"
            if tell:
                self._report(kind, text, self.account(), first=self.finished() + 1)
            self.abort(PeerLostError(f"this rank failed earlier: {text}"))

    def _end_by(self, own: SystemExit) -> None:
        """A signal's handler has ended this rank in a call: the others hear of it, whatever had failed before."""
        if self.broken is None:
            self.give_up(own)
        else:
            self._report("exit", f"SystemExit: {own}", self.account())

    def _await_own_signal(self) -> None:
        """If other ranks end, by a signal perhaps: this one may get it a moment later, and then its handler ends it."""
        verdict = self.state.verdict
        ends = verdict is None or isinstance(verdict, Verdict) and verdict.fault.kind in ("exit", "mismatch")
        main = threading.current_thread() is threading.main_thread()  # handlers run nowhere else
        if not ends or self._awaited or not main or not has_handlers():
            return
        self._awaited = True
        try:
            time.sleep(SAME_SIGNAL)
        except SystemExit as own:
            self._end_by(own)
            raise

    def others_exit(self) -> bool:
        """At this rank's end, which others in a call took for a mismatch: does a signal end one of these, too?"""
        verdict = self.state.verdict
        if not isinstance(verdict, Verdict) or verdict.fault.kind != "mismatch" or not has_handlers():
            return False
        others = [each for rank, each in verdict.accounts.items() if rank != self.world.rank]
        in_a_call = any(each.get("state") == "in call" and each.get("call") != wording.CLOSE for each in others)
        return in_a_call and self._other_exits.wait(SAME_SIGNAL)

    def end_broken_off(self) -> None:
        """Tell the others if SystemExit ended this rank before the call's own error was raised.

        A signal's handler raises it as soon as Python code runs again, which may be before `fail` does.
        """
        engines = [queue.engine for queue in list(self.members.queues.values())]
        left = [engine.words for engine in engines if engine.in_call and engine.failed]
        left += [run.words for engine in engines for run in unended(engine) if run.broken_off]
        if left and not self.state.raised:
            self.give_up(SystemExit(f"in the middle of {left[0]}"))

    def await_verdict(self, seconds: float) -> None:
        """Wait a moment for the verdict: other ranks may know more than this one."""
        self._heard.wait(seconds)


def _details(error: BaseException) -> Iterable[Any]:
    for name in ("calls", "ranks", "missing"):
        if hasattr(error, name):
            return (getattr(error, name),)
    return ()
