"""One elastic job, and what happens to it: members are killed, stopped and cut off at random moments, and replaced."""

from __future__ import annotations

import pathlib
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from hocket.conformance.jobs.elastic_trial import ElasticTrial
from hocket.conformance.jobs.trial import LOOK
from hocket.conformance.survive import judge
from hocket.system.namespaces.switch import Switch

PATIENCE = 60.0
"""Seconds in which everything has to happen: more is a hang."""
NOTICED = 1.5, 12.0
"""Seconds that a cable is out: of one that may not be noticed, and of one that is.

HOCKET_LOST_AFTER is 5, but who expels waits for EACH seconds alone, and connections that broke take one or two to come
back.
"""


class Wrong(Exception):
    """A law is broken."""


class Story:
    """`happen()` is one event, after which the job has gone on, and is whole again.  `counts`: how often what was."""

    def __init__(self, trial: ElasticTrial, switch: Switch | None, seed: int, size: int, crew: bool = False) -> None:
        self.trial, self.switch, self.size, self.crew = trial, switch, size, crew
        self.dice = random.Random(f"{seed} survive")
        self.deeds = judge.Deeds({}, set())
        self.alone: list[tuple[float, list[int]]] = []
        """Kills that nothing else disturbed, for the stopwatch; and of all others when they were."""
        self.counts: dict[str, int] = {}
        self.deed: list[str] = []
        """The latest deed, and its time."""
        self._read: dict[int, tuple[int, list[dict[str, Any]]]] = {}

    # --- what is known

    def said(self, process: int) -> list[dict[str, Any]]:
        """The lines that it has said so far; only new ones are read."""
        at, lines = self._read.setdefault(process, (0, []))
        with open(f"{self.trial.directory}/{process}.out", "rb") as file:
            file.seek(at)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        lines += judge.parsed(whole)
        self._read[process] = at + len(whole), lines
        return lines

    def steps(self, process: int) -> int:
        return sum(1 for line in self.said(process) if "t" in line)

    def fenced(self, process: int) -> bool:
        """The others go on without it: it was silent, has left, or does not fit."""
        return any("fenced" in line or "refused" in line for line in self.said(process)) or process in self.deeds.left

    def living(self) -> list[int]:
        return [p for p in range(self.trial.size) if p not in self.deeds.killed and not self.fenced(p)]

    def members(self) -> list[int]:
        """The members of the latest generation that live."""
        return [p for p in self.living() if self.steps(p)]

    def may_go_on(self, gone: Collection[int], cut: int | None = None) -> bool:
        """Could those that are left, if these died now: more than half, or all others proven to be dead?"""
        before = self.members()
        left = [p for p in before if p not in gone and self.trial.host(p) != cut]
        hosts = {self.trial.host(p) for p in left}
        silent = [p for p in before if p not in left and (p not in gone or self.trial.host(p) not in hosts)]
        return bool(left) and (not silent or 2 * len(left) > len(before))

    # --- waiting

    def until(self, what: str, true: Callable[[], object]) -> None:
        """Wait for it.  Raises Wrong if it does not come, or if a process ends that should not."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > deadline:
                told = [f"process {p} on host {self.trial.host(p)}: {self.said(p)[-4:]}" for p in self.living()]
                raise Wrong("\n".join([f"{what} did not happen within {PATIENCE:g} s", *self.deed[-20:], *told,
                                       self.trial.stacks(self.living())]))  # fmt: skip
            for p in self.living():
                if self.trial.code(p) is not None and not self._dies_by_order(p) and not self.fenced(p):
                    said, cried = self.said(p)[-1:], self.trial.cried(p)[-3000:]
                    raise Wrong(f"process {p} ended with {self.trial.code(p)}: {said} {cried}")
            time.sleep(LOOK)

    def order(self, process: int, moment: str, delay: float, number: int) -> None:
        self.note(f"orders {process}: {delay:.3f} s after {moment} signal {number}")
        self.trial.order(process, moment, delay, number)

    def _dies_by_order(self, process: int) -> bool:
        """It has killed itself, as it was told."""
        if self.trial.killed(process) and any("hit" in line for line in self.said(process)):
            self.deeds.killed[process] = self.said(process)[-1]["at"]
            return True
        return False

    def go_on(self, processes: Iterable[int], what: str = "the next steps") -> None:
        """All of these that are not fenced do two steps more."""
        before = {p: self.steps(p) for p in processes}
        self.until(what, lambda: all(self.steps(p) >= n + 2 or p not in self.living() for p, n in before.items()))

    # --- what happens

    def note(self, deed: str) -> None:
        self.deed.append(f"{time.monotonic():.3f} {deed}")

    def happen(self) -> None:
        here = {"", "hosts" if self.switch is not None else "", "crew" if self.crew else ""}
        name = self.dice.choice([name for name, (_, needs) in EVENTS.items() if needs in here])
        time.sleep(self.dice.random() ** 2 * 0.3)
        self.note(name)
        EVENTS[name][0](self)
        self.counts[name] = self.counts.get(name, 0) + 1
        self.go_on(self.members())
        self.replace()

    def replace(self) -> None:
        """Newcomers, until there are as many as there were.  Some are killed or stopped on their way in."""
        while len(self.members()) < self.size:
            new = self.trial.join(self.dice.randrange(len(self.trial.names) or 1))
            self.note(f"starts {new}")
            fate = self.dice.random()
            if fate < 0.15:
                self.order(new, "lobby", self.dice.random() ** 2 * 0.4, signal.SIGKILL)
                self.until("a newcomer's end", lambda new=new: self.trial.code(new) is not None)  # type: ignore[misc]
                self._dies_by_order(new)
                self.counts["kill in the lobby"] = self.counts.get("kill in the lobby", 0) + 1
                self.go_on(self.members(), "the steps after a newcomer was killed")
                continue
            if fate < 0.3:
                self.deeds.silent.add(new)
                self.order(new, "lobby", self.dice.random() ** 2 * 0.4, signal.SIGSTOP)
                self.until("a newcomer's stop", lambda new=new: self._was_hit(new))  # type: ignore[misc]
                time.sleep(self.dice.random() ** 2 * 8)
                self._continue(new)
                self.counts["stop in the lobby"] = self.counts.get("stop in the lobby", 0) + 1
            elif fate < 0.45:
                self.order(new, "moves", self.dice.random() ** 2 * 0.05, signal.SIGKILL)
                self.counts["kill while the state moves"] = self.counts.get("kill while the state moves", 0) + 1
            self.until(f"newcomer {new}'s first step", lambda new=new: self.steps(new) or new not in self.living())  # type: ignore[misc]
        self.go_on(self.members(), "the steps with newcomers")

    def _was_hit(self, process: int) -> bool:
        return any("hit" in line for line in self.said(process))

    def _victims(self, most: int) -> list[int]:
        """Members that may die, so that the others may go on."""
        found: list[int] = []
        for p in self.dice.sample(self.members(), len(self.members())):
            if len(found) < most and self.may_go_on([*found, p]):
                found.append(p)
        return found

    def _kill(self, victims: Iterable[int]) -> float:
        at = time.monotonic()
        for p in victims:
            self.deeds.killed[p] = at
            self.note(f"kills {p}")
            self.trial.signal(p, signal.SIGKILL)
        return at

    def kill(self) -> None:
        if victims := self._victims(1):
            self.alone.append((self._kill(victims), victims))
            self.go_on(self.members())
            hosts = {self.trial.host(p) for p in self.members()}
            if self.trial.host(victims[0]) in hosts and not self.crew:  # which tells of several generations at once
                wrong = judge.unnamed({p: self.said(p) for p in self.members()}, victims, self.members())
                if wrong:
                    raise Wrong("\n".join(wrong))

    def two_kills(self) -> None:
        """The second one in what the first one has begun: the renewal, the meeting, the state's move."""
        victims = self._victims(2)
        for p in victims[1:]:
            self.order(p, self.dice.choice(("renew", "renew", "moves")), self.dice.random() ** 2 * 0.15,
                             signal.SIGKILL)  # fmt: skip
        self._kill(victims[:1])
        self.go_on(self.members())
        for p in victims[1:]:
            self.trial.forget_order(p)

    def kill_in_a_step(self) -> None:
        for p in self._victims(1):
            self.order(p, "step", self.dice.random() ** 2 * 0.02, signal.SIGKILL)
            self.until("a kill in a step", lambda p=p: self._dies_by_order(p))  # type: ignore[misc]

    def stop(self) -> None:
        p = self.dice.choice(self.members())
        self._stop(p)
        time.sleep(self.dice.random() ** 2 * 8)
        self._continue(p)

    def _stop(self, process: int) -> None:
        self.deeds.silent.add(process)
        self.note(f"stops {process}")
        self.trial.signal(process, signal.SIGSTOP)

    def _continue(self, process: int) -> None:
        """Once it is stopped: it tells that it stops itself a moment before it does."""
        stat = pathlib.Path(f"/proc/{self.trial.processes[process].pid}/stat")
        self.until("a stop", lambda: self.trial.code(process) is not None or ") T " in stat.read_text())
        self.note(f"lets {process} go on")
        self.trial.signal(process, signal.SIGCONT)

    def stop_and_kill(self) -> None:
        """While one is stopped, another one dies: the others wait for the first, or expel it."""
        victims = self._victims(2)
        if len(victims) == 2:
            self._stop(victims[0])
            time.sleep(self.dice.random() ** 2 * 0.2)
            self._kill(victims[1:])
            time.sleep(self.dice.random() ** 2 * 8)
            self._continue(victims[0])

    def _cut(self, kills: int = 0) -> int:
        """A host whose cable is out now.

        If one part can go on, whoever of so many is killed, only the other may be left out; else all may: some reach
        each other again before the others do.
        """
        assert self.switch is not None
        host = self.dice.randrange(len(self.switch.hosts))
        parts: list[list[int]] = [[], []]
        for p in self.members():
            parts[self.trial.host(p) == host].append(p)
        small, large = sorted(parts, key=len)
        goes_on = 2 * (len(large) - kills) > len(small) + len(large)
        self.deeds.silent.update(small if goes_on else [*small, *large])
        self.note(f"pulls host {host}'s cable")
        self.switch.pull(host)
        return host

    def short_cut(self) -> None:
        """So short that nobody may be left out, also where somebody dies or connections break meanwhile."""
        assert self.switch is not None
        host = self.dice.randrange(len(self.switch.hosts))
        self.note(f"pulls host {host}'s cable")
        self.switch.pull(host)
        if self.dice.random() < 0.5:
            self.note(f"resets host {host}'s connections, of which the others do not hear")
            self.switch.reset(host)
        if self.dice.random() < 0.5:
            self._kill(self._victims(1))
        time.sleep(self.dice.random() * NOTICED[0])
        self._plug(host)

    def reset(self) -> None:
        """Connections break, and both ends live: nobody is lost, and no step is done again."""
        assert self.switch is not None
        host = self.dice.randrange(len(self.switch.hosts))
        before = self._generation()
        self.note(f"resets host {host}'s connections")
        self.switch.reset(host)
        self.go_on(self.members(), "the steps behind a reset")
        if self._generation() != before:
            raise Wrong("\n".join(["connections that broke were a loss", *self.deed[-5:]]))

    def resets(self) -> None:
        """Connections break several times a second while something else happens: that costs nobody more."""
        assert self.switch is not None
        reset, hosts = self.switch.reset, len(self.switch.hosts)
        dice, over = random.Random(self.dice.random()), threading.Event()
        name, alone = self.dice.choice(BESIDE_RESETS[self.crew]), len(self.alone)
        self.note(f"resets connections, beside: {name}")

        def breaks() -> None:
            while not over.wait(dice.random() ** 2 * 0.7):
                reset(dice.randrange(hosts))

        thread = threading.Thread(target=breaks)
        thread.start()
        try:
            EVENTS[name][0](self)
            self.go_on(self.members())
            self.replace()
        finally:
            over.set()
            thread.join()
        del self.alone[alone:]

    def _generation(self) -> int:
        lines = [line for p in self.members() for line in self.said(p)]
        return max(int(line["generation"]) for line in lines if "generation" in line)

    def cut(self) -> None:
        """Where one part may go on, it does; then the cable is plugged in, or a little before."""
        host = self._cut()
        if self.may_go_on([], host):
            if self.dice.random() < 0.5:
                self.go_on([p for p in self.members() if self.trial.host(p) != host], "the larger part's next steps")
            else:
                time.sleep(self.dice.uniform(3, 9))
        else:
            time.sleep(self.dice.uniform(3, NOTICED[1]))
        self._plug(host)

    def cut_and_kill(self) -> None:
        """A kill, and a cable that is pulled in what that has begun; or the other way round."""
        victims = self._victims(1)
        first = self.dice.random() < 0.5
        if first:
            self._kill(victims)
            time.sleep(self.dice.random() ** 2 * 0.15)
        host = self._cut(kills=1)
        if not first:
            time.sleep(self.dice.random() * 6)
            self._kill(victims)
        time.sleep(self.dice.choice([self.dice.random() * 0.5, self.dice.uniform(3, 9)]))
        self._plug(host)

    def _plug(self, host: int) -> None:
        assert self.switch is not None
        self.note(f"plugs host {host}'s cable in")
        self.switch.plug(host)

    # --- to crews

    def stop_in_a_sum(self) -> None:
        p = self.dice.choice(self.members())
        self.deeds.silent.add(p)
        self.order(p, "step", self.dice.random() ** 2 * 0.02, signal.SIGSTOP)
        self.until("a stop in a sum", lambda: self._was_hit(p))
        time.sleep(self.dice.random() ** 2 * 8)
        self._continue(p)

    def leave(self) -> None:
        for p in self._victims(1):
            self.note(f"{p} leaves")
            self.deeds.left.add(p)
            self.trial.leave(p)
            self.until("a member's leave", lambda p=p: self.trial.code(p) is not None)  # type: ignore[misc]

    def wrong_newcomer(self) -> None:
        new = self.trial.join(self.dice.randrange(len(self.trial.names) or 1), "wrong")
        self.note(f"starts {new}, which does not fit")
        self.deeds.wrong.add(new)
        self.until("a newcomer's refusal", lambda: self.trial.code(new) is not None)

    def slow_newcomer(self) -> None:
        """It may be left out for good, as it is late for the limit."""
        new = self.trial.join(self.dice.randrange(len(self.trial.names) or 1), "slow")
        self.note(f"starts {new}, which is slow")
        self.deeds.silent.add(new)
        self.until("a slow newcomer's first step", lambda: self.steps(new) or self.fenced(new))

    # --- the end

    def end(self) -> list[str]:
        """All leave.  What is wrong with what they said, hold and leave behind."""
        (pathlib.Path(self.trial.directory) / "over").touch()
        late = self.trial.wait(PATIENCE, self.living())
        for p in self.living():
            self._dies_by_order(p)  # one that was a member by then, and took its last steps before
        found = [f"processes {late} did not end\n{self.trial.stacks(late)}"] if late else []
        found += [f"process {p} ended with {self.trial.code(p)}: {self.trial.cried(p)[-2000:]}" for p in self.living()
                  if p not in late and self.trial.code(p)]  # fmt: skip
        return [*found, *self.laws()]

    def laws(self) -> list[str]:
        return judge.judge({p: self.said(p) for p in range(self.trial.size)}, self.deeds)


EVENTS: dict[str, tuple[Callable[[Story], None], str]] = {
    "kill": (Story.kill, ""),
    "kill in a step": (Story.kill_in_a_step, ""),
    "two kills": (Story.two_kills, ""),
    "stop": (Story.stop, ""),
    "stop and kill": (Story.stop_and_kill, ""),
    "short cut": (Story.short_cut, "hosts"),
    "reset": (Story.reset, "hosts"),
    "resets": (Story.resets, "hosts"),
    "cut": (Story.cut, "hosts"),
    "cut and kill": (Story.cut_and_kill, "hosts"),
    "stop in a sum": (Story.stop_in_a_sum, "crew"),
    "leave": (Story.leave, "crew"),
    "wrong newcomer": (Story.wrong_newcomer, "crew"),
    "slow newcomer": (Story.slow_newcomer, "crew"),
}
"""By name; does it need hosts, or a crew?"""
_ALWAYS = ("kill", "kill in a step", "two kills", "stop", "stop and kill")
BESIDE_RESETS = _ALWAYS, (*_ALWAYS, "leave", "wrong newcomer", "slow newcomer")
"""Events of jobs that are no crews, and of crews."""
