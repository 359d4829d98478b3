"""A random program: what the ranks of a job call, one round after the other, as data made of a seed.

All ranks compute it alike, so that each knows what the others do.  It depends on the seed, the number of ranks,
the transport and the installation (dtypes of ml_dtypes, registered algorithms).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from hocket.algorithms.hierarchical import STAGES
from hocket.algorithms.language import registry
from hocket.algorithms.language.contract import CONTRACTS, reduces, takers
from hocket.conformance.fuzz.rounds import Call, Calls, Drop, Make, Message, Messages, Round, Settle
from hocket.conformance.fuzz.values import ALL, CODECS, DT, FUNCTIONS, KIND, OPAQUE, ops_for

EDGES = (48, 64, 4096, 16384, 65536)
"""Bytes at which a call may go another way."""
LONG = 3 << 20
WAYS = ("new", "new", "given", "in place")
VECTOR = [name for name, contract in CONTRACTS.items() if contract.blocks]
"""Collectives with counts."""
PRIVATE_ALGORITHMS = ("direct", "pairwise")
"""Algorithms that alltoallv may run: no rank knows the others' counts."""
COMMUNICATORS = 7
"""At most so many at once."""
TAGS = 3
STYLES = ("group", "wait", "wait", "leave", "leave", "ring", "blocking", "self")


def program(seed: int, size: int, rounds: int, transport: str) -> Iterator[Round]:
    """`rounds` rounds, and one more that settles."""
    comms = {0: tuple(range(size))}
    made = 1
    for number in range(rounds):
        dice = random.Random(f"{seed} {size} {transport} {number}")
        comm = dice.choice(sorted(comms))
        kind = dice.random()
        if kind < 0.62:
            yield _calls(dice, comm, len(comms[comm]), transport)
        elif kind < 0.86:
            yield _messages(dice, comm, len(comms[comm]), number)
        elif kind < 0.93 and len(comms) < COMMUNICATORS:
            new = _make(dice, comm, comms[comm], made)
            comms.update(new.made)
            made += len(new.made)
            yield new
        elif kind < 0.96 and comm:
            del comms[comm]
            close = dice.random() < 0.5
            yield Drop(comm, close, close or dice.random() < 0.7)
        else:
            yield Settle()
    yield Settle()


# ------------------------------------------------------------------------------------------- collectives


def _calls(dice: random.Random, comm: int, size: int, transport: str) -> Calls:
    together = dice.random() < 0.1
    calls = [_call(dice, size, transport) for _ in range(dice.randrange(2, 6) if together else 1)]
    if together:
        calls = [replace(c, algorithm=None, transport=None, repeats=1, later=(False,) * size) for c in calls]
    return Calls(comm, tuple(calls), together)


def _call(dice: random.Random, size: int, transport: str) -> Call:
    collective = dice.choice([*CONTRACTS, *VECTOR, *["allreduce"] * 3, "barrier"])
    contract = "allreduce" if collective == "barrier" else collective
    reducing = reduces(collective)
    codec = dice.choice(list(CODECS)) if collective in takers("codec") and dice.random() < 0.25 else None
    dtype = "float32" if codec else dice.choice([*DT, "affine"] if reducing else [*DT, *OPAQUE])
    op = None if not reducing else dice.choice(["sum", "avg"]) if codec else _op(dice, collective, dtype)
    rows, tail = _shape(dice, dtype, size if collective in VECTOR else 1)
    counts = _counts(dice, rows, size) if collective in VECTOR and dice.random() < 0.4 else None
    matrix = _matrix(dice, rows, size) if collective == "alltoall" and counts else ()
    scalar = collective not in (*VECTOR, "barrier") and dice.random() < 0.05
    order = "rank" if reducing and "scan" not in collective and dice.random() < 0.3 else "any"
    in_order = reducing and (order == "rank" or op in FUNCTIONS or "scan" in collective)
    algorithm = _algorithm(dice, contract, size, in_order, bool(matrix)) if dice.random() < 0.45 else None
    way = dice.choice(WAYS)
    kind = dice.random()
    later = [dice.random() < 0.5 for _ in range(size)] if kind < 0.15 else [kind < 0.45] * size
    return Call(
        collective, dtype, None if scalar else rows, () if scalar else tail, None if matrix else counts, matrix, op,
        _factors(dice, dtype, size) if op == "premul_sum" else (), dice.randrange(size), order, algorithm,
        "tcp" if transport == "shm" and dice.random() < 0.05 else None, way, dice.random() < 0.15,
        tuple(dice.random() < 0.5 for _ in range(size)), tuple(later),
        1 if codec else dice.choice([1, 1, 2, 3]), codec,
        codec is not None and collective in takers("residual") and algorithm in (None, "direct", "ring")
        and dice.random() < 0.5,
    )  # fmt: skip


def _op(dice: random.Random, collective: str, dtype: str) -> str:
    known = ops_for(dtype)
    # A prefix has no average: which number would it be divided by?
    return dice.choice([op for op in known if op != "avg" or "scan" not in collective])


def _factors(dice: random.Random, dtype: str, size: int) -> tuple[float, ...]:
    known = {"uint": (1.0, 2.0, 3.0), "int": (1.0, -1.0, 2.0, -3.0)}.get(KIND[dtype], (0.5, -2.0, 0.25, 1 / 3))
    return tuple(dice.choice(known) for _ in range(size))


def _shape(dice: random.Random, dtype: str, blocks: int) -> tuple[int, tuple[int, ...]]:
    """(rows, tail) of one of `blocks` blocks of a random number of bytes."""
    kind = dice.random()
    if kind < 0.08:
        nbytes = 0
    elif kind < 0.18:
        nbytes = 1
    elif kind < 0.45:
        nbytes = dice.randrange(1, 800)
    elif kind < 0.72:
        nbytes = dice.choice(EDGES) + dice.randrange(-16, 17)
    elif kind < 0.97:
        nbytes = dice.randrange(1, 200_000)
    else:
        nbytes = dice.randrange(1, LONG)
    tail = dice.choice([(), (), (), (2,), (3,), (7,), (2, 2)])
    row = ALL[dtype].itemsize
    for n in tail:
        row *= n
    share = nbytes if dice.random() < 0.5 else nbytes // blocks  # the edge may be a block's, or the whole array's
    return (max(1, share // row) if nbytes else 0), tail


def _counts(dice: random.Random, rows: int, size: int) -> tuple[int, ...]:
    """Some nothing, now and then all alike, or all of it one rank's."""
    kind = dice.random()
    if kind < 0.1:
        return (rows,) * size
    if kind < 0.15:
        all_of_it = dice.randrange(size)
        return tuple(rows if r == all_of_it else 0 for r in range(size))
    return tuple(0 if dice.random() < 0.25 else dice.randrange(2 * rows + 1) for _ in range(size))


def _matrix(dice: random.Random, rows: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(_counts(dice, rows, size) for _ in range(size))


def _algorithm(dice: random.Random, contract: str, size: int, in_order: bool, private: bool) -> str | None:
    """One of those that are allowed."""
    known = [registry.get(contract, name) for name in registry.names(contract)]
    usable = [a.name for a in known if a.requires(size) is None and (a.order == "rank" or not in_order)]
    if private:
        usable = [name for name in usable if name in PRIVATE_ALGORITHMS]
    elif contract in STAGES and not in_order and size > 1:
        usable.append("hierarchical")
    return dice.choice(usable) if usable else None


# ---------------------------------------------------------------------------------------------- messages


def _messages(dice: random.Random, comm: int, size: int, number: int) -> Messages:
    style = dice.choice(STYLES) if size > 1 else "self"
    dtype, one, own = dice.choice(list(ALL)), dice.randrange(size), TAGS + number
    if style == "self":
        found = [Message(r, r, own, _length(dice, dtype)) for r in range(size)]
    elif style == "ring":
        shift, count = dice.randrange(1, size), _length(dice, dtype)
        found = [Message(r, (r + shift) % size, dice.randrange(TAGS), count) for r in range(size)]
        found = [replace(each, tag=found[0].tag) for each in found]
    elif style == "blocking":
        count, each = _length(dice, dtype), dice.randrange(1, 4)
        found = [Message(r, one, own, count, True) for r in range(size) if r != one for _ in range(each)]
    else:
        ends = [dice.sample(range(size), 2) for _ in range(dice.randrange(1, 12))]
        found = [Message(s, d, dice.randrange(TAGS), _length(dice, dtype)) for s, d in ends]
        if dice.random() < 0.5:  # some come from any source, with a tag of their own, beside the others
            count = _length(dice, dtype)
            others = [dice.choice([r for r in range(size) if r != one]) for _ in range(dice.randrange(1, 5))]
            found += [Message(s, one, own, count, True) for s in others]
            dice.shuffle(found)
    return Messages(comm, style, dtype, tuple(found))


def _length(dice: random.Random, dtype: str) -> int:
    rows, tail = _shape(dice, dtype, 1)
    return rows * (2 if tail else 1)


# ------------------------------------------------------------------------------------------ communicators


def _make(dice: random.Random, comm: int, members: tuple[int, ...], number: int) -> Make:
    size, how = len(members), dice.choice(["split", "split", "dup", "subgroup", "create_group"])
    if how == "split":
        colors = tuple(dice.choice([0, 0, 1, None]) for _ in members)
        keys = tuple(dice.randrange(-2, 3) for _ in members)
        orders = [sorted((keys[r], r) for r in range(size) if colors[r] == color) for color in (0, 1)]
        made = [tuple(members[r] for _, r in order) for order in orders if order]
        return Make(comm, how, colors, keys, (), tuple(enumerate(made, number)))
    if how == "dup":
        return Make(comm, how, (), (), (), ((number, members),))
    ranks = tuple(dice.sample(range(size), dice.randrange(1, size + 1)))
    return Make(comm, how, (), (), ranks, ((number, tuple(members[r] for r in ranks)),))
