"""The program of Flower's processes: FedAvg of the sites' weights, each after EVERY steps of its own."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from hocket.lab.outer.peers.flower import SAY
from hocket.lab.outer.peers.learning import EVERY, SITES, Learner

client, server = ClientApp(), ServerApp()


@client.train()  # type: ignore[untyped-decorator]
def train(message: Any, context: Any) -> Any:
    rounds = int(message.content["config"]["server-round"])  # a client is a new process in each of them
    learner = Learner(int(context.node_config["site"]) + SITES * rounds)
    learner.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    for _ in range(EVERY):
        learner.step()
    arrays, metrics = ArrayRecord(learner.model.state_dict()), MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Any, context: Any) -> None:
    rounds, learner = int(context.run_config["rounds"]), Learner(0)
    every: dict[str, Any] = {"min_train_nodes": SITES, "min_available_nodes": SITES, "fraction_evaluate": 0.0}
    while len(list(grid.get_node_ids())) < SITES:
        time.sleep(0.1)
    began = time.perf_counter()
    result = FedAvg(**every).start(grid, ArrayRecord(learner.model.state_dict()), rounds)
    seconds = time.perf_counter() - began
    learner.model.load_state_dict(result.arrays.to_torch_state_dict())
    said = os.environ[SAY]
    with open(f"{said}.part", "w") as file:
        json.dump({"accuracy": learner.accuracy(), "round": seconds / rounds}, file)
    os.rename(f"{said}.part", said)
