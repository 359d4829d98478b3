"""The directories of `hocket run`: which ones, that killed launchers have left, the next one removes."""

import contextlib
import fcntl
import os
import pathlib
import resource
import subprocess

import pytest

from hocket.system import machine
from hocket.tools import run as launcher
from hocket.tools.run_folder import LOCK, PREFIX, of_this_host, place, remove_left
from support.launcher import RUN

NOBODY = 65534


@contextlib.contextmanager
def directory(path):
    path.mkdir(mode=0o700)
    (path / "words-0").write_text("what somebody has written")
    with open(path / LOCK, "w") as lock:
        yield lock


def test_only_what_a_dead_launcher_of_this_host_has_left_is_removed(tmp_path):
    mine = of_this_host()
    with directory(tmp_path / f"{mine}0123abcd"):
        pass
    kept = {f"{mine}livelive", f"{PREFIX}thesis", f"{PREFIX}0ther1-0123abcd", f"{mine}fifofifo", f"{mine}linklink",
            f"{mine}nolock__", f"{mine}afileafi"}  # fmt: skip
    for name in (f"{PREFIX}thesis", f"{PREFIX}0ther1-0123abcd"):  # a user's own; another host's, whose lock is not seen
        with directory(tmp_path / name):
            pass
    (tmp_path / f"{mine}fifofifo").mkdir()
    os.mkfifo(tmp_path / f"{mine}fifofifo" / LOCK)
    (tmp_path / f"{mine}linklink").symlink_to(tmp_path / f"{PREFIX}thesis")
    (tmp_path / f"{mine}nolock__").mkdir()
    (tmp_path / f"{mine}afileafi").write_text("")
    with directory(tmp_path / f"{mine}livelive") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_left(str(tmp_path), mine)
    assert set(os.listdir(tmp_path)) == kept
    assert (tmp_path / f"{PREFIX}thesis" / "words-0").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another user")
def test_what_belongs_to_another_user_is_not_looked_into(tmp_path):
    mine = of_this_host()
    for name in ("file", "fifo"):
        path = tmp_path / f"{mine}{name * 2}"
        path.mkdir()
        (os.mkfifo if name == "fifo" else pathlib.Path.touch)(path / LOCK)
        os.chown(path, NOBODY, NOBODY)
    remove_left(str(tmp_path), mine)
    assert len(os.listdir(tmp_path)) == 2


def test_it_is_made_where_it_can_be(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    short = pathlib.Path("/tmp", f"hk-{os.getpid()}")
    short.mkdir()
    monkeypatch.setattr(machine, "USUAL", ["/proc/nonexistent", str(short)])
    with place() as made:
        assert made.startswith(f"{short}/{PREFIX}") and len(made) + len("/meet") < 108
    short.rmdir()
    monkeypatch.setattr(machine, "USUAL", ["/proc/nonexistent"])
    assert launcher.main(["-n", "1", "true"]) == 1
    said = capfd.readouterr().err
    assert said.startswith("hocket run: no folder can be made (/nonexistent: No such file") and "set TMPDIR" in said


def test_files_need_not_be_written():
    """`ulimit -f 0`, which Python's own search for a temporary directory does not survive."""
    done = subprocess.run(
        [*RUN, "-n", "1", "--", "true"], capture_output=True, text=True, timeout=20,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
