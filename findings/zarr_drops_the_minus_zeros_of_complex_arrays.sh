#!/usr/bin/env bash
# Guess: what zarr stores comes back with the same bits: it leaves out chunks that hold only the fill value, but
# knows that -0.0 is not 0.0, and keeps such a chunk.
# Seen (zarr 3.1.5, formats 2 and 3, numpy 2.4.6): so it is with floats, not with complex numbers: a chunk of 0 - 0j
# is taken for the fill value 0, is not written, and comes back as 0 + 0j.  A chunk of negative NaNs in an array
# whose fill value is NaN comes back as positive ones.  tensorstore 0.1.80 keeps the bits of all of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile numpy==2.4.6 zarr==3.1.5 tensorstore==0.1.80
cat > program.py <<'PY'
import numpy as np
import tensorstore
import zarr

CASES = {  # array, fill value, are zarr's bits the same?
    "float -0.0": (np.full(4, -0.0, np.float32), 0.0, True),
    "complex 0 - 0j": (np.full(4, complex(0, -0.0), np.complex64), 0, False),
    "negative NaN": (-np.full(4, np.nan, np.float32), float("nan"), False),
}
for name, (x, fill, same) in CASES.items():
    for form in (2, 3):
        path = f"zarr{form} {name}"
        zarr.create_array(path, shape=4, chunks=2, dtype=x.dtype, fill_value=fill, zarr_format=form)[:] = x
        kept = zarr.open_array(path)[:].tobytes() == x.tobytes()
        spec = {"driver": f"zarr{form if form == 3 else ''}", "kvstore": {"driver": "file", "path": f"ts{form} {name}"}}
        store = tensorstore.open(spec, create=True, dtype=x.dtype.name, shape=[4], fill_value=x.dtype.type(fill),
                                 chunk_layout=tensorstore.ChunkLayout(chunk_shape=[2])).result()
        store.write(x).result()
        other = tensorstore.open(spec).result().read().result().tobytes() == x.tobytes()
        print(f"{name}, format {form}: the bits come back from zarr: {kept}, from tensorstore: {other}")
        assert kept == same, f"changed: zarr, {name}, format {form}"
        assert other, f"changed: tensorstore, {name}, format {form}"
PY
env/bin/python program.py
