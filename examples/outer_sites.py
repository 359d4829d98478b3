r"""Four sites train one network over slow links: each trains alone, and every 10 steps they make one step together.

    hocket run -n 4 --elastic --least 2 -- examples/outer_sites.py

A round of DiLoCo sends 5 kB (int8), which takes 10 Mbit/s 4 ms.  Kill a site's process (its pid is printed): the
others go on without it.  `hocket run` starts it again, and it comes back with the bits that they hold.  On four
machines, with a folder that all see, and the same words when one starts again:

    HOCKET_SECRET=... HOCKET_ELASTIC=1 HOCKET_JOIN=auto HOCKET_LOBBY=/shared/run-1 \
    RANK=2 WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python examples/outer_sites.py
"""

import argparse
import os
import time

import numpy as np
from sklearn.datasets import load_digits

import hocket
from hocket.training import Crew, DiLoCo, digest

HIDDEN, ROUNDS, EVERY, BATCH, RATE = 64, 80, 10, 32, 0.2
PAUSE = 0.01  # seconds of a step, which a larger network would take


def data():
    """Images and digits to train with, and to test with; in one order on all sites."""
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, digits = (images[order] / 16).astype(np.float32), digits[order]
    return (images[:1440], digits[:1440]), (images[1440:], digits[1440:])


def network():
    dice = np.random.default_rng(1)
    sizes = {"w1": (64, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 10), "b2": (10,)}
    return {name: dice.normal(0, 0.1, size).astype(np.float32) for name, size in sizes.items()}


def predict(theta, images):
    hidden = np.tanh(images @ theta["w1"] + theta["b1"])
    scores = np.exp(hidden @ theta["w2"] + theta["b2"])
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def train(theta, images, digits):
    """One step of SGD on a batch."""
    hidden, error = predict(theta, images)
    error[np.arange(len(digits)), digits] -= 1
    error /= len(digits)
    back = (error @ theta["w2"].T) * (1 - hidden**2)
    gradients = {"w1": images.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
    for name, gradient in gradients.items():
        theta[name] -= RATE * gradient


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=1, help="train on while there are fewer of them")
    options = parser.parse_args()
    (images, digits), (tests, answers) = data()
    sites, theta = Crew(hocket.init(), least=2), network()
    outer = DiLoCo(sites, theta, every=EVERY, lr=0.7, momentum=0.5, send="int8")
    print(f"site {sites.comm.rank} of {sites.comm.size}, pid {os.getpid()}, from round {outer.rounds}", flush=True)
    dice = np.random.default_rng([2, os.getpid()])
    while outer.rounds < ROUNDS or sites.comm.size < options.sites:
        batch = dice.integers(0, len(digits), BATCH)
        train(theta, images[batch], digits[batch])
        time.sleep(PAUSE)
        report = outer.step()
        if report and sites.comm.rank == 0 and outer.rounds % 5 == 0:
            print(f"round {outer.rounds}: {len(report.members)} sites, {report.bytes:,} bytes", flush=True)
    right = (predict(theta, tests)[1].argmax(1) == answers).mean()
    print(f"{right:.1%} of the digits, digest {digest(*theta.values()):08x}", flush=True)
    sites.comm.close()


if __name__ == "__main__":
    main()
