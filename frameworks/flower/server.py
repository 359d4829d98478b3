"""`Decoding(strategy, method)`: any of Flower's strategies, whose clients send encoded updates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from hocket.errors import ArgumentError
from hocket.flower import updates


class Decoding(Strategy):  # type: ignore[misc]
    """`strategy`, which gets whole arrays from clients that have the mod `hocket.flower.encoded(method)`.

        Decoding(FedAvg(fraction_evaluate=0.5), "int8").start(grid=grid, initial_arrays=arrays, num_rounds=3)

    What the server sends is as it was.  A client's update is added to the arrays of its round.  Bytes that are none of
    the method's raise ArgumentError here, with the client's node id.
    """

    def __init__(self, strategy: Strategy, method: updates.Method) -> None:
        updates.name(method)  # is it one?
        self.strategy, self.method = strategy, method
        self._base = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        # What clients are sent, which a strategy may have made of `arrays`; the same for all.
        sent = [record for message in messages[:1] for record in message.content.array_records.values()]
        self._base = sent[0] if sent else arrays
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found = list(replies)
        for reply in found:
            if reply.has_content():
                for key, record in list(reply.content.array_records.items()):
                    reply.content[key] = self._whole(record, reply.metadata.src_node_id)
        return self.strategy.aggregate_train(server_round, found)  # type: ignore[no-any-return]

    def _whole(self, record: ArrayRecord, node: int) -> ArrayRecord:
        made = ArrayRecord()
        if list(record) != list(self._base):
            raise ArgumentError(f"node {node}: the reply's arrays must have the names of its round's")
        for key, array in record.items():
            base = self._base[key]
            try:
                made[key] = updates.unpack(array, self.method, base) if updates.is_one(base) else array
            except ArgumentError as error:
                raise ArgumentError(f"node {node}, array {key!r}: {error}") from None
        return made

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)  # type: ignore[no-any-return]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def __getattr__(self, name: str) -> Any:
        """The strategy's own attributes."""
        return getattr(self.__dict__["strategy"], name)
