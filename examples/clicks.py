"""A recommender on synthetic clicks: servers hold the embeddings of users and items, an allreduce averages the rest.

hocket run -n 2 -- python clicks.py

Each rank serves a part of the rows, and works.  The next batch's rows are on their way while a batch is computed.
"""

import numpy as np
import torch

import hocket
from hocket.torch import ServedEmbedding
from hocket.training import Adagrad, Client, Rows, serve

USERS, ITEMS, WIDTH, BATCH, STEPS = 60, 40, 8, 512, 60
TABLES = {name: Rows(WIDTH, optimizer=Adagrad(0.3), seed=seed) for seed, name in enumerate(("users", "items"))}


def clicks(comm, dice):
    """This rank's part of a batch: users, items, and who has clicked.  They like items of their own kind."""
    users, items = (torch.from_numpy(dice.integers(0, most, BATCH)[comm.rank :: comm.size]) for most in (USERS, ITEMS))
    return users, items, (users % 2 == items % 2).float()


def train(comm, client):
    """The share of clicks that was foreseen, in the first steps and in the last."""
    dice = np.random.default_rng(0)  # the same on all ranks
    users, items = ServedEmbedding(client, "users"), ServedEmbedding(client, "items")
    torch.manual_seed(0)
    dense = torch.nn.Sequential(torch.nn.Linear(2 * WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer, right = torch.optim.Adam(dense.parameters(), lr=0.01), []
    following = clicks(comm, dice)
    for _ in range(STEPS):
        who, what, clicked = following
        rows = torch.cat([users(who), items(what)], 1)
        following = clicks(comm, dice)
        users.prefetch(following[0])
        items.prefetch(following[1])
        said = dense(rows)[:, 0]
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(said, clicked).backward()
        for parameter in dense.parameters():
            comm.allreduce(parameter.grad, op="avg", out=parameter.grad)
        optimizer.step()
        client.tick()
        right.append(float(comm.allreduce(((said > 0) == clicked.bool()).sum().item())) / BATCH)
    return np.mean(right[:10]), np.mean(right[-10:])


if __name__ == "__main__":
    with hocket.init() as comm, serve(comm, TABLES, on=range(comm.size), works=True) as server:
        with Client(server) as client:
            first, last = train(comm, client)
            comm.barrier()
        if comm.rank == 0:
            print(f"{comm.size} ranks: {first:.2f} of the clicks were foreseen at first, {last:.2f} at the end")
