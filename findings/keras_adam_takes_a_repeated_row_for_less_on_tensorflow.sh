#!/usr/bin/env bash
# Guess: an embedding's gradient on TensorFlow, IndexedSlices, and the same gradient as a dense tensor train alike.
# Seen (keras 3.15.1, tensorflow-cpu 2.21.0): only if no row occurs twice in a batch.  Adam, RMSprop and Adagrad square
# the addends of a row one by one and add the squares up; dense, as on JAX and torch, they square the sum.  tf-keras
# 2.21 added up first.  A word that occurs 8 times in a batch with one gradient takes a step of sqrt(8) times the size.
# So a model with an embedding trains otherwise on KERAS_BACKEND=tensorflow than on the two others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile tensorflow-cpu==2.21.0 keras==3.15.1
python3 -m pip --python env/bin/python install --quiet --no-compile --no-deps tf-keras==2.21.0
cat > program.py <<'PY'
import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow")
import keras
import numpy as np
import tensorflow as tf
import tf_keras

EIGHT, ONE = 0, 1  # rows of the table: in the batch eight times, and once


def steps(optimizer, dense):
    """What each row has moved by, after a step of Adam whose epsilon is large enough to see sizes."""
    table = tf.Variable(np.zeros((2, 1), "float32"))
    if isinstance(optimizer, keras.optimizers.Optimizer):
        table = keras.Variable(np.zeros((2, 1), "float32"))
    value = getattr(table, "value", table) if not isinstance(table, tf.Variable) else table
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(value, [EIGHT] * 8 + [ONE]))
    (grad,) = tape.gradient(loss, [value])
    optimizer.apply_gradients([(tf.convert_to_tensor(grad) if dense else grad, table)])
    return -np.asarray(tf.convert_to_tensor(value)).ravel()


for name in ("Adam", "RMSprop", "Adagrad"):
    for kind, module in (("keras", keras.optimizers), ("tf-keras", tf_keras.optimizers)):
        made = lambda: getattr(module, name)(0.1)
        sparse, dense = steps(made(), False), steps(made(), True)
        ratio = sparse[EIGHT] / dense[EIGHT]
        print(f"{kind:9} {name:8} sparse {sparse} dense {dense} ratio {ratio:.3f}")
        assert np.allclose(sparse[ONE], dense[ONE]), "changed"
        assert np.isclose(ratio, 1, atol=0.01) == (kind == "tf-keras"), "changed"
        if kind == "keras" and name != "Adagrad":
            assert np.isclose(ratio, 8**0.5, atol=0.01), "changed"
PY
env/bin/python program.py 2> errors || { cat errors; exit 1; }
