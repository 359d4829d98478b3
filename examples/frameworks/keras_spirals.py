"""Two spirals told apart by Keras 3, on TensorFlow, JAX or torch, as KERAS_BACKEND says.

    hocket run -n 2 -- python examples/frameworks/keras_spirals.py

All ranks train one model, each on its own rows; without the two lines of hocket's it is a program of one process.
"""

import keras
import numpy as np

import hocket
import hocket.keras

comm = hocket.init()

rng = np.random.default_rng(0)
turn = rng.uniform(1, 3 * np.pi, 2048)
label = rng.integers(0, 2, 2048)
angle = turn + np.pi * label
x = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) / 10 + rng.normal(0, 0.02, (2048, 2))

model = keras.Sequential([
    keras.Input((2,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu"), keras.layers.Dense(1, "sigmoid"),
])  # fmt: skip
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])

mine, labels = hocket.keras.shard((x, label))
log = model.fit(mine, labels, batch_size=32, epochs=15, verbose=0, callbacks=[hocket.keras.Average()])

same = comm.check_equal([np.asarray(each) for each in model.get_weights()]) == {}
if comm.rank == 0:
    print(f"{comm.size} ranks: accuracy {log.history['accuracy'][-1]:.3f}, same weights on all ranks: {same}")
