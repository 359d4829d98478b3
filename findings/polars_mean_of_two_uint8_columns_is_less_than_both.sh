#!/usr/bin/env bash
# Guess: the mean of 200 and 200 is 200 in Polars, down a column and across two columns of UInt8: both are Float64.
# Seen (polars 2.1.0): across, mean_horizontal adds up in the columns' own dtype and divides what has wrapped: it is
# 72.0. Of two 100 in Int8 it is -28.0, of two 20,000 in Int16 -12768.0.  The mean down the column and of a
# list is right.  sum_horizontal is 144, a UInt8, where sum is 400, and the dot product of a column with itself
# wraps, too, but in each product alone: 200 200 times itself is 128, a number of Int64 (80,000).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile polars==2.1.0
cat > program.py <<'PY'
import polars

cases = ((polars.UInt8, 200, 72, 144, 128), (polars.Int8, 100, -28, -56, 32),
         (polars.UInt16, 40_000, 7232, 14464, 8192), (polars.Int16, 20_000, -12768, -25536, -63488))
for dtype, value, mean, total, dot in cases:
    column = polars.Series([value, value], dtype=dtype)
    across = polars.DataFrame({"a": column, "b": column}).select(
        mean=polars.mean_horizontal("a", "b"), sum=polars.sum_horizontal("a", "b"), dot=polars.col("a").dot("b"))
    lists = polars.Series([[value, value]], dtype=polars.List(dtype))
    print(f"two {value} of {dtype}: down: {column.mean()}, sum {column.sum()}; across: {across.row(0, named=True)}, "
          f"{across.dtypes}")
    assert column.mean() == lists.list.mean()[0] == value and column.sum() == 2 * value
    assert across.row(0) == (mean, total, dot) and across.dtypes[0] == polars.Float64, "changed"
PY
POLARS_MAX_THREADS=1 env/bin/python program.py
