#!/usr/bin/env bash
# Guess: a NumPy masked array that distributed sends to a worker (over its comm, or from worker to worker) comes as it
# was: values, mask, fill value, and a hard mask, which no assignment lifts.
# Seen (distributed 2026.8.0, NumPy 2.4.6): the mask comes soft.  The same task on the same argument keeps an invalid
# value masked where it runs in the client's process, and replaces it on a worker, in silence; the mean is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile distributed==2026.8.0 dask==2026.8.0 numpy==2.4.6
cat > program.py <<'PY'
import numpy as np
from distributed import Client


def corrected(readings):
    readings[:] = readings.data + 1.0  # what is hard masked stays so
    return float(readings.mean()), int(readings.count()), bool(readings.hardmask)


def readings():
    return np.ma.array([1.0, 999.0, 3.0], mask=[False, True, False], hard_mask=True, fill_value=-7.0)


if __name__ == "__main__":
    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        here, there = corrected(readings()), client.submit(corrected, readings(), pure=False).result()
    print("in this process", here, "on a worker", there)
    assert here == (3.0, 2, True), f"changed: {here}"
    assert there == (335.3333333333333, 3, False), f"changed: {there}"
PY
env/bin/python program.py
