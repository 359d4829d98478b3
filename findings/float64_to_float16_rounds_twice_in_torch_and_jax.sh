#!/usr/bin/env bash
# Guess: a float64 is rounded to the nearest float16 by every library, so NumPy's, Arrow's, torch's and JAX's casts
# agree.
# Seen (numpy 2.4.6, pyarrow 26.0.1, torch 2.13.0, jax 0.10.2, ml_dtypes 0.6.0): NumPy and Arrow do it; torch and JAX
# go by float32 and round twice: 1 + 2^-11 + 2^-40 becomes 1, its farther neighbour, for 1.0009765625.  To bfloat16
# all three, ml_dtypes too, round twice: there is none to agree with.  To float8_e4m3fn JAX rounds once, ml_dtypes
# and torch twice, so JAX's np.asarray(x).astype and jnp's astype of the same numbers differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile numpy==2.4.6 ml_dtypes==0.6.0 \
    pyarrow==26.0.1 torch==2.13.0 jax==0.10.2 jaxlib==0.10.2
cat > program.py <<'PY'
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pyarrow as pa
import torch

DTYPES = {
    "float16": (11, np.float16), "bfloat16": (8, ml_dtypes.bfloat16), "float8_e4m3fn": (4, ml_dtypes.float8_e4m3fn)
}
TWICE = {"float16": {"torch", "jax"}, "bfloat16": {"numpy", "torch", "jax"}, "float8_e4m3fn": {"numpy", "torch"}}
for name, (bits, dtype) in DTYPES.items():
    x = np.array([1 + 2.0**-bits + 2.0**-40])  # just above the middle of two neighbours
    above = 1 + 2.0 ** (1 - bits)
    found = {"numpy": x.astype(dtype)[0], "torch": torch.from_numpy(x).to(getattr(torch, name))[0].item(),
             "jax": np.asarray(jnp.asarray(x).astype(name))[0]}
    if name == "float16":
        found["arrow"] = pa.array(x).cast(pa.float16())[0].as_py()
    found = {library: float(value) for library, value in found.items()}
    print(f"{x[0]!r} to {name}: {found}, nearest {above}")
    wanted = {library: 1.0 if library in TWICE[name] else above for library in found}
    assert found == wanted, f"changed: expected {wanted}"
PY
env/bin/python program.py
