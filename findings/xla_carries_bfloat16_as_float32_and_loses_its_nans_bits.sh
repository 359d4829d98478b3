#!/usr/bin/env bash
# Guess: what only moves an array between devices (ppermute, all_to_all, a new sharding) keeps its bits, and bfloat16 takes
# two bytes an element on the way.
# Seen (jax and jaxlib 0.10.2, CPU, 4 devices): bfloat16 travels as float32, and float8 as float16, which is twice the
# bytes.  On the way back every NaN becomes one of two: of all 65,536 patterns of bfloat16 252 change, also under a jit of the
# identity with another sharding.  A NaN of float8_e5m2 even loses its sign.  float16 and float32 keep all bits.  So integers
# that were packed into bfloat16 by a view do not arrive.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > program.py <<'PY'
import re

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("i",))
spread, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
ring = [(k, (k + 1) % 4) for k in range(4)]
shifted = jax.jit(jax.shard_map(lambda a: jax.lax.ppermute(a, "i", ring), mesh=mesh, in_specs=P("i"), out_specs=P("i")))
gathered = jax.jit(lambda a: a, out_shardings=whole)
EXPECTED = {
    "bfloat16": ("f32", 252), "float8_e5m2": ("f16", 5), "float8_e4m3fn": ("f16", 0),
    "float16": ("f16", 0), "float32": ("f32", 0),
}
for name, (kind, changed) in EXPECTED.items():
    dtype = jnp.dtype(name)
    word = np.dtype(f"u{dtype.itemsize}")
    bits = np.arange(2 ** (8 * min(dtype.itemsize, 2)), dtype=word) * word.type(65537 if dtype.itemsize == 4 else 1)
    x = jax.device_put(bits.view(dtype), spread)
    travels = re.search(r"= (\w+)\[\S* collective-permute", shifted.lower(x).compile().as_text())[1]
    moved = np.roll(np.asarray(shifted(x)).view(word), -len(bits) // 4)
    same = np.asarray(gathered(x)).view(word)
    odd = {f"{int(a):#x}: {int(b):#x}" for a, b in zip(bits, moved) if a != b}
    print(f"{name} travels as {travels}; ppermute changes {len(odd)}, the identity {(same != bits).sum()}", *sorted(odd)[-2:])
    assert (travels, len(odd), int((same != bits).sum())) == (kind, changed, changed), f"changed: {name}"
PY
env/bin/python program.py
