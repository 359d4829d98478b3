"""LightGBM on all ranks of a job: each has rows of its own, and all get the same model.

pip install 'hocket[lightgbm]'
hocket run -n 2 examples/frameworks/lightgbm_run.py
"""

import lightgbm
import numpy as np

import hocket
import hocket.lightgbm


def rows(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 10))
    return x, x[:, 0] * 2 + x[:, 1] ** 2 + random.normal(scale=0.1, size=n)


def main() -> None:
    with hocket.init() as comm:
        with hocket.lightgbm.setup(comm) as network:
            x, y = rows(comm.rank, 20_000)  # this rank's
            train = lightgbm.Dataset(x, y)
            valid = lightgbm.Dataset(*rows(1000, 2_000), reference=train)  # the same on all ranks, so all stop together
            params = {"objective": "regression", "num_threads": 1, "verbosity": -1, **network.params}
            stop = lightgbm.early_stopping(10, verbose=False)
            model = lightgbm.train(params, train, 200, [valid], callbacks=[stop])
        same = len(set(comm.allgather_object(model.model_to_string()))) == 1
        if comm.rank == 0:
            x, y = rows(2000, 2_000)
            error = np.mean((model.predict(x) - y) ** 2) / np.var(y)
            print(f"{comm.size} ranks, {model.num_trees()} trees, the same on all: {same}; unexplained: {error:.1%}")


if __name__ == "__main__":
    main()
