"""A transformer with experts learns the characters of a text, cut in every way at once: it learns what one rank learns.

    hocket run -n 8 -- python examples/large.py --axes data=2,pipe=2,tensor=2
    hocket run -n 8 --trace run.json -- python examples/large.py --axes site=2,data=2,pipe=2 && hocket report run.json

    site      each site trains alone, and now and then they average what they learned (DiLoCo)
    data      each rank has a part of the batch, and some of the experts; gradients are averaged as soon as they can be
    pipe      each rank has some of the layers (1F1B)
    tensor    each rank has some of the heads, and of each expert's hidden units

    step  1: loss 4.395983327
    ...
    step 50: loss 3.061906050

The text is this project's license.  Numbers are float64, and experts take all tokens.  With --capacity 1.25 some are
left out, which pass the layer unchanged; --balance 0.01 adds the loss that balances the experts, so that fewer are.
"""

import argparse
from pathlib import Path

import numpy as np

import hocket
from hocket.training import Adam, ColumnParallel, DiLoCo, Experts, Mesh, Pipeline, RowParallel, Scheduler
from hocket.training.large.pipeline.cut import cut
from hocket.training.large.stage import Chain

TEXT = Path(__file__).parents[1] / "LICENSE"
WIDTH, HEADS, HIDDEN, EXPERTS, BLOCKS, LENGTH, BATCH, MICRO, RATE = 16, 2, 32, 4, 2, 16, 16, 4, 3e-3


class Layer:
    """Arrays by name, and their gradients; `parts`: layers inside of it."""

    def __init__(self, parts=(), **arrays):
        self.parts, self.parameters = parts, arrays
        self.gradients = {name: np.zeros_like(x) for name, x in arrays.items()}

    def normed(self, x):
        """Layer norm of rows."""
        centred = x - x.mean(-1, keepdims=True)
        length = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / length * self.parameters["scale"], (centred / length, length)

    def normed_back(self, dy, kept):
        unit, length = kept
        self.gradients["scale"] += (dy * unit).reshape(-1, WIDTH).sum(0)
        du = dy * self.parameters["scale"]
        return (du - du.mean(-1, keepdims=True) - unit * (du * unit).mean(-1, keepdims=True)) / length


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class Embedding(Layer):
    def forward(self, ids):
        return self.parameters["character"][ids] + self.parameters["place"], ids

    def backward(self, dy, ids):
        np.add.at(self.gradients["character"], ids, dy)
        self.gradients["place"] += dy.sum(0)
        return dy


class Attention(Layer):
    """Some of the heads."""

    def __init__(self, dice, comm):
        w = dice.normal(0, WIDTH**-0.5, (4, WIDTH, WIDTH))
        self.qkv, self.out = [ColumnParallel(each, None, comm) for each in w[:3]], RowParallel(w[3], None, comm)
        super().__init__([*self.qkv, self.out], scale=np.ones(WIDTH))
        self.hidden = np.triu(np.full((LENGTH, LENGTH), -np.inf), 1)  # what comes later

    def forward(self, x):
        flat, norm = self.normed(x.reshape(-1, WIDTH))
        found, kept = zip(*(each.forward(flat) for each in self.qkv), strict=True)
        q, k, v = (self.heads(each) for each in found)
        p = softmax(q @ k.swapaxes(-1, -2) * (WIDTH // HEADS) ** -0.5 + self.hidden)
        y, last = self.out.forward(self.rows(p @ v))
        return x + y.reshape(x.shape), (norm, kept, q, k, v, p, last)

    def backward(self, dy, kept):
        norm, kept, q, k, v, p, last = kept
        dmixed = self.heads(self.out.backward(dy.reshape(-1, WIDTH), last))
        dp = dmixed @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * (WIDTH // HEADS) ** -0.5
        grads = ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dmixed
        dx = sum(one.backward(self.rows(g), x) for one, g, x in zip(self.qkv, grads, kept, strict=True))
        return dy + self.normed_back(dx, norm).reshape(dy.shape)

    def heads(self, x):
        return x.reshape(-1, LENGTH, x.shape[1] // (WIDTH // HEADS), WIDTH // HEADS).swapaxes(1, 2)

    def rows(self, x):
        return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, x.shape[1] * (WIDTH // HEADS))


class Expert(Layer):
    """Some of the hidden units."""

    def __init__(self, dice, comm):
        w = dice.normal(0, WIDTH**-0.5, (WIDTH, HIDDEN)), dice.normal(0, HIDDEN**-0.5, (HIDDEN, WIDTH))
        super().__init__([ColumnParallel(w[0], None, comm), RowParallel(w[1], None, comm)])

    def forward(self, x):
        hidden, first = self.parts[0].forward(x)
        y, second = self.parts[1].forward(np.maximum(hidden, 0))
        return y, (first, second, hidden > 0)

    def backward(self, dy, kept):
        first, second, positive = kept
        return self.parts[0].backward(self.parts[1].backward(dy, second) * positive, first)


class Mixture(Layer):
    """A gate, and some of the experts."""

    def __init__(self, dice, mesh, capacity, balance):
        self.balance, self.dropped, self.rows = balance, 0, 0
        super().__init__(scale=np.ones(WIDTH), gate=dice.normal(0, WIDTH**-0.5, (WIDTH, EXPERTS)))
        data, every = mesh["data"], [Expert(dice, mesh["tensor"]) for _ in range(EXPERTS)]
        own = np.split(np.arange(EXPERTS), data.size)[data.rank]
        self.experts = Experts(data, [every[number] for number in own], top=2, capacity=capacity)

    def forward(self, x):
        flat, norm = self.normed(x.reshape(-1, WIDTH))
        gates = softmax(flat @ self.parameters["gate"])
        y, kept = self.experts.forward(flat, gates)
        self.dropped, self.rows = self.dropped + self.experts.dropped, self.rows + 2 * len(flat)
        return x + y.reshape(x.shape), (norm, flat, gates, kept)

    def backward(self, dy, kept):
        norm, flat, gates, kept = kept
        dx, dgates = self.experts.backward(dy.reshape(-1, WIDTH), kept)
        dgates = dgates + self.experts.balancing(gates, self.balance / MICRO)[1]
        dlogits = gates * (dgates - (dgates * gates).sum(-1, keepdims=True))
        self.gradients["gate"] += flat.T @ dlogits
        return dy + self.normed_back(dx + dlogits @ self.parameters["gate"].T, norm).reshape(dy.shape)


class Scores(Layer):
    def forward(self, x):
        flat, norm = self.normed(x)
        return flat @ self.parameters["w"], (flat, norm)

    def backward(self, dy, kept):
        flat, norm = kept
        self.gradients["w"] += flat.reshape(-1, WIDTH).T @ dy.reshape(-1, dy.shape[-1])
        return self.normed_back(dy @ self.parameters["w"].T, norm)


def model(mesh, characters, capacity, balance):
    """The layers of this rank's stage, by number; the same numbers on all ranks, which keep their part of them."""
    def embedding(dice):
        return Embedding(character=dice.normal(0, 0.3, (characters, WIDTH)), place=np.zeros((LENGTH, WIDTH)))

    def scores(dice):
        return Scores(scale=np.ones(WIDTH), w=dice.normal(0, 0.1, (WIDTH, characters)))

    block = [lambda dice: Attention(dice, mesh["tensor"]), lambda dice: Mixture(dice, mesh, capacity, balance)]
    kinds, pipe = [embedding, *block * BLOCKS, scores], mesh["pipe"]
    mine = cut([1.0] * len(kinds), pipe.size)[pipe.rank]
    return {number: kinds[number](np.random.default_rng(number)) for number in range(len(kinds))[mine]}


def arrays(layers):
    """(name, parameter, gradient, is it the same on all ranks of the data axis) of all of this rank's arrays."""
    for number, layer in layers.items():
        for i, part in enumerate([layer, *layer.parts]):
            for name, x in part.parameters.items():
                yield f"{number}/{i}/{name}", x, part.gradients[name], True
        for i, expert in enumerate(layer.experts.experts if isinstance(layer, Mixture) else []):
            for j, part in enumerate(expert.parts):
                yield f"{number}/expert{i}/{j}", part.parameters["weight"], part.gradients["weight"], False


def train(comm, axes, steps, every, capacity, balance):
    """Losses by step, of all sites' batches, and the share of rows that experts have left out."""
    mesh = Mesh(comm, axes)
    text = np.array(sorted(set(TEXT.read_text()))), np.array([*TEXT.read_text()])
    ids = np.searchsorted(*text)
    layers, data, sites = model(mesh, len(text[0]), capacity, balance), mesh["data"], axes["site"]
    own = [*arrays(layers)]
    rows = BATCH // sites // data.size
    like = np.empty((rows // MICRO, LENGTH, WIDTH))
    pipe = Pipeline(Chain(layers.values()), mesh["pipe"], like, micro=MICRO)
    scheduler = Scheduler(data)
    for name, x, _, shared in own:
        if shared:
            scheduler.declare(name, x)
    parameters = {name: x for name, x, *_ in own}
    outer = DiLoCo(mesh["site"].comm, parameters, every=every, momentum=0.5) if sites > 1 else None
    optimizer = Adam(lr=RATE)
    slots = {name: {slot: np.zeros(x.size) for slot in optimizer.slots} for name, x, *_ in own}
    for step in range(1, steps + 1):
        comm.mark("step", step)
        begins = np.random.default_rng(step).integers(0, len(ids) - LENGTH, BATCH)
        begins = begins.reshape(sites * data.size, rows)[mesh.at["site"] * data.size + data.rank]
        batch = ids[begins[:, None] + np.arange(LENGTH + 1)]
        wanted = np.split(batch[:, 1:], MICRO)

        def loss(y, micro, wanted=wanted):
            p, at = softmax(y), (*np.indices(wanted[micro].shape), wanted[micro])
            found = -np.log(p[at]).sum() / (rows * LENGTH)
            p[at] -= 1
            return found, p / (rows * LENGTH)

        found = pipe.step(batch[:, :-1] if pipe.first else None, loss)
        for name, _, grad, shared in reversed(own):
            if shared:
                scheduler.ready(name, grad)
        scheduler.step()
        for name, x, grad, shared in own:
            averaged = scheduler.wait(name) if shared else grad / data.size  # an expert has had all ranks' tokens
            optimizer.apply(x.reshape(-1), averaged.reshape(-1), slots[name], step)
            grad[...] = 0
        if outer:
            outer.step()
        mixtures = [layer for layer in layers.values() if isinstance(layer, Mixture)]
        counts = [sum(layer.dropped for layer in mixtures), sum(layer.rows for layer in mixtures)]
        whole, dropped, rows_of_all = comm.allreduce(np.array([found or 0.0, *counts]))
        yield whole / (sites * data.size * axes["tensor"]), dropped / rows_of_all
    scheduler.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--axes", default="", help="lengths by name: site=2,data=2,pipe=2")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--every", type=int, default=10, help="steps between two rounds of the sites")
    parser.add_argument("--capacity", type=float, help="of experts; without it they take all tokens")
    parser.add_argument("--balance", type=float, default=0.0, help="scale of the loss that balances the experts (0)")
    options = parser.parse_args()
    axes = {"site": 1, "data": 1, "pipe": 1, "tensor": 1}
    axes.update((name, int(length)) for name, length in (each.split("=") for each in options.axes.split(",") if each))
    with hocket.init() as comm:
        ends = train(comm, axes, options.steps, options.every, options.capacity, options.balance)
        for step, (loss, dropped) in enumerate(ends, 1):
            if comm.rank == 0 and (step == 1 or step % 10 == 0):
                left_out = "" if options.capacity is None else f", {dropped:.1%} of rows left out so far"
                print(f"step {step:2}: loss {loss:.9f}{left_out}", flush=True)


if __name__ == "__main__":
    main()
