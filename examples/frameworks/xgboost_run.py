"""XGBoost on all ranks of a job: each has rows of its own, and all get the same model.

pip install 'hocket[xgboost]'
hocket run -n 2 examples/frameworks/xgboost_run.py
"""

import numpy as np
import xgboost

import hocket
import hocket.xgboost


def rows(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 10))
    return x, x[:, 0] * 2 + x[:, 1] ** 2 + random.normal(scale=0.1, size=n)


def main() -> None:
    with hocket.init() as comm:
        with hocket.xgboost.communicator(comm):
            x, y = rows(comm.rank, 20_000)  # this rank's
            model = xgboost.train({"nthread": 1, "tree_method": "hist"}, xgboost.DMatrix(x, y), 50)
        same = len(set(comm.allgather_object(bytes(model.save_raw())))) == 1
        if comm.rank == 0:
            x, y = rows(2000, 2_000)
            error = np.mean((model.predict(xgboost.DMatrix(x)) - y) ** 2) / np.var(y)
            print(f"{comm.size} ranks, the same model on all: {same}; unexplained: {error:.1%}")


if __name__ == "__main__":
    main()
