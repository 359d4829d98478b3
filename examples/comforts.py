"""Calls that do several things at once: lists of arrays, the same bits everywhere, and messages of any rank.

    hocket run -n 4 examples/comforts.py        # or, as root, --hosts 2 --link 20Mbit: two hosts with a slow cable
"""

import numpy as np

import hocket

ROUNDS = 5


def train(comm: hocket.Communicator) -> dict:
    """All parameters in one call: small ones travel as one message."""
    model = {"layers": [np.zeros((4, 3)), np.zeros(3)], "scale": np.ones(1)} if comm.rank == 0 else {
        "layers": [np.empty((4, 3)), np.empty(3)], "scale": np.empty(1)}  # fmt: skip
    comm.broadcast(model)
    for step in range(ROUNDS):
        gradients = [np.full((4, 3), comm.rank + step + 1.0), np.full(3, comm.rank + 1.0)]
        comm.allreduce(gradients, "avg")
        for weights, gradient in zip(model["layers"], gradients, strict=True):
            weights -= 0.1 * gradient
    return model


def collect(comm: hocket.Communicator) -> int:
    """Rank 0 takes results as they come, of any rank and any tag, and takes back the last recv."""
    if comm.rank:
        for number in range(ROUNDS):
            comm.send(np.array([100.0 * comm.rank + number]), 0, tag=number)
        comm.barrier()
        return 0
    found, out = set(), np.empty(1)
    for _ in range(ROUNDS * (comm.size - 1)):
        work = comm.recv(out, None, tag=None, async_op=True)
        found.add((work.result()[0], work.source, work.tag))
    assert all(value == 100 * source + tag for value, source, tag in found)
    last = comm.recv(out, None, tag=None, async_op=True)
    assert last.cancel(), "nobody sends any more"
    comm.barrier()
    return len(found)


def main() -> None:
    with hocket.init() as comm:
        model = train(comm)
        differ = comm.check_equal(model)
        model["scale"] += comm.rank == comm.size - 1
        spoilt = comm.check_equal(model)
        count = collect(comm)
        if comm.rank == 0:
            print(f"{comm.size} ranks: {len(differ)} arrays differ; after a mistake {spoilt or 'none'}; ", end="")
            print(f"{count} results came")


if __name__ == "__main__":
    main()
