"""Programs that ranks run, on whichever backend KERAS_BACKEND names: `run("name")` on each rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import hocket
import hocket.keras

CASES: dict[str, Callable[[Any], None]] = {}
BATCH, ROWS, FEATURES = 32, 256, 16


def case(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Runs on every rank, as function(comm)."""
    CASES[function.__name__] = function
    return function


def run(*names: str) -> None:
    for name in names:
        with hocket.init() as comm:
            try:
                CASES[name](comm)
            except BaseException as error:
                error.add_note(f"in {name}, on rank {comm.rank}")
                raise
        keras.backend.clear_session()


def rows(n: int = ROWS) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, FEATURES)).astype("float32")
    return x, np.tanh(x @ rng.normal(size=(FEATURES, 1)).astype("float32"))


def small(name: str = "a") -> Any:
    return keras.Sequential([
        keras.Input((FEATURES,)), keras.layers.Dense(32, "tanh", name=name), keras.layers.Dense(1),
    ])  # fmt: skip


def weights(model: Any) -> Any:
    return np.concatenate([np.ravel(each) for each in model.get_weights()])


def trained(
    comm: Any, alone: bool, model: Any = small, fits: tuple[int, ...] = (3,), data: Any = None, adam: Any = None,
    also: Any = (), **compiled: Any,
) -> Any:  # fmt: skip
    """The model after 8 steps an epoch of Adam: on all ranks, or on this one with the whole batch."""
    keras.utils.set_random_seed(1 if alone else comm.rank + 1)
    model = model()
    model.compile(keras.optimizers.Adam(0.01, **(adam or {})), "mse", **compiled)
    x, y = data or rows()
    callbacks = []
    if not alone:
        x, y = hocket.keras.shard((x, y), comm)
        callbacks = [hocket.keras.Average(comm), *also]
    size = 1 if alone else comm.size
    for epochs in fits:
        model.fit(x, y, batch_size=BATCH // size, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def same_on_all(comm: Any, model: Any) -> None:
    apart = comm.check_equal([np.array(keras.ops.convert_to_numpy(v.value)) for v in model.trainable_variables])
    assert apart == {}, apart


def near_one_process(comm: Any, tolerance: float = 1e-6, **how: Any) -> Any:
    """Trained by all ranks, a model has equal bits everywhere, and is what one process makes of the whole batch."""
    both = trained(comm, False, **how)
    same_on_all(comm, both)
    if comm.rank == 0:
        apart = np.abs(weights(both) - weights(trained(comm, True, **how))).max()
        assert apart < tolerance, apart
    return both


def failing(comm: Any, call: Callable[[], Any], kind: type[Exception], *words: str) -> str:
    """`call` raises this error of hocket's on every rank, with these words in its text.  The text."""
    try:
        call()
    except Exception as error:
        found = hocket.keras.cause(error)
        assert isinstance(found, kind), repr(error)
        for word in words:
            assert word in str(found), (word, str(found))
        return str(found)
    raise AssertionError(f"rank {comm.rank} got no error")


def fitting(comm: Any, model: Any, **how: Any) -> Callable[[], Any]:
    """model.fit of two epochs on this rank's rows."""
    x, y = how.pop("data", None) or hocket.keras.shard(rows(), comm)
    how = {"batch_size": 16, "epochs": 2, "verbose": 0, "callbacks": [hocket.keras.Average(comm)], **how}
    return lambda: model.fit(x, y, **how)


def compiled(model: Any, **how: Any) -> Any:
    model.compile(**{"optimizer": keras.optimizers.Adam(0.01), "loss": "mse", **how})
    return model


@case
def whole_batch(comm: Any) -> None:
    near_one_process(comm)


@case
def embedding(comm: Any) -> None:
    """Its gradients are IndexedSlices on TensorFlow; rows that a rank has not seen move too, as in one process."""
    x = np.random.default_rng(3).integers(0, 40, (ROWS, 4))

    def words() -> Any:
        table = keras.layers.Embedding(50, 8)
        rest = keras.layers.Flatten(), keras.layers.Dense(1)
        return keras.Sequential([keras.Input((4,), dtype="int32"), table, *rest])

    near_one_process(comm, model=words, data=(x, rows()[1]))


class Biased(keras.layers.Layer):
    """Two variables with one gradient, and one whose gradient is a constant of the graph."""

    def build(self, shape: Any) -> None:
        new = {"shape": (FEATURES,), "initializer": "zeros"}
        self.one, self.two, self.steady = (self.add_weight(name=name, **new) for name in ("one", "two", "steady"))

    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.sum(3.0 * self.steady))
        return x + self.one + self.two


@case
def shared_and_constant_gradients(comm: Any) -> None:
    def made() -> Any:
        return keras.Sequential([keras.Input((FEATURES,)), Biased(), keras.layers.Dense(1)])

    both = near_one_process(comm, model=made)
    one, two, steady = both.layers[0].get_weights()
    assert (one == two).all() and np.allclose(steady, -0.24, atol=1e-4), steady  # 24 steps of Adam by 0.01


@case
def second_fit(comm: Any) -> None:
    near_one_process(comm, fits=(1, 2))


@case
def run_eagerly(comm: Any) -> None:
    near_one_process(comm, run_eagerly=True, fits=(1,))


@case
def accumulated(comm: Any) -> None:
    near_one_process(comm, adam={"gradient_accumulation_steps": 2})


@case
def several_steps_in_one_execution(comm: Any) -> None:
    if keras.backend.backend() == "torch":
        try:  # Keras itself refuses it there
            fitting(comm, compiled(small(), steps_per_execution=2))()
        except ValueError:
            return
    near_one_process(comm, steps_per_execution=2)


@case
def trained_alone_before(comm: Any) -> None:
    """A program that was traced without the averages is made anew."""
    model = compiled(small())
    x, y = hocket.keras.shard(rows(), comm)
    keras.utils.set_random_seed(comm.rank)
    model.fit(x, y, batch_size=16, verbose=0)
    fitting(comm, model)()
    same_on_all(comm, model)


@case
def saved_and_loaded(comm: Any) -> None:
    """It is saved as what it was, and goes on to the same numbers: loaded without hocket, and wrapped again."""
    import tempfile

    model = compiled(small())
    go_on = {"shuffle": False, "epochs": 1}
    fitting(comm, model, **go_on)()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    assert isinstance(loaded.optimizer, keras.optimizers.Adam) and "apply" not in vars(loaded.optimizer)
    assert (weights(loaded) == weights(model)).all()
    for each in (model, loaded):
        fitting(comm, each, **go_on)()
        same_on_all(comm, each)
    assert np.abs(weights(loaded) - weights(model)).max() < 1e-6
    copied = keras.optimizers.Adam.from_config(model.optimizer.get_config())
    assert "apply" not in vars(copied)


def half(dtype: str = "mixed_float16") -> Any:
    return keras.Sequential([
        keras.Input((FEATURES,)), keras.layers.Dense(32, "tanh", dtype=dtype), keras.layers.Dense(1, dtype="float32"),
    ])  # fmt: skip


def with_overflow(comm: Any) -> tuple[Any, Any]:
    """Rows of which one, that is rank 1's in step 3 of an epoch, is too large for float16."""
    x, y = rows()
    y[3 * BATCH + 1] = 1e30
    return x, y


@case
def overflow_on_one_rank(comm: Any) -> None:
    """All ranks leave that step out, and halve the scale."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        for wrapped in (False, True):
            model = half()
            optimizer = keras.optimizers.Adam(0.01)
            model.compile(hocket.keras.DistributedOptimizer(optimizer, comm) if wrapped else optimizer, "mse")
            assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
            data = hocket.keras.shard(with_overflow(comm), comm)
            fitting(comm, model, data=data, shuffle=False)()
            same_on_all(comm, model)
            scale, count = float(model.optimizer.dynamic_scale), int(model.optimizer.iterations)
            assert (scale, count) == (2.0**13, 2 * (ROWS // comm.size // 16) - 2), (scale, count)
            assert np.isfinite(weights(model)).all()
            assert "apply" in vars(model.optimizer) and "apply" not in vars(model.optimizer.inner_optimizer)
        model = half()
        model.compile(hocket.keras.DistributedOptimizer(keras.optimizers.Adam(0.01), comm), "mse")
        failing(comm, fitting(comm, model, callbacks=[]), hocket.ArgumentError, "LossScaleOptimizer", "Average()")
    finally:
        keras.config.set_dtype_policy(before)


@case
def pure_bfloat16(comm: Any) -> None:
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(4, dtype="bfloat16")])
    fitting(comm, compiled(model))()
    same_on_all(comm, model)


class Skipping(keras.Model):
    """A layer that some ranks leave out."""

    def __init__(self, used: bool) -> None:
        super().__init__()
        self.used, self.a, self.b = used, keras.layers.Dense(4, name="first"), keras.layers.Dense(4, name="second")
        self.head = keras.layers.Dense(1)

    def build(self, shape: Any) -> None:
        for layer, width in ((self.a, FEATURES), (self.b, FEATURES), (self.head, 4)):
            layer.build((None, width))

    def call(self, x: Any) -> Any:
        return self.head(self.a(x) + self.b(x) if self.used else self.a(x))


def built(model: Any) -> Any:
    """On TensorFlow, fit builds a model of one's own class only in its first step."""
    model.build((None, FEATURES))
    return compiled(model)


@case
def no_gradient_on_one_rank(comm: Any) -> None:
    model = built(Skipping(comm.rank == 0))
    if keras.backend.backend() == "jax":  # there it is zeros, and counts as such
        fitting(comm, model)()
        same_on_all(comm, model)
        return
    failing(
        comm, fitting(comm, model), hocket.MismatchError, "rank 1 has no gradient of", "second/kernel", "second/bias",
        "trainable = False",
    )  # fmt: skip


@case
def no_gradient_on_any_rank(comm: Any) -> None:
    model = built(Skipping(False))
    fitting(comm, model)()
    same_on_all(comm, model)


@case
def swapped_layers(comm: Any) -> None:
    """The same shapes in another order: they would be averaged with each other."""
    names = ["one", "two"][:: 1 if comm.rank == 0 else -1]
    model = keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4, name=name) for name in names)])
    failing(
        comm, fitting(comm, compiled(model), data=(np.zeros((8, 4)), np.zeros((8, 4)))), hocket.MismatchError,
        "one/kernel (4, 4) float32 on rank 0 and sequential/two/kernel (4, 4) float32 on rank 1", "variable 0",
    )  # fmt: skip


@case
def a_layer_more_swaps_branches(comm: Any) -> None:
    """Keras orders layers by depth: one without variables on one rank moves another one, of a name that Keras made."""
    inputs = keras.Input((4,))
    left, right = keras.layers.Dense(4)(inputs), keras.layers.Dense(4)(inputs)
    if comm.rank == 1:
        right = keras.layers.Activation("relu")(right)
    model = keras.Model(inputs, keras.layers.Add()([left, right]))
    data = (np.zeros((8, 4)), np.zeros((8, 4)))
    failing(comm, fitting(comm, compiled(model), data=data), hocket.MismatchError, "layer", "rank 1")


@case
def numbers_that_keras_made_may_differ(comm: Any) -> None:
    for _ in range(3 * comm.rank):
        keras.layers.Dense(1)
    model = compiled(keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(2), keras.layers.Dense(1)]))
    fitting(comm, model)()
    same_on_all(comm, model)


@case
def other_models_and_settings(comm: Any) -> None:
    wide = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(4 + comm.rank), keras.layers.Dense(1)])
    failing(comm, fitting(comm, compiled(wide)), hocket.MismatchError, "dense/kernel (16, 4)", "(16, 5)", "rank 1")
    deep = keras.Sequential([keras.Input((FEATURES,)), *(keras.layers.Dense(1) for _ in range(1 + comm.rank))])
    failing(comm, fitting(comm, compiled(deep)), hocket.MismatchError, "variable 2 is missing on rank 0", "rank 1")
    frozen = small()
    frozen.layers[0].trainable = comm.rank == 0
    failing(comm, fitting(comm, compiled(frozen)), hocket.MismatchError, "a/kernel", "(frozen) on rank 1")
    act = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, ["tanh", "relu"][comm.rank], name="act")])
    failing(comm, fitting(comm, compiled(act)), hocket.MismatchError, "layer 1, act (Dense), has other settings")
    model = compiled(small(), optimizer=keras.optimizers.Adam([0.01, 0.02][comm.rank]))
    failing(comm, fitting(comm, model), hocket.MismatchError, "learning_rate of the optimizer", "0.02", "rank 1")
    model = compiled(small(), optimizer=[keras.optimizers.Adam, keras.optimizers.SGD][comm.rank](0.01))
    failing(comm, fitting(comm, model), hocket.MismatchError, "optimizer", "rank 1")
    x, y = rows()
    data = (x[: 128 + 16 * comm.rank], y[: 128 + 16 * comm.rank])
    failing(comm, fitting(comm, compiled(small()), data=data), hocket.MismatchError, "steps is 8", "9", "shard")
    failing(comm, fitting(comm, compiled(small()), epochs=2 + comm.rank), hocket.MismatchError, "epochs is 2 on rank 0")
    real, keras.__version__ = keras.__version__, "3.99.0" if comm.rank else keras.__version__
    try:
        failing(comm, fitting(comm, compiled(small())), hocket.MismatchError, "keras is", "3.99.0 on rank 1")
    finally:
        keras.__version__ = real
    fitting(comm, compiled(small()))()  # and the communicator still works


@case
def refused(comm: Any) -> None:
    """On all ranks, though only one of them has done it."""
    model = small()
    hk = hocket.keras
    optimizer = keras.optimizers.Adam() if comm.rank == 0 else None
    failing(comm, lambda: hk.distribute(model, optimizer), hocket.ArgumentError, "rank 1: the model has no optimizer")
    failing(comm, lambda: hk.distribute(keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.Adam()),
            hocket.ArgumentError, "no variables yet")  # fmt: skip
    failing(comm, lambda: hk.DistributedOptimizer("adam"), hocket.ArgumentError, "keras.optimizers.get")
    failing(comm, lambda: hk.DistributedOptimizer(keras.optimizers.Adam(), comm=3), hocket.ArgumentError, "an int")
    failing(comm, lambda: hk.distribute(compiled(small()), root=7), hocket.ArgumentError, "root=7")
    from hocket.training import Scheduler

    failing(comm, lambda: hk.Average(Scheduler(comm)), hocket.ArgumentError, "a Scheduler")
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        jit = compiled(small(), jit_compile=comm.rank == 1)
        failing(comm, fitting(comm, jit), hocket.ArgumentError, "rank 1", "jit_compile=False")
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            mirrored = compiled(small())
        failing(comm, fitting(comm, mirrored), hocket.ArgumentError, "tf.distribute")
    if keras.backend.backend() == "jax":
        failing(comm, lambda: hk.distribute(compiled(small()), compress="int8"), hocket.ArgumentError, "compress")
    if keras.backend.backend() != "torch":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=keras.distribution.list_devices()[:1]))
        spread = compiled(small())
        try:
            failing(comm, fitting(comm, spread), hocket.ArgumentError, "keras.distribution")
        finally:
            keras.distribution.set_distribution(None)


def batches(comm: Any, counts: tuple[int, int]) -> Any:
    """A generator, of which Keras does not know how many batches come."""
    x, y = rows()
    for i in range(counts[comm.rank]):
        yield x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8]


@case
def a_rank_with_fewer_batches(comm: Any) -> None:
    model = compiled(small())
    counts = (8, 6)
    failing(comm, lambda: model.fit(batches(comm, counts), verbose=0, callbacks=[hocket.keras.Average(comm)]),
            hocket.MismatchError, "rank 1")  # fmt: skip


@case
def metrics_and_moving_averages(comm: Any) -> None:
    model = keras.Sequential([
        keras.Input((FEATURES,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ])  # fmt: skip
    keras.utils.set_random_seed(comm.rank)
    model = compiled(model, metrics=["mae"])
    x, y = hocket.keras.shard(rows(), comm)
    own = {"validation_data": (x, y)} if comm.rank == 0 else {}
    stop = keras.callbacks.EarlyStopping("val_loss", min_delta=100, patience=1)
    how = {"batch_size": 16, "epochs": 4, "verbose": 0, "callbacks": [hocket.keras.Average(comm), stop], **own}
    history = model.fit(x, y, **how).history
    told = comm.share(history)
    assert told[0] == told[1] and set(history) == {"loss", "mae", "val_loss", "val_mae"}, told
    assert len(history["loss"]) == 2  # all ranks stopped
    same = comm.check_equal([np.array(each) for each in model.get_weights()])
    assert same == {}, same
    seeds = [np.array(keras.ops.convert_to_numpy(v.value)) for v in model.variables if "seed" in v.path]
    assert seeds and comm.check_equal(seeds) != {}


@case
def the_parts_alone(comm: Any) -> None:
    """DistributedOptimizer, Broadcast and MetricAverage together are Average."""
    keras.utils.set_random_seed(comm.rank + 1)
    model = small()
    model.compile(hocket.keras.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    assert type(model.optimizer) is type(keras.optimizers.Adam())
    x, y = hocket.keras.shard(rows())
    how = {"batch_size": BATCH // comm.size, "epochs": 3, "shuffle": False, "verbose": 0}
    parts = [hocket.keras.Broadcast(), hocket.keras.MetricAverage()]
    history = model.fit(x, y, callbacks=parts, **how).history
    same_on_all(comm, model)
    told = comm.share(history)
    assert told[0] == told[1]
    if comm.rank == 0:
        assert np.abs(weights(model) - weights(trained(comm, True))).max() < 1e-6


@case
def compressed(comm: Any) -> None:
    if keras.backend.backend() == "jax":
        return
    for method in ("int8", "powersgd:2"):
        keras.utils.set_random_seed(comm.rank + 1)
        model = compiled(small())
        loss = fitting(comm, model, callbacks=[hocket.keras.Average(comm, compress=method)], epochs=4)().history["loss"]
        same_on_all(comm, model)
        assert loss[-1] < loss[0], loss
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = half()
        model.compile(keras.optimizers.Adam(0.01), "mse")
        data = hocket.keras.shard(with_overflow(comm), comm)
        callbacks = [hocket.keras.Average(comm, compress="powersgd:2")]
        fitting(comm, model, data=data, shuffle=False, callbacks=callbacks)()
        same_on_all(comm, model)
        assert int(model.optimizer.iterations) == 14 and np.isfinite(weights(model)).all()
    finally:
        keras.config.set_dtype_policy("float32")


@case
def own_loop(comm: Any) -> None:
    """A step of one's own, in each backend's words, after `distribute`."""
    keras.utils.set_random_seed(comm.rank + 1)
    model, optimizer = small(), keras.optimizers.Adam(0.01)
    assert hocket.keras.distribute(model, optimizer) is optimizer
    x, y = hocket.keras.shard(rows(), comm)
    size = BATCH // comm.size
    step = LOOPS[keras.backend.backend()](model, optimizer)
    for i in [*range(0, len(x), size)] * 3:
        step(x[i : i + size], y[i : i + size])
    getattr(step, "end", lambda: None)()
    same_on_all(comm, model)
    if comm.rank == 0:
        assert np.abs(weights(model) - weights(trained(comm, True))).max() < 1e-6


def on_tensorflow(model: Any, optimizer: Any) -> Any:
    import tensorflow as tf

    @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(model(x, training=True) - y))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return step


def on_torch(model: Any, optimizer: Any) -> Any:
    import torch

    values = [each.value for each in model.trainable_variables]

    def step(x: Any, y: Any) -> None:
        loss = keras.ops.mean(keras.ops.square(model(x, training=True) - torch.from_numpy(y)))
        optimizer.apply(list(torch.autograd.grad(loss, values)), model.trainable_variables)

    return step


def on_jax(model: Any, optimizer: Any) -> Any:
    import jax

    state = [[each.value for each in several] for several in (
        model.trainable_variables, model.non_trainable_variables, optimizer.variables,
    )]  # fmt: skip

    def loss(trained: Any, fixed: Any, x: Any, y: Any) -> Any:
        found, _ = model.stateless_call(trained, fixed, x, training=True)
        return keras.ops.mean(keras.ops.square(found - y))

    @jax.jit
    def made(trained: Any, fixed: Any, kept: Any, x: Any, y: Any) -> Any:
        return optimizer.stateless_apply(kept, jax.grad(loss)(trained, fixed, x, y), trained)

    def step(x: Any, y: Any) -> None:
        state[0], state[2] = made(*state, x, y)

    def end() -> None:
        for variable, value in zip(model.trainable_variables, state[0], strict=True):
            variable.assign(value)

    step.end = end
    return step


LOOPS = {"tensorflow": on_tensorflow, "torch": on_torch, "jax": on_jax}


@case
def other_variables_in_a_loop(comm: Any) -> None:
    """Rank 1 applies the same shapes in another order."""
    if keras.backend.backend() == "jax":
        return  # there the optimizer itself wants all variables, in its order
    one, two = keras.Variable(np.zeros(3, "float32"), name="one"), keras.Variable(np.zeros(3, "float32"), name="two")
    optimizer = hocket.keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([one, two])
    order = [one, two] if comm.rank == 0 else [two, one]
    grads = [keras.ops.ones(3), keras.ops.ones(3)]
    failing(comm, lambda: optimizer.apply(grads, order), hocket.MismatchError, "rank 0: one, two", "rank 1: two, one")
    short = [one, two][: 2 - comm.rank]
    failing(comm, lambda: optimizer.apply(grads[: len(short)], short), hocket.MismatchError, "gradients of one")


@case
def one_tensor_for_two_gradients(comm: Any) -> None:
    """It is averaged once for each variable, and stays what it is."""
    one, two = (keras.Variable(np.zeros(3, "float32"), name=name) for name in ("one", "two"))
    optimizer = hocket.keras.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([one, two])
    grad = keras.ops.ones(3) * (comm.rank + 1)
    optimizer.apply([grad, grad], [one, two])
    mean = (comm.size + 1) / 2
    found = [keras.ops.convert_to_numpy(each).tolist() for each in (one, two, grad)]
    assert found == [[-mean] * 3, [-mean] * 3, [comm.rank + 1] * 3], found


@case
def shards(comm: Any) -> None:
    x = np.arange(10).reshape(5, 2)
    mine = hocket.keras.shard({"x": x, "y": [x[:, 0]]}, comm)
    assert (mine["x"] == x[comm.rank : 4 : 2]).all() and (mine["y"][0] == x[comm.rank : 4 : 2, 0]).all()
    assert np.shares_memory(mine["x"], x)
    kinds = ((np.zeros((1, 2)), "too few"), ((x, x[:3]), "[3, 5] rows"), (iter([1]), "generator"), (3, "int"))
    for wrong, word in kinds:
        failing(comm, lambda wrong=wrong: hocket.keras.shard(wrong, comm), hocket.ArgumentError, word)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        rows = tf.data.Dataset.range(5)
        assert [int(each) for each in hocket.keras.shard(rows, comm)] == [comm.rank, comm.rank + 2]
        failing(comm, lambda: hocket.keras.shard(rows.repeat(), comm), hocket.ArgumentError, "steps_per_epoch")


class Dies(keras.callbacks.Callback):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self.at:
            os.kill(os.getpid(), 9)


@case
def dies_in_fit(comm: Any) -> None:
    also = [Dies(3)] if comm.rank == 1 else []
    callbacks = [hocket.keras.Average(comm), *also]
    said = failing(comm, fitting(comm, compiled(small()), callbacks=callbacks), hocket.PeerLostError, "rank 1")
    print("told:", said)
