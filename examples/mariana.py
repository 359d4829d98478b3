"""Four ways to train one network on four ranks, those of Tencent's Mariana (2014) and DistBelief's: all learn the same.

    hocket run -n 4 -- python examples/mariana.py

    data parallel               each rank has the network, and a part of each batch; gradients are averaged
    model and data parallel     two ranks have half of each layer; the same halves average their gradients
    parameter servers           each rank serves a part of the parameters: gradients go there, and come back stepped
    servers of cut models       two ranks with half of each layer are one worker of these servers, as in DistBelief

The second is the article's four GPUs: only GPUs of one colour, which hold the same half, exchange gradients.
What goes to servers travels on links of their own, and is not counted.

    data parallel: loss 3.378 to 0.001366, 92.6% of other images; 0 kB inside, 8654 kB between models
    model and data parallel: loss 3.378 to 0.001366, 92.6% of other images; 2388 kB inside, 2890 kB between models
    parameter servers: loss 3.378 to 0.001366, 92.6% of other images; 0 kB inside, 2 kB between models
    servers of cut models: loss 3.378 to 0.001366, 92.6% of other images; 2403 kB inside, 2 kB between models
"""

import numpy as np

import hocket
from hocket.training import SGD, Client, ColumnParallel, Mesh, Range, RowParallel, serve

HIDDEN, BATCH, STEPS = 96, 80, 200
ALIKE = "1/bias"
"""The bias of a row-parallel layer: all ranks have the whole of it."""


def network(comm):
    """64 pixels, two layers; the same on all ranks, which keep their part of it."""
    dice = np.random.default_rng(0)
    first, second = (dice.normal(0, shape[0] ** -0.5, shape).astype("f") for shape in ((64, HIDDEN), (HIDDEN, 10)))
    return ColumnParallel(first, np.zeros(HIDDEN, "f"), comm), RowParallel(second, np.zeros(10, "f"), comm)


def learn(layers, x, labels):
    """Forward and backward pass: the batch's loss."""
    hidden, kept = layers[0].forward(x)
    logits, kept_too = layers[1].forward(np.maximum(hidden, 0))
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(x)), labels]).mean()
    p[np.arange(len(x)), labels] -= 1
    for layer in layers:
        layer.clear()
    layers[0].backward(layers[1].backward(p / np.float32(len(x)), kept_too) * (hidden > 0), kept)
    return loss


def by_layer(layers, what):
    return {f"{i}/{name}": array for i, layer in enumerate(layers) for name, array in getattr(layer, what).items()}


def images(count):
    """Ten pictures of 64 pixels in much noise, and which each is."""
    dice = np.random.default_rng(1)
    pictures, labels = dice.normal(size=(10, 64)), dice.integers(0, 10, count)
    return (pictures[labels] + dice.normal(0, 2, (count, 64))).astype("f"), labels


class Averaged:
    """Gradients are averaged, and each rank steps."""

    def __init__(self, comm, mesh, parameters, optimizer):
        self.data, self.parameters, self.optimizer, self.steps = mesh["data"], parameters, optimizer, 0
        self.speeds = {name: {"momentum": np.zeros_like(x.ravel())} for name, x in parameters.items()}

    def step(self, gradients):
        self.steps += 1
        for name, x in self.parameters.items():
            averaged = self.data.allreduce(gradients[name], "avg")
            self.optimizer.apply(x.reshape(-1), averaged.reshape(-1), self.speeds[name], self.steps)

    def close(self):
        pass


class Served:
    """Every rank serves some slices.  Half of a layer is a table: the ranks with other halves push nothing to it."""

    def __init__(self, comm, mesh, parameters, optimizer):
        tensor, tables = mesh["tensor"], {}
        self.parameters, self.scales = parameters, {}
        for name, x in parameters.items():
            alike = tensor.size == 1 or name == ALIKE
            for half, part in enumerate([x] if alike else tensor.allgather(x[None])):
                tables[name if alike else f"{half} of {name}"] = Range(x.shape, "f4", optimizer, part, mean=True)
            self.scales[name if alike else f"{tensor.rank} of {name}"] = 1 if alike else tensor.size
        self.server = serve(comm, tables, on=range(comm.size), works=True)
        self.client = Client(self.server)

    def step(self, gradients):
        pairs = list(zip(self.scales.items(), self.parameters.items(), strict=True))
        for (table, scale), (name, _) in pairs:
            self.client.push(table, gradients[name] * np.float32(scale), async_op=True)
        self.client.tick()
        for (table, _), (_, x) in pairs:
            self.client.pull(table, out=x)

    def close(self):
        self.client.close()
        self.server.wait()


def train(comm, mesh, way):
    """Losses of the first and the last step, and the part of 500 other images that is right."""
    pixels, labels = images(2000)
    layers, data = network(mesh["tensor"]), mesh["data"]
    trained, losses = way(comm, mesh, by_layer(layers, "parameters"), SGD(lr=0.1, momentum=0.9)), []
    for step in range(STEPS):
        batch = np.random.default_rng(step).integers(0, 1500, BATCH).reshape(data.size, -1)[data.rank]
        losses.append(data.allreduce(float(learn(layers, pixels[batch], labels[batch])), "avg"))
        trained.step(by_layer(layers, "gradients"))
    trained.close()
    logits, _ = layers[1].forward(np.maximum(layers[0].forward(pixels[1500:])[0], 0))
    return losses[0], losses[-1], (logits.argmax(1) == labels[1500:]).mean()


def main():
    with hocket.init() as comm:
        half = 2 - comm.size % 2
        for name, tensor, way in (
            ("data parallel", 1, Averaged), ("model and data parallel", half, Averaged),
            ("parameter servers", 1, Served), ("servers of cut models", half, Served),
        ):  # fmt: skip
            mesh = Mesh(comm, {"data": comm.size // tensor, "tensor": tensor})
            first, last, right = train(comm, mesh, way)
            if comm.rank == 0:
                inside, between = (mesh[axis].sent() / 1000 for axis in ("tensor", "data"))
                print(f"{name}: loss {first:.4g} to {last:.4g}, {right:.1%} of other images; {inside:.0f} kB inside, "
                      f"{between:.0f} kB between models")  # fmt: skip


if __name__ == "__main__":
    main()
