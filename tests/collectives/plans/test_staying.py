"""Which sent memory stays as it is, said before a run: a rank that writes there meanwhile shows what was wrong."""

from __future__ import annotations

import random

import pytest

from hocket.collectives.plans.instr import OUT, SCRATCH, Apply, Instr, Piece
from hocket.collectives.plans.staying import LEAST, staying
from hocket.kernels.dtypes import by_name

N = LEAST


def send(*pieces: Piece) -> Instr:
    return Instr("send", [1], src=list(pieces))


def recv(*pieces: Piece, kind: str = "recv", after: bool = False) -> Instr:
    return Instr(kind, [1], after_sends=after, dst=list(pieces))


A, B, HALF = (OUT, 0, N), (OUT, N, N), (OUT, N // 2, N)


@pytest.mark.parametrize(
    ("steps", "cut", "stay", "change"),
    [
        ([[send(A), recv(B)]], False, {0}, set()),
        ([[send(A)], [recv(A)]], False, {0}, {1}),
        ([[send(A)], [recv(A)]], True, {0}, {1}),
        ([[send(A)], [recv(HALF)]], False, {0}, {1}),
        ([[send(A)], [recv(HALF)]], True, set(), set()),
        ([[send(A)], [recv(A, kind="reduce")]], False, set(), set()),
        ([[send(A)], [recv(A, kind="copy")]], False, {0}, {1}),
        ([[send(A)], [recv(A, kind="copy", after=True)]], False, set(), set()),
        ([[send(A)], [recv(A, kind="apply")._replace(applied=Apply(0.5))]], True, {0}, {1}),
        ([[send(A)], [recv(A, kind="apply")._replace(applied=Apply(made=by_name("float32")))]], True, set(), set()),
        ([[send(A), recv(A, after=True)]], False, set(), set()),
        ([[send(A), recv(A)]], False, set(), set()),
        ([[recv(A, kind="reduce")], [send(A)]], True, {1}, set()),
        ([[send((OUT, 0, N - 1))], [recv(A)]], False, set(), set()),
        ([[send((SCRATCH, 0, N))], [recv(A)]], False, {0}, set()),
        ([[send(A)], [recv((OUT, 0, N - 1)), recv((OUT, N - 1, 5))]], False, {0}, {1, 2}),
        ([[Instr("send", [1, 2], src=[A])]], False, set(), set()),
    ],
)  # fmt: skip
def test_what_stays(steps: list[list[Instr]], cut: bool, stay: set[int], change: set[int]) -> None:
    assert staying(steps, cut) == (stay, change)


def test_the_same_as_by_looking_at_all_pairs() -> None:
    dice = random.Random(3)
    for _ in range(300):
        steps = []
        for _ in range(dice.randrange(1, 5)):
            pieces = [(dice.choice((OUT, SCRATCH)), dice.randrange(0, 4 * N, N // 2), N) for _ in range(3)]
            steps.append([send(pieces[0]), recv(pieces[1], kind=dice.choice(("recv", "reduce"))), recv(pieces[2])])
        stay, change = staying(steps, False)
        flat = [(at, instr) for at, step in enumerate(steps) for instr in step]
        wanted: tuple[set[int], set[int]] = (set(), set())
        for i, (at, instr) in enumerate(flat):
            if instr.kind != "send":
                continue
            met = [(j, when, other) for j, (when, other) in enumerate(flat)
                   for s in instr.src or () for d in other.dst or ()
                   if s[0] == d[0] and s[1] < d[1] + d[2] and d[1] < s[1] + s[2]]  # fmt: skip
            if all(when < at or when > at and other.kind == "recv" for _, when, other in met):
                wanted[0].add(i)
                wanted[1].update(j for j, when, _ in met if when > at)
        assert (stay, change) == wanted
