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
    `ids`.  `backward()` adds up the rows' gradients, also of several uses and micro-batches.  `client.tick()` ends a
    step: it begins to push their sum, and the table's optimizer on the servers steps once by it, as torch's does.  The
    module has no parameters: the other parameters have an optimizer here.

    `prefetch(ids)` begins the pull of a later batch, which arrives while this one is computed.  A row that is pushed
    from here meanwhile is pulled again by `forward`; what other workers push meanwhile is seen a step later.
    `wait()` pushes what there is, and returns when it is acknowledged.  It and `tick()` raise ArgumentError (what the
    servers refuse), PeerLostError.

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
        self._gradients: list[tuple[Keys, torch.Tensor]] = []
        """Gradients that this step has given."""
        self._pushes: list[tuple[Handle, torch.Tensor]] = []
        client.gathering.add(self)

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
            rows.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._gradients.append((keys, gradient.detach().to("cpu", copy=True)))
            )
        places = torch.from_numpy(where.reshape(ids.shape)).to(ids.device)
        return torch.nn.functional.embedding(places, rows)

    def wait(self) -> None:
        """Push what this step has given so far, and wait until all that was pushed is acknowledged."""
        self.flush()
        pushes, self._pushes = self._pushes, []
        for handle, _ in pushes:
            handle.wait()

    def flush(self) -> None:
        """Begin to push what this step has given.  `client.tick()` calls it."""
        while self._pushes and self._pushes[0][0].done():
            self._pushes.pop(0)[0].wait()  # raises what was refused
        gradients, self._gradients = self._gradients, []
        if not gradients:
            return
        keys, where = np.unique(np.concatenate([keys for keys, _ in gradients]), return_inverse=True)
        rows = torch.cat([rows for _, rows in gradients])
        total = rows.new_zeros(len(keys), rows.shape[1]).index_add_(0, torch.from_numpy(where), rows)
        self._pushes.append((self.client.push(self.name, total, rows=keys, async_op=True), total))
        if self._coming is not None:
            self._pushed.append(keys)

    def _pulled(self, keys: Keys) -> Any:
        if self._coming is None or not np.array_equal(self._coming[0], keys):
            return self.client.pull(self.name, rows=keys)
        rows, self._coming, pushed = self._coming[1].wait(), None, self._pushed
        if pushed and (old := np.isin(keys, np.concatenate(pushed))).any():
            rows[old] = self.client.pull(self.name, rows=keys[old])
        return rows


def _keys(ids: torch.Tensor) -> Keys:
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
        got = ids.dtype if isinstance(ids, torch.Tensor) else kind(ids)
        raise ArgumentError(f"ids must be a tensor of int64 or int32; got {got}")
    return ids.detach().cpu().numpy().astype(np.int64, copy=False)
