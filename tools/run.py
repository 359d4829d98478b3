"""`hocket run -n 4 script.py ...`: starts the ranks of a job on this machine and ends them together.

The first rank that fails ends the job: the others get a moment to report it themselves, then SIGTERM, then SIGKILL.
It is named, and its exit code counts; ranks that only followed it (last_words.py) may have ended before.  Ctrl-C, or a
signal to the launcher, goes to the ranks first, and they have a grace to save what they have; then SIGTERM, SIGKILL.
Every rank is its own session, so that Ctrl-C reaches the launcher alone, and dies with the launcher, however it dies.
The secret goes by environment, never on a command line.  Imports nothing of the ranks' side.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hocket.errors import Error
from hocket.system.machine import free_port
from hocket.tools import elastic, tracing
from hocket.tools.forking.ranks import ForkServer
from hocket.tools.here import LocalRanks
from hocket.tools.output import Screen, Source
from hocket.tools.rank import Rank, environment
from hocket.tools.remote.hosts import Host, begins, hosts
from hocket.tools.run_folder import place
from hocket.tools.run_options import asked

if TYPE_CHECKING:
    from hocket.tools.remote.machines import Machines, RemoteRank

TERM = 2.0  # seconds between SIGTERM and SIGKILL, unless SIGTERM came first
JUDGE = 2.0  # seconds after which a rank that followed is named, if the rank that began is not even ending
LOOK = 0.05  # seconds between looks for that rank's last words
SAME = 0.3  # seconds in which a second Ctrl-C is the first: our parent may pass on what the terminal sent to both
MEET = 2.0  # seconds after which ranks that still meet will not meet one that has ended
DRAIN = 1.0  # seconds that a dead rank's output may be held open by a process it left
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(argv: list[str]) -> int:
    """Run the command line behind `hocket run`; returns the exit code: 0, or the first failing rank's."""
    options = asked(argv)
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(place())
            parts = tracing.prepare(options.trace) if options.trace else None
            code = Job(options, directory).run()
        except Error as why:
            print(f"hocket run: {why}", file=sys.stderr)
            return 1
        if parts is not None:
            tracing.finish(parts, options.trace)
        return code


class Job:
    """The ranks of one `hocket run`, on one thread: output, signals and clocks in one loop."""

    def __init__(self, options: argparse.Namespace, directory: str) -> None:
        self.options, self.directory = options, directory
        self.ranks: list[Rank | RemoteRank] = []
        self.exit_code = 0
        self.signalled: list[int] = []
        self.failed: list[Rank | RemoteRank] = []  # as they ended
        self.failed_at: float | None = None  # when the first failed; None once a rank has been named
        self.meeting = os.path.join(directory, "meet")  # there while ranks meet
        self.missed_at: float | None = None  # when ranks were first seen to meet after another had ended
        self.heard = (0, 0.0)  # the last Ctrl-C or the like, and when it came
        self.due: list[tuple[float, int]] = []  # (when, signal) to be sent to the living ranks
        self.selector = selectors.DefaultSelector()
        self.machines: Machines | None = None  # where the ranks are; None: on this machine as it is
        self.again: Callable[[int], None] = lambda number: None  # starts a rank that comes to the job as a newcomer
        self.restarts = elastic.restarts(options)
        self.broken = False  # nobody reads our output any more
        out, err = Screen(), Screen()
        self.screens = (out, out if _same(1, 2) else err)

    def run(self) -> int:
        with self._signals(), hosts(self.options, self.directory) as found:
            try:
                self._start(found)
                if self.signalled and not self.ranks:
                    self.exit_code = 128 + self.signalled[0]
                self._loop()
            finally:
                self._reap()
                self.selector.close()
        return self.exit_code

    # --- starting ---

    def _start(self, found: Sequence[Host]) -> None:
        try:
            if found:
                from hocket.tools.remote.machines import Machines  # slow to import, and most jobs have one host

                self.machines = Machines(found, self)
                self.machines.begin(partial(begins, self.options))
                self.ranks += self.machines.ranks
            else:
                self._start_here()
        except OSError as why:
            self._say(f"cannot run {(found[0].words if found else self.options.command)[0]!r}: {why.strerror}")
            self.exit_code = 127 if isinstance(why, FileNotFoundError) else 126
            self.due = [(0.0, signal.SIGKILL)]

    def _start_here(self) -> None:
        options = self.options
        secret, master = elastic.secret(options) or os.urandom(32).hex(), free_port()
        here = LocalRanks(options.command, options.n, self.directory, self.piped, options.bind)

        def begin(number: int, server: ForkServer | None = None, newcomer: bool = True) -> None:
            env = environment(number, options.n, f"unix:{self.meeting}", secret, master, here.words(number))
            env |= elastic.environment(options, self.directory, newcomer)
            self._take(here.rank(number, env, number == 0, server))

        self.again = begin
        with here.fork_server(options.fork, lambda: self.signalled) as ready:
            server = ready()
            for number in range(options.n):
                if self.signalled:  # the loop ends those that were started
                    return
                begin(number, server, newcomer=False)

    def _take(self, rank: Rank) -> None:
        self.ranks.append(rank)
        for target, pipe in ((1, rank.process.stdout), (2, rank.process.stderr)):
            if pipe is not None:
                rank.sources.append(self.source(rank.number, target))
                self.selector.register(pipe, selectors.EVENT_READ, rank.sources[-1])

    @property
    def piped(self) -> bool:
        """Does the ranks' output come here?  Else it goes to the terminal, as they wrote it."""
        return not (self.options.no_prefix and os.isatty(1) and os.isatty(2))

    def source(self, number: int, target: int) -> Source:
        """Where a rank's output goes."""
        width = len(str(self.options.n - 1))
        prefix = "" if self.options.no_prefix else f"[{number:{width}}] "
        return Source(prefix.encode(), self.screens[target - 1], lambda data: self._write(target, data))

    # --- the loop ---

    def _loop(self) -> None:
        while any(rank.code is None for rank in self.ranks):
            self._listen(self._sleep())
            now = time.monotonic()
            for source in self._sources():
                if (due := source.due()) is not None and due <= now:
                    source.flush()
            while self.signalled:
                self._interrupted(self.signalled.pop(0))
            for rank in self.ranks:
                if rank.ended():
                    self._ended(rank, now)
            if self.machines and (self.failed_at is not None or self._some_left()):
                self.machines.look()
            if self.failed_at is not None:
                self._judge(self.failed_at, now)
            elif self._some_left():
                self._look_who_is_missed(now)
            if self.machines:
                self.machines.tick(now)
            while self.due and self.due[0][0] <= now:
                self._signal_all(self.due.pop(0)[1])
        self._drain()

    def _sleep(self) -> float | None:
        times = [when for when, _ in self.due[:1]]
        times += [] if self.failed_at is None else [time.monotonic() + LOOK]
        times += [time.monotonic() + MEET / 4] if self._some_left() or self.machines else []
        times += [due for source in self._sources() if (due := source.due()) is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _sources(self) -> list[Source]:
        return [source for rank in self.ranks for source in rank.sources]

    def _listen(self, seconds: float | None) -> None:
        for key, _ in self.selector.select(seconds):
            try:
                data = os.read(key.fd, 65536)
            except OSError:  # a terminal that has gone
                data = b""
            if key.data is None:  # a signal; its handler has noted it
                continue
            if data:
                key.data.feed(data, time.monotonic())
            else:
                key.data.finish()
                self.selector.unregister(key.fd)

    def _drain(self) -> None:
        """Pass on what the ranks wrote last."""
        if self.machines:
            self.machines.finish()
            while self.machines.talking:
                self._listen(LOOK)
        end = time.monotonic() + (0 if self.machines else DRAIN)
        while len(self.selector.get_map()) > 1 and time.monotonic() < end:  # 1: the wake-up pipe
            self._listen(end - time.monotonic())
        for source in self._sources():
            source.finish()

    # --- ending ---

    def _ended(self, rank: Rank | RemoteRank, now: float) -> None:
        """The first failure ends the job, whichever rank is named for it."""
        if rank.code == 0 or self.exit_code or (self.options.elastic and self.due):  # the last: it was ended from here
            return
        self.failed.append(rank)
        if self.options.elastic:
            self._goes_on(rank)
            return
        if self.failed_at is None:
            self.failed_at, report = now, self.options.timeout_grace
            self.due = [(now + report, signal.SIGTERM), (now + report + TERM, signal.SIGKILL)]

    def _some_left(self) -> bool:
        """Has a rank ended well, and do others go on?"""
        ended = any(rank.code == 0 or (rank.code is not None and self.options.elastic) for rank in self.ranks)
        return ended and not self.exit_code and not self.due

    def _look_who_is_missed(self, now: float) -> None:
        """Others that meet now would wait for a rank that has ended until their time is over."""
        living = [rank for rank in self.ranks if rank.code is None]
        wait = all(rank.meets() for rank in living) if self.options.elastic else any(rank.meets() for rank in living)
        if not (wait or (os.path.exists(self.meeting) and not self.options.elastic)):
            self.missed_at = None
            return
        self.missed_at = self.missed_at or now
        if now - self.missed_at < MEET:
            return
        if self.options.elastic:  # all wait for members, and these have ended
            self.exit_code = 0 if any(rank.code == 0 for rank in self.ranks) else 1
            late = ", ".join(rank.shown for rank in living)
            self._say(f"the members have ended; ending {late}, which came too late")
            self.due = [(now, signal.SIGTERM), (now + TERM, signal.SIGKILL)]
            return
        gone = next(rank for rank in self.ranks if rank.code == 0)
        self.exit_code, self.due = 1, [(now, signal.SIGTERM), (now + TERM, signal.SIGKILL)]
        why = "and others wait for it in hocket.init()"
        self._say(f"{gone.shown} ended with exit code 0, {why}; ending the job")

    def _goes_on(self, rank: Rank | RemoteRank) -> None:
        """A rank has failed, and the others go on; the last one to fail ends a job in which none ends well."""
        assert rank.code is not None
        how = f"was killed by {_name(-rank.code)}" if rank.code < 0 else f"ended with exit code {rank.code}"
        self._say(f"{rank.shown} {how}; the others go on (--elastic)")
        living = sum(each.code is None for each in self.ranks)
        if living and self.restarts:
            self.restarts -= 1
            self.again(len(self.ranks))
            living += 1
        if living < max(1, self.options.least) and all(each.code for each in self.ranks if each.code is not None):
            self.exit_code = rank.code if rank.code > 0 else 128 - rank.code
            if living:
                self._say(f"{living} ranks are left, and --least is {self.options.least}; ending the job")
                now = time.monotonic()
                self.due = [(now, signal.SIGTERM), (now + TERM, signal.SIGKILL)]

    def _judge(self, since: float, now: float) -> None:
        """Name the rank that began; its exit code counts.

        A rank that followed another is named only if that other ends well, says nothing for a while, or followed too.
        `since`: when the first failed.
        """
        began = next((rank for rank in self.failed if (said := rank.said()) is None or not said.followed), None)
        if began is None:
            living = [rank for rank in self.ranks if rank.code is None]
            ending = [rank for rank in living if rank.ending()]
            report = self.options.timeout_grace
            if living and now < since + (report + TERM if ending else min(JUDGE, report)):
                return
            began = [*ending, *self.failed][0]
        code, said = began.code, began.said()
        self.failed_at = None
        self.exit_code = 1 if code is None else code if code > 0 else 128 - code
        how = f"was killed by {_name(-code)}" if code is not None and code < 0 else f"ended with exit code {code}"
        how = "is ending" if code is None else how
        why = f" ({said.text})" if said is not None and said.text else ""
        self._say(f"{began.shown} {how}{why}; ending the job")

    def _interrupted(self, number: int) -> None:
        """Ctrl-C and the like: the ranks get the same signal, and have a grace to end; a further one shortens it."""
        now = time.monotonic()
        before, self.heard = self.heard, (number, now)
        if before[0] == number and now - before[1] < SAME:
            return
        if self.failed_at is not None:
            self._judge(-math.inf, now)
        if self.exit_code:  # the job is ending: the next signal comes at once, and later ones as much sooner
            ahead = self.due[0][0] - now if self.due else 0.0
            self.due = [(when - ahead, what) for when, what in self.due] or [(now, signal.SIGKILL)]
            return
        self.exit_code = 128 + number
        grace = self.options.grace
        self.due = [(now, number), (now + grace, signal.SIGTERM), (now + grace + TERM, signal.SIGKILL)]
        if number == signal.SIGTERM:
            del self.due[1]
            self.due[-1] = (now + grace, signal.SIGKILL)
        if number == signal.SIGINT:
            self._say(f"interrupted; the ranks have {grace:g} s to end, Ctrl-C again shortens that")
        else:
            self._say(f"got {_name(number)}; the ranks have {grace:g} s to end")

    def _signal_all(self, number: int) -> None:
        for rank in self.ranks:
            if number == signal.SIGTERM and self.failed_at is not None and rank.ending():
                continue  # this one began, and its own exit code is wanted
            rank.signal(number)
            if number != signal.SIGKILL:
                rank.signal(signal.SIGCONT)  # a stopped rank would not hear it

    def _reap(self) -> None:
        """Whatever happened above: no rank outlives the launcher."""
        self._signal_all(signal.SIGKILL)
        if self.machines:
            self.machines.close()
        for rank in self.ranks:
            rank.reap()

    def fail(self, text: str, code: int = 1) -> None:
        """The job ends for a reason of its own, unless it is ending already."""
        if not self.exit_code:
            now, self.exit_code, self.failed_at = time.monotonic(), code, None
            self.due = [(now, signal.SIGTERM), (now + TERM, signal.SIGKILL)]
            self._say(f"{text}; ending the job")

    # --- our own words and signals ---

    def _write(self, target: int, data: bytes) -> None:
        try:
            while data and not self.broken:
                data = data[os.write(target, data) :]
        except OSError:  # `hocket run ... | head` has read enough
            self.broken = True
            if not self.exit_code:
                now, self.exit_code = time.monotonic(), 128 + signal.SIGPIPE
                self.due = [(now, signal.SIGTERM), (now + TERM, signal.SIGKILL)]

    def _say(self, text: str) -> None:
        screen = self.screens[1]
        if screen.open is not None:
            screen.open.finish()
        self._write(2, f"hocket run: {text}\n".encode())

    @contextlib.contextmanager
    def _signals(self):  # type: ignore[no-untyped-def]
        """Signals wake the loop instead of interrupting it."""
        wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(wake_in, selectors.EVENT_READ, None)
        before = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}  # nohup
        before[signal.SIGCHLD] = signal.getsignal(signal.SIGCHLD)
        wake_before = signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        for number in before:
            signal.signal(number, lambda number, frame: self.signalled.append(number) if number in SIGNALS else None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wake_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            for end in (wake_in, wake_out):
                os.close(end)


def _name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _same(one: int, other: int) -> bool:
    """Do two descriptors lead to the same file or terminal?"""
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False
