"""Four ranks train a network in shards; two others generate with it, from newer and newer weights, while all work.

The generators fetch together: both have one version, and its bytes come once.

hocket run -n 6 -- python refit.py
"""

import numpy as np

import hocket
from hocket import Layout

TRAINERS, STEPS, SHAPES = 4, 200, {"w1": (16, 32), "b1": (32,), "w2": (32, 1)}
SHARDS = {name: Layout.flat(shape, TRAINERS) for name, shape in SHAPES.items()}
"""A trainer holds a quarter of each array, cut where it falls (ZeRO)."""
WHOLE = {name: Layout.replicated(shape, TRAINERS) for name, shape in SHAPES.items()}
READ = {name: Layout.replicated(shape, 2) for name, shape in SHAPES.items()}


def wanted(x):
    return np.sin(x.sum(axis=1, keepdims=True) / 2)


def train(comm, mine, published):
    """Each step gathers the weights, averages gradients, updates this rank's shard, and publishes."""
    random, gather = np.random.default_rng(comm.rank), comm.prepare_redistribute(mine, SHARDS, WHOLE)
    for _ in range(STEPS):
        w = {name: parts[0] for name, parts in gather().items()}
        x = random.normal(size=(64, 16)) / 2
        hidden = np.tanh(x @ w["w1"] + w["b1"])
        wrong = hidden @ w["w2"] - wanted(x)
        back = (wrong @ w["w2"].T) * (1 - hidden**2)
        gradients = {"w1": x.T @ back, "b1": back.sum(axis=0), "w2": hidden.T @ wrong}
        for name, gradient in gradients.items():
            comm.allreduce(gradient, "avg")
            for part, piece in zip(mine[name], SHARDS[name].parts(gradient, comm.rank), strict=True):
                part -= 0.3 / 64 * piece
        published.update(mine)


def generate(comm, address):
    """The version and the mean error of what was fetched, again and again."""
    x, seen = np.random.default_rng(9).normal(size=(500, 16)) / 2, []
    with hocket.Reader(address, READ, comm=comm) as reader:
        while not seen or seen[-1][0] < STEPS:
            w = {name: parts[0] for name, parts in reader.fetch().items()}
            error = np.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] - wanted(x)
            seen.append((reader.version, float(np.abs(error).mean())))
    return seen


if __name__ == "__main__":
    world = hocket.init()
    group = world.split(int(world.rank < TRAINERS))  # they could be two jobs: an address is all that they share
    if world.rank < TRAINERS:
        random = np.random.default_rng(0)
        first = {name: random.normal(size=shape) / np.sqrt(shape[0]) for name, shape in SHAPES.items()}
        mine = {name: [part.copy() for part in SHARDS[name].parts(w, group.rank)] for name, w in first.items()}
        with hocket.publish(group, mine, SHARDS) as published:
            world.broadcast_object(published.address)
            train(group, mine, published)
            world.barrier()  # until the last version was read
    else:
        seen = generate(group, world.broadcast_object())
        world.barrier()
        (_, before), (_, after) = seen[0], seen[-1]
        print(f"{len({version for version, _ in seen})} versions; mean error {before:.2f}, at the end {after:.2f}")
        assert after < 0.2
