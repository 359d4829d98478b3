"""A network that jax.jit spreads over all processes: its collectives are JAX's own, and run on hocket.

    hocket run -n 2 -- examples/frameworks/jax_psum.py
"""

import hocket.jax  # before jax, which reads at its import which library carries out its collectives

hocket.jax.initialize()  # jax.distributed.initialize, with this launcher's processes

# isort: split
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

ROWS, WIDTH, STEPS = 64, 32, 20


def loss(weights, x, y):
    first, second = weights
    return ((jnp.tanh(x @ first) @ second - y) ** 2).mean()


@jax.jit
def step(weights, x, y):
    """One step of gradient descent; where x is spread over processes, jit inserts the sums."""
    value, slopes = jax.value_and_grad(loss)(weights, x, y)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes)


rng = np.random.default_rng(0)
x, y = rng.normal(size=(ROWS, WIDTH)).astype("float32"), rng.normal(size=(ROWS, 1)).astype("float32")
start = [rng.normal(size=shape).astype("float32") / 8 for shape in ((WIDTH, WIDTH), (WIDTH, 1))]

mesh = Mesh(np.array(jax.devices()), "rows")
spread, whole = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
mine = slice(jax.process_index() * ROWS // jax.process_count(), (jax.process_index() + 1) * ROWS // jax.process_count())
data = [jax.make_array_from_process_local_data(spread, each[mine]) for each in (x, y)]
weights = [jax.make_array_from_process_local_data(whole, each) for each in start]
alone = start
for _ in range(STEPS):
    value, weights = step(weights, *data)
    expected, alone = step(alone, x, y)
assert np.allclose(value, expected, rtol=1e-5), (value, expected)
if jax.process_index() == 0:
    print(f"{jax.process_count()} processes, loss {float(value):.4f}, the same as one process")
