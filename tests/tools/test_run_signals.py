"""The end of `hocket run`: signals, graces, and that nothing is left behind."""

import os
import signal
import subprocess
import time

import pytest

from support.launcher import RUN, START, STAYS, alive, in_terminal, pids, state, until_dead, until_lines

PATIENT = "--grace", "60"


def test_the_others_have_time_to_report(run):
    code, _, err = run(2, START + """
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3)
print("I saw it", file=sys.stderr)
sys.exit(3)
""", "--timeout-grace", "30")
    assert code == 137 and "[0] I saw it" in err and "rank 1" in err and "was killed by SIGKILL" in err


def test_a_rank_that_ignores_sigterm_is_killed(run):
    began = time.monotonic()
    code, out, _ = run(2, START + """
if rank == 1:
    while not os.path.exists(__file__ + ".deaf"):
        time.sleep(0.01)
    sys.exit(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(__file__ + ".deaf", "w").close()
time.sleep(60)
""", "--timeout-grace", "0.1", limits={"TERM": 0.5})
    waited = time.monotonic() - began
    assert code == 1 and waited > 0.6, "SIGKILL comes after both"
    assert not any(map(alive, pids(out)))


@pytest.mark.parametrize(
    "number, code, words", [(signal.SIGINT, 130, "interrupted; the ranks have 60 s"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_interrupting_the_launcher_ends_all_and_says_so(run, number, code, words):
    process = run.start(3, START + STAYS, *PATIENT, limits={"TERM": 60})
    out = until_lines(process, 3)
    process.send_signal(number)
    _, err = process.communicate(timeout=50)  # it takes no SIGKILL, nor the SIGTERM after 60 s
    assert process.returncode == code
    assert err.count("hocket run:") == 1 and words in err and not any(map(alive, pids(out)))


SAVES = START + """
def stop(number, frame):
    raise SystemExit(f"rank {rank} got {signal.Signals(number).name}")
if NUMBER != signal.SIGINT:
    signal.signal(NUMBER, stop)
try:
    print("ready", flush=True)
    for _ in range(3000):  # a signal that comes just before a sleep begins is looked at behind it
        time.sleep(0.02)
except KeyboardInterrupt:
    print("except", rank, flush=True)
    sys.exit(3)
finally:
    time.sleep(0.5)
    print("saved", rank, flush=True)
"""


@pytest.mark.parametrize(
    "number, code",
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.more)],
)
def test_ranks_save_what_they_have(run, number, code):
    process = run.start(2, f"import signal; NUMBER = signal.{number.name}\n" + SAVES, *PATIENT)
    out = until_lines(process, 4)
    process.send_signal(number)
    out, err = process.communicate(timeout=50)
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
    process = run.start(2, DEAF, "--grace", "0.3", limits={"TERM": 3.5})
    pid = until_lines(process, 4)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    waited = time.monotonic() - began
    assert process.returncode == 130 and waited > 3.6 and not any(map(alive, pids(pid)))
    for rank in range(2):
        assert [line for line in out.splitlines() if f"[{rank}]" in line] == [
            f"[{rank}] SIGINT {rank}", f"[{rank}] SIGTERM {rank}",
        ]  # fmt: skip


def test_a_second_ctrl_c_shortens_the_grace(run):
    """The second is SIGTERM, the third SIGKILL; one that comes with the first counts with it."""
    process = run.start(2, DEAF, *PATIENT, limits={"TERM": 60, "SAME": 2.0})
    pid = until_lines(process, 4)
    process.send_signal(signal.SIGINT)
    said = until_lines(process, 2)
    process.send_signal(signal.SIGINT)
    assert said.count("SIGINT") == 2
    time.sleep(4.0)  # the launcher may have heard the second one late
    process.send_signal(signal.SIGINT)
    said = until_lines(process, 2)
    assert said.count("SIGTERM") == 2
    time.sleep(2.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=50)
    assert process.returncode == 130 and not any(map(alive, pids(pid)))
    assert out == "" and err.count("interrupted") == 1


def test_ctrl_c_in_a_terminal_reaches_only_the_launcher(run):
    process, master = in_terminal(run, 2, START + STAYS)
    out = until_lines(process, 2)
    os.write(master, b"\x03")
    assert process.wait(timeout=60) == 130
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
""" + STAYS, *PATIENT, limits={"TERM": 60})
    out = until_lines(process, 4)
    while "T" not in map(state, pids(out)):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=50)  # a SIGTERM is not needed
    assert len(pids(out)) == 4 and not any(map(alive, pids(out)))


def test_what_a_finished_rank_left_behind_ends_with_it(run):
    code, out, _ = run(2, START + """
import subprocess
print("pid", subprocess.Popen(["sleep", "60"]).pid)
""")
    assert code == 0 and len(pids(out)) == 4
    until_dead(pids(out))


def test_ranks_die_with_a_killed_launcher(run):
    process = run.start(2, START + "time.sleep(60)")
    out = until_lines(process, 2)
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    until_dead(pids(out))
    (left,) = os.listdir(run.tmp)  # the one case in which the directory stays, until the next job
    living = run.start(1, START + "time.sleep(60)")
    until_lines(living, 1)
    (place,) = os.listdir(run.tmp)
    assert place != left
    assert run(1, "")[0] == 0 and os.listdir(run.tmp) == [place], "that of a job under way stays"
    living.terminate()
    living.communicate(timeout=60)


def test_a_reader_that_goes_away_ends_the_job(run):
    process = run.start(2, START + "\nwhile True: print('x' * 1000)")
    out = until_lines(process, 40)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    process.stderr.close()
    assert not any(map(alive, pids(out)))


def test_a_signal_ends_a_job_that_is_still_starting(tmp_path):
    """Even a job of very many ranks can be ended: it does not start all of them before it listens."""
    line = ["sh", "-c", "echo $$ >> pids; [ $HOCKET_RANK -lt 20 ] || kill -TERM $PPID; exec sleep 60"]
    subprocess.run([*RUN, "-n", "4096", "--", *line], cwd=tmp_path, stderr=subprocess.DEVNULL, timeout=100)
    started = [int(text) for text in (tmp_path / "pids").read_text().split()]
    assert 0 < len(started) < 2000 and not any(map(alive, started))
