"""`hocket run` with real processes: what ranks get, what they print, and what they read."""

import contextlib
import os
import pty
import subprocess

import pytest

from support.launcher import RUN, START, in_terminal


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
    """The program runs as under torchrun: it finds its place by env://."""
    pytest.importorskip("torch")
    code, out, err = run(2, """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
for backend in ("gloo", "hocket"):
    x = torch.ones(3) + dist.get_rank()
    dist.all_reduce(x, group=dist.new_group(backend=backend))
    print(backend, dist.get_world_size(), int(os.environ["LOCAL_RANK"]), x[0].item())
dist.destroy_process_group()
""", env={**run.env, "GLOO_SOCKET_IFNAME": "lo"})
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[{rank}] {b} 2 {rank} 3.0" for rank in range(2) for b in ("gloo", "hocket")]


def test_a_long_tmpdir_does_not_keep_ranks_from_shared_memory(run, tmp_path):
    """Its sockets' paths would not fit."""
    place = tmp_path / ("x" * 100) / ("y" * 100)
    place.mkdir(parents=True)
    program = "import hocket\nwith hocket.init() as comm: print(comm.world.transport(1 - comm.rank))"
    code, out, err = run(2, program, env={**run.env, "TMPDIR": str(place)})
    assert (code, sorted(out.splitlines())) == (0, ["[0] shm", "[1] shm"]), err
    assert os.listdir(place) == []


def test_ranks_meet(run):
    code, out, err = run(3, """
import os
from hocket.collectives.base.config import Config
from hocket.collectives.job.place import detect
from hocket.control.rendezvous import Identity, Where, join
config = Config.from_env()
place = detect(os.environ, config)
session = join(Identity(place.rank, place.size, place.job, place.key), Where(place.address), 10)
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


@pytest.mark.parametrize("terminal", [False, True])
def test_lines_stay_whole_without_prefixes(run, terminal):
    """A print of several arguments writes them apart where Python's output is not buffered."""
    run.env.pop("PYTHONUNBUFFERED", None)
    source = START + """
import time
time.sleep(0.5 - time.time() % 0.5)     # together
for i in range(500):
    print("out", rank, i, "end")
"""
    if terminal:
        end, theirs = pty.openpty()
        process, out = run.start(3, source, "--no-prefix", stdout=theirs, stderr=theirs), b""
        os.close(theirs)
        with contextlib.suppress(OSError):  # EIO: all have closed it
            while data := os.read(end, 1 << 16):
                out += data
        os.close(end)
        code, text = process.wait(60), out.decode()
    else:
        code, text, _ = run(3, source, "--no-prefix")
    lines = [line for line in text.splitlines() if line.startswith("out")]
    assert code == 0 and sorted(lines) == sorted(f"out {rank} {i} end" for rank in range(3) for i in range(500))


def test_no_prefix_and_arguments_and_plain_commands(run, tmp_path):
    code, out, _ = run(2, "import os; os.write(1, b'plain\\n')", "--no-prefix")
    assert code == 0 and out == "plain\nplain\n"
    done = subprocess.run([*RUN, "-n", "2", "--", "echo", "-n", "x y"], capture_output=True, text=True, timeout=60)
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
    while b"[0] name? " not in said:  # raw: a buffered reader would wait for the line's end; rank 1 may be later
        said += os.read(process.stdout.fileno(), 100)
    out, _ = process.communicate("you\n", timeout=60)
    assert "hello you" in out and process.returncode == 0


def test_rank_0_reads_from_the_terminal(run):
    process, master = in_terminal(run, 2, START + """
if rank == 0:
    print("got", sys.stdin.readline())
""")
    os.write(master, b"a word\n")
    out, _ = process.communicate(timeout=60)
    os.close(master)
    assert "got a word" in out and process.returncode == 0


def test_what_cannot_be_run(run, tmp_path):
    done = subprocess.run([*RUN, "-n", "2", "no-such-command"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 127 and "no-such-command" in done.stderr and "Traceback" not in done.stderr
    for words in ([], ["-n", "0", "x.py"], ["-n", "2"], ["-n", "100000", "x.py"]):
        done = subprocess.run([*RUN, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "usage: hocket run" in done.stderr


def test_ranks_are_bound(run):
    """Started or forked: to cores of their own while there are any, else to their node's."""
    cores = sorted(os.sched_getaffinity(0))
    program = "import os; print(sorted(os.sched_getaffinity(0)))"
    code, out, err = run(len(cores), program, "--bind", "core")
    assert (code, sorted(eval(line.split("]", 1)[1])[0] for line in out.splitlines())) == (0, cores), err
    code, out, err = run(len(cores) + 1, program, "--bind", "numa")
    assert code == 0 and {cpu for line in out.splitlines() for cpu in eval(line.split("]", 1)[1])} == {*cores}, err
    code, out, err = run(len(cores) + 1, program, "--bind", "core")
    assert code == 1 and "give --bind numa or none, or fewer ranks" in err and not out
