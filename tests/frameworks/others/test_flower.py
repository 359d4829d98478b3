"""hocket's codecs inside Flower: clients that are processes, whose messages come as the bytes that Flower would send.

The Grid is this file's: it starts the clients of examples/frameworks/flower_digits.py, sends each message as Flower's
protobuf through a pipe, and counts.  A client's state goes through protobuf too, between two rounds, as in a SuperNode.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import flwr.clientapp
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common import serde
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import hocket
import hocket.flower
from hocket.flower.client import OWED

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "frameworks" / "flower_digits.py"
LENGTH = struct.Struct("<q")
TaskIdentity.run_id = TaskIdentity.task_id = 1  # as Flower's launchers set it, before messages are made
TaskIdentity.node_id = 0


def example() -> Any:
    spec = importlib.util.spec_from_file_location("flower_digits", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- a client's process


def send(file: BinaryIO, data: bytes) -> None:
    file.write(LENGTH.pack(len(data)) + data)
    file.flush()


def receive(file: BinaryIO) -> bytes:
    head = file.read(LENGTH.size)
    return file.read(LENGTH.unpack(head)[0]) if head else b""


def client(which: int) -> None:
    """After "begin" comes what this client is to be: its method, and whether it has feedback."""
    module: Any = example()
    app: Any = None
    state = b""
    while data := receive(sys.stdin.buffer):
        if data == b"begin":
            method, feedback = json.loads(receive(sys.stdin.buffer))
            app = module.client_app([] if method == "none" else [hocket.flower.encoded(method, feedback)])
            context = Context(1, which + 1, {"partition-id": which}, RecordDict(), {})
            state = serde.context_to_proto(context).SerializeToString()
            continue
        context = serde.context_from_proto(ContextProto.FromString(state))
        reply = app(serde.message_from_proto(MessageProto.FromString(data)), context)
        state = serde.context_to_proto(context).SerializeToString()
        send(sys.stdout.buffer, serde.message_to_proto(reply).SerializeToString())


class Pipes(Grid):  # type: ignore[misc]
    """Clients as processes."""

    def __init__(self, clients: int) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.clients = {
            which + 1: subprocess.Popen(
                [sys.executable, __file__, str(which)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
            )
            for which in range(clients)
        }
        self.sent: list[int] = []
        """Bytes of each reply."""

    def begin(self, method: str, feedback: bool) -> None:
        self.sent.clear()
        for process in self.clients.values():
            pipe: Any = process.stdin
            send(pipe, b"begin")
            send(pipe, json.dumps([method, feedback]).encode())

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        there = list(messages)
        for message in there:
            pipe: Any = self.clients[message.metadata.dst_node_id].stdin
            send(pipe, serde.message_to_proto(message).SerializeToString())
        found = []
        for message in there:
            source: Any = self.clients[message.metadata.dst_node_id].stdout
            data = receive(source)
            assert data, "the client has ended"
            self.sent.append(len(data))
            found.append(serde.message_from_proto(MessageProto.FromString(data)))
        return found

    def get_node_ids(self) -> Iterable[int]:
        return list(self.clients)

    def close(self) -> None:
        for process in self.clients.values():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            assert process.wait(60) == 0
            process.stdout.close()

    def set_run(self, run: Any) -> None: ...
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **kwargs: Any) -> Any: ...
    def push_messages(self, messages: Iterable[Message]) -> Any: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Any: ...


@pytest.fixture(scope="module")
def grid() -> Iterator[Pipes]:
    made = Pipes(example().CLIENTS)
    yield made
    made.close()


def learned(grid: Pipes, method: str, feedback: bool = True, rounds: int = 40) -> tuple[float, float]:
    """The accuracy, and bytes of a reply."""
    module = example()
    strategy = module.strategy("int8" if method == "none" else method)
    grid.begin(method, feedback)
    made = (strategy.strategy if method == "none" else strategy).start(grid, module.network(), rounds)
    return module.accuracy(made.arrays), sum(grid.sent) / len(grid.sent)


@pytest.fixture(scope="module")
def float32(grid: Pipes) -> tuple[float, float]:
    return learned(grid, "none")


# --- the tests

RATIOS = {"int8": 3.3, "int4": 5.5, "sign": 12.0, "topk:0.05": 7.0}
"""A reply has at least so many times fewer bytes, with what Flower says around the arrays."""


@pytest.mark.parametrize("method", RATIOS)
def test_accuracy_and_bytes(method: str, grid: Pipes, float32: tuple[float, float]) -> None:
    reached, sent = learned(grid, method)
    assert float32[0] > 0.92
    assert reached > float32[0] - 0.02
    assert float32[1] / sent > RATIOS[method], f"{float32[1]} bytes, and {sent}"


@pytest.mark.parametrize("method", ["sign", "topk:0.01"])
def test_feedback_is_what_does_it(method: str, grid: Pipes) -> None:
    """The control: the same rounds, and what an encoding loses is lost."""
    with_it, without = learned(grid, method)[0], learned(grid, method, feedback=False)[0]
    assert without < with_it - 0.015, (with_it, without)


# One client, called as Flower calls it.


def message(arrays: dict[str, Any], kind: str = "train") -> Message:
    content = RecordDict({"arrays": ArrayRecord({k: Array(v) for k, v in arrays.items()}), "config": ConfigRecord()})
    return Message(content, dst_node_id=1, message_type=kind)


def adding(update: dict[str, Any], method: str, feedback: bool = True) -> Any:
    """A client whose training adds `update`."""
    app = flwr.clientapp.ClientApp()

    def step(got: Message, context: Context) -> Message:
        arrays = {k: Array(v.numpy() + update[k]) for k, v in got.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "m": metrics}), reply_to=got)

    app.train(mods=[hocket.flower.encoded(method, feedback)])(step)
    app.evaluate(mods=[hocket.flower.encoded(method, feedback)])(step)
    return app


def fresh() -> Context:
    return Context(1, 1, {}, RecordDict(), {})


def whole(base: Message, reply: Message, method: str) -> Any:
    """The reply that the strategy gets."""
    seen: list[Any] = []

    class Looking(FedAvg):  # type: ignore[misc]
        def configure_train(self, *args: Any) -> Any:
            return [base]

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            seen.extend(replies)
            return None, None

    decoding = hocket.flower.Decoding(Looking(), method)
    decoding.configure_train(1, base.content["arrays"], ConfigRecord(), None)
    decoding.aggregate_train(1, [reply])
    return {k: v.numpy() for k, v in seen[0].content["arrays"].items()}


def test_what_is_lost_is_owed_and_comes() -> None:
    """All that was given = all that came + what is still owed; integers and empty arrays go as they are."""
    random = np.random.default_rng(0)
    start = {"w": random.standard_normal((30, 7)).astype(np.float32), "n": np.array([3]), "e": np.zeros(0, np.float32)}
    update = {"w": random.standard_normal((30, 7)).astype(np.float32), "n": np.array([1]), "e": np.zeros(0, np.float32)}
    context, came = fresh(), np.zeros((30, 7))
    for _ in range(5):
        base = message(start)
        reply = adding(update, "topk:0.1")(base, context)
        sent = reply.content["arrays"]
        assert sent["w"].stype == "hocket.compression:topk:0.1" and len(sent["w"].data) == 21 * 6
        made = whole(base, reply, "topk:0.1")
        came += made["w"] - start["w"]
        assert made["n"] == 4 and made["e"].size == 0 and made["w"].dtype == np.float32
    owed = context.state[OWED]["w"].numpy()
    np.testing.assert_allclose(came + owed, 5 * update["w"], rtol=1e-5, atol=1e-5)
    assert list(context.state[OWED]) == ["w"]


def test_no_state_without_feedback_and_nothing_of_evaluations() -> None:
    context, base = fresh(), {"w": np.ones(300, np.float32)}
    adding({"w": np.ones(300, np.float32)}, "sign", feedback=False)(message(base), context)
    assert len(context.state) == 0
    reply = adding({"w": np.ones(300, np.float32)}, "sign")(message(base, "evaluate"), context)
    assert reply.content["arrays"]["w"].numpy()[0] == 2


def test_what_is_not_finite() -> None:
    """It comes as NaN, and what is owed stays."""
    context, base = fresh(), {"w": np.zeros(300, np.float32)}
    adding({"w": np.linspace(0, 1, 300, dtype=np.float32)}, "sign")(message(base), context)
    owed = context.state[OWED]["w"].numpy().copy()
    wrong = np.zeros(300, np.float32)
    wrong[7] = np.inf
    sent = message(base)
    reply = adding({"w": wrong}, "sign")(sent, context)
    assert np.isnan(whole(sent, reply, "sign")["w"]).all()
    assert (context.state[OWED]["w"].numpy() == owed).all()


def test_a_client_and_a_server_that_differ() -> None:
    base = message({"w": np.ones(300, np.float32)})
    reply = adding({"w": np.ones(300, np.float32)}, "int8")(base, fresh())
    with pytest.raises(hocket.ArgumentError, match="node 1, array 'w': a client sent .*:int8 .*same method"):
        whole(base, reply, "int4")
    reply = adding({"w": np.ones(300, np.float32)}, "int8")(base, fresh())
    reply.content["arrays"]["w"].data += b"?"
    with pytest.raises(hocket.ArgumentError, match="node 1, array 'w': 300 floats .* as int8 take 520 B, got 521 B"):
        whole(base, reply, "int8")


def test_wrong_arguments() -> None:
    for make in (hocket.flower.encoded, lambda method: hocket.flower.Decoding(FedAvg(), method)):
        with pytest.raises(hocket.ArgumentError, match="cannot encode one vector"):
            make("powersgd:4")
        with pytest.raises(hocket.ArgumentError, match="not a method"):
            make("int9")
    with pytest.raises(hocket.ArgumentError, match="2 ArrayRecords"):
        two = message({"w": np.ones(3, np.float32)})
        two.content["more"] = ArrayRecord({"v": Array(np.ones(3))})
        adding({}, "int8")(two, fresh())


if __name__ == "__main__":
    client(int(sys.argv[1]))
