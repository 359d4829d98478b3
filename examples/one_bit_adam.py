"""1-bit Adam: after some steps of Adam only signs of the momentum travel, and the variance stays as it is.

    hocket run -n 4 -- examples/one_bit_adam.py

Softmax regression on handwritten digits, each rank with images of its own, once by Adam and once by 1-bit Adam.
Source: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed", ICML
2021.
"""

import numpy as np
from sklearn.datasets import load_digits

import hocket
from hocket.compression import Compressor

STEPS, WARM, RATE, BETA1, BETA2 = 300, 60, 0.01, 0.9, 0.999


def gradient(weights: np.ndarray, images: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """The gradient of the mean cross-entropy."""
    scores = np.exp(images @ weights)
    error = scores / scores.sum(1, keepdims=True)
    error[np.arange(len(digits)), digits] -= 1
    return (images.T @ error / len(digits)).astype(np.float32)


def train(comm: hocket.Communicator, images: np.ndarray, digits: np.ndarray, warm: int) -> tuple[np.ndarray, int]:
    """The weights after STEPS, of which the first `warm` are Adam's; and the bytes of what was averaged."""
    weights, m, v = (np.zeros((64, 10), np.float32) for _ in range(3))
    signs, sent = Compressor(comm, "doublesqueeze:sign"), 0
    for step in range(1, STEPS + 1):
        g = gradient(weights, images, digits)
        if step <= warm:
            comm.allreduce(g, "avg")
            v = BETA2 * v + (1 - BETA2) * g * g
        m = BETA1 * m + (1 - BETA1) * g  # in the second phase this rank's own, until it is averaged
        if step > warm:
            signs.allreduce(m, key="momentum")
        sent += m.nbytes if step <= warm else signs.stats("momentum").sent
        corrected = v / (1 - BETA2 ** min(step, warm))
        weights -= RATE * m / (1 - BETA1**step) / (np.sqrt(corrected) + 1e-8) * (corrected > 0)
    return weights, sent


def main() -> None:
    with hocket.init() as comm:
        images, digits = load_digits(return_X_y=True)
        images = images / 16
        mine, known = slice(comm.rank, 1440, comm.size), slice(1440, None)
        for name, warm in (("Adam", STEPS), ("1-bit Adam", WARM)):
            weights, sent = train(comm, images[mine], digits[mine], warm)
            right = np.mean((images[known] @ weights).argmax(1) == digits[known])
            if comm.rank == 0:
                print(f"{name}: {right:.1%} of the test images right, {sent / 1000:.0f} kB averaged")


if __name__ == "__main__":
    main()
