#!/bin/sh
# What a user gets who installs today: newest.sh INTERPRETER [STACK ...].  Each stack has an environment of its own in
# build/newest, with the newest of everything that pip finds for this interpreter, and prints its versions and how many
# tests passed.  WORDS has further arguments for pytest.
set -eu

ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=$1
shift
OTHERS=tests/frameworks/others
status=0

# One row: stack, what is installed for it beside the core's tests' needs, the versions that are told, what is run.
row() {
    case $1 in
        core) wants="mpi4py matplotlib"; told="numpy ml_dtypes mpi4py"
            runs="tests/kernels tests/algorithms tests/collectives/calls tests/collectives/arrays
                tests/collectives/communicator"
            # The torch row has those that import torch.
            runs="$runs $(grep -rlE '^ *(import|from) torch\b' $runs --include='test_*.py' | sed "s/^/--ignore=/")" ;;
        torch) wants="torch expecttest scikit-learn"; told="torch numpy ml_dtypes"; runs="--torch" ;;
        training) wants="torch transformers accelerate deepspeed lightning torchft-nightly tabulate"
            told="torch transformers accelerate deepspeed lightning torchft-nightly"
            runs="$OTHERS/test_others.py $OTHERS/test_hugging_face.py $OTHERS/test_torchft.py $OTHERS/test_outer.py
                $OTHERS/test_debug_server.py" ;;
        jax) wants="jax scikit-learn"; told="jax numpy"
            runs="$OTHERS/test_jax.py $OTHERS/test_jax_start.py $OTHERS/test_jax_failures.py" ;;
        clusters) wants="ray[train] distributed flwr torch scikit-learn"; told="ray distributed flwr"
            runs="$OTHERS/test_ray.py $OTHERS/test_dask.py $OTHERS/test_flower.py" ;;
        trees) wants="lightgbm xgboost-cpu scikit-learn"; told="lightgbm xgboost-cpu numpy"
            runs="$OTHERS/test_lightgbm.py $OTHERS/test_xgboost.py" ;;
        *) echo "newest.sh: no stack is called $1: core torch training jax clusters trees"; exit 2 ;;
    esac
}

cd "$ROOT"
for stack in ${*:-core torch training jax clusters trees}; do
    row "$stack"
    place=build/newest/$stack
    [ -x "$place/bin/python" ] || "$PYTHON" -m venv "$place"
    pip="$place/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --upgrade"
    # shellcheck disable=SC2086
    $pip setuptools cython numpy $wants
    "$place/bin/python" setup.py --quiet build_ext --inplace
    $pip --no-build-isolation --editable '.[test-core]'
    echo "$stack: $("$place/bin/python" -V), $("$place/bin/python" -c '
import sys, importlib.metadata as m
print(", ".join(f"{each} {m.version(each)}" for each in sys.argv[1:]))' $told)"
    # shellcheck disable=SC2086
    "$place/bin/python" -m pytest --workers 2 -p no:cacheprovider $runs ${WORDS:-} || status=1
done
exit $status
