"""Data-parallel training in NumPy: handwritten digits, a network of one hidden layer, gradients averaged by hocket.

    hocket run -n 4 -- examples/digits.py        (or mpirun, torchrun, srun; or plain python, as one rank)

Every rank holds the whole model, works on its share of each batch, and averages its gradient with the others'.
At the end rank 0 trains once more alone, and compares; and all ranks prove that they hold the same bits.
"""

import hashlib

import numpy as np
from sklearn.datasets import load_digits
from tqdm import tqdm

import hocket

HIDDEN, CLASSES, EPOCHS, RATE = 32, 10, 30, 0.5
BATCH = 192  # images in a batch of all ranks together, about


def data():
    """Training and test images (pixels from 0 to 1) with their digits, in the same random order on every rank."""
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, digits = images[order] / 16, digits[order]
    return images[:1440], digits[:1440], images[1440:], digits[1440:]


def new_model():
    """The parameters as one flat vector, so that one allreduce carries the whole gradient."""
    rng = np.random.default_rng(1)
    return rng.normal(0, 0.1, 64 * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)


def parts(flat):
    """Views into a flat vector: hidden weights and biases, output weights and biases."""
    w1, b1, w2, b2 = np.split(flat, np.cumsum([64 * HIDDEN, HIDDEN, HIDDEN * CLASSES]))
    return w1.reshape(64, HIDDEN), b1, w2.reshape(HIDDEN, CLASSES), b2


def predict(model, images):
    """The hidden layer's values and the probability of each digit."""
    w1, b1, w2, b2 = parts(model)
    hidden = np.tanh(images @ w1 + b1)
    scores = np.exp(hidden @ w2 + b2)
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def gradient(model, images, digits):
    """The gradient of the mean cross-entropy, flat like the model: the chain rule, backwards through `predict`."""
    hidden, error = predict(model, images)
    error[np.arange(len(digits)), digits] -= 1
    error /= len(digits)
    flat = np.empty_like(model)
    w1, b1, w2, b2 = parts(flat)
    back = (error @ parts(model)[2].T) * (1 - hidden**2)
    w1[:], b1[:], w2[:], b2[:] = images.T @ back, back.sum(0), hidden.T @ error, error.sum(0)
    return flat


def train(images, digits, batch, rank=0, size=1, average=lambda g: g, progress=False):
    """Gradient descent; this rank takes every size-th image of each batch, and `average` joins the ranks' gradients."""
    model = new_model()
    rng = np.random.default_rng(2)  # the same batches on every rank
    for _ in tqdm(range(EPOCHS), desc=f"{size} ranks", disable=not progress):
        order = rng.permutation(len(images))
        for start in range(0, len(order) - batch + 1, batch):
            mine = order[start : start + batch][rank::size]
            model -= RATE * average(gradient(model, images[mine], digits[mine]))
    return model


def accuracy(model, images, digits):
    return 100 * np.mean(predict(model, images)[1].argmax(axis=1) == digits)


def main():
    comm = hocket.init()
    images, digits, test_images, test_digits = data()
    batch = max(BATCH // comm.size, 1) * comm.size  # every rank gets equally many images

    def average(mine):
        return comm.allreduce(mine, op="avg")

    model = train(images, digits, batch, comm.rank, comm.size, average, progress=comm.rank == 0)

    digest = np.frombuffer(hashlib.sha256(model.tobytes()).digest(), np.uint8)
    digests = comm.allgather(digest).reshape(comm.size, -1)
    if comm.rank == 0:
        together = accuracy(model, test_images, test_digits)
        alone = accuracy(train(images, digits, batch), test_images, test_digits)
        print(f"test accuracy: {together:.1f} % by {comm.size} ranks, {alone:.1f} % by one process")
        assert abs(together - alone) <= 0.5, "the ranks did not learn what one process learns"
        assert (digests == digest).all(), "the ranks hold different weights"
        print(f"weights: the same bits on all {comm.size} ranks (SHA-256 {digest.tobytes().hex()[:16]}...)")


if __name__ == "__main__":
    main()
