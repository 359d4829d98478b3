#!/usr/bin/env bash
# Guess: inside a test, runpy.run_module("package") runs the package's __main__ as `python -m package` does.
# Seen (pytest 9.2.0, CPython 3.11): it does for a package that pytest only imports.  For one that a conftest.py has
# registered for assertion rewriting it raises AttributeError, as the loader that pytest puts in place of Python's has no
# get_code(): the same line of a test works or fails by what somebody registered.  runpy.run_path() of the file works.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/pip install --quiet pytest==9.2.0
for name in plain rewritten; do
    mkdir $name
    echo "" > $name/__init__.py
    echo "print('ran', __name__)" > $name/__main__.py
done
cat > conftest.py <<'PY'
import pytest
pytest.register_assert_rewrite("rewritten")
PY
cat > test_it.py <<'PY'
import runpy
import sys

import pytest

sys.path.insert(0, ".")


def test_plain():
    assert runpy.run_module("plain", run_name="__main__")["__name__"] == "__main__"


def test_rewritten():
    with pytest.raises(AttributeError, match="get_code"):
        runpy.run_module("rewritten", run_name="__main__")
    assert runpy.run_path("rewritten/__main__.py", run_name="__main__")["__name__"] == "__main__"
PY
env/bin/python -m pytest -q -p no:cacheprovider test_it.py | tee said
grep -q "2 passed" said
