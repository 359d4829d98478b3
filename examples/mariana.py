"""Three ways to train one network on four ranks, those of Tencent's Mariana (2014): all learn the same.

    hocket run -n 4 -- python examples/mariana.py

    data parallel               each rank has the network, and a part of each batch; gradients are averaged
    model and data parallel     two ranks have half of each layer; the same halves average their gradients
    parameter servers           each rank serves a part of the parameters: gradients go there, and come back stepped

The second is the article's four GPUs: only GPUs of one colour, which hold the same half, exchange gradients.

    data parallel: loss 3.378 to 0.001366, 92.6% of other images; 0 kB inside, 8654 kB between models
    model and data parallel: loss 3.378 to 0.001366, 92.6% of other images; 2388 kB inside, 2890 kB between models
    parameter servers: loss 3.378 to 0.001366, 92.6% of other images; 0 kB inside, 8655 kB between models
"""

import numpy as np

import hocket
from hocket.training import SGD, ColumnParallel, Mesh, RowParallel, Sharded

HIDDEN, BATCH, STEPS = 96, 80, 200


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


def train(mesh, served):
    """Losses of the first and the last step, and the part of 500 other images that is right."""
    pixels, labels = images(2000)
    layers, data = network(mesh["tensor"]), mesh["data"]
    parameters, optimizer, losses = by_layer(layers, "parameters"), SGD(lr=0.1, momentum=0.9), []
    speeds = {name: {"momentum": np.zeros_like(x.ravel())} for name, x in parameters.items()}
    sharded = Sharded(optimizer, data, parameters) if served else None
    for step in range(STEPS):
        batch = np.random.default_rng(step).integers(0, 1500, BATCH).reshape(data.size, -1)[data.rank]
        losses.append(data.allreduce(float(learn(layers, pixels[batch], labels[batch])), "avg"))
        gradients = by_layer(layers, "gradients")
        if served:
            sharded.step(gradients)
            continue
        for name, x in parameters.items():
            averaged = data.allreduce(gradients[name], "avg")
            optimizer.apply(x.reshape(-1), averaged.reshape(-1), speeds[name], step + 1)
    logits, _ = layers[1].forward(np.maximum(layers[0].forward(pixels[1500:])[0], 0))
    return losses[0], losses[-1], (logits.argmax(1) == labels[1500:]).mean()


def main():
    with hocket.init() as comm:
        half = 2 - comm.size % 2
        for name, tensor, served in (
            ("data parallel", 1, False), ("model and data parallel", half, False), ("parameter servers", 1, True)
        ):  # fmt: skip
            mesh = Mesh(comm, {"data": comm.size // tensor, "tensor": tensor})
            first, last, right = train(mesh, served)
            if comm.rank == 0:
                inside, between = (mesh[axis].sent() / 1000 for axis in ("tensor", "data"))
                print(f"{name}: loss {first:.4g} to {last:.4g}, {right:.1%} of other images; {inside:.0f} kB inside, "
                      f"{between:.0f} kB between models")  # fmt: skip


if __name__ == "__main__":
    main()
