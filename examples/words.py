"""Word vectors, whose rows servers hold: skip-gram with negative sampling (Mikolov et al., 2013) on Python's own help.

hocket run -n 2 -- python words.py

Each rank serves a part of the rows, and learns from its part of the text; nobody waits for the others' clocks.
"""

import re
from pydoc_data.topics import topics

import numpy as np

import hocket
from hocket.training import Adagrad, Client, Rows, serve

WIDTH, WINDOW, NEGATIVES, BATCH, STEPS, WORDS = 24, 4, 5, 1024, 120, 1500
TABLES = {name: Rows(WIDTH, optimizer=Adagrad(0.3), seed=seed) for seed, name in enumerate(("words", "contexts"))}
ASKED = {"integer": "float", "tuple": "list", "raise": "exception"}


def pairs():
    """The most frequent words, and the pairs of neighbours: (word, context), as numbers."""
    text = re.findall(r"[a-z]{3,}", " ".join(topics[name] for name in sorted(topics)).lower())
    names, counts = np.unique(text, return_counts=True)
    names, counts = names[order := np.argsort(-counts, kind="stable")][:WORDS], counts[order][:WORDS]
    number = {name: i for i, name in enumerate(names.tolist())}
    known = np.array([number[word] for word in text if word in number])
    often = counts[known] / counts.sum()
    known = known[np.random.default_rng(0).random(len(known)) < np.sqrt(1e-3 / often)]  # "the" tells little
    both = [np.stack([known[:-away], known[away:]], 1) for away in range(1, WINDOW + 1)]
    noise = counts**0.75
    return names.tolist(), np.concatenate([*both, *(each[:, ::-1] for each in both)]), noise / noise.sum()


def learn(client, dice, batch, noise):
    """One step: pull the rows of a batch, push their gradients.  The mean loss."""
    true = np.zeros((len(batch), 1 + NEGATIVES))
    true[:, 0] = 1
    others = np.column_stack([batch[:, 1], dice.choice(len(noise), (len(batch), NEGATIVES), p=noise)])
    (words, at), (contexts, there) = (np.unique(keys, return_inverse=True) for keys in (batch[:, 0], others))
    handles = client.pull("words", rows=words, async_op=True), client.pull("contexts", rows=contexts, async_op=True)
    x, y = handles[0].wait()[at], handles[1].wait()[there.reshape(others.shape)]
    said = 1 / (1 + np.exp(-np.einsum("bw,bnw->bn", x, y)))
    wrong = (said - true) / np.sqrt(len(batch))
    client.push("words", np.einsum("bn,bnw->bw", wrong, y), rows=batch[:, 0], async_op=True)
    client.push("contexts", (wrong[..., None] * x[:, None]).reshape(-1, WIDTH), rows=others.reshape(-1))
    client.tick()
    return -np.log(np.where(true, said, 1 - said)).sum(1).mean()


def near(client, names):
    """For each word that is asked, at which place of all words' similarity the other one is: 1 is the nearest."""
    rows = client.pull("words", rows=np.arange(len(names)))
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return {word: int(np.sum(rows @ rows[names.index(word)] > rows[names.index(word)] @ rows[names.index(other)]))
            for word, other in ASKED.items()}  # fmt: skip


if __name__ == "__main__":
    with hocket.init() as comm, serve(comm, TABLES, on=range(comm.size), clock="async", works=True) as server:
        names, text, noise = pairs()
        dice = np.random.default_rng(comm.rank)
        with Client(server) as client:
            losses = [learn(client, dice, text[dice.integers(len(text), size=BATCH)], noise) for _ in range(STEPS)]
            comm.barrier()
            found = near(client, names)
            comm.barrier()
        if comm.rank == 0:
            near_ones = ", ".join(f"{other} is word {found[word]} beside {word}" for word, other in ASKED.items())
            print(f"{comm.size} ranks, {len(names)} words: loss from {losses[0]:.2f} to {losses[-1]:.2f}; {near_ones}")
