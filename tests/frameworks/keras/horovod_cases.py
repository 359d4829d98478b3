"""Programs on Horovod's names, with the Keras that TF_USE_LEGACY_KERAS chooses: `run("name")` on each rank."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import hocket
import hocket.horovod.tensorflow as hvd
import hocket.horovod.tensorflow.keras as hvd_keras

CASES: dict[str, Callable[[], None]] = {}
BATCH, FEATURES = 32, 16
LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def run(*names: str) -> None:
    hvd.init()
    for name in names:
        try:
            CASES[name]()
        except BaseException as error:
            error.add_note(f"in {name}, on rank {hvd.rank()}")
            raise
    hvd.shutdown()


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, FEATURES)).astype("float32")
    return x, np.tanh(x @ rng.normal(size=(FEATURES, 1)).astype("float32"))


def mine() -> tuple[Any, Any]:
    return tuple(each[hvd.rank() :: hvd.size()] for each in rows())  # type: ignore[return-value]


def small(seed: int) -> Any:
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential([
        tf.keras.layers.InputLayer((FEATURES,)), tf.keras.layers.Dense(32, "tanh"), tf.keras.layers.Dense(1),
    ])  # fmt: skip


def weights(model: Any) -> Any:
    return np.concatenate([np.ravel(each) for each in model.get_weights()])


def same_on_all(model: Any) -> None:
    every = hvd.allgather(weights(model)[None]).numpy()
    assert (every == every[0]).all()


def fit(model: Any, epochs: int, callbacks: Any, data: Any, size: int) -> Any:
    return model.fit(*data, batch_size=size, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


@case
def values() -> None:
    rank, size = hvd.rank(), hvd.size()
    x = np.arange(3, dtype="float32") + rank
    assert hvd.allreduce(x).numpy().tolist() == (np.arange(3) + (size - 1) / 2).tolist()
    assert hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0).numpy().sum() == 2 * sum(3 + 3 * r for r in range(size))
    assert hvd.allreduce(tf.constant([rank]), op=hvd.Max).numpy() == [size - 1]
    assert hvd.allgather(tf.fill([rank + 1, 2], rank)).shape[0] == sum(range(1, size + 1))
    assert hvd.broadcast(tf.constant(float(rank)), size - 1).numpy() == size - 1
    assert hvd_keras.allreduce([1.0, float(rank)]).numpy().tolist() == [1.0, (size - 1) / 2]
    assert hvd.broadcast_object({"rank": rank}, size - 1) == {"rank": size - 1}
    half = hvd.allreduce(x, compression=hvd.Compression.fp16)
    assert half.dtype == tf.float32 and np.allclose(half, np.arange(3) + (size - 1) / 2)
    slices = tf.IndexedSlices(tf.constant([[1.0 + rank]]), tf.constant([rank]), tf.constant([size, 1]))
    assert tf.convert_to_tensor(hvd.allreduce(slices)).numpy().ravel().tolist() == [(1 + r) / size for r in range(size)]
    with tf.GradientTape() as tape:
        v = tf.Variable(2.0)
        loss = hvd.allreduce(v * float(rank + 1), op=hvd.Average) * (rank + 1)
    assert tape.gradient(loss, v).numpy() == (size + 1) / 2 * (rank + 1)
    for wrong in (lambda: hvd.elastic, lambda: hvd.allreduce(x, op=hvd.Adasum), lambda: hvd.init(process_sets=[1])):
        try:
            wrong()
        except hocket.ArgumentError:
            continue
        raise AssertionError("no error")


@case
def tape_and_variables() -> None:
    """A loop as in Horovod's examples: the variables are broadcast inside of the tf.function."""
    model, optimizer = small(1 + hvd.rank()), tf.keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any, first: bool) -> None:
        if first:
            hvd.broadcast_variables(model.variables, root_rank=0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        tape = hvd.DistributedGradientTape(tape)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    x, y = mine()
    size = BATCH // hvd.size()
    for i in [*range(0, len(x), size)] * 3:
        step(x[i : i + size], y[i : i + size], i == 0)
    same_on_all(model)
    alone = small(1)
    alone.compile(tf.keras.optimizers.Adam(0.01), "mse")
    fit(alone, 3, [], rows(), BATCH)
    assert np.abs(weights(alone) - weights(model)).max() < 1e-6


@case
def optimizer_and_callbacks() -> None:
    """With two passes in a step: half as many steps, by the mean of both."""
    for passes in (1, 2):
        model = small(1)
        optimizer = tf.keras.optimizers.SGD(0.05)
        assert hvd_keras.DistributedOptimizer(
            optimizer, backward_passes_per_step=passes, average_aggregated_gradients=True
        ) is optimizer  # fmt: skip
        model.compile(optimizer, "mse")
        size = BATCH // hvd.size()
        callbacks = [
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0), hvd_keras.callbacks.MetricAverageCallback(),
        ]  # fmt: skip
        history = fit(model, 2, callbacks, mine(), size).history
        same_on_all(model)
        losses = hvd.allgather_object(history)
        assert losses[0] == losses[1], losses
        assert int(optimizer.iterations) == 16
        alone = small(1)
        alone.compile(tf.keras.optimizers.SGD(0.05), "mse")
        fit(alone, 2, [], rows(), BATCH * passes)
        assert np.abs(weights(alone) - weights(model)).max() < 1e-6, passes


@case
def rates() -> None:
    model = small(1)
    model.compile(hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
    seen = []

    class Seen(tf.keras.callbacks.Callback):
        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(tf.convert_to_tensor(self.model.optimizer.learning_rate)))

    of = hvd_keras.callbacks
    warm = of.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=2)
    later = of.LearningRateScheduleCallback(initial_lr=0.1, multiplier=0.1, start_epoch=2)
    history = fit(model, 3, [warm, later, Seen()], mine(), BATCH // hvd.size()).history
    size = hvd.size()
    expected = [0.1 / size * (1 + (i + 1) / 16 * (size - 1)) for i in range(16)] + [0.01] * 8
    assert np.allclose(seen, expected), seen
    assert np.allclose(history["lr"], [expected[7], expected[15], 0.01])


@case
def loaded() -> None:
    model = small(1)
    loss = tf.keras.losses.MeanSquaredError()
    model.compile(hvd_keras.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), loss)
    fit(model, 1, [], mine(), 16)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("model.keras", *(["model.h5"] if LEGACY else [])):  # Keras 3 cannot train on one of .h5
            path = f"{folder}/{name}"
            model.save(path)
            again = hvd_keras.load_model(path)
            assert (weights(again) == weights(model)).all()
            fit(again, 1, [], mine(), 16)
            same_on_all(again)
            plain = tf.keras.models.load_model(path).optimizer
            assert type(plain).__name__ == "Adam" and not {"apply", "apply_gradients"} & set(vars(plain))


@case
def wrong() -> None:
    """Under mixed_float16 a DistributedOptimizer inside is refused; a gradient that one rank lacks, on all ranks."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD())
        raise AssertionError("no error")
    except hocket.ArgumentError as error:
        assert "LossScaleOptimizer" in str(error)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    a, b = tf.Variable(1.0, name="a"), tf.Variable(1.0, name="b")
    with tf.GradientTape() as tape:
        loss = a * b if hvd.rank() == 0 else a * 2.0
    try:
        hvd.DistributedGradientTape(tape).gradient(loss, [a, b])
    except hocket.MismatchError as error:
        assert "rank 1 has no gradient of b" in str(error), error
        return
    raise AssertionError("no error")
