#!/usr/bin/env bash
# Guess: split_dataset_by_node shares out what the dataset holds: the parts of split_dataset_by_node(data.take(6), ...)
# are together the 6 examples of data.take(6), however many nodes there are.
# Seen (datasets 5.2.0, numpy 2.4.6, 20 examples in 4 shards): on 1 and on 3 nodes they are.  On 2 and 4 nodes, which
# divide the shards, take and skip are counted anew on each node, in its own shards: 0, 1, 2 and 5, 6, 7 on 2 nodes.
# So data.take(6) on one process and the parts of data.skip(6) on two share 3 and 4, examples for a test that are
# trained on.  with_indices counts anew as well: two examples of each number, and another choice by filter.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv --without-pip env
python3 -m pip --python env/bin/python install --quiet --no-compile datasets==5.2.0 numpy==2.4.6
cat > program.py <<'PY'
from datasets import Dataset, disable_progress_bars
from datasets.distributed import split_dataset_by_node

disable_progress_bars()
data = Dataset.from_dict({"x": [*range(20)]}).to_iterable_dataset(num_shards=4)
calls = {
    "data": data,
    "take(6)": data.take(6),
    "skip(6)": data.skip(6),
    "x % 3 == 0": data.filter(lambda row: row["x"] % 3 == 0),
    "index % 3 == 0": data.filter(lambda row, index: index % 3 == 0, with_indices=True),
}
wanted = {
    ("take(6)", 2): [0, 1, 2, 5, 6, 7],
    ("take(6)", 4): [0, 1, 5, 6, 10, 15],
    ("skip(6)", 2): [3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
    ("skip(6)", 4): [2, 3, 4, 7, 8, 9, 11, 12, 13, 14, 16, 17, 18, 19],
    ("index % 3 == 0", 2): [0, 3, 5, 8, 11, 14, 16, 19],
    ("index % 3 == 0", 4): [0, 3, 5, 8, 10, 13, 15, 18],
}
for name, dataset in calls.items():
    whole = [row["x"] for row in dataset]
    for nodes in 1, 2, 3, 4:
        parts = [[row["x"] for row in split_dataset_by_node(dataset, node, nodes)] for node in range(nodes)]
        found = sorted(sum(parts, []))
        print(f"{name} on {nodes}: {parts}" + ("" if found == whole else f", NOT those of {whole}"))
        assert found == wanted.get((name, nodes), whole), f"changed: {name} on {nodes} nodes"
PY
env/bin/python program.py
