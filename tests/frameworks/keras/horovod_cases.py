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
    slices = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([0]))
    refused("Average", lambda: hvd.allreduce(x, op=hvd.Adasum), NotImplementedError)
    refused("are summed or averaged", lambda: hvd.allreduce(slices, op=hvd.Max), NotImplementedError)
    refused("without factors", lambda: hvd.allreduce(slices, prescale_factor=2.0), NotImplementedError)
    for name, remedy in hvd.REFUSED.items():
        refused(f"hvd.{name} is not there for TensorFlow: {remedy}", lambda name=name: getattr(hvd, name))


def refused(words: str, call: Callable[[], Any], kind: type[Exception] = hocket.ArgumentError) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), error
        return
    raise AssertionError(f"no error of {words!r}")


@case
def moved_rows() -> None:
    """On any number of ranks: rank r's rows are numbered from 100 r on, and each rank sends d + 1 of them to rank d."""
    rank, size = hvd.rank(), hvd.size()
    splits = [d + 1 for d in range(size)]
    own = np.arange(sum(splits), dtype="float32") + 100 * rank
    first = sum(splits[:rank])

    def sent() -> Any:
        return hvd.alltoall(tf.constant(own)[:, None], splits)

    for call in (sent, tf.function(sent)):
        found, received = call()
        assert received.numpy().tolist() == [rank + 1] * size and found.shape == (size * (rank + 1), 1)
        assert found.numpy().ravel().tolist() == [100 * r + first + i for r in range(size) for i in range(rank + 1)]
    assert hvd.alltoall(tf.range(size) + 10 * rank).numpy().tolist() == [10 * r + rank for r in range(size)]
    v = tf.Variable(np.ones(sum(splits) + 2, "float32"))  # the last two rows are not sent
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(hvd.alltoall(v, splits)[0]) * (rank + 1)
    grad = tape.gradient(loss, v).numpy().tolist()
    assert grad == [d + 1.0 for d in range(size) for _ in range(d + 1)] + [0, 0], grad

    rows = tf.constant(np.arange(2 * size + 1, dtype="float32"))  # the first rank has one more
    mine = np.array_split(rows.numpy(), size)[rank]
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        assert hvd.reducescatter(rows, op=op).numpy().tolist() == (mine * factor).tolist()
    many = hvd.grouped_reducescatter([rows, tf.cast(rows, tf.int32)], op=hvd.Sum, prescale_factor=0.5)
    assert many[0].numpy().tolist() == (mine * size / 2).tolist() and many[1].dtype == tf.int32
    v = tf.Variable(rows)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(hvd.reducescatter(v, op=hvd.Sum)) * (rank + 1)
    shares = [len(each) for each in np.array_split(rows.numpy(), size)]
    assert tape.gradient(loss, v).numpy().tolist() == [size * (r + 1.0) for r, n in enumerate(shares) for _ in range(n)]
    a, b = hvd.grouped_allgather([tf.fill([rank + 1], rank), tf.ones([1, 2])])
    assert a.shape[0] == sum(range(1, size + 1)) and b.shape == (size, 2)
    assert hvd_keras.reducescatter([[1.0]] * size).numpy().tolist() == [[1.0]]

    refused("hvd.alltoall: splits=[1] must be", lambda: hvd.alltoall(rows, [1])) if rank == 0 else refused(
        "rank 0 has splits that it cannot send", lambda: hvd.alltoall(rows, splits), hocket.MismatchError)
    refused("splits must be integers", lambda: hvd.alltoall(rows, [1.0] * size))
    refused("has no rows", lambda: hvd.reducescatter(1.0))
    numbers = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op(), hvd.process_set_included_op()]
    assert list(map(int, numbers)) == [rank, size, hvd.local_rank(), hvd.local_size(), 1]
    assert hvd.broadcast_object_fn(size - 1)(rank) == size - 1
    (value,) = hvd.broadcast_([tf.Variable(float(rank))], size - 1)
    assert value.numpy() == size - 1 and hvd.DistributedOptimizer is hvd_keras.DistributedOptimizer


@case
def gradients_as_in_horovod() -> None:
    """Horovod divides those of allgather and broadcast by the ranks, where the sum would be the derivative."""
    rank, size = hvd.rank(), hvd.size()
    v = tf.Variable([1.0, 2.0])
    for call, wanted in (
        (hvd.allgather, (size + 1) / 2), (lambda x: hvd.grouped_allgather([x])[0], (size + 1) / 2),
        (lambda x: hvd.broadcast(x, 0), 0.0 if rank else (size + 1) / 2),
    ):  # fmt: skip
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(v)) * (rank + 1)
        assert tape.gradient(loss, v).numpy().tolist() == [wanted, wanted]


@case
def a_graph_of_tensorflow_1() -> None:
    """It runs what is ready, so ranks would make their calls in other orders."""
    with tf.Graph().as_default():
        refused("a graph of TensorFlow 1 runs calls in any order", lambda: hvd.allreduce(tf.ones([3])))


@case
def process_sets() -> None:
    """The last two of three ranks, numbered as in the job; rank 0 takes no part in their calls."""
    two = hvd.add_process_set([1, 2])
    assert int(hvd.size_op(two.process_set_id)) == 2 and two.included() == (hvd.rank() > 0)
    x = tf.constant(float(hvd.rank()))
    if two.included():
        assert hvd.allreduce(x, op=hvd.Sum, process_set=two).numpy() == 3
        assert hvd.allgather(x[None], process_set=two).numpy().tolist() == [1, 2]
        assert hvd.broadcast(x, 2, process_set=two).numpy() == 2
        assert hvd.broadcast_object(hvd.rank(), 1, process_set=two) == 1
        assert hvd.alltoall(tf.fill([2], x), process_set=two).numpy().tolist() == [1, 2]
        assert hvd.reducescatter(tf.fill([2], x), process_set=two).numpy().tolist() == [1.5]
        v = tf.Variable(1.0)
        with tf.GradientTape() as tape:
            loss = v * x
        assert hvd.DistributedGradientTape(tape, process_set=two).gradient(loss, v).numpy() == 1.5
        refused("root_rank=0 is not one of the ranks", lambda: hvd.broadcast(x, 0, process_set=two))
    else:
        refused("rank 0 is not part of", lambda: hvd.allreduce(x, process_set=two))
    assert hvd.allreduce(x).numpy() == 1
    assert hvd.remove_process_set(two)
    refused("is not registered", lambda: hvd.allreduce(x, process_set=two))


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
