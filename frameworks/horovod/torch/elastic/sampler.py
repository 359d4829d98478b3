"""`ElasticSampler`: an epoch's samples, dealt out again among the ranks that are left."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch.utils.data

from hocket.horovod.basics import rank, size

Sampler: Any = torch.utils.data.Sampler


class ElasticSampler(Sampler):  # type: ignore[misc]
    """Deals a dataset's indices out to the ranks.  What was recorded as processed is not dealt out again in the epoch.

    `seed`: with the epoch, of the order, the same on all ranks.  Each rank gets equally many, so some indices may come
    twice.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: at its end, so that what was processed is not forgotten when training goes on within one."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank, and so each rank, has processed a batch."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its samples are processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from there."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal out what is left, among the ranks that there are now."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        again = [left[i % len(left)] for i in range(self.total_size - len(left))] if left else []
        return iter((left + again)[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
