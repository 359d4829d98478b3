"""An embedding whose rows servers hold, so that it may be larger than a rank; a step touches few of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hocket.arguments import kind
from hocket.errors import ArgumentError
from hocket.training import Client, Handle, Rows

Keys = np.ndarray[Any, np.dtype[np.int64]]


class ServedEmbedding(torch.nn.Module):
    """Like `torch.nn.Embedding`, but its rows are a table of a parameter server (`hocket.training.Rows`).

    `forward(ids)` pulls the rows of these ids, each once: a tensor of shape (*ids.shape, width), on the device of
    `ids`.  `backward()` begins to push the rows' gradients, which the table's optimizer on the servers applies; with
    `optimizer="sgd"` and the like there is nothing else to do.  The module has no parameters: the other parameters have
    an optimizer here, and `client.tick()` ends a step, as everywhere.

    `prefetch(ids)` begins the pull of a later batch, which arrives while this one is computed.  A row that is pushed
    from here meanwhile is pulled again by `forward`; what other workers push meanwhile is seen a step later.
    `wait()` returns when what was pushed is acknowledged.  Raises ArgumentError (a table without `Rows`; what
    the servers refuse), PeerLostError.

    Cost: a pull and a push of 4 * width bytes for each different id.
    """

    def __init__(self, client: Client, name: str) -> None:
        super().__init__()
        table = client.table(name)
        if not isinstance(table, Rows):
            raise ArgumentError(f"table {name!r} must be Rows; it is {kind(table)}")
        self.client, self.name, self.table = client, name, table
        self._coming: tuple[Keys, Handle] | None = None
        self._pushed: list[Keys] = []
        """Keys of what was pushed since that was begun."""
        self._pushes: list[tuple[Handle, torch.Tensor]] = []

    def extra_repr(self) -> str:
        return f"{self.name!r}, width={self.table.width}"

    def prefetch(self, ids: torch.Tensor) -> None:
        """Begin to pull the rows of the ids that the next `forward` which is not under way will get."""
        keys = np.unique(_keys(ids))
        self._coming, self._pushed = (keys, self.client.pull(self.name, rows=keys, async_op=True)), []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        keys, where = np.unique(_keys(ids), return_inverse=True)
        rows = torch.from_numpy(self._pulled(keys)).to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_hook(lambda gradient: self._push(keys, gradient))  # type: ignore[no-untyped-call]
        places = torch.from_numpy(where.reshape(ids.shape)).to(ids.device)
        return torch.nn.functional.embedding(places, rows)

    def wait(self) -> None:
        """Until all that was pushed is acknowledged."""
        pushes, self._pushes = self._pushes, []
        for handle, _ in pushes:
            handle.wait()

    def _pulled(self, keys: Keys) -> Any:
        if self._coming is None or not np.array_equal(self._coming[0], keys):
            return self.client.pull(self.name, rows=keys)
        rows, self._coming, pushed = self._coming[1].wait(), None, self._pushed
        if pushed and (old := np.isin(keys, np.concatenate(pushed))).any():
            rows[old] = self.client.pull(self.name, rows=keys[old])
        return rows

    def _push(self, keys: Keys, gradient: torch.Tensor) -> None:
        while self._pushes and self._pushes[0][0].done():
            self._pushes.pop(0)[0].wait()  # raises what was refused
        kept = gradient.detach().to("cpu", copy=True)
        handle = self.client.push(self.name, kept.numpy(), rows=keys, async_op=True)
        self._pushes.append((handle, kept))
        if self._coming is not None:
            self._pushed.append(keys)


def _keys(ids: torch.Tensor) -> Keys:
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
        got = ids.dtype if isinstance(ids, torch.Tensor) else kind(ids)
        raise ArgumentError(f"ids must be a tensor of int64 or int32; got {got}")
    return ids.detach().cpu().numpy().astype(np.int64, copy=False)
