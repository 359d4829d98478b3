"""`hocket run` with real processes: output, failures, signals, and that nothing is left behind."""

import fcntl
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time

import pytest

import hocket
from hocket.collectives.job import last_words
from hocket.tools.output import Screen, Source

TIMES = int(os.environ.get("LAUNCHER_TIMES", "1"))  # of each way to fail: races show in twenty
RUN = [sys.executable, "-c", "import sys; from hocket.tools.run import main; sys.exit(main(sys.argv[1:]))"]
# Every rank says its pid on a line "pid N", so that the tests can look whether it is still there.
START = "import os, sys, time, signal; rank = int(os.environ['HOCKET_RANK']); print('pid', os.getpid());"


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def run(tmp_path):
    """run(n, program, ...) is a finished run; run.start an unfinished one.  Afterwards nothing must be left."""
    tmp = tempfile.mkdtemp(prefix="hk-", dir="/tmp")  # short: a long one would not be used
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
    env["TMPDIR"] = tmp
    started = []

    def start(n, program, *options, **kw):
        (tmp_path / "program.py").write_text(program)
        command = [*RUN, "-n", str(n), *options, str(tmp_path / "program.py")]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": env}
        started.append(subprocess.Popen(command, text=True, **{**pipes, **kw}))
        return started[-1]

    def finished(n, program, *options, **kw):
        process = start(n, program, *options, **kw)
        out, err = process.communicate(timeout=30)
        return process.returncode, out or "", err or ""

    finished.start, finished.tmp, finished.env = start, tmp, env
    yield finished
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    left = [name for name in os.listdir(tmp) if name != f"hocket-{os.geteuid()}"]  # where torch's ranks meet
    shutil.rmtree(tmp)
    assert left == []


def pids(text):
    return [int(found) for found in re.findall(r"pid (\d+)", text)]


def until_lines(process, count):
    return "".join(process.stdout.readline() for _ in range(count))


def test_every_rank_knows_its_place_and_the_secret(run):
    code, out, err = run(3, """
import os, sys
sys.stdout.write(" ".join(os.environ["HOCKET_" + name] for name in sys.argv[1:]) + "\\n")
""".replace("sys.argv[1:]", "('RANK', 'SIZE', 'LOCAL_RANK', 'LOCAL_SIZE', 'RENDEZVOUS', 'SECRET')"))
    assert code == 0 and err == ""
    lines = sorted(out.splitlines())
    assert [line.split()[:5] for line in lines] == [[f"[{r}]", str(r), "3", str(r), "3"] for r in range(3)]
    assert len({tuple(line.split()[5:]) for line in lines}) == 1
    assert len(lines[0].split()[6]) == 64 and lines[0].split()[5].startswith("unix:")


def test_the_variables_of_torchrun_are_there_too(run):
    """For programs of torch alone; a number of threads that the user chose stays."""
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS"
    program = f"import os; print(*(os.environ.get(name) for name in {names.split()}))"
    run.env.pop("OMP_NUM_THREADS", None)
    out = run(2, program)[1]
    found = sorted(line.split() for line in out.splitlines())
    assert [line[:6] for line in found] == [[f"[{r}]", str(r), "2", str(r), "2", "127.0.0.1"] for r in range(2)]
    assert found[0][6] == found[1][6] and 0 < int(found[0][6]) < 65536 and [line[7] for line in found] == ["1", "1"]
    run.env["OMP_NUM_THREADS"] = "3"
    assert run(2, program)[1].count(" 3\n") == 2
    del run.env["OMP_NUM_THREADS"]
    assert run(1, program)[1].endswith(" None\n"), "one rank may take all cores"


def test_a_program_of_torch_alone(run):
    """As under torchrun: it finds its place by env://."""
    pytest.importorskip("torch")
    code, out, err = run(2, """
import os, torch, torch.distributed as dist
for backend in ("gloo", "hocket"):
    dist.init_process_group(backend)
    x = torch.ones(3) + dist.get_rank()
    dist.all_reduce(x)
    print(backend, dist.get_world_size(), int(os.environ["LOCAL_RANK"]), x[0].item())
    dist.destroy_process_group()
""", env={**run.env, "GLOO_SOCKET_IFNAME": "lo"})
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[{rank}] {b} 2 {rank} 3.0" for rank in range(2) for b in ("gloo", "hocket")]


def test_a_long_tmpdir_does_not_keep_ranks_from_shared_memory(run, tmp_path):
    """Its sockets' paths would not fit."""
    place = tmp_path / ("x" * 100) / ("y" * 100)
    place.mkdir(parents=True)
    program = "import hocket\nwith hocket.init() as comm: print(comm.world.road(1 - comm.rank))"
    code, out, err = run(2, program, env={**run.env, "TMPDIR": str(place)})
    assert (code, sorted(out.splitlines())) == (0, ["[0] shm", "[1] shm"]), err
    assert os.listdir(place) == []


def test_ranks_meet(run):
    code, out, err = run(3, """
import os
from hocket.collectives.job.config import Config
from hocket.collectives.job.launchers import detect
from hocket.control.rendezvous import join
config = Config.from_env()
place = detect(os.environ, config)
session = join(place.rank, place.size, place.address, place.key, place.job, 10)
print(place.launcher, session.exchange(place.rank, 10))
session.close()
""")
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [f"[{rank}] hocket run [0, 1, 2]" for rank in range(3)]


def test_lines_stay_whole_and_the_streams_apart(run):
    code, out, err = run(3, START + """
for i in range(200):
    print("out", rank, i)
    print("err", rank, i, file=sys.stderr)
""")
    assert code == 0
    for stream, text in (("out", out), ("err", err)):
        lines = [line for line in text.splitlines() if "pid" not in line]
        for rank in range(3):
            mine = [line for line in lines if line.startswith(f"[{rank}]")]
            assert mine == [f"[{rank}] {stream} {rank} {i}" for i in range(200)]
        assert len(lines) == 600


def test_no_prefix_and_arguments_and_plain_commands(run, tmp_path):
    code, out, _ = run(2, "import os; os.write(1, b'plain\\n')", "--no-prefix")
    assert code == 0 and out == "plain\nplain\n"
    done = subprocess.run([*RUN, "-n", "2", "--", "echo", "-n", "x y"], capture_output=True, text=True, timeout=20)
    assert sorted(done.stdout.splitlines()) == ["[0] x y", "[1] x y"]


def test_a_prompt_is_seen_at_once(run):
    process = run.start(2, START + """
if rank == 0:
    sys.stdout.write("name? ")
    print("hello", sys.stdin.readline())
else:
    assert sys.stdin.read() == ""
""", stdin=subprocess.PIPE)
    said = b""
    while not said.endswith(b"[0] name? "):  # raw: a buffered reader would wait for the line's end
        said += os.read(process.stdout.fileno(), 100)
    out, _ = process.communicate("you\n", timeout=10)
    assert "hello you" in out and process.returncode == 0


def test_the_first_failure_ends_the_job(run):
    began = time.monotonic()
    code, out, err = run(3, START + """
if rank == 1:
    time.sleep(0.3)
    sys.exit(7)
time.sleep(60)
""", "--timeout-grace", "0.3")
    assert code == 7 and time.monotonic() - began < 5
    assert re.search(r"hocket run: rank 1 \(pid \d+\) ended with exit code 7", err) and err.count("hocket run:") == 1
    assert len(pids(out)) == 3 and not any(map(alive, pids(out)))


# Every rank computes with the others; rank 1 of three fails in its own way.  (Survivors raise, and may end before it.)
FAILS = """
import os, signal, sys, time
import hocket, numpy as np
comm = hocket.init()
x = np.ones(1000)
HOW
for _ in range(100):
    comm.allreduce(x)
    time.sleep(0.01)
"""
WAYS = {
    "raises": ("if comm.rank == 1: raise ValueError('bad\\nluck')", 1, r"ended with exit code 1 \(ValueError: bad\)"),
    "slow to end": (
        "import atexit\nif comm.rank == 1: atexit.register(time.sleep, 0.5); raise ValueError('bad')",
        1, r"ended with exit code 1 \(ValueError: bad\)",
    ),
    "in with": ("if comm.rank == 1:\n  with comm: raise KeyError('k')", 1, r"exit code 1 \(KeyError: 'k'\)"),
    "exits": ("if comm.rank == 1: sys.exit(7)", 7, "ended with exit code 7;"),
    "leaves": ("if comm.rank == 1: os._exit(9)", 9, "ended with exit code 9;"),
    "is killed": ("if comm.rank == 1: os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL;"),
    "survivors catch": (
        "import atexit\nif comm.rank == 1: atexit.register(time.sleep, 0.3); sys.exit(7)\n"
        "try: comm.barrier(); comm.barrier()\nexcept hocket.PeerLostError: sys.exit(5)",
        7, "ended with exit code 7;",
    ),
    "survivors raise their own": (
        "if comm.rank == 1: os._exit(9)\n"
        "try: comm.barrier()\nexcept hocket.PeerLostError as why: raise RuntimeError('no') from why",
        9, "ended with exit code 9;",
    ),
}  # fmt: skip


# Those that others show nearly as well.
MORE = ("slow to end", "in with", "exits", "survivors raise their own")


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.more) if way in MORE else way for way in WAYS])
def test_the_rank_that_began_is_named(run, way):
    how, wanted, words = WAYS[way]
    for _ in range(TIMES):
        code, _, err = run(3, FAILS.replace("HOW", how), env=run.env)
        said = [line for line in err.splitlines() if line.startswith("hocket run:")]
        assert len(said) == 1 and re.match(rf"hocket run: rank 1 \(pid \d+\) .*{words}", said[0]), err
        assert code == wanted, err


def test_ranks_that_disagree_are_named_with_what_they_said(run):
    """No rank is the one that began: the first, and its words."""
    code, _, err = run(2, FAILS.replace("HOW", "comm.broadcast(x, root=comm.rank)"), env=run.env)
    assert code == 1 and re.search(r"hocket run: rank [01] \(pid \d+\) .*\(MismatchError: the ranks called", err), err
    assert err.count("hocket run:") == 1


class Broken(hocket.PeerLostError):
    """What a communicator is broken by that this rank itself gave up."""


def test_words_of_ranks():
    """Which errors follow from another rank, and what is told of them."""
    said = {}
    errors = [
        ValueError("x\ny"), KeyboardInterrupt(), hocket.PeerLostError("rank 1 is gone", [1]), hocket.ArgumentError("a"),
        hocket.TimeoutError("t"), Broken("this rank failed earlier"), RuntimeError("\x1b[2J" + "z" * 400),
    ]  # fmt: skip
    errors[-1].__context__ = errors[2]
    with tempfile.TemporaryDirectory() as place:
        for error in errors:
            path = os.path.join(place, "words")
            last_words.tell({last_words.PLACE: path}, error, [])
            said[type(error).__name__] = last_words.heard(path)
        last_words.tell({}, errors[0], [])
        last_words.tell({last_words.PLACE: path + "/no/such"}, errors[0], [])
        assert last_words.heard(path + "/no/such") is None
    assert said["ValueError"] == (False, "ValueError: x") and said["KeyboardInterrupt"] == (False, "KeyboardInterrupt")
    assert said["PeerLostError"] == (True, "PeerLostError: rank 1 is gone") and said["TimeoutError"].followed
    assert not said["ArgumentError"].followed and not said["Broken"].followed and said["RuntimeError"].followed
    assert len(said["RuntimeError"].text) == last_words.LONGEST and "\x1b" not in said["RuntimeError"].text


def test_the_others_have_time_to_report(run):
    code, _, err = run(2, START + """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
print("I saw it", file=sys.stderr)
sys.exit(3)
""")
    assert code == 137 and "[0] I saw it" in err and "rank 1" in err and "was killed by SIGKILL" in err


def test_a_rank_that_ignores_sigterm_is_killed(run):
    began = time.monotonic()
    code, out, _ = run(2, START + """
if rank == 1:
    time.sleep(0.3)
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(60)
""", "--timeout-grace", "0.1")
    assert code == 1 and 2 < time.monotonic() - began < 6 and not any(map(alive, pids(out)))


@pytest.mark.parametrize(
    "number, code, words", [(signal.SIGINT, 130, "interrupted; the ranks have 10 s"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_interrupting_the_launcher_ends_all_and_says_so(run, number, code, words):
    process = run.start(3, START + "time.sleep(60)")
    out = until_lines(process, 3)
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == code and time.monotonic() - began < 1.9, "it took a SIGKILL"
    assert err.count("hocket run:") == 1 and words in err and not any(map(alive, pids(out)))


SAVES = START + """
def stop(number, frame):
    raise SystemExit(f"rank {rank} got {signal.Signals(number).name}")
if NUMBER != signal.SIGINT:
    signal.signal(NUMBER, stop)
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("except", rank, flush=True)
    sys.exit(3)
finally:
    time.sleep(1.5)  # longer than it once had
    print("saved", rank, flush=True)
"""


@pytest.mark.parametrize(
    "number, code",
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.more)],
)
def test_ranks_save_what_they_have(run, number, code):
    process = run.start(2, f"import signal; NUMBER = signal.{number.name}\n" + SAVES)
    out = until_lines(process, 4)
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert all(f"[{rank}] saved {rank}" in out for rank in range(2))
    if number == signal.SIGINT:
        assert all(f"[{rank}] except {rank}" in out for rank in range(2))
    else:
        assert all(f"[{rank}] rank {rank} got {number.name}" in err for rank in range(2))


DEAF = START + """
signal.signal(signal.SIGINT, lambda number, frame: print("SIGINT", rank, flush=True))
signal.signal(signal.SIGTERM, lambda number, frame: print("SIGTERM", rank, flush=True))
print("ready", flush=True)
while True:
    time.sleep(60)
"""


def test_after_the_grace_sigterm_then_sigkill(run):
    process = run.start(2, DEAF, "--grace", "0.5")
    pid = until_lines(process, 4)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 130 and 2.3 < time.monotonic() - began < 5 and not any(map(alive, pids(pid)))
    for rank in range(2):
        assert [line for line in out.splitlines() if f"[{rank}]" in line] == [
            f"[{rank}] SIGINT {rank}", f"[{rank}] SIGTERM {rank}",
        ]  # fmt: skip


def test_a_second_ctrl_c_shortens_the_grace(run):
    """The second is SIGTERM, the third SIGKILL; one that comes with the first counts with it."""
    process = run.start(2, DEAF)
    pid = until_lines(process, 4)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said = until_lines(process, 2)
    assert said.count("SIGINT") == 2
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    said = until_lines(process, 2)
    assert said.count("SIGTERM") == 2
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130 and time.monotonic() - began < 3 and not any(map(alive, pids(pid)))
    assert out == "" and err.count("interrupted") == 1


def test_ctrl_c_in_a_terminal_reaches_only_the_launcher(run):
    process, master = in_terminal(run, 2, START + "time.sleep(60)")
    out = until_lines(process, 2)
    os.write(master, b"\x03")
    assert process.wait(timeout=10) == 130
    said = b""
    try:
        while more := os.read(master, 4096):
            said += more
    except OSError:
        pass
    os.close(master)
    process.stdout.close()
    assert said.count(b"KeyboardInterrupt") == 2, "the terminal's own reached the ranks too"
    assert b"hocket run: interrupted" in said and not any(map(alive, pids(out)))


def test_a_stopped_rank_and_grandchildren_end_too(run):
    process = run.start(2, START + """
import subprocess
print("pid", subprocess.Popen(["sleep", "60"]).pid)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
""")
    out = until_lines(process, 4)
    time.sleep(0.3)  # until it has stopped
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert len(pids(out)) == 4 and not any(map(alive, pids(out)))
    assert time.monotonic() - began < 1.9, "SIGTERM did not reach the stopped rank"


def test_what_a_finished_rank_left_behind_ends_with_it(run):
    code, out, _ = run(2, START + """
import subprocess
print("pid", subprocess.Popen(["sleep", "60"]).pid)
""")
    assert code == 0 and len(pids(out)) == 4
    time.sleep(0.1)
    assert not any(map(alive, pids(out)))


def in_terminal(run, n, program):
    """A run whose controlling terminal is a new one; (process, master)."""
    master, slave = pty.openpty()
    process = run.start(
        n, program, stdin=slave, stderr=slave, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    return process, master


def test_rank_0_reads_from_the_terminal(run):
    process, master = in_terminal(run, 2, START + """
if rank == 0:
    print("got", sys.stdin.readline())
""")
    os.write(master, b"a word\n")
    out, _ = process.communicate(timeout=10)
    os.close(master)
    assert "got a word" in out and process.returncode == 0


def test_ranks_die_with_a_killed_launcher(run):
    process = run.start(2, START + "time.sleep(60)")
    out = until_lines(process, 2)
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    end = time.monotonic() + 3
    while any(map(alive, pids(out))):
        assert time.monotonic() < end
        time.sleep(0.02)
    (left,) = os.listdir(run.tmp)  # the one case in which the directory stays
    os.rmdir(os.path.join(run.tmp, left))


def test_a_reader_that_goes_away_ends_the_job(run):
    process = run.start(2, START + "\nwhile True: print('x' * 1000)")
    out = until_lines(process, 40)
    process.stdout.close()
    assert process.wait(timeout=10) == 141
    process.stderr.close()
    assert not any(map(alive, pids(out)))


def test_a_signal_ends_a_job_that_is_still_starting(tmp_path):
    """Of very many ranks: it does not start all of them before it listens."""
    line = ["sh", "-c", "echo $$ >> pids; exec sleep 60"]
    with subprocess.Popen([*RUN, "-n", "4096", "--", *line], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        while not (tmp_path / "pids").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)
    started = [int(text) for text in (tmp_path / "pids").read_text().split()]
    assert 0 < len(started) < 2000 and not any(map(alive, started))


def test_what_cannot_be_run(run, tmp_path):
    done = subprocess.run([*RUN, "-n", "2", "no-such-command"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 127 and "no-such-command" in done.stderr and "Traceback" not in done.stderr
    for words in ([], ["-n", "0", "x.py"], ["-n", "2"], ["-n", "100000", "x.py"]):
        done = subprocess.run([*RUN, *words], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and "usage: hocket run" in done.stderr


# --- the merging alone ---


def screen_of(*words):
    """The screen after sources said words: (source, bytes), each flushed as after a pause."""
    shown, screen = [], Screen()
    sources = [Source(b"[%d] " % number, screen, shown.append) for number in range(2)]
    for number, data in words:
        sources[number].feed(data, 0.0)
        sources[number].flush()
    for source in sources:
        source.finish()
    return b"".join(shown)


@pytest.mark.parametrize(
    "words, screen",
    [
        ([(0, b"a\nb\n")], b"[0] a\n[0] b\n"),
        ([(0, b"a"), (0, b"b\n")], b"[0] ab\n"),
        ([(0, b"a"), (1, b"x\n"), (0, b"b\n")], b"[0] a\n[1] x\n[0] b\n"),
        ([(0, b"a"), (1, b"x\n"), (0, b"\n"), (0, b"b\n")], b"[0] a\n[1] x\n[0] b\n"),
        ([(0, b"\n\n")], b"[0] \n[0] \n"),
        ([(0, b"a"), (1, b"\n"), (0, b"\n")], b"[0] a\n[1] \n"),
        ([(0, b"\r10%"), (0, b"\r20%"), (0, b"\n")], b"[0] 10%\r[0] 20%\n"),
        ([(0, b"\r10%"), (1, b"x\n"), (0, b"\r20%"), (0, b"\n")], b"[0] 10%\n[1] x\n[0] 20%\n"),
        ([(0, b"a\r\nb\r\n")], b"[0] a\n[0] b\n"),
        ([(0, b"no end"), (1, b"nor here")], b"[0] no end\n[1] nor here\n"),
    ],
)
def test_merging(words, screen):
    assert screen_of(*words) == screen


def test_a_line_that_comes_in_pieces_is_held_a_moment():
    shown, screen = [], Screen()
    one, other = (Source(b"[%d] " % number, screen, shown.append) for number in range(2))
    one.feed(b"hel", 1.0)
    other.feed(b"x\n", 1.0)
    one.feed(b"lo\r", 1.001)
    assert one.due() == pytest.approx(1.02) and other.due() is None
    one.feed(b"\n", 1.002)
    assert b"".join(shown) == b"[1] x\n[0] hello\n" and one.due() is None
