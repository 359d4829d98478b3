"""Ranks that are forked from a warm process are as if started: these tests start each program both ways."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hocket.tools.forking import allowed
from support.cases import more
from support.launcher import RUN, START, alive, pids, until_dead, until_lines

CORE = min(os.sched_getaffinity(0))
FORKED = "sys.stdout.write(f'forked {\"hocket.collectives.public\" in sys.modules}\\n')\n"
TELL = """
import json, os, sys
VARYING = "HOCKET_LAST_WORDS", "HOCKET_RECORDER_FD", "MASTER_PORT"
here = {name: value for name, value in os.environ.items() if name not in VARYING}
secret, meeting = here.pop("HOCKET_SECRET"), here.pop("HOCKET_RENDEZVOUS")
sys.stdout.write(json.dumps({
    "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "name": __name__, "file": globals().get("__file__"),
    "spec": getattr(globals().get("__spec__"), "name", None),
    "command": open("/proc/self/cmdline").read(), "env": sorted(here.items()),
    "flags": str(sys.flags), "out": [sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.encoding],
    "in": os.read(0, 100).decode(), "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
    "from run": "--no-prefix" in open(f"/proc/{os.getppid()}/cmdline").read(), "secret": len(secret),
    "meeting": meeting[:5], "fds": len(os.listdir("/proc/self/fd")),
    "masks": [line for line in open("/proc/self/status") if line.startswith(("SigB", "SigI", "SigC"))],
}) + "\\n")
"""


def start(words: list[str], *options: str, n: int = 2, **kw: Any) -> subprocess.Popen[str]:
    """`hocket run` on one core, so that it forks."""
    pipe, env = subprocess.PIPE, {name: v for name, v in os.environ.items() if not name.startswith("HOCKET_")}
    return subprocess.Popen(
        [*RUN, "-n", str(n), *options, "--", *words],
        stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
        **{"preexec_fn": lambda: os.sched_setaffinity(0, {CORE}), **kw, "env": env | kw.get("env", {})},
    )  # fmt: skip


def ended(words: list[str], *options: str, **kw: Any) -> tuple[int, list[str], list[str]]:
    """Exit code, and what ranks wrote: a rank's lines together."""
    process = start(words, *options, **kw)
    out, err = process.communicate(timeout=60)
    return process.returncode, sorted(out.splitlines(), key=lambda line: line[:3]), sorted(err.splitlines())


def forked(words: list[str], *options: str, **kw: Any) -> bool:
    """Are this program's ranks forked?  It prints FORKED's line."""
    code, out, err = ended(words, *options, **kw)
    said = {line.split()[-1] for line in out if line[4:].startswith("forked ")}
    assert code == 0 and len(said) == 1, (out, err)
    return said == {"True"}


@pytest.mark.parametrize("way", ["script", "-m", *more("-c")])
def test_a_forked_rank_finds_what_a_started_one_finds(way: str, tmp_path: Path) -> None:
    text = TELL + FORKED
    (tmp_path / "program.py").write_text(text)
    words = {"script": ["program.py"], "-c": ["-c", text], "-m": ["-m", "program"]}[way]
    command = [sys.executable, "-u", "-W", "ignore", "-Xdev", *words, "an", "argument"]
    env = {"PYTHONPATH": "/nowhere", "OF_THE_USER": "1"}
    ours, theirs = (ended(command, "--no-prefix", *options, cwd=tmp_path, env=env) for options in ([], ["--no-fork"]))
    assert ours[0] == 0 and len(ours[1]) == 4 and '"from run": true' in ours[1][-1], ours
    assert sorted(ours[1])[2:] == sorted(theirs[1])[2:]
    assert sorted(ours[1])[:2] == ["forked True"] * 2 and sorted(theirs[1])[:2] == ["forked False"] * 2


def test_ends_and_tracebacks_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import atexit, os, signal, sys\n"
        "rank = int(os.environ['HOCKET_RANK'])\n"
        "atexit.register(print, 'at exit')\n"
        "class Late:\n    def __del__(self): print('dropped')\nlate = Late()\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGUSR2)\n"
        "if rank == 2: sys.exit(7)\n"
        "if rank == 3: sys.exit('a text')\n"
        "if rank == 4:\n    try: 1 / 0\n    except ZeroDivisionError: raise KeyError('missing')\n"
        "if rank == 5: raise KeyboardInterrupt\n"
    )
    command = [sys.executable, str(tmp_path / "program.py")]
    ours, theirs = (ended(command, "--elastic", *options, n=6) for options in ([], ["--no-fork"]))
    ours, theirs = ((code, out, [line for line in err if "pid" not in line]) for code, out, err in (ours, theirs))
    assert ours == theirs and len([line for line in ours[1] if "dropped" in line]) == 5
    assert any("KeyError: 'missing'" in line for line in ours[2])
    code, _, err = ended([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert code == 137 and "was killed by SIGKILL" in err[0]


LEFT = """
import atexit, os, sys, threading, time, weakref
import numpy as np

class Last:
    def __del__(self, np=np):
        print("dropped", np.ones(2).tolist(), flush=True)
        import gc

class Held:
    pass

file = open(sys.argv[1] + os.environ["HOCKET_RANK"], "w")
file.write("flushed though nobody closes it")
last, held = Last(), Held()
weakref.finalize(held, print, "finalized")
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.1), print("a thread"))).start()
"""


def test_the_end_of_a_forked_rank_is_that_of_a_started_one(tmp_path: Path) -> None:
    """Threads, finalizers, files that nobody closes; what runs so late finds NumPy whole, and can import nothing."""
    (tmp_path / "left.py").write_text(LEFT)
    ends = []
    for options in ([], ["--no-fork"]):
        told = tmp_path / f"told-{len(options)}-"
        code, out, err = ended([sys.executable, str(tmp_path / "left.py"), str(told)], *options)
        ends.append((code, sorted(out), [re.sub("0x[0-9a-f]+", "", line) for line in err]))
        assert [Path(f"{told}{rank}").read_text() for rank in range(2)] == ["flushed though nobody closes it"] * 2
    assert ends[0] == ends[1] and len(ends[0][1]) == 8, ends
    assert sum("ImportError" in line for line in ends[0][2]) == 2, ends


def test_forked_ranks_die_with_a_killed_launcher_and_the_server_is_gone_when_they_run() -> None:
    process = start([sys.executable, "-c", START + "print('from', os.getppid()); time.sleep(60)"], n=3)
    out = until_lines(process, 6)
    assert {line.split()[-1] for line in out.splitlines() if "from" in line} == {str(process.pid)}
    end = time.monotonic() + 60
    while (children := _children(process.pid)) != sorted(pids(out)):
        assert time.monotonic() < end, children
        time.sleep(0.01)
    process.kill()
    process.communicate()
    until_dead(pids(out))


def _children(pid: int) -> list[int]:
    return sorted(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_a_signal_ends_a_job_whose_server_still_imports(tmp_path: Path) -> None:
    """A file system may take its time."""
    (tmp_path / "numpy.py").write_text(f"open({str(tmp_path / 'begun')!r}, 'w'); import time; time.sleep(60)")
    process = start([sys.executable, "-c", "pass"], env={"PYTHONPATH": str(tmp_path)})
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    (server,) = _children(process.pid)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143 and not alive(server)


def test_ranks_do_not_share_their_dice() -> None:
    code, out, err = ended([sys.executable, "-c", "import numpy.random, random, os; print(numpy.random.rand()); "
                            "print(random.random()); print(os.urandom(4))"], n=3)  # fmt: skip
    assert code == 0 and len({line[4:] for line in out}) == 9, (out, err)


def test_numpys_dice_are_thrown_again_where_the_server_has_them(tmp_path: Path) -> None:
    """NumPy 1 imports them with itself; here the system's own sitecustomize does, which runs once."""
    (tmp_path / "sitecustomize.py").write_text("import numpy.random\nprint('custom', flush=True)\n")
    program = "import numpy.random, sys\nprint(numpy.random.rand())\n" + FORKED
    code, out, err = ended([sys.executable, "-c", program], n=3, env={"PYTHONPATH": str(tmp_path)})
    assert code == 0 and [line[4:] for line in out].count("forked True") == 3, (out, err)
    assert len({line[4:] for line in out if line[0] == '['}) == 4, out


def test_what_is_not_forked(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys\n" + FORKED]
    assert forked(program)
    assert not forked(program, preexec_fn=lambda: os.sched_setaffinity(0, {CORE}), n=1)
    assert not forked([sys.executable, "-I", *program[1:]])
    assert not forked([sys.executable, "-c", program[2] + "# OMP_NUM_THREADS"])
    other = tmp_path / "python"
    other.symlink_to(os.path.realpath(sys.executable))
    assert not forked([str(other), "-c", "import sys\n" + FORKED])
    script = tmp_path / "program.py"
    script.write_text("import sys\n" + FORKED)
    assert forked([sys.executable, str(script)])
    (tmp_path / "selectors.py").write_text("")
    assert not forked([sys.executable, str(script)]), "it may mean its own"


def test_a_server_that_cannot_import_leaves_it_to_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('broken')")
    code, out, err = ended([sys.executable, "-c", "import numpy"], env={"PYTHONPATH": str(tmp_path)})
    assert code == 1 and sum("RuntimeError: broken" in line for line in err) >= 2, err


def test_ranks_are_started_where_no_server_can_be() -> None:
    """The system may have no process left for it."""
    no = "def no(*of): raise BlockingIOError(11, 'no process')\n"
    modules = "import sys; from hocket.tools import here, run"
    launcher = f"{modules}\n{no}here.fork_server = no\nsys.exit(run.main(sys.argv[1:]))"
    command = [sys.executable, "-c", launcher, "-n", "2", "--", sys.executable, "-c", "import sys\n" + FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60,
                          preexec_fn=lambda: os.sched_setaffinity(0, {CORE}))  # fmt: skip
    assert done.returncode == 0 and done.stdout.count("forked False") == 2, done


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["-c", "pass"], "."), (["-m", "package", "-I"], "."), (["-u", "-Wignore", "-X", "dev", "HERE/a.py"], "HERE"),
        (["-uB", "HERE/a.py", "-I"], "HERE"), (["HERE/b.py"], None), (["-c", "X_NUM_THREADS"], None),
        (["-I", "-c", "pass"], None), (["-uE", "-c", "pass"], None), (["-S", "HERE/a.py"], None), (["-"], None),
        ([], None), (["-c"], None), (["--version"], None), (["-V"], None), (["HERE/none.py"], None),
        (["-i", "HERE/a.py"], None),
    ],
)  # fmt: skip
def test_which_command_lines_may_be_forked(words: list[str], folder: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("pass")
    (tmp_path / "b.py").write_text("os.environ['OPENBLAS_NUM_THREADS'] = '1'")
    here = [word.replace("HERE", str(tmp_path)) for word in words]
    wanted = {None: None, ".": os.getcwd(), "HERE": os.path.realpath(tmp_path)}[folder]
    assert allowed.folder([sys.executable, *here]) == wanted
    assert allowed.folder(["/bin/sh", *here]) is allowed.folder(["no such program", *here]) is None
