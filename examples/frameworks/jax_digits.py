"""Data-parallel training in JAX: handwritten digits, a network of one hidden layer, the whole step under jit.

    pip install 'hocket[jax,run]'
    hocket run -n 2 -- examples/frameworks/jax_digits.py     (or mpirun, torchrun, srun; or plain python, as one rank)

Every rank works on its share of each batch.  The gradient is averaged inside the compiled step, and an epoch is one
program: its steps are a scan.
"""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import hocket.jax

HIDDEN, CLASSES, EPOCHS, RATE, BATCH = 32, 10, 30, 0.5, 192


def data():
    """Training and test images (pixels from 0 to 1) with their digits, in the same random order on every rank."""
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, digits = (images[order] / 16).astype(np.float32), digits[order]
    return images[:1440], digits[:1440], images[1440:], digits[1440:]


def new_model(key):
    first, second = jax.random.split(key)
    return {
        "hidden": 0.1 * jax.random.normal(first, (64, HIDDEN)), "hidden bias": jnp.zeros(HIDDEN),
        "out": 0.1 * jax.random.normal(second, (HIDDEN, CLASSES)), "out bias": jnp.zeros(CLASSES),
    }  # fmt: skip


def scores(model, images):
    hidden = jnp.tanh(images @ model["hidden"] + model["hidden bias"])
    return hidden @ model["out"] + model["out bias"]


def loss(model, images, digits):
    """Mean cross-entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(model, images)), digits[:, None], axis=1).mean()


def step(model, batch):
    """One step of gradient descent: all ranks average their gradients, and take the same step."""
    value, gradient = jax.value_and_grad(loss)(model, *batch)
    value, gradient = hocket.jax.allreduce((value, gradient), "avg")  # one call for the whole tree
    return jax.tree.map(lambda w, g: w - RATE * g, model, gradient), value


@jax.jit
def epoch(model, batches):
    return jax.lax.scan(step, model, batches)


def main():
    comm = hocket.jax.init()
    images, digits, test_images, test_digits = data()
    mine = BATCH // comm.size  # of each batch
    steps = len(images) // (mine * comm.size)
    model = hocket.jax.broadcast(new_model(jax.random.key(comm.rank)))  # rank 0's
    rng = np.random.default_rng(2)  # the same on all ranks
    for number in range(EPOCHS):
        order = rng.permutation(len(images))[: steps * mine * comm.size].reshape(steps, comm.size, mine)[:, comm.rank]
        model, losses = epoch(model, (images[order], digits[order]))
        if comm.rank == 0 and number % 10 == 9:
            print(f"epoch {number + 1}: loss {losses[-1]:.3f}")
    accuracy = (scores(model, test_images).argmax(1) == test_digits).mean()
    first = hocket.jax.broadcast(model)
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, model, first))), "the ranks' models differ"
    if comm.rank == 0:
        print(f"{comm.size} ranks, the same bits on all; accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
