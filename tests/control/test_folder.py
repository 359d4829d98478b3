"""A store in a folder: whole values, and one winner of a race of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hocket.control.folder import FolderStore
from hocket.errors import TransportError

KEYS = 30
RACER = """
import sys, time
from hocket.control.folder import FolderStore
store = FolderStore(sys.argv[1])
sys.stdout.write("ready\\n"); sys.stdout.flush()
sys.stdin.readline()
print(*[store.first(f"a/{i}", sys.argv[2] * 1000) == sys.argv[2] * 1000 for i in range(30)])
"""


def test_what_is_set_is_read_by_any_key(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    assert store.get("a/b") is None
    store.set("a/b", "one"), store.set("a%2Fb", "two"), store.set("a/b", "three")
    assert (store.get("a/b"), store.get("a%2Fb")) == ("three", "two")
    assert store.first("a/b", "four") == "three" and store.first("c", "four") == "four" == store.get("c")
    assert len(os.listdir(store.path)) == 3, "nothing else stays there"


def test_one_of_the_processes_that_race_wins(tmp_path: Path) -> None:
    """And all read its whole value."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path / "store"), name], env=env, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in "abcd"
    ]  # fmt: skip
    for each in racers:
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    for each in racers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    won = [each.communicate(timeout=30)[0].split() for each in racers]
    assert all([row[i] for row in won].count("True") == 1 for i in range(KEYS)), won


def test_threads_that_race(tmp_path: Path) -> None:
    store, found = FolderStore(tmp_path / "store"), list[str]()
    threads = [threading.Thread(target=lambda i=i: found.append(store.first("key", str(i)))) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(found)) == 1


def test_a_folder_that_others_can_write_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    os.chmod(tmp_path / "open", 0o777)
    with pytest.raises(TransportError, match="mode 0700"):
        FolderStore(tmp_path / "open")
