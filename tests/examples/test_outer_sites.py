"""examples/outer_sites.py: four sites at 10 Mbit/s; one is killed and comes back, and all end with the same bits."""

import contextlib
import os
import re
import secrets
import signal
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest

from hocket.system.namespaces.hosts import V4, refusal
from hocket.system.namespaces.switch import switch
from support import examples
from support.warm.popen import Popen

PROGRAM = examples.program("outer_sites", "--sites", "4")


class Sites:
    """Their processes, each on a host of its own where the system allows hosts, and what they say."""

    def __init__(self, place: Path, names: list[str]) -> None:
        self.place, self.names, self.script = place, names, place / "site.py"
        self.script.write_text(PROGRAM)
        (place / "tmp").mkdir()  # each host sees a folder of its own there
        self.lines: list[str] = []
        self.lost, self.fewer, self.processes = threading.Event(), threading.Event(), list[Popen]()
        self._readers: list[threading.Thread] = []
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")},
            "HOCKET_SECRET": secrets.token_hex(16), "HOCKET_ELASTIC": "1", "HOCKET_JOIN": "auto",
            "HOCKET_LOBBY": str(place / "lobby"), "TMPDIR": str(place / "tmp"), "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": "4", "MASTER_ADDR": V4[0] if names else "127.0.0.1", "MASTER_PORT": "29531",
        }  # fmt: skip

    def start(self, site: int) -> None:
        """The same words when it starts again."""
        own = self.place / f"host{site}"
        own.mkdir(exist_ok=True)
        host = (self.names[site], str(own)) if self.names else ()
        command, env = [sys.executable, str(self.script)], {**self._env, "RANK": str(site), "PYTHONUNBUFFERED": "1"}
        process = Popen(command, env=env, host=host, stdout=PIPE, stderr=PIPE, text=True)
        self.processes.append(process)
        self._readers.append(threading.Thread(target=self._read, args=(process,)))
        self._readers[-1].start()

    def _read(self, process: Popen) -> None:
        for line in process.stdout:
            self.lines.append(line)
            if "round 5:" in line:
                self.lost.set()
            if ": 3 sites" in line:
                self.fewer.set()
        self.lines += process.stderr

    def wait(self, seconds: float) -> list[int]:
        codes = [each.wait(seconds) for each in self.processes]
        for reader in self._readers:
            reader.join()
        return codes

    def kill(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait()


@pytest.mark.more
@pytest.mark.timeout(300)
def test_a_site_is_lost_and_found_again(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        names = [] if refusal() else stack.enter_context(switch(4, "10mbit")).hosts
        sites = Sites(tmp_path, names)
        stack.callback(sites.kill)
        for site in range(4):
            sites.start(site)
        assert sites.lost.wait(120), sites.lines
        (pid,) = re.findall(r"site 2 of 4, pid (\d+), from round 0", "".join(sites.lines))
        os.kill(int(pid), signal.SIGKILL)
        sites.processes[2].wait(60)
        assert sites.fewer.wait(60), sites.lines
        sites.start(2)
        codes = sites.wait(120)
    out = "".join(sites.lines)
    assert [codes[site] for site in (0, 1, 3, 4)] == [0] * 4 and codes[2], out
    assert "round 5: 4 sites" in out and re.search(r"round \d+: 3 sites", out), out
    back = re.search(r"site 3 of 4, pid \d+, from round ([1-9]\d*)", out)
    assert back and int(back[1]) > 5, out
    ends = re.findall(r"([\d.]+)% of the digits, digest (\w+)", out)
    assert len(ends) == 4 and len(set(ends)) == 1 and float(ends[0][0]) > 85, out
