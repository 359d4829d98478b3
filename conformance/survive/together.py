"""A member of a crew: life.py's life by `hocket.training.Crew`, which agrees on who is late, and finds the one state.

A wrong newcomer has another setting than the members, a slow one loads for long after they have let it in.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import hocket
from hocket.conformance.jobs.elastic_trial import KIND
from hocket.conformance.jobs.trial import say
from hocket.conformance.survive.life import EACH, ME, Fenced, Life, part
from hocket.training.crew.crew import Crew
from hocket.training.crew.machine import NOWHERE, Attendance, Change
from hocket.training.outer.members import Again

LONG = 2 * EACH
"""Seconds that a slow newcomer loads for."""


class DoesNotFit(Exception):
    """It does not fit into this crew."""


class Together(Life):
    """A state as `Replica` has it, and its rounds."""

    crew: Crew

    # --- what a crew asks of a state

    @property
    def position(self) -> int:
        return max(self.t, 0)

    @property
    def made(self) -> dict[str, Any]:
        return {"every": 5 if os.environ.get(KIND) == "wrong" else 4}

    @property
    def word(self) -> int:
        self.at("renew")
        return ME

    def arrays(self) -> dict[str, Any]:
        self.at("moves")
        return {"state": self.state}

    def numbers(self) -> dict[str, Any]:
        return {"t": self.t}

    def load(self, numbers: dict[str, Any]) -> None:
        self.t = numbers["t"]

    # --- its life

    def begin(self) -> None:
        if os.environ.get("HOCKET_JOIN"):
            self.at("lobby")
            try:
                comm = hocket.init(timeout=120, info=list(Attendance(0, NOWHERE, word=ME)))
            except hocket.PeerLostError as error:
                raise Fenced(str(error)) from error
            time.sleep(LONG if os.environ.get(KIND) == "slow" else 0)
        else:
            self.t, comm = 0, hocket.init(timeout=60)
            self.who = [row[0] for row in comm.share([ME], "the members")]
        self.comm, self.crew = comm, Crew(comm, timeout=EACH, on_change=self.changed)
        if not self.who:
            self.changed(Change(comm.generation, comm.size, (), 1, False))

    def changed(self, change: Change) -> None:
        self.comm, known = self.crew.comm, len(self.who)
        for rank, how in self.comm.previous_lost.items() if known else ():
            self.seen.setdefault("lost", {})[self.who[rank]] = how
        self.seen["agreed"] = time.monotonic()
        if change.joined:
            self.seen["joined"] = self.seen["agreed"]
        before, self.who = self.who, [info[-1] for info in self.comm.infos]
        say(generation=self.comm.generation, who=self.who, before=before)

    def step(self) -> bool:
        """A round that counts here.  True: the job is over, or this rank leaves it."""
        self.began = time.monotonic()
        while True:
            try:
                self.crew.boundary(self)
                with self.crew.attempt(self):
                    if (self.place / f"leave{ME}").exists():
                        return True
                    time.sleep(self.computes)
                    comm = self.crew.present()
                    if comm.allreduce(np.array([(self.place / "over").exists()]), "max")[0]:
                        return True
                    gradient = np.full(self.state.size, part(self.t, comm.rank), np.float32)
                    self.at("step")
                    comm.allreduce(gradient, "avg")
                    self.state += gradient
                    self.t, self.size = self.t + 1, comm.size
                return False
            except Again:
                self.seen.setdefault("error", time.monotonic())
            except hocket.TimeoutError as error:  # too few are here: some are cut off
                say(missing=[*error.missing])
            except hocket.MismatchError as error:
                raise DoesNotFit(str(error)) from error
            except hocket.PeerLostError as error:
                raise Fenced(str(error)) from error
