"""One rank that does what it is told: `python -m hocket.bench.harness.worker gloo SOCKET`, or `hocket+openmpi`.

A subject is one library's way to run a case; a worker gives it buffers, a stopwatch and a check.  Orders and reports
are JSON lines.  Between orders a worker sleeps in a read, so that it takes no core from the library under the
stopwatch, its own or another.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy

from hocket.bench.harness import check
from hocket.collectives.measuring.cases import Case, numpy_dtype

LINE = 16
"""Elements of float32 in a cache line."""

Order = dict[str, Any]


class Subject(Protocol):
    """One library.  `prepare` returns the call to time; `given` and `result` are arrays, or None where not used."""

    name: str
    about: str
    rank: int
    size: int

    def prepare(self, case: Case, given: Any, result: Any) -> Callable[[], object]: ...
    def empty(self, case: Case, count: int) -> Any: ...
    def barrier(self) -> None: ...
    def chosen(self) -> dict[str, str]: ...


class Ordinary:
    """Subjects whose buffers are NumPy arrays."""

    def empty(self, case: Case, count: int) -> Any:
        return numpy.empty(count, numpy_dtype(case.dtype))


class Arrays:
    """The arrays of one case, which all subjects of a process work on, one after the other.

    With arrays of its own each would have its own luck: which are in large pages, and where they lie in the caches.
    """

    def __init__(self) -> None:
        self.case: Case | None = None
        self.made: dict[int, check.Array] = {}

    def of(self, case: Case, place: int, which: str, make: Callable[[Case, int], check.Array]) -> check.Array:
        """The argument (place 0), or the result (1)."""
        if case != self.case:
            self.case, self.made = case, {}
        if place not in self.made:
            self.made[place] = array = make(case, case.elements(which))
            array.fill(0)  # written, unlike numpy.zeros: every page is there before the clock starts
        return self.made[place]


class Worker:
    """Carries out orders on a subject."""

    def __init__(self, subject: Subject, arrays: Arrays | None = None) -> None:
        """`arrays`: of its process; None: its own."""
        self.subject, self.arrays = subject, arrays or Arrays()
        self.case: Case | None = None
        self.given: check.Array | None = None
        self.result: check.Array | None = None
        self.call: Callable[[], object] = lambda: None

    def hello(self) -> Order:
        return {"rank": self.subject.rank, "size": self.subject.size, "about": self.subject.about}

    def perform(self, order: Order) -> Order:
        """The report; an error is one too, so that the rest of the benchmark goes on."""
        does: dict[str, Callable[..., Order]] = {
            "prepare": self._prepare, "time": self._time, "each": self._each, "check": self._check
        }  # fmt: skip
        try:
            return does[order.pop("do")](**order)
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _prepare(self, **fields: Any) -> Order:
        self.case = case = Case(**fields)
        self.given, self.result = (self._array(place, which) for place, which in enumerate(case.kind[1:3]))
        self.call = self.subject.prepare(case, self.given, self.result)
        self.call()
        return self.subject.chosen()

    def _array(self, place: int, which: str) -> check.Array | None:
        """Zeros: they stay zeros however often they are summed in place, so that no call meets overflows."""
        assert self.case is not None
        return self.arrays.of(self.case, place, which, self.subject.empty) if which else None

    def _time(self, iterations: int, touch: bool = False) -> Order:
        """Seconds of one call, on this rank, of a block of calls that all ranks begin together.

        `touch`: of calls that they begin together, each, and whose arrays they use between them.
        """
        call, clock = self.call, time.perf_counter
        call()  # wakes the caches that slept while others were measured
        if touch:
            return {"seconds": sum(self._touched() for _ in range(iterations)) / iterations}
        self.subject.barrier()
        start = clock()
        for _ in range(iterations):
            call()
        return {"seconds": (clock() - start) / iterations}

    def _touched(self) -> float:
        """Seconds of a call, before which this rank has written its input, and after which it reads the result."""
        result = self.given if self.result is None else self.result
        if self.given is not None:
            self.given[::LINE] = 0
        self.subject.barrier()
        start = time.perf_counter()
        self.call()
        seconds = time.perf_counter() - start
        if result is not None:
            result[LINE // 2 :: LINE].max()
        return seconds

    def _each(self, iterations: int, touch: bool = False) -> Order:
        """Seconds of every call of a block, on this rank: for percentiles.  `touch`: as in `_time`."""
        call, clock = self.call, time.perf_counter
        if touch:
            return {"each": [self._touched() for _ in range(iterations)]}
        seconds = [0.0] * iterations
        self.subject.barrier()
        for i in range(iterations):
            start = clock()
            call()
            seconds[i] = clock() - start
        return {"each": seconds}

    def _check(self) -> Order:
        """One more call, on data that tell ranks and places apart."""
        case = self.case
        assert case is not None
        if self.given is None:
            return {"wrong": 0}
        rank = self.subject.rank
        if self.result is not None:
            self.result.fill(0)  # another library's right answer may be in it
        self.given[:] = check.pattern(rank, 0, len(self.given), case.dtype)
        self.call()
        wrong = check.wrong(case, rank, self.given if self.result is None else self.result)
        self.given.fill(0)
        return {"wrong": wrong}


def subject(name: str, settings: Order) -> Subject:
    """The library called `name`; only this one is imported."""
    if name == "hocket":
        from hocket.bench.rivals.ours import Ours

        return Ours(**settings)
    if name == "gloo":
        from hocket.bench.rivals.gloo import Gloo

        return Gloo()
    if name == "limits":
        from hocket.bench.rivals.hardware import Limits

        return Limits()
    from hocket.bench.rivals.mpi import MpiSubject

    return MpiSubject(name)


def main(names: str, path: str, settings: str) -> None:
    """Report for work at the socket `path`, and work until it closes.  Each order is for one of the libraries."""
    options = json.loads(settings)
    arrays = Arrays() if options.get("buffers") != "shared" else None  # hocket.empty is for hocket alone
    workers = {name: Worker(subject(name, options), arrays) for name in names.split("+")}
    *_, last = workers
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        with sock.makefile("rw", encoding="utf-8") as lines:
            _say(lines, workers[last].hello())
            for line in lines:
                order = json.loads(line)
                _say(lines, workers[order.pop("to", last)].perform(order))


def _say(lines: Any, report: Order) -> None:
    lines.write(json.dumps(report) + "\n")
    lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
