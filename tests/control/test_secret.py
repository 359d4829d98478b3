"""The job's secret: what is refused, where it may lie, what it costs, and where it is not to be seen."""

from __future__ import annotations

import os
import pathlib
import re
import secrets
import stat
import subprocess
import sys
import tempfile
import time

import pytest

from hocket.collectives.base.config import Config
from hocket.collectives.job.place import Place, meeting_path
from hocket.control import secret
from hocket.errors import ArgumentError
from hocket.system.namespaces import hosts
from hocket.transports.base import Context

GOOD = "of this job, long enough"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tooshort", "is 8 bytes long"),
        ("a" * 40, "repeats 1 byte;"),
        ("password" * 4, "repeats 8 bytes"),
        ("1234567890123456", "repeats 10 bytes"),
        ("passwordpassword12"[:-2], "repeats 8 bytes"),
        ("0" * 64, "repeats 1 byte;"),
        ("abababbaabbaabaab", "consists of 2 different characters"),
        ("0123456789abcdef" * 2, "is a row of neighbours"),
        ("zyxwvutsrqponmlkjihg", "is a row of neighbours"),
        ("20260101199912310815", "consists of 20 digits only"),
    ],
)
def test_what_everybody_would_guess_is_refused_and_not_shown(text: str, why: str) -> None:
    told = f"HOCKET_SECRET {why}.*{re.escape(secret.MAKE_ONE)}.*at least 16"
    with pytest.raises(ArgumentError, match=told) as caught:
        Config.from_env({"HOCKET_SECRET": text})
    assert text not in str(caught.value)


def test_what_the_command_makes_is_taken_as_it_is() -> None:
    command = secret.MAKE_ONE.replace("python", sys.executable, 1)
    made = subprocess.check_output(command, shell=True, text=True).strip()
    assert Config.from_env({"HOCKET_SECRET": made}).secret == bytes.fromhex(made)
    for _ in range(2000):
        assert secret.why_trivial(secrets.token_hex(16).encode()) == ""
        assert secret.why_trivial(secrets.token_urlsafe(12).encode()) == ""


def test_others_are_stretched_once_and_the_same_everywhere() -> None:
    """A stranger who was given one proof to test guesses by pays for each of them what a rank pays once."""
    text = secrets.token_hex(12).encode()
    begun = time.thread_time()
    made = secret.key(text)
    spent = time.thread_time() - begun
    assert 0.01 < spent < 2 and len(made) == 32 and made != text
    begun = time.thread_time()
    assert secret.key(text) == made and time.thread_time() - begun < spent / 10
    code = f"from hocket.control.secret import key; print(key({text!r}).hex())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == made.hex()


def from_file(path: pathlib.Path) -> bytes | None:
    return Config.from_env({"HOCKET_SECRET_FILE": str(path)}).secret


def test_a_file_of_ones_own_must_be_private(tmp_path: pathlib.Path) -> None:
    path, link = tmp_path / "secret", tmp_path / "link"
    path.write_text(GOOD + "\n")
    path.chmod(0o600)
    link.symlink_to(path)
    assert from_file(path) == secret.key(GOOD.encode())
    with pytest.raises(ArgumentError, match="not a link"):
        from_file(link)
    path.chmod(0o640)
    with pytest.raises(ArgumentError, match="mode 0640"):
        from_file(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(ArgumentError, match="is 5 bytes long"):
        from_file(path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ArgumentError, match="HOCKET_SECRET_FILE"):
        from_file(tmp_path / "fifo")
    assert stat.S_ISFIFO(os.stat(tmp_path / "fifo").st_mode)


def test_a_foreign_file_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text(GOOD)
    path.chmod(0o600)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(ArgumentError, match=f"belongs to user {uid}"):
        from_file(path)


MOUNTED = """
set -e
mount -t tmpfs -o mode=755 none "$1"
mkdir "$1/..2026_11_22"
printf %s "$2" > "$1/..2026_11_22/token"
printf %s "$2" > "$1/..2026_11_22/writable"
chmod 0444 "$1/..2026_11_22/token"
chmod 0666 "$1/..2026_11_22/writable"
ln -s ..2026_11_22 "$1/..data"
ln -s ..data/token "$1/token"
ln -s ..data/writable "$1/writable"
$4 mount -o remount,ro "$1"
"$3" -c '
import os, sys
from hocket.control.secret import read_file
os.setgid(65534)
os.setuid(65534)
for name in ("token", "writable"):
    try:
        print(name, read_file(sys.argv[1] + "/" + name).hex())
    except ValueError as why:
        print(name, why)
' "$1"
"""


@pytest.mark.skipif(bool(hosts.refusal()), reason="this system lets us mount nothing")
@pytest.mark.parametrize("readonly", [True, False])
def test_a_volume_that_kubernetes_mounts(readonly: bool) -> None:
    """Links to root's files that others may read, for a process of another user; only if it is mounted read-only."""
    where = tempfile.mkdtemp()
    os.chmod(where, 0o755)
    words = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", where, GOOD, sys.executable, "" if readonly else "echo"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    os.rmdir(where)
    assert done.returncode == 0, done.stderr
    *_, token, writable = done.stdout.splitlines()
    if readonly:
        assert token == f"token {secret.key(GOOD.encode()).hex()}"
    else:
        assert "a link to a file that has mode 0444" in token
    assert "mode 0666 and belongs to user 0" in writable


def test_it_is_out_of_the_environment_once_it_was_read() -> None:
    """Out of what the kernel shows of this process, too; and the rest of that is whole."""
    code = """
import os, hocket
hocket.init()
shown = dict(each.split(b"=", 1) for each in open("/proc/self/environ", "rb").read().split(b"\\0") if b"=" in each)
print(os.environ.get("HOCKET_SECRET"), set(shown[b"HOCKET_SECRET"]) == {ord("*")}, shown[b"ZZ"].decode())
"""
    env = {**os.environ, "HOCKET_SECRET": GOOD, "ZZ": "whole"}
    told = subprocess.check_output([sys.executable, "-c", code], env=env, text=True, cold=True)
    assert told.split() == ["None", "True", "whole"]


def test_no_repr_shows_a_key() -> None:
    key = b"the session's key"
    context = Context(0, 2, key, "job", None)  # type: ignore[arg-type]
    place = Place(0, 2, 0, "x", ("unix", "/x"), "job", key, True, "why")
    for each in (context, place, Config(secret=key)):
        assert "session" not in repr(each)


# --- the directory where ranks of a host meet

def test_a_directory_of_the_users_own_is_preferred(tmp_path: pathlib.Path) -> None:
    """Another user, who was first in /tmp, stops nobody who has a runtime directory."""
    for mode, chosen in ((0o700, True), (0o755, False)):
        tmp_path.chmod(mode)
        path = meeting_path({"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": "/var/tmp"}, "job")
        assert path.startswith(str(tmp_path) if chosen else "/var/tmp"), path
    assert meeting_path({"XDG_RUNTIME_DIR": str(tmp_path / ("x" * 120))}, "job").startswith("/tmp/hocket-")


SQUATTED = "import hocket; hocket.init(timeout=1)"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_squatted_directory_is_refused_with_what_to_do(tmp_path: pathlib.Path) -> None:
    tmp_path.chmod(0o1777)
    squat = tmp_path / f"hocket-{os.geteuid()}"
    squat.mkdir()
    os.chown(squat, 65534, 65534)
    names = ("HOCKET_", "RANK", "WORLD_", "MASTER_", "LOCAL_", "XDG_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    env = {**clean, "TMPDIR": str(tmp_path), "RANK": "0", "WORLD_SIZE": "2"}
    words = [sys.executable, "-c", SQUATTED]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and "of user 65534" in last and "set TMPDIR (or XDG_RUNTIME_DIR)" in last
    (tmp_path / "own").mkdir(mode=0o700)
    done = subprocess.run(
        words, env={**env, "XDG_RUNTIME_DIR": str(tmp_path / "own")}, capture_output=True, text=True, timeout=30
    )
    assert "ranks [1] did not come" in done.stderr
