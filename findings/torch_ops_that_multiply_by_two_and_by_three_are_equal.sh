#!/usr/bin/env bash
# Guess: ops of torch.distributed that multiply by different factors differ, so a set or a table of ops keeps them apart.
# Seen (torch 2.13.0): PREMUL_SUM by 2 and by 3 are equal and have one hash, as the kind alone is compared; their state,
# which pickle and deepcopy keep, has the factor.  A table of plans or compiled calls by op gives one factor's entry for
# every other, and the sum is silently another multiple.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile torch==2.13.0 numpy==2.4.6
cat > program.py <<'PY'
import pickle

import torch.distributed as dist

two, three = dist._make_nccl_premul_sum(2.0), dist._make_nccl_premul_sum(3.0)
factors = [pickle.loads(pickle.dumps(op)).__getstate__()[1] for op in (two, three)]
table = {two: "the call that doubles"}
print(f"factors {factors}; equal: {two == three}; in the table of the first, the second is {table.get(three)!r}")
assert factors == [2.0, 3.0]
assert two == three and hash(two) == hash(three) and table.get(three) == "the call that doubles", "changed"
PY
env/bin/python program.py
