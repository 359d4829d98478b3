"""Handwritten digits with Flower: three clients, each with other digits, whose updates go as a bit for each parameter.

pip install 'hocket[flower]' 'flwr[simulation]' scikit-learn
python flower_digits.py             one of "int8", "int4", "sign", "topk:0.05", ...; default "sign"
python flower_digits.py topk:0.05
"""

import sys

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits

import hocket.flower

CLIENTS, ROUNDS, HIDDEN, RATE = 3, 30, 64, 0.2


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels to learn from, sorted by label, and others to test with."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order]
    learn = np.argsort(labels[:1440], kind="stable")
    return images[learn], labels[learn], images[1440:], labels[1440:]


def network() -> ArrayRecord:
    random = np.random.default_rng(1)
    shapes = {"w1": (64, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 10), "b2": (10,)}
    made = {name: random.standard_normal(shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
    return ArrayRecord({name: Array(x.astype(np.float32)) for name, x in made.items()})


def forward(w: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden layer, and the probabilities."""
    hidden = np.maximum(x @ w["w1"] + w["b1"], 0)
    scores = hidden @ w["w2"] + w["b2"]
    chance = np.exp(scores - scores.max(1, keepdims=True))
    return hidden, chance / chance.sum(1, keepdims=True)


def learn(w: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> None:
    """One pass over this client's images."""
    for part in np.array_split(np.random.default_rng(2).permutation(len(y)), 15):
        hidden, error = forward(w, x[part])
        error[np.arange(len(part)), y[part]] -= 1
        error /= len(part)
        back = (error @ w["w2"].T) * (hidden > 0)
        gradients = {"w2": hidden.T @ error, "b2": error.sum(0), "w1": x[part].T @ back, "b1": back.sum(0)}
        for name, gradient in gradients.items():
            w[name] -= RATE * gradient


def accuracy(arrays: ArrayRecord) -> float:
    _, _, x, y = digits()
    weights = {name: array.numpy() for name, array in arrays.items()}
    return float((forward(weights, x)[1].argmax(1) == y).mean())


def client_app(mods: list) -> ClientApp:
    app = ClientApp()

    @app.train(mods=mods)
    def train(message, context):
        x, y, _, _ = digits()
        which = int(context.node_config["partition-id"])
        mine = slice(which * len(y) // CLIENTS, (which + 1) * len(y) // CLIENTS)
        weights = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
        learn(weights, x[mine], y[mine])
        arrays = ArrayRecord({name: Array(each) for name, each in weights.items()})
        metrics = MetricRecord({"num-examples": mine.stop - mine.start})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def strategy(method: str) -> hocket.flower.Decoding:
    every = {"fraction_evaluate": 0.0, "min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS}
    return hocket.flower.Decoding(FedAvg(**every), method)


def server_app(method: str) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid, context):
        result = strategy(method).start(grid, network(), ROUNDS)
        print(f"{method}: {accuracy(result.arrays):.1%} right after {ROUNDS} rounds")

    return app


def main() -> None:
    from flwr.simulation import run_simulation

    method = sys.argv[1] if len(sys.argv) > 1 else "sign"
    cores = {"client_resources": {"num_cpus": 1}}
    run_simulation(server_app(method), client_app([hocket.flower.encoded(method)]), CLIENTS, backend_config=cores)


if __name__ == "__main__":
    main()
