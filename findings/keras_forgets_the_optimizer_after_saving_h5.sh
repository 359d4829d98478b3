#!/usr/bin/env bash
# Guess: model.save("a.keras") writes the same, whatever was saved before.
# Seen (keras 3.15.1, jax 0.10.2): after model.save("a.h5"), as a ModelCheckpoint may do, every later .keras file of this
# model lacks its optimizer.  load_model then makes an RMSprop of it, whose state is new; only a warning speaks of 'rm_sprop'
# and of its numbers of variables.  And the .h5 file itself loads with an Adam that knows no variables: fit raises a
# ValueError.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile jax==0.10.2 keras==3.15.1
cat > program.py <<'PY'
import os

os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np

x, y = np.ones((8, 4)), np.ones((8, 1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())
model.fit(x, y, verbose=0)


def loaded():
    model.save("model.keras")
    optimizer = keras.models.load_model("model.keras").optimizer
    return type(optimizer).__name__, int(optimizer.iterations)


before = loaded()
model.save("model.h5")
after = loaded()
print("model.keras, before and after model.h5 was saved:", before, after)
assert (before, after) == (("Adam", 1), ("RMSprop", 0)), "changed"
old = keras.models.load_model("model.h5")
print("model.h5:", type(old.optimizer).__name__, len(old.optimizer.variables), "variables of", len(model.optimizer.variables))
try:
    old.fit(x, y, verbose=0)
except ValueError as error:
    print("fit of it:", str(error)[:60])
else:
    raise SystemExit("changed")
PY
env/bin/python program.py 2> errors || { cat errors; exit 1; }
