"""SIGUSR2: a rank in a call says what all ranks did last, and goes on; a program's own handler stays."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from hocket.tools import top
from support.faulty import wait_for
from support.jobs import Job, run

WAITS = """
import pathlib, time
import hocket, numpy as np
comm = hocket.init()
comm.allreduce(np.ones(2))
place = pathlib.Path({place!r})
(place / str(comm.rank)).write_text("")
while comm.rank == 1 and not (place / "go").exists():
    time.sleep(0.02)
comm.allreduce(np.ones(3))
comm.close()
"""


def _waits(pid: int) -> bool:
    return any(each.inside for rows in top.look([pid]).jobs.values() for row in rows for each in row.standings)


def test_a_rank_that_waits_answers_and_goes_on(tmp_path: Path) -> None:
    with Job(2, WAITS.format(place=str(tmp_path)), env={"TMPDIR": str(tmp_path)}) as job:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("[01]"))) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        wait_for(lambda: _waits(job.processes[0].pid), what="rank 0 in its call")
        job.signal(0, signal.SIGUSR2)
        while not list(tmp_path.glob("hocket-events-*/*.txt")) and time.monotonic() < until:
            time.sleep(0.02)
        (tmp_path / "go").write_text("")
        ends = job.wait()
    assert [end.code for end in ends] == [0, 0], ends
    path = re.search(r"did last: (\S+)", ends[0].err)
    assert path, ends[0]
    text = Path(path[1]).read_text()
    assert "in call 2, allreduce(float64[3], op='sum') at rank.py:10 in <module>, waits for rank 1 since" in text, text
    assert Path(path[1]).stat().st_mode & 0o777 == 0o600 and "has finished call 1" in text


def test_the_jobs_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    """Rank 0 draws it, and the others believe it."""
    source = """
        import os, signal, sys
        sys.modules["secrets"] = secrets = __import__("secrets")
        draw = secrets.token_hex
        secrets.token_hex = lambda n=None: "../../outside" if os.environ["HOCKET_RANK"] == "0" and n == 6 else draw(n)
        import hocket
        comm = hocket.init()
        comm.barrier()
        os.kill(os.getpid(), signal.SIGUSR2)
        comm.barrier()
        print(comm.recorder()._own.job)
    """
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert run(2, source, stay=False, TMPDIR=str(folder), XDG_RUNTIME_DIR="") == ["../../outside\n"] * 2
    assert len(list(folder.glob("hocket-events-*/*outside-rank*"))) == 2
    assert not list(tmp_path.glob("**/outside*"))


OWN = """
import os, signal
heard = []
signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
import hocket
comm = hocket.init()
os.kill(os.getpid(), signal.SIGUSR2)
print(len(heard))
comm.close()
"""


def test_a_handler_of_the_program_stays() -> None:
    assert run(1, OWN) == ["1\n"]
