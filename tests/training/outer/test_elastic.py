"""Outer loops in elastic jobs: real processes are killed and come, and those who go on hold the same bits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from support.jobs import Job
from support.quadratic import F, flat, inner, start
from support.worlds import PATH

BEGIN = """
import json, os, time
import numpy as np
import hocket
from support.quadratic import flat, inner, start
from hocket.training import Crew, DiLoCo, StreamingDiLoCo, digest
me, theta = int(os.environ["HOCKET_RANK"]), start()
def tell(outer, **more):
    print(json.dumps({"digest": digest(flat(theta)), "phi": digest(outer.phi), "rounds": outer.rounds,
                      "size": outer.crew.comm.size, "theta": flat(theta).tolist(), **more}), flush=True)
"""
LOST = BEGIN + """
sites = Crew(hocket.init(elastic=True), grace=60)
outer = MAKE(sites, theta, momentum=0.5, SETTINGS)
here = os.path.dirname(__file__)
while outer.steps < 12:
    if outer.steps == 5:
        open(f"{here}/{me} has ended the round before", "w").close()
    inner(me, outer.steps, theta)
    if me == VICTIM and outer.steps == 5:
        while not all(os.path.exists(f"{here}/{r} has ended the round before") for r in range(3)):
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    outer.step()
outer.finish()
tell(outer)
sites.comm.close()
"""


def lost(make: str, settings: str, victim: int) -> str:
    """The program of ranks of which one is killed at its sixth step."""
    return LOST.replace("MAKE", make).replace("SETTINGS", settings).replace("VICTIM", str(victim))


def run(size: int, source: str, dead: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    with Job(size, source, env={"PYTHONPATH": PATH}) as job:
        ends = job.wait(90)
    living = [r for r in range(size) if r not in dead]
    assert all(ends[r].code == 0 for r in living), [ends[r].err for r in living]
    return [json.loads(ends[r].out.splitlines()[-1]) for r in living]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_is_killed_in_a_round(victim: int) -> None:
    """Also rank 0: the others make the round without it, which is two rounds of three ranks, and four of two."""
    found = run(3, lost("DiLoCo", "every=2", victim), (victim,))
    assert {each["size"] for each in found} == {2} and {each["rounds"] for each in found} == {6}
    assert len({each["digest"] for each in found}) == 1
    ranks, thetas = [0, 1, 2], [start() for _ in range(3)]
    phi = flat(start())
    m = np.zeros_like(phi)
    for step in range(12):
        for r in ranks:
            inner(r, step, thetas[r])
        if step % 2 == 0:
            continue
        ranks = ranks if step < 5 else [r for r in range(3) if r != victim]
        d = phi - np.mean([flat(thetas[r]) for r in ranks], 0)
        m = F(0.5) * m + d
        phi = phi - F(0.7) * (d + F(0.5) * m)
        for r in ranks:
            at = 0
            for x in thetas[r].values():
                x[...] = phi[at : at + x.size].reshape(x.shape)
                at += x.size
    np.testing.assert_allclose(found[0]["theta"], phi, atol=1e-5)


@pytest.mark.parametrize("send", ["None", "'topk:0.3'"])
def test_a_rank_is_killed_while_a_round_is_behind_the_computation(send: str) -> None:
    settings = f"every=4, fragments=2, delay=1, send={send}"
    found = run(3, lost("StreamingDiLoCo", settings, 1), (1,))
    assert {each["size"] for each in found} == {2} and len({each["digest"] for each in found}) == 1


COMES = BEGIN + """
here = os.path.dirname(__file__)
if me == 2:
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "RENDEZVOUS"):
        del os.environ["HOCKET_" + name]
    while not os.path.exists(here + "/door"):
        time.sleep(0.01)
    comm = hocket.init(join=open(here + "/door").read())
    theta["w"] += 5
else:
    os.environ["HOCKET_SIZE"] = os.environ["HOCKET_LOCAL_SIZE"] = "2"
    comm = hocket.init(elastic=True)
outer = DiLoCo(Crew(comm, grace=60), theta, every=2, momentum=0.5, send=SEND)
last, weights = outer.rounds + 3 if me == 2 else 1 << 30, []
step = 0
while outer.rounds < last:
    inner(me, step, theta)
    step += 1
    time.sleep(0.01)
    report = outer.step()
    if report and me == 0 and outer.rounds == 1:
        with open(here + "/door~", "w") as file:
            file.write(comm.door)
        os.rename(file.name, here + "/door")
    if report and len(report.members) == 3:
        last = min(last, outer.rounds + 3)
        weights.append(report.weights)
tell(outer, weights=weights, steps=outer.steps)
outer.crew.comm.close()
"""


@pytest.mark.parametrize("send", [None, "randomk:0.3"])
def test_a_newcomer_has_the_others_bits(send: str | None) -> None:
    """It weighs nothing in the round in which it comes; from then on a third."""
    found = run(3, COMES.replace("SEND", repr(send)))
    assert {each["size"] for each in found} == {3}
    for name in ("digest", "phi", "rounds", "steps"):
        assert len({each[name] for each in found}) == 1, name
    assert found[0]["weights"][0] == [0.5, 0.5, 0.0]
    np.testing.assert_allclose(found[2]["weights"], [[1 / 3] * 3] * 3)


LATE_AT_THE_END = BEGIN + """
outer = DiLoCo(Crew(hocket.init(elastic=True), grace=0.3, timeout=60), theta, every=4, delay=DELAY, momentum=0.5)
while outer.steps < 30:
    inner(me, outer.steps, theta)
    time.sleep(0.01)
    if outer.steps == 9 and me == 2 or outer.steps == 26 and me == 1:
        time.sleep(1.0)
    outer.step()
began = time.monotonic()
outer.finish()
assert outer.finish() == [] and (flat(theta) == outer.phi).all()
tell(outer, took=time.monotonic() - began, steps=outer.steps)
outer.crew.close()
"""


@pytest.mark.parametrize("delay", [0, 2])
def test_who_is_late_comes_back_into_rounds_in_a_thread_and_into_the_end(delay: int) -> None:
    """The others go on without it, and wait for it in `finish`, with which it ends."""
    found = run(3, LATE_AT_THE_END.replace("DELAY", str(delay)))
    assert len({each["digest"] for each in found}) == 1 and {each["steps"] for each in found} == {30}
    assert {each["size"] for each in found} == {3} and max(each["took"] for each in found) < 30
